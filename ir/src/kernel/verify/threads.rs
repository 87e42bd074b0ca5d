//! GPU kernels: where block, warp and thread loops, collectives and barriers stand, and races between the threads of a block.
//!
//! Two accesses of different threads race if they touch one element of memory that the threads share, one of them writes,
//! and no barrier lies between. So every two thread loops that one execution can reach without passing a barrier (and each
//! loop with itself) must keep to the same assignment of elements to threads. What every thread executes alike counts as an
//! access by all of them. Such an assignment is proven as for parallel iterations, or by enumeration; an example that refutes
//! it uses only accesses that certainly happen. Thread loops of a warp are looked at as loops over the threads of all warps.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::index::{IndexExpr, VarId};
use crate::kernel::verify::fragment::{is_element, is_fragment, is_row};
use crate::kernel::verify::prove::{NODES, Tries, search};
use crate::kernel::verify::races::{Touch, collect, is_clamped, parts, separate};
use crate::kernel::verify::{Example, Place, Report, Rule, Violation};
use crate::kernel::visit::{Effect, walk, walk_mut};
use crate::kernel::{Access, Bind, Collective, Contract, FoldRows, Group, Kernel, Memory, Scope, Stmt, ValueId};
use crate::target::{MAX_BLOCK_THREADS, WARP_GROUP, WARP_GROUP_ROWS, WARP_THREADS};

/// Pairs of thread loops that are compared at most; further ones are unproven.
const MAX_PAIRS: usize = 1024;

/// The single block loop that is a whole kernel.
fn block_loop(kernel: &Kernel) -> Option<(VarId, &[Stmt])> {
    match &kernel.body[..] {
        [
            Stmt::Loop {
                var,
                bind: Bind::Block,
                body,
            },
        ] => Some((*var, body)),
        _ => None,
    }
}

/// Checks what needs no proof.
pub(super) fn positions(kernel: &Kernel, errors: &mut Vec<Violation>) {
    let mut writers = vec![None; kernel.scratch.len()];
    if block_loop(kernel).is_some() {
        private_writers(&kernel.body, None, kernel, &mut writers);
    }
    let mut walk = Positions {
        kernel,
        errors,
        writers,
        place: Place::default(),
        block: false,
        warp: None,
        thread: None,
        each: None,
        shapes: vec![None; kernel.scratch.len()],
        condition: false,
        lanes: false,
        threads: kernel.statements().any(|s| thread_of(s).is_some()),
    };
    walk.statements(&kernel.body);
}

/// Register and cache scratch: the first thread loop that writes it.
fn private_writers(body: &[Stmt], thread: Option<VarId>, kernel: &Kernel, out: &mut [Option<VarId>]) {
    for s in body {
        for a in s.accesses().filter(|a| a.effect.writes()) {
            if let (Memory::Scratch(i), Some(_)) = (a.memory, thread)
                && matches!(kernel.scratch[i as usize].scope, Scope::Register | Scope::Cache)
            {
                out[i as usize] = out[i as usize].or(thread);
            }
        }
        private_writers(s.body(), thread_of(s).or(thread), kernel, out);
    }
}

/// The variable of a thread loop, or one that stands for those who hold the elements of a fragment.
fn thread_of(s: &Stmt) -> Option<VarId> {
    match s {
        Stmt::Loop {
            var,
            bind: Bind::Thread,
            ..
        } => Some(*var),
        Stmt::Each { vars, .. } => Some(vars[0]),
        _ => None,
    }
}

struct Positions<'k, 'e> {
    kernel: &'k Kernel,
    errors: &'e mut Vec<Violation>,
    writers: Vec<Option<VarId>>,
    place: Place,
    block: bool,
    warp: Option<VarId>,
    thread: Option<VarId>,
    /// The `Each` around: its variables and fragment.
    each: Option<([VarId; 2], Memory)>,
    /// The one shape of each fragment that was seen.
    shapes: Vec<Option<[i64; 2]>>,
    condition: bool,
    lanes: bool,
    /// A block without thread loops is one thread.
    threads: bool,
}

impl Positions<'_, '_> {
    fn error(&mut self, rule: Rule) {
        let place = self.place.clone();
        self.errors.push(Violation { place, rule });
    }

    fn statements(&mut self, body: &[Stmt]) {
        for (i, s) in body.iter().enumerate() {
            self.place.0.push(i as u32);
            match s {
                // What it accesses are the copies of all threads.
                Stmt::Collective(c) => self.collective(c),
                Stmt::Contract(c) if is_fragment(self.kernel, c.dst) => self.fragment_tile(c),
                Stmt::FoldRows(f) => self.fold_rows(f),
                _ => {
                    for a in s.accesses() {
                        if is_fragment(self.kernel, a.memory) {
                            self.element(a.memory, a.index, a.effect.writes());
                        } else {
                            self.access(a.memory, a.effect.writes());
                        }
                    }
                }
            }
            let in_warp = self.warp.is_some() && self.thread.is_none();
            match s {
                Stmt::Barrier if !self.block || self.thread.is_some() || self.warp.is_some() => {
                    self.error(Rule::BarrierPosition);
                }
                Stmt::Commit | Stmt::Wait(_) if !self.block || self.thread.is_some() || self.warp.is_some() => {
                    self.error(Rule::WaitPosition);
                }
                Stmt::CopyAsync(_) if self.thread.is_none() || self.each.is_some() || self.lanes => {
                    self.error(Rule::CopyPosition);
                }
                Stmt::Each { vars, memory, body } => {
                    self.together(*memory);
                    self.shape(*memory, self.extents(*vars));
                    let outer = (self.thread, self.each);
                    (self.thread, self.each) = (Some(vars[0]), Some((*vars, *memory)));
                    self.statements(body);
                    (self.thread, self.each) = outer;
                }
                Stmt::Clamp { var, .. } if in_warp => self.error(Rule::WarpClamp(*var)),
                Stmt::If { body, .. } => {
                    let outer = std::mem::replace(&mut self.condition, true);
                    self.statements(body);
                    self.condition = outer;
                }
                Stmt::Loop { var, bind, body } => self.repeat(*var, *bind, body),
                _ => {}
            }
            self.place.0.pop();
        }
    }

    fn repeat(&mut self, var: VarId, bind: Bind, body: &[Stmt]) {
        let outer = (self.block, self.warp, self.thread, self.lanes);
        let extent = &self.kernel.extents[var.0 as usize];
        if let Some(warp) = self.warp
            && self.thread.is_none()
            && extent.uses(warp)
        {
            self.error(Rule::WarpExtent(var));
        }
        match bind {
            Bind::Block => {
                if self.place.0.len() > 1 || self.kernel.body.len() > 1 {
                    self.error(Rule::BlockPosition(var));
                }
                self.block = true;
            }
            Bind::Thread => {
                if !self.block || self.thread.is_some() || self.condition {
                    self.error(Rule::ThreadPosition(var));
                }
                let threads = extent.interval(self.kernel).hi;
                if self.warp.is_some() && !extent.is(WARP_THREADS) {
                    self.error(Rule::WarpThreads(var));
                }
                if threads > MAX_BLOCK_THREADS {
                    self.error(Rule::ThreadCount { var, threads });
                }
                self.thread = Some(var);
            }
            Bind::Warp => {
                if !self.block || self.warp.is_some() || self.thread.is_some() || self.condition {
                    self.error(Rule::WarpPosition(var));
                }
                let threads = extent.interval(self.kernel).hi.saturating_mul(WARP_THREADS);
                if threads > MAX_BLOCK_THREADS {
                    self.error(Rule::ThreadCount { var, threads });
                }
                self.warp = Some(var);
            }
            Bind::Lanes => self.lanes = true,
            Bind::Serial | Bind::Unroll | Bind::Parallel | Bind::Copy | Bind::Stream => {}
        }
        self.statements(body);
        (self.block, self.warp, self.thread, self.lanes) = outer;
    }

    /// Checks that those who hold a fragment are all here.
    fn together(&mut self, memory: Memory) {
        let Memory::Scratch(i) = memory else { return };
        let warp = self.kernel.scratch[i as usize].scope == Scope::WarpFragment;
        if !self.block || self.thread.is_some() || self.lanes || self.warp.is_some() != warp {
            self.error(Rule::FragmentPosition(memory));
        }
    }

    fn extents(&self, vars: [VarId; 2]) -> [i64; 2] {
        vars.map(|v| self.kernel.extents[v.0 as usize].as_const().unwrap_or(0))
    }

    /// Checks that a fragment has one shape, which is all of it.
    fn shape(&mut self, memory: Memory, [m, n]: [i64; 2]) {
        let Memory::Scratch(i) = memory else { return };
        let whole = self.kernel.scratch[i as usize].len.as_const() == m.checked_mul(n);
        let known = *self.shapes[i as usize].get_or_insert([m, n]);
        if !whole || known != [m, n] {
            self.error(Rule::FragmentTile(memory));
        }
    }

    /// A contraction into a fragment.
    fn fragment_tile(&mut self, c: &Contract) {
        let vars = [c.m(), c.n()];
        self.together(c.dst);
        self.shape(c.dst, self.extents(vars));
        if !is_element(self.kernel, vars, &c.dst_index) {
            self.error(Rule::FragmentTile(c.dst));
        }
        let rows = [c.m(), c.k()];
        let held = is_fragment(self.kernel, c.left.memory);
        if held {
            self.together(c.left.memory);
            self.shape(c.left.memory, self.extents(rows));
            if !is_element(self.kernel, rows, &c.left.index) || !c.left.ranges.is_empty() {
                self.error(Rule::FragmentOperand(c.left.memory));
            }
        }
        for o in c.operands().into_iter().skip(usize::from(held)) {
            let shared = match o.memory {
                Memory::Param(_) => true,
                Memory::Scratch(i) => self.kernel.scratch[i as usize].scope == Scope::Shared,
            };
            if !shared {
                self.error(Rule::FragmentOperand(o.memory));
            }
        }
        if let Some(o) = c.operands().into_iter().find(|o| self.kernel.is_swizzled(o.memory)) {
            let memory = o.memory;
            if let Err(what) = self.by_four_warps(c) {
                self.error(Rule::SwizzledOperand { memory, what });
            }
        }
    }

    /// Whether four neighbouring warps do a contraction together: each has the next 16 rows, all have the same columns, and all come.
    fn by_four_warps(&self, c: &Contract) -> Result<(), &'static str> {
        let Some(warp) = self.warp.filter(|_| !self.condition) else {
            return Err("expected it in a warp loop and under no condition");
        };
        if c.operands()
            .iter()
            .any(|o| !is_fragment(self.kernel, o.memory) && !self.kernel.is_swizzled(o.memory))
        {
            return Err("expected both operands to be swizzled or fragments");
        }
        let extent = |v: VarId| self.kernel.extents[v.0 as usize].as_const().unwrap_or(0);
        if extent(c.m()) != WARP_GROUP_ROWS || extent(warp) < 1 || extent(warp) % WARP_GROUP != 0 {
            return Err("expected 16 rows of each warp and a multiple of four warps");
        }
        // Warp `4 * group + part`, where the parts have their rows one behind another and the columns do not depend on the part.
        let mut kernel = Kernel {
            extents: self.kernel.extents.clone(),
            symbols: self.kernel.symbols.clone(),
            ..Kernel::default()
        };
        let group = kernel.new_var(IndexExpr::Const(extent(warp) / WARP_GROUP));
        let part = kernel.new_var(IndexExpr::Const(WARP_GROUP));
        let number = IndexExpr::from(group) * IndexExpr::Const(WARP_GROUP) + part.into();
        let by_parts = |e: &IndexExpr| {
            let put = e.replace_vars(&mut |v| (v == warp).then(|| number.clone()));
            put.simplify(&kernel)
        };
        let left = by_parts(&c.left.index);
        let step = |v: VarId| left.affine_in(v).and_then(|(step, _)| step.as_const());
        let follows = match (step(part), step(c.m())) {
            (Some(part), Some(row)) => row.checked_mul(WARP_GROUP_ROWS) == Some(part),
            _ => false,
        };
        if self.kernel.is_swizzled(c.left.memory) && !follows {
            return Err("expected the rows of four warps to follow each other");
        }
        match by_parts(&c.right.index).uses(part) {
            true => Err("expected the columns of four warps to be the same"),
            false => Ok(()),
        }
    }

    fn fold_rows(&mut self, f: &FoldRows) {
        let [m, _] = f.vars;
        let [rows, columns] = self.extents(f.vars);
        self.together(f.from);
        self.together(f.to);
        self.shape(f.from, [rows, columns]);
        self.shape(f.to, [rows, 1]);
        if !is_element(self.kernel, f.vars, &f.from_index) || !is_row(self.kernel, m, &f.to_index) {
            self.error(Rule::FragmentTile(f.from));
        }
    }

    /// An access to an element of a fragment: the one at the place of the `Each` around, or of one column that of its row.
    fn element(&mut self, memory: Memory, index: &IndexExpr, writes: bool) {
        let Memory::Scratch(i) = memory else { return };
        let Some((vars, fragment)) = self.each else {
            return self.error(Rule::FragmentAccess(i));
        };
        let scope = |m: Memory| match m {
            Memory::Param(_) => None,
            Memory::Scratch(i) => Some(self.kernel.scratch[i as usize].scope),
        };
        let (whole, row) = (
            is_element(self.kernel, vars, index),
            is_row(self.kernel, vars[0], index),
        );
        let [rows, columns] = self.extents(vars);
        let of_rows = self.kernel.scratch[i as usize].len.is(rows);
        if scope(memory) != scope(fragment) || !(whole || row && of_rows && !writes) {
            return self.error(Rule::FragmentAccess(i));
        }
        // The shape of the fragment itself is looked at where its `each` is.
        if memory != fragment {
            self.shape(memory, [rows, if whole { columns } else { 1 }]);
        }
    }

    fn collective(&mut self, c: &Collective) {
        let warp = matches!(c.group, Group::Warp | Group::Part(_));
        if !self.block || self.thread.is_some() || self.lanes || self.warp.is_some() != warp {
            self.error(Rule::CollectivePosition { warp });
        }
    }

    fn access(&mut self, memory: Memory, writes: bool) {
        if let Memory::Scratch(i) = memory
            && self.kernel.scratch[i as usize].scope == Scope::Thread
            && (self.thread.is_none() || self.each.is_some())
        {
            self.error(Rule::ThreadCopy(i));
        }
        if !self.block {
            return;
        }
        let of_column = self.each.is_some_and(|(vars, _)| self.extents(vars)[1] == 1);
        if writes && of_column && shared(self.kernel, memory) {
            self.error(Rule::ColumnWrite(memory));
        }
        let scratch = match memory {
            Memory::Param(_) => None,
            Memory::Scratch(i) => Some(i as usize).filter(|&i| i < self.kernel.scratch.len()),
        };
        let scope = scratch.map(|i| self.kernel.scratch[i].scope);
        let alike = self.thread.is_none() && scope != Some(Scope::Thread);
        if writes && alike && self.threads && (scope != Some(Scope::Register) || self.warp.is_some()) {
            self.error(Rule::UniformWrite(memory));
        }
        if let Some(i) = scratch
            && self.writers[i].is_some()
            && self.writers[i] != self.thread
        {
            self.error(Rule::ThreadScratch(i as u32));
        }
    }
}

/// Statements between which no barrier can lie: a thread loop, or a load that every thread executes.
struct Phase<'k> {
    /// The thread variable, unless all threads execute it.
    var: Option<VarId>,
    body: &'k [Stmt],
    /// Variables around it, outermost first.
    chain: Vec<VarId>,
    place: Vec<u32>,
}

/// Two phases that one execution can reach without a barrier between them.
struct Pair {
    first: usize,
    second: usize,
    /// How many of the variables around both have one value in both.
    fixed: usize,
    /// The loop whose next iteration the second is in.
    wrap: Option<VarId>,
}

/// Phases of a block that are reached from its start, and from which its end is reached, without a barrier; and whether
/// every way through passes one.
#[derive(Default)]
struct Flow {
    exposed: Vec<usize>,
    pending: Vec<usize>,
    barrier: bool,
}

#[derive(Default)]
struct Phases<'k> {
    all: Vec<Phase<'k>>,
    pairs: Vec<Pair>,
    /// Loops with a barrier inside.
    synchronized: Vec<VarId>,
}

impl<'k> Phases<'k> {
    fn pair(&mut self, firsts: &[usize], seconds: &[usize], fixed: usize, wrap: Option<VarId>) {
        for &first in firsts {
            for &second in seconds {
                if self.pairs.len() <= MAX_PAIRS {
                    self.pairs.push(Pair {
                        first,
                        second,
                        fixed,
                        wrap,
                    });
                }
            }
        }
    }

    fn phase(&mut self, var: Option<VarId>, body: &'k [Stmt], chain: &[VarId], place: &[u32]) -> Flow {
        let number = self.all.len();
        self.all.push(Phase {
            var,
            body,
            chain: chain.to_vec(),
            place: place.to_vec(),
        });
        if var.is_some() {
            self.pair(&[number], &[number], chain.len(), None);
        }
        Flow {
            exposed: vec![number],
            pending: vec![number],
            barrier: false,
        }
    }

    fn block(&mut self, body: &'k [Stmt], kernel: &Kernel, chain: &mut Vec<VarId>, place: &mut Vec<u32>) -> Flow {
        let depth = chain.len();
        let mut whole = Flow::default();
        for (i, s) in body.iter().enumerate() {
            place.push(i as u32);
            let flow = match s {
                Stmt::Loop {
                    var,
                    bind: Bind::Thread,
                    body,
                } => self.phase(Some(*var), body, chain, place),
                Stmt::Loop { var, body, .. } => {
                    chain.push(*var);
                    let mut inside = self.block(body, kernel, chain, place);
                    chain.pop();
                    self.pair(&inside.pending, &inside.exposed, chain.len(), Some(*var));
                    if walk(body).any(|s| matches!(s, Stmt::Barrier)) {
                        self.synchronized.push(*var);
                    }
                    inside.barrier &= kernel.extents[var.0 as usize].interval(kernel).lo >= 1;
                    inside
                }
                Stmt::If { body, .. } => Flow {
                    barrier: false,
                    ..self.block(body, kernel, chain, place)
                },
                Stmt::Barrier => Flow {
                    barrier: true,
                    ..Flow::default()
                },
                s if s
                    .accesses()
                    .any(|a| a.effect == Effect::Load && shared(kernel, a.memory)) =>
                {
                    self.phase(None, std::slice::from_ref(s), chain, place)
                }
                Stmt::Clamp { var, .. } => {
                    chain.push(*var);
                    Flow::default()
                }
                _ => Flow::default(),
            };
            self.pair(&whole.pending, &flow.exposed, chain.len(), None);
            if !whole.barrier {
                whole.exposed.extend(flow.exposed);
            }
            if flow.barrier {
                whole.pending.clear();
            }
            whole.pending.extend(flow.pending);
            whole.barrier |= flow.barrier;
            place.pop();
        }
        chain.truncate(depth);
        whole
    }
}

/// Memory that the threads of a block have in common and that may be written.
fn shared(kernel: &Kernel, memory: Memory) -> bool {
    match memory {
        Memory::Param(p) => kernel.params[p as usize].access != Access::Read,
        Memory::Scratch(i) => kernel.scratch[i as usize].scope == Scope::Shared,
    }
}

/// Checks that the threads of a block write apart, or with barriers between.
pub(super) fn races(kernel: &Kernel, tries: &Tries, report: &mut Report) {
    let grouped = |s: &Stmt| matches!(s, Stmt::Loop { bind: Bind::Warp, .. } | Stmt::Each { .. });
    if kernel.statements().any(grouped) {
        let mut flat = kernel.clone();
        let mut owners = Owners::default();
        let mut body = std::mem::take(&mut flat.body);
        flatten(&mut flat, &mut body, None, &mut owners);
        flat.body = body;
        races_of(&flat, tries, &owners, report);
    } else {
        races_of(kernel, tries, &Owners::default(), report);
    }
}

/// Loops over the elements of a fragment instead of threads, with the fragment: which thread holds which element is not known, but
/// it is the same one each time.
type Owners = FxHashMap<VarId, Memory>;

fn races_of(kernel: &Kernel, tries: &Tries, owners: &Owners, report: &mut Report) {
    let Some((block, body)) = block_loop(kernel) else {
        return;
    };
    let mut phases = Phases::default();
    phases.block(body, kernel, &mut vec![block], &mut vec![0]);
    let memories = (0..kernel.params.len() as u32).map(Memory::Param);
    let memories = memories.chain((0..kernel.scratch.len() as u32).map(Memory::Scratch));
    for memory in memories.filter(|m| shared(kernel, *m)) {
        let touches: Vec<Vec<Touch>> = phases.all.iter().map(|p| touches(p, memory)).collect();
        if !touches.iter().flatten().any(|t| t.writes) {
            continue;
        }
        let violation = |at: usize, example: Example| Violation {
            place: Place(phases.all[at].place.clone()),
            rule: Rule::ThreadConflict { memory, example },
        };
        let mut unproven = (phases.pairs.len() > MAX_PAIRS).then_some(0);
        let mut refuted = None;
        for pair in &phases.pairs {
            let (a, b) = (&touches[pair.first], &touches[pair.second]);
            if a.is_empty() || b.is_empty() || !a.iter().chain(b).any(|t| t.writes) {
                continue;
            }
            let check = Check {
                kernel,
                tries,
                owners,
                phases: &phases,
                pair,
                a,
                b,
            };
            if check.proven() {
                continue;
            }
            if let Some(example) = check.refuted() {
                refuted = Some(violation(pair.second, example));
                break;
            }
            unproven = unproven.or(Some(pair.second));
        }
        match (refuted, unproven) {
            (Some(v), _) => report.errors.push(v),
            (None, Some(at)) => report.unproven.push(violation(at, Example::default())),
            (None, None) => {}
        }
    }
}

/// Makes the thread loops of warps loops over the threads of all warps, and what is done with each element of fragments loops over
/// the elements of all of them, for the accesses alone: the loop over warps is a block, and each statement of it stands where it
/// stood.
fn flatten(kernel: &mut Kernel, body: &mut [Stmt], warp: Option<VarId>, owners: &mut Owners) {
    for s in body {
        match (s, warp) {
            (s @ Stmt::Each { .. }, warp) => {
                let Stmt::Each {
                    vars: [m, n],
                    memory,
                    mut body,
                } = std::mem::replace(s, Stmt::Barrier)
                else {
                    continue;
                };
                let extent = |v: VarId| kernel.extents[v.0 as usize].clone();
                let (columns, elements) = (extent(n), extent(m) * extent(n));
                let all = warp.map_or(elements.clone(), |w| extent(w) * elements.clone());
                let var = kernel.new_var(all);
                let at = IndexExpr::modulo(&var.into(), &elements);
                let put = |v: VarId| match v {
                    _ if Some(v) == warp => Some(IndexExpr::floor_div(&var.into(), &elements)),
                    _ if v == m => Some(IndexExpr::floor_div(&at, &columns)),
                    _ if v == n => Some(IndexExpr::modulo(&at, &columns)),
                    _ => None,
                };
                replace(kernel, &mut body, &put);
                owners.insert(var, memory);
                let bind = Bind::Thread;
                *s = Stmt::Loop { var, bind, body };
            }
            (s @ Stmt::Loop { bind: Bind::Thread, .. }, Some(warp)) => {
                let Stmt::Loop { var, body, .. } = s else { continue };
                let threads = kernel.extents[warp.0 as usize].clone() * IndexExpr::Const(WARP_THREADS);
                let whole = IndexExpr::from(kernel.new_var(threads));
                let size = IndexExpr::Const(WARP_THREADS);
                let (w, t) = (IndexExpr::floor_div(&whole, &size), IndexExpr::modulo(&whole, &size));
                let thread = *var;
                let put = |v: VarId| match v {
                    _ if v == warp => Some(w.clone()),
                    _ if v == thread => Some(t.clone()),
                    _ => None,
                };
                replace(kernel, body, &put);
                if let Some(v) = whole.as_var() {
                    *var = v;
                }
            }
            (s @ Stmt::Loop { bind: Bind::Warp, .. }, None) => {
                let Stmt::Loop { var, mut body, .. } = std::mem::replace(s, Stmt::Barrier) else {
                    continue;
                };
                flatten(kernel, &mut body, Some(var), owners);
                let cond = ValueId(0);
                *s = Stmt::If { cond, body };
            }
            (s, Some(warp)) if s.body().is_empty() && s.accesses().any(|a| shared(kernel, a.memory)) => {
                // Each thread of each warp executes it alike.
                let var = kernel.new_var(kernel.extents[warp.0 as usize].clone());
                let mut body = vec![std::mem::replace(s, Stmt::Barrier)];
                replace(kernel, &mut body, &|v| (v == warp).then(|| var.into()));
                let bind = Bind::Serial;
                *s = Stmt::Loop { var, bind, body };
            }
            (s, warp) => {
                if let Some(body) = s.body_mut() {
                    flatten(kernel, body, warp, owners);
                }
            }
        }
    }
}

/// Replaces variables in statements and in the extents of what they define.
fn replace(kernel: &mut Kernel, body: &mut [Stmt], put: &dyn Fn(VarId) -> Option<IndexExpr>) {
    for v in walk(body).flat_map(|s| s.defined_vars()).copied().collect::<Vec<_>>() {
        let extent = &mut kernel.extents[v.0 as usize];
        *extent = extent.replace_vars(&mut |v| put(v));
    }
    let bounds: &Kernel = kernel;
    walk_mut(body, &mut |s| {
        s.indices_mut()
            .for_each(|e| *e = e.replace_vars(&mut |v| put(v)).simplify(bounds));
    });
}

fn touches(phase: &Phase<'_>, memory: Memory) -> Vec<Touch> {
    let mut vars = phase.chain.clone();
    vars.extend(phase.var);
    let mut out = Vec::new();
    collect(phase.body, memory, &mut vars, false, &mut out);
    out
}

/// Whether two phases race for one memory.
struct Check<'c> {
    kernel: &'c Kernel,
    tries: &'c Tries,
    owners: &'c Owners,
    phases: &'c Phases<'c>,
    pair: &'c Pair,
    a: &'c [Touch],
    b: &'c [Touch],
}

impl Check<'_> {
    fn ends(&self) -> (&Phase<'_>, &Phase<'_>) {
        (&self.phases.all[self.pair.first], &self.phases.all[self.pair.second])
    }

    /// True if different threads certainly touch different elements.
    fn proven(&self) -> bool {
        self.assigned() || self.enumerate(false).0
    }

    /// True if one assignment of elements to threads holds in both phases.
    fn assigned(&self) -> bool {
        let (a, b) = self.ends();
        let (Some(first), Some(second)) = (a.var, b.var) else {
            return false;
        };
        if self.owners.get(&first) != self.owners.get(&second) {
            return false;
        }
        // What has one value in both phases is a symbol; the second phase's threads are those of the first.
        let mut kernel = self.kernel.clone();
        let mut put: Vec<(VarId, IndexExpr)> = Vec::new();
        for &v in &a.chain[..self.pair.fixed] {
            let hi = kernel.extents[v.0 as usize].interval(&kernel).hi;
            kernel.symbols.push((0, hi.saturating_sub(1).max(0)));
            let symbol = crate::index::SymId(kernel.symbols.len() as u32 - 1);
            put.push((v, symbol.into()));
        }
        if first != second {
            put.push((second, first.into()));
        }
        let replace = |e: &IndexExpr| e.replace_vars(&mut |v| put.iter().find(|p| p.0 == v).map(|p| p.1.clone()));
        let extent = |v: VarId| replace(&self.kernel.extents[v.0 as usize]);
        let threads = IndexExpr::max(&extent(first), &extent(second));
        kernel.extents = kernel.extents.iter().map(replace).collect();
        kernel.extents[first.0 as usize] = threads;
        let mut touches: Vec<Touch> = self.a.iter().chain(self.b).cloned().collect();
        touches.iter_mut().for_each(|t| t.index = replace(&t.index));
        let base = parts(&touches[0].index).0;
        if touches.iter().all(|t| parts(&t.index).0 == base) {
            touches
                .iter_mut()
                .for_each(|t| t.index = t.index.clone() - base.clone());
        }
        separate(&kernel, first, &touches, NODES)
    }

    /// An example of two threads that certainly race, if one was found.
    fn refuted(&self) -> Option<Example> {
        let (a, b) = self.ends();
        // Of iterations with a barrier between them only neighbours are compared, and only of the loop that wraps.
        let others = a.chain[self.pair.fixed..].iter().chain(&b.chain[self.pair.fixed..]);
        let exact = others
            .filter(|v| Some(**v) != self.pair.wrap)
            .all(|v| !self.phases.synchronized.contains(v));
        if exact { self.enumerate(true).1 } else { None }
    }

    /// Visits iterations where there are few: whether none of all race, and an example of two that do. `certain` leaves
    /// out what need not happen.
    fn enumerate(&self, certain: bool) -> (bool, Option<Example>) {
        #[derive(Default)]
        struct Owners {
            writers: SmallVec<[i64; 2]>,
            touchers: SmallVec<[i64; 2]>,
        }
        // Two different threads stand for any number.
        fn note(list: &mut SmallVec<[i64; 2]>, thread: i64) {
            if list.len() < 2 && !list.contains(&thread) {
                list.push(thread);
            }
        }
        let (a, b) = self.ends();
        let single = self.phases.all.iter().filter_map(|p| p.var).all(|v| {
            let threads = self.kernel.extents[v.0 as usize].interval(self.kernel);
            threads.hi <= 1
        });
        if single {
            return (true, None);
        }
        let fixed = &a.chain[..self.pair.fixed];
        let mut owners: FxHashMap<(Vec<i64>, i64), Owners> = FxHashMap::default();
        let mut complete = true;
        for (phase, touches, second) in [(a, self.a, false), (b, self.b, true)] {
            for t in touches.iter().filter(|t| !(certain && t.conditional)) {
                // Values from data are not known to occur.
                if t.vars.iter().any(|v| is_clamped(&self.kernel.body, *v)) {
                    complete = false;
                    continue;
                }
                let (seen_all, example) = search(self.kernel, self.tries, &t.vars, &mut |symbols, vars| {
                    let mut key = symbols.to_vec();
                    for v in fixed {
                        key.push(vars(*v)?);
                    }
                    if let Some(w) = self.pair.wrap {
                        // The second phase is in the iteration behind that of the first.
                        key.push(vars(w)? + i64::from(!second));
                    }
                    let at = t.index.eval(symbols, vars)?;
                    // Those who hold elements of a fragment are not known to be any thread.
                    let me = match phase.var.map(|v| (v, self.owners.get(&v))) {
                        Some((v, None)) => vars(v)?,
                        Some((v, Some(Memory::Scratch(i) | Memory::Param(i)))) => {
                            vars(v)? + ((i64::from(*i) + 1) << 30)
                        }
                        None => -1,
                    };
                    if !second {
                        let owners = owners.entry((key, at)).or_default();
                        note(&mut owners.touchers, me);
                        if t.writes {
                            note(&mut owners.writers, me);
                        }
                        return Some(true);
                    }
                    let Some(owners) = owners.get(&(key, at)) else {
                        return Some(true);
                    };
                    let other = |list: &[i64]| list.iter().any(|&x| x != me);
                    Some(!(other(&owners.writers) || t.writes && other(&owners.touchers)))
                });
                if example.is_some() {
                    return (false, example);
                }
                complete &= seen_all;
            }
        }
        // Iterations with a loop between that does not wrap next to next are not all compared.
        (complete && self.pair.wrap.is_none(), None)
    }
}
