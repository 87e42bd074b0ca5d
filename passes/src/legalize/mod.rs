//! Legalization: statements that a target lacks become statements that it has.
//!
//! After it a kernel holds no `Accumulate`, no `Contract` that the emitter has no matrix instructions for, nothing
//! of a GPU if the emitter has no blocks, no conversion from or to a storage type, no transcendental operation with a polynomial form, no arithmetic on f16, bf16
//! or bool that is not bitwise, and no value-defining shortcut. What remains translates one to one.
//!
//! Accumulations become load, combine, store. Elementary functions become the straight-line code of [`crate::math`]. f16
//! and bf16 compute in f32 and round once, as the scalar semantics say.

mod approximate;
mod contract;
mod emit;
mod extrema;
mod serial;
mod size;
mod storage;
mod tile;

pub use size::{convert_statements, legal_block, legal_statements, map_statements};
pub(crate) use storage::{decoded, encoded};

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::{SmallVec, smallvec};
use tlc_ir::graph::Monoid;
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::{Bind, Kernel, Memory, Op, Stmt, ValueId};
use tlc_ir::target::{Emitter, Support, Width};
use tlc_ir::{DType, Precision, Scalar, ScalarOp};

use crate::made::{Made, made};
use crate::math::{self, Function};
use crate::tree::without_unused_inside;

/// Whether the values of an integer dtype are so few that any of them can be added to the significand of an f64.
pub(crate) fn fits_significand(dtype: DType) -> bool {
    dtype.is_int() && dtype.bits() <= 32
}

/// The lanes loop that statements are in.
#[derive(Clone, Copy)]
struct Lanes {
    var: VarId,
    count: i64,
}

struct Legalizer<'k> {
    kernel: &'k mut Kernel,
    out: Vec<Stmt>,
    renamed: FxHashMap<ValueId, ValueId>,
    lanes: Option<Lanes>,
    /// Values that are index expressions: positions as a loop counts them.
    counters: FxHashSet<ValueId>,
    /// Values of 16 bits that are those of an f32, which nothing has to be rounded to.
    unrounded: FxHashMap<ValueId, ValueId>,
    /// For kernels of GPUs, whose branches keep other work from going beside: numbers, values of f32 that are no less than `-EXP_NORMAL`, and those
    /// that are no more than that besides.
    numbers: FxHashMap<ValueId, f64>,
    bounded: FxHashSet<ValueId>,
    in_range: FxHashSet<ValueId>,
    /// Values that are constants: all of the kernel's, and where a formula has constants for operands, those that it makes.
    constants: FxHashMap<ValueId, Scalar>,
    /// Whether the formula that is being emitted has constants for operands, which are computed with at once; and whether some formula had.
    folds: bool,
    has_folded: bool,
    /// The emitter; if there is none, every formula is written out.
    emitter: Option<&'k Emitter>,
    /// Whether functions of f32 may be approximated.
    approximates: bool,
}

/// Whether an operation on 16-bit floats, computed in f32, leaves nothing to be rounded.
fn is_exact(op: ScalarOp) -> bool {
    use ScalarOp::{Abs, Max, Min, Neg, Select};
    matches!(op, Abs | Max | Min | Neg | Select)
}

/// Legalizes a kernel for an emitter, choosing among equal forms the one that it runs fastest.
pub fn legalize(kernel: &mut Kernel, emitter: &Emitter) {
    legalize_as(kernel, emitter, Precision::Exact);
}

/// As [`legalize`], of a graph that need only be computed so exactly.
pub fn legalize_as(kernel: &mut Kernel, emitter: &Emitter, precision: Precision) {
    made(Made::Scheduled(kernel));
    if !emitter.has_blocks {
        serial::serialize(kernel);
    }
    rewrite(kernel, Some(emitter), precision.approximates() && emitter.has_blocks);
    made(Made::Legal(kernel));
}

fn rewrite(kernel: &mut Kernel, emitter: Option<&Emitter>, approximates: bool) {
    let body = std::mem::take(&mut kernel.body);
    let mut l = Legalizer {
        kernel,
        out: Vec::new(),
        renamed: FxHashMap::default(),
        lanes: None,
        counters: FxHashSet::default(),
        unrounded: FxHashMap::default(),
        numbers: FxHashMap::default(),
        bounded: FxHashSet::default(),
        in_range: FxHashSet::default(),
        constants: FxHashMap::default(),
        folds: false,
        has_folded: false,
        emitter,
        approximates,
    };
    l.block(body);
    // What was computed with constants is for the most part needed by nothing but what became a constant itself.
    kernel.body = match l.has_folded {
        true => without_unused_inside(l.out),
        false => l.out,
    };
}

impl Legalizer<'_> {
    fn block(&mut self, body: Vec<Stmt>) {
        for s in body {
            self.statement(s);
        }
    }

    fn of(&self, v: ValueId) -> ValueId {
        self.renamed.get(&v).copied().unwrap_or(v)
    }

    fn nested(&mut self, body: Vec<Stmt>) -> Vec<Stmt> {
        let outer = std::mem::take(&mut self.out);
        self.block(body);
        std::mem::replace(&mut self.out, outer)
    }

    /// Emits an operation as a new value.
    fn emit(&mut self, op: Op, dtype: DType) -> ValueId {
        let value = self.kernel.new_value(dtype);
        self.note(value, &op);
        if let (Op::Const(number), true) = (&op, self.folds) {
            self.constants.insert(value, *number);
        }
        self.out.push(Stmt::Let { value, op });
        value
    }

    /// Remembers the values of loop variables.
    fn note(&mut self, value: ValueId, op: &Op) {
        match op {
            Op::Index(..) => {
                self.counters.insert(value);
            }
            Op::Const(number) if number.dtype() == DType::F32 && self.emitter.is_some_and(|e| e.has_blocks) => {
                self.numbers.insert(value, number.as_f64());
            }
            Op::Map(op @ (ScalarOp::Max | ScalarOp::Min), args) if !self.numbers.is_empty() => {
                let known = |v: &ValueId| self.numbers.get(v).copied();
                let limit = math::EXP_NORMAL;
                let bound = args.iter().find_map(known).filter(|n| (-limit..=limit).contains(n));
                let bounded = args.iter().any(|v| self.bounded.contains(v));
                match (op, bound) {
                    (ScalarOp::Max, Some(_)) => drop(self.bounded.insert(value)),
                    (ScalarOp::Min, Some(_)) if bounded => drop(self.in_range.insert(value)),
                    _ => {}
                }
            }
            _ => {}
        }
    }

    fn map(&mut self, op: ScalarOp, args: &[ValueId]) -> ValueId {
        let dtypes: SmallVec<[DType; 3]> = args.iter().map(|&a| self.kernel.dtype(a)).collect();
        let dtype = op.result_dtype(&dtypes).expect("operands fit by construction");
        self.legal_map(op, args.into(), dtype)
    }

    fn statement(&mut self, mut s: Stmt) {
        s.operands_mut().for_each(|v| *v = self.of(*v));
        match s {
            Stmt::Let { value, op } => match op {
                Op::Map(scalar, args) => {
                    let dtype = self.kernel.dtype(value);
                    let new = self.legal_map(scalar, args, dtype);
                    self.renamed.insert(value, new);
                }
                Op::Index(e, to) if to.is_storage() => {
                    let number = self.emit(Op::Index(e, DType::I64), DType::I64);
                    let new = self.convert_storage(number, DType::I64, to);
                    self.renamed.insert(value, new);
                }
                Op::Convert(to, v) if to.is_storage() || self.kernel.dtype(v).is_storage() => {
                    let from = self.kernel.dtype(v);
                    let new = self.convert_storage(v, from, to);
                    self.renamed.insert(value, new);
                }
                Op::ShortExp2(v) if self.emitter.is_none_or(|e| !e.has_blocks) => {
                    let new = emit::short_exp2(self, v);
                    self.renamed.insert(value, new);
                }
                Op::Approximate(scalar, args) if self.emitter.is_none_or(|e| !e.has_blocks) => {
                    let new = self.legal_map(scalar, args, DType::F32);
                    self.renamed.insert(value, new);
                }
                Op::Convert(DType::F32, v) if self.unrounded.contains_key(&v) => {
                    self.renamed.insert(value, self.unrounded[&v]);
                }
                Op::Convert(DType::F64, v) if self.doubles_by_formula(v) => {
                    let new = self.exact_double(v);
                    self.renamed.insert(value, new);
                }
                Op::Bitcast(to, v)
                    if to != self.kernel.dtype(v) && (to == DType::Bool || self.kernel.dtype(v) == DType::Bool) =>
                {
                    let new = self.bitcast_bool(v, to);
                    self.renamed.insert(value, new);
                }
                op => {
                    self.note(value, &op);
                    if let Op::Const(number) = op {
                        self.constants.insert(value, number);
                    }
                    self.out.push(Stmt::Let { value, op });
                }
            },
            Stmt::Loop {
                var,
                bind: Bind::Unroll,
                body,
            } if self.lanes.is_some() && self.takes_extrema(var, &body) => {
                let copies = self.kernel.extents[var.0 as usize].as_const().unwrap_or(0);
                self.extrema(var, copies, &body);
            }
            Stmt::Loop { var, bind, body } => {
                let saved = self.lanes;
                if bind == Bind::Lanes {
                    let count = self.kernel.extents[var.0 as usize].as_const().unwrap_or(1);
                    self.lanes = Some(Lanes { var, count });
                }
                let body = self.nested(body);
                self.lanes = saved;
                self.out.push(Stmt::Loop { var, bind, body });
            }
            Stmt::Accumulate { monoid, state, values } => self.accumulate(monoid, &state, &values),
            Stmt::Contract(c) if self.lacks(&c) => self.contract(*c),
            mut s => {
                if let Some(body) = s.body_mut() {
                    *body = self.nested(std::mem::take(body));
                }
                self.out.push(s);
            }
        }
    }

    /// What statements here compute: lanes, or one element, as each thread of a GPU does.
    fn width(&self) -> Width {
        match self.lanes {
            Some(_) if self.emitter.is_none_or(|e| !e.has_blocks) => Width::Lanes,
            _ => Width::Scalar,
        }
    }

    /// Emits a scalar operation in legal form; returns its value.
    fn legal_map(&mut self, op: ScalarOp, args: SmallVec<[ValueId; 3]>, dtype: DType) -> ValueId {
        let on = self.kernel.dtype(args[args.len() - 1]);
        match on {
            // What is chosen keeps its bits, unless f32 has it already.
            DType::F16 | DType::BF16
                if op == ScalarOp::Select
                    && self
                        .emitter
                        .is_some_and(|e| e.map(op, on, self.width()) == Support::Native)
                    && !args.iter().any(|a| self.unrounded.contains_key(a)) =>
            {
                self.emit(Op::Map(op, args), dtype)
            }
            DType::F16 | DType::BF16 => {
                let wide: SmallVec<[ValueId; 3]> = args
                    .iter()
                    .map(|&a| {
                        if self.kernel.dtype(a) != on {
                            return a;
                        }
                        let known = self.unrounded.get(&a).copied();
                        known.unwrap_or_else(|| self.emit(Op::Convert(DType::F32, a), DType::F32))
                    })
                    .collect();
                let result = if dtype == on { DType::F32 } else { dtype };
                let value = self.legal_map(op, wide, result);
                if dtype != on {
                    return value;
                }
                let rounded = self.emit(Op::Convert(on, value), on);
                if is_exact(op) {
                    self.unrounded.insert(rounded, value);
                }
                rounded
            }
            DType::Bool => self.bool_map(op, args),
            DType::F32 if self.approximates && dtype == DType::F32 => match self.approximated(op, &args) {
                Some(value) => value,
                None => self.by_formula(op, args, dtype),
            },
            DType::F32 | DType::F64 => self.by_formula(op, args, dtype),
            _ => self.emit(Op::Map(op, args), dtype),
        }
    }

    /// Emits an operation on f32 or f64, written out where the emitter does not have it.
    fn by_formula(&mut self, op: ScalarOp, args: SmallVec<[ValueId; 3]>, dtype: DType) -> ValueId {
        let on = self.kernel.dtype(args[args.len() - 1]);
        match Function::of(op) {
            Some(Function::Exp) if self.in_range.contains(&args[0]) => emit::exp_in_range(self, args[0]),
            Some(function)
                if self
                    .emitter
                    .is_none_or(|e| e.map(op, on, Width::Scalar) == Support::Formula) =>
            {
                emit::function(self, function, on, &args)
            }
            _ => self.emit(Op::Map(op, args), dtype),
        }
    }

    /// An integer of up to 32 bits as f64, in operations that vectors have: it is added to the significand of 2^52 + 2^51, of which
    /// one unit is 1, so that the sum's bits are those of a number that a subtraction makes exact.
    fn exact_double(&mut self, v: ValueId) -> ValueId {
        const ANCHOR: f64 = 6_755_399_441_055_744.0;
        let wide = self.emit(Op::Convert(DType::I64, v), DType::I64);
        let bits = Scalar::from_bits(DType::I64, ANCHOR.to_bits());
        let bits = self.emit(Op::Const(bits), DType::I64);
        let sum = self.emit(Op::Map(ScalarOp::Add, smallvec![wide, bits]), DType::I64);
        let sum = self.emit(Op::Bitcast(DType::F64, sum), DType::F64);
        let anchor = self.emit(Op::Const(Scalar::from_f64(DType::F64, ANCHOR)), DType::F64);
        self.emit(Op::Map(ScalarOp::Sub, smallvec![sum, anchor]), DType::F64)
    }

    /// Whether a conversion to f64 is a formula where it stands: in lanes, of integers that fit a significand.
    fn doubles_by_formula(&self, v: ValueId) -> bool {
        let from = self.kernel.dtype(v);
        let formula = |e: &Emitter| e.convert(from, DType::F64, Width::Lanes) == Support::Formula;
        self.lanes.is_some() && fits_significand(from) && self.emitter.is_none_or(formula)
    }

    /// Operations on bool as bitwise ones, which is what lane masks have.
    fn bool_map(&mut self, op: ScalarOp, args: SmallVec<[ValueId; 3]>) -> ValueId {
        let b = DType::Bool;
        let two = |x: ValueId, y: ValueId| -> SmallVec<[ValueId; 3]> { smallvec![x, y] };
        match (op, &args[..]) {
            (ScalarOp::Max, _) => self.emit(Op::Map(ScalarOp::Or, args), b),
            (ScalarOp::Min, _) => self.emit(Op::Map(ScalarOp::And, args), b),
            (ScalarOp::Ne, _) => self.emit(Op::Map(ScalarOp::Xor, args), b),
            (ScalarOp::Eq, &[x, y]) => {
                let differ = self.emit(Op::Map(ScalarOp::Xor, two(x, y)), b);
                self.emit(Op::Map(ScalarOp::Not, smallvec![differ]), b)
            }
            (ScalarOp::Lt, &[x, y]) => {
                let not = self.emit(Op::Map(ScalarOp::Not, smallvec![x]), b);
                self.emit(Op::Map(ScalarOp::And, two(not, y)), b)
            }
            (ScalarOp::Le, &[x, y]) => {
                let not = self.emit(Op::Map(ScalarOp::Not, smallvec![x]), b);
                self.emit(Op::Map(ScalarOp::Or, two(not, y)), b)
            }
            (ScalarOp::Select, &[c, x, y]) => {
                let not = self.emit(Op::Map(ScalarOp::Not, smallvec![c]), b);
                let left = self.emit(Op::Map(ScalarOp::And, two(c, x)), b);
                let right = self.emit(Op::Map(ScalarOp::And, two(not, y)), b);
                self.emit(Op::Map(ScalarOp::Or, two(left, right)), b)
            }
            _ => self.emit(Op::Map(op, args), b),
        }
    }

    fn accumulate(&mut self, monoid: Monoid, state: &[(Memory, IndexExpr)], values: &[ValueId]) {
        let load = |l: &mut Self, (memory, index): &(Memory, IndexExpr)| {
            let dtype = l.kernel.memory_dtype(*memory);
            l.emit(
                Op::Load {
                    memory: *memory,
                    index: index.clone(),
                    mask: None,
                },
                dtype,
            )
        };
        let store = |l: &mut Self, (memory, index): &(Memory, IndexExpr), value: ValueId| {
            l.out.push(Stmt::Store {
                memory: *memory,
                index: index.clone(),
                value,
                mask: None,
            });
        };
        let old = load(self, &state[0]);
        let new = values[0];
        if let (false, [left, right]) = (monoid.is_arg(), values) {
            let value = self.map(ScalarOp::Fma, &[*left, *right, old]);
            return store(self, &state[0], value);
        }
        if !monoid.is_arg() {
            let value = self.map(monoid.combine(), &[old, new]);
            return store(self, &state[0], value);
        }
        // `new` wins if it is better, or as good and earlier; a NaN is better than any number. "Not at most" is true where
        // either is NaN, and a state that is NaN keeps what it has.
        let (old_at, new_at) = (load(self, &state[1]), values[1]);
        let (low, high) = if monoid == Monoid::ArgMax {
            (new, old)
        } else {
            (old, new)
        };
        let float = self.kernel.dtype(new).is_float();
        let at_most = self.map(ScalarOp::Le, &[low, high]);
        let mut wins = self.map(ScalarOp::Not, &[at_most]);
        if float {
            let number = self.map(ScalarOp::Eq, &[old, old]);
            wins = self.map(ScalarOp::And, &[wins, number]);
        }
        // A loop counts up, so what it meets later is never earlier; states that are combined come in any order.
        if !self.counters.contains(&new_at) {
            let mut same = self.map(ScalarOp::Eq, &[old, new]);
            if float {
                let new_nan = self.map(ScalarOp::Ne, &[new, new]);
                let old_nan = self.map(ScalarOp::Ne, &[old, old]);
                let both = self.map(ScalarOp::And, &[new_nan, old_nan]);
                same = self.map(ScalarOp::Or, &[same, both]);
            }
            let earlier = self.map(ScalarOp::Lt, &[new_at, old_at]);
            let tie = self.map(ScalarOp::And, &[same, earlier]);
            wins = self.map(ScalarOp::Or, &[wins, tie]);
        }
        let value = self.map(ScalarOp::Select, &[wins, new, old]);
        let at = self.map(ScalarOp::Select, &[wins, new_at, old_at]);
        store(self, &state[0], value);
        store(self, &state[1], at);
    }
}
