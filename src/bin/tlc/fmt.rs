//! `tlc fmt`: canonical text.
//!
//! Comments between graphs stay where they are. A comment inside a graph has no place in canonical text, so such a file is
//! left alone unless its owner gives the comments up.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use tlc_ir::text::{Module, PrintOptions, no_data, parse_bytes, print_graph};

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
    /// Give up comments inside graphs, which canonical text cannot keep
    #[arg(long)]
    drop_comments: bool,
}

/// Runs the command.
pub fn run(session: &Session, args: &Fmt) -> Result<(), Failure> {
    let mut worst: Option<Code> = None;
    let mut results = Vec::new();
    for path in &args.files {
        let outcome = read_model(path).and_then(|s| format(&s, args.drop_comments).map(|text| (s, text)));
        let (source, text) = match outcome {
            Ok(done) => done,
            Err(failure) => {
                session.console.failure(&failure);
                worst = worst.max(failure.code);
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
            }
        } else if is_stdin(path) {
            session.console.result(&text)?;
        } else if !canonical {
            write_file(path, text.as_bytes())?;
        }
    }
    if session.console.json() && !args.files.iter().any(|f| is_stdin(f) && !args.check) {
        session.console.json_result(&json!({ "files": results }))?;
    }
    worst.map_or(Ok(()), |code| Err(Failure::silent(code)))
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

fn format(source: &Source, drop_comments: bool) -> Result<String, Failure> {
    let module = parse(source)?;
    // A text that parses is UTF-8.
    let text = String::from_utf8_lossy(&source.bytes);
    let scan = scan(&text);
    if let (Some(&at), false) = (scan.inside.first(), drop_comments) {
        let before = &text[..at];
        let line = before.matches('\n').count();
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count();
        let width = text[at..].lines().next().unwrap_or_default().chars().count();
        let message = "comment inside a graph, which canonical text cannot keep; expected none, or --drop-comments";
        let position = (line as u32 + 1, column as u32 + 1);
        return Err(Failure::in_text(
            Code::Failed,
            &source.file,
            &text,
            position,
            width,
            message,
        ));
    }
    let mut out = String::new();
    let options = PrintOptions {
        inline_elements: usize::MAX,
    };
    for (i, graph) in module.graphs.iter().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        scan.before
            .get(i)
            .into_iter()
            .flatten()
            .for_each(|c| out += &format!("{c}\n"));
        out += &print_graph(graph, &options).text;
    }
    if let Some(last) = scan.before.get(module.graphs.len()).filter(|l| !l.is_empty()) {
        if !module.graphs.is_empty() {
            out.push('\n');
        }
        last.iter().for_each(|c| out += &format!("{c}\n"));
    }
    Ok(out)
}

fn parse(source: &Source) -> Result<Module, Failure> {
    let mut named = false;
    let mut resolver = |name: &str, dtype, shape: &[usize]| {
        named = true;
        no_data(name, dtype, shape)
    };
    let module = parse_bytes(&source.bytes, &mut resolver);
    match module {
        Ok(module) => Ok(module),
        Err(_) if named => {
            let message = "formatting a text whose data is elsewhere (`const opaque`) is not supported";
            Err(Failure::at(Code::Unsupported, &source.file, message))
        }
        Err(errors) => Err(source.failure(&errors, usize::MAX)),
    }
}

/// Comments of a text.
struct Scan<'t> {
    /// Comments before each graph, and behind the last.
    before: Vec<Vec<&'t str>>,
    /// Offsets of comments inside graphs.
    inside: Vec<usize>,
}

fn scan(text: &str) -> Scan<'_> {
    let mut scan = Scan {
        before: vec![vec![]],
        inside: vec![],
    };
    let bytes = text.as_bytes();
    let (mut at, mut depth, mut in_graph) = (0, 0usize, false);
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
                if in_graph {
                    scan.inside.push(at);
                } else if let Some(last) = scan.before.last_mut() {
                    last.push(text[at..end].trim_end());
                }
                at = end;
            }
            b'{' => depth += 1,
            b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    in_graph = false;
                    scan.before.push(vec![]);
                }
            }
            c if !c.is_ascii_whitespace() => in_graph = true,
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
    format(&source, drop_comments)
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
    fn comments_inside_are_only_dropped_on_request() {
        let text = GRAPH.replace(" %0 = exp", " // note\n  %0 = exp");
        assert_eq!(canonical(&text, false).unwrap_err().code, Some(Code::Failed));
        assert_eq!(canonical(&text, true).unwrap(), GRAPH);
    }

    #[test]
    fn slashes_in_strings_are_no_comments() {
        let text = "graph @f(%\"a//b\": f32[4]) {\n  return %\"a//b\"\n}\n";
        assert!(canonical(text, false).is_ok());
    }
}
