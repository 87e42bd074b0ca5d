//! Random calls that bind sizes which data decides: what differs from zero, what is distinct, which boxes are taken.
//!
//! Invariant: what such a call counts is computed without rounding, so that every right implementation finds as many.

use smallvec::{SmallVec, smallvec};

use super::{Generator, random_scalar};
use crate::dtype::{DType, Scalar};
use crate::graph::{ConstData, Graph, HostFunction, Monoid, NodeId, NodeKind, ScatterOp, Shape, TensorType, View};
use crate::index::{IndexExpr, SymId};
use crate::scalar::ScalarOp;
use crate::tensor::HostTensor;

/// The most sizes of a graph that data decides.
const MOST: usize = 3;

impl Generator<'_> {
    /// A call that binds a size, and the value made with it.
    pub(super) fn grow_counted(&mut self) -> Option<NodeId> {
        if self.counted.iter().filter(|c| **c).count() >= MOST {
            return None;
        }
        match self.rng.below(8) {
            0 | 1 => {
                let x = self.exact_where(|_| true)?;
                self.places(x)
            }
            2..=4 => self.grow_compress(),
            5 | 6 => self.grow_unique(),
            _ => self.grow_suppress(),
        }
    }

    /// A node that every right implementation computes alike; results of loops and calls, few among all, more often.
    pub(super) fn exact_where(&mut self, accept: impl Fn(&TensorType) -> bool) -> Option<NodeId> {
        if self.rng.chance(1, 4) {
            let nodes = self
                .graph
                .nodes()
                .filter(|(_, n)| matches!(n.kind, NodeKind::Project(_)));
            let fit = nodes.filter(|(_, n)| accept(&n.ty) && !n.ty.dtype.is_storage());
            let all: Vec<NodeId> = fit.map(|(id, _)| id).filter(|&id| self.is_exact(id)).collect();
            if !all.is_empty() {
                return Some(self.rng.pick(&all));
            }
        }
        for _ in 0..16 {
            let id = self.any();
            if accept(self.graph.ty(id)) && !self.ty(id).dtype.is_storage() && self.is_exact(id) {
                return Some(id);
            }
        }
        None
    }

    fn is_exact(&self, id: NodeId) -> bool {
        exact(&self.graph, id)
    }

    /// A symbol for a call, of at most `upper`, whose results of those types (with the most for the count) are small.
    fn count(&mut self, upper: &IndexExpr, results: &[TensorType]) -> Option<SymId> {
        if !results.iter().all(|t| self.small(t)) || upper.size() > 16 {
            return None;
        }
        let most = self.value(upper)?;
        let count = self.graph.add_data_symbol("found", upper.clone());
        self.binding.push(most);
        self.counted.resize(self.binding.len(), false);
        self.counted[count.0 as usize] = true;
        Some(count)
    }

    /// Extents that follow from a size, among those to choose from.
    fn offer(&mut self, count: SymId) {
        let n = IndexExpr::from(count);
        self.dims.extend([n.clone(), n.clone(), n.clone(), n.clone()]);
        let some = self.dim();
        let derived = [
            n.clone() + IndexExpr::ONE,
            n.clone() * IndexExpr::Const(2),
            n.ceil_div(2),
            IndexExpr::min(&n, &IndexExpr::Const(3)),
            IndexExpr::modulo(&n, &IndexExpr::Const(3)),
            IndexExpr::max(&n, &IndexExpr::Const(2)),
            n + some,
        ];
        let (a, b) = (self.rng.pick(&[0usize, 1, 2]), self.rng.pick(&[3usize, 4, 5, 6]));
        self.dims.extend([derived[a].clone(), derived[b].clone()]);
    }

    /// The places of what differs from zero; now and then found twice, as two sizes that agree.
    fn places(&mut self, x: NodeId) -> Option<NodeId> {
        let ty = self.ty(x);
        let all = ty.elements();
        let result = TensorType::new(DType::I64, [IndexExpr::from(ty.rank()), all.clone()]);
        let count = self.count(&all, std::slice::from_ref(&result))?;
        let tuple = self.add(NodeKind::Call(HostFunction::NonZero { count }), &[x], 0.0)?;
        self.offer(count);
        if self.rng.chance(1, 5) {
            self.add(NodeKind::Project(1), &[tuple], 100.0)?;
        }
        let places = self.add(NodeKind::Project(0), &[tuple], 100.0)?;
        if self.rng.chance(1, 6)
            && let Some(again) = self.count(&all, &[result])
        {
            self.alike.push((again, count));
            let tuple = self.add(NodeKind::Call(HostFunction::NonZero { count: again }), &[x], 0.0)?;
            self.offer(again);
            self.add(NodeKind::Project(0), &[tuple], 100.0)?;
        }
        Some(places)
    }

    /// A mask of some positions of a shape: of none, of all, or whatever data says.
    fn some_of(&mut self, shape: &Shape) -> Option<NodeId> {
        match self.rng.below(8) {
            0 => return self.splat(Scalar::from_bool(false), shape),
            1 => return self.splat(Scalar::from_bool(true), shape),
            _ => {}
        }
        let own = shape.clone();
        let x = match self.exact_where(|t| t.shape == own && t.dtype != DType::Bool) {
            Some(x) => x,
            None => {
                let dtype = self.rng.pick(&[DType::F32, DType::I32, DType::I64]);
                let x = self.of_type(&TensorType {
                    dtype,
                    shape: own.clone(),
                })?;
                if !self.is_exact(x) || self.ty(x).shape != own {
                    return None;
                }
                x
            }
        };
        let dtype = self.ty(x).dtype;
        let value = random_scalar(&mut self.rng, dtype);
        let level = self.splat(value, shape)?;
        let op = self.rng.pick(&[ScalarOp::Lt, ScalarOp::Le, ScalarOp::Ne, ScalarOp::Eq]);
        let operands = if self.rng.chance(1, 2) { [x, level] } else { [level, x] };
        self.map(op, &operands, 1.0)
    }

    /// The parts of a value along some of its axes where a mask holds, as a compression or a boolean index is recorded.
    fn grow_compress(&mut self) -> Option<NodeId> {
        let x = self.any_where(|t| t.rank() > 0)?;
        let ty = self.ty(x);
        let axes = match self.rng.chance(3, 4) {
            true => smallvec![self.rng.below(ty.rank()) as u8],
            false => self.some_axes(ty.rank(), 2),
        };
        let shape: Shape = axes.iter().map(|&a| ty.shape[usize::from(a)].clone()).collect();
        let mask = self.some_of(&shape)?;
        let places = self.places(mask)?;
        let count = self.ty(places).shape[1].clone();
        let mut operands: SmallVec<[NodeId; 4]> = smallvec![x];
        for k in 0..axes.len() {
            let row = View::Slice {
                start: [IndexExpr::from(k), IndexExpr::ZERO].into(),
                step: [1, 1].into(),
                size: [IndexExpr::ONE, count.clone()].into(),
            };
            let row = self.add(NodeKind::View(row), &[places], 100.0)?;
            operands.push(self.add(NodeKind::View(View::Reshape(smallvec![count.clone()])), &[row], 100.0)?);
        }
        let picked = self.add(NodeKind::Gather { axes: axes.clone() }, &operands, self.bound(x))?;
        if self.rng.chance(1, 4) {
            // Put back where it was, changed or not.
            let op = self.rng.pick(&ScatterOp::ALL);
            let base = self.of_type(&ty)?;
            if self.ty(base).shape == ty.shape && !ty.dtype.is_storage() {
                let base = self.tame(base);
                let changed = self.tame(picked);
                operands[0] = base;
                operands.insert(1, changed);
                self.add(NodeKind::Scatter { axes, op }, &operands, f64::INFINITY);
            }
        }
        Some(picked)
    }

    fn grow_unique(&mut self) -> Option<NodeId> {
        let x = self.exact_where(|_| true)?;
        let ty = self.ty(x);
        let axis = match ty.rank() > 0 && self.rng.chance(1, 2) {
            true => Some(self.rng.below(ty.rank()) as u8),
            false => None,
        };
        let all = axis.map_or_else(|| ty.elements(), |a| ty.shape[usize::from(a)].clone());
        let mut values = ty.clone();
        match axis {
            Some(axis) => values.shape[usize::from(axis)] = all.clone(),
            None => values.shape = smallvec![all.clone()],
        }
        let count = self.count(&all, &[values])?;
        let function = HostFunction::Unique {
            axis,
            sorted: self.rng.chance(1, 2),
            count,
        };
        let bound = self.bound(x);
        let tuple = self.add(NodeKind::Call(function), &[x], 0.0)?;
        self.offer(count);
        self.project_all(tuple, &[bound, 100.0, 100.0, 100.0, 100.0])
    }

    /// Elements of some value, in a shape.
    fn picked_elements(&mut self, ty: &TensorType, extents: &[usize]) -> Option<NodeId> {
        let dtype = ty.dtype;
        let x = self.exact_where(|t| t.dtype == dtype)?;
        let (bound, elements) = (self.bound(x), self.ty(x).elements());
        let most = self.value(&elements)?;
        let flat = self.add(NodeKind::View(View::Reshape(smallvec![elements])), &[x], bound)?;
        let mut places = HostTensor::zeros(DType::I64, extents).ok()?;
        for i in 0..places.len() {
            places.set(i, Scalar::from_i64(DType::I64, self.rng.range(-1, most)));
        }
        let places = self.add(NodeKind::Data(ConstData(places)), &[], most as f64)?;
        self.add(NodeKind::Gather { axes: smallvec![0] }, &[flat, places], bound)
    }

    fn grow_suppress(&mut self) -> Option<NodeId> {
        if !self.options.dtypes.contains(&DType::F32) {
            return None;
        }
        let (batch, classes, n) = (
            self.rng.pick(&[0i64, 1, 1, 2]),
            self.rng.pick(&[1i64, 1, 2]),
            self.dim(),
        );
        let boxes: Shape = smallvec![batch.into(), n.clone(), 4i64.into()];
        let scores: Shape = smallvec![batch.into(), classes.into(), n];
        let mut operands: SmallVec<[NodeId; 5]> = smallvec![];
        for shape in [&boxes, &scores] {
            let ty = TensorType {
                dtype: DType::F32,
                shape: shape.clone(),
            };
            let before = self.inputs;
            if before < 6 && self.rng.chance(2, 3) {
                self.input_of(ty.clone());
            }
            if self.inputs > before {
                operands.push(*self.graph.inputs().last()?);
                continue;
            }
            let x = match (self.rng.below(3), ty.const_shape()) {
                (0, Some(extents)) => self.picked_elements(&ty, &extents)?,
                (1, _) => self.viewed(&ty)?,
                _ => self.of_type(&ty)?,
            };
            if !self.is_exact(x) || self.ty(x).shape != *shape {
                return None;
            }
            operands.push(x);
        }
        let most = Scalar::from_i64(DType::I64, self.rng.pick(&[0, 1, 2, 5]));
        operands.push(self.splat(most, &Shape::new())?);
        let overlap = Scalar::from_f64(DType::F32, self.rng.pick(&[0.0, 0.25, 0.5, 1.0]));
        operands.push(self.splat(overlap, &Shape::new())?);
        let score = Scalar::from_f64(DType::F32, self.rng.pick(&[-5.0, 0.0, 2.0, 9.0]));
        operands.push(self.splat(score, &Shape::new())?);
        let upper = IndexExpr::product(&scores);
        let list = TensorType::new(DType::I64, [upper.clone(), 3i64.into()]);
        let count = self.count(&upper, &[list])?;
        let center = self.rng.chance(1, 2);
        let tuple = self.add(NodeKind::Call(HostFunction::Suppress { center, count }), &operands, 0.0)?;
        self.offer(count);
        self.project_all(tuple, &[10.0, 100.0])
    }
}

/// Whether a value is computed without rounding.
fn exact(graph: &Graph, id: NodeId) -> bool {
    use ScalarOp::{Abs, Ceil, Floor, Max, Min, Neg, Round, Select, Sign, Trunc};
    let node = graph.node(id);
    let float = node.ty.dtype.is_float();
    let rounds = |m: Monoid| float && matches!(m, Monoid::Add | Monoid::Mul);
    let results = |body: &Graph| body.outputs().iter().all(|o| exact(body, o.node));
    let here = match &node.kind {
        NodeKind::Input { .. } | NodeKind::Const(_) | NodeKind::Data(_) | NodeKind::Iota { .. } => true,
        NodeKind::Random { .. } | NodeKind::View(_) | NodeKind::Gather { .. } | NodeKind::Copy => true,
        NodeKind::Call(_) | NodeKind::Project(_) | NodeKind::Bitcast(_) => true,
        NodeKind::Scatter { op, .. } => !float || !matches!(op, ScatterOp::Add | ScatterOp::Mul),
        NodeKind::Convert(_) => !float,
        NodeKind::Map(op) => {
            !float || matches!(op, Neg | Abs | Max | Min | Select | Floor | Ceil | Round | Trunc | Sign)
        }
        NodeKind::Reduce { monoid, .. } | NodeKind::Scan { monoid, .. } => !rounds(*monoid),
        NodeKind::Einsum { dtype, accumulator, .. } => !dtype.is_float() && !accumulator.is_float(),
        NodeKind::Loop(l) => results(&l.body.0),
        NodeKind::Region(r) => results(&r.body.0),
    };
    here && node.operands.iter().all(|&o| exact(graph, o))
}
