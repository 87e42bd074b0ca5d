//! A loop that fills shared memory and uses it, run so that the next fills are under way while this one is used.
//!
//! ```text
//! for i { fill(i); barrier; use; barrier }    becomes, in three stages,
//!     fill(0) into A; commit; fill(1) into B; commit
//!     for j { wait 1; barrier; fill(3 j + 2) into C; commit; use A
//!             wait 1; barrier; fill(3 j + 3) into A; commit; use B
//!             wait 1; barrier; fill(3 j + 4) into B; commit; use C }
//! ```
//! and what is left of it, where the number of iterations is known. Where it is not, the rounds go on to its end, of
//! which the last uses may be too many: that is only done where uses are contractions of what is filled, and fills zeros.
//!
//! A fill that only copies becomes a copy beside the threads, all those of an iteration one group: a wait leaves the groups of later
//! iterations under way. What a fill has to compute is stored as before, into memory that nobody uses meanwhile. The barrier in front
//! of a fill is behind the use of what it overwrites, so that an iteration has one barrier, however many stages there are.

use rustc_hash::FxHashMap;
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::{Effect, walk, walk_mut};
use tlc_ir::kernel::{Access, AsyncCopy, Bind, Kernel, Memory, Op, Scope, Stmt, ValueId};
use tlc_ir::{DType, ScalarOp};

use super::across::scratch_outside;
use super::directives::{exists, loop_bind, rewrite};
use super::pack::masked;
use crate::directive::{DirectiveRefusal, MOST_STAGES};
use crate::tree::{clone_fresh, substitute_in};

/// The parts of an iteration.
struct Parts {
    fills: Vec<Stmt>,
    uses: Vec<Stmt>,
    /// The shared scratch that is filled.
    filled: Vec<u32>,
}

fn shared(kernel: &Kernel, memory: Memory) -> Option<u32> {
    match memory {
        Memory::Scratch(i) if kernel.scratch[i as usize].scope == Scope::Shared => Some(i),
        _ => None,
    }
}

fn parts(kernel: &Kernel, var: VarId) -> Option<Parts> {
    let body = exists(kernel, var).ok()?;
    let barrier = |s: &Stmt| matches!(s, Stmt::Barrier);
    let (last, body) = body.split_last()?;
    let at = body.iter().position(barrier)?;
    let (fills, uses) = (&body[..at], &body[at + 1..]);
    let waits = |s: &Stmt| matches!(s, Stmt::Barrier | Stmt::Wait(_) | Stmt::CopyAsync(_));
    if !barrier(last) || walk(fills).chain(walk(uses)).any(waits) {
        return None;
    }
    let thread = |s: &Stmt| matches!(s, Stmt::Loop { bind: Bind::Thread, .. });
    if fills.is_empty() || !fills.iter().all(thread) {
        return None;
    }
    let mut filled = Vec::new();
    for a in walk(fills).flat_map(|s| s.accesses()).filter(|a| a.effect.writes()) {
        let to = shared(kernel, a.memory).filter(|_| a.effect == Effect::Store)?;
        if !filled.contains(&to) {
            filled.push(to);
        }
    }
    let is_filled = |m: Memory| matches!(m, Memory::Scratch(i) if filled.contains(&i));
    let loads = |body| {
        let accesses = walk(body).flat_map(|s: &Stmt| s.accesses());
        accesses.filter(|a| a.effect != Effect::Store)
    };
    // Fills read what no use writes; uses write what only they know.
    let only_read = |m: Memory| match m {
        Memory::Param(i) => kernel.params[i as usize].access == Access::Read,
        Memory::Scratch(_) => false,
    };
    if !loads(fills).all(|a| only_read(a.memory)) {
        return None;
    }
    let mut outside = Vec::new();
    scratch_outside(&kernel.body, var, &mut outside);
    let alone = |m: Memory| match m {
        Memory::Scratch(i) => matches!(kernel.scratch[i as usize].scope, Scope::WarpFragment | Scope::Thread),
        Memory::Param(_) => false,
    };
    let mut writes = walk(uses).flat_map(|s| s.accesses()).filter(|a| a.effect.writes());
    let moves = walk(uses).any(|s| {
        let extents = s.defined_vars().iter().map(|v| &kernel.extents[v.0 as usize]);
        s.indices().chain(extents).any(|e| e.uses(var))
    });
    if moves || !writes.all(|a| alone(a.memory)) || filled.iter().any(|i| outside.contains(i)) {
        return None;
    }
    let products = |s: &Stmt| match s {
        Stmt::Contract(c) => c.operands().iter().all(|o| is_filled(o.memory) && o.ranges.is_empty()),
        s => {
            matches!(
                s,
                Stmt::Loop {
                    bind: Bind::Warp | Bind::Thread | Bind::Serial,
                    ..
                }
            )
        }
    };
    walk(uses).all(products).then(|| Parts {
        fills: fills.to_vec(),
        uses: uses.to_vec(),
        filled,
    })
}

/// Runs a loop in rounds of so many iterations, as many as there are copies of what it fills; returns the loop over rounds.
pub(super) fn pipeline(kernel: &mut Kernel, var: VarId, stages: i64) -> Result<Vec<VarId>, DirectiveRefusal> {
    let refused = DirectiveRefusal::NothingToCopy(var);
    if !(2..=MOST_STAGES).contains(&stages) {
        return Err(DirectiveRefusal::Stages(stages));
    }
    if loop_bind(&kernel.body, var) != Some(Bind::Serial) {
        return Err(DirectiveRefusal::Recurrence(var));
    }
    let parts = parts(kernel, var).ok_or(refused.clone())?;
    let count = kernel.extents[var.0 as usize].clone();
    let known = count.as_const();
    if count.interval(kernel).hi < 2 {
        return Err(refused);
    }
    let ahead = stages - 1;
    if known.is_some_and(|n| n < stages) {
        let least = stages;
        return Err(DirectiveRefusal::FewIterations { var, stages, least });
    }
    let mut work = kernel.clone();
    let mut others: FxHashMap<u32, Vec<u32>> = FxHashMap::default();
    for &i in &parts.filled {
        let held = work.scratch[i as usize].clone();
        let first = work.scratch.len() as u32;
        work.scratch.extend((0..ahead).map(|_| held.clone()));
        others.insert(i, (first..first + ahead as u32).collect());
    }
    let mut rounds = Rounds {
        kernel: &mut work,
        parts: &parts,
        var,
        count: count.clone(),
        stages,
        others,
        copies: 0,
    };
    // Of a known number the last iterations are written out: those behind whole rounds, and those that fill nothing any more.
    let extent = match known {
        Some(n) => IndexExpr::Const((n - ahead) / stages),
        None => count.ceil_div(stages),
    };
    let round = rounds.kernel.new_var(extent.clone());
    let at = |k: i64| IndexExpr::from(round) * IndexExpr::Const(stages) + IndexExpr::Const(k);
    let mut out = Vec::new();
    for i in 0..ahead {
        out.extend(rounds.fill(&IndexExpr::Const(i), i));
    }
    let mut body = Vec::new();
    for i in 0..stages {
        body.extend(rounds.turn(i, ahead - 1, Some(&at(i + ahead))));
    }
    if !extent.is(0) {
        let bind = Bind::Serial;
        out.push(Stmt::Loop { var: round, bind, body });
    }
    match known {
        Some(n) => {
            for i in (n - ahead) / stages * stages..n {
                let next = (i + ahead < n).then(|| IndexExpr::Const(i + ahead));
                // As many groups are behind this iteration's.
                let pending = (ahead - 1).min(n - 1 - i);
                out.extend(rounds.turn(i % stages, pending, next.as_ref()));
            }
        }
        // The last fills are of zeros, which nobody uses.
        None => out.push(Stmt::Wait(0)),
    }
    if rounds.copies == 0 {
        return Err(refused);
    }
    rewrite(&mut work, var, &mut |_, _, _| std::mem::take(&mut out));
    *kernel = work;
    Ok(vec![round])
}

struct Rounds<'k> {
    kernel: &'k mut Kernel,
    parts: &'k Parts,
    var: VarId,
    count: IndexExpr,
    stages: i64,
    /// The memories of each that is filled beside itself: those of the second stage and of later ones.
    others: FxHashMap<u32, Vec<u32>>,
    /// How many fills became copies beside the threads.
    copies: usize,
}

impl Rounds<'_> {
    /// Statements that use the memories of a stage.
    fn to(&self, body: &mut [Stmt], stage: i64) {
        let Ok(other) = usize::try_from(stage - 1) else { return };
        walk_mut(body, &mut |s| {
            for a in s.accesses_mut() {
                if let Memory::Scratch(i) = a.memory
                    && let Some(others) = self.others.get(i)
                {
                    *i = others[other];
                }
            }
        });
    }

    /// Waits for what was filled for a stage, fills the memory of the one before for a later iteration, and uses that of the stage.
    fn turn(&mut self, stage: i64, pending: i64, next: Option<&IndexExpr>) -> Vec<Stmt> {
        let filled = match next {
            Some(at) => self.fill(at, (stage + self.stages - 1) % self.stages),
            None => Vec::new(),
        };
        let mut uses = clone_fresh(self.kernel, &self.parts.uses);
        self.to(&mut uses, stage);
        // What four warps multiply together goes on beside what they do meanwhile.
        let [first, second] = match self.in_groups() {
            true => [uses, filled],
            false => [filled, uses],
        };
        let before = [Stmt::Wait(pending as u32), Stmt::Barrier];
        before.into_iter().chain(first).chain(second).collect()
    }

    /// Whether four warps multiply what is filled together.
    fn in_groups(&self) -> bool {
        self.parts
            .filled
            .iter()
            .any(|i| self.kernel.is_swizzled(Memory::Scratch(*i)))
    }

    /// The fills of an iteration, a group of copies; zeros where there is no such iteration.
    fn fill(&mut self, at: &IndexExpr, stage: i64) -> Vec<Stmt> {
        let mut fills = clone_fresh(self.kernel, &self.parts.fills);
        substitute_in(self.kernel, &mut fills, &mut |v| (v == self.var).then(|| at.clone()));
        self.to(&mut fills, stage);
        let limit = match at.proves_less(&self.count, self.kernel) {
            true => None,
            false => Some((at.clone(), self.count.clone())),
        };
        let mut filled = self.begun(fills, limit.as_ref());
        filled.push(Stmt::Commit);
        filled
    }

    /// Statements of a fill, where an iteration may not exist and copies run beside the threads.
    fn begun(&mut self, body: Vec<Stmt>, limit: Option<&(IndexExpr, IndexExpr)>) -> Vec<Stmt> {
        if let Some(copied) = self.copied(&body, limit) {
            self.copies += 1;
            return copied;
        }
        let stores = body.iter().any(|s| matches!(s, Stmt::Store { .. }));
        if stores && let Some(limit) = limit {
            let (mut loads, mut stores): (Vec<Stmt>, Vec<Stmt>) =
                body.into_iter().partition(|s| !matches!(s, Stmt::Store { .. }));
            for s in &mut stores {
                if let Stmt::Store { value, .. } = s {
                    [*value] = masked(self.kernel, &mut loads, std::slice::from_ref(limit), [*value]);
                }
            }
            loads.append(&mut stores);
            return loads;
        }
        let mut out = Vec::with_capacity(body.len());
        for s in body {
            match s {
                Stmt::Loop {
                    var,
                    bind: Bind::Lanes,
                    body,
                } => {
                    if let Some(mut copied) = self.vector(var, &body, limit) {
                        self.copies += 1;
                        out.append(&mut copied);
                        continue;
                    }
                    let before = self.copies;
                    let body = self.begun(body, limit);
                    // A copy has no lanes: elements that are not one copy together are one after another.
                    let bind = match self.copies == before {
                        true => Bind::Lanes,
                        false => Bind::Unroll,
                    };
                    out.push(Stmt::Loop { var, bind, body });
                }
                mut s => {
                    if let Some(inner) = s.body_mut() {
                        *inner = self.begun(std::mem::take(inner), limit);
                    }
                    out.push(s);
                }
            }
        }
        out
    }

    /// One element copied beside the threads, where it has the bytes.
    fn copied(&mut self, body: &[Stmt], limit: Option<&(IndexExpr, IndexExpr)>) -> Option<Vec<Stmt>> {
        let Some(Stmt::Store { memory, .. }) = body.last() else {
            return None;
        };
        if self.kernel.memory_dtype(*memory).bytes() < 4 {
            return None;
        }
        let var = self.kernel.new_var(IndexExpr::ONE);
        self.vector(var, body, limit)
    }

    /// The elements of a loop copied together.
    fn vector(&mut self, lane: VarId, body: &[Stmt], limit: Option<&(IndexExpr, IndexExpr)>) -> Option<Vec<Stmt>> {
        let copy = copy_of(self.kernel, lane, body)?;
        let mut out = copy.tests;
        let mut mask = copy.mask;
        if let Some((at, limit)) = limit {
            let mut define = |kernel: &mut Kernel, dtype: DType, op: Op| {
                let value = kernel.new_value(dtype);
                out.push(Stmt::Let { value, op });
                value
            };
            let [at, limit] = [at, limit].map(|e| define(self.kernel, DType::I64, Op::Index(e.clone(), DType::I64)));
            let exists = Op::Map(ScalarOp::Lt, smallvec::smallvec![at, limit]);
            let exists = define(self.kernel, DType::Bool, exists);
            mask = Some(match mask {
                Some(mask) => {
                    let both = Op::Map(ScalarOp::And, smallvec::smallvec![mask, exists]);
                    define(self.kernel, DType::Bool, both)
                }
                None => exists,
            });
        }
        let (to, to_index) = copy.to;
        let (from, from_index) = copy.from;
        out.push(Stmt::CopyAsync(Box::new(AsyncCopy {
            var: lane,
            to,
            to_index,
            from,
            from_index,
            mask,
        })));
        Some(out)
    }
}

/// What the iterations of a loop copy, each an element.
pub(super) struct Copied {
    /// What the mask is computed by, the same for all elements.
    tests: Vec<Stmt>,
    mask: Option<ValueId>,
    to: (Memory, IndexExpr),
    from: (Memory, IndexExpr),
}

/// The copy that a loop over neighbours is, if they can be one copy beside the threads: 4, 8 or 16 aligned bytes, all or none of
/// which are read.
pub(super) fn copy_of(kernel: &Kernel, lane: VarId, body: &[Stmt]) -> Option<Copied> {
    let (
        Stmt::Store {
            memory: to,
            index: to_index,
            value,
            mask: None,
        },
        before,
    ) = body.split_last()?
    else {
        return None;
    };
    let mut tests = Vec::new();
    let mut load = None;
    for s in before {
        let Stmt::Let { value: v, op } = s else { return None };
        match op {
            Op::Load { memory, index, mask } if v == value => load = Some((*memory, index.clone(), *mask)),
            Op::Load { .. } => return None,
            _ => tests.push(s.clone()),
        }
    }
    let (from, from_index, mask) = load?;
    let elements = kernel.extents[lane.0 as usize].as_const()?;
    let bytes = elements.checked_mul(kernel.memory_dtype(*to).bytes() as i64)?;
    let read = matches!(from, Memory::Param(i) if kernel.params[i as usize].access == Access::Read);
    if !matches!(bytes, 4 | 8 | 16) || !read || shared(kernel, *to).is_none() {
        return None;
    }
    let first = |e: &IndexExpr| e.replace_vars(&mut |v| (v == lane).then_some(IndexExpr::ZERO));
    let whole = |e: &IndexExpr| first(e).proves_multiple(elements, kernel);
    let together = |e: &IndexExpr| elements == 1 || whole(e) && e.affine_in(lane).is_some_and(|(s, _)| s.is(1));
    if !together(to_index) || !together(&from_index) {
        return None;
    }
    // A test of an index against a limit has one outcome for neighbours that begin at a multiple, as the limit is one.
    let index = |v: &ValueId| {
        before.iter().find_map(|s| match s {
            Stmt::Let {
                value,
                op: Op::Index(e, _),
            } if value == v => Some(e),
            _ => None,
        })
    };
    let constant = |v: &ValueId| {
        before
            .iter()
            .any(|s| matches!(s, Stmt::Let { value, op: Op::Const(_) } if value == v))
    };
    let same = |v: &ValueId| constant(v) || index(v).is_some_and(|e| !e.uses(lane));
    let alike = |s: &Stmt| match s {
        Stmt::Let {
            op: Op::Map(ScalarOp::Lt | ScalarOp::Le, args),
            ..
        } if args.iter().all(same) => true,
        Stmt::Let {
            op: Op::Map(ScalarOp::Lt, args),
            ..
        } => match (index(&args[0]), index(&args[1])) {
            (_, Some(limit)) if limit.uses(lane) => false,
            (Some(at), Some(limit)) => !at.uses(lane) || together(at) && limit.proves_multiple(elements, kernel),
            _ => false,
        },
        Stmt::Let {
            op: Op::Map(ScalarOp::And, _) | Op::Index(..) | Op::Const(_),
            ..
        } => true,
        _ => false,
    };
    if !tests.iter().all(alike) {
        return None;
    }
    // An index that differs in the loop is only compared.
    for s in &mut tests {
        for e in s.indices_mut() {
            *e = first(e);
        }
    }
    Some(Copied {
        tests,
        mask,
        to: (*to, to_index.clone()),
        from: (from, from_index),
    })
}
