//! Exported models in ONNX Runtime: it takes them, and answers what this project does.
//!
//! `TLC_PYTHON` names a Python that has onnx and onnxruntime (python3 otherwise). Without them one SKIP line tells so.

use std::path::Path;
use std::process::Command;

use tlc::HostTensor;
use tlc_formats::npy;
use tlc_ir::graph::ViewKind;
use tlc_ir::testgen::{GenKind, GenOptions, random_case};
use tlc_ir::{DType, Graph, ScalarOp};

use crate::networks::recorded;
use crate::reversed;
use crate::same::run;

/// A case's folder: the model, the inputs and what this project answers. False if ONNX cannot say it.
fn write(folder: &Path, name: &str, graph: &Graph, inputs: &[HostTensor], tolerance: (f64, f64)) -> bool {
    if has_empty(graph) {
        return false;
    }
    let Ok(model) = tlc::onnx::export(graph) else {
        return false;
    };
    let place = folder.join(name);
    std::fs::create_dir(&place).expect("a folder");
    let mut bytes = vec![];
    model.write(&mut bytes).expect("written");
    std::fs::write(place.join("model.onnx"), bytes).expect("a file");
    let outputs = run(graph, inputs, &[]).unwrap_or_else(|e| panic!("{name}: {e}"));
    let outputs = outputs.iter().map(|(_, t)| t);
    for (what, all) in [("in", inputs.iter().collect::<Vec<_>>()), ("out", outputs.collect())] {
        for (k, tensor) in all.iter().enumerate() {
            let mut bytes = vec![];
            npy::write(tensor, &mut bytes).expect("written");
            std::fs::write(place.join(format!("{what}.{k}.npy")), bytes).expect("a file");
        }
    }
    let (relative, absolute) = tolerance;
    let text = serde_json::json!({ "relative": relative, "absolute": absolute }).to_string();
    std::fs::write(place.join("tolerance.json"), text).expect("a file");
    true
}

/// Whether a value has no elements: ONNX Runtime refuses to pad, reduce and index such, where ONNX says what they are.
fn has_empty(graph: &Graph) -> bool {
    let empty = |n: &tlc_ir::Node| n.ty.const_shape().is_some_and(|s| s.contains(&0)) && !n.kind.is_tuple();
    graph.nodes().any(|(_, n)| empty(n))
}

/// Random graphs of what differs little where operands do: no rounding to integers, no comparison, no index from data.
fn smooth(dtype: DType) -> GenOptions {
    use ScalarOp::*;
    let ops = vec![
        Neg, Abs, Sqrt, Rsqrt, Exp, Exp2, Expm1, Log, Log2, Log1p, Sin, Cos, Atan, Sinh, Cosh, Tanh, Asinh, Erf, Add,
        Sub, Mul, Div, Max, Min,
    ];
    use GenKind::*;
    let mut kinds = vec![Input, Const, Data, Map, Map, Map, Map, Map, Einsum, Reduce];
    kinds.extend(ViewKind::ALL.map(View));
    kinds.push(Copy);
    GenOptions {
        dtypes: vec![dtype],
        kinds,
        ops,
        guards: false,
        control: false,
        max_rank: 4,
        ..GenOptions::default()
    }
}

#[test]
fn onnx_runtime_answers_the_same() {
    let python = std::env::var("TLC_PYTHON").unwrap_or("python3".into());
    let found = Command::new(&python)
        .args(["-c", "import onnx, onnxruntime, numpy"])
        .output();
    if !found.is_ok_and(|o| o.status.success()) {
        println!("SKIP export in ONNX Runtime: {python} has no onnx and onnxruntime; TLC_PYTHON names one that has");
        return;
    }
    let place = tempfile::tempdir().expect("a folder");
    let mut written = 0;
    for (name, graph, inputs) in recorded() {
        assert!(
            write(place.path(), &format!("network-{name}"), &graph, &inputs, (1e-4, 1e-6)),
            "{name}"
        );
        written += 1;
    }
    for case in reversed::all() {
        for &n in case.sizes.iter().filter(|&&n| n > 1) {
            let name = format!("reversed-{}-{n}", case.name);
            assert!(
                write(place.path(), &name, &case.graph, &case.inputs(n), (1e-5, 1e-6)),
                "{name}"
            );
            written += 1;
        }
    }
    for (dtype, relative) in [(DType::F32, 1e-3), (DType::F64, 1e-9)] {
        for seed in 0..200 {
            let case = random_case(seed, &smooth(dtype));
            let fixed: Vec<Option<i64>> = case.binding.iter().map(|&v| Some(v)).collect();
            let Ok(fixed) = case.graph.specialize(&fixed) else {
                continue;
            };
            // Every second graph keeps its symbols, as far as the inputs' shapes tell them.
            let inputs = case.input_data(seed);
            let told = run(&case.graph, &inputs, &[]).is_ok();
            let graph = match seed % 2 == 1 && told && !has_empty(&fixed) {
                true => case.graph,
                false => fixed,
            };
            let name = format!("{dtype}-{seed}");
            written += usize::from(write(place.path(), &name, &graph, &inputs, (relative, relative)));
        }
    }
    // Integers and bools are equal to the bit.
    for dtype in [DType::I32, DType::I64] {
        let options = GenOptions {
            dtypes: vec![dtype, DType::Bool],
            ops: vec![
                ScalarOp::Add,
                ScalarOp::Sub,
                ScalarOp::Mul,
                ScalarOp::Neg,
                ScalarOp::Max,
                ScalarOp::Select,
                ScalarOp::Lt,
                ScalarOp::Eq,
                ScalarOp::Not,
            ],
            kinds: [
                smooth(dtype).kinds,
                vec![GenKind::Gather, GenKind::Scatter, GenKind::Iota, GenKind::Convert],
            ]
            .concat(),
            ..smooth(dtype)
        };
        for seed in 0..150 {
            let case = random_case(seed, &options);
            let fixed: Vec<Option<i64>> = case.binding.iter().map(|&v| Some(v)).collect();
            let Ok(graph) = case.graph.specialize(&fixed) else {
                continue;
            };
            let inputs = case.input_data(seed);
            written += usize::from(write(
                place.path(),
                &format!("{dtype}-{seed}"),
                &graph,
                &inputs,
                (0.0, 0.0),
            ));
        }
    }
    // Of graphs over everything the form is checked: operators, element types, shapes.
    for seed in 0..400 {
        let case = random_case(seed, &GenOptions::default());
        let fixed: Vec<Option<i64>> = case.binding.iter().map(|&v| Some(v)).collect();
        let graph = match seed % 2 {
            0 => case.graph.specialize(&fixed).unwrap_or_else(|_| case.graph.clone()),
            _ => case.graph,
        };
        if let Ok(model) = tlc::onnx::export(&graph) {
            let folder = place.path().join(format!("form-{seed}"));
            std::fs::create_dir(&folder).expect("a folder");
            let mut bytes = vec![];
            model.write(&mut bytes).expect("written");
            std::fs::write(folder.join("model.onnx"), bytes).expect("a file");
            written += 1;
        }
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/export/check_models.py");
    let done = Command::new(&python)
        .arg(script)
        .arg(place.path())
        .output()
        .expect("Python runs");
    let text = String::from_utf8_lossy(&done.stdout);
    let lines = |start: &str| text.lines().filter(|l| l.starts_with(start)).collect::<Vec<_>>();
    let (ok, unsupported, wrong) = (lines("ok "), lines("unsupported "), lines("wrong "));
    println!("{} of {written} ok, {} without a kernel", ok.len(), unsupported.len());
    for line in unsupported.iter().take(5) {
        println!("{line}");
    }
    assert!(wrong.is_empty(), "{} of {written}:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(
        text.lines().last(),
        Some("done"),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    assert_eq!(ok.len() + unsupported.len(), written);
    assert!(
        ok.iter().filter(|l| l.contains("network-")).count() == 13,
        "{unsupported:?}"
    );
}
