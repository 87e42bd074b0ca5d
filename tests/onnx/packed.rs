//! Constants of less than a byte an element: they stay as the file has them, several to a byte, on every way.

use std::sync::Arc;

use tlc::onnx::{ImportOptions, Imported, export, import, import_in_place};
use tlc::{CompileOptions, DType, Executable, HostTensor, Input, compile_ir, tlir};
use tlc_ir::interp::{Options, interpret};
use tlc_ir::tensor::BytesOwner;

use crate::proto::*;

type Kind = (i64, DType, usize, fn(u8) -> f32);

/// Element types of ONNX, how many of an element share a byte, and what its bits are worth, written down from the documents.
const KINDS: [Kind; 5] = [
    (22, DType::I4, 2, |b| f32::from((b << 4) as i8 >> 4)),
    (21, DType::U4, 2, f32::from),
    (26, DType::I2, 4, |b| f32::from((b << 6) as i8 >> 6)),
    (25, DType::U2, 4, f32::from),
    (23, DType::F4E2M1FN, 2, |b| {
        let sizes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        let size: f32 = sizes[usize::from(b & 7)];
        if b & 8 != 0 { -size } else { size }
    }),
];

fn newest(graph: Message) -> Vec<u8> {
    Message::default()
        .int(1, 13)
        .message(7, graph)
        .message(8, opset("", 28))
        .0
}

/// Bytes of which no two beside each other are alike.
fn bytes(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i * 89 + i / 7 + 3) as u8).collect()
}

fn weights(element: i64, shape: &[i64], data: &[u8], as_words: bool) -> Message {
    let head = shape.iter().fold(Message::default(), |m, &d| m.int(1, d));
    let head = head.int(2, element).bytes(8, "w");
    match as_words {
        true => data.iter().fold(head, |m, &v| m.int(5, i64::from(v))),
        false => head.bytes(9, data),
    }
}

/// What the elements of those bytes are worth.
fn worth(data: &[u8], per_byte: usize, n: usize, of: fn(u8) -> f32) -> Vec<f32> {
    let bits = 8 / per_byte;
    let element = |i: usize| data[i / per_byte] >> (i % per_byte * bits) & ((1u16 << bits) - 1) as u8;
    (0..n).map(|i| of(element(i))).collect()
}

fn compiled(imported: &Imported) -> Executable {
    let options = CompileOptions {
        threads: Some(2),
        ..CompileOptions::default()
    };
    compile_ir(&imported.graph, &options).expect("it compiles")
}

/// Bytes of constants that an executable holds.
fn held(executable: &Executable) -> usize {
    executable.plan().constants.iter().map(|c| c.bytes().len()).sum()
}

fn imported(model: &[u8]) -> Imported {
    import(model, &ImportOptions::default()).unwrap_or_else(|e| panic!("{e}"))
}

fn run(executable: &Executable, inputs: &[HostTensor]) -> Vec<HostTensor> {
    let inputs: Vec<Input<'_>> = inputs.iter().map(Input::from).collect();
    let found = executable.run(&inputs).expect("it runs");
    found.iter().map(|o| o.to_host()).collect()
}

/// `y = cast(w) + x`.
fn widened(element: i64, shape: &[i64], data: &[u8], as_words: bool) -> Vec<u8> {
    let nodes = vec![
        node("Cast", "cast", &["w"], &["c"]).message(5, int_attribute("to", FLOAT)),
        node("Add", "add", &["c", "x"], &["y"]),
    ];
    let w = weights(element, shape, data, as_words);
    let y = value("y", FLOAT, &[]);
    newest(graph(nodes, vec![w], vec![value("x", FLOAT, &[])], vec![y]))
}

#[test]
fn elements_are_what_their_bits_say_in_every_type_and_shape() {
    let zero = [HostTensor::from_slice(&[], &[0.0f32]).expect("a scalar")];
    for (element, dtype, per_byte, of) in KINDS {
        // Whole bytes a row, ragged rows, few elements, none; more than folding computes.
        for shape in [
            &[64, 96][..],
            &[73, 71],
            &[5003],
            &[3, 5, 7],
            &[17],
            &[4, 0],
            &[1, 33, 1],
        ] {
            let n = shape.iter().product::<i64>() as usize;
            let data = bytes(n.div_ceil(per_byte));
            let expected = worth(&data, per_byte, n, of);
            for as_words in [false, true] {
                let imported = imported(&widened(element, shape, &data, as_words));
                let executable = compiled(&imported);
                let found = run(&executable, &zero);
                assert_eq!(found[0].as_slice::<f32>(), Some(&expected[..]), "{dtype}{shape:?}");
                let meant = interpret(&imported.graph, &zero, &Options::default()).expect("it is interpreted");
                assert_eq!(meant[0].as_slice::<f32>(), Some(&expected[..]), "{dtype}{shape:?}");
                if n > 4096 {
                    assert_eq!(held(&executable), data.len(), "{dtype}{shape:?}");
                }
            }
        }
    }
}

#[test]
fn elements_that_are_an_output_lie_one_to_a_byte() {
    for (element, dtype, per_byte, _) in KINDS {
        let data = bytes(4096);
        let n = data.len() * per_byte;
        let same = node("Identity", "same", &["w"], &["y"]);
        let w = weights(element, &[n as i64], &data, false);
        let model = newest(graph(vec![same], vec![w], vec![], vec![value("y", element, &[])]));
        let found = run(&compiled(&imported(&model)), &[]);
        let element = |i: usize| data[i / per_byte] >> (i % per_byte * 8 / per_byte) & (0xff >> (8 - 8 / per_byte));
        let expected: Vec<u8> = (0..n).map(element).collect();
        assert_eq!((found[0].dtype(), found[0].bytes()), (dtype, &expected[..]));
    }
}

/// `y = x dequantize(w)`, `rows` times 192 elements of int4 in blocks of 32.
fn layer(rows: usize) -> (Vec<u8>, Vec<u8>, Vec<f32>) {
    let (columns, block) = (192, 32);
    let data = bytes(rows * columns / 2);
    let scales: Vec<f32> = (0..rows / block * columns).map(|i| (i % 5 + 1) as f32 / 4.0).collect();
    let mut all = worth(&data, 2, rows * columns, KINDS[0].3);
    for (i, v) in all.iter_mut().enumerate() {
        *v *= scales[i / columns / block * columns + i % columns];
    }
    let dequantize = node("DequantizeLinear", "d", &["w", "s"], &["f"])
        .message(5, int_attribute("axis", 0))
        .message(5, int_attribute("block_size", block as i64));
    let nodes = vec![dequantize, node("MatMul", "m", &["x", "f"], &["y"])];
    let initializers = vec![
        weights(22, &[rows as i64, columns as i64], &data, false),
        floats("s", &[(rows / block) as i64, columns as i64], &scales),
    ];
    let (x, y) = (
        value("x", FLOAT, &[D::Sym("n"), D::N(rows as i64)]),
        value("y", FLOAT, &[]),
    );
    (newest(graph(nodes, initializers, vec![x], vec![y])), data, all)
}

fn rows_of(x: &[f32], w: &[f32], columns: usize) -> Vec<f32> {
    let inner = w.len() / columns;
    let one = |r: usize, c: usize| (0..inner).map(|k| x[r * inner + k] * w[k * columns + c]).sum();
    (0..x.len() / inner * columns)
        .map(|i| one(i / columns, i % columns))
        .collect()
}

#[test]
fn weights_of_a_dequantized_product_stay_in_the_file() {
    const ROWS: usize = 2048;
    let (model, data, dequantized) = layer(ROWS);
    let owner: BytesOwner = Arc::new(model);
    let executable = compiled(&import_in_place(&owner, &ImportOptions::default()).expect("it imports"));
    let constants = &executable.plan().constants;
    let place = (*owner).as_ref().as_ptr_range();
    let packed: Vec<&HostTensor> = constants.iter().filter(|c| c.dtype() == DType::U8).collect();
    assert_eq!(packed.len(), 1, "{}", executable.explain());
    assert_eq!(packed[0].bytes(), &data[..], "half a byte an element");
    assert!((place.start.addr()..place.end.addr()).contains(&packed[0].data_address()));
    let narrow = |c: &&HostTensor| c.dtype().is_storage();
    assert_eq!(constants.iter().filter(narrow).count(), 0, "none is unpacked for good");
    // What is kept beside them is one matrix as the library multiplies it.
    let kept = executable.plan().persistent_bytes();
    assert!(kept <= 4 * ROWS as u64 * 192, "{}", executable.explain());
    let explained = executable.explain();
    assert!(
        explained.contains("lanes") && !explained.contains("scalar ("),
        "{explained}"
    );
    // Sums of multiples of a quarter are exact.
    for n in [1, 3, 40] {
        let x: Vec<f32> = (0..n * ROWS).map(|i| (i % 7) as f32 - 3.0).collect();
        let input = [HostTensor::from_slice(&[n, ROWS], &x).expect("elements")];
        let found = run(&executable, &input);
        assert_eq!(
            found[0].as_slice::<f32>(),
            Some(&rows_of(&x, &dequantized, 192)[..]),
            "{n}"
        );
        assert_eq!(packed[0].copied_bytes(), 0, "n = {n}");
    }
}

#[test]
fn a_text_keeps_them_packed_beside_it() {
    let (model, data, dequantized) = layer(128);
    let printed = tlir::print(&imported(&model).graph);
    let (name, kept) = &printed.externals[0];
    assert_eq!((name.as_str(), kept.dtype(), kept.bytes()), ("w", DType::U8, &data[..]));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("m.tlir");
    std::fs::write(&path, &printed.text).expect("a text");
    let mut file = std::fs::File::create(tlir::weights_path(&path)).expect("a file");
    tlir::write_weights(&printed, &mut file).expect("weights");
    let module = tlir::parse(printed.text.as_bytes(), Some(&path)).unwrap_or_else(|e| panic!("{}", e[0]));
    assert_eq!(tlir::print(&module.graphs[0]).text, printed.text);
    let x: Vec<f32> = (0..2 * 128).map(|i| (i % 5) as f32 - 2.0).collect();
    let input = [HostTensor::from_slice(&[2, 128], &x).expect("elements")];
    let executable = compile_ir(&module.graphs[0], &CompileOptions::default()).expect("it compiles");
    let found = run(&executable, &input);
    assert_eq!(found[0].as_slice::<f32>(), Some(&rows_of(&x, &dequantized, 192)[..]));
    // And back: the model has the initializer that it came with.
    let written = export(&module.graphs[0]).expect("exported");
    let w = written.graph.initializers.iter().find(|(n, _)| n == "w").expect("w");
    assert_eq!((w.1.dtype(), w.1.shape()), (DType::I4, &[128, 192][..]));
    assert!(
        written
            .graph
            .nodes
            .iter()
            .all(|n| !matches!(n.op, "BitShift" | "Where" | "Equal"))
    );
    let mut again = vec![];
    written.write(&mut again).expect("written to memory");
    assert!(again.windows(data.len()).any(|w| w == data));
    let again = run(&compiled(&imported(&again)), &input);
    assert_eq!(again[0].bytes(), found[0].bytes());
}

#[test]
fn every_type_is_exported_as_the_initializer_that_it_was() {
    for (element, dtype, per_byte, _) in KINDS {
        for shape in [&[64, 96][..], &[71, 73], &[5003]] {
            let n = shape.iter().product::<i64>() as usize;
            let mut data = bytes(n.div_ceil(per_byte));
            // What is behind the last element is zero in a file that is written.
            let rest = n % per_byte * 8 / per_byte;
            if let Some(last) = data.last_mut().filter(|_| rest > 0) {
                *last &= (1 << rest) - 1;
            }
            let written = export(&imported(&widened(element, shape, &data, false)).graph).expect("exported");
            let (name, tensor) = &written.graph.initializers[0];
            assert_eq!((name.as_str(), tensor.dtype()), ("w", dtype));
            let mut again = vec![];
            written.write(&mut again).expect("written to memory");
            assert!(again.windows(data.len()).any(|w| w == data), "{dtype}{shape:?}");
        }
    }
}

#[test]
fn a_loop_reads_them_packed_too() {
    let data = bytes(96 * 64 / 2);
    let sums: Vec<f32> = worth(&data, 2, 96 * 64, KINDS[0].3);
    let nodes = vec![
        node("DequantizeLinear", "d", &["w", "scale"], &["f"]),
        node("MatMul", "m", &["h", "f"], &["p"]),
        node("Clip", "bounded", &["p", "low", "high"], &["h2"]),
        node("Identity", "go on", &["go"], &["go2"]),
    ];
    let states = vec![value("h2", FLOAT, &[])];
    let inputs = vec![
        value("i", INT64, &[]),
        value("go", BOOL, &[]),
        value("h", FLOAT, &[D::N(1), D::N(64)]),
    ];
    let outputs = [vec![value("go2", BOOL, &[])], states].concat();
    let body = graph(nodes, vec![], inputs, outputs);
    let repeat = node("Loop", "loop", &["n", "", "x"], &["y"]).messages(5, [graph_attribute("body", body)]);
    let initializers = vec![
        weights(22, &[64, 64], &data[..64 * 64 / 2], false),
        floats("scale", &[], &[0.5]),
        floats("low", &[], &[-4.0]),
        floats("high", &[], &[4.0]),
    ];
    let inputs = vec![value("n", INT64, &[]), value("x", FLOAT, &[D::N(1), D::N(64)])];
    let model = newest(graph(vec![repeat], initializers, inputs, vec![value("y", FLOAT, &[])]));
    let executable = compiled(&imported(&model));
    let mut h: Vec<f32> = (0..64).map(|i| (i % 3) as f32 - 1.0).collect();
    let x = HostTensor::from_slice(&[1, 64], &h).expect("elements");
    let w: Vec<f32> = sums[..64 * 64].iter().map(|v| v * 0.5).collect();
    for _ in 0..3 {
        h = rows_of(&h, &w, 64).into_iter().map(|v| v.clamp(-4.0, 4.0)).collect();
    }
    let n = HostTensor::from_slice(&[], &[3i64]).expect("a scalar");
    let found = run(&executable, &[n, x]);
    assert_eq!(found[0].as_slice::<f32>(), Some(&h[..]));
}
