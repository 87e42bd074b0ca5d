//! Axes that windows slide over and that end: what a window has beyond an end is in no memory, and is left out of sums.

use smallvec::SmallVec;

use super::GemmOperand;
use crate::index::IndexExpr;

/// An axis of a tensor that windows slide over, as an operand of a product has them: element `t` of the window at place `p` is the axis's element
/// `p * stride + t * dilation - before`. Where the axis has no such element, the operand has none either: its product is left out of the sum.
///
/// The places are one of the operand's dimensions across the sum, and the elements of a window one along it: those of its windowed axes are the
/// outermost along the sum, in their order. The strides of both are multiples of `step`, as the two factors say. The operand's offset is that of the
/// axis's first element, whatever windows have before it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WindowedAxis {
    /// Which of the dimensions across the sum the places are, from the outermost on.
    pub place: usize,
    /// Elements of the axis from place to place, at least 1.
    pub stride: i64,
    /// Elements of the axis from element to element of a window, at least 1.
    pub dilation: i64,
    /// Elements that the first window has before the axis begins.
    pub before: IndexExpr,
    /// Elements of the axis.
    pub extent: IndexExpr,
    /// Stride of the axis in memory.
    pub step: IndexExpr,
}

/// The windowed axes of an operand, mostly none.
pub type Windowed = SmallVec<[WindowedAxis; 0]>;

impl WindowedAxis {
    /// The element of the axis that a window has, if the axis has it: the window at a place, and the number of the element in it.
    pub fn element(&self, [place, number]: [i64; 2], [before, extent]: [i64; 2]) -> Option<i64> {
        let at = place
            .checked_mul(self.stride)?
            .checked_add(number.checked_mul(self.dilation)?)?;
        let at = at.checked_sub(before)?;
        (0..extent).contains(&at).then_some(at)
    }
}

impl GemmOperand {
    /// Whether it has windows over axes that end.
    pub fn is_windowed(&self) -> bool {
        !self.windowed.is_empty()
    }
}
