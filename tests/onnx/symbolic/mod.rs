//! Models with symbolic extents against the same models with numbers: one compiled graph for every binding must give what a
//! graph compiled for that binding gives.

use tlc::onnx::{ImportOptions, import};
use tlc::{CompileOptions, DType, Executable, HostTensor, Input, compile_ir};

mod compute;
mod moves;

use crate::proto::*;
use Of::{Below, F32, Mask};

/// An input: name, kind of elements, extents by number or symbol.
type Operand = (&'static str, Of, &'static str);

/// What the elements of an input are.
#[derive(Clone, Copy)]
enum Of {
    /// Floats from -2 to 2.
    F32,
    /// Integers below a number.
    Below(i64),
    /// True every third time.
    Mask,
}

struct Case {
    name: &'static str,
    opset: i64,
    inputs: Vec<Operand>,
    constants: Vec<Message>,
    nodes: Vec<Message>,
    /// Bindings of the symbols `n`, `l` and `m`.
    bindings: Vec<[i64; 3]>,
    outputs: usize,
}

fn case(name: &'static str, opset: i64, inputs: &[Operand], constants: Vec<Message>, nodes: Vec<Message>) -> Case {
    Case {
        name,
        opset,
        inputs: inputs.to_vec(),
        constants,
        nodes,
        bindings: vec![
            [1, 5, 4],
            [3, 8, 6],
            [2, 13, 5],
            [4, 6, 9],
            [0, 5, 4],
            [2, 0, 4],
            [2, 6, 0],
        ],
        outputs: 1,
    }
}

impl Case {
    fn at_opset(mut self, opset: i64) -> Case {
        self.opset = opset;
        self
    }

    /// With `y` and `z` as outputs.
    fn two(mut self) -> Case {
        self.outputs = 2;
        self
    }

    fn bound(mut self, bindings: &[[i64; 3]]) -> Case {
        self.bindings = bindings.to_vec();
        self
    }
}

const SYMBOLS: [&str; 3] = ["n", "l", "m"];

fn extent(word: &str, binding: Option<[i64; 3]>) -> D {
    match (SYMBOLS.iter().position(|s| *s == word), binding) {
        (Some(i), Some(numbers)) => D::N(numbers[i]),
        (Some(i), None) => D::Sym(SYMBOLS[i]),
        (None, _) => D::N(word.parse().expect("an extent")),
    }
}

fn bytes(case: &Case, binding: Option<[i64; 3]>) -> Vec<u8> {
    let mut inputs = vec![];
    for (name, of, shape) in &case.inputs {
        let dims: Vec<D> = shape.split_whitespace().map(|w| extent(w, binding)).collect();
        let element = match of {
            F32 => FLOAT,
            Below(_) => INT64,
            Mask => BOOL,
        };
        inputs.push(value(name, element, &dims));
    }
    let outputs = ["y", "z"][..case.outputs].iter().map(|n| result(n));
    let g = graph(case.nodes.clone(), case.constants.clone(), inputs, outputs.collect());
    model_of(case.opset, g, vec![])
}

fn compiled(case: &Case, binding: Option<[i64; 3]>) -> Result<Executable, String> {
    let imported = import(&bytes(case, binding), &ImportOptions::default()).map_err(|e| e.to_string())?;
    let options = CompileOptions {
        threads: Some(1),
        ..CompileOptions::default()
    };
    compile_ir(&imported.graph, &options).map_err(|e| e.to_string())
}

fn operands(case: &Case, binding: [i64; 3]) -> Vec<HostTensor> {
    let mut all = vec![];
    for (k, (_, of, shape)) in case.inputs.iter().enumerate() {
        let shape: Vec<usize> = shape
            .split_whitespace()
            .map(|w| match extent(w, Some(binding)) {
                D::N(n) => n as usize,
                D::Sym(_) => unreachable!("bound"),
            })
            .collect();
        let count: usize = shape.iter().product();
        let at = |i: usize| (i * 37 + k * 11) % 101;
        all.push(match of {
            F32 => {
                let data: Vec<f32> = (0..count).map(|i| at(i) as f32 / 25.0 - 2.0).collect();
                HostTensor::from_slice(&shape, &data)
            }
            Below(n) => {
                let data: Vec<i64> = (0..count).map(|i| at(i) as i64 % n).collect();
                HostTensor::from_slice(&shape, &data)
            }
            Mask => {
                let data: Vec<bool> = (0..count).map(|i| at(i) % 3 != 0).collect();
                HostTensor::from_slice(&shape, &data)
            }
        });
    }
    all.into_iter().map(|t| t.expect("a tensor")).collect()
}

fn run(executable: &Executable, operands: &[HostTensor]) -> Result<Vec<HostTensor>, String> {
    let inputs: Vec<Input<'_>> = operands.iter().map(Input::from).collect();
    let found = executable.run(&inputs).map_err(|e| e.to_string())?;
    Ok(found.iter().map(|o| o.to_host()).collect())
}

/// Equal types and shapes; floats may differ by what the order of sums makes.
fn alike(a: &HostTensor, b: &HostTensor) -> bool {
    let close = |i: usize| match a.dtype() {
        DType::F32 => {
            let (x, y) = (a.get(i).as_f64(), b.get(i).as_f64());
            x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= 1e-5 * (1.0 + y.abs())
        }
        _ => a.get(i) == b.get(i),
    };
    a.dtype() == b.dtype() && a.shape() == b.shape() && (0..a.len()).all(close)
}

fn failures(case: &Case) -> Vec<String> {
    let name = case.name;
    let symbolic = match compiled(case, None) {
        Ok(e) => e,
        Err(e) => return vec![format!("{name}: symbolic: {e}")],
    };
    let mut wrong = vec![];
    for &binding in &case.bindings {
        let operands = operands(case, binding);
        let fixed = compiled(case, Some(binding)).and_then(|e| run(&e, &operands));
        match (run(&symbolic, &operands), fixed) {
            (Ok(a), Ok(b)) => {
                for (a, b) in a.iter().zip(&b).filter(|(a, b)| !alike(a, b)) {
                    wrong.push(format!("{name} {binding:?}: symbolic {a:?}, fixed {b:?}"));
                }
            }
            // What has no elements may be refused where the import sees it.
            (_, Err(_)) if binding.contains(&0) => {}
            (a, b) => wrong.push(format!(
                "{name} {binding:?}: symbolic {:?}, fixed {:?}",
                a.err(),
                b.err()
            )),
        }
    }
    wrong
}

fn check(cases: Vec<Case>) {
    let wrong: Vec<String> = cases.iter().flat_map(failures).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn i(name: &str, data: &[i64]) -> Message {
    ints(name, &[data.len() as i64], data)
}

fn f(name: &str, dims: &[i64]) -> Message {
    let count: i64 = dims.iter().product();
    let data: Vec<f32> = (0..count).map(|i| ((i * 29) % 17) as f32 / 8.0 - 1.0).collect();
    floats(name, dims, &data)
}

fn numbers(name: &str, data: &[f32]) -> Message {
    floats(name, &[data.len() as i64], data)
}
