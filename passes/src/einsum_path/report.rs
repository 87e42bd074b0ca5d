//! A path as text: totals, then one line a step. After opt_einsum's `PathInfo`.

use std::fmt;

use super::{ContractionPath, Label};

/// [`ContractionPath::report`].
#[derive(Debug, Clone, Copy)]
pub struct PathReport<'a> {
    path: &'a ContractionPath,
    names: &'a [char],
}

impl ContractionPath {
    /// The path as a table; `names[label]` is the name of a label
    /// (see [`EinsumSpec::letters`](tlc_ir::einsum::EinsumSpec::letters)), and a label without one prints as `<label>`.
    ///
    /// ```text
    /// naive                  2.1e6 flops
    /// chosen                 6.6e4 flops, 32 times fewer
    /// largest intermediate   256 elements
    /// method                 exact
    ///
    /// step  tensors  contraction  flops  elements
    /// #3    #1 #2    jk,k->j      8192   64
    /// ```
    pub fn report<'a>(&'a self, names: &'a [char]) -> PathReport<'a> {
        PathReport { path: self, names }
    }
}

impl fmt::Display for ContractionPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<char> = ('a'..='z').chain('A'..='Z').collect();
        self.report(&names).fmt(f)
    }
}

/// Three significant digits; whole below a million.
fn number(value: f64) -> String {
    if value >= 1e6 {
        format!("{value:.2e}")
    } else if value >= 100.0 || value.fract() == 0.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.1}")
    }
}

/// `10^log10`, also beyond what `f64` holds.
fn power_of_ten(log10: f64) -> String {
    let exponent = log10.floor();
    if log10 < 290.0 {
        number(10f64.powf(log10).round())
    } else {
        format!("{:.2}e{exponent}", 10f64.powf(log10 - exponent))
    }
}

impl PathReport<'_> {
    fn text(&self, labels: &[Label]) -> String {
        let name = |&label: &Label| match self.names.get(usize::from(label)) {
            // Labels may be any character, and a table's line is one line.
            Some(name) if name.is_control() => name.escape_default().to_string(),
            Some(name) => name.to_string(),
            None => format!("<{label}>"),
        };
        labels.iter().map(name).collect()
    }
}

impl fmt::Display for PathReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path;
        writeln!(
            f,
            "naive                 {} flops",
            power_of_ten(path.naive_flops_log10)
        )?;
        let chosen = path.flops.log10();
        let ratio = path.naive_flops_log10 - chosen;
        // The same to rounding, of which logarithms leave more or less, is as many.
        if ratio.is_finite() && ratio > -1e-9 {
            let factor = if ratio < 6.0 {
                number((10f64.powf(ratio) * 1e6).round() / 1e6)
            } else {
                power_of_ten(ratio)
            };
            let flops = number(path.flops);
            match &factor[..] {
                "1" => writeln!(f, "chosen                {flops} flops, as many")?,
                _ => writeln!(f, "chosen                {flops} flops, {factor} times fewer")?,
            }
        } else {
            writeln!(f, "chosen                {} flops", number(path.flops))?;
        }
        writeln!(
            f,
            "largest intermediate  {} elements",
            number(path.largest_intermediate)
        )?;
        writeln!(f, "method                {}", path.method)?;

        let mut rows: Vec<[String; 5]> = Vec::new();
        // Not `%`: that is how a graph's text names values.
        let operand_text = |id: usize| format!("#{id}");
        for reduction in &path.reductions {
            let mut before: Vec<Label> = reduction.kept.clone();
            before.extend(&reduction.summed);
            rows.push([
                "sum".to_owned(),
                operand_text(reduction.operand),
                format!("{}->{}", self.text(&before), self.text(&reduction.kept)),
                number(reduction.flops),
                String::new(),
            ]);
        }
        for (k, step) in path.steps.iter().enumerate() {
            let (a, b) = step.operands;
            rows.push([
                operand_text(path.operand_count + k),
                format!("{} {}", operand_text(a), operand_text(b)),
                format!(
                    "{},{}->{}",
                    self.text(&step.lhs),
                    self.text(&step.rhs),
                    self.text(&step.result)
                ),
                number(step.flops),
                number(step.elements),
            ]);
        }
        if rows.is_empty() {
            return Ok(());
        }
        rows.insert(
            0,
            ["step", "tensors", "contraction", "flops", "elements"].map(str::to_owned),
        );
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: [usize; 4] = std::array::from_fn(width);
        writeln!(f)?;
        for row in &rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(widths) {
                line += &format!("{cell:width$}  ");
            }
            line += &row[4];
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}
