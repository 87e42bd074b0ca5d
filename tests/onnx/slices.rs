//! Slices against what ONNX Runtime takes (`tests/reference/onnx_slice.txt`, recorded by `onnx_slice.py` there).

use std::collections::BTreeMap;

use tlc::onnx::{ImportOptions, import};
use tlc::{CompileOptions, Executable, HostTensor, Input, Specialize, compile_ir};

use crate::proto::A::I;
use crate::proto::*;

const TABLE: &str = include_str!("../reference/onnx_slice.txt");

fn compiled(g: Message) -> Executable {
    let imported = import(&model(g, vec![]), &ImportOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    let options = CompileOptions {
        specialize: Specialize::Never,
        ..CompileOptions::default()
    };
    compile_ir(&imported.graph, &options).expect("it compiles")
}

fn taken(executable: &Executable, extent: usize) -> Vec<f32> {
    let x: Vec<f32> = (0..extent).map(|i| i as f32).collect();
    let x = HostTensor::from_slice(&[extent], &x).expect("a tensor");
    let out = executable.run(&[Input::from(&x)]).expect("it runs");
    out[0].as_slice::<f32>().expect("f32").to_vec()
}

#[test]
fn slices_take_what_onnx_runtime_takes() {
    let mut slices: BTreeMap<[i64; 3], Vec<(usize, Vec<f32>)>> = BTreeMap::new();
    for line in TABLE.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let numbers: Vec<i64> = words[..4].iter().map(|w| w.parse().expect("a number")).collect();
        let elements = words[4].split(',').filter(|e| *e != "-");
        let elements = elements.map(|e| e.parse().expect("an element")).collect();
        let slice = slices.entry([numbers[1], numbers[2], numbers[3]]).or_default();
        slice.push((numbers[0] as usize, elements));
    }
    let y = || vec![value("y", FLOAT, &[])];
    let mut wrong = Vec::new();
    for ([start, end, step], cases) in slices {
        let numbers = || {
            vec![
                ints("start", &[1], &[start]),
                ints("end", &[1], &[end]),
                ints("axis", &[1], &[0]),
                ints("step", &[1], &[step]),
            ]
        };
        let nodes = || vec![op("Slice x start end axis step -> y", &[])];
        let any = compiled(graph(nodes(), numbers(), vec![value("x", FLOAT, &[D::Sym("n")])], y()));
        for (extent, expected) in cases {
            let x = value("x", FLOAT, &[D::N(extent as i64)]);
            let fixed = compiled(graph(nodes(), numbers(), vec![x], y()));
            // Of sizes, which the importer computes itself.
            let mut constants = numbers();
            let counted: Vec<i64> = (0..extent as i64).collect();
            constants.push(ints("counted", &[extent as i64], &counted));
            let of_sizes = vec![
                op("Slice counted start end axis step -> part", &[]),
                op("ConstantOfShape part -> cells", &[]),
                op("Shape cells -> again", &[]),
                op("Cast again -> y", &[("to", I(1))]),
            ];
            let sizes = compiled(graph(of_sizes, constants, vec![value("x", FLOAT, &[D::Sym("n")])], y()));
            for (how, found) in [
                ("fixed", taken(&fixed, extent)),
                ("symbolic", taken(&any, extent)),
                ("sizes", taken(&sizes, extent)),
            ] {
                if found != expected {
                    wrong.push(format!(
                        "{how} {extent} {start} {end} {step}: {found:?} for {expected:?}"
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong: {wrong:#?}", wrong.len());
}
