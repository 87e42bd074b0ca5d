//! Views in text: what stands in their braces, written and read.

use std::fmt::Write as _;

use super::cursor::Parsed;
use super::expr::scalar;
use super::graph::{Attributes, GraphParser};
use super::print::{Printer, comma};
use crate::graph::{NodeId, TensorType, View, ViewKind};
use crate::index::IndexExpr;

/// The attributes that a view may have, in their order. Which may be left out, their reader says.
pub(super) fn view_attributes(view: ViewKind) -> &'static [&'static str] {
    match view {
        ViewKind::Reshape | ViewKind::Expand => &[],
        ViewKind::Permute => &["axes"],
        ViewKind::Pad => &["lo", "hi", "interior", "value"],
        ViewKind::Slice => &["start", "step"],
        ViewKind::Window => &["axis", "size", "stride", "dilation"],
    }
}

impl Printer<'_> {
    /// The attributes of a view, in braces with a space in front.
    pub(super) fn view(&self, text: &mut String, view: &View) {
        let integers = |all: &[i64]| comma(all.iter().map(|n| n.to_string()));
        let _ = match view {
            View::Reshape(_) | View::Expand(_) => Ok(()),
            View::Permute(axes) => write!(text, " {{axes=[{}]}}", comma(axes.iter().map(|a| a.to_string()))),
            View::Pad {
                lo,
                hi,
                interior,
                value,
            } => {
                let between = match interior.iter().any(|p| *p != 0) {
                    true => format!("interior=[{}], ", integers(interior)),
                    false => String::new(),
                };
                let (lo, hi) = (self.dims(lo), self.dims(hi));
                write!(text, " {{lo={lo}, hi={hi}, {between}value={value}}}")
            }
            View::Slice { start, step, .. } => {
                write!(text, " {{start={}, step=[{}]}}", self.dims(start), integers(step))
            }
            View::Window {
                axis,
                size,
                stride,
                dilation,
            } => {
                let size = self.dim(size);
                write!(
                    text,
                    " {{axis={axis}, size={size}, stride={stride}, dilation={dilation}}}"
                )
            }
        };
    }
}

impl GraphParser<'_, '_, '_, '_> {
    /// The view that its attributes and its result type say.
    pub(super) fn view(&mut self, view: ViewKind, a: Attributes, operands: &[NodeId], ty: &TensorType) -> Parsed<View> {
        Ok(match view {
            ViewKind::Reshape => View::Reshape(ty.shape.clone()),
            ViewKind::Permute => View::Permute(a.axes),
            ViewKind::Expand => View::Expand(ty.shape.clone()),
            ViewKind::Pad => {
                let mut value = ty.dtype.zero();
                if let Some(literal) = a.value {
                    let dtype = operands.first().map_or(ty.dtype, |&o| self.graph.ty(o).dtype);
                    let behind = self.c.mark();
                    self.c.reset(literal);
                    value = scalar(self.c, dtype)?;
                    self.c.reset(behind);
                }
                View::Pad {
                    interior: a.interior.unwrap_or_else(|| vec![0; a.lo.len()].into()),
                    lo: a.lo,
                    hi: a.hi,
                    value,
                }
            }
            ViewKind::Slice => View::Slice {
                step: a.step.unwrap_or_else(|| vec![1; a.lo.len()].into()),
                start: a.lo,
                size: ty.shape[..].into(),
            },
            ViewKind::Window => View::Window {
                axis: a.axis,
                size: a.size.unwrap_or(IndexExpr::ONE),
                stride: a.stride.unwrap_or(1),
                dilation: a.dilation.unwrap_or(1),
            },
        })
    }
}
