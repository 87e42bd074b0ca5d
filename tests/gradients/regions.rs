//! Parts of a graph with a derivative of their own: `custom_vjp`, `stop_gradient`, and the pooling that is made of them.

use tlc::ir::graph::NodeKind;
use tlc::ir::text::{difference, no_data, parse_graph};
use tlc::{CompileOptions, DType, Graph, Pool, Tensor, compile_ir, custom_vjp, grad, inputs, vjp};

fn values(t: &Tensor) -> Vec<f64> {
    t.eval().expect("it runs").as_slice::<f64>().expect("doubles").to_vec()
}

fn error(g: &Graph) -> String {
    g.finish().expect_err("it is refused").to_string()
}

/// `max_pool2d` and `max_pool1d` of PyTorch: the first of equal elements, in C order, has the whole cotangent.
#[test]
fn the_first_maximum_of_a_window_has_the_derivative() {
    let g = Graph::default();
    let x = g.constant(vec![2.0f64, 2.0, 1.0, 5.0, 5.0, 5.0]).reshape([1, 1, 6]);
    let pooled = x.max_pool(&Pool::new(3));
    let d = g.constant(vec![10.0f64, 100.0]).reshape([1, 1, 2]);
    let dx = vjp(&[&pooled], &[&d], &[&x]);
    assert_eq!(values(&dx[0]), [10.0, 0.0, 0.0, 100.0, 0.0, 0.0]);
    // Windows that overlap: an element may be the first maximum of several.
    let pooled = x.max_pool(&Pool::new(3).stride(1).padding(1));
    let dx = grad(&pooled.sum(..), &[&x]);
    // Windows: (2 2) (2 2 1) (2 1 5) (1 5 5) (5 5 5) (5 5), whose firsts are 0 0 3 3 3 4.
    assert_eq!(values(&dx[0]), [2.0, 0.0, 0.0, 3.0, 1.0, 0.0]);
    let image = g.constant(vec![1.0f64; 16]).reshape([1, 1, 4, 4]);
    let dx = grad(&image.max_pool(&Pool::new(2)).sum(..), &[&image]);
    let first = [1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0];
    assert_eq!(values(&dx[0]), [first, first].concat());
    let (max, places) = image.max_pool_with_places(&Pool::new(2));
    assert_eq!(places.eval().unwrap().as_slice::<i64>().unwrap(), [0, 2, 8, 10]);
    let dx = grad(&max.sum(..), &[&image]);
    assert_eq!(values(&dx[0]), [first, first].concat());
}

/// max_pool1d and max_pool2d of PyTorch: padding is never the first maximum, not even of elements that are as low.
#[test]
fn padding_has_no_derivative() {
    let low = f64::NEG_INFINITY;
    let g = Graph::default();
    let x = g.constant(vec![low, low]).reshape([1, 1, 2]);
    let dx = grad(&x.max_pool(&Pool::new(2).stride(1).padding(1)).sum(..), &[&x]);
    assert_eq!(values(&dx[0]), [2.0, 1.0]);
    let x = g.constant(vec![low, 1.0, low, low]).reshape([1, 1, 2, 2]);
    let (max, _) = x.max_pool_with_places(&Pool::new(2).stride(1).padding(1));
    let dx = grad(&max.sum(..), &[&x]);
    assert_eq!(values(&dx[0]), [2.0, 4.0, 2.0, 1.0]);
}

#[test]
fn what_is_stopped_is_a_constant() {
    let g = Graph::default();
    let x = g.constant(vec![3.0f64, 4.0]);
    let still = x.stop_gradient();
    assert_eq!(values(&still), [3.0, 4.0]);
    assert_eq!(values(&grad(&(&x * &still).sum(..), &[&x])[0]), [3.0, 4.0]);
    assert_eq!(values(&grad(&still.square().sum(..), &[&x])[0]), [0.0, 0.0]);
    // By the stopped value itself there is one.
    assert_eq!(values(&grad(&still.square().sum(..), &[&still])[0]), [6.0, 8.0]);
    let whole = g.constant(vec![1i64, 2]);
    assert_eq!(whole.stop_gradient().id(), whole.id());
}

/// `x * y` whose derivatives are those of `x + 2y`, through all that a region may be: symbols, several operands and results, a
/// loop around, a second derivative.
fn odd(x: &Tensor, y: &Tensor) -> Vec<Tensor> {
    custom_vjp(
        &[x, y],
        |t| vec![&t[0] * &t[1], t[0].argmax(0)],
        |known| {
            assert_eq!(
                (known.operands.len(), known.results.len(), known.cotangents.len()),
                (2, 2, 1)
            );
            let d = &known.cotangents[0];
            vec![d.clone(), d * 2.0]
        },
    )
}

#[test]
fn a_custom_derivative_is_used_and_changes_no_value() {
    let g = Graph::new("odd");
    let n = g.symbol("n", 1..=16);
    let (x, y) = (g.input("x", DType::F64, [n.clone()]), g.input("y", DType::F64, [n]));
    let results = odd(&x, &y);
    let d = grad(&(&results[0] * 5.0).sum(..), &[&x, &y]);
    for (name, t) in [
        ("product", &results[0]),
        ("at", &results[1]),
        ("dx", &d[0]),
        ("dy", &d[1]),
    ] {
        g.output(name, t);
    }
    let ir = g.finish().expect("a graph");
    assert!(ir.nodes().any(|(_, n)| matches!(n.kind, NodeKind::Region(_))));
    // As text and back.
    let text = ir.to_string();
    let again = parse_graph(&text, &mut no_data).unwrap_or_else(|e| panic!("{text}\n{}", e[0]));
    assert_eq!(difference(&ir, &again), None, "{text}");
    assert_eq!(again.to_string(), text);
    for graph in [&ir, &again] {
        let run = compile_ir(graph, &CompileOptions::default()).expect("it compiles");
        let found = run.run(&inputs![&[1.0f64, 3.0], &[2.0f64, 4.0]]).expect("it runs");
        assert_eq!(found["product"].as_slice::<f64>().unwrap(), [2.0, 12.0]);
        assert_eq!(found["at"].as_slice::<i64>().unwrap(), [1]);
        assert_eq!(found["dx"].as_slice::<f64>().unwrap(), [5.0, 5.0]);
        assert_eq!(found["dy"].as_slice::<f64>().unwrap(), [10.0, 10.0]);
    }
}

#[test]
fn regions_in_loops_and_in_regions() {
    let g = Graph::default();
    let x = g.constant(vec![1.0f64, 2.0]);
    let results = g.repeat(3).carry(&x).record(|i| {
        let y = custom_vjp(
            &[&i.carried[0]],
            |t| vec![t[0].stop_gradient() * &t[0]],
            |known| vec![&known.cotangents[0] * 3.0],
        );
        vec![y[0].clone()]
    });
    assert_eq!(values(&results[0]), [1.0, 256.0]);
    assert_eq!(values(&grad(&results[0].sum(..), &[&x])[0]), [27.0, 27.0]);
}

#[test]
fn a_second_derivative_is_that_of_what_was_recorded() {
    let g = Graph::default();
    let x = g.constant(vec![2.0f64]);
    let cube = |x: &Tensor| {
        let three = |known: &tlc::Known| vec![&known.cotangents[0] * known.operands[0].square() * 3.0];
        custom_vjp(&[x], |t| vec![t[0].pow(3.0)], three).remove(0)
    };
    let first = grad(&cube(&x).sum(..), &[&x]).remove(0);
    let second = grad(&first.sum(..), &[&x]).remove(0);
    assert_eq!((values(&first), values(&second)), (vec![12.0], vec![12.0]));
}

#[test]
fn a_region_draws_from_the_streams_around_it() {
    let drawn = |seed: u64| {
        let g = Graph::default();
        g.seed(seed);
        let x = g.constant(vec![1.0f64; 8]);
        let one = || custom_vjp(&[&x], |t| vec![t[0].dropout(0.5)], |known| known.cotangents.clone()).remove(0);
        let (a, b) = (one(), one());
        (values(&a), values(&b))
    };
    let (a, b) = drawn(1);
    assert_ne!(a, b, "two draws");
    assert_eq!(drawn(1), (a.clone(), b));
    assert_ne!(drawn(2).0, a, "another seed");
}

#[test]
fn what_is_no_derivative_is_refused() {
    let g = Graph::default();
    let x = g.input("x", DType::F32, [3]);
    let _ = custom_vjp(&[&x], |t| vec![t[0].exp()], |_| vec![]);
    let text = error(&g);
    assert!(text.contains("0 times output of the derivative; expected 1"), "{text}");
    assert!(text.contains("tests/gradients/regions.rs"), "{text}");

    let g = Graph::default();
    let x = g.input("x", DType::F32, [3]);
    let _ = custom_vjp(&[&x], |t| vec![t[0].exp()], |known| vec![known.cotangents[0].sum(..)]);
    assert!(
        error(&g).contains("output of the derivative 0 of f32[]; expected f32[3]"),
        "{}",
        error(&g)
    );

    let g = Graph::default();
    let x = g.input("x", DType::F32, [3]);
    let y = custom_vjp(&[&x], |t| vec![&t[0] * &x], |known| known.cotangents.clone());
    assert!(y.iter().all(Tensor::is_poisoned));
    assert!(g.finish().is_err());

    let g = Graph::default();
    let x = g.input("x", DType::F32, [3]);
    let y = custom_vjp(&[&x], |_| vec![x.clone()], |known| known.cotangents.clone());
    assert!(y[0].is_poisoned());
    assert!(error(&g).contains("a result of another graph"), "{}", error(&g));

    let g = Graph::default();
    let x = g.input("x", DType::F32, [3]);
    let y = custom_vjp(&[&x], |t| vec![t[0].reshape([7])], |known| known.cotangents.clone());
    assert!(y[0].is_poisoned());
    assert!(error(&g).contains("reshape"), "{}", error(&g));

    let noise = |known: &tlc::Known| vec![known.cotangents[0].dropout(0.5)];
    let g = Graph::default();
    let x = g.input("x", DType::F32, [3]);
    let _ = custom_vjp(&[&x], |t| vec![t[0].exp()], noise);
    assert!(
        error(&g).contains("a derivative that draws random numbers"),
        "{}",
        error(&g)
    );
    assert!(custom_vjp(&[], |_| vec![], |_| vec![]).is_empty());
}

/// Selections that bound a value are the maximum and minimum that they were before they had a derivative of their own.
#[test]
fn bounds_are_compiled_to_extrema() {
    type F = fn(&Tensor) -> Tensor;
    let table: [(F, &[&str]); 5] = [
        (|x| x.relu(), &["max"]),
        (|x| x.relu6(), &["max", "min"]),
        (|x| x.clamp(-1.0, 1.0), &["max", "min"]),
        (|x| x.hard_sigmoid(), &["max", "min"]),
        // The sign of a zero at the bound is that of the operand.
        (|x| x.clamp(0.0, 6.0), &["select", "min"]),
    ];
    let options = tlc_passes::Options::new(tlc_runtime::target::cpu(
        tlc_runtime::cpu::jit::emitters().expect("a known machine"),
        tlc::default_threads(),
    ));
    for (f, expected) in table {
        let g = Graph::new("bounds");
        let x = g.input("x", DType::F32, [64]);
        g.output("y", &f(&x));
        let graph = g.finish().expect("a graph");
        let compiled = tlc_passes::compile(&graph, &options).expect("it compiles");
        let bounding = |name: &&str| ["max", "min", "select", "le", "lt"].contains(name);
        let found: Vec<&str> = (compiled.graph.nodes())
            .map(|(_, n)| n.kind.name())
            .filter(bounding)
            .filter(|n| *n != "lt")
            .collect();
        assert_eq!(found, expected);
        assert_eq!(compiled.planned.plan.steps.len(), 1);
    }
}
