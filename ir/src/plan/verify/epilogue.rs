//! Kernels that run on a product's result in the product's own step.

use rustc_hash::FxHashMap;

use super::{Checker, PlanPlace, PlanRule};
use crate::dtype::DType;
use crate::index::{Bounds, IndexExpr, IndexNode, Interval, SymId, VarId};
use crate::kernel::verify::nonnegative;
use crate::kernel::visit::walk;
use crate::kernel::{Access, Bind, Kernel, Memory, Op, Stmt, ValueId};
use crate::plan::{DeviceId, Epilogue, Gemm, Lines, Slot, SlotId, Step};
use crate::scalar::ScalarOp;

/// Conditions of a mask that are looked at.
const MAX_CONDITIONS: usize = 64;

impl Checker<'_> {
    /// The kernel behind a product touches the result as its lines say, and nothing else that the product touches.
    pub(super) fn epilogue(&mut self, g: &Gemm) {
        let Some(e) = &g.epilogue else { return };
        let plan = self.plan;
        self.launch(&e.launch);
        let kernel = &plan.kernels[e.launch.kernel.0 as usize];
        if kernel.params.len() != e.launch.args.len() || kernel.symbols.len() != e.launch.symbols.len() {
            // Reported by the launch's own check.
            return;
        }
        if e.library.is_some() {
            return self.library_epilogue(g, e);
        }
        let result = g.dst.slot;
        let arguments = || e.launch.args.iter().zip(0u32..);
        let touching: Vec<u32> = arguments()
            .filter(|(s, _)| self.shares(**s, result))
            .map(|(_, p)| p)
            .collect();
        let known = self.lines.entry((e.launch.kernel, touching));
        let of_kernel = known.or_insert_with_key(|(_, touching)| lines(kernel, touching));
        let found = of_kernel.as_ref().map(|l| Lines {
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
                if writes && self.shares(operand, *slot) {
                    self.error(PlanRule::NotInPlace(operand, *slot));
                }
            }
            // The product overwrites what lies in the result's bytes, and lines of other elements are other bytes.
            let other = *slot != g.dst.slot && self.shares(*slot, result);
            let bytes = |slot: SlotId| plan.slots[slot.0 as usize].dtype.bytes();
            let same = bytes(*slot) == bytes(g.dst.slot) && plan.same_place(*slot, g.dst.slot);
            if other && (!writes || !same) {
                self.error(PlanRule::NotInPlace(g.dst.slot, *slot));
            }
        }
    }
}

impl Checker<'_> {
    /// The kernel has the parameters that its meaning to the library says, on a GPU, and nothing else that the product touches. That it computes
    /// what is said, the plan's interpreter checks.
    fn library_epilogue(&mut self, g: &Gemm, e: &Epilogue) {
        let Some(l) = e.library else { return };
        let plan = self.plan;
        let kernel = &plan.kernels[e.launch.kernel.0 as usize];
        let slot = |number: u32| {
            e.launch
                .args
                .get(number as usize)
                .map(|s| (*s, &plan.slots[s.0 as usize]))
        };
        let dst = &plan.slots[g.dst.slot.0 as usize];
        let writes = |number: u32| kernel.params[number as usize].access != Access::Read;
        let result = slot(l.result).is_some_and(|(at, s)| {
            at != g.dst.slot && writes(l.result) && s.dtype == g.dtype && s.len == dst.len && s.device == dst.device
        });
        let others = (0..kernel.params.len() as u32).all(|p| p == l.result || !writes(p));
        let bias = l.bias.is_none_or(|b| {
            let fits = |s: &Slot| s.dtype == g.dtype && (s.len == g.m || s.len == g.n);
            slot(b).is_some_and(|(at, s)| at != g.dst.slot && b != l.result && fits(s))
        });
        let reads = e.launch.args.contains(&g.dst.slot);
        let alone = e.product.is_none() && (l.bias.is_some() || l.rectified);
        if !(result && others && bias && reads && alone) || dst.device == DeviceId::HOST {
            self.error(PlanRule::LibraryEpilogue(g.dst.slot));
            return;
        }
        // The library reads all of these while it writes.
        let (written, _) = slot(l.result).unwrap_or((g.dst.slot, dst));
        let read = [Some(g.lhs.slot), Some(g.rhs.slot), l.bias.and_then(slot).map(|b| b.0)];
        for operand in read.into_iter().flatten() {
            if self.shares(operand, written) {
                self.error(PlanRule::NotInPlace(operand, written));
            }
        }
    }

    /// Nothing reads a product's result after the kernel behind it has written to the same bytes. `last_read` is by slot the number
    /// of the last step that does.
    pub(super) fn results_behind(&mut self, last_read: &[Option<usize>]) {
        let plan = self.plan;
        for (at, step) in plan.init.iter().chain(&plan.steps).enumerate() {
            let Step::Gemm(g) = step else { continue };
            let needed = last_read[g.dst.slot.0 as usize].is_some_and(|read| read > at);
            let Some(e) = g.epilogue.as_ref().filter(|_| needed) else {
                continue;
            };
            let params = &plan.kernels[e.launch.kernel.0 as usize].params;
            for (slot, param) in e.launch.args.iter().zip(params) {
                let same = *slot != g.dst.slot && self.shares(*slot, g.dst.slot);
                if same && param.access != Access::Read {
                    self.place = PlanPlace::Step(at);
                    self.error(PlanRule::AliasLive(g.dst.slot, *slot));
                }
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
    let touches = touches_of(body, touched);
    // Masks alone ask what values are.
    let ops = match touches.iter().any(|(_, mask)| mask.is_some()) {
        true => ops_of(body),
        false => FxHashMap::default(),
    };
    let mut search = Search::new(kernel, *var);
    let mut found: Option<Lines> = None;
    for (index, mask) in touches {
        let next = match search.touch(index, mask, &ops)? {
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

/// The accesses to some parameters: their indices and masks.
fn touches_of<'k>(body: &'k [Stmt], touched: &[u32]) -> Vec<(&'k IndexExpr, Option<ValueId>)> {
    let of_touched = |m: Memory| matches!(m, Memory::Param(p) if touched.contains(&p));
    let all = walk(body).flat_map(Stmt::accesses);
    all.filter(|a| of_touched(a.memory))
        .map(|a| (a.index, a.mask))
        .collect()
}

/// What values are.
fn ops_of(body: &[Stmt]) -> FxHashMap<ValueId, &Op> {
    let lets = walk(body).filter_map(|s| match s {
        Stmt::Let { value, op } => Some((*value, op)),
        _ => None,
    });
    lets.collect()
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
        let ranges = mask.map_or(Vec::new(), |mask| self.ranges(mask, ops));
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
            let Some((one, others)) = e.affine_in(var) else {
                continue;
            };
            if !one.is(1) {
                continue;
            }
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
        let positive = e.replace_nodes(&mut |e| match e.as_node()? {
            IndexNode::Max(a, b) if a.is(1) && self.divides(b, &extent) => Some(b.clone()),
            IndexNode::Max(a, b) if b.is(1) && self.divides(a, &extent) => Some(a.clone()),
            _ => None,
        });
        let positive = positive.replace_nodes(&mut |e| match e.as_node()? {
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
        let divided = positive.replace_nodes(&mut |e| match e.as_node()? {
            IndexNode::FloorDiv(a, b) if same(a, b) => Some(quotient.into()),
            IndexNode::Mod(a, b) if same(a, b) => Some(remainder.into()),
            _ => None,
        });
        self.divisor = divisor;
        divided
    }

    /// True if every factor of the product `part` is one of the product `whole`, so that it is positive where that is.
    fn divides(&self, part: &IndexExpr, whole: &IndexExpr) -> bool {
        let single = |e: &IndexExpr| match &e.linear() {
            (terms, 0) => match &terms[..] {
                [(t, c)] if *c > 0 => Some(t.factors()),
                _ => None,
            },
            _ => None,
        };
        let (Some(part), Some(whole)) = (single(part), single(whole)) else {
            return false;
        };
        let positive = whole.iter().all(|f| nonnegative(f, self.kernel));
        positive && part.iter().all(|f| whole.contains(f))
    }

    /// A variable for `min(most, rest)`, where that depends on the parallel variable and is not negative.
    fn block(&mut self, most: i64, rest: &IndexExpr) -> Option<IndexExpr> {
        if most < 0 || !rest.uses(self.parallel) || !nonnegative(rest, self.kernel) {
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
    fn ranges(&mut self, mask: ValueId, ops: &FxHashMap<ValueId, &Op>) -> Vec<Range> {
        let mut out: Vec<Range> = Vec::new();
        let mut wrapped: Vec<IndexExpr> = Vec::new();
        let mut work = vec![mask];
        for _ in 0..MAX_CONDITIONS {
            let Some(Op::Map(op, args)) = work.pop().and_then(|m| ops.get(&m)) else {
                continue;
            };
            let (Some(&a), Some(&b)) = (args.first(), args.get(1)) else {
                continue;
            };
            let end = match op {
                ScalarOp::And => {
                    work.extend([b, a]);
                    continue;
                }
                ScalarOp::Le => IndexExpr::ONE,
                ScalarOp::Lt => IndexExpr::ZERO,
                _ => continue,
            };
            let (Some((a, a_wraps)), Some((b, b_wraps))) = (self.integer(a, ops), self.integer(b, ops)) else {
                continue;
            };
            let either = a_wraps && !a.has_vars() || b_wraps && !b.has_vars();
            if either || a_wraps && b_wraps {
                continue;
            }
            wrapped.extend(a_wraps.then(|| a.clone()));
            wrapped.extend(b_wraps.then(|| b.clone()));
            let mut entry = |e: IndexExpr| match out.iter().position(|r| r.0 == e) {
                Some(at) => at,
                None => {
                    out.push((e, None, None));
                    out.len() - 1
                }
            };
            if !a.has_vars() {
                let at = entry(b);
                out[at].1 = Some(a + IndexExpr::ONE - end);
            } else if !b.has_vars() {
                let at = entry(a);
                out[at].2 = Some(b + end);
            }
        }
        // A number that is negative where 32 bits do not hold it is itself where it is known not to be.
        let not_negative = |low: &Option<IndexExpr>| low.as_ref().is_some_and(|l| nonnegative(l, self.kernel));
        out.retain(|(e, low, _)| not_negative(low) || !wrapped.contains(e));
        out
    }

    /// The index expression that an integer value is, and whether the value is negative where the expression is too large for it.
    fn integer(&mut self, value: ValueId, ops: &FxHashMap<ValueId, &Op>) -> Option<(IndexExpr, bool)> {
        match ops.get(&value)? {
            Op::Const(c) if matches!(c.dtype(), DType::I32 | DType::I64) => {
                IndexExpr::from_data(c.as_i64()).map(|e| (e, false))
            }
            Op::Index(e, dtype) => {
                let least = e.clone() - IndexExpr::Const(i32::MIN.into());
                let up_to = |most: i64| nonnegative(&(IndexExpr::Const(most) - e.clone()), self.kernel);
                let fits = *dtype == DType::I64 || up_to(i32::MAX.into());
                let known = match dtype {
                    DType::I64 => true,
                    DType::I32 => nonnegative(&least, self.kernel) && (fits || up_to(u32::MAX.into())),
                    _ => false,
                };
                known.then(|| (self.divided(e), !fits))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{no_data, parse_module};

    /// The lines along which a kernel of that body goes in `p0`; its first parameter has the given length.
    fn found(symbols: &str, len: &str, body: &str) -> Option<(String, String)> {
        let text = format!("kernel(p0: f32[{len}] read, p1: f32[{len}] write) {symbols} {{\n{body}\n}}\n",);
        let module = parse_module(&text, &mut no_data).unwrap_or_else(|e| panic!("{e:?} in {text}"));
        let found = lines(&module.kernels[0].1, &[0])?;
        let name = |s: SymId| format!("s{}", s.0);
        let text = |e: &IndexExpr| e.display(&name).to_string();
        Some((text(&found.iterations), text(&found.elements)))
    }

    fn is(found: Option<(String, String)>, iterations: &str, elements: &str) -> bool {
        found == Some((iterations.into(), elements.into()))
    }

    fn rows(extent: &str, inner: &str, index: &str) -> String {
        format!(
            "  for i0 in 0..{extent} parallel {{\n    for i1 in 0..{inner} serial {{\n      %0: f32 = load p0[{index}]\n      \
             store p1[{index}], %0\n    }}\n  }}"
        )
    }

    #[test]
    fn rows_are_lines() {
        assert!(is(found("", "12", &rows("3", "4", "4*i0 + i1")), "1", "4"));
        // One element too many, and one too few to begin with.
        assert_eq!(found("", "13", &rows("3", "5", "4*i0 + i1")), None);
        assert_eq!(found("", "12", &rows("3", "4", "4*i0 + i1 - 1")), None);
        // A row for all, and each other's rows.
        assert_eq!(found("", "12", &rows("3", "4", "i1")), None);
        assert_eq!(found("", "12", &rows("3", "4", "8 - 4*i0 + i1")), None);
        // The columns.
        assert_eq!(found("", "12", &rows("4", "3", "i0 + 4*i1")), None);
    }

    #[test]
    fn symbolic_rows_are_lines() {
        let symbols = "where s0 in 0..=1000, s1 in 0..=1000";
        assert!(is(found(symbols, "s0*s1", &rows("s0", "s1", "s1*i0 + i1")), "1", "s1"));
        // Whole vectors.
        let index = "s1*i0 + 16*i1";
        assert!(is(
            found(symbols, "s0*s1", &rows("s0", "div(s1, 16)", index)),
            "1",
            "s1"
        ));
        let index = "s1*i0 + 32*i1 + 31";
        assert!(is(
            found(symbols, "s0*s1", &rows("s0", "div(s1, 32)", index)),
            "1",
            "s1"
        ));
        assert_eq!(
            found(symbols, "s0*s1", &rows("s0", "div(s1, 32)", "s1*i0 + 32*i1 + 32")),
            None
        );
    }

    #[test]
    fn iterations_of_a_line_are_counted() {
        // Three rows of four make one line where the first axis is not walked in order.
        let index = "12*div(i0, 3) + 4*mod(i0, 3) + i1";
        assert!(is(found("", "24", &rows("6", "4", index)), "1", "4"));
        let index = "12*div(i0, 3) + 8 - 4*mod(i0, 3) + i1";
        assert!(is(found("", "24", &rows("6", "4", index)), "3", "12"));
    }

    #[test]
    fn blocks_are_lines() {
        let body = rows("3", "min(4096, 10000 - 4096*i0)", "4096*i0 + i1");
        assert!(is(found("", "10000", &body), "1", "4096"));
        let body = rows("3", "min(4097, 10000 - 4096*i0)", "4096*i0 + i1");
        assert_eq!(found("", "10000", &body), None);
    }

    #[test]
    fn one_iteration_has_one_line() {
        let body = "  for i0 in 0..12 serial {\n    %0: f32 = load p0[11 - i0]\n    store p1[i0], %0\n  }";
        assert!(is(found("", "12", body), "1", "12"));
    }

    /// A load of `index` under `low <= what < high`.
    fn masked(index: &str, what: &str, low: &str, high: &str) -> Option<(String, String)> {
        let body = format!(
            "  for i0 in 0..6 parallel {{\n    for i1 in 0..6 serial {{\n      %0: i64 = index {low}\n      %1: i64 = index {high}\n      \
             %2: i64 = index {what}\n      %3: bool = le %0, %2\n      %4: bool = lt %2, %1\n      %5: bool = and %3, %4\n      \
             %6: f32 = load p0[{index}] if %5\n      store p1[4*i0], %6\n    }}\n  }}"
        );
        found("where s0 in 0..=9", "24", &body)
    }

    #[test]
    fn a_mask_is_not_more_than_it_says() {
        assert!(is(masked("4*i0 + i1 - 1", "i1", "1", "5"), "1", "4"));
        // Of a variable with two coefficients.
        assert_eq!(masked("4*i0 + i1 - 4", "i1 + s0*i1", "4", "8"), None);
        // A minimum with what is negative.
        assert_eq!(masked("4*i0 + min(-1, i0)", "i1", "0", "6"), None);
        // What never happens touches nothing.
        assert_eq!(masked("4*i0 + i1", "7", "0", "6"), None);
    }

    #[test]
    fn conditions_that_share_all_of_themselves_end() {
        let mut chain = String::from("      %0: i64 = index i1\n      %1: bool = le %0, %0\n");
        for k in 2..90 {
            chain += &format!("      %{k}: bool = and %{}, %{}\n", k - 1, k - 1);
        }
        let body = format!(
            "  for i0 in 0..6 parallel {{\n    for i1 in 0..6 serial {{\n{chain}      %90: f32 = load p0[4*i0 + i1 - 1] if %89\n      \
             store p1[4*i0], %90\n    }}\n  }}"
        );
        assert_eq!(found("", "24", &body), None);
    }

    /// Rows of 4 with one element of padding on each side, under the given mask.
    fn padded(mask: &str) -> Option<(String, String)> {
        let body = format!(
            "  for i0 in 0..6 parallel {{\n    for i1 in 0..6 serial {{\n      %0: i32 = const 0\n      %1: i32 = const 4\n      \
             %2: i32 = index i1 - 1\n      %3: bool = le %0, %2\n      %4: bool = lt %2, %1\n      %5: bool = and %3, %4\n      \
             %6: f32 = load p0[4*i0 + i1 - 1] if {mask}\n      store p1[4*i0], %6\n    }}\n  }}"
        );
        found("", "24", &body)
    }

    #[test]
    fn a_mask_says_where_an_access_goes() {
        assert!(is(padded("%5"), "1", "4"));
        // Each half alone leaves an end open.
        assert_eq!(padded("%3"), None);
        assert_eq!(padded("%4"), None);
    }

    /// Rows of `s0` elements, which may be as many as 32 bits hold, in vectors of 16 with one element of padding on each side, under the given mask.
    fn long_rows(behind: i64, mask: &str) -> Option<(String, String)> {
        let body = format!(
            "  for i0 in 0..6 parallel {{\n    for i1 in 0..div(s0 + 17, 16) serial {{\n      for i2 in 0..16 serial {{\n        \
             %0: i32 = const 0\n        %1: i32 = index s0\n        %2: i32 = index 16*i1 + i2 - {behind}\n        %3: bool = le %0, %2\n        \
             %4: bool = lt %2, %1\n        %5: bool = and %3, %4\n        \
             %6: f32 = load p0[s0*i0 + 16*i1 + i2 - {behind}] if {mask}\n        store p1[s0*i0], %6\n      }}\n    }}\n  }}"
        );
        found("where s0 in 1..=2147483647", "6*s0", &body)
    }

    #[test]
    fn a_number_that_wraps_is_itself_where_it_is_not_negative() {
        // The last vector of the longest row ends beyond what 32 bits hold: such a number is negative.
        assert!(is(long_rows(1, "%5"), "1", "s0"));
        // Of which nothing is known where it may be.
        assert_eq!(long_rows(1, "%4"), None);
        assert_eq!(long_rows(1, "%3"), None);
        // One that wraps to a number that is not negative again is not known either.
        let body = "  for i0 in 0..6 parallel {\n    for i1 in 0..3*s0 serial {\n      %0: i32 = const 0\n      %1: i32 = index s0\n      \
             %2: i32 = index i1\n      %3: bool = le %0, %2\n      %4: bool = lt %2, %1\n      %5: bool = and %3, %4\n      \
             %6: f32 = load p0[s0*i0 + i1] if %5\n      store p1[s0*i0], %6\n    }\n  }";
        assert_eq!(found("where s0 in 1..=2147483647", "6*s0", body), None);
    }
}
