//! Texts and modules: finds the sections and hands each to its parser.

use std::collections::HashSet;

use super::cursor::{Cursor, Parsed};
use super::lexer::{Span, TokenKind};
use super::{Entry, Module, ParseError, Position, Resolver, graph, kernel, plan};
use crate::graph::Graph;

/// The words that begin a section.
const SECTIONS: &[&str] = &["graph", "kernel", "plan"];

/// Reads a text. `resolver` finds data that the text only names; [`super::no_data`] knows none.
///
/// # Errors
/// Every error of the text, in its order.
pub fn parse_module(text: &str, resolver: &mut Resolver<'_>) -> Result<Module, Vec<ParseError>> {
    let mut cursor = Cursor::new(text);
    let mut module = Module::default();
    let mut names = HashSet::new();
    while cursor.kind() != TokenKind::End && !cursor.gave_up() {
        let start = cursor.mark();
        let Some(&word) = SECTIONS.iter().find(|w| cursor.at_word(w)) else {
            cursor.unexpected("module", "`graph`, `kernel` or `plan`");
            cursor.recover_section(SECTIONS);
            continue;
        };
        cursor.bump();
        let place = cursor.token().span();
        match section(&mut cursor, &mut module, word, resolver) {
            Ok(name) => {
                if name.is_some_and(|n| !names.insert((word, n))) {
                    let message = format!("duplicate name; expected a name that no other {word} has");
                    cursor.error(place, message);
                }
            }
            Err(_) if cursor.mark() > start && SECTIONS.iter().any(|s| cursor.at_word(s)) => {}
            Err(_) => cursor.recover_section(SECTIONS),
        }
    }
    module.anchors = cursor.take_anchors();
    let errors = cursor.finish();
    if errors.is_empty() { Ok(module) } else { Err(errors) }
}

/// Reads a section behind its word into the module; returns its name.
fn section(
    cursor: &mut Cursor<'_>,
    module: &mut Module,
    word: &str,
    resolver: &mut Resolver<'_>,
) -> Parsed<Option<String>> {
    Ok(match word {
        "graph" => {
            let graph = graph::graph(cursor, resolver)?;
            let name = graph.name.clone();
            module.order.push(Entry::Graph(module.graphs.len()));
            module.graphs.push(graph);
            Some(name)
        }
        "kernel" => {
            let (name, kernel, spans) = kernel::section(cursor)?;
            module.order.push(Entry::Kernel(module.kernels.len(), spans));
            module.kernels.push((name.clone(), kernel));
            name
        }
        _ => {
            let (plan, spans) = plan::plan(cursor, resolver)?;
            let name = plan.name.clone();
            module.order.push(Entry::Plan(module.plans.len(), spans));
            module.plans.push(plan);
            Some(name)
        }
    })
}

/// Reads a text that holds one graph.
///
/// # Errors
/// As [`parse_module`]; also if there is no graph or more than one.
pub fn parse_graph(text: &str, resolver: &mut Resolver<'_>) -> Result<Graph, Vec<ParseError>> {
    let mut graphs = parse_module(text, resolver)?.graphs;
    match (graphs.pop(), graphs.len()) {
        (Some(graph), 0) => Ok(graph),
        (_, others) => {
            let found = if others == 0 { 0 } else { others + 1 };
            Err(vec![ParseError {
                span: Span::default(),
                position: Position { line: 1, column: 1 },
                message: format!("not a single graph; expected one graph, found {found}"),
            }])
        }
    }
}

/// Reads a text from bytes that should be UTF-8.
///
/// # Errors
/// As [`parse_module`]; for bytes that are not UTF-8, one error at the first of them.
pub fn parse_bytes(bytes: &[u8], resolver: &mut Resolver<'_>) -> Result<Module, Vec<ParseError>> {
    match std::str::from_utf8(bytes) {
        Ok(text) => parse_module(text, resolver),
        Err(error) => {
            let start = error.valid_up_to();
            let before = String::from_utf8_lossy(&bytes[..start]);
            let last_line = before.rsplit('\n').next().unwrap_or_default();
            let count = |n: usize| u32::try_from(n + 1).unwrap_or(u32::MAX);
            Err(vec![ParseError {
                span: Span {
                    start,
                    end: start + error.error_len().unwrap_or(bytes.len() - start),
                },
                position: Position {
                    line: count(before.matches('\n').count()),
                    column: count(last_line.chars().count()),
                },
                message: format!(
                    "invalid text; expected UTF-8, found byte {:#04x} at offset {start}",
                    bytes[start]
                ),
            }])
        }
    }
}
