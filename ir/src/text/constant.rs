//! Constants of graphs and plans: literals, lists and data that the text only names.
//!
//! Invariant: the elements of a list are read and counted before a tensor of the stated type is allocated.

use super::cursor::{Cursor, Mark, Parsed};
use super::expr::scalar;
use super::graph::{Full, GraphParser};
use super::lexer::{TokenKind, excerpt};
use super::{NO_DATA, Resolver};
use crate::dtype::{DType, Scalar};
use crate::graph::TensorType;
use crate::tensor::{HostTensor, element_count};

impl GraphParser<'_, '_, '_, '_> {
    /// Behind `const`: passes over the literal, which is read once its type is known.
    pub(super) fn constant(&mut self) -> Parsed<Full> {
        let start = self.c.mark();
        if self.c.eat_word("opaque") {
            return Ok(Full::Opaque(start, self.c.string("const")?));
        }
        let literal = self.c.mark();
        if self.c.kind() != TokenKind::LeftBracket {
            self.skip_literal()?;
            return Ok(Full::Const(literal));
        }
        let mut depth = 0u32;
        loop {
            match self.c.kind() {
                TokenKind::LeftBracket => depth += 1,
                TokenKind::RightBracket => depth -= 1,
                TokenKind::Number | TokenKind::Word | TokenKind::Minus | TokenKind::Comma | TokenKind::Colon => {}
                _ => return Err(self.c.unexpected("list of constants", "`]`")),
            }
            self.c.bump();
            if depth == 0 {
                return Ok(Full::List(literal));
            }
        }
    }

    /// Passes over one literal.
    pub(super) fn skip_literal(&mut self) -> Parsed<()> {
        let negative = self.c.eat(TokenKind::Minus);
        let nan = !negative && self.c.at_word("nan");
        match self.c.kind() {
            TokenKind::Number | TokenKind::Word => self.c.bump(),
            _ => return Err(self.c.unexpected("constant", "a literal")),
        };
        if nan && self.c.kind() == TokenKind::Colon && self.c.next_kind() == TokenKind::Number {
            self.c.bump();
            self.c.bump();
        }
        Ok(())
    }
}

/// The extents of a constant.
fn const_shape(c: &mut Cursor<'_>, start: Mark, ty: &TensorType, text: &str) -> Parsed<Vec<usize>> {
    ty.const_shape().ok_or_else(|| {
        let span = c.span_since(start);
        c.error(
            span,
            format!("data of unknown size; expected constant extents, found {text}"),
        )
    })
}

/// A list of literals, nested as the extents say or flat; `text` is the type for messages.
pub(super) fn list(c: &mut Cursor<'_>, ty: &TensorType, text: &str) -> Parsed<HostTensor> {
    let start = c.mark();
    let shape = const_shape(c, start, ty, text)?;
    let mut values = Vec::new();
    // Entries of each open list; the shape that nested lists have, outermost first.
    let mut open: Vec<usize> = Vec::new();
    let mut nested: Vec<Option<usize>> = Vec::new();
    let mut leaf_depth = None;
    let mut regular = true;
    loop {
        match c.kind() {
            TokenKind::LeftBracket => {
                c.bump();
                if open.len() >= shape.len().max(1) {
                    let span = c.span_since(start);
                    let message = format!("list nested too deep; expected at most {} levels", shape.len().max(1));
                    return Err(c.error(span, message));
                }
                open.push(0);
                nested.resize(nested.len().max(open.len()), None);
            }
            TokenKind::RightBracket => {}
            _ => {
                values.push(scalar(c, ty.dtype)?);
                regular &= *leaf_depth.get_or_insert(open.len()) == open.len();
                *open.last_mut().expect("inside a list") += 1;
            }
        }
        // Close lists up to the next element.
        loop {
            let before_close = c.kind() == TokenKind::RightBracket;
            if !before_close {
                break;
            }
            c.bump();
            let entries = open.pop().expect("brackets were matched");
            regular &= *nested[open.len()].get_or_insert(entries) == entries;
            match open.last_mut() {
                Some(parent) => *parent += 1,
                None => return tensor(c, start, ty.dtype, &shape, values, &nested, regular),
            }
        }
        if open.last() == Some(&0) {
            continue;
        }
        if !c.eat(TokenKind::Comma) {
            return Err(c.unexpected("list of constants", "`,` or `]`"));
        }
    }
}

fn tensor(
    c: &mut Cursor<'_>,
    start: Mark,
    dtype: DType,
    shape: &[usize],
    values: Vec<Scalar>,
    nested: &[Option<usize>],
    regular: bool,
) -> Parsed<HostTensor> {
    let span = c.span_since(start);
    let flat = nested.len() == 1;
    let fits = if flat {
        element_count(shape) == Some(values.len())
    } else {
        // An empty list hides the extents inside it; nothing else may be missing.
        let told = nested.iter().zip(shape).all(|(n, d)| *n == Some(*d));
        regular && told && (nested.len() == shape.len() || nested.last() == Some(&Some(0)))
    };
    if !fits || element_count(shape) != Some(values.len()) {
        let expected = element_count(shape).map_or("too many".to_string(), |n| n.to_string());
        let message = if flat {
            format!("list of {} elements; expected {expected} elements", values.len())
        } else {
            format!("nested lists of another shape; expected {shape:?}")
        };
        return Err(c.error(span, message));
    }
    let mut data = HostTensor::zeros(dtype, shape).map_err(|e| c.error(span, e.to_string()))?;
    for (i, v) in values.into_iter().enumerate() {
        data.set(i, v);
    }
    Ok(data)
}

/// The data of a name that a resolver knows; `text` is the type for messages.
pub(super) fn opaque(
    c: &mut Cursor<'_>,
    resolver: &mut Resolver<'_>,
    start: Mark,
    name: &str,
    ty: &TensorType,
    text: &str,
) -> Parsed<HostTensor> {
    let shape = const_shape(c, start, ty, text)?;
    let span = c.span_since(start);
    match resolver(name, ty.dtype, &shape) {
        Ok(data) if data.dtype() == ty.dtype && data.shape() == shape => Ok(data),
        Ok(data) => {
            let (dtype, shape) = (data.dtype(), data.shape());
            let message = format!("data of another type; expected {text}, found {dtype}{shape:?}");
            Err(c.error(span, message))
        }
        Err(reason) => {
            let reason = match reason.is_empty() {
                true => reason,
                false => format!(": {reason}"),
            };
            let message = format!("{NO_DATA}`{}`{reason}; expected data of {text}", excerpt(name));
            Err(c.error(span, message))
        }
    }
}
