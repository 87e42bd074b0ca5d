//! The text of index expressions.

use std::fmt;

use super::{IndexExpr, IndexNode, SymId};

/// Prints an expression with given names for symbols and variables.
pub struct DisplayIndex<'a> {
    expr: &'a IndexExpr,
    symbol: &'a dyn Fn(SymId) -> String,
}

impl IndexExpr {
    /// A printable form in which symbols have the given names and variable `n` prints as `i<n>`.
    pub fn display<'a>(&'a self, symbol: &'a dyn Fn(SymId) -> String) -> DisplayIndex<'a> {
        DisplayIndex { expr: self, symbol }
    }
}

impl fmt::Display for DisplayIndex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_expr(f, self.expr, self.symbol, false)
    }
}

fn write_expr(
    f: &mut fmt::Formatter<'_>,
    e: &IndexExpr,
    symbol: &dyn Fn(SymId) -> String,
    parenthesize: bool,
) -> fmt::Result {
    let n = match e {
        IndexExpr::Const(c) if *c < 0 && parenthesize => return write!(f, "({c})"),
        IndexExpr::Const(c) => return write!(f, "{c}"),
        IndexExpr::Node(n) => n,
    };
    let two = |f: &mut fmt::Formatter<'_>, op: &str, a: &IndexExpr, b: &IndexExpr| {
        write!(f, "{op}(")?;
        write_expr(f, a, symbol, false)?;
        f.write_str(", ")?;
        write_expr(f, b, symbol, false)?;
        f.write_str(")")
    };
    match &**n {
        IndexNode::Sym(s) => f.write_str(&symbol(*s)),
        IndexNode::Var(v) => write!(f, "i{}", v.0),
        IndexNode::Sum { terms, constant, .. } => {
            if parenthesize {
                f.write_str("(")?;
            }
            for (i, (t, c)) in terms.iter().enumerate() {
                match (i, *c < 0) {
                    (0, false) => {}
                    (0, true) => f.write_str("-")?,
                    (_, false) => f.write_str(" + ")?,
                    (_, true) => f.write_str(" - ")?,
                }
                if c.unsigned_abs() != 1 {
                    write!(f, "{}*", c.unsigned_abs())?;
                }
                write_expr(f, t, symbol, true)?;
            }
            match *constant {
                0 => {}
                c if c < 0 => write!(f, " - {}", c.unsigned_abs())?,
                c => write!(f, " + {c}")?,
            }
            if parenthesize {
                f.write_str(")")?;
            }
            Ok(())
        }
        IndexNode::Product(factors) => {
            for (i, x) in factors.iter().enumerate() {
                if i > 0 {
                    f.write_str("*")?;
                }
                write_expr(f, x, symbol, true)?;
            }
            Ok(())
        }
        IndexNode::FloorDiv(a, b) => two(f, "div", a, b),
        IndexNode::Mod(a, b) => two(f, "mod", a, b),
        IndexNode::Min(a, b) => two(f, "min", a, b),
        IndexNode::Max(a, b) => two(f, "max", a, b),
    }
}

impl fmt::Debug for IndexExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_expr(f, self, &|s| format!("s{}", s.0), false)
    }
}
