//! The interpreter's errors, limits and error bounds.

use tlc_ir::binding::{BindError, bind_symbols};
use tlc_ir::graph::{Axes, Labels, Monoid, Origin, ScatterOp, Semiring, Shape, View};
use tlc_ir::interp::{InterpError, Options, compare, interpret, interpret_with_bounds, random_bits};
use tlc_ir::precision::{Precision, to_tf32};
use tlc_ir::{DType, Graph, HostTensor, IndexExpr, NodeId, NodeKind, Scalar, ScalarOp, TensorType};

/// A graph with short ways to add nodes.
struct G(Graph);

impl G {
    fn new() -> G {
        G(Graph::new("test"))
    }
    fn add(&mut self, kind: NodeKind, operands: &[NodeId]) -> NodeId {
        self.0
            .add(kind, operands, Origin::Unknown)
            .unwrap_or_else(|e| panic!("{e}"))
    }
    fn input(&mut self, name: &str, dtype: DType, shape: &[IndexExpr]) -> NodeId {
        let ty = TensorType::new(dtype, shape.iter().cloned());
        self.0
            .add_input(name, ty, Origin::Unknown)
            .unwrap_or_else(|e| panic!("{e}"))
    }
    fn map(&mut self, op: ScalarOp, operands: &[NodeId]) -> NodeId {
        self.add(NodeKind::Map(op), operands)
    }
    fn constant(&mut self, dtype: DType, value: f64, shape: &[IndexExpr]) -> NodeId {
        let c = self.add(NodeKind::Const(Scalar::from_f64(dtype, value)), &[]);
        self.expand(c, shape)
    }
    fn expand(&mut self, x: NodeId, shape: &[IndexExpr]) -> NodeId {
        self.add(NodeKind::View(View::Expand(shape.iter().cloned().collect())), &[x])
    }
    fn reshape(&mut self, x: NodeId, shape: &[IndexExpr]) -> NodeId {
        self.add(NodeKind::View(View::Reshape(shape.iter().cloned().collect())), &[x])
    }
    fn reduce(&mut self, monoid: Monoid, x: NodeId, axis: u8) -> NodeId {
        let axes = Axes::from_slice(&[axis]);
        self.add(NodeKind::Reduce { monoid, axes }, &[x])
    }
    fn matmul(&mut self, a: NodeId, b: NodeId, acc: DType, dtype: DType) -> NodeId {
        let kind = NodeKind::Einsum {
            inputs: [Labels::from_slice(&[0, 1]), Labels::from_slice(&[1, 2])].into(),
            output: Labels::from_slice(&[0, 2]),
            semiring: Semiring::AddMul,
            accumulator: acc,
            dtype,
        };
        self.add(kind, &[a, b])
    }
    fn sym(&mut self, name: &str, lo: i64, hi: i64) -> IndexExpr {
        self.0.add_symbol(name, lo, hi).into()
    }
    fn output(mut self, node: NodeId) -> Graph {
        self.0.add_output("", node);
        self.0
    }
}

fn c(n: i64) -> IndexExpr {
    IndexExpr::Const(n)
}

fn f32s(shape: &[usize], data: &[f32]) -> HostTensor {
    HostTensor::from_slice(shape, data).unwrap()
}

fn zeros(dtype: DType, shape: &[usize]) -> HostTensor {
    HostTensor::zeros(dtype, shape).unwrap()
}

/// Numbers in −1..1 from the Random node's own generator.
fn noise(count: usize, seed: u64) -> Vec<f32> {
    let unit = |i| random_bits(seed, i as u32, 0) as f64 / 2f64.powi(31) - 1.0;
    (0..count).map(|i| unit(i) as f32).collect()
}

fn message(graph: &Graph, inputs: &[HostTensor]) -> String {
    interpret(graph, inputs, &Options::default()).unwrap_err().to_string()
}

#[test]
fn inputs_that_do_not_fit_are_named_with_what_was_expected() {
    let mut g = G::new();
    let (b, s) = (g.sym("b", 1, 64), g.sym("s", 0, 100));
    let x = g.input("x", DType::F32, &[b.clone(), s.clone()]);
    g.input("y", DType::F32, &[s.clone() + s.clone(), c(3)]);
    let graph = g.output(x);
    let x = |shape: &[usize]| zeros(DType::F32, shape);
    assert_eq!(message(&graph, &[x(&[2, 5])]), "1 inputs; expected 2: x, y");
    assert_eq!(
        message(&graph, &[zeros(DType::I8, &[2, 5]), x(&[10, 3])]),
        "input x: dtype i8; expected f32"
    );
    assert_eq!(
        message(&graph, &[x(&[2]), x(&[10, 3])]),
        "input x: shape [2] has 1 axes; expected [b, s]"
    );
    assert_eq!(
        message(&graph, &[x(&[65, 5]), x(&[10, 3])]),
        "symbol b = 65 (bound by input x); expected 1..=64"
    );
    assert_eq!(
        message(&graph, &[x(&[2, 5]), x(&[11, 3])]),
        "input y: extent 11 of axis 0; expected 2*s = 10 (with s = 5)"
    );
    assert_eq!(
        message(&graph, &[x(&[2, 5]), x(&[10, 4])]),
        "input y: extent 4 of axis 1; expected 3"
    );
    let types = [(DType::F32, &[2usize, 5][..]), (DType::F32, &[10, 3])];
    assert_eq!(bind_symbols(&graph, &types, &[]), Ok(vec![2, 5]));
    assert!(matches!(
        bind_symbols(&graph, &types, &[("s".into(), 6)]),
        Err(BindError::Extent { found: 5, .. })
    ));
    assert!(matches!(
        bind_symbols(&graph, &types, &[("q".into(), 6)]),
        Err(BindError::UnknownSymbol { .. })
    ));
}

#[test]
fn symbols_without_an_input_come_from_the_options() {
    let mut g = G::new();
    let n = g.sym("n", 0, 100);
    g.sym("unused", 3, 9);
    let ty = TensorType::new(DType::I32, [n]);
    let x = g.add(NodeKind::Iota { ty, axis: 0 }, &[]);
    let graph = g.output(x);
    assert_eq!(
        message(&graph, &[]),
        "symbol n is bound by no input; give its value by name"
    );
    let options = Options {
        symbols: vec![("n".into(), 3)],
        ..Options::default()
    };
    let out = interpret(&graph, &[], &options).unwrap();
    assert_eq!(out[0].as_slice::<i32>().unwrap(), [0, 1, 2]);
}

#[test]
fn guards_and_negative_extents_are_checked() {
    let mut g = G::new();
    let (m, n) = (g.sym("m", 0, 100), g.sym("n", 0, 100));
    let a = g.input("a", DType::F32, std::slice::from_ref(&m));
    let b = g.input("b", DType::F32, std::slice::from_ref(&n));
    let sum = g.map(ScalarOp::Add, &[a, b]);
    let graph = g.output(sum);
    let x = |n| zeros(DType::F32, &[n]);
    assert!(interpret(&graph, &[x(4), x(4)], &Options::default()).is_ok());
    assert_eq!(message(&graph, &[x(4), x(5)]), "add %0: m = n fails with m = 4, n = 5");

    let mut g = G::new();
    let n = g.sym("n", 0, 100);
    let a = g.input("a", DType::F32, std::slice::from_ref(&n));
    let ty = TensorType::new(DType::F32, [n - c(3)]);
    g.add(NodeKind::Iota { ty, axis: 0 }, &[]);
    let graph = g.output(a);
    assert!(interpret(&graph, &[x(3)], &Options::default()).is_ok());
    assert_eq!(message(&graph, &[x(1)]), "iota %0: n - 3 >= 0 fails with n = 1");
}

#[test]
fn argmax_over_an_axis_that_turns_out_empty_is_an_error() {
    let mut g = G::new();
    let n = g.sym("n", 0, 100);
    let a = g.input("a", DType::F32, &[c(2), n]);
    let r = g.reduce(Monoid::ArgMax, a, 1);
    let graph = g.output(r);
    assert!(message(&graph, &[zeros(DType::F32, &[2, 0])]).contains("fails with n = 0"));
    assert!(interpret(&graph, &[zeros(DType::F32, &[2, 1])], &Options::default()).is_ok());
}

#[test]
fn memory_is_limited_before_it_is_allocated_and_freed_at_last_use() {
    let mut g = G::new();
    let a = g.input("a", DType::F32, &[c(1)]);
    let huge = g.expand(a, &[c(1 << 40)]);
    let graph = g.output(huge);
    let options = |bytes| Options {
        max_bytes: Some(bytes),
        ..Options::default()
    };
    assert!(matches!(
        interpret(&graph, &[f32s(&[1], &[1.0])], &options(1 << 30)),
        Err(InterpError::Memory { .. })
    ));
    // Without a limit the allocator or the size check refuses.
    let mut g = G::new();
    let a = g.input("a", DType::F32, &[c(1)]);
    let huge = g.expand(a, &[c(1 << 57)]);
    let graph = g.output(huge);
    assert!(interpret(&graph, &[f32s(&[1], &[1.0])], &Options::default()).is_err());

    let mut g = G::new();
    let mut x = g.input("a", DType::F32, &[c(1000)]);
    for _ in 0..50 {
        let flat = g.add(NodeKind::Copy, &[x]);
        x = g.map(ScalarOp::Neg, &[flat]);
    }
    let graph = g.output(x);
    // 50 values of 4000 bytes in turn: two alive, and one widened.
    assert!(interpret(&graph, &[zeros(DType::F32, &[1000])], &options(20_000)).is_ok());
}

#[test]
fn gather_reads_zero_and_scatter_drops_out_of_range_indices_of_any_width() {
    let mut g = G::new();
    let x = g.input("x", DType::I32, &[c(3)]);
    let i = g.input("i", DType::U64, &[c(4)]);
    let j = g.input("j", DType::I8, &[c(4)]);
    let axes = Axes::from_slice(&[0]);
    let a = g.add(NodeKind::Gather { axes: axes.clone() }, &[x, i]);
    let b = g.add(NodeKind::Gather { axes: axes.clone() }, &[x, j]);
    let op = ScatterOp::Set;
    let s = g.add(NodeKind::Scatter { axes, op }, &[x, a, j]);
    for n in [a, b, s] {
        g.0.add_output("", n);
    }
    let inputs = [
        HostTensor::from_slice(&[3], &[10i32, 20, 30]).unwrap(),
        HostTensor::from_slice(&[4], &[2u64, 3, u64::MAX, 1]).unwrap(),
        HostTensor::from_slice(&[4], &[-1i8, 1, 3, 1]).unwrap(),
    ];
    let out = interpret(&g.0, &inputs, &Options::default()).unwrap();
    let values = |i: usize| out[i].as_slice::<i32>().unwrap();
    assert_eq!(values(0), [30, 0, 0, 20]);
    assert_eq!(values(1), [0, 20, 0, 20]);
    assert_eq!(values(2), [10, 20, 30], "the last update wins");
    let bounds = interpret_with_bounds(&g.0, &inputs, &Options::default()).unwrap();
    assert!(
        out.iter()
            .zip(&bounds)
            .all(|(o, b)| compare(o, b).is_ok() && b.uncertain() == 0)
    );
}

#[test]
fn random_bits_are_threefry_of_the_flat_index_and_the_stream() {
    let mut g = G::new();
    let key = g.input("key", DType::U64, &[]);
    let shape: Shape = [c(2), c(3)].into_iter().collect();
    let r = g.add(NodeKind::Random { shape, stream: 7 }, &[key]);
    let graph = g.output(r);
    let key = 0x0123_4567_89ab_cdef;
    let out = interpret(
        &graph,
        &[HostTensor::from_slice(&[], &[key]).unwrap()],
        &Options::default(),
    )
    .unwrap();
    let expected: Vec<u32> = (0..6).map(|i| random_bits(key, i, 7)).collect();
    assert_eq!(out[0].as_slice::<u32>().unwrap(), expected);
}

/// Softmax over rows of `x`, scaled and centred: subtract, exp, sum, divide.
fn softmax(g: &mut G, x: NodeId, rows: i64, columns: i64) -> NodeId {
    let (keep, full) = ([c(rows), c(1)], [c(rows), c(columns)]);
    let top = g.reduce(Monoid::Max, x, 1);
    let top = g.reshape(top, &keep);
    let top = g.expand(top, &full);
    let shifted = g.map(ScalarOp::Sub, &[x, top]);
    let e = g.map(ScalarOp::Exp, &[shifted]);
    let sum = g.reduce(Monoid::Add, e, 1);
    let sum = g.reshape(sum, &keep);
    let sum = g.expand(sum, &full);
    g.map(ScalarOp::Div, &[e, sum])
}

#[test]
fn bounds_hold_a_plain_f32_matmul_and_softmax_and_are_tight_enough_to_catch_mistakes() {
    let (m, k, n) = (5usize, 200usize, 33usize);
    let mut g = G::new();
    let a = g.input("a", DType::F32, &[c(m as i64), c(k as i64)]);
    let b = g.input("b", DType::F32, &[c(k as i64), c(n as i64)]);
    let p = g.matmul(a, b, DType::F32, DType::F32);
    let y = softmax(&mut g, p, m as i64, n as i64);
    let graph = g.output(y);
    let (av, bv) = (noise(m * k, 1), noise(k * n, 2));
    let inputs = [f32s(&[m, k], &av), f32s(&[k, n], &bv)];
    let bounds = &interpret_with_bounds(&graph, &inputs, &Options::default()).unwrap()[0];
    assert_eq!(bounds.uncertain(), 0);
    let plain = &interpret(&graph, &inputs, &Options::default()).unwrap()[0];
    compare(plain, bounds).unwrap_or_else(|e| panic!("{e}"));
    // In f32, in both orders of the sums.
    for backwards in [false, true] {
        let order = |n: usize| -> Vec<usize> {
            if backwards {
                (0..n).rev().collect()
            } else {
                (0..n).collect()
            }
        };
        let mut out = vec![0f32; m * n];
        for i in 0..m {
            let row = &mut out[i * n..(i + 1) * n];
            for (j, r) in row.iter_mut().enumerate() {
                *r = order(k).iter().fold(0.0, |s, &l| s + av[i * k + l] * bv[l * n + j]);
            }
            let top = row.iter().fold(f32::NEG_INFINITY, |t, &v| t.max(v));
            row.iter_mut().for_each(|v| *v = (*v - top).exp());
            let sum = order(n).iter().fold(0f32, |s, &j| s + row[j]);
            row.iter_mut().for_each(|v| *v /= sum);
        }
        compare(&f32s(&[m, n], &out), bounds).unwrap_or_else(|e| panic!("{e}"));
        // Forgetting one product of 200 is caught.
        let mut wrong = out.clone();
        wrong[3] *= 1.01;
        assert!(compare(&f32s(&[m, n], &wrong), bounds).is_err());
    }
    let worst = bounds
        .error
        .iter()
        .zip(&bounds.value)
        .map(|(e, v)| e / v)
        .fold(0.0, f64::max);
    assert!(worst < 3e-3, "relative bound {worst}");
}

#[test]
fn bounds_of_tf32_hold_products_of_rounded_operands_and_are_near_what_rounding_does() {
    let (m, k, n) = (5usize, 60usize, 7usize);
    let mut g = G::new();
    let a = g.input("a", DType::F32, &[c(m as i64), c(k as i64)]);
    let b = g.input("b", DType::F32, &[c(k as i64), c(n as i64)]);
    let p = g.matmul(a, b, DType::F32, DType::F32);
    let graph = g.output(p);
    let (mut av, mut bv) = (noise(m * k, 1), noise(k * n, 2));
    // As far from the nearest tf32 as can be, all to the same side.
    let half = |v: f32| f32::from_bits(v.to_bits() & !0x1fff | 0x1000);
    av.iter_mut().chain(&mut bv).for_each(|v| *v = half(v.abs()));
    let inputs = [f32s(&[m, k], &av), f32s(&[k, n], &bv)];
    let options = Options {
        precision: Precision::Tf32,
        ..Options::default()
    };
    let bounds = &interpret_with_bounds(&graph, &inputs, &options).unwrap()[0];
    let product = |round: &dyn Fn(f32) -> f32| {
        let mut out = vec![0f32; m * n];
        for (at, r) in out.iter_mut().enumerate() {
            let (i, j) = (at / n, at % n);
            *r = (0..k).fold(0.0, |s, l| s + round(av[i * k + l]) * round(bv[l * n + j]));
        }
        f32s(&[m, n], &out)
    };
    compare(&product(&|v| v), bounds).expect("what is exact");
    let rounded = product(&to_tf32);
    compare(&rounded, bounds).expect("what is rounded");
    // Nor is it allowed exactly, nor twice as wrong.
    let exact = &interpret_with_bounds(&graph, &inputs, &Options::default()).unwrap()[0];
    assert!(compare(&rounded, exact).is_err());
    assert!(compare(&product(&|v| to_tf32(v) * (1.0 + 2f32.powi(-10))), bounds).is_err());
    // What tf32 holds is exact.
    let whole: Vec<f32> = (0..m * k).map(|i| (i % 9) as f32 - 4.0).collect();
    let inputs = [f32s(&[m, k], &whole), f32s(&[k, n], &vec![0.5; k * n])];
    let bounds = &interpret_with_bounds(&graph, &inputs, &options).unwrap()[0];
    assert!(bounds.error.iter().all(|e| *e == 0.0));
}

#[test]
fn integers_in_floats_stay_exact_so_that_what_depends_on_them_is_certain() {
    // one-hot counts: floor(sum(floor(4 * u)) / 2) as an index.
    let mut g = G::new();
    let x = g.input("x", DType::F32, &[c(8), c(16)]);
    let four = g.constant(DType::F32, 4.0, &[c(8), c(16)]);
    let scaled = g.map(ScalarOp::Mul, &[x, four]);
    let whole = g.map(ScalarOp::Floor, &[scaled]);
    let sum = g.reduce(Monoid::Add, whole, 1);
    let half = g.constant(DType::F32, 0.5, &[c(8)]);
    let halved = g.map(ScalarOp::Mul, &[sum, half]);
    let index = g.add(NodeKind::Convert(DType::I32), &[halved]);
    let order = g.reduce(Monoid::ArgMax, whole, 1);
    g.0.add_output("", order);
    let graph = g.output(index);
    let inputs = [f32s(&[8, 16], &noise(128, 5))];
    let bounds = interpret_with_bounds(&graph, &inputs, &Options::default()).unwrap();
    let plain = interpret(&graph, &inputs, &Options::default()).unwrap();
    for (b, p) in bounds.iter().zip(&plain) {
        assert_eq!(b.uncertain(), 0);
        compare(p, b).unwrap();
    }
}

#[test]
fn what_may_go_either_way_is_uncertain_and_what_may_not_is_checked() {
    // sum(x) > t where the sum's rounding decides, for one row; clearly above for the other.
    let mut g = G::new();
    let x = g.input("x", DType::F32, &[c(2), c(3)]);
    let sum = g.reduce(Monoid::Add, x, 1);
    let t = g.input("t", DType::F32, &[c(2)]);
    let above = g.map(ScalarOp::Lt, &[t, sum]);
    let one = g.constant(DType::F32, 1.0, &[c(2)]);
    let nudged = g.constant(DType::F32, 1.5, &[c(2)]);
    let chosen = g.map(ScalarOp::Select, &[above, one, nudged]);
    let index = g.add(NodeKind::Convert(DType::I64), &[sum]);
    for n in [chosen, index] {
        g.0.add_output("", n);
    }
    let graph = g.output(above);
    let inputs = [f32s(&[2, 3], &[0.1, 0.2, 0.7, 5.1, 6.2, 7.3]), f32s(&[2], &[1.0, 1.0])];
    let bounds = interpret_with_bounds(&graph, &inputs, &Options::default()).unwrap();
    assert!(
        bounds[0].error[0] > 0.4 && bounds[0].error[0] < 0.6,
        "either branch: {:?}",
        bounds[0]
    );
    assert_eq!(bounds[0].error[1], 0.0);
    assert_eq!(bounds[1].error, [f64::INFINITY, 0.0], "1 ± u truncates to 0 or 1");
    assert_eq!(bounds[2].error, [f64::INFINITY, 0.0]);
    let wrong = HostTensor::from_slice(&[2], &[true, false]).unwrap();
    assert_eq!(
        compare(&wrong, &bounds[2]).unwrap_err().to_string(),
        "element [1] is false; expected true; 1 of 2 elements are outside their bounds"
    );
}

#[test]
fn overflow_in_a_narrow_dtype_is_infinite_or_uncertain() {
    let mut g = G::new();
    let x = g.input("x", DType::F16, &[c(3)]);
    let y = g.map(ScalarOp::Mul, &[x, x]);
    let e = g.map(ScalarOp::Exp, &[x]);
    let w = g.input("w", DType::F16, &[c(3)]);
    let e2 = g.map(ScalarOp::Mul, &[e, w]);
    g.0.add_output("", y);
    let graph = g.output(e2);
    let halves = |v: [f32; 3]| HostTensor::from_slice(&[3], &v.map(half::f16::from_f32)).unwrap();
    let inputs = [halves([1.0, 300.0, 1.0]), halves([1.0, 1.0, 24112.0])];
    let bounds = interpret_with_bounds(&graph, &inputs, &Options::default()).unwrap();
    assert_eq!(bounds[0].value[1], f64::INFINITY);
    assert_eq!(bounds[1].value[1], f64::INFINITY);
    // 24112 e is 65543 give or take 35; from 65520 on it overflows.
    assert!(bounds[1].error[2] == f64::INFINITY, "{:?}", bounds[1]);
    let plain = interpret(&graph, &inputs, &Options::default()).unwrap();
    plain.iter().zip(&bounds).for_each(|(p, b)| compare(p, b).unwrap());
}

#[test]
fn a_chain_of_every_function_keeps_the_plain_result_inside_its_bounds() {
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        for &op in ScalarOp::ALL {
            let types = vec![dtype; op.arity()];
            if op.result_dtype(&types) != Ok(dtype) {
                continue;
            }
            let n = 500;
            let shape = [c(n as i64)];
            let mut g = G::new();
            let mut operands = Vec::new();
            let mut inputs = Vec::new();
            for k in 0..op.arity() {
                let x = g.input(&format!("x{k}"), dtype, &shape);
                let scale = g.constant(dtype, 3.7, &shape);
                // Not exact any more, and on both sides of zero.
                let x = g.map(ScalarOp::Sin, &[x]);
                operands.push(g.map(ScalarOp::Mul, &[x, scale]));
                let mut t = zeros(dtype, &[n]);
                for (i, v) in noise(n, 40 + k as u64).into_iter().enumerate() {
                    t.set(i, Scalar::from_f64(dtype, v as f64 * 2.0));
                }
                inputs.push(t);
            }
            let y = g.map(op, &operands);
            let graph = g.output(y);
            let bounds = &interpret_with_bounds(&graph, &inputs, &Options::default()).unwrap()[0];
            let plain = &interpret(&graph, &inputs, &Options::default()).unwrap()[0];
            compare(plain, bounds).unwrap_or_else(|e| panic!("{op} on {dtype}: {e}"));
            let share = bounds.uncertain() as f64 / n as f64;
            let allowed = if dtype.bytes() == 2 { 0.35 } else { 0.01 };
            assert!(share <= allowed, "{op} on {dtype}: {share} uncertain");
        }
    }
}

#[test]
fn views_compose() {
    let mut g = G::new();
    let x = g.input("x", DType::I32, &[c(3), c(4)]);
    let t = g.add(NodeKind::View(View::Permute(Axes::from_slice(&[1, 0]))), &[x]);
    let back = g.add(NodeKind::View(View::Permute(Axes::from_slice(&[1, 0]))), &[t]);
    let pad = View::Pad {
        lo: [c(1), c(2)].into_iter().collect(),
        hi: [c(0), c(3)].into_iter().collect(),
        interior: vec![0, 0].into(),
        value: Scalar::from_i64(DType::I32, 9),
    };
    let padded = g.add(NodeKind::View(pad), &[back]);
    let slice = View::Slice {
        start: [c(1), c(2)].into_iter().collect(),
        step: vec![1, 1].into(),
        size: [c(3), c(4)].into_iter().collect(),
    };
    let same = g.add(NodeKind::View(slice), &[padded]);
    let flip = |g: &mut G, x| {
        let flip = View::Slice {
            start: [c(2), c(3)].into_iter().collect(),
            step: vec![-1, -1].into(),
            size: [c(3), c(4)].into_iter().collect(),
        };
        g.add(NodeKind::View(flip), &[x])
    };
    let once = flip(&mut g, same);
    let twice = flip(&mut g, once);
    let graph = g.output(twice);
    let data: Vec<i32> = (0..12).collect();
    let input = HostTensor::from_slice(&[3, 4], &data).unwrap();
    let out = interpret(&graph, std::slice::from_ref(&input), &Options::default()).unwrap();
    assert_eq!(out[0], input);
}
