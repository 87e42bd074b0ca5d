//! Random matrix products that are worth a library's call, over chains of views of computed values.
//!
//! Most random extents are small, so the einsums of [`super::kinds`] are loop nests. What a library multiplies is read where
//! it lies, past the views between it and the product, which is a decision of its own and worth graphs of its own.

use smallvec::{SmallVec, smallvec};

use super::{Generator, LARGE};
use crate::dtype::DType;
use crate::graph::{Axes, Labels, Monoid, NodeId, NodeKind, Semiring, Shape, TensorType, View, ViewKind};
use crate::index::IndexExpr;
use crate::scalar::ScalarOp;

/// Rows, summed extents and columns: mostly at least 8,192 multiply-adds, with operands of at most 2,000 elements. Those of the second half end
/// one before or behind what vectors, tiles and blocks take at a time.
const SIZES: [[i64; 3]; 18] = [
    [16, 32, 16],
    [24, 16, 24],
    [8, 64, 16],
    [32, 8, 40],
    [12, 24, 32],
    [40, 40, 6],
    [33, 17, 31],
    [15, 65, 17],
    [63, 15, 31],
    [31, 63, 17],
    [9, 129, 15],
    [129, 15, 9],
    [15, 15, 129],
    [1, 129, 15],
    [65, 31, 1],
    [17, 33, 33],
    [17, 31, 63],
    [9, 17, 65],
];
/// The most axes of an operand: two each of rows and columns, of what is summed and of the batch, and a window.
const MAX_RANK: usize = 7;

impl Generator<'_> {
    /// A product of two operands or three, each a chain of views of a value, and what is made of it.
    pub(super) fn grow_product(&mut self) -> Option<NodeId> {
        let before = std::mem::replace(&mut self.max_rank, self.options.max_rank.max(MAX_RANK));
        let product = self.product();
        self.max_rank = before;
        self.behind(product?)
    }

    fn product(&mut self) -> Option<NodeId> {
        let floats = [DType::F32, DType::F64].into_iter();
        let floats: SmallVec<[DType; 2]> = floats.filter(|d| self.options.dtypes.contains(d)).collect();
        if floats.is_empty() {
            return None;
        }
        let mut dtype = match self.rng.pick(&floats) {
            DType::F32 => self.narrow_float().unwrap_or(DType::F32),
            other => other,
        };
        if self.rng.chance(1, 10) {
            let integers = [DType::I32, DType::I64, DType::U8, DType::I8].into_iter();
            let integers: SmallVec<[DType; 4]> = integers.filter(|d| self.options.dtypes.contains(d)).collect();
            dtype = if integers.is_empty() {
                dtype
            } else {
                self.rng.pick(&integers)
            };
        }
        let mut groups: [Labels; 3] = Default::default();
        let mut extents: Vec<IndexExpr> = Vec::new();
        for (group, size) in groups.iter_mut().zip(self.sizes()) {
            for part in self.parts(size) {
                group.push(extents.len() as u16);
                extents.push(part);
            }
        }
        let [rows, summed, columns] = groups;
        let mut batch = Labels::new();
        for _ in 0..self.rng.pick(&[0, 0, 0, 1, 1, 2]) {
            batch.push(extents.len() as u16);
            let some = self.dim();
            let few = self.rng.pick(&[0, 1, 2, 2, 3, 3]);
            extents.push(if self.rng.chance(1, 4) { some } else { few.into() });
        }
        let mut inputs: SmallVec<[Labels; 2]> = smallvec![];
        for own in [&rows, &columns] {
            let of = match self.rng.chance(1, 3) {
                // As it is multiplied from the left, or the right transposed; or the other way round.
                true => [&batch, &summed, own],
                false => [&batch, own, &summed],
            };
            let labels = self.shuffled(of.into_iter().flatten().copied().collect());
            inputs.push(labels);
        }
        let mut output = self.shuffled(batch.iter().chain(&rows).chain(&columns).copied().collect());
        if self.rng.chance(1, 10) {
            // A factor of each row, of each column, or of each term.
            let own = self.rng.pick(&[&rows, &columns, &summed]).clone();
            inputs.push(own);
        }
        if self.rng.chance(1, 12) {
            // Summed in one operand alone.
            output.pop();
        }
        let (of, to) = self.product_dtypes(dtype);
        let mut operands: SmallVec<[NodeId; 2]> = smallvec![];
        for labels in &inputs {
            let shape = labels.iter().map(|&l| extents[l as usize].clone()).collect();
            operands.push(self.viewed(&TensorType { dtype: of, shape })?);
        }
        if self.rng.chance(1, 4) {
            operands.swap(0, 1);
            inputs.swap(0, 1);
        }
        let terms = extents
            .iter()
            .enumerate()
            .filter(|(l, _)| !output.contains(&(*l as u16)));
        let terms: f64 = terms.map(|(_, d)| self.most(d)).product();
        let bound = operands.iter().map(|&x| self.bound(x)).product::<f64>() * terms.max(1.0);
        let (inputs, output) = canonical(inputs, &output);
        let semiring = match self.rng.below(12) {
            0 => self.rng.pick(&[Semiring::MaxAdd, Semiring::MinAdd, Semiring::MaxMul]),
            _ => Semiring::AddMul,
        };
        let kind = NodeKind::Einsum {
            inputs,
            output,
            semiring,
            accumulator: to.accumulator(),
            dtype: to,
        };
        let known = semiring == Semiring::AddMul && !bound.is_nan();
        self.add(kind, &operands, if known { bound } else { f64::INFINITY })
    }

    /// Rows, summed extent and columns of a product.
    fn sizes(&mut self) -> [IndexExpr; 3] {
        let mut sizes = self.rng.pick(&SIZES).map(IndexExpr::Const);
        match self.rng.below(12) {
            // One that is empty, or has one element.
            0 => {
                let at = self.rng.below(3);
                sizes[at] = self.rng.pick(&[0, 1, 1]).into();
            }
            1..=3 if !self.graph.symbols().is_empty() => sizes = [self.dim(), self.dim(), self.dim()],
            4 | 5 if !self.graph.symbols().is_empty() => {
                let at = self.rng.below(3);
                sizes[at] = self.dim();
            }
            _ => {}
        }
        sizes
    }

    /// The type of a product's operands and of its results: mostly the same, or a wider one.
    fn product_dtypes(&mut self, dtype: DType) -> (DType, DType) {
        let wider = match dtype {
            DType::F16 | DType::BF16 => DType::F32,
            DType::I8 | DType::U8 => DType::I32,
            other => other,
        };
        match self.rng.chance(1, 2) && self.options.dtypes.contains(&wider) {
            true => (dtype, wider),
            false => (dtype, dtype),
        }
    }

    /// What follows on a product: biases, activations, residuals, conversions, views, sums and softmax, some of them or none.
    fn behind(&mut self, mut y: NodeId) -> Option<NodeId> {
        for _ in 0..self.rng.pick(&[0, 0, 1, 1, 2, 3]) {
            y = self.one_behind(y).unwrap_or(y);
        }
        Some(y)
    }

    fn one_behind(&mut self, y: NodeId) -> Option<NodeId> {
        use ScalarOp::*;
        let ty = self.ty(y);
        let op = |g: &mut Self, of: &[ScalarOp]| -> Option<ScalarOp> {
            let op = g.rng.pick(of);
            g.options.ops.contains(&op).then_some(op)
        };
        match self.rng.below(8) {
            0 | 1 if ty.rank() > 0 => {
                // The same along all axes but one.
                let op = op(self, &[Add, Add, Mul, Sub])?;
                let axis = self.rng.below(ty.rank());
                let along = TensorType {
                    dtype: ty.dtype,
                    shape: smallvec![ty.shape[axis].clone()],
                };
                let one = self.of_type(&along)?;
                let mut b = self.tame(one);
                if axis + 1 < ty.rank() {
                    let mut apart: Shape = smallvec![IndexExpr::ONE; ty.rank() - axis];
                    apart[0] = ty.shape[axis].clone();
                    b = self.add(NodeKind::View(View::Reshape(apart)), &[b], self.bound(b))?;
                }
                let b = self.add(NodeKind::View(View::Expand(ty.shape)), &[b], self.bound(b))?;
                let bound = match op {
                    Mul => self.bound(y) * self.bound(b),
                    _ => self.bound(y) + self.bound(b),
                };
                self.map(op, &[y, b], if bound.is_nan() { f64::INFINITY } else { bound })
            }
            2 if ty.dtype.is_float() => {
                let op = op(self, &[Tanh, Max, Neg, Abs, Erf, Sqrt])?;
                match op {
                    Max => {
                        let zero = self.splat(ty.dtype.zero(), &ty.shape)?;
                        self.map(Max, &[y, zero], self.bound(y))
                    }
                    _ => self.map(op, &[y], self.bound(y)),
                }
            }
            3 => {
                let op = op(self, &[Add, Mul])?;
                let other = self.of_type(&ty)?;
                let other = self.tame(other);
                let bound = match op {
                    Mul => self.bound(y) * self.bound(other),
                    _ => self.bound(y) + self.bound(other),
                };
                let operands = if self.rng.chance(1, 2) { [y, other] } else { [other, y] };
                self.map(op, &operands, if bound.is_nan() { f64::INFINITY } else { bound })
            }
            4 => {
                let dtype = self.rng.pick(&self.options.dtypes);
                let bound = if dtype.is_float() { self.bound(y) } else { f64::INFINITY };
                self.add(NodeKind::Convert(dtype), &[y], bound)
            }
            5 if ty.rank() > 0 => {
                let axes: Axes = smallvec![self.rng.below(ty.rank()) as u8];
                let monoid = self.rng.pick(&[Monoid::Add, Monoid::Max, Monoid::Min, Monoid::ArgMax]);
                let empty = |a: &u8| ty.shape[usize::from(*a)].interval(&self.graph).lo < 1;
                if monoid.is_arg() && axes.iter().any(empty) {
                    return None;
                }
                let bound = self.reduced_bound(monoid, y, &axes, false);
                self.add(NodeKind::Reduce { monoid, axes }, &[y], bound)
            }
            6 => {
                let kind = self
                    .rng
                    .pick(&[ViewKind::Permute, ViewKind::Reshape, ViewKind::Slice, ViewKind::Pad]);
                let view = self.view(kind, &ty)?;
                self.add(NodeKind::View(view), &[y], self.bound(y).max(9.0))
            }
            _ if ty.rank() > 0 => {
                let y = self.row_form(y)?;
                match self.rng.chance(1, 2) {
                    true => self.multiplied(y),
                    false => Some(y),
                }
            }
            _ => None,
        }
    }

    /// A float of 16 bits, now and then.
    fn narrow_float(&mut self) -> Option<DType> {
        let dtype = match self.rng.below(6) {
            0 => DType::F16,
            1 => DType::BF16,
            _ => return None,
        };
        self.options.dtypes.contains(&dtype).then_some(dtype)
    }

    pub(super) fn most(&self, d: &IndexExpr) -> f64 {
        d.interval(&self.graph).hi.max(0) as f64
    }

    pub(super) fn shuffled(&mut self, mut labels: Labels) -> Labels {
        // Half of all products are in the order of the textbook.
        if self.rng.chance(1, 2) {
            return labels;
        }
        for i in (1..labels.len()).rev() {
            labels.swap(i, self.rng.below(i + 1));
        }
        labels
    }

    /// An extent, or two that make it up.
    fn parts(&mut self, size: IndexExpr) -> SmallVec<[IndexExpr; 2]> {
        let factor = IndexExpr::Const(self.rng.range(2, 4));
        if self.rng.chance(1, 3) && IndexExpr::modulo(&size, &factor).is(0) {
            return smallvec![IndexExpr::floor_div(&size, &factor), factor];
        }
        smallvec![size]
    }

    /// A value of that type at the end of a chain of views. Any of them may become an output.
    pub(super) fn viewed(&mut self, ty: &TensorType) -> Option<NodeId> {
        let mut shape = ty.shape.clone();
        let mut views = Vec::new();
        for _ in 0..self.rng.below(4) {
            let (view, before) = self.view_onto(ty.dtype, &shape);
            views.push(view);
            shape = before;
        }
        let before = TensorType { dtype: ty.dtype, shape };
        let x = match self.rng.below(6) {
            // As it came in, or is there.
            0 => self.of_type(&before)?,
            1 if let Some(extents) = before.const_shape() => self.data(before.dtype, &extents)?,
            2 => {
                let from = self.rng.pick(&self.options.dtypes);
                let x = self.computed(&TensorType {
                    dtype: from,
                    ..before.clone()
                })?;
                self.convert(x, before.dtype)?
            }
            _ => self.computed(&before)?,
        };
        let mut x = self.tame(x);
        for view in views.into_iter().rev() {
            x = self.add(NodeKind::View(view), &[x], self.bound(x))?;
        }
        Some(x)
    }

    /// A value of that type that a node computes: one that exists, as it is or reshaped, or a new one.
    fn computed(&mut self, ty: &TensorType) -> Option<NodeId> {
        if self.rng.chance(1, 2) {
            let elements = ty.elements();
            let alike: Vec<NodeId> = self
                .graph
                .nodes()
                .filter(|(_, n)| n.ty.dtype == ty.dtype && !n.kind.is_tuple() && n.ty.elements() == elements)
                .filter(|(_, n)| !matches!(n.kind, NodeKind::Input { .. } | NodeKind::Data(_) | NodeKind::Const(_)))
                .map(|(id, _)| id)
                .collect();
            if !alike.is_empty() {
                let x = self.rng.pick(&alike);
                let x = self.tame(x);
                if self.ty(x) == *ty {
                    return Some(x);
                }
                let view = View::Reshape(ty.shape.clone());
                return self.add(NodeKind::View(view), &[x], self.bound(x));
            }
        }
        let x = match self.inputs < 6 && self.rng.chance(1, 2) {
            true => {
                let before = self.inputs;
                self.input_of(ty.clone());
                (self.inputs > before).then(|| self.graph.inputs().last().copied())??
            }
            false => self.of_type(ty)?,
        };
        let x = self.tame(x);
        let ops: SmallVec<[ScalarOp; 4]> = [ScalarOp::Neg, ScalarOp::Abs, ScalarOp::Sin, ScalarOp::Tanh]
            .into_iter()
            .filter(|op| self.options.ops.contains(op))
            .collect();
        let op = if ops.is_empty() {
            ScalarOp::Neg
        } else {
            self.rng.pick(&ops)
        };
        if op.result_dtype(&[ty.dtype]) != Ok(ty.dtype) {
            return Some(x);
        }
        self.map(op, &[x], self.bound(x).min(LARGE))
    }
}

/// Labels numbered by first appearance.
pub(super) fn canonical(mut inputs: SmallVec<[Labels; 2]>, output: &Labels) -> (SmallVec<[Labels; 2]>, Labels) {
    let mut seen = Labels::new();
    for l in inputs.iter_mut().flatten() {
        let at = seen.iter().position(|s| s == l).unwrap_or(seen.len());
        if at == seen.len() {
            seen.push(*l);
        }
        *l = at as u16;
    }
    let number = |l: &u16| seen.iter().position(|s| s == l).unwrap_or(0) as u16;
    let output = output.iter().map(number).collect();
    (inputs, output)
}
