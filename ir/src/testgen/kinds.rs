//! One random node of each kind, over nodes that exist.

use smallvec::{SmallVec, smallvec};

use super::{GenKind, Generator, random_scalar};
use crate::dtype::{DType, Scalar};
use crate::graph::{
    Axes, ConstData, Labels, Monoid, NodeId, NodeKind, Operands, ScatterOp, Semiring, Shape, TensorType, View, ViewKind,
};
use crate::index::IndexExpr;
use crate::scalar::ScalarOp;
use crate::tensor::HostTensor;

impl Generator<'_> {
    /// Tries to add a node of a kind.
    pub(super) fn grow(&mut self, kind: GenKind) -> Option<NodeId> {
        match kind {
            GenKind::Input => {
                if self.inputs < 6 && self.rng.chance(1, 3) {
                    return self.input();
                }
                None
            }
            GenKind::Const => {
                let dtype = self.rng.pick(&self.options.dtypes);
                let bits = self.rng.bits();
                let value = match self.rng.below(12) {
                    0 if self.options.strange => Scalar::from_bits(dtype, bits),
                    1 => dtype.lowest(),
                    2 => dtype.highest(),
                    _ => random_scalar(&mut self.rng, dtype),
                };
                let bound = if value.is_nan() {
                    f64::INFINITY
                } else {
                    value.as_f64().abs()
                };
                self.add(NodeKind::Const(value), &[], bound)
            }
            GenKind::Data => {
                let dtype = self.rng.pick(&self.options.dtypes);
                let shape = self.shape();
                let extents = TensorType { dtype, shape }.const_shape()?;
                self.data(dtype, &extents)
            }
            GenKind::Iota => {
                let dtype = self.rng.pick(&self.options.dtypes);
                let shape = self.shape();
                if !(dtype.is_int() || dtype.is_float()) || shape.is_empty() {
                    return None;
                }
                self.iota(TensorType { dtype, shape })
            }
            GenKind::Random => {
                let key = match self.options.deep && self.rng.chance(1, 2) {
                    true => self.computed_key()?,
                    false => self.of_type(&TensorType::new(DType::U64, [0i64; 0]))?,
                };
                let kind = NodeKind::Random {
                    shape: self.shape(),
                    stream: self.rng.below(3) as u32,
                };
                self.add(kind, &[key], f64::INFINITY)
            }
            GenKind::Map => self.grow_map(),
            GenKind::Convert => {
                // A mask is not a number, though both may be a byte.
                let x = if self.rng.chance(1, 5) {
                    self.mask()?
                } else {
                    self.any()
                };
                let dtype = self.rng.pick(&self.options.dtypes);
                self.convert(x, dtype)
            }
            GenKind::Bitcast => {
                let x = if self.rng.chance(1, 4) {
                    self.mask()?
                } else {
                    self.any()
                };
                let bits = self.ty(x).dtype.bits();
                let alike: Vec<DType> = self
                    .options
                    .dtypes
                    .iter()
                    .filter(|d| d.bits() == bits)
                    .copied()
                    .collect();
                if alike.is_empty() {
                    return None;
                }
                let dtype = self.rng.pick(&alike);
                self.add(NodeKind::Bitcast(dtype), &[x], f64::INFINITY)
            }
            GenKind::Einsum => self.grow_einsum(),
            GenKind::Product if self.multiplies_bytes() => self.grow_dequantized(),
            GenKind::Product => self.grow_product(),
            GenKind::Rows => self.grow_rows(),
            GenKind::Join => self.grow_join(),
            GenKind::Windows => self.grow_windows(),
            GenKind::Reduce => self.grow_reduce(),
            GenKind::View(kind) => {
                // Most values have no axis to expand: those that have are tried more often.
                let thin = |t: &TensorType| t.shape.iter().all(|d| d.is(1));
                let x = match kind == ViewKind::Expand && self.rng.chance(1, 2) {
                    true => self.any_where(thin)?,
                    false => self.any(),
                };
                let view = self.view(kind, &self.ty(x))?;
                let bound = match view.fill() {
                    Some(value) if value.is_nan() => f64::INFINITY,
                    Some(value) => self.bound(x).max(value.as_f64().abs()),
                    None => self.bound(x),
                };
                self.add(NodeKind::View(view), &[x], bound)
            }
            GenKind::Gather => {
                let x = self.any_where(|t| t.rank() > 0)?;
                let axes = self.some_axes(self.ty(x).rank(), 3);
                let mut operands: Operands = smallvec![x];
                let batch = self.shape();
                operands.extend(self.indices(x, &axes, &batch)?);
                self.add(NodeKind::Gather { axes }, &operands, self.bound(x))
            }
            GenKind::Scatter => self.grow_scatter(),
            GenKind::Scan => {
                let x = self.any_where(|t| t.rank() > 0)?;
                let x = self.tame(x);
                let monoid = self.rng.pick(&Monoid::ALL);
                let exclusive = self.rng.chance(1, 3);
                let axis = self.rng.below(self.ty(x).rank()) as u8;
                let bound = self.reduced_bound(monoid, x, &[axis], exclusive);
                let kind = NodeKind::Scan {
                    monoid,
                    axis,
                    exclusive,
                    reverse: self.rng.chance(1, 3),
                };
                self.add(kind, &[x], bound)
            }
            GenKind::Copy => {
                let x = self.any();
                self.add(NodeKind::Copy, &[x], self.bound(x))
            }
        }
    }

    /// A key of random bits that follows from values without rounding.
    fn computed_key(&mut self) -> Option<NodeId> {
        let x = self.exact_where(|t| !t.dtype.is_float())?;
        let monoid = self.rng.pick(&[Monoid::Max, Monoid::Min]);
        let axes = (0..self.ty(x).rank() as u8).collect();
        let bits = self.add(NodeKind::Reduce { monoid, axes }, &[x], f64::INFINITY)?;
        self.add(NodeKind::Convert(DType::U64), &[bits], f64::INFINITY)
    }

    fn grow_map(&mut self) -> Option<NodeId> {
        use ScalarOp::*;
        let op = self.rng.pick(&self.options.ops);
        if op == Select {
            let a = self.any();
            let ty = self.ty(a);
            let b = self.of_type(&ty)?;
            let c = self.of_type(&TensorType {
                dtype: DType::Bool,
                shape: ty.shape,
            })?;
            return self.map(op, &[c, a, b], self.bound(a).max(self.bound(b)));
        }
        let x = self.any_where(|t| op.result_dtype(&vec![t.dtype; op.arity()]).is_ok())?;
        let mut x = self.tame(x);
        let ty = self.ty(x);
        let mut operands: Operands = smallvec![];
        // Most of the time operands lie in the domain of the function; now and then its edges are worth seeing.
        let careful = ty.dtype.is_float() && self.rng.chance(7, 8);
        if careful {
            x = match op {
                Asin | Acos | Atanh => self.map(Sin, &[x], 1.0)?,
                Acosh => {
                    let small = self.map(Sin, &[x], 1.0)?;
                    self.map(Cosh, &[small], 1.6)?
                }
                Log | Log2 | Sqrt | Rsqrt | Pow => {
                    let magnitude = self.map(Abs, &[x], self.bound(x))?;
                    let half = self.splat(Scalar::from_f64(ty.dtype, 0.5), &ty.shape)?;
                    self.map(Max, &[magnitude, half], self.bound(x).max(0.5))?
                }
                Log1p => self.map(Abs, &[x], self.bound(x))?,
                Exp | Exp2 | Expm1 | Sinh | Cosh | Tan if self.bound(x) > 10.0 => self.map(Sin, &[x], 1.0)?,
                _ => x,
            };
        }
        operands.push(x);
        for _ in 1..op.arity() {
            let y = self.of_type(&ty)?;
            let mut y = self.tame(y);
            if careful && matches!(op, Div | Rem | Mod) {
                let magnitude = self.map(Abs, &[y], self.bound(y))?;
                let half = self.splat(Scalar::from_f64(ty.dtype, 0.5), &ty.shape)?;
                y = self.map(Max, &[magnitude, half], self.bound(y).max(0.5))?;
            } else if careful && op == Pow {
                y = self.map(Tanh, &[y], 1.0)?;
            }
            operands.push(y);
        }
        let b = |i: usize| operands.get(i).map_or(0.0, |&o| self.bound(o));
        let bound = match op {
            Neg | Abs | Floor | Ceil | Round | Trunc | Rem => b(0) + 1.0,
            Sign | Sin | Cos | Tanh | Erf => 1.0,
            Asin | Acos | Atan | Atan2 if careful => 3.2,
            Sqrt | Log | Log2 | Log1p | Rsqrt | Pow | Asinh | Acosh if careful => b(0) + 2.0,
            Exp | Exp2 | Expm1 | Sinh | Cosh => b(0).exp(),
            Add | Sub => b(0) + b(1),
            Mul => b(0) * b(1),
            Div if careful => b(0) * 2.0,
            Mod if careful => b(1),
            Max | Min => b(0).max(b(1)),
            Fma => b(0) * b(1) + b(2),
            Eq | Ne | Lt | Le => 1.0,
            Dot4 => 4.0 * 255.0 * 128.0,
            _ => f64::INFINITY,
        };
        // NaN bounds come from 0 * inf.
        self.map(op, &operands, if bound.is_nan() { f64::INFINITY } else { bound })
    }

    /// A bound for a reduction or scan over axes.
    pub(super) fn reduced_bound(&self, monoid: Monoid, x: NodeId, axes: &[u8], exclusive: bool) -> f64 {
        let ty = self.ty(x);
        let ranges = axes.iter().map(|&a| ty.shape[a as usize].interval(&self.graph));
        let (mut least, mut most) = (1.0, 1.0);
        for r in ranges {
            least *= r.lo as f64;
            most *= r.hi as f64;
        }
        match monoid {
            Monoid::Add => self.bound(x) * most,
            Monoid::Mul => self.bound(x).max(1.0).powf(most),
            // The identity is infinite.
            Monoid::Max | Monoid::Min if exclusive || least < 1.0 => f64::INFINITY,
            Monoid::Max | Monoid::Min => self.bound(x),
            _ => most,
        }
    }

    fn grow_reduce(&mut self) -> Option<NodeId> {
        let x = self.any();
        let x = self.tame(x);
        let ty = self.ty(x);
        let monoid = self.rng.pick(&Monoid::ALL);
        let mut axes = self.some_axes(ty.rank(), if monoid.is_arg() { 1 } else { 8 });
        axes.sort();
        if !monoid.is_arg() && self.rng.chance(1, 24) {
            // Over no axis: each element alone.
            axes.clear();
        }
        if monoid.is_arg() && axes.iter().any(|&a| ty.shape[a as usize].interval(&self.graph).lo < 1) {
            return None;
        }
        let bound = self.reduced_bound(monoid, x, &axes, false);
        self.add(NodeKind::Reduce { monoid, axes }, &[x], bound)
    }

    /// Distinct axes in random order: at least one if there is one, at most `most`.
    pub(super) fn some_axes(&mut self, rank: usize, most: usize) -> Axes {
        let mut axes = self.permutation(rank);
        if rank > 0 {
            axes.truncate(1 + self.rng.below(most.min(rank)));
        }
        axes
    }

    pub(super) fn permutation(&mut self, rank: usize) -> Axes {
        let mut axes: Axes = (0..rank as u8).collect();
        for i in (1..rank).rev() {
            axes.swap(i, self.rng.below(i + 1));
        }
        axes
    }

    /// One index tensor per axis of `x`, most values in range.
    fn indices(&mut self, x: NodeId, axes: &[u8], batch: &Shape) -> Option<Vec<NodeId>> {
        let int = |d: &&DType| d.is_int();
        let ints: Vec<DType> = self
            .options
            .dtypes
            .iter()
            .filter(int)
            .copied()
            .chain([DType::I64])
            .collect();
        let mut all = Vec::new();
        for &a in axes {
            let dtype = self.rng.pick(&ints);
            let ty = TensorType {
                dtype,
                shape: batch.clone(),
            };
            let extent = self.value(&self.ty(x).shape[a as usize])?;
            all.push(match (self.rng.below(3), ty.const_shape()) {
                (0, _) => self.of_type(&ty)?,
                (1, _) if ty.rank() > 0 => self.iota(ty)?,
                (_, Some(shape)) if self.small(&ty) => {
                    let mut data = HostTensor::zeros(dtype, &shape).ok()?;
                    for i in 0..data.len() {
                        let index = match self.rng.below(24) {
                            0 => dtype.lowest(),
                            1 => dtype.highest(),
                            _ => Scalar::from_i64(dtype, self.rng.range(-1, extent)),
                        };
                        data.set(i, index);
                    }
                    self.add(NodeKind::Data(ConstData(data)), &[], 9.0)?
                }
                _ => {
                    let index = self.rng.range(0, extent);
                    self.splat(Scalar::from_i64(dtype, index), batch)?
                }
            });
        }
        Some(all)
    }

    fn grow_scatter(&mut self) -> Option<NodeId> {
        let base = self.any_where(|t| t.rank() > 0)?;
        let base = self.tame(base);
        let ty = self.ty(base);
        let axes = self.some_axes(ty.rank(), 3);
        let batch = self.shape();
        let indices = self.indices(base, &axes, &batch)?;
        let mut shape = batch;
        shape.extend(
            (0..ty.rank())
                .filter(|i| !axes.contains(&(*i as u8)))
                .map(|i| ty.shape[i].clone()),
        );
        let updates = self.of_type(&TensorType { dtype: ty.dtype, shape })?;
        let updates = self.tame(updates);
        let op = self.rng.pick(&ScatterOp::ALL);
        let mut operands: Operands = smallvec![base, updates];
        operands.extend(indices);
        let bound = match op {
            ScatterOp::Add | ScatterOp::Mul => f64::INFINITY,
            _ => self.bound(base).max(self.bound(updates)),
        };
        self.add(NodeKind::Scatter { axes, op }, &operands, bound)
    }

    fn grow_einsum(&mut self) -> Option<NodeId> {
        let count = self.rng.pick(&[1, 2, 2, 2, 3]);
        let mut operands = Operands::new();
        let mut inputs: SmallVec<[Labels; 2]> = smallvec![];
        let mut extents: Vec<IndexExpr> = Vec::new();
        let mut bound = 1.0;
        for _ in 0..count {
            let x = self.any();
            let x = self.tame(x);
            let mut labels = Labels::new();
            for d in self.ty(x).shape {
                let equal: Vec<usize> = (0..extents.len()).filter(|&l| extents[l] == d).collect();
                let label = if !equal.is_empty() && self.rng.chance(3, 5) {
                    self.rng.pick(&equal)
                } else {
                    extents.push(d);
                    extents.len() - 1
                };
                labels.push(label as u16);
            }
            bound *= self.bound(x);
            operands.push(x);
            inputs.push(labels);
        }
        let most = |d: &IndexExpr| d.interval(&self.graph).hi.max(0) as f64;
        let space: f64 = extents.iter().map(most).product();
        if space > self.options.max_terms as f64 {
            return None;
        }
        let mut output: Labels = self.permutation(extents.len()).into_iter().map(u16::from).collect();
        output.truncate(self.rng.below(extents.len() + 1).min(self.options.max_rank));
        let semiring = self.rng.pick(&[
            Semiring::AddMul,
            Semiring::AddMul,
            Semiring::AddMul,
            Semiring::AddMul,
            Semiring::MaxAdd,
            Semiring::MinAdd,
            Semiring::MaxMul,
            Semiring::OrAnd,
        ]);
        let mut dtype = self.ty(operands[0]).dtype;
        if self.rng.chance(1, 6) {
            dtype = self.rng.pick(&self.options.dtypes);
        }
        let mut accumulator = dtype.accumulator();
        if self.rng.chance(1, 6) {
            accumulator = self.rng.pick(&self.options.dtypes);
        }
        if (semiring == Semiring::OrAnd) != (accumulator == DType::Bool) {
            accumulator = if semiring == Semiring::OrAnd {
                DType::Bool
            } else {
                DType::F32
            };
        }
        let summed_in_both = |l: &u16| output.contains(l) || inputs.iter().all(|of| of.contains(l));
        let of_words = operands.len() == 2 && inputs.iter().flatten().all(summed_in_both);
        // Without a draw, so that graphs without such products are what they would be.
        let semiring = match semiring {
            Semiring::AddMul if of_words && self.graph.len().is_multiple_of(6) => {
                let range = 2f64.powi(31);
                for x in &mut operands {
                    *x = self.add(NodeKind::Convert(DType::I32), &[*x], range)?;
                }
                (accumulator, dtype) = (DType::I32, DType::I32);
                Semiring::AddDot4
            }
            other => other,
        };
        let bound = match semiring {
            Semiring::AddDot4 => 4.0 * 255.0 * 128.0 * space,
            Semiring::AddMul => bound * space,
            Semiring::OrAnd => 1.0,
            _ => f64::INFINITY,
        };
        let kind = NodeKind::Einsum {
            inputs,
            output,
            semiring,
            accumulator,
            dtype,
        };
        self.add(kind, &operands, if bound.is_nan() { f64::INFINITY } else { bound })
    }

    /// A view whose result has that shape, and the shape of what it shows.
    pub(super) fn view_onto(&mut self, dtype: DType, shape: &Shape) -> (View, Shape) {
        let at = self.rng.below(shape.len());
        match self.rng.below(6) {
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
                let (mut start, mut step) = (Vec::new(), Vec::new());
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
                let slice = View::Slice {
                    start: start.into(),
                    step: step.into(),
                    size: shape[..].into(),
                };
                (slice, before)
            }
            3 if shape.get(at).and_then(IndexExpr::as_const).is_some_and(|n| n > 1) => {
                let (mut lo, mut hi) = (Vec::new(), Vec::new());
                for axis in 0..shape.len() {
                    lo.push(IndexExpr::Const(if axis == at { self.rng.range(0, 1) } else { 0 }));
                    hi.push(IndexExpr::Const(if axis == at { self.rng.range(0, 1) } else { 0 }));
                }
                let mut before = shape.clone();
                before[at] = before[at].clone() - lo[at].clone() - hi[at].clone();
                let pad = View::Pad {
                    interior: vec![0; shape.len()].into(),
                    lo: lo.into(),
                    hi: hi.into(),
                    value: dtype.zero(),
                };
                (pad, before)
            }
            4 if shape.len() > 1 && shape.iter().all(|d| d.as_const().is_some_and(|n| n > 0)) => {
                // Windows that slide over an axis before the last.
                let axis = at.min(shape.len() - 2);
                let (stride, dilation) = (self.rng.range(1, 2), self.rng.range(1, 2));
                let size = shape[shape.len() - 1].clone();
                let mut before: Shape = shape[..shape.len() - 1].into();
                let reach = (size.clone() - IndexExpr::ONE) * dilation.into();
                before[axis] = (shape[axis].clone() - IndexExpr::ONE) * stride.into() + reach + IndexExpr::ONE;
                let window = View::Window {
                    axis: axis as u8,
                    size,
                    stride,
                    dilation,
                };
                (window, before)
            }
            _ => (View::Reshape(shape.clone()), self.reshaped(shape)),
        }
    }

    pub(super) fn view(&mut self, kind: ViewKind, ty: &TensorType) -> Option<View> {
        let rank = ty.rank();
        Some(match kind {
            ViewKind::Permute => View::Permute(self.permutation(rank)),
            ViewKind::Expand => {
                let lead = self.rng.below(3);
                let mut shape: Shape = (0..lead).map(|_| self.dim()).collect();
                for d in &ty.shape {
                    shape.push(if d.is(1) { self.dim() } else { d.clone() });
                }
                View::Expand(shape)
            }
            ViewKind::Reshape => View::Reshape(self.reshaped(&ty.shape)),
            ViewKind::Pad => {
                let lo = (0..rank).map(|_| self.padding()).collect();
                let hi = (0..rank).map(|_| self.padding()).collect();
                let value = match self.rng.below(6) {
                    0 => ty.dtype.lowest(),
                    1 if self.options.strange => Scalar::from_bits(ty.dtype, self.rng.bits()),
                    2 | 3 => random_scalar(&mut self.rng, ty.dtype),
                    _ => ty.dtype.zero(),
                };
                let between = self.rng.chance(1, 3);
                let interior = (0..rank).map(|_| match between {
                    true => self.rng.below(4) as i64,
                    false => 0,
                });
                View::Pad {
                    interior: interior.collect(),
                    lo,
                    hi,
                    value,
                }
            }
            ViewKind::Slice => {
                let (mut start, mut step, mut size) = (Vec::new(), Vec::new(), Vec::new());
                for d in &ty.shape {
                    let (a, s, n) = self.slice_of(d);
                    start.push(a);
                    step.push(s);
                    size.push(n);
                }
                View::Slice {
                    start: start.into(),
                    step: step.into(),
                    size: size.into(),
                }
            }
            ViewKind::Window => {
                if rank == 0 {
                    return None;
                }
                View::Window {
                    axis: self.rng.below(rank) as u8,
                    size: match self.rng.chance(1, 8) {
                        true => self.dim(),
                        false => IndexExpr::Const(self.rng.range(1, 3)),
                    },
                    stride: self.rng.range(1, 3),
                    dilation: self.rng.range(1, 2),
                }
            }
        })
    }

    fn padding(&mut self) -> IndexExpr {
        match self.rng.below(8) {
            0 if !self.graph.symbols().is_empty() => self.dim(),
            n => IndexExpr::Const([0, 1, 2, 0, 1, 0, 0, 0][n]),
        }
    }

    /// Start, step and size of a valid slice of an extent.
    fn slice_of(&mut self, d: &IndexExpr) -> (IndexExpr, i64, IndexExpr) {
        let one = IndexExpr::ONE;
        match (self.rng.below(4), d.as_const()) {
            (0, _) => (IndexExpr::ZERO, 1, d.clone()),
            (1, _) => (d.clone() - one, -1, d.clone()),
            (_, Some(n)) if n > 0 => {
                let start = self.rng.range(0, n - 1);
                let step = self.rng.pick(&[1, 1, 2, 3, -1, -2]);
                let room = if step > 0 {
                    (n - 1 - start) / step
                } else {
                    start / -step
                };
                (start.into(), step, self.rng.range(0, room + 1).into())
            }
            (2, None) if self.value(d).is_some_and(|v| v > 0) => (one.clone(), 1, d.clone() - one),
            (3, _) if self.rng.chance(2, 3) => {
                // From one size to another, which may have to be assumed.
                let (start, size) = match self.rng.chance(1, 2) {
                    true => (IndexExpr::ZERO, self.dim()),
                    false => (self.dim(), self.dim()),
                };
                match self.rng.chance(1, 2) {
                    true => (start.clone(), 1, d.clone() - start),
                    false => (start, 1, size),
                }
            }
            _ => (IndexExpr::ZERO, 2, d.ceil_div(2)),
        }
    }

    /// Another shape of as many elements.
    pub(super) fn reshaped(&mut self, shape: &Shape) -> Shape {
        let mut shape = shape.clone();
        for _ in 0..1 + self.rng.below(3) {
            let at = self.rng.below(shape.len() + 1);
            match self.rng.below(4) {
                0 => shape.insert(at, IndexExpr::ONE),
                1 if at < shape.len() && shape[at].is(1) => drop(shape.remove(at)),
                2 if at + 1 < shape.len() => {
                    let next = shape.remove(at + 1);
                    shape[at] = shape[at].clone() * next;
                }
                _ if at < shape.len() => {
                    // Take a factor out of the extent.
                    let k = IndexExpr::Const(self.rng.range(2, 4));
                    if IndexExpr::modulo(&shape[at], &k).is(0) {
                        let rest = IndexExpr::floor_div(&shape[at], &k);
                        let (first, second) = if self.rng.chance(1, 2) { (k, rest) } else { (rest, k) };
                        shape[at] = second;
                        shape.insert(at, first);
                    }
                }
                _ => {}
            }
        }
        shape
    }
}
