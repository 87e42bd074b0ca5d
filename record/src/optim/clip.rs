//! Gradients that are kept from being too large.

use crate::graph::Tensor;
use crate::graph::scope::{Step, record, refuse, refuse_expecting};

fn of_limit(gradients: &[&Tensor], limit: f64) -> Step<()> {
    if limit.is_nan() || limit < 0.0 {
        return refuse_expecting(format!("the limit {limit}"), "a number of at least 0");
    }
    match gradients.iter().find(|t| !t.dtype().is_float()) {
        Some(t) => refuse_expecting(format!("a gradient {}", t.type_text()), "floats"),
        None => Ok(()),
    }
}

/// Every element brought into `-limit ..= limit`.
///
/// ```
/// use tlc::{Graph, optim::clip};
///
/// let g = Graph::default();
/// let d = g.constant([-3.0f32, 0.5, 2.0]);
/// assert_eq!(clip::by_value(&[&d], 1.0)[0].eval()?.as_slice::<f32>()?, [-1.0, 0.5, 1.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// A negative limit, gradients that are no floats.
#[track_caller]
pub fn by_value(gradients: &[&Tensor], limit: f64) -> Vec<Tensor> {
    let Some(first) = gradients.first() else {
        return vec![];
    };
    let body = || {
        of_limit(gradients, limit)?;
        Ok(gradients.iter().map(|d| d.clamp(-limit, limit)).collect())
    };
    let poison = |p: Tensor| vec![p; gradients.len()];
    record(first.graph(), "clip", gradients, &[format!("{limit}")], body, poison)
}

/// The root of the sum of the squares of all elements of all gradients, in f32, or f64 if one of them is.
///
/// # Errors
/// No gradients, gradients that are no floats.
///
/// # Panics
/// Without a gradient, which has no graph.
#[track_caller]
pub fn global_norm(gradients: &[&Tensor]) -> Tensor {
    let first = gradients.first().expect("no gradients belong to no graph");
    let body = || {
        of_limit(gradients, 0.0)?;
        norm(gradients)
    };
    record(first.graph(), "global_norm", gradients, &[], body, |p| p)
}

fn norm(gradients: &[&Tensor]) -> Step {
    let wide = |d: &&Tensor| d.dtype().accumulator();
    let Some(dtype) = gradients.iter().map(wide).reduce(crate::promotion::promote) else {
        return refuse("no gradients");
    };
    let squares = gradients.iter().map(|d| Ok(d.to(dtype)?.square().sum(..)));
    let total = in_pairs(squares.collect::<Step<_>>()?, |a, b| a + b);
    total.map_or_else(|| refuse("no gradients"), |t| Ok(t.sqrt()))
}

/// All values put together, neighbours first: the way from any of them to the result is short.
fn in_pairs(mut values: Vec<Tensor>, together: impl Fn(&Tensor, &Tensor) -> Tensor) -> Option<Tensor> {
    while values.len() > 1 {
        let pairs = values.chunks(2).map(|pair| match pair {
            [a, b] => together(a, b),
            [a, ..] => a.clone(),
            [] => unreachable!("chunks are not empty"),
        });
        values = pairs.collect();
    }
    values.pop()
}

/// Whether all elements of all gradients are finite numbers, `bool[]`.
///
/// ```
/// use tlc::{Graph, optim::clip};
///
/// let g = Graph::default();
/// let (a, b) = (g.constant([1.0f32, 2.0]), g.constant([f32::INFINITY]));
/// assert!(clip::all_finite(&[&a]).eval()?.as_scalar::<bool>()?);
/// assert!(!clip::all_finite(&[&a, &b]).eval()?.as_scalar::<bool>()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// No gradients, gradients that are no floats.
///
/// # Panics
/// Without a gradient, which has no graph.
#[track_caller]
pub fn all_finite(gradients: &[&Tensor]) -> Tensor {
    let first = gradients.first().expect("no gradients belong to no graph");
    let body = || {
        of_limit(gradients, 0.0)?;
        let each = gradients.iter().map(|d| d.is_finite().all(..)).collect();
        in_pairs(each, |a, b| a & b).map_or_else(|| refuse("no gradients"), Ok)
    };
    record(first.graph(), "all_finite", gradients, &[], body, |p| p)
}

/// All gradients times one factor, with which their [`global_norm`] is at most `limit`; and what it was. The factor is
/// `min(1, limit / (norm + 1e-6))`, as in PyTorch; a norm that is NaN makes all of them NaN.
///
/// ```
/// use tlc::{Graph, optim::clip};
///
/// let g = Graph::default();
/// let (a, b) = (g.constant([3.0f32]), g.constant([4.0f32]));
/// let (clipped, norm) = clip::by_global_norm(&[&a, &b], 1.0);
/// assert_eq!(norm.eval()?.as_scalar::<f32>()?, 5.0);
/// assert!((clipped[1].eval()?.as_scalar::<f32>()? - 0.8).abs() < 1e-6);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// A negative limit, gradients that are no floats.
///
/// # Panics
/// Without a gradient, which has no graph.
#[track_caller]
pub fn by_global_norm(gradients: &[&Tensor], limit: f64) -> (Vec<Tensor>, Tensor) {
    let first = gradients.first().expect("no gradients belong to no graph");
    let body = || {
        of_limit(gradients, limit)?;
        let norm = norm(gradients)?;
        let factor = (limit / (&norm + 1e-6)).minimum(1.0);
        let clipped = |d: &&Tensor| (d.to(factor.dtype())? * &factor).to(d.dtype());
        Ok((gradients.iter().map(clipped).collect::<Step<_>>()?, norm))
    };
    let poison = |p: Tensor| (vec![p.clone(); gradients.len()], p);
    record(first.graph(), "clip", gradients, &[format!("{limit}")], body, poison)
}
