//! A direct evaluator of the graph language, element by element, for tests of the recording API: every node kind as its
//! documentation states it, with no regard to speed.

use tlc::{HostTensor, Monoid, Scalar};
use tlc_ir::graph::{NodeKind, View};
use tlc_ir::{DType, Graph, IndexExpr, ScalarOp};

/// All indices of a shape in C order.
fn indices(shape: &[usize]) -> impl Iterator<Item = Vec<usize>> + '_ {
    let count: usize = shape.iter().product();
    (0..count).map(move |mut flat| {
        let mut index = vec![0; shape.len()];
        for (i, &d) in shape.iter().enumerate().rev() {
            index[i] = flat % d;
            flat /= d;
        }
        index
    })
}

fn flat(shape: &[usize], index: &[usize]) -> usize {
    shape.iter().zip(index).fold(0, |f, (&d, &i)| f * d + i)
}

fn at(t: &HostTensor, index: &[usize]) -> Scalar {
    t.get(flat(t.shape(), index))
}

fn build(dtype: DType, shape: &[usize], mut f: impl FnMut(&[usize]) -> Scalar) -> HostTensor {
    let mut t = HostTensor::zeros(dtype, shape).unwrap();
    for (k, index) in indices(shape).enumerate() {
        t.set(k, f(&index));
    }
    t
}

/// Threefry-2x32 with 20 rounds, from the paper.
fn threefry(key: [u32; 2], mut x: [u32; 2]) -> [u32; 2] {
    const ROTATIONS: [u32; 8] = [13, 15, 26, 6, 17, 29, 16, 24];
    let keys = [key[0], key[1], 0x1bd1_1bda ^ key[0] ^ key[1]];
    x = [x[0].wrapping_add(keys[0]), x[1].wrapping_add(keys[1])];
    for round in 0..20 {
        x[0] = x[0].wrapping_add(x[1]);
        x[1] = x[1].rotate_left(ROTATIONS[round % 8]) ^ x[0];
        if round % 4 == 3 {
            let n = round / 4 + 1;
            x[0] = x[0].wrapping_add(keys[n % 3]);
            x[1] = x[1].wrapping_add(keys[(n + 1) % 3]).wrapping_add(n as u32);
        }
    }
    x
}

fn fold(monoid: Monoid, dtype: DType, values: impl Iterator<Item = Scalar>) -> Scalar {
    if monoid.is_arg() {
        let mut best: Option<(usize, Scalar)> = None;
        for (i, v) in values.enumerate() {
            let better = match best {
                None => true,
                Some((_, b)) if b.is_nan() => false,
                Some(_) if v.is_nan() => true,
                Some((_, b)) => match monoid {
                    Monoid::ArgMax => ScalarOp::Lt.eval(&[b, v]).as_bool(),
                    _ => ScalarOp::Lt.eval(&[v, b]).as_bool(),
                },
            };
            if better {
                best = Some((i, v));
            }
        }
        return Scalar::from_i64(DType::I64, best.unwrap().0 as i64);
    }
    let wide = match monoid {
        Monoid::Add | Monoid::Mul => dtype.accumulator(),
        _ => dtype,
    };
    let start = monoid.identity(wide);
    values
        .fold(start, |acc, v| monoid.combine().eval(&[acc, v.convert(wide)]))
        .convert(dtype)
}

/// The outputs of a graph for inputs in order and symbols' values.
pub fn evaluate(graph: &Graph, inputs: &[HostTensor], symbols: &[i64]) -> Vec<HostTensor> {
    let size = |e: &IndexExpr| usize::try_from(e.eval_symbols(symbols).unwrap()).unwrap();
    let number = |e: &IndexExpr| e.eval_symbols(symbols).unwrap();
    let inlined = graph.inlined().expect("a graph that verifies");
    let graph = inlined.as_ref().unwrap_or(graph);
    let mut values: Vec<HostTensor> = Vec::new();
    for (_, node) in graph.nodes() {
        let shape: Vec<usize> = node.ty.shape.iter().map(size).collect();
        let dtype = node.ty.dtype;
        let x: Vec<&HostTensor> = node.operands.iter().map(|o| &values[o.index()]).collect();
        let value = match &node.kind {
            NodeKind::Input { index, .. } => {
                let t = inputs[*index as usize].clone();
                assert_eq!((t.shape(), t.dtype()), (&shape[..], dtype));
                t
            }
            NodeKind::Const(s) => HostTensor::scalar(*s),
            NodeKind::Data(d) => d.0.clone(),
            NodeKind::Iota { axis, .. } => build(dtype, &shape, |i| Scalar::from_i64(dtype, i[*axis as usize] as i64)),
            NodeKind::Random { stream, .. } => {
                let key = x[0].get(0).bits();
                let mut counter = 0u32;
                build(dtype, &shape, |_| {
                    let word = threefry([key as u32, (key >> 32) as u32], [counter, *stream])[0];
                    counter += 1;
                    Scalar::from_bits(dtype, word.into())
                })
            }
            NodeKind::Map(op) => build(dtype, &shape, |i| {
                op.eval(&x.iter().map(|t| at(t, i)).collect::<Vec<_>>())
            }),
            NodeKind::Convert(d) => build(dtype, &shape, |i| at(x[0], i).convert(*d)),
            NodeKind::Bitcast(d) => build(dtype, &shape, |i| Scalar::from_bits(*d, at(x[0], i).bits())),
            NodeKind::Copy => x[0].clone(),
            NodeKind::Loop(_) | NodeKind::Call(_) | NodeKind::Region(_) | NodeKind::Project(_) => {
                unreachable!("graphs with loops and calls are compared with the interpreter")
            }
            NodeKind::Einsum {
                inputs,
                output,
                semiring,
                accumulator,
                dtype,
            } => {
                let count = inputs.iter().flatten().max().map_or(0, |&l| l as usize + 1);
                let mut extents = vec![0; count];
                for (labels, t) in inputs.iter().zip(&x) {
                    labels
                        .iter()
                        .zip(t.shape())
                        .for_each(|(&l, &d)| extents[l as usize] = d);
                }
                let mut sums = HostTensor::full(&shape, semiring.sum().identity(*accumulator)).unwrap();
                for index in indices(&extents) {
                    let pick = |labels: &[u16]| labels.iter().map(|&l| index[l as usize]).collect::<Vec<_>>();
                    let product = inputs
                        .iter()
                        .zip(&x)
                        .map(|(labels, t)| at(t, &pick(labels)).convert(*accumulator))
                        .reduce(|a, b| semiring.product().eval(&[a, b]));
                    let place = flat(&shape, &pick(output));
                    sums.set(
                        place,
                        semiring.sum().combine().eval(&[sums.get(place), product.unwrap()]),
                    );
                }
                build(*dtype, &shape, |i| at(&sums, i).convert(*dtype))
            }
            NodeKind::Reduce { monoid, axes } => {
                let inner: Vec<usize> = axes.iter().map(|&a| x[0].shape()[a as usize]).collect();
                build(dtype, &shape, |i| {
                    let source = indices(&inner).map(|k| {
                        let (mut i, mut k) = (i.iter(), k.iter());
                        let whole: Vec<usize> = (0..x[0].shape().len())
                            .map(|a| if axes.contains(&(a as u8)) { k.next() } else { i.next() })
                            .map(|v| *v.unwrap())
                            .collect();
                        at(x[0], &whole)
                    });
                    fold(*monoid, x[0].dtype(), source)
                })
            }
            NodeKind::Scan {
                monoid,
                axis,
                exclusive,
                reverse,
            } => build(dtype, &shape, |i| {
                let (a, n) = (*axis as usize, shape[*axis as usize]);
                let end = if *exclusive { i[a] } else { i[a] + 1 };
                let range: Vec<usize> = match (reverse, exclusive) {
                    (false, _) => (0..end).collect(),
                    (true, false) => (i[a]..n).rev().collect(),
                    (true, true) => (i[a] + 1..n).rev().collect(),
                };
                let source = range.into_iter().map(|k| {
                    let mut j = i.to_vec();
                    j[a] = k;
                    at(x[0], &j)
                });
                fold(*monoid, dtype, source)
            }),
            NodeKind::View(View::Reshape(_)) => x[0].reshaped(&shape).unwrap(),
            NodeKind::View(View::Permute(p)) => build(dtype, &shape, |i| {
                let mut j = vec![0; i.len()];
                p.iter().zip(i).for_each(|(&a, &v)| j[a as usize] = v);
                at(x[0], &j)
            }),
            NodeKind::View(View::Expand(_)) => build(dtype, &shape, |i| {
                let own = x[0].shape();
                let tail = &i[i.len() - own.len()..];
                let j: Vec<usize> = own
                    .iter()
                    .zip(tail)
                    .map(|(&d, &v)| if d == 1 { 0 } else { v })
                    .collect();
                at(x[0], &j)
            }),
            NodeKind::View(View::Pad {
                lo, interior, value, ..
            }) => build(dtype, &shape, |i| {
                let mut j = Vec::new();
                for (a, &d) in x[0].shape().iter().enumerate() {
                    let place = |e: &usize| size(&lo[a]) + e * (interior[a] as usize + 1) == i[a];
                    match (0..d).find(place) {
                        Some(e) => j.push(e),
                        None => return *value,
                    }
                }
                at(x[0], &j)
            }),
            NodeKind::View(View::Slice { start, step, .. }) => build(dtype, &shape, |i| {
                let place = |a: usize| usize::try_from(number(&start[a]) + i[a] as i64 * step[a]).unwrap();
                at(x[0], &(0..i.len()).map(place).collect::<Vec<_>>())
            }),
            NodeKind::View(View::Window {
                axis, stride, dilation, ..
            }) => build(dtype, &shape, |i| {
                let (mut j, k) = (i[..i.len() - 1].to_vec(), i[i.len() - 1]);
                j[*axis as usize] = j[*axis as usize] * *stride as usize + k * *dilation as usize;
                at(x[0], &j)
            }),
            NodeKind::Gather { axes } => {
                let n = x[1].shape().len();
                build(dtype, &shape, |i| {
                    element(x[0], axes, &x[1..], &i[..n], &i[n..]).map_or(dtype.zero(), |j| at(x[0], &j))
                })
            }
            NodeKind::Scatter { axes, op } => {
                let (mut result, n) = (x[0].clone(), x[2].shape().len());
                for i in indices(x[1].shape()) {
                    if let Some(j) = element(x[0], axes, &x[2..], &i[..n], &i[n..]) {
                        let place = flat(&shape, &j);
                        let update = at(x[1], &i);
                        result.set(
                            place,
                            op.combine().map_or(update, |c| c.eval(&[result.get(place), update])),
                        );
                    }
                }
                result
            }
        };
        assert_eq!((value.shape(), value.dtype()), (&shape[..], dtype), "{:?}", node.kind);
        values.push(value);
    }
    graph.outputs().iter().map(|o| values[o.node.index()].clone()).collect()
}

/// The indexed element, if in range.
fn element(t: &HostTensor, axes: &[u8], index: &[&HostTensor], batch: &[usize], rest: &[usize]) -> Option<Vec<usize>> {
    let mut rest = rest.iter();
    (0..t.shape().len())
        .map(|a| match axes.iter().position(|&x| x as usize == a) {
            Some(k) => {
                let i = at(index[k], batch);
                let i = usize::try_from(if index[k].dtype() == DType::U64 {
                    i.bits() as i64
                } else {
                    i.as_i64()
                });
                i.ok().filter(|&i| i < t.shape()[a])
            }
            None => rest.next().copied(),
        })
        .collect()
}
