//! The kernel verifier: every violation of the invariants of [`crate::kernel`], not just the first.
//!
//! Invariants:
//! - [`structure`] needs no proofs: definitions, dtypes, scopes, bindings, register indices, parameter access. What it
//!   reports is wrong. A kernel without structural errors can be run by the interpreter and translated by emitters.
//! - [`verify`] adds what must hold for all values of symbols and variables: accesses inside their memory, disjoint writes
//!   of parallel iterations. Such a fact is proven, or refuted by an example (an error), or neither: then it is listed as
//!   unproven, which is not an error.
//! - [`refute`] looks for errors alone, at the ends of loops, which is what every compilation can afford.

mod collective;
mod contract;
mod prove;
mod races;
mod refute;
mod threads;

use std::fmt;

use rustc_hash::FxHashSet;

use crate::dtype::DType;
use crate::index::{IndexExpr, IndexNode, VarId};
use crate::kernel::{Access, Bind, CopyNest, Kernel, Memory, Op, Scope, Stmt, ValueId};
use crate::scalar::ScalarTypeError;

pub use prove::Example;
pub(crate) use prove::nonnegative;
pub use refute::refute;

/// Where in a kernel: statement numbers from the body inwards. Empty for the kernel's tables.
#[derive(Clone, PartialEq, Eq, Debug, Default, Hash)]
pub struct Place(pub Vec<u32>);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("kernel");
        }
        let parts: Vec<String> = self.0.iter().map(u32::to_string).collect();
        write!(f, "statement {}", parts.join("."))
    }
}

/// A broken rule, and where.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{place}: {rule}")]
pub struct Violation {
    /// Where.
    pub place: Place,
    /// What.
    pub rule: Rule,
}

/// What is wrong with a kernel.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Rule {
    /// A value has a second definition.
    #[error("%{} is defined twice", .0.0)]
    Redefined(ValueId),
    /// A value is used where its definition does not reach.
    #[error("%{} is used where it is not defined", .0.0)]
    NotDefined(ValueId),
    /// A value, variable, memory or symbol that the kernel's tables lack.
    #[error("there is no {0}")]
    Missing(String),
    /// A value has another dtype than its operation gives or its use wants.
    #[error("%{} is {found}, expected {expected}", .value.0)]
    Dtype {
        /// The value.
        value: ValueId,
        /// The recorded dtype.
        found: DType,
        /// What fits.
        expected: String,
    },
    /// Operands do not fit an operation.
    #[error(transparent)]
    Operands(#[from] ScalarTypeError),
    /// A variable belongs to two statements.
    #[error("i{} belongs to two statements", .0.0)]
    VariableReused(VarId),
    /// A variable is used outside its statement.
    #[error("i{} is used outside its loop", .0.0)]
    VariableScope(VarId),
    /// A length mentions a loop variable.
    #[error("a length mentions i{}", .0.0)]
    LengthOverVariable(VarId),
    /// A parallel loop that is not the only outermost statement.
    #[error("parallel loop i{} is not the only outermost statement", .0.0)]
    ParallelPosition(VarId),
    /// A block loop that is not the only outermost statement.
    #[error("block loop i{} is not the only outermost statement", .0.0)]
    BlockPosition(VarId),
    /// A thread loop that is not in a block loop, or in another thread loop, or under a condition.
    #[error("thread loop i{} is not directly in the block loop: it is outside, in a thread loop, or under a condition", .0.0)]
    ThreadPosition(VarId),
    /// More threads than a block can have.
    #[error("thread loop i{} has up to {threads} iterations, expected at most 1024", .var.0)]
    ThreadCount {
        /// The thread loop.
        var: VarId,
        /// Its largest extent.
        threads: i64,
    },
    /// A barrier that not every thread of a block reaches.
    #[error("a barrier is in a thread loop or outside of the block loop; expected it between thread loops")]
    BarrierPosition,
    /// A store that every thread of a block executes.
    #[error("{0} is written outside of the thread loops, where only registers may be, and in warp loops nothing")]
    UniformWrite(Memory),
    /// Memory of one thread that is used outside of the thread loop that writes it.
    #[error("r{0} is each thread's own, but is used outside of the thread loop that writes it")]
    ThreadScratch(u32),
    /// Two threads of a block can touch one element that one of them writes, without a barrier between.
    #[error("two threads touch one element of {memory} without a barrier between them, {example}")]
    ThreadConflict {
        /// The memory.
        memory: Memory,
        /// Where the second of them is, or nothing where that is just not excluded.
        example: Example,
    },
    /// Lanes and copies need a constant count.
    #[error("the extent of {} loop i{} is not constant", .0.name(), .1.0)]
    ExtentNotConstant(Bind, VarId),
    /// A lanes loop holds something other than unrolled loops.
    #[error("loop i{} inside lanes loop i{}", .inner.0, .lanes.0)]
    InsideLanes {
        /// The lanes loop.
        lanes: VarId,
        /// The loop inside.
        inner: VarId,
    },
    /// A copy loop that does something else.
    #[error("{} loop i{} does not just copy", .0.name(), .1.0)]
    NotACopy(Bind, VarId),
    /// Several lanes write one element.
    #[error("lanes of i{} write one element of {memory}", .lanes.0)]
    LanesCollide {
        /// The lanes loop.
        lanes: VarId,
        /// What is written.
        memory: Memory,
    },
    /// Register scratch whose length is not constant.
    #[error("register scratch r{0} has no constant length")]
    RegisterLength(u32),
    /// A register index that does not become constant plus a lane.
    #[error("register scratch r{scratch} is accessed at an index that unrolling does not make constant")]
    RegisterIndex {
        /// The scratch.
        scratch: u32,
    },
    /// A number of states or values that the monoid does not have.
    #[error("{monoid} accumulates {expected} values, found {found}")]
    States {
        /// Monoid name.
        monoid: &'static str,
        /// How many it has.
        expected: usize,
        /// How many there are.
        found: usize,
    },
    /// A use that the parameter's access mode excludes.
    #[error("p{param} is declared {} but {found}", .access.name())]
    ParamAccess {
        /// The parameter.
        param: u32,
        /// Its declared use.
        access: Access,
        /// What is done.
        found: &'static str,
    },
    /// A constant divisor that is not positive.
    #[error("a divisor is not positive")]
    Divisor,
    /// A warp loop that is not directly in the block loop.
    #[error("warp loop i{} is not directly in the block loop: it is outside, in a warp or thread loop, or under a condition", .0.0)]
    WarpPosition(VarId),
    /// A thread loop in a warp that is not one iteration a thread.
    #[error("thread loop i{} in a warp does not have exactly 32 iterations", .0.0)]
    WarpThreads(VarId),
    /// An extent in a warp loop that depends on the warp.
    #[error("the extent of i{} in a warp loop depends on the warp", .0.0)]
    WarpExtent(VarId),
    /// A clamped variable of a warp, which may differ among warps.
    #[error("i{} is clamped in a warp loop outside of thread loops", .0.0)]
    WarpClamp(VarId),
    /// Scratch of scope `Thread` whose length is not constant.
    #[error("r{0}, of which each thread has a copy, has no constant length")]
    ThreadLength(u32),
    /// Scratch of scope `Thread` that is used where no thread is known.
    #[error("r{0}, of which each thread has a copy, is used outside of the thread loops")]
    ThreadCopy(u32),
    /// A collective in a thread loop, or outside of the group that it is of.
    #[error("a collective is not directly in the {} loop that it is of", if *.warp { "warp" } else { "block" })]
    CollectivePosition {
        /// Whether it is of a warp.
        warp: bool,
    },
    /// A collective on something other than scratch of scope `Thread`.
    #[error("a collective is on {0}, expected scratch of which each thread has a copy")]
    CollectiveMemory(Memory),
    /// A collective of no threads, of more than a block has, or from one that does not take part.
    #[error("a collective is of {threads} threads from thread {from}, expected 1 to 1024 threads and one of them")]
    CollectiveThreads {
        /// Threads of the group.
        threads: i64,
        /// Whose element is broadcast, or the first thread.
        from: i64,
    },
    /// A collective with a monoid of two states.
    #[error("a collective combines by {0}, which has two states")]
    CollectiveMonoid(&'static str),
    /// A contraction inside a lanes loop.
    #[error("a contraction is in lanes loop i{}", .0.0)]
    ContractInLanes(VarId),
    /// A tile of a size that is not constant or not positive.
    #[error("i{} goes along a side of a tile, whose length is not a positive constant", .0.0)]
    TileExtent(VarId),
    /// A contraction into something other than a thread's own scratch.
    #[error("a contraction is accumulated into {0}, expected register, cache or thread scratch")]
    TileMemory(Memory),
    /// The tile of a contraction is not a matrix of different elements.
    #[error("the tile in {0} is not a strided matrix of different elements")]
    TileIndex(Memory),
    /// A contraction in a dtype that is none of accumulators.
    #[error("a contraction is accumulated in {0}, expected f32, f64, i32 or i64")]
    Accumulator(DType),
    /// An operand of a contraction that does not convert to the accumulator exactly.
    #[error("an operand of a contraction is {operand}, which does not convert to {accumulator} exactly")]
    ContractOperand {
        /// Dtype of the operand.
        operand: DType,
        /// Dtype that is accumulated in.
        accumulator: DType,
    },
    /// A contraction that reads what it accumulates into.
    #[error("{0} is both the tile and an operand of a contraction")]
    ContractAlias(Memory),
    /// An index of a contraction over the other operand's side of the tile.
    #[error("i{} does not belong to the operand of a contraction that is over it", .0.0)]
    ContractSide(VarId),
    /// A contraction whose blocks have no length.
    #[error("a contraction has blocks of {0} steps, expected at least 1")]
    BlockLength(i64),
    /// An access can leave its memory.
    #[error("{memory} is accessed outside its length {example}")]
    OutOfBounds {
        /// The memory.
        memory: Memory,
        /// Values for which it is, or none where that is just not excluded.
        example: Example,
    },
    /// Two parallel iterations can touch one element that one of them writes.
    #[error("parallel iterations share an element of p{param} {example}")]
    ParallelConflict {
        /// The parameter.
        param: u32,
        /// Values for which they do, or none where that is just not excluded.
        example: Example,
    },
}

/// What the verifier found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// What is wrong.
    pub errors: Vec<Violation>,
    /// What may be right but was not proven for all values of the symbols.
    pub unproven: Vec<Violation>,
}

/// Checks every invariant. Facts about all iterations are examined only where the structure is right.
pub fn verify(kernel: &Kernel) -> Report {
    let mut report = Report {
        errors: structure(kernel),
        unproven: Vec::new(),
    };
    if report.errors.is_empty() {
        prove::accesses(kernel, &mut report);
        races::parallel_writes(kernel, &mut report);
        threads::races(kernel, &mut report);
    }
    report
}

/// Checks what needs no proof: definitions, dtypes, scopes, bindings.
pub fn structure(kernel: &Kernel) -> Vec<Violation> {
    let mut c = Checker {
        kernel,
        place: Place::default(),
        errors: Vec::new(),
        defined: vec![Definition::None; kernel.values.len()],
        vars: vec![Definition::None; kernel.extents.len()],
        unrolled: FxHashSet::default(),
        lanes: None,
        depth: 0,
        stored: vec![false; kernel.params.len()],
    };
    for p in &kernel.params {
        c.length(&p.len);
    }
    for (i, s) in kernel.scratch.iter().enumerate() {
        c.length(&s.len);
        match s.scope {
            Scope::Register if s.len.as_const().is_none() => c.error(Rule::RegisterLength(i as u32)),
            Scope::Thread if s.len.as_const().is_none() => c.error(Rule::ThreadLength(i as u32)),
            Scope::Register | Scope::Cache | Scope::Shared | Scope::Thread => {}
        }
    }
    c.block(&kernel.body);
    let mut errors = c.errors;
    if errors.is_empty() {
        threads::positions(kernel, &mut errors);
    }
    errors
}

#[derive(Clone, Copy, PartialEq)]
enum Definition {
    None,
    Live,
    /// Defined once, in a block that is closed.
    Gone,
}

struct Checker<'k> {
    kernel: &'k Kernel,
    place: Place,
    errors: Vec<Violation>,
    defined: Vec<Definition>,
    vars: Vec<Definition>,
    unrolled: FxHashSet<VarId>,
    lanes: Option<VarId>,
    depth: usize,
    /// Parameters that a statement before this one stores to.
    stored: Vec<bool>,
}

impl Checker<'_> {
    fn error(&mut self, rule: Rule) {
        self.errors.push(Violation {
            place: self.place.clone(),
            rule,
        });
    }

    fn length(&mut self, len: &IndexExpr) {
        let mut found = Vec::new();
        len.visit_atoms(&mut |a| match a {
            IndexNode::Var(v) => found.push(Rule::LengthOverVariable(*v)),
            IndexNode::Sym(s) if s.0 as usize >= self.kernel.symbols.len() => {
                found.push(Rule::Missing(format!("symbol {}", s.0)));
            }
            _ => {}
        });
        found.into_iter().for_each(|r| self.error(r));
    }

    fn index(&mut self, e: &IndexExpr) {
        let mut found = Vec::new();
        e.visit_atoms(&mut |a| match a {
            IndexNode::Var(v) => match self.vars.get(v.0 as usize) {
                None => found.push(Rule::Missing(format!("i{}", v.0))),
                Some(Definition::Live) => {}
                Some(_) => found.push(Rule::VariableScope(*v)),
            },
            IndexNode::Sym(s) if s.0 as usize >= self.kernel.symbols.len() => {
                found.push(Rule::Missing(format!("symbol {}", s.0)));
            }
            _ => {}
        });
        if has_bad_divisor(e) {
            found.push(Rule::Divisor);
        }
        found.into_iter().for_each(|r| self.error(r));
    }

    /// The dtype of a value in scope.
    fn used(&mut self, value: ValueId) -> Option<DType> {
        match self.defined.get(value.0 as usize) {
            Some(Definition::Live) => Some(self.kernel.dtype(value)),
            Some(_) => {
                self.error(Rule::NotDefined(value));
                None
            }
            None => {
                self.error(Rule::Missing(format!("%{}", value.0)));
                None
            }
        }
    }

    fn expect(&mut self, value: ValueId, expected: DType) {
        if let Some(found) = self.used(value).filter(|&d| d != expected) {
            self.error(Rule::Dtype {
                value,
                found,
                expected: expected.name().into(),
            });
        }
    }

    /// The dtype of a memory, if there is such a one.
    fn known_dtype(&self, memory: Memory) -> Option<DType> {
        match memory {
            Memory::Param(p) => self.kernel.params.get(p as usize).map(|p| p.dtype),
            Memory::Scratch(s) => self.kernel.scratch.get(s as usize).map(|s| s.dtype),
        }
    }

    fn memory(&mut self, memory: Memory) -> Option<DType> {
        let known = self.known_dtype(memory);
        if known.is_none() {
            self.error(Rule::Missing(memory.to_string()));
        }
        known
    }

    /// An access: the memory exists, the index is in scope and fits the memory's scope and declared use.
    fn access(&mut self, memory: Memory, index: &IndexExpr, reads: bool, writes: bool) -> Option<DType> {
        let dtype = self.memory(memory)?;
        self.index(index);
        match memory {
            Memory::Param(p) => {
                let access = self.kernel.params[p as usize].access;
                let wrong = match access {
                    Access::Read if writes => Some("stored to"),
                    Access::Write if reads && !self.stored[p as usize] => Some("loaded before any store"),
                    _ => None,
                };
                self.stored[p as usize] |= writes;
                if let Some(found) = wrong {
                    self.error(Rule::ParamAccess {
                        param: p,
                        access,
                        found,
                    });
                }
            }
            Memory::Scratch(s) if self.kernel.scratch[s as usize].scope == Scope::Register => {
                if !self.register_index(index) {
                    self.error(Rule::RegisterIndex { scratch: s });
                }
            }
            Memory::Scratch(_) => {}
        }
        if writes
            && let Some(lanes) = self.lanes
            && !distinct_over(index, lanes, self.kernel)
        {
            self.error(Rule::LanesCollide { lanes, memory });
        }
        Some(dtype)
    }

    /// True for indices that unrolling makes constant, plus at most a lane at a whole vector.
    fn register_index(&self, index: &IndexExpr) -> bool {
        let index = &index.simplify(self.kernel);
        let mut rest = index.clone();
        let mut divisor = 1;
        if let Some(lanes) = self.lanes
            && index.uses(lanes)
        {
            let Some((coefficient, offset)) = index.affine_in(lanes) else {
                return false;
            };
            if !coefficient.is(1) {
                return false;
            }
            divisor = self.kernel.extents[lanes.0 as usize].as_const().unwrap_or(1).max(1);
            rest = offset;
        }
        let (terms, constant) = rest.linear();
        if divisor > 1 && (constant % divisor != 0 || terms.iter().any(|t| t.1 % divisor != 0)) {
            return false;
        }
        let mut constant = true;
        rest.visit_atoms(&mut |a| match a {
            IndexNode::Var(v) => constant &= self.unrolled.contains(v),
            _ => constant = false,
        });
        constant
    }

    fn open_var(&mut self, var: VarId) -> bool {
        match self.vars.get(var.0 as usize) {
            None => {
                self.error(Rule::Missing(format!("i{}", var.0)));
                false
            }
            Some(Definition::None) => {
                let extent = self.kernel.extents[var.0 as usize].clone();
                self.index(&extent);
                self.vars[var.0 as usize] = Definition::Live;
                true
            }
            Some(_) => {
                self.error(Rule::VariableReused(var));
                false
            }
        }
    }

    fn block(&mut self, body: &[Stmt]) {
        let mut values = Vec::new();
        let mut vars = Vec::new();
        for (i, s) in body.iter().enumerate() {
            self.place.0.push(i as u32);
            self.statement(s, body.len(), &mut values, &mut vars);
            self.place.0.pop();
        }
        values
            .into_iter()
            .for_each(|v: ValueId| self.defined[v.0 as usize] = Definition::Gone);
        vars.into_iter()
            .for_each(|v: VarId| self.vars[v.0 as usize] = Definition::Gone);
    }

    fn statement(&mut self, s: &Stmt, siblings: usize, values: &mut Vec<ValueId>, vars: &mut Vec<VarId>) {
        match s {
            Stmt::Let { value, op } => {
                let result = self.op(op);
                match self.defined.get(value.0 as usize) {
                    None => return self.error(Rule::Missing(format!("%{}", value.0))),
                    Some(Definition::None) => {
                        self.defined[value.0 as usize] = Definition::Live;
                        values.push(*value);
                    }
                    Some(_) => self.error(Rule::Redefined(*value)),
                }
                let found = self.kernel.dtype(*value);
                if let Some(expected) = result.filter(|&d| d != found) {
                    self.error(Rule::Dtype {
                        value: *value,
                        found,
                        expected: expected.name().into(),
                    });
                }
            }
            Stmt::Store {
                memory,
                index,
                value,
                mask,
            } => {
                let dtype = self.access(*memory, index, false, true);
                if let Some(d) = dtype {
                    self.expect(*value, d);
                }
                if let Some(m) = mask {
                    self.expect(*m, DType::Bool);
                }
            }
            Stmt::Loop { var, bind, body } => self.repeat(*var, *bind, body, siblings),
            Stmt::If { cond, body } => {
                self.expect(*cond, DType::Bool);
                self.depth += 1;
                self.block(body);
                self.depth -= 1;
            }
            Stmt::Clamp { var, value } => {
                self.expect(*value, DType::I64);
                if self.open_var(*var) {
                    vars.push(*var);
                }
            }
            Stmt::Accumulate { monoid, state, values } => {
                let expected = if monoid.is_arg() { 2 } else { 1 };
                for found in [state.len(), values.len()].into_iter().filter(|&n| n != expected) {
                    self.error(Rule::States {
                        monoid: monoid.name(),
                        expected,
                        found,
                    });
                }
                for (i, ((memory, index), value)) in state.iter().zip(values).enumerate() {
                    let Some(dtype) = self.access(*memory, index, true, true) else {
                        continue;
                    };
                    self.expect(*value, dtype);
                    if i == 1 && !dtype.is_int() {
                        self.error(Rule::Dtype {
                            value: *value,
                            found: dtype,
                            expected: "an integer".into(),
                        });
                    }
                    if i == 0
                        && let Err(e) = monoid.combine().result_dtype(&[dtype, dtype])
                    {
                        self.error(e.into());
                    }
                }
            }
            Stmt::Contract(c) => self.contract(c),
            Stmt::Collective(c) => self.collective(c),
            Stmt::Barrier => {}
        }
    }

    fn repeat(&mut self, var: VarId, bind: Bind, body: &[Stmt], siblings: usize) {
        if !self.open_var(var) {
            return;
        }
        let constant = self.kernel.extents[var.0 as usize].as_const().is_some();
        if matches!(bind, Bind::Lanes | Bind::Unroll) && !constant {
            self.error(Rule::ExtentNotConstant(bind, var));
        }
        if bind == Bind::Parallel && (self.depth > 0 || siblings > 1) {
            self.error(Rule::ParallelPosition(var));
        }
        if matches!(bind, Bind::Copy | Bind::Stream) && CopyNest::of(self.kernel, var, body).is_none() {
            self.error(Rule::NotACopy(bind, var));
        }
        if let Some(lanes) = self.lanes
            && bind != Bind::Unroll
        {
            self.error(Rule::InsideLanes { lanes, inner: var });
        }
        let outer = self.lanes;
        match bind {
            Bind::Lanes => self.lanes = Some(var),
            Bind::Unroll => drop(self.unrolled.insert(var)),
            _ => {}
        }
        self.depth += 1;
        self.block(body);
        self.depth -= 1;
        self.lanes = outer;
        self.unrolled.remove(&var);
        self.vars[var.0 as usize] = Definition::Gone;
    }

    /// Checks an operation's operands; answers its dtype where that can be said.
    fn op(&mut self, op: &Op) -> Option<DType> {
        match op {
            Op::Const(value) => Some(value.dtype()),
            Op::Index(e, dtype) => {
                self.index(e);
                Some(*dtype)
            }
            Op::Load { memory, index, mask } => {
                if let Some(m) = mask {
                    self.expect(*m, DType::Bool);
                }
                self.access(*memory, index, true, false)
            }
            Op::Map(op, args) => {
                let dtypes: Option<Vec<DType>> = args.iter().map(|&a| self.used(a)).collect();
                match op.result_dtype(&dtypes?) {
                    Ok(dtype) => Some(dtype),
                    Err(e) => {
                        self.error(e.into());
                        None
                    }
                }
            }
            Op::Convert(to, value) => {
                self.used(*value);
                Some(*to)
            }
            Op::Bitcast(to, value) => {
                let found = self.used(*value)?;
                if found.bits() != to.bits() {
                    self.error(Rule::Dtype {
                        value: *value,
                        found,
                        expected: format!("{} bits", to.bits()),
                    });
                }
                Some(*to)
            }
        }
    }
}

/// False if two lanes certainly give one index.
fn distinct_over(index: &IndexExpr, lanes: VarId, kernel: &Kernel) -> bool {
    let count = kernel.extents[lanes.0 as usize].as_const().unwrap_or(1);
    if count <= 1 {
        return true;
    }
    match index.affine_in(lanes) {
        // A coefficient that may be zero for some symbol value is then a loop over nothing.
        Some((coefficient, _)) => !coefficient.is(0),
        None => {
            let mut seen = FxHashSet::default();
            (0..count.min(256)).all(|k| seen.insert(index.replace_vars(&mut |v| (v == lanes).then(|| k.into()))))
        }
    }
}

fn has_bad_divisor(e: &IndexExpr) -> bool {
    let IndexExpr::Node(n) = e else { return false };
    match &**n {
        IndexNode::Sym(_) | IndexNode::Var(_) => false,
        IndexNode::Sum { terms, .. } => terms.iter().any(|t| has_bad_divisor(&t.0)),
        IndexNode::Product(f) => f.iter().any(has_bad_divisor),
        IndexNode::FloorDiv(a, b) | IndexNode::Mod(a, b) => {
            b.as_const().is_some_and(|c| c < 1) || has_bad_divisor(a) || has_bad_divisor(b)
        }
        IndexNode::Min(a, b) | IndexNode::Max(a, b) => has_bad_divisor(a) || has_bad_divisor(b),
    }
}

#[cfg(test)]
mod tests;
