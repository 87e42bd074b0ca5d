//! Whole matrices of derivatives: products with the Jacobian over a batch of all directions.

use tlc_ir::graph::{NodeKind, TensorType};
use tlc_ir::{DType, IndexExpr};

use super::derivatives;
use super::forward::all_tangents;
use super::node::zeros;
use crate::batch::over_batch;
use crate::graph::scope::{Step, record, refuse_expecting};
use crate::graph::{Graph, Tensor};

/// The derivative of each element of `y` by each element of `x`, a tensor between inputs and `y`: its axes are those of `y`, then those of
/// `x`; its dtype is that of `y`.
///
/// It is what [`super::jvp`] gives along all elements of `x` at once, or [`super::vjp`] from all elements of `y`, whichever are fewer
/// as far as sizes are numbers: backwards where they are not, unless there is no way back.
///
/// ```
/// use tlc::{Graph, jacobian};
///
/// let g = Graph::default();
/// let x = g.constant([2.0f64, 3.0]);
/// let j = jacobian(&(&x * x.sum(..)), &x);
/// assert_eq!(j.const_shape(), Some(vec![2, 2]));
/// assert_eq!(j.eval()?.as_slice::<f64>()?, [7.0, 2.0, 3.0, 8.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As [`super::vjp`] and [`super::jvp`]; what cannot be recorded over a batch, see [`crate::vmap`].
#[track_caller]
pub fn jacobian(y: &Tensor, x: &Tensor) -> Tensor {
    let graph = y.graph();
    let body = || {
        floats(y, x)?;
        let (rows, columns) = (y.ty().elements(), x.ty().elements());
        let fewer = |a: &IndexExpr, b: &IndexExpr| a.as_const().zip(b.as_const()).is_some_and(|(a, b)| a < b);
        match fewer(&columns, &rows) {
            true => columns_of(graph, y, x),
            // A loop that nothing bounds has no way back, but one along: then it is that, or what is wrong with the way back.
            false => rows_of(graph, y, x).or_else(|refusal| columns_of(graph, y, x).map_err(|_| refusal)),
        }
    };
    record(graph, "jacobian", &[y, x], &[], body, |p| p)
}

/// The second derivatives of `loss`, a float of rank 0, by the elements of `x`: the axes of `x` twice. It is [`super::hvp`] along all of
/// them at once.
///
/// ```
/// use tlc::{Graph, hessian};
///
/// let g = Graph::default();
/// let x = g.constant([2.0f64, 3.0]);
/// let h = hessian(&(x.pow(3.0).sum(..) + x.prod(0)), &x);
/// assert_eq!(h.eval()?.as_slice::<f64>()?, [12.0, 1.0, 1.0, 18.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As [`super::grad`] and [`jacobian`].
#[track_caller]
pub fn hessian(loss: &Tensor, x: &Tensor) -> Tensor {
    let graph = loss.graph();
    let body = || {
        let slope = super::grad(loss, &[x]).remove(0);
        columns_of(graph, &slope, x)
    };
    record(graph, "hessian", &[loss, x], &[], body, |p| p)
}

fn floats(y: &Tensor, x: &Tensor) -> Step<()> {
    for (what, t) in [("what is differentiated", y), ("what it is differentiated by", x)] {
        if !t.dtype().is_float() {
            return refuse_expecting(format!("{what} is {}", t.type_text()), "floats");
        }
    }
    Ok(())
}

/// A value like `t` that nothing else is computed from.
fn seed(t: &Tensor) -> Step {
    Ok(zeros(t.graph(), t.extents(), t.dtype())?.stop_gradient())
}

/// For each element of `t` a tensor like it that is 1 there and 0 elsewhere, along a new first axis.
fn directions(t: &Tensor) -> Step {
    let graph = t.graph();
    let count = t.ty().elements();
    let square = [count.clone(), count.clone()];
    let along = |axis: u8| {
        let ty = TensorType::new(DType::I64, square.iter().cloned());
        graph.node(NodeKind::Iota { ty, axis }, &[])
    };
    let shape: Vec<IndexExpr> = std::iter::once(&count).chain(t.extents()).cloned().collect();
    along(0)?.eq(along(1)?).to(t.dtype())?.reshaped(&shape)
}

/// The axes of `y`, then those of `x`.
fn shape(y: &Tensor, x: &Tensor) -> Vec<IndexExpr> {
    y.extents().iter().chain(x.extents()).cloned().collect()
}

/// The Jacobian, from the derivative of each element of `y`.
fn rows_of(graph: &Graph, y: &Tensor, x: &Tensor) -> Step {
    let seed = seed(y)?;
    let d = derivatives(graph, &[y], &[&seed], &[x])?;
    let rows = over_batch(graph, &seed, &directions(y)?, &d)?.remove(0);
    rows.to(y.dtype())?.reshaped(&shape(y, x))
}

/// The Jacobian, from the tangent along each element of `x`.
fn columns_of(graph: &Graph, y: &Tensor, x: &Tensor) -> Step {
    let seed = seed(x)?;
    let t = all_tangents(graph, &[y], &[x], &[&seed], derivatives)?;
    let columns = over_batch(graph, &seed, &directions(x)?, &t)?.remove(0);
    let order: Vec<usize> = (1..columns.rank()).chain([0]).collect();
    columns.permuted(&order)?.reshaped(&shape(y, x))
}
