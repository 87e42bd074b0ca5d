//! Kernels that run on a product's result in the product's own step.

use rustc_hash::FxHashMap;

use super::{Checker, PlanRule};
use crate::dtype::DType;
use crate::index::{Bounds, IndexExpr, IndexNode, Interval, SymId, VarId};
use crate::kernel::verify::nonnegative;
use crate::kernel::{Access, Bind, Kernel, Memory, Op, Stmt, ValueId};
use crate::plan::{Gemm, Lines};
use crate::scalar::ScalarOp;

impl Checker<'_> {
    /// The kernel behind a product touches the result as its lines say, and nothing else that the product touches.
    pub(super) fn epilogue(&mut self, g: &Gemm) {
        let Some(e) = &g.epilogue else { return };
        let plan = self.plan;
        self.launch(&e.launch);
        let kernel = &plan.kernels[e.launch.kernel.0 as usize];
        if kernel.params.len() != e.launch.args.len() || kernel.symbols.len() != e.launch.symbols.len() {
            // Told by the launch's own check.
            return;
        }
        let result = self.root(g.dst.slot);
        let arguments = || e.launch.args.iter().zip(0u32..);
        let touching: Vec<u32> = arguments()
            .filter(|(s, _)| self.root(**s) == result)
            .map(|(_, p)| p)
            .collect();
        let found = lines(kernel, &touching).map(|l| Lines {
            iterations: e.launch.outer(&l.iterations),
            elements: e.launch.outer(&l.elements),
        });
        let reads = e.launch.args.contains(&g.dst.slot);
        if !reads || found.as_ref() != Some(&e.lines) {
            self.error(PlanRule::Epilogue(g.dst.slot));
        }
        // Parts of the operands may still be read when the kernel writes.
        for (slot, p) in arguments() {
            let writes = kernel.params[p as usize].access != Access::Read;
            for operand in [g.lhs.slot, g.rhs.slot] {
                if writes && self.root(operand) == self.root(*slot) {
                    self.error(PlanRule::NotInPlace(operand, *slot));
                }
            }
            // The product overwrites what lies in the result's bytes.
            let other = *slot != g.dst.slot && self.root(*slot) == result;
            if other && !writes {
                self.error(PlanRule::NotInPlace(g.dst.slot, *slot));
            }
        }
    }
}

/// How the parallel iterations of a kernel go along the parameters `touched`, which are one buffer, if that can be proven.
///
/// Each index into them has to be `line * elements + rest`, with a rest in `0..elements`, where the line is the number of the
/// iteration, or that divided by the iterations of a line. An access behind a mask counts only where the mask holds.
pub fn lines(kernel: &Kernel, touched: &[u32]) -> Option<Lines> {
    let [
        Stmt::Loop {
            var,
            bind: Bind::Parallel,
            body,
        },
    ] = &kernel.body[..]
    else {
        // One iteration, and one line: the buffer.
        let mut lengths = touched.iter().map(|&p| &kernel.params[p as usize].len);
        let elements = lengths.next()?.clone();
        return lengths.all(|l| *l == elements).then_some(Lines {
            iterations: IndexExpr::ONE,
            elements,
        });
    };
    let mut walk = Walk {
        touched,
        touches: Vec::new(),
        ops: FxHashMap::default(),
    };
    walk.body(body);
    let mut search = Search::new(kernel, *var);
    let mut found: Option<Lines> = None;
    for (index, mask) in &walk.touches {
        let next = match search.touch(index, *mask, &walk.ops)? {
            Touch::Never => continue,
            Touch::Lines(next) => next,
        };
        found = Some(match found {
            None => next,
            Some(before) => together(before, next)?,
        });
    }
    found
}

/// The lines of which both go along whole ones.
fn together(a: Lines, b: Lines) -> Option<Lines> {
    if a == b {
        return Some(a);
    }
    let (fine, coarse) = if a.iterations.is(1) { (a, b) } else { (b, a) };
    let fits = fine.iterations.is(1) && coarse.elements == fine.elements * coarse.iterations.clone();
    fits.then_some(coarse)
}

/// Collects the accesses to some parameters, and what values are.
struct Walk<'k, 't> {
    touched: &'t [u32],
    touches: Vec<(&'k IndexExpr, Option<ValueId>)>,
    ops: FxHashMap<ValueId, &'k Op>,
}

impl<'k> Walk<'k, '_> {
    fn touch(&mut self, memory: &Memory, index: &'k IndexExpr, mask: Option<ValueId>) {
        if let Memory::Param(p) = memory
            && self.touched.contains(p)
        {
            self.touches.push((index, mask));
        }
    }

    fn body(&mut self, body: &'k [Stmt]) {
        for s in body {
            match s {
                Stmt::Let { value, op } => {
                    if let Op::Load { memory, index, mask } = op {
                        self.touch(memory, index, *mask);
                    }
                    self.ops.insert(*value, op);
                }
                Stmt::Store {
                    memory, index, mask, ..
                } => self.touch(memory, index, *mask),
                Stmt::Accumulate { state, .. } => state.iter().for_each(|(m, i)| self.touch(m, i, None)),
                Stmt::Loop { body, .. } | Stmt::If { body, .. } => self.body(body),
                Stmt::Clamp { .. } | Stmt::Barrier => {}
            }
        }
    }
}

/// What an access says.
enum Touch {
    /// Its mask never holds.
    Never,
    /// It goes along lines.
    Lines(Lines),
}

/// Puts indices into the form of lines.
struct Search<'k> {
    kernel: &'k Kernel,
    parallel: VarId,
    /// What the parallel variable is divided by.
    divisor: Option<IndexExpr>,
    /// By variable, with what the kernel says of it put into this search's variables.
    extents: Vec<IndexExpr>,
    /// What is never more than a number although it depends on the parallel variable: the rest of a buffer that is walked in
    /// blocks.
    blocks: Vec<IndexExpr>,
    /// Extents of variables that the kernel does not have: the quotient and the remainder of the parallel one, one for each
    /// block, and one for each range that a mask leaves.
    extra: Vec<Option<IndexExpr>>,
}

impl Bounds for Search<'_> {
    fn symbol(&self, sym: SymId) -> Interval {
        self.kernel.symbol(sym)
    }
    fn extent(&self, var: VarId) -> Option<IndexExpr> {
        match (var.0 as usize).checked_sub(self.kernel.extents.len()) {
            Some(extra) => self.extra.get(extra).cloned().flatten(),
            None => self.extents.get(var.0 as usize).cloned(),
        }
    }
}

impl<'k> Search<'k> {
    fn new(kernel: &'k Kernel, parallel: VarId) -> Search<'k> {
        let mut search = Search {
            kernel,
            parallel,
            divisor: None,
            extents: kernel.extents.clone(),
            blocks: Vec::new(),
            extra: vec![None, None],
        };
        for e in &kernel.extents {
            search.divided(e);
        }
        // Once more, now that all blocks are known.
        search.extents = kernel.extents.iter().map(|e| search.divided(e)).collect();
        search.extents[parallel.0 as usize] = kernel.extents[parallel.0 as usize].clone();
        search
    }

    fn quotient(&self) -> VarId {
        VarId(self.kernel.extents.len() as u32)
    }

    fn remainder(&self) -> VarId {
        VarId(self.kernel.extents.len() as u32 + 1)
    }

    fn touch(&mut self, index: &IndexExpr, mask: Option<ValueId>, ops: &FxHashMap<ValueId, &Op>) -> Option<Touch> {
        self.extra.truncate(2 + self.blocks.len());
        let mut index = self.divided(index);
        let mut ranges = Vec::new();
        if let Some(mask) = mask {
            self.ranges(mask, ops, &mut ranges);
        }
        self.extra.truncate(2 + self.blocks.len());
        self.extra[1] = self.divisor.clone();
        let mut known: Vec<(VarId, IndexExpr)> = Vec::new();
        for (e, low, high) in ranges {
            let (low, high) = (low.as_ref(), high.as_ref());
            if let (Some(e), low, high) = (
                e.as_const(),
                low.and_then(|l| l.as_const()),
                high.and_then(|h| h.as_const()),
            ) && (low.is_some_and(|l| e < l) || high.is_some_and(|h| e >= h))
            {
                return Some(Touch::Never);
            }
            let replaced = |e: &IndexExpr| known.iter().fold(e.clone(), |e, (v, is)| put(&e, *v, is));
            let e = replaced(&e);
            let (terms, _) = e.linear();
            let fixed = [self.parallel, self.quotient()];
            let free = terms.iter().filter(|(_, c)| *c == 1).find_map(|(t, _)| t.as_var());
            let Some(var) = free.filter(|v| !fixed.contains(v)) else {
                continue;
            };
            let Some((_, others)) = e.affine_in(var) else { continue };
            // What the mask leaves open, the variable's own range says.
            let own = |end: IndexExpr| (!others.has_vars()).then(|| end + others.clone());
            let low = low.cloned().or_else(|| own(IndexExpr::ZERO));
            let high = high.cloned().or_else(|| own(self.extent(var)?));
            let (Some(low), Some(high)) = (low, high) else { continue };
            let fresh = VarId((self.kernel.extents.len() + self.extra.len()) as u32);
            self.extra.push(Some(high - low.clone()));
            let is = low + fresh.into() - others;
            index = put(&index, var, &is);
            known.push((var, is));
        }
        let (quotient, remainder) = (self.quotient(), self.remainder());
        let inside = |elements: &IndexExpr, rest: &IndexExpr, bounds: &Self| {
            let room = elements.clone() - rest.clone() - IndexExpr::ONE;
            !elements.has_vars() && nonnegative(rest, bounds) && nonnegative(&room, bounds)
        };
        let line = |iterations: IndexExpr, elements: IndexExpr| Some(Touch::Lines(Lines { iterations, elements }));
        if index.uses(self.parallel) {
            let (elements, rest) = index.affine_in(self.parallel)?;
            let other = rest.uses(quotient) || rest.uses(remainder);
            return match !other && inside(&elements, &rest, self) {
                true => line(IndexExpr::ONE, elements),
                false => None,
            };
        }
        let divisor = self.divisor.clone()?;
        let (elements, rest) = index.affine_in(quotient)?;
        if let Some((fine, finer)) = rest.affine_in(remainder)
            && !fine.is(0)
            && elements == divisor.clone() * fine.clone()
            && inside(&fine, &finer, self)
        {
            return line(IndexExpr::ONE, fine);
        }
        match !elements.is(0) && inside(&elements, &rest, self) {
            true => line(divisor, elements),
            false => None,
        }
    }

    /// An expression with variables for the quotient and the remainder of the parallel variable by one divisor.
    fn divided(&mut self, e: &IndexExpr) -> IndexExpr {
        let extent = self.kernel.extent(self.parallel).unwrap_or(IndexExpr::ONE);
        let positive = e.replace_nodes(&mut |n| match n {
            IndexNode::Max(a, b) if a.is(1) && divides(b, &extent) => Some(b.clone()),
            IndexNode::Max(a, b) if b.is(1) && divides(a, &extent) => Some(a.clone()),
            _ => None,
        });
        let positive = positive.replace_nodes(&mut |n| match n {
            IndexNode::Min(a, b) => {
                let (most, rest) = if a.as_const().is_some() { (a, b) } else { (b, a) };
                let most = most.as_const()?;
                self.block(most, rest)
            }
            _ => None,
        });
        let (parallel, quotient, remainder) = (self.parallel, self.quotient(), self.remainder());
        let mut divisor = self.divisor.take();
        let mut same = |a: &IndexExpr, b: &IndexExpr| {
            a.as_var() == Some(parallel) && !b.has_vars() && divisor.get_or_insert_with(|| b.clone()) == b
        };
        let divided = positive.replace_nodes(&mut |n| match n {
            IndexNode::FloorDiv(a, b) if same(a, b) => Some(quotient.into()),
            IndexNode::Mod(a, b) if same(a, b) => Some(remainder.into()),
            _ => None,
        });
        self.divisor = divisor;
        divided
    }

    /// A variable for `min(most, rest)`, where that depends on the parallel variable and is not negative.
    fn block(&mut self, most: i64, rest: &IndexExpr) -> Option<IndexExpr> {
        if !rest.uses(self.parallel) || !nonnegative(rest, self.kernel) {
            return None;
        }
        let first = self.kernel.extents.len() + 2;
        let whole = IndexExpr::min(&IndexExpr::Const(most), rest);
        let at = match self.blocks.iter().position(|b| *b == whole) {
            Some(at) => at,
            // What a mask left of the access before is no longer needed.
            None => {
                self.extra.truncate(2 + self.blocks.len());
                self.extra.push(Some(IndexExpr::Const(most) + IndexExpr::ONE));
                self.blocks.push(whole);
                self.blocks.len() - 1
            }
        };
        Some(VarId((first + at) as u32).into())
    }

    /// Expressions of which a mask says that they lie in `low..high`.
    fn ranges(&mut self, mask: ValueId, ops: &FxHashMap<ValueId, &Op>, out: &mut Vec<Range>) {
        let Some(Op::Map(op, args)) = ops.get(&mask) else {
            return;
        };
        let (Some(&a), Some(&b)) = (args.first(), args.get(1)) else {
            return;
        };
        let more = match op {
            ScalarOp::And => {
                self.ranges(a, ops, out);
                return self.ranges(b, ops, out);
            }
            ScalarOp::Le => IndexExpr::ONE,
            ScalarOp::Lt => IndexExpr::ZERO,
            _ => return,
        };
        let (Some(a), Some(b)) = (self.integer(a, ops), self.integer(b, ops)) else {
            return;
        };
        let mut entry = |e: IndexExpr| match out.iter().position(|r| r.0 == e) {
            Some(at) => at,
            None => {
                out.push((e, None, None));
                out.len() - 1
            }
        };
        if !a.has_vars() {
            let at = entry(b.clone());
            out[at].1 = Some(a + IndexExpr::ONE - more);
        } else if !b.has_vars() {
            let at = entry(a);
            out[at].2 = Some(b + more);
        }
    }

    /// The index expression that an integer value is.
    fn integer(&mut self, value: ValueId, ops: &FxHashMap<ValueId, &Op>) -> Option<IndexExpr> {
        match ops.get(&value)? {
            Op::Const(c) if c.dtype().is_int() => Some(IndexExpr::Const(c.as_i64())),
            Op::Index(e, dtype) => {
                let below = |low: IndexExpr, high: &IndexExpr| nonnegative(&(high.clone() - low), self.kernel);
                let exact = match dtype {
                    DType::I64 => true,
                    DType::I32 => {
                        below(IndexExpr::Const(i32::MIN.into()), e)
                            && below(e.clone(), &IndexExpr::Const(i32::MAX.into()))
                    }
                    _ => false,
                };
                exact.then(|| self.divided(e))
            }
            _ => None,
        }
    }
}

/// An expression, and its lowest value and the end of its values as far as they are known.
type Range = (IndexExpr, Option<IndexExpr>, Option<IndexExpr>);

/// The expression with a variable replaced.
fn put(e: &IndexExpr, var: VarId, is: &IndexExpr) -> IndexExpr {
    e.replace_vars(&mut |v| (v == var).then(|| is.clone()))
}

/// True if every symbol of the product `part` is a factor of the product `whole`, so that it is positive where that is.
fn divides(part: &IndexExpr, whole: &IndexExpr) -> bool {
    let single = |e: &IndexExpr| match &e.linear() {
        (terms, 0) => match &terms[..] {
            [(t, c)] if *c > 0 => Some(t.factors()),
            _ => None,
        },
        _ => None,
    };
    match (single(part), single(whole)) {
        (Some(part), Some(whole)) => part.iter().all(|f| whole.contains(f)),
        _ => false,
    }
}
