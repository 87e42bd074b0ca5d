//! How many 128-bit vector instructions a plan's kernels need at least, counted in the kernel language.
//!
//! What is counted: every load, store, scalar operation, conversion and accumulation of the legalized kernel counts as one
//! instruction for each 16 bytes of elements that it handles (argmax and argmin accumulate with three: a comparison and
//! two selections), times the trip counts of the loops around it, as if every loop were vectorized. A comparison and the
//! selection between the same two values are one instruction, a minimum or maximum, and so is the test of two values for NaN.
//! An `If` is one instruction, the test; its body is free, for the bodies are the rare paths of the mathematical functions.
//! Constants, index arithmetic, bit casts and register scratch are free too. So the count is of what the algorithm in the
//! kernel needs at 128-bit lanes, not of what the emitter makes of it: an operation that takes the emitter several
//! instructions shows as a distance from the bound.
//!
//! Of these, what only some of the vector units do is counted again: multiplications and multiply-adds of floats (also
//! those of an accumulated product), and divisions, a square root being counted as a division, which it is no faster than.
//!
//! Invariant: a loop whose extent depends on outer variables counts as at their value 0, which is its main part.

use serde::{Deserialize, Serialize};
use tlc_ir::graph::Monoid;
use tlc_ir::kernel::{Kernel, Memory, Op, Scope, Stmt, ValueId};
use tlc_ir::plan::{Launch, Step};
use tlc_ir::{DType, IndexExpr, Plan, ScalarOp};

/// Vector instructions of a kernel, a launch or a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Instructions {
    /// Arithmetic: what goes to the vector units.
    pub arithmetic: f64,
    /// Loads and stores.
    pub memory: f64,
    /// Multiplications and multiply-adds among the arithmetic.
    pub multiplies: f64,
    /// Divisions and square roots among the arithmetic.
    pub divisions: f64,
}

impl Instructions {
    /// Arithmetic and memory instructions together.
    pub fn total(self) -> f64 {
        self.arithmetic + self.memory
    }

    fn add(&mut self, other: Instructions) {
        self.arithmetic += other.arithmetic;
        self.memory += other.memory;
        self.multiplies += other.multiplies;
        self.divisions += other.divisions;
    }
}

/// Vector instructions of one execution of a kernel under the given symbol values.
pub fn static_vector_instructions(kernel: &Kernel, symbols: &[i64]) -> Instructions {
    let mut sum = Instructions::default();
    let made = definitions(kernel);
    walk(kernel, &made, &kernel.body, symbols, 1.0, &mut sum);
    sum
}

/// By value: the operation that makes it.
fn definitions(kernel: &Kernel) -> Vec<Option<Op>> {
    let mut made = vec![None; kernel.values.len()];
    for s in kernel.statements() {
        if let Stmt::Let { value, op } = s {
            made[value.0 as usize] = Some(op.clone());
        }
    }
    made
}

/// The width of a lane: of a mask, that of what was compared for it.
fn lane_bytes(kernel: &Kernel, made: &[Option<Op>], value: ValueId) -> usize {
    let bytes = kernel.dtype(value).bytes();
    match (kernel.dtype(value), &made[value.0 as usize]) {
        (DType::Bool, Some(Op::Map(_, args))) => {
            let of = args.iter().map(|&a| lane_bytes(kernel, made, a));
            of.max().unwrap_or(bytes)
        }
        _ => bytes,
    }
}

/// Instructions of an operation on whole vectors: one, or a part of the one that does its work together with others.
fn share(made: &[Option<Op>], op: ScalarOp, args: &[ValueId]) -> f64 {
    let map = |v: ValueId| match &made[v.0 as usize] {
        Some(Op::Map(op, args)) => Some((*op, &args[..])),
        _ => None,
    };
    let tests_nan = |v: ValueId| matches!(map(v), Some((ScalarOp::Ne, [a, b])) if a == b);
    match (op, args) {
        // The comparison was counted.
        (ScalarOp::Select, [cond, a, b]) => match map(*cond) {
            Some((ScalarOp::Lt | ScalarOp::Le, [x, y])) if [x, y] == [a, b] || [y, x] == [a, b] => 0.0,
            _ => 1.0,
        },
        (ScalarOp::Ne, [a, b]) if a == b => 0.5,
        (ScalarOp::Or, [a, b]) if tests_nan(*a) && tests_nan(*b) => 0.0,
        _ => 1.0,
    }
}

fn walk(kernel: &Kernel, made: &[Option<Op>], body: &[Stmt], symbols: &[i64], times: f64, sum: &mut Instructions) {
    let per_16_bytes = |dtype: DType| times * dtype.bytes() as f64 / 16.0;
    let in_register =
        |memory: &Memory| matches!(memory, Memory::Scratch(s) if kernel.scratch[*s as usize].scope == Scope::Register);
    for stmt in body {
        match stmt {
            Stmt::Let { value, op } => {
                let dtype = kernel.dtype(*value);
                match op {
                    Op::Const(_) | Op::Index(..) | Op::Bitcast(..) | Op::ShortExp2(_) | Op::Scale(_) | Op::Approximate(..) => {}
                    Op::Load { memory, .. } if in_register(memory) => {}
                    Op::Load { .. } => sum.memory += per_16_bytes(dtype),
                    Op::Map(op, args) => {
                        let widest = args.iter().map(|&a| lane_bytes(kernel, made, a)).max().unwrap_or(1);
                        let each = share(made, *op, args);
                        let vectors = each * times * widest.max(dtype.bytes()) as f64 / 16.0;
                        sum.arithmetic += vectors;
                        match op {
                            ScalarOp::Mul | ScalarOp::Fma if dtype.is_float() => sum.multiplies += vectors,
                            ScalarOp::Div | ScalarOp::Sqrt if dtype.is_float() => sum.divisions += vectors,
                            _ => {}
                        }
                    }
                    Op::Convert(_, from) => {
                        sum.arithmetic += times * kernel.dtype(*from).bytes().max(dtype.bytes()) as f64 / 16.0;
                    }
                }
            }
            Stmt::Store { memory, .. } if in_register(memory) => {}
            Stmt::Store { memory, .. } => sum.memory += per_16_bytes(kernel.memory_dtype(*memory)),
            Stmt::Accumulate { monoid, state, values } => {
                let each = match monoid {
                    Monoid::ArgMax | Monoid::ArgMin => 3.0,
                    _ => 1.0,
                };
                sum.arithmetic += each * per_16_bytes(kernel.dtype(values[0]));
                if *monoid == Monoid::Mul && kernel.dtype(values[0]).is_float() {
                    sum.multiplies += per_16_bytes(kernel.dtype(values[0]));
                }
                if state.iter().any(|(memory, _)| !in_register(memory)) {
                    sum.memory += 2.0 * per_16_bytes(kernel.dtype(values[0]));
                }
            }
            Stmt::Loop { var, body, .. } => {
                let trips = kernel.extents[var.0 as usize]
                    .eval(symbols, &|_| Some(0))
                    .unwrap_or(1)
                    .max(0);
                walk(kernel, made, body, symbols, times * trips as f64, sum);
            }
            Stmt::If { cond, .. } => sum.arithmetic += times * lane_bytes(kernel, made, *cond) as f64 / 16.0,
            // Legal kernels of a host hold nothing of a GPU, and no contractions.
            Stmt::Clamp { .. }
            | Stmt::Contract(_)
            | Stmt::Collective(_)
            | Stmt::FoldRows(_)
            | Stmt::Each { .. }
            | Stmt::CopyAsync(_)
            | Stmt::Prefetch { .. }
            | Stmt::Commit
            | Stmt::Wait(_)
            | Stmt::Barrier => {}
        }
    }
}

/// What one call of a plan computes, put together from its steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Vector instructions of all kernels.
    pub instructions: Instructions,
    /// Floating-point operations of f32 matrix products by the library.
    pub gemm_f32_flops: f64,
    /// Floating-point operations of f64 matrix products by the library.
    pub gemm_f64_flops: f64,
}

/// Counts the work of a plan without symbols.
pub fn plan_work(plan: &Plan) -> Work {
    let mut work = Work::default();
    let constant = |e: &IndexExpr| e.eval_symbols(&[]).unwrap_or(1);
    let launch = |l: &Launch| {
        let symbols: Vec<i64> = l.symbols.iter().map(constant).collect();
        static_vector_instructions(&plan.kernels[l.kernel.0 as usize], &symbols)
    };
    for step in &plan.steps {
        match step {
            Step::Launch(l) => work.instructions.add(launch(l)),
            Step::Group(all) | Step::Sequence(all) => all.iter().for_each(|l| work.instructions.add(launch(l))),
            Step::Gemm(first) => {
                for g in [Some(&**first), first.behind()].into_iter().flatten() {
                    let batch: i64 = g.batch.iter().map(constant).product();
                    let flops =
                        2.0 * batch as f64 * [&g.m, &g.n, &g.k].map(|e| constant(e) as f64).iter().product::<f64>();
                    match g.dtype {
                        DType::F64 => work.gemm_f64_flops += flops,
                        _ => work.gemm_f32_flops += flops,
                    }
                }
            }
            _ => {}
        }
    }
    work
}
