//! Extents, types and literals: what the sections of the text form have in common.
//!
//! Invariants:
//! - Recursion follows parentheses only, at most [`MAX_DEPTH`] deep.
//! - An extent that parses has at most [`MAX_DIM_SIZE`] nodes and coefficients below 2^62, so that no constant saturates. A product
//!   of sums does not grow without bound, because large ones stay factored. What [`IndexExpr`] prints within these limits parses back to itself.

use super::cursor::{Cursor, Mark, Parsed};
use super::lexer::TokenKind;
use crate::dtype::{DType, Scalar};
use crate::graph::{Condition, DEFAULT_SYMBOL_MAX, Graph, MAX_RANK, Shape, Symbol, TensorType};
use crate::index::{Bounds, IndexExpr, IndexNode};
use crate::kernel::verify::nonnegative;

/// How deep parentheses nest in an extent.
pub(crate) const MAX_DEPTH: u32 = 64;

/// The most nodes of an extent, as [`IndexExpr::size`] counts. A view over 24 symbols makes positions of some 10^4.
pub(crate) const MAX_DIM_SIZE: u32 = 1 << 18;

/// The most terms of one sum: joining remainders and quotients in it compares them in pairs.
const MAX_TERMS: usize = 8192;

/// The most nodes that the factors of one product have together, added up behind each: what it takes to multiply them in turn.
const MAX_PRODUCT_WORK: u64 = 1 << 25;

/// Literals and coefficients in extents stay below.
const MAX_DIM_CONST: i64 = 1 << 62;

/// The names that may occur in extents, and their ranges.
pub(crate) trait Scope: Bounds {
    /// What a name stands for; `None` if it may not occur.
    fn atom(&mut self, name: &str) -> Option<IndexExpr>;

    /// Whether something is positive wherever the text that is being read is reached.
    fn positive_here(&self, e: &IndexExpr) -> bool {
        let _ = e;
        false
    }
}

impl Scope for Graph {
    /// A graph's symbols; a new name declares one with the default range.
    fn atom(&mut self, name: &str) -> Option<IndexExpr> {
        let known = self.find_symbol(name);
        let id = known.unwrap_or_else(|| self.add_symbol(name, 0, DEFAULT_SYMBOL_MAX));
        Some(id.into())
    }
}

/// One extent.
pub(crate) fn dim(c: &mut Cursor<'_>, scope: &mut dyn Scope) -> Parsed<IndexExpr> {
    sum(c, scope, 0)
}

/// `a = b` or `a not negative`.
pub(crate) fn condition(c: &mut Cursor<'_>, scope: &mut dyn Scope, context: &str) -> Parsed<Condition> {
    let left = dim(c, scope)?;
    if c.eat(TokenKind::Equals) {
        return Ok(Condition::Equal(left, dim(c, scope)?));
    }
    if !c.eat_word("not") {
        return Err(c.unexpected(context, "`=` or `not negative`"));
    }
    match c.eat_word("negative") {
        true => Ok(Condition::NonNegative(left)),
        false => Err(c.unexpected(context, "`negative`")),
    }
}

/// `[` extents `]`.
pub(crate) fn dims(c: &mut Cursor<'_>, scope: &mut dyn Scope, context: &str) -> Parsed<Shape> {
    let start = c.mark();
    c.expect(TokenKind::LeftBracket, context)?;
    let all = c.list(TokenKind::RightBracket, context, |c| dim(c, scope))?;
    if all.len() > MAX_RANK {
        let span = c.span_since(start);
        return Err(c.error(span, format!("{} entries; expected at most {MAX_RANK}", all.len())));
    }
    Ok(all.into_iter().collect())
}

/// A dtype's name.
pub(crate) fn dtype(c: &mut Cursor<'_>) -> Parsed<DType> {
    let word = c.token();
    match (word.kind, c.source(word).parse::<DType>()) {
        (TokenKind::Word, Ok(dtype)) => {
            c.bump();
            Ok(dtype)
        }
        _ => Err(c.unexpected("type", "a dtype like `f32`")),
    }
}

/// A declared size: `n`, `n = 4`, `n in 0..=4`, or `n upto 3*m`, which data decides.
pub(crate) fn symbol_range(c: &mut Cursor<'_>, scope: &mut dyn Scope) -> Parsed<Symbol> {
    let start = c.mark();
    let name = c.word_or_string("symbol")?;
    if c.eat_word("upto") {
        let upper = dim(c, scope)?;
        let hi = upper.interval(scope).hi.max(0);
        let upper = Some(upper);
        return Ok(Symbol { name, lo: 0, hi, upper });
    }
    let (lo, hi) = if c.eat(TokenKind::Equals) {
        let lo = c.integer("size", 0, i64::MAX)?;
        (lo, lo)
    } else if c.eat_word("in") {
        range(c, start)?
    } else {
        (0, DEFAULT_SYMBOL_MAX)
    };
    Ok(Symbol {
        name,
        lo,
        hi,
        upper: None,
    })
}

/// `0..=4`; an empty range is reported, from `start` on, and taken as its lower bound.
pub(crate) fn range(c: &mut Cursor<'_>, start: Mark) -> Parsed<(i64, i64)> {
    let lo = c.integer("range", 0, i64::MAX)?;
    c.expect(TokenKind::Through, "range")?;
    let hi = c.integer("range", 0, i64::MAX)?;
    if lo > hi {
        let span = c.span_since(start);
        let message = format!("empty range; expected a lower bound of at most {hi}, found {lo}");
        c.error(span, message);
        return Ok((lo, lo));
    }
    Ok((lo, hi))
}

/// `dtype[extents]`.
pub(crate) fn tensor_type(c: &mut Cursor<'_>, scope: &mut dyn Scope) -> Parsed<TensorType> {
    let dtype = dtype(c)?;
    let shape = dims(c, scope, "type")?;
    Ok(TensorType { dtype, shape })
}

fn sum(c: &mut Cursor<'_>, scope: &mut dyn Scope, depth: u32) -> Parsed<IndexExpr> {
    let start = c.mark();
    let mut terms = Vec::new();
    let mut negative = c.eat(TokenKind::Minus);
    loop {
        let term = product(c, scope, depth)?;
        terms.push(if negative { IndexExpr::ZERO - term } else { term });
        negative = c.kind() == TokenKind::Minus;
        if !negative && c.kind() != TokenKind::Plus {
            break;
        }
        c.bump();
    }
    // Adding in pairs keeps a long sum from being normalized once per term.
    while terms.len() > 1 {
        let mut halves = terms.into_iter();
        let mut next = Vec::new();
        while let Some(a) = halves.next() {
            next.push(match halves.next() {
                Some(b) => checked(c, start, a + b)?,
                None => a,
            });
        }
        terms = next;
    }
    Ok(terms.pop().unwrap_or(IndexExpr::ZERO))
}

fn product(c: &mut Cursor<'_>, scope: &mut dyn Scope, depth: u32) -> Parsed<IndexExpr> {
    let start = c.mark();
    let mut value = factor(c, scope, depth)?;
    let mut work = 0;
    while c.eat(TokenKind::Star) {
        let other = factor(c, scope, depth)?;
        let size = u64::from(value.size()) + u64::from(other.size());
        if size > u64::from(MAX_DIM_SIZE) {
            let span = c.span_since(start);
            return Err(c.error(span, format!("extent too large; expected at most {MAX_DIM_SIZE} nodes")));
        }
        work += size;
        if work > MAX_PRODUCT_WORK {
            let span = c.span_since(start);
            return Err(c.error(span, "product too long; expected fewer or smaller factors"));
        }
        let overflow = match (value.as_const(), other.as_const()) {
            (Some(a), Some(b)) => a.checked_mul(b).is_none(),
            _ => false,
        };
        if overflow {
            let span = c.span_since(start);
            return Err(c.error(span, "integer overflow; expected values below 2^62"));
        }
        value = checked(c, start, value * other)?;
    }
    Ok(value)
}

/// `e`, if it is within the limits.
fn checked(c: &mut Cursor<'_>, start: Mark, e: IndexExpr) -> Parsed<IndexExpr> {
    let small = |k: i64| k.unsigned_abs() < MAX_DIM_CONST as u64;
    let fits = match &e {
        IndexExpr::Const(k) => small(*k),
        IndexExpr::Node(n) => match &**n {
            IndexNode::Sum { terms, constant, .. } => small(*constant) && terms.iter().all(|t| small(t.1)),
            _ => true,
        },
    };
    let span = c.span_since(start);
    let terms = match &e {
        IndexExpr::Node(n) => match &**n {
            IndexNode::Sum { terms, .. } => terms.len(),
            _ => 1,
        },
        IndexExpr::Const(_) => 1,
    };
    if terms > MAX_TERMS {
        return Err(c.error(
            span,
            format!("extent too large; expected sums of at most {MAX_TERMS} terms"),
        ));
    }
    if !fits {
        return Err(c.error(span, "integer overflow; expected values below 2^62"));
    }
    if e.size() > MAX_DIM_SIZE {
        return Err(c.error(span, format!("extent too large; expected at most {MAX_DIM_SIZE} nodes")));
    }
    Ok(e)
}

fn factor(c: &mut Cursor<'_>, scope: &mut dyn Scope, depth: u32) -> Parsed<IndexExpr> {
    let start = c.mark();
    let token = c.token();
    match token.kind {
        TokenKind::Number => c.integer("extent", 0, MAX_DIM_CONST - 1).map(IndexExpr::Const),
        TokenKind::LeftParen => {
            c.bump();
            let inner = nested(c, scope, depth)?;
            c.expect(TokenKind::RightParen, "extent")?;
            Ok(inner)
        }
        TokenKind::Word if c.next_kind() == TokenKind::LeftParen => {
            c.bump();
            let name = c.source(token);
            if !matches!(name, "div" | "mod" | "min" | "max") {
                let found = super::lexer::excerpt(name);
                let message = format!("unknown function; expected div, mod, min or max, found `{found}`");
                return Err(c.error(token.span(), message));
            }
            c.bump();
            let a = nested(c, scope, depth)?;
            c.expect(TokenKind::Comma, "extent")?;
            let divisor = c.mark();
            let b = nested(c, scope, depth)?;
            c.eat(TokenKind::Comma);
            c.expect(TokenKind::RightParen, "extent")?;
            let value = match name {
                "min" => IndexExpr::min(&a, &b),
                "max" => IndexExpr::max(&a, &b),
                _ => {
                    let range = b.interval(&*scope);
                    let positive = range.lo >= 0 || nonnegative(&b, &*scope) || scope.positive_here(&b);
                    if range.hi < 1 || !positive {
                        let span = c.span_since(divisor);
                        return Err(c.error(
                            span,
                            "the divisor is zero or may be negative; expected a positive divisor",
                        ));
                    }
                    if name == "div" {
                        IndexExpr::floor_div(&a, &b)
                    } else {
                        IndexExpr::modulo(&a, &b)
                    }
                }
            };
            checked(c, start, value)
        }
        TokenKind::Word | TokenKind::String => {
            let name = c.word_or_string("extent")?;
            match scope.atom(&name) {
                Some(e) => Ok(e),
                None => {
                    let found = super::lexer::excerpt(&name);
                    Err(c.error(
                        token.span(),
                        format!("unknown name; expected a symbol or loop variable, found `{found}`"),
                    ))
                }
            }
        }
        _ => Err(c.unexpected("extent", "an integer, a symbol or `(`")),
    }
}

fn nested(c: &mut Cursor<'_>, scope: &mut dyn Scope, depth: u32) -> Parsed<IndexExpr> {
    if depth >= MAX_DEPTH {
        let span = c.token().span();
        return Err(c.error(
            span,
            format!("extent nested too deep; expected at most {MAX_DEPTH} levels"),
        ));
    }
    sum(c, scope, depth + 1)
}

/// One literal of a dtype: `true`, `-12`, `0xff`, `1.5e-3`, `inf`, `-inf`, `nan`, `nan:0x7fc00001`. Decimal fractions round
/// to nearest; f16 and bf16 round through f64.
pub(crate) fn scalar(c: &mut Cursor<'_>, dtype: DType) -> Parsed<Scalar> {
    let start = c.mark();
    if dtype == DType::Bool {
        return match (c.eat_word("true"), c.eat_word("false")) {
            (true, _) => Ok(Scalar::from_bool(true)),
            (_, true) => Ok(Scalar::from_bool(false)),
            _ => Err(c.unexpected("constant of bool", "`true` or `false`")),
        };
    }
    let context = format!("constant of {dtype}");
    if !dtype.is_any_float() {
        if dtype == DType::U64 {
            return unsigned(c, &context);
        }
        let hi = dtype.highest().as_i64();
        return Ok(Scalar::from_i64(
            dtype,
            c.integer(&context, dtype.lowest().as_i64(), hi)?,
        ));
    }
    let negative = c.eat(TokenKind::Minus);
    let sign = |v: f64| if negative { -v } else { v };
    // A storage float of that value, if it has it: a literal does not saturate.
    let special = |v: f64| match dtype.is_storage() {
        true => Scalar::from_bits(dtype, crate::dtype::narrow::encode(dtype, v, false).into()),
        false => Scalar::from_f64(dtype, v),
    };
    let missing = |c: &mut Cursor<'_>, what: &str| {
        let span = c.span_since(start);
        c.error(
            span,
            format!("{context} out of range; expected a number of {dtype}, found `{what}`"),
        )
    };
    if c.eat_word("inf") {
        let value = special(sign(f64::INFINITY));
        return match value.as_f64().is_infinite() {
            true => Ok(value),
            false => Err(missing(c, "inf")),
        };
    }
    if !negative && c.eat_word("nan") {
        if !special(f64::NAN).is_nan() {
            return Err(missing(c, "nan"));
        }
        if c.kind() != TokenKind::Colon || c.next_kind() != TokenKind::Number {
            return Ok(Scalar::from_f64(dtype, f64::NAN));
        }
        c.bump();
        let token = c.bump();
        let bits = c
            .source(token)
            .strip_prefix("0x")
            .and_then(|hex| u64::from_str_radix(hex, 16).ok());
        return match bits.map(|b| (Scalar::from_bits(dtype, b), b)) {
            Some((s, b)) if s.is_nan() && s.bits() == b => Ok(s),
            _ => Err(c.error(
                token.span(),
                format!("not a NaN; expected the bits of a NaN of {dtype} as `0x…`"),
            )),
        };
    }
    if c.kind() != TokenKind::Number {
        return Err(c.unexpected(&context, "a number, `inf` or `nan`"));
    }
    let token = c.bump();
    let source = c.source(token);
    let value = match dtype {
        // Through f64 it would round twice.
        DType::F32 => source
            .parse::<f32>()
            .ok()
            .map(|v| Scalar::from_f64(dtype, sign(f64::from(v)))),
        _ => source.parse::<f64>().ok().map(|v| Scalar::from_f64(dtype, sign(v))),
    };
    let span = c.span_since(start);
    let range = dtype.lowest().as_f64()..=dtype.highest().as_f64();
    let number = source.parse::<f64>().map_or(f64::NAN, sign);
    let beyond = dtype.is_storage() && !range.contains(&number);
    match value {
        Some(v) if v.as_f64().is_finite() && !beyond => Ok(v),
        Some(_) => {
            let found = super::lexer::excerpt(source);
            Err(c.error(
                span,
                format!("{context} out of range; expected a finite number or `inf`, found `{found}`"),
            ))
        }
        None => {
            let found = super::lexer::excerpt(source);
            Err(c.error(
                span,
                format!("malformed {context}; expected a decimal number, found `{found}`"),
            ))
        }
    }
}

fn unsigned(c: &mut Cursor<'_>, context: &str) -> Parsed<Scalar> {
    let token = c.expect(TokenKind::Number, context)?;
    let source = c.source(token);
    let value = match source.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => source.parse::<u64>(),
    };
    value.map(|v| Scalar::from_u64(DType::U64, v)).map_err(|_| {
        let found = super::lexer::excerpt(source);
        c.error(
            token.span(),
            format!(
                "{context} out of range; expected an integer in 0..={}, found `{found}`",
                u64::MAX
            ),
        )
    })
}
