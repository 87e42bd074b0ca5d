//! Loops, host functions and regions over a batch, and batches of batches.

use tlc::{CompileOptions, DType, Graph, HostTensor, Pool, Tensor, Vmap, custom_vjp, grad, inputs, vmap};

use crate::against::{Given, check, check_on};

const F: DType = DType::F64;

/// Checks for each choice of operands that differ.
fn every(name: &str, given: &[(DType, &[usize])], f: impl Fn(&[Tensor]) -> Vec<Tensor>) {
    for choice in 1..1usize << given.len() {
        let operands: Vec<Given<'_>> = (given.iter().enumerate())
            .map(|(k, (dtype, shape))| (*dtype, *shape, (choice >> k & 1 == 1).then_some(0)))
            .collect();
        check(&format!("{name}, {choice:b}"), &operands, &f);
    }
}

#[test]
fn loops() {
    every("recurrent", &[(F, &[4, 2]), (F, &[2]), (F, &[2, 2])], |x| {
        let g = x[0].graph();
        g.repeat(4)
            .carry(&x[1])
            .slice(&x[0], 0)
            .slice_reversed(&x[0], 0)
            .record(|i| {
                let h = (&i.slices[0] - &i.slices[1] * 0.5 + i.carried[0].matmul(&i.capture(&x[2]))).tanh();
                i.stack(&h, 1);
                i.stack_reversed(&(&h * i.number.cast(F)), 0);
                vec![h]
            })
    });
    every("what becomes different later", &[(F, &[2]), (F, &[2])], |x| {
        let g = x[0].graph();
        let zero = g.zeros([2], F);
        g.repeat(3)
            .carry(&zero)
            .carry(&zero)
            .carry(&zero)
            .carry(&x[0])
            .record(|i| {
                let c = &i.carried;
                vec![c[1].clone(), c[2].clone(), &c[2] + i.capture(&x[1]), c[3].clone()]
            })
    });
    every("nested", &[(F, &[3]), (F, &[3])], |x| {
        let g = x[0].graph();
        g.repeat(3).carry(&x[0]).record(|i| {
            let w = i.capture(&x[1]);
            let inner = i.graph().repeat(2).carry(&i.carried[0]).record(|j| {
                let w = j.capture(&w);
                vec![(&j.carried[0] * w).sin()]
            });
            vec![&inner[0] + &i.carried[0]]
        })
    });
}

#[test]
fn counts_that_differ() {
    let counts = [2i64, 0, 4].map(|n| HostTensor::from_slice(&[], &[n]).expect("one"));
    let start = [1.5f64, 2.0, 3.0].map(|x| HostTensor::from_slice(&[], &[x]).expect("one"));
    let data = [counts.to_vec(), start.to_vec()];
    check_on("counts", &data, &[Some(0), Some(0)], |x| {
        x[0].graph().repeat(5).at_most(&x[0]).carry(&x[1]).record(|i| {
            let y = &i.carried[0] * 2.0;
            i.stack(&y, 0);
            vec![y]
        })
    });
    let data = [counts.to_vec(), vec![start[0].clone()]];
    check_on("counts alone", &data, &[Some(0), None], |x| {
        x[0].graph().repeat(3).at_most(&x[0]).carry(&x[1]).record(|i| {
            let y = &i.carried[0] * 2.0;
            let number = i.number.clone();
            i.stack_reversed(&number, 0);
            vec![y]
        })
    });
}

#[test]
fn conditions_that_differ() {
    let start = [1.5f64, 100.0, 3.0].map(|x| HostTensor::from_slice(&[], &[x]).expect("one"));
    let limits = [50.0f64, 7.0, 1e6].map(|x| HostTensor::from_slice(&[], &[x]).expect("one"));
    let grows = |x: &[Tensor]| {
        let g = x[0].graph();
        let steps = g.scalar(0, DType::I64);
        g.repeat_while(&x[0].lt(&x[1])).carry(&x[0]).carry(&steps).record(|i| {
            let y = i.carried[0].square();
            i.go_on_if(&y.lt(i.capture(&x[1])));
            vec![y, &i.carried[1] + 1]
        })
    };
    check_on("both", &[start.to_vec(), limits.to_vec()], &[Some(0), Some(0)], grows);
    check_on(
        "start",
        &[start.to_vec(), vec![limits[2].clone()]],
        &[Some(0), None],
        grows,
    );
    check_on(
        "limits",
        &[vec![start[0].clone()], limits.to_vec()],
        &[None, Some(0)],
        grows,
    );
    // Bounded, counted and ended by a condition.
    let counts = [9i64, 1, 2].map(|n| HostTensor::from_slice(&[], &[n]).expect("one"));
    let data = [start.to_vec(), limits.to_vec(), counts.to_vec()];
    for axes in [
        [Some(0), Some(0), Some(0)],
        [Some(0), Some(0), None],
        [None, None, Some(0)],
    ] {
        let data: Vec<Vec<HostTensor>> = (data.iter().zip(axes))
            .map(|(all, axis)| if axis.is_some() { all.clone() } else { all[..1].to_vec() })
            .collect();
        check_on("all", &data, &axes, |x| {
            let go = x[0].lt(&x[1]);
            x[0].graph()
                .repeat(6)
                .at_most(&x[2])
                .while_(&go)
                .carry(&x[0])
                .record(|i| {
                    let y = i.carried[0].square();
                    i.stack(&y, 0);
                    i.go_on_if(&y.lt(i.capture(&x[1])));
                    vec![y]
                })
        });
    }
}

#[test]
fn host_functions() {
    every("sort", &[(F, &[3, 4])], |x| {
        let (values, places) = x[0].top_k(2, 1, true);
        vec![x[0].sort(0, false), x[0].argsort(1, true), values, places]
    });
}

fn odd(x: &Tensor, y: &Tensor) -> Tensor {
    let function = |t: &[Tensor]| vec![&t[0] * &t[1], t[0].argmax(0)];
    let derivative = |k: &tlc::Known| {
        let d = &k.cotangents[0];
        vec![d * &k.operands[1] * 3.0, d.clone()]
    };
    custom_vjp(&[x, y], function, derivative).remove(0)
}

#[test]
fn regions() {
    every("values", &[(F, &[3]), (F, &[3])], |x| {
        vec![odd(&x[0], &x[1]), x[0].stop_gradient() * &x[1], x[0].relu()]
    });
    every("derivatives inside", &[(F, &[3]), (F, &[3])], |x| {
        grad(&(odd(&x[0], &x[1]) * x[0].stop_gradient()).sum(..), &[&x[0], &x[1]])
    });
    every("pooling", &[(F, &[2, 6, 6])], |x| {
        let y = x[0].unsqueeze(0).max_pool(&Pool::new(2).stride(2));
        vec![grad(&y.square().sum(..), &[&x[0]]).remove(0), y]
    });
    // The derivative of a batch, which is that of each example, and by what all share their sum.
    let g = Graph::default();
    let x = g.constant([[1.0f64, 2.0, 3.0], [-1.0, 0.5, 4.0]]);
    let y = g.constant([2.0f64, -3.0, 5.0]);
    let weights = g.constant([[1.0f64, 10.0, 100.0], [2.0, 20.0, 200.0]]);
    let z = vmap(&[(&x, Some(0)), (&y, None)], |t| vec![odd(&t[0], &t[1])]).remove(0);
    let d = grad(&(z * &weights).sum(..), &[&x, &y]);
    let values = |t: &Tensor| t.eval().unwrap().as_slice::<f64>().unwrap().to_vec();
    assert_eq!(values(&d[0]), [6.0, -90.0, 1500.0, 12.0, -180.0, 3000.0]);
    assert_eq!(values(&d[1]), [3.0, 30.0, 300.0]);
}

#[test]
fn random_numbers_differ_unless_they_are_shared() {
    let g = Graph::default();
    let x = g.constant([[0.0f64; 4]; 3]);
    let noise = |t: &[Tensor]| {
        let r = t[0]
            .graph()
            .repeat(2)
            .carry(&t[0])
            .record(|i| vec![&i.carried[0] + i.graph().rand([4], F)]);
        vec![&t[0] + t[0].graph().rand([4], F), r[0].clone()]
    };
    let rows = |t: &Tensor| -> Vec<Vec<f64>> {
        let found = t.eval().expect("it runs");
        found
            .as_slice::<f64>()
            .expect("doubles")
            .chunks(4)
            .map(<[f64]>::to_vec)
            .collect()
    };
    for t in vmap(&[(&x, Some(0))], noise) {
        let r = rows(&t);
        assert!(r[0] != r[1] && r[1] != r[2], "{r:?}");
    }
    for t in Vmap::new().shared_draws().map(&[(&x, Some(0))], noise) {
        let r = rows(&t);
        assert!(r[0] == r[1] && r[1] == r[2], "{r:?}");
    }
    // The scope outside knows nothing of it: draws before and behind are others.
    let (a, b) = (g.rand([4], F), vmap(&[(&x, Some(0))], noise).remove(0));
    assert_ne!(rows(&a)[0], rows(&b)[0]);
}

#[test]
fn batches_of_batches() {
    let g = Graph::default();
    let a = g.constant([[1.0f64, 2.0], [3.0, 4.0], [5.0, 6.0]]);
    let b = g.constant([[1.0f64, 1.0], [0.0, 2.0]]);
    // All products of rows.
    let all = vmap(&[(&a, Some(0)), (&b, None)], |t| {
        vmap(&[(&t[0], None), (&t[1], Some(0))], |u| vec![u[0].matmul(&u[1])])
    });
    assert_eq!(all[0].const_shape(), Some(vec![3, 2]));
    assert_eq!(
        all[0].eval().unwrap().as_slice::<f64>().unwrap(),
        [3.0, 4.0, 7.0, 8.0, 11.0, 12.0]
    );
}

#[test]
fn batches_of_any_size() {
    let g = Graph::new("any");
    let n = g.symbol("n", 0..=9);
    let m = g.symbol("m", 1..=9);
    let x = g.input("x", F, (&m, &n));
    let y = vmap(&[(&x, Some(1))], |t| {
        let grown = t[0]
            .graph()
            .repeat_while(&t[0].max(..).lt(9.0))
            .carry(&t[0])
            .record(|i| {
                let next = &i.carried[0] * 2.0;
                i.go_on_if(&next.max(..).lt(9.0));
                vec![next]
            });
        vec![t[0].cumsum(0), t[0].max(..), grown[0].max(..)]
    });
    g.output("sums", &y[0]);
    g.output("max", &y[1]);
    g.output("grown", &y[2]);
    let run = g.compile(&CompileOptions::default()).expect("it compiles");
    let found = run
        .run(&inputs![&[[1.0f64, 2.0, 3.0], [4.0, -5.0, 6.0]]])
        .expect("it runs");
    assert_eq!(
        found["sums"].as_slice::<f64>().unwrap(),
        [1.0, 5.0, 2.0, -3.0, 3.0, 9.0]
    );
    assert_eq!(found["max"].as_slice::<f64>().unwrap(), [4.0, 2.0, 6.0]);
    assert_eq!(found["grown"].as_slice::<f64>().unwrap(), [16.0, 16.0, 12.0]);
    // No example at all.
    let none = HostTensor::zeros(F, &[2, 0]).expect("nothing");
    let found = run.run(&[tlc::Input::from(&none)]).expect("it runs");
    assert_eq!((found["sums"].shape(), found["grown"].shape()), (&[0, 2][..], &[0][..]));
}
