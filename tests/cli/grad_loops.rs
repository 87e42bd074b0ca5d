//! grad: weights that bodies of loops read, beside PyTorch's numbers, and loops that need a bound.
//!
//! PyTorch computed in f64, with `W`, `V`, `H0` and `DY` below: `h.backward(dy)` after the loop as Python writes it.

use serde_json::json;

use crate::proto::*;
use crate::support::Place;

const W: [f32; 4] = [0.5, -0.25, 0.75, 0.125];
const V: [f32; 2] = [1.5, -0.5];
const H0: [f32; 4] = [0.5, -1.0, 2.0, 0.25];
const DY: [f32; 4] = [1.0, -2.0, 0.5, 3.0];
const XS: [f32; 12] = [0.5, -0.5, 1.0, 0.0, 0.25, 0.75, -1.0, 0.5, -0.25, 1.0, 0.5, -2.0];

/// A model, and the derivatives that PyTorch finds for it.
struct Case {
    name: &'static str,
    model: Vec<u8>,
    scans: bool,
    expected: Vec<(&'static str, Vec<f64>)>,
}

fn state(name: &str) -> Message {
    value(name, FLOAT, &[D::N(2), D::N(2)])
}

fn scalar(name: &str, ty: i64) -> Message {
    value(name, ty, &[])
}

fn weights() -> Vec<Message> {
    vec![floats("W", &[2, 2], &W), floats("V", &[1, 2], &V)]
}

/// The body of a Loop that carries `h` to `next`, whose condition stays as it is.
fn body(mut nodes: Vec<Message>, initializers: Vec<Message>) -> Message {
    nodes.push(op("Identity go -> goes", &[]));
    conditional(nodes, initializers)
}

fn conditional(nodes: Vec<Message>, initializers: Vec<Message>) -> Message {
    let inputs = vec![scalar("i", INT64), scalar("go", BOOL), state("h")];
    graph(nodes, initializers, inputs, vec![scalar("goes", BOOL), state("next")])
}

fn repeated(text: &str, body: Message) -> Message {
    op(text, &[]).message(5, graph_attribute("body", body))
}

/// A model of one input `h0` and one result `y`.
fn network(nodes: Vec<Message>, mut initializers: Vec<Message>, trip: i64) -> Vec<u8> {
    initializers.push(ints("n", &[], &[trip]));
    model(graph(nodes, initializers, vec![state("h0")], vec![state("y")]), vec![])
}

/// `h = tanh(h W)`.
fn step(weight: &str) -> Vec<Message> {
    vec![op(&format!("MatMul h {weight} -> p"), &[]), op("Tanh p -> next", &[])]
}

/// `h = h V + h W` while the sum of |h| is below 40: five times from `H0`.
fn growing(trip: &str) -> Vec<u8> {
    let nodes = vec![
        op("MatMul h W -> p", &[]),
        op("Mul h V -> q", &[]),
        op("Add p q -> next", &[]),
        op("Abs next -> sizes", &[]),
        op("ReduceSum sizes -> size", &[("keepdims", A::I(0))]),
        op("Constant -> bound", &[("value_float", A::F(40.0))]),
        op("Less size bound -> goes", &[]),
    ];
    let first = op("Greater two one -> first", &[]);
    let mut initializers = weights();
    initializers.push(floats("one", &[], &[1.0]));
    let two = op("ReduceMax h0 -> two", &[("keepdims", A::I(0))]);
    let nodes = vec![
        two,
        first,
        repeated(&format!("Loop {trip} first h0 -> y"), conditional(nodes, vec![])),
    ];
    network(nodes, initializers, i64::MAX)
}

fn cases() -> Vec<Case> {
    let once = |name, nodes, initializers, expected| Case {
        name,
        model: network(nodes, initializers, 3),
        scans: false,
        expected,
    };
    let of_loop = vec![
        ("W", vec![-1.29017525, 1.2412937, -0.292982797, -2.05881196]),
        ("h0", vec![-0.0451272523, 0.25474014, -0.00757054731, -0.127879011]),
    ];
    let mut own = of_loop.clone();
    own[0].0 = "Wb";
    let branch = |nodes| graph(nodes, vec![], vec![], vec![state("b")]);
    let either = vec![
        op("Constant -> two", &[("value_int", A::I(2))]),
        op("Constant -> zero", &[("value_int", A::I(0))]),
        op("Mod i two -> odd", &[]),
        op("Equal odd zero -> even", &[]),
        op("If even -> next", &[])
            .message(
                5,
                graph_attribute(
                    "then_branch",
                    branch(vec![op("MatMul h W -> p", &[]), op("Tanh p -> b", &[])]),
                ),
            )
            .message(5, graph_attribute("else_branch", branch(vec![op("Mul h V -> b", &[])]))),
    ];
    let inner = {
        let nodes = vec![
            op("MatMul k W -> kp", &[]),
            op("Tanh kp -> knext", &[]),
            op("Identity kgo -> kgoes", &[]),
        ];
        let inputs = vec![scalar("ki", INT64), scalar("kgo", BOOL), state("k")];
        graph(nodes, vec![], inputs, vec![scalar("kgoes", BOOL), state("knext")])
    };
    let nested = vec![
        op("Constant -> two", &[("value_int", A::I(2))]),
        repeated("Loop two _ h -> k2", inner),
        op("Mul k2 V -> next", &[]),
    ];
    let scanned = {
        let nodes = vec![
            op("MatMul h W -> p", &[]),
            op("Add p x -> q", &[]),
            op("Tanh q -> next", &[]),
            op("Identity next -> each", &[]),
        ];
        let body = graph(
            nodes,
            vec![],
            vec![state("h"), state("x")],
            vec![state("next"), state("each")],
        );
        let scan = op("Scan h0 xs -> y all", &[("num_scan_inputs", A::I(1))]);
        let nodes = vec![scan.message(5, graph_attribute("body", body))];
        let xs = value("xs", FLOAT, &[D::N(3), D::N(2), D::N(2)]);
        model(graph(nodes, weights(), vec![state("h0"), xs], vec![state("y")]), vec![])
    };
    vec![
        once(
            "loop",
            vec![repeated("Loop n _ h0 -> y", body(step("W"), vec![]))],
            weights(),
            of_loop,
        ),
        once(
            "own",
            vec![repeated(
                "Loop n _ h0 -> y",
                body(step("Wb"), vec![floats("Wb", &[2, 2], &W)]),
            )],
            vec![],
            own,
        ),
        once(
            "outside",
            vec![
                op("MatMul h0 W -> h1", &[]),
                repeated("Loop n _ h1 -> y", body(step("W"), vec![])),
            ],
            weights(),
            vec![
                ("W", vec![-1.66440763, -1.36558087, 0.449326683, -1.22998355]),
                ("h0", vec![-0.10441973, 0.00700829125, 0.0131872204, -0.148286497]),
            ],
        ),
        once(
            "either",
            vec![repeated("Loop n _ h0 -> y", body(either, vec![]))],
            weights(),
            vec![
                ("W", vec![-0.248732477, 4.22548818, -1.00971011, 0.529813726]),
                ("V", vec![-0.896409926, -0.357906668]),
                ("h0", vec![0.615540613, 0.814728393, -0.0719468512, -0.22112324]),
            ],
        ),
        once(
            "nested",
            vec![repeated("Loop n _ h0 -> y", body(nested, vec![]))],
            weights(),
            vec![
                ("W", vec![0.222881228, -0.0787730544, -0.0568709471, 0.0351193008]),
                ("V", vec![-0.00420393193, -0.135673532]),
                ("h0", vec![0.000815150568, 0.0162555314, -0.000401738626, 0.0251907131]),
            ],
        ),
        Case {
            name: "scan",
            model: scanned,
            scans: true,
            expected: vec![
                ("W", vec![-0.356544716, 0.626443004, 0.0242128548, -1.07058358]),
                ("h0", vec![0.0254691765, 0.19650979, -0.02261064, 0.00877928728]),
                (
                    "xs",
                    vec![
                        0.209244378,
                        0.31661205,
                        -0.00252603275,
                        0.0853904947,
                        0.635328829,
                        0.433680147,
                        0.0798492262,
                        0.365449952,
                        0.993979616,
                        -0.685811454,
                        0.455910527,
                        0.308537844,
                    ],
                ),
            ],
        },
    ]
}

fn place() -> Place {
    let p = Place::new();
    p.f32s("h0.npy", &[2, 2], &H0);
    p.f32s("dy.npy", &[2, 2], &DY);
    p.f32s("xs.npy", &[3, 2, 2], &XS);
    p
}

fn check(p: &Place, what: &str, folder: &str, expected: &[(&str, Vec<f64>)]) {
    for (name, numbers) in expected {
        let found = p.read(&format!("{folder}/d.{name}.npy"));
        let found = found.as_slice::<f32>().expect("f32");
        assert_eq!(found.len(), numbers.len(), "{what} d.{name}");
        for (f, n) in found.iter().zip(numbers) {
            assert!(
                (f64::from(*f) - n).abs() <= 2e-6 * (1.0 + n.abs()),
                "{what} d.{name}: {found:?}, expected {numbers:?}"
            );
        }
    }
}

/// By the model itself, by the text that it is imported as, and by a line of a batch; `verify` moves each weight.
#[test]
fn weights_that_bodies_read_have_derivatives() {
    let p = place();
    for case in cases() {
        let name = case.name;
        let onnx = format!("{name}.onnx");
        p.write(&onnx, &case.model);
        let text = format!("{name}.tlir");
        p.run(&["import", &onnx, "-o", &text]).code(0);
        let wrt = if case.scans { "weights,h0,xs" } else { "weights,h0" };
        let mut given = vec!["-i", "h0=h0.npy", "-i", "d.y=dy.npy"];
        if case.scans {
            given.extend(["-i", "xs=xs.npy"]);
        }
        for model in [&onnx, &text] {
            let ran = p
                .run(&["grad", model, "--of", "y", "--wrt", wrt, "-o", "d.tlir"])
                .code(0);
            let reads_v = case.expected.iter().any(|(n, _)| *n == "V");
            assert!(reads_v || !ran.err.contains("`W`"), "{model}: {}", ran.err);
            let out = format!("{model}.out");
            p.run(&[&["run", "d.tlir"], &given[..], &["-o", &out]].concat()).code(0);
            check(&p, model, &out, &case.expected);
        }
        let mut inputs = json!({"h0": "h0.npy", "d.y": "dy.npy"});
        if case.scans {
            inputs["xs"] = json!("xs.npy");
        }
        let wrt: Vec<&str> = wrt.split(',').collect();
        let line = json!({"id": 1, "model": onnx, "output_dir": format!("{name}.batch"),
            "grad": {"of": ["y"], "wrt": wrt}, "inputs": inputs});
        p.write("cases.jsonl", line.to_string());
        p.run(&["run", "--batch", "cases.jsonl"]).code(0);
        check(&p, name, &format!("{name}.batch"), &case.expected);

        let ran = p.run(&["verify", &onnx, "--grad"]).code(0);
        // W and V, read or not.
        let moved = wrt.len() + usize::from(name != "own");
        let tensors = format!("by {moved} tensors along 4 directions\n");
        assert!(ran.out.ends_with(&tensors), "{name}: {}", ran.out);
    }
}

/// A weight that is too large for the text, read in two bodies and outside: one tensor in the file, one name.
#[test]
fn a_weight_of_many_elements_is_one() {
    let p = place();
    let w: Vec<f32> = (0..36).map(|i| ((i * 7) % 11) as f32 / 16.0 - 0.3).collect();
    let wide = |name: &str| value(name, FLOAT, &[D::N(2), D::N(6)]);
    let body = || {
        let nodes = vec![
            op("MatMul h W -> p", &[]),
            op("Tanh p -> next", &[]),
            op("Identity go -> goes", &[]),
        ];
        let inputs = vec![scalar("i", INT64), scalar("go", BOOL), wide("h")];
        graph(nodes, vec![], inputs, vec![scalar("goes", BOOL), wide("next")])
    };
    let nodes = vec![
        repeated("Loop n _ h0 -> h1", body()),
        op("MatMul h1 W -> h2", &[]),
        repeated("Loop n _ h2 -> y", body()),
    ];
    let initializers = vec![floats("W", &[6, 6], &w), ints("n", &[], &[2])];
    p.write(
        "m.onnx",
        model(graph(nodes, initializers, vec![wide("h0")], vec![wide("y")]), vec![]),
    );
    let ran = p.run(&["import", "m.onnx", "-o", "m.tlir"]).code(0);
    assert!(ran.err.contains("1 tensor, 144 B"), "{}", ran.err);
    for m in ["m.onnx", "m.tlir"] {
        let ran = p.run(&["grad", m, "--wrt", "list"]).code(0);
        assert_eq!(ran.out, "input h0: f32[2, 6]\nweight W: f32[6, 6]\n");
        let ran = p.run(&["verify", m, "--grad"]).code(0);
        assert_eq!(
            ran.out,
            "right: derivatives of 1 output by 2 tensors along 4 directions\n"
        );
        let ran = p.run(&["grad", m, "--of", "y", "--wrt", "W", "-o", "d.tlir"]).code(0);
        assert_eq!(ran.err, "wrote d.tlir\nwrote d.safetensors: 1 tensor, 144 B\n");
        p.run(&["verify", "d.tlir"]).code(0);
    }
}

/// Two bodies with a weight each under one name: neither is picked for the other.
#[test]
fn two_weights_of_one_name_are_refused() {
    let p = place();
    let own = |by: f32| body(step("Wb"), vec![floats("Wb", &[2, 2], &W.map(|w| w * by))]);
    let nodes = vec![
        repeated("Loop n _ h0 -> h1", own(1.0)),
        repeated("Loop n _ h1 -> y", own(2.0)),
    ];
    p.write("m.onnx", network(nodes, vec![], 3));
    let ran = p
        .run(&["grad", "m.onnx", "--of", "y", "--wrt", "weights", "-o", "d.tlir"])
        .code(3);
    assert!(
        ran.first_error().contains("two derivatives are named `d.Wb`"),
        "{}",
        ran.err
    );
    let ran = p.run(&["verify", "m.onnx", "--grad"]).code(0);
    assert!(ran.out.contains("by 3 tensors"), "{}", ran.out);
}

/// What exporters write of a `while`: a condition, and the largest number there is or none as the trip count.
#[test]
fn a_loop_that_a_condition_ends_gets_a_bound() {
    let p = place();
    p.write("max.onnx", growing("n"));
    p.write("none.onnx", growing("_"));
    for m in ["max.onnx", "none.onnx"] {
        let grad = ["grad", m, "--of", "y", "--wrt", "weights,h0", "-o", "d.tlir"];
        let ran = p.run(&grad).code(4);
        let error = ran.first_error();
        assert!(
            error.contains("nothing bounds its iterations")
                && error.contains("expected a trip count, from --input if it is one, or --max-iterations"),
            "{error}"
        );
        p.run(&[&grad[..], &["--max-iterations", "8"]].concat()).code(0);
        let verify = ["verify", m, "--grad"];
        let ran = p.run(&verify).code(4);
        assert!(
            ran.first_error()
                .ends_with("from --input if it is one, or --max-iterations"),
            "{}",
            ran.err
        );
        let ran = p.run(&[&verify[..], &["--max-iterations", "8"]].concat()).code(0);
        assert!(
            ran.out.starts_with("right: derivatives of 1 output by 3 tensors"),
            "{}",
            ran.out
        );
        p.run(&["run", "d.tlir", "-i", "h0=h0.npy", "-i", "d.y=dy.npy", "-o", "out"])
            .code(0);
        let line = json!({"id": 1, "model": m, "output_dir": "batch", "inputs": {"h0": "h0.npy", "d.y": "dy.npy"},
            "grad": {"of": ["y"], "wrt": ["weights", "h0"], "max_iterations": 5}});
        p.write("cases.jsonl", line.to_string());
        p.run(&["run", "--batch", "cases.jsonl"]).code(0);
        let expected = [
            ("W", vec![53.5392456, 84.4827881, -18.8625183, -13.3396606]),
            ("V", vec![53.5392456, -13.3396606]),
            ("h0", vec![32.8054199, 10.7340088, 4.65734863, 1.51702881]),
        ];
        check(&p, m, "out", &expected);
        check(&p, m, "batch", &expected);
    }
    p.run(&[
        "grad",
        "max.onnx",
        "--of",
        "y",
        "--wrt",
        "h0",
        "-o",
        "d.tlir",
        "--max-iterations",
        "0",
    ])
    .code(2);
    // It is of derivatives.
    p.run(&["verify", "max.onnx", "--max-iterations", "8"]).code(2);
}
