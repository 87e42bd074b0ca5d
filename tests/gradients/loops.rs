//! Loops: what goes around, slices, stacks and captures, counts and conditions, loops in loops.

use tlc::{DType, Graph, Tensor, grad};

use crate::against::check;

const X: (&[usize], f64, f64) = (&[4, 3], -1.0, 1.0);
const H: (&[usize], f64, f64) = (&[3], -1.0, 1.0);
const W: (&[usize], f64, f64) = (&[3, 3], -1.0, 1.0);

#[test]
fn recurrences() {
    check("recurrent", &[X, H, W], |g, x| {
        let r = g.repeat(4).carry(&x[1]).slice(&x[0], 0).record(|i| {
            let w = i.capture(&x[2]);
            let h = (&i.slices[0] + i.carried[0].matmul(&w)).tanh();
            i.stack(&h, 1);
            vec![h]
        });
        &r[0] * 3.0 + r[1].square().sum(1)
    });
    check("backwards", &[X, H], |g, x| {
        let r = g.repeat(4).carry(&x[1]).slice_reversed(&x[0], 0).record(|i| {
            let h = &i.slices[0] * i.carried[0].sin();
            i.stack_reversed(&(&h * &i.slices[0]), 0);
            vec![h]
        });
        &r[1] * r[0].exp()
    });
    check("only the last", &[H], |g, x| {
        g.repeat(5)
            .carry(&x[0])
            .record(|i| vec![i.carried[0].sin() * 1.5])
            .remove(0)
    });
    check("numbers of iterations", &[H], |g, x| {
        g.repeat(5)
            .carry(&x[0])
            .record(|i| vec![i.carried[0].sin() * i.number.cast(DType::F64)])
            .remove(0)
    });
    check("never", &[H], |g, x| {
        g.repeat(0).carry(&x[0]).record(|i| vec![i.carried[0].sin()]).remove(0)
    });
    check("nothing goes around", &[X, H], |g, x| {
        g.repeat(3)
            .slice(&x[0], 1)
            .record(|i| {
                let y = i.slices[0].exp().sum(..) * i.capture(&x[1]);
                i.stack(&y, 0);
                vec![]
            })
            .remove(0)
    });
}

#[test]
fn several_values_and_uses() {
    check("two that cross", &[H, H], |g, x| {
        let r = g
            .repeat(3)
            .carry(&x[0])
            .carry(&x[1])
            .record(|i| vec![i.carried[1].sin() + &i.carried[0], &i.carried[0] * &i.carried[1]]);
        &r[0] - &r[1]
    });
    check("whole numbers beside", &[H], |g, x| {
        let start = g.scalar(1, DType::I64);
        let r = g.repeat(3).carry(&start).carry(&x[0]).record(|i| {
            let n = &i.carried[0] * 2;
            vec![n.clone(), i.carried[1].sin() * n.cast(DType::F64)]
        });
        r[1].clone()
    });
    check(
        "the same around, captured and sliced",
        &[(&[3, 3], -1.0, 1.0)],
        |g, x| {
            let x = &x[0];
            g.repeat(3)
                .carry(x)
                .slice(x, 0)
                .slice(x, 1)
                .record(|i| {
                    let (c, d) = (i.capture(x), i.capture(x));
                    vec![&i.carried[0] * c.sin() + d + &i.slices[0] * &i.slices[1]]
                })
                .remove(0)
        },
    );
}

#[test]
fn counts_and_conditions() {
    for count in [0i64, 2, 5, 9] {
        check(&format!("at most {count}"), &[(&[5, 3], -1.0, 1.0), H, W], |g, x| {
            let n = g.scalar(count, DType::I64);
            let r = g
                .repeat(5)
                .at_most(&n)
                .carry(&x[1])
                .slice(&x[0], 0)
                .slice_reversed(&x[0], 0)
                .record(|i| {
                    let h = (&i.slices[0] * &i.slices[1] + i.carried[0].matmul(&i.capture(&x[2]))).tanh();
                    i.stack(&h, 1);
                    i.stack_reversed(&h.square(), 0);
                    vec![h]
                });
            &r[0] + r[1].sum(1) + (&r[2] * g.range(5, DType::F64).unsqueeze(-1)).sum(0)
        });
    }
    check("while", &[(&[], 1.5, 1.6)], |g, x| {
        let go = g.constant([true]).reshape(());
        g.repeat(20)
            .while_(&go)
            .carry(&x[0])
            .record(|i| {
                let next = i.carried[0].square();
                i.go_on_if(&next.lt(100.0));
                vec![next]
            })
            .remove(0)
            .log()
    });
}

#[test]
fn loops_in_loops_and_again() {
    let nested = |g: &Graph, x: &[Tensor]| {
        g.repeat(3)
            .carry(&x[0])
            .record(|i| {
                let w = i.capture(&x[1]);
                let start = i.carried[0].clone();
                let inner = i.graph().repeat(2).carry(&start).record(|j| {
                    let w = j.capture(&w);
                    vec![(&j.carried[0] * w).sin()]
                });
                vec![&inner[0] + &start]
            })
            .remove(0)
    };
    check("nested", &[H, H], nested);
    check("second", &[H, H], |g, x| {
        grad(&nested(g, x).exp().sum(..), &[&x[0]]).remove(0)
    });
}

/// A size that a call gives is the trip count.
#[test]
fn symbolic_trip_counts() {
    let g = Graph::new("symbolic");
    let n = g.symbol("n", 0..=9);
    let x = g.input("x", DType::F64, (&n, 2));
    let h = g
        .repeat(&n)
        .carry(&g.ones([2], DType::F64))
        .slice(&x, 0)
        .record(|i| vec![&i.carried[0] * &i.slices[0]]);
    let d = grad(&h[0].sum(..), &[&x]);
    assert_eq!(d[0].ty(), x.ty());
    g.output("d", &d[0]);
    let run = g.compile(&tlc::CompileOptions::default()).unwrap();
    let found = run
        .run(&tlc::inputs![&[[2.0f64, 1.0], [3.0, 5.0], [4.0, 7.0]]])
        .unwrap();
    assert_eq!(found[0].as_slice::<f64>().unwrap(), [12.0, 35.0, 8.0, 7.0, 6.0, 5.0]);
}

#[test]
fn a_loop_that_nothing_bounds_is_refused() {
    let g = Graph::default();
    let x = g.input("x", DType::F32, ());
    let y = g.repeat_while(&x.gt(1.0)).carry(&x).record(|i| {
        let half = &i.carried[0] * 0.5;
        i.go_on_if(&half.gt(1.0));
        vec![half]
    });
    let _ = grad(&y[0], &[&x]);
    let text = g.finish().unwrap_err().to_string();
    assert!(text.contains("the derivative of loop %"), "{text}");
    assert!(
        text.contains("nothing bounds its iterations; expected a trip count beside the condition, as `graph.repeat(max_iterations)"),
        "{text}"
    );
    assert!(text.contains("tests/gradients/loops.rs"), "{text}");
}

/// The derivative asks the forward loop for more results; it does not run twice.
#[test]
fn the_forward_loop_runs_once() {
    let g = Graph::new("once");
    let x = g.input("x", DType::F32, [4, 3]);
    let h = g.repeat(4).carry(&g.ones([3], DType::F32)).slice(&x, 0).record(|i| {
        let h = (&i.carried[0] * &i.slices[0]).tanh();
        i.stack(&h, 0);
        vec![h]
    });
    let loss = h[0].square().sum(..) + h[1].sum(..);
    g.output("loss", &loss);
    g.output("d", &grad(&loss, &[&x])[0]);
    let compiled = g.compile(&tlc::CompileOptions::default()).unwrap();
    let graph = &compiled.decisions().graph;
    let loops = graph.nodes().filter(|(_, n)| n.kind.is_tuple()).count();
    assert_eq!(loops, 2, "{graph}");
}
