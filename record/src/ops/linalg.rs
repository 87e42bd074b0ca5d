//! Contractions: einsum, and matmul, dot, outer and tensordot, which are einsums by other names.
//!
//! Invariants: every contraction is recorded as one n-ary einsum node. Operands keep their dtypes: they convert to the
//! accumulator (f32 for f16 and bf16) before they multiply, and the sum converts once to the promoted dtype. A label whose
//! extent is literally 1 in one operand and not in another broadcasts: the axis of extent 1 is dropped. Bools contract over
//! (or, and), as in NumPy.

use tlc_ir::graph::{Labels, NodeKind, ScatterOp, Semiring};
use tlc_ir::{DType, IndexExpr, einsum as language};

use crate::graph::Tensor;
use crate::graph::scope::{Step, op, refuse, refuse_expecting};
use crate::promotion::promote;

/// One einsum node over labels of any numbering. `result` is the dtype, if not the promoted one.
pub(crate) fn contract(terms: &[(&Tensor, &[u16])], output: &[u16], result: Option<DType>) -> Step {
    let promoted = terms.iter().map(|(t, _)| t.dtype()).reduce(promote);
    let promoted = promoted.unwrap_or(DType::F32);
    let semiring = match promoted {
        DType::Bool => Semiring::OrAnd,
        _ => Semiring::AddMul,
    };
    contract_over(
        semiring,
        terms,
        output,
        promoted.accumulator(),
        result.unwrap_or(promoted),
    )
}

/// [`contract`] over another semiring.
pub(crate) fn contract_over(
    semiring: Semiring,
    terms: &[(&Tensor, &[u16])],
    output: &[u16],
    accumulator: DType,
    dtype: DType,
) -> Step {
    let graph = terms[0].0.graph();
    // A label's extent is 1 only if it is in every operand.
    let is_wide = |label: u16| {
        let mut axes = terms.iter().flat_map(|(t, labels)| labels.iter().zip(t.extents()));
        axes.any(|(&l, d)| l == label && !d.is(1))
    };
    let mut renamed: Vec<u16> = Vec::new();
    let mut inputs = smallvec::SmallVec::new();
    let mut operands = Vec::with_capacity(terms.len());
    for (t, labels) in terms {
        let mut dropped = vec![];
        let mut own = Labels::new();
        for (axis, (&label, d)) in labels.iter().zip(t.extents()).enumerate() {
            let mut twins = labels.iter().zip(t.extents()).filter(|(l, _)| **l == label);
            if twins.any(|(_, other)| graph.differ(d, other)) {
                return refuse_expecting("a diagonal over axes of different extents", "equal extents");
            }
            if d.is(1) && is_wide(label) {
                dropped.push(axis);
                continue;
            }
            let number = renamed.iter().position(|&l| l == label).unwrap_or_else(|| {
                renamed.push(label);
                renamed.len() - 1
            });
            own.push(number as u16);
        }
        operands.push(t.without(&dropped)?);
        inputs.push(own);
    }
    let output = output
        .iter()
        .map(|label| match renamed.iter().position(|l| l == label) {
            Some(number) => Ok(number as u16),
            None => refuse("an output label is in no operand"),
        })
        .collect::<Step<Labels>>()?;
    let kind = NodeKind::Einsum {
        inputs,
        output,
        semiring,
        accumulator,
        dtype,
    };
    graph.node(kind, &operands.iter().collect::<Vec<_>>())
}

/// A contraction in NumPy's notation: `"ij,jk->ik"`, with implicit output, `...`, diagonals and broadcasting of extents 1;
/// any Unicode letter is a label. See [`tlc_ir::einsum`].
///
/// The contraction order is the compiler's, as with NumPy's `optimize`: sums and products are regrouped. What that does to
/// infinities is stated at [`tlc_ir::NodeKind::Einsum`].
///
/// ```
/// use tlc::{Graph, einsum};
///
/// let g = Graph::default();
/// let x = g.constant([[1.0f32, 2.0], [3.0, 4.0]]);
/// assert_eq!(einsum("ij,ij->i", &[&x, &x]).eval()?.as_slice::<f32>()?, [5.0, 25.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// A malformed expression, ranks or extents that do not fit.
///
/// # Panics
/// If `operands` is empty.
#[track_caller]
pub fn einsum(expression: &str, operands: &[&Tensor]) -> Tensor {
    op("einsum", operands, || einsum_step(expression, operands, None, None))
}

/// [`einsum`] over another semiring: longest or shortest paths, maximal products, reachability. Where no path is, max-add
/// has -inf and min-add inf; operands that hold the other infinity besides may give that one in place of NaN (see
/// [`tlc_ir::NodeKind::Einsum`]).
///
/// # Panics
/// If `operands` is empty.
#[track_caller]
pub fn einsum_over(semiring: Semiring, expression: &str, operands: &[&Tensor]) -> Tensor {
    op("einsum", operands, || {
        einsum_step(expression, operands, Some(semiring), None)
    })
}

/// As [`einsum`], but what was added up (in f32 for f16 and bf16, whose products are exact there) is converted to `dtype`.
#[doc(hidden)]
#[track_caller]
pub fn einsum_as(expression: &str, operands: &[&Tensor], dtype: DType) -> Tensor {
    op("einsum", operands, || {
        einsum_step(expression, operands, None, Some(dtype))
    })
}

fn einsum_step(expression: &str, operands: &[&Tensor], semiring: Option<Semiring>, result: Option<DType>) -> Step {
    let ranks: Vec<usize> = operands.iter().map(|t| t.rank()).collect();
    let spec = language::parse(expression, &ranks).or_else(|e| refuse(format!("`{expression}`: {e}")))?;
    let shapes: Option<Vec<Vec<usize>>> = operands.iter().map(|t| t.const_shape()).collect();
    match shapes {
        Some(shapes) => {
            language::broadcast_extents(&spec, &shapes).or_else(|e| refuse(format!("`{expression}`: {e}")))?;
        }
        None => check_extents(expression, &spec, operands)?,
    }
    let terms: Vec<(&Tensor, &[u16])> = operands
        .iter()
        .copied()
        .zip(spec.operands.iter().map(|l| &l[..]))
        .collect();
    match semiring {
        None => contract(&terms, &spec.output, result),
        Some(semiring) => {
            let dtype = operands.iter().map(|t| t.dtype()).reduce(promote).unwrap_or(DType::F32);
            contract_over(semiring, &terms, &spec.output, dtype.accumulator(), dtype)
        }
    }
}

/// Names labels whose symbolic extents cannot agree.
fn check_extents(expression: &str, spec: &language::EinsumSpec, operands: &[&Tensor]) -> Step<()> {
    let graph = operands[0].graph();
    let mut known: Vec<Option<&IndexExpr>> = vec![None; spec.label_count()];
    for (labels, t) in spec.operands.iter().zip(operands) {
        for (&label, d) in labels.iter().zip(t.extents()).filter(|(_, d)| !d.is(1)) {
            match known[label as usize] {
                Some(other) if graph.differ(other, d) => {
                    let (a, b) = (graph.dim_text(other), graph.dim_text(d));
                    let name = spec.label_names[label as usize];
                    let problem = format!("`{expression}`: extents {a} and {b} of {name} differ");
                    return refuse_expecting(problem, "equal extents for equal labels, or 1");
                }
                Some(_) => {}
                None => known[label as usize] = Some(d),
            }
        }
    }
    Ok(())
}

/// Labels of the batch axes of a tensor whose last `inner` axes are not batch, aligned at the right with others.
fn batch_labels(rank: usize, inner: usize) -> Vec<u16> {
    // Label 2 is the last batch axis; labels 0 and 1 are rows and columns; label `u16::MAX` is summed.
    (0..(rank - inner) as u16).rev().map(|i| i + 2).collect()
}

impl Tensor {
    /// Matrix product over the last two axes, with the axes before them broadcast as in NumPy; a vector on the left is a
    /// row and on the right a column, and that axis disappears.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([[1.0f32, 2.0], [3.0, 4.0]]);
    /// let v = g.constant([1.0f32, -1.0]);
    /// assert_eq!(x.matmul(&v).eval()?.as_slice::<f32>()?, [-1.0, -1.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A scalar operand, inner extents that differ, batch extents that do not broadcast.
    #[track_caller]
    pub fn matmul(&self, other: &Tensor) -> Tensor {
        op("matmul", &[self, other], || self.matmul_step(other, None))
    }

    /// As [`Tensor::matmul`], but what was added up (in f32 for f16 and bf16, whose products are exact there) is converted to `dtype`.
    #[doc(hidden)]
    #[track_caller]
    pub fn matmul_as(&self, other: &Tensor, dtype: DType) -> Tensor {
        op("matmul", &[self, other], || self.matmul_step(other, Some(dtype)))
    }

    pub(crate) fn matmul_step(&self, other: &Tensor, result: Option<DType>) -> Step {
        self.at_least_rank(1)?;
        other.at_least_rank(1)?;
        let graph = self.graph();
        let (m, n) = (self.rank(), other.rank());
        let (inner, other_axis) = (&self.extents()[m - 1], n.saturating_sub(2));
        if graph.differ(inner, &other.extents()[other_axis]) {
            let text = |d| graph.dim_text(d);
            let (a, b) = (text(inner), text(&other.extents()[other_axis]));
            let mut fits = other.ty().clone();
            fits.shape[other_axis] = inner.clone();
            let fits = graph.type_text(&fits);
            return refuse_expecting(
                format!("inner extents {a} and {b} differ"),
                format!("{fits} on the right"),
            );
        }
        const SUMMED: u16 = u16::MAX;
        let mut left = batch_labels(m, m.min(2));
        let mut right = batch_labels(n, n.min(2));
        let mut output = if left.len() > right.len() {
            left.clone()
        } else {
            right.clone()
        };
        let lead = [&self.extents()[..left.len()], &other.extents()[..right.len()]];
        if let Err((problem, expected)) = crate::promotion::broadcast_shape(graph, &lead) {
            return Err((format!("batch axes: {problem}"), expected));
        }
        if m >= 2 {
            left.push(0);
            output.push(0);
        }
        left.push(SUMMED);
        right.push(SUMMED);
        if n >= 2 {
            right.push(1);
            output.push(1);
        }
        // An extent of 1 does not broadcast along the summed axis: `differ` has refused it against another number, and
        // against a symbol both stay and a guard is recorded.
        let (a, b) = (
            self.agreeing(m - 1, &other.extents()[other_axis])?,
            other.agreeing(other_axis, inner)?,
        );
        contract(&[(&a, &left), (&b, &right)], &output, result)
    }

    /// The tensor with an axis of literal extent 1 seen as the symbolic extent that it must equal.
    fn agreeing(&self, axis: usize, extent: &IndexExpr) -> Step {
        if !self.extents()[axis].is(1) || extent.is(1) {
            return Ok(self.clone());
        }
        let mut shape = self.ty().shape.clone();
        shape[axis] = extent.clone();
        self.reshaped(&shape)
    }

    /// NumPy's `dot`: inner product of vectors, product of matrices; otherwise the sum over the last axis of `self` and the
    /// second last of `other`, with all other axes of both. A scalar operand multiplies.
    #[track_caller]
    pub fn dot(&self, other: &Tensor) -> Tensor {
        op("dot", &[self, other], || match (self.rank(), other.rank()) {
            (0, _) | (_, 0) => Ok(self.mul(other)),
            (_, n) if n <= 2 => self.matmul_step(other, None),
            (m, n) => Ok(self.tensordot(other, &[m as i64 - 1], &[n as i64 - 2])),
        })
    }

    /// All products of elements of two vectors: `result[i, j] = self[i] * other[j]`; tensors of other ranks are flattened.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let (a, b) = (g.constant([1i32, 2]), g.constant([10i32, 20]));
    /// assert_eq!(a.outer(&b).eval()?.as_slice::<i32>()?, [10, 20, 20, 40]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn outer(&self, other: &Tensor) -> Tensor {
        op("outer", &[self, other], || {
            contract(&[(&self.flatten(), &[0]), (&other.flatten(), &[1])], &[0, 1], None)
        })
    }

    /// The sum over pairs of axes: `axes[k]` of `self` with `other_axes[k]` of `other`. Result: the other axes of `self`,
    /// then those of `other`.
    #[track_caller]
    pub fn tensordot(&self, other: &Tensor, axes: &[i64], other_axes: &[i64]) -> Tensor {
        op("tensordot", &[self, other], || {
            if axes.len() != other_axes.len() {
                let problem = format!("{} axes with {}", axes.len(), other_axes.len());
                return refuse_expecting(problem, "as many axes of each");
            }
            let (left, right) = (self.axes(&axes.into())?, other.axes(&other_axes.into())?);
            let labels: Vec<u16> = (0..self.rank() as u16).collect();
            let mut other_labels: Vec<u16> = (0..other.rank()).map(|a| (self.rank() + a) as u16).collect();
            for (&a, &b) in left.iter().zip(&right) {
                other.extent_is("the right operand", b, &self.extents()[a])?;
                other_labels[b] = a as u16;
            }
            let kept = labels.iter().filter(|&&l| !left.contains(&(l as usize)));
            let output: Vec<u16> = kept
                .chain(other_labels.iter().filter(|&&l| l as usize >= self.rank()))
                .copied()
                .collect();
            contract(&[(self, &labels), (other, &other_labels)], &output, None)
        })
    }

    /// `x Wᵀ + b`: `self` is `[.., features]`, `weight` `[outputs, features]` (PyTorch's layout), `bias` `[outputs]`.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([[1.0f32, 2.0], [3.0, 4.0]]);
    /// let (w, b) = (g.constant([[1.0f32, 1.0]]), g.constant([0.5f32]));
    /// assert_eq!(x.linear(&w, Some(&b)).eval()?.as_slice::<f32>()?, [3.5, 7.5]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn linear(&self, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
        let mut operands = vec![self, weight];
        operands.extend(bias);
        op("linear", &operands, || {
            weight.exactly_rank("a weight", 2)?;
            self.at_least_rank(1)?;
            self.extent_is("the input", self.rank() - 1, &weight.extents()[1])?;
            let Some(b) = bias else {
                return Ok(self.matmul(&weight.t()));
            };
            b.exactly_rank("a bias", 1)?;
            b.extent_is("the bias", 0, &weight.extents()[0])?;
            let dtype = promote(self.dtype(), weight.dtype());
            // A sum is rounded once, behind the bias.
            let sum = dtype.is_float().then(|| dtype.accumulator());
            (self.matmul_step(&weight.t(), sum)? + b).to(promote(dtype, b.dtype()))
        })
    }
}

/// The largest matrix whose determinant is recorded: every column is a step of its own.
const MAX_DET: usize = 64;

impl Tensor {
    /// The determinants of the matrices of the last two axes, by elimination with the largest element of what is left as
    /// pivot. f16 and bf16 are computed in f32. Derivatives, and theirs, are right for singular matrices too: what is left behind the
    /// last pivot that is not zero is zeros, and of the last two rows and columns the formula is written out.
    ///
    /// ```
    /// use tlc::{Graph, grad};
    ///
    /// let g = Graph::default();
    /// let x = g.constant([[0.0f64, 0.0], [0.0, 1.0]]);
    /// let cofactors = grad(&x.det(), &[&x]).remove(0);
    /// assert_eq!(cofactors.eval()?.as_slice::<f64>()?, [1.0, 0.0, 0.0, 0.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Matrices that are not square, of symbolic extent, or larger than 64 by 64; integers.
    #[track_caller]
    pub fn det(&self) -> Tensor {
        op("det", &[self], || {
            self.at_least_rank(2)?;
            let (last, n) = (self.rank() - 1, self.const_extent(self.rank() - 1)?);
            self.extent_is("a square matrix", last - 1, &self.extents()[last])?;
            if n > MAX_DET || !self.dtype().is_float() {
                return refuse_expecting(
                    format!("matrices of {n} by {n} {}", self.dtype()),
                    format!("floats, at most {MAX_DET} by {MAX_DET}"),
                );
            }
            let lead = self.extents()[..last - 1].to_vec();
            let mut matrix = self.to(self.dtype().accumulator())?;
            let mut product = self.graph().filled(1.into(), &lead, matrix.dtype())?;
            let at = |matrix: &Tensor, row: i64, column: i64| matrix.select_index(-2, row).select_index(-1, column);
            for left in (3..=n as i64).rev() {
                let square = [lead.as_slice(), &[IndexExpr::from(left as usize * left as usize)]].concat();
                let place = matrix.abs().reshaped(&square)?.argmax(-1);
                let (row, column) = (place.floor_divide(left), place.remainder(left));
                matrix = first_exchanged(&first_exchanged(&matrix, &row, -2), &column, -1);
                let first = at(&matrix, 0, 0);
                product *= row.ne(0).ne(column.ne(0)).select(-&first, &first);
                // A pivot of zero has nothing but zeros behind it.
                let none = first.eq(0.0);
                let inverse = none
                    .select(0.0, 1.0 / none.select(1.0, &first))
                    .unsqueeze(-1)
                    .unsqueeze(-1);
                let below = matrix.narrow(-2, 1, left - 1);
                let row = matrix.narrow(-2, 0, 1).narrow(-1, 1, left - 1);
                matrix = below.narrow(-1, 1, left - 1) - below.narrow(-1, 0, 1) * inverse * row;
            }
            product *= match n {
                0 => return product.to(self.dtype()),
                1 => at(&matrix, 0, 0),
                _ => at(&matrix, 0, 0) * at(&matrix, 1, 1) - at(&matrix, 0, 1) * at(&matrix, 1, 0),
            };
            product.to(self.dtype())
        })
    }
}

/// The first row (axis -2) or column (axis -1) of each matrix in exchange for the one at `place`. The exchange is a scatter, which is a
/// step of its own: what the next column reads many times is there once.
fn first_exchanged(matrix: &Tensor, place: &Tensor, axis: i64) -> Tensor {
    let place = place.unsqueeze(-1).unsqueeze(-1);
    let both = crate::concat(&[&place.zeros_like(), &place], axis);
    let moved = matrix.take_along_axis_from_start(&both, axis);
    matrix.scatter_along_axis(&both.flip(axis), axis, &moved, ScatterOp::Set)
}
