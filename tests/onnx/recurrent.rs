//! Recurrent networks, loops and scans from models written by hand, against loops over their definitions.

use std::slice::from_ref;

use tlc::onnx::{ImportOptions, import};
use tlc::{CompileOptions, DType, HostTensor, compile_ir};
use tlc_formats::ErrorKind;
use tlc_ir::NodeKind;
use tlc_ir::plan::{Plan, Step};

use crate::proto::{
    BOOL, D, FLOAT, INT64, Message, UINT8, floats, graph, graph_attribute, int_attribute, ints, model, node, opset,
    value,
};

fn model_of(nodes: &[Message], initializers: &[Message], inputs: &[Message], outputs: &[Message]) -> Vec<u8> {
    let graph = graph(nodes.to_vec(), initializers.to_vec(), inputs.to_vec(), outputs.to_vec());
    model(graph, vec![])
}

fn text_attribute(name: &str, v: &str) -> Message {
    Message::default().bytes(1, name).bytes(4, v).int(20, 3)
}

/// Runs with one and two threads, which must agree to the bit.
fn run(model: &[u8], inputs: &[HostTensor], given: &[(&str, HostTensor)]) -> Vec<HostTensor> {
    let values = |name: &str, _: DType| given.iter().find(|(n, _)| *n == name).map(|(_, v)| v.clone());
    let options = ImportOptions {
        values: Some(&values),
        ..ImportOptions::default()
    };
    let imported = import(model, &options).unwrap();
    let with = |threads| {
        let options = CompileOptions {
            threads: Some(threads),
            ..CompileOptions::default()
        };
        let executable = compile_ir(&imported.graph, &options).unwrap();
        let found = executable
            .run(&inputs.iter().map(Into::into).collect::<Vec<_>>())
            .unwrap();
        found.iter().map(|o| o.to_host()).collect::<Vec<_>>()
    };
    let one = with(1);
    assert_eq!(one, with(2));
    one
}

fn numbers(n: usize, seed: usize) -> Vec<f32> {
    (0..n)
        .map(|i| ((i * 37 + seed * 11) % 23) as f32 / 23.0 - 0.5)
        .collect()
}

const HIDDEN: usize = 3;
const INPUT: usize = 2;

/// An LSTM of symbolic time and batch, with lengths of so many sequences if any.
fn lstm_model(direction: &str, lengths: Option<D>) -> Vec<u8> {
    let directions = if direction == "bidirectional" { 2 } else { 1 };
    let (rows, size) = (4 * HIDDEN as i64, HIDDEN as i64);
    let attributes = [
        int_attribute("hidden_size", size),
        text_attribute("direction", direction),
    ];
    let operands = ["x", "w", "r", "b", if lengths.is_some() { "lengths" } else { "" }];
    let lstm = node("LSTM", "lstm", &operands, &["y", "h", "c"]).messages(5, attributes);
    let d = directions as usize;
    let w = floats(
        "w",
        &[directions, rows, INPUT as i64],
        &numbers(d * 4 * HIDDEN * INPUT, 1),
    );
    let r = floats("r", &[directions, rows, size], &numbers(d * 4 * HIDDEN * HIDDEN, 2));
    let b = floats("b", &[directions, 2 * rows], &numbers(d * 8 * HIDDEN, 3));
    let mut inputs = vec![value(
        "x",
        FLOAT,
        &[D::Sym("time"), D::Sym("batch"), D::N(INPUT as i64)],
    )];
    if let Some(sequences) = lengths {
        inputs.push(value("lengths", INT64, &[sequences]));
    }
    let outputs = ["y", "h", "c"].map(|n| value(n, FLOAT, &[]));
    model_of(&[lstm], &[w, r, b], &inputs, &outputs)
}

/// Y, Y_h and Y_c by the definition, in f64.
fn lstm_reference(x: &[f32], time: usize, batch: usize, reverse: &[bool], lengths: Option<&[i64]>) -> [Vec<f64>; 3] {
    let d = reverse.len();
    let w = numbers(d * 4 * HIDDEN * INPUT, 1);
    let r = numbers(d * 4 * HIDDEN * HIDDEN, 2);
    let b = numbers(d * 8 * HIDDEN, 3);
    let mut y = vec![0.0; time * d * batch * HIDDEN];
    let (mut last_h, mut last_c) = (vec![0.0; d * batch * HIDDEN], vec![0.0; d * batch * HIDDEN]);
    let sigmoid = |v: f64| 1.0 / (1.0 + (-v).exp());
    for (dir, &back) in reverse.iter().enumerate() {
        for n in 0..batch {
            let (mut h, mut c) = (vec![0.0f64; HIDDEN], vec![0.0f64; HIDDEN]);
            let length = lengths.map_or(time, |l| l[n] as usize);
            for step in 0..length {
                let t = if back { length - 1 - step } else { step };
                let gate = |g: usize, k: usize| {
                    let row = dir * 4 * HIDDEN + g * HIDDEN + k;
                    let mut sum = f64::from(b[dir * 8 * HIDDEN + g * HIDDEN + k])
                        + f64::from(b[dir * 8 * HIDDEN + (4 + g) * HIDDEN + k]);
                    for i in 0..INPUT {
                        sum += f64::from(x[(t * batch + n) * INPUT + i]) * f64::from(w[row * INPUT + i]);
                    }
                    for (i, h) in h.iter().enumerate() {
                        sum += h * f64::from(r[row * HIDDEN + i]);
                    }
                    sum
                };
                let mut next = (vec![0.0; HIDDEN], vec![0.0; HIDDEN]);
                for k in 0..HIDDEN {
                    next.1[k] = sigmoid(gate(2, k)) * c[k] + sigmoid(gate(0, k)) * gate(3, k).tanh();
                    next.0[k] = sigmoid(gate(1, k)) * next.1[k].tanh();
                    y[((t * d + dir) * batch + n) * HIDDEN + k] = next.0[k];
                }
                (h, c) = next;
            }
            let at = (dir * batch + n) * HIDDEN;
            last_h[at..at + HIDDEN].copy_from_slice(&h);
            last_c[at..at + HIDDEN].copy_from_slice(&c);
        }
    }
    [y, last_h, last_c]
}

/// The scale and the zero point of values in bytes, as DynamicQuantizeLinear says, and the integers that they then stand for.
fn in_bytes(x: &[f32]) -> (f64, Vec<f64>) {
    let (lo, hi) = x.iter().fold((0.0f32, 0.0f32), |(lo, hi), v| (lo.min(*v), hi.max(*v)));
    let scale = if hi == lo { 1.0 } else { (hi - lo) / 255.0 };
    let zero = (-lo / scale).round_ties_even().clamp(0.0, 255.0);
    let byte = |v: &f32| ((v / scale).round_ties_even() + zero).clamp(0.0, 255.0) - zero;
    (f64::from(scale), x.iter().map(|v| f64::from(byte(v))).collect())
}

/// Y of a bidirectional LSTM whose weights are bytes, by the definition: both products are of integers, the state's bytes by the range of
/// each step. `w` is `[2, input, 4 * hidden]`, `r` `[2, hidden, 4 * hidden]`; scales are by direction and row.
fn byte_lstm_reference(x: &[f32], time: usize, batch: usize, [w, r]: [&[u8]; 2], scales: &[f32], zero: u8) -> Vec<f64> {
    let rows = 4 * HIDDEN;
    let b = numbers(2 * 2 * rows, 3);
    let sigmoid = |v: f64| 1.0 / (1.0 + (-v).exp());
    let weight = |bytes: &[u8], d: usize, k: usize, row: usize, depth: usize| {
        f64::from(bytes[(d * depth + k) * rows + row]) - f64::from(zero)
    };
    let (x_scale, x) = in_bytes(x);
    let mut y = vec![0.0; time * 2 * batch * HIDDEN];
    for d in 0..2 {
        let (mut h, mut c) = (vec![0.0f64; batch * HIDDEN], vec![0.0f64; batch * HIDDEN]);
        for step in 0..time {
            let t = if d == 1 { time - 1 - step } else { step };
            let (h_scale, bytes) = in_bytes(&h.iter().map(|v| *v as f32).collect::<Vec<_>>());
            let gate = |n: usize, row: usize| {
                let scale = f64::from(scales[d * rows + row]);
                let input = (0..INPUT).map(|k| x[(t * batch + n) * INPUT + k] * weight(w, d, k, row, INPUT));
                let state = (0..HIDDEN).map(|k| bytes[n * HIDDEN + k] * weight(r, d, k, row, HIDDEN));
                let bias = f64::from(b[d * 2 * rows + row]) + f64::from(b[d * 2 * rows + rows + row]);
                input.sum::<f64>() * x_scale * scale + state.sum::<f64>() * h_scale * scale + bias
            };
            for n in 0..batch {
                for k in 0..HIDDEN {
                    let at = n * HIDDEN + k;
                    let [i, o, f, g] = [0, 1, 2, 3].map(|part| gate(n, part * HIDDEN + k));
                    c[at] = sigmoid(f) * c[at] + sigmoid(i) * g.tanh();
                    h[at] = sigmoid(o) * c[at].tanh();
                    y[((t * 2 + d) * batch + n) * HIDDEN + k] = h[at];
                }
            }
        }
    }
    y
}

#[test]
fn an_lstm_whose_weights_are_bytes_is_its_definition() {
    let rows = 4 * HIDDEN;
    let names = ["x", "w", "r", "b", "", "", "", "", "ws", "wz", "rs", "rz"];
    let attributes = [
        int_attribute("hidden_size", HIDDEN as i64),
        text_attribute("direction", "bidirectional"),
    ];
    let lstm = node("DynamicQuantizeLSTM", "lstm", &names, &["y"]).bytes(7, "com.microsoft");
    let bytes = |n: usize, seed: usize| -> Vec<u8> { (0..n).map(|i| ((i * 53 + seed * 17) % 251) as u8).collect() };
    let (w, r) = (bytes(2 * INPUT * rows, 1), bytes(2 * HIDDEN * rows, 2));
    let bias = floats("b", &[2, 2 * rows as i64], &numbers(4 * rows, 3));
    // A scale and a zero point for each direction, or for each row of it.
    for columns in [None, Some(rows)] {
        let per = columns.unwrap_or(1);
        let shape: Vec<usize> = [Some(2), columns].into_iter().flatten().collect();
        let dims: Vec<D> = shape.iter().map(|n| D::N(*n as i64)).collect();
        let scales: Vec<f32> = (0..2 * per).map(|i| 0.01 + 0.0003 * i as f32).collect();
        let zeros = vec![128u8; 2 * per];
        let inputs = [
            value("x", FLOAT, &[D::Sym("time"), D::Sym("batch"), D::N(INPUT as i64)]),
            value("w", UINT8, &[D::N(2), D::N(INPUT as i64), D::N(rows as i64)]),
            value("r", UINT8, &[D::N(2), D::N(HIDDEN as i64), D::N(rows as i64)]),
            value("ws", FLOAT, &dims),
            value("wz", UINT8, &dims),
            value("rs", FLOAT, &dims),
            value("rz", UINT8, &dims),
        ];
        let of = graph(
            vec![lstm.clone().messages(5, attributes.clone())],
            vec![bias.clone()],
            inputs.to_vec(),
            vec![value("y", FLOAT, &[])],
        );
        let model = Message::default()
            .int(1, 8)
            .message(7, of)
            .message(8, opset("", 17))
            .message(8, opset("com.microsoft", 1))
            .0;
        for (time, batch) in [(5, 2), (1, 1), (3, 4)] {
            let x = numbers(time * batch * INPUT, 7);
            let tensor = |shape: &[usize], data: &[u8]| HostTensor::from_slice(shape, data).unwrap();
            let scale = || HostTensor::from_slice(&shape, &scales).unwrap();
            let given = [
                HostTensor::from_slice(&[time, batch, INPUT], &x).unwrap(),
                tensor(&[2, INPUT, rows], &w),
                tensor(&[2, HIDDEN, rows], &r),
                scale(),
                tensor(&shape, &zeros),
                scale(),
                tensor(&shape, &zeros),
            ];
            let y = run(&model, &given, &[]).remove(0);
            assert_eq!(y.shape(), [time, 2, batch, HIDDEN]);
            let all: Vec<f32> = (0..2 * rows).map(|i| scales[i * per / rows]).collect();
            let expected = byte_lstm_reference(&x, time, batch, [&w, &r], &all, 128);
            for (found, expected) in y.as_slice::<f32>().unwrap().iter().zip(expected) {
                assert!((f64::from(*found) - expected).abs() < 1e-6, "{found} for {expected}");
            }
        }
    }
}

#[test]
fn an_lstm_of_symbolic_time_and_batch_is_its_definition() {
    for (direction, reverse) in [
        ("forward", &[false][..]),
        ("reverse", &[true]),
        ("bidirectional", &[false, true]),
    ] {
        for lengths in [false, true] {
            let model = lstm_model(direction, lengths.then_some(D::Sym("batch")));
            for (time, batch) in [(5, 2), (1, 1), (4, 3)] {
                let x = numbers(time * batch * INPUT, 7);
                let own: Vec<i64> = (0..batch).map(|n| ((n * 3 + 1) % (time + 1)) as i64).collect();
                let mut inputs = vec![HostTensor::from_slice(&[time, batch, INPUT], &x).unwrap()];
                if lengths {
                    inputs.push(HostTensor::from_slice(&[batch], &own).unwrap());
                }
                let found = run(&model, &inputs, &[]);
                let expected = lstm_reference(&x, time, batch, reverse, lengths.then_some(&own[..]));
                for (found, expected) in found.iter().zip(&expected) {
                    assert_eq!(found.len(), expected.len());
                    for (i, e) in expected.iter().enumerate() {
                        let f = found.get(i).as_f64();
                        assert!(
                            (f - e).abs() < 1e-5,
                            "{direction} {lengths} element {i}: {f}, expected {e}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn lengths_of_a_number_of_sequences_need_a_batch_of_that_number() {
    let imported = import(&lstm_model("forward", Some(D::N(2))), &ImportOptions::default()).unwrap();
    let executable = compile_ir(&imported.graph, &CompileOptions::default()).unwrap();
    let own = HostTensor::from_slice(&[2], &[1i64, 3]).unwrap();
    let outcome = |batch: usize| {
        let x = numbers(4 * batch * INPUT, 7);
        let x = HostTensor::from_slice(&[4, batch, INPUT], &x).unwrap();
        executable.run(&[(&x).into(), (&own).into()]).map(|y| y[0].to_host())
    };
    let expected = lstm_reference(&numbers(8 * INPUT, 7), 4, 2, &[false], Some(&[1, 3]));
    let found = outcome(2).unwrap();
    assert_eq!(found.len(), expected[0].len());
    for (i, e) in expected[0].iter().enumerate() {
        assert!((found.get(i).as_f64() - e).abs() < 1e-5, "element {i}, expected {e}");
    }
    let refused = outcome(3).expect_err("three sequences, two lengths").to_string();
    assert!(refused.contains("batch = 2"), "{refused}");
}

fn bodies(plan: &Plan) -> Vec<&Plan> {
    let loops = plan.steps.iter().filter_map(|s| match s {
        Step::Loop(l) => Some(&l.body),
        _ => None,
    });
    loops.collect()
}

#[test]
fn an_lstm_step_is_a_few_kernels_and_nothing_is_unrolled() {
    let imported = import(&lstm_model("forward", None), &ImportOptions::default()).unwrap();
    let loops = imported
        .graph
        .nodes()
        .filter(|(_, n)| matches!(n.kind, NodeKind::Loop(_)));
    assert_eq!(loops.count(), 1);
    assert!(imported.graph.len() < 100, "{} nodes", imported.graph.len());
    let executable = compile_ir(&imported.graph, &CompileOptions::default()).unwrap();
    let bodies = bodies(executable.plan());
    assert_eq!(bodies.len(), 1);
    // The product with R, and one kernel for the gates, the cell and the state.
    assert!(bodies[0].steps.len() <= 2, "{}", bodies[0]);
}

#[test]
fn a_loop_of_a_model_sees_the_values_around_it_and_stacks_what_it_yields() {
    // sum = sum + scale * i; all sums are kept.
    let body = Message::default()
        .messages(
            1,
            [
                node("Cast", "", &["i"], &["i32"]).messages(5, [int_attribute("to", FLOAT)]),
                node("Mul", "", &["i32", "scale"], &["step"]),
                node("Add", "", &["sum", "step"], &["next"]),
                node("Identity", "", &["go"], &["still"]),
                node("Identity", "", &["next"], &["kept"]),
            ],
        )
        .bytes(2, "body")
        .messages(
            11,
            [
                value("i", INT64, &[]),
                value("go", BOOL, &[]),
                value("sum", FLOAT, &[D::N(2)]),
            ],
        )
        .messages(
            12,
            [
                value("still", BOOL, &[]),
                value("next", FLOAT, &[]),
                value("kept", FLOAT, &[]),
            ],
        );
    let repeat =
        node("Loop", "loop", &["n", "", "start"], &["last", "all"]).messages(5, [graph_attribute("body", body)]);
    let inputs = [
        value("n", INT64, &[]),
        value("start", FLOAT, &[D::N(2)]),
        value("scale", FLOAT, &[]),
    ];
    let outputs = [value("last", FLOAT, &[]), value("all", FLOAT, &[])];
    let model = model_of(&[repeat], &[], &inputs, &outputs);
    let n = HostTensor::from_slice(&[], &[4i64]).unwrap();
    let start = HostTensor::from_slice(&[2], &[1.0f32, -1.0]).unwrap();
    let scale = HostTensor::from_slice(&[], &[0.5f32]).unwrap();
    let found = run(&model, &[n.clone(), start, scale], &[("n", n)]);
    assert_eq!(found[0].as_slice::<f32>(), Some(&[4.0, 2.0][..]));
    assert_eq!(
        found[1].as_slice::<f32>(),
        Some(&[1.0, -1.0, 1.5, -0.5, 2.5, 0.5, 4.0, 2.0][..])
    );
}

/// The body takes what is above the iteration's number, so that what it carries gets shorter: one iteration after another can be recorded where
/// there are few, and a loop cannot.
#[test]
fn sizes_that_data_decides_in_a_body() {
    let body = Message::default()
        .messages(
            1,
            [
                node("Cast", "", &["i"], &["level"]).messages(5, [int_attribute("to", FLOAT)]),
                node("Greater", "", &["v", "level"], &["above"]),
                node("Compress", "", &["v", "above"], &["next"]).messages(5, [int_attribute("axis", 0)]),
                node("Identity", "", &["c"], &["still"]),
            ],
        )
        .bytes(2, "body")
        .messages(
            11,
            [
                value("i", INT64, &[]),
                value("c", BOOL, &[]),
                value("v", FLOAT, &[D::N(-1)]),
            ],
        )
        .messages(12, [value("still", BOOL, &[]), value("next", FLOAT, &[D::N(-1)])]);
    let repeat = node("Loop", "loop", &["n", "", "x"], &["y"]).messages(5, [graph_attribute("body", body)]);
    let x = || value("x", FLOAT, &[D::N(5)]);
    let y = [value("y", FLOAT, &[D::N(-1)])];
    let model = model_of(from_ref(&repeat), &[ints("n", &[], &[3])], &[x()], &y);
    let data = HostTensor::from_slice(&[5], &[5.0f32, 1.0, 0.5, 2.0, -1.0]).unwrap();
    assert_eq!(run(&model, &[data], &[])[0].as_slice::<f32>(), Some(&[5.0][..]));

    let open = model_of(&[repeat], &[], &[value("n", INT64, &[]), x()], &y);
    let error = import(&open, &ImportOptions::default())
        .map(|_| ())
        .expect_err("it is refused");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(
        error.to_string().contains("data decides a size in the body of a loop"),
        "{error}"
    );
}

#[test]
fn a_condition_in_a_model_ends_its_loop() {
    // Doubles x while it is below 100.
    let body = Message::default()
        .messages(
            1,
            [
                node("Add", "", &["v", "v"], &["next"]),
                node("Less", "", &["next", "limit"], &["still"]),
            ],
        )
        .bytes(2, "body")
        .messages(
            11,
            [value("i", INT64, &[]), value("go", BOOL, &[]), value("v", FLOAT, &[])],
        )
        .messages(12, [value("still", BOOL, &[]), value("next", FLOAT, &[])]);
    let repeat = node("Loop", "loop", &["", "go", "x"], &["y"]).messages(5, [graph_attribute("body", body)]);
    let inputs = [value("x", FLOAT, &[]), value("go", BOOL, &[])];
    let limit = floats("limit", &[], &[100.0]);
    let model = model_of(&[repeat], &[limit], &inputs, &[value("y", FLOAT, &[])]);
    for (start, go, expected) in [(3.0f32, true, 192.0), (3.0, false, 3.0), (300.0, true, 600.0)] {
        let x = HostTensor::from_slice(&[], &[start]).unwrap();
        let go = HostTensor::from_slice(&[], &[go]).unwrap();
        assert_eq!(run(&model, &[x, go], &[])[0].as_slice::<f32>(), Some(&[expected][..]));
    }
}

#[test]
fn what_a_condition_stacks_is_as_long_as_the_loop_ran() {
    // Doubles x while it is below the limit, at most 8 times; every value is kept.
    let body = Message::default()
        .messages(
            1,
            [
                node("Add", "", &["v", "v"], &["next"]),
                node("Less", "", &["next", "limit"], &["still"]),
                node("Identity", "", &["next"], &["kept"]),
            ],
        )
        .bytes(2, "body")
        .messages(
            11,
            [value("i", INT64, &[]), value("go", BOOL, &[]), value("v", FLOAT, &[])],
        )
        .messages(
            12,
            [
                value("still", BOOL, &[]),
                value("next", FLOAT, &[]),
                value("kept", FLOAT, &[]),
            ],
        );
    let nodes = [
        node("Loop", "loop", &["most", "", "x"], &["last", "all"]).messages(5, [graph_attribute("body", body)]),
        node("Neg", "neg", &["all"], &["y"]),
    ];
    let inputs = [value("x", FLOAT, &[]), value("limit", FLOAT, &[])];
    let most = ints("most", &[], &[8]);
    let outputs = [value("last", FLOAT, &[]), value("y", FLOAT, &[])];
    let model = model_of(&nodes, &[most], &inputs, &outputs);
    for (limit, expected) in [(20.0f32, &[-2.0f32, -4.0, -8.0, -16.0, -32.0][..]), (1.0, &[-2.0])] {
        let x = HostTensor::from_slice(&[], &[1.0f32]).unwrap();
        let limit = HostTensor::from_slice(&[], &[limit]).unwrap();
        let found = run(&model, &[x, limit], &[]);
        assert_eq!(found[1].shape(), [expected.len()]);
        assert_eq!(found[1].as_slice::<f32>(), Some(expected));
    }
}

#[test]
fn iterations_that_differ_in_their_sizes_are_recorded_one_by_one() {
    // The carried value grows: each iteration appends the sum of what is there.
    let body = Message::default()
        .messages(
            1,
            [
                node("ReduceSum", "", &["v"], &["sum"]).messages(5, [int_attribute("keepdims", 1)]),
                node("Concat", "", &["v", "sum"], &["next"]).messages(5, [int_attribute("axis", 0)]),
                node("Identity", "", &["go"], &["still"]),
            ],
        )
        .bytes(2, "body")
        .messages(
            11,
            [value("i", INT64, &[]), value("go", BOOL, &[]), value("v", FLOAT, &[])],
        )
        .messages(12, [value("still", BOOL, &[]), value("next", FLOAT, &[])]);
    let repeat = node("Loop", "loop", &["n", "", "x"], &["y"]).messages(5, [graph_attribute("body", body)]);
    let n = ints("n", &[], &[3]);
    let x = value("x", FLOAT, &[D::N(2)]);
    let model = model_of(from_ref(&repeat), &[n], from_ref(&x), &[value("y", FLOAT, &[])]);
    let given = HostTensor::from_slice(&[2], &[1.0f32, 2.0]).unwrap();
    let found = run(&model, from_ref(&given), &[]);
    let expected = [1.0f32, 2.0, 3.0, 6.0, 12.0];
    assert_eq!(found[0].as_slice::<f32>(), Some(&expected[..]));
    // How many there are may come from a file as well.
    let inputs = [x, value("n", INT64, &[])];
    let model = model_of(&[repeat], &[], &inputs, &[value("y", FLOAT, &[])]);
    let n = HostTensor::from_slice(&[], &[3i64]).unwrap();
    let found = run(&model, &[given, n.clone()], &[("n", n)]);
    assert_eq!(found[0].as_slice::<f32>(), Some(&expected[..]));
    let refused = import(&model, &ImportOptions::default()).unwrap_err();
    let message = refused.to_string();
    assert!(message.contains("carried value 0 of f32["), "{message}");
    assert!(message.contains("constant or from a file"), "{message}");
}
