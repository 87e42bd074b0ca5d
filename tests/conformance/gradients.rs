//! Derivatives of the cases, against finite differences in f64, and the operators that have them: tests/conformance/GRADIENTS.md.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use tlc::verify::{self, Case, GradientError};

use tlc::HostTensor;
use tlc::onnx::{ImportOptions, import};
use tlc_ir::Graph;

use super::proto::{A, BOOL, D, FLOAT, Message, graph, model_of, op, result, value};
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
    /// There is nothing to differentiate, with the reason.
    Nothing(&'static str),
}

/// Why a graph has nothing to differentiate, by the kind of its operands and results.
fn nothing(graph: &Graph) -> &'static str {
    let results = || graph.outputs().iter().map(|o| graph.ty(o.node));
    let floats = || results().filter(|ty| ty.dtype.is_float());
    if floats().next().is_none() {
        "its results are no floats"
    } else if floats().all(|ty| ty.shape.iter().any(|d| graph.is_data_bound(d))) {
        "data decides the sizes of its results"
    } else {
        "its operands are no floats"
    }
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
    let mut found = Found::Nothing("it has no data");
    for set in sets(folder) {
        let (graph, inputs) = loaded(folder, &bytes, &set)?;
        let one = differentiated(graph, inputs)?;
        found = match (found, one) {
            (Found::Nothing(_), one) => one,
            (found, one) => found.min(one),
        };
    }
    Ok((found, operators))
}

/// What becomes of a graph on these inputs.
fn differentiated(graph: Graph, inputs: Vec<HostTensor>) -> Result<Found, Ending> {
    let case = Case {
        graph,
        inputs,
        symbols: Vec::new(),
    };
    Ok(match verify::gradients::gradients(&case, 2, 1) {
        Ok(g) => match &g.wrong {
            Some(w) if w.found.is_nan() => return Err(Ending::Unsupported("NaN".into())),
            Some(w) => return Err(Ending::Fail(format!("{w:?}"))),
            None if g.right > 0 => Found::Right,
            None => Found::Open,
        },
        Err(GradientError::Nothing) => Found::Nothing(nothing(&case.graph)),
        Err(e) => Found::Refused(first_line(&e)),
    })
}

/// Floats that are no corner of anything, none of them half-way between integers.
fn generic(shape: &[usize]) -> HostTensor {
    let all: Vec<f32> = (0..shape.iter().product())
        .map(|i: usize| ((i * 37 + 11) % 101) as f32 / 40.0 - 1.265)
        .collect();
    HostTensor::from_slice(shape, &all).expect("as many as the shape has")
}

/// An operator whose derivative the project's cases do not reach: theirs are of integers, or at corners, or data decides how many results
/// there are.
struct Own {
    operator: &'static str,
    nodes: Vec<Message>,
    /// Of the inputs x, v and o.
    shapes: Vec<Vec<usize>>,
    initializers: Vec<Message>,
}

fn own() -> Vec<Own> {
    let one = |operator, node, shapes: &[&[usize]], initializers| Own {
        operator,
        nodes: vec![node],
        shapes: shapes.iter().map(|s| s.to_vec()).collect(),
        initializers,
    };
    let mask = Message::default()
        .int(1, 4)
        .int(2, BOOL)
        .bytes(8, "mask")
        .bytes(9, [1u8, 0, 1, 1]);
    let deform = [("kernel_shape", A::Is(vec![2, 2]))];
    let mut unique = one("Unique", op("Unique x -> u", &[]), &[&[6]], vec![]);
    // Of results whose number data decides a sum has a derivative.
    unique
        .nodes
        .push(op("ReduceSumSquare u -> y", &[("keepdims", A::I(0))]));
    vec![
        one("Trilu", op("Trilu x -> y", &[("upper", A::I(0))]), &[&[3, 4]], vec![]),
        one(
            "Compress",
            op("Compress x mask -> y", &[("axis", A::I(0))]),
            &[&[4, 3]],
            vec![mask],
        ),
        one("Round", op("Round x -> y", &[]), &[&[7]], vec![]),
        one("Sign", op("Sign x -> y", &[]), &[&[7]], vec![]),
        one(
            "DeformConv",
            op("DeformConv x v o -> y", &deform),
            &[&[1, 1, 4, 4], &[1, 1, 2, 2], &[1, 8, 3, 3]],
            vec![],
        ),
        unique,
    ]
}

/// What became of a case of our own.
fn own_checked(own: Own) -> Result<Found, Ending> {
    let inputs: Vec<Message> = (["x", "v", "o"].iter().zip(&own.shapes))
        .map(|(name, shape)| {
            let dims: Vec<D> = shape.iter().map(|&n| D::N(n as i64)).collect();
            value(name, FLOAT, &dims)
        })
        .collect();
    let graph = graph(own.nodes, own.initializers, inputs, vec![result("y")]);
    let bytes = model_of(22, graph, vec![]);
    let imported = import(&bytes, &ImportOptions::default()).map_err(|e| Ending::Fail(e.to_string()))?;
    differentiated(imported.graph, own.shapes.iter().map(|s| generic(s)).collect())
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
         project's cases is differentiated, outputs of floats by\ninputs and constants of floats, along random directions, and \
         compared with finite differences in f64; so is a case of our own of what those do\nnot reach. Listed is each operator \
         that is alone in a case. The derivative of a rounding or a sign is 0, as differences say.\n\n\
         | operator | derivative |\n|---|---|\n",
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
            let mut reasons: Vec<&str> = (found.iter())
                .filter_map(|f| match f {
                    Found::Nothing(reason) => Some(*reason),
                    _ => None,
                })
                .collect();
            reasons.sort_unstable();
            reasons.dedup();
            parts.push(format!("none: {}", reasons.join(", or ")));
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
    for case in own() {
        let operator = case.operator;
        match own_checked(case) {
            Ok(Found::Right) => {
                found.insert(format!("own/{operator}"), (Found::Right, vec![operator.to_string()]));
            }
            other => wrong.push(format!("own/{operator}: {other:?}")),
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
