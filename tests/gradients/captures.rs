//! Gradients of what loops capture: sums over iterations that are products go behind the loop as one, others go around.

use tlc::ir::graph::NodeKind;
use tlc::ir::plan::Step;
use tlc::ir::rng::Rng;
use tlc::{
    CompileOptions, DType, Executable, Graph, HostTensor, Input, Iteration, Tensor, checkpoint, compile_ir, grad,
};

use crate::against::{check, check_on, elements, host};

const X: (&[usize], f64, f64) = (&[5, 2, 3], -1.0, 1.0);
const H: (&[usize], f64, f64) = (&[2, 3], -1.0, 1.0);
const W: (&[usize], f64, f64) = (&[3, 3], -1.0, 1.0);

/// Contractions that are live in a graph itself, and those in the bodies of its loops.
fn contractions(graph: &tlc::ir::Graph) -> [usize; 2] {
    let mut live = vec![false; graph.len()];
    graph.outputs().iter().for_each(|o| live[o.node.index()] = true);
    for i in (0..graph.len()).rev() {
        if live[i] {
            let node = graph.node(tlc::ir::NodeId(i as u32));
            node.operands.iter().for_each(|o| live[o.index()] = true);
        }
    }
    let mut count = [0, 0];
    for (_, node) in graph.nodes().filter(|(id, _)| live[id.index()]) {
        match &node.kind {
            NodeKind::Einsum { .. } => count[0] += 1,
            NodeKind::Loop(l) => count[1] += contractions(&l.body.0).iter().sum::<usize>(),
            _ => {}
        }
    }
    count
}

/// What the gradients of `f` by all inputs are recorded as: contractions outside of loops and inside.
fn recorded(shapes: &[&[usize]], f: impl Fn(&Graph, &[Tensor]) -> Tensor) -> [usize; 2] {
    let g = Graph::new("recorded");
    let x: Vec<Tensor> = (shapes.iter().enumerate())
        .map(|(k, shape)| g.input(&format!("x{k}"), DType::F64, *shape))
        .collect();
    let loss = f(&g, &x).square().sum(..);
    for (k, d) in grad(&loss, &x.iter().collect::<Vec<_>>()).iter().enumerate() {
        g.output(&format!("d{k}"), d);
    }
    contractions(&g.finish().expect("a graph"))
}

type Body = fn(&mut Iteration, &Tensor) -> Tensor;

/// Bodies that use a captured matrix in one way or several, and how many products of the gradient are behind the loop.
fn bodies() -> Vec<(&'static str, usize, Body)> {
    vec![
        ("once", 1, |i, w| (i.carried[0].matmul(w) + &i.slices[0]).tanh()),
        ("transposed", 1, |i, w| {
            (i.carried[0].matmul(&w.t()) + &i.slices[0]).tanh()
        }),
        ("reshaped", 1, |i, w| {
            i.carried[0].matmul(&w.reshape([9]).reshape([3, 3])).sin() * &i.slices[0]
        }),
        ("parts of it", 2, |i, w| {
            let left = i.carried[0].matmul(&w.narrow(1, 0, 2));
            let right = i.slices[0].matmul(&w.narrow(1, 2, 1));
            tlc::concat(&[&left, &right], 1).sin()
        }),
        ("of what is computed", 1, |i, w| {
            (i.carried[0].sin() * &i.slices[0]).matmul(w).cos()
        }),
        ("twice", 2, |i, w| {
            i.carried[0].matmul(w).sin().matmul(w).tanh() + &i.slices[0]
        }),
        ("and by elements", 1, |i, w| {
            i.carried[0].matmul(w).sin() + w.square().sum(0) * &i.slices[0]
        }),
        ("narrower", 1, |i, w| {
            let w = w.cast(DType::F32).cast(DType::F64);
            i.carried[0].matmul(&w).sin() + &i.slices[0] * 0.5
        }),
        ("on a diagonal", 0, |i, w| {
            tlc::einsum("bi,ii->bi", &[&i.carried[0], w]).sin() + &i.slices[0]
        }),
        ("of three", 1, |i, w| {
            tlc::einsum("bi,ij,bj->bj", &[&i.carried[0], w, &i.slices[0]]).sin()
        }),
        ("of itself", 0, |i, w| {
            i.carried[0].matmul(&w.matmul(w)).sin() + &i.slices[0]
        }),
        ("only sums", 0, |i, w| (&i.carried[0] + w.sum(0) * &i.slices[0]).sin()),
    ]
}

fn looped(g: &Graph, x: &[Tensor], body: Body) -> Tensor {
    let r = g.repeat(5).carry(&x[1]).slice(&x[0], 0).record(|i| {
        let w = i.capture(&x[2]);
        let h = body(i, &w);
        i.stack(&h, 0);
        vec![h]
    });
    &r[0] + r[1].square().sum(0)
}

#[test]
fn products_are_behind_the_loop() {
    for (name, outside, body) in bodies() {
        // Values in f32 are as far apart as differences of that step are large.
        if name != "narrower" {
            check(name, &[X, H, W], |g, x| looped(g, x, body));
        }
        let [found, _] = recorded(&[X.0, H.0, W.0], |g, x| looped(g, x, body));
        assert_eq!(found, outside, "{name}");
    }
}

/// Of rows that are long beside the matrix, keeping them all would move more than the sum does.
#[test]
fn large_batches_beside_small_matrices_stay_inside() {
    let of = |batch: usize| {
        recorded(&[&[5, batch, 3], &[batch, 3], &[3, 3]], |g, x| {
            looped(g, x, |i, w| (i.carried[0].matmul(w) * &i.slices[0]).tanh())
        })
    };
    // What is carried forwards is stacked in any case; the cotangents are 2 * batch * 3 values moved, the sum 3 * 9.
    assert_eq!([of(4)[0], of(5)[0]], [1, 0]);
    assert_eq!(of(4)[0] + of(4)[1], of(5)[0] + of(5)[1]);
}

#[test]
fn all_directions_counts_and_conditions() {
    for (name, way) in [("forwards", false), ("backwards", true)] {
        check(name, &[X, H, W], |g, x| {
            let repeat = g.repeat(5).carry(&x[1]);
            let repeat = match way {
                true => repeat.slice_reversed(&x[0], 0),
                false => repeat.slice(&x[0], 0),
            };
            let r = repeat.record(|i| {
                let w = i.capture(&x[2]);
                // The slice is a factor as it is.
                let h = (i.slices[0].matmul(&w) + i.carried[0].matmul(&w.t())).tanh();
                i.stack_reversed(&h, 1);
                vec![h]
            });
            &r[0] + r[1].square().sum(1)
        });
    }
    for count in [0i64, 1, 3, 5, 9] {
        check(&format!("at most {count}"), &[X, H, W], |g, x| {
            let n = g.scalar(count, DType::I64);
            let r = g.repeat(5).at_most(&n).carry(&x[1]).slice(&x[0], 0).record(|i| {
                let w = i.capture(&x[2]);
                let h = (i.slices[0].matmul(&w) + i.carried[0].matmul(&w)).tanh();
                i.stack(&h, 0);
                vec![h]
            });
            &r[0] + r[1].square().sum(0)
        });
    }
    check("while", &[X, H, W], |g, x| {
        let go = g.constant([true]).reshape(());
        g.repeat(40)
            .while_(&go)
            .carry(&x[1])
            .record(|i| {
                let w = i.capture(&x[2]);
                let next = i.carried[0].matmul(&w).sin() + &i.carried[0] * 1.5;
                i.go_on_if(&next.square().sum(..).lt(60.0));
                vec![next]
            })
            .remove(0)
    });
}

/// What iterations that do not run would have read adds nothing, be it infinite or no number.
#[test]
fn iterations_that_do_not_run_add_nothing() {
    for bad in [f64::INFINITY, f64::NAN] {
        let mut x = elements(&X, 1);
        x[2 * 6..].fill(bad);
        let inputs = [host(X.0, &x), host(H.0, &elements(&H, 2)), host(W.0, &elements(&W, 3))];
        let run = |count: Option<i64>| {
            let g = Graph::new("some");
            let x: Vec<Tensor> = (inputs.iter().enumerate())
                .map(|(k, t)| g.input(&format!("x{k}"), DType::F64, t.shape()))
                .collect();
            let repeat = match count {
                Some(n) => g.repeat(5).at_most(&g.scalar(n, DType::I64)).slice(&x[0], 0),
                None => g.repeat(2).slice(&x[0].narrow(0, 0, 2), 0),
            };
            let r = repeat.carry(&x[1]).record(|i| {
                let w = i.capture(&x[2]);
                vec![(i.slices[0].matmul(&w) + i.carried[0].matmul(&w)).tanh()]
            });
            g.output("d", &grad(&r[0].square().sum(..), &[&x[2]])[0]);
            run(&g.compile(&CompileOptions::default()).expect("it compiles"), &inputs)
        };
        let (some, plain) = (run(Some(2)), run(None));
        let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-14 * (1.0 + b.abs());
        assert!(some.iter().zip(&plain).all(near), "{some:?}, alone {plain:?}");
    }
}

fn run(executable: &Executable, inputs: &[HostTensor]) -> Vec<f64> {
    let given: Vec<Input<'_>> = inputs.iter().map(Into::into).collect();
    let found = executable.run(&given).expect("it runs");
    let values = |k: usize| found[k].as_slice::<f64>().expect("doubles").to_vec();
    (0..found.len()).flat_map(values).collect()
}

#[test]
fn nested_segmented_and_differentiated_again() {
    let nested = |g: &Graph, x: &[Tensor], every: Option<usize>| {
        let repeat = g.repeat(5).carry(&x[1]).slice(&x[0], 0);
        let repeat = match every {
            Some(every) => repeat.checkpoint_every(every),
            None => repeat,
        };
        repeat
            .record(|i| {
                let w = i.capture(&x[2]);
                let start = i.carried[0].matmul(&w).sin() + &i.slices[0];
                let inner = i.graph().repeat(3).carry(&start).record(|j| {
                    let w = j.capture(&w);
                    vec![j.carried[0].matmul(&w.t()).tanh()]
                });
                vec![inner[0].matmul(&w) + &start]
            })
            .remove(0)
    };
    check("nested", &[X, H, W], |g, x| nested(g, x, None));
    check("nested in segments", &[X, H, W], |g, x| nested(g, x, Some(2)));
    let once = |i: &mut Iteration, w: &Tensor| (i.carried[0].matmul(w) + &i.slices[0]).tanh();
    check("second", &[(&[3, 2, 3], -1.0, 1.0), H, W], |g, x| {
        let r = g.repeat(3).carry(&x[1]).slice(&x[0], 0).record(|i| {
            let w = i.capture(&x[2]);
            vec![once(i, &w)]
        });
        grad(&r[0].exp().sum(..), &[&x[2]]).remove(0)
    });
    check("in a checkpoint", &[X, H, W], |g, x| {
        let r = g.repeat(5).carry(&x[1]).slice(&x[0], 0).record(|i| {
            let w = i.capture(&x[2]);
            checkpoint(&[&i.carried[0], &i.slices[0], &w], |t| {
                vec![(t[0].matmul(&t[2]) + &t[1]).tanh()]
            })
        });
        r[0].clone()
    });
    // A segment has one product, over its own iterations: none keeps what all segments stack.
    let of = |every: Option<usize>| {
        recorded(&[&[12, 1, 8], &[1, 8], &[8, 8]], |g, x| {
            let repeat = g.repeat(12).carry(&x[1]).slice(&x[0], 0);
            let repeat = match every {
                Some(every) => repeat.checkpoint_every(every),
                None => repeat,
            };
            let r = repeat.record(|i| {
                let w = i.capture(&x[2]);
                vec![(i.carried[0].matmul(&w) + &i.slices[0]).tanh()]
            });
            r[0].clone()
        })[0]
    };
    assert_eq!([of(None), of(Some(4))], [1, 0]);
}

#[test]
fn numbers_of_iterations_that_calls_give() {
    let record = |is_loop: bool, steps: i64| {
        let g = Graph::new("symbolic");
        let n = g.symbol("n", 0..=9);
        let x = match is_loop {
            true => g.input("x", DType::F64, (&n, 2, 3)),
            false => g.input("x", DType::F64, [steps, 2, 3]),
        };
        let (h, w) = (g.input("h", DType::F64, [2, 3]), g.input("w", DType::F64, [3, 3]));
        let last = match is_loop {
            true => g
                .repeat(&n)
                .carry(&h)
                .slice(&x, 0)
                .record(|i| {
                    let w = i.capture(&w);
                    vec![(i.carried[0].matmul(&w) + &i.slices[0]).tanh()]
                })
                .remove(0),
            false => (0..steps).fold(h.clone(), |h, k| (h.matmul(&w) + x.select_index(0, k)).tanh()),
        };
        g.output("d", &grad(&last.square().sum(..), &[&w])[0]);
        let recorded = contractions(&g.finish().expect("a graph"))[0];
        assert!(!is_loop || recorded == 1, "{recorded}");
        g.compile(&CompileOptions::default()).expect("it compiles")
    };
    let symbolic = record(true, 0);
    for steps in [0i64, 1, 2, 9] {
        let shape = [steps as usize, 2, 3];
        let inputs = [
            host(&shape, &elements(&(&shape, -1.0, 1.0), 1)),
            host(H.0, &elements(&H, 2)),
            host(W.0, &elements(&W, 3)),
        ];
        let (a, b) = (run(&symbolic, &inputs), run(&record(false, steps), &inputs));
        let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-14 * (1.0 + b.abs());
        assert!(
            a.len() == 9 && a.iter().zip(&b).all(near),
            "{steps}: {a:?}, by hand {b:?}"
        );
    }
}

/// A step of a random network: its matrices are used any number of times, each as it is or turned.
#[derive(Clone, Debug)]
struct Network(Vec<(usize, bool, bool, u8)>);

impl Network {
    fn new(rng: &mut Rng) -> Network {
        let uses = rng.range(1, 6) as usize;
        let of_one = |_| {
            let which = rng.below(3);
            (which, rng.chance(1, 2), rng.chance(1, 2), rng.below(4) as u8)
        };
        Network((0..uses).map(of_one).collect())
    }

    fn step(&self, h: &Tensor, x: &Tensor, w: &[Tensor]) -> Tensor {
        self.0.iter().fold(h.clone(), |at, (which, turned, of_x, then)| {
            let w = match turned {
                true => w[*which].t(),
                false => w[*which].clone(),
            };
            let made = match of_x {
                true => x.matmul(&w) + &at,
                false => at.matmul(&w),
            };
            match then {
                0 => made.tanh(),
                1 => made.sin() + h,
                2 => made * x,
                _ => made + w.sum(0),
            }
        })
    }
}

/// Random recurrences against the same written out, plain and counted, with products behind the loop and with sums that go around.
#[test]
fn random_recurrences_are_those_written_out() {
    let mut rng = Rng::new(0x5ca1e);
    let mut carried = 0;
    for case in 0..24 {
        let net = Network::new(&mut rng);
        let (steps, batch) = (rng.range(2, 16) as usize, rng.range(1, 4) as usize);
        let counted = (case % 3 == 1).then(|| rng.range(0, steps as i64 + 2));
        let ran = counted.map_or(steps, |n| (n as usize).min(steps));
        let (shape, width) = ([steps, batch, 8], [8usize, 8]);
        let mut inputs = vec![
            host(&shape, &elements(&(&shape, -0.7, 0.7), case)),
            host(&shape[1..], &elements(&(&shape[1..], -0.7, 0.7), case + 100)),
        ];
        inputs.extend((0..3).map(|k| host(&width, &elements(&(&width, -0.4, 0.4), case + 200 + k))));
        let record = |is_loop: bool| {
            let g = Graph::new("random");
            let x: Vec<Tensor> = (inputs.iter().enumerate())
                .map(|(k, t)| g.input(&format!("x{k}"), DType::F64, t.shape()))
                .collect();
            let last = if is_loop {
                let mut repeat = match case % 2 {
                    0 => g.repeat(steps).slice(&x[0], 0),
                    _ => g.repeat(steps).slice_reversed(&x[0].flip(0), 0),
                };
                if let Some(n) = counted {
                    repeat = repeat.at_most(&g.scalar(n, DType::I64));
                }
                repeat
                    .carry(&x[1])
                    .record(|i| {
                        let w: Vec<Tensor> = x[2..].iter().map(|w| i.capture(w)).collect();
                        vec![net.step(&i.carried[0], &i.slices[0], &w)]
                    })
                    .remove(0)
            } else {
                let step = |h: Tensor, k: usize| net.step(&h, &x[0].select_index(0, k as i64), &x[2..]);
                (0..ran).fold(x[1].clone(), step)
            };
            for (k, d) in grad(&last.square().sum(..), &x.iter().collect::<Vec<_>>())
                .iter()
                .enumerate()
            {
                g.output(&format!("d{k}"), d);
            }
            g.finish().expect("a graph")
        };
        let values = |ir: &tlc::ir::Graph| {
            run(
                &compile_ir(ir, &CompileOptions::default()).expect("it compiles"),
                &inputs,
            )
        };
        let looped = record(true);
        let found = values(&looped);
        let expected = values(&record(false));
        let largest = expected.iter().fold(1.0, |most: f64, b| most.max(b.abs()));
        let all = |found: &[f64]| {
            found
                .iter()
                .zip(&expected)
                .all(|(a, b)| (a - b).abs() <= 1e-12 * largest)
        };
        assert!(found.len() == expected.len() && all(&found), "{case}, {net:?}");
        // As under a limit of memory.
        let (inside, sums) = tlc_passes::carried_sums::run(&looped).expect("it is rebuilt");
        assert_eq!(contractions(&inside)[0], contractions(&looped)[0] - sums.len());
        carried += sums.len();
        assert!(all(&values(&inside)), "{case}, {net:?}, sums that go around");
    }
    assert!(carried > 10, "{carried} sums go around");
}

/// Products of a library among steps, by whether they are in a loop.
fn library_products(steps: &[Step], inside: bool) -> [usize; 2] {
    let mut count = [0, 0];
    for step in steps {
        match step {
            Step::Gemm(_) => count[usize::from(inside)] += 1,
            Step::Loop(l) => {
                let inner = library_products(&l.body.steps, true);
                count[0] += inner[0];
                count[1] += inner[1];
            }
            _ => {}
        }
    }
    count
}

/// A recurrence of 12 steps as it is trained: forwards an iteration has one product, backwards that and one more, and one is behind for the weights.
/// Where there is less memory, that one is in the iterations.
#[test]
fn what_a_recurrence_runs() {
    const STEPS: usize = 12;
    const WIDTH: usize = 128;
    let compile = |limit: Option<u64>| {
        let g = Graph::new("recurrence");
        let x = g.input("x", DType::F32, [STEPS, 32, WIDTH]);
        let w = g.input("w", DType::F32, [WIDTH, WIDTH]);
        let r = g
            .repeat(STEPS)
            .carry(&g.zeros([32, WIDTH], DType::F32))
            .slice(&x, 0)
            .record(|i| {
                let w = i.capture(&w);
                vec![(i.carried[0].matmul(&w) + &i.slices[0]).tanh()]
            });
        g.output("d", &grad(&r[0].square().sum(..), &[&w])[0]);
        let options = CompileOptions {
            max_memory_bytes: limit,
            ..CompileOptions::default()
        };
        g.compile(&options)
    };
    let free = compile(None).expect("it compiles");
    assert_eq!(
        library_products(&free.plan().steps, false),
        [1, 3],
        "{}",
        free.explain()
    );
    let zeros = [
        HostTensor::zeros(DType::F32, &[STEPS, 32, WIDTH]).expect("few"),
        HostTensor::zeros(DType::F32, &[WIDTH, WIDTH]).expect("few"),
    ];
    let given: Vec<Input<'_>> = zeros.iter().map(Into::into).collect();
    let need = free.memory(&given).expect("they fit").total();
    // Without the cotangents of all steps, but for one and the sum.
    let limit = need - (4 * 32 * WIDTH * (STEPS - 2) - 2 * 4 * WIDTH * WIDTH) as u64;
    let limited = compile(Some(limit)).expect("it compiles");
    assert_eq!(
        library_products(&limited.plan().steps, false),
        [0, 4],
        "{}",
        limited.explain()
    );
    let text = limited.explain().to_string();
    assert!(
        text.contains("in the iterations of its loop, for the memory limit"),
        "{text}"
    );
}

/// Sums in f16 and bf16 are carried in f32: of 600 products of an iteration that each round to 1 / 1024 of the sum, all are added up.
#[test]
fn narrow_sums_are_wide() {
    for dtype in [DType::F16, DType::BF16] {
        let g = Graph::new("narrow");
        let w = g.input("w", DType::F64, [2, 2]);
        let x = g.input("x", DType::F64, [600, 1, 2]);
        let (narrow, xs) = (w.cast(dtype), x.cast(dtype));
        let r = g.repeat(600).slice(&xs, 0).record(|i| {
            let w = i.capture(&narrow);
            let y = i.slices[0].matmul(&w);
            i.stack(&y, 0);
            vec![]
        });
        let loss = r[0].cast(DType::F32).sum(..);
        g.output("d", &grad(&loss, &[&w])[0]);
        let ones = host(&[600, 1, 2], &[1.0; 1200]);
        let inputs = [host(&[2, 2], &[0.0; 4]), ones];
        let found = run(&g.compile(&CompileOptions::default()).expect("it compiles"), &inputs);
        assert_eq!(found, [600.0; 4]);
    }
}

#[test]
fn empty_batches_and_single_iterations() {
    for (steps, batch) in [(0usize, 2usize), (1, 2), (2, 0), (2, 1)] {
        let (x, h) = ([steps, batch, 3], [batch, 3]);
        let inputs = [
            host(&x, &elements(&(&x, -1.0, 1.0), 1)),
            host(&h, &elements(&(&h, -1.0, 1.0), 2)),
            host(W.0, &elements(&W, 3)),
        ];
        check_on(&format!("{steps} of {batch}"), &inputs, |g, x| {
            let r = g.repeat(steps).carry(&x[1]).slice(&x[0], 0).record(|i| {
                let w = i.capture(&x[2]);
                vec![(i.carried[0].matmul(&w) + &i.slices[0]).tanh()]
            });
            r[0].sum(0)
        });
    }
}
