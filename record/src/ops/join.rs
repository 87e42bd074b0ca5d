//! Joining and splitting along an axis.
//!
//! [`concat()`] pads every part to the result's extent and picks between them by padded masks of truth, in a balanced tree:
//! all views and selects, so it fuses into its users and its parts into it. (Adding padded parts would be shorter, and would
//! turn -0.0 into 0.0.)

use tlc_ir::graph::Shape;
use tlc_ir::{DType, IndexExpr, Scalar};

use crate::dim::Dim;
use crate::graph::Tensor;
use crate::graph::scope::{Step, op, record, refuse_expecting};
use crate::promotion::promote;

/// The tensors one behind the other along an axis. Dtypes promote.
///
/// ```
/// use tlc::{Graph, concat};
///
/// let g = Graph::default();
/// let (a, b) = (g.constant([1i32]), g.constant([2i32, 3]));
/// assert_eq!(concat(&[&a, &b], 0).eval()?.as_slice::<i32>()?, [1, 2, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Different ranks, extents that differ on another axis, an empty list (which has no graph to report to: it
/// panics).
///
/// # Panics
/// If `tensors` is empty.
#[track_caller]
pub fn concat(tensors: &[&Tensor], axis: i64) -> Tensor {
    op("concat", tensors, || {
        let first = tensors[0];
        let axis = first.axis(axis)?;
        let dtype = tensors.iter().map(|t| t.dtype()).fold(first.dtype(), promote);
        let mut shape = first.ty().shape.clone();
        for t in &tensors[1..] {
            if t.rank() != first.rank() {
                return refuse_expecting(format!("ranks {} and {} differ", first.rank(), t.rank()), "equal ranks");
            }
            for a in (0..shape.len()).filter(|&a| a != axis) {
                t.extent_is("a part", a, &shape[a])?;
                if shape[a].as_const().is_none() && t.extents()[a].as_const().is_some() {
                    shape[a] = t.extents()[a].clone();
                }
            }
        }
        let mut parts = Vec::with_capacity(tensors.len());
        let mut offset = IndexExpr::ZERO;
        for t in tensors.iter().filter(|t| !t.extents()[axis].is(0)) {
            // An expand to the agreed extents records the guards of symbols that must be equal.
            let mut own = shape.clone();
            own[axis] = t.extents()[axis].clone();
            parts.push((t.to(dtype)?.expanded(&own)?, offset.clone()));
            offset = offset + t.extents()[axis].clone();
        }
        shape[axis] = offset;
        match parts.len() {
            0 => first.to(dtype),
            _ => Ok(joined(&parts, axis, &shape)?.0),
        }
    })
}

/// The parts padded to `shape` and joined, and where they are (`None` for everywhere).
fn joined(parts: &[(Tensor, IndexExpr)], axis: usize, shape: &Shape) -> Step<(Tensor, IndexExpr, IndexExpr)> {
    if let [(part, offset)] = parts {
        let end = offset.clone() + part.extents()[axis].clone();
        let padded = spread(
            part,
            axis,
            offset,
            &(shape[axis].clone() - end.clone()),
            part.dtype().zero(),
        )?;
        return Ok((padded, offset.clone(), end));
    }
    let (left, right) = parts.split_at(parts.len() / 2);
    let (left, start, middle) = joined(left, axis, shape)?;
    let (right, _, end) = joined(right, axis, shape)?;
    let graph = left.graph();
    let mut column = Shape::from_elem(IndexExpr::ONE, shape.len());
    column[axis] = middle.clone();
    let truth = graph.filled(true.into(), &column, DType::Bool)?;
    // True before the right half; before the left half too, where nothing is read.
    let behind = shape[axis].clone() - middle;
    let in_left = spread(&truth, axis, &IndexExpr::ZERO, &behind, Scalar::from_bool(false))?;
    Ok((in_left.select(left, right), start, end))
}

fn spread(t: &Tensor, axis: usize, before: &IndexExpr, behind: &IndexExpr, fill: Scalar) -> Step {
    let mut lo = vec![IndexExpr::ZERO; t.rank()];
    let mut hi = lo.clone();
    lo[axis] = before.clone();
    hi[axis] = behind.clone();
    t.padded(&lo, &hi, fill)
}

/// The tensors, of one shape, along a new axis.
///
/// ```
/// use tlc::{Graph, stack};
///
/// let g = Graph::default();
/// let (a, b) = (g.constant([1i32, 2]), g.constant([3i32, 4]));
/// assert_eq!(stack(&[&a, &b], 1).eval()?.as_slice::<i32>()?, [1, 3, 2, 4]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Panics
/// If `tensors` is empty.
#[track_caller]
pub fn stack(tensors: &[&Tensor], axis: i64) -> Tensor {
    op("stack", tensors, || {
        for t in &tensors[1..] {
            t.exactly_rank("a part", tensors[0].rank())?;
        }
        let apart: Vec<Tensor> = tensors.iter().map(|t| t.unsqueeze(axis)).collect();
        Ok(concat(&apart.iter().collect::<Vec<_>>(), axis))
    })
}

impl Tensor {
    /// Consecutive parts of the given sizes along an axis.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([1i32, 2, 3]);
    /// let parts = x.split(&[1, 2], 0);
    /// assert_eq!(parts[1].eval()?.as_slice::<i32>()?, [2, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Sizes that do not add up to the extent.
    #[track_caller]
    pub fn split<D: Into<Dim> + Clone>(&self, sizes: &[D], axis: i64) -> Vec<Tensor> {
        let body = || {
            let axis = self.axis(axis)?;
            let mut offset = Dim(IndexExpr::ZERO);
            let mut ranges = vec![];
            for size in sizes {
                let end = &offset + size.clone();
                ranges.push(offset..end.clone());
                offset = end;
            }
            self.extent_is("the operand", axis, offset.expr())?;
            ranges.into_iter().map(|r| self.sliced(&[(axis, r.into())])).collect()
        };
        record(self.graph(), "split", &[self], &[], body, |p| vec![p; sizes.len()])
    }

    /// `count` consecutive parts along an axis, as equal as can be: the first ones are longer by one.
    ///
    /// # Errors
    /// An axis of symbolic extent.
    #[track_caller]
    pub fn chunk(&self, count: usize, axis: i64) -> Vec<Tensor> {
        let body = || {
            let a = self.axis(axis)?;
            if count == 0 {
                return refuse_expecting("0 parts", "at least 1");
            }
            let n = self.const_extent(a)?;
            let sizes: Vec<usize> = (0..count).map(|i| n / count + usize::from(i < n % count)).collect();
            Ok(self.split(&sizes, axis))
        };
        record(self.graph(), "chunk", &[self], &[], body, |p| vec![p; count])
    }

    /// The parts of extent 1 along an axis, which disappears.
    ///
    /// # Errors
    /// An axis of symbolic extent (the result is then empty).
    #[track_caller]
    pub fn unbind(&self, axis: i64) -> Vec<Tensor> {
        let body = || {
            let a = self.axis(axis)?;
            (0..self.const_extent(a)?)
                .map(|i| self.sliced(&[(a, i.into())]))
                .collect()
        };
        record(self.graph(), "unbind", &[self], &[], body, |_| vec![])
    }
}
