//! The interpreter against NumPy: every case of the recorded table `numpy_cases.txt` (made by `numpy_cases.py`, which says
//! what it leaves out and why). Each result is also checked against the bounds of the bounded mode.

use std::collections::BTreeMap;

use smallvec::SmallVec;
use tlc_ir::graph::{Labels, Monoid, Origin, ScatterOp, Semiring, Shape, View};
use tlc_ir::interp::{Options, compare, interpret, interpret_with_bounds};
use tlc_ir::{DType, Graph, HostTensor, IndexExpr, NodeId, NodeKind, Scalar, ScalarOp, TensorType};

fn numbers<T: std::str::FromStr>(text: &str) -> Vec<T>
where
    T::Err: std::fmt::Debug,
{
    match text {
        "-" => Vec::new(),
        _ => text.split(',').map(|n| n.parse().expect("a number")).collect(),
    }
}

fn dims(text: &str) -> Shape {
    numbers::<i64>(text).into_iter().map(IndexExpr::from).collect()
}

fn tensor(text: &str, lets: &BTreeMap<String, HostTensor>) -> HostTensor {
    if let Some(name) = text.strip_prefix('@') {
        return lets[name].clone();
    }
    let parts: Vec<&str> = text.split(' ').collect();
    let dtype: DType = parts[0].parse().expect("a dtype");
    let mut t = HostTensor::zeros(dtype, &numbers(parts[1])).expect("small");
    let digits = dtype.bytes() * 2;
    let hex = if parts[2] == "-" { "" } else { parts[2] };
    assert_eq!(hex.len(), t.len() * digits, "{text}");
    for i in 0..t.len() {
        let bits = u64::from_str_radix(&hex[i * digits..(i + 1) * digits], 16).expect("hex");
        t.set(i, Scalar::from_bits(dtype, bits));
    }
    t
}

/// `ij,jk->ik` as canonical labels.
fn labels(expression: &str) -> (SmallVec<[Labels; 2]>, Labels) {
    let (inputs, output) = expression.split_once("->").expect("an arrow");
    let mut known = Vec::new();
    let mut number = |c: char| {
        let at = known.iter().position(|k| *k == c).unwrap_or_else(|| {
            known.push(c);
            known.len() - 1
        });
        at as u16
    };
    let inputs = inputs
        .split(',')
        .map(|term| term.chars().map(&mut number).collect())
        .collect();
    (inputs, output.chars().map(&mut number).collect())
}

fn kind(words: &[&str], operands: &[HostTensor]) -> NodeKind {
    let flag = |w: &str| w == "1";
    match words[0] {
        "map" => NodeKind::Map(ScalarOp::from_name(words[1]).expect("an operation")),
        "convert" => NodeKind::Convert(words[1].parse().expect("a dtype")),
        "reduce" => NodeKind::Reduce {
            monoid: Monoid::from_name(words[1]).expect("a monoid"),
            axes: numbers(words[2]).into(),
        },
        "scan" => NodeKind::Scan {
            monoid: Monoid::from_name(words[1]).expect("a monoid"),
            axis: words[2].parse().expect("an axis"),
            exclusive: flag(words[3]),
            reverse: flag(words[4]),
        },
        "einsum" => {
            let (inputs, output) = labels(words[1]);
            NodeKind::Einsum {
                inputs,
                output,
                semiring: Semiring::from_name(words[2]).expect("a semiring"),
                accumulator: words[3].parse().expect("a dtype"),
                dtype: words[4].parse().expect("a dtype"),
            }
        }
        "view" => NodeKind::View(match words[1] {
            "reshape" => View::Reshape(dims(words[2])),
            "permute" => View::Permute(numbers(words[2]).into()),
            "expand" => View::Expand(dims(words[2])),
            "pad" => View::Pad {
                lo: dims(words[2]).into_boxed_slice(),
                hi: dims(words[3]).into_boxed_slice(),
                interior: dims(words[2]).iter().map(|_| 0).collect(),
                value: Scalar::from_bits(operands[0].dtype(), u64::from_str_radix(words[4], 16).expect("hex")),
            },
            "slice" => View::Slice {
                start: dims(words[2]).into_boxed_slice(),
                step: numbers(words[3]).into(),
                size: dims(words[4]).into_boxed_slice(),
            },
            _ => View::Window {
                axis: words[2].parse().expect("an axis"),
                size: IndexExpr::Const(words[3].parse().expect("a size")),
                stride: words[4].parse().expect("a stride"),
                dilation: words[5].parse().expect("a dilation"),
            },
        }),
        "gather" => NodeKind::Gather {
            axes: numbers(words[1]).into(),
        },
        "scatter" => NodeKind::Scatter {
            op: ScatterOp::ALL
                .into_iter()
                .find(|o| o.name() == words[1])
                .expect("an operation"),
            axes: numbers(words[2]).into(),
        },
        "iota" => NodeKind::Iota {
            ty: TensorType {
                dtype: words[1].parse().expect("a dtype"),
                shape: dims(words[2]),
            },
            axis: words[3].parse().expect("an axis"),
        },
        other => panic!("unknown kind {other}"),
    }
}

/// The position of a float among its dtype's values, so that neighbours differ by one; both zeros are 0.
fn rank(s: Scalar) -> i64 {
    let sign = 1u64 << (s.dtype().bits() - 1);
    let size = (s.bits() & !sign) as i64;
    if s.bits() & sign != 0 { -size } else { size }
}

fn agrees(found: Scalar, expected: Scalar, ulp: i64, zeros: bool) -> bool {
    if found == expected || (found.is_nan() && expected.is_nan()) {
        return true;
    }
    if !found.dtype().is_float() || found.is_nan() || expected.is_nan() {
        return false;
    }
    let both_zero = found.as_f64() == 0.0 && expected.as_f64() == 0.0;
    if both_zero {
        return zeros;
    }
    (rank(found) - rank(expected)).abs() <= ulp
}

struct Case {
    words: Vec<String>,
    operands: Vec<HostTensor>,
    expected: HostTensor,
    ulp: i64,
    zeros: bool,
}

fn table() -> Vec<Case> {
    let text = include_str!("../numpy_cases.txt");
    let mut lets = BTreeMap::new();
    let mut cases = Vec::new();
    let mut current: Option<(Vec<String>, Vec<HostTensor>)> = None;
    let mut finish = |current: Option<(Vec<String>, Vec<HostTensor>)>| {
        if let Some((mut words, mut operands)) = current {
            let expected = operands.pop().expect("a result");
            let (mut ulp, mut zeros) = (0, false);
            words.retain(|w| {
                if let Some(n) = w.strip_prefix("ulp=") {
                    ulp = n.parse().expect("a number");
                }
                zeros |= w == "zeros";
                !w.starts_with("ulp=") && w != "zeros"
            });
            cases.push(Case {
                words,
                operands,
                expected,
                ulp,
                zeros,
            });
        }
    };
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("let ") {
            finish(current.take());
            let (name, value) = rest.split_once(' ').expect("a name");
            lets.insert(name.to_string(), tensor(value, &BTreeMap::new()));
        } else if let Some(rest) = line.strip_prefix("case ") {
            finish(current.take());
            current = Some((rest.split(' ').map(str::to_string).collect(), Vec::new()));
        } else {
            current.as_mut().expect("a case").1.push(tensor(line, &lets));
        }
    }
    finish(current);
    cases
}

fn build(case: &Case) -> Graph {
    let mut g = Graph::new("case");
    let mut operands: Vec<NodeId> = Vec::new();
    for (i, t) in case.operands.iter().enumerate() {
        let ty = TensorType::new(t.dtype(), t.shape().iter().copied());
        operands.push(g.add_input(&format!("x{i}"), ty, Origin::Unknown).expect("an input"));
    }
    let words: Vec<&str> = case.words.iter().map(String::as_str).collect();
    let node = g.add(kind(&words, &case.operands), &operands, Origin::Unknown);
    g.add_output("y", node.unwrap_or_else(|e| panic!("{words:?}: {e}")));
    g
}

#[test]
fn every_recorded_numpy_case_is_reproduced() {
    let cases = table();
    assert!(cases.len() > 1000, "{} cases", cases.len());
    let mut failures = Vec::new();
    for case in &cases {
        let g = build(case);
        let found = interpret(&g, &case.operands, &Options::default()).expect("interpretable");
        let found = &found[0];
        assert_eq!(found.dtype(), case.expected.dtype(), "{:?}", case.words);
        assert_eq!(found.shape(), case.expected.shape(), "{:?}", case.words);
        let bad = (0..found.len()).find(|&i| !agrees(found.get(i), case.expected.get(i), case.ulp, case.zeros));
        if let Some(i) = bad {
            let args: Vec<String> = case
                .operands
                .iter()
                .filter(|t| t.len() == found.len())
                .map(|t| t.get(i).to_string())
                .collect();
            failures.push(format!(
                "{:?} {:?}: element {i} of {args:?} is {}; NumPy has {}",
                case.words,
                case.operands.iter().map(|t| t.dtype()).collect::<Vec<_>>(),
                found.get(i),
                case.expected.get(i)
            ));
        }
    }
    assert!(
        failures.is_empty(),
        "{} cases fail:\n{}",
        failures.len(),
        failures[..failures.len().min(60)].join("\n")
    );
}

/// One node on exact inputs: the bounds must hold both our plain result and NumPy's, and leave little unchecked.
#[test]
fn bounds_of_single_nodes_hold_the_plain_result_and_numpy() {
    let (mut uncertain, mut all) = (0, 0);
    let mut failures = Vec::new();
    for case in &table() {
        let g = build(case);
        let plain = interpret(&g, &case.operands, &Options::default()).expect("interpretable");
        let bounds = interpret_with_bounds(&g, &case.operands, &Options::default()).expect("interpretable");
        for (whose, t) in [("plain", &plain[0]), ("NumPy", &case.expected)] {
            if let Err(e) = compare(t, &bounds[0]) {
                failures.push(format!("{:?} {whose}: {e}", case.words));
            }
        }
        uncertain += bounds[0].uncertain();
        all += plain[0].len();
    }
    assert!(
        failures.is_empty(),
        "{} fail:\n{}",
        failures.len(),
        failures[..failures.len().min(60)].join("\n")
    );
    assert!(uncertain * 100 < all, "{uncertain} of {all} elements are uncertain");
}
