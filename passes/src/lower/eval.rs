//! Evaluating a node at an index: what each node kind means as kernel statements.

use smallvec::SmallVec;
use tlc_ir::index::{IndexExpr, IndexNode, VarId};
use tlc_ir::kernel::{Access, Memory, Op, Stmt, ValueId};
use tlc_ir::{DType, NodeId, NodeKind, Scalar, ScalarOp};

use super::inside::known_inside;
use super::memo::Place;
use super::{Lowerer, reduces};
use crate::access::{Index, is_source};
use tlc_ir::graph::View;
use tlc_ir::graph::infer::flat_index;

impl Lowerer<'_> {
    /// The node's value at an index of its result. Where `mask` is false nothing is read and the value is arbitrary.
    pub(super) fn value_of(&mut self, node: NodeId, index: &Index, mask: Option<ValueId>) -> ValueId {
        let place = Place::new(node, index, mask);
        if let Some(known) = self.levels.iter().rev().find_map(|l| l.memo.get(place)) {
            return known;
        }
        let value = self.compute(node, index, mask);
        let level = self.value_level[value.0 as usize];
        self.levels[level].memo.keep(place, value);
        value
    }

    fn compute(&mut self, node: NodeId, index: &Index, mask: Option<ValueId>) -> ValueId {
        let n = self.graph.node(node);
        let outside = is_source(&n.kind) || (self.is_root[node.index()] && self.own.binary_search(&node).is_err());
        if outside {
            return self.load_source(node, index, mask);
        }
        if let Some(r) = self.reduced.get(&node).cloned() {
            let level = self.level_of(&r.index);
            let state = self.emit(
                Op::Load {
                    memory: r.memory,
                    index: r.index,
                    mask: None,
                },
                r.dtype,
                level,
            );
            let state = match &n.kind {
                NodeKind::Einsum { accumulator, .. } => self.convert(state, *accumulator),
                _ => state,
            };
            return self.convert(state, n.ty.dtype);
        }
        debug_assert!(
            reduces(self.graph, node).is_none(),
            "a reduction is read after its phase"
        );
        self.compute_here(node, index, mask)
    }

    /// An element of a value that is in memory.
    // Not part of what goes down chains of values, which needs its stack for each.
    #[inline(never)]
    fn load_source(&mut self, node: NodeId, index: &Index, mask: Option<ValueId>) -> ValueId {
        let ty = self.graph.ty(node);
        let memory = Memory::Param(self.param(node, Access::Read));
        let at = flat_index(index, &ty.shape).simplify(self);
        let at = self.concrete(&at).simplify(self);
        // Below padding: what is in bounds everywhere is read everywhere, if it then leaves the loops over what is padded, or goes through memory so that
        // lanes cannot leave it out.
        let (len, level) = (ty.elements(), self.level_of(&at));
        let mut straight = true;
        at.visit_atoms(&mut |a| {
            if let IndexNode::Var(v) = a {
                straight &= at.affine_in(*v).is_some();
            }
        });
        let everywhere = |m: &ValueId| {
            let leaves = level < self.value_level[m.0 as usize];
            self.padding.contains(m) && (leaves || !straight) && self.is_inside(&at, &len, index, &ty.shape)
        };
        let mask = mask.filter(|m| !everywhere(m));
        self.load(memory, at, mask, ty.dtype)
    }

    /// Whether an element of a value of so many, at an index of such a shape, is one wherever loops are: as it lies in memory, or axis by axis.
    fn is_inside(&self, at: &IndexExpr, len: &IndexExpr, index: &Index, shape: &[IndexExpr]) -> bool {
        let within = |e: &IndexExpr, extent: &IndexExpr| e.proves_nonnegative(self) && e.proves_less(extent, self);
        within(at, len) || {
            let mut axes = index.iter().zip(shape);
            axes.all(|(i, extent)| within(&self.concrete(i).simplify(self), extent))
        }
    }

    /// The expression over variables of loops.
    fn concrete(&self, e: &IndexExpr) -> IndexExpr {
        if self.padded.is_empty() {
            return e.clone();
        }
        let is = |v: VarId| self.padded.iter().find(|p| p.0 == v).map(|p| p.1.clone());
        e.replace_vars(&mut |v| is(v))
    }

    /// A variable that stands for an index below padding, which is in `0..extent` wherever the mask holds.
    fn padded_index(&mut self, e: &IndexExpr, extent: &IndexExpr) -> IndexExpr {
        let e = self.concrete(e);
        let known = self
            .padded
            .iter()
            .find(|(v, is)| *is == e && self.kernel.extents[v.0 as usize] == *extent);
        if let Some((v, _)) = known {
            return (*v).into();
        }
        let var = self.new_var(extent.clone(), self.level_of(&e));
        self.padded.push((var, e));
        var.into()
    }

    /// An element at the outermost level where it may be read. What would leave loops that may be empty, and may lie outside of
    /// its memory if they are, stays inside. A mask does not help: it may be true where the memory is empty.
    fn load(&mut self, memory: Memory, index: IndexExpr, mask: Option<ValueId>, dtype: DType) -> ValueId {
        let mut level = self
            .level_of(&index)
            .max(mask.map_or(0, |m| self.value_level[m.0 as usize]));
        if self.may_not_run && (mask.is_some() || !self.in_bounds(memory, &index)) {
            level = level.max(self.levels.len() - 1);
        }
        self.emit(Op::Load { memory, index, mask }, dtype, level)
    }

    pub(super) fn map(&mut self, op: ScalarOp, args: &[ValueId]) -> ValueId {
        let dtypes: SmallVec<[DType; 3]> = args.iter().map(|&a| self.kernel.dtype(a)).collect();
        let dtype = op.result_dtype(&dtypes).expect("the graph is verified");
        let level = args.iter().map(|a| self.value_level[a.0 as usize]).max().unwrap_or(0);
        self.emit(Op::Map(op, args.into()), dtype, level)
    }

    pub(super) fn index_value(&mut self, e: &IndexExpr, dtype: DType) -> ValueId {
        let e = e.simplify(self);
        let e = self.concrete(&e).simplify(self);
        let level = self.level_of(&e);
        match e.as_const() {
            Some(c) => self.constant(Scalar::from_i64(dtype, c)),
            None => self.emit(Op::Index(e, dtype), dtype, level),
        }
    }

    /// `0 <= e < extent` as a bool.
    pub(super) fn inside(&mut self, e: &IndexExpr, extent: &IndexExpr) -> ValueId {
        let (a, b) = (e.interval(self), extent.interval(self));
        let fits = |v: i64| i32::try_from(v).is_ok();
        // A number that is too large for 32 bits, but not by more than these have again, is negative there, which is asked where any number may be.
        let wraps = a.lo < 0 && a.hi <= i64::from(u32::MAX);
        let dtype = if fits(a.lo) && (fits(a.hi) || wraps) && fits(b.hi) {
            DType::I32
        } else {
            DType::I64
        };
        let value = self.index_value(e, dtype);
        let mut all: Option<ValueId> = None;
        if a.lo < 0 {
            let zero = self.constant(dtype.zero());
            all = Some(self.map(ScalarOp::Le, &[zero, value]));
        }
        if !e.proves_less(extent, self) {
            let limit = self.index_value(extent, dtype);
            let below = self.map(ScalarOp::Lt, &[value, limit]);
            all = Some(self.and(all, below));
        }
        all.unwrap_or_else(|| self.constant(Scalar::from_bool(true)))
    }

    /// Whether `0 <= e < extent` never holds, as of what is cut out of a concatenation and the parts that it does not meet.
    fn never_inside(&self, e: &IndexExpr, extent: &IndexExpr) -> bool {
        e.interval(self).hi < 0 || (e.clone() - extent.clone()).proves_nonnegative(self)
    }

    pub(super) fn and(&mut self, a: Option<ValueId>, b: ValueId) -> ValueId {
        match a {
            Some(a) if a != b => self.map(ScalarOp::And, &[a, b]),
            _ => b,
        }
    }

    fn compute_here(&mut self, node: NodeId, index: &Index, mask: Option<ValueId>) -> ValueId {
        let n = self.graph.node(node);
        match &n.kind {
            NodeKind::Const(value) => self.constant(*value),
            NodeKind::Map(op) => {
                let mut args: SmallVec<[ValueId; 3]> = SmallVec::new();
                for &operand in &n.operands {
                    args.push(self.value_of(operand, index, mask));
                }
                self.map(*op, &args)
            }
            NodeKind::Convert(to) => {
                let v = self.value_of(n.operands[0], index, mask);
                self.convert(v, *to)
            }
            NodeKind::Bitcast(to) => {
                let v = self.value_of(n.operands[0], index, mask);
                self.bitcast(v, *to)
            }
            NodeKind::Copy => self.value_of(n.operands[0], index, mask),
            NodeKind::Reduce { .. } => {
                let v = self.value_of(n.operands[0], index, mask);
                self.convert(v, n.ty.dtype)
            }
            NodeKind::Einsum { accumulator, dtype, .. } => {
                let v = self.summand(node, index, *accumulator, mask);
                self.convert(v, *dtype)
            }
            NodeKind::Iota { ty, axis } => self.index_value(&index[*axis as usize].clone(), ty.dtype),
            NodeKind::Random { shape, stream } => {
                let key = self.value_of(n.operands[0], &Index::new(), mask);
                let counter = flat_index(index, shape).simplify(self);
                self.random_bits(key, &counter, *stream)
            }
            NodeKind::View(view) => self.viewed(node, view, index, mask),
            NodeKind::Gather { axes } => self.gathered(node, axes, index, mask),
            kind => unreachable!("{} is not evaluated in place", kind.name()),
        }
    }

    /// An element of a view.
    // Not part of what goes down chains of functions, as [`Self::load_source`].
    #[inline(never)]
    fn viewed(&mut self, node: NodeId, view: &View, index: &Index, mask: Option<ValueId>) -> ValueId {
        let n = self.graph.node(node);
        let from = &self.graph.ty(n.operands[0]).shape;
        let mapped = view.operand_index(from, &n.ty.shape, index, self);
        if mapped.conditions.is_empty() {
            return self.value_of(n.operands[0], &mapped.index, mask);
        }
        let fill = view.fill().expect("a view that leaves its operand fills");
        if mapped.conditions.iter().any(|(e, extent)| self.never_inside(e, extent)) {
            return self.constant(fill);
        }
        let mut all = None;
        for (e, extent) in &mapped.conditions {
            let one = self.inside(e, extent);
            all = Some(self.and(all, one));
        }
        let inside = all.expect("there is a condition");
        let guard = self.and(mask, inside);
        if mask.is_none_or(|m| self.padding.contains(&m)) {
            self.padding.push(guard);
        }
        let mut below = mapped.index;
        for (i, extent) in below.iter_mut().zip(from) {
            if mapped.conditions.iter().any(|(e, _)| e == i) {
                *i = self.padded_index(i, extent);
            }
        }
        let value = self.value_of(n.operands[0], &below, Some(guard));
        let fill = self.constant(fill);
        self.map(ScalarOp::Select, &[inside, value, fill])
    }

    /// An element that a gather finds.
    // As [`Self::viewed`].
    #[inline(never)]
    fn gathered(&mut self, node: NodeId, axes: &[u8], index: &Index, mask: Option<ValueId>) -> ValueId {
        let n = self.graph.node(node);
        let x = n.operands[0];
        let x_shape = self.graph.ty(x).shape.clone();
        let batch = index.len() - (x_shape.len() - axes.len());
        let at: Index = index[..batch].into();
        let mut full: Index = SmallVec::from_elem(IndexExpr::ZERO, x_shape.len());
        let mut rest = index[batch..].iter();
        for (a, slot) in full.iter_mut().enumerate() {
            if !axes.contains(&(a as u8)) {
                *slot = rest.next().cloned().unwrap_or(IndexExpr::ZERO);
            }
        }
        let mut guard = None;
        for (&axis, &operand) in axes.iter().zip(&n.operands[1..]) {
            let extent = &x_shape[axis as usize];
            if let Some(position) = self.position(operand, &at, extent) {
                full[axis as usize] = position;
                continue;
            }
            if known_inside(self.graph, operand, extent) {
                full[axis as usize] = self.known_index(operand, &at, extent, mask);
                continue;
            }
            let (var, ok) = self.data_index(operand, &at, extent, mask);
            full[axis as usize] = var;
            guard = Some(self.and(guard, ok));
        }
        let Some(inside) = guard else {
            return self.value_of(x, &full, mask);
        };
        let masked = self.and(mask, inside);
        let value = self.value_of(x, &full, Some(masked));
        let is_load =
            is_source(&self.graph.node(x).kind) || (self.is_root[x.index()] && self.own.binary_search(&x).is_err());
        if is_load && mask.is_none() {
            return value;
        }
        let zero = self.constant(n.ty.dtype.zero());
        self.map(ScalarOp::Select, &[inside, value, zero])
    }

    /// An index that is no data but the number of an element along an axis, and inside of `0..extent` wherever it is asked for.
    fn position(&self, operand: NodeId, at: &Index, extent: &IndexExpr) -> Option<IndexExpr> {
        let (mut node, mut index) = (operand, at.clone());
        loop {
            let n = self.graph.node(node);
            match &n.kind {
                _ if self.is_root[node.index()] => return None,
                NodeKind::Iota { ty, axis } if matches!(ty.dtype, DType::I32 | DType::I64) => {
                    let e = index[*axis as usize].simplify(self);
                    let range = e.interval(self);
                    let exact = ty.dtype == DType::I64 || range.hi <= i64::from(i32::MAX);
                    return (exact && range.lo >= 0 && e.proves_less(extent, self)).then_some(e);
                }
                NodeKind::View(view) => {
                    let from = &self.graph.ty(n.operands[0]).shape;
                    let mapped = view.operand_index(from, &n.ty.shape, &index, self);
                    if !mapped.conditions.is_empty() {
                        return None;
                    }
                    (node, index) = (n.operands[0], mapped.index);
                }
                _ => return None,
            }
        }
    }

    /// An index taken from data: an index expression that is always inside `0..extent` (or 0), and whether the data was.
    pub(super) fn data_index(
        &mut self,
        operand: NodeId,
        at: &Index,
        extent: &IndexExpr,
        mask: Option<ValueId>,
    ) -> (IndexExpr, ValueId) {
        let dtype = self.index_dtype(operand, extent);
        let (value, ok) = self.data_value(operand, at, extent, mask, dtype);
        (self.clamped(value, extent), ok)
    }

    /// As [`Self::data_index`], of data that is known to be inside.
    fn known_index(&mut self, operand: NodeId, at: &Index, extent: &IndexExpr, mask: Option<ValueId>) -> IndexExpr {
        let raw = self.value_of(operand, at, mask);
        let value = self.convert(raw, self.index_dtype(operand, extent));
        self.clamped(value, extent)
    }

    fn clamped(&mut self, value: ValueId, extent: &IndexExpr) -> IndexExpr {
        let level = self.value_level[value.0 as usize];
        let var = self.new_var(extent.clone(), level);
        self.push(level, Stmt::Clamp { var, value });
        var.into()
    }

    /// In what an index is compared with an extent: in i32 where it is that and the extent fits, for twice as many lanes hold it.
    fn index_dtype(&self, operand: NodeId, extent: &IndexExpr) -> DType {
        let fits = extent.interval(self).hi <= i64::from(i32::MAX);
        match self.graph.ty(operand).dtype {
            DType::I32 if fits => DType::I32,
            _ => DType::I64,
        }
    }

    /// A number taken from data, in a signed dtype that holds it, and whether it is inside of `0..extent`.
    pub(super) fn data_value(
        &mut self,
        operand: NodeId,
        at: &Index,
        extent: &IndexExpr,
        mask: Option<ValueId>,
        dtype: DType,
    ) -> (ValueId, ValueId) {
        let raw = self.value_of(operand, at, mask);
        let value = self.convert(raw, dtype);
        let zero = self.constant(dtype.zero());
        let limit = self.index_value(extent, dtype);
        let low = self.map(ScalarOp::Le, &[zero, value]);
        let high = self.map(ScalarOp::Lt, &[value, limit]);
        (value, self.map(ScalarOp::And, &[low, high]))
    }

    /// Threefry-2x32-20 (see `NodeKind::Random`): the first output word for the counter `(index, stream)`.
    fn random_bits(&mut self, key: ValueId, counter: &IndexExpr, stream: u32) -> ValueId {
        const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];
        const PARITY: u64 = 0x1BD1_1BDA;
        let word = |lo: &mut Self, v: u64| lo.constant(Scalar::from_u64(DType::U32, v));
        let low = self.convert(key, DType::U32);
        let shift = self.constant(Scalar::from_u64(DType::U64, 32));
        let high = self.map(ScalarOp::Shr, &[key, shift]);
        let high = self.convert(high, DType::U32);
        let parity = word(self, PARITY);
        let mixed = self.map(ScalarOp::Xor, &[low, high]);
        let third = self.map(ScalarOp::Xor, &[mixed, parity]);
        let keys = [low, high, third];
        let index = self.index_value(counter, DType::U32);
        let stream = word(self, stream as u64);
        let mut x0 = self.map(ScalarOp::Add, &[index, keys[0]]);
        let mut x1 = self.map(ScalarOp::Add, &[stream, keys[1]]);
        for round in 0..20usize {
            x0 = self.map(ScalarOp::Add, &[x0, x1]);
            let r = ROTATIONS[(round / 4) % 2][round % 4];
            let (left, right) = (word(self, r as u64), word(self, 32 - r as u64));
            let up = self.map(ScalarOp::Shl, &[x1, left]);
            let down = self.map(ScalarOp::Shr, &[x1, right]);
            let rotated = self.map(ScalarOp::Or, &[up, down]);
            x1 = self.map(ScalarOp::Xor, &[rotated, x0]);
            if round % 4 == 3 {
                let s = round / 4 + 1;
                x0 = self.map(ScalarOp::Add, &[x0, keys[s % 3]]);
                let injected = word(self, s as u64);
                x1 = self.map(ScalarOp::Add, &[x1, keys[(s + 1) % 3]]);
                x1 = self.map(ScalarOp::Add, &[x1, injected]);
            }
        }
        x0
    }
}
