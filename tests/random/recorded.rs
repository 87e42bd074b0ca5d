//! Draws that name no key: what each is, in loops and scopes too, and that the interpreter and compiled code agree on it.

use std::collections::HashSet;
use std::sync::Arc;

use tlc::{CompileOptions, DType, Graph, HostTensor, Tensor, named_scope};
use tlc_ir::graph::Loop;
use tlc_ir::interp::{Options, interpret};
use tlc_ir::{Graph as IrGraph, NodeKind};

/// The outputs, which the interpreter and compiled code on one and two threads agree on.
fn run(g: &Graph, inputs: &[HostTensor]) -> Vec<HostTensor> {
    let right = interpret(&g.finish().unwrap(), inputs, &Options::default()).unwrap();
    for threads in [1, 2] {
        let options = CompileOptions {
            threads: Some(threads),
            ..CompileOptions::default()
        };
        let arguments: Vec<_> = inputs.iter().map(Into::into).collect();
        let found = g.compile(&options).unwrap().run(&arguments).unwrap();
        for (found, right) in found.iter().zip(&right) {
            assert_eq!(found.to_host(), *right, "{} on {threads} threads", found.name);
        }
    }
    right
}

fn bits(t: &HostTensor) -> &[u32] {
    t.as_slice().expect("random bits")
}

/// No value twice, among all of these together: among so few words of 32 bits none is repeated by chance.
fn assert_distinct<'a>(all: impl IntoIterator<Item = &'a HostTensor>) {
    let mut seen = HashSet::new();
    for t in all {
        for word in bits(t) {
            assert!(seen.insert(*word), "{word:#x} twice");
        }
    }
    assert!(seen.len() > 1);
}

fn loops(graph: &IrGraph) -> Vec<Arc<Loop>> {
    let all = graph.nodes().filter_map(|(_, n)| match &n.kind {
        NodeKind::Loop(l) => Some(Arc::clone(l)),
        _ => None,
    });
    all.collect()
}

/// The streams of a graph and of the bodies of its loops.
fn streams(graph: &IrGraph) -> Vec<u32> {
    let mut all = Vec::new();
    for (_, n) in graph.nodes() {
        match &n.kind {
            NodeKind::Random { stream, .. } => all.push(*stream),
            NodeKind::Loop(l) => all.extend(streams(&l.body.0)),
            _ => {}
        }
    }
    all
}

/// A loop of four iterations that stacks six words each.
fn stacked(g: &Graph) -> Tensor {
    g.repeat(4)
        .record(|i| {
            let words = i.graph().random_bits(6);
            i.stack(&words, 0);
            vec![]
        })
        .remove(0)
}

/// As `ops::random` states it.
fn folded(key: u64, iteration: u64) -> u64 {
    let z = (key ^ (key >> 30)).wrapping_mul(0xbf58476d1ce4e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d049bb133111eb);
    (z ^ (z >> 31)).wrapping_add((iteration + 1).wrapping_mul(0x9e3779b97f4a7c15))
}

/// Threefry-2x32 with 20 rounds, from the paper (Salmon et al., SC 2011).
fn words(key: u64, stream: u32, count: u32) -> Vec<u32> {
    let (low, high) = (key as u32, (key >> 32) as u32);
    let keys = [low, high, 0x1bd1_1bda ^ low ^ high];
    let word = |index: u32| {
        let mut x = [index.wrapping_add(low), stream.wrapping_add(high)];
        for round in 0..20 {
            x[0] = x[0].wrapping_add(x[1]);
            x[1] = x[1].rotate_left([13, 15, 26, 6, 17, 29, 16, 24][round % 8]) ^ x[0];
            if round % 4 == 3 {
                let n = round / 4 + 1;
                x[0] = x[0].wrapping_add(keys[n % 3]);
                x[1] = x[1].wrapping_add(keys[(n + 1) % 3]).wrapping_add(n as u32);
            }
        }
        x[0]
    };
    (0..count).map(word).collect()
}

#[test]
fn a_loop_draws_other_numbers_in_each_iteration_and_none_of_the_outer_graph() {
    let g = Graph::new("loop");
    g.seed(7);
    g.output("before", &g.random_bits(6));
    g.output("inside", &stacked(&g));
    g.output("again", &stacked(&g));
    g.output("behind", &g.random_bits(6));
    assert_distinct(&run(&g, &[]));
}

#[test]
fn the_key_of_an_iteration_is_the_one_that_is_stated() {
    for seed in [0, 7, u64::MAX] {
        let g = Graph::new("loop");
        g.seed(seed);
        g.output("inside", &stacked(&g));
        let found = run(&g, &[]);
        let stream = streams(&g.finish().unwrap())[0];
        let expected: Vec<u32> = (0..4).flat_map(|i| words(folded(seed, i), stream, 6)).collect();
        assert_eq!(bits(&found[0]), expected);
    }
}

#[test]
fn nested_loops_draw_other_numbers_in_each_iteration_of_each() {
    let g = Graph::new("nested");
    g.seed(3);
    let outer = g.repeat(3).record(|o| {
        let own = o.graph().random_bits(5);
        let inner = stacked(o.graph());
        o.stack(&own, 0);
        o.stack(&inner, 0);
        vec![]
    });
    g.output("outer", &outer[0]);
    g.output("inner", &outer[1]);
    let found = run(&g, &[]);
    assert_distinct(&found);
    // The inner key folds the inner iteration into the outer one's.
    let outer = loops(&g.finish().unwrap()).remove(0);
    let inner = loops(&outer.body.0).remove(0);
    let stream = streams(&inner.body.0)[0];
    let keys = (0..3).flat_map(|i| (0..4).map(move |k| folded(folded(3, i), k)));
    let expected: Vec<u32> = keys.flat_map(|key| words(key, stream, 6)).collect();
    assert_eq!(bits(&found[1]), expected);
}

#[test]
fn a_key_given_at_run_time_and_a_seed_reach_the_loops() {
    let g = Graph::new("key");
    g.rng_key_input("key");
    g.output("inside", &stacked(&g));
    let of = |key: u64| run(&g, &[HostTensor::from_slice(&[], &[key]).unwrap()]).remove(0);
    let (first, second) = (of(11), of(12));
    assert_eq!(first, of(11));
    assert_distinct([&first, &second]);

    let seeded = |seed: u64| {
        let g = Graph::new("seed");
        g.seed(seed);
        g.output("inside", &stacked(&g));
        run(&g, &[]).remove(0)
    };
    assert_eq!(seeded(11), first);
    assert_distinct([&seeded(1), &seeded(2), &seeded(3)]);
}

#[test]
fn a_seed_of_the_body_replaces_that_of_the_graph_around_it_and_iterations_differ_still() {
    let of = |outer: u64| {
        let g = Graph::new("own");
        g.seed(outer);
        let results = g.repeat(4).record(|i| {
            i.graph().seed(5);
            let own = i.graph().random_bits(6);
            i.stack(&own, 0);
            vec![]
        });
        g.output("own", &results[0]);
        run(&g, &[]).remove(0)
    };
    assert_distinct([&of(1)]);
    assert_eq!(of(1), of(2));
}

#[test]
fn dropout_in_a_loop_drops_other_elements_in_each_iteration() {
    let g = Graph::new("dropout");
    let x = g.input("x", DType::F32, [64]);
    let results = g.repeat(8).record(|i| {
        let y = i.capture(&x).dropout(0.5);
        i.stack(&y, 0);
        vec![]
    });
    g.output("y", &results[0]);
    let ones = HostTensor::from_slice(&[64], &[1.0f32; 64]).unwrap();
    let found = run(&g, &[ones]);
    let rows: HashSet<Vec<u32>> = found[0]
        .as_slice::<f32>()
        .unwrap()
        .chunks(64)
        .map(|row| row.iter().map(|v| v.to_bits()).collect())
        .collect();
    assert_eq!(rows.len(), 8);
}

/// Draws of two layers, each in its scope and with a loop in it, and of a third between them if asked for.
fn layers(third: bool) -> Vec<HostTensor> {
    let g = Graph::new("layers");
    let layer = |name: &str| {
        named_scope(name, || {
            let inner = named_scope("inner", || g.random_bits(4));
            [g.random_bits(4), inner, stacked(&g)]
        })
    };
    let mut all = layer("first").to_vec();
    if third {
        layer("between");
        stacked(&g);
        g.random_bits(9);
    }
    all.extend(layer("second"));
    for (k, t) in all.iter().enumerate() {
        g.output(&k.to_string(), t);
    }
    run(&g, &[])
}

#[test]
fn a_draw_in_one_scope_changes_none_in_another() {
    let two = layers(false);
    assert_distinct(&two);
    assert_eq!(two, layers(true));
}

#[test]
fn a_scope_that_is_entered_again_goes_on() {
    let g = Graph::new("again");
    let draw = || named_scope("layer", || g.random_bits(6));
    for name in ["a", "b", "c"] {
        g.output(name, &draw());
    }
    assert_distinct(&run(&g, &[]));
}

#[test]
fn threads_that_record_scopes_of_their_own_make_one_and_the_same_graph() {
    let record = |together: bool| {
        let g = Graph::new("threads");
        std::thread::scope(|threads| {
            for t in 0..8 {
                let thread = threads.spawn({
                    let g = &g;
                    move || named_scope(&t.to_string(), || (0..50).for_each(|n| drop(g.random_bits(n))))
                });
                if !together {
                    thread.join().unwrap();
                }
            }
        });
        let mut all = streams(&g.finish().unwrap());
        all.sort_unstable();
        all
    };
    let one = record(false);
    assert_eq!(one, record(true));
    let distinct: HashSet<&u32> = one.iter().collect();
    assert_eq!(distinct.len(), 400);
}

#[test]
fn no_two_draws_of_a_large_graph_have_one_stream() {
    // By the hash alone, some 10 of these 300,000 would share one with another.
    let g = Graph::new("many");
    for _ in 0..100 {
        g.repeat(1).record(|i| {
            (0..3000).for_each(|_| drop(i.graph().random_bits(())));
            let last = i.graph().random_bits(());
            i.stack(&last, 0);
            vec![]
        });
    }
    let all = streams(&g.finish().unwrap());
    let distinct: HashSet<&u32> = all.iter().collect();
    assert_eq!((all.len(), distinct.len()), (300_100, 300_100));
}

#[test]
fn loops_of_symbolic_length_and_with_a_condition_draw_the_same_as_loops_of_that_length() {
    let fixed = {
        let g = Graph::new("fixed");
        g.output("inside", &stacked(&g));
        run(&g, &[]).remove(0)
    };
    let g = Graph::new("symbolic");
    let n = g.symbol("n", 0..=9);
    let x = g.input("x", DType::U32, [&n]);
    let results = g.repeat(&n).slice(&x, 0).record(|i| {
        let words = i.graph().random_bits(6) + &i.slices[0];
        i.stack(&words, 0);
        vec![]
    });
    g.output("inside", &results[0]);
    for count in [4, 0, 2, 9] {
        let zeros = HostTensor::zeros(DType::U32, &[count]).unwrap();
        let found = run(&g, &[zeros]).remove(0);
        let common = 6 * count.min(4);
        assert_eq!(bits(&found)[..common], bits(&fixed)[..common]);
    }
    let g = Graph::new("condition");
    let start = g.zeros([4, 6], DType::U32);
    let results = g
        .repeat_while(&g.full((), true, DType::Bool))
        .carry(&start)
        .record(|i| {
            let words = i.graph().random_bits(6).unsqueeze(0);
            let row = i.graph().range(4, DType::I64).unsqueeze(1).eq(&i.number);
            i.go_on_if(&i.number.clone().lt(3));
            vec![row.select(words, &i.carried[0])]
        });
    g.output("inside", &results[0]);
    assert_eq!(run(&g, &[]).remove(0), fixed);
}

#[test]
fn a_loop_has_a_value_at_once_and_a_body_no_key_of_its_own() {
    let g = Graph::new("eval");
    g.seed(9);
    let inside = stacked(&g);
    g.output("inside", &inside);
    assert_eq!(inside.eval().unwrap().to_host(), run(&g, &[]).remove(0));

    let g = Graph::new("wrong");
    let results = g.repeat(2).record(|i| {
        i.graph().rng_key_input("key");
        let words = i.graph().random_bits(3);
        i.stack(&words, 0);
        vec![]
    });
    assert!(results.iter().all(Tensor::is_poisoned));
    assert!(g.finish().is_err());
}
