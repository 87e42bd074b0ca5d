//! The ONNX project's own backend tests, compiled and run.
//!
//! The data is not part of this repository: tests/conformance/fetch.py fetches it into target/onnx-conformance, or
//! TLC_ONNX_CONFORMANCE names a folder. Without it one line says SKIP. tests/conformance/passing.txt holds the names
//! of the cases that pass: one of them failing is an error, and so is a case that passes and is not in it (TLC_BLESS=1
//! writes it anew, with RESULTS.md). Each case also goes by way of the model's text, its weights outside, to the same bits, and
//! by way of a model that was exported, within the case's tolerance, unless ONNX cannot say its graph.
//!
//! The same cases pass on a GPU, which `gpusim/driver` simulates in a process of its own.

#[path = "cuda/child.rs"]
mod child;
#[path = "conformance/gradients.rs"]
mod gradients;
#[allow(dead_code, reason = "shared with another test, which uses all of it")]
#[path = "onnx/proto.rs"]
mod proto;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tlc::onnx::{ImportOptions, import};
use tlc::{CompileOptions, DType, Device, HostTensor, Input, compile_ir, tlir};
use tlc_formats::ErrorKind;
use tlc_formats::onnx::{Model, Tensor};
use tlc_ir::Graph;

/// How one case ended, and why.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Ending {
    Pass,
    Fail(String),
    Unsupported(String),
    LeftOut(String),
}

/// Domains and types that a numeric tensor compiler leaves out.
fn left_out(model: Model<'_>) -> Option<String> {
    let graph = model.graph()?;
    for set in model.operator_sets() {
        if set.domain().starts_with("ai.onnx.") {
            return Some(format!("domain {}", set.domain()));
        }
    }
    let values = graph.inputs().chain(graph.outputs());
    for value in values {
        let Some(ty) = value.ty() else {
            continue;
        };
        match ty.tensor() {
            None => return Some("sequences, optionals and maps as inputs or outputs".into()),
            Some(t) if t.element() == 8 => return Some("strings".into()),
            Some(t) if matches!(t.element(), 14 | 15) => return Some("complex numbers".into()),
            Some(_) => {}
        }
    }
    for node in graph.nodes() {
        let op = node.op_type();
        if op.starts_with("Optional") {
            return Some("optionals".into());
        }
        if matches!(op, "Adagrad" | "Adam" | "Momentum" | "Gradient" | "ImageDecoder") {
            return Some(format!("{op}: training or image decoding"));
        }
    }
    None
}

/// Cases whose expected values are further from the exact ones than their own tolerance: what was found of each.
const BEYOND_TOLERANCE: &[(&str, &str)] = &[
    (
        "node/test_attention_4d_causal_fp16_expanded",
        "the expected values come from a softmax whose exponentials, sum and quotient are each rounded to f16; rounded once, \
         from f32 or f64, elements 12 and 20 differ by 2 units in the last place, which is more than the tolerance",
    ),
    (
        "node/test_dft_inverse",
        "ten imaginary parts are 0 in exact arithmetic and 1.9e-7 in the expected values, the rounding of an f32 FFT; the \
         absolute tolerance is 1e-7",
    ),
    ("node/test_dft_inverse_opset19", "as test_dft_inverse"),
];

/// Whether results are random numbers, which no two implementations draw alike: of them only types and shapes are compared.
fn draws(model: Model<'_>) -> bool {
    let random = |op: &str| op.starts_with("Random") || matches!(op, "Bernoulli" | "Multinomial");
    let training = |n: &tlc_formats::onnx::Node<'_>| n.op_type() == "Dropout" && n.inputs().count() == 3;
    let mut nodes = model.graph().into_iter().flat_map(|g| g.nodes());
    nodes.any(|n| random(n.op_type()) || training(&n))
}

/// The numbers of `tolerance.json` or, for cases that bring one, `data.json`.
fn tolerance(folder: &Path) -> (f64, f64) {
    let mut limits = (1e-3, 1e-7);
    for file in ["tolerance.json", "data.json"] {
        let Ok(text) = std::fs::read_to_string(folder.join(file)) else {
            continue;
        };
        let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        limits.0 = value["rtol"].as_f64().unwrap_or(limits.0);
        limits.1 = value["atol"].as_f64().unwrap_or(limits.1);
    }
    limits
}

/// As the project's own runner compares: equal shapes and element types, `|a - b| <= atol + rtol |b|`, NaN where NaN is;
/// bf16 within two of its units.
fn compare(found: &HostTensor, expected: &HostTensor, (rtol, atol): (f64, f64)) -> Result<(), String> {
    if found.dtype() != expected.dtype() || found.shape() != expected.shape() {
        return Err(format!(
            "expected {}{:?}, found {}{:?}",
            expected.dtype(),
            expected.shape(),
            found.dtype(),
            found.shape()
        ));
    }
    let rtol = match expected.dtype() {
        DType::BF16 => rtol.max(2f64.powi(-6)),
        _ => rtol,
    };
    for i in 0..found.len() {
        let (a, b) = (found.get(i), expected.get(i));
        let close = match expected.dtype() {
            d if d.is_any_float() => {
                let (a, b) = (a.as_f64(), b.as_f64());
                a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= atol + rtol * b.abs()
            }
            _ => a == b || (a.as_f64() - b.as_f64()).abs() <= atol + rtol * b.as_f64().abs(),
        };
        if !close {
            return Err(format!("element {i}: expected {b}, found {a}"));
        }
    }
    Ok(())
}

fn tensor(path: &Path) -> Result<HostTensor, Ending> {
    let bytes = std::fs::read(path).map_err(|e| Ending::Fail(e.to_string()))?;
    let host = Tensor::parse(&bytes).and_then(|t| t.to_host(None));
    host.map_err(|e| match e.kind() {
        ErrorKind::Unsupported => Ending::Unsupported(e.to_string()),
        _ => Ending::Fail(format!("{}: {e}", path.display())),
    })
}

/// The graph by way of its text, with its larger constants by way of a file of weights.
fn as_text(graph: &Graph) -> Result<Graph, String> {
    let printed = tlir::print(graph);
    let mut weights = vec![];
    tlir::write_weights(&printed, &mut weights).map_err(|e| e.to_string())?;
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let path = folder.path().join("model.tlir");
    std::fs::write(tlir::weights_path(&path), weights).map_err(|e| e.to_string())?;
    let module = tlir::parse(printed.text.as_bytes(), Some(&path)).map_err(|e| format!("as text: {}", e[0]))?;
    module
        .graphs
        .into_iter()
        .next()
        .ok_or_else(|| "no graph in the text".to_string())
}

/// What the graph computes by way of an ONNX model of our own.
fn exported(graph: &Graph, arguments: &[Input<'_>], options: &CompileOptions) -> Result<tlc::Outputs, String> {
    let model = tlc::onnx::export(graph).map_err(|e| format!("export: {e}"))?;
    let mut bytes = vec![];
    model.write(&mut bytes).map_err(|e| e.to_string())?;
    let again = import(&bytes, &ImportOptions::default()).map_err(|e| e.to_string())?;
    let executable = compile_ir(&again.graph, options).map_err(|e| e.to_string())?;
    executable.run(arguments).map_err(|e| e.to_string())
}

fn numbered(folder: &Path, what: &str) -> Result<Vec<HostTensor>, Ending> {
    let files = (0..).map(|i| folder.join(format!("{what}_{i}.pb")));
    files.take_while(|f| f.exists()).map(|f| tensor(&f)).collect()
}

/// Whether the model as text and as exported has the same results.
fn other_ways(
    folder: &Path,
    graph: &Graph,
    arguments: &[Input<'_>],
    options: &CompileOptions,
    found: &tlc::Outputs,
) -> Result<(), Ending> {
    let failed = |e: &dyn std::fmt::Display| Ending::Fail(first_line(e));
    let read = as_text(graph).map_err(Ending::Fail)?;
    let again = compile_ir(&read, options).map_err(|e| failed(&e))?;
    let again = again.run(arguments).map_err(|e| failed(&e))?;
    let bits = |all: &[tlc::Output]| -> Vec<(String, HostTensor)> {
        all.iter().map(|o| (o.name.clone(), o.to_host())).collect()
    };
    if bits(found) != bits(&again) {
        return Err(Ending::Fail("other bits from the model as text".into()));
    }
    match exported(graph, arguments, options) {
        Ok(again) => {
            for (again, found) in again.iter().zip(found) {
                compare(&again.to_host(), &found.to_host(), tolerance(folder))
                    .map_err(|e| Ending::Fail(format!("exported, output {}: {e}", again.name)))?;
            }
        }
        Err(e) if e.starts_with("export: ") => {
            if std::env::var_os("TLC_CONFORMANCE_REFUSED").is_some() {
                println!("{}: {e}", folder.display());
            }
        }
        Err(e) => return Err(Ending::Fail(format!("exported: {e}"))),
    }
    Ok(())
}

/// The first line of what an error says.
fn first_line(e: &dyn std::fmt::Display) -> String {
    e.to_string().lines().next().unwrap_or_default().into()
}

/// The model's bytes, unless it is left out.
fn read(folder: &Path) -> Result<Vec<u8>, Ending> {
    let bytes = std::fs::read(folder.join("model.onnx")).map_err(|e| Ending::Fail(e.to_string()))?;
    match left_out(parsed(&bytes)?) {
        Some(reason) => Err(Ending::LeftOut(reason)),
        None => Ok(bytes),
    }
}

fn parsed(bytes: &[u8]) -> Result<Model<'_>, Ending> {
    Model::parse(bytes).map_err(|e| Ending::Fail(e.to_string()))
}

/// A case's data sets.
fn sets(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let sets = (0..).map(|i| folder.join(format!("test_data_set_{i}")));
    sets.take_while(|s| s.is_dir())
}

/// A model as it is imported for one of its data sets, with its graph's inputs in order.
fn loaded(folder: &Path, bytes: &[u8], set: &Path) -> Result<(Graph, Vec<HostTensor>), Ending> {
    let graph = parsed(bytes)?.graph().expect("a model that parses has a graph");
    let initialized: BTreeSet<&str> = graph.initializers().map(|t| t.name()).collect();
    let inputs = numbered(set, "input")?;
    // Files are numbered as the inputs that the model declares, or as those that have no initializer.
    let all: Vec<&str> = graph.inputs().map(|i| i.name()).collect();
    let open: Vec<&str> = all.iter().copied().filter(|n| !initialized.contains(n)).collect();
    let names = if inputs.len() == all.len() { all } else { open };
    let values: BTreeMap<&str, &HostTensor> = names.into_iter().zip(&inputs).collect();
    let given = |name: &str, _: DType| values.get(name).map(|v| (*v).clone());
    let options = ImportOptions {
        folder: Some(folder),
        values: Some(&given),
        ..ImportOptions::default()
    };
    let imported = import(bytes, &options).map_err(|e| match e.kind() {
        ErrorKind::Unsupported => Ending::Unsupported(e.to_string()),
        _ => Ending::Fail(e.to_string()),
    })?;
    let mut arguments = vec![];
    for &id in imported.graph.inputs() {
        let tlc_ir::NodeKind::Input { name, .. } = &imported.graph.node(id).kind else {
            continue;
        };
        match values.get(name.as_str()) {
            Some(v) => arguments.push((*v).clone()),
            None => return Err(Ending::Fail(format!("the data has no input `{name}`"))),
        }
    }
    Ok((imported.graph, arguments))
}

/// Runs a case on a device; on the host by all ways.
fn case(folder: &Path, device: Device) -> Result<(), Ending> {
    let bytes = read(folder)?;
    let model = parsed(&bytes)?;
    let mut any = false;
    for set in sets(folder) {
        any = true;
        let outputs = numbered(&set, "output")?;
        let (graph, given) = loaded(folder, &bytes, &set)?;
        let failed = |e: &dyn std::fmt::Display| Ending::Fail(first_line(e));
        let options = CompileOptions {
            threads: Some(1),
            device,
            ..CompileOptions::default()
        };
        let executable = compile_ir(&graph, &options).map_err(|e| failed(&e))?;
        let arguments: Vec<Input<'_>> = given.iter().map(Input::from).collect();
        let found = executable.run(&arguments).map_err(|e| failed(&e))?;
        if device == Device::cpu() {
            other_ways(folder, &graph, &arguments, &options, &found)?;
        }
        for (found, expected) in found.iter().zip(&outputs) {
            let host = found.to_host();
            let alike = host.dtype() == expected.dtype() && host.shape() == expected.shape();
            compare(&host, expected, tolerance(folder)).map_err(|e| match alike && draws(model) {
                true => Ending::LeftOut("random numbers; types and shapes agree".into()),
                false => Ending::Fail(format!("output {}: {e}", found.name)),
            })?;
        }
        if found.len() < outputs.len() {
            return Err(Ending::Fail(format!(
                "{} outputs; expected {}",
                found.len(),
                outputs.len()
            )));
        }
    }
    match any {
        true => Ok(()),
        false => Err(Ending::LeftOut("no data".into())),
    }
}

fn data() -> Option<PathBuf> {
    let folder = match std::env::var_os("TLC_ONNX_CONFORMANCE") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("target/onnx-conformance"),
    };
    folder.join("node").is_dir().then_some(folder)
}

/// The reason without the names and numbers of one case, so that like cases count together.
fn group(reason: &str) -> String {
    let text = match (reason.find('('), reason.find("): ")) {
        (Some(a), Some(b)) if reason.starts_with("node '") && a < b => {
            format!("{}: {}", &reason[a + 1..b], &reason[b + 3..])
        }
        _ => reason.to_string(),
    };
    let text = text.replace('|', "\\|");
    text.chars().take(160).collect()
}

fn results(endings: &BTreeMap<String, Ending>) -> String {
    let mut counts: BTreeMap<&str, [usize; 4]> = BTreeMap::new();
    let column = |e: &Ending| match e {
        Ending::Pass => 0,
        Ending::Fail(_) => 1,
        Ending::Unsupported(_) => 2,
        Ending::LeftOut(_) => 3,
    };
    for (name, ending) in endings {
        let kind = name.split('/').next().unwrap_or_default();
        counts.entry(kind).or_default()[column(ending)] += 1;
    }
    let mut text = String::from(
        "# ONNX backend tests\n\nWritten by `TLC_BLESS=1 cargo test --test conformance` on the cases of onnx 1.23.2 that \
         tests/conformance/fetch.py\nlays out. A case passes when every output has the expected element type and shape and \
         agrees within the case's own\ntolerance. Unsupported cases are refused with the reason given; left out are \
         sequences, optionals and maps that go in or out, strings, complex\nnumbers, random numbers, the optimizers' and `ai.onnx.ml`'s operators. The same cases pass on a GPU that is simulated.\n\n| kind | \
         pass | fail | unsupported | left out | all |\n|---|---|---|---|---|---|\n",
    );
    let mut all = [0; 4];
    for (kind, row) in &counts {
        let sum: usize = row.iter().sum();
        let _ = writeln!(
            text,
            "| {kind} | {} | {} | {} | {} | {sum} |",
            row[0], row[1], row[2], row[3]
        );
        (0..4).for_each(|i| all[i] += row[i]);
    }
    let sum: usize = all.iter().sum();
    let _ = writeln!(
        text,
        "| all | {} | {} | {} | {} | {sum} |",
        all[0], all[1], all[2], all[3]
    );
    let section = |text: &mut String, title: &str, pick: &dyn Fn(&Ending) -> Option<String>| {
        let mut groups: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for (name, ending) in endings {
            if let Some(reason) = pick(ending) {
                groups.entry(group(&reason)).or_default().push(name);
            }
        }
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups.sort_by_key(|(reason, cases)| (std::cmp::Reverse(cases.len()), reason.clone()));
        let _ = writeln!(text, "\n## {title}\n\n| cases | reason | such as |\n|---|---|---|");
        for (reason, cases) in groups {
            let _ = writeln!(text, "| {} | {reason} | {} |", cases.len(), cases[0]);
        }
    };
    section(&mut text, "Fail", &|e| match e {
        Ending::Fail(r) => Some(r.clone()),
        _ => None,
    });
    for (name, reason) in BEYOND_TOLERANCE {
        if matches!(endings.get(*name), Some(Ending::Fail(_))) {
            let _ = writeln!(text, "\n`{name}`: {reason}.");
        }
    }
    section(&mut text, "Unsupported", &|e| match e {
        Ending::Unsupported(r) => Some(r.clone()),
        _ => None,
    });
    section(&mut text, "Left out", &|e| match e {
        Ending::LeftOut(r) => Some(r.clone()),
        _ => None,
    });
    text
}

/// The cases of a folder.
fn names(folder: &Path) -> Vec<String> {
    let only = std::env::var("TLC_CONFORMANCE_FILTER").ok();
    let mut names = vec![];
    for kind in ["node", "simple", "pytorch-converted", "pytorch-operator"] {
        let Ok(entries) = std::fs::read_dir(folder.join(kind)) else {
            continue;
        };
        let found = entries.flatten().filter(|e| e.path().is_dir());
        let found = found.map(|e| format!("{kind}/{}", e.file_name().to_string_lossy()));
        names.extend(found.filter(|name| only.as_ref().is_none_or(|f| name.contains(f))));
    }
    names
}

/// How all cases end on a device, each on one of so many threads.
fn endings(folder: &Path, device: Device, threads: usize) -> BTreeMap<String, Ending> {
    let names = names(folder);
    let filtered = std::env::var_os("TLC_CONFORMANCE_FILTER").is_some();
    let ended = |name: &str| {
        let start = Instant::now();
        let ending = match catch_unwind(AssertUnwindSafe(|| case(&folder.join(name), device))) {
            Ok(Ok(())) => Ending::Pass,
            Ok(Err(ending)) => ending,
            Err(_) => Ending::Fail("panicked".into()),
        };
        if filtered {
            println!("{name}: {ending:?}, {:.1} s", start.elapsed().as_secs_f64());
        }
        ending
    };
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut own = vec![];
        while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
            own.push((name.clone(), ended(name)));
        }
        own
    };
    std::thread::scope(|s| {
        let workers: Vec<_> = (0..threads).map(|_| s.spawn(worker)).collect();
        let all = workers.into_iter().flat_map(|w| w.join().expect("it catches panics"));
        all.collect()
    })
}

fn passing(endings: &BTreeMap<String, Ending>) -> BTreeSet<&str> {
    let passing = endings.iter().filter(|(_, e)| **e == Ending::Pass);
    passing.map(|(n, _)| n.as_str()).collect()
}

/// An error unless those cases pass that did before.
fn compare_with_before(endings: &BTreeMap<String, Ending>) {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance");
    let passing = passing(endings);
    let before = std::fs::read_to_string(own.join("passing.txt")).expect("passing.txt is there");
    let before: BTreeSet<&str> = before.lines().collect();
    let lost: Vec<String> = before
        .difference(&passing)
        .map(|n| format!("{n}: {:?}", endings.get(*n)))
        .collect();
    assert!(
        lost.is_empty(),
        "{} cases fail that passed:\n{}",
        lost.len(),
        lost.join("\n")
    );
    let new: Vec<&&str> = passing.difference(&before).collect();
    assert!(
        new.is_empty(),
        "cases pass that are not in passing.txt (TLC_BLESS=1 adds them): {new:?}"
    );
}

const NO_DATA: &str =
    "SKIP conformance: no data; python3 tests/conformance/fetch.py fetches it, or TLC_ONNX_CONFORMANCE names it";

#[test]
fn backend_cases_that_passed_before_pass() {
    let Some(folder) = data() else {
        println!("{NO_DATA}");
        return;
    };
    let endings = endings(&folder, Device::cpu(), 1);
    if std::env::var_os("TLC_CONFORMANCE_FILTER").is_some() {
        return;
    }
    if std::env::var_os("TLC_BLESS").is_some() {
        let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance");
        let list: String = passing(&endings).iter().map(|n| format!("{n}\n")).collect();
        std::fs::write(own.join("passing.txt"), list).expect("passing.txt is written");
        std::fs::write(own.join("RESULTS.md"), results(&endings)).expect("RESULTS.md is written");
        return;
    }
    compare_with_before(&endings);
}

#[test]
fn backend_cases_pass_on_a_gpu() {
    if data().is_none() {
        println!("{NO_DATA}");
        return;
    }
    if let Some(run) = child::simulated("cases_on_a_gpu", &[]) {
        println!("{}", run.printed("cases:").join("\n"));
    }
}

#[test]
#[ignore = "run by backend_cases_pass_on_a_gpu, with a simulated device"]
fn cases_on_a_gpu() {
    let folder = data().expect("there is data");
    let endings = endings(&folder, Device::cuda(0), 2);
    if std::env::var_os("TLC_CONFORMANCE_FILTER").is_none() {
        compare_with_before(&endings);
    }
    println!("cases: {} of {} pass", passing(&endings).len(), endings.len());
}
