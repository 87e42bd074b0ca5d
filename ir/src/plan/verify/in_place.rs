//! Buffers that serve twice: kernels that run in place, and inputs that are given away.

use std::cell::{Ref, RefCell};

use super::{Checker, PlanRule};
use crate::index::{IndexExpr, IndexNode, VarId};
use crate::kernel::verify::nonnegative;
use crate::kernel::visit::{Effect, MemoryAccess};
use crate::kernel::{Bind, Kernel, Memory, Stmt, ValueId};
use crate::plan::Step;

impl Checker<'_> {
    /// A donated input has the output's size and is read for the last time before the output begins, or where it begins,
    /// by a kernel that may run in place.
    pub(super) fn donations(&mut self) {
        let plan = self.plan;
        // Most plans offer nothing.
        if plan.donations.is_empty() {
            return;
        }
        let touches = plan.lives();
        for &(input, output) in &plan.donations {
            if !self.may_donate(input, output, &touches) {
                self.error(PlanRule::Donation(input, output));
            }
        }
    }

    fn may_donate(&mut self, input: u32, output: u32, touches: &[Option<(usize, usize)>]) -> bool {
        let plan = self.plan;
        let given = plan.inputs.get(input as usize).and_then(|i| i.slot);
        let (Some(given), Some(taker)) = (given, plan.outputs.get(output as usize).map(|o| o.slot)) else {
            return false;
        };
        let (a, b) = (&plan.slots[given.0 as usize], &plan.slots[taker.0 as usize]);
        let last = touches[given.0 as usize].map(|t| t.1);
        let first = touches[self.root(taker).0 as usize].map(|t| t.0);
        let in_order = match (last, first) {
            (Some(last), Some(first)) if last == first => {
                let launches = match &plan.steps[last] {
                    Step::Launch(l) => std::slice::from_ref(l),
                    Step::Group(all) => all,
                    // None before the one that takes the input's bytes may have begun with the output.
                    Step::Sequence(all) => {
                        let reader = all.iter().position(|l| l.args.contains(&given));
                        let early = all[..reader.unwrap_or(0)].iter().flat_map(|l| &l.args);
                        if early.into_iter().any(|s| self.root(*s) == self.root(taker)) {
                            return false;
                        }
                        all
                    }
                    // A product that writes to the output's bytes does so before the operand is read.
                    Step::Gemm(g) if self.root(g.dst.slot) != self.root(taker) => match &g.epilogue {
                        Some(e)
                            if e.product.is_none() && [&g.lhs, &g.rhs].iter().all(|o| self.root(o.slot) != given) =>
                        {
                            std::slice::from_ref(&e.launch)
                        }
                        _ => return false,
                    },
                    _ => return false,
                };
                let mut readers = launches.iter().filter(|l| l.args.contains(&given));
                readers.next().is_some_and(|l| {
                    let at = |slot| l.args.iter().position(|&s| s == slot).map(|p| p as u32);
                    let pair = at(given).zip(at(taker));
                    pair.is_some_and(|(r, w)| self.runs_in_place(l.kernel, r, w))
                }) && readers.next().is_none()
            }
            (last, first) => last < first,
        };
        a.len == b.len && a.dtype.bytes() == b.dtype.bytes() && in_order
    }
}

/// True if every load of `read` sees what was there before the kernel, although stores of `written` go to the same bytes.
///
/// A load is safe if a store at the same index follows it in its own iteration: each element is written once, so nothing
/// else overwrites what it reads. It is also safe if no store can come before it at the same place: those of its own
/// iteration come later or go elsewhere, and those of other iterations stay in their own part of the buffer (a row is then
/// read as a whole before any of it is written) or go to other elements (as those of a column do). The threads of a GPU's block are at
/// different iterations at once, so that there only the first holds, and only of what the thread loads alone that stores it: what every thread loads
/// some load when another has stored already.
pub fn runs_in_place(kernel: &Kernel, read: u32, written: u32) -> bool {
    InPlace::of(kernel).runs(read, written)
}

/// What [`runs_in_place`] has to know of a kernel, whichever pair it is asked about: kernels of many results have many pairs.
pub struct InPlace<'k> {
    kernel: &'k Kernel,
    /// By parameter.
    touches: Vec<Touches<'k>>,
}

/// The accesses of a parameter.
#[derive(Default)]
struct Touches<'k> {
    loads: Vec<Touch<'k>>,
    stores: Vec<Touch<'k>>,
    /// Accumulating into a result reads what an operand may have left there.
    accumulates: Vec<Touch<'k>>,
}

impl<'k> InPlace<'k> {
    /// Looks at a kernel.
    pub fn of(kernel: &'k Kernel) -> InPlace<'k> {
        let mut walk = Walk {
            block: Vec::new(),
            loops: Vec::new(),
            thread: None,
            found: kernel.params.iter().map(|_| Touches::default()).collect(),
        };
        walk.body(&kernel.body);
        InPlace {
            kernel,
            touches: walk.found,
        }
    }

    /// As [`runs_in_place`].
    pub fn runs(&self, read: u32, written: u32) -> bool {
        let (Some(read), Some(written)) = (self.touches.get(read as usize), self.touches.get(written as usize)) else {
            return false;
        };
        let loads = || read.loads.iter().chain(&written.accumulates);
        let stores = || written.stores.iter().chain(&written.accumulates);
        let in_order = self.kernel.grid().is_none();
        loads().all(|l| {
            stores().any(|s| (in_order || alone(self.kernel, l, s)) && overwrites(l, s))
                || (in_order && stores().all(|s| never_before(self.kernel, l, s)))
        })
    }
}

/// One load or store: the numbers of its statements from the outermost block inwards, the loops around it (each with its
/// depth in that path), and the element.
struct Touch<'k> {
    block: Vec<usize>,
    loops: Vec<(usize, VarId)>,
    /// The loop over a GPU's threads that it is in.
    thread: Option<VarId>,
    index: &'k IndexExpr,
    mask: Option<ValueId>,
    /// See [`Touch::parts`]: proven once, for an access meets many others.
    parts: RefCell<Parts>,
}

/// How the outermost loops around an access cut its elements, as far as that was asked.
struct Parts {
    of: Vec<Part>,
    /// The element within an iteration of those loops; none where the next one does not cut.
    inside: Option<IndexExpr>,
}

/// How a loop cuts the elements that an access goes to.
enum Part {
    /// It has one iteration at most.
    Whole,
    /// Iteration `i` goes to elements `step * i .. step * (i + 1)` of those of an iteration of the loops around it, whichever
    /// iteration of the loops inside it is.
    Of(IndexExpr),
}

impl Parts {
    /// What the loop over `var` does to the elements that are left.
    fn cut(&mut self, kernel: &Kernel, var: VarId) {
        let Some(index) = self.inside.take() else { return };
        if kernel.extents[var.0 as usize].interval(kernel).hi <= 1 {
            self.of.push(Part::Whole);
            self.inside = Some(index);
            return;
        }
        let Some((step, inside)) = index.affine_in(var).filter(|(step, _)| !step.has_vars()) else {
            return;
        };
        let room = step.clone() - inside.clone() - IndexExpr::ONE;
        if nonnegative(&inside, kernel) && nonnegative(&room, kernel) {
            self.of.push(Part::Of(step));
            self.inside = Some(inside);
        }
    }
}

impl Touch<'_> {
    /// The outermost so many loops around the access, as far as they cut its elements into parts.
    fn parts(&self, kernel: &Kernel, loops: usize) -> Ref<'_, [Part]> {
        let known = self.parts.borrow().of.len();
        for &(_, var) in self.loops.iter().take(loops).skip(known) {
            self.parts.borrow_mut().cut(kernel, var);
        }
        Ref::map(self.parts.borrow(), |parts| &parts.of[..])
    }
}

struct Walk<'k> {
    block: Vec<usize>,
    loops: Vec<(usize, VarId)>,
    thread: Option<VarId>,
    found: Vec<Touches<'k>>,
}

impl<'k> Walk<'k> {
    fn touch(&mut self, param: u32, a: MemoryAccess<'k>) {
        let touch = Touch {
            block: self.block.clone(),
            loops: self.loops.clone(),
            thread: self.thread,
            index: a.index,
            mask: a.mask,
            parts: RefCell::new(Parts {
                of: Vec::new(),
                inside: Some(a.index.clone()),
            }),
        };
        if let Some(of) = self.found.get_mut(param as usize) {
            match a.effect {
                Effect::Load => of.loads.push(touch),
                Effect::Store => of.stores.push(touch),
                Effect::Accumulate => of.accumulates.push(touch),
            }
        }
    }

    fn body(&mut self, body: &'k [Stmt]) {
        for (i, s) in body.iter().enumerate() {
            self.block.push(i);
            for a in s.accesses() {
                if let Memory::Param(param) = a.memory {
                    self.touch(param, a);
                }
            }
            match s {
                Stmt::Loop { var, body, bind } => {
                    let around = self.thread;
                    if *bind == Bind::Thread {
                        self.thread = Some(*var);
                    }
                    self.loops.push((self.block.len() - 1, *var));
                    self.body(body);
                    self.loops.pop();
                    self.thread = around;
                }
                s => self.body(s.body()),
            }
            self.block.pop();
        }
    }
}

/// Whether of a GPU's threads only the one that stores an element loads it: each has elements of its own, or there are no others, or all that load an
/// element store it too, which one alone does.
fn alone(kernel: &Kernel, load: &Touch<'_>, store: &Touch<'_>) -> bool {
    load.thread.is_some_and(|t| {
        let single = kernel.extents[t.0 as usize].interval(kernel).hi <= 1;
        let own = load
            .index
            .affine_in(t)
            .is_some_and(|(step, _)| step.as_const().is_some_and(|n| n != 0));
        // A store further inside may be one that some threads leave out.
        let by_all = load.mask == store.mask && load.block.len() == store.block.len();
        single || own || by_all && (load.mask.is_some() || load.index.uses(t))
    })
}

/// The store follows the load in the same iteration of all its loops, at the same index.
fn overwrites(load: &Touch<'_>, store: &Touch<'_>) -> bool {
    let depth = load.block.len() - 1;
    store.index == load.index
        && store.block.len() > depth
        && store.block[..depth] == load.block[..depth]
        && store.block[depth] > load.block[depth]
}

/// No execution of the store that may come before one of the load goes to the element that is loaded.
fn never_before(kernel: &Kernel, load: &Touch<'_>, store: &Touch<'_>) -> bool {
    let same = load.block.iter().zip(&store.block).take_while(|(a, b)| a == b).count();
    let (Some(l), Some(s)) = (load.block.get(same), store.block.get(same)) else {
        return false;
    };
    let shared = load.loops.iter().take_while(|(depth, _)| *depth < same).count();
    // Below the shared loops each has variables of its own, so that both can vary freely in one expression.
    let (own, others) = (&load.loops[shared..], &store.loops[shared..]);
    if own.iter().any(|(_, v)| others.iter().any(|(_, w)| v == w)) || !bound(load) || !bound(store) {
        return false;
    }
    if l < s && own_elements(kernel, load, store, shared) {
        return true;
    }
    // Within one iteration of the shared loops.
    let apart = |a: &IndexExpr, b: &IndexExpr| nonnegative(&(a.clone() - b.clone() - IndexExpr::ONE), kernel);
    if l > s && !apart(load.index, store.index) && !apart(store.index, load.index) {
        return false;
    }
    // Between iterations: each shared loop cuts the buffer into parts, and both stay in the part of their iteration.
    let (a, b) = (load.parts(kernel, shared), store.parts(kernel, shared));
    let same_part = |a: &Part, b: &Part| match (a, b) {
        (Part::Whole, Part::Whole) => true,
        (Part::Of(a), Part::Of(b)) => a == b,
        _ => false,
    };
    a.len() >= shared && b.len() >= shared && a.iter().zip(&*b).take(shared).all(|(a, b)| same_part(a, b))
}

/// Whether each iteration of the first `shared` loops stores what it loads, and no two of them load the same: behind them are
/// loops over equal extents, at corresponding indices, whose strides are those of an array without gaps or with.
fn own_elements(kernel: &Kernel, load: &Touch<'_>, store: &Touch<'_>, shared: usize) -> bool {
    let extent = |v: VarId| &kernel.extents[v.0 as usize];
    let (own, others) = (&load.loops[shared..], &store.loops[shared..]);
    let pairs = || own.iter().zip(others).map(|(a, b)| (a.1, b.1));
    let other = |v: VarId| pairs().find(|p| p.0 == v).map(|p| p.1.into());
    if own.len() != others.len()
        || pairs().any(|(a, b)| extent(a) != extent(b))
        || load.index.replace_vars(&mut |v| other(v)) != *store.index
    {
        return false;
    }
    let mut strides = Vec::new();
    let mut rest = load.index.clone();
    for (at, &(_, v)) in load.loops.iter().enumerate() {
        if extent(v).interval(kernel).hi <= 1 {
            continue;
        }
        match rest.affine_in(v) {
            Some((stride, others)) if rest.uses(v) && !stride.has_vars() => {
                strides.push((stride, v));
                rest = others;
            }
            _ if at >= shared && !rest.uses(v) => {}
            _ => return false,
        }
    }
    // Strides that depend on sizes are those of the outer loops.
    strides.sort_by_key(|(stride, _)| stride.as_const().unwrap_or(i64::MAX));
    let mut span = IndexExpr::ZERO;
    strides.into_iter().all(|(stride, v)| {
        let wider = stride.clone() - span.clone() - IndexExpr::ONE;
        span = span.clone() + stride * (extent(v).clone() - IndexExpr::ONE);
        nonnegative(&wider, kernel)
    })
}

/// True if the index mentions no variable but those of its loops: others come from data.
fn bound(touch: &Touch<'_>) -> bool {
    let mut all = true;
    touch.index.visit_atoms(&mut |a| {
        if let IndexNode::Var(v) = a {
            all &= touch.loops.iter().any(|(_, l)| l == v);
        }
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::graph::Monoid;
    use crate::kernel::{Access, Op, Param, Scope};

    /// `b[r, j] = a[r, j] + sum(a[r, ..])` over 3 rows of 4: two passes over each row, the second split in two parts.
    fn row_local(second: impl Fn(IndexExpr, IndexExpr) -> IndexExpr) -> Kernel {
        let param = |access| Param {
            dtype: DType::F32,
            len: 12.into(),
            access,
        };
        let mut k = Kernel {
            params: vec![param(Access::Read), param(Access::Write)],
            ..Kernel::default()
        };
        let row = k.new_var(3.into());
        let total = k.new_scratch(DType::F32, IndexExpr::ONE, Scope::Register);
        let load = |k: &mut Kernel, index: IndexExpr| {
            let value = k.new_value(DType::F32);
            let memory = Memory::Param(0);
            let op = Op::Load {
                memory,
                index,
                mask: None,
            };
            (value, Stmt::Let { value, op })
        };
        let serial = |var, body| Stmt::Loop {
            var,
            bind: Bind::Serial,
            body,
        };
        let j = k.new_var(4.into());
        let at = |v: VarId, from: i64| IndexExpr::from(row) * 4.into() + v.into() + from.into();
        let (value, read) = load(&mut k, at(j, 0));
        let sum = Stmt::Accumulate {
            monoid: Monoid::Add,
            state: [(total, IndexExpr::ZERO)].into_iter().collect(),
            values: [value].into_iter().collect(),
        };
        let mut body = vec![serial(j, vec![read, sum])];
        for from in [0, 2] {
            let v = k.new_var(2.into());
            let (value, read) = load(&mut k, at(v, from));
            let store = Stmt::Store {
                memory: Memory::Param(1),
                index: second(row.into(), IndexExpr::from(v) + from.into()),
                value,
                mask: None,
            };
            body.push(serial(v, vec![read, store]));
        }
        k.body = vec![Stmt::Loop {
            var: row,
            bind: Bind::Parallel,
            body,
        }];
        k
    }

    #[test]
    fn a_row_is_overwritten_once_all_of_it_was_read() {
        let four = IndexExpr::Const(4);
        let k = row_local(|row, j| row * four.clone() + j);
        assert!(runs_in_place(&k, 0, 1));
        // Into another row, which another iteration may not have read yet.
        let k = row_local(|row, j| (row + IndexExpr::ONE) * four.clone() + j);
        assert!(!runs_in_place(&k, 0, 1));
        // Reversed within the row: the second part was overwritten by the first.
        let k = row_local(|row, j| row * four.clone() + IndexExpr::Const(3) - j);
        assert!(!runs_in_place(&k, 0, 1));
        // Read again after the row is written.
        let mut k = row_local(|row, j| row * four.clone() + j);
        let Stmt::Loop { body, .. } = &mut k.body[0] else {
            unreachable!()
        };
        let first = body.remove(0);
        body.push(first);
        assert!(!runs_in_place(&k, 0, 1));
    }

    #[test]
    fn a_column_is_overwritten_once_all_of_it_was_read() {
        // Three columns of four rows.
        let mut columns = row_local(|column, j| j * 3.into() + column);
        crate::kernel::visit::walk_mut(&mut columns.body, &mut |s| {
            for a in s.accesses_mut().filter(|a| *a.memory == Memory::Param(0)) {
                let (four, rest) = a.index.affine_in(VarId(0)).unwrap();
                assert!(four.is(4));
                *a.index = rest * 3.into() + VarId(0).into();
            }
        });
        // The second pass is in two parts, which no one loop of the first walks.
        assert!(!runs_in_place(&columns, 0, 1));
        let Stmt::Loop { body, .. } = &mut columns.body[0] else {
            unreachable!()
        };
        body.remove(1);
        body.remove(1);
        let Some(Stmt::Loop { body: pass, .. }) = body.first() else {
            unreachable!()
        };
        // Of the same extent.
        let (v, value) = (VarId(4), ValueId(0));
        let mut second = pass.clone();
        second[1] = Stmt::Store {
            memory: Memory::Param(1),
            index: IndexExpr::from(VarId(1)) * 3.into() + VarId(0).into(),
            value,
            mask: None,
        };
        crate::kernel::visit::walk_mut(&mut second, &mut |s| {
            for e in s.indices_mut() {
                *e = e.replace_vars(&mut |x| (x == VarId(1)).then(|| v.into()));
            }
        });
        body.push(Stmt::Loop {
            var: v,
            bind: Bind::Serial,
            body: second,
        });
        columns.extents.resize(5, 4.into());
        assert!(runs_in_place(&columns, 0, 1));
        // Columns that share elements: another one may have been overwritten.
        let mut shared = columns.clone();
        crate::kernel::visit::walk_mut(&mut shared.body, &mut |s| {
            for a in s.accesses_mut().filter(|a| matches!(a.memory, Memory::Param(_))) {
                let (three, rest) = a.index.affine_in(VarId(0)).unwrap();
                *a.index = rest + three * 3.into();
            }
        });
        assert!(!runs_in_place(&shared, 0, 1));
        // Read again once it is written.
        let Stmt::Loop { body, .. } = &mut columns.body[0] else {
            unreachable!()
        };
        body.reverse();
        assert!(!runs_in_place(&columns, 0, 1));
    }

    #[test]
    fn what_every_thread_of_a_block_loads_none_overwrites() {
        let of = |by_one_thread: bool| {
            let param = |access| Param {
                dtype: DType::F32,
                len: 1.into(),
                access,
            };
            let mut k = Kernel {
                params: vec![param(Access::Read), param(Access::Write)],
                ..Kernel::default()
            };
            let (block, thread) = (k.new_var(1.into()), k.new_var(1.into()));
            let value = k.new_value(DType::F32);
            let load = Stmt::Let {
                value,
                op: Op::Load {
                    memory: Memory::Param(0),
                    index: IndexExpr::ZERO,
                    mask: None,
                },
            };
            let store = Stmt::Store {
                memory: Memory::Param(1),
                index: IndexExpr::ZERO,
                value,
                mask: None,
            };
            let threads = |body| Stmt::Loop {
                var: thread,
                bind: Bind::Thread,
                body,
            };
            let body = match by_one_thread {
                true => vec![threads(vec![load, store])],
                false => vec![load, threads(vec![store])],
            };
            k.body = vec![Stmt::Loop {
                var: block,
                bind: Bind::Block,
                body,
            }];
            k
        };
        assert!(runs_in_place(&of(true), 0, 1));
        assert!(!runs_in_place(&of(false), 0, 1));
    }
}
