//! Narrowing: the position of an extremum, found block by block.
//!
//! An element and its position cost several operations an element. The extremum of a block costs one, and the position of
//! the best block is noted once a block; the block that wins is then searched:
//!
//! ```text
//! for each block, each lane: top = extremum of the block; (best, which) = argmax(best, which; top, block)
//! in block `which`: the first position whose element is `best`, or NaN where that is NaN
//! ```
//! The first position of all is in the first block that has the extremum, so the result is the one of the serial loop.
//!
//! NaN, which wins, would double the work of each block. So the blocks take the extremum of numbers, and beside it a sum of
//! squares: `1 + x0 * x0 + x1 * x1 + ...` is NaN if and only if one of the elements is, and a multiply-add runs beside
//! comparisons on processors of today. A row in which that happened is searched once more, element by element.

use smallvec::{SmallVec, smallvec};
use tlc_ir::graph::Monoid;
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::{Bind, Kernel, Memory, Op, Scope, Stmt, ValueId};
use tlc_ir::{DType, Scalar, ScalarOp};

use super::accumulators::touched;
use super::directives::{enclosing_lanes, exists, rewrite};
use crate::directive::{DirectiveRefusal, MAX_UNROLL};
use crate::tree::{clone_fresh, substitute_in};

/// Vectors of a block whose extremum is taken at once: so many fit the registers of any target.
const GROUP: i64 = 8;

/// What the loop accumulates.
struct Search {
    monoid: Monoid,
    state: SmallVec<[(Memory, IndexExpr); 2]>,
    dtype: DType,
    position: DType,
}

impl Search {
    fn extremum(&self) -> Monoid {
        match self.monoid {
            Monoid::ArgMax => Monoid::Max,
            _ => Monoid::Min,
        }
    }
}

/// The operands of `<` that say that `new` is better than `old`.
fn extremum_order(extremum: Monoid, old: ValueId, new: ValueId) -> (ValueId, ValueId) {
    if extremum == Monoid::Max {
        (old, new)
    } else {
        (new, old)
    }
}

/// The loop's one accumulation, if that is the position of an extremum among its iterations.
fn search(kernel: &Kernel, var: VarId) -> Result<Search, DirectiveRefusal> {
    let body = exists(kernel, var)?;
    let mut found = None;
    for s in body {
        match s {
            Stmt::Let { .. } => {}
            Stmt::Accumulate { monoid, state, values } if found.is_none() && monoid.is_arg() => {
                found = Some((*monoid, state.clone(), values.clone()));
            }
            _ => return Err(DirectiveRefusal::Recurrence(var)),
        }
    }
    let (monoid, state, values) = found.ok_or(DirectiveRefusal::NoAccumulation(var))?;
    let position = kernel.dtype(values[1]);
    let counts = body.iter().any(
        |s| matches!(s, Stmt::Let { value, op: Op::Index(e, _) } if *value == values[1] && e.as_var() == Some(var)),
    );
    let fixed = state.iter().all(|(m, i)| !touched(body, *m) && !i.uses(var));
    if !counts || !fixed || !matches!(position, DType::I32 | DType::I64) {
        return Err(DirectiveRefusal::Recurrence(var));
    }
    Ok(Search {
        monoid,
        state,
        dtype: kernel.dtype(values[0]),
        position,
    })
}

/// Statements being written.
struct Writer<'k> {
    kernel: &'k mut Kernel,
    out: Vec<Stmt>,
}

impl Writer<'_> {
    fn emit(&mut self, dtype: DType, op: Op) -> ValueId {
        let value = self.kernel.new_value(dtype);
        self.out.push(Stmt::Let { value, op });
        value
    }

    fn constant(&mut self, value: Scalar) -> ValueId {
        self.emit(value.dtype(), Op::Const(value))
    }

    fn index(&mut self, e: IndexExpr, dtype: DType) -> ValueId {
        self.emit(dtype, Op::Index(e, dtype))
    }

    fn load(&mut self, memory: Memory, index: IndexExpr) -> ValueId {
        let dtype = self.kernel.memory_dtype(memory);
        let mask = None;
        self.emit(dtype, Op::Load { memory, index, mask })
    }

    fn store(&mut self, memory: Memory, index: IndexExpr, value: ValueId) {
        let mask = None;
        self.out.push(Stmt::Store {
            memory,
            index,
            value,
            mask,
        });
    }

    fn map(&mut self, op: ScalarOp, dtype: DType, args: &[ValueId]) -> ValueId {
        self.emit(dtype, Op::Map(op, args.into()))
    }

    fn register(&mut self, dtype: DType, len: i64) -> Memory {
        self.kernel.new_scratch(dtype, IndexExpr::Const(len), Scope::Register)
    }

    fn accumulate(&mut self, monoid: Monoid, state: &[(Memory, IndexExpr)], values: &[ValueId]) {
        self.out.push(Stmt::Accumulate {
            monoid,
            state: state.into(),
            values: values.into(),
        });
    }

    /// A loop around what `f` writes.
    fn repeat(&mut self, var: VarId, bind: Bind, f: impl FnOnce(&mut Self)) {
        let outside = std::mem::take(&mut self.out);
        f(self);
        let body = std::mem::replace(&mut self.out, outside);
        self.out.push(Stmt::Loop { var, bind, body });
    }

    /// The better of two elements; `b` where either is NaN.
    fn better(&mut self, extremum: Monoid, a: ValueId, b: ValueId) -> ValueId {
        let dtype = self.kernel.dtype(a);
        if !dtype.is_float() {
            return self.map(extremum.combine(), dtype, &[a, b]);
        }
        let (low, high) = extremum_order(extremum, b, a);
        let wins = self.map(ScalarOp::Lt, DType::Bool, &[low, high]);
        self.map(ScalarOp::Select, dtype, &[wins, a, b])
    }

    /// Combines values in a tree.
    fn tree(
        &mut self,
        mut values: SmallVec<[ValueId; 16]>,
        combine: impl Fn(&mut Self, ValueId, ValueId) -> ValueId,
    ) -> ValueId {
        while values.len() > 1 {
            values = values
                .chunks(2)
                .map(|pair| match *pair {
                    [a, b] => combine(self, a, b),
                    _ => pair[0],
                })
                .collect();
        }
        values[0]
    }

    /// Combines the elements of a register.
    fn fold(&mut self, of: Memory, len: i64, combine: impl Fn(&mut Self, ValueId, ValueId) -> ValueId) -> ValueId {
        let values = (0..len).map(|c| self.load(of, IndexExpr::Const(c))).collect();
        self.tree(values, combine)
    }

    /// A variable in `0..extent` with the value of `number`.
    fn clamped(&mut self, number: ValueId, extent: &IndexExpr) -> VarId {
        let value = match self.kernel.dtype(number) {
            DType::I64 => number,
            _ => self.emit(DType::I64, Op::Convert(DType::I64, number)),
        };
        let var = self.kernel.new_var(extent.clone());
        self.out.push(Stmt::Clamp { var, value });
        var
    }

    /// Writes a copy of the loop's values at one iteration; returns the element that it accumulates.
    fn element(&mut self, body: &[Stmt], var: VarId, at: &IndexExpr) -> ValueId {
        let mut copy = clone_fresh(self.kernel, body);
        substitute_in(self.kernel, &mut copy, &mut |v| (v == var).then(|| at.clone()));
        let Some(Stmt::Accumulate { values, .. }) = copy.iter().find(|s| matches!(s, Stmt::Accumulate { .. })) else {
            unreachable!("checked before")
        };
        let (element, position) = (values[0], values[1]);
        let wanted = |s: &Stmt| match s {
            Stmt::Let { value, .. } => *value != position || element == position,
            _ => false,
        };
        // The position may be an operand as well.
        let used = copy
            .iter()
            .any(|s| matches!(s, Stmt::Let { op, .. } if op.operands().contains(&position)));
        self.out.extend(
            copy.into_iter()
                .filter(|s| wanted(s) || (used && matches!(s, Stmt::Let { .. }))),
        );
        element
    }
}

/// Returns `[block loop, tail]`, without a tail where that is known to be empty. With `squares` NaN is looked for by sums of
/// squares.
pub(super) fn narrow(
    kernel: &mut Kernel,
    var: VarId,
    lanes: i64,
    vectors: i64,
    squares: bool,
) -> Result<Vec<VarId>, DirectiveRefusal> {
    let what = search(kernel, var)?;
    let apart = match what.dtype {
        DType::F32 | DType::F64 => squares,
        d => d.is_int(),
    };
    if !(1..=MAX_UNROLL).contains(&lanes) || !(1..=MAX_UNROLL).contains(&vectors) {
        return Err(DirectiveRefusal::Factor(lanes.min(vectors)));
    }
    if let Some(Some(outer)) = enclosing_lanes(&kernel.body, var, None) {
        return Err(DirectiveRefusal::NotNested(outer, var));
    }
    let n = kernel.extents[var.0 as usize].clone();
    let size = lanes * vectors;
    if n.interval(kernel).lo < size {
        return Err(DirectiveRefusal::MayBeEmpty(var));
    }
    let block = IndexExpr::Const(size);
    let blocks = IndexExpr::floor_div(&n, &block).simplify(kernel);
    let left = IndexExpr::modulo(&n, &block).simplify(kernel);
    let mut made = Vec::new();
    rewrite(kernel, var, &mut |kernel, _, body| {
        let mut w = Writer {
            kernel,
            out: Vec::new(),
        };
        let shape = Shape { var, lanes, vectors };
        made.push(if apart {
            numbers_of(&mut w, &what, &body, &blocks, &shape)
        } else {
            blocks_of(&mut w, &what, &body, &blocks, &shape)
        });
        if !left.is(0) {
            let t = w.kernel.new_var(left.clone());
            let mut tail = clone_fresh(w.kernel, &body);
            let at = blocks.clone() * block.clone() + t.into();
            substitute_in(w.kernel, &mut tail, &mut |v| (v == var).then(|| at.clone()));
            w.out.push(Stmt::Loop {
                var: t,
                bind: Bind::Serial,
                body: tail,
            });
            made.push(t);
        }
        std::mem::take(&mut w.out)
    });
    Ok(made)
}

/// The loop, and what its blocks look like.
struct Shape {
    var: VarId,
    lanes: i64,
    vectors: i64,
}

/// Writes the search of the whole blocks, extrema and NaN apart.
fn numbers_of(w: &mut Writer<'_>, what: &Search, body: &[Stmt], blocks: &IndexExpr, shape: &Shape) -> VarId {
    let &Shape { var, lanes, vectors } = shape;
    let (dtype, position, extremum) = (what.dtype, what.position, what.extremum());
    let float = dtype.is_float();
    let (size, width) = (IndexExpr::Const(lanes * vectors), IndexExpr::Const(lanes));
    // NaN where one was met, zero elsewhere.
    let met = float.then(|| w.register(dtype, lanes));
    let (best, which) = (w.register(dtype, lanes), w.register(position, lanes));
    let lane = |w: &mut Writer<'_>| w.kernel.new_var(IndexExpr::Const(lanes));
    let l = lane(w);
    w.repeat(l, Bind::Lanes, |w| {
        let identity = w.constant(extremum.identity(dtype));
        w.store(best, l.into(), identity);
        let zero = w.constant(position.zero());
        w.store(which, l.into(), zero);
        if let Some(met) = met {
            let zero = w.constant(dtype.zero());
            w.store(met, l.into(), zero);
        }
    });
    let k = w.kernel.new_var(blocks.clone());
    w.repeat(k, Bind::Serial, |w| {
        let l = lane(w);
        w.repeat(l, Bind::Lanes, |w| {
            let elements: SmallVec<[ValueId; 16]> = (0..vectors)
                .map(|u| {
                    let at = IndexExpr::from(k) * size.clone() + IndexExpr::Const(u * lanes) + l.into();
                    w.element(body, var, &at)
                })
                .collect();
            let top = elements[1..]
                .iter()
                .fold(elements[0], |top, &x| w.better(extremum, x, top));
            let number = w.index(k.into(), position);
            let (old, old_at) = (w.load(best, l.into()), w.load(which, l.into()));
            let (low, high) = extremum_order(extremum, old, top);
            let wins = w.map(ScalarOp::Lt, DType::Bool, &[low, high]);
            let new = w.map(ScalarOp::Select, dtype, &[wins, top, old]);
            let new_at = w.map(ScalarOp::Select, position, &[wins, number, old_at]);
            w.store(best, l.into(), new);
            w.store(which, l.into(), new_at);
            // Last, so that the elements need not be kept: the sums may take their registers.
            if let Some(met) = met {
                let one = w.constant(Scalar::from_f64(dtype, 1.0));
                let mut sums = [one; 2];
                for (u, &x) in elements.iter().enumerate() {
                    sums[u % 2] = w.map(ScalarOp::Fma, dtype, &[x, x, sums[u % 2]]);
                }
                let tests = sums.map(|s| w.map(ScalarOp::Ne, DType::Bool, &[s, s]));
                let any = w.map(ScalarOp::Or, DType::Bool, &tests);
                let nan = w.constant(Scalar::from_bits(dtype, u64::MAX >> (64 - dtype.bits())));
                let before = w.load(met, l.into());
                let after = w.map(ScalarOp::Select, dtype, &[any, nan, before]);
                w.store(met, l.into(), after);
            }
        });
    });
    // The best of the lanes, and the first block that has it.
    let value = w.fold(best, lanes, |w, a, b| w.better(extremum, a, b));
    let least = |w: &mut Writer<'_>, a, b| w.map(ScalarOp::Min, position, &[a, b]);
    let behind = w.index(blocks.clone(), position);
    let l = lane(w);
    w.repeat(l, Bind::Lanes, |w| {
        let x = w.load(best, l.into());
        let at = w.load(which, l.into());
        let at = first_of(w, x, value, None, at, behind);
        w.store(which, l.into(), at);
    });
    let number = w.fold(which, lanes, least);
    let found = w.clamped(number, blocks);
    // The first position in that block.
    let first = w.register(position, lanes);
    let far = w.constant(Scalar::from_i64(position, lanes * vectors));
    let l = lane(w);
    w.repeat(l, Bind::Lanes, |w| {
        let places: SmallVec<[ValueId; 16]> = (0..vectors)
            .map(|u| {
                let inside = IndexExpr::Const(u) * width.clone() + l.into();
                let x = w.element(body, var, &(IndexExpr::from(found) * size.clone() + inside.clone()));
                let at = w.index(inside, position);
                first_of(w, x, value, None, at, far)
            })
            .collect();
        let at = w.tree(places, least);
        w.store(first, l.into(), at);
    });
    let inside = w.fold(first, lanes, least);
    let start = w.index(IndexExpr::from(found) * size.clone(), position);
    let at = w.map(ScalarOp::Add, position, &[start, inside]);
    let values: SmallVec<[ValueId; 2]> = smallvec![value, at];
    w.accumulate(what.monoid, &what.state, &values);
    // Accumulating an element twice changes nothing, and a NaN wins over whatever was found.
    if let Some(met) = met {
        let sum = w.fold(met, lanes, |w, a, b| w.map(ScalarOp::Add, dtype, &[a, b]));
        let any = w.map(ScalarOp::Ne, DType::Bool, &[sum, sum]);
        let i = w.kernel.new_var((blocks.clone() * size).simplify(w.kernel));
        let mut again = clone_fresh(w.kernel, body);
        substitute_in(w.kernel, &mut again, &mut |v| (v == var).then(|| i.into()));
        w.out.push(Stmt::If {
            cond: any,
            body: vec![Stmt::Loop {
                var: i,
                bind: Bind::Serial,
                body: again,
            }],
        });
    }
    k
}

/// Writes the search of the whole blocks.
fn blocks_of(w: &mut Writer<'_>, what: &Search, body: &[Stmt], blocks: &IndexExpr, shape: &Shape) -> VarId {
    let &Shape { var, lanes, vectors } = shape;
    let (dtype, position, extremum) = (what.dtype, what.position, what.extremum());
    let size = IndexExpr::Const(lanes * vectors);
    let width = IndexExpr::Const(lanes);
    let (best, which, top) = (
        w.register(dtype, lanes),
        w.register(position, lanes),
        w.register(dtype, lanes),
    );
    let lane = |w: &mut Writer<'_>| w.kernel.new_var(IndexExpr::Const(lanes));
    let l = lane(w);
    w.repeat(l, Bind::Lanes, |w| {
        let identity = w.constant(extremum.identity(dtype));
        w.store(best, l.into(), identity);
        let zero = w.constant(position.zero());
        w.store(which, l.into(), zero);
    });
    let k = w.kernel.new_var(blocks.clone());
    w.repeat(k, Bind::Serial, |w| {
        let l = lane(w);
        w.repeat(l, Bind::Lanes, |w| {
            let identity = w.constant(extremum.identity(dtype));
            w.store(top, l.into(), identity);
            for from in (0..vectors).step_by(GROUP as usize) {
                let u = w.kernel.new_var(IndexExpr::Const(GROUP.min(vectors - from)));
                w.repeat(u, Bind::Unroll, |w| {
                    let number = IndexExpr::from(u) + IndexExpr::Const(from);
                    let at = IndexExpr::from(k) * size.clone() + number * width.clone() + l.into();
                    let x = w.element(body, var, &at);
                    w.accumulate(extremum, &[(top, l.into())], &[x]);
                });
            }
            let t = w.load(top, l.into());
            let number = w.index(k.into(), position);
            w.accumulate(what.monoid, &[(best, l.into()), (which, l.into())], &[t, number]);
        });
    });
    // The best of the lanes, and the first block that has it.
    let winner = w.register(dtype, 1);
    let identity = w.constant(extremum.identity(dtype));
    w.store(winner, IndexExpr::ZERO, identity);
    let c = lane(w);
    w.repeat(c, Bind::Unroll, |w| {
        let value = w.load(best, c.into());
        w.accumulate(extremum, &[(winner, IndexExpr::ZERO)], &[value]);
    });
    let value = w.load(winner, IndexExpr::ZERO);
    let nan = dtype
        .is_float()
        .then(|| w.map(ScalarOp::Ne, DType::Bool, &[value, value]));
    let (l, c) = (lane(w), lane(w));
    let behind = w.index(blocks.clone(), position);
    w.repeat(l, Bind::Lanes, |w| {
        let x = w.load(best, l.into());
        let at = w.load(which, l.into());
        let at = first_of(w, x, value, nan, at, behind);
        w.store(which, l.into(), at);
    });
    let number = nearest(w, which, c, behind);
    let found = w.clamped(number, blocks);
    let first = w.register(position, lanes);
    let far = w.constant(Scalar::from_i64(position, lanes * vectors));
    let (l, u, c) = (lane(w), w.kernel.new_var(IndexExpr::Const(vectors)), lane(w));
    w.repeat(l, Bind::Lanes, |w| {
        w.store(first, l.into(), far);
        w.repeat(u, Bind::Unroll, |w| {
            let inside = IndexExpr::from(u) * width.clone() + l.into();
            let x = w.element(body, var, &(IndexExpr::from(found) * size.clone() + inside.clone()));
            let at = w.index(inside, position);
            let at = first_of(w, x, value, nan, at, far);
            w.accumulate(Monoid::Min, &[(first, l.into())], &[at]);
        });
    });
    let inside = nearest(w, first, c, far);
    let start = w.index(IndexExpr::from(found) * size, position);
    let at = w.map(ScalarOp::Add, position, &[start, inside]);
    let values: SmallVec<[ValueId; 2]> = smallvec![value, at];
    w.accumulate(what.monoid, &what.state, &values);
    k
}

/// `at` where `x` is the extremum `value` (or NaN, where that is what `nan` says), `far` elsewhere.
fn first_of(
    w: &mut Writer<'_>,
    x: ValueId,
    value: ValueId,
    nan: Option<ValueId>,
    at: ValueId,
    far: ValueId,
) -> ValueId {
    let mut same = w.map(ScalarOp::Eq, DType::Bool, &[x, value]);
    if let Some(nan) = nan {
        let x_nan = w.map(ScalarOp::Ne, DType::Bool, &[x, x]);
        let both = w.map(ScalarOp::And, DType::Bool, &[x_nan, nan]);
        same = w.map(ScalarOp::Or, DType::Bool, &[same, both]);
    }
    let dtype = w.kernel.dtype(at);
    w.map(ScalarOp::Select, dtype, &[same, at, far])
}

/// The least of the positions that the lanes hold, `far` if none is less.
fn nearest(w: &mut Writer<'_>, of: Memory, lane: VarId, far: ValueId) -> ValueId {
    let dtype = w.kernel.memory_dtype(of);
    let least = w.register(dtype, 1);
    w.store(least, IndexExpr::ZERO, far);
    w.repeat(lane, Bind::Unroll, |w| {
        let at = w.load(of, lane.into());
        w.accumulate(Monoid::Min, &[(least, IndexExpr::ZERO)], &[at]);
    });
    w.load(least, IndexExpr::ZERO)
}
