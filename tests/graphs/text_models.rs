//! Models as text with their weights beside them: what is printed, written, mapped and parsed again computes the same bits.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tlc::onnx::{ImportOptions, import};
use tlc::{CompileOptions, HostTensor, Input, compile_ir, tlir};
use tlc_formats::npz;
use tlc_ir::Graph;
use tlc_ir::graph::{NodeKind, Origin};
use tlc_ir::testgen::{GenOptions, random_case};
use tlc_ir::text::{PrintOptions, Printed, difference, print_graph};

fn run(graph: &Graph, inputs: &[HostTensor], symbols: &[(String, i64)]) -> Result<Vec<(String, HostTensor)>, String> {
    let options = CompileOptions {
        threads: Some(1),
        symbols: symbols.to_vec(),
        ..CompileOptions::default()
    };
    let executable = compile_ir(graph, &options).map_err(|e| e.to_string())?;
    let given: Vec<Input<'_>> = inputs.iter().map(Into::into).collect();
    let outputs = executable.run(&given).map_err(|e| e.to_string())?;
    Ok(outputs.iter().map(|o| (o.name.clone(), o.to_host())).collect())
}

/// Writes what was printed, with its weights, and reads it again.
fn through_files(printed: &Printed, folder: &Path) -> Graph {
    let path = folder.join("model.tlir");
    std::fs::write(&path, &printed.text).expect("a text");
    let mut weights = vec![];
    tlir::write_weights(printed, &mut weights).expect("written to memory");
    std::fs::write(tlir::weights_path(&path), weights).expect("weights");
    let bytes = std::fs::read(&path).expect("a text");
    let module = tlir::parse(&bytes, Some(&path)).unwrap_or_else(|e| panic!("{}\n{}", e[0], printed.text));
    module.graphs.into_iter().next().expect("a graph")
}

fn names(graph: &Graph) -> (Vec<String>, Vec<String>, Vec<String>) {
    let input = |&id: &_| match &graph.node(id).kind {
        NodeKind::Input { name, .. } => name.clone(),
        kind => panic!("{kind:?} is no input"),
    };
    let origin = |n: &tlc_ir::Node| match n.origin.recorded() {
        Origin::Named(name) | Origin::Weights(name) if !matches!(n.kind, NodeKind::Const(_)) => Some(name.to_string()),
        _ => None,
    };
    (
        graph.inputs().iter().map(input).collect(),
        graph.outputs().iter().map(|o| o.name.clone()).collect(),
        graph
            .nodes()
            .filter(|(_, n)| !matches!(n.kind, NodeKind::Input { .. }))
            .filter_map(|(_, n)| origin(n))
            .collect(),
    )
}

#[test]
fn networks_as_text_compute_the_bits_of_their_onnx_files() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models");
    let is_model = |p: &PathBuf| p.extension().is_some_and(|e| e == "onnx");
    let files = std::fs::read_dir(&folder).expect("tests/models").flatten();
    let mut models: Vec<PathBuf> = files.map(|f| f.path()).filter(is_model).collect();
    models.sort();
    assert_eq!(models.len(), 13);
    let place = tempfile::tempdir().expect("a folder");
    for model in models {
        let bytes = std::fs::read(&model).expect("a model");
        let graph = import(&bytes, &ImportOptions::default()).expect("imported").graph;
        let printed = tlir::print(&graph);
        assert!(!printed.externals.is_empty(), "{}", model.display());
        assert!(printed.externals.iter().all(|(_, t)| t.len() > tlir::INLINE_ELEMENTS));
        let read = through_files(&printed, place.path());
        let again = tlir::print(&read);
        assert!(
            again.text == printed.text && again.externals == printed.externals,
            "{}",
            model.display()
        );
        let live = tlc_passes::rewrite::dce::run(&graph).expect("a graph");
        assert_eq!(difference(&live, &read), None, "{}", model.display());
        assert_eq!(names(&live), names(&read), "{}", model.display());

        let recorded = std::fs::read(model.with_extension("npz")).expect("recorded calls");
        let mut archive = npz::Archive::open(&recorded).expect("an archive");
        let keys: Vec<String> = archive.names().map(Into::into).collect();
        let calls: BTreeMap<String, HostTensor> = keys
            .into_iter()
            .map(|k| (k.clone(), archive.read(&k, &Default::default()).expect("an array")))
            .collect();
        for call in 0..2 {
            let input = |name: &String| calls.get(&format!("in.{call}.{name}")).cloned();
            let Some(inputs) = names(&graph).0.iter().map(input).collect::<Option<Vec<_>>>() else {
                break;
            };
            let (direct, as_text) = (run(&graph, &inputs, &[]), run(&read, &inputs, &[]));
            assert!(direct.is_ok(), "{}: {direct:?}", model.display());
            assert!(direct == as_text, "{} call {call}", model.display());
        }
    }
}

#[test]
fn random_graphs_as_text_compute_the_same_bits() {
    let place = tempfile::tempdir().expect("a folder");
    let range = std::env::var("TLC_SEEDS").unwrap_or("0..150".into());
    let (from, to) = range.split_once("..").expect("TLC_SEEDS is a range");
    let mut outside = 0;
    for seed in from.parse::<u64>().expect("a number")..to.parse().expect("a number") {
        let case = random_case(seed, &GenOptions::default());
        let options = PrintOptions {
            inline_elements: (seed % 3) as usize,
            names: true,
        };
        let printed = print_graph(&case.graph, &options);
        outside += printed.externals.len();
        let read = through_files(&printed, place.path());
        assert_eq!(difference(&case.graph, &read), None, "seed {seed}");
        assert_eq!(print_graph(&read, &options).text, printed.text, "seed {seed}");
        let inputs = case.input_data(seed);
        let symbols = case.graph.symbols().iter().map(|s| s.name.clone());
        let symbols: Vec<(String, i64)> = symbols.zip(case.binding.iter().copied()).collect();
        let direct = run(&case.graph, &inputs, &symbols);
        assert!(direct.is_ok(), "seed {seed}: {direct:?}");
        assert!(direct == run(&read, &inputs, &symbols), "seed {seed}\n{}", printed.text);
    }
    assert!(outside > 20, "{outside} constants outside of their text");
}

#[test]
fn weights_are_mapped_and_not_copied() {
    let folder = tempfile::tempdir().expect("a folder");
    let g = tlc::Graph::new("f");
    let floats = g.data(&[0.25f32; 100], &[100]);
    let odd = g.data(&[1i8; 33], &[33]);
    g.output("a", &floats.exp());
    g.output("b", &odd);
    let read = through_files(&tlir::print(&g.finish().expect("a graph")), folder.path());
    let file = std::fs::read(folder.path().join("model.safetensors")).expect("weights");
    let data: Vec<&HostTensor> = read
        .nodes()
        .filter_map(|(_, n)| match &n.kind {
            NodeKind::Data(d) => Some(&d.0),
            _ => None,
        })
        .collect();
    assert_eq!(data.len(), 2);
    // Both lie in one mapping, as far from each other as in the file.
    let apart = data[1].data_address() - data[0].data_address();
    assert_eq!(apart, 400);
    assert_eq!(&file[file.len() - 433..file.len() - 33], data[0].bytes());
}

#[test]
fn element_types_that_safetensors_cannot_name_come_back() {
    let folder = tempfile::tempdir().expect("a folder");
    for dtype in tlc::DType::ALL {
        let count = 35;
        let mut data = HostTensor::zeros(dtype, &[count]).expect("a tensor");
        (0..count).for_each(|i| data.set(i, if i % 3 == 0 { dtype.one() } else { dtype.zero() }));
        let g = tlc::Graph::new("f");
        g.output("y", &g.constant(&data));
        let read = through_files(&tlir::print(&g.finish().expect("a graph")), folder.path());
        let kept = read
            .nodes()
            .any(|(_, n)| matches!(&n.kind, NodeKind::Data(d) if d.0 == data));
        assert!(kept, "{dtype}");
        if dtype == tlc::DType::U8 {
            continue;
        }
        // Read as another type they are refused.
        let text = std::fs::read_to_string(folder.path().join("model.tlir")).expect("a text");
        let other = if dtype == tlc::DType::I4 { "u4" } else { "i4" };
        let wrong = text.replace(&format!("{dtype}["), &format!("{other}["));
        let errors = tlir::parse(wrong.as_bytes(), Some(&folder.path().join("model.tlir")));
        let errors = errors.map(|_| dtype).expect_err("another type");
        let expected = format!("it is {dtype}[{count}] in model.safetensors; expected data of {other}[{count}]");
        assert!(errors[0].message.ends_with(&expected), "{dtype}: {}", errors[0]);
    }
}
