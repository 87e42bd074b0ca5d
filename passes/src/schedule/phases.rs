//! Phases of a row: loops side by side over the same elements, and what they compute alike.

use rustc_hash::{FxHashMap, FxHashSet};
use tlc_ir::index::{IndexExpr, IndexNode, VarId};
use tlc_ir::kernel::visit::walk;
use tlc_ir::kernel::{Access, Bind, Kernel, Memory, Op, Stmt, ValueId};

/// A perfect nest of serial loops.
#[derive(Clone)]
pub(super) struct Phase<'k> {
    /// The loops, outermost first.
    pub(super) vars: Vec<VarId>,
    /// What the innermost one repeats.
    pub(super) body: &'k [Stmt],
}

impl<'k> Phase<'k> {
    /// The nest that a statement is.
    pub(super) fn of(s: &'k Stmt) -> Option<Phase<'k>> {
        let mut at = s;
        let (mut vars, mut inside) = (Vec::new(), None);
        while let Stmt::Loop {
            var,
            bind: Bind::Serial,
            body,
        } = at
        {
            vars.push(*var);
            inside = Some(&body[..]);
            match &body[..] {
                [only @ Stmt::Loop { .. }] => at = only,
                _ => break,
            }
        }
        inside.map(|body| Phase { vars, body })
    }

    /// The extents of its loops.
    pub(super) fn extents(&self, kernel: &Kernel) -> Vec<IndexExpr> {
        self.vars.iter().map(|v| kernel.extents[v.0 as usize].clone()).collect()
    }
}

/// Elements of the memory that no loop of a list of extents leaves out, and the place of an iteration of `vars` among them.
pub(super) fn row(kernel: &Kernel, vars: &[VarId]) -> (IndexExpr, IndexExpr) {
    let (mut len, mut at) = (IndexExpr::ONE, IndexExpr::ZERO);
    for &v in vars.iter().rev() {
        at = at + len.clone() * v.into();
        len = len * kernel.extents[v.0 as usize].clone();
    }
    (len, at)
}

/// The statements among which the loop over `var` is, and its place there.
pub(super) fn siblings(body: &[Stmt], var: VarId) -> Option<(&[Stmt], usize)> {
    let is = |s: &Stmt| matches!(s, Stmt::Loop { var: v, .. } if *v == var);
    match body.iter().position(is) {
        Some(at) => Some((body, at)),
        None => body.iter().find_map(|s| siblings(s.body(), var)),
    }
}

/// As [`siblings`], to change them.
pub(super) fn siblings_mut(body: &mut Vec<Stmt>, var: VarId) -> Option<(&mut Vec<Stmt>, usize)> {
    let is = |s: &Stmt| matches!(s, Stmt::Loop { var: v, .. } if *v == var);
    match body.iter().position(is) {
        Some(at) => Some((body, at)),
        None => body
            .iter_mut()
            .filter_map(Stmt::body_mut)
            .find_map(|inside| siblings_mut(inside, var)),
    }
}

/// The innermost body of a nest of which the loops are these.
pub(super) fn innermost<'k>(s: &'k mut Stmt, vars: &[VarId]) -> Option<&'k mut Vec<Stmt>> {
    let inside = |s: &'k mut Stmt| match s {
        Stmt::Loop { body, .. } => Some(body),
        _ => None,
    };
    let mut body = inside(s)?;
    for _ in 1..vars.len() {
        body = inside(body.first_mut()?)?;
    }
    Some(body)
}

/// The values of the phase `later` that the phase `first` computes alike: in the iteration of the same numbers, by the same
/// operations, of the same elements, which nothing changes meanwhile. For each its counterpart in `first`. `between` are the
/// statements from `first` to `later`, both included.
pub(super) fn alike(
    kernel: &Kernel,
    between: &[Stmt],
    first: &Phase<'_>,
    later: &Phase<'_>,
) -> FxHashMap<ValueId, ValueId> {
    let mut stores: FxHashMap<Memory, usize> = FxHashMap::default();
    for a in walk(between).flat_map(|s| s.accesses()).filter(|a| a.effect.writes()) {
        *stores.entry(a.memory).or_default() += 1;
    }
    let steady = |memory: Memory| match memory {
        Memory::Param(p) => kernel.params[p as usize].access == Access::Read,
        Memory::Scratch(_) => !stores.contains_key(&memory),
    };
    let mut known: FxHashMap<Op, ValueId> = FxHashMap::default();
    let mut clamps: Vec<(ValueId, VarId)> = Vec::new();
    for s in first.body {
        match s {
            Stmt::Let { value, op } if op.access().is_none_or(|a| steady(a.memory)) => {
                known.entry(op.clone()).or_insert(*value);
            }
            Stmt::Clamp { var, value } => clamps.push((*value, *var)),
            // What is kept of an earlier phase by now is the value that this one stores.
            Stmt::Store {
                memory: memory @ Memory::Scratch(_),
                index,
                value,
                mask: None,
            } if stores.get(memory) == Some(&1) => {
                let (memory, index, mask) = (*memory, index.clone(), None);
                known.insert(Op::Load { memory, index, mask }, *value);
            }
            _ => {}
        }
    }
    let mut vars: FxHashMap<VarId, VarId> = later.vars.iter().copied().zip(first.vars.iter().copied()).collect();
    let mut own_vars: FxHashSet<VarId> = FxHashSet::default();
    let mut own: FxHashSet<ValueId> = FxHashSet::default();
    let mut found: FxHashMap<ValueId, ValueId> = FxHashMap::default();
    for s in later.body {
        match s {
            Stmt::Let { value, op } => {
                own.insert(*value);
                let mut counterpart = op.clone();
                let mut same = true;
                for v in counterpart.operands_mut() {
                    match found.get(v) {
                        Some(counter) => *v = *counter,
                        None => same &= !own.contains(v),
                    }
                }
                if let Some(e) = op.index() {
                    e.visit_atoms(&mut |a| same &= !matches!(a, IndexNode::Var(v) if own_vars.contains(v)));
                    let e = e.replace_vars(&mut |v| vars.get(&v).map(|&v| v.into()));
                    match &mut counterpart {
                        Op::Index(at, _) | Op::Load { index: at, .. } => *at = e,
                        Op::Const(_)
                        | Op::Map(..)
                        | Op::Convert(..)
                        | Op::Bitcast(..)
                        | Op::ShortExp2(_)
                        | Op::Scale(_)
                        | Op::Approximate(..) => {}
                    }
                }
                let counter = known.get(&counterpart).filter(|_| same);
                if let Some(&counter) = counter.filter(|v| kernel.dtype(**v) == kernel.dtype(*value)) {
                    found.insert(*value, counter);
                }
            }
            Stmt::Clamp { var, value } => {
                let extent = |v: VarId| &kernel.extents[v.0 as usize];
                let counter = found.get(value).copied().or((!own.contains(value)).then_some(*value));
                let same = |c: &&(ValueId, VarId)| Some(c.0) == counter && extent(c.1) == extent(*var);
                match clamps.iter().find(same) {
                    Some(&(_, counter)) => drop(vars.insert(*var, counter)),
                    None => drop(own_vars.insert(*var)),
                }
            }
            s => {
                own.extend(walk(std::slice::from_ref(s)).filter_map(Stmt::defined_value));
            }
        }
    }
    found
}
