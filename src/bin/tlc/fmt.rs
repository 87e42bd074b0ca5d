//! `tlc fmt`: canonical text.
//!
//! Comments stay with the statement, or the section, that they stand before or behind. Where canonical text makes one
//! statement of two equal ones, a graph's comments have no certain place, so such a file is left alone unless its owner
//! gives the comments up.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use tlc_ir::text::{Module, PrintOptions, Printed};

use crate::failure::{Code, Failure};
use crate::session::{Session, Source, display, is_stdin, read_model};
use crate::staging::write_file;

/// Arguments.
#[derive(Args, Debug)]
pub struct Fmt {
    /// .tlir files, rewritten in place; - reads standard input and writes standard output
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Write nothing; exit with 1 if a file is not canonical
    #[arg(long)]
    check: bool,
    /// Give up comments inside graphs, kernels and plans
    #[arg(long)]
    drop_comments: bool,
}

/// Runs the command.
pub fn run(session: &Session, args: &Fmt) -> Result<(), Failure> {
    let mut worst: Option<Code> = None;
    let mut all = Vec::new();
    let mut results = Vec::new();
    for path in &args.files {
        let outcome = read_model(path).and_then(|s| format(&s, path, args.drop_comments).map(|text| (s, text)));
        let (source, text) = match outcome {
            Ok(done) => done,
            Err(failure) => {
                session.console.failure(&failure);
                worst = worst.max(failure.code);
                all.extend(failure.reports);
                results.push(json!({ "file": display(path), "ok": false, "canonical": false }));
                continue;
            }
        };
        let canonical = source.bytes == text.as_bytes();
        results.push(json!({ "file": source.file, "ok": true, "canonical": canonical }));
        if args.check {
            if !canonical {
                let failure = not_canonical(&source, &text);
                session.console.failure(&failure);
                worst = worst.max(failure.code);
                all.extend(failure.reports);
            }
        } else if is_stdin(path) {
            session.console.result(&text)?;
        } else if !canonical {
            write_file(path, text.as_bytes())?;
        }
    }
    let result = json!({ "files": results });
    // A text that was printed is the result.
    let printed = args.files.iter().any(|f| is_stdin(f) && !args.check);
    match worst {
        Some(code) => Err(Failure::of_reports(code, all).already_reported().with_result(result)),
        None if session.console.json() && !printed => session.console.json_result(&result),
        None => Ok(()),
    }
}

fn not_canonical(source: &Source, text: &str) -> Failure {
    let found = String::from_utf8_lossy(&source.bytes);
    let differs = found.lines().zip(text.lines()).position(|(a, b)| a != b);
    let line = differs.unwrap_or_else(|| found.lines().count().min(text.lines().count()));
    let expected = text
        .lines()
        .nth(line)
        .map_or("the end of the file".to_string(), |l| format!("`{}`", l.trim()));
    let width = found.lines().nth(line).map_or(1, |l| l.chars().count());
    let message = format!("not canonical; expected {expected}");
    Failure::in_text(
        Code::Failed,
        &source.file,
        &found,
        (line as u32 + 1, 1),
        width,
        &message,
    )
}

fn format(source: &Source, path: &Path, drop_comments: bool) -> Result<String, Failure> {
    let module = source
        .parse(path)
        .map_err(|errors| source.failure(&errors, usize::MAX))?;
    // A text that parses is UTF-8.
    let text = String::from_utf8_lossy(&source.bytes);
    let scan = scan(&text);
    let sections = module.sections();
    let mut printed = Printed::default();
    let options = PrintOptions {
        inline_elements: usize::MAX,
        names: true,
    };
    for (i, section) in sections.iter().enumerate() {
        if i > 0 {
            printed.text.push('\n');
        }
        scan.before
            .get(i)
            .into_iter()
            .flatten()
            .for_each(|c| printed.text += &format!("{c}\n"));
        section.write(&mut printed, &options);
    }
    let mut out = printed.text;
    if let Some(last) = scan.before.get(sections.len()).filter(|l| !l.is_empty()) {
        if !sections.is_empty() {
            out.push('\n');
        }
        last.iter().for_each(|c| out += &format!("{c}\n"));
    }
    if drop_comments || scan.inside.is_empty() {
        return Ok(out);
    }
    with_comments(&module, path, &text, &scan.inside, &out).ok_or_else(|| {
        let at = scan.inside[0].at;
        let before = &text[..at];
        let line = before.matches('\n').count();
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count();
        let width = text[at..].lines().next().unwrap_or_default().chars().count();
        let message =
            "comment beside statements of which two are one in canonical text; expected none, or --drop-comments";
        let position = (line as u32 + 1, column as u32 + 1);
        Failure::in_text(Code::Failed, &source.file, &text, position, width, message)
    })
}

/// Canonical text with the comments that were inside sections: one that had a line of its own stands before the same
/// statement as before, others behind it. `None` if the statements are not those of the source.
fn with_comments(module: &Module, path: &Path, text: &str, comments: &[Comment], canonical: &str) -> Option<String> {
    let path = (!is_stdin(path)).then_some(path);
    let same = tlc::tlir::parse(canonical.as_bytes(), path).ok()?;
    let (from, to) = (module.line_starts(), same.line_starts());
    if from.len() != to.len() {
        return None;
    }
    let line_of = |text: &str, at: usize| text[..at].rfind('\n').map_or(0, |n| n + 1);
    // What goes before the line that begins at an offset, and behind it.
    let mut before: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    let mut behind: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    for c in comments {
        let body = text[c.at..].lines().next().unwrap_or_default().trim_end();
        let next = from.partition_point(|&start| start < c.at);
        let alone = text[line_of(text, c.at)..c.at].trim().is_empty();
        // The statement that it stands behind or in; none in the head of a section.
        let of = next.checked_sub(1).filter(|&k| !alone && from[k] >= c.section);
        match of {
            Some(k) if line_of(text, from[k]) == line_of(text, c.at) => {
                behind.entry(line_of(canonical, to[k])).or_default().push(body);
            }
            of => {
                let place = *to.get(of.unwrap_or(next))?;
                before.entry(line_of(canonical, place)).or_default().push(body);
            }
        }
    }
    let mut out = String::new();
    let mut at = 0;
    for line in canonical.split_inclusive('\n') {
        let indent = &line[..line.len() - line.trim_start().len()];
        // What stands before a closing brace is inside.
        let inside = if line.trim_start().starts_with('}') { "  " } else { "" };
        for c in before.remove(&at).unwrap_or_default() {
            out += &format!("{indent}{inside}{c}\n");
        }
        out += line.trim_end_matches('\n');
        for (i, c) in behind.remove(&at).unwrap_or_default().into_iter().enumerate() {
            // Only one comment can end a line; the statement had several lines.
            out += &if i == 0 {
                format!(" {c}")
            } else {
                format!("\n{indent}{c}")
            };
        }
        out.push('\n');
        at += line.len();
    }
    Some(out)
}

/// Comments of a text.
struct Scan<'t> {
    /// Comments before each section, and behind the last.
    before: Vec<Vec<&'t str>>,
    /// Comments inside sections.
    inside: Vec<Comment>,
}

/// A comment inside a section.
struct Comment {
    /// Where it begins.
    at: usize,
    /// Where its section begins.
    section: usize,
}

fn scan(text: &str) -> Scan<'_> {
    let mut scan = Scan {
        before: vec![vec![]],
        inside: vec![],
    };
    let bytes = text.as_bytes();
    let (mut at, mut depth, mut section) = (0, 0usize, None);
    while at < bytes.len() {
        match bytes[at] {
            b'"' => {
                at += 1;
                while at < bytes.len() && bytes[at] != b'"' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
            }
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                let end = text[at..].find('\n').map_or(text.len(), |n| at + n);
                if let Some(section) = section {
                    scan.inside.push(Comment { at, section });
                } else if let Some(last) = scan.before.last_mut() {
                    last.push(text[at..end].trim_end());
                }
                at = end;
            }
            b'{' => depth += 1,
            b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    section = None;
                    scan.before.push(vec![]);
                }
            }
            c if !c.is_ascii_whitespace() => drop(section.get_or_insert(at)),
            _ => {}
        }
        at += 1;
    }
    scan
}

/// The canonical text of a file, for tests.
#[cfg(test)]
fn canonical(text: &str, drop_comments: bool) -> Result<String, Failure> {
    let source = Source {
        file: "t.tlir".into(),
        bytes: text.into(),
    };
    format(&source, Path::new("t.tlir"), drop_comments)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRAPH: &str = "graph @f(%x: f32[4]) {\n  %0 = exp %x : f32[4]\n  return %0\n}\n";

    #[test]
    fn comments_between_graphs_stay() {
        let text = format!(
            "// first\n{GRAPH}\n// second\n// third\n{}\n// end\n",
            GRAPH.replace("@f", "@g")
        );
        assert_eq!(canonical(&text, false).unwrap(), text);
    }

    #[test]
    fn comments_inside_stay_with_their_statement() {
        let text = "\
graph @f( // head
    %x: f32[4]) {
  // before
    // the exponential
  %a = exp   %x : f32[4]   // behind
  %b = add %a,
    %x // in two lines
    : f32[4]
  return %b // out
  // last
}
";
        let expected = "\
graph @f(%x: f32[4]) {
  // head
  // before
  // the exponential
  %0 = exp %x : f32[4] // behind
  // in two lines
  %1 = add %0, %x : f32[4]
  return %1 // out
  // last
}
";
        assert_eq!(canonical(text, false).unwrap(), expected);
        assert_eq!(canonical(expected, false).unwrap(), expected);
        let bare = canonical(text, true).unwrap();
        assert!(!bare.contains("//"), "{bare}");
    }

    #[test]
    fn comments_beside_statements_that_become_one_are_only_dropped_on_request() {
        let text =
            "graph @f(%x: f32[4]) {\n  // note\n  %a = exp %x : f32[4]\n  %b = exp %x : f32[4]\n  return %b\n}\n";
        assert_eq!(canonical(text, false).unwrap_err().code, Some(Code::Failed));
        assert_eq!(canonical(text, true).unwrap(), GRAPH);
    }

    #[test]
    fn kernels_and_plans_keep_their_order_and_comments() {
        let kernel = "\
kernel @k(p0: f32[s0] read, p1: f32[s0] write) where s0 in 1..=8 {
  // all of it
  for i0 in 0..s0 parallel { // rows
    %0: f32 = load p0[i0]
    store p1[i0], %0 // done
    // end of rows
  }
}
";
        let plan = "\
plan @p where n in 1..=8 {
  input x: f32[n] = $0
  output y: f32[n] = $1
  // storage
  $0: f32[n] input 0 \"x\"
  $1: f32[n] output 0 \"y\"
  steps {
    copy $0 to $1 // all
  }
}
";
        let text = format!("// k\n{kernel}\n// p\n{plan}\n{GRAPH}");
        assert_eq!(canonical(&text, false).unwrap(), text);
    }

    #[test]
    fn slashes_in_strings_are_no_comments() {
        let text = "graph @f(%\"a//b\": f32[4]) {\n  return %\"a//b\"\n}\n";
        assert!(canonical(text, false).is_ok());
    }
}
