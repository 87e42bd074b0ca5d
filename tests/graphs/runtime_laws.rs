//! What holds of every compiled graph at run time: results that do not depend on threads, concurrent calls, inputs that
//! may be given away, and inputs that do not fit are refused with an error that says what would.

use tlc::{
    Attention, BuildError, CompileOptions, Conv, DType, Executable, Graph, HostTensor, Input, Output, Outputs, Pool,
    Tensor, inputs, outputs,
};
use tlc_runtime::driver::RunError;

const F32: DType = DType::F32;

fn compile(threads: usize, record: impl Fn(&Graph)) -> Executable {
    let g = Graph::new("laws");
    record(&g);
    let options = CompileOptions {
        threads: Some(threads),
        ..CompileOptions::default()
    };
    g.compile(&options).unwrap_or_else(|e| panic!("{e}"))
}

/// Values between -1 and 1 without a pattern that vectors could hide.
fn values(shape: &[usize], seed: u32) -> HostTensor {
    let count: usize = shape.iter().product();
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
    let data: Vec<f32> = (0..count)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect();
    HostTensor::from_slice(shape, &data).unwrap()
}

fn run(e: &Executable, inputs: &[HostTensor]) -> Outputs {
    let inputs: Vec<Input<'_>> = inputs.iter().map(Input::from).collect();
    e.run(&inputs).unwrap()
}

fn f32s(g: &Graph, name: &str, shape: &[usize]) -> Tensor {
    g.input(name, F32, shape.to_vec())
}

struct Model {
    name: &'static str,
    shapes: &'static [&'static [usize]],
    build: fn(&Graph, &[Tensor]) -> Tensor,
}

const MODELS: &[Model] = &[
    Model {
        name: "a long elementwise chain",
        shapes: &[&[1000, 1003], &[1003]],
        build: |_, x| ((&x[0] * &x[1] + &x[0]).tanh() * 0.5).gelu(),
    },
    Model {
        name: "a sum over everything",
        shapes: &[&[1021, 1019]],
        build: |_, x| x[0].sum(..),
    },
    Model {
        name: "sums over rows and columns",
        shapes: &[&[777, 1025]],
        build: |_, x| x[0].sum(0).sum(-1) + x[0].sum(1).mean(-1),
    },
    Model {
        name: "softmax",
        shapes: &[&[513, 1000]],
        build: |_, x| x[0].softmax(-1),
    },
    Model {
        name: "layer norm",
        shapes: &[&[513, 384], &[384], &[384]],
        build: |_, x| x[0].layer_norm(Some(&x[1]), Some(&x[2]), 1e-5),
    },
    Model {
        name: "a perceptron",
        shapes: &[&[200, 300], &[300, 257], &[257], &[257, 10]],
        build: |_, x| (x[0].matmul(&x[1]) + &x[2]).relu().matmul(&x[3]).log_softmax(-1),
    },
    Model {
        name: "attention",
        shapes: &[&[2, 3, 70, 32], &[2, 3, 70, 32], &[2, 3, 70, 32]],
        build: |_, x| x[0].attention(&x[1], &x[2], &Attention::new().causal()),
    },
    Model {
        name: "a convolution with pooling",
        shapes: &[&[5, 3, 28, 28], &[8, 3, 3, 3], &[8]],
        build: |_, x| {
            let y = x[0].conv2d(&x[1], Some(&x[2]), &Conv::new().padding(1));
            y.relu().max_pool(&Pool::new(2))
        },
    },
    Model {
        name: "a transposition",
        shapes: &[&[700, 900]],
        build: |_, x| x[0].t(),
    },
    Model {
        name: "prefix sums",
        shapes: &[&[300, 401]],
        build: |_, x| x[0].cumsum(-1),
    },
    Model {
        name: "an einsum of three operands",
        shapes: &[&[20, 30, 40], &[40, 50], &[50, 60]],
        build: |_, x| tlc::einsum("ijk,kl,lm->ijm", &[&x[0], &x[1], &x[2]]),
    },
];

#[test]
fn results_are_bitwise_equal_at_one_two_and_three_threads() {
    for model in MODELS {
        let inputs: Vec<HostTensor> = (1..).zip(model.shapes).map(|(seed, s)| values(s, seed)).collect();
        let at = |threads| {
            let e = compile(threads, |g| {
                let x: Vec<Tensor> = (0..)
                    .zip(model.shapes)
                    .map(|(i, s)| f32s(g, &format!("x{i}"), s))
                    .collect();
                g.output("y", &(model.build)(g, &x));
            });
            let first = run(&e, &inputs);
            let again = run(&e, &inputs);
            assert_eq!(first[0].bytes(), again[0].bytes(), "{}: two runs differ", model.name);
            first
        };
        let one = at(1);
        assert!(
            one[0].as_slice::<f32>().unwrap().iter().all(|v| v.is_finite()),
            "{}",
            model.name
        );
        for threads in [2, 3] {
            assert!(
                one[0].bytes() == at(threads)[0].bytes(),
                "{}: {threads} threads",
                model.name
            );
        }
    }
}

#[test]
fn eight_threads_share_one_executable() {
    fn is_shared<T: Send + Sync>(_: &T) {}
    let e = compile(2, |g| {
        let n = g.symbol("n", 0..=4096);
        let x = g.input("x", F32, (&n, 300));
        let w = f32s(g, "w", &[300, 64]);
        g.output("y", &(x.softmax(-1).matmul(&w)).relu());
    });
    is_shared(&e);
    let w = values(&[300, 64], 9);
    let sizes: Vec<(HostTensor, Vec<u8>)> = (1..=8)
        .map(|k| {
            let x = values(&[k * 17, 300], k as u32);
            let y = run(&e, &[x.clone(), w.clone()])[0].bytes().to_vec();
            (x, y)
        })
        .collect();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (e, w, sizes) = (&e, &w, &sizes);
            scope.spawn(move || {
                for round in 0..40 {
                    let (x, expected) = &sizes[(thread + round) % sizes.len()];
                    let y = e.run(&[x.into(), w.into()]).unwrap();
                    assert!(y[0].bytes() == expected, "thread {thread}, round {round}");
                }
            });
        }
    });
}

/// A call's memory remembers the sizes of the call before: another size, a call that is refused, and a call that decided
/// sizes by its data come in between, and the next result is still that of its own inputs.
#[test]
fn a_call_is_not_touched_by_those_before_it() {
    let record = |g: &Graph| {
        let n = g.symbol("n", 0..=512);
        let x = g.input("x", F32, (&n, 24));
        let w = f32s(g, "w", &[24, 16]);
        let rows = x.sum(1).gt(0.0).nonzero().select_index(0, 0);
        g.output("y", &x.take(&rows, 0).matmul(&w).relu());
        g.output("sum", &x.matmul(&w).sum(0));
    };
    let e = compile(2, record);
    let w = values(&[24, 16], 3);
    let batches: Vec<HostTensor> = [40usize, 3, 500, 40, 0, 17]
        .iter()
        .enumerate()
        .map(|(k, &n)| values(&[n, 24], k as u32))
        .collect();
    let alone: Vec<Vec<Vec<u8>>> = batches
        .iter()
        .map(|x| {
            let outputs = run(&compile(2, record), &[x.clone(), w.clone()]);
            outputs.iter().map(|o| o.bytes().to_vec()).collect()
        })
        .collect();
    let narrow = values(&[40, 23], 1);
    let double = HostTensor::from_slice(&[40, 24], &[1.0f64; 960]).unwrap();
    for round in 0..60 {
        let at = (round * 7 + round / 6) % batches.len();
        let again = 1 + round % 3;
        for _ in 0..again {
            let found = run(&e, &[batches[at].clone(), w.clone()]);
            let found: Vec<&[u8]> = found.iter().map(Output::bytes).collect();
            assert!(found == alone[at], "round {round}, batch {at}");
        }
        match round % 4 {
            0 => assert!(e.run(&[(&narrow).into(), (&w).into()]).is_err()),
            1 => assert!(e.run(&[(&double).into(), (&w).into()]).is_err()),
            2 => assert!(e.run(&[(&batches[at]).into()]).is_err()),
            _ => assert!(e.run_into(&[(&batches[at]).into(), (&w).into()], &mut []).is_err()),
        }
    }
}

fn address(output: &Output) -> usize {
    output.bytes().as_ptr().addr()
}

#[test]
fn a_donated_input_becomes_the_output_that_can_take_it() {
    for threads in [1, 2] {
        let e = compile(threads, |g| {
            let (p, v) = (f32s(g, "p", &[500, 700]), f32s(g, "v", &[500, 700]));
            let grad = f32s(g, "grad", &[500, 700]);
            let v = &v * 0.9 + &grad;
            g.output("p", &(&p - &v * 0.01));
            g.output("v", &v);
        });
        // Of the inputs that an output could take, the one of its name comes first.
        let first = |output: u32| e.plan().donations.iter().find(|d| d.1 == output).copied();
        assert_eq!((first(0), first(1)), (Some((0, 0)), Some((1, 1))));
        let [p, v, grad] = [1, 2, 3].map(|seed| values(&[500, 700], seed));
        let mut kept = run(&e, &[p.clone(), v.clone(), grad.clone()]);
        let mut given = run(&e, &[p, v, grad.clone()]);
        for _ in 0..5 {
            let next = e.run(&[(&kept[0]).into(), (&kept[1]).into(), (&grad).into()]).unwrap();
            kept = next;
            let before = [address(&given[0]), address(&given[1])];
            let gifts: Vec<Input<'_>> = given.into_iter().map(Input::from).chain([(&grad).into()]).collect();
            given = e.run_donating(gifts).unwrap();
            assert_eq!([address(&given[0]), address(&given[1])], before, "computed in place");
            assert!(given[0].bytes() == kept[0].bytes() && given[1].bytes() == kept[1].bytes());
        }
    }
}

#[test]
fn a_donated_input_that_is_needed_elsewhere_is_not_overwritten() {
    // Every output element needs a whole row, or another element: nothing can take the input's buffer.
    type Build = fn(&Tensor) -> Tensor;
    let builds: [(&str, Build); 4] = [
        ("a transposition", |x| x.t()),
        ("a reversal", |x| x.flip(0) * 2.0),
        ("a product", |x| x.matmul(x)),
        ("neighbours", |x| x + &x.roll(1, 1)),
    ];
    let x = values(&[300, 300], 4);
    for (name, build) in builds {
        let e = compile(2, |g| g.output("y", &build(&f32s(g, "x", &[300, 300]))));
        let copy = compile(2, |g| g.output("x", &(f32s(g, "x", &[300, 300]) + 0.0)));
        let expected = run(&e, std::slice::from_ref(&x));
        for _ in 0..3 {
            let gift = run(&copy, std::slice::from_ref(&x)).remove(0);
            let y = e.run_donating(vec![gift.into()]).unwrap();
            assert!(y[0].bytes() == expected[0].bytes(), "{name}");
        }
    }
    // The input is an output too: the first output cannot overwrite it.
    let e = compile(1, |g| {
        let x = f32s(g, "x", &[64]);
        g.output("double", &(&x * 2.0));
        g.output("sum", &(x.sum(..) + &x));
    });
    let x = values(&[64], 5);
    let expected = run(&e, std::slice::from_ref(&x));
    let copy = compile(1, |g| g.output("x", &(f32s(g, "x", &[64]) + 0.0)));
    let y = e
        .run_donating(vec![run(&copy, std::slice::from_ref(&x)).remove(0).into()])
        .unwrap();
    assert!(y.iter().zip(&expected).all(|(a, b)| a.bytes() == b.bytes()));
}

#[test]
fn borrowed_inputs_of_a_donating_call_stay_as_they_are() {
    let e = compile(1, |g| g.output("y", &(f32s(g, "x", &[64]) * 2.0)));
    let x = values(&[64], 5);
    let before = x.bytes().to_vec();
    let y = e.run_donating(vec![(&x).into()]).unwrap();
    assert_ne!(y[0].bytes(), before);
    assert_eq!(x.bytes(), before);
}

/// `y = x + row` with `x: f32[n, m]`, `row: f32[m]`, and `z: f32[k]` that must be as long as `2 n`.
fn shaped() -> Executable {
    compile(1, |g| {
        let (n, m, k) = (g.symbol("n", 0..=8), g.symbol("m", 1..=16), g.symbol("k", 0..=64));
        let x = g.input("x", F32, (&n, &m));
        let row = g.input("row", F32, &m);
        let z = g.input("z", F32, &k);
        g.output("y", &(&x + &row));
        g.output("w", &(tlc::concat(&[&x.sum(1), &x.max(1)], 0) + &z));
    })
}

fn failure(shapes: [&[usize]; 3]) -> RunError {
    let inputs = shapes.map(|s| values(s, 1));
    let inputs: Vec<Input<'_>> = inputs.iter().map(Input::from).collect();
    shaped().run(&inputs).expect_err("the inputs do not fit")
}

#[test]
fn inputs_of_a_wrong_shape_rank_dtype_or_number_are_refused() {
    let text = failure([&[3, 4], &[5], &[6]]).to_string();
    assert_eq!(text, "input `row`: expected f32[m], found shape [5]");
    let text = failure([&[3, 4, 1], &[4], &[6]]).to_string();
    assert_eq!(text, "input `x`: expected f32[n, m], found shape [3, 4, 1]");
    let e = shaped();
    let (x, row, z) = (values(&[3, 4], 1), values(&[4], 1), values(&[6], 1));
    let wrong = HostTensor::from_slice(&[4], &[1.0f64; 4]).unwrap();
    let text = e
        .run(&[(&x).into(), (&wrong).into(), (&z).into()])
        .unwrap_err()
        .to_string();
    assert_eq!(text, "input `row`: expected f32, found f64");
    let text = e.run(&[(&x).into(), (&row).into()]).unwrap_err().to_string();
    assert_eq!(text, "the graph has 3 inputs, found 2");
    assert!(e.run(&[(&x).into(), (&row).into(), (&z).into()]).is_ok());
    // A refused call takes nothing with it: what was not consumed is still whole.
    assert!(e.run_donating(vec![(&x).into(), (&wrong).into(), (&z).into()]).is_err());
}

#[test]
fn sizes_outside_their_range_and_broken_guards_are_refused() {
    let text = failure([&[9, 4], &[4], &[18]]).to_string();
    assert_eq!(text, "size `n` is 9, declared 0..=8");
    let text = failure([&[3, 0], &[0], &[6]]).to_string();
    assert_eq!(text, "size `m` is 0, declared 1..=16");
    assert!(matches!(failure([&[3, 4], &[4], &[7]]), RunError::Guard { .. }));
}

#[test]
fn an_empty_batch_gives_empty_results() {
    let e = shaped();
    let inputs = [values(&[0, 4], 1), values(&[4], 1), values(&[0], 1)];
    let y = run(&e, &inputs);
    assert_eq!((y[0].shape(), y[0].bytes().len()), (&[0, 4][..], 0));
    assert_eq!((y[1].shape(), y[1].bytes().len()), (&[0][..], 0));
    // And so do a product, a row-local kernel and a sum of nothing.
    let e = compile(2, |g| {
        let n = g.symbol("n", 0..=64);
        let x = g.input("x", F32, (&n, 32));
        g.output("y", &x.matmul(&f32s(g, "w", &[32, 16])).softmax(-1));
        g.output("total", &x.sum(..));
    });
    let y = run(&e, &[values(&[0, 32], 1), values(&[32, 16], 1)]);
    assert_eq!(y[0].shape(), [0, 16]);
    assert_eq!(y[1].as_slice::<f32>().unwrap(), [0.0]);
}

#[test]
fn buffers_of_a_wrong_size_are_refused() {
    let e = compile(1, |g| g.output("y", &(f32s(g, "x", &[4]) * 2.0)));
    let x = values(&[4], 1);
    let mut small = [0f32; 3];
    let error = e.run_into(&inputs![&x], &mut outputs![&mut small]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "output `y`: expected 16 bytes aligned to 4, found 12"
    );
    assert!(e.run_into(&inputs![&x], &mut []).is_err());
}

#[test]
fn a_value_for_a_size_that_the_graph_does_not_have_is_an_error_that_says_which_it_has() {
    let g = Graph::new("sizes");
    let (n, m) = (g.symbol("rows", 1..=8), g.symbol("columns", 1..=8));
    let x = g.input("x", DType::F32, (&n, &m));
    g.output("y", &(&x + 1.0));
    let given = |name: &str| CompileOptions {
        symbols: vec![(name.into(), 4)],
        ..CompileOptions::default()
    };
    let Err(refused @ BuildError::UnknownSymbol { .. }) = g.compile(&given("row")) else {
        panic!("`row` is none of its sizes")
    };
    assert_eq!(refused.to_string(), "no size is called `row`; expected rows, columns");
    assert!(g.compile(&given("rows")).is_ok());
}
