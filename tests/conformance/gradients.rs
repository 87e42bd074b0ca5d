//! Derivatives of the cases, against finite differences in f64, and the operators that have them: tests/conformance/GRADIENTS.md.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use tlc::verify::{self, Case, GradientError};

use super::{Ending, NO_DATA, data, first_line, group, loaded, names, parsed, read, sets};

/// What became of a case.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Found {
    /// Derivatives are right along a direction.
    Right,
    /// Every direction has a corner in reach, or something that is not finite.
    Open,
    /// Something has no derivative, with the reason.
    Refused(String),
    /// No floats depend on floats.
    Nothing,
}

/// Cases, spelled out in small operators, whose derivatives are NaN as in PyTorch and JAX; those of the operator itself are numbers. Where a
/// row is masked as a whole the softmax is NaN, and a selection behind it hides that NaN, but not its derivative. And the root of an empty
/// sum has an infinite slope, which meets a 0 along every direction.
const NAN: [&str; 9] = [
    "node/test_attention_23_boolmask_fullymasked_row_nan_robustness_expanded",
    "node/test_attention_23_fullymasked_qk_matmul_output_mode3_zero_expanded",
    "node/test_attention_24_fullymasked_qk_matmul_output_mode3_zero_expanded",
    "node/test_attention_24_qk_matmul_output_mode3_softmax_precision_expanded",
    "node/test_attention_4d_causal_nonpad_negative_offset_structural_empty_expanded",
    "node/test_attention_4d_causal_padded_kv_bf16_expanded",
    "node/test_attention_causal_boolmask_nan_robustness_expanded",
    "node/test_attention_local_window_gqa_rank4_mask_expanded",
    "node/test_reduce_l2_empty_set_expanded",
];

/// What became of a case, and its operators.
fn checked(folder: &Path) -> Result<(Found, Vec<String>), Ending> {
    let bytes = read(folder)?;
    let graph = parsed(&bytes)?.graph().expect("a model that parses has a graph");
    let mut operators: Vec<String> = graph.nodes().map(|n| n.op_type().to_string()).collect();
    operators.sort_unstable();
    operators.dedup();
    let mut found = Found::Nothing;
    for set in sets(folder) {
        let (graph, inputs) = loaded(folder, &bytes, &set)?;
        let case = Case {
            graph,
            inputs,
            symbols: Vec::new(),
        };
        let one = match verify::gradients::gradients(&case, 2, 1) {
            Ok(g) => match &g.wrong {
                Some(w) if w.found.is_nan() => return Err(Ending::Unsupported("NaN".into())),
                Some(w) => return Err(Ending::Fail(format!("{w:?}"))),
                None if g.right > 0 => Found::Right,
                None => Found::Open,
            },
            Err(GradientError::Nothing) => Found::Nothing,
            Err(e) => Found::Refused(first_line(&e)),
        };
        found = match (found, one) {
            (Found::Nothing, one) => one,
            (found, one) => found.min(one),
        };
    }
    Ok((found, operators))
}

/// What is found of operators: of those that are alone in a case.
fn table(found: &BTreeMap<String, (Found, Vec<String>)>) -> String {
    let mut by: BTreeMap<&str, Vec<&Found>> = BTreeMap::new();
    for (found, operators) in found.values() {
        if let [operator] = &operators[..] {
            by.entry(operator).or_default().push(found);
        }
    }
    let mut text = String::from(
        "# Operators with derivatives\n\nWritten by `TLC_BLESS=1 cargo test --test conformance derivatives`. Each of the ONNX \
         project's cases is differentiated, outputs of floats by\ninputs of floats, along random directions, and compared with \
         finite differences in f64. Listed is each operator that has a case of its own.\n\n| operator | derivative |\n|---|---|\n",
    );
    for (operator, found) in by {
        let refused: Vec<&String> = found
            .iter()
            .filter_map(|f| match f {
                Found::Refused(reason) => Some(reason),
                _ => None,
            })
            .collect();
        let mut parts = Vec::new();
        if found.contains(&&Found::Right) {
            parts.push("as differences say".to_string());
        } else if found.contains(&&Found::Open) {
            parts.push("at corners alone".to_string());
        }
        if let Some(reason) = refused.first() {
            parts.push(format!("none: {}", group(reason)));
        }
        if parts.is_empty() {
            parts.push("not in its cases: no floats of known extents depend on floats".into());
        }
        let _ = writeln!(text, "| {operator} | {} |", parts.join("; "));
    }
    text
}

#[test]
fn derivatives_of_backend_cases_are_those_of_differences() {
    let Some(folder) = data() else {
        println!("{NO_DATA}");
        return;
    };
    let (mut found, mut wrong, mut nan) = (BTreeMap::new(), Vec::new(), Vec::new());
    for name in names(&folder).into_iter().filter(|name| name.starts_with("node/")) {
        match checked(&folder.join(&name)) {
            Ok(one) => {
                found.insert(name.clone(), one);
            }
            Err(Ending::Unsupported(e)) if e == "NaN" => nan.push(name),
            Err(Ending::Fail(e)) => wrong.push(format!("{name}: {e}")),
            Err(_) => {}
        }
    }
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
    if std::env::var_os("TLC_CONFORMANCE_FILTER").is_some() {
        println!("{found:?}");
        return;
    }
    nan.sort_unstable();
    assert_eq!(nan, NAN);
    let (path, text) = (
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/GRADIENTS.md"),
        table(&found),
    );
    if std::env::var_os("TLC_BLESS").is_some() {
        std::fs::write(path, text).expect("it is written");
        return;
    }
    let before = std::fs::read_to_string(path).expect("it is there");
    assert!(
        before == text,
        "GRADIENTS.md is of another state (TLC_BLESS=1 writes it anew):\n{text}"
    );
}
