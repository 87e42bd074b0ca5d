//! Loops and host functions from recording to a run: equal to the interpreter, a body compiled once, nothing unrolled.

use tlc::{CompileOptions, DType, Executable, Graph, HostTensor, Tensor};
use tlc_ir::interp::{Options, interpret};
use tlc_ir::plan::{Plan, Step};
use tlc_ir::{NodeKind, Scalar};

fn compiled(g: &Graph, threads: usize) -> Executable {
    let options = CompileOptions {
        threads: Some(threads),
        ..CompileOptions::default()
    };
    g.compile(&options).unwrap()
}

/// Runs with one and two threads and in the interpreter; all must be the same bits, or NaN both.
fn check(g: &Graph, inputs: &[HostTensor]) -> Vec<HostTensor> {
    let arguments = || inputs.iter().map(Into::into).collect::<Vec<_>>();
    let one = compiled(g, 1).run(&arguments()).unwrap();
    let two = compiled(g, 2).run(&arguments()).unwrap();
    let right = interpret(&g.finish().unwrap(), inputs, &Options::default()).unwrap();
    for ((a, b), c) in one.iter().zip(&two).zip(&right) {
        assert_eq!(a.bytes(), b.bytes(), "one and two threads: {}", a.name);
        let a = a.to_host();
        assert_eq!((a.dtype(), a.shape()), (c.dtype(), c.shape()));
        for i in 0..a.len() {
            let (x, y) = (a.get(i), c.get(i));
            assert!(x == y || (x.is_nan() && y.is_nan()), "element {i}: {x}, expected {y}");
        }
    }
    right
}

fn tensor(shape: &[usize], data: &[f32]) -> HostTensor {
    HostTensor::from_slice(shape, data).unwrap()
}

/// Small whole numbers, so that sums in any order are exact.
fn counting(shape: &[usize]) -> HostTensor {
    let data: Vec<f32> = (0..shape.iter().product()).map(|i| (i % 7) as f32 - 3.0).collect();
    tensor(shape, &data)
}

fn body(plan: &Plan) -> &Plan {
    let bodies: Vec<&Plan> = plan
        .steps
        .iter()
        .filter_map(|s| match s {
            Step::Loop(l) => Some(&l.body),
            _ => None,
        })
        .collect();
    assert_eq!(bodies.len(), 1);
    bodies[0]
}

/// `h = x[i] @ w + h`, the states stacked.
fn recurrence(g: &Graph, steps: impl Into<tlc::Dim> + Clone, reverse: bool, axis: i64) -> Vec<Tensor> {
    let mut shape = vec![tlc::Dim::from(3), tlc::Dim::from(4)];
    shape.insert(axis as usize, steps.clone().into());
    let x = g.input("x", DType::F32, shape);
    let w = g.input("w", DType::F32, [4, 4]);
    let h = g.input("h", DType::F32, [3, 4]);
    let l = g.repeat(steps).carry(&h);
    let l = match reverse {
        true => l.slice_reversed(&x, axis),
        false => l.slice(&x, axis),
    };
    l.record(|i| {
        let w = i.capture(&w);
        let h = i.slices[0].matmul(&w) + &i.carried[0];
        match reverse {
            true => i.stack_reversed(&h, axis),
            false => i.stack(&h, axis),
        }
        vec![h]
    })
}

#[test]
fn a_loop_carries_slices_and_stacks_along_any_axis_both_ways() {
    for axis in 0..3 {
        for reverse in [false, true] {
            for steps in [0usize, 1, 2, 5] {
                let g = Graph::new("recurrence");
                for r in recurrence(&g, steps, reverse, axis) {
                    g.output("", &r);
                }
                let mut shape = vec![3, 4];
                shape.insert(axis as usize, steps);
                check(&g, &[counting(&shape), counting(&[4, 4]), counting(&[3, 4])]);
            }
        }
    }
}

#[test]
fn the_number_of_iterations_may_be_symbolic_and_is_not_compiled_again() {
    let g = Graph::new("recurrence");
    let n = g.symbol("n", 0..=64);
    for r in recurrence(&g, &n, false, 1) {
        g.output("", &r);
    }
    let executable = compiled(&g, 2);
    for steps in [3usize, 0, 7, 64, 3] {
        let inputs = [counting(&[3, steps, 4]), counting(&[4, 4]), counting(&[3, 4])];
        let found = executable
            .run(&inputs.iter().map(Into::into).collect::<Vec<_>>())
            .unwrap();
        let right = interpret(&g.finish().unwrap(), &inputs, &Options::default()).unwrap();
        for (a, b) in found.iter().zip(&right) {
            assert_eq!(a.to_host(), *b, "{steps} steps");
        }
    }
}

#[test]
fn a_body_is_planned_once_and_holds_a_few_steps() {
    let g = Graph::new("recurrence");
    for r in recurrence(&g, 100usize, false, 0) {
        g.output("", &r);
    }
    let executable = compiled(&g, 1);
    assert_eq!(executable.plan().steps.len(), 1);
    assert!(body(executable.plan()).steps.len() <= 3, "{}", executable.plan());
    assert!(executable.plan().kernels.is_empty());
}

/// `h = exp(b) * h + h @ r`, with r and b captured.
fn gated(g: &Graph, r: &Tensor, b: &Tensor, steps: impl Into<tlc::Dim>) {
    let n = g.symbol("n", 0..=64);
    let h = g.input("h", DType::F32, [n, 64.into()]);
    let l = g.repeat(steps).carry(&h);
    let results = l.record(|i| {
        let (r, b) = (i.capture(r), i.capture(b));
        let h = &i.carried[0];
        vec![tlc::einsum("bh,gh->bg", &[h, &r]) + b.exp() * h]
    });
    g.output("y", &results[0]);
}

#[test]
fn what_no_iteration_changes_is_computed_before_the_loop() {
    let zero = tensor(&[64], &[0.0; 64]);
    for constant in [false, true] {
        let g = Graph::new("gated");
        let given = [counting(&[64, 64]), zero.clone()];
        let (r, b) = match constant {
            true => (g.constant(&given[0]), g.constant(&given[1])),
            false => (g.input("r", DType::F32, [64, 64]), g.input("b", DType::F32, [64])),
        };
        gated(&g, &r, &b, 2usize);
        let executable = compiled(&g, 1);
        let plan = executable.plan();
        // The product with what is elementwise behind it; the matrix in the library's order and exp(b) are made outside.
        assert_eq!(body(plan).steps.len(), 1, "{}", executable.explain());
        assert_eq!(
            (plan.init.len(), plan.steps.len()),
            if constant { (2, 1) } else { (0, 2) }
        );
        assert_eq!(
            body(plan).inputs.len(),
            4,
            "what is no longer read is no longer captured"
        );
        for n in [0, 1, 5] {
            let h = counting(&[n, 64]);
            let inputs = match constant {
                true => vec![h],
                false => vec![given[0].clone(), given[1].clone(), h],
            };
            check(&g, &inputs);
        }
    }
}

#[test]
fn a_loop_that_never_runs_needs_nothing_of_what_it_captures() {
    let g = Graph::new("never");
    let (r, b) = (g.input("r", DType::F32, [64, 64]), g.input("b", DType::F32, [64]));
    gated(&g, &r, &b, 0usize);
    let nan = tensor(&[64], &[f32::NAN; 64]);
    let y = check(&g, &[counting(&[64, 64]), nan, counting(&[2, 64])]);
    assert_eq!(y[0], counting(&[2, 64]));
}

#[test]
fn a_condition_ends_a_loop_and_what_was_not_written_is_zero() {
    for (limit, times) in [(0.0f32, 0), (5.0, 3), (100.0, 6)] {
        let g = Graph::new("until");
        let limit_of = g.input("limit", DType::F32, ());
        let start = g.full((), 1.0, DType::F32);
        let first = start.lt(&limit_of);
        let results = g.repeat(6).while_(&first).carry(&start).record(|i| {
            let limit = i.capture(&limit_of);
            let double = &i.carried[0] * 2.0;
            i.stack(&double, 0);
            i.go_on_if(&double.lt(&limit));
            vec![double]
        });
        g.output("last", &results[0]);
        g.output("all", &results[1]);
        let found = check(&g, &[tensor(&[], &[limit])]);
        let all: Vec<f32> = (0..6).map(|i| if i < times { 2f32.powi(i + 1) } else { 0.0 }).collect();
        assert_eq!(found[1], tensor(&[6], &all));
        assert_eq!(found[0], tensor(&[], &[2f32.powi(times)]));
    }
}

#[test]
fn an_operand_says_how_many_iterations_there_are() {
    let g = Graph::new("count");
    let count = g.input("count", DType::I64, ());
    let x = g.input("x", DType::I64, [3]);
    let results = g.repeat(5).at_most(&count).carry(&x).record(|i| {
        let next = &i.carried[0] * 3 + &i.number;
        i.stack_reversed(&next, 1);
        vec![next]
    });
    results.iter().for_each(|r| g.output("", r));
    for n in [-1i64, 0, 1, 2, 4, 5, 9] {
        let count = HostTensor::scalar(Scalar::from_i64(DType::I64, n));
        let x = HostTensor::from_slice(&[3], &[1i64, -2, 5]).unwrap();
        check(&g, &[count, x]);
    }
}

#[test]
fn loops_nest() {
    let g = Graph::new("powers");
    let x = g.input("x", DType::F32, [4, 2, 3]);
    let results = g.repeat(4).slice(&x, 0).record(|i| {
        let rows = i.slices[0].clone();
        let start = i.graph().full([3], 0.0, DType::F32);
        let inner = i.graph().repeat(2).carry(&start).slice(&rows, 0).record(|j| {
            let sum = &j.carried[0] * 2.0 + &j.slices[0];
            vec![sum]
        });
        i.stack(&inner[0], 1);
        vec![]
    });
    g.output("y", &results[0]);
    check(&g, &[counting(&[4, 2, 3])]);
}

#[test]
fn a_warm_loop_keeps_its_carried_value_when_it_does_not_change() {
    // The carried value is handed through, and a capture is a result: both are copies of their own.
    let g = Graph::new("through");
    let x = g.input("x", DType::F32, [3]);
    let results = g.repeat(3).carry(&x).record(|i| {
        let x = i.capture(&x);
        i.stack(&x, 0);
        vec![i.carried[0].clone()]
    });
    results.iter().for_each(|r| g.output("", r));
    check(&g, &[counting(&[3])]);
}

#[test]
fn what_does_not_fit_is_refused_where_it_was_recorded() {
    let refused = |f: &dyn Fn(&Graph) -> Vec<Tensor>, expected: &str| {
        let g = Graph::new("wrong");
        let results = f(&g);
        assert!(results.iter().all(|r| r.is_poisoned()));
        let errors = g.finish().unwrap_err().to_string();
        assert!(errors.contains(expected), "{errors}");
        assert!(errors.contains("tests/graphs/loops.rs"), "{errors}");
    };
    let x = |g: &Graph| g.input("x", DType::F32, [3]);
    refused(
        &|g| g.repeat(2).carry(&x(g)).record(|i| vec![i.carried[0].sum(0)]),
        "carried value 0 becomes f32[]; expected f32[3]",
    );
    refused(&|g| g.repeat(2).slice(&x(g), 0).record(|_| vec![]), "sliced operand 0");
    refused(
        &|g| {
            let x = x(g);
            g.repeat(2).carry(&x).record(|_| vec![x.clone()])
        },
        "a result of another graph; expected tensors of the body",
    );
    refused(
        &|g| {
            let x = x(g);
            g.repeat(2).carry(&x).record(|i| vec![&i.carried[0] + &x])
        },
        "through the iteration's `capture`",
    );
    refused(
        &|g| g.repeat(2).carry(&x(g)).record(|_| vec![]),
        "the body returns 0 values",
    );
    refused(
        &|g| {
            let go = g.full((), true, DType::Bool);
            g.repeat_while(&go).carry(&x(g)).record(|i| vec![i.carried[0].clone()])
        },
        "expected go_on_if",
    );
}

#[test]
fn sorting_is_stable_and_puts_nan_last() {
    let values = [2.0, f32::NAN, -0.0, 0.0, -1.0, 2.0, f32::INFINITY, -1.0];
    for dtype in DType::ALL.into_iter().filter(|d| !d.is_storage()) {
        for descending in [false, true] {
            let g = Graph::new("sort");
            let x = g.input("x", DType::F32, [8]).cast(dtype);
            g.output("sorted", &x.sort(0, descending));
            g.output("places", &x.argsort(0, descending));
            let (best, at) = x.reshape([2, 4]).top_k(2, 0, descending);
            g.output("best", &best);
            g.output("at", &at);
            let found = check(&g, &[tensor(&[8], &values)]);
            if dtype == DType::F32 {
                let expected: &[i64] = match descending {
                    false => &[4, 7, 2, 3, 0, 5, 6, 1],
                    true => &[1, 6, 0, 5, 2, 3, 4, 7],
                };
                assert_eq!(found[1].as_slice::<i64>(), Some(expected));
            }
        }
    }
}

#[test]
fn top_k_keeps_none_some_or_all_along_any_axis() {
    for axis in 0..3 {
        for count in [0, 1, 2] {
            let g = Graph::new("best");
            let x = g.input("x", DType::I32, [3, 2, 4]);
            let (values, places) = x.top_k(count, axis, true);
            g.output("values", &values);
            g.output("places", &places);
            let data: Vec<i32> = (0..24).map(|i| (i * 7919) % 13 - 6).collect();
            check(&g, &[HostTensor::from_slice(&[3, 2, 4], &data).unwrap()]);
        }
    }
    let g = Graph::new("too many");
    let x = g.input("x", DType::F32, [3]);
    assert!(x.top_k(4, 0, true).0.is_poisoned());
    assert!(g.finish().is_err());
}

#[test]
fn a_body_s_memory_is_part_of_the_peak_that_is_printed() {
    let g = Graph::new("memory");
    let x = g.input("x", DType::F32, [64, 64]);
    let results = g.repeat(3).carry(&x).record(|i| {
        let y = i.carried[0].matmul(&i.carried[0]);
        vec![y.softmax(-1).matmul(&y)]
    });
    g.output("y", &results[0]);
    let executable = compiled(&g, 1);
    let layout = executable.decisions().planned.layout.clone().unwrap();
    // A spare buffer, and at least one temporary of the body.
    assert!(layout.host().bytes >= 2 * 64 * 64 * 4, "{layout:?}");
    assert_eq!(layout.bodies.len(), 1);
    assert!(executable.explain().contains("once for each iteration"));
    let graph = g.finish().unwrap();
    assert!(graph.nodes().any(|(_, n)| matches!(n.kind, NodeKind::Loop(_))));
}

/// Whatever a loop or host function is given: what is only reshaped is where it was, whether something else reads the reshaped value or
/// the one below it.
#[test]
fn a_reshaped_operand_is_read_where_it_lies() {
    let g = Graph::new("reshaped");
    let (x, w) = (g.input("x", DType::F32, [6, 4]), g.input("w", DType::F32, [16]));
    let r = g.repeat(3).carry(&w).slice(&x.reshape([3, 8]), 0).record(|i| {
        let s = i.slices[0].sum(..) + &i.carried[0];
        i.stack(&s, 0);
        vec![s]
    });
    let sorted = r[1].reshape([8, 6]).sort(1, false);
    g.output("last", &r[0]);
    g.output("sorted", &sorted);
    let executable = compiled(&g, 1);
    let is_launch = |s: &&Step| matches!(s, Step::Launch(_));
    assert_eq!(
        executable.plan().steps.iter().filter(is_launch).count(),
        0,
        "{}",
        executable.plan()
    );
    check(&g, &[counting(&[6, 4]), counting(&[16])]);

    // The value below is computed here, and both are read by others too.
    let g = Graph::new("both");
    let x = g.input("x", DType::F32, [6, 4]);
    let y = (&x * 2.0).cumsum(0) + 1.0;
    let flat = y.reshape([24]);
    let r = g.repeat(3).carry(&flat).slice(&y.reshape([3, 8]), 0).record(|i| {
        let s = i.slices[0].sum(..) + &i.carried[0];
        vec![s]
    });
    g.output("last", &r[0]);
    g.output("flat", &flat);
    g.output("sum", &(&y + 3.0).sum(0));
    check(&g, &[counting(&[6, 4])]);
}
