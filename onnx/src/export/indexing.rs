//! Gathers and scatters.
//!
//! ONNX counts negative indices from the end and leaves those out of range open; here both are out of range, read zero and
//! write nothing. An index that is not known to be in range is therefore replaced where it is not, and what it reads or
//! writes with it.

use tlc_formats::onnx::write::Attribute;
use tlc_ir::DType;
use tlc_ir::Scalar;
use tlc_ir::ScalarOp;
use tlc_ir::graph::{Axes, NodeId, NodeKind, ScatterOp, View};
use tlc_ir::index::IndexExpr;

use super::{Outcome, Writer, storage};

/// Indices as ONNX takes them.
struct Indices {
    /// For each axis, `i64` or `i32`, in range where `valid` is.
    names: Vec<String>,
    /// Where all are in range; none if they are everywhere.
    valid: Option<String>,
}

impl Writer<'_, '_> {
    /// The indices of the axes; with `limit`, one that is not in range becomes the extent of the first axis.
    fn indices(&mut self, ids: &[NodeId], extents: &[IndexExpr], limit: bool) -> Outcome<Indices> {
        let mut names = vec![];
        let mut valid: Option<String> = None;
        for (&id, extent) in ids.iter().zip(extents) {
            if let Some(own) = self.own_index(id, extent) {
                names.push(self.index(own)?);
                continue;
            }
            let index = self.index(id)?;
            if !self.in_range(id, extent) {
                let (zero, n) = (self.number(0.0, DType::I64), self.count(extent)?);
                let above = self.emit("GreaterOrEqual", &[&index, &zero]);
                let below = self.emit("Less", &[&index, &n]);
                let inside = self.emit("And", &[&above, &below]);
                valid = Some(match valid {
                    None => inside,
                    Some(before) => self.emit("And", &[&before, &inside]),
                });
            }
            names.push(index);
        }
        if let Some(valid) = &valid {
            for (k, name) in names.iter_mut().enumerate() {
                let otherwise = match limit && k == 0 {
                    true => self.count(&extents[0])?,
                    false => self.number(0.0, DType::I64),
                };
                *name = self.emit("Where", &[valid, name, &otherwise]);
            }
        }
        Ok(Indices { names, valid })
    }

    fn index(&mut self, id: NodeId) -> Outcome<String> {
        let name = self.value(id)?;
        Ok(self.cast(&name, self.ty(id).dtype, DType::I64))
    }

    /// What an index counts from, if it is `i < 0 ? i + extent : i`: ONNX's own meaning of i.
    fn own_index(&self, id: NodeId, extent: &IndexExpr) -> Option<NodeId> {
        let n = self.constant(extent)?;
        let map = |id: NodeId, op: ScalarOp| match &self.graph.node(id).kind {
            NodeKind::Map(o) if *o == op => Some(&self.graph.node(id).operands[..]),
            _ => None,
        };
        let is = |id: NodeId, n: i64| self.splat(id).is_some_and(|s| s == Scalar::from_i64(s.dtype(), n));
        let &[condition, shifted, index] = map(id, ScalarOp::Select)? else {
            return None;
        };
        let (&[a, zero], &[b, extent]) = (map(condition, ScalarOp::Lt)?, map(shifted, ScalarOp::Add)?) else {
            return None;
        };
        let own = a == index && b == index && is(zero, 0) && is(extent, n);
        (own && self.ty(id).dtype == DType::I64).then_some(index)
    }

    /// The value that every element has.
    fn splat(&self, id: NodeId) -> Option<Scalar> {
        self.graph.splat_value(id)
    }

    /// Whether an index is certainly inside an axis.
    fn in_range(&self, mut id: NodeId, extent: &IndexExpr) -> bool {
        loop {
            let node = self.graph.node(id);
            let below = |i: i64| self.constant(extent).is_some_and(|n| (0..n).contains(&i));
            return match &node.kind {
                NodeKind::Const(value) => below(value.as_i64()),
                NodeKind::Data(data) => (0..data.0.len()).all(|i| below(data.0.get(i).as_i64())),
                NodeKind::Iota { ty, axis } => {
                    let last = ty.shape[*axis as usize].clone();
                    let wraps = ty.dtype.bits() < 32;
                    let left = self.plain(&(extent.clone() - last));
                    !wraps && left.interval(self.graph).lo >= 0
                }
                NodeKind::View(View::Expand(_) | View::Reshape(_) | View::Permute(_) | View::Slice { .. })
                | NodeKind::Copy => {
                    id = node.operands[0];
                    continue;
                }
                _ => false,
            };
        }
    }

    /// The indexed axes in their order, then the others.
    fn front(rank: usize, axes: &Axes) -> Vec<usize> {
        let mut order: Vec<usize> = axes.iter().map(|&a| a as usize).collect();
        order.extend((0..rank).filter(|a| !axes.contains(&(*a as u8))));
        order
    }

    /// Indices of several axes as ONNX's coordinates: those of one place along the last axis.
    fn coordinates(&mut self, names: &[String]) -> String {
        let last = self.vector(&[-1]);
        let parts: Vec<String> = names.iter().map(|n| self.emit("Unsqueeze", &[n, &last])).collect();
        match &parts[..] {
            [one] => one.clone(),
            all => {
                let all: Vec<&str> = all.iter().map(String::as_str).collect();
                self.with("Concat", &all, vec![("axis", Attribute::Int(-1))])
            }
        }
    }

    pub(super) fn gather(&mut self, id: NodeId, axes: &Axes) -> Outcome<String> {
        let operands = self.operands(id);
        let ty = self.ty(operands[0]);
        let (rank, places) = (ty.rank(), self.ty(operands[1]).rank());
        let x = self.value(operands[0])?;
        let extents: Vec<IndexExpr> = axes.iter().map(|&a| ty.shape[a as usize].clone()).collect();
        let indices = self.indices(&operands[1..], &extents, false)?;
        let mut y = match (&axes[..], &indices.names[..]) {
            (&[axis], [index]) => {
                let axis = axis as usize;
                let along = vec![("axis", Attribute::Int(axis as i64))];
                let gather = |this: &mut Self, x: &[String]| this.with("Gather", &[&x[0], index], along);
                let y = self.carried(&[&x], ty.dtype, gather);
                // The axes of the indices come first.
                let order: Vec<usize> = (axis..axis + places)
                    .chain(0..axis)
                    .chain(axis + places..rank - 1 + places)
                    .collect();
                self.transpose(&y, &order)
            }
            _ => {
                let x = self.transpose(&x, &Self::front(rank, axes));
                let coordinates = self.coordinates(&indices.names);
                self.carried(&[&x], ty.dtype, |this, x| this.emit("GatherND", &[&x[0], &coordinates]))
            }
        };
        if let Some(mut valid) = indices.valid {
            let rest = rank - axes.len();
            if rest > 0 && places > 0 {
                let behind = self.vector(&(places as i64..(places + rest) as i64).collect::<Vec<_>>());
                valid = self.emit("Unsqueeze", &[&valid, &behind]);
            }
            if ty.dtype == DType::Bool {
                return Ok(self.emit("And", &[&valid, &y]));
            }
            let zero = self.scalar(ty.dtype.zero());
            y = self.carried(&[&y, &zero], ty.dtype, |this, v| {
                this.emit("Where", &[&valid, &v[0], &v[1]])
            });
        }
        Ok(y)
    }

    pub(super) fn scatter(&mut self, id: NodeId, axes: &Axes, op: ScatterOp) -> Outcome<String> {
        let operands = self.operands(id);
        let ty = self.ty(operands[0]);
        storage(ty.dtype, "ScatterND")?;
        let rank = ty.rank();
        let order = Self::front(rank, axes);
        let base = self.value(operands[0])?;
        let mut base = self.transpose(&base, &order);
        let mut updates = self.value(operands[1])?;
        let extents: Vec<IndexExpr> = axes.iter().map(|&a| ty.shape[a as usize].clone()).collect();
        let indices = self.indices(&operands[2..], &extents, true)?;
        let spare = indices.valid.is_some();
        if spare {
            // What is written out of range goes to a place of its own, which is cut off again.
            let mut pads = vec![0; 2 * rank];
            pads[rank] = 1;
            let (pads, zero) = (self.vector(&pads), self.scalar(ty.dtype.zero()));
            base = self.emit("Pad", &[&base, &pads, &zero]);
        }
        let coordinates = self.coordinates(&indices.names);
        // Numbers are combined, bools are not.
        let wide = match (op, ty.dtype) {
            (ScatterOp::Set, dtype) => dtype,
            (ScatterOp::Add | ScatterOp::Mul, DType::Bool) => return Err(format!("{} of bool", op.name())),
            (_, DType::Bool) => DType::I32,
            (_, dtype) => dtype,
        };
        base = self.cast(&base, ty.dtype, wide);
        updates = self.cast(&updates, ty.dtype, wide);
        let reduction = match op {
            ScatterOp::Set => None,
            ScatterOp::Add => Some("add"),
            ScatterOp::Mul => Some("mul"),
            ScatterOp::Max => Some("max"),
            ScatterOp::Min => Some("min"),
        };
        let how = reduction.map(|r| ("reduction", Attribute::Text(r.into())));
        let mut y = self.with("ScatterND", &[&base, &coordinates, &updates], how.into_iter().collect());
        y = self.cast(&y, wide, ty.dtype);
        if spare {
            let (start, axis) = (self.vector(&[0]), self.vector(&[0]));
            let end = self.size(&extents[0])?;
            y = self.emit("Slice", &[&y, &start, &end, &axis]);
        }
        let mut back = vec![0; rank];
        order.iter().enumerate().for_each(|(i, &a)| back[a] = i);
        Ok(self.transpose(&y, &back))
    }
}
