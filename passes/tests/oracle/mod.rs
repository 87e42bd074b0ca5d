//! A second, deliberately plain evaluator of graphs: every node in full, every element by the definition of its node, sums
//! in order in the accumulator's dtype. Shared by the tests that compare plans and schedules against it.
#![allow(dead_code, reason = "each test binary uses what it needs")]

pub mod generate;
pub mod stages;

use tlc_ir::graph::View;
use tlc_ir::kernel::interp::combine;
use tlc_ir::{DType, Graph, HostTensor, IndexExpr, NodeId, NodeKind, Scalar};

fn strides(shape: &[usize]) -> Vec<usize> {
    let mut out = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        out[i - 1] = out[i] * shape[i];
    }
    out
}

fn flat(index: &[i64], shape: &[usize]) -> usize {
    index.iter().zip(strides(shape)).map(|(&i, s)| i as usize * s).sum()
}

fn unflat(mut at: usize, shape: &[usize]) -> Vec<i64> {
    let mut out = vec![0; shape.len()];
    for (i, s) in strides(shape).into_iter().enumerate() {
        out[i] = at.checked_div(s).unwrap_or(0) as i64;
        at = at.checked_rem(s).unwrap_or(0);
    }
    out
}

fn count(shape: &[usize]) -> usize {
    shape.iter().product()
}

/// The outputs of a graph for inputs and symbol values.
pub fn evaluate(graph: &Graph, inputs: &[HostTensor], symbols: &[i64]) -> Vec<HostTensor> {
    let mut values: Vec<Option<HostTensor>> = vec![None; graph.len()];
    for (id, _) in graph.nodes() {
        let v = node_value(graph, id, &values, inputs, symbols);
        values[id.index()] = Some(v);
    }
    graph
        .outputs()
        .iter()
        .map(|o| values[o.node.index()].clone().unwrap())
        .collect()
}

fn threefry(key: u64, index: u32, stream: u32) -> u32 {
    const ROTATIONS: [u32; 8] = [13, 15, 26, 6, 17, 29, 16, 24];
    let (k0, k1) = (key as u32, (key >> 32) as u32);
    let keys = [k0, k1, 0x1BD1_1BDA ^ k0 ^ k1];
    let (mut a, mut b) = (index.wrapping_add(k0), stream.wrapping_add(k1));
    for round in 0..20u32 {
        a = a.wrapping_add(b);
        b = b.rotate_left(ROTATIONS[(round % 8) as usize]) ^ a;
        if round % 4 == 3 {
            let s = round / 4 + 1;
            a = a.wrapping_add(keys[(s % 3) as usize]);
            b = b.wrapping_add(keys[((s + 1) % 3) as usize]).wrapping_add(s);
        }
    }
    a
}

fn node_value(
    graph: &Graph,
    id: NodeId,
    values: &[Option<HostTensor>],
    inputs: &[HostTensor],
    symbols: &[i64],
) -> HostTensor {
    let node = graph.node(id);
    let size = |d: &IndexExpr| d.eval_symbols(symbols).expect("a size") as usize;
    let number = |d: &IndexExpr| d.eval_symbols(symbols).expect("a number");
    let shape: Vec<usize> = node.ty.shape.iter().map(size).collect();
    let operand = |k: usize| values[node.operands[k].index()].as_ref().unwrap();
    let mut out = HostTensor::zeros(node.ty.dtype, &shape).unwrap();
    let mut each = |f: &mut dyn FnMut(&[i64]) -> Scalar| {
        for at in 0..count(&shape) {
            out.set(at, f(&unflat(at, &shape)));
        }
    };
    match &node.kind {
        NodeKind::Input { index, .. } => return inputs[*index as usize].clone(),
        NodeKind::Data(data) => return data.0.clone(),
        NodeKind::Const(value) => each(&mut |_| *value),
        NodeKind::Iota { ty, axis } => each(&mut |i| Scalar::from_i64(ty.dtype, i[*axis as usize])),
        NodeKind::Random { stream, .. } => {
            let key = operand(0).get(0).bits();
            each(&mut |i| Scalar::from_u64(DType::U32, threefry(key, flat(i, &shape) as u32, *stream) as u64));
        }
        NodeKind::Map(op) => each(&mut |i| {
            let args: Vec<Scalar> = (0..node.operands.len())
                .map(|k| operand(k).get(flat(i, &shape)))
                .collect();
            op.eval(&args)
        }),
        NodeKind::Convert(to) => each(&mut |i| operand(0).get(flat(i, &shape)).convert(*to)),
        NodeKind::Bitcast(to) => each(&mut |i| Scalar::from_bits(*to, operand(0).get(flat(i, &shape)).bits())),
        NodeKind::Copy => return operand(0).clone(),
        NodeKind::Loop(_) | NodeKind::Call(_) | NodeKind::Region(_) | NodeKind::Project(_) => {
            unreachable!("this generator makes none")
        }
        NodeKind::Einsum {
            inputs: labels,
            output,
            semiring,
            accumulator,
            dtype,
        } => {
            let n = labels.iter().flatten().map(|&l| l as usize + 1).max().unwrap_or(0);
            let mut extents = vec![1; n];
            for (ls, &o) in labels.iter().zip(&node.operands) {
                for (&l, &d) in ls.iter().zip(values[o.index()].as_ref().unwrap().shape()) {
                    extents[l as usize] = d;
                }
            }
            let summed: Vec<usize> = (0..n).filter(|l| !output.contains(&(*l as u16))).collect();
            let space: Vec<usize> = summed.iter().map(|&l| extents[l]).collect();
            each(&mut |i| {
                let mut of = vec![0i64; n];
                output.iter().zip(i).for_each(|(&l, &v)| of[l as usize] = v);
                let mut sum = semiring.sum().identity(*accumulator);
                for at in 0..count(&space) {
                    let point = unflat(at, &space);
                    summed.iter().zip(point).for_each(|(&l, v)| of[l] = v);
                    let product = labels
                        .iter()
                        .enumerate()
                        .map(|(k, ls)| {
                            let x = operand(k);
                            let index: Vec<i64> = ls.iter().map(|&l| of[l as usize]).collect();
                            x.get(flat(&index, x.shape())).convert(*accumulator)
                        })
                        .reduce(|a, b| semiring.product().eval(&[a, b]))
                        .unwrap();
                    sum = combine(semiring.sum(), &[sum], &[product])[0];
                }
                sum.convert(*dtype)
            });
        }
        NodeKind::Reduce { monoid, axes } => {
            let x = operand(0);
            let space: Vec<usize> = axes.iter().map(|&a| x.shape()[a as usize]).collect();
            let carried = x.dtype().accumulator();
            each(&mut |i| {
                let mut state = vec![monoid.identity(carried)];
                if monoid.is_arg() {
                    state.push(DType::I64.zero());
                }
                for at in 0..count(&space) {
                    let point = unflat(at, &space);
                    let (mut kept, mut inner) = (i.iter(), point.iter());
                    let index: Vec<i64> = (0..x.shape().len())
                        .map(|a| {
                            if axes.contains(&(a as u8)) {
                                *inner.next().unwrap()
                            } else {
                                *kept.next().unwrap()
                            }
                        })
                        .collect();
                    let mut new = vec![x.get(flat(&index, x.shape())).convert(carried)];
                    if monoid.is_arg() {
                        new.push(Scalar::from_i64(DType::I64, at as i64));
                    }
                    state = combine(*monoid, &state, &new).to_vec();
                }
                state[monoid.is_arg() as usize].convert(node.ty.dtype)
            });
        }
        NodeKind::View(view) => {
            let x = operand(0);
            let from = x.shape();
            each(&mut |i| {
                let index: Vec<i64> = match view {
                    View::Reshape(_) => return x.get(flat(i, &shape)),
                    View::Permute(p) => {
                        let mut out = vec![0; from.len()];
                        p.iter().zip(i).for_each(|(&p, &v)| out[p as usize] = v);
                        out
                    }
                    View::Expand(_) => {
                        let declared = &graph.ty(node.operands[0]).shape;
                        let lead = i.len() - from.len();
                        declared
                            .iter()
                            .zip(&i[lead..])
                            .map(|(d, &v)| if d.is(1) { 0 } else { v })
                            .collect()
                    }
                    View::Pad {
                        lo, interior, value, ..
                    } => {
                        let mut out = Vec::new();
                        for a in 0..from.len() {
                            // The element, if one stands there.
                            let place = |e: &i64| number(&lo[a]) + e * (interior[a] + 1) == i[a];
                            match (0..from[a] as i64).find(place) {
                                Some(e) => out.push(e),
                                None => return *value,
                            }
                        }
                        out
                    }
                    View::Slice { start, step, .. } => i
                        .iter()
                        .zip(start.iter().zip(step))
                        .map(|(v, (s, k))| number(s) + v * k)
                        .collect(),
                    View::Window {
                        axis, stride, dilation, ..
                    } => {
                        let mut out = i[..from.len()].to_vec();
                        out[*axis as usize] = out[*axis as usize] * stride + i[from.len()] * dilation;
                        out
                    }
                };
                x.get(flat(&index, from))
            });
        }
        NodeKind::Gather { axes } => {
            let x = operand(0);
            each(&mut |i| {
                let batch = i.len() - (x.shape().len() - axes.len());
                match target(axes, x.shape(), &i[..batch], &i[batch..], &|k| operand(k + 1)) {
                    Some(at) => x.get(flat(&at, x.shape())),
                    None => node.ty.dtype.zero(),
                }
            });
        }
        NodeKind::Scatter { axes, op } => {
            let mut out = operand(0).clone();
            let updates = operand(1);
            let batch = updates.shape().len() - (shape.len() - axes.len());
            for u in 0..updates.len() {
                let i = unflat(u, updates.shape());
                if let Some(at) = target(axes, &shape, &i[..batch], &i[batch..], &|k| operand(k + 2)) {
                    let at = flat(&at, &shape);
                    let new = match op.combine() {
                        None => updates.get(u),
                        Some(combine) => combine.eval(&[out.get(at), updates.get(u)]),
                    };
                    out.set(at, new);
                }
            }
            return out;
        }
        NodeKind::Scan {
            monoid,
            axis,
            exclusive,
            reverse,
        } => {
            let x = operand(0);
            let carried = x.dtype().accumulator();
            let n = shape[*axis as usize] as i64;
            each(&mut |i| {
                let here = i[*axis as usize];
                let mut state = monoid.identity(carried);
                let position = if *reverse { n - 1 - here } else { here };
                let last = position + if *exclusive { 0 } else { 1 };
                for k in 0..last {
                    let mut at = i.to_vec();
                    at[*axis as usize] = if *reverse { n - 1 - k } else { k };
                    state = combine(*monoid, &[state], &[x.get(flat(&at, &shape)).convert(carried)])[0];
                }
                state.convert(node.ty.dtype)
            });
        }
    }
    out
}

fn target<'t>(
    axes: &[u8],
    shape: &[usize],
    batch: &[i64],
    rest: &[i64],
    index: &dyn Fn(usize) -> &'t HostTensor,
) -> Option<Vec<i64>> {
    let mut rest = rest.iter();
    let mut out = vec![0; shape.len()];
    for (a, slot) in out.iter_mut().enumerate() {
        *slot = match axes.iter().position(|&x| x as usize == a) {
            Some(k) => {
                let t = index(k);
                let s = t.get(flat(batch, t.shape()));
                if s.dtype() == DType::U64 && s.bits() > i64::MAX as u64 {
                    return None;
                }
                let v = s.as_i64();
                if v < 0 || v >= shape[a] as i64 {
                    return None;
                }
                v
            }
            None => *rest.next().unwrap(),
        };
    }
    Some(out)
}
