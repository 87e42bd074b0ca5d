//! The search for what is certainly wrong with a kernel, cheap enough for every compilation.
//!
//! [`super::verify`] says of each fact whether it is proven, refuted or neither. To refuse a kernel only what is refuted matters,
//! so here most of the time goes to neither proofs nor enumeration: what intervals prove is left out, and for the rest the loops
//! are walked at their first and last iterations, where an index that rises or falls along its loops is smallest and
//! largest. The values of the symbols are the caller's, who knows which of them occur together.
//!
//! Invariant: what is reported is an error that [`super::verify`] would report too, had it looked at those values.

use rustc_hash::FxHashMap;

use super::masked::without_masked_lanes;
use super::races::{Touch, clamped, collect, separate};
use super::{Example, Place, Rule, Violation, structure};
use crate::index::{IndexExpr, VarId};
use crate::kernel::{Access, Bind, Kernel, Memory, Op, Stmt};

/// Evaluations of indices that one kernel is worth, about: beyond, fewer loops are walked at both ends.
const EVALUATIONS: usize = 1 << 14;
/// Loops around an access that are walked at both ends, at most; those inside them are at their last iterations.
const BOTH_ENDS: u32 = 5;
/// Nodes of the expressions that a proof of disjointness may look at.
const NODES: usize = 1 << 10;

/// The first error of a kernel: a broken rule of its structure, an access outside of its memory, or two parallel iterations
/// that touch one element, for one of the given values of its symbols.
pub fn refute(kernel: &Kernel, symbols: &[Vec<i64>]) -> Option<Violation> {
    let broken = structure(kernel).into_iter().next();
    broken
        .or_else(|| out_of_bounds(kernel, symbols))
        .or_else(|| conflict(kernel, symbols))
}

/// What of a nest must be walked.
enum Node<'k> {
    Access(Memory, &'k IndexExpr, Vec<u32>),
    Loop(VarId, Vec<Node<'k>>),
    /// An index from data, inside the variable's extent.
    Clamp(VarId),
}

fn out_of_bounds(kernel: &Kernel, symbols: &[Vec<i64>]) -> Option<Violation> {
    let mut count = 0;
    let nodes = unproven(kernel, &kernel.body, &mut Vec::new(), &mut count);
    if count == 0 {
        return None;
    }
    let visits = EVALUATIONS / (count * symbols.len()).max(1);
    let both = visits.max(1).ilog2().min(BOTH_ENDS);
    symbols.iter().find_map(|values| {
        let len = |len: &IndexExpr| len.eval_symbols(values);
        let mut walk = Walk {
            kernel,
            symbols: values,
            both,
            vars: vec![None; kernel.extents.len()],
            params: kernel.params.iter().map(|p| len(&p.len)).collect(),
            scratch: kernel.scratch.iter().map(|s| len(&s.len)).collect(),
        };
        let lengths = || walk.params.iter().chain(&walk.scratch);
        // Nothing can be launched with such values.
        if lengths().any(|n| n.is_none_or(|n| n < 0)) {
            return None;
        }
        walk.block(&nodes, 0)
    })
}

/// The accesses that need a look, in their loops; without those that are the same as one before.
fn unproven<'k>(kernel: &'k Kernel, body: &'k [Stmt], place: &mut Vec<u32>, count: &mut usize) -> Vec<Node<'k>> {
    let mut out: Vec<Node<'k>> = Vec::new();
    let mut seen: Vec<(&IndexExpr, &IndexExpr)> = Vec::new();
    let mut look = |out: &mut Vec<Node<'k>>, memory: Memory, index: &'k IndexExpr, place: &[u32]| {
        let len = kernel.memory_len(memory);
        if seen.iter().rev().take(8).any(|s| *s == (index, len)) {
            return;
        }
        seen.push((index, len));
        if !inside(kernel, index, len) {
            *count += 1;
            out.push(Node::Access(memory, index, place.to_vec()));
        }
    };
    let mut inner = Vec::new();
    for (i, s) in body.iter().enumerate() {
        place.push(i as u32);
        match s {
            Stmt::Let {
                op:
                    Op::Load {
                        memory,
                        index,
                        mask: None,
                    },
                ..
            }
            | Stmt::Store {
                memory,
                index,
                mask: None,
                ..
            } => look(&mut out, *memory, index, place),
            Stmt::Accumulate { state, .. } => state.iter().for_each(|(m, index)| look(&mut out, *m, index, place)),
            // Walked below: what counts accesses is borrowed here.
            Stmt::Loop { body, .. } | Stmt::Each { body, .. } => {
                inner.push((out.len(), s.defined_vars(), body, place.clone()));
            }
            Stmt::Clamp { var, .. } => out.push(Node::Clamp(*var)),
            // As loops around its accesses.
            Stmt::Contract(_) | Stmt::FoldRows(_) | Stmt::CopyAsync(_) => {
                let mut own = Vec::new();
                for a in s.accesses().filter(|a| !a.is_conditional()) {
                    look(&mut own, a.memory, a.index, place);
                }
                if !own.is_empty() {
                    out.extend(
                        s.own_vars()
                            .iter()
                            .rev()
                            .fold(own, |inner, v| vec![Node::Loop(*v, inner)]),
                    );
                }
            }
            // What is under a condition is the program's to keep inside.
            _ => {}
        }
        place.pop();
    }
    // From behind, so that the places of those before stay.
    for (at, vars, body, mut place) in inner.into_iter().rev() {
        let nodes = unproven(kernel, body, &mut place, count);
        if nodes.iter().any(|n| !matches!(n, Node::Clamp(_))) {
            let nest = vars.iter().rev().fold(nodes, |inner, v| vec![Node::Loop(*v, inner)]);
            nest.into_iter().for_each(|n| out.insert(at, n));
        }
    }
    out
}

/// Whether intervals prove an access; with symbols, also the ends of linear loops.
fn inside(kernel: &Kernel, index: &IndexExpr, len: &IndexExpr) -> bool {
    let (at, n) = (index.interval(kernel), len.interval(kernel));
    if at.lo >= 0 && at.hi < n.lo {
        return true;
    }
    !kernel.symbols.is_empty() && index.proves_nonnegative(kernel) && index.proves_less(len, kernel)
}

struct Walk<'k> {
    kernel: &'k Kernel,
    symbols: &'k [i64],
    /// Loops that are walked at both ends.
    both: u32,
    vars: Vec<Option<i64>>,
    params: Vec<Option<i64>>,
    scratch: Vec<Option<i64>>,
}

impl Walk<'_> {
    fn eval(&self, e: &IndexExpr) -> Option<i64> {
        e.eval(self.symbols, &|v| self.vars[v.0 as usize])
    }

    fn block(&mut self, nodes: &[Node<'_>], depth: u32) -> Option<Violation> {
        for node in nodes {
            match node {
                Node::Access(memory, index, place) => {
                    let len = match memory {
                        Memory::Param(p) => self.params[*p as usize],
                        Memory::Scratch(s) => self.scratch[*s as usize],
                    };
                    let (Some(at), Some(len)) = (self.eval(index), len) else {
                        continue;
                    };
                    if !(0..len).contains(&at) {
                        return Some(Violation {
                            place: Place(place.clone()),
                            rule: Rule::OutOfBounds {
                                memory: *memory,
                                example: self.example(),
                            },
                        });
                    }
                }
                Node::Loop(var, inner) => {
                    let n = self.eval(&self.kernel.extents[var.0 as usize]).unwrap_or(0);
                    let ends = [0, n - 1];
                    let from = usize::from(n == 1 || depth >= self.both);
                    for &i in ends[from..].iter().filter(|_| n > 0) {
                        self.vars[var.0 as usize] = Some(i);
                        let found = self.block(inner, depth + 1);
                        if found.is_some() {
                            return found;
                        }
                    }
                    self.vars[var.0 as usize] = None;
                }
                Node::Clamp(var) => {
                    let n = self.eval(&self.kernel.extents[var.0 as usize]);
                    self.vars[var.0 as usize] = n.filter(|&n| n > 0).map(|n| n - 1);
                }
            }
        }
        None
    }

    fn example(&self) -> Example {
        let vars = self.vars.iter().zip(0..);
        Example {
            symbols: self.symbols.to_vec(),
            vars: vars.filter_map(|(v, k)| Some((VarId(k), (*v)?))).collect(),
        }
    }
}

/// Two parallel iterations of which one writes what the other touches.
fn conflict(kernel: &Kernel, symbols: &[Vec<i64>]) -> Option<Violation> {
    let [
        Stmt::Loop {
            var,
            bind: Bind::Parallel,
            body,
        },
    ] = &kernel.body[..]
    else {
        return None;
    };
    if kernel.extents[var.0 as usize].interval(kernel).hi <= 1 {
        return None;
    }
    let from_data = clamped(&kernel.body);
    let kernel = &*without_masked_lanes(kernel);
    // What was seen not to meet: results that are written together are touched alike for the most part.
    let mut apart: Vec<Vec<Touch>> = Vec::new();
    for p in 0..kernel.params.len() as u32 {
        if kernel.params[p as usize].access == Access::Read {
            continue;
        }
        let mut touches = Vec::new();
        collect(body, Memory::Param(p), &mut vec![*var], false, &mut touches);
        let mut seen: Vec<(IndexExpr, bool)> = Vec::new();
        touches.retain(|t| {
            let known = seen
                .iter()
                .any(|(index, writes)| *index == t.index && *writes == t.writes);
            if !known {
                seen.push((t.index.clone(), t.writes));
            }
            !known
        });
        if !touches.iter().any(|t| t.writes) || apart.contains(&touches) {
            continue;
        }
        let is_separate = separate(kernel, *var, &touches, NODES);
        apart.push(touches.clone());
        if is_separate {
            continue;
        }
        touches.retain(|t| !from_data.iter().any(|v| t.index.uses(*v)));
        // Writes first: a read that meets no write is none.
        touches.sort_by_key(|t| !t.writes);
        let visits = EVALUATIONS / (touches.len() * symbols.len()).max(1);
        let both = visits.max(1).ilog2().min(BOTH_ENDS);
        for values in symbols {
            let mut meet = Meet {
                kernel,
                symbols: values,
                parallel: *var,
                both,
                vars: vec![None; kernel.extents.len()],
                owners: FxHashMap::default(),
            };
            if touches.iter().any(|t| meet.touch(t, &t.vars, 0)) {
                let vars = meet.vars.iter().zip(0..);
                return Some(Violation {
                    place: Place(vec![0]),
                    rule: Rule::ParallelConflict {
                        param: p,
                        example: Example {
                            symbols: values.clone(),
                            vars: vars.filter_map(|(v, k)| Some((VarId(k), (*v)?))).collect(),
                        },
                    },
                });
            }
        }
    }
    None
}

struct Meet<'k> {
    kernel: &'k Kernel,
    symbols: &'k [i64],
    parallel: VarId,
    both: u32,
    vars: Vec<Option<i64>>,
    /// By element: the iteration that touched it first, and whether it writes.
    owners: FxHashMap<i64, (i64, bool)>,
}

impl Meet<'_> {
    /// Whether an access, inside loops over `vars`, touches what another iteration did, one of the two writing.
    fn touch(&mut self, t: &Touch, vars: &[VarId], depth: u32) -> bool {
        let lookup = |v: VarId| self.vars[v.0 as usize];
        let Some((&var, rest)) = vars.split_first() else {
            let (Some(at), Some(me)) = (t.index.eval(self.symbols, &lookup), lookup(self.parallel)) else {
                return false;
            };
            let owner = self.owners.entry(at).or_insert((me, t.writes));
            return owner.0 != me && (owner.1 || t.writes);
        };
        let extent = self.kernel.extents[var.0 as usize].eval(self.symbols, &lookup);
        let n = extent.unwrap_or(0);
        // Neighbours of the parallel loop are the likeliest to meet.
        let mut visited: [Option<i64>; 4] = [Some(n - 1), None, None, None];
        if var == self.parallel {
            visited = [Some(0), Some(1), Some(n - 2), Some(n - 1)];
        } else if depth < self.both {
            visited[1] = Some(0);
        }
        for i in visited.into_iter().flatten().filter(|i| (0..n).contains(i)) {
            self.vars[var.0 as usize] = Some(i);
            if self.touch(t, rest, depth + 1) {
                return true;
            }
        }
        self.vars[var.0 as usize] = None;
        false
    }
}
