//! Packed weights in files, and what tells those of one model from those of another.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tlc::{CompileOptions, DType, Executable, Graph, HostTensor, PackedUse, PackedWeights, PackedWeightsError, inputs};
use tlc_ir::plan::recipe::{Init, Recipe};
use tlc_ir::plan::{SlotId, Storage};
use tlc_ir::tensor::BytesOwner;
use tlc_runtime::mmap::MappedFile;

const ROWS: usize = 40;
const K: usize = 300;
const N: usize = 320;

fn weights(of: f32) -> HostTensor {
    let all: Vec<f32> = (0..N * K).map(|i| of + (i * 37 % 101) as f32 / 64.0 - 0.75).collect();
    HostTensor::from_slice(&[N, K], &all).expect("a tensor")
}

/// `x @ w^T` for each of the weights, which lie along the sum, so that products want them packed.
fn layers(all: &[HostTensor]) -> Graph {
    let g = Graph::new("layers");
    let x = g.input("x", DType::F32, [ROWS, K]);
    for (i, w) in all.iter().enumerate() {
        let w = g.constant(w.clone());
        g.output(&format!("y{i}"), &x.matmul(&w.permute([1, 0])));
    }
    g
}

fn compiled(graph: &Graph, packed: PackedWeights) -> Executable {
    let options = CompileOptions {
        packed_weights: Some(packed),
        ..CompileOptions::default()
    };
    graph.compile(&options).expect("it compiles")
}

fn results(executable: &Executable) -> Vec<Vec<f32>> {
    let x: Vec<f32> = (0..ROWS * K).map(|i| (i % 23) as f32 / 8.0 - 1.0).collect();
    let outputs = executable.run(&inputs![x]).expect("it runs");
    outputs
        .iter()
        .map(|o| o.as_slice::<f32>().expect("f32").to_vec())
        .collect()
}

fn recipes(executable: &Executable) -> Vec<Recipe> {
    let plan = executable.plan();
    let init = Init::of(plan);
    let kept = plan
        .slots
        .iter()
        .enumerate()
        .filter(|s| s.1.storage == Storage::Persistent);
    kept.filter_map(|(i, _)| init.recipe(SlotId(i as u32))).collect()
}

#[test]
fn a_recipe_is_the_same_whatever_else_a_plan_keeps() {
    let (a, b) = (weights(0.0), weights(1.0));
    let alone = recipes(
        &layers(std::slice::from_ref(&a))
            .compile(&CompileOptions::default())
            .expect("it compiles"),
    );
    let graph = layers(&[b, a]);
    let beside = recipes(&graph.compile(&CompileOptions::default()).expect("it compiles"));
    assert!(
        !alone.is_empty() && beside.len() >= 2 * alone.len(),
        "{alone:?} {beside:?}"
    );
    for recipe in &alone {
        let equal = beside.iter().filter(|r| r.text == recipe.text).count();
        assert_eq!(equal, 2, "{}\n{beside:?}", recipe.text);
    }
}

#[test]
fn what_an_executable_packed_another_process_finds() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("model.packed");
    let graph = layers(&[weights(0.0), weights(1.0)]);
    let first = compiled(&graph, PackedWeights::open(&file).expect("none yet"));
    assert_eq!(first.packed_use(), PackedUse::default());
    let expected = results(&first);
    let packed = first.packed_use();
    assert!(packed.found == 0 && packed.made >= (2 * N * K * 4) as u64, "{packed:?}");
    first.save_packed_weights(&file).expect("it is written");
    drop(first);

    let again = compiled(&graph, PackedWeights::open(&file).expect("it is read"));
    assert_eq!(results(&again), expected);
    assert_eq!(
        again.packed_use(),
        PackedUse {
            found: packed.made,
            made: 0
        }
    );
    // The file goes, what is mapped stays; more calls have it copied to large pages.
    std::fs::remove_file(&file).expect("it goes");
    (0..8).for_each(|_| assert_eq!(results(&again), expected));
    again.place_constants();
    assert_eq!(results(&again), expected);
    drop(again);

    // One of two is known.
    let graph = layers(&[weights(0.0), weights(2.0)]);
    let third = compiled(&graph, PackedWeights::default());
    let expected = results(&third);
    third.save_packed_weights(&file).expect("it is written");
    drop(third);
    let graph = layers(&[weights(3.0), weights(2.0)]);
    let half = compiled(&graph, PackedWeights::open(&file).expect("it is read"));
    assert_eq!(results(&half)[1], expected[1]);
    let alone = graph.compile(&CompileOptions::default()).expect("it compiles");
    assert_eq!(results(&half), results(&alone));
    let packed = half.packed_use();
    assert!(packed.found > 0 && packed.made > 0, "{packed:?}");
}

#[test]
fn executables_of_one_model_share_what_they_keep() {
    let graph = layers(&[weights(4.0)]);
    let (a, b) = (
        compiled(&graph, PackedWeights::default()),
        compiled(&graph, PackedWeights::default()),
    );
    assert_eq!(results(&a), results(&b));
    let mut written = [Vec::new(), Vec::new()];
    a.write_packed_weights(&mut written[0]).expect("it is written");
    b.write_packed_weights(&mut written[1]).expect("it is written");
    assert_eq!(written[0], written[1]);
    // Those of equal weights at other addresses are made, not shared; they have the same names beyond the process.
    let other = compiled(&layers(&[weights(4.0)]), PackedWeights::default());
    assert_eq!(results(&other), results(&a));
    let mut third = Vec::new();
    other.write_packed_weights(&mut third).expect("it is written");
    assert_eq!(third, written[0]);
    // Whoever goes first leaves the others what they share.
    let expected = results(&b);
    drop(a);
    assert_eq!(results(&b), expected);
}

/// A graph whose weights lie in a mapped file.
fn mapped(file: &Path) -> Graph {
    let owner: BytesOwner = Arc::new(MappedFile::open(file).expect("it is mapped"));
    let w = HostTensor::from_owner(DType::F32, &[N, K], &owner, 0).expect("the weights");
    layers(&[w])
}

/// Puts weights into a file that keeps its length, its number and the time at which it says that it was written.
fn put(file: &Path, w: &HostTensor) {
    use std::io::Write;
    let mut opened = std::fs::File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(file)
        .expect("a file");
    opened.write_all(w.bytes()).expect("it is written");
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    opened.set_modified(then).expect("it has that time");
}

#[test]
fn weights_in_a_file_are_told_from_those_that_were_there_before() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, packed) = (folder.path().join("w"), folder.path().join("w.packed"));
    let run = || {
        let executable = compiled(&mapped(&file), PackedWeights::open(&packed).expect("packed weights"));
        let found = results(&executable);
        let plain = mapped(&file).compile(&CompileOptions::default()).expect("it compiles");
        assert_eq!(found, results(&plain));
        let packed_use = executable.packed_use();
        executable.save_packed_weights(&packed).expect("it is written");
        packed_use
    };
    for of in [0.0, 1.0] {
        put(&file, &weights(of));
        assert_eq!(run().found, 0);
        assert_eq!(run().made, 0);
    }
    // Another file of that name and that time, and then the same weights elsewhere.
    std::fs::rename(&file, folder.path().join("old")).expect("it is renamed");
    put(&file, &weights(2.0));
    assert_eq!(run().found, 0);
    assert_eq!(run().made, 0);
    std::fs::rename(&file, folder.path().join("moved")).expect("it is renamed");
    put(&file, &weights(2.0));
    assert_eq!(run().made, 0);
}

/// What was packed of weights that somebody has changed since is not kept under the name of those that were there, nor of those that are.
#[test]
fn weights_that_change_while_they_are_packed_are_left_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, packed) = (folder.path().join("w"), folder.path().join("w.packed"));
    put(&file, &weights(0.0));
    let executable = compiled(&mapped(&file), PackedWeights::default());
    let expected = results(&executable);
    put(&file, &weights(1.0));
    executable.save_packed_weights(&packed).expect("it is written");
    assert!(PackedWeights::open(&packed).expect("packed weights").is_empty());
    put(&file, &weights(0.0));
    executable.save_packed_weights(&packed).expect("it is written");
    drop(executable);
    let again = compiled(&mapped(&file), PackedWeights::open(&packed).expect("packed weights"));
    assert_eq!(results(&again), expected);
    assert_eq!(again.packed_use().made, 0);
}

#[test]
fn a_file_of_something_else_is_neither_read_nor_written_over() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    let executable = compiled(&layers(&[weights(5.0)]), PackedWeights::default());
    let expected = results(&executable);
    let refused = |bytes: &[u8]| {
        std::fs::write(&file, bytes).expect("it is written");
        let error = PackedWeights::open(&file).expect_err("it is something else");
        assert!(matches!(error, PackedWeightsError::Other { .. }), "{error}");
        let error = executable.save_packed_weights(&file).expect_err("it is something else");
        assert!(matches!(error, PackedWeightsError::Other { .. }), "{error}");
        assert_eq!(std::fs::read(&file).expect("it is there"), bytes);
    };
    refused(b"");
    refused(b"graph @f(%x: f32[3]) {");
    let mut other = Vec::new();
    let w = weights(0.0);
    tlc_formats::safetensors::write([("w", &w)], &Default::default(), &mut other).expect("it is written");
    refused(&other);
    let mut whole = Vec::new();
    executable.write_packed_weights(&mut whole).expect("it is written");
    for end in [1, 8, 100, whole.len() / 2, whole.len() - 1] {
        refused(&whole[..end]);
    }
    assert!(PackedWeights::open(folder.path()).is_err());
    assert!(executable.save_packed_weights(folder.path().join("none/file")).is_err());

    // Values of lengths that nothing has are not taken: the file says less than it should of each.
    std::fs::write(&file, &whole).expect("it is written");
    let opened = PackedWeights::open(&file).expect("it is one");
    assert!(!opened.is_empty());
    drop(executable);
    let again = compiled(&layers(&[weights(5.0)]), opened);
    assert_eq!(results(&again), expected);
    assert_eq!(again.packed_use().made, 0);
}
