//! The two streams: results go to standard output, everything else to standard error.
//!
//! Invariants: a reader that goes away ends the command quietly; colors appear on standard error only, and only where they
//! are wanted; nothing here panics on a stream that cannot be written.

use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::args::{Color, Format, Global};
use crate::failure::{Code, Failure, Report};

/// How to talk.
#[derive(Clone, Copy, Debug)]
pub struct Console {
    /// The form of results.
    pub format: Format,
    color: bool,
}

impl Console {
    /// As the command line and the environment ask.
    pub fn new(global: &Global) -> Console {
        let color = match global.color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()) && io::stderr().is_terminal(),
        };
        Console {
            format: global.format,
            color,
        }
    }

    /// For programs, without colors.
    pub fn for_programs() -> Console {
        Console {
            format: Format::Json,
            color: false,
        }
    }

    /// True if results are JSON.
    pub fn json(&self) -> bool {
        self.format == Format::Json
    }

    /// Writes a result.
    pub fn result(&self, text: &str) -> Result<(), Failure> {
        self.result_bytes(text.as_bytes())
    }

    /// Writes a result that is not text.
    pub fn result_bytes(&self, bytes: &[u8]) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        match out.write_all(bytes).and_then(|()| out.flush()) {
            Ok(()) => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Err(Failure::reader_gone()),
            Err(e) => Err(Failure::writing("standard output", &e)),
        }
    }

    /// Writes a JSON result, with `"schema": 1` in front.
    pub fn json_result(&self, value: &serde_json::Value) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(&with_schema(value)).unwrap_or_default();
        self.result(&(text + "\n"))
    }

    /// Prints something that is no result.
    pub fn note(&self, text: &str) {
        // An error of standard error cannot be reported.
        let _ = writeln!(io::stderr().lock(), "{}", text.trim_end_matches('\n'));
    }

    fn paint(&self, style: &str, text: &str) -> String {
        if self.color {
            format!("\u{1b}[{style}m{text}\u{1b}[0m")
        } else {
            text.to_string()
        }
    }

    /// Prints one report: `error: ` and its line, then the source line with a caret.
    pub fn report(&self, report: &Report) {
        let mut text = format!("{} {}", self.paint("1;31", "error:"), report.line());
        if let (Some((line, column)), Some((source, width))) = (report.position, &report.source) {
            let number = line.to_string();
            let margin = " ".repeat(number.len());
            // What a terminal would act on is shown as the replacement character.
            let source = source.replace(|c: char| c.is_control() && c != '\t', "\u{fffd}");
            let (shown, before, width) = excerpt(&source, column as usize - 1, *width);
            // Tabs stay tabs, so that the caret stands under its character.
            let pad: String = before.chars().map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
            let bar = self.paint("1;34", "|");
            text += &format!("\n{margin} {bar}\n{} {bar} {shown}", self.paint("1;34", &number));
            text += &format!("\n{margin} {bar} {pad}{}", self.paint("1;31", &"^".repeat(width)));
        }
        self.note(&text);
    }

    /// Reports how the command failed: on standard error, and for programs on standard output too, on one line.
    pub fn end(&self, failure: &Failure) {
        if !failure.reported {
            self.failure(failure);
        }
        if let (true, Some(value)) = (self.json(), failure.json()) {
            // Where nothing can be printed, the exit code says it.
            let _ = self.result(&format!("{}\n", with_schema(&value)));
        }
    }

    /// Reports a failure on standard error.
    pub fn failure(&self, failure: &Failure) {
        failure.reports.iter().for_each(|r| self.report(r));
        if failure.code == Some(Code::Bug) {
            self.note(&format!(
                "this is a bug in tlc {}: please report it with the command line, the files it read and the text above",
                env!("CARGO_PKG_VERSION")
            ));
        }
    }

    /// A progress bar of `total` units on a terminal, nothing elsewhere.
    pub fn progress(&self, total: u64, what: &str) -> ProgressBar {
        if !io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{prefix} [{bar:30}] {percent:>3}% {wide_msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_prefix(what.to_string());
        bar
    }
}

/// An object with `"schema": 1` in front.
pub fn with_schema(value: &serde_json::Value) -> serde_json::Value {
    let mut object = serde_json::Map::new();
    object.insert("schema".into(), 1.into());
    if let serde_json::Value::Object(fields) = value {
        object.extend(
            fields
                .iter()
                .filter(|(k, _)| *k != "schema")
                .map(|(k, v)| (k.clone(), v.clone())),
        );
    }
    serde_json::Value::Object(object)
}

/// The part of a long line around a place: the part, what of it stands before the place, and how much is meant.
fn excerpt(line: &str, start: usize, width: usize) -> (String, String, usize) {
    const SHOWN: usize = 120;
    let chars: Vec<char> = line
        .chars()
        .map(|c| if c.is_control() && c != '\t' { '\u{fffd}' } else { c })
        .collect();
    let start = start.min(chars.len());
    let from = if start > SHOWN * 3 / 4 { start - SHOWN / 2 } else { 0 };
    let to = (from + SHOWN).min(chars.len());
    let width = width.min(to.saturating_sub(start)).max(1);
    let mut shown: String = chars[from..to].iter().collect();
    let mut before: String = chars[from..start].iter().collect();
    if from > 0 {
        shown.insert(0, '…');
        before.insert(0, ' ');
    }
    if to < chars.len() {
        shown.push('…');
    }
    (shown, before, width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_cut_around_the_caret() {
        let line = "x".repeat(500) + "HERE" + &"y".repeat(500);
        let (shown, before, width) = excerpt(&line, 500, 4);
        let at = before.chars().count();
        assert_eq!(shown.chars().skip(at).take(width).collect::<String>(), "HERE");
        assert!(shown.chars().count() <= 122);
    }

    #[test]
    fn a_caret_behind_the_end_is_kept() {
        assert_eq!(excerpt("ab", 7, 3), ("ab".into(), "ab".into(), 1));
    }

    #[test]
    fn the_schema_comes_first() {
        let value = with_schema(&serde_json::json!({"a": 1, "schema": 7}));
        assert_eq!(value.to_string(), r#"{"schema":1,"a":1}"#);
    }
}
