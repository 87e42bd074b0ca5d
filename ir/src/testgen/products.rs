//! Random matrix products that are worth a library's call, over chains of views of computed values.
//!
//! Most random extents are small, so the einsums of [`super::kinds`] are loop nests. What a library multiplies is read where
//! it lies, past the views between it and the product, which is a decision of its own and worth graphs of its own.

use smallvec::{SmallVec, smallvec};

use super::{Generator, LARGE};
use crate::dtype::DType;
use crate::graph::{Labels, NodeId, NodeKind, Semiring, Shape, TensorType, View};
use crate::index::IndexExpr;
use crate::scalar::ScalarOp;

/// Rows, summed extents and columns of at least 8,192 multiply-adds, with operands of at most 2,000 elements.
const SIZES: [[i64; 3]; 6] = [
    [16, 32, 16],
    [24, 16, 24],
    [8, 64, 16],
    [32, 8, 40],
    [12, 24, 32],
    [40, 40, 6],
];

impl Generator<'_> {
    /// A product of two operands, each a chain of views of a computed value.
    pub(super) fn grow_product(&mut self) -> Option<NodeId> {
        let floats = [DType::F32, DType::F64].into_iter();
        let floats: SmallVec<[DType; 2]> = floats.filter(|d| self.options.dtypes.contains(d)).collect();
        if floats.is_empty() {
            return None;
        }
        let dtype = match self.rng.pick(&floats) {
            // Without a draw, so that products of f32 are what they would be.
            DType::F32 => self.narrow_float().unwrap_or(DType::F32),
            other => other,
        };
        let sizes = match !self.graph.symbols().is_empty() && self.rng.chance(1, 3) {
            true => [self.dim(), self.dim(), self.dim()],
            false => self.rng.pick(&SIZES).map(IndexExpr::Const),
        };
        let mut extents: Vec<IndexExpr> = Vec::new();
        let mut groups: [Labels; 3] = Default::default();
        for (group, size) in groups.iter_mut().zip(sizes) {
            for part in self.parts(size) {
                group.push(extents.len() as u16);
                extents.push(part);
            }
        }
        let [rows, summed, columns] = groups;
        let mut batch = Labels::new();
        if self.rng.chance(1, 4) {
            batch.push(extents.len() as u16);
            extents.push(self.rng.range(1, 3).into());
        }
        let mut inputs: SmallVec<[Labels; 2]> = smallvec![];
        for own in [&rows, &columns] {
            let labels: Labels = batch.iter().chain(own).chain(&summed).copied().collect();
            inputs.push(self.shuffled(labels));
        }
        let output = self.shuffled(batch.iter().chain(&rows).chain(&columns).copied().collect());
        let mut operands: SmallVec<[NodeId; 2]> = smallvec![];
        for labels in &inputs {
            let shape = labels.iter().map(|&l| extents[l as usize].clone()).collect();
            operands.push(self.viewed(&TensorType { dtype, shape })?);
        }
        let terms: f64 = summed.iter().map(|&l| self.most(&extents[l as usize])).product();
        let bound = self.bound(operands[0]) * self.bound(operands[1]) * terms.max(1.0);
        let kind = NodeKind::Einsum {
            inputs,
            output,
            semiring: Semiring::AddMul,
            accumulator: dtype.accumulator(),
            dtype,
        };
        self.add(kind, &operands, if bound.is_nan() { f64::INFINITY } else { bound })
    }

    /// A float of 16 bits, now and then.
    fn narrow_float(&self) -> Option<DType> {
        let dtype = match self.graph.len() % 8 {
            3 => DType::F16,
            6 => DType::BF16,
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
    fn viewed(&mut self, ty: &TensorType) -> Option<NodeId> {
        let mut shape = ty.shape.clone();
        let mut views = Vec::new();
        for _ in 0..self.rng.below(4) {
            let (view, before) = self.view_onto(&shape);
            views.push(view);
            shape = before;
        }
        let mut x = self.computed(&TensorType { dtype: ty.dtype, shape })?;
        for view in views.into_iter().rev() {
            x = self.add(NodeKind::View(view), &[x], self.bound(x))?;
        }
        Some(x)
    }

    /// A view whose result has that shape, and the shape of what it shows.
    fn view_onto(&mut self, shape: &Shape) -> (View, Shape) {
        let at = self.rng.below(shape.len());
        match self.rng.below(4) {
            0 if !shape.is_empty() => {
                let axes = self.permutation(shape.len());
                let mut before = shape.clone();
                axes.iter()
                    .zip(shape)
                    .for_each(|(&p, d)| before[p as usize] = d.clone());
                (View::Permute(axes), before)
            }
            1 if !shape.is_empty() => {
                let mut before = shape.clone();
                match at == 0 && self.rng.chance(1, 2) {
                    true => drop(before.remove(0)),
                    false => before[at] = IndexExpr::ONE,
                }
                (View::Expand(shape.clone()), before)
            }
            2 if !shape.is_empty() => {
                let (mut start, mut step): (Shape, SmallVec<[i64; 4]>) = Default::default();
                let mut before = shape.clone();
                for (axis, d) in shape.iter().enumerate() {
                    let (from, by, whole) = match self.rng.below(4) {
                        _ if axis != at => (IndexExpr::ZERO, 1, d.clone()),
                        0 => (d.clone() - IndexExpr::ONE, -1, d.clone()),
                        1 => (IndexExpr::ZERO, 2, d.clone() * 2.into()),
                        2 => (IndexExpr::ONE, 1, d.clone() + IndexExpr::ONE),
                        _ => (IndexExpr::ZERO, 1, d.clone() + 2.into()),
                    };
                    start.push(from);
                    step.push(by);
                    before[axis] = whole;
                }
                let size = shape.clone();
                (View::Slice { start, step, size }, before)
            }
            _ => (View::Reshape(shape.clone()), self.reshaped(shape)),
        }
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
        self.map(op, &[x], self.bound(x).min(LARGE))
    }
}
