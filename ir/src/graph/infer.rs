//! Result types: the typing rules of every node kind, one function each.
//!
//! A rule returns the result type, or what is wrong and (where it can be said) what would fit. Extents that must agree but
//! are not provably equal become conditions on the symbols; provably unequal ones are errors.

mod control;

use smallvec::{SmallVec, smallvec};

use super::control::unit;
use super::{
    Axes, Condition, Graph, Labels, MAX_RANK, Monoid, NodeId, NodeKind, ScatterOp, Semiring, Shape, TensorType,
};
use crate::dtype::DType;
use crate::index::IndexExpr;
use crate::scalar::STORAGE_ADVICE;

/// What is wrong, and what would fit.
pub type Refusal = (String, Option<String>);

pub(super) fn refuse<T>(problem: impl Into<String>) -> Result<T, Refusal> {
    Err((problem.into(), None))
}

pub(super) fn refuse_expecting<T>(problem: impl Into<String>, expected: impl Into<String>) -> Result<T, Refusal> {
    Err((problem.into(), Some(expected.into())))
}

/// Numbers in extents with symbols, multiplied over the axes and with the bytes of an element, are at most this: what plans compute of
/// them (bytes, operations, offsets) stays far from saturation.
const MAX_CONSTANTS: i128 = 1 << 56;

/// The most bytes one tensor may declare.
const MAX_BYTES: i128 = 1 << 60;

/// What typing rules look at and write down.
pub(super) struct Rule<'g> {
    pub(super) graph: &'g Graph,
    pub(super) conditions: &'g mut Vec<Condition>,
}

/// The result type of `kind` over `operands`. What is assumed of symbols is appended to
/// `conditions`.
///
/// # Errors
/// What is wrong, and what would fit.
pub fn infer(
    graph: &Graph,
    kind: &NodeKind,
    operands: &[NodeId],
    conditions: &mut Vec<Condition>,
) -> Result<TensorType, Refusal> {
    if let Some(bad) = operands.iter().find(|o| o.index() >= graph.len()) {
        return refuse(format!("operand {bad} does not exist"));
    }
    if !matches!(kind, NodeKind::Project(_))
        && let Some(bad) = operands.iter().find(|o| graph.node(**o).kind.is_tuple())
    {
        let problem = format!("operand {bad} has several results");
        return refuse_expecting(problem, "a projection of it");
    }
    let arity = match kind {
        NodeKind::Loop(_) | NodeKind::Region(_) => operands.len(),
        NodeKind::Call(function) => function.arity(),
        NodeKind::Input { .. } | NodeKind::Const(_) | NodeKind::Data(_) | NodeKind::Iota { .. } => 0,
        NodeKind::Random { .. }
        | NodeKind::Convert(_)
        | NodeKind::Bitcast(_)
        | NodeKind::Reduce { .. }
        | NodeKind::View(_)
        | NodeKind::Scan { .. }
        | NodeKind::Project(_)
        | NodeKind::Copy => 1,
        NodeKind::Map(op) => op.arity(),
        NodeKind::Einsum { inputs, .. } => inputs.len(),
        NodeKind::Gather { axes } => 1 + axes.len(),
        NodeKind::Scatter { axes, .. } => 2 + axes.len(),
    };
    if operands.len() != arity {
        return refuse(format!("takes {arity} operands, found {}", operands.len()));
    }
    let types: SmallVec<[&TensorType; 4]> = operands.iter().map(|&o| graph.ty(o)).collect();
    let mut rule = Rule { graph, conditions };
    let ty = match kind {
        NodeKind::Input { ty, .. } => ty.clone(),
        NodeKind::Const(value) => TensorType {
            dtype: value.dtype(),
            shape: Shape::new(),
        },
        NodeKind::Data(data) => TensorType::new(data.0.dtype(), data.0.shape().iter().copied()),
        NodeKind::Iota { ty, axis } => rule.iota(ty, *axis)?,
        NodeKind::Random { shape, .. } => rule.random(shape, types[0])?,
        NodeKind::Map(op) => {
            let dtypes: SmallVec<[DType; 4]> = types.iter().map(|t| t.dtype).collect();
            let dtype = op
                .result_dtype(&dtypes)
                .map_err(|e| (format!("dtypes {}", e.found), Some(e.expected.into())))?;
            TensorType {
                dtype,
                shape: rule.same_shape(&types)?,
            }
        }
        NodeKind::Convert(dtype) => TensorType {
            dtype: *dtype,
            shape: types[0].shape.clone(),
        },
        NodeKind::Bitcast(dtype) => {
            let from = types[0].dtype;
            if from.bits() != dtype.bits() {
                return refuse_expecting(
                    format!("{from} of {} bits as {dtype}", from.bits()),
                    format!("a dtype of {} bits", from.bits()),
                );
            }
            TensorType {
                dtype: *dtype,
                shape: types[0].shape.clone(),
            }
        }
        NodeKind::Einsum {
            inputs,
            output,
            semiring,
            accumulator,
            dtype,
        } => rule.einsum(&types, inputs, output, *semiring, *accumulator, *dtype)?,
        NodeKind::Reduce { monoid, axes } => rule.reduce(types[0], *monoid, axes)?,
        NodeKind::View(view) => TensorType {
            dtype: types[0].dtype,
            shape: view.infer(types[0], &mut rule)?,
        },
        NodeKind::Gather { axes } => rule.gather(&types, axes)?,
        NodeKind::Scatter { axes, op } => rule.scatter(&types, axes, *op)?,
        NodeKind::Scan { monoid, axis, .. } => {
            if *axis as usize >= types[0].rank() {
                return refuse(format!("axis {axis} of a tensor of rank {}", types[0].rank()));
            }
            if monoid.is_arg() {
                return refuse_expecting(
                    format!("monoid {}", monoid.name()),
                    "one of add, mul, max, min, and, or",
                );
            }
            rule.monoid_accepts(*monoid, types[0].dtype)?;
            types[0].clone()
        }
        NodeKind::Copy => types[0].clone(),
        NodeKind::Loop(_) | NodeKind::Call(_) | NodeKind::Region(_) => {
            results(graph, kind, operands, conditions)?;
            return Ok(unit());
        }
        NodeKind::Project(result) => {
            let of = graph.node(operands[0]);
            match of.results.get(*result as usize) {
                Some(ty) => ty.clone(),
                None if of.kind.is_tuple() => {
                    let found = of.results.len();
                    return refuse_expecting(format!("result {result}"), format!("one below {found}"));
                }
                None => return refuse_expecting("a node of one result", "a loop, call or region"),
            }
        }
    };
    rule.representable(&ty)?;
    Ok(ty)
}

/// The result types of a loop, call or region; none for other nodes.
///
/// # Errors
/// As [`infer`].
pub fn results(
    graph: &Graph,
    kind: &NodeKind,
    operands: &[NodeId],
    conditions: &mut Vec<Condition>,
) -> Result<Vec<TensorType>, Refusal> {
    if !kind.is_tuple() {
        return Ok(Vec::new());
    }
    let types: Vec<&TensorType> = operands.iter().map(|&o| graph.ty(o)).collect();
    let mut rule = Rule { graph, conditions };
    let all = match kind {
        NodeKind::Loop(l) => rule.repeated(l, &types)?,
        NodeKind::Call(function) => rule.call(function, &types)?,
        NodeKind::Region(r) => rule.region(r, &types)?,
        _ => Vec::new(),
    };
    for ty in &all {
        rule.representable(ty)?;
    }
    Ok(all)
}

impl Rule<'_> {
    pub(super) fn text(&self, d: &IndexExpr) -> String {
        self.graph.dim_text(d)
    }

    /// Records that two extents must be equal; returns whether they can be.
    pub(super) fn agree(&mut self, a: &IndexExpr, b: &IndexExpr) -> bool {
        if a == b {
            return true;
        }
        let difference = (a.clone() - b.clone()).interval(self.graph);
        if difference.lo > 0 || difference.hi < 0 {
            return false;
        }
        if !(difference.lo == 0 && difference.hi == 0) {
            self.conditions.push(Condition::Equal(a.clone(), b.clone()));
        }
        true
    }

    /// The more informative of two extents assumed equal: a constant, else the first.
    fn pick(a: &IndexExpr, b: &IndexExpr) -> IndexExpr {
        if a.as_const().is_none() && b.as_const().is_some() {
            b.clone()
        } else {
            a.clone()
        }
    }

    fn representable(&mut self, ty: &TensorType) -> Result<(), Refusal> {
        if ty.rank() > MAX_RANK {
            return refuse_expecting(format!("rank {}", ty.rank()), format!("at most {MAX_RANK} axes"));
        }
        // Nearly all shapes are a few numbers.
        let bytes = |n: i64, d: &IndexExpr| n.checked_mul(d.as_const().filter(|d| *d > 0)?);
        let known = ty.shape.iter().try_fold(ty.dtype.bytes() as i64, bytes);
        if known.is_some_and(|bytes| i128::from(bytes) <= MAX_BYTES) {
            return Ok(());
        }
        let mut bytes = ty.dtype.bytes() as i128;
        let mut empty = false;
        let mut largest = bytes;
        for d in &ty.shape {
            let range = d.interval(self.graph);
            if range.lo < 0 && !self.not_negative(d.clone()) {
                return refuse(format!("extent {} is negative", self.text(d)));
            }
            largest = largest.saturating_mul(i128::from(d.largest_constant()));
            empty |= range.hi == 0;
            bytes = bytes.saturating_mul(range.lo.max(0) as i128);
            // Symbols may be zero, so only constants count toward the smallest size; keep them apart from those.
            if d.as_const().is_none() && range.lo <= 0 {
                bytes = bytes.max(1);
            }
        }
        let constants = ty
            .shape
            .iter()
            .filter_map(|d| d.as_const())
            .fold(1i128, |n, d| n.saturating_mul(d.max(0) as i128));
        if !empty && bytes.max(constants.saturating_mul(ty.dtype.bytes() as i128)) > MAX_BYTES {
            return refuse_expecting("the element count overflows", "at most 2^60 bytes");
        }
        let symbolic = ty.shape.iter().any(|d| d.as_const().is_none());
        if symbolic && largest > MAX_CONSTANTS {
            let problem = format!("the numbers in {} are too large", self.graph.shape_text(&ty.shape));
            return refuse_expecting(problem, "a product below 2^56, with the bytes of an element");
        }
        Ok(())
    }

    fn iota(&self, ty: &TensorType, axis: u8) -> Result<TensorType, Refusal> {
        if ty.dtype == DType::Bool {
            return refuse_expecting("dtype bool", "integers or floats");
        }
        computed_in(ty.dtype)?;
        if axis as usize >= ty.rank() {
            return refuse(format!("axis {axis} of a tensor of rank {}", ty.rank()));
        }
        Ok(ty.clone())
    }

    fn random(&self, shape: &Shape, key: &TensorType) -> Result<TensorType, Refusal> {
        if key.dtype != DType::U64 || key.rank() != 0 {
            return refuse_expecting(format!("key {}", self.graph.type_text(key)), "a key of u64[]");
        }
        let ty = TensorType {
            dtype: DType::U32,
            shape: shape.clone(),
        };
        // Only a constant count can be refused, so a symbolic one need not be multiplied out.
        if ty.shape.iter().all(|d| d.as_const().is_some()) && ty.elements().as_const().is_some_and(|n| n > 1 << 32) {
            return refuse_expecting(format!("{} elements", self.text(&ty.elements())), "at most 2^32");
        }
        Ok(ty)
    }

    fn same_shape(&mut self, types: &[&TensorType]) -> Result<Shape, Refusal> {
        let mut shape = types[0].shape.clone();
        for t in &types[1..] {
            if t.shape == shape {
                continue;
            }
            if t.rank() != shape.len() {
                return refuse_expecting(
                    format!("ranks {} and {} differ", shape.len(), t.rank()),
                    "operands of one shape",
                );
            }
            for (axis, d) in t.shape.iter().enumerate() {
                if !self.agree(&shape[axis], d) {
                    let problem = format!(
                        "extents {} and {} of axis {axis} differ",
                        self.text(&shape[axis]),
                        self.text(d)
                    );
                    return refuse_expecting(problem, "operands of one shape");
                }
                shape[axis] = Self::pick(&shape[axis], d);
            }
        }
        Ok(shape)
    }

    fn einsum(
        &mut self,
        types: &[&TensorType],
        inputs: &[Labels],
        output: &Labels,
        semiring: Semiring,
        accumulator: DType,
        dtype: DType,
    ) -> Result<TensorType, Refusal> {
        if types.is_empty() {
            return refuse("no operand");
        }
        for t in types {
            computed_in(t.dtype)?;
        }
        computed_in(accumulator)?;
        let mut next = 0u16;
        let mut extents: Vec<Option<IndexExpr>> = Vec::new();
        for (k, (labels, t)) in inputs.iter().zip(types).enumerate() {
            if labels.len() != t.rank() {
                let problem = format!("operand {k} has {} labels and {} axes", labels.len(), t.rank());
                return refuse_expecting(problem, "one label per axis");
            }
            for (&label, d) in labels.iter().zip(&t.shape) {
                if label > next {
                    return refuse_expecting(
                        format!("label {label} before label {next}"),
                        "labels numbered by first appearance",
                    );
                }
                if label == u16::MAX {
                    return refuse_expecting("too many labels", format!("at most {}", u16::MAX));
                }
                if label == next {
                    next += 1;
                    extents.push(Some(d.clone()));
                } else if let Some(e) = extents[label as usize].clone() {
                    if !self.agree(&e, d) {
                        let problem = format!("extents {} and {} of label {label} differ", self.text(&e), self.text(d));
                        return refuse_expecting(problem, "equal extents for equal labels");
                    }
                    extents[label as usize] = Some(Self::pick(&e, d));
                }
            }
        }
        let mut shape = Shape::new();
        for (i, &label) in output.iter().enumerate() {
            if output[..i].contains(&label) {
                return refuse(format!("label {label} twice in the output"));
            }
            match extents.get(label as usize) {
                Some(Some(e)) => shape.push(e.clone()),
                _ => return refuse(format!("output label {label} is in no operand")),
            }
        }
        let fits = match semiring {
            Semiring::OrAnd => accumulator == DType::Bool,
            Semiring::AddDot4 => accumulator == DType::I32,
            _ => accumulator != DType::Bool,
        };
        if !fits {
            return refuse(format!("semiring {} with accumulator {accumulator}", semiring.name()));
        }
        if semiring == Semiring::AddDot4 {
            let [left, right] = types else {
                return refuse_expecting(format!("{} operands of words", types.len()), "two");
            };
            if [left.dtype, right.dtype, dtype] != [DType::I32; 3] {
                return refuse_expecting(
                    format!("words of {} and {}, summed in {dtype}", left.dtype, right.dtype),
                    "i32 in all places",
                );
            }
            // A sum of words is none of their bytes: nothing can be added up before the product.
            let both = |l: &u16| output.contains(l) || inputs.iter().all(|of| of.contains(l));
            if let Some(l) = inputs.iter().flatten().find(|l| !both(l)) {
                return refuse_expecting(format!("label {l}, summed, in one operand"), "summed labels in both");
            }
        }
        Ok(TensorType { dtype, shape })
    }

    fn monoid_accepts(&self, monoid: Monoid, dtype: DType) -> Result<(), Refusal> {
        computed_in(dtype)?;
        match monoid {
            Monoid::Add | Monoid::Mul if dtype == DType::Bool => refuse_expecting("dtype bool", "integers or floats"),
            Monoid::And | Monoid::Or if dtype.is_float() => {
                refuse_expecting(format!("dtype {dtype}"), "bool or integers")
            }
            _ => Ok(()),
        }
    }

    fn reduce(&mut self, t: &TensorType, monoid: Monoid, axes: &Axes) -> Result<TensorType, Refusal> {
        self.monoid_accepts(monoid, t.dtype)?;
        if !axes.is_sorted_by(|a, b| a < b) {
            return refuse_expecting(format!("axes {axes:?}"), "ascending, distinct axes");
        }
        if let Some(&axis) = axes.iter().find(|&&a| a as usize >= t.rank()) {
            return refuse(format!("axis {axis} of a tensor of rank {}", t.rank()));
        }
        if monoid.is_arg() {
            if axes.len() != 1 {
                return refuse_expecting(format!("{} axes", axes.len()), "exactly one axis");
            }
            let spare = t.shape[axes[0] as usize].clone() - IndexExpr::ONE;
            if !self.not_negative(spare) {
                return refuse(format!("{} over the empty axis {}", monoid.name(), axes[0]));
            }
        }
        let keep = |i: &usize| !axes.contains(&(*i as u8));
        let shape = (0..t.rank()).filter(keep).map(|i| t.shape[i].clone()).collect();
        Ok(TensorType {
            dtype: if monoid.is_arg() { DType::I64 } else { t.dtype },
            shape,
        })
    }

    /// Checks indexed axes and index operands; returns the index shape and the operand's other extents.
    fn indexed(&mut self, x: &TensorType, indices: &[&TensorType], axes: &Axes) -> Result<(Shape, Shape), Refusal> {
        if axes.is_empty() {
            return refuse("no indexed axis");
        }
        for (i, &a) in axes.iter().enumerate() {
            if a as usize >= x.rank() || axes[..i].contains(&a) {
                return refuse_expecting(
                    format!("axes {axes:?}"),
                    format!("distinct axes below the rank {}", x.rank()),
                );
            }
        }
        if let Some(t) = indices.iter().find(|t| !t.dtype.is_int()) {
            return refuse_expecting(format!("indices of {}", t.dtype), "an integer dtype");
        }
        let batch = self.same_shape(indices)?;
        let rest = (0..x.rank())
            .filter(|&i| !axes.contains(&(i as u8)))
            .map(|i| x.shape[i].clone())
            .collect();
        Ok((batch, rest))
    }

    fn gather(&mut self, types: &[&TensorType], axes: &Axes) -> Result<TensorType, Refusal> {
        let (mut shape, rest) = self.indexed(types[0], &types[1..], axes)?;
        shape.extend(rest);
        Ok(TensorType {
            dtype: types[0].dtype,
            shape,
        })
    }

    fn scatter(&mut self, types: &[&TensorType], axes: &Axes, op: ScatterOp) -> Result<TensorType, Refusal> {
        let (base, updates) = (types[0], types[1]);
        let (mut shape, rest) = self.indexed(base, &types[2..], axes)?;
        shape.extend(rest);
        if updates.dtype != base.dtype {
            return refuse_expecting(format!("updates of {} into {}", updates.dtype, base.dtype), "one dtype");
        }
        if op != ScatterOp::Set {
            computed_in(base.dtype)?;
        }
        if matches!(op, ScatterOp::Add | ScatterOp::Mul) && base.dtype == DType::Bool {
            return refuse_expecting("dtype bool", "integers or floats");
        }
        if updates.rank() != shape.len() || !shape.iter().zip(&updates.shape).all(|(a, b)| self.agree(a, b)) {
            let problem = format!("updates {}", self.graph.shape_text(&updates.shape));
            return refuse_expecting(problem, self.graph.shape_text(&shape));
        }
        Ok(base.clone())
    }
}

/// Refuses a storage type where something is computed.
fn computed_in(dtype: DType) -> Result<(), Refusal> {
    match dtype.is_storage() {
        true => refuse_expecting(
            format!("{dtype} is a storage type"),
            format!("a dtype that is computed in ({STORAGE_ADVICE})"),
        ),
        false => Ok(()),
    }
}

/// Number of elements; refuses a product of sums that has too many terms when multiplied out (their number is exponential
/// in the rank).
pub(super) fn element_product(shape: &[IndexExpr]) -> Result<IndexExpr, Refusal> {
    const MAX_TERMS: usize = 4096;
    let terms = |d: &IndexExpr| {
        let (terms, constant) = d.linear();
        terms.len() + usize::from(constant != 0)
    };
    match shape
        .iter()
        .map(terms)
        .try_fold(1usize, |n, t| n.checked_mul(t).filter(|&n| n <= MAX_TERMS))
    {
        Some(_) => Ok(IndexExpr::product(shape)),
        None => refuse_expecting(
            "an element count of too many terms",
            format!("at most {MAX_TERMS} terms"),
        ),
    }
}

/// Row-major strides of a shape, in elements.
pub fn row_major_strides(shape: &[IndexExpr]) -> Shape {
    let mut strides: Shape = smallvec![IndexExpr::ONE; shape.len()];
    for i in (0..shape.len().saturating_sub(1)).rev() {
        strides[i] = strides[i + 1].clone() * shape[i + 1].clone();
    }
    strides
}

/// The C-order offset of an index.
pub fn flat_index(index: &[IndexExpr], shape: &[IndexExpr]) -> IndexExpr {
    IndexExpr::dot(index, &row_major_strides(shape))
}
