//! Einsum, Reduce and Scan.
//!
//! Floats are summed in f64 with compensation and rounded once to the accumulator, then once to the result: the best
//! reference for every order that these nodes permit. Integers wrap. NaN wins maxima and minima; the first index wins an
//! argmax or argmin.

use smallvec::SmallVec;

use crate::dtype::DType;
use crate::graph::{Labels, Monoid, Semiring, c_strides};
use crate::tensor::{HostTensor, TensorError};

use super::elementwise::convert;
use super::lanes::{Lanes, Wide, Writer, lanes, store};
use super::space::{Groups, Walk};

/// The parts of an einsum node.
pub(super) struct Contraction<'a> {
    pub(super) inputs: &'a [Labels],
    pub(super) output: &'a [u16],
    pub(super) semiring: Semiring,
    pub(super) accumulator: DType,
    pub(super) dtype: DType,
}

impl Contraction<'_> {
    /// The iteration space over operands of these shapes.
    pub(super) fn groups(&self, shapes: &[&[usize]]) -> Groups {
        let operands: Vec<(&[usize], &[u16])> = shapes.iter().zip(self.inputs).map(|(s, l)| (*s, &l[..])).collect();
        Groups::contraction(&operands, self.output)
    }
}

pub(super) fn einsum(
    node: &Contraction<'_>,
    operands: &[&HostTensor],
    shape: &[usize],
) -> Result<HostTensor, TensorError> {
    let mut groups = node.groups(&operands.iter().map(|t| t.shape()).collect::<Vec<_>>());
    let (mut floats, mut signed, mut unsigned) = (Vec::new(), Vec::new(), Vec::new());
    for t in operands {
        match lanes(&convert(t, node.accumulator)?) {
            Lanes::Float(v) => floats.push(v),
            Lanes::Signed(v) => signed.push(v),
            Lanes::Unsigned(v) => unsigned.push(v),
        }
    }
    if !floats.is_empty() {
        contract(node, &mut groups, &floats, shape)
    } else if !signed.is_empty() {
        contract(node, &mut groups, &signed, shape)
    } else {
        contract(node, &mut groups, &unsigned, shape)
    }
}

fn contract<T: Wide>(
    node: &Contraction<'_>,
    groups: &mut Groups,
    operands: &[Vec<T>],
    shape: &[usize],
) -> Result<HostTensor, TensorError> {
    let (acc, sum, product) = (node.accumulator, node.semiring.sum(), node.semiring.product());
    // Products of narrower floats are exact in f64, near enough for any rounding to f32.
    let compensate = acc == DType::F64 && node.semiring == Semiring::AddMul;
    let mut out = Vec::new();
    groups.run(
        || T::start(sum, acc),
        |carry, offsets, run, steps| {
            let mut at: SmallVec<[i64; 4]> = offsets.into();
            for _ in 0..run {
                let mut term = operands[0][at[0] as usize];
                let mut lost = None;
                for (o, &i) in operands[1..].iter().zip(&at[1..]) {
                    let factor = o[i as usize];
                    let next = term.product(product, factor).wrap(acc);
                    if compensate {
                        lost = T::lost(term, factor, next, lost);
                    }
                    term = next;
                }
                T::push(carry, sum, term);
                if let Some(lost) = lost {
                    T::push(carry, sum, lost);
                }
                at.iter_mut().zip(steps).for_each(|(a, s)| *a += s);
            }
        },
        |carry| out.push(T::total(carry)),
    );
    store(acc, node.dtype, shape, &out)
}

pub(super) fn reduce(
    monoid: Monoid,
    axes: &[u8],
    operand: &HostTensor,
    shape: &[usize],
) -> Result<HostTensor, TensorError> {
    let groups = &mut Groups::reduction(operand.shape(), axes);
    let dtype = operand.dtype();
    match lanes(operand) {
        Lanes::Float(v) => reduce_lanes(groups, monoid, dtype, &v, shape),
        Lanes::Signed(v) => reduce_lanes(groups, monoid, dtype, &v, shape),
        Lanes::Unsigned(v) => reduce_lanes(groups, monoid, dtype, &v, shape),
    }
}

fn reduce_lanes<T: Wide>(
    groups: &mut Groups,
    monoid: Monoid,
    dtype: DType,
    values: &[T],
    shape: &[usize],
) -> Result<HostTensor, TensorError> {
    if monoid.is_arg() {
        let mut out = Vec::new();
        groups.run(
            || (0usize, None::<(T, usize)>),
            |(seen, best), offsets, run, steps| {
                for i in 0..run as i64 {
                    let v = values[(offsets[0] + i * steps[0]) as usize];
                    let wins = best.is_none_or(|(b, _)| {
                        !b.is_nan() && (v.is_nan() || if monoid == Monoid::ArgMax { v > b } else { v < b })
                    });
                    if wins {
                        *best = Some((v, *seen));
                    }
                    *seen += 1;
                }
            },
            |(_, best)| out.push(best.map_or(0, |b| b.1 as u64)),
        );
        return Ok(Writer::new(DType::I64, shape)?.fill(|i| out[i]));
    }
    let mut out = Vec::new();
    groups.run(
        || T::start(monoid, dtype),
        |carry, offsets, run, steps| {
            let mut at = offsets[0];
            for _ in 0..run {
                T::push(carry, monoid, values[at as usize]);
                at += steps[0];
            }
        },
        |carry| out.push(T::total(carry)),
    );
    store(dtype.accumulator(), dtype, shape, &out)
}

/// The parts of a scan node.
#[derive(Clone, Copy)]
pub(super) struct Prefix {
    pub(super) monoid: Monoid,
    pub(super) axis: u8,
    pub(super) exclusive: bool,
    pub(super) reverse: bool,
}

impl Prefix {
    /// Calls `f` for every line along the axis with the offset of its first element in scan order, the step to the next
    /// and the count.
    pub(super) fn lines(&self, shape: &[usize], mut f: impl FnMut(i64, i64, usize)) {
        let axis = self.axis as usize;
        let mut extents = shape.to_vec();
        let mut strides = c_strides(shape);
        let (count, step) = (extents.remove(axis), strides.remove(axis));
        if count == 0 {
            return;
        }
        let last = (count as i64 - 1).wrapping_mul(step);
        Walk::new(extents, vec![strides]).run(&[0], |o, run, s| {
            for i in 0..run as i64 {
                let first = o[0] + i * s[0];
                if self.reverse {
                    f(first + last, -step, count);
                } else {
                    f(first, step, count);
                }
            }
        });
    }
}

pub(super) fn scan(node: Prefix, operand: &HostTensor) -> Result<HostTensor, TensorError> {
    let (dtype, shape) = (operand.dtype(), operand.shape());
    match lanes(operand) {
        Lanes::Float(v) => store(dtype.accumulator(), dtype, shape, &scan_lanes(node, dtype, shape, v)),
        Lanes::Signed(v) => store(dtype, dtype, shape, &scan_lanes(node, dtype, shape, v)),
        Lanes::Unsigned(v) => store(dtype, dtype, shape, &scan_lanes(node, dtype, shape, v)),
    }
}

fn scan_lanes<T: Wide>(node: Prefix, dtype: DType, shape: &[usize], mut values: Vec<T>) -> Vec<T> {
    node.lines(shape, |first, step, count| {
        let mut carry = T::start(node.monoid, dtype);
        let mut at = first;
        for _ in 0..count {
            let v = values[at as usize];
            if node.exclusive {
                values[at as usize] = T::total(carry);
            }
            T::push(&mut carry, node.monoid, v);
            if !node.exclusive {
                values[at as usize] = T::total(carry);
            }
            at += step;
        }
    });
    values
}
