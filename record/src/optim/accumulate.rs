//! Gradients of a batch, from those of its parts one after another: what a part needs is computed and forgotten before the next one begins.
//!
//! Invariant: what is added up are sums, and the number of what they count divides once, at the end. So the mean over a batch is that of the
//! batch, however what counts is spread over its parts.

use tlc_ir::DType;

use crate::autodiff::grad;
use crate::dim::Dim;
use crate::graph::scope::{Step, record, refuse_expecting};
use crate::graph::{Graph, Tensor};
use crate::ops::key::Key;
use crate::ops::repeat::{Iteration, Repeat};

/// A part of a batch, while its loss is recorded: see [`accumulate`].
#[derive(Debug)]
pub struct Part<'a> {
    iteration: &'a Iteration,
    /// The number of the part, from 0: `i64[]`.
    pub number: Tensor,
    /// Its rows of the tensors that are parted.
    pub rows: Vec<Tensor>,
    /// What the loss is differentiated by.
    pub parameters: Vec<Tensor>,
}

impl Part<'_> {
    /// A tensor of the graph around, the same for each part: see [`Iteration::capture`].
    #[track_caller]
    pub fn capture(&self, outer: &Tensor) -> Tensor {
        self.iteration.capture(outer)
    }

    /// The key of the part: that of the graph around with the part's number folded in.
    #[track_caller]
    pub fn key(&self, outer: &Key) -> Key {
        Key::from_tensor(&self.capture(outer.tensor())).fold_in(&self.number)
    }
}

/// The mean loss of a batch and its derivatives by `wrt`, from `parts` equal parts of it, one after another in a loop. Each of `batch` is
/// parted along axis 0. `f` records the *sum* of a part's losses and the number of what it counts, both without axes; the result is the sum of the
/// sums over the sum of the numbers, so that labels that are ignored count nothing, wherever they are.
///
/// Derivatives are added up in f32, those by f64 in f64, and returned so.
///
/// ```
/// use tlc::{CrossEntropy, DType, Graph, Reduction, grad, optim};
///
/// let g = Graph::default();
/// let x = g.constant([[1.0, 0.5], [0.0, -1.0], [2.0, 1.0], [-1.0, 0.5]]);
/// let labels = g.constant([0i64, -100, 1, 1]);
/// let w = g.constant([[0.1, 0.2], [0.3, 0.4]]);
/// let options = CrossEntropy::new().ignore(-100);
/// let (loss, d) = optim::accumulate(2, &[&x, &labels], &[&w], |part| {
///     let (x, labels) = (&part.rows[0], &part.rows[1]);
///     let losses = x.matmul(&part.parameters[0]).cross_entropy_with(labels, &options.clone().reduction(Reduction::Sum));
///     (losses, labels.ne(-100).count_nonzero(..))
/// });
/// let whole = x.matmul(&w).cross_entropy_with(&labels, &options);
/// let near = |a: f64, b: f64| (a - b).abs() < 1e-15;
/// assert!(near(loss.eval()?.as_scalar()?, whole.eval()?.as_scalar()?));
/// let (d, expected) = (d[0].eval()?, grad(&whole, &[&w])[0].eval()?);
/// assert!(d.as_slice::<f64>()?.iter().zip(expected.as_slice::<f64>()?).all(|(a, b)| near(*a, *b)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As [`grad`]; a number of parts that is 0 or does not divide axis 0 for certain, tensors that are not as long as another; a number of what counts
/// that has axes or is a bool.
///
/// # Panics
/// Without a tensor to differentiate by, which has no graph.
#[track_caller]
pub fn accumulate(
    parts: usize,
    batch: &[&Tensor],
    wrt: &[&Tensor],
    f: impl FnOnce(&Part) -> (Tensor, Tensor),
) -> (Tensor, Vec<Tensor>) {
    accumulate_scaled(parts, batch, wrt, None, f)
}

/// As [`accumulate`], with a factor (`f32[]`) of the loss that the derivatives are divided by.
#[track_caller]
pub(super) fn accumulate_scaled(
    parts: usize,
    batch: &[&Tensor],
    wrt: &[&Tensor],
    scale: Option<&Tensor>,
    f: impl FnOnce(&Part) -> (Tensor, Tensor),
) -> (Tensor, Vec<Tensor>) {
    let graph = wrt.first().expect("no tensors belong to no graph").graph();
    let operands: Vec<&Tensor> = wrt.iter().chain(batch).copied().chain(scale).collect();
    let poison = |p: Tensor| {
        let of = |t: &&Tensor| Tensor::poisoned(p.graph(), t.dtype().accumulator());
        (p.clone(), wrt.iter().map(of).collect::<Vec<_>>())
    };
    let body = || begun(graph, parts, batch, wrt).map(Some);
    let Some(repeat) = record(graph, "accumulate", &operands, &[], body, |_| None) else {
        return poison(Tensor::poisoned(graph, DType::F32));
    };
    let iteration = repeat.start();
    let (next, dtype) = {
        let _inside = graph.enter_loop();
        let part = Part {
            iteration: &iteration,
            number: iteration.number.clone(),
            rows: iteration.slices.clone(),
            parameters: wrt.iter().map(|t| iteration.capture(t)).collect(),
        };
        let inner = iteration.graph();
        let (sum, count) = f(&part);
        let factor = scale.map(|s| iteration.capture(s));
        let operands = [Some(&sum), Some(&count), factor.as_ref()];
        let operands: Vec<&Tensor> = operands.into_iter().flatten().collect();
        let body = || scaled(&sum, &count, factor.as_ref());
        let loss = record(inner, "accumulate", &operands, &[], body, |p| p);
        let found = grad(&loss, &part.parameters.iter().collect::<Vec<_>>());
        let body = || {
            let mut next = vec![
                &iteration.carried[0] + sum.to(DType::F64)?,
                &iteration.carried[1] + count.to(DType::F64)?,
            ];
            for (total, d) in iteration.carried[2..].iter().zip(&found) {
                next.push(total + d.to(total.dtype())?);
            }
            Ok(next)
        };
        let poison = |p: Tensor| vec![p; 2 + wrt.len()];
        let next = match loss.graph().is(inner) {
            true => record(
                inner,
                "accumulate",
                &found.iter().chain([&loss]).collect::<Vec<_>>(),
                &[],
                body,
                poison,
            ),
            false => poison(Tensor::poisoned(inner, DType::F64)),
        };
        (next, sum.dtype().accumulator())
    };
    let results = repeat.finish(iteration, next);
    let body = || {
        let (sum, count) = (&results[0], &results[1]);
        let divisor = match scale {
            Some(scale) => count * scale.to(DType::F64)?,
            None => count.clone(),
        };
        // One factor for all, computed once.
        let factor = 1.0 / divisor;
        let mean = |d: &Tensor| Ok(d * factor.to(d.dtype())?);
        Ok((
            (sum / count).to(dtype)?,
            results[2..].iter().map(mean).collect::<Step<_>>()?,
        ))
    };
    record(
        graph,
        "accumulate",
        &results.iter().collect::<Vec<_>>(),
        &[],
        body,
        poison,
    )
}

/// The loop before its body: the sum of losses and what it counts are carried, and the derivatives.
fn begun(graph: &Graph, parts: usize, batch: &[&Tensor], wrt: &[&Tensor]) -> Step<Repeat> {
    if parts == 0 {
        return refuse_expecting("a batch in 0 parts", "at least 1");
    }
    if let Some(t) = wrt.iter().find(|t| !t.dtype().is_float()) {
        return refuse_expecting(format!("{} to differentiate by", t.type_text()), "floats");
    }
    let none = graph.scalar(0.0, DType::F64);
    let mut repeat = graph.repeat(parts).carry(&none).carry(&none);
    for t in wrt {
        repeat = repeat.carry(&graph.zeros(t.shape(), t.dtype().accumulator()));
    }
    for t in batch {
        t.at_least_rank(1)?;
        let rows = t.dim(0);
        if graph.differ(rows.expr(), batch[0].dim(0).expr()) {
            let problem = format!("{} and {}", batch[0].type_text(), t.type_text());
            return refuse_expecting(problem, "as many rows in each");
        }
        if graph.simplify((&rows % parts).expr()).as_const() != Some(0) {
            return refuse_expecting(
                format!("{} in {parts} equal parts", t.type_text()),
                "a number of parts that divides axis 0",
            );
        }
        let mut shape = vec![Dim::from(parts), &rows / parts];
        shape.extend(t.shape().into_iter().skip(1));
        repeat = repeat.slice(&t.reshape(shape), 0);
    }
    Ok(repeat)
}

/// What is differentiated in a part.
fn scaled(sum: &Tensor, count: &Tensor, factor: Option<&Tensor>) -> Step {
    if count.rank() != 0 || !(count.dtype().is_int() || count.dtype().is_float()) {
        return refuse_expecting(
            format!("the number of what counts is {}", count.type_text()),
            "a number without axes",
        );
    }
    if sum.rank() != 0 || !sum.dtype().is_float() {
        return refuse_expecting(
            format!("the sum of losses is {}", sum.type_text()),
            "a float without axes",
        );
    }
    match factor {
        Some(factor) => {
            let wide = sum.dtype().accumulator();
            Ok(sum.to(wide)? * factor.to(wide)?)
        }
        None => Ok(sum.clone()),
    }
}
