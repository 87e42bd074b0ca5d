//! Arrays as text, as NumPy prints them (`numpy.array2string` with its default options: eight digits, lines of 75 characters,
//! and of more than 1,000 elements the first and last three of each axis).
//!
//! Invariant: the elements that are shown share one format, which is found from them alone, so printing a large array costs no
//! more than printing a small one.

use std::fmt::{self, Write};

use tlc_ir::{DType, Scalar};
use tlc_runtime::driver::TensorView;

/// Elements beyond which axes are elided.
const THRESHOLD: usize = 1000;
/// Elements shown at each end of an elided axis.
const EDGE: usize = 3;
/// Characters of a line.
const WIDTH: usize = 75;
/// Digits after the point, at most.
const PRECISION: usize = 8;

/// The elements of a tensor as NumPy prints them.
pub(super) fn array(tensor: &TensorView<'_>) -> String {
    if tensor.shape.contains(&0) {
        return "[]".to_string();
    }
    let printer = Printer {
        tensor: *tensor,
        elided: tensor.shape.iter().product::<usize>() > THRESHOLD,
    };
    let mut shown = Vec::new();
    printer.visit(0, 0, &mut |value| shown.push(value));
    let texts = texts(tensor.dtype, &shown, tensor.shape.is_empty());
    let mut text = String::new();
    let mut texts = texts.iter().map(String::as_str);
    // Writing to a string does not fail.
    let _ = printer.block(0, &mut texts, &mut text);
    text
}

struct Printer<'a> {
    tensor: TensorView<'a>,
    elided: bool,
}

impl Printer<'_> {
    /// The positions of an axis that are shown, and whether some are left out after the third.
    fn shown(&self, axis: usize) -> (Vec<usize>, bool) {
        let n = self.tensor.shape[axis];
        match self.elided && n > 2 * EDGE {
            true => ((0..EDGE).chain(n - EDGE..n).collect(), true),
            false => ((0..n).collect(), false),
        }
    }

    fn visit(&self, axis: usize, start: usize, f: &mut impl FnMut(Scalar)) {
        if axis == self.tensor.shape.len() {
            return f(tlc_ir::tensor::element(self.tensor.dtype, self.tensor.data, start));
        }
        for k in self.shown(axis).0 {
            self.visit(axis + 1, start * self.tensor.shape[axis] + k, f);
        }
    }

    /// The part of one index of the axes before `axis`.
    fn block<'t>(&self, axis: usize, texts: &mut impl Iterator<Item = &'t str>, out: &mut String) -> fmt::Result {
        let axes = self.tensor.shape.len();
        if axis == axes {
            return out.write_str(texts.next().unwrap_or_default());
        }
        let (shown, cut) = self.shown(axis);
        let indent = " ".repeat(axis + 1);
        out.write_char('[')?;
        if axis + 1 == axes {
            let room = WIDTH.saturating_sub(axes);
            let mut line = indent.len();
            for k in 0..shown.len() {
                if cut && k == EDGE {
                    word("...", &mut line, room, &indent, out)?;
                    out.write_char(' ')?;
                    line += 1;
                }
                let last = k + 1 == shown.len();
                word(texts.next().unwrap_or_default(), &mut line, room, &indent, out)?;
                if !last {
                    out.write_char(' ')?;
                    line += 1;
                }
            }
        } else {
            for k in 0..shown.len() {
                if cut && k == EDGE {
                    write!(out, "...{}{indent}", "\n".repeat(axes - axis - 1))?;
                }
                self.block(axis + 1, texts, out)?;
                if k + 1 < shown.len() {
                    write!(out, "{}{indent}", "\n".repeat(axes - axis - 1))?;
                }
            }
        }
        out.write_char(']')
    }
}

/// Writes a word, on a new line if this one has no room.
fn word(text: &str, line: &mut usize, limit: usize, indent: &str, out: &mut String) -> fmt::Result {
    if *line + text.len() > limit && *line > indent.len() {
        let kept = out.trim_end_matches(' ').len();
        out.truncate(kept);
        write!(out, "\n{indent}")?;
        *line = indent.len();
    }
    *line += text.len();
    out.write_str(text)
}

/// The elements as words of one width.
fn texts(dtype: DType, values: &[Scalar], scalar: bool) -> Vec<String> {
    let words: Vec<String> = match dtype {
        d if d.is_float() => return floats(values),
        DType::Bool => values
            .iter()
            .map(|v| if v.bits() != 0 { "True" } else { "False" }.to_string())
            .collect(),
        _ => values.iter().map(ToString::to_string).collect(),
    };
    // Bools of an array have the width of the longer of the two, whichever there are.
    let least = if dtype == DType::Bool && !scalar {
        "False".len()
    } else {
        0
    };
    let width = words.iter().map(String::len).fold(least, usize::max);
    words.into_iter().map(|w| format!("{w:>width$}")).collect()
}

/// A finite number in parts: before the point, after it, and the exponent.
type Parts = (String, String, String);

fn floats(values: &[Scalar]) -> Vec<String> {
    let numbers: Vec<f64> = values.iter().map(|v| v.as_f64()).collect();
    let finite = || numbers.iter().copied().filter(|v| v.is_finite());
    let (most, least) = finite()
        .map(f64::abs)
        .filter(|&v| v > 0.0)
        .fold((0f64, f64::INFINITY), |(most, least), v| (most.max(v), least.min(v)));
    let dtype = values.first().map_or(DType::F64, |v| v.dtype());
    // Ten to the number of decimal digits that every value of the dtype has.
    let large = match dtype {
        DType::F64 => 1e8,
        DType::F32 => 1e6,
        _ => 1e3,
    };
    let rounded = |v: f64| Scalar::from_f64(dtype, v).as_f64();
    let scientific = most > 0.0 && (most >= large || least < rounded(1e-4) || rounded(most / least) > 1000.0);
    let all = || values.iter().zip(&numbers).filter(|(_, n)| n.is_finite());
    let digits = match scientific {
        true => all().map(|(s, n)| mantissa_digits(&shortest(s, *n))).max().unwrap_or(0),
        false => 0,
    };
    let parts: Vec<Option<Parts>> = values
        .iter()
        .zip(&numbers)
        .map(|(scalar, number)| {
            number.is_finite().then(|| match scientific {
                true => exponential(*number, digits),
                false => positional(scalar, *number),
            })
        })
        .collect();
    let longest = |part: fn(&Parts) -> &String| parts.iter().flatten().map(|p| part(p).len()).max().unwrap_or(0);
    let (mut whole, fraction, exponent) = (longest(|p| &p.0), longest(|p| &p.1), longest(|p| &p.2));
    // What is not finite stands at the right, where the digits end.
    let behind = match (finite().next().is_some(), scientific) {
        (false, _) => 1,
        (true, false) => fraction + 1,
        (true, true) => fraction + exponent + 1,
    };
    let word = |v: &f64| match (v.is_nan(), *v < 0.0) {
        (true, _) => "nan",
        (_, true) => "-inf",
        _ => "inf",
    };
    let odd = numbers.iter().filter(|v| !v.is_finite()).map(word);
    // NumPy leaves room for the sign of an infinity wherever one is negative.
    whole = odd.map(|w| w.len().saturating_sub(behind)).fold(whole, usize::max);
    let one = |(parts, number): (&Option<Parts>, &f64)| match parts {
        None => format!("{:>width$}", word(number), width = whole + behind),
        Some((w, f, e)) if scientific => format!("{w:>whole$}.{f:0<fraction$}{e}"),
        Some((w, f, _)) => format!("{w:>whole$}.{f:<fraction$}"),
    };
    parts.iter().zip(&numbers).map(one).collect()
}

/// The shortest digits that tell the number from its neighbours in its dtype, as `digits e exponent`.
fn shortest(scalar: &Scalar, number: f64) -> String {
    match scalar.dtype() {
        DType::F64 => format!("{number:e}"),
        DType::F32 => format!("{:e}", number as f32),
        // A half has at most five digits that matter, a bf16 four.
        dtype => (0..9)
            .map(|digits| format!("{number:.digits$e}"))
            .find(|text| {
                text.parse()
                    .is_ok_and(|v| Scalar::from_f64(dtype, v).bits() == scalar.bits())
            })
            .unwrap_or_else(|| format!("{number:e}")),
    }
}

/// Digits after the point of the number before the `e`.
fn mantissa_digits(text: &str) -> usize {
    let digits = text.split_once('e').map_or(text, |(digits, _)| digits);
    digits.split_once('.').map_or(0, |(_, f)| f.len()).min(PRECISION)
}

/// Digits after the point of `digits` times ten to `exponent`.
fn fraction_digits(text: &str) -> i64 {
    let (digits, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let after = digits.split_once('.').map_or(0, |(_, f)| f.len()) as i64;
    after - exponent.parse::<i64>().unwrap_or(0)
}

fn split(text: &str) -> (String, String) {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    (whole.to_string(), fraction.trim_end_matches('0').to_string())
}

fn positional(scalar: &Scalar, number: f64) -> Parts {
    let digits = fraction_digits(&shortest(scalar, number)).clamp(0, PRECISION as i64) as usize;
    let (whole, fraction) = split(&format!("{number:.digits$}"));
    (whole, fraction, String::new())
}

/// With so many digits after the point, the exact ones also where fewer would tell the number from its neighbours.
fn exponential(number: f64, digits: usize) -> Parts {
    let text = format!("{number:.digits$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let (sign, power) = match exponent.strip_prefix('-') {
        Some(power) => ('-', power),
        None => ('+', exponent),
    };
    (whole.to_string(), fraction.to_string(), format!("e{sign}{power:0>2}"))
}
