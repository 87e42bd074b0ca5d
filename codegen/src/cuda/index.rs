//! Index arithmetic as C++ integer expressions.
//!
//! Invariant: an expression is written in 32-bit arithmetic only if every intermediate result is proven to fit; otherwise
//! all of it is 64-bit. Names are declared with the narrower of the two types that holds them.

use std::fmt::Write;

use smallvec::SmallVec;
use tlc_ir::index::Interval;
use tlc_ir::kernel::SWIZZLE_PERIOD_BYTES;
use tlc_ir::target::GPU_ACCESS_BYTES;

use super::write::Writer;
use crate::flat::{Address, Flat, Op, Value, range};

/// Width in which an index is computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Width {
    Narrow,
    Wide,
}

impl Width {
    /// The narrower type that holds a range.
    pub(super) fn of(range: Interval) -> Width {
        match i32::try_from(range.lo).is_ok() && i32::try_from(range.hi).is_ok() {
            true => Width::Narrow,
            false => Width::Wide,
        }
    }

    fn wider(self, other: Width) -> Width {
        if self == other { self } else { Width::Wide }
    }

    pub(super) const fn c_type(self) -> &'static str {
        match self {
            Width::Narrow => "int",
            Width::Wide => "i64",
        }
    }
}

/// What numbers are multiplied by to divide them by another one: their quotients are the upper 32 bits of the products, shifted (Granlund and Montgomery,
/// "Division by invariant integers using multiplication", 1994). NVRTC, which does not know how large they are, takes the upper bits from products of 64 bits and
/// has the remainder in two instructions more.
struct Reciprocal {
    of: i64,
    factor: u32,
    shift: u32,
}

impl Reciprocal {
    /// For numbers from 0 to one of 31 bits, if there is one: the shift is the smallest. With a factor of `(2^(32 + shift) + e) / of` a quotient is too large
    /// by `x * e / (of * 2^(32 + shift))`, which is less than what it lacks to the next whole number while `x * e < 2^(32 + shift)`.
    fn of(of: i64, most: i64) -> Option<Reciprocal> {
        let (n, most) = (i128::from(of), i128::from(most));
        if !(2..=i64::from(i32::MAX)).contains(&of) || !(0..=i128::from(i32::MAX)).contains(&most) {
            return None;
        }
        let mut shifts = (0..=n.ilog2()).filter_map(|shift| {
            let scale = 1i128 << (32 + shift);
            let factor = (scale + n - 1) / n;
            let exact = most * (factor * n - scale) < scale;
            let factor = u32::try_from(factor).ok().filter(|_| exact)?;
            Some(Reciprocal { of, factor, shift })
        });
        shifts.next()
    }

    fn text(&self, operator: &str, x: &str) -> String {
        let Reciprocal { of, factor, shift } = self;
        match operator {
            "/" => format!("index_quotient({x}, {factor}u, {shift})"),
            _ => format!("index_remainder({x}, {factor}u, {shift}, {of})"),
        }
    }
}

/// Operator precedence: what needs parentheses where.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Sum,
    Product,
    Atom,
}

/// Terms of a sum, each with its coefficient.
type Terms = SmallVec<[(Value, i64); 4]>;

/// `constant + Σ coefficient * term`.
#[derive(Default)]
struct Linear {
    terms: Terms,
    constant: i64,
}

fn constant(c: i64, w: Width) -> String {
    match w {
        Width::Wide if c == i64::MIN => "(-9223372036854775807LL - 1)".into(),
        Width::Narrow if c == i32::MIN as i64 => "(-2147483647 - 1)".into(),
        Width::Wide if i32::try_from(c).is_err() => format!("{c}LL"),
        _ => c.to_string(),
    }
}

/// The number of an element in groups of so many, if each term of it is known to be of whole groups: its terms and the rest.
///
/// Sums inside are taken apart, named or not: of what they are of, groups are counted for nothing.
pub(super) fn in_groups(flat: &Flat<'_>, a: &Address, of: i64) -> Option<(Terms, i64)> {
    fn add(flat: &Flat<'_>, v: Value, k: i64, of: i64, out: &mut (Terms, i64)) -> Option<()> {
        match flat.op(v) {
            Op::Sum { terms, constant } => {
                let whole = constant.checked_mul(k).filter(|c| c % of == 0)?;
                out.1 = out.1.checked_add(whole / of)?;
                terms
                    .iter()
                    .try_for_each(|(t, c)| add(flat, *t, c.checked_mul(k)?, of, out))
            }
            Op::Const(c) => {
                let whole = c.as_i64().checked_mul(k).filter(|c| c % of == 0)?;
                out.1 = out.1.checked_add(whole / of)?;
                Some(())
            }
            _ if k % of == 0 => {
                match out.0.iter_mut().find(|t| t.0 == v) {
                    Some(known) => known.1 = known.1.checked_add(k / of)?,
                    None => out.0.push((v, k / of)),
                }
                Some(())
            }
            _ => None,
        }
    }
    let mut out = (Terms::new(), a.constant / of);
    if a.constant % of != 0 {
        return None;
    }
    a.parts().try_for_each(|v| add(flat, v, 1, of, &mut out))?;
    Some(out)
}

fn at_least((text, level): (String, Level), need: Level) -> String {
    if level < need { format!("({text})") } else { text }
}

impl Writer<'_, '_> {
    /// The width in which a value can be computed; that of a name is the one it is declared with.
    pub(super) fn width(&self, v: Value) -> Width {
        self.widths[v.0 as usize]
    }

    /// That width, where those of all values before are known.
    pub(super) fn width_by_operands(&self, v: Value) -> Width {
        let own = Width::of(self.flat.info(v).range);
        let all = |operands: &[Value]| operands.iter().fold(own, |w, v| w.wider(self.width(*v)));
        match self.flat.op(v) {
            Op::Const(c) => Width::of(Interval::new(c.as_i64(), c.as_i64())),
            Op::Counter => self.uses.extent(v).map_or(own, |extent| own.wider(self.width(extent))),
            Op::Sum { .. } => own.wider(self.linear_width(&self.linear(v))),
            Op::Product(factors) => {
                // Every partial product.
                (1..factors.len()).fold(all(factors), |w, n| {
                    let ranges = factors[..n].iter().map(|f| self.flat.info(*f).range);
                    w.wider(Width::of(range::product(ranges)))
                })
            }
            Op::FloorDiv(a, b) | Op::FloorMod(a, b) | Op::Smaller(a, b) | Op::Larger(a, b) => all(&[*a, *b]),
            _ => own,
        }
    }

    /// The terms of a sum; those of sums without a name take their place.
    fn linear(&self, v: Value) -> Linear {
        let mut out = Linear::default();
        match self.flat.op(v) {
            Op::Sum { terms, constant } => {
                out.constant = *constant;
                terms.iter().for_each(|(t, k)| self.splice(*t, *k, &mut out));
            }
            _ => self.splice(v, 1, &mut out),
        }
        out
    }

    fn splice(&self, v: Value, k: i64, out: &mut Linear) {
        match self.flat.op(v) {
            Op::Sum { .. } if k == 1 && !self.uses.needs_name(v) => {
                let inner = self.linear(v);
                out.terms.extend(inner.terms);
                out.constant = out.constant.wrapping_add(inner.constant);
            }
            Op::Const(c) => out.constant = out.constant.wrapping_add(c.as_i64().wrapping_mul(k)),
            _ => out.terms.push((v, k)),
        }
    }

    /// The width of a sum, by its partial sums in the order in which they are written.
    fn linear_width(&self, sum: &Linear) -> Width {
        let mut width = Width::Narrow;
        let (mut lo, mut hi) = (0i128, 0i128);
        let mut step = |a: i128, b: i128| {
            (lo, hi) = (lo + a, hi + b);
            let fits = |x: i128| i32::try_from(x).is_ok();
            if !(fits(a) && fits(b) && fits(lo) && fits(hi)) {
                width = Width::Wide;
            }
        };
        let positive = sum.terms.iter().filter(|t| t.1 > 0);
        let negative = sum.terms.iter().filter(|t| t.1 < 0);
        let scaled = |(v, k): &(Value, i64)| {
            let range = self.flat.info(*v).range;
            let (a, b) = (range.lo as i128 * *k as i128, range.hi as i128 * *k as i128);
            (a.min(b), a.max(b))
        };
        positive.map(scaled).for_each(|(a, b)| step(a, b));
        step(sum.constant as i128, sum.constant as i128);
        negative.map(scaled).for_each(|(a, b)| step(a, b));
        sum.terms.iter().fold(width, |w, t| w.wider(self.width(t.0)))
    }

    /// An index in the narrower width that holds it.
    pub(super) fn index(&self, v: Value) -> (String, Width) {
        let w = self.width(v);
        (self.index_in(v, w), w)
    }

    /// An index as an operand of a comparison or a sum.
    pub(super) fn index_in(&self, v: Value, w: Width) -> String {
        self.expression(v, w).0
    }

    /// What an index is computed by, though it has a name.
    pub(super) fn definition(&self, v: Value, w: Width) -> String {
        self.computed(v, w).0
    }

    /// The number of an element.
    fn number(&self, a: &Address) -> Linear {
        let mut sum = Linear {
            constant: a.constant,
            ..Linear::default()
        };
        let parts = a.varying.into_iter().chain(a.uniform);
        parts.for_each(|v| self.splice(v, 1, &mut sum));
        sum
    }

    /// The number of an element, where it is the first of a period of swizzled memory.
    pub(super) fn unswizzled(&self, a: &Address) -> String {
        let sum = self.number(a);
        self.sum(&sum, self.linear_width(&sum)).0
    }

    /// The number of an element in groups of so many, if it is written so.
    pub(super) fn group(&self, a: &Address, of: i64) -> Option<String> {
        let (terms, constant) = in_groups(self.flat, a, of)?;
        let sum = Linear { terms, constant };
        Some(self.sum(&sum, self.linear_width(&sum)).0)
    }

    /// Whether the first threads of a block are those whose number is below an index, as text: what is subtracted there is added to the thread's number,
    /// for that sum is where a thread is, and the threads themselves say how many there are.
    pub(super) fn is_first(&self, limit: Value, threads: i64) -> Option<String> {
        let &Op::Smaller(a, b) = self.flat.op(limit) else {
            return None;
        };
        let all = |v: Value| self.flat.number(v).is_some_and(|n| n >= threads);
        let end = if all(a) {
            b
        } else if all(b) {
            a
        } else {
            return None;
        };
        if self.uses.needs_name(limit) || self.uses.needs_name(end) {
            return None;
        }
        let sum = self.linear(end);
        let (before, after): (Terms, Terms) = sum.terms.iter().copied().partition(|t| t.1 < 0);
        let constant = sum.constant;
        let after = Linear { terms: after, constant };
        let terms = before.into_iter().map(|(v, k): (Value, i64)| (v, -k)).collect();
        let before = Linear { terms, constant: 0 };
        // With the number of the thread in it.
        let whole = Linear {
            terms: before.terms.clone(),
            constant: threads - 1,
        };
        if before.terms.is_empty() {
            return None;
        }
        let w = self.linear_width(&whole).wider(self.linear_width(&after));
        let text = |sum: &Linear| self.sum(sum, w).0;
        let thread = match w {
            Width::Narrow => format!("(int){}", self.thread()),
            // As where the thread is numbered, so that both are one sum.
            Width::Wide => format!("(i64)(int){}", self.thread()),
        };
        Some(format!("{} + {thread} < {}", text(&before), text(&after)))
    }

    /// Where an element is in its memory.
    pub(super) fn subscript(&self, a: &Address) -> String {
        let sum = self.number(a);
        match self.flat.kernel.is_swizzled(a.memory) {
            true => self.swizzled(&sum, self.flat.kernel.memory_dtype(a.memory).bytes() as i64),
            false => self.sum(&sum, self.linear_width(&sum)).0,
        }
    }

    /// Where an element of swizzled memory is: of its row's pieces of 16 bytes, the one whose number differs from its own in the bits of the row's number.
    /// What is a whole number of periods stays outside of the exchange, so that the rest is the same for many accesses.
    fn swizzled(&self, number: &Linear, bytes: i64) -> String {
        let period = SWIZZLE_PERIOD_BYTES / bytes;
        let constant = number.constant.rem_euclid(period);
        let (outside, within) = number.terms.iter().copied().partition(|(_, k)| k % period == 0);
        let within = Linear {
            terms: within,
            constant,
        };
        let outside = Linear {
            terms: outside,
            constant: number.constant - constant,
        };
        let text = |sum: &Linear| self.sum(sum, self.linear_width(sum)).0;
        let pieces = 7 * GPU_ACCESS_BYTES / bytes;
        let at = text(&within);
        let exchanged = format!("(({at}) ^ (({at}) >> 3 & {pieces}))");
        match outside.terms.is_empty() && outside.constant == 0 {
            true => exchanged,
            false => format!("{exchanged} + {}", text(&outside)),
        }
    }

    fn expression(&self, v: Value, w: Width) -> (String, Level) {
        if let Some(name) = self.name(v) {
            return match (self.width(v), w) {
                (Width::Narrow, Width::Wide) => (format!("(i64){name}"), Level::Atom),
                (Width::Wide, Width::Narrow) => (format!("(int){name}"), Level::Atom),
                _ => (name.into(), Level::Atom),
            };
        }
        self.computed(v, w)
    }

    fn computed(&self, v: Value, w: Width) -> (String, Level) {
        let operand = |v: Value| self.expression(v, w);
        match self.flat.op(v) {
            Op::Const(c) => {
                let level = if c.as_i64() < 0 { Level::Sum } else { Level::Atom };
                (constant(c.as_i64(), w), level)
            }
            Op::Sum { .. } => self.sum(&self.linear(v), w),
            Op::Product(factors) => {
                let all: Vec<String> = factors.iter().map(|f| at_least(operand(*f), Level::Atom)).collect();
                (all.join(" * "), Level::Product)
            }
            Op::FloorDiv(a, b) => self.divided(["/", "floor_div"], *a, *b, w),
            Op::FloorMod(a, b) => self.divided(["%", "floor_mod"], *a, *b, w),
            Op::Smaller(a, b) => self.extremum("min", *a, *b, w),
            Op::Larger(a, b) => self.extremum("max", *a, *b, w),
            // All others have names.
            _ => (String::new(), Level::Atom),
        }
    }

    fn divided(&self, [operator, function]: [&str; 2], a: Value, b: Value, w: Width) -> (String, Level) {
        let b = self.positive_divisor(b);
        let (x, mut y) = (self.expression(a, w), self.expression(b, w));
        if self.flat.info(b).range.lo < 1 && !self.positive.contains(&b) {
            // Computed in front of a loop that then does not run.
            let one = if w == Width::Wide { "(i64)1" } else { "1" };
            y = (format!("max({}, {one})", y.0), Level::Atom);
        }
        if let Some(n) = self.flat.number(b).filter(|n| *n > 0 && n.count_ones() == 1) {
            // Shifts floor negative numbers too, and masks leave what is above a floor.
            let x = at_least(x, Level::Product);
            let text = match operator {
                "/" => format!("({x} >> {})", n.ilog2()),
                _ => format!("({x} & {})", constant(n - 1, w)),
            };
            return (text, Level::Atom);
        }
        if self.flat.info(a).range.lo >= 0 {
            // Truncation is flooring there. NVRTC does not know that nothing is negative, and would correct each signed division as if it were.
            let most = self.flat.info(a).range.hi;
            if let Some(by) = self
                .flat
                .number(b)
                .filter(|_| w == Width::Narrow && self.reciprocals)
                .and_then(|n| Reciprocal::of(n, most))
            {
                return (by.text(operator, &x.0), Level::Atom);
            }
            let [x, y] = [x, y].map(|operand| at_least(operand, Level::Atom));
            return match w {
                Width::Narrow => (format!("(int)((unsigned){x} {operator} (unsigned){y})"), Level::Atom),
                Width::Wide => (format!("{x} {operator} {y}"), Level::Product),
            };
        }
        let suffix = if w == Width::Wide { "_i64" } else { "" };
        (format!("{function}{suffix}({}, {})", x.0, y.0), Level::Atom)
    }

    /// Notes which sizes are positive where an index is at least a positive number.
    pub(super) fn note_at_least(&mut self, v: Value, least: i64) {
        let flat = self.flat;
        let is_natural = |v: Value| flat.info(v).range.lo >= 0;
        match flat.op(v) {
            Op::Smaller(a, b) => [*a, *b].into_iter().for_each(|v| self.note_at_least(v, least)),
            Op::Product(factors) if factors.iter().all(|f| is_natural(*f)) => {
                factors.iter().for_each(|f| self.note_at_least(*f, 1));
            }
            Op::FloorDiv(a, by) => {
                let least = flat.number(*by).filter(|n| *n > 0).and_then(|n| n.checked_mul(least));
                if let Some(least) = least {
                    self.note_at_least(*a, least);
                }
            }
            Op::Sum { terms, constant } => {
                let Some(least) = least.checked_sub(*constant).filter(|n| *n > 0) else {
                    return;
                };
                let mut added = terms.iter().filter(|(v, k)| *k > 0 || !is_natural(*v));
                if let (Some(&(v, k)), None) = (added.next(), added.next())
                    && k > 0
                {
                    self.note_at_least(v, (least - 1) / k + 1);
                }
            }
            _ => self.positive.push(v),
        }
    }

    /// A divisor that is at least 1 here, without the `max(1, n)` that keeps it so elsewhere.
    fn positive_divisor(&self, divisor: Value) -> Value {
        let &Op::Larger(a, b) = self.flat.op(divisor) else {
            return divisor;
        };
        let is_kept = |one: Value, n: Value| self.flat.number(one) == Some(1) && self.positive.contains(&n);
        if self.name(divisor).is_some() {
            return divisor;
        }
        [(a, b), (b, a)]
            .into_iter()
            .find(|(one, n)| is_kept(*one, *n))
            .map_or(divisor, |(_, n)| n)
    }

    fn extremum(&self, function: &str, a: Value, b: Value, w: Width) -> (String, Level) {
        let cast = |t: String| if w == Width::Wide { format!("(i64)({t})") } else { t };
        let (x, y) = (self.expression(a, w).0, self.expression(b, w).0);
        (format!("{function}({}, {})", cast(x), cast(y)), Level::Atom)
    }

    fn sum(&self, sum: &Linear, w: Width) -> (String, Level) {
        if let ([(v, 1)], 0) = (&sum.terms[..], sum.constant) {
            return self.expression(*v, w);
        }
        let mut out = String::new();
        let one = |v: Value, k: u64| -> String {
            let text = self.expression(v, w);
            match k {
                1 => at_least(text, Level::Product),
                _ => {
                    let k = i64::try_from(k).map_or_else(|_| format!("{k}ULL"), |k| constant(k, w));
                    format!("{} * {k}", at_least(text, Level::Atom))
                }
            }
        };
        for (v, k) in sum.terms.iter().filter(|t| t.1 > 0) {
            if !out.is_empty() {
                out.push_str(" + ");
            }
            out.push_str(&one(*v, *k as u64));
        }
        let c = sum.constant;
        if c != 0 || out.is_empty() {
            match (out.is_empty(), c < 0 && c != i64::MIN) {
                (true, _) => out.push_str(&constant(c, w)),
                // Writing to a String cannot fail.
                (false, true) => drop(write!(out, " - {}", constant(-c, w))),
                (false, false) => drop(write!(out, " + {}", constant(c, w))),
            }
        }
        for (v, k) in sum.terms.iter().filter(|t| t.1 < 0) {
            let _ = write!(out, " - {}", one(*v, k.unsigned_abs()));
        }
        (out, Level::Sum)
    }
}
