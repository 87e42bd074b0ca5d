//! Networks of the kinds that people export, against what ONNX Runtime computed.
//!
//! tests/models/make.py builds the models and records the calls: several sizes of batch, length, picture and cache for each
//! network, all of which one compilation serves. Those of tests/models/exported are written by PyTorch's exporters, with every size
//! symbolic that they allow (tests/models/export.py): each taught the import something about shape arithmetic. Those of
//! tests/models/quantized are written by ONNX Runtime's quantizer (tests/models/quantize.py).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tlc::onnx::{ImportOptions, import, import_in_place};
use tlc::{CompileOptions, Executable, HostTensor, Input, compile_ir};
use tlc_codegen::wide::Level;
use tlc_formats::npz;
use tlc_ir::plan::{Plan, Step};
use tlc_ir::tensor::BytesOwner;

/// The largest difference, relative to the largest value of the output.
const RELATIVE: f64 = 1e-3;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models")
}

/// The arrays `PREFIX.K.NAME` of a call, by name.
fn arrays(all: &BTreeMap<String, HostTensor>, prefix: &str, call: usize) -> BTreeMap<String, HostTensor> {
    let start = format!("{prefix}.{call}.");
    let of_call = all
        .iter()
        .filter_map(|(k, v)| Some((k.strip_prefix(&start)?.to_string(), v.clone())));
    of_call.collect()
}

/// What is wrong with the results of one network, a line for each.
fn check(folder: &Path, name: &str, threads: usize) -> Vec<String> {
    let read =
        |ending: &str| std::fs::read(folder.join(format!("{name}.{ending}"))).expect("the file is in the repository");
    let recorded = read("npz");
    let mut archive = npz::Archive::open(&recorded).expect("an archive");
    let names: Vec<String> = archive.names().map(Into::into).collect();
    let all: BTreeMap<String, HostTensor> = names
        .into_iter()
        .map(|k| (k.clone(), archive.read(&k, &Default::default()).expect("an array")))
        .collect();

    // Whether constants are copied or shared with the file's bytes makes no difference.
    let bytes: BytesOwner = Arc::new(read("onnx"));
    let imported = match threads {
        1 => import((*bytes).as_ref(), &ImportOptions::default()),
        _ => import_in_place(&bytes, &ImportOptions::default()),
    };
    let imported = match imported {
        Ok(i) => i,
        Err(e) => return vec![format!("{name}: import: {e}")],
    };
    assert!(imported.fixed.is_empty(), "{name}: specialized on values of inputs");
    let options = CompileOptions {
        threads: Some(threads),
        ..CompileOptions::default()
    };
    let executable = match compile_ir(&imported.graph, &options) {
        Ok(e) => e,
        Err(e) => return vec![format!("{name}: compile: {e}")],
    };
    let mut wrong = vec![];
    for call in 0.. {
        let (inputs, expected) = (arrays(&all, "in", call), arrays(&all, "out", call));
        if expected.is_empty() {
            assert!(call > 0, "{name}: no calls");
            break;
        }
        let quantum = |output: &str| {
            all.get(&format!("quantum.{output}"))
                .map(|q| q.as_slice::<f32>().expect("f32")[0])
        };
        wrong.extend(
            differences(&executable, &inputs, &expected, &quantum)
                .into_iter()
                .map(|w| format!("{name} call {call}: {w}")),
        );
    }
    wrong
}

/// Where outputs differ from what is expected by more than [`RELATIVE`] or, if the network is quantized, by more than a `quantum`.
fn differences(
    executable: &Executable,
    inputs: &BTreeMap<String, HostTensor>,
    expected: &BTreeMap<String, HostTensor>,
    quantum: &dyn Fn(&str) -> Option<f32>,
) -> Vec<String> {
    let declared = &executable.plan().inputs;
    let given: Vec<Input<'_>> = declared.iter().map(|i| (&inputs[&i.name]).into()).collect();
    let outputs = match executable.run(&given) {
        Ok(outputs) => outputs,
        Err(e) => return vec![e.to_string()],
    };
    assert_eq!(outputs.len(), expected.len());
    let mut wrong = vec![];
    for output in outputs {
        let expected = &expected[&output.name];
        if output.shape() != expected.shape() {
            wrong.push(format!(
                "{}: shape {:?}, expected {:?}",
                output.name,
                output.shape(),
                expected.shape()
            ));
            continue;
        }
        let (found, expected) = (
            output.as_slice::<f32>().expect("f32"),
            expected.as_slice::<f32>().expect("f32"),
        );
        let largest = expected.iter().fold(0f64, |m, &v| m.max(v.abs().into()));
        let off = |(&a, &b): (&f32, &f32)| f64::from(a - b).abs();
        let worst = found
            .iter()
            .zip(expected)
            .map(off)
            .fold(0f64, |m, d| if d.is_nan() { d } else { m.max(d) });
        // A step is the difference of two multiples of it, each rounded.
        let allowed = quantum(&output.name).map_or(RELATIVE * largest, |q| f64::from(q) * 1.001);
        if worst.is_nan() || worst > allowed {
            wrong.push(format!("{}: off by {worst:.2e} of {largest:.2e}", output.name));
        }
    }
    wrong
}

/// Checks every network in a folder, which holds `count`.
fn check_all(folder: &Path, count: usize) {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .expect("a folder of models")
        .filter_map(|f| Some(f.ok()?.file_name().to_str()?.strip_suffix(".onnx")?.to_string()))
        .collect();
    names.sort();
    assert_eq!(names.len(), count, "{names:?}");
    let wrong: Vec<String> = [1, 2]
        .into_iter()
        .flat_map(|t| names.iter().flat_map(move |n| check(folder, n, t)))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn networks_answer_as_onnx_runtime_does() {
    check_all(&folder(), 13);
}

#[test]
fn exported_networks_compute_what_onnx_runtime_does_at_every_size() {
    check_all(&folder().join("exported"), 10);
}

/// Sums of bytes are exact, and what is behind them is rounded as the operators say: at most one step between bytes is another.
#[test]
fn quantized_networks_compute_what_their_operators_say() {
    check_all(&folder().join("quantized"), 3);
}

/// What of a plan runs as a kernel of its own, in order of names; and products (those behind others as well), and kernels in the steps
/// of products.
fn apart(plan: &Plan, out: &mut (Vec<String>, usize, usize)) {
    for step in &plan.steps {
        match step {
            Step::Gemm(g) => {
                out.1 += 1 + usize::from(g.behind().is_some());
                out.2 += usize::from(g.epilogue.is_some());
            }
            Step::Loop(l) => apart(&l.body, out),
            _ => out.0.extend(step.launches().iter().map(|l| l.label.clone())),
        }
    }
    out.0.sort();
}

/// Biases, activations, residuals, masks, reshapes and most transposes have no kernel of their own: they run behind the product
/// that they follow, or in the kernel of a norm, a softmax, a pool or a depthwise convolution, of which each is one.
#[test]
fn networks_have_no_kernels_for_what_follows_a_product() {
    // Of the network of that name: products, kernels in their steps, kernels of their own.
    // A convolution whose channels fill vectors is no product where the machine's code has tiles for it, but a kernel with what is behind
    // it: padding and pools are then no longer behind a product. One of `diffusion` is behind the product that it is added to.
    // Eight channels fill a vector of AVX2, and so more of them do.
    let level = tlc_runtime::cpu::level::wide();
    let by_level = |avx512: usize, avx2: usize, none: usize| match level {
        Some(Level::Avx512) => avx512,
        Some(Level::Avx2) => avx2,
        None => none,
    };
    let expected: [(&str, usize, usize, &[&str]); 13] = [
        (
            "conv_next",
            by_level(6, 5, 7),
            by_level(6, 5, 7),
            match level {
                Some(Level::Avx512) => &[
                    "2 einsum",
                    "1 einsum+add",
                    "1 permute",
                    "3 reduce.add+sub+reduce.add+add",
                ],
                Some(Level::Avx2) => &[
                    "3 einsum",
                    "1 einsum+add",
                    "1 permute",
                    "1 reduce.add+sub+reduce.add",
                    "3 reduce.add+sub+reduce.add+add",
                ],
                None => &["2 einsum", "1 pad", "3 reduce.add+sub+reduce.add+add"],
            },
        ),
        // Positions are the same for the whole batch: looked up once, in this one and the encoder.
        ("decoder", 13, 10, &["1 add+reduce.add+sub+reduce.add+add", "1 gather"]),
        (
            "dense_cnn",
            by_level(10, 8, 13),
            by_level(10, 8, 13),
            match level {
                Some(Level::Avx512) => &["3 einsum", "4 pad", "1 reduce.max+max"],
                Some(Level::Avx2) => &[
                    "4 einsum",
                    "1 einsum+max",
                    "4 pad",
                    "1 reduce.add+max",
                    "1 reduce.max+max",
                ],
                None => &["1 pad", "1 reduce.max+max"],
            },
        ),
        (
            "diffusion",
            by_level(43, 36, 45),
            by_level(20, 16, 20),
            match level {
                Some(Level::Avx2) => &[
                    "1 add",
                    "5 einsum",
                    "3 einsum+add",
                    "1 mul+select",
                    "9 pad",
                    "8 reduce.add+sub+reduce.add",
                    "2 reduce.add+sub+reduce.add+add",
                    "1 select",
                ],
                Some(Level::Avx512) => &[
                    "1 add+copy+pad",
                    "1 einsum",
                    "1 mul+select",
                    "8 pad",
                    "8 reduce.add+sub+reduce.add",
                    "2 reduce.add+sub+reduce.add+add",
                ],
                None => &[
                    "1 add+copy+pad",
                    "1 mul+select",
                    "8 pad",
                    "8 reduce.add+sub+reduce.add",
                    "2 reduce.add+sub+reduce.add+add",
                ],
            },
        ),
        // Where 64-bit integers are converted one by one, the mask is made once for all layers.
        (
            "encoder",
            17,
            15,
            match level {
                Some(_) => &["1 add+reduce.add+sub+reduce.add+add", "2 gather"],
                None => &["1 add+reduce.add+sub+reduce.add+add", "2 gather", "1 mul"],
            },
        ),
        ("gru", 9, 9, &["1 expand", "3 permute"]),
        // Keys and values are repeated for the heads that share them, and queries turned by their place.
        (
            "llama",
            19,
            8,
            &["4 add", "4 expand", "1 gather+reduce.add+mul", "1 mul+cos+sin"],
        ),
        ("lstm", 9, 9, &["1 expand", "3 permute"]),
        (
            "mobile",
            by_level(8, 6, 13),
            by_level(8, 6, 13),
            match level {
                Some(Level::Avx2) => &[
                    "3 einsum",
                    "3 einsum+add",
                    "3 einsum+max",
                    "1 einsum+mul",
                    "3 pad",
                    "3 reduce.add+div",
                ],
                Some(Level::Avx512) => &[
                    "3 einsum",
                    "2 einsum+add",
                    "2 einsum+max",
                    "1 einsum+mul",
                    "3 pad",
                    "3 reduce.add+div",
                ],
                None => &["2 einsum+max", "1 einsum+mul", "1 pad", "2 reduce.add+div"],
            },
        ),
        (
            "residual_cnn",
            by_level(5, 2, 7),
            by_level(5, 2, 6),
            match level {
                Some(Level::Avx2) => &["3 einsum", "2 einsum+max", "5 pad", "1 reduce.max"],
                Some(Level::Avx512) => &["2 einsum", "3 pad", "1 reduce.max"],
                None => &["2 pad", "1 reduce.max"],
            },
        ),
        ("speech", 18, 16, &["1 pad"]),
        (
            "u_net",
            by_level(10, 6, 12),
            by_level(7, 3, 9),
            match level {
                Some(Level::Avx2) => &["3 einsum", "1 einsum+div", "3 einsum+max", "8 pad", "2 reduce.max"],
                Some(Level::Avx512) => &["1 einsum", "1 einsum+div", "1 einsum+max", "6 pad", "2 reduce.max"],
                None => &["1 einsum+div", "5 pad", "2 reduce.max"],
            },
        ),
        (
            "vision_transformer",
            by_level(18, 17, 14),
            by_level(16, 15, 14),
            match level {
                Some(Level::Avx2) => &["1 add+reduce.add+sub+reduce.add+add", "1 einsum", "1 gather"],
                Some(_) => &["1 gather"],
                None => &["4 einsum", "1 gather", "2 reduce.max+exp+reduce.add+mul"],
            },
        ),
    ];
    let mut wrong = Vec::new();
    for (name, products, behind, kernels) in expected {
        let bytes = std::fs::read(folder().join(format!("{name}.onnx"))).expect("the file is in the repository");
        let imported = import(&bytes, &ImportOptions::default()).expect("a network");
        let options = CompileOptions {
            threads: Some(1),
            ..CompileOptions::default()
        };
        let e = compile_ir(&imported.graph, &options).expect("compiles");
        let mut found = (Vec::new(), 0, 0);
        apart(e.plan(), &mut found);
        let mut counted: Vec<String> = Vec::new();
        for same in found.0.chunk_by(|a, b| a == b) {
            counted.push(format!("{} {}", same.len(), same[0]));
        }
        let expected = (products, behind, kernels.iter().map(ToString::to_string).collect());
        let found = (found.1, found.2, counted);
        if found != expected {
            wrong.push(format!("{name}: {found:?}, expected {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Scores go from product to product within a step in each layer that has them, of which these networks have two.
#[test]
fn attention_of_networks_is_one_step() {
    // Its patches are too few for products of the library, but where that takes small ones.
    let of_small_products = match tlc_runtime::cpu::level::wide() {
        Some(_) => 2,
        None => 0,
    };
    let expected: [(&str, usize); 5] = [
        ("decoder", 2),
        ("encoder", 2),
        ("llama", 2),
        ("speech", 2),
        ("vision_transformer", of_small_products),
    ];
    let count = |name: &str| {
        let bytes = std::fs::read(folder().join(format!("{name}.onnx"))).expect("the file is in the repository");
        let imported = import(&bytes, &ImportOptions::default()).expect("a network");
        let options = CompileOptions {
            threads: Some(1),
            ..CompileOptions::default()
        };
        let e = compile_ir(&imported.graph, &options).expect("compiles");
        let passes = |s: &&Step| matches!(s, Step::Gemm(g) if g.behind().is_some());
        e.plan().steps.iter().filter(passes).count()
    };
    assert_eq!(expected.map(|(name, _)| (name, count(name))), expected);
}
