//! Settings by the names of parameters.

use std::fmt;
use std::str::FromStr;

use super::loss_scale::LossScale;
use super::optimizer::Optimizer;
use super::text::{UnknownOptimizer, matches, parts};

/// What states begin with, if no other name is given.
const NAME: &str = "optimizer";

/// An optimizer for each parameter of a model, by its name: the first group that a name belongs to has its optimizer, and parameters that
/// belong to none have the one for the rest.
///
/// A group is said by patterns, in which `*` stands for any characters, and may have other settings or another optimizer. So a mask of
/// weight decay is a group without:
///
/// ```
/// use tlc::optim::Groups;
///
/// let groups: Groups = "adamw:lr=3e-4,wd=0.1; *.bias|*.norm.*: wd=0; embedding: sgd:lr=0.1".parse()?;
/// assert!(groups.of("layer.0.bias").to_string().contains("wd=0,"));
/// assert!(groups.of("layer.0.weight").to_string().contains("wd=0.1,"));
/// assert_eq!(groups.of("embedding").name(), "sgd");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Groups {
    pub(super) name: String,
    pub(super) has_masters: bool,
    pub(super) scale: Option<LossScale>,
    rest: Optimizer,
    groups: Vec<(String, Optimizer)>,
}

impl Groups {
    /// One optimizer for all parameters, until there are groups.
    pub fn new(rest: impl Into<Optimizer>) -> Groups {
        Groups {
            name: NAME.to_string(),
            has_masters: false,
            scale: None,
            rest: rest.into(),
            groups: vec![],
        }
    }

    /// The same with another name, with which those of its states begin, in place of `optimizer`: two of one graph need two names.
    /// [`Groups::minimize`] shows them.
    pub fn named(mut self, name: &str) -> Groups {
        self.name = name.to_string();
        self
    }

    /// Whether parameters of f16 and bf16 have a master: the state `optimizer.NAME.master`, f32, which is what moves, and what the parameter is
    /// the nearest number to. Without, moves of less than half the distance between two numbers of the parameter's dtype are lost.
    /// `; masters=true` in texts.
    ///
    /// [`Groups::prepare`] makes masters from parameters. Who gives a parameter another value prepares again, or sets its master, too.
    ///
    /// ```
    /// use tlc::optim::Groups;
    /// use tlc::{CompileOptions, DType, Graph, State, inputs};
    /// use half::bf16;
    ///
    /// let train = |optimizer: &str| -> Result<f32, Box<dyn std::error::Error>> {
    ///     let optimizer: Groups = optimizer.parse()?;
    ///     let g = Graph::new("train");
    ///     let w = g.state("w", DType::BF16, ());
    ///     optimizer.minimize(&w.cast(DType::F32), &[("w", &w)]);
    ///     let train = g.compile(&CompileOptions::default())?;
    ///     let mut state = State::new();
    ///     state.insert("w", bf16::ONE)?;
    ///     optimizer.prepare(&mut state, &["w"])?;
    ///     for _ in 0..1000 {
    ///         train.run_with(&mut state, &inputs![])?;
    ///     }
    ///     Ok(state["w"].as_scalar::<bf16>()?.to_f32())
    /// };
    /// // A thousandth is less than half the distance from 1 to the bf16 below.
    /// assert_eq!(train("sgd:lr=1e-3")?, 1.0);
    /// assert!(train("sgd:lr=1e-3; masters=true")?.abs() < 1e-4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn masters(mut self, masters: bool) -> Groups {
        self.has_masters = masters;
        self
    }

    /// Has [`Groups::gradients`], and with it [`Groups::minimize`], multiply the loss by a factor before it is differentiated, and divide the
    /// gradients by it, in f32. The factor follows what they bear: it is the state `optimizer.loss_scale.value`, `f32[]`, and the number of good
    /// steps since it changed is `optimizer.loss_scale.good_steps`, `u64[]`. A step whose gradients are no finite numbers changes nothing else.
    /// `; loss_scale=65536,2,0.5,2000` in texts, the numbers of [`LossScale`], of which the last ones may be left out.
    ///
    /// A loss in f32 bears more than one in f16, in which a factor above 65504 is infinite.
    pub fn loss_scale(mut self, scale: LossScale) -> Groups {
        self.scale = Some(scale);
        self
    }

    /// An optimizer for the names that match one of the patterns, which `|` parts, and no group before.
    pub fn group(mut self, patterns: &str, optimizer: impl Into<Optimizer>) -> Groups {
        self.groups.push((patterns.to_string(), optimizer.into()));
        self
    }

    /// The optimizer of the parameter of that name.
    pub fn of(&self, name: &str) -> &Optimizer {
        self.number_of(name).map_or(&self.rest, |k| &self.groups[k].1)
    }

    /// The number of the group that a name belongs to, none for the rest.
    pub(super) fn number_of(&self, name: &str) -> Option<usize> {
        let has = |patterns: &str| patterns.split('|').any(|p| matches(p.trim(), name));
        self.groups.iter().position(|(patterns, _)| has(patterns))
    }

    /// The patterns of groups to which none of these names belongs: perhaps they are misspelled.
    pub fn unused<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Vec<&str> {
        let names: Vec<&str> = names.into_iter().collect();
        let idle = |patterns: &str| !names.iter().any(|n| patterns.split('|').any(|p| matches(p.trim(), n)));
        let patterns = self.groups.iter().map(|(patterns, _)| patterns.as_str());
        patterns.filter(|patterns| idle(patterns)).collect()
    }
}

impl Groups {
    /// With a setting of all that a text says.
    fn setting(self, text: &str) -> Result<Groups, UnknownOptimizer> {
        let Some((key, value)) = text.split_once('=').map(|(k, v)| (k.trim(), v.trim())) else {
            let problem = format!("the group `{text}` says no settings, as in `*.bias: wd=0`");
            return Err(UnknownOptimizer(problem));
        };
        match (key, value) {
            ("name", name) => Ok(self.named(name)),
            ("masters", "true" | "false") => Ok(self.masters(value == "true")),
            ("masters", _) => Err(UnknownOptimizer(format!("`masters={value}`, expected true or false"))),
            ("loss_scale", numbers) => Ok(self.loss_scale(numbers.parse()?)),
            _ => {
                let all = "name, masters, loss_scale; of a group say which, as in `*.bias: wd=0`";
                Err(UnknownOptimizer(format!(
                    "there is no setting `{key}` of all, but {all}"
                )))
            }
        }
    }
}

impl From<Optimizer> for Groups {
    fn from(rest: Optimizer) -> Groups {
        Groups::new(rest)
    }
}

impl fmt::Display for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rest.fmt(f)?;
        self.groups
            .iter()
            .try_for_each(|(patterns, o)| write!(f, "; {patterns}: {o}"))?;
        if self.name != NAME {
            write!(f, "; name={}", self.name)?;
        }
        if self.has_masters {
            f.write_str("; masters=true")?;
        }
        self.scale
            .iter()
            .try_for_each(|scale| write!(f, "; loss_scale={scale}"))
    }
}

impl FromStr for Groups {
    type Err = UnknownOptimizer;

    /// An optimizer, then groups behind semicolons: patterns, a colon, and settings that differ or an optimizer. What has no colon is a setting of
    /// all: `name=critic`, `masters=true`, `loss_scale=65536`.
    fn from_str(text: &str) -> Result<Groups, UnknownOptimizer> {
        let (rest, groups) = text.split_once(';').unwrap_or((text, ""));
        let mut all = Groups::new(rest.parse::<Optimizer>()?);
        for group in parts(groups, ';') {
            let Some((patterns, settings)) = group.split_once(':') else {
                all = all.setting(group)?;
                continue;
            };
            let own_optimizer = settings.contains(':') || !(settings.contains('=') || settings.trim().is_empty());
            let optimizer = match own_optimizer {
                true => settings.trim().parse()?,
                false => all.rest.with(settings)?,
            };
            all = all.group(patterns.trim(), optimizer);
        }
        Ok(all)
    }
}
