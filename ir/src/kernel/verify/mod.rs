//! The kernel verifier: every violation of the invariants of [`crate::kernel`], not just the first.
//!
//! Invariants:
//! - [`structure`] needs no proofs: definitions, dtypes, scopes, bindings, register indices, parameter access. What it
//!   reports is wrong. A kernel without structural errors can be run by the interpreter and translated by emitters.
//! - [`verify`] adds what must hold for all values of symbols and variables: accesses inside their memory, disjoint writes
//!   of parallel iterations. Such a fact is proven, or refuted by an example (an error), or neither: then it is listed as
//!   unproven, which is not an error.
//! - [`refute`] looks for errors alone, at the ends of loops, which is what every compilation can afford.

mod asynchronous;
mod collective;
mod contract;
mod fragment;
mod masked;
mod positive;
mod prove;
mod races;
mod refute;
mod rule;
mod threads;

use std::fmt;

use rustc_hash::FxHashSet;

use crate::dtype::DType;
use crate::index::{IndexExpr, IndexNode, VarId};
use crate::kernel::{APPROXIMATED, Access, Bind, CopyNest, Kernel, Memory, Op, Scope, Stmt, ValueId};

pub use positive::positive_where;
use prove::Tries;
pub use prove::{Example, nonnegative};
pub use refute::refute;
pub use rule::Rule;

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
    verify_with(kernel, &Tries::of(kernel))
}

/// As [`verify`], for a caller who knows which values of the symbols occur together: only those refute what is not proven.
pub fn verify_for(kernel: &Kernel, symbols: &[Vec<i64>]) -> Report {
    verify_with(kernel, &Tries::given(kernel, symbols))
}

fn verify_with(kernel: &Kernel, tries: &Tries) -> Report {
    let mut report = Report {
        errors: structure(kernel),
        unproven: Vec::new(),
    };
    if report.errors.is_empty() {
        prove::accesses(kernel, tries, &mut report);
        races::parallel_writes(kernel, tries, &mut report);
        threads::races(kernel, tries, &mut report);
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
        if s.swizzled && s.scope != Scope::Shared {
            c.error(Rule::Swizzled(i as u32));
        }
        match s.scope {
            Scope::Register if s.len.as_const().is_none() => c.error(Rule::RegisterLength(i as u32)),
            Scope::Thread if s.len.as_const().is_none() => c.error(Rule::ThreadLength(i as u32)),
            Scope::WarpFragment | Scope::BlockFragment if s.len.as_const().is_none() => {
                c.error(Rule::FragmentLength(i as u32));
            }
            Scope::Register
            | Scope::Cache
            | Scope::Shared
            | Scope::Thread
            | Scope::WarpFragment
            | Scope::BlockFragment => {}
        }
    }
    c.block(&kernel.body);
    let mut errors = c.errors;
    if errors.is_empty() {
        threads::positions(kernel, &mut errors);
    }
    if errors.is_empty() {
        asynchronous::pending(kernel, &mut errors);
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

    /// True for indices that unrolling makes constant, plus at most a lane at a whole vector, or a constant for each lane.
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
            if coefficient.is(1) {
                divisor = self.kernel.extents[lanes.0 as usize].as_const().unwrap_or(1).max(1);
            } else if coefficient.as_const().is_none() {
                return false;
            }
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
                if self.used(*value) != Some(DType::I32) {
                    self.expect(*value, DType::I64);
                }
                if self.open_var(*var) {
                    vars.push(*var);
                }
            }
            Stmt::Accumulate { monoid, state, values } => {
                let expected = if monoid.is_arg() { 2 } else { 1 };
                let sums = state.first().map(|(memory, _)| self.kernel.memory_dtype(*memory));
                let product = *monoid == crate::graph::Monoid::Add
                    && matches!(sums, Some(DType::F32 | DType::F64))
                    && values.len() == 2;
                let values_found = if product { expected } else { values.len() };
                for found in [state.len(), values_found].into_iter().filter(|&n| n != expected) {
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
                    if product {
                        self.expect(values[1], dtype);
                    }
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
            Stmt::FoldRows(f) => self.fold_rows(f),
            Stmt::Each { vars, memory, body } => self.each(*vars, *memory, body),
            Stmt::CopyAsync(c) => self.copy_async(c),
            Stmt::Prefetch { memory, index } => {
                if self.memory(*memory).is_some() && matches!(memory, Memory::Scratch(_)) {
                    self.error(Rule::PrefetchMemory(*memory));
                }
                self.index(index);
            }
            Stmt::Commit => {}
            Stmt::Wait(pending) => self.pending_groups(*pending),
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

    /// Checks an operation's operands; returns its dtype where that can be said.
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
            Op::Approximate(op, args) if !APPROXIMATED.contains(op) || args.len() != op.arity() => {
                self.error(Rule::NotApproximated(*op));
                None
            }
            Op::ShortExp2(_) | Op::Scale(_) | Op::Approximate(..) => {
                for &value in op.operands() {
                    self.expect(value, DType::F32);
                }
                Some(DType::F32)
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
