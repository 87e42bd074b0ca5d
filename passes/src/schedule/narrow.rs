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

use smallvec::{SmallVec, smallvec};
use tlc_ir::graph::Monoid;
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::{Bind, Kernel, Memory, Op, Scope, Stmt, ValueId};
use tlc_ir::{DType, Scalar, ScalarOp};

use super::directives::{MAX_UNROLL, Refusal, enclosing_lanes, exists, rewrite, touched};
use super::tree::{clone_fresh, substitute_in};

/// Vectors of a block whose extremum is taken at once: so many fit the registers of any target.
const GROUP: i64 = 8;

/// What the loop accumulates.
struct Search {
    monoid: Monoid,
    state: SmallVec<[(Memory, IndexExpr); 2]>,
    dtype: DType,
    position: DType,
}

/// The loop's one accumulation, if that is the position of an extremum among its iterations.
fn search(kernel: &Kernel, var: VarId) -> Result<Search, Refusal> {
    let body = exists(kernel, var)?;
    let mut found = None;
    for s in body {
        match s {
            Stmt::Let { .. } => {}
            Stmt::Accumulate { monoid, state, values } if found.is_none() && monoid.is_arg() => {
                found = Some((*monoid, state.clone(), values.clone()));
            }
            _ => return Err(Refusal::Recurrence(var)),
        }
    }
    let (monoid, state, values) = found.ok_or(Refusal::NoAccumulation(var))?;
    let position = kernel.dtype(values[1]);
    let counts = body.iter().any(
        |s| matches!(s, Stmt::Let { value, op: Op::Index(e, _) } if *value == values[1] && e.as_var() == Some(var)),
    );
    let fixed = state.iter().all(|(m, i)| !touched(body, *m) && !i.uses(var));
    if !counts || !fixed || !matches!(position, DType::I32 | DType::I64) {
        return Err(Refusal::Recurrence(var));
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

    /// Writes a copy of the loop's values at one iteration; answers the element that it accumulates.
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
        let used = copy.iter().any(|s| match s {
            Stmt::Let { op, .. } => {
                let mut uses = false;
                super::tree::for_each_operand(&mut op.clone(), &mut |v| uses |= *v == position);
                uses
            }
            _ => false,
        });
        self.out.extend(
            copy.into_iter()
                .filter(|s| wanted(s) || (used && matches!(s, Stmt::Let { .. }))),
        );
        element
    }
}

/// Answers `[block loop, tail]`, without a tail where that is known to be empty.
pub(super) fn narrow(kernel: &mut Kernel, var: VarId, lanes: i64, vectors: i64) -> Result<Vec<VarId>, Refusal> {
    let what = search(kernel, var)?;
    if !(1..=MAX_UNROLL).contains(&lanes) || !(1..=MAX_UNROLL).contains(&vectors) {
        return Err(Refusal::Factor(lanes.min(vectors)));
    }
    if let Some(Some(outer)) = enclosing_lanes(&kernel.body, var, None) {
        return Err(Refusal::NotNested(outer, var));
    }
    let n = kernel.extents[var.0 as usize].clone();
    let size = lanes * vectors;
    if n.interval(kernel).lo < size {
        return Err(Refusal::MayBeEmpty(var));
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
        made.push(blocks_of(&mut w, &what, &body, var, &blocks, lanes, vectors));
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

/// Writes the search of the whole blocks.
fn blocks_of(
    w: &mut Writer<'_>,
    what: &Search,
    body: &[Stmt],
    var: VarId,
    blocks: &IndexExpr,
    lanes: i64,
    vectors: i64,
) -> VarId {
    let (dtype, position) = (what.dtype, what.position);
    let extremum = if what.monoid == Monoid::ArgMax {
        Monoid::Max
    } else {
        Monoid::Min
    };
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
    let number = if position == DType::I64 {
        number
    } else {
        w.emit(DType::I64, Op::Convert(DType::I64, number))
    };
    let found = w.kernel.new_var(blocks.clone());
    w.out.push(Stmt::Clamp {
        var: found,
        value: number,
    });
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
