//! `--set NAME=N`: a graph with some of its symbols replaced by sizes.

use tlc_ir::Graph;

use crate::failure::{Code, Failure};

/// The graph under the given sizes. Types, guards and views are inferred anew, so what the sizes contradict is an error.
pub fn specialize(graph: &Graph, sets: &[(String, i64)], file: &str) -> Result<Graph, Failure> {
    if sets.is_empty() {
        return Ok(graph.clone());
    }
    let mut values: Vec<Option<i64>> = vec![None; graph.symbols().len()];
    for (name, value) in sets {
        let Some(symbol) = graph.find_symbol(name) else {
            let known: Vec<&str> = graph.symbols().iter().map(|s| s.name.as_str()).collect();
            let expected = if known.is_empty() {
                "none: every size is fixed".into()
            } else {
                known.join(", ")
            };
            return Err(Failure::new(
                Code::Usage,
                format!("--set {name}={value}: {file} has no size `{name}`; expected {expected}"),
            ));
        };
        let declared = &graph.symbols()[symbol.0 as usize];
        if declared.upper.is_some() {
            let message = format!("--set {name}={value}: data decides this size; expected none for it");
            return Err(Failure::new(Code::Usage, message));
        }
        if !(declared.lo..=declared.hi).contains(value) {
            let (lo, hi) = (declared.lo, declared.hi);
            return Err(Failure::new(
                Code::Usage,
                format!("--set {name}={value}: out of range; expected {lo}..={hi}"),
            ));
        }
        if values[symbol.0 as usize]
            .replace(*value)
            .is_some_and(|before| before != *value)
        {
            return Err(Failure::new(
                Code::Usage,
                format!("--set {name}: given twice; expected one size"),
            ));
        }
    }
    graph.specialize(&values).map_err(|e| {
        let value = e
            .origin
            .value_name()
            .map_or(String::new(), |v| format!("{v} at {}: ", e.origin));
        Failure::at(Code::Invalid, file, format!("under the sizes of --set: {value}{e}"))
    })
}
