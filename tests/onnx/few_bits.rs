//! A row times weights of 8 bits and fewer: a kernel reads them as they are and dequantizes them in registers, whatever their type, the axis that their
//! scales lie along, and how many share a byte.

use tlc::onnx::{ImportOptions, import};
use tlc::{CompileOptions, Executable, HostTensor, Input, compile_ir};
use tlc_ir::interp::{self, compare, interpret_with_bounds};
use tlc_ir::rng::Rng;

use crate::proto::*;

/// Of ONNX's element types: number, bits, and whether they have a sign.
const TYPES: [(i64, u32, bool); 6] = [
    (22, 4, true),
    (21, 4, false),
    (3, 8, true),
    (2, 8, false),
    (26, 2, true),
    (25, 2, false),
];

#[derive(Clone, Copy, PartialEq, Debug)]
enum Form {
    /// `DequantizeLinear` in blocks along the sum.
    Blocks,
    /// With a scale for each column of the result.
    Columns,
    /// With one scale.
    One,
    /// `MatMulNBits`.
    Product,
}

#[derive(Clone, Debug)]
struct Case {
    form: Form,
    rows: usize,
    k: usize,
    n: usize,
    block: usize,
    element: (i64, u32, bool),
    /// Whether the sum goes along the last axis of the weights.
    turned: bool,
    zero: bool,
}

impl Case {
    fn random(rng: &mut Rng) -> Case {
        let mut pick = |n: usize| rng.below(n);
        let form = [Form::Blocks, Form::Blocks, Form::Columns, Form::One, Form::Product][pick(5)];
        let block = [16, 32, 64, 128][pick(4)];
        let (blocks, more) = (260 / block + 1 + pick(4), pick(3));
        let product = form == Form::Product;
        let element = match product {
            true => TYPES[[1, 3, 5][pick(3)]],
            false => TYPES[pick(6)],
        };
        Case {
            form,
            rows: [1, 1, 1, 2, 4, 7][pick(6)],
            // The last block of `MatMulNBits` may be cut off.
            k: blocks * block + if product { more * 2 } else { 0 },
            n: [1024, 1056, 2050, 1536, 2080, 1100][pick(6)],
            block,
            element,
            turned: product || pick(2) == 1,
            zero: pick(2) == 1,
        }
    }

    fn blocks(&self) -> usize {
        match self.form {
            Form::Blocks | Form::Product => self.k.div_ceil(self.block),
            _ => 1,
        }
    }

    fn columns(&self) -> usize {
        if self.form == Form::One { 1 } else { self.n }
    }

    /// What an integer of those bits is.
    fn integer(&self, bits: u8) -> f64 {
        let (_, size, signed) = self.element;
        match signed {
            true => f64::from((bits << (8 - size)) as i8 >> (8 - size)),
            false => f64::from(bits),
        }
    }
}

/// Bits of elements, low ones first; each row of so many begins with a byte of its own.
fn packed(bits: u32, rows: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut all = Vec::new();
    for row in rows {
        let per_byte = (8 / bits) as usize;
        for byte in row.chunks(per_byte) {
            all.push(byte.iter().rev().fold(0u8, |b, v| (u16::from(b) << bits) as u8 | v));
        }
    }
    all
}

fn raw(name: &str, element: i64, dims: &[usize], data: &[u8]) -> Message {
    let head = dims.iter().fold(Message::default(), |m, &d| m.int(1, d as i64));
    head.int(2, element).bytes(8, name).bytes(9, data)
}

/// The model, and its matrix in f64 by the formula of the standard, `[k, n]`.
fn model(case: &Case, rng: &mut Rng) -> (Vec<u8>, Vec<f64>) {
    let (k, n, bits) = (case.k, case.n, case.element.1);
    let (blocks, columns) = (case.blocks(), case.columns());
    let mask = ((1u16 << bits) - 1) as u8;
    let mut random = |len: usize| (0..len).map(|_| rng.below(256) as u8 & mask).collect::<Vec<u8>>();
    // By row of the sum, and by column.
    let (weights, zeros) = (random(k * n), random(blocks * columns));
    let scales: Vec<f32> = random(blocks * columns)
        .iter()
        .map(|b| f32::from(b % 13 + 1) / 61.0)
        .collect();
    let middle = f64::from(1u32 << (bits - 1));
    let mut matrix = vec![0.0; k * n];
    for (i, v) in matrix.iter_mut().enumerate() {
        let block = if blocks == 1 { 0 } else { i / n / case.block };
        let at = block * columns + if columns == 1 { 0 } else { i % n };
        let zero = match (case.zero, case.form) {
            (true, _) => case.integer(zeros[at]),
            (false, Form::Product) => middle,
            _ => 0.0,
        };
        *v = (case.integer(weights[i]) - zero) * f64::from(scales[at]);
    }
    let turn = |v: &[u8], rows: usize, columns: usize| -> Vec<u8> {
        (0..rows * columns).map(|i| v[i % rows * columns + i / rows]).collect()
    };
    let turn_floats = |v: &[f32], rows: usize, columns: usize| -> Vec<f32> {
        (0..rows * columns).map(|i| v[i % rows * columns + i / rows]).collect()
    };
    let (mut nodes, mut initializers) = (vec![], vec![]);
    let bytes = |n: usize| (n * bits as usize).div_ceil(8);
    if case.form == Form::Product {
        // Whole blocks, of which the last has numbers that do not count.
        let whole = blocks * case.block;
        let rows = turn(&weights, k, n);
        let filled = rows.chunks(k).map(|row| [row, &vec![mask; whole - k][..]].concat());
        initializers.push(raw("w", 2, &[n, blocks, bytes(case.block)], &packed(bits, filled)));
        initializers.push(floats("s", &[(n * blocks) as i64], &turn_floats(&scales, blocks, n)));
        let rows = turn(&zeros, blocks, n);
        let zeros = packed(bits, rows.chunks(blocks).map(<[u8]>::to_vec));
        initializers.push(raw("z", 2, &[zeros.len()], &zeros));
        let attributes = [
            ("K", A::I(k as i64)),
            ("N", A::I(n as i64)),
            ("bits", A::I(bits.into())),
            ("block_size", A::I(case.block as i64)),
        ];
        let text = if case.zero {
            "MatMulNBits x w s z -> y"
        } else {
            "MatMulNBits x w s -> y"
        };
        nodes.push(op(text, &attributes).bytes(7, "com.microsoft"));
    } else {
        let lie = |v: &[u8], a: usize, b: usize| if case.turned { turn(v, a, b) } else { v.to_vec() };
        let dims = |a: usize, b: usize| if case.turned { vec![b, a] } else { vec![a, b] };
        let element = case.element.0;
        let all = |v: Vec<u8>| packed(bits, std::iter::once(v));
        initializers.push(raw("w", element, &dims(k, n), &all(lie(&weights, k, n))));
        let shape = match case.form {
            Form::Blocks => dims(blocks, n),
            Form::Columns => vec![n],
            _ => vec![],
        };
        let scales = if case.turned {
            turn_floats(&scales, blocks, columns)
        } else {
            scales
        };
        let of_floats: Vec<i64> = shape.iter().map(|&d| d as i64).collect();
        initializers.push(floats("s", &of_floats, &scales));
        initializers.push(raw("z", element, &shape, &all(lie(&zeros, blocks, columns))));
        let along_sum = usize::from(case.turned);
        let attributes = match case.form {
            Form::Blocks => vec![
                ("axis", A::I(along_sum as i64)),
                ("block_size", A::I(case.block as i64)),
            ],
            _ => vec![("axis", A::I(1 - along_sum as i64))],
        };
        let text = if case.zero {
            "DequantizeLinear w s z -> f"
        } else {
            "DequantizeLinear w s -> f"
        };
        nodes.push(op(text, &attributes));
        let mut right = "f";
        if case.turned {
            nodes.push(op("Transpose f -> t", &[("perm", A::Is(vec![1, 0]))]));
            right = "t";
        }
        nodes.push(op(&format!("MatMul x {right} -> y"), &[]));
    }
    if !case.zero {
        initializers.pop();
        if case.form != Form::Product {
            // The zero point is the last.
            assert_eq!(initializers.len(), 2);
        }
    }
    let x = value("x", FLOAT, &[D::N(case.rows as i64), D::N(k as i64)]);
    let graph = graph(nodes, initializers, vec![x], vec![value("y", FLOAT, &[])]);
    let opsets = [("", 25), ("com.microsoft", 1)];
    let message = Message::default().int(1, 13).message(7, graph);
    let message = opsets
        .iter()
        .fold(message, |m, (domain, v)| m.message(8, opset(domain, *v)));
    (message.0, matrix)
}

fn compiled(graph: &tlc::ir::Graph, threads: usize) -> Executable {
    let options = CompileOptions {
        threads: Some(threads),
        ..CompileOptions::default()
    };
    compile_ir(graph, &options).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn random_weights_of_few_bits_are_what_the_standard_says() {
    for seed in 0..48 {
        let mut rng = Rng::new(seed);
        let case = Case::random(&mut rng);
        let (model, matrix) = model(&case, &mut rng);
        let imported = import(&model, &ImportOptions::default()).unwrap_or_else(|e| panic!("{seed} {case:?}: {e}"));
        let (k, n) = (case.k, case.n);
        let x: Vec<f32> = (0..case.rows * k)
            .map(|_| rng.below(2001) as f32 / 1000.0 - 1.0)
            .collect();
        let input = HostTensor::from_slice(&[case.rows, k], &x).expect("elements");
        let inputs = [input];
        let bounded = interpret_with_bounds(&imported.graph, &inputs, &interp::Options::default())
            .unwrap_or_else(|e| panic!("{seed} {case:?}: {e}"));
        let mut bits: Option<HostTensor> = None;
        let executables = [1, 3].map(|threads| compiled(&imported.graph, threads));
        for (executable, threads) in executables.iter().zip([1, 3]) {
            let found = executable.run(&[Input::from(&inputs[0])]).expect("it runs")[0].to_host();
            compare(&found, &bounded[0]).unwrap_or_else(|e| panic!("{seed} {case:?}: {e}\n{}", executable.explain()));
            for i in 0..case.rows * n {
                let terms = (0..k).map(|j| f64::from(x[i / n * k + j]) * matrix[j * n + i % n]);
                let (sum, size) = terms.fold((0.0, 0.0), |(s, a), t| (s + t, a + f64::abs(t)));
                let y = found.get(i).as_f64();
                let bound = (k + 4) as f64 * f64::from(f32::EPSILON) / 2.0 * size;
                assert!((y - sum).abs() <= bound, "{seed} {case:?} {i}: {y} for {sum}");
            }
            let first = bits.get_or_insert_with(|| found.clone());
            assert_eq!(
                first.bytes(),
                found.bytes(),
                "{seed} {case:?}: other bits for {threads} threads"
            );
        }
        // What picks a single weight is that weight, rounded as the standard rounds it.
        let row = rng.below(k);
        let one: Vec<f32> = (0..case.rows * k).map(|i| f32::from(u8::from(i % k == row))).collect();
        let one = HostTensor::from_slice(&[case.rows, k], &one).expect("elements");
        let found = executables[0].run(&[Input::from(&one)]).expect("it runs")[0].to_host();
        for i in 0..case.rows * n {
            assert_eq!(
                found.get(i).as_f64(),
                f64::from(matrix[row * n + i % n] as f32),
                "{seed} {case:?}: weight {row}, {}",
                i % n
            );
        }
    }
}

/// One kernel a call, and of the weights nothing is kept that has more bits than they have.
#[test]
fn a_row_times_weights_of_few_bits_is_one_kernel() {
    for seed in 0..40 {
        let mut rng = Rng::new(1000 + seed);
        let mut case = Case::random(&mut rng);
        case.rows = 1;
        // One scale goes behind the sum, and what is left is a matrix of floats.
        if case.form == Form::One {
            case.form = Form::Columns;
        }
        // Weights that would be folded are none.
        case.k += 1024;
        case.n = [1024, 1056, 2048][rng.below(3)];
        let (model, _) = model(&case, &mut rng);
        let imported = import(&model, &ImportOptions::default()).unwrap_or_else(|e| panic!("{seed} {case:?}: {e}"));
        let executable = compiled(&imported.graph, 1);
        assert_eq!(executable.plan().steps.len(), 1, "{case:?}\n{}", executable.explain());
        // What shares bytes is in whole blocks along the last axis.
        let bits = case.element.1 as usize;
        let (last, other) = if case.turned {
            (case.k, case.n)
        } else {
            (case.n, case.k)
        };
        let of_weights = last.next_multiple_of(128 / bits) * other * bits / 8;
        let of_scales = case.blocks().max(1) * case.columns() * 4;
        let most = of_weights + 2 * of_scales;
        assert!(
            executable.plan().persistent_bytes() <= most as u64,
            "{case:?}: {} of {most}\n{}",
            executable.plan().persistent_bytes(),
            executable.explain()
        );
        assert!(
            !executable.explain().to_string().contains("scalar ("),
            "{case:?}\n{}",
            executable.explain()
        );
    }
}
