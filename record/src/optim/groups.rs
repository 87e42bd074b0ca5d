//! Settings by the names of parameters.

use std::fmt;
use std::str::FromStr;

use super::optimizer::Optimizer;
use super::text::{UnknownOptimizer, matches, parts};

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
    rest: Optimizer,
    groups: Vec<(String, Optimizer)>,
}

impl Groups {
    /// One optimizer for all parameters, until there are groups.
    pub fn new(rest: impl Into<Optimizer>) -> Groups {
        Groups {
            name: "optimizer".to_string(),
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
            .try_for_each(|(patterns, o)| write!(f, "; {patterns}: {o}"))
    }
}

impl FromStr for Groups {
    type Err = UnknownOptimizer;

    /// An optimizer, then groups behind semicolons: patterns, a colon, and settings that differ or an optimizer.
    fn from_str(text: &str) -> Result<Groups, UnknownOptimizer> {
        let (rest, groups) = text.split_once(';').unwrap_or((text, ""));
        let mut all = Groups::new(rest.parse::<Optimizer>()?);
        for group in parts(groups, ';') {
            let Some((patterns, settings)) = group.split_once(':') else {
                let problem = format!("the group `{group}` says no settings, as in `*.bias: wd=0`");
                return Err(UnknownOptimizer(problem));
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
