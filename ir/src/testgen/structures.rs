//! Random small structures that are recorded of several nodes and that passes know as a whole: normalized rows, joined parts, windows of images,
//! products of what is normalized.

use smallvec::{SmallVec, smallvec};

use super::{Generator, LARGE};
use crate::dtype::{DType, Scalar};
use crate::graph::{Axes, Labels, Monoid, NodeId, NodeKind, Operands, Semiring, Shape, TensorType, View};
use crate::index::IndexExpr;
use crate::scalar::ScalarOp;

/// Heights or widths of images.
const SIDES: [i64; 9] = [1, 2, 3, 5, 8, 9, 15, 17, 33];
/// Channels of images.
const CHANNELS: [i64; 8] = [1, 2, 3, 4, 8, 16, 17, 20];

/// How rows are brought to a common measure.
#[derive(Clone, Copy)]
enum RowForm {
    Softmax,
    LogSoftmax,
    Layer,
    RootMeanSquare,
    Normalized,
}

impl Generator<'_> {
    fn has(&self, ops: &[ScalarOp]) -> bool {
        ops.iter().all(|op| self.options.ops.contains(op))
    }

    /// A reduction that keeps its axes as extents of 1, expanded to the whole again.
    fn reduced_over(&mut self, monoid: Monoid, x: NodeId, axes: &Axes) -> Option<NodeId> {
        let shape = self.ty(x).shape;
        let bound = self.reduced_bound(monoid, x, axes, false);
        let kind = NodeKind::Reduce {
            monoid,
            axes: axes.clone(),
        };
        let r = self.add(kind, &[x], bound)?;
        let mut kept = shape.clone();
        axes.iter().for_each(|&a| kept[usize::from(a)] = IndexExpr::ONE);
        let r = self.add(NodeKind::View(View::Reshape(kept)), &[r], bound)?;
        self.add(NodeKind::View(View::Expand(shape)), &[r], bound)
    }

    /// Softmax and normalizations of a value along some of its axes, as they are recorded.
    pub(super) fn row_form(&mut self, x: NodeId) -> Option<NodeId> {
        use ScalarOp::*;
        let ty = self.ty(x);
        if !ty.dtype.is_float() || ty.dtype.is_storage() || ty.rank() == 0 {
            return None;
        }
        let x = self.tame(x);
        let mut axes: Axes = match self.rng.chance(2, 3) {
            true => smallvec![ty.rank() as u8 - 1],
            false => self.some_axes(ty.rank(), 2),
        };
        axes.sort();
        let forms = [
            RowForm::Softmax,
            RowForm::Softmax,
            RowForm::LogSoftmax,
            RowForm::Layer,
            RowForm::RootMeanSquare,
            RowForm::Normalized,
        ];
        let form = self.rng.pick(&forms);
        let needed: &[ScalarOp] = match form {
            RowForm::Softmax => &[Sub, Exp, Div],
            RowForm::LogSoftmax => &[Sub, Exp, Log],
            RowForm::Layer => &[Sub, Mul, Add, Rsqrt],
            RowForm::RootMeanSquare => &[Mul, Add, Rsqrt],
            RowForm::Normalized => &[Abs, Add, Div],
        };
        // A maximum has corners, which who leaves it out of the operations does not want.
        if !self.has(needed) || (matches!(form, RowForm::Softmax | RowForm::LogSoftmax) && !self.has(&[Max])) {
            return None;
        }
        let constant = |g: &mut Self, v: f64| g.splat(Scalar::from_f64(ty.dtype, v), &ty.shape);
        match form {
            RowForm::Softmax | RowForm::LogSoftmax => {
                let most = self.reduced_over(Monoid::Max, x, &axes)?;
                let d = self.map(Sub, &[x, most], 2.0 * self.bound(x).min(LARGE))?;
                let e = self.map(Exp, &[d], 1.0)?;
                let sum = self.reduced_over(Monoid::Add, e, &axes)?;
                if matches!(form, RowForm::Softmax) {
                    return self.map(Div, &[e, sum], 1.0);
                }
                let log = self.map(Log, &[sum], LARGE)?;
                self.map(Sub, &[d, log], LARGE)
            }
            RowForm::Layer | RowForm::RootMeanSquare => {
                let extents: Shape = axes.iter().map(|&a| ty.shape[usize::from(a)].clone()).collect();
                let count = self.value(&IndexExpr::product(&extents))?.max(1);
                let each = constant(self, 1.0 / count as f64)?;
                let mut d = x;
                if matches!(form, RowForm::Layer) {
                    let sum = self.reduced_over(Monoid::Add, x, &axes)?;
                    let mean = self.map(Mul, &[sum, each], self.bound(x))?;
                    d = self.map(Sub, &[x, mean], 2.0 * self.bound(x))?;
                }
                let square = self.map(Mul, &[d, d], self.bound(d) * self.bound(d))?;
                let sum = self.reduced_over(Monoid::Add, square, &axes)?;
                let variance = self.map(Mul, &[sum, each], self.bound(square))?;
                let little = constant(self, 0.125)?;
                let variance = self.map(Add, &[variance, little], self.bound(variance) + 1.0)?;
                let scale = self.map(Rsqrt, &[variance], 3.0)?;
                self.map(Mul, &[d, scale], 3.0 * self.bound(d))
            }
            RowForm::Normalized => {
                let magnitude = self.map(Abs, &[x], self.bound(x))?;
                let sum = self.reduced_over(Monoid::Add, magnitude, &axes)?;
                let one = constant(self, 1.0)?;
                let sum = self.map(Add, &[sum, one], self.bound(sum) + 1.0)?;
                self.map(Div, &[x, sum], self.bound(x))
            }
        }
    }

    pub(super) fn grow_rows(&mut self) -> Option<NodeId> {
        let x = self.any_where(|t| t.rank() > 0 && t.dtype.is_float())?;
        let x = self.row_form(x)?;
        match self.rng.chance(1, 3) {
            true => self.multiplied(x),
            false => Some(x),
        }
    }

    /// The rows of a value times a matrix, or one for each part of a batch.
    pub(super) fn multiplied(&mut self, x: NodeId) -> Option<NodeId> {
        let ty = self.ty(x);
        let (last, lead) = ty.shape.split_last()?;
        let mut labels: Labels = (0..ty.rank() as u16).collect();
        let (mut right, mut shape): (Labels, Shape) = Default::default();
        for (l, d) in lead.iter().enumerate().take(lead.len().saturating_sub(1)) {
            if self.rng.chance(2, 3) {
                right.push(l as u16);
                shape.push(d.clone());
            }
        }
        let (summed, column) = (ty.rank() as u16 - 1, ty.rank() as u16);
        let width = self.rng.pick(&[1, 4, 8, 15, 16, 17]);
        let mut ends = [(summed, last.clone()), (column, width.into())];
        if self.rng.chance(1, 3) {
            ends.swap(0, 1);
        }
        for (l, d) in ends {
            right.push(l);
            shape.push(d);
        }
        let v = self.of_type(&TensorType { dtype: ty.dtype, shape })?;
        let v = self.tame(v);
        labels.pop();
        let mut output = labels.clone();
        output.push(column);
        labels.push(summed);
        let (inputs, output) = super::products::canonical([labels, right].into_iter().collect(), &output);
        let bound = self.bound(x) * self.bound(v) * self.most(last).max(1.0);
        let kind = NodeKind::Einsum {
            inputs,
            output,
            semiring: Semiring::AddMul,
            accumulator: ty.dtype.accumulator(),
            dtype: ty.dtype,
        };
        self.add(kind, &[x, v], if bound.is_nan() { f64::INFINITY } else { bound })
    }

    /// Parts one behind the other along an axis, as a concatenation is recorded: each padded to the whole, and chosen by where it is.
    pub(super) fn grow_join(&mut self) -> Option<NodeId> {
        let first = self.any_where(|t| t.rank() > 0)?;
        let ty = self.ty(first);
        let axis = self.rng.below(ty.rank());
        let mut parts: SmallVec<[NodeId; 4]> = smallvec![first];
        for _ in 0..self.rng.pick(&[1, 1, 1, 2, 2, 3]) {
            let mut own = ty.clone();
            if self.rng.chance(2, 3) {
                own.shape[axis] = self.dim();
            }
            let part = match self.rng.chance(1, 5) {
                true => first,
                false => self.of_type(&own)?,
            };
            parts.push(part);
        }
        if self.rng.chance(1, 2) {
            let at = self.rng.below(parts.len());
            parts.swap(0, at);
        }
        let (mut placed, mut offset) = (Vec::new(), IndexExpr::ZERO);
        for part in parts {
            placed.push((part, offset.clone()));
            offset = offset + self.ty(part).shape[axis].clone();
        }
        let mut whole = ty.shape.clone();
        whole[axis] = offset;
        let most = placed.iter().map(|p| self.bound(p.0)).fold(0.0, f64::max);
        Some(self.joined(&placed, axis, &whole, most)?.0)
    }

    /// The parts padded to a shape and joined, and where they begin and end.
    fn joined(
        &mut self,
        parts: &[(NodeId, IndexExpr)],
        axis: usize,
        whole: &Shape,
        most: f64,
    ) -> Option<(NodeId, IndexExpr, IndexExpr)> {
        if let [(part, offset)] = parts {
            let ty = self.ty(*part);
            let end = offset.clone() + ty.shape[axis].clone();
            let behind = whole[axis].clone() - end.clone();
            let padded = self.spread(*part, axis, offset, behind, ty.dtype.zero(), most)?;
            return Some((padded, offset.clone(), end));
        }
        let (left, right) = parts.split_at(parts.len() / 2);
        let (left, start, middle) = self.joined(left, axis, whole, most)?;
        let (right, _, end) = self.joined(right, axis, whole, most)?;
        let mut column: Shape = smallvec![IndexExpr::ONE; whole.len()];
        column[axis] = middle.clone();
        let truth = self.splat(Scalar::from_bool(true), &column)?;
        let behind = whole[axis].clone() - middle;
        let in_left = self.spread(truth, axis, &IndexExpr::ZERO, behind, Scalar::from_bool(false), 1.0)?;
        let in_left = self.add(NodeKind::View(View::Expand(whole.clone())), &[in_left], 1.0)?;
        let all = self.map(ScalarOp::Select, &[in_left, left, right], most)?;
        Some((all, start, end))
    }

    fn spread(
        &mut self,
        x: NodeId,
        axis: usize,
        before: &IndexExpr,
        behind: IndexExpr,
        value: Scalar,
        most: f64,
    ) -> Option<NodeId> {
        let rank = self.ty(x).rank();
        let (mut lo, mut hi) = (vec![IndexExpr::ZERO; rank], vec![IndexExpr::ZERO; rank]);
        (lo[axis], hi[axis]) = (before.clone(), behind);
        let pad = View::Pad {
            lo: lo.into(),
            hi: hi.into(),
            interior: vec![0; rank].into(),
            value,
        };
        self.add(NodeKind::View(pad), &[x], most)
    }

    /// Windows of an image or a line, padded or not: their sums or maxima, or sums of products with weights of each channel or of all.
    pub(super) fn grow_windows(&mut self) -> Option<NodeId> {
        let before = std::mem::replace(&mut self.max_rank, self.options.max_rank.max(7));
        let windows = self.windows();
        self.max_rank = before;
        let y = windows?;
        match self.ty(y).dtype.is_float() && self.has(&[ScalarOp::Tanh]) && self.rng.chance(1, 3) {
            true => self.map(ScalarOp::Tanh, &[y], 1.0),
            false => Some(y),
        }
    }

    fn windows(&mut self) -> Option<NodeId> {
        let plain: Vec<DType> = self
            .options
            .dtypes
            .iter()
            .copied()
            .filter(|d| !d.is_storage())
            .collect();
        if plain.is_empty() {
            return None;
        }
        let dtype = match self.options.dtypes.contains(&DType::F32) && self.rng.chance(2, 3) {
            true => DType::F32,
            false => self.rng.pick(&plain),
        };
        let dims = self.rng.pick(&[1usize, 2, 2]);
        let mut shape: Shape = smallvec![];
        let images = self.dim();
        shape.push(if self.rng.chance(1, 3) { images } else { IndexExpr::ONE });
        shape.push(self.rng.pick(&CHANNELS).into());
        for _ in 0..dims {
            let some = self.dim();
            let side = self.rng.pick(&SIDES);
            shape.push(if self.rng.chance(1, 4) { some } else { side.into() });
        }
        let image = TensorType {
            dtype,
            shape: shape.clone(),
        };
        let x = match self.rng.chance(1, 3) {
            true => self.viewed(&image)?,
            false => self.of_type(&image)?,
        };
        let mut x = self.tame(x);
        let sizes: SmallVec<[i64; 2]> = (0..dims).map(|_| self.rng.pick(&[1, 2, 3, 3, 5])).collect();
        if self.rng.chance(2, 3) {
            let mut sides = [vec![IndexExpr::ZERO; 2], vec![IndexExpr::ZERO; 2]];
            for side in &mut sides {
                side.extend(sizes.iter().map(|&n| IndexExpr::Const(self.rng.range(0, n - 1))));
            }
            let [lo, hi] = sides;
            let value = match self.rng.below(4) {
                0 => dtype.lowest(),
                1 => super::random_scalar(&mut self.rng, dtype),
                _ => dtype.zero(),
            };
            let pad = View::Pad {
                lo: lo.into(),
                hi: hi.into(),
                interior: vec![0; 2 + dims].into(),
                value,
            };
            x = self.add(NodeKind::View(pad), &[x], self.bound(x).max(value.as_f64().abs()))?;
        }
        for (k, &size) in sizes.iter().enumerate() {
            let window = View::Window {
                axis: 2 + k as u8,
                size: size.into(),
                stride: self.rng.pick(&[1, 1, 2, 3]),
                dilation: self.rng.pick(&[1, 1, 2]),
            };
            x = self.add(NodeKind::View(window), &[x], self.bound(x))?;
        }
        let of_window: Axes = (0..dims as u8).map(|k| 2 + dims as u8 + k).collect();
        if dtype == DType::Bool || self.rng.chance(1, 2) {
            let monoid = match dtype == DType::Bool {
                true => self.rng.pick(&[Monoid::Max, Monoid::And, Monoid::Or]),
                false => self.rng.pick(&[Monoid::Max, Monoid::Add, Monoid::Min]),
            };
            let bound = self.reduced_bound(monoid, x, &of_window, false);
            let kind = NodeKind::Reduce {
                monoid,
                axes: of_window,
            };
            return self.add(kind, &[x], bound);
        }
        let x = self.tame(x);
        // Images, channels, positions, and those of the window; then results.
        let all: Labels = (0..2 + 2 * dims as u16).collect();
        let results = all.len() as u16;
        let each = self.rng.chance(1, 2);
        let (mut of_weights, mut weights): (Labels, Shape) = (smallvec![1], smallvec![shape[1].clone()]);
        if !each {
            of_weights.insert(0, results);
            weights.insert(0, self.rng.pick(&[1, 3, 8, 16, 20]).into());
        }
        for (k, &size) in sizes.iter().enumerate() {
            of_weights.push((2 + dims + k) as u16);
            weights.push(size.into());
        }
        let weights = TensorType { dtype, shape: weights };
        let w = match weights.const_shape() {
            Some(extents) if self.rng.chance(2, 3) => self.data(dtype, &extents)?,
            _ => self.of_type(&weights)?,
        };
        let w = self.tame(w);
        let mut output: Labels = smallvec![0, if each { 1 } else { results }];
        output.extend((0..dims as u16).map(|k| 2 + k));
        let terms = self.most(&shape[1]) * sizes.iter().product::<i64>() as f64;
        let bound = self.bound(x) * self.bound(w) * terms.max(1.0);
        let mut operands: Operands = smallvec![x, w];
        let mut inputs: SmallVec<[Labels; 2]> = smallvec![all, of_weights];
        if self.rng.chance(1, 4) {
            operands.swap(0, 1);
            inputs.swap(0, 1);
        }
        let (inputs, output) = super::products::canonical(inputs, &output);
        let kind = NodeKind::Einsum {
            inputs,
            output,
            semiring: Semiring::AddMul,
            accumulator: dtype.accumulator(),
            dtype,
        };
        self.add(kind, &operands, if bound.is_nan() { f64::INFINITY } else { bound })
    }
}
