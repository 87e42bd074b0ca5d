//! Index expressions as C++ integer expressions.
//!
//! Invariant: an expression is written in 32-bit arithmetic only if every intermediate result is proven to fit; otherwise
//! all of it is 64-bit. Variables and symbols are declared with the narrowest of the two types that holds their range.

use std::fmt::Write;

use tlc_ir::index::{Bounds, IndexExpr, IndexNode, Interval};
use tlc_ir::kernel::Kernel;

use super::CudaError;

/// Width in which an index is computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Width {
    Narrow,
    Wide,
}

impl Width {
    /// The narrower type that holds a range.
    pub(super) fn of(range: Interval) -> Width {
        if i32::try_from(range.lo).is_ok() && i32::try_from(range.hi).is_ok() {
            Width::Narrow
        } else {
            Width::Wide
        }
    }

    pub(super) const fn c_type(self) -> &'static str {
        match self {
            Width::Narrow => "int",
            Width::Wide => "i64",
        }
    }
}

/// Names of variables and symbols, with the width each was declared in.
pub(super) trait Names {
    fn var(&self, var: u32) -> Option<(String, Width)>;
    fn symbol(&self, symbol: u32) -> (String, Width);
}

/// Operator precedence: what needs parentheses where.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Sum,
    Product,
    Atom,
}

/// The width in which an expression can be computed.
pub(super) fn width(e: &IndexExpr, kernel: &Kernel) -> Width {
    if fits(e, kernel).is_some() {
        Width::Narrow
    } else {
        Width::Wide
    }
}

/// The range of an expression if it and every partial result fit 32 bits.
fn fits(e: &IndexExpr, kernel: &Kernel) -> Option<(i128, i128)> {
    let range = |lo: i128, hi: i128| {
        let ok = lo >= i32::MIN as i128 && hi <= i32::MAX as i128;
        ok.then_some((lo, hi))
    };
    let n = match e {
        IndexExpr::Const(c) => return range(*c as i128, *c as i128),
        IndexExpr::Node(n) => n,
    };
    match &**n {
        IndexNode::Sym(s) => {
            let i = kernel.symbol(*s);
            range(i.lo as i128, i.hi as i128)
        }
        IndexNode::Var(_) => {
            let i = e.interval(kernel);
            range(i.lo as i128, i.hi as i128)
        }
        IndexNode::Sum { terms, constant, .. } => {
            // In the order of `sum`: positive terms, the constant, negative terms.
            let (mut lo, mut hi) = (0i128, 0i128);
            for (t, c) in terms.iter().filter(|t| t.1 > 0) {
                let (a, b) = fits(t, kernel)?;
                let (a, b) = range(a * *c as i128, b * *c as i128)?;
                (lo, hi) = range(lo + a, hi + b)?;
            }
            (lo, hi) = range(lo + *constant as i128, hi + *constant as i128)?;
            for (t, c) in terms.iter().filter(|t| t.1 < 0) {
                let (a, b) = fits(t, kernel)?;
                let k = -(*c as i128);
                let (a, b) = range(a * k, b * k)?;
                (lo, hi) = range(lo - b, hi - a)?;
            }
            Some((lo, hi))
        }
        IndexNode::Product(factors) => {
            let mut all = (1i128, 1i128);
            for f in factors {
                let (a, b) = fits(f, kernel)?;
                let corners = [all.0 * a, all.0 * b, all.1 * a, all.1 * b];
                let (lo, hi) = corners
                    .into_iter()
                    .fold((i128::MAX, i128::MIN), |m, c| (m.0.min(c), m.1.max(c)));
                all = range(lo, hi)?;
            }
            Some(all)
        }
        IndexNode::FloorDiv(a, b) | IndexNode::Mod(a, b) | IndexNode::Min(a, b) | IndexNode::Max(a, b) => {
            fits(a, kernel)?;
            fits(b, kernel)?;
            let i = e.interval(kernel);
            range(i.lo as i128, i.hi as i128)
        }
    }
}

/// Writes expressions of one kernel.
pub(super) struct IndexWriter<'k> {
    pub kernel: &'k Kernel,
    pub names: &'k dyn Names,
}

impl IndexWriter<'_> {
    /// The expression in the narrowest width that holds it.
    pub(super) fn text(&self, e: &IndexExpr) -> Result<(String, Width), CudaError> {
        let w = width(e, self.kernel);
        Ok((self.write(e, w)?.0, w))
    }

    /// The expression as an operand of a comparison or a sum.
    pub(super) fn in_width(&self, e: &IndexExpr, w: Width) -> Result<String, CudaError> {
        Ok(self.write(e, w)?.0)
    }

    fn atom(&self, (name, declared): (String, Width), w: Width) -> (String, Level) {
        match (declared, w) {
            (Width::Narrow, Width::Wide) => (format!("(i64){name}"), Level::Atom),
            (Width::Wide, Width::Narrow) => (format!("(int){name}"), Level::Atom),
            _ => (name, Level::Atom),
        }
    }

    fn constant(&self, c: i64, w: Width) -> String {
        match w {
            Width::Wide if c == i64::MIN => "(-9223372036854775807LL - 1)".into(),
            Width::Narrow if c == i32::MIN as i64 => "(-2147483647 - 1)".into(),
            Width::Wide if i32::try_from(c).is_err() => format!("{c}LL"),
            _ => c.to_string(),
        }
    }

    fn at_least(&self, (text, level): (String, Level), need: Level) -> String {
        if level < need { format!("({text})") } else { text }
    }

    fn write(&self, e: &IndexExpr, w: Width) -> Result<(String, Level), CudaError> {
        let n = match e {
            IndexExpr::Const(c) => {
                let level = if *c < 0 { Level::Sum } else { Level::Atom };
                return Ok((self.constant(*c, w), level));
            }
            IndexExpr::Node(n) => n,
        };
        Ok(match &**n {
            IndexNode::Sym(s) => self.atom(self.names.symbol(s.0), w),
            IndexNode::Var(v) => {
                let known = self.names.var(v.0).ok_or(CudaError::UnboundVariable(v.0))?;
                self.atom(known, w)
            }
            IndexNode::Sum { terms, constant, .. } => self.sum(terms, *constant, w)?,
            IndexNode::Product(factors) => {
                let all: Result<Vec<String>, CudaError> = factors
                    .iter()
                    .map(|f| Ok(self.at_least(self.write(f, w)?, Level::Atom)))
                    .collect();
                (all?.join(" * "), Level::Product)
            }
            IndexNode::FloorDiv(a, b) | IndexNode::Mod(a, b) => {
                let divides = matches!(&**n, IndexNode::FloorDiv(..));
                let (x, y) = (self.write(a, w)?, self.write(b, w)?);
                if a.proves_nonnegative(self.kernel) {
                    // Truncation is flooring there.
                    let op = if divides { "/" } else { "%" };
                    let (x, y) = (self.at_least(x, Level::Atom), self.at_least(y, Level::Atom));
                    (format!("{x} {op} {y}"), Level::Product)
                } else {
                    let name = if divides { "floor_div" } else { "floor_mod" };
                    let suffix = if w == Width::Wide { "_i64" } else { "" };
                    (format!("{name}{suffix}({}, {})", x.0, y.0), Level::Atom)
                }
            }
            IndexNode::Min(a, b) | IndexNode::Max(a, b) => {
                let name = if matches!(&**n, IndexNode::Min(..)) {
                    "min"
                } else {
                    "max"
                };
                let cast = |t: String| if w == Width::Wide { format!("(i64)({t})") } else { t };
                let (x, y) = (self.write(a, w)?.0, self.write(b, w)?.0);
                (format!("{name}({}, {})", cast(x), cast(y)), Level::Atom)
            }
        })
    }

    fn sum(&self, terms: &[(IndexExpr, i64)], constant: i64, w: Width) -> Result<(String, Level), CudaError> {
        let mut out = String::new();
        let one = |t: &IndexExpr, c: u64| -> Result<String, CudaError> {
            let text = self.write(t, w)?;
            Ok(match c {
                1 => self.at_least(text, Level::Product),
                _ => {
                    let k = i64::try_from(c).map_or_else(|_| format!("{c}ULL"), |c| self.constant(c, w));
                    format!("{} * {k}", self.at_least(text, Level::Atom))
                }
            })
        };
        for (t, c) in terms.iter().filter(|t| t.1 > 0) {
            let text = one(t, *c as u64)?;
            if !out.is_empty() {
                out.push_str(" + ");
            }
            out.push_str(&text);
        }
        if constant != 0 || out.is_empty() {
            match (out.is_empty(), constant < 0 && constant != i64::MIN) {
                (true, _) => out.push_str(&self.constant(constant, w)),
                (false, true) => {
                    let _ = write!(out, " - {}", self.constant(-constant, w));
                }
                (false, false) => {
                    let _ = write!(out, " + {}", self.constant(constant, w));
                }
            }
        }
        for (t, c) in terms.iter().filter(|t| t.1 < 0) {
            let _ = write!(out, " - {}", one(t, c.unsigned_abs())?);
        }
        Ok((out, Level::Sum))
    }
}
