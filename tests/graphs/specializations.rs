//! Graphs whose sizes are symbols: how much is compiled as sizes change, versions for sizes that recur, and versions for
//! sizes that break an assumption.

use tlc::{
    Attention, CompileOptions, DType, Executable, Graph, HostTensor, Input, Outputs, Specialize, Tensor, Verdict,
    concat,
};
use tlc_runtime::driver::RunError;

const F32: DType = DType::F32;

fn compile(specialize: Specialize, record: impl Fn(&Graph)) -> Executable {
    let g = Graph::new("sizes");
    record(&g);
    let options = CompileOptions {
        threads: Some(2),
        specialize,
        ..CompileOptions::default()
    };
    g.compile(&options).unwrap_or_else(|e| panic!("{e}"))
}

/// A small generator of numbers; the tests need the same ones each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    fn floats(&mut self, shape: &[usize]) -> HostTensor {
        let count: usize = shape.iter().product();
        let data: Vec<f32> = (0..count).map(|_| self.below(2001) as f32 / 1000.0 - 1.0).collect();
        HostTensor::from_slice(shape, &data).unwrap()
    }
}

fn run(e: &Executable, inputs: &[HostTensor]) -> Result<Outputs, RunError> {
    let inputs: Vec<Input<'_>> = inputs.iter().map(Input::from).collect();
    e.run(&inputs)
}

const WIDTH: usize = 16;
const WORDS: usize = 50;
const LONGEST: usize = 512;

/// A transformer with two layers over token numbers.
fn transformer(g: &Graph) {
    let mut numbers = Numbers(7);
    let mut weight = |shape: &[usize]| g.constant(numbers.floats(shape));
    let batch = g.symbol("batch", 1..=64);
    let length = g.symbol("length", 1..=LONGEST as i64);
    let ids = g.input("ids", DType::I64, (&batch, &length));
    let places = weight(&[LONGEST, WIDTH]).slice([..&length]);
    let mut x = weight(&[WORDS, WIDTH]).embedding(&ids) + places;
    for _ in 0..2 {
        let heads = |t: &Tensor| t.reshape((&batch, &length, 2, WIDTH / 2)).permute([0, 2, 1, 3]);
        let y = x.layer_norm(Some(&weight(&[WIDTH])), Some(&weight(&[WIDTH])), 1e-5);
        let [q, k, v] = std::array::from_fn(|_| heads(&y.linear(&weight(&[WIDTH, WIDTH]), None)));
        let y = q.attention(&k, &v, &Attention::new().causal()).permute([0, 2, 1, 3]);
        let y = y
            .reshape((&batch, &length, WIDTH))
            .linear(&weight(&[WIDTH, WIDTH]), None);
        x = &x + &y;
        let y = x
            .layer_norm(None, None, 1e-5)
            .linear(&weight(&[2 * WIDTH, WIDTH]), None)
            .gelu();
        x = &x + &y.linear(&weight(&[WIDTH, 2 * WIDTH]), None);
    }
    g.output("y", &x.mean(1));
}

fn ids(batch: usize, length: usize, numbers: &mut Numbers) -> HostTensor {
    let data: Vec<i64> = (0..batch * length)
        .map(|_| numbers.below(WORDS as u64) as i64)
        .collect();
    HostTensor::from_slice(&[batch, length], &data).unwrap()
}

#[test]
fn sizes_in_random_order_compile_nothing_after_the_first_call() {
    let e = compile(Specialize::Recurring, transformer);
    let mut numbers = Numbers(1);
    run(&e, &[ids(3, 5, &mut numbers)]).unwrap();
    let first = e.compiled_kernels();
    assert!(first > 0);
    let mut answers = Vec::new();
    for _ in 0..120 {
        let (batch, length) = (1 + numbers.below(64) as usize, 1 + numbers.below(512) as usize);
        let x = ids(batch, length, &mut numbers);
        let y = run(&e, std::slice::from_ref(&x)).unwrap();
        assert_eq!(y[0].shape(), [batch, WIDTH]);
        if batch * length < 400 {
            answers.push((x, y[0].to_host()));
        }
    }
    e.wait_for_specializations();
    assert_eq!(e.compiled_kernels() - first, 0, "at most 3 are allowed");
    assert_eq!(e.specializations(), []);
    // The right results: those of the interpreter.
    let g = Graph::new("transformer");
    transformer(&g);
    let graph = g.finish().unwrap();
    assert!(answers.len() > 3, "{} small ones", answers.len());
    for (x, y) in answers {
        let expected = tlc_ir::interp::interpret(&graph, &[x], &Default::default()).unwrap();
        let (y, expected) = (y.as_slice::<f32>().unwrap(), expected[0].as_slice::<f32>().unwrap());
        for (a, b) in y.iter().zip(expected) {
            assert!((a - b).abs() <= 1e-4 * b.abs().max(1.0), "{a} and {b}");
        }
    }
}

#[test]
fn shapes_that_recur_get_a_version_with_the_same_answers() {
    let e = compile(Specialize::After(3), transformer);
    let mut numbers = Numbers(2);
    let x = ids(4, 37, &mut numbers);
    let before = run(&e, std::slice::from_ref(&x)).unwrap()[0].to_host();
    let other = ids(2, 9, &mut numbers);
    for _ in 0..2 {
        run(&e, std::slice::from_ref(&x)).unwrap();
        run(&e, std::slice::from_ref(&other)).unwrap();
    }
    e.wait_for_specializations();
    let made = e.specializations();
    assert_eq!(made.len(), 1);
    assert_eq!(
        (made[0].sizes.as_str(), made[0].verdict),
        ("batch=4 length=37", Verdict::Asked)
    );
    assert!(made[0].reason.contains("3 calls"), "{}", made[0].reason);
    assert!(e.explain().contains("batch=4 length=37"));
    let after = run(&e, std::slice::from_ref(&x)).unwrap()[0].to_host();
    let (a, b) = (before.as_slice::<f32>().unwrap(), after.as_slice::<f32>().unwrap());
    assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-5 * a.abs().max(1.0)));
    // The others go on as before.
    assert!(run(&e, std::slice::from_ref(&other)).is_ok());
    assert!(run(&e, &[ids(64, 1, &mut numbers)]).is_ok());
}

fn halves(g: &Graph) {
    let n = g.symbol("n", 1..=4096);
    let x = g.input("x", F32, (&n, 3));
    g.output("y", &(&x * 0.5 + 1.0));
}

#[test]
fn versions_are_bounded_and_every_call_is_right() {
    let e = compile(Specialize::After(2), halves);
    let mut numbers = Numbers(3);
    for n in 1..200usize {
        let x = numbers.floats(&[n, 3]);
        for _ in 0..3 {
            let y = run(&e, std::slice::from_ref(&x)).unwrap();
            let expected = x.as_slice::<f32>().unwrap().iter().map(|v| v * 0.5 + 1.0);
            assert!(y[0].as_slice::<f32>().unwrap().iter().copied().eq(expected));
            e.wait_for_specializations();
        }
    }
    let in_use = |v: &Verdict| matches!(v, Verdict::Asked);
    let made = e.specializations();
    assert!(made.len() <= 32, "{} made", made.len());
    assert!(made.iter().filter(|s| in_use(&s.verdict)).count() <= 4);
    assert!(!made.is_empty());
}

#[test]
fn a_version_is_measured_and_its_verdict_told() {
    let e = compile(Specialize::Recurring, halves);
    let x = Numbers(4).floats(&[1000, 3]);
    // As long as compiling took; how many calls that is depends on the machine.
    for _ in 0..5_000_000 {
        run(&e, std::slice::from_ref(&x)).unwrap();
        let made = e.specializations();
        if made.first().is_some_and(|m| m.verdict != Verdict::Trial) {
            break;
        }
    }
    let made = e.specializations();
    assert_eq!(made.len(), 1);
    assert!(
        matches!(made[0].verdict, Verdict::Faster(_) | Verdict::NotFaster(_)),
        "{}",
        made[0]
    );
    assert!(made[0].to_string().contains("of the time of the code for any sizes"));
}

#[test]
fn nothing_is_specialized_where_that_is_not_wanted_or_no_size_is_a_symbol() {
    let e = compile(Specialize::Never, halves);
    let x = Numbers(5).floats(&[7, 3]);
    for _ in 0..100 {
        run(&e, std::slice::from_ref(&x)).unwrap();
    }
    assert_eq!(e.specializations(), []);
    let e = compile(Specialize::After(1), |g| {
        let x = g.input("x", F32, [7, 3]);
        g.output("y", &x.exp());
    });
    for _ in 0..10 {
        run(&e, std::slice::from_ref(&x)).unwrap();
    }
    e.wait_for_specializations();
    assert_eq!(e.specializations(), []);
}

/// `n` and `m` are assumed equal.
fn assumed_equal(g: &Graph) {
    let (n, m) = (g.symbol("n", 0..=64), g.symbol("m", 0..=64));
    let x = g.input("x", F32, (&n, 4));
    let y = g.input("y", F32, (&m, 4));
    g.output("sum", &(&x + &y));
}

#[test]
fn sizes_that_break_an_assumption_are_compiled_for_where_they_broadcast() {
    let e = compile(Specialize::Never, assumed_equal);
    let mut numbers = Numbers(6);
    let kernels = e.compiled_kernels();
    for (n, m) in [(5, 5), (1, 5), (1, 5), (5, 1), (1, 0)] {
        let (x, y) = (numbers.floats(&[n, 4]), numbers.floats(&[m, 4]));
        let sum = run(&e, &[x.clone(), y.clone()]).unwrap();
        let rows = if n == 1 { m } else { n };
        assert_eq!(sum[0].shape(), [rows, 4]);
        let (x, y) = (x.as_slice::<f32>().unwrap(), y.as_slice::<f32>().unwrap());
        let sum = sum[0].as_slice::<f32>().unwrap();
        for i in 0..rows {
            for j in 0..4 {
                let (a, b) = (x[i.min(n - 1) * 4 + j], y[i.min(m.max(1) - 1) * 4 + j]);
                assert_eq!(sum[4 * i + j], a + b);
            }
        }
    }
    let made = e.specializations();
    assert_eq!(made.len(), 3, "each shape once");
    assert!(made.iter().all(|s| s.verdict == Verdict::Needed));
    assert_eq!(made[0].sizes, "n=1 m=5");
    assert!(made[0].reason.contains("m = n"), "{}", made[0].reason);
    assert!(e.compiled_kernels() > kernels);
    // Where nothing broadcasts, the error is the assumption.
    let refused = run(&e, &[numbers.floats(&[2, 4]), numbers.floats(&[3, 4])]);
    assert!(matches!(refused, Err(RunError::Guard { .. })));
}

type Recorded = fn(&Graph, &Tensor, &Tensor);

/// The extent of the sum and that of `x` have one name in the graph: where they differ, what depends on that name is refused.
#[test]
fn sizes_with_two_meanings_are_refused_where_these_differ() {
    let cases: [(&str, Recorded); 4] = [
        ("mean", |g, x, y| g.output("z", &(x + y).mean(0))),
        ("length", |g, x, y| {
            g.output("z", &((x + y).sum(0) * g.range(x.dim(0), F32).sum(0)))
        }),
        ("repeated", |g, x, y| {
            g.output("z", &(x + y).max(0).broadcast_to([x.dim(0)]));
        }),
        ("joined", |g, x, y| g.output("z", &concat(&[&(x + y), y], 0))),
    ];
    for (what, record) in cases {
        let e = compile(Specialize::Never, |g| {
            let (n, m) = (g.symbol("n", 0..=64), g.symbol("m", 0..=64));
            record(g, &g.input("x", F32, [&n]), &g.input("y", F32, [&m]));
        });
        let mut numbers = Numbers(9);
        let mut call = |n: usize, m: usize| run(&e, &[numbers.floats(&[n]), numbers.floats(&[m])]);
        assert!(call(3, 3).is_ok(), "{what}");
        assert!(call(1, 1).is_ok(), "{what}");
        let refused = call(1, 3);
        assert!(matches!(refused, Err(RunError::Guard { .. })), "{what}: {refused:?}");
    }
    // A softmax repeats its maximum and sum only beside what is broadcast.
    let e = compile(Specialize::Never, |g| {
        let (n, m) = (g.symbol("n", 0..=64), g.symbol("m", 0..=64));
        let (x, y) = (g.input("x", F32, [&n]), g.input("y", F32, [&m]));
        g.output("z", &(&x + &y).softmax(0));
    });
    let (x, y) = (
        HostTensor::from_slice(&[1], &[1f32]).unwrap(),
        HostTensor::from_slice(&[2], &[3f32, 3.0]).unwrap(),
    );
    let half = run(&e, &[x, y]).unwrap();
    assert_eq!(half[0].as_slice::<f32>().unwrap(), [0.5, 0.5]);
}

#[test]
fn shapes_that_break_assumptions_are_bounded() {
    let e = compile(Specialize::Never, assumed_equal);
    let mut numbers = Numbers(8);
    let answered = (2..60)
        .filter(|&m| run(&e, &[numbers.floats(&[1, 4]), numbers.floats(&[m, 4])]).is_ok())
        .count();
    assert_eq!(answered, 16);
    assert!(run(&e, &[numbers.floats(&[3, 4]), numbers.floats(&[3, 4])]).is_ok());
}

#[test]
fn calls_from_many_threads_meet_the_same_versions() {
    let e = compile(Specialize::After(4), halves);
    std::thread::scope(|s| {
        for t in 0..4u64 {
            let e = &e;
            s.spawn(move || {
                let mut numbers = Numbers(t);
                for k in 0..200 {
                    let x = numbers.floats(&[1 + k % 3, 3]);
                    let y = run(e, std::slice::from_ref(&x)).unwrap();
                    let expected = x.as_slice::<f32>().unwrap().iter().map(|v| v * 0.5 + 1.0);
                    assert!(y[0].as_slice::<f32>().unwrap().iter().copied().eq(expected));
                }
            });
        }
    });
    e.wait_for_specializations();
    assert!(e.specializations().len() <= 3);
}

/// A size of 1 in front of the axis that a loop walks: what is of one iteration lies together, which the body's own symbols do not say.
#[test]
fn loops_along_an_inner_axis_have_versions_for_one_row() {
    let e = compile(Specialize::After(2), |g| {
        let n = g.symbol("n", 1..=64);
        let x = g.input("x", F32, (&n, 4));
        let sums = g.repeat(4).slice(&x, 1).carry(&g.zeros([&n], F32)).record(|i| {
            let sum = &i.carried[0] + &i.slices[0];
            i.stack(&sum, 1);
            vec![sum]
        });
        g.output("y", &sums[1]);
    });
    let mut numbers = Numbers(5);
    for n in [1usize, 3] {
        let x = numbers.floats(&[n, 4]);
        let given = x.as_slice::<f32>().unwrap();
        let sum = |row: &[f32]| {
            let each = row.iter().scan(0.0, |sum, v| {
                *sum += v;
                Some(*sum)
            });
            each.collect::<Vec<f32>>()
        };
        let expected: Vec<f32> = given.chunks(4).flat_map(sum).collect();
        for _ in 0..4 {
            assert_eq!(
                run(&e, std::slice::from_ref(&x)).unwrap()[0].as_slice(),
                Ok(&expected[..])
            );
            e.wait_for_specializations();
        }
    }
    let made: Vec<Verdict> = e.specializations().iter().map(|s| s.verdict).collect();
    assert_eq!(made, [Verdict::Asked, Verdict::Asked]);
}
