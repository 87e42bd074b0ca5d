//! What is recorded, promoted and refused.

use tlc::functions::*;
use tlc::{Conv, DType, Error, Graph, Pool, Tensor, keep, s};

/// Runs `f` on a fresh graph, and returns its only error.
fn refusal(f: impl FnOnce(&Graph)) -> Error {
    let g = Graph::new("wrong");
    f(&g);
    let errors = g.errors();
    assert_eq!(errors.len(), 1, "{errors:?}");
    errors.into_iter().next().unwrap()
}

fn f32s<const N: usize>(g: &Graph, name: &str, shape: [usize; N]) -> Tensor {
    g.input(name, DType::F32, shape)
}

#[test]
fn an_error_names_operation_shapes_line_and_what_would_fit() {
    let line = line!() + 1;
    let e = refusal(|g| drop(f32s(g, "a", [2, 3]).matmul(&f32s(g, "b", [4, 5]))));
    assert_eq!(
        e.to_string(),
        "matmul of f32[2, 3] and f32[4, 5]: inner extents 3 and 4 differ; expected f32[3, 5] on the right"
    );
    let origin = e.origin.to_string();
    assert!(origin.contains(&format!("recording.rs:{line}:")), "{origin}");
}

/// A length below 0 is no end that is counted from the end of the axis.
#[test]
fn a_part_of_less_than_nothing_is_refused() {
    let e = refusal(|g| drop(f32s(g, "a", [5]).narrow(0, 1, -3)));
    assert_eq!(e.to_string(), "narrow of f32[5]: -3 elements; expected 0 or more");
}

#[test]
fn operators_and_composites_blame_the_line_of_the_caller() {
    let g = Graph::new("wrong");
    let (a, b) = (f32s(&g, "a", [2, 3]), f32s(&g, "b", [2]));
    let first = line!() + 1;
    let _ = &a + &b;
    let _ = a.softmax(2);
    let mut c = a.clone();
    c *= &b;
    let _ = a.layer_norm(Some(&b), None, 1e-5);
    let _ = !&a;
    let _ = add(&a, &b);
    let lines: Vec<String> = g.errors().iter().map(|e| e.origin.to_string()).collect();
    for (line, offset) in lines.iter().zip([0, 1, 3, 4, 5, 6]) {
        assert!(
            line.contains(&format!("recording.rs:{}:", first + offset)),
            "{line} {offset}"
        );
    }
    let texts: Vec<String> = g.errors().iter().map(Error::to_string).collect();
    assert_eq!(
        texts[0],
        "add of f32[2, 3] and f32[2]: extents 3 and 2 of axis -1 differ; expected equal extents, or 1"
    );
    assert_eq!(
        texts[1],
        "softmax of f32[2, 3]: axis 2 of a tensor of rank 2; expected an axis from -2 to 1"
    );
    assert!(
        texts[3].starts_with("layer_norm of f32[2, 3] and f32[2]: "),
        "{}",
        texts[3]
    );
    assert!(texts[4].starts_with("not of f32[2, 3]: "), "{}", texts[4]);
}

#[test]
fn what_follows_a_refusal_is_poisoned_and_adds_no_error() {
    let e = refusal(|g| {
        let bad = f32s(g, "a", [2]) + f32s(g, "b", [3]);
        let x = f32s(g, "c", [2]);
        let after = (&x * bad.exp().softmax(7)).sum(..) + 1.0;
        assert!(after.is_poisoned());
        assert!(concat(&[&x, &after], 3).is_poisoned());
        assert!(after.split(&[1, 2], 0).iter().all(Tensor::is_poisoned));
        g.output("y", &after);
        assert!(g.finish().is_err());
    });
    assert_eq!(e.op, "add");
}

#[test]
fn every_error_is_reported() {
    let g = Graph::new("wrong");
    let x = f32s(&g, "x", [2, 3]);
    x.reshape([4, -1]);
    x.permute([0, 0]);
    x.slice((0..3, ..));
    x.squeeze(0);
    x.take(&x, 0);
    x.sum([0, 5]);
    x.cast(DType::U8).add(300);
    g.input("x", DType::F32, 3);
    g.zeros([0, 2], DType::F32).max(0);
    x.conv2d(&x, None, &Conv::new());
    x.max_pool(&Pool::new(2));
    einsum("ij,jk", &[&x, &x]);
    einsum("ij,", &[&x]);
    concat(&[&x, &x.unsqueeze(0)], 0);
    g.full([1i64 << 40, 1 << 40], 0, DType::F32);
    g.constant([1i32]).pow(-1);
    x.add(Graph::new("other").zeros(3, DType::F32));
    g.symbol("n", -5..=-2);
    g.output("o", &x);
    g.output("o", &x);
    let errors = g.finish().unwrap_err();
    let ops: Vec<&str> = errors.iter().map(|e| e.op.as_str()).collect();
    assert_eq!(
        ops,
        [
            "reshape", "permute", "slice", "squeeze", "take", "sum", "add", "input", "max", "conv2d", "max_pool",
            "einsum", "einsum", "concat", "full", "pow", "add", "symbol", "output"
        ],
        "{errors}"
    );
    assert_eq!(errors.to_string().lines().count(), 19);
}

#[test]
fn tensors_promote_and_scalars_do_not() {
    let g = Graph::new("promotion");
    let t = |dtype| g.zeros(2, dtype);
    use DType::*;
    assert_eq!((t(I32) + t(F16)).dtype(), F16);
    assert_eq!((t(U8) + t(I8)).dtype(), I16);
    assert_eq!((t(F16) * 2.5).dtype(), F16);
    assert_eq!((2.5 * t(I32)).dtype(), F32);
    assert_eq!((t(U8) + 1).dtype(), U8);
    assert_eq!((t(Bool) + 1).dtype(), I64);
    assert_eq!((t(Bool) | true).dtype(), Bool);
    assert_eq!((1 - t(F64)).dtype(), F64);
    assert_eq!((t(I64) / t(I64)).dtype(), F32);
    assert_eq!((t(I64) % 3).dtype(), I64);
    assert_eq!((t(I32) << 3 ^ t(I32)).dtype(), I32);
    assert_eq!(t(I64).exp().dtype(), F32);
    assert_eq!(t(I8).sum(..).dtype(), I64);
    assert_eq!(t(U8).sum(..).dtype(), U64);
    assert_eq!(t(BF16).mean(..).dtype(), BF16);
    assert_eq!(t(F16).softmax(0).dtype(), F16);
    assert_eq!(t(F32).lt(1).dtype(), Bool);
    assert_eq!(t(Bool).select(1, 2.0).dtype(), F32);
    assert_eq!(t(Bool).select(1, 2).dtype(), I64);
    assert_eq!((t(F32) + tlc::Scalar::from_f64(F64, 1.0)).dtype(), F64);
    assert_eq!(t(Bool).matmul(&t(Bool)).dtype(), Bool);
    assert_eq!(t(I8).matmul(&t(F32)).dtype(), F32);
    g.check().unwrap();
}

#[test]
fn symbols_broadcast_only_where_one_is_literal_and_unequal_ones_are_guarded() {
    let g = Graph::new("symbols");
    let (b, c) = (g.symbol("b", 1..=64), g.symbol("c", ..));
    let x = g.input("x", DType::F32, (&b, 4));
    let y = g.input("y", DType::F32, (&c, 1));
    assert_eq!((&x + &y).shape()[0], b);
    assert_eq!(g.with_ir(|ir| ir.guards().len()), 1);
    assert_eq!(x.reshape((2, -1)).dim(1), &b * 2);
    assert_eq!(x.slice(1..).dim(0), &b - 1);
    assert_eq!(concat(&[&x, &x], 0).dim(0), &b * 2);
    let w = g.input("w", DType::F32, (&b * 3, 4));
    g.check().unwrap();
    assert!(
        (&w + g.zeros([200, 4], DType::F32)).is_poisoned(),
        "3 * 64 is less than 200"
    );
}

#[test]
fn a_matmul_is_one_einsum_and_a_concat_has_no_sum() {
    let g = Graph::new("kinds");
    let (x, w) = (f32s(&g, "x", [8, 16]), f32s(&g, "w", [16, 4]));
    x.matmul(&w);
    concat(&[&x, &x], 0);
    let names = g.with_ir(|ir| ir.nodes().map(|(_, n)| n.kind.name()).collect::<Vec<_>>());
    assert_eq!(names.iter().filter(|n| **n == "einsum").count(), 1);
    assert!(!names.contains(&"add") && !names.contains(&"reduce"));
}

#[test]
fn extract_keeps_inputs_and_what_is_needed() {
    let g = Graph::new("parts");
    let (x, _unused) = (f32s(&g, "x", [4]), f32s(&g, "unused", [4]));
    let y = x.exp();
    let _other = x.sin().cos();
    let part = g.extract(&[("y", &y)]).unwrap();
    assert_eq!((part.len(), part.inputs().len(), part.outputs().len()), (3, 2, 1));
    assert!(Graph::new("other").extract(&[("y", &y)]).is_err());
}

#[test]
fn arguments_come_in_the_forms_one_would_try() {
    let g = Graph::new("forms");
    let n = g.symbol("n", 1..);
    let x = g.input("x", DType::F32, vec![n.clone(), (&n + 1) / 2, 6.into()]);
    let array = ndarray::array![[1.0f32, 2.0], [3.0, 4.0]];
    let c = g.constant(array.t());
    assert_eq!(c.const_shape(), Some(vec![2, 2]));
    let data = g.with_ir(|ir| match &ir.node(c.id().unwrap()).kind {
        tlc_ir::NodeKind::Data(d) => d.0.clone(),
        other => panic!("{other:?}"),
    });
    assert_eq!(data.as_slice::<f32>().unwrap(), [1.0, 3.0, 2.0, 4.0]);
    x.sum(..);
    x.sum(keep(..));
    x.sum(-1);
    x.sum([0usize, 1]);
    x.sum(&[0i64, 1][..]);
    x.slice(..);
    x.slice(0);
    x.slice([s(1..), s(..-1)]);
    x.slice((.., 0, &n - &n..));
    x.broadcast_to((5, &n, -1, 6));
    x.flatten_axes(0, 1).unflatten(0, (&n, -1));
    g.zeros((), DType::F32);
    let extents = [2usize, 3];
    g.zeros(&extents[..], DType::I8);
    g.constant(1.5f64);
    g.constant(vec![true, false]);
    (2.0 - &x).exp();
    let _ = -x.clone() + 1i32 + 2u8 + 1.0f32;
    g.check().unwrap();
}

#[test]
fn a_graph_is_shared_between_threads() {
    fn check<T: Send + Sync>() {}
    check::<Graph>();
    check::<Tensor>();
}

#[test]
fn a_chain_of_100_000_nodes_is_recorded_in_linear_time() {
    let record = |n: usize| {
        let g = Graph::new("chain");
        let mut x = f32s(&g, "x", [8, 8]);
        let start = std::time::Instant::now();
        for i in 0..n {
            x = (x + i as f32).relu();
        }
        g.output("y", &x);
        assert!(g.finish().is_ok());
        start.elapsed().as_secs_f64() / n as f64
    };
    let (short, long) = (record(5_000), record(25_000));
    eprintln!("{:.2} and {:.2} us a step of four nodes", short * 1e6, long * 1e6);
    // Quadratic time would be 5 times slower a node.
    assert!(long < 4.0 * short + 2e-6, "{short} {long}");
}

/// Two graphs, an input of each, and what `f` makes of them: neither may compile.
fn both_refused(f: impl FnOnce((&Graph, &Tensor), (&Graph, &Tensor)), problem: &str) {
    let (g, h) = (Graph::new("g"), Graph::new("h"));
    let (a, b) = (f32s(&g, "a", [2]), f32s(&h, "b", [2]));
    g.output("own", &a);
    h.output("own", &b);
    f((&g, &a), (&h, &b));
    for graph in [&g, &h] {
        let errors = graph.finish().map(|_| ()).unwrap_err();
        assert_eq!(errors.len(), 1, "{errors}");
        let text = errors.to_string();
        assert!(text.contains("recording.rs:") && text.contains(problem), "{text}");
        assert!(graph.compile(&Default::default()).is_err());
    }
}

#[test]
fn what_mixes_graphs_is_reported_to_all_of_them() {
    let problem = "operands recorded in different graphs; expected tensors of one graph";
    both_refused(|(g, _), (_, b)| g.output("y", b), problem);
    both_refused(
        |(_, a), (_, b)| drop(a + b),
        "add of f32[2] and f32[2]: operands recorded",
    );
    both_refused(|(_, a), (_, b)| drop(concat(&[a, b], 0)), problem);
    both_refused(|(_, a), (_, b)| drop(a.clamp(b, 1.0)), problem);
    both_refused(|(_, a), (_, b)| drop(a.gt(0.0).select(a, b)), problem);
    both_refused(|(_, a), (_, b)| drop(a.masked_fill(&a.gt(0.0), b)), problem);
    both_refused(|(g, _), (_, b)| drop(g.full([3], b.sum(0), DType::F32)), problem);
    both_refused(|(_, a), (_, b)| drop(einsum("i,i->", &[a, b])), problem);
    both_refused(
        |(g, a), (_, b)| drop(g.repeat(2).carry(a).carry(b).record(|i| i.carried.clone())),
        problem,
    );
    both_refused(
        |(g, a), (_, b)| drop(g.repeat(2).carry(a).record(|_| vec![b.clone()])),
        "a result of another graph",
    );
    // An operation of the body over a third graph's tensor: reported to that graph, and with the body to the one around it.
    both_refused(
        |(g, a), (_, b)| drop(g.repeat(2).carry(a).record(|i| vec![&i.carried[0] + i.capture(b)])),
        problem,
    );
    // Three graphs at once.
    let all = ["a", "b", "c"].map(|name| f32s(&Graph::new(name), name, [2]));
    stack(&[&all[0], &all[1], &all[2]], 0);
    for t in &all {
        assert!(t.graph().finish().is_err(), "{}", t.graph().with_ir(|g| g.name.clone()));
    }
}

#[test]
fn a_refused_tensor_of_another_graph_is_reported_where_it_is_used() {
    let (g, h) = (Graph::new("g"), Graph::new("h"));
    let bad = f32s(&h, "a", [2]) + f32s(&h, "b", [3]);
    g.output("own", &f32s(&g, "x", [2]));
    g.output("y", &bad);
    let errors = g.finish().unwrap_err().to_string();
    assert!(
        errors.ends_with(
            "output of a poisoned tensor: operands recorded in different graphs; expected tensors of one graph"
        ),
        "{errors}"
    );
    assert_eq!(h.errors().len(), 2);
}

#[test]
fn a_body_that_mixes_graphs_is_reported_once() {
    let e = refusal(|g| {
        let x = f32s(g, "x", [2]);
        g.repeat(2).carry(&x).record(|i| vec![&i.carried[0] + &x]);
    });
    assert!(e.to_string().contains("through the iteration's `capture`"), "{e}");
}

#[test]
fn a_graph_without_outputs_is_an_error() {
    let g = Graph::new("nothing");
    f32s(&g, "x", [2]).exp();
    let line = line!() + 1;
    let Err(error) = g.compile(&Default::default()) else {
        panic!("compiled")
    };
    let text = error.to_string();
    assert!(text.contains(&format!("recording.rs:{line}:")), "{text}");
    assert!(
        text.ends_with("compile: the graph has no outputs; expected at least one, see Graph::output"),
        "{text}"
    );
    let Err(error) = tlc::compile_ir(&g.finish().unwrap(), &Default::default()) else {
        panic!("compiled")
    };
    assert!(error.to_string().contains("the graph has no outputs"), "{error}");
}
