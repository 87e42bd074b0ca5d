//! `tlc einsum` means what `numpy.einsum` means: thousands of generated expressions with the results that NumPy recorded
//! (`einsum_numpy.txt`, made by `einsum_numpy.py`). All run through the recording API, which the command uses; a sample
//! runs through the binary. Where Python with NumPy is at hand, the table is made again and compared.

use std::process::Command;

use tlc::{CompileOptions, DType, Graph, HostTensor, Input, Scalar};
use tlc_formats::npy;

const TABLE: &str = include_str!("../einsum_numpy.txt");

struct Case {
    line: usize,
    expression: String,
    operands: Vec<HostTensor>,
    /// Dtype, shape and values; none if NumPy refuses.
    result: Option<(DType, Vec<usize>, Vec<i64>)>,
}

fn shape(text: &str) -> Vec<usize> {
    if text == "-" {
        vec![]
    } else {
        text.split('x').map(|d| d.parse().expect("an extent")).collect()
    }
}

fn operand(k: usize, shape: &[usize], dtype: DType) -> HostTensor {
    let mut tensor = HostTensor::zeros(dtype, shape).expect("small");
    for i in 0..tensor.len() {
        let x = (7 * i + 3 * k + 1) as i64;
        tensor.set(
            i,
            match dtype {
                DType::Bool => Scalar::from_bool(x % 3 == 0),
                DType::U8 => Scalar::from_i64(dtype, x % 5),
                d => Scalar::from_i64(d, x % 5 - 2),
            },
        );
    }
    tensor
}

fn cases() -> Vec<Case> {
    let lines = TABLE.lines().enumerate().filter(|(_, l)| !l.starts_with('#'));
    let read = |(number, line): (usize, &str)| {
        let fields: Vec<&str> = line.split('\t').collect();
        let [expression, shapes, dtypes, verdict] = fields[..] else {
            panic!("line {}: {line}", number + 1)
        };
        let dtype = |d: &str| d.parse::<DType>().expect("a dtype");
        let operands = shapes
            .split(' ')
            .map(shape)
            .zip(dtypes.split(' ').map(dtype))
            .enumerate();
        let result = verdict.strip_prefix("ok ").map(|rest| {
            let mut parts = rest.split(' ');
            let ty = dtype(parts.next().expect("a dtype"));
            let dims = shape(parts.next().expect("a shape"));
            (ty, dims, parts.map(|v| v.parse().expect("a whole number")).collect())
        });
        Case {
            line: number + 1,
            expression: serde_json::from_str(expression).expect("a JSON string"),
            operands: operands.map(|(k, (s, d))| operand(k, &s, d)).collect(),
            result,
        }
    };
    lines.map(read).collect()
}

/// The result of the recording API, or its refusal.
fn evaluate(expression: &str, operands: &[HostTensor]) -> Result<HostTensor, String> {
    let graph = Graph::new("einsum");
    let inputs: Vec<tlc::Tensor> = operands
        .iter()
        .enumerate()
        .map(|(k, t)| graph.input(&format!("operand{k}"), t.dtype(), t.shape().to_vec()))
        .collect();
    let result = tlc::einsum(expression, &inputs.iter().collect::<Vec<_>>());
    graph.output("result", &result);
    graph.check().map_err(|e| e.to_string())?;
    let options = CompileOptions {
        threads: Some(1),
        ..CompileOptions::default()
    };
    let executable = graph
        .compile(&options)
        .unwrap_or_else(|e| panic!("`{expression}`: {e}"));
    let outputs = executable
        .run(&operands.iter().map(Input::from).collect::<Vec<_>>())
        .expect("a run");
    Ok(outputs[0].to_host())
}

fn differs(found: &HostTensor, expected: &(DType, Vec<usize>, Vec<i64>)) -> Option<String> {
    let (dtype, shape, values) = expected;
    let same = found.dtype() == *dtype
        && found.shape() == shape
        && (0..found.len()).all(|i| {
            let v = found.get(i);
            let number = if v.dtype() == DType::Bool {
                f64::from(u8::from(v.as_bool()))
            } else {
                v.as_f64()
            };
            number == values[i] as f64
        });
    (!same).then(|| format!("expected {dtype}{shape:?} {values:?}, found {found:?}"))
}

/// The expression with every label replaced by one that is no ASCII letter, in the same order of code points.
fn renamed(expression: &str) -> String {
    let letter = |c: char| match c {
        'A'..='Z' => char::from_u32('А' as u32 + (c as u32 - 'A' as u32)).expect("a Cyrillic capital"),
        'a'..='z' => char::from_u32('一' as u32 + (c as u32 - 'a' as u32)).expect("a Han character"),
        other => other,
    };
    expression.chars().map(letter).collect()
}

#[test]
fn results_are_those_of_numpy() {
    let mut wrong = Vec::new();
    for case in cases() {
        let found = evaluate(&case.expression, &case.operands);
        match (&case.result, found) {
            (Some(expected), Ok(found)) => {
                let told = differs(&found, expected);
                wrong.extend(told.map(|t| format!("line {}: `{}`: {t}", case.line, case.expression)));
            }
            (Some(_), Err(e)) => wrong.push(format!("line {}: `{}` refused: {e}", case.line, case.expression)),
            (None, Ok(_)) => wrong.push(format!("line {}: `{}` accepted", case.line, case.expression)),
            (None, Err(_)) => {}
        }
    }
    assert!(
        wrong.is_empty(),
        "{} cases differ:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(20)].join("\n")
    );
}

#[test]
fn any_letter_is_a_label() {
    for case in cases().iter().step_by(17) {
        let name = renamed(&case.expression);
        match (&case.result, evaluate(&name, &case.operands)) {
            (Some(expected), Ok(found)) => assert_eq!(differs(&found, expected), None, "line {}: `{name}`", case.line),
            (None, Err(_)) => {}
            (_, found) => panic!("line {}: `{name}`: {found:?}", case.line),
        }
    }
}

#[test]
fn the_command_gives_the_same() {
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    for case in cases().iter().step_by(41) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tlc"));
        command
            .current_dir(dir.path())
            .args(["einsum", "--output", "out.npy", "--", &case.expression]);
        for (k, tensor) in case.operands.iter().enumerate() {
            let name = format!("operand{k}.npy");
            let mut bytes = Vec::new();
            npy::write(tensor, &mut bytes).expect("writing to memory");
            std::fs::write(dir.path().join(&name), bytes).expect("a file in a temporary directory");
            command.arg(name);
        }
        let out = dir.path().join("out.npy");
        let _ = std::fs::remove_file(&out);
        let ran = command.output().expect("the binary starts");
        let err = String::from_utf8_lossy(&ran.stderr);
        match &case.result {
            Some(expected) => {
                assert_eq!(ran.status.code(), Some(0), "line {}: {err}", case.line);
                let found = npy::read(&std::fs::read(&out).expect("a result")).expect("an npy file");
                assert_eq!(
                    differs(&found, expected),
                    None,
                    "line {}: `{}`",
                    case.line,
                    case.expression
                );
            }
            None => {
                assert_eq!(ran.status.code(), Some(3), "line {}: {err}", case.line);
                assert!(
                    err.starts_with("error: EXPR") && !out.exists(),
                    "line {}: {err}",
                    case.line
                );
            }
        }
    }
}

#[test]
fn the_table_is_what_numpy_says_today() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/einsum_numpy.py");
    let made = Command::new("python3").arg(script).output();
    let Some(made) = made.ok().filter(|o| o.status.success()) else {
        println!("SKIP: no python3 with NumPy; the recorded table stands");
        return;
    };
    // The first line names the version of NumPy.
    let cases = |text: &str| text.lines().skip(1).map(str::to_string).collect::<Vec<_>>();
    assert_eq!(cases(&String::from_utf8_lossy(&made.stdout)), cases(TABLE));
}
