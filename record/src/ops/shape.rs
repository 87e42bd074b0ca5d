//! Changes of shape. All are views: they move no data by themselves.

use tlc_ir::graph::View;
use tlc_ir::graph::infer::Refusal;
use tlc_ir::{IndexExpr, Scalar};

use crate::dim::{Axes, Dim, IntoShape};
use crate::graph::Tensor;
use crate::graph::scope::{Step, op, record, refuse, refuse_expecting};
use crate::promotion::{Operand, broadcast_shape};

impl Tensor {
    /// The same elements in C order under another shape; one extent may be -1, which is then what is left.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([[1.0f32, 2.0], [3.0, 4.0]]);
    /// assert_eq!(x.reshape([4, -1]).const_shape(), Some(vec![4, 1]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Another number of elements.
    #[track_caller]
    pub fn reshape(&self, shape: impl IntoShape) -> Tensor {
        let mut shape = shape.into_shape();
        op("reshape", &[self], || {
            let total = self.ty().elements();
            let mut open = shape.iter().enumerate().filter(|(_, d)| d.is(-1)).map(|(i, _)| i);
            if let (Some(axis), None) = (open.next(), open.next()) {
                let known = IndexExpr::product(shape.iter().filter(|d| !d.is(-1)));
                if known.is(0) {
                    return refuse_expecting("-1 beside an extent of 0", "at most one unknown, and no other extent 0");
                }
                if let (Some(t), Some(k)) = (total.as_const(), known.as_const())
                    && (k < 0 || t % k != 0)
                {
                    let text = self.graph().shape_text(&shape);
                    return refuse_expecting(format!("{t} elements into {text}"), format!("a divisor of {t}"));
                }
                shape[axis] = self.graph().simplify(&IndexExpr::floor_div(&total, &known));
            }
            self.reshaped(&shape)
        })
    }

    /// All axes as one.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([[1.0f32, 2.0], [3.0, 4.0]]);
    /// assert_eq!(x.flatten().eval()?.as_slice::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn flatten(&self) -> Tensor {
        op("flatten", &[self], || self.reshaped(&[self.ty().elements()]))
    }

    /// Axes `first` to `last`, both included, as one.
    #[track_caller]
    pub fn flatten_axes(&self, first: i64, last: i64) -> Tensor {
        op("flatten_axes", &[self], || {
            let (first, last) = (self.axis(first)?, self.axis(last)?);
            if first > last {
                return refuse_expecting(format!("axes {first} to {last}"), "ascending axes");
            }
            let mut shape = self.extents()[..first].to_vec();
            shape.push(IndexExpr::product(&self.extents()[first..=last]));
            shape.extend_from_slice(&self.extents()[last + 1..]);
            self.reshaped(&shape)
        })
    }

    /// One axis as several, whose extents multiply to its own; one may be -1.
    #[track_caller]
    pub fn unflatten(&self, axis: i64, extents: impl IntoShape) -> Tensor {
        let extents = extents.into_shape();
        op("unflatten", &[self], || {
            let axis = self.axis(axis)?;
            let mut extents = extents;
            if let Some(open) = extents.iter().position(|d| d.is(-1)) {
                let known = IndexExpr::product(extents.iter().filter(|d| !d.is(-1)));
                if known.as_const().is_none_or(|k| k > 0) {
                    extents[open] = IndexExpr::floor_div(&self.extents()[axis], &known);
                }
            }
            let mut shape = self.extents()[..axis].to_vec();
            shape.extend(extents);
            shape.extend_from_slice(&self.extents()[axis + 1..]);
            self.reshaped(&shape)
        })
    }

    /// Result axis `i` is axis `axes[i]`.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([[[1i32, 2], [3, 4]]]);
    /// let y = x.permute([2, 0, 1]);
    /// assert_eq!(y.const_shape(), Some(vec![2, 1, 2]));
    /// assert_eq!(y.eval()?.as_slice::<i32>()?, [1, 3, 2, 4]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Axes that are not each axis once.
    #[track_caller]
    pub fn permute(&self, axes: impl Into<Axes>) -> Tensor {
        let axes = axes.into();
        op("permute", &[self], || {
            let list = self.axes(&axes)?;
            if list.len() != self.rank() {
                let problem = format!("{} axes for a tensor of rank {}", list.len(), self.rank());
                return refuse_expecting(problem, "each axis once");
            }
            self.permuted(&list)
        })
    }

    /// All axes in reverse order (NumPy's `.T`).
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([[1.0f32, 2.0], [3.0, 4.0]]);
    /// assert_eq!(x.transpose().eval()?.as_slice::<f32>()?, [1.0, 3.0, 2.0, 4.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn transpose(&self) -> Tensor {
        op("transpose", &[self], || {
            self.permuted(&(0..self.rank()).rev().collect::<Vec<_>>())
        })
    }

    /// The last two axes exchanged.
    ///
    /// # Errors
    /// Fewer than two axes.
    #[track_caller]
    pub fn t(&self) -> Tensor {
        op("t", &[self], || match self.rank() {
            0 | 1 => refuse_expecting(format!("rank {}", self.rank()), "at least two axes"),
            n => self.swapped(n - 2, n - 1),
        })
    }

    /// Two axes exchanged.
    #[track_caller]
    pub fn swap_axes(&self, a: i64, b: i64) -> Tensor {
        op("swap_axes", &[self], || self.swapped(self.axis(a)?, self.axis(b)?))
    }

    fn swapped(&self, a: usize, b: usize) -> Step {
        let mut order: Vec<usize> = (0..self.rank()).collect();
        order.swap(a, b);
        self.permuted(&order)
    }

    /// Axis `from` moved so that it becomes axis `to`; the others keep their order.
    #[track_caller]
    pub fn move_axis(&self, from: i64, to: i64) -> Tensor {
        op("move_axis", &[self], || {
            let (from, to) = (self.axis(from)?, self.axis(to)?);
            self.permuted(&moved(self.rank(), from, to))
        })
    }

    /// Repeated to a shape, aligned at the right: extents that are literally 1 repeat, missing axes repeat, -1 keeps.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([1i32, 2]);
    /// assert_eq!(x.broadcast_to([2, 2]).eval()?.as_slice::<i32>()?, [1, 2, 1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// An extent that is neither 1 nor equal.
    #[track_caller]
    pub fn broadcast_to(&self, shape: impl IntoShape) -> Tensor {
        let mut shape = shape.into_shape();
        op("broadcast_to", &[self], || {
            let lead = shape.len().checked_sub(self.rank());
            for (i, d) in shape.iter_mut().enumerate().filter(|(_, d)| d.is(-1)) {
                match lead.and_then(|lead| i.checked_sub(lead)) {
                    Some(axis) => *d = self.extents()[axis].clone(),
                    None => return refuse_expecting("-1 for a new axis", "an extent"),
                }
            }
            self.expanded(&shape)
        })
    }

    /// [`Tensor::broadcast_to`] by PyTorch's name.
    #[track_caller]
    pub fn expand(&self, shape: impl IntoShape) -> Tensor {
        self.broadcast_to(shape)
    }

    /// The given axes, of extent 1, removed; `..` removes every axis that is literally 1.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([[1i32, 2]]);
    /// assert_eq!(x.squeeze(0).const_shape(), Some(vec![2]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// An axis that cannot be of extent 1.
    #[track_caller]
    pub fn squeeze(&self, axes: impl Into<Axes>) -> Tensor {
        let axes = axes.into();
        op("squeeze", &[self], || {
            let drop: Vec<usize> = match axes.is_all() {
                true => (0..self.rank()).filter(|&a| self.extents()[a].is(1)).collect(),
                false => self.axes(&axes)?,
            };
            if let Some(&bad) = drop
                .iter()
                .find(|&&a| self.graph().differ(&self.extents()[a], &IndexExpr::ONE))
            {
                let extent = self.graph().dim_text(&self.extents()[bad]);
                return refuse_expecting(format!("axis {bad} has extent {extent}"), "extent 1");
            }
            self.without(&drop)
        })
    }

    /// The shape without these axes, which have extent 1.
    pub(crate) fn without(&self, axes: &[usize]) -> Step {
        let kept = (0..self.rank()).filter(|a| !axes.contains(a));
        let shape: Vec<IndexExpr> = kept.map(|a| self.extents()[a].clone()).collect();
        self.reshaped(&shape)
    }

    /// A new axis of extent 1, which becomes axis `axis` of the result.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([1i32, 2]);
    /// assert_eq!(x.unsqueeze(-1).const_shape(), Some(vec![2, 1]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn unsqueeze(&self, axis: i64) -> Tensor {
        op("unsqueeze", &[self], || {
            let Some(axis) = crate::dim::resolve_axis(axis, self.rank() + 1) else {
                let n = self.rank() as i64;
                return refuse_expecting(format!("axis {axis}"), format!("an axis from {} to {n}", -n - 1));
            };
            let mut shape = self.ty().shape.clone();
            shape.insert(axis, IndexExpr::ONE);
            self.reshaped(&shape)
        })
    }

    /// `(before, behind)` fill values around each axis.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([1.0f32, 2.0]);
    /// assert_eq!(x.pad(&[(1, 2)], 0.0).eval()?.as_slice::<f32>()?, [0.0, 1.0, 2.0, 0.0, 0.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Not one pair per axis, negative padding, an integer fill that the dtype cannot hold.
    #[track_caller]
    pub fn pad<D: Into<Dim> + Clone>(&self, padding: &[(D, D)], value: impl Into<Operand>) -> Tensor {
        let value = value.into();
        op("pad", &[self], || {
            let (lo, hi) = self.sides(padding)?;
            self.padded(&lo, &hi, self.fill(value)?)
        })
    }

    /// As [`pad`](Tensor::pad), with `interior[i]` fill values between any two elements next to each other on axis `i` as well. An
    /// axis of extent `d > 0` becomes one of `before + d + (d - 1) * interior + behind`, an empty one of `before + behind`.
    /// This is XLA's `Pad`; it puts what a slice with a step took back in its place.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([1.0f32, 2.0, 3.0]);
    /// let y = x.pad_interior(&[(1, 0)], &[2], 0.0);
    /// assert_eq!(y.eval()?.as_slice::<f32>()?, [0.0, 1.0, 0.0, 0.0, 2.0, 0.0, 0.0, 3.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Not one pair and one number per axis, negative padding, more than 2^31 - 1 between two elements, an integer fill that the
    /// dtype cannot hold.
    #[track_caller]
    pub fn pad_interior<D: Into<Dim> + Clone>(
        &self,
        padding: &[(D, D)],
        interior: &[usize],
        value: impl Into<Operand>,
    ) -> Tensor {
        let value = value.into();
        op("pad_interior", &[self], || {
            let (lo, hi) = self.sides(padding)?;
            if interior.len() != self.rank() {
                let problem = format!("interior padding for {} axes", interior.len());
                return refuse_expecting(problem, format!("one number per axis, {}", self.rank()));
            }
            let value = self.fill(value)?;
            if interior.iter().all(|&p| p == 0) {
                return self.padded(&lo, &hi, value);
            }
            self.view(View::Pad {
                lo: lo.into(),
                hi: hi.into(),
                // What is no i64 is refused as too much.
                interior: interior.iter().map(|&p| i64::try_from(p).unwrap_or(i64::MAX)).collect(),
                value,
            })
        })
    }

    /// The padding before and behind each axis.
    fn sides<D: Into<Dim> + Clone>(&self, padding: &[(D, D)]) -> Result<(Vec<IndexExpr>, Vec<IndexExpr>), Refusal> {
        if padding.len() != self.rank() {
            let problem = format!("padding for {} axes", padding.len());
            return refuse_expecting(problem, format!("one pair per axis, {}", self.rank()));
        }
        let side = |p: D| p.into().0;
        Ok((
            padding.iter().map(|p| side(p.0.clone())).collect(),
            padding.iter().map(|p| side(p.1.clone())).collect(),
        ))
    }

    /// The scalar that padding fills with.
    fn fill(&self, value: Operand) -> Result<Scalar, Refusal> {
        match value {
            Operand::Weak(w) => w.of(self.dtype()),
            Operand::Scalar(s) => Ok(s.convert(self.dtype())),
            Operand::Tensor(_) => refuse_expecting("a tensor as fill value", "a scalar"),
        }
    }

    pub(crate) fn padded(&self, lo: &[IndexExpr], hi: &[IndexExpr], value: Scalar) -> Step {
        if lo.iter().chain(hi).all(|d| d.is(0)) {
            return Ok(self.clone());
        }
        self.view(View::Pad {
            lo: lo.into(),
            hi: hi.into(),
            interior: lo.iter().map(|_| 0).collect(),
            value,
        })
    }

    /// Sliding windows along an axis: the axis becomes the window's position, and a new last axis runs through the window.
    /// `result[.., o, .., k] = self[.., o * stride + k * dilation, ..]`.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([1i32, 2, 3, 4]);
    /// assert_eq!(x.window(0, 2, 1, 1).max(-1).eval()?.as_slice::<i32>()?, [2, 3, 4]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A window that does not fit the axis; size, stride or dilation below 1.
    #[track_caller]
    pub fn window(&self, axis: i64, size: impl Into<Dim>, stride: usize, dilation: usize) -> Tensor {
        let size = size.into().0;
        op("window", &[self], || {
            let axis = self.axis(axis)?;
            // The language gives such windows no position, as it must where sizes are symbols; who writes numbers made a mistake.
            let span = (size.clone() - IndexExpr::ONE) * IndexExpr::Const(dilation.try_into().unwrap_or(i64::MAX));
            let (extent, span) = (&self.extents()[axis], span + IndexExpr::ONE);
            if self
                .graph()
                .with_ir(|ir| (extent.clone() - span.clone()).interval(ir).hi < 0)
            {
                let text = |d: &IndexExpr| self.graph().with_ir(|ir| ir.dim_text(d));
                let problem = format!("a window over {} elements", text(&span));
                return refuse_expecting(problem, format!("at most the extent {}", text(extent)));
            }
            self.view(View::Window {
                axis: axis as u8,
                size,
                stride: stride.try_into().unwrap_or(i64::MAX),
                dilation: dilation.try_into().unwrap_or(i64::MAX),
            })
        })
    }

    /// The whole tensor repeated `repeats[i]` times along axis `i`, aligned at the right (NumPy's `tile`).
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([1i32, 2]);
    /// assert_eq!(x.tile([2]).eval()?.as_slice::<i32>()?, [1, 2, 1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn tile(&self, repeats: impl IntoShape) -> Tensor {
        let mut repeats = repeats.into_shape();
        op("tile", &[self], || {
            let rank = self.rank().max(repeats.len());
            while repeats.len() < rank {
                repeats.insert(0, IndexExpr::ONE);
            }
            let lead = rank - self.rank();
            let extent = |i: usize| match i.checked_sub(lead) {
                Some(axis) => self.extents()[axis].clone(),
                None => IndexExpr::ONE,
            };
            let (mut apart, mut repeated, mut joined) = (vec![], vec![], vec![]);
            for (i, n) in repeats.iter().enumerate() {
                if !n.is(1) {
                    apart.push(IndexExpr::ONE);
                    repeated.push(n.clone());
                }
                apart.push(extent(i));
                repeated.push(extent(i));
                joined.push(n.clone() * extent(i));
            }
            self.reshaped(&apart)?.expanded(&repeated)?.reshaped(&joined)
        })
    }

    /// Each element repeated `count` times along an axis, next to each other (NumPy's `repeat`).
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([1i32, 2]);
    /// assert_eq!(x.repeat(2, 0).eval()?.as_slice::<i32>()?, [1, 1, 2, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn repeat(&self, count: impl Into<Dim>, axis: i64) -> Tensor {
        let count = count.into().0;
        op("repeat", &[self], || {
            let axis = self.axis(axis)?;
            let (mut apart, mut joined) = (self.extents().to_vec(), self.extents().to_vec());
            apart.insert(axis + 1, IndexExpr::ONE);
            let mut repeated = apart.clone();
            repeated[axis + 1] = count.clone();
            joined[axis] = joined[axis].clone() * count;
            self.reshaped(&apart)?.expanded(&repeated)?.reshaped(&joined)
        })
    }

    /// Copies the value into a buffer of its own.
    #[track_caller]
    pub fn copy(&self) -> Tensor {
        op("copy", &[self], || self.node(tlc_ir::NodeKind::Copy))
    }
}

/// The permutation that moves axis `from` to `to`.
pub(crate) fn moved(rank: usize, from: usize, to: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..rank).filter(|&a| a != from).collect();
    order.insert(to, from);
    order
}

/// The tensors repeated to their common shape (NumPy's `broadcast_arrays`).
///
/// # Errors
/// Extents that differ and are not 1. An empty list gives an empty one.
#[track_caller]
pub fn broadcast_tensors(tensors: &[&Tensor]) -> Vec<Tensor> {
    let Some(first) = tensors.first() else {
        return vec![];
    };
    let graph = first.graph();
    let body = || {
        let shapes: Vec<&[IndexExpr]> = tensors.iter().map(|t| t.extents()).collect();
        let shape = broadcast_shape(graph, &shapes)?;
        tensors.iter().map(|t| t.expanded(&shape)).collect()
    };
    record(graph, "broadcast_tensors", tensors, &[], body, |p| {
        vec![p; tensors.len()]
    })
}

impl Tensor {
    /// Whether a refusal is due because the tensor lacks axes.
    pub(crate) fn at_least_rank(&self, rank: usize) -> Step<()> {
        if self.rank() < rank {
            return refuse_expecting(format!("rank {}", self.rank()), format!("at least {rank} axes"));
        }
        Ok(())
    }

    /// Refuses any other rank.
    pub(crate) fn exactly_rank(&self, what: &str, rank: usize) -> Step<()> {
        if self.rank() != rank {
            return refuse_expecting(format!("{what} of rank {}", self.rank()), format!("rank {rank}"));
        }
        Ok(())
    }

    /// Refuses an extent other than `expected`, unless they could be equal.
    pub(crate) fn extent_is(&self, what: &str, axis: usize, expected: &IndexExpr) -> Step<()> {
        let found = &self.extents()[axis];
        if self.graph().differ(found, expected) {
            let g = self.graph();
            return refuse_expecting(
                format!("{what} has extent {} on axis {axis}", g.dim_text(found)),
                g.dim_text(expected),
            );
        }
        Ok(())
    }

    /// Refuses a symbolic extent where a number is needed.
    pub(crate) fn const_extent(&self, axis: usize) -> Step<usize> {
        match self.extents()[axis].as_const() {
            Some(n) => Ok(usize::try_from(n).unwrap_or(0)),
            None => refuse(format!(
                "axis {axis} has the symbolic extent {}, but a number is needed",
                self.graph().dim_text(&self.extents()[axis])
            )),
        }
    }
}
