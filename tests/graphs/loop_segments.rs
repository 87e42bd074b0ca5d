//! Loops whose derivatives keep too much for the memory limit are cut into segments: results keep their bits.

use tlc::ir::interp::{self, compare, interpret_with_bounds};
use tlc::ir::rng::Rng;
use tlc::{
    BuildError, CompileOptions, DType, Dim, Executable, Graph, HostTensor, Input, RunError, Specialize, Tensor,
    Verdict, grad, inputs,
};

/// What is in a recurrence beside a carried value.
#[derive(Clone, Copy, Debug, Default)]
struct With {
    slices: bool,
    number: bool,
    /// Stacked results, in both directions and along both axes.
    stacks: bool,
    /// A second carried value, and one that is no float.
    others: bool,
    /// An input that says how many iterations there are at most.
    count: bool,
    /// A condition that holds for as many iterations as an input says.
    condition: bool,
}

/// Gradients of a loop of so many iterations over vectors of that length.
fn recurrence(iterations: usize, width: usize, with: With) -> Graph {
    recurrence_in(Graph::new("recurrence"), iterations.into(), width.into(), with)
}

/// As [`recurrence`], where inputs say how many iterations there are, and how long vectors are.
fn recurrence_of_any_sizes(with: With) -> Graph {
    let g = Graph::new("recurrence");
    let (iterations, width) = (g.symbol("t", 0..=1000), g.symbol("n", 1..=4096));
    recurrence_in(g, iterations, width, with)
}

fn recurrence_in(g: Graph, iterations: Dim, width: Dim, with: With) -> Graph {
    let h = g.input("h", DType::F32, [&width]);
    let w = g.input("w", DType::F32, [&width]);
    let x = g.input("x", DType::F32, [&iterations, &width]);
    let y = g.input("y", DType::F32, [&width, &iterations]);
    let mut repeat = g.repeat(iterations).carry(&h);
    if with.others {
        repeat = repeat.carry(&(&h * 0.5)).carry(&g.scalar(3, DType::I64));
    }
    if with.slices {
        repeat = repeat.slice(&x, 0).slice_reversed(&y, 1);
    }
    let mut until = None;
    if with.count {
        let n = g.input("n", DType::I64, ());
        repeat = repeat.at_most(&n);
    }
    if with.condition {
        let m = g.input("m", DType::I64, ());
        repeat = repeat.while_(&m.gt(0));
        until = Some(m);
    }
    let results = repeat.record(|i| {
        if let Some(m) = &until {
            let m = i.capture(m);
            i.go_on_if(&(&i.number + 1).lt(m));
        }
        let w = i.capture(&w);
        let mut next = (&i.carried[0] * &w).sin() + &i.carried[0] * 0.5;
        if with.slices {
            next = next + &i.slices[0] * 0.125 - i.slices[1].square() * 0.25;
        }
        if with.number {
            next *= (i.number.cast(DType::F32) * 0.01).cos();
        }
        let mut all = vec![];
        if with.others {
            next += (&i.carried[1] * 0.25) * i.carried[2].cast(DType::F32).sin();
            all.push(&i.carried[1] - &next * 0.125);
            all.push(&i.carried[2] + &i.number * 2);
        }
        if with.stacks {
            i.stack(&(&next * 2.0), 1);
            i.stack_reversed(&next.square(), 0);
        }
        all.insert(0, next);
        all
    });
    let mut loss: Tensor = results[0].square().mean(..);
    let carried = if with.others { 3 } else { 1 };
    if with.others {
        loss += results[1].sum(..);
        g.output("count", &results[2]);
    }
    for (k, stack) in results[carried..].iter().enumerate() {
        let weights = g.range(stack.dim(0), DType::F32).unsqueeze(1) * 0.01;
        loss += (stack * weights).mean(..);
        g.output(&format!("stack{k}"), stack);
    }
    let of: &[&Tensor] = match with.slices {
        true => &[&h, &w, &x, &y],
        false => &[&h, &w],
    };
    for (k, d) in grad(&loss, of).iter().enumerate() {
        g.output(&format!("d{k}"), d);
    }
    g.output("loss", &loss);
    // Unused inputs are inputs.
    g.output("sum", &(x.sum(..) + y.sum(..)));
    g
}

fn tensors(iterations: usize, width: usize) -> Vec<HostTensor> {
    let mut rng = Rng::new(iterations as u64 ^ 0x5e9);
    let mut tensor = |shape: &[usize]| {
        let values: Vec<f32> = (0..shape.iter().product())
            .map(|_| rng.range(-64, 64) as f32 / 48.0)
            .collect();
        HostTensor::from_slice(shape, &values).expect("as many")
    };
    vec![
        tensor(&[width]),
        tensor(&[width]),
        tensor(&[iterations, width]),
        tensor(&[width, iterations]),
    ]
}

fn limited(limit: Option<u64>) -> CompileOptions {
    CompileOptions {
        max_memory_bytes: limit,
        specialize: Specialize::Never,
        threads: Some(2),
        ..CompileOptions::default()
    }
}

fn run(executable: &Executable, tensors: &[HostTensor]) -> Vec<HostTensor> {
    let given: Vec<Input<'_>> = tensors.iter().map(Input::from).collect();
    let out = executable.run(&given).expect("it runs");
    out.iter().map(|o| o.to_host()).collect()
}

fn need(executable: &Executable, tensors: &[HostTensor]) -> tlc::MemoryNeed {
    let given: Vec<Input<'_>> = tensors.iter().map(Input::from).collect();
    executable.memory(&given).expect("they fit")
}

fn all_kinds() -> impl Iterator<Item = With> {
    (0..16u32).map(|bits| With {
        slices: bits & 1 != 0,
        number: bits & 2 != 0,
        stacks: bits & 4 != 0,
        others: bits & 8 != 0,
        ..With::default()
    })
}

#[test]
fn loops_in_segments_have_the_bits_of_loops_that_keep_all() {
    for (number, with) in all_kinds().enumerate() {
        // Whole segments, of squares and of others, and a prime; each kind with two.
        for iterations in [[100usize, 181], [169, 180]][number.count_ones() as usize % 2] {
            // What a prime number of iterations reads or stacks is copied, for those of whole segments and for the rest: that takes what is saved here.
            if iterations == 181 && (with.slices || with.stacks) {
                continue;
            }
            let (g, tensors) = (recurrence(iterations, 600, with), tensors(iterations, 600));
            let all = g.compile(&limited(None)).expect("it compiles");
            assert!(all.decisions().segmented.is_empty());
            let kept = need(&all, &tensors);
            let stacks = (iterations * 600 * 4 * if with.others { 2 } else { 1 }) as u64;
            // Room for three quarters of what is kept of the iterations.
            let limit = kept.total() - stacks / 4;
            let of = format!("{with:?}, {iterations} iterations");
            let cut = g.compile(&limited(Some(limit))).unwrap_or_else(|e| panic!("{of}: {e}"));
            assert!(need(&cut, &tensors).total() <= limit, "{of}");
            let segmented = &cut.decisions().segmented;
            assert_eq!(segmented.len(), 1, "{of}");
            let every = [(100, 10), (169, 13), (180, 12), (181, 13)]
                .into_iter()
                .find(|e| e.0 == iterations);
            assert_eq!(
                (segmented[0].iterations, segmented[0].every),
                (iterations as i64, every.expect("it is").1)
            );
            assert!(!segmented[0].label.is_empty());
            let text = cut.explain();
            assert!(text.contains("for the memory limit"), "{text}");
            let (expected, found) = (run(&all, &tensors), run(&cut, &tensors));
            let bounded = interpret_with_bounds(&g.finish().expect("a graph"), &tensors, &interp::Options::default());
            for ((found, expected), bounded) in found.iter().zip(&expected).zip(&bounded.expect("it is interpreted")) {
                assert_eq!(
                    (found.shape(), found.bytes()),
                    (expected.shape(), expected.bytes()),
                    "{of}"
                );
                compare(found, bounded).unwrap_or_else(|e| panic!("{of}: {e}"));
            }
        }
    }
}

/// The recorded graph without regions, as passes know it.
fn inlined(g: &Graph) -> tlc::ir::Graph {
    let recorded = g.finish().expect("a graph");
    let plain = recorded.inlined().expect("it types");
    plain.unwrap_or(recorded)
}

/// Iterations behind the last whole segment read, stack and count as they did.
#[test]
fn iterations_that_are_left_have_the_bits_of_loops_that_keep_all() {
    for with in all_kinds() {
        for iterations in [23usize, 61] {
            let of = format!("{with:?}, {iterations} iterations");
            let (g, tensors) = (recurrence(iterations, 40, with), tensors(iterations, 40));
            let all = g.compile(&limited(None)).expect("it compiles");
            let (cut, segmented) = tlc_passes::segments::run(&inlined(&g)).expect("it is rebuilt");
            assert_eq!(segmented.len(), 1, "{of}\n{}", inlined(&g));
            assert_ne!(iterations as i64 % segmented[0].every, 0, "{of}");
            let cut = tlc::compile_ir(&cut, &limited(None)).unwrap_or_else(|e| panic!("{of}: {e}"));
            for (found, expected) in run(&cut, &tensors).iter().zip(&run(&all, &tensors)) {
                assert_eq!(found.bytes(), expected.bytes(), "{of}");
            }
        }
    }
}

/// Loops that a count or a condition ends, in the midst of a segment, at its end, in the first, the last, before any, or not at all.
#[test]
fn loops_that_data_ends_have_the_bits_of_loops_that_keep_all() {
    for (number, with) in all_kinds().enumerate() {
        for (count, condition) in [(true, false), (false, true), (true, true)] {
            let with = With {
                count,
                condition,
                ..with
            };
            // Whole segments of 5, and a last one that is shorter.
            let iterations = [25usize, 23][number % 2];
            let of = format!("{with:?}, {iterations} iterations");
            let (g, tensors) = (recurrence(iterations, 24, with), tensors(iterations, 24));
            let all = g.compile(&limited(None)).expect("it compiles");
            let (cut, segmented) = tlc_passes::segments::run(&inlined(&g)).expect("it is rebuilt");
            assert_eq!(segmented.len(), 1, "{of}\n{}", inlined(&g));
            assert_eq!(tlc::ir::graph::verify::verify(&cut), [], "{of}");
            let cut = tlc::compile_ir(&cut, &limited(None)).unwrap_or_else(|e| panic!("{of}: {e}"));
            let every = segmented[0].every;
            let most = iterations as i64;
            for (n, m) in [
                (-3, most),
                (0, 0),
                (1, most + 1),
                (every - 1, every + 1),
                (most, every),
                (every + 1, 2 * every),
                (3 * every, most),
                (most - 1, most - 1),
                (most, most),
                (most + 9, most + 9),
            ] {
                let mut given = tensors.clone();
                let scalar = |n: i64| HostTensor::from_slice(&[], &[n]).expect("one");
                given.extend(count.then(|| scalar(n)));
                given.extend(condition.then(|| scalar(m)));
                for (found, expected) in run(&cut, &given).iter().zip(&run(&all, &given)) {
                    assert_eq!(found.bytes(), expected.bytes(), "{of}, {n} and {m}");
                }
            }
        }
    }
}

/// What a loop keeps that data ends grows as the root of the most iterations.
#[test]
fn loops_that_data_ends_are_cut_for_the_memory_limit() {
    for (count, condition) in [(true, false), (false, true)] {
        for iterations in [256usize, 401] {
            let with = With {
                count,
                condition,
                ..With::default()
            };
            let (g, mut tensors) = (recurrence(iterations, 1000, with), tensors(iterations, 1000));
            tensors.push(HostTensor::from_slice(&[], &[iterations as i64 - 7]).expect("one"));
            let all = g.compile(&limited(None)).expect("it compiles");
            let kept = need(&all, &tensors);
            assert!(kept.arena >= iterations as u64 * 4000);
            let cut = g.compile(&limited(Some(kept.total() - kept.arena * 3 / 5)));
            let cut = cut.expect("it compiles");
            let segmented = &cut.decisions().segmented;
            assert_eq!(segmented.len(), 1);
            // What segments began with, what the iterations of one did, and that once more in the order of the way back.
            let root = iterations.isqrt() as u64;
            let arena = need(&cut, &tensors).arena;
            assert!(arena < (3 * root + 20) * 4032, "{iterations}: {arena}");
            for (found, expected) in run(&cut, &tensors).iter().zip(&run(&all, &tensors)) {
                assert_eq!(found.bytes(), expected.bytes());
            }
        }
    }
}

/// Where calls bind sizes, loops are cut by the sizes of a call that would need too much, and by no others.
#[test]
fn loops_of_symbolic_sizes_are_cut_by_the_sizes_of_calls() {
    let mut cuts = 0;
    for (number, with) in all_kinds().enumerate() {
        let with = With {
            count: number % 3 == 1,
            condition: number % 3 == 2,
            ..with
        };
        let g = recurrence_of_any_sizes(with);
        let all = g.compile(&limited(None)).expect("it compiles");
        for (iterations, width) in [[(144usize, 600usize), (3, 40)], [(64, 1000), (0, 40)]][number % 2] {
            let of = format!("{with:?}, {iterations} iterations of {width}");
            let mut given = tensors(iterations, width);
            if with.count || with.condition {
                given.push(HostTensor::from_slice(&[], &[iterations as i64 - 5]).expect("one"));
            }
            // A graph of those sizes, whose loop keeps all, and what a version for them can do with at the least.
            let fixed = recurrence(iterations, width, with);
            let fixed = fixed.compile(&limited(None)).expect("it compiles");
            let of_none = g.compile(&limited(Some(1))).expect("sizes are not known");
            let refused = of_none.run(&given.iter().map(Input::from).collect::<Vec<_>>());
            let least = match refused {
                Err(RunError::MemoryLimit { needed, .. }) => needed,
                other => panic!("{of}: {other:?}"),
            };
            let limit = match iterations < 64 {
                true => need(&all, &given).total(),
                false => least,
            };
            let cut = g.compile(&limited(Some(limit))).unwrap_or_else(|e| panic!("{of}: {e}"));
            let found = run(&cut, &given);
            assert!(need(&cut, &given).total() <= limit, "{of}");
            let versions = cut.specializations();
            let fits = need(&all, &given).total() <= limit;
            assert_eq!(versions.is_empty(), fits, "{of}: {versions:?}");
            assert!(
                versions.iter().all(|v| v.verdict == Verdict::Needed),
                "{of}: {versions:?}"
            );
            // Less than what iterations began with.
            let saved = need(&fixed, &given).total().saturating_sub(limit);
            cuts += usize::from(saved > (iterations * width) as u64);
            let expected = match versions.is_empty() {
                true => run(&all, &given),
                false => run(&fixed, &given),
            };
            for (found, expected) in found.iter().zip(&expected) {
                assert_eq!(found.bytes(), expected.bytes(), "{of}");
            }
        }
    }
    assert!(cuts > 8, "{cuts}");
}

/// What is kept grows as the root of the iterations in graphs of symbolic sizes, too, and no other call is changed.
#[test]
fn the_arena_of_loops_of_symbolic_sizes_grows_as_the_root_of_the_iterations() {
    let g = recurrence_of_any_sizes(With::default());
    let all = g.compile(&limited(None)).expect("it compiles");
    for iterations in [64usize, 256, 401, 961] {
        let given = tensors(iterations, 1000);
        let kept = need(&all, &given);
        assert!(kept.arena >= iterations as u64 * 4000);
        let cut = g.compile(&limited(Some(kept.total() - kept.arena * 3 / 5)));
        let cut = cut.expect("it compiles");
        let (root, arena) = (iterations.isqrt() as u64, need(&cut, &given).arena);
        assert!(arena < (2 * root + 16) * 4032, "{iterations}: {arena}");
        // Few iterations fit as they are.
        let few = tensors(9, 1000);
        assert_eq!(need(&cut, &few).arena, need(&all, &few).arena);
        assert_eq!(cut.specializations().len(), 1);
        let fixed = recurrence(iterations, 1000, With::default());
        let fixed = fixed.compile(&limited(None)).expect("it compiles");
        for (like, given) in [(&fixed, given), (&all, few)] {
            for (found, expected) in run(&cut, &given).iter().zip(&run(like, &given)) {
                assert_eq!(found.bytes(), expected.bytes());
            }
        }
    }
}

/// Gradients of a loop of at most so many iterations that a condition ends, whose stacked values are as many as it ran: as of an ONNX Loop with scan
/// outputs.
fn stacked_while(iterations: usize, width: usize, with: With) -> Graph {
    let g = Graph::new("stacked");
    let h = g.input("h", DType::F32, [width]);
    let w = g.input("w", DType::F32, [width]);
    let n = g.input("n", DType::I64, ());
    let mut repeat = g.repeat(iterations).carry(&h);
    repeat = match with.count {
        true => repeat.at_most(&n),
        false => repeat.while_(&n.gt(0)),
    };
    let results = repeat.record(|i| {
        if !with.count {
            let n = i.capture(&n);
            i.go_on_if(&(&i.number + 1).lt(n));
        }
        let next = (&i.carried[0] * i.capture(&w)).sin() + &i.carried[0] * 0.5;
        match with.stacks {
            true => i.stack(&next.square(), 0),
            false => i.stack(&next.square().mean(..), 0),
        }
        i.stack(&i.graph().full((), true, DType::Bool), 0);
        vec![next]
    });
    let places = results[2].nonzero().select_index(0, 0);
    let steps = results[1].take_from_start(&places, 0);
    let loss = steps.sin().sum(..) + results[0].sum(..);
    g.output("steps", &steps);
    g.output("loss", &loss);
    for (k, d) in grad(&loss, &[&h, &w]).iter().enumerate() {
        g.output(&format!("d{k}"), d);
    }
    g
}

/// Of a loop that data ends, what it stacks is cut to as many as ran, which is a size that data decides; the loop and its derivative are segments
/// all the same.
#[test]
fn loops_whose_stacks_data_cuts_are_cut_for_the_memory_limit() {
    for (count, stacks) in [(true, true), (true, false), (false, true), (false, false)] {
        for iterations in [256usize, 401] {
            let with = With {
                count,
                stacks,
                ..With::default()
            };
            let of = format!("{with:?}, {iterations} iterations");
            let g = stacked_while(iterations, 500, with);
            let inputs = |n: i64| {
                let mut all = tensors(iterations, 500);
                all.truncate(2);
                all.push(HostTensor::from_slice(&[], &[n]).expect("one"));
                all
            };
            let all = g.compile(&limited(None)).expect("it compiles");
            let kept = need(&all, &inputs(0));
            let bytes = iterations as u64 * 2000;
            let limit = kept.total() - bytes * 3 / 5;
            let cut = g.compile(&limited(Some(limit))).unwrap_or_else(|e| panic!("{of}: {e}"));
            assert_eq!(cut.decisions().segmented.len(), 1, "{of}");
            let arena = need(&cut, &inputs(0)).arena;
            let root = iterations.isqrt() as u64;
            assert!(
                arena < kept.arena - bytes + (3 * root + 20) * 2048,
                "{of}: {arena}, {}",
                kept.arena
            );
            for n in [-1, 0, 1, 15, 16, 17, iterations as i64 - 1, iterations as i64, 9999] {
                let given = inputs(n);
                for (found, expected) in run(&cut, &given).iter().zip(&run(&all, &given)) {
                    assert_eq!(
                        (found.shape(), found.bytes()),
                        (expected.shape(), expected.bytes()),
                        "{of}, {n}"
                    );
                }
            }
        }
    }
}

/// A loop that is cheap to run again, beside products that are not.
fn loop_beside_products(iterations: usize, layers: usize, batch: usize) -> Graph {
    let g = Graph::new("mixed");
    let h = g.input("h", DType::F32, [1000]);
    let x = g.input("x", DType::F32, [batch, 256]);
    let w = g.input("w", DType::F32, [256, 256]);
    let last = g
        .repeat(iterations)
        .carry(&h)
        .record(|i| vec![i.carried[0].square() * 0.5])
        .remove(0);
    let mut y = x.clone();
    for _ in 0..layers {
        y = y.matmul(&w).square();
    }
    let loss = last.sum(..) + y.sum(..);
    for (k, d) in grad(&loss, &[&h, &w]).iter().enumerate() {
        g.output(&format!("d{k}"), d);
    }
    g
}

#[test]
fn no_plan_is_slower_by_prediction_than_one_of_less_memory() {
    let mut graphs: Vec<(String, Graph)> = [(256, 4, 512), (64, 6, 256), (256, 2, 128), (1024, 3, 256)]
        .into_iter()
        .map(|(iterations, layers, batch)| {
            let of = format!("{iterations} iterations, {layers} layers of {batch}");
            (of, loop_beside_products(iterations, layers, batch))
        })
        .collect();
    let with = With {
        slices: true,
        stacks: true,
        ..With::default()
    };
    graphs.push(("a recurrence alone".into(), recurrence(144, 600, with)));
    let (mut cut_where_again_fits, mut refused) = (0, 0);
    for (of, g) in graphs {
        let predicted = |e: &Executable| -> f64 {
            let costs = tlc::explain::step_costs(e.plan(), e.devices());
            costs
                .iter()
                .map(|(_, cost)| cost.predicted_ns.expect("sizes are known"))
                .sum()
        };
        let free = g.compile(&limited(None)).expect("it compiles");
        let inputs = g.finish().expect("a graph");
        let shapes = inputs
            .inputs()
            .iter()
            .map(|i| inputs.ty(*i).shape.iter().map(|d| d.as_const().expect("fixed")));
        let zeros: Vec<HostTensor> = shapes
            .map(|shape| HostTensor::zeros(DType::F32, &shape.map(|n| n as usize).collect::<Vec<_>>()).expect("memory"))
            .collect();
        let kept = need(&free, &zeros);
        let mut slowest_above = predicted(&free);
        // From the largest limit, which all fit, down to the least.
        for part in 0..16 {
            let limit = kept.total() - kept.arena * part / 16;
            let Ok(made) = g.compile(&limited(Some(limit))) else {
                refused += 1;
                break;
            };
            assert!(need(&made, &zeros).total() <= limit, "{of}, {limit}");
            let time = predicted(&made);
            // What is decided for a machine that is not run on is the same.
            let planned = tlc::plan_ir(&inputs, made.devices().clone(), &limited(Some(limit))).expect("it is planned");
            let (planned, made_segments) = (&planned.segmented, &made.decisions().segmented);
            assert_eq!(planned.len(), made_segments.len(), "{of}, {limit}");
            assert!(
                time >= slowest_above * (1.0 - 1e-9),
                "{of}: {limit} bytes take {time} ns, and more bytes {slowest_above} ns"
            );
            slowest_above = time;
            let again = &made.decisions().planned.rematerialized;
            cut_where_again_fits += usize::from(!made.decisions().segmented.is_empty() && again.is_empty());
        }
    }
    assert!(cut_where_again_fits > 0 && refused > 0);
}

#[test]
fn what_is_kept_grows_as_the_root_of_the_iterations() {
    let arena = |iterations: usize| {
        let with = With::default();
        let (g, tensors) = (recurrence(iterations, 1000, with), tensors(iterations, 1000));
        let all = g.compile(&limited(None)).expect("it compiles");
        let kept = need(&all, &tensors);
        assert!(kept.arena >= iterations as u64 * 4000);
        let limit = kept.total() - kept.arena * 3 / 5;
        let cut = g.compile(&limited(Some(limit))).expect("it compiles");
        assert_eq!(run(&cut, &tensors)[0].bytes(), run(&all, &tensors)[0].bytes());
        need(&cut, &tensors).arena
    };
    // Twice the root of values of 4000 bytes, and a few more; of primes too.
    for iterations in [64usize, 256, 1024, 61, 401, 419, 1021] {
        let root = iterations.isqrt() as u64;
        let found = arena(iterations);
        assert!(found < (2 * root + 16) * 4032, "{iterations}: {found}");
    }
}

#[test]
fn loops_that_cannot_be_cut_are_refused_with_what_they_need() {
    // Three iterations are no fewer in segments.
    let g = Graph::new("refused");
    let x = g.input("x", DType::F32, [20_000]);
    let repeat = g.repeat(3).at_most(&g.input("n", DType::I64, ()));
    let y = repeat.carry(&x).record(|i| vec![i.carried[0].sin()]).remove(0);
    g.output("d", &grad(&y.sum(..), &[&x])[0]);
    let refused = g.compile(&limited(Some(100_000))).expect_err("too little");
    assert!(
        matches!(refused, BuildError::Load(RunError::MemoryLimit { needed, limit: 100_000, .. }) if needed > 240_000),
        "{refused}"
    );
}

#[test]
fn a_limit_that_segments_do_not_reach_is_an_error() {
    let g = recurrence(100, 600, With::default());
    let refused = g.compile(&limited(Some(1000))).expect_err("too little").to_string();
    assert!(refused.contains("memory"), "{refused}");
}

#[test]
fn a_loop_whose_steps_others_read_keeps_them() {
    // What the iterations began with is a result as well.
    let g = Graph::new("read");
    let x = g.input("x", DType::F32, [1000]);
    let results = g.repeat(100).carry(&x).record(|i| {
        let before = i.carried[0].clone();
        i.stack(&before, 0);
        vec![before.sin()]
    });
    g.output("steps", &results[1]);
    g.output("d", &grad(&results[0].sum(..), &[&x])[0]);
    let all = g.compile(&limited(None)).expect("it compiles");
    let x: Vec<f32> = (0..1000).map(|i| i as f32 / 500.0).collect();
    let total = all.memory(&inputs![&x]).expect("it fits").total();
    match g.compile(&limited(Some(total - 1))) {
        Ok(cut) => {
            let (a, b) = (
                all.run(&inputs![&x]).expect("it runs"),
                cut.run(&inputs![&x]).expect("it runs"),
            );
            assert!(a.iter().zip(b.iter()).all(|(a, b)| a.bytes() == b.bytes()));
        }
        Err(e) => assert!(e.to_string().contains("memory"), "{e}"),
    }
}

#[test]
fn loops_behind_one_another_and_second_derivatives_are_cut() {
    for second in [false, true] {
        let g = Graph::new("several");
        let (x, w) = (g.input("x", DType::F64, [500]), g.input("w", DType::F64, [500]));
        let run_loop = |x: &Tensor, k: f64| {
            let results = g.repeat(144).carry(x).record(|i| {
                let w = i.capture(&w);
                vec![(&i.carried[0] * &w).sin() + &i.carried[0] * k]
            });
            results[0].clone()
        };
        let loss = run_loop(&run_loop(&x, 0.5).tanh(), 0.25).square().sum(..);
        let d = grad(&loss, &[&x, &w]);
        let of = match second {
            true => grad(&(&d[0] * &d[1]).sum(..), &[&x, &w]),
            false => d,
        };
        of.iter().enumerate().for_each(|(k, d)| g.output(&format!("d{k}"), d));
        let values = |seed: usize| {
            (0..500)
                .map(|i| ((i * 17 + seed) % 31) as f64 / 16.0 - 1.0)
                .collect::<Vec<_>>()
        };
        let (x, w) = (values(3), values(11));
        let all = g.compile(&limited(None)).expect("it compiles");
        let total = all.memory(&inputs![&x, &w]).expect("it fits").total();
        // Two loops that keep 576,000 bytes each.
        let cut = g.compile(&limited(Some(total - 500_000))).expect("it compiles");
        assert!(cut.memory(&inputs![&x, &w]).expect("it fits").total() <= total - 500_000);
        let segmented = &cut.decisions().segmented;
        assert!(segmented.len() >= 2, "{segmented:?}");
        let (a, b) = (
            all.run(&inputs![&x, &w]).expect("it runs"),
            cut.run(&inputs![&x, &w]).expect("it runs"),
        );
        for (a, b) in a.iter().zip(b.iter()) {
            assert_eq!(a.bytes(), b.bytes(), "{}", a.name);
        }
    }
}
