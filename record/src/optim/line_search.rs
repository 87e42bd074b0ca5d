//! A whole minimization by L-BFGS inside of one graph, with a line search for the strong Wolfe conditions.
//!
//! It is one loop, each iteration of which computes the loss and its gradient once, at a trial point, and decides what follows: a longer step,
//! one between two that were tried, or the end of the search along this line, which gives a pair, a direction and the first trial along it. So
//! the loss is recorded once, and what bounds the loop is the number of times that it is computed.
//!
//! The search is algorithms 3.5 and 3.6 of Nocedal and Wright, "Numerical Optimization", 2006, with cubic interpolation (their 3.59) kept within
//! bounds. They are one rule here: `high` is a step of infinite length until there is one that is too long.
//!
//! Invariants:
//! - `low` is the best step so far that has sufficient decrease, 0 to begin with, and the loss falls from it towards `high`.
//! - What the loop carries as the point is the last one that a line search ended at. The loss never rises from one to the next.
//! - A loss that is no finite number counts as too high.

use tlc_ir::DType;

use super::lbfgs::{History, Lbfgs, any_above, choose, dot, first_length, scaled, stacked};
use super::settings::Settings;
use crate::autodiff::grad;
use crate::graph::scope::{Step, record, refuse_expecting};
use crate::graph::{Graph, Tensor};
use crate::ops::repeat::{Iteration, Repeat};

/// By how much of the slope at its start the loss falls at least (the first Wolfe condition).
const DECREASE: f64 = 1e-4;
/// How much of the slope at its start a step may leave (the second).
const FLATTER: f64 = 0.9;
/// How often the loss is computed along one line.
const TRIALS: f64 = 25.0;

/// Where [`Lbfgs::minimum`] ended.
#[derive(Clone, Debug)]
pub struct Minimum {
    /// The point, one tensor for each that the search began with, of its type.
    pub parameters: Vec<Tensor>,
    /// The loss there, `f64[]`.
    pub loss: Tensor,
    /// Its gradient, in at least f32.
    pub gradients: Vec<Tensor>,
    /// How many lines were searched to their end: `i64[]`.
    pub iterations: Tensor,
    /// How often loss and gradient were computed: `i64[]`.
    pub evaluations: Tensor,
    /// Whether a tolerance ended it, and not the bound of evaluations or a line without a lower point: `bool[]`.
    pub converged: Tensor,
}

/// A step along the line: how long, and the loss and its slope behind it. All `f64[]`.
#[derive(Clone)]
struct Point {
    length: Tensor,
    loss: Tensor,
    slope: Tensor,
}

impl Point {
    fn or(&self, here: &Tensor, other: &Point) -> Point {
        Point {
            length: here.select(&self.length, &other.length),
            loss: here.select(&self.loss, &other.loss),
            slope: here.select(&self.slope, &other.slope),
        }
    }

    fn list(&self) -> [Tensor; 3] {
        [self.length.clone(), self.loss.clone(), self.slope.clone()]
    }
}

/// The minimum of the cubic through two points and their slopes, the midpoint where there is none; at least `least` and at most `most`.
fn interpolated(a: &Point, b: &Point, least: &Tensor, most: &Tensor) -> Tensor {
    let across = &b.length - &a.length;
    let first = &a.slope + &b.slope - (&a.loss - &b.loss) * 3.0 / (&a.length - &b.length);
    let square = &first * &first - &a.slope * &b.slope;
    let second = across.sign() * square.maximum(0.0).sqrt();
    let part = (&b.slope + &second - &first) / (&b.slope - &a.slope + &second * 2.0);
    let found = &b.length - &across * part;
    let sound = found.is_finite().logical_and(square.ge(0.0));
    sound.select(found.maximum(least).minimum(most), (least + most) * 0.5)
}

/// What goes around.
struct Around {
    /// By parameter: the point that the line begins at, the gradient there, the direction, and the gradient at `low`.
    from: Vec<Tensor>,
    gradients: Vec<Tensor>,
    direction: Vec<Tensor>,
    low_gradients: Vec<Tensor>,
    history: History,
    /// The first point of the line, of length 0.
    start: Point,
    low: Point,
    high: Point,
    /// The length that is tried next, `f64[]`.
    trial: Tensor,
    /// How many were tried along the line, `f64[]`.
    tried: Tensor,
    /// The number of lines that are behind, -1 before the loss at the first point is known: `i64[]`.
    lines: Tensor,
    /// The number of trials in all: `i64[]`.
    evaluations: Tensor,
    converged: Tensor,
}

impl Around {
    /// In the order of [`Around::from_list`].
    fn list(&self) -> Vec<Tensor> {
        let History {
            changes,
            moves,
            curvatures,
            scale,
            pairs,
        } = &self.history;
        let lists = [
            &self.from,
            &self.gradients,
            &self.direction,
            &self.low_gradients,
            changes,
            moves,
        ];
        let mut all: Vec<Tensor> = lists.into_iter().flatten().cloned().collect();
        all.extend([&self.start, &self.low, &self.high].iter().flat_map(|p| p.list()));
        let rest = [
            curvatures,
            scale,
            pairs,
            &self.trial,
            &self.tried,
            &self.lines,
            &self.evaluations,
            &self.converged,
        ];
        all.extend(rest.into_iter().cloned());
        all
    }

    fn from_list(all: &[Tensor], parameters: usize) -> Around {
        let (lists, rest) = all.split_at(6 * parameters);
        let list = |k: usize| lists[k * parameters..(k + 1) * parameters].to_vec();
        let point = |k: usize| Point {
            length: rest[3 * k].clone(),
            loss: rest[3 * k + 1].clone(),
            slope: rest[3 * k + 2].clone(),
        };
        let rest = |k: usize| rest[9 + k].clone();
        Around {
            from: list(0),
            gradients: list(1),
            direction: list(2),
            low_gradients: list(3),
            history: History {
                changes: list(4),
                moves: list(5),
                curvatures: rest(0),
                scale: rest(1),
                pairs: rest(2),
            },
            start: point(0),
            low: point(1),
            high: point(2),
            trial: rest(3),
            tried: rest(4),
            lines: rest(5),
            evaluations: rest(6),
            converged: rest(7),
        }
    }

    /// The point that is tried.
    fn tried_point(&self) -> Step<Vec<Tensor>> {
        let moves = scaled(&self.direction, &self.trial)?;
        Ok(self.from.iter().zip(moves).map(|(x, m)| x + m).collect())
    }

    /// What goes around next, given loss and gradient at the trial; and whether it goes on.
    fn next(&self, settings: &Lbfgs, graph: &Graph, loss: &Tensor, gradients: &[Tensor]) -> Step<(Around, Tensor)> {
        let trial = Point {
            length: self.trial.clone(),
            loss: loss.to(DType::F64)?,
            slope: dot(gradients, &self.direction)?,
        };
        let first = self.lines.lt(0);
        let finite = trial.loss.is_finite().logical_and(trial.slope.is_finite());
        // At the first point there is nothing to be lower than; along a line, the first trial need not be below its start beyond rounding.
        let enough = trial
            .loss
            .le(&self.start.loss + &trial.length * &self.start.slope * DECREASE);
        let best = trial.loss.lt(&self.low.loss).logical_or(self.low.length.eq(0.0));
        let lower = finite.logical_and(first.logical_or(enough.logical_and(best)));
        let flat = trial.slope.abs().le(self.start.slope.abs() * FLATTER);
        let fits = lower.logical_and(first.logical_or(flat));
        // Behind a step that is lower the minimum lies on the side to which the loss falls.
        let passed = (&trial.slope * (&self.high.length - &self.low.length)).ge(0.0);
        let high = trial.or(&lower.logical_not(), &self.low.or(&passed, &self.high));
        let low = trial.or(&lower, &self.low);
        let low_gradients = choose(&lower, gradients, &self.low_gradients);
        let (shorter, longer) = (low.length.minimum(&high.length), low.length.maximum(&high.length));
        let width = &longer - &shorter;
        let margin = &width * 0.1;
        let between = interpolated(&low, &high, &(&shorter + &margin), &(&longer - &margin));
        let least = &trial.length + (&trial.length - &self.low.length) * 0.01;
        let beyond = interpolated(&self.low, &trial, &least, &(&trial.length * 10.0));
        let bracketed = high.length.is_finite();
        let following = bracketed.select(between, beyond);

        // A line ends at a step that fits, or at the lowest that there is.
        let tried = &self.tried + 1.0;
        let narrow = any_above(&scaled(&self.direction, &width)?, settings.tolerance_change)?.logical_not();
        let over = tried.ge(TRIALS).logical_or(bracketed.logical_and(narrow));
        let some = lower.logical_or(low.length.gt(0.0));
        let ends = fits.logical_or(over.logical_and(&some));
        let stuck = over
            .logical_and(some.logical_not())
            .logical_or(first.logical_and(finite.logical_not()));

        let moves = scaled(&self.direction, &low.length)?;
        let change: Vec<Tensor> = low_gradients.iter().zip(&self.gradients).map(|(a, b)| a - b).collect();
        let history = self
            .history
            .with(&change, &moves, &ends.logical_and(first.logical_not()))?;
        let onward = history.direction(graph, &low_gradients)?;
        let slope = dot(&low_gradients, &onward)?;
        let lines = ends.select(&self.lines + 1, &self.lines);
        let rate = settings.lr.at(&(&lines + 1));
        let length = first.select(&rate * first_length(&low_gradients)?, &rate);
        let flat_there = any_above(&low_gradients, settings.tolerance_grad)?.logical_not();
        let close = any_above(&moves, settings.tolerance_change)?.logical_not();
        let same = (&low.loss - &self.start.loss).abs().lt(settings.tolerance_change);
        let unmoved = first.logical_not().logical_and(close.logical_or(same));
        let level = slope.gt(-settings.tolerance_change);
        let converged = ends.logical_and(flat_there.logical_or(unmoved).logical_or(level));
        let go_on = converged.logical_or(&stuck).logical_not();

        let start = Point {
            length: graph.scalar(0.0, DType::F64),
            loss: low.loss.clone(),
            slope,
        };
        // What there is to report where the loss at the first point is no number.
        let before = Point {
            loss: first.select(&trial.loss, &self.start.loss),
            ..self.start.clone()
        };
        let endless = Point {
            length: graph.scalar(f64::INFINITY, DType::F64),
            loss: graph.scalar(0.0, DType::F64),
            slope: graph.scalar(0.0, DType::F64),
        };
        let to: Vec<Tensor> = self.from.iter().zip(&moves).map(|(x, m)| x + m).collect();
        let next = Around {
            from: choose(&ends, &to, &self.from),
            gradients: choose(&ends, &low_gradients, &self.gradients),
            direction: choose(&ends, &onward, &self.direction),
            low_gradients,
            history,
            start: start.or(&ends, &before),
            low: start.or(&ends, &low),
            high: endless.or(&ends, &high),
            trial: ends.select(length, following),
            tried: ends.select(0.0, tried),
            lines,
            evaluations: &self.evaluations + 1,
            converged,
        };
        Ok((next, go_on))
    }
}

impl Lbfgs {
    /// Records a whole minimization: from `start` down the loss that `f` records from tensors like it, with a line search for the
    /// strong Wolfe conditions, until a tolerance is met or loss and gradient were computed `evaluations` times. It is one loop; what `f`
    /// needs of the graph around it comes in through [`Iteration::capture`]. f16 and bf16 are searched in f32.
    ///
    /// `lr` is the first length that is tried along a line. It is over where no element of the gradient is above `tol_grad`, where a line ends
    /// with a move or a change of the loss that is not above `tol_change`, and where the loss falls at a smaller rate along the direction.
    ///
    /// ```
    /// use tlc::{DType, Graph, optim::Lbfgs};
    ///
    /// // Rosenbrock's valley.
    /// let g = Graph::default();
    /// let start = g.constant([-1.2, 1.0]);
    /// let lbfgs = Lbfgs {
    ///     tolerance_change: 1e-12,
    ///     ..Lbfgs::default()
    /// };
    /// let found = lbfgs.minimum(&[&start], 100, |_, p| {
    ///     let (x, y) = (p[0].select_index(0, 0), p[0].select_index(0, 1));
    ///     (1.0 - &x).square() + (y - x.square()).square() * 100.0
    /// });
    /// assert!(found.loss.eval()?.as_scalar::<f64>()? < 1e-10);
    /// assert!(found.converged.eval()?.as_scalar::<bool>()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`grad`]; a start that is no float, settings out of their range, no evaluations.
    ///
    /// # Panics
    /// Without a tensor to start from, which has no graph.
    #[track_caller]
    pub fn minimum(
        &self,
        start: &[&Tensor],
        evaluations: usize,
        f: impl FnOnce(&Iteration, &[Tensor]) -> Tensor,
    ) -> Minimum {
        let graph = start.first().expect("no tensors belong to no graph").graph();
        let body = || self.begun(graph, start, evaluations).map(Some);
        let Some((repeat, _)) = record(graph, "lbfgs", start, &[], body, |_| None) else {
            let poisoned = |dtype| Tensor::poisoned(graph, dtype);
            return Minimum {
                parameters: start.iter().map(|t| poisoned(t.dtype())).collect(),
                loss: poisoned(DType::F64),
                gradients: start.iter().map(|t| poisoned(t.dtype().accumulator())).collect(),
                iterations: poisoned(DType::I64),
                evaluations: poisoned(DType::I64),
                converged: poisoned(DType::Bool),
            };
        };
        let mut iteration = repeat.start();
        let next = {
            let _inside = graph.enter_loop();
            let inner = iteration.graph().clone();
            let around = Around::from_list(&iteration.carried, start.len());
            let operands: Vec<&Tensor> = iteration.carried.iter().collect();
            let body = || {
                let tried = around.tried_point()?;
                tried.iter().zip(start).map(|(t, x)| t.to(x.dtype())).collect()
            };
            let poison = |p: Tensor| vec![p; start.len()];
            let tried: Vec<Tensor> = record(&inner, "lbfgs", &operands, &[], body, poison);
            let loss = f(&iteration, &tried);
            let found = grad(&loss, &tried.iter().collect::<Vec<_>>());
            let body = || {
                let wide = |d: &Tensor| d.to(d.dtype().accumulator());
                let found: Vec<Tensor> = found.iter().map(wide).collect::<Step<_>>()?;
                let (next, go_on) = around.next(self, &inner, &loss, &found)?;
                Ok((next.list(), go_on))
            };
            let poison = |p: Tensor| (vec![p.clone(); iteration.carried.len()], p);
            // Where the loss is of another graph, `grad` has said so.
            let (next, go_on) = match loss.graph().is(&inner) {
                true => record(&inner, "lbfgs", &found.iter().collect::<Vec<_>>(), &[], body, poison),
                false => poison(Tensor::poisoned(&inner, DType::F64)),
            };
            iteration.go_on_if(&go_on);
            next
        };
        let results = repeat.finish(iteration, next);
        let operands: Vec<&Tensor> = results.iter().collect();
        let body = || {
            let ended = Around::from_list(&results, start.len());
            let kept = |(x, s): (&Tensor, &&Tensor)| x.to(s.dtype());
            Ok(Minimum {
                parameters: ended.from.iter().zip(start).map(kept).collect::<Step<_>>()?,
                loss: ended.start.loss.clone(),
                gradients: ended.gradients.clone(),
                iterations: ended.lines.maximum(0),
                evaluations: ended.evaluations.clone(),
                converged: ended.converged.clone(),
            })
        };
        let poison = |p: Tensor| Minimum {
            parameters: vec![p.clone(); start.len()],
            loss: p.clone(),
            gradients: vec![p.clone(); start.len()],
            iterations: p.clone(),
            evaluations: p.clone(),
            converged: p,
        };
        record(graph, "lbfgs", &operands, &[], body, poison)
    }

    /// The loop, before its body, and what it carries.
    fn begun(&self, graph: &Graph, start: &[&Tensor], evaluations: usize) -> Step<(Repeat, Vec<Tensor>)> {
        if let Some((setting, fits)) = self.problem() {
            return refuse_expecting(setting, fits);
        }
        if let Some(t) = start.iter().find(|t| !t.dtype().is_float()) {
            return refuse_expecting(format!("a start {}", t.type_text()), "floats");
        }
        if evaluations == 0 {
            return refuse_expecting("no evaluations of the loss", "at least 1");
        }
        let from: Vec<Tensor> = start
            .iter()
            .map(|t| t.to(t.dtype().accumulator()))
            .collect::<Step<_>>()?;
        let zeros: Vec<Tensor> = from.iter().map(Tensor::zeros_like).collect();
        let pairs = |t: &Tensor| graph.zeros(stacked(self.history, &t.shape()), t.dtype());
        let pairs: Vec<Tensor> = from.iter().map(pairs).collect();
        let zero = graph.scalar(0.0, DType::F64);
        let point = |length: f64| Point {
            length: graph.scalar(length, DType::F64),
            loss: graph.scalar(f64::INFINITY, DType::F64),
            slope: zero.clone(),
        };
        let none = graph.scalar(0i64, DType::I64);
        let no = graph.scalar(false, DType::Bool);
        let around = Around {
            from,
            gradients: zeros.clone(),
            direction: zeros.clone(),
            low_gradients: zeros,
            history: History {
                changes: pairs.clone(),
                moves: pairs,
                curvatures: graph.zeros([self.history], DType::F64),
                scale: graph.scalar(1.0, DType::F64),
                pairs: zero.clone(),
            },
            start: point(0.0),
            low: point(0.0),
            high: point(f64::INFINITY),
            trial: zero.clone(),
            tried: zero.clone(),
            lines: graph.scalar(-1i64, DType::I64),
            evaluations: none,
            converged: no.clone(),
        };
        let carried = around.list();
        let mut repeat = graph.repeat(evaluations).while_(&no.logical_not());
        for t in &carried {
            repeat = repeat.carry(t);
        }
        Ok((repeat, carried))
    }
}
