//! Checkpoints: values that derivatives compute again in place of keeping them, in regions and in segments of loops. Derivatives are
//! those without them, and what is kept is counted.

use tlc::ir::graph::{NodeKind, Rule};
use tlc::ir::text::{difference, no_data, parse_graph};
use tlc::{
    CompileOptions, DType, Executable, Graph, HostTensor, Repeat, Tensor, Vmap, checkpoint, compile_ir, custom_vjp,
    grad, hvp, inputs, jvp, vjp, vmap,
};

use crate::against::{check, elements, host};

const X: (&[usize], f64, f64) = (&[4, 3], -1.0, 1.0);
const H: (&[usize], f64, f64) = (&[3], -1.0, 1.0);
const W: (&[usize], f64, f64) = (&[3, 3], -1.0, 1.0);

fn values(t: &Tensor) -> Vec<f64> {
    t.eval().expect("it runs").as_slice::<f64>().expect("doubles").to_vec()
}

fn error(g: &Graph) -> String {
    g.finish().expect_err("it is refused").to_string()
}

/// The extents of what a graph is given.
fn shapes(compiled: &Executable) -> Vec<(DType, Vec<usize>)> {
    let extent = |d: &tlc::ir::IndexExpr| d.as_const().expect("a number") as usize;
    let shape = |i: &tlc::ir::plan::PlanInput| (i.ty.dtype, i.ty.shape.iter().map(extent).collect());
    compiled.plan().inputs.iter().map(shape).collect()
}

/// Runs a graph of outputs over inputs of f64, each with elements of its own.
fn run(g: &Graph) -> Vec<Vec<f64>> {
    let compiled = g.compile(&CompileOptions::default()).expect("it compiles");
    let given: Vec<HostTensor> = (shapes(&compiled).iter().enumerate())
        .map(|(k, (_, shape))| host(shape, &elements(&(shape, -1.0, 1.0), k as u64)))
        .collect();
    let given: Vec<tlc::Input<'_>> = given.iter().map(Into::into).collect();
    let found = compiled.run(&given).expect("it runs");
    let values = |k: usize| found[k].as_slice::<f64>().expect("doubles").to_vec();
    (0..found.len()).map(values).collect()
}

/// Bytes between the steps of a call.
fn arena(g: &Graph) -> u64 {
    let compiled = g.compile(&CompileOptions::default()).expect("it compiles");
    let zeros = |(dtype, shape): &(DType, Vec<usize>)| HostTensor::zeros(*dtype, shape).expect("few elements");
    let given: Vec<HostTensor> = shapes(&compiled).iter().map(zeros).collect();
    let given: Vec<tlc::Input<'_>> = given.iter().map(Into::into).collect();
    compiled.memory(&given).expect("the inputs fit").arena
}

#[test]
fn derivatives_are_those_of_differences() {
    check("one", &[H, W], |_, x| {
        checkpoint(&[&x[0], &x[1]], |t| vec![t[0].matmul(&t[1]).tanh().square()]).remove(0)
    });
    check("several results, one of them unused, one passed on", &[X, H], |_, x| {
        let y = checkpoint(&[&x[0], &x[1]], |t| {
            let s = (&t[0] * &t[1]).sin();
            vec![s.exp(), s.sum(0), &s * 7.0, t[1].clone(), t[0].argmax(0)]
        });
        &y[0] * &y[1] + &y[3]
    });
    check("whole numbers among operands", &[X], |g, x| {
        let rows = g.constant([2i64, 0, 2]);
        checkpoint(&[&x[0], &rows], |t| vec![t[0].take(&t[1], 0).exp()]).remove(0)
    });
    check("one tensor twice, and what is computed from it", &[H], |_, x| {
        let sin = x[0].sin();
        let y = checkpoint(&[&x[0], &sin, &x[0]], |t| vec![t[0].exp() * &t[1] + t[2].square()]);
        &y[0] * &x[0]
    });
    check("a chain", &[H, W], |_, x| {
        (0..4).fold(x[0].clone(), |h, _| {
            checkpoint(&[&h, &x[1]], |t| vec![(t[0].matmul(&t[1])).tanh() + &t[0]]).remove(0)
        })
    });
    check("inside each other", &[H, W], |_, x| {
        checkpoint(&[&x[0], &x[1]], |t| {
            let h = checkpoint(&[&t[0], &t[1]], |t| {
                let inner = checkpoint(&[&t[0]], |t| vec![t[0].exp().sin()]);
                vec![inner[0].matmul(&t[1]).sin()]
            });
            checkpoint(&[&h[0], &t[1]], |t| vec![t[0].matmul(&t[1]).tanh()])
        })
        .remove(0)
    });
    check("in loops, and loops in them", &[X, H, W], |g, x| {
        let r = g.repeat(4).carry(&x[1]).slice(&x[0], 0).record(|i| {
            let w = i.capture(&x[2]);
            let h = checkpoint(&[&i.carried[0], &i.slices[0], &w], |t| {
                let r = t[0].graph().repeat(2).carry(&t[0]).record(|j| {
                    let (x, w) = (j.capture(&t[1]), j.capture(&t[2]));
                    vec![(&j.carried[0].matmul(&w) + x).sin()]
                });
                vec![r[0].clone()]
            });
            i.stack(&h[0], 0);
            h
        });
        &r[0] + r[1].square().sum(0)
    });
    check("derivatives of one's own inside", &[H], |_, x| {
        checkpoint(&[&x[0]], |t| {
            let cube = custom_vjp(
                &[&t[0]],
                |t| vec![t[0].pow(3.0)],
                |known| vec![&known.cotangents[0] * known.operands[0].square() * 3.0],
            );
            vec![cube[0].sin()]
        })
        .remove(0)
    });
    check("second derivatives", &[H, W], |_, x| {
        let y = checkpoint(&[&x[0], &x[1]], |t| vec![t[0].matmul(&t[1]).sin()]);
        let d = grad(&y[0].square().sum(..), &[&x[0], &x[1]]);
        &d[0] + d[1].sum(0)
    });
    check("along a direction, and back", &[H, W], |g, x| {
        let y = checkpoint(&[&x[0], &x[1]], |t| vec![t[0].matmul(&t[1]).sin(), t[0].clone()]);
        let t = jvp(&[&y[0], &y[1]], &[&x[0]], &[&g.constant([1.0f64, -2.0, 0.5])]);
        &t[0] * &t[1]
    });
    check("none of the rows", &[(&[0, 3], -1.0, 1.0), H], |_, x| {
        let y = checkpoint(&[&x[0], &x[1]], |t| vec![(&t[0] * &t[1]).sin()]);
        y[0].sum(0) + &x[1]
    });
}

/// What one step of training computes, with and without checkpoints: equal bits, forwards, backwards and twice.
#[test]
fn nothing_changes_but_what_is_kept() {
    let record = |is_kept: bool| {
        let g = Graph::new("chain");
        let (x, w) = (g.input("x", DType::F64, [5, 8]), g.input("w", DType::F64, [6, 8, 8]));
        let ws = w.unbind(0);
        let mut h = x.clone();
        for pair in ws.chunks(2) {
            let block = |t: &[Tensor]| vec![(t[0].matmul(&t[1]).gelu()).matmul(&t[2]).tanh() + &t[0]];
            let all = [h.clone(), pair[0].clone(), pair[1].clone()];
            h = match is_kept {
                true => block(&all).remove(0),
                false => checkpoint(&all.each_ref(), block).remove(0),
            };
        }
        let loss = h.square().mean(..);
        let d = grad(&loss, &[&x, &w]);
        let h = hvp(&loss, &[&x], &[&g.ones([5, 8], DType::F64)]);
        for (name, t) in [("loss", &loss), ("dx", &d[0]), ("dw", &d[1])] {
            g.output(name, t);
        }
        g.output("second", &h[0]);
        g
    };
    let (kept, again) = (run(&record(true)), run(&record(false)));
    assert_eq!(kept[..3], again[..3]);
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-13 * (1.0 + a.abs());
    assert!(kept[3].iter().zip(&again[3]).all(near), "{kept:?} {again:?}");
}

/// A chain of 64 blocks keeps 64 values; in 8 checkpoints it keeps 8, and 8 of one of them at a time.
#[test]
fn checkpoints_of_the_square_root_keep_that_many_values() {
    const BLOCKS: usize = 64;
    const ELEMENTS: u64 = 1 << 14;
    let chain = |segments: usize| {
        let g = Graph::new("chain");
        let x = g.input("x", DType::F32, [ELEMENTS as i64]);
        let mut h = x.clone();
        // No block is part of the kernel of the one before: sums are kept.
        let block = |h: &Tensor| h.reshape([128, 128]).cumsum(0).sin().reshape([ELEMENTS as i64]);
        for _ in 0..segments.max(1) {
            let part = |h: &Tensor| (0..BLOCKS / segments.max(1)).fold(h.clone(), |h, _| block(&h));
            h = match segments {
                0 => part(&h),
                _ => checkpoint(&[&h], |t| vec![part(&t[0])]).remove(0),
            };
        }
        g.output("d", &grad(&h.sum(..), &[&x])[0]);
        g
    };
    let (plain, root) = (arena(&chain(0)), arena(&chain(8)));
    let value = 4 * ELEMENTS;
    // The operand of each sine, which its derivative asks for.
    assert!(plain >= BLOCKS as u64 * value, "{} values", plain / value);
    // Of a checkpoint the operand, of one of them what is inside, and what is being computed.
    assert!(root <= (8 + 8 + 6) * value, "{} values", root / value);
    // Fewer or more of them keep more.
    for segments in [1, 2, 32, 64] {
        let other = arena(&chain(segments));
        assert!(
            other > root,
            "{segments}: {} values, {} with 8",
            other / value,
            root / value
        );
    }
    let (kept, again) = (chain(0), chain(8));
    let found = |g: &Graph| {
        let compiled = g.compile(&CompileOptions::default()).expect("it compiles");
        let x: Vec<f32> = elements(&(&[ELEMENTS as usize], -1.0, 1.0), 1)
            .iter()
            .map(|x| *x as f32)
            .collect();
        compiled.run(&inputs![&x]).expect("it runs")[0]
            .as_slice::<f32>()
            .expect("floats")
            .to_vec()
    };
    assert_eq!(found(&kept), found(&again));
}

/// Passes leave what is computed again where it is: with constants and parameters, whatever the pipeline does first.
#[test]
fn no_pass_merges_what_is_computed_again() {
    let g = Graph::new("again");
    let x = g.input("x", DType::F32, [256, 256]);
    let y = checkpoint(&[&x], |t| vec![t[0].cumsum(0).cumsum(1).sin()]).remove(0);
    g.output("y", &y);
    g.output("d", &grad(&y.sum(..), &[&x])[0]);
    let graph = g.finish().expect("a graph");
    let scans = |graph: &tlc::ir::Graph| graph.nodes().filter(|(_, n)| n.kind.name() == "scan").count();
    let options = tlc_passes::Options::new(tlc_runtime::target::cpu(
        tlc_runtime::cpu::jit::emitters().expect("a known machine"),
        tlc::default_threads(),
    ));
    let compiled = tlc_passes::compile(&graph, &options).expect("it compiles").graph;
    assert_eq!(scans(&compiled), 2, "{compiled}");
    let inside: Vec<usize> = (compiled.nodes())
        .filter_map(|(_, n)| match &n.kind {
            NodeKind::Loop(l) => Some(scans(&l.body.0)),
            _ => None,
        })
        .collect();
    // Both again, and the transposes of both.
    assert_eq!(inside, [4], "{compiled}");
}

#[test]
fn draws_are_the_same_again() {
    let g = Graph::default();
    g.seed(3);
    let x = g.constant(vec![1.0f64; 64]);
    let y = checkpoint(&[&x], |t| vec![t[0].dropout(0.5), t[0].exp().dropout(0.3)]);
    // The derivative of what is linear is the value at ones.
    let d = grad(&y[0].sum(..), &[&x]).remove(0);
    assert_eq!(values(&d), values(&y[0]));
    let d = grad(&y[1].sum(..), &[&x]).remove(0);
    assert_eq!(values(&d), values(&y[1]));
    let mask = |t: &Tensor| values(t).iter().map(|v| *v == 0.0).collect::<Vec<_>>();
    assert_ne!(mask(&y[0]), mask(&y[1]));
    // In a loop: each iteration has draws of its own, the same ones again.
    let carried = |every: Option<usize>| {
        let g = Graph::default();
        g.seed(3);
        let x = g.constant(vec![1.0f64; 64]);
        let repeat = g.repeat(5).carry(&x);
        let repeat = match every {
            Some(k) => repeat.checkpoint_every(k),
            None => repeat,
        };
        let y = repeat.record(|i| checkpoint(&[&i.carried[0]], |t| vec![t[0].dropout(0.1)]));
        let d = grad(&y[0].sum(..), &[&x]).remove(0);
        (values(&y[0]), values(&d))
    };
    let (y, d) = carried(None);
    assert_eq!(y, d);
    assert!(y.contains(&0.0) && y.iter().any(|v| *v != 0.0));
    assert_eq!(carried(Some(2)), (y, d));
    // By a key that is named.
    let key = g.key(7);
    let y = checkpoint(&[&x, key.tensor()], |t| {
        vec![t[0].dropout_with(0.5, &tlc::Key::from_tensor(&t[1]))]
    });
    assert_eq!(values(&y[0]), values(&x.dropout_with(0.5, &key)));
    assert_eq!(values(&grad(&y[0].sum(..), &[&x])[0]), values(&y[0]));
}

#[test]
fn over_a_batch() {
    let g = Graph::default();
    let x = g.constant(elements(&(&[4, 3], -1.0, 1.0), 1)).reshape([4, 3]);
    let w = g.constant(elements(&(&[3, 3], -1.0, 1.0), 2)).reshape([3, 3]);
    let block = |t: &[Tensor]| vec![t[0].matmul(&t[1]).sin()];
    let of_one = |is_kept: bool, t: &[Tensor]| {
        let y = match is_kept {
            true => block(t),
            false => checkpoint(&[&t[0], &t[1]], block),
        };
        let loss = y[0].square().sum(..);
        let d = grad(&loss, &[&t[0], &t[1]]);
        vec![y[0].clone(), d[0].clone(), d[1].clone()]
    };
    // What is computed again is part of another kernel, which may add up a product in another order: some last bits differ.
    let close = |a: &Tensor, b: &Tensor| {
        let (a, b) = (values(a), values(b));
        assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-14), "{a:?} {b:?}");
    };
    let over = |is_kept: bool| vmap(&[(&x, Some(0)), (&w, None)], |t| of_one(is_kept, t));
    for (a, b) in over(true).iter().zip(&over(false)) {
        close(a, b);
    }
    // And the derivative of what is mapped.
    let mapped = |is_kept: bool| {
        let y = Vmap::new().map(&[(&x, Some(0)), (&w, None)], |t| match is_kept {
            true => block(t),
            false => checkpoint(&[&t[0], &t[1]], block),
        });
        grad(&y[0].square().sum(..), &[&x, &w])
    };
    for (a, b) in mapped(true).iter().zip(&mapped(false)) {
        close(a, b);
    }
    // The loop of the derivative is of one iteration still.
    let looped = mapped(false)[0].graph().with_ir(|ir| {
        ir.nodes()
            .any(|(_, n)| matches!(&n.kind, NodeKind::Loop(l) if l.is_fence() && !l.body.0.is_empty()))
    });
    assert!(looped);
}

#[test]
fn checkpoints_have_a_text() {
    let g = Graph::new("text");
    let n = g.symbol("n", 1..=16);
    let x = g.input("x", DType::F64, [n]);
    let y = checkpoint(&[&x], |t| vec![t[0].exp()]).remove(0);
    g.output("y", &y);
    g.output("d", &grad(&y.square().sum(..), &[&x])[0]);
    let ir = g.finish().expect("a graph");
    let is = |n: &tlc::ir::Node| matches!(&n.kind, NodeKind::Region(r) if r.rule == Rule::Checkpoint);
    assert!(ir.nodes().any(|(_, n)| is(n)));
    let text = ir.to_string();
    assert!(text.contains("region checkpoint %x"), "{text}");
    let again = parse_graph(&text, &mut no_data).unwrap_or_else(|e| panic!("{text}\n{}", e[0]));
    assert_eq!(difference(&ir, &again), None, "{text}");
    assert_eq!(again.to_string(), text);
    for graph in [&ir, &again] {
        let compiled = compile_ir(graph, &CompileOptions::default()).expect("it compiles");
        let found = compiled.run(&inputs![&[0.0f64, 1.0]]).expect("it runs");
        assert_eq!(found["y"].as_slice::<f64>().unwrap()[0], 1.0);
        assert_eq!(found["d"].as_slice::<f64>().unwrap()[0], 2.0);
    }
}

#[test]
fn what_is_no_checkpoint_is_refused() {
    let g = Graph::default();
    let (x, w) = (g.input("x", DType::F32, [3]), g.input("w", DType::F32, [3]));
    let y = checkpoint(&[&x], |t| vec![&t[0] * &w]);
    assert!(y[0].is_poisoned());
    let text = error(&g);
    assert!(text.contains("what the function needs among its operands"), "{text}");

    let g = Graph::default();
    let x = g.input("x", DType::F32, [3]);
    let y = checkpoint(&[&x], |_| vec![x.clone()]);
    assert!(y[0].is_poisoned());
    assert!(error(&g).contains("a result of another graph"), "{}", error(&g));

    let g = Graph::default();
    let x = g.input("x", DType::F32, [3]);
    let y = checkpoint(&[&x], |t| vec![t[0].reshape([7])]);
    assert!(y[0].is_poisoned());
    assert!(grad(&y[0].sum(..), &[&x])[0].is_poisoned());
    assert_eq!(g.errors().len(), 1);
    assert!(error(&g).contains("tests/gradients/checkpoints.rs"), "{}", error(&g));

    // What is inside and has no derivative is named where the derivative is asked for.
    let g = Graph::default();
    let x = g.input("x", DType::F32, ());
    let y = checkpoint(&[&x], |t| {
        let inner = t[0].graph().repeat_while(&t[0].gt(1.0)).carry(&t[0]);
        inner.record(|i| {
            let half = &i.carried[0] * 0.5;
            i.go_on_if(&half.gt(1.0));
            vec![half]
        })
    });
    assert!(!y[0].is_poisoned() && g.errors().is_empty());
    assert!(grad(&y[0], &[&x])[0].is_poisoned());
    assert!(error(&g).contains("nothing bounds its iterations"), "{}", error(&g));
    assert!(checkpoint(&[], |_| vec![]).is_empty());
}

/// How a loop is ended.
#[derive(Clone, Copy, Debug)]
enum End {
    Trip,
    Count(i64),
    Condition(f64),
    Both(i64, f64),
}

/// A recurrence with all that a loop may have, over `n` iterations.
fn recurrence(g: &Graph, n: impl Into<tlc::Dim>, end: End, every: Option<usize>, x: &[Tensor]) -> Vec<Tensor> {
    let n: tlc::Dim = n.into();
    let mut repeat: Repeat = g.repeat(&n);
    if let Some(every) = every {
        repeat = repeat.checkpoint_every(every);
    }
    if let End::Count(count) | End::Both(count, _) = end {
        repeat = repeat.at_most(&g.scalar(count, DType::I64));
    }
    let bound = match end {
        End::Condition(bound) | End::Both(_, bound) => Some(bound),
        End::Trip | End::Count(_) => None,
    };
    if let Some(bound) = bound {
        repeat = repeat.while_(&x[1].abs().sum(..).lt(bound));
    }
    let whole = g.scalar(1, DType::I64);
    repeat
        .carry(&x[1])
        .carry(&whole)
        .slice(&x[0], 0)
        .slice_reversed(&x[0].square(), 0)
        .slice(&x[3], 1)
        .record(|i| {
            let (w, number) = (i.capture(&x[2]), i.number.cast(DType::F64));
            let h = (i.carried[0].matmul(&w) + &i.slices[0] * &i.slices[1] + &i.slices[2]).sin() + number * 0.01;
            i.stack(&(&h * 2.0), 1);
            i.stack_reversed(&h.square(), 0);
            if let Some(bound) = bound {
                i.go_on_if(&h.abs().sum(..).lt(bound));
            }
            vec![h, &i.carried[1] * 2]
        })
}

/// Segmented loops beside plain ones: values are equal in every bit, derivatives but for the order of sums, for any number of
/// iterations and of segments, however the loop ends.
#[test]
fn segments_are_the_plain_loop() {
    let mut ends = vec![End::Trip];
    ends.extend([-1, 0, 1, 3, 4, 9, 99].map(End::Count));
    ends.extend([0.0, 1.6, 2.2, 100.0].map(End::Condition));
    ends.extend([End::Both(5, 2.2), End::Both(3, 100.0)]);
    for n in [0i64, 1, 2, 3, 4, 7, 8, 9] {
        for end in ends.iter().filter(|e| matches!(e, End::Trip) || n == 7 || n == 8) {
            let mut expected: Option<Vec<Vec<f64>>> = None;
            for every in [
                None,
                Some(1),
                Some(2),
                Some(3),
                Some(4),
                Some(7),
                Some(100),
                Some(usize::MAX),
            ] {
                let g = Graph::new("segments");
                let x = [
                    g.input("x", DType::F64, [n, 3]),
                    g.input("h", DType::F64, [3]),
                    g.input("w", DType::F64, [3, 3]),
                    g.input("s", DType::F64, [3, n]),
                ];
                let y = recurrence(&g, n, *end, every, &x);
                let loss = y[0].sum(..) + (&y[2] * g.range(n, DType::F64)).sum(..) + y[3].exp().sum(..);
                let d = grad(&loss, &x.each_ref());
                for (k, t) in [&y[0], &y[1].cast(DType::F64), &y[2], &y[3]]
                    .into_iter()
                    .chain(&d)
                    .enumerate()
                {
                    g.output(&format!("y{k}"), t);
                }
                let found = run(&g);
                let Some(expected) = &expected else {
                    expected = Some(found);
                    continue;
                };
                let at = format!("{n} iterations, {end:?}, {every:?}");
                assert_eq!(found[..4], expected[..4], "{at}");
                for (found, expected) in found[4..].iter().zip(&expected[4..]) {
                    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-13 * (1.0 + b.abs());
                    assert!(
                        found.iter().zip(expected).all(near),
                        "{at}: {found:?}, plain {expected:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn derivatives_of_segments_are_those_of_differences() {
    for (n, every) in [(4usize, 2), (5, 2), (7, 3)] {
        let given = [(&[n, 3][..], -1.0, 1.0), H, W, (&[3, n][..], -1.0, 1.0)];
        for end in [End::Trip, End::Count(3), End::Both(4, 100.0)] {
            check(&format!("{n} by {every}, {end:?}"), &given, |g, x| {
                let y = recurrence(g, n, end, Some(every), x);
                &y[0] + y[2].sum(1) + y[3].sum(0)
            });
        }
    }
    check("twice", &[H], |g, x| {
        let body = |i: &mut tlc::Iteration| vec![i.carried[0].sin() * 1.5];
        let y = g.repeat(5).checkpoint_every(2).carry(&x[0]).record(body);
        grad(&y[0].square().sum(..), &[&x[0]]).remove(0)
    });
    check("inside each other", &[H, W], |g, x| {
        let outer = g.repeat(5).checkpoint_every(2).carry(&x[0]);
        outer
            .record(|i| {
                let w = i.capture(&x[1]);
                let inner = i.graph().repeat(7).checkpoint_every(3).carry(&i.carried[0]);
                inner.record(|j| {
                    let w = j.capture(&w);
                    vec![j.carried[0].matmul(&w).sin()]
                })
            })
            .remove(0)
    });
    check("with checkpoints inside", &[H, W], |g, x| {
        let r = g.repeat(6).checkpoint_every(3).carry(&x[0]).record(|i| {
            let w = i.capture(&x[1]);
            checkpoint(&[&i.carried[0], &w], |t| vec![t[0].matmul(&t[1]).sin()])
        });
        r[0].clone()
    });
}

/// The number of iterations is known when it runs.
#[test]
fn segments_of_symbolic_loops() {
    let record = |every: Option<usize>| {
        let g = Graph::new("symbolic");
        let n = g.symbol("n", 0..=100);
        let x = [
            g.input("x", DType::F64, (&n, 3)),
            g.input("h", DType::F64, [3]),
            g.input("w", DType::F64, [3, 3]),
            g.input("s", DType::F64, (3, &n)),
        ];
        let y = recurrence(&g, &n, End::Trip, every, &x);
        let loss = y[0].sum(..) + y[2].exp().sum(..) + y[3].exp().sum(..);
        for (k, t) in [&y[0], &y[2], &y[3]]
            .into_iter()
            .chain(&grad(&loss, &x.each_ref()))
            .enumerate()
        {
            g.output(&format!("y{k}"), t);
        }
        g.compile(&CompileOptions::default()).expect("it compiles")
    };
    let (plain, segments) = (record(None), record(Some(4)));
    for n in [0usize, 1, 3, 4, 5, 8, 11, 16] {
        let given = |shape: &[usize], seed: u64| host(shape, &elements(&(shape, -1.0, 1.0), seed));
        let x = [given(&[n, 3], 1), given(&[3], 2), given(&[3, 3], 3), given(&[3, n], 4)];
        let given: Vec<tlc::Input<'_>> = x.iter().map(Into::into).collect();
        let (a, b) = (
            plain.run(&given).expect("it runs"),
            segments.run(&given).expect("it runs"),
        );
        for k in 0..a.len() {
            let (a, b) = (a[k].as_slice::<f64>().unwrap(), b[k].as_slice::<f64>().unwrap());
            assert_eq!(a.len(), b.len());
            let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-13 * (1.0 + a.abs());
            assert!(a.iter().zip(b).all(near), "{n}, {k}: {a:?} {b:?}");
        }
    }
}

/// Of 400 carried values the plain reverse pass keeps 400; by 20, it keeps 20 and the 20 of a segment.
#[test]
fn segments_keep_the_square_root() {
    const N: i64 = 400;
    const ELEMENTS: i64 = 4096;
    let need = |n: i64, every: Option<usize>| {
        let g = Graph::new("kept");
        let x = g.input("x", DType::F32, [ELEMENTS]);
        let repeat = g.repeat(n).carry(&x);
        let repeat = match every {
            Some(every) => repeat.checkpoint_every(every),
            None => repeat,
        };
        let y = repeat.record(|i| vec![i.carried[0].sin()]);
        g.output("d", &grad(&y[0].sum(..), &[&x])[0]);
        arena(&g) / (4 * ELEMENTS as u64)
    };
    assert!((400..=410).contains(&need(N, None)), "{}", need(N, None));
    for (n, every) in [(N, 5), (N, 20), (N, 80), (N + 7, 20)] {
        let (found, kept) = (need(n, Some(every as usize)), (n / every + every) as u64);
        assert!(found <= kept + 16, "{n} by {every}: {found} values");
    }
}

#[test]
fn segments_of_nothing_are_refused() {
    let g = Graph::default();
    let x = g.input("x", DType::F32, [3]);
    let y = g
        .repeat(4)
        .checkpoint_every(0)
        .carry(&x)
        .record(|i| vec![i.carried[0].sin()]);
    assert!(y[0].is_poisoned());
    let text = error(&g);
    assert!(
        text.contains("checkpoint_every(0); expected a number of iterations from 1"),
        "{text}"
    );
    assert!(text.contains("tests/gradients/checkpoints.rs"), "{text}");

    let g = Graph::default();
    let x = g.input("x", DType::F32, ());
    let y = g.repeat_while(&x.gt(1.0)).checkpoint_every(4).carry(&x).record(|i| {
        let half = &i.carried[0] * 0.5;
        i.go_on_if(&half.gt(1.0));
        vec![half]
    });
    assert!(y[0].is_poisoned());
    assert!(
        error(&g).contains("whose iterations nothing bounds; expected a trip count"),
        "{}",
        error(&g)
    );

    // What does not fit is reported of the loop as it was written.
    let text = |every: Option<usize>| {
        let g = Graph::default();
        let (x, s) = (g.input("x", DType::F32, [3]), g.input("s", DType::F32, [5]));
        let repeat = g.repeat(6).carry(&x).slice(&s, 0);
        let repeat = match every {
            Some(every) => repeat.checkpoint_every(every),
            None => repeat,
        };
        let y = repeat.record(|i| vec![i.carried[0].sum(..)]);
        assert!(y[0].is_poisoned());
        let text = error(&g);
        text[..text.find(" at ").unwrap_or(text.len())].to_string()
    };
    assert_eq!(text(None), text(Some(2)));
    // A cotangent goes nowhere through whole numbers.
    let g = Graph::default();
    let x = g.constant([1.0f64, 2.0]);
    let y = g
        .repeat(4)
        .checkpoint_every(2)
        .carry(&x)
        .record(|i| vec![i.carried[0].floor()]);
    assert_eq!(
        values(&vjp(&[&y[0]], &[&g.constant([1.0f64, 1.0])], &[&x])[0]),
        [0.0, 0.0]
    );
}
