//! What of a model's files is read before its first call: the text between the weights, and nothing of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tlc::onnx::{ImportOptions, Imported, import_in_place};
use tlc::{CompileOptions, compile_ir};
use tlc_ir::tensor::BytesOwner;
use tlc_runtime::mmap::{MappedFile, evict};

use crate::proto::{D, FLOAT, Message, graph, ints, model, node, value};

const LAYERS: usize = 24;
const WIDTH: i64 = 512;
const WEIGHT: usize = (WIDTH * WIDTH * 4) as usize;
/// A tensor's header may lie across two pages, and so may a constant that is looked at.
const PAGES: usize = 4;
const PAGE: usize = 4096;

fn weight(at: usize) -> Vec<u8> {
    let element = |i: usize| ((i * 37 + at * 11) % 101) as f32 / 5000.0 - 0.01;
    (0..WEIGHT / 4).flat_map(|i| element(i).to_le_bytes()).collect()
}

/// Layers of a product, a reshape by a constant and a function, with the constants that `weight` and `target` make of them.
fn layers(weight: impl Fn(usize, &str) -> Message, target: impl Fn(usize, &str) -> Message) -> Vec<u8> {
    let (mut nodes, mut initializers) = (vec![], vec![]);
    for i in 0..LAYERS {
        let (w, shape) = (format!("w{i}"), format!("shape{i}"));
        let (x, p, r, y) = (format!("x{i}"), format!("p{i}"), format!("r{i}"), format!("x{}", i + 1));
        nodes.push(node("MatMul", &format!("product{i}"), &[&x, &w], &[&p]));
        nodes.push(node("Reshape", &format!("reshape{i}"), &[&p, &shape], &[&r]));
        nodes.push(node("Relu", &format!("relu{i}"), &[&r], &[&y]));
        initializers.push(weight(i, &w));
        initializers.push(target(i, &shape));
    }
    let x = value("x0", FLOAT, &[D::Sym("n"), D::N(WIDTH)]);
    let y = value(&format!("x{LAYERS}"), FLOAT, &[D::Sym("n"), D::N(WIDTH)]);
    model(graph(nodes, initializers, vec![x], vec![y]), vec![])
}

fn weight_named(name: &str) -> Message {
    Message::default()
        .int(1, WIDTH)
        .int(1, WIDTH)
        .int(2, FLOAT)
        .bytes(8, name)
}

/// A folder on a disk: that of temporary files may be memory.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder")
}

/// The file, of which nothing is in memory; `None`, having said so, where that cannot be had.
fn cold(path: &Path) -> Option<MappedFile> {
    evict(path).expect("the file can be written back");
    let mapped = MappedFile::open(path).expect("it can be mapped");
    let resident = mapped.resident();
    if resident != Some(0) {
        eprintln!("SKIP: this system keeps files in memory, or does not tell: {resident:?}");
        return None;
    }
    Some(mapped)
}

fn imported(mapped: &Arc<MappedFile>, folder: &Path) -> Imported {
    let owner: BytesOwner = mapped.clone();
    let options = ImportOptions {
        folder: Some(folder),
        ..ImportOptions::default()
    };
    import_in_place(&owner, &options).expect("it imports")
}

fn written(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, bytes).expect("a file");
    path
}

#[test]
fn a_model_is_imported_and_compiled_without_its_weights() {
    let folder = folder();
    let bytes = layers(
        |i, name| weight_named(name).bytes(9, weight(i)),
        |_, name| ints(name, &[2], &[-1, WIDTH]),
    );
    let path = written(folder.path(), "model.onnx", &bytes);
    let Some(mapped) = cold(&path).map(Arc::new) else {
        return;
    };
    let imported = imported(&mapped, folder.path());
    let executable = compile_ir(&imported.graph, &CompileOptions::default()).expect("it compiles");
    let read = mapped.resident().expect("told before");
    assert!(
        read <= LAYERS * PAGES * PAGE,
        "{read} bytes of {} are read",
        bytes.len()
    );
    assert!(read > 0);
    let weights = executable.plan().constants.iter().map(|c| c.bytes().len());
    assert_eq!(weights.sum::<usize>(), LAYERS * WEIGHT);
}

#[test]
fn a_model_is_imported_and_compiled_without_the_weights_beside_it() {
    let folder = folder();
    // In front of each weight a small constant, which the import reads.
    let stride = WEIGHT + 16;
    let mut data = vec![];
    for i in 0..LAYERS {
        data.extend([-1i64, WIDTH].iter().flat_map(|v| v.to_le_bytes()));
        data.extend(weight(i));
    }
    let path = written(folder.path(), "weights.bin", &data);
    let entry = |k: &str, v: &str| Message::default().bytes(1, k).bytes(2, v);
    let place = |m: Message, offset: usize, length: usize| {
        m.message(13, entry("location", "weights.bin"))
            .message(13, entry("offset", &offset.to_string()))
            .message(13, entry("length", &length.to_string()))
            .int(14, 1)
    };
    let bytes = layers(
        |i, name| place(weight_named(name), i * stride + 16, WEIGHT),
        |i, name| place(ints(name, &[2], &[]), i * stride, 16),
    );
    let model = written(folder.path(), "model.onnx", &bytes);
    let Some(mapped) = cold(&path) else { return };
    let text = Arc::new(MappedFile::open(&model).expect("it can be mapped"));
    let imported = imported(&text, folder.path());
    let executable = compile_ir(&imported.graph, &CompileOptions::default()).expect("it compiles");
    let read = mapped.resident().expect("told before");
    assert!(read <= LAYERS * PAGES * PAGE, "{read} bytes of {} are read", data.len());
    let weights = executable.plan().constants.iter().map(|c| c.bytes().len());
    assert_eq!(weights.sum::<usize>(), LAYERS * WEIGHT);
}
