//! Constants share the model's bytes: what is copied between the file and the executable, and what is not.

use std::sync::Arc;

use tlc::onnx::{ImportOptions, Imported, import, import_in_place};
use tlc::{CompileOptions, Executable, HostTensor, compile_ir};
use tlc_ir::tensor::BytesOwner;
use tlc_runtime::mmap::MappedFile;

use crate::proto::{D, FLOAT, INT64, Message, floats, graph, model, node, value};

/// Bytes that begin `shift` behind an address that is a multiple of 8.
struct Shifted {
    words: Vec<u64>,
    shift: usize,
    len: usize,
}

impl AsRef<[u8]> for Shifted {
    fn as_ref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[self.shift..][..self.len]
    }
}

fn shifted(bytes: &[u8], shift: usize) -> BytesOwner {
    let mut words = vec![0u64; (bytes.len() + shift).div_ceil(8)];
    bytemuck::cast_slice_mut(&mut words)[shift..][..bytes.len()].copy_from_slice(bytes);
    let len = bytes.len();
    Arc::new(Shifted { words, shift, len })
}

/// How many bytes of the constants that the executable reads were copied out of `owner`.
fn copied_bytes(executable: &Executable, owner: &BytesOwner) -> usize {
    let place = (**owner).as_ref().as_ptr_range();
    let outside = |c: &&HostTensor| !(place.start.addr()..place.end.addr()).contains(&c.data_address());
    let constants = executable.plan().constants.iter();
    let bytes = |c: &HostTensor| match outside(&c) {
        true => c.bytes().len(),
        false => c.copied_bytes(),
    };
    constants.map(bytes).sum()
}

fn compiled(imported: &Imported) -> Executable {
    compile_ir(&imported.graph, &CompileOptions::default()).expect("it compiles")
}

/// A layer with a bias, whose result is normalized: weights that products, kernels and loops over rows read.
fn layer(name_length: usize) -> (Vec<u8>, Vec<f32>) {
    let weight: Vec<f32> = (0..48 * 32).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
    let bias: Vec<f32> = (0..32).map(|i| i as f32 / 7.0).collect();
    // A longer name moves the elements that come behind it.
    let (w, b) = ("w".repeat(name_length), "b".repeat(8));
    let nodes = vec![
        node("MatMul", "product", &["x", &w], &["p"]),
        node("Add", "biased", &["p", &b], &["s"]),
        node("Softmax", "shares", &["s"], &["y"]),
    ];
    let initializers = vec![floats(&w, &[48, 32], &weight), floats(&b, &[32], &bias)];
    let (x, y) = (
        value("x", FLOAT, &[D::Sym("n"), D::N(48)]),
        value("y", FLOAT, &[D::Sym("n"), D::N(32)]),
    );
    (model(graph(nodes, initializers, vec![x], vec![y]), vec![]), weight)
}

fn position(model: &[u8], of: &[f32]) -> usize {
    let of: &[u8] = bytemuck::cast_slice(of);
    model
        .windows(of.len())
        .position(|w| w == of)
        .expect("it is in the model")
}

#[test]
fn what_is_aligned_is_never_copied() {
    let x: Vec<f32> = (0..5 * 48).map(|i| (i % 13) as f32 - 6.0).collect();
    let x = HostTensor::from_slice(&[5, 48], &x).expect("elements");
    let mut expected: Option<Vec<f32>> = None;
    for name_length in 1..5 {
        let (bytes, weight) = layer(name_length);
        let at = position(&bytes, &weight);
        for shift in 0..8 {
            let owner = shifted(&bytes, shift);
            let executable = compiled(&import_in_place(&owner, &ImportOptions::default()).expect("it imports"));
            // Both tensors have names and sizes that put the bias at a place of its own.
            let bias_at = position(&bytes, &[0.0, 1.0 / 7.0, 2.0 / 7.0]);
            assert_eq!(copied_bytes(&executable, &owner), 0, "shift {shift}");
            let y = executable.run(&[(&x).into()]).expect("it runs").remove(0);
            // The product reads elements where they are aligned, the kernel anywhere.
            let moved = if (at + shift).is_multiple_of(4) { 0 } else { 48 * 32 * 4 };
            assert_eq!(
                copied_bytes(&executable, &owner),
                moved,
                "shift {shift}, weight at {at}, bias at {bias_at}"
            );
            // The executable keeps what it reads.
            drop(owner);
            let again = executable.run(&[(&x).into()]).expect("it runs").remove(0);
            assert_eq!(again.bytes(), y.bytes());
            let y = y.as_slice::<f32>().expect("f32").to_vec();
            assert_eq!(expected.get_or_insert_with(|| y.clone()), &y);
        }
    }
    let (bytes, _) = layer(1);
    let y = compiled(&import(&bytes, &ImportOptions::default()).expect("it imports"));
    let y = y.run(&[(&x).into()]).expect("it runs").remove(0);
    assert_eq!(y.as_slice::<f32>().ok(), expected.as_deref());
}

#[test]
fn a_file_of_external_data_is_mapped_once_and_outlives_its_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let elements: Vec<f32> = (0..3000).map(|i| i as f32 / 8.0).collect();
    let file = folder.path().join("weights.bin");
    std::fs::write(&file, bytemuck::cast_slice::<f32, u8>(&elements)).expect("a file");
    let tensor = |name: &str, offset: usize| {
        let entry = |k: &str, v: &str| Message::default().bytes(1, k).bytes(2, v);
        Message::default()
            .int(1, 1000)
            .int(2, FLOAT)
            .bytes(8, name)
            .message(13, entry("location", "weights.bin"))
            .message(13, entry("offset", &offset.to_string()))
            .message(13, entry("length", "4000"))
            .int(14, 1)
    };
    let nodes = vec![
        node("Mul", "scaled", &["x", "a"], &["s"]),
        node("Add", "moved", &["s", "b"], &["m"]),
        node("Add", "again", &["m", "c"], &["y"]),
    ];
    let initializers = vec![tensor("a", 0), tensor("b", 4000), tensor("c", 7998)];
    let (x, y) = (value("x", FLOAT, &[D::N(1000)]), value("y", FLOAT, &[D::N(1000)]));
    let bytes = model(graph(nodes, initializers, vec![x], vec![y]), vec![]);
    let options = ImportOptions {
        folder: Some(folder.path()),
        ..ImportOptions::default()
    };
    let imported = import(&bytes, &options).expect("it imports");
    let executable = compiled(&imported);
    let constants = &executable.plan().constants;
    let mut places: Vec<usize> = constants.iter().map(HostTensor::data_address).collect();
    places.sort_unstable();
    assert_eq!(places.len(), 3);
    // Of the third, no element is aligned: kernels read it all the same.
    assert_eq!([places[1] - places[0], places[2] - places[0]], [4000, 7998]);
    drop(imported);
    std::fs::remove_file(&file).expect("the file is there");
    let x = HostTensor::from_slice(&[1000], &[2.0f32; 1000]).expect("elements");
    let y = executable.run(&[(&x).into()]).expect("it runs").remove(0);
    let unaligned = bytemuck::cast_slice::<f32, u8>(&elements)[7998..11998].chunks_exact(4);
    let unaligned = unaligned.map(|c| f32::from_le_bytes(c.try_into().expect("four bytes")));
    let sums = elements[..1000].iter().zip(&elements[1000..2000]).zip(unaligned);
    let expected: Vec<f32> = sums.map(|((a, b), c)| 2.0 * a + b + c).collect();
    assert_eq!(y.as_slice::<f32>(), Ok(&expected[..]));
}

/// An embedding, and a product with what it gives: both of 4 MiB. The columns are no whole lines of a cache, so that the matrix is read as it lies.
fn embedded(name_length: usize) -> Vec<u8> {
    const WIDTH: i64 = 256;
    const MANY: i64 = 4104;
    let weights = |seed: i64| -> Vec<f32> {
        let of = |i: i64| ((i * seed) % 997) as f32 / 500.0 - 1.0;
        (0..WIDTH * MANY).map(of).collect()
    };
    let w = "w".repeat(name_length);
    let nodes = vec![
        node("Gather", "looked_up", &["table", "i"], &["e"]),
        node("MatMul", "product", &["e", &w], &["y"]),
    ];
    let initializers = vec![
        floats("table", &[MANY, WIDTH], &weights(37)),
        floats(&w, &[WIDTH, MANY], &weights(53)),
    ];
    let (i, y) = (value("i", INT64, &[D::N(1)]), value("y", FLOAT, &[D::N(1), D::N(MANY)]));
    model(graph(nodes, initializers, vec![i], vec![y]), vec![])
}

/// Whether the system gives huge pages to those that ask.
fn gives_huge_pages() -> bool {
    let text = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    text.contains("[always]") || text.contains("[madvise]")
}

#[test]
fn what_calls_stream_from_a_file_is_copied_to_huge_pages_and_embeddings_are_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let i = HostTensor::from_slice(&[1], &[1234i64]).expect("elements");
    for (name_length, at_once) in [(1, true), (2, true), (3, true), (4, false)] {
        let file = folder.path().join(format!("{name_length}.onnx"));
        std::fs::write(&file, embedded(name_length)).expect("a file");
        let owner: BytesOwner = Arc::new(MappedFile::open(&file).expect("a mapping"));
        let imported = import_in_place(&owner, &ImportOptions::default()).expect("it imports");
        let executable = compiled(&imported);
        let placed = || -> Vec<Vec<usize>> {
            let constants = executable.plan().constants.iter();
            let placed = constants.filter(|c| c.placed_bytes().is_some_and(|b| b == c.bytes()));
            placed.map(|c| c.shape().to_vec()).collect()
        };
        let call = || executable.run(&[(&i).into()]).expect("it runs").remove(0);
        let before = call();
        assert!(placed().is_empty());
        if at_once {
            executable.place_constants();
        } else {
            (0..5).for_each(|_| assert_eq!(call().bytes(), before.bytes()));
            // A thread does it, which may have to wait for others.
            for _ in 0..6000 {
                if !gives_huge_pages() || !placed().is_empty() {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
        let expected = if gives_huge_pages() {
            vec![vec![256, 4104]]
        } else {
            vec![]
        };
        assert_eq!(placed(), expected);
        assert_eq!(call().bytes(), before.bytes());
        // Another executable of the graph reads the same copy.
        let another = compiled(&imported);
        let shared = another.plan().constants.iter().filter(|c| c.placed_bytes().is_some());
        assert_eq!(shared.count(), expected.len());
        assert_eq!(another.run(&[(&i).into()]).expect("it runs")[0].bytes(), before.bytes());
    }
}
