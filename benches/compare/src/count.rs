//! How many 128-bit vector instructions a plan's kernels need at least, counted in the kernel language.
//!
//! What is counted: every load, store, scalar operation, conversion and accumulation of the legalized kernel counts as one
//! instruction for each 16 bytes of elements that it handles (argmax and argmin accumulate with three: a comparison and
//! two selections), times the trip counts of the loops around it, as if every loop were vectorized. Constants, index
//! arithmetic, bit casts and register scratch are free, and so are bodies of `If`, which are the rare paths
//! of the mathematical functions. So the count is of what the algorithm in the kernel needs at 128-bit lanes, not of what
//! the emitter makes of it: an operation that takes the emitter several instructions shows as a distance from the bound.
//!
//! Invariant: a loop whose extent depends on outer variables counts as at their value 0, which is its main part.

use serde::{Deserialize, Serialize};
use tlc_ir::graph::Monoid;
use tlc_ir::kernel::{Kernel, Memory, Op, Scope, Stmt};
use tlc_ir::plan::{Launch, Step};
use tlc_ir::{DType, IndexExpr, Plan};

/// Vector instructions of a kernel, a launch or a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Instructions {
    /// Arithmetic: what goes to the vector units.
    pub arithmetic: f64,
    /// Loads and stores.
    pub memory: f64,
}

impl Instructions {
    /// Arithmetic and memory instructions together.
    pub fn total(self) -> f64 {
        self.arithmetic + self.memory
    }

    fn add(&mut self, other: Instructions) {
        self.arithmetic += other.arithmetic;
        self.memory += other.memory;
    }
}

/// Vector instructions of one execution of a kernel under the given symbol values.
pub fn static_vector_instructions(kernel: &Kernel, symbols: &[i64]) -> Instructions {
    let mut sum = Instructions::default();
    walk(kernel, &kernel.body, symbols, 1.0, &mut sum);
    sum
}

fn walk(kernel: &Kernel, body: &[Stmt], symbols: &[i64], times: f64, sum: &mut Instructions) {
    let per_16_bytes = |dtype: DType| times * dtype.bytes() as f64 / 16.0;
    let in_register =
        |memory: &Memory| matches!(memory, Memory::Scratch(s) if kernel.scratch[*s as usize].scope == Scope::Register);
    for stmt in body {
        match stmt {
            Stmt::Let { value, op } => {
                let dtype = kernel.dtype(*value);
                match op {
                    Op::Const(_) | Op::Index(..) | Op::Bitcast(..) => {}
                    Op::Load { memory, .. } if in_register(memory) => {}
                    Op::Load { .. } => sum.memory += per_16_bytes(dtype),
                    // A comparison is as wide as what it compares.
                    Op::Map(_, args) => {
                        let widest = args.iter().map(|&a| kernel.dtype(a).bytes()).max().unwrap_or(1);
                        sum.arithmetic += times * widest.max(dtype.bytes()) as f64 / 16.0;
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
                if state.iter().any(|(memory, _)| !in_register(memory)) {
                    sum.memory += 2.0 * per_16_bytes(kernel.dtype(values[0]));
                }
            }
            Stmt::Loop { var, body, .. } => {
                let trips = kernel.extents[var.0 as usize]
                    .eval(symbols, &|_| Some(0))
                    .unwrap_or(1)
                    .max(0);
                walk(kernel, body, symbols, times * trips as f64, sum);
            }
            Stmt::If { .. } | Stmt::Clamp { .. } | Stmt::Barrier => {}
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
            Step::Group(all) => all.iter().for_each(|l| work.instructions.add(launch(l))),
            Step::Gemm(g) => {
                let batch: i64 = g.batch.iter().map(constant).product();
                let flops = 2.0 * batch as f64 * [&g.m, &g.n, &g.k].map(|e| constant(e) as f64).iter().product::<f64>();
                match g.dtype {
                    DType::F64 => work.gemm_f64_flops += flops,
                    _ => work.gemm_f32_flops += flops,
                }
            }
            _ => {}
        }
    }
    work
}
