//! Rates that depend on the step.

use std::f64::consts::PI;
use std::fmt;
use std::sync::Arc;

use tlc_ir::DType;

use super::text::parts;
use crate::functions::pow;
use crate::graph::Tensor;
use crate::graph::scope::{Step, record, refuse_expecting};

/// A rate as a function of the step, as PyTorch's schedulers have it: the first update is that of step 1, with the rate that a
/// schedule starts with.
///
/// ```
/// use tlc::{DType, Graph, optim::Schedule};
///
/// let g = Graph::default();
/// let rate = Schedule::Warmup { steps: 4, then: Box::new(Schedule::Constant(0.1)) };
/// let at = |step: i64| rate.at(&g.scalar(step, DType::I64)).eval();
/// assert_eq!(at(1)?.as_scalar::<f64>()?, 0.025);
/// assert_eq!(at(4)?.as_scalar::<f64>()?, 0.1);
/// assert_eq!(at(9)?.as_scalar::<f64>()?, 0.1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub enum Schedule {
    /// The same at every step.
    Constant(f64),
    /// Multiplied with `factor` after every so many steps.
    Step {
        /// The rate at first.
        first: f64,
        /// After how many steps it changes.
        every: usize,
        /// What it is multiplied with then.
        factor: f64,
    },
    /// Multiplied with `factor` after every step.
    Exponential {
        /// The rate at first.
        first: f64,
        /// What it is multiplied with.
        factor: f64,
    },
    /// Along a line for so many steps, and `last` from then on.
    Linear {
        /// The rate at first.
        first: f64,
        /// The rate in the end.
        last: f64,
        /// How many steps there are between them.
        steps: usize,
    },
    /// Along half a wave for so many steps, and `last` from then on (Loshchilov and Hutter, arXiv:1608.03983, without restarts).
    Cosine {
        /// The rate at first.
        first: f64,
        /// The rate in the end.
        last: f64,
        /// How many steps there are between them.
        steps: usize,
    },
    /// Up to `highest` over three tenths of the steps, then down, along half waves (Smith and Topin, arXiv:1708.07120). It starts at
    /// `highest / 25`, and ends at the 10000th part of that.
    OneCycle {
        /// The highest rate.
        highest: f64,
        /// How many steps there are in all.
        steps: usize,
    },
    /// From `1 / steps` of the rate that `then` starts with up to that, along a line; then `then`.
    Warmup {
        /// How many steps there are on the way up.
        steps: usize,
        /// What follows.
        then: Box<Schedule>,
    },
    /// What a function makes of the step (`f64[]`, from 1).
    Function(Arc<dyn Fn(&Tensor) -> Tensor + Send + Sync>),
}

impl From<f64> for Schedule {
    fn from(rate: f64) -> Schedule {
        Schedule::Constant(rate)
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Schedule::Constant(v) => write!(f, "{v}"),
            Schedule::Step { first, every, factor } => write!(f, "step({first},{every},{factor})"),
            Schedule::Exponential { first, factor } => write!(f, "exponential({first},{factor})"),
            Schedule::Linear { first, last, steps } => write!(f, "linear({first},{steps},{last})"),
            Schedule::Cosine { first, last, steps } => write!(f, "cosine({first},{steps},{last})"),
            Schedule::OneCycle { highest, steps } => write!(f, "onecycle({highest},{steps})"),
            Schedule::Warmup { steps, then } => write!(f, "warmup({steps},{then})"),
            Schedule::Function(_) => f.write_str("a function"),
        }
    }
}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Schedule {
    pub(super) const FORMS: &'static str = "a rate of at least 0, step(rate,every,factor), exponential(rate,factor), \
        linear(rate,steps,last), cosine(rate,steps[,last]), onecycle(highest,steps), warmup(steps,schedule)";

    /// The schedule that a text says.
    pub(super) fn read(text: &str) -> Option<Schedule> {
        let text = text.trim();
        let Some((name, rest)) = text.split_once('(') else {
            return text.parse().ok().map(Schedule::Constant);
        };
        let arguments = parts(rest.strip_suffix(')')?, ',');
        let number = |k: usize| arguments.get(k)?.parse::<f64>().ok();
        let count = |k: usize| arguments.get(k)?.parse::<usize>().ok();
        let given = arguments.len();
        let first = || number(0);
        Some(match (name.trim(), given) {
            ("step", 3) => Schedule::Step {
                first: first()?,
                every: count(1)?,
                factor: number(2)?,
            },
            ("exponential", 2) => Schedule::Exponential {
                first: first()?,
                factor: number(1)?,
            },
            ("linear", 3) => Schedule::Linear {
                first: first()?,
                steps: count(1)?,
                last: number(2)?,
            },
            ("cosine", 2 | 3) => Schedule::Cosine {
                first: first()?,
                steps: count(1)?,
                last: if given == 3 { number(2)? } else { 0.0 },
            },
            ("onecycle", 2) => Schedule::OneCycle {
                highest: first()?,
                steps: count(1)?,
            },
            ("warmup", 2) => Schedule::Warmup {
                steps: count(0)?,
                // One more for each of its own parentheses: a text is not deep enough for that to end the stack.
                then: Box::new(
                    arguments
                        .get(1)
                        .filter(|t| t.matches('(').count() < 16)
                        .and_then(|t| Schedule::read(t))?,
                ),
            },
            _ => return None,
        })
    }

    /// Whether all its numbers are rates and numbers of steps.
    pub(super) fn is_sound(&self) -> bool {
        let rate = |v: f64| v >= 0.0 && v.is_finite();
        match self {
            Schedule::Constant(v) => rate(*v),
            Schedule::Step { first, every, factor } => rate(*first) && *every > 0 && rate(*factor),
            Schedule::Exponential { first, factor } => rate(*first) && rate(*factor),
            Schedule::Linear { first, last, steps } | Schedule::Cosine { first, last, steps } => {
                rate(*first) && rate(*last) && *steps > 0
            }
            // The last step is a step behind the rise.
            Schedule::OneCycle { highest, steps } => rate(*highest) && *steps > 3,
            Schedule::Warmup { steps, then } => *steps > 0 && then.is_sound(),
            Schedule::Function(_) => true,
        }
    }

    /// The rate (`f64[]`) at a step (a number without axes), the first of which is 1.
    #[track_caller]
    pub fn at(&self, step: &Tensor) -> Tensor {
        let body = || {
            if step.rank() != 0 {
                return refuse_expecting("a step with axes", "a number without axes, 1 at the first step");
            }
            self.after(&(step.to(DType::F64)? - 1.0))
        };
        record(step.graph(), "schedule", &[step], &[self.to_string()], body, |p| p)
    }

    /// The rate after so many updates.
    fn after(&self, done: &Tensor) -> Step {
        let g = done.graph();
        let wave = |from: f64, to: f64, at: Tensor| (at * PI).cos() * ((from - to) / 2.0) + (from + to) / 2.0;
        Ok(match self {
            Schedule::Constant(v) => g.scalar(*v, DType::F64),
            Schedule::Step { first, every, factor } => pow(*factor, (done / *every as f64).floor()) * *first,
            Schedule::Exponential { first, factor } => pow(*factor, done) * *first,
            Schedule::Linear { first, last, steps } => {
                let part = (done / *steps as f64).minimum(1.0);
                part * (last - first) + *first
            }
            Schedule::Cosine { first, last, steps } => wave(*first, *last, (done / *steps as f64).minimum(1.0)),
            Schedule::OneCycle { highest, steps } => {
                let (start, end) = (highest / 25.0, highest / 25.0 / 1e4);
                let (rise, whole) = (0.3 * *steps as f64 - 1.0, *steps as f64 - 1.0);
                let up = wave(start, *highest, done / rise);
                let down = wave(*highest, end, ((done - rise) / (whole - rise)).minimum(1.0));
                done.le(rise).select(up, down)
            }
            Schedule::Warmup { steps, then } => {
                let steps = *steps as f64;
                let before = (done + 1.0).minimum(steps) / steps;
                then.after(&(done - steps).maximum(0.0))? * before
            }
            Schedule::Function(f) => f(&(done + 1.0)).to(DType::F64)?,
        })
    }
}
