//! All optimizers as one type.

use std::fmt;
use std::str::FromStr;

use tlc_ir::DType;

use super::adafactor::Adafactor;
use super::adagrad::{Adadelta, Adagrad, RmsProp};
use super::adam::{AdaBound, Adam, AdamW, Adamax, NAdam, RAdam};
use super::layerwise::Lamb;
use super::lbfgs::Lbfgs;
use super::muon::Muon;
use super::rule::{At, Of, Rule, Slot};
use super::sgd::Sgd;
use super::sign::Lion;
use super::text::{UnknownOptimizer, parts};
use crate::dim::Dim;
use crate::graph::Tensor;
use crate::graph::scope::{Step, record, refuse_expecting};

macro_rules! optimizers {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        /// How parameters move: one of the optimizers, with its settings.
        ///
        /// From settings, or from a text: a name, then settings that differ from the defaults.
        ///
        /// ```
        /// use tlc::{CompileOptions, DType, Graph, grad, inputs, optim::{AdamW, Optimizer}};
        ///
        /// let optimizer = Optimizer::from(AdamW { lr: 0.1.into(), ..AdamW::default() });
        /// assert_eq!(optimizer.to_string(), "adamw:lr=0.1".parse::<Optimizer>()?.to_string());
        ///
        /// let g = Graph::new("step");
        /// let (step, w) = (g.input("step", DType::I64, ()), g.input("w", DType::F32, [2]));
        /// let (mean, square) = (g.input("mean", DType::F32, [2]), g.input("square", DType::F32, [2]));
        /// let loss = (&w - 1.0).square().sum(..);
        /// let d = grad(&loss, &[&w]);
        /// let (next, slots) = optimizer.update(&step, &w, &d[0], &[&mean, &square]);
        /// g.output("w", &next);
        /// g.output("mean", &slots[0]);
        /// g.output("square", &slots[1]);
        /// let train = g.compile(&CompileOptions::default())?;
        ///
        /// let [mut w, mut mean, mut square] = [[3.0f32, -3.0], [0.0; 2], [0.0; 2]];
        /// for step in 1..=100i64 {
        ///     let next = train.run(&inputs![step, &w, &mean, &square])?;
        ///     for (old, k) in [(&mut w, 0), (&mut mean, 1), (&mut square, 2)] {
        ///         old.copy_from_slice(next[k].as_slice::<f32>()?);
        ///     }
        /// }
        /// assert!((w[0] - 1.0).abs() < 0.1 && (w[1] - 1.0).abs() < 0.1);
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        #[derive(Clone, Debug)]
        pub enum Optimizer {
            $($(#[$doc])* $name($name),)*
        }

        $(impl From<$name> for Optimizer {
            fn from(settings: $name) -> Optimizer {
                Optimizer::$name(settings)
            }
        })*

        impl Optimizer {
            /// Each with its defaults.
            fn all() -> Vec<Optimizer> {
                vec![$($name::default().into(),)*]
            }

            fn rule(&self) -> &dyn Rule {
                match self {
                    $(Optimizer::$name(it) => it,)*
                }
            }

            fn rule_mut(&mut self) -> &mut dyn Rule {
                match self {
                    $(Optimizer::$name(it) => it,)*
                }
            }
        }
    };
}

optimizers! {
    /// Gradient descent with momentum.
    Sgd;
    /// Adam.
    Adam;
    /// Adam with decoupled weight decay.
    AdamW;
    /// Adam with the largest gradient as divisor.
    Adamax;
    /// Adam with Nesterov's momentum.
    NAdam;
    /// Adam that begins without a divisor.
    RAdam;
    /// Rates from the sum of squares.
    Adagrad;
    /// Rates from means of squares of gradients and steps.
    Adadelta;
    /// Rates from the mean of squares.
    RmsProp;
    /// Rates from means of rows and columns.
    Adafactor;
    /// Momentum made orthogonal.
    Muon;
    /// Adam with steps as long as their parameter is large.
    Lamb;
    /// The sign of the momentum.
    Lion;
    /// Adam within bounds.
    AdaBound;
    /// Directions from the last moves and what they changed in the gradient.
    Lbfgs;
}

impl fmt::Display for Optimizer {
    /// The text of it, every setting included.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.rule().entries();
        let entries: Vec<String> = entries.iter().map(|(key, value)| format!("{key}={value}")).collect();
        write!(f, "{}:{}", self.name(), entries.join(","))
    }
}

impl FromStr for Optimizer {
    type Err = UnknownOptimizer;

    /// The optimizer that a text says: `adamw:lr=3e-4,wd=0.1`. Rates may be schedules: `sgd:lr=warmup(100,cosine(0.1,2000))`.
    fn from_str(text: &str) -> Result<Optimizer, UnknownOptimizer> {
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        let mut known = Optimizer::all();
        match known.iter().position(|o| o.name() == name.trim()) {
            Some(at) => known.swap_remove(at).with(settings),
            None => {
                let names: Vec<&str> = known.iter().map(Optimizer::name).collect();
                Err(UnknownOptimizer(format!(
                    "there is no optimizer `{}`, but {}",
                    name.trim(),
                    names.join(", ")
                )))
            }
        }
    }
}

impl Optimizer {
    /// What texts call it.
    pub fn name(&self) -> &'static str {
        self.rule().name()
    }

    /// The same with other settings: `wd=0,lr=1e-3`.
    ///
    /// ```
    /// use tlc::optim::Optimizer;
    ///
    /// let all: Optimizer = "adamw:lr=3e-4,wd=0.1".parse()?;
    /// let biases = all.with("wd=0")?;
    /// assert_eq!(biases.to_string(), "adamw:lr=0.0003,b1=0.9,b2=0.999,eps=0.00000001,wd=0,amsgrad=false");
    /// assert_eq!(
    ///     all.with("decay=0").unwrap_err().to_string(),
    ///     "adamw has no setting `decay`, but lr, b1, b2, eps, wd, amsgrad"
    /// );
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A setting that the optimizer does not have or that is given twice, or a value that it does not take.
    pub fn with(&self, settings: &str) -> Result<Optimizer, UnknownOptimizer> {
        let mut changed = self.clone();
        let name = changed.name();
        let mut given: Vec<&str> = vec![];
        for setting in parts(settings, ',') {
            let (key, value) = setting
                .split_once('=')
                .map_or((setting, None), |(k, v)| (k.trim(), Some(v.trim())));
            let known: Vec<&str> = changed.rule().entries().iter().map(|(key, _)| *key).collect();
            if !known.contains(&key) {
                let known = known.join(", ");
                return Err(UnknownOptimizer(format!("{name} has no setting `{key}`, but {known}")));
            }
            let Some(value) = value else {
                return Err(UnknownOptimizer(format!(
                    "{name}: `{key}` needs a value, as in `{key}=...`"
                )));
            };
            if given.contains(&key) {
                return Err(UnknownOptimizer(format!("{name}: `{key}` is given twice")));
            }
            given.push(key);
            if let Err(fits) = changed.rule_mut().set(key, value) {
                return Err(UnknownOptimizer(format!("{name}: `{key}={value}`, expected {fits}")));
            }
        }
        Ok(changed)
    }

    /// What it remembers of a parameter of that type, in order.
    ///
    /// ```
    /// use tlc::{DType, optim::Optimizer};
    ///
    /// let momentum: Optimizer = "sgd:momentum=0.9".parse()?;
    /// let slots = momentum.slots(DType::BF16, &[3.into()]);
    /// assert_eq!((slots.len(), slots[0].name, slots[0].dtype, slots[0].first), (1, "momentum", DType::F32, 0.0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn slots(&self, dtype: DType, shape: &[Dim]) -> Vec<Slot> {
        self.rule().slots(&Of {
            dtype: dtype.accumulator(),
            shape,
        })
    }

    /// Records a step: the new parameter and its new slots, each of the type that it had. `step` is the number of the step, from 1: an integer
    /// or a float without axes. The gradient has the shape of the parameter and any float dtype. [`Lbfgs`] moves this parameter alone;
    /// [`Groups::minimize`](super::Groups::minimize) moves several together.
    ///
    /// # Errors
    /// A parameter that is no float, other shapes, other slots than [`Optimizer::slots`] says; settings out of their range; a parameter that the
    /// optimizer is not for.
    #[track_caller]
    pub fn update(
        &self,
        step: &Tensor,
        parameter: &Tensor,
        gradient: &Tensor,
        slots: &[&Tensor],
    ) -> (Tensor, Vec<Tensor>) {
        let slots = slots.iter().map(|&t| t.clone()).collect();
        let one = Update {
            parameter,
            gradient,
            slots,
        };
        let mut moved = self.update_all(step, std::slice::from_ref(&one), None);
        moved.swap_remove(0)
    }

    /// Whether a step of one parameter depends on the others that have this optimizer.
    pub(super) fn moves_together(&self) -> bool {
        self.rule().moves_together()
    }

    /// Whether the slot of that number stays as it was where an update is not `ok`.
    pub(super) fn keeps(&self, slot: usize) -> bool {
        self.rule().keeps(slot)
    }

    /// As [`Optimizer::update`], of several parameters, of which there is at least one, for who keeps what comes of it where `ok` holds.
    #[track_caller]
    pub(super) fn update_all(&self, step: &Tensor, all: &[Update], ok: Option<&Tensor>) -> Vec<(Tensor, Vec<Tensor>)> {
        let graph = all.first().map_or(step.graph(), |u| u.parameter.graph());
        let mut operands: Vec<&Tensor> = all.iter().flat_map(|u| [u.parameter, u.gradient]).collect();
        operands.push(step);
        operands.extend(all.iter().flat_map(|u| &u.slots));
        operands.extend(ok);
        let poison = |p: Tensor| {
            all.iter()
                .map(|u| (p.clone(), vec![p.clone(); u.slots.len()]))
                .collect()
        };
        record(
            graph,
            self.name(),
            &operands,
            &[],
            || self.updated(step, all, ok),
            poison,
        )
    }

    fn updated(&self, step: &Tensor, all: &[Update], ok: Option<&Tensor>) -> Step<Vec<(Tensor, Vec<Tensor>)>> {
        if let Some((setting, fits)) = self.rule().problem() {
            return refuse_expecting(setting, fits);
        }
        all.iter().try_for_each(|u| self.fits(step, u))?;
        let step = step.to(DType::F64)?;
        let wide = |u: &Update| -> Step<(Tensor, Tensor)> {
            let dtype = u.parameter.dtype().accumulator();
            Ok((u.parameter.to(dtype)?, u.gradient.to(dtype)?))
        };
        let wide: Vec<(Tensor, Tensor)> = all.iter().map(wide).collect::<Step<_>>()?;
        let mut ats = Vec::new();
        for (u, (parameter, gradient)) in all.iter().zip(&wide) {
            ats.push(At {
                step: &step,
                parameter,
                gradient,
                slots: &u.slots,
                kept: u.parameter.dtype(),
            });
        }
        let moved = self.rule().together(&ats, ok)?;
        let kept = |((next, slots), u): ((Tensor, Vec<Tensor>), &Update)| Ok((next.to(u.parameter.dtype())?, slots));
        moved.into_iter().zip(all).map(kept).collect()
    }

    /// Refuses what is no update of this optimizer.
    fn fits(&self, step: &Tensor, update: &Update) -> Step<()> {
        let Update {
            parameter,
            gradient,
            slots,
        } = update;
        if !parameter.dtype().is_float() || !gradient.dtype().is_float() {
            return refuse_expecting("a parameter or a gradient that is no float", "floats");
        }
        if step.rank() != 0 || !(step.dtype().is_int() || step.dtype().is_float()) {
            return refuse_expecting(
                format!("the step is {}", step.type_text()),
                "a number without axes, 1 at the first step",
            );
        }
        let graph = parameter.graph();
        let differ = |a: &Tensor, shape: &[Dim]| {
            a.rank() != shape.len() || a.extents().iter().zip(shape).any(|(a, b)| graph.differ(a, b.expr()))
        };
        let shape = parameter.shape();
        if differ(gradient, &shape) {
            let problem = format!("a gradient {} of {}", gradient.type_text(), parameter.type_text());
            return refuse_expecting(problem, "the parameter's shape");
        }
        let of = self.slots(parameter.dtype(), &shape);
        let fits = |(t, slot): (&Tensor, &Slot)| t.dtype() == slot.dtype && !differ(t, &slot.shape);
        if of.len() != slots.len() || !slots.iter().zip(&of).all(fits) {
            let list: Vec<String> = of
                .iter()
                .map(|s| {
                    let extents: Vec<_> = s.shape.iter().map(|d| d.expr().clone()).collect();
                    format!("{} {}{}", s.name, s.dtype, graph.shape_text(&extents))
                })
                .collect();
            let fit = match list.is_empty() {
                true => "no slots".to_string(),
                false => list.join(", "),
            };
            return refuse_expecting("slots that the optimizer does not have of this parameter", fit);
        }
        Ok(())
    }
}

/// A parameter, its gradient and what is remembered of it before a step.
pub(super) struct Update<'a> {
    pub parameter: &'a Tensor,
    pub gradient: &'a Tensor,
    pub slots: Vec<Tensor>,
}
