//! Random graphs: the interpreter never panics, and its error bounds hold two different right implementations: the plain
//! mode, which sums in f64, and one that sums in the accumulator's dtype from the end to the start and takes f32's own
//! functions.

use tlc_ir::graph::{Monoid, Origin, Semiring, verify::verify};
use tlc_ir::interp::{Options, compare, interpret, interpret_with_bounds};
use tlc_ir::rng::Rng;
use tlc_ir::testgen::{Case, GenOptions, random_case, random_tensor};
use tlc_ir::{DType, Graph, HostTensor, NodeKind, Scalar, ScalarOp};

fn options(case: &Case) -> Options {
    let symbols = case.graph.symbols().iter().map(|s| s.name.clone());
    Options {
        symbols: symbols.zip(case.binding.iter().copied()).collect(),
        max_bytes: Some(1 << 28),
        ..Options::default()
    }
}

/// Every index of a shape in C order.
fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    for &d in shape {
        all = all
            .into_iter()
            .flat_map(|i: Vec<usize>| (0..d).map(move |k| [i.clone(), vec![k]].concat()))
            .collect();
    }
    all
}

fn flat(index: &[usize], shape: &[usize]) -> usize {
    index.iter().zip(shape).fold(0, |at, (i, d)| at * d + i)
}

fn f32_function(op: ScalarOp, x: f32) -> Option<f32> {
    Some(match op {
        ScalarOp::Exp => x.exp(),
        ScalarOp::Exp2 => x.exp2(),
        ScalarOp::Expm1 => x.exp_m1(),
        ScalarOp::Log => x.ln(),
        ScalarOp::Log2 => x.log2(),
        ScalarOp::Log1p => x.ln_1p(),
        ScalarOp::Sin => x.sin(),
        ScalarOp::Cos => x.cos(),
        ScalarOp::Tan => x.tan(),
        ScalarOp::Asin => x.asin(),
        ScalarOp::Acos => x.acos(),
        ScalarOp::Atan => x.atan(),
        ScalarOp::Sinh => x.sinh(),
        ScalarOp::Cosh => x.cosh(),
        ScalarOp::Tanh => x.tanh(),
        ScalarOp::Asinh => x.asinh(),
        ScalarOp::Rsqrt => 1.0 / x.sqrt(),
        _ => return None,
    })
}

/// The node's value the other way, where there is another way.
fn other_way(kind: &NodeKind, operands: &[&HostTensor], shape: &[usize], dtype: DType) -> Option<HostTensor> {
    let combine = |op: ScalarOp, a: Scalar, b: Scalar| op.eval(&[a, b]);
    let mut out = HostTensor::zeros(dtype, shape).ok()?;
    match kind {
        NodeKind::Map(op) if matches!(dtype, DType::F16 | DType::BF16 | DType::F32) && op.arity() == 1 => {
            f32_function(*op, 0.5)?;
            for i in 0..out.len() {
                let y = f32_function(*op, operands[0].get(i).as_f64() as f32)?;
                out.set(i, Scalar::from_f64(dtype, y as f64));
            }
        }
        NodeKind::Reduce { monoid, axes } if dtype.is_float() && matches!(monoid, Monoid::Add | Monoid::Mul) => {
            let acc = dtype.accumulator();
            let mut sums = vec![monoid.identity(acc); out.len()];
            let from = operands[0].shape();
            for index in indices(from).iter().rev() {
                let kept: Vec<usize> = (0..index.len())
                    .filter(|i| !axes.contains(&(*i as u8)))
                    .map(|i| index[i])
                    .collect();
                let at = flat(&kept, shape);
                let x = operands[0].get(flat(index, from)).convert(acc);
                sums[at] = combine(monoid.combine(), sums[at], x);
            }
            sums.iter().enumerate().for_each(|(i, s)| out.set(i, s.convert(dtype)));
        }
        NodeKind::Einsum {
            inputs,
            output,
            semiring: Semiring::AddMul,
            accumulator: acc,
            ..
        } if acc.is_float() => {
            let count = inputs.iter().flatten().map(|&l| l as usize + 1).max().unwrap_or(0);
            let mut extents = vec![1; count];
            for (labels, t) in inputs.iter().zip(operands) {
                labels
                    .iter()
                    .zip(t.shape())
                    .for_each(|(&l, &d)| extents[l as usize] = d);
            }
            if extents.iter().product::<usize>() > 20_000 {
                return None;
            }
            let mut sums = vec![acc.zero(); out.len()];
            for index in indices(&extents).iter().rev() {
                let place = |labels: &[u16]| labels.iter().map(|&l| index[l as usize]).collect::<Vec<_>>();
                let factor = |(labels, t): (&tlc_ir::graph::Labels, &&HostTensor)| {
                    t.get(flat(&place(labels), t.shape())).convert(*acc)
                };
                let factors = inputs.iter().zip(operands).rev().map(factor);
                let product = factors.reduce(|a, b| combine(ScalarOp::Mul, a, b))?;
                let at = flat(&place(output), shape);
                sums[at] = combine(ScalarOp::Add, sums[at], product);
            }
            sums.iter().enumerate().for_each(|(i, s)| out.set(i, s.convert(dtype)));
        }
        _ => return None,
    }
    Some(out)
}

/// The outputs, node by node, the other way where there is one; `None` if the case is too large.
fn interpret_other_way(case: &Case, inputs: &[HostTensor]) -> Vec<HostTensor> {
    let mut values: Vec<HostTensor> = Vec::new();
    // Results of loops and calls, by node.
    let mut tuples: Vec<Vec<HostTensor>> = Vec::new();
    for (_, node) in case.graph.nodes() {
        tuples.resize(values.len() + 1, Vec::new());
        if let NodeKind::Project(result) = node.kind {
            values.push(tuples[node.operands[0].index()][result as usize].clone());
            continue;
        }
        if let NodeKind::Input { index, .. } = &node.kind {
            values.push(inputs[*index as usize].clone());
            continue;
        }
        let operands: Vec<&HostTensor> = node.operands.iter().map(|o| &values[o.index()]).collect();
        let mut single = Graph::new("single");
        for s in case.graph.symbols() {
            single.add_symbol(&s.name, s.lo, s.hi);
        }
        let arguments: Vec<_> = (0..operands.len())
            .map(|i| {
                let ty = case.graph.ty(node.operands[i]).clone();
                single.add_input(&format!("x{i}"), ty, Origin::Unknown).unwrap()
            })
            .collect();
        let y = single.add(node.kind.clone(), &arguments, Origin::Unknown).unwrap();
        let given: Vec<HostTensor> = operands.iter().map(|&t| t.clone()).collect();
        if node.kind.is_tuple() {
            for k in 0..node.results.len() {
                let part = single.add(NodeKind::Project(k as u32), &[y], Origin::Unknown).unwrap();
                single.add_output("", part);
            }
            let results = interpret(&single, &given, &options(case)).unwrap();
            *tuples.last_mut().unwrap() = results;
            values.push(HostTensor::zeros(DType::Bool, &[0]).unwrap());
            continue;
        }
        single.add_output("y", y);
        let plain = interpret(&single, &given, &options(case)).unwrap().remove(0);
        let other = other_way(&node.kind, &operands, plain.shape(), plain.dtype());
        values.push(other.unwrap_or(plain));
    }
    case.graph
        .outputs()
        .iter()
        .map(|o| values[o.node.index()].clone())
        .collect()
}

#[test]
fn two_right_implementations_stay_inside_the_bounds_on_random_graphs() {
    let count: u64 = std::env::var("TLC_TEST_GRAPHS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(400);
    let (mut elements, mut uncertain) = (0, 0);
    for seed in 0..count {
        let case = random_case(seed, &GenOptions::default());
        let inputs = case.input_data(seed);
        let options = options(&case);
        let name = format!("seed {seed}");
        let bounds = interpret_with_bounds(&case.graph, &inputs, &options).unwrap_or_else(|e| panic!("{name}: {e}"));
        let plain = interpret(&case.graph, &inputs, &options).unwrap_or_else(|e| panic!("{name}: {e}"));
        let other = interpret_other_way(&case, &inputs);
        for (i, b) in bounds.iter().enumerate() {
            compare(&plain[i], b).unwrap_or_else(|e| panic!("{name}, output {i}, plain: {e}"));
            compare(&other[i], b).unwrap_or_else(|e| panic!("{name}, output {i}, other way: {e}"));
            elements += plain[i].len();
            uncertain += b.uncertain();
        }
    }
    println!("{uncertain} of {elements} elements uncertain");
    assert!(
        uncertain * 5 < elements,
        "{uncertain} of {elements} elements are uncertain"
    );
}

#[test]
fn any_input_shapes_give_a_result_or_an_error() {
    let mut rng = Rng::new(9);
    for seed in 0..300 {
        let case = random_case(seed + 10_000, &GenOptions::default());
        assert_eq!(verify(&case.graph), []);
        let mut inputs = case.input_data(seed);
        let ids = case.graph.inputs().to_vec();
        for (t, id) in inputs.iter_mut().zip(ids) {
            if rng.chance(1, 2) {
                let shape: Vec<usize> = t.shape().iter().map(|_| rng.below(5)).collect();
                *t = random_tensor(&mut rng, case.graph.ty(id).dtype, &shape);
            }
        }
        let mut options = options(&case);
        options
            .symbols
            .iter_mut()
            .for_each(|s| s.1 = if rng.chance(1, 3) { rng.range(0, 6) } else { s.1 });
        let _ = interpret(&case.graph, &inputs, &options).map_err(|e| e.to_string());
        options.symbols.clear();
        let _ = interpret_with_bounds(&case.graph, &inputs, &options).map_err(|e| e.to_string());
    }
}
