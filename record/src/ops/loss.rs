//! Losses. f16 and bf16 compute in f32 and round once; bool and integers convert to f32. Predictions and targets have one shape, unless
//! targets are classes.
//!
//! Classes are integers that count from 0. What data decides cannot be refused: the loss of a row whose class is out of range, negative ones
//! included, is NaN, and its gradient is 0. An optimizer that minimizes a loss takes no step where it is NaN.

use tlc_ir::{DType, IndexExpr};

use crate::graph::Tensor;
use crate::graph::scope::{Step, op, refuse_expecting};
use crate::promotion::{float_of, promote};

/// What becomes of the losses of all elements or rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Reduction {
    /// Their mean: NaN of none.
    #[default]
    Mean,
    /// Their sum: 0 of none.
    Sum,
    /// They stay.
    Each,
}

impl Reduction {
    fn of(self, losses: &Tensor) -> Tensor {
        match self {
            Reduction::Mean => losses.mean(..),
            Reduction::Sum => losses.sum(..),
            Reduction::Each => losses.clone(),
        }
    }
}

/// How [`Tensor::cross_entropy_with`] and [`Tensor::nll_loss`] count.
///
/// ```
/// use tlc::{CrossEntropy, Graph};
///
/// let g = Graph::default();
/// let logits = g.constant([[0.0f32, 0.0], [7.0, 8.0]]);
/// let classes = g.constant([1i64, -100]);
/// let loss = logits.cross_entropy_with(&classes, &CrossEntropy::new().ignore(-100));
/// assert_eq!(loss.eval()?.as_scalar::<f32>()?, 2f32.ln());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct CrossEntropy {
    smoothing: f64,
    ignored: Option<i64>,
    weights: Option<Tensor>,
    reduction: Reduction,
}

impl CrossEntropy {
    /// The mean over all rows.
    pub fn new() -> CrossEntropy {
        CrossEntropy::default()
    }

    /// A part of the target that is spread over all classes evenly (Szegedy et al., arXiv:1512.00567): 0 to 1.
    pub fn smoothing(mut self, part: f64) -> CrossEntropy {
        self.smoothing = part;
        self
    }

    /// Rows of this class count nothing: not in the loss, and not in what a mean divides by. A mean of no row is NaN, with gradients of 0.
    pub fn ignore(mut self, class: i64) -> CrossEntropy {
        self.ignored = Some(class);
        self
    }

    /// How much each class counts (`[classes]`). A mean divides by the weights of the rows' classes.
    pub fn weights(mut self, weights: &Tensor) -> CrossEntropy {
        self.weights = Some(weights.clone());
        self
    }

    /// What becomes of the losses of the rows.
    pub fn reduction(mut self, reduction: Reduction) -> CrossEntropy {
        self.reduction = reduction;
        self
    }

    /// The loss of rows of log probabilities, of which each element is at hand where they are `computed` here.
    fn of(&self, logs: &Tensor, classes: &Tensor, computed: bool) -> Step {
        if !(0.0..=1.0).contains(&self.smoothing) {
            return refuse_expecting(format!("label smoothing of {}", self.smoothing), "a number from 0 to 1");
        }
        let graph = logs.graph();
        let last = logs.rank().checked_sub(1);
        let rows = last.map_or(&[][..], |last| &logs.extents()[..last]);
        let differ = |(a, b): (&IndexExpr, &IndexExpr)| graph.differ(a, b);
        let same = rows.len() == classes.rank() && !rows.iter().zip(classes.extents()).any(differ);
        let (Some(last), true, true) = (last, same, classes.dtype().is_int()) else {
            return refuse_expecting(
                format!("{} of {}", classes.type_text(), logs.type_text()),
                format!("[.., classes] and integers of {}", graph.shape_text(rows)),
            );
        };
        let classes = classes.to(DType::I64)?;
        let weights = match &self.weights {
            Some(w) => {
                w.exactly_rank("weights", 1)?;
                w.extent_is("the weights", 0, &logs.extents()[last])?;
                Some(w.to(logs.dtype())?)
            }
            None => None,
        };
        let own = weights.as_ref().map(|w| w.take_from_start(&classes, 0));
        let places = classes.unsqueeze(-1);
        // A sum over the row is part of the loop that computes the row, and so is its derivative: no gather and no scatter.
        let picked = match computed {
            true => {
                let here = places.eq(graph.iota_1d(&logs.extents()[last], DType::I64)?);
                here.select(logs, 0.0).sum(-1)
            }
            false => logs.take_along_axis_from_start(&places, -1).without(&[last])?,
        };
        let mut losses = -picked;
        if let Some(own) = &own {
            losses *= own;
        }
        let count = graph.dim_value(&logs.dim(-1), DType::I64)?;
        let within = classes.ge(0).logical_and(classes.lt(count));
        if self.smoothing > 0.0 {
            let all = match &weights {
                Some(w) => -(logs * w).sum(-1),
                None => -logs.sum(-1),
            };
            let each = graph.dim_value(&logs.dim(-1), logs.dtype())?;
            losses = losses * (1.0 - self.smoothing) + all * (self.smoothing / each);
        }
        let kept = self.ignored.map(|ignored| classes.ne(ignored));
        // Last, so that nothing that is NaN enters the gradients of rows that do not count.
        let mut losses = within.select(losses, f64::NAN);
        if let Some(kept) = &kept {
            losses = kept.select(losses, 0.0);
        }
        if self.reduction != Reduction::Mean || (own.is_none() && kept.is_none()) {
            return Ok(self.reduction.of(&losses));
        }
        let shares = match (own, kept) {
            (Some(own), Some(kept)) => kept.select(own, 0.0),
            (Some(own), None) => own,
            (None, Some(kept)) => kept.to(logs.dtype())?,
            (None, None) => losses.ones_like(),
        };
        Ok(losses.sum(..) / shares.sum(..))
    }
}

/// Lengths for [`Tensor::ctc_loss`].
#[derive(Clone, Debug)]
pub struct Ctc {
    /// How many steps of each sequence count: `[batch]`.
    pub input_lengths: Tensor,
    /// How many labels of each sequence count: `[batch]`.
    pub target_lengths: Tensor,
    /// The class that stands for no label.
    pub blank: i64,
    /// A sequence that cannot say its labels has the loss 0 in place of infinity, and a gradient of 0.
    pub zero_infinity: bool,
    /// What becomes of the losses. A mean divides each by its number of labels first, as in PyTorch.
    pub reduction: Reduction,
}

/// Stands for the logarithm of 0, with which derivatives stay numbers.
const NEVER: f64 = -1e30;

impl Tensor {
    /// Runs `f` on predictions and targets of one shape in at least f32, and converts the result to their float dtype.
    fn beside(&self, target: &Tensor, f: impl FnOnce(&Tensor, &Tensor) -> Step) -> Step {
        let graph = self.graph();
        let differ = |(a, b): (&IndexExpr, &IndexExpr)| graph.differ(a, b);
        if self.rank() != target.rank() || self.extents().iter().zip(target.extents()).any(differ) {
            let problem = format!("{} and {}", self.type_text(), target.type_text());
            return refuse_expecting(problem, "predictions and targets of one shape");
        }
        let dtype = float_of(promote(self.dtype(), target.dtype()));
        let wide = dtype.accumulator();
        f(&self.to(wide)?, &target.to(wide)?)?.to(dtype)
    }

    /// Where the size is less than `limit`, and the tensor there and 0 elsewhere: the slope of the square of an infinite difference, which
    /// is not taken, would be infinite.
    fn within(&self, limit: f64) -> (Tensor, Tensor) {
        let near = self.abs().lt(limit);
        let inside = near.select(self, 0.0);
        (near, inside)
    }

    /// Mean cross entropy between logits `[.., classes]` and integer class numbers `[..]`: a scalar. A class out of range makes it
    /// NaN.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let logits = g.constant([[0.0f32, 0.0], [1000.0, 0.0]]);
    /// let loss = logits.cross_entropy(&g.constant([1i64, 0]));
    /// assert_eq!(loss.eval()?.as_scalar::<f32>()?, 2f32.ln() / 2.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Classes that are no integers, or of another shape.
    #[track_caller]
    pub fn cross_entropy(&self, classes: &Tensor) -> Tensor {
        self.cross_entropy_with(classes, &CrossEntropy::new())
    }

    /// As [`Tensor::cross_entropy`], with smoothed labels, an ignored class, weights of classes, or another reduction.
    ///
    /// # Errors
    /// As [`Tensor::cross_entropy`]; weights of another shape, a smoothing outside 0 to 1.
    #[track_caller]
    pub fn cross_entropy_with(&self, classes: &Tensor, options: &CrossEntropy) -> Tensor {
        let operands: Vec<&Tensor> = [self, classes].into_iter().chain(&options.weights).collect();
        op("cross_entropy", &operands, || {
            self.at_least_rank(1)?;
            self.in_wide_float(|x| options.of(&x.log_softmax(-1), classes, true))
        })
    }

    /// Negative log likelihood: [`Tensor::cross_entropy_with`] of what are log probabilities already.
    ///
    /// # Errors
    /// As [`Tensor::cross_entropy_with`].
    #[track_caller]
    pub fn nll_loss(&self, classes: &Tensor, options: &CrossEntropy) -> Tensor {
        let operands: Vec<&Tensor> = [self, classes].into_iter().chain(&options.weights).collect();
        op("nll_loss", &operands, || {
            self.in_wide_float(|x| options.of(&x, classes, false))
        })
    }

    /// `-(t ln p + (1 - t) ln(1 - p))` of probabilities and targets. Logarithms are at least -100, as in PyTorch; where they are less, their
    /// derivative is 0.
    ///
    /// # Errors
    /// Targets of another shape.
    #[track_caller]
    pub fn binary_cross_entropy(&self, targets: &Tensor, reduction: Reduction) -> Tensor {
        op("binary_cross_entropy", &[self, targets], || {
            self.beside(targets, |p, t| {
                let log = |x: Tensor| {
                    let some = x.gt(0);
                    some.select(some.select(&x, 1.0).log().maximum(-100.0), -100.0)
                };
                // `log` of what is NaN would be -100.
                let nan = p.is_nan();
                let losses = -(t * log(p.clone()) + (1.0 - t) * log(1.0 - p));
                Ok(reduction.of(&nan.select(p, losses)))
            })
        })
    }

    /// [`Tensor::binary_cross_entropy`] of the sigmoid of logits, computed as `(1 - t) x + ln(1 + e^-x)`, or `-t x + ln(1 + e^x)` of an `x`
    /// below 0: it does not overflow, and losses close to 0 keep their digits.
    ///
    /// ```
    /// use tlc::{Graph, Reduction};
    ///
    /// let g = Graph::default();
    /// let (x, t) = (g.constant([0.0f32, -1e4]), g.constant([1.0f32, 1.0]));
    /// let loss = x.binary_cross_entropy_with_logits(&t, Reduction::Each);
    /// assert_eq!(loss.eval()?.as_slice::<f32>()?, [2f32.ln(), 1e4]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Targets of another shape.
    #[track_caller]
    pub fn binary_cross_entropy_with_logits(&self, targets: &Tensor, reduction: Reduction) -> Tensor {
        op("binary_cross_entropy_with_logits", &[self, targets], || {
            self.beside(targets, |x, t| {
                let (above, rest) = x.apart_at_zero();
                Ok(reduction.of(&(above.select((1.0 - t) * x, -(t * x)) + rest)))
            })
        })
    }

    /// Squares of the differences.
    ///
    /// ```
    /// use tlc::{Graph, Reduction};
    ///
    /// let g = Graph::default();
    /// let loss = g.constant([1.0f32, 2.0]).mse_loss(&g.constant([1.0f32, 4.0]), Reduction::Mean);
    /// assert_eq!(loss.eval()?.as_scalar::<f32>()?, 2.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Targets of another shape.
    #[track_caller]
    pub fn mse_loss(&self, targets: &Tensor, reduction: Reduction) -> Tensor {
        op("mse_loss", &[self, targets], || {
            self.beside(targets, |x, t| Ok(reduction.of(&(x - t).square())))
        })
    }

    /// Sizes of the differences; the derivative at 0 is 0.
    ///
    /// # Errors
    /// Targets of another shape.
    #[track_caller]
    pub fn l1_loss(&self, targets: &Tensor, reduction: Reduction) -> Tensor {
        op("l1_loss", &[self, targets], || {
            self.beside(targets, |x, t| Ok(reduction.of(&(x - t).abs())))
        })
    }

    /// Half the squares of differences up to `delta`, and from there on along lines (Huber, Ann. Math. Statist. 35, 1964).
    ///
    /// # Errors
    /// Targets of another shape, a `delta` that is not above 0.
    #[track_caller]
    pub fn huber_loss(&self, targets: &Tensor, delta: f64, reduction: Reduction) -> Tensor {
        op("huber_loss", &[self, targets], || {
            if delta.is_nan() || delta <= 0.0 {
                return refuse_expecting(format!("delta {delta}"), "a number above 0");
            }
            self.beside(targets, |x, t| {
                let d = x - t;
                let (near, size) = d.within(delta);
                let along = (d.abs() - delta * 0.5) * delta;
                Ok(reduction.of(&near.select(size.square() * 0.5, along)))
            })
        })
    }

    /// [`Tensor::huber_loss`] divided by `beta`, its `delta`; [`Tensor::l1_loss`] if that is 0.
    ///
    /// # Errors
    /// Targets of another shape, a `beta` below 0.
    #[track_caller]
    pub fn smooth_l1_loss(&self, targets: &Tensor, beta: f64, reduction: Reduction) -> Tensor {
        op("smooth_l1_loss", &[self, targets], || match beta {
            0.0 => Ok(self.l1_loss(targets, reduction)),
            beta if beta > 0.0 => self.beside(targets, |x, t| {
                let d = x - t;
                let (near, size) = d.within(beta);
                let around = size.square() * (0.5 / beta);
                Ok(reduction.of(&near.select(around, d.abs() - beta * 0.5)))
            }),
            _ => refuse_expecting(format!("beta {beta}"), "a number of at least 0"),
        })
    }

    /// The divergence of Kullback and Leibler, `t (ln t - x)` of targets `t` and of `x`, logarithms of predicted probabilities; 0 where `t` is, with
    /// derivatives of 0, whatever `x` is there. `log_targets`: the targets are logarithms, too.
    ///
    /// # Errors
    /// Targets of another shape.
    #[track_caller]
    pub fn kl_div(&self, targets: &Tensor, log_targets: bool, reduction: Reduction) -> Tensor {
        op("kl_div", &[self, targets], || {
            self.beside(targets, |x, t| {
                let some = t.ne(if log_targets { f64::NEG_INFINITY } else { 0.0 });
                // Where there is nothing, the prediction may be minus infinity too.
                let (t, x) = (some.select(t, 1.0), some.select(x, 0.0));
                let losses = match log_targets {
                    true => t.exp() * (&t - x),
                    false => &t * (t.log() - x),
                };
                Ok(reduction.of(&some.select(losses, 0.0)))
            })
        })
    }

    /// The cosine of the angle between vectors along an axis: their dot product over their lengths, each of which counts as `eps` if it is
    /// less.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let (a, b) = (g.constant([[3.0f32, 4.0], [0.0, 0.0]]), g.constant([[4.0f32, 3.0], [1.0, 1.0]]));
    /// assert_eq!(a.cosine_similarity(&b, 1, 1e-8).eval()?.as_slice::<f32>()?, [0.96, 0.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Vectors of another shape, an axis that is not there.
    #[track_caller]
    pub fn cosine_similarity(&self, other: &Tensor, axis: i64, eps: f64) -> Tensor {
        op("cosine_similarity", &[self, other], || {
            self.axis(axis)?;
            self.beside(other, |a, b| {
                // Squares in the maximum: the root of a zero that is not taken has no derivative.
                let length = |x: &Tensor| x.square().sum(axis).maximum(eps * eps).sqrt();
                Ok((a * b).sum(axis) / (length(a) * length(b)))
            })
        })
    }

    /// For pairs of vectors `[.., n]`, which belong together where `same` (`[..]`) is 1 and do not where it is -1: one less the cosine between
    /// them, or how far the cosine is above `margin`; at the margin the derivative is 0.
    ///
    /// # Errors
    /// Vectors of another shape, `same` of another shape.
    #[track_caller]
    pub fn cosine_embedding_loss(&self, other: &Tensor, same: &Tensor, margin: f64, reduction: Reduction) -> Tensor {
        op("cosine_embedding_loss", &[self, other, same], || {
            self.at_least_rank(1)?;
            self.beside(other, |a, b| {
                let square = |x: &Tensor| x.square().sum(-1) + 1e-12;
                let cosine = (a * b).sum(-1) / (square(a) * square(b)).sqrt();
                let differ = |(a, b): (&IndexExpr, &IndexExpr)| a != b && self.graph().differ(a, b);
                if same.rank() != cosine.rank() || same.extents().iter().zip(cosine.extents()).any(differ) {
                    let fits = self.graph().shape_text(cosine.extents());
                    return refuse_expecting(format!("{} says which belong together", same.type_text()), fits);
                }
                let apart = same.eq(-1).select((&cosine - margin).relu(), 0.0);
                Ok(reduction.of(&same.eq(1).select(1.0 - &cosine, apart)))
            })
        })
    }

    /// Connectionist temporal classification (Graves et al., ICML 2006): how unlikely sequences of labels are, whatever their places in time.
    /// `self` has log probabilities `[time, batch, classes]`, `targets` labels `[batch, labels]`. It is a loop over time.
    ///
    /// # Errors
    /// Other shapes, labels or lengths that are no integers.
    #[track_caller]
    pub fn ctc_loss(&self, targets: &Tensor, options: &Ctc) -> Tensor {
        let operands = [self, targets, &options.input_lengths, &options.target_lengths];
        op("ctc_loss", &operands, || {
            self.exactly_rank("log probabilities", 3)?;
            targets.exactly_rank("targets", 2)?;
            targets.extent_is("targets", 0, &self.extents()[1])?;
            for (what, t) in [("input lengths", operands[2]), ("target lengths", operands[3])] {
                t.exactly_rank(what, 1)?;
                t.extent_is(what, 0, &self.extents()[1])?;
            }
            if let Some(t) = operands[1..].iter().find(|t| !t.dtype().is_int()) {
                return refuse_expecting(format!("labels or lengths of {}", t.dtype()), "an integer dtype");
            }
            self.in_wide_float(|x| x.ctc(&targets.to(DType::I64)?, options))
        })
    }

    fn ctc(&self, targets: &Tensor, options: &Ctc) -> Step {
        let (graph, wide) = (self.graph(), self.dtype());
        let steps = options.input_lengths.to(DType::I64)?;
        let labels = options.target_lengths.to(DType::I64)?;
        // The places of a sequence: blank, label, blank, .., label, blank.
        let blanks = targets.full_like(options.blank);
        let pairs = super::join::stack(&[&blanks, targets], -1);
        let places = pairs.flatten_axes(1, 2).pad(&[(0, 0), (0, 1)], options.blank);
        let here = graph.iota_1d(&places.extents()[1], DType::I64)?;
        // A label may follow a label without a blank between them if it is another one.
        let behind_two = |x: &Tensor, value: f64| -> Step { x.pad(&[(0, 0), (2, 0)], value).sliced_to(x) };
        let behind_one = |x: &Tensor, value: f64| -> Step { x.pad(&[(0, 0), (1, 0)], value).sliced_to(x) };
        let before = places.pad(&[(0, 0), (2, 0)], options.blank).sliced_to(&places)?;
        let leaps = places
            .ne(&before)
            .logical_and(places.ne(options.blank))
            .logical_and(here.ge(2));
        let at = |x: &Tensor, places: &Tensor| x.take_along_axis_from_start(places, 1).maximum(NEVER);
        let first = here.eq(0).logical_or(here.eq(1).logical_and(labels.gt(0).unsqueeze(1)));
        let never = graph.scalar(NEVER, wide).broadcast_to(places.shape());
        let zero = never.zeros_like();
        // In front of the first step there is nothing yet: what begins, begins at one of the first two places.
        let sum = |a: &Tensor, b: &Tensor, c: &Tensor| {
            let most = a.maximum(b).maximum(c);
            let parts = (a - &most).exp() + (b - &most).exp() + (c - &most).exp();
            (most + parts.log()).maximum(NEVER)
        };
        let mut failed = Ok(());
        let reached = graph.repeat(self.dim(0)).carry(&never).slice(self, 0).record(|i| {
            let (places, leaps, steps) = (i.capture(&places), i.capture(&leaps), i.capture(&steps));
            let (first, zero) = (i.capture(&first), i.capture(&zero));
            let old = &i.carried[0];
            let moved = behind_one(old, NEVER).and_then(|one| Ok((one, behind_two(old, NEVER)?)));
            let (one, two) = match moved {
                Ok(moved) => moved,
                Err(refusal) => {
                    failed = Err(refusal);
                    return vec![old.clone()];
                }
            };
            let sum = sum(old, &one, &leaps.select(two, NEVER));
            let begun = i.number.eq(0).select(first.select(&zero, NEVER), sum);
            let new = (begun + at(&i.slices[0], &places)).maximum(NEVER);
            vec![i.number.lt(&steps).unsqueeze(1).select(new, old)]
        });
        failed?;
        let reached = &reached[0];
        // It ends with the last label or the blank behind it.
        let end = |back: i64| -> Step {
            let at = &labels * 2 - back;
            let found = reached.take_along_axis_from_start(&at.maximum(0).unsqueeze(1), 1);
            at.ge(0).select(found.without(&[1])?, NEVER).to(wide)
        };
        let (last, label) = (end(0)?, end(1)?);
        let most = last.maximum(&label);
        let loss = -(&most + ((last - &most).exp() + (label - &most).exp()).log());
        // Without a step there is only the empty sequence.
        let nothing = steps.le(0);
        let loss = nothing.select(labels.le(0).select(0.0, graph.scalar(-NEVER, wide)), loss);
        let instead = if options.zero_infinity { 0.0 } else { f64::INFINITY };
        let loss = loss.lt(-NEVER / 2.0).select(loss, instead);
        let loss = match options.reduction {
            Reduction::Mean => loss / labels.maximum(1).to(wide)?,
            Reduction::Sum | Reduction::Each => loss,
        };
        Ok(options.reduction.of(&loss))
    }

    /// The first columns of a matrix, as many as `like` has.
    fn sliced_to(&self, like: &Tensor) -> Step {
        Ok(self.narrow(1, 0, like.dim(1)))
    }
}
