//! The networks of tests/models, from ONNX and back.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tlc::HostTensor;
use tlc::onnx::{ImportOptions, import};
use tlc_formats::npz;
use tlc_ir::{Graph, NodeKind};

use crate::same::{run, through_onnx};

/// Each network with the inputs of its first recorded call.
pub fn recorded() -> Vec<(String, Graph, Vec<HostTensor>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models");
    let is_model = |p: &PathBuf| p.extension().is_some_and(|e| e == "onnx");
    let files = std::fs::read_dir(&folder).expect("tests/models").flatten();
    let mut models: Vec<PathBuf> = files.map(|f| f.path()).filter(is_model).collect();
    models.sort();
    assert_eq!(models.len(), 13);
    let one = |model: PathBuf| {
        let name = model.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let bytes = std::fs::read(&model).expect("a model");
        let graph = import(&bytes, &ImportOptions::default()).expect("imported").graph;
        let recorded = std::fs::read(model.with_extension("npz")).expect("recorded calls");
        let mut archive = npz::Archive::open(&recorded).expect("an archive");
        let mut input = |&id: &_| match &graph.node(id).kind {
            NodeKind::Input { name, .. } => archive
                .read(&format!("in.0.{name}"), &Default::default())
                .expect("an array"),
            kind => panic!("{kind:?} is no input"),
        };
        let inputs = graph.inputs().iter().map(&mut input).collect();
        (name, graph, inputs)
    };
    models.into_iter().map(one).collect()
}

#[test]
fn networks_come_back() {
    let mut wrong = vec![];
    let mut equal = 0;
    for (name, graph, inputs) in recorded() {
        let again = match through_onnx(&graph) {
            Ok(again) => again,
            Err(e) => {
                wrong.push(format!("{name}: {e}"));
                continue;
            }
        };
        if let Err(e) = through_onnx(&again) {
            wrong.push(format!("{name} again: {e}"));
        }
        match (run(&graph, &inputs, &[]), run(&again, &inputs, &[])) {
            (Ok(a), Ok(b)) if a == b => equal += 1,
            (Ok(a), Ok(b)) => {
                // A reciprocal square root becomes a root and a quotient, for one.
                for ((_, a), (name_b, b)) in a.iter().zip(&b) {
                    let (a, b) = (a.as_slice::<f32>().expect("f32"), b.as_slice::<f32>().expect("f32"));
                    let largest = a.iter().fold(0f32, |m, v| m.max(v.abs()));
                    let off = a.iter().zip(b).map(|(a, b)| (a - b).abs());
                    let off = off.fold(0f32, |m, d| if d.is_nan() { d } else { m.max(d) });
                    if off.is_nan() || off > 1e-5 * largest {
                        wrong.push(format!("{name} {name_b}: off by {off:e} of {largest:e}"));
                    }
                }
            }
            (a, b) => wrong.push(format!("{name}: {a:?} {b:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(equal >= 9, "{equal} networks have the same bits");
}

#[test]
fn convolutions_and_products_are_said_as_such() {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for (name, graph, _) in recorded() {
        let model = tlc::onnx::export(&graph).expect("exported");
        let ops: Vec<&str> = model.graph.nodes.iter().map(|n| n.op).collect();
        ops.iter().for_each(|op| *seen.entry(op).or_default() += 1);
        let convolutional = ["conv_next", "dense_cnn", "mobile", "residual_cnn", "u_net"].contains(&name.as_str());
        assert!(!convolutional || ops.contains(&"Conv"), "{name}");
        // The names of the file are kept.
        let inputs: Vec<&str> = model.graph.inputs.iter().map(|i| i.name.as_str()).collect();
        let own: Vec<&str> = graph.inputs().iter().map(|&i| input_name(&graph, i)).collect();
        assert_eq!(inputs, own, "{name}");
        assert!(
            model.graph.initializers.iter().any(|(n, _)| n.starts_with('w')),
            "{name}"
        );
    }
    println!("{seen:?}");
    for op in ["Conv", "MaxPool", "MatMul", "Loop", "Gather"] {
        assert!(seen.contains_key(op), "{op} in {seen:?}");
    }
}

fn input_name(graph: &Graph, id: tlc_ir::NodeId) -> &str {
    match &graph.node(id).kind {
        NodeKind::Input { name, .. } => name,
        kind => panic!("{kind:?} is no input"),
    }
}
