//! Names every type that a user of tlc meets, without naming another crate of tlc's than `tlc`.

use std::collections::BTreeMap;
use std::error::Error;

use ndarray::{Array2, Ix1, Ix2, array, s};
use tlc::onnx::{ImportError, Model, ModelError};
use tlc::{
    Attention, BuildError, CompileOptions, DType, Datum, Dim, Element, EvalError, Executable, Graph, HostTensor, Input,
    MemoryNeed, Output, OutputMut, Outputs, RunError, Scalar, Specialization, Specialize, StepTime, Tensor,
    TensorError, TensorView, Watched, WrongType, inputs, keep, outputs,
};

/// What a program keeps of a model.
#[derive(Debug)]
struct Scorer {
    executable: Executable,
    latest: Option<Output>,
}

#[derive(Debug)]
enum Failure {
    Build(BuildError),
    Run(RunError),
    Type(WrongType),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Build(e) => e.fmt(f),
            Failure::Run(e) => e.fmt(f),
            Failure::Type(e) => e.fmt(f),
        }
    }
}

impl Error for Failure {}

impl From<BuildError> for Failure {
    fn from(e: BuildError) -> Failure {
        Failure::Build(e)
    }
}

impl From<RunError> for Failure {
    fn from(e: RunError) -> Failure {
        Failure::Run(e)
    }
}

impl From<WrongType> for Failure {
    fn from(e: WrongType) -> Failure {
        Failure::Type(e)
    }
}

fn softmax(x: &Tensor) -> Tensor {
    let e = (x - x.max(keep(-1))).exp();
    &e / e.sum(keep(-1))
}

impl Scorer {
    fn new() -> Result<Scorer, Failure> {
        let g = Graph::new("scores");
        let rows: Dim = g.symbol("rows", 1..=1024);
        let x = g.input("x", DType::F32, (&rows, 3));
        let mask = g.input("mask", DType::Bool, [3]);
        g.output("y", &softmax(&mask.select(&x, f32::NEG_INFINITY)));
        g.output("best", &x.argmax(1));
        let options = CompileOptions {
            threads: Some(1),
            specialize: Specialize::Never,
            ..CompileOptions::default()
        };
        Ok(Scorer {
            executable: g.compile(&options)?,
            latest: None,
        })
    }

    fn score(&mut self, x: &Array2<f32>, mask: &[bool]) -> Result<Vec<f32>, Failure> {
        let mut outputs: Outputs = self.executable.run_named(&inputs!["mask" => mask, "x" => x])?;
        let y = outputs["y"].as_array::<f32, Ix2>()?.iter().copied().collect();
        self.latest = outputs.pop();
        Ok(y)
    }
}

/// Generic code over element types.
fn doubled<T: Datum + Element>(values: &[T]) -> Result<Vec<T>, Box<dyn Error>> {
    let g = Graph::new("double");
    let x = g.input("x", T::DTYPE, [values.len()]);
    g.output("y", &(&x + &x));
    let outputs = g.compile(&CompileOptions::default())?.run(&[Input::from(values)])?;
    Ok(outputs[0].as_slice::<T>()?.to_vec())
}

fn tables() -> Result<(), Box<dyn Error>> {
    let g = Graph::new("table");
    let x = g.input("x", DType::F32, [2, 2]);
    g.output("y", &(&x * 2.0));
    let e = g.compile(&CompileOptions::default())?;
    let data = array![[1.0f32, 2.0], [3.0, 4.0]];
    let given = inputs![data.slice(s![..;-1, ..])];
    let need: MemoryNeed = e.memory(&given)?;
    assert!(need.total() > 0);
    let mut times: Vec<StepTime> = vec![];
    let mut y = [0f32; 4];
    let mut places: [OutputMut<'_>; 1] = outputs![&mut y];
    e.run_profiled(&given, &mut places, &mut times)?;
    drop(places);
    assert_eq!(y, [6.0, 8.0, 2.0, 4.0]);
    let mut steps = 0;
    e.run_watched(&given, &mut |w: &Watched<'_>| steps += usize::from(w.begins))?;
    assert_eq!(steps, e.plan().steps.len());
    let versions: Vec<Specialization> = e.specializations();
    assert!(versions.is_empty());
    let view = TensorView {
        dtype: DType::F32,
        shape: &[2, 2],
        data: &[0; 16],
    };
    let aligned = HostTensor::from_bytes(view.dtype, view.shape, view.data)?;
    assert_eq!(
        Input::from(TensorView {
            data: aligned.bytes(),
            ..view
        })
        .shape(),
        Some(&[2, 2][..])
    );
    let host: Result<HostTensor, TensorError> = HostTensor::full(&[2, 2], Scalar::from_f64(DType::F32, 0.5));
    let outputs = e.run(&inputs![&host?])?;
    assert_eq!(outputs["y"].to_string(), "y: f32[2, 2]\n[[1. 1.]\n [1. 1.]]");
    let plan: &tlc::ir::Plan = e.plan();
    let decided: &tlc::passes::Compiled = e.decisions();
    assert_eq!(plan.kernels.len(), decided.planned.plan.kernels.len());
    assert!(e.explain().contains("kernel"));
    Ok(())
}

fn files() -> Result<(), Box<dyn Error>> {
    let archive: BTreeMap<String, HostTensor> = BTreeMap::new();
    assert!(archive.is_empty());
    let missing: Result<Model, ModelError> = Model::open("no such file.onnx", &CompileOptions::default());
    assert!(missing.is_err());
    let nothing: Result<tlc::onnx::Imported, ImportError> = tlc::onnx::import(&[1, 2, 3], &Default::default());
    assert!(nothing.is_err());
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut scorer = Scorer::new()?;
    let x = array![[1.0f32, 1.0, 5.0], [0.0, 0.0, -1.0]];
    let y = scorer.score(&x, &[true, true, false])?;
    assert_eq!(y, [0.5, 0.5, 0.0, 0.5, 0.5, 0.0]);
    let best = scorer.latest.take().ok_or("a result")?;
    assert_eq!(best.as_array::<i64, Ix1>()?, array![2, 0]);
    println!("{:?}\n{best}", scorer.executable);
    assert_eq!(doubled(&[1.5f64, -2.0])?, [3.0, -4.0]);
    assert_eq!(doubled(&[7i32])?, [14]);
    tables()?;
    files()?;
    let g = Graph::default();
    let value: Result<Output, EvalError> = g.constant([[2.0f32, 0.0], [0.0, 0.5]]).det().eval();
    assert_eq!(value?.as_scalar::<f32>()?, 1.0);
    let q = g.constant([[[1.0f32, 0.0]]]);
    assert_eq!(
        q.attention(&q, &q, &Attention::new()).eval()?.as_slice::<f32>()?,
        [1.0, 0.0]
    );
    println!("done");
    Ok(())
}
