//! Products by the library, which `gpusim/cublaslt` stands in for: values, graphs, faults, and what is given to it at all.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use tlc::{CompileOptions, DType, Device, Executable, Graph, HostTensor, Products, Specialize, compile_ir, inputs};
use tlc_ir::interp::{self, interpret, interpret_with_bounds};
use tlc_ir::plan::Step;
use tlc_ir::rng::Rng;
use tlc_ir::testgen::{random_tensor, seeds};
use tlc_ir::text::{no_data, parse_graph};

use crate::child::{beside, simulated, skip};
use crate::faults::{expect, no_nvrtc, tlc};
use crate::recorded::{network_inputs, run, ten_warm_calls, times};
use crate::resident::given_alone;
use crate::same_bits_of;
use crate::states::compare_all;

/// The stand-in for the library.
fn library() -> Option<String> {
    let found = beside("libtlc_gpusim_cublaslt.so").map(|p| p.to_string_lossy().into_owned());
    if found.is_none() {
        skip("no libtlc_gpusim_cublaslt.so; `cargo build --release -p tlc-gpusim-cublaslt` makes it");
    }
    found
}

/// A graph that is one product, and the sizes that it is run at.
struct Product {
    text: String,
    sizes: Vec<Vec<i64>>,
    /// Whether the library can compute it.
    taken: bool,
}

fn product(text: String) -> Product {
    Product {
        text,
        sizes: vec![Vec::new()],
        taken: true,
    }
}

/// `graph` with operands of these labels and sizes, and what is behind them.
fn einsum(dtype: &str, [left, right, out]: [&str; 3], size: &dyn Fn(char) -> String, symbols: &str) -> String {
    let shape = |labels: &str| labels.chars().map(size).collect::<Vec<_>>().join(", ");
    let acc = match dtype {
        "f16" | "bf16" => "; acc=f32",
        _ => "",
    };
    format!(
        "graph @product(%x: {dtype}[{}], %y: {dtype}[{}]){symbols} {{
           %0 = einsum %x, %y {{{left},{right}->{out}{acc}}} : {dtype}[{}]
           return %0
         }}",
        shape(left),
        shape(right),
        shape(out)
    )
}

/// Products of every type in every layout, at sizes that are known and others, with stacks, broadcast and sliced operands; and what is left to
/// kernels.
fn products() -> Vec<Product> {
    let mut all = Vec::new();
    for dtype in ["f32", "f64", "f16", "bf16"] {
        let symbols = " where a in 0..=100, b in 0..=100, c in 0..=100";
        let sizes = [
            [0, 7, 9],
            [5, 0, 3],
            [5, 7, 0],
            [1, 1, 1],
            [1, 40, 33],
            [64, 1, 17],
            [3, 33, 1],
            [65, 64, 33],
        ];
        for layout in [["ab", "bc", "ac"], ["ba", "cb", "ac"], ["ab", "cb", "ca"]] {
            let known = |l: char| ["70", "40", "33"]["abc".find(l).unwrap_or_default()].to_string();
            all.push(product(einsum(dtype, layout, &known, "")));
            all.push(Product {
                sizes: sizes.iter().map(|s| s.to_vec()).collect(),
                ..product(einsum(dtype, layout, &|l| l.to_string(), symbols))
            });
        }
        let sizes = |l: char| ["24", "30", "20", "3"]["abcx".find(l).unwrap_or_default()].to_string();
        for layout in [["xab", "xbc", "xac"], ["axb", "xbc", "xac"], ["xab", "bxc", "xca"]] {
            all.push(product(einsum(dtype, layout, &sizes, "")));
        }
        // Rows between which other elements lie, and a stack of one matrix that is shown three times.
        let acc = if dtype.ends_with("16") { "; acc=f32" } else { "" };
        all.push(product(format!(
            "graph @parts(%x: {dtype}[40, 64], %y: {dtype}[64, 50]) {{
               %0 = slice %x {{start=[0, 8], step=[1, 1]}} : {dtype}[40, 48]
               %1 = slice %y {{start=[3, 0], step=[1, 1]}} : {dtype}[48, 50]
               %2 = einsum %0, %1 {{ab,bc->ac{acc}}} : {dtype}[40, 50]
               return %2
             }}"
        )));
        all.push(product(format!(
            "graph @shown(%x: {dtype}[3, 20, 32], %y: {dtype}[32, 24]) {{
               %0 = expand %y : {dtype}[3, 32, 24]
               %1 = einsum %x, %0 {{xab,xbc->xac{acc}}} : {dtype}[3, 20, 24]
               return %1
             }}"
        )));
        // Columns with gaps lie together along neither axis.
        all.push(Product {
            taken: false,
            ..product(format!(
                "graph @gaps(%x: {dtype}[40, 64], %y: {dtype}[32, 50]) {{
                   %0 = slice %x {{start=[0, 0], step=[1, 2]}} : {dtype}[40, 32]
                   %1 = einsum %0, %y {{ab,bc->ac{acc}}} : {dtype}[40, 50]
                   return %1
                 }}"
            ))
        });
    }
    // Sums over nothing, and sides of one element, are no products to the library; nor are small ones.
    for [a, b, c] in [
        ["40", "0", "30"],
        ["1", "400", "30"],
        ["90", "400", "1"],
        ["4", "4", "4"],
    ] {
        all.push(Product {
            taken: false,
            ..product(einsum(
                "f32",
                ["ab", "bc", "ac"],
                &|l| [a, b, c]["abc".find(l).unwrap_or_default()].into(),
                "",
            ))
        });
    }
    all
}

/// A product of `a` by `b` by `c` and what is behind it, with what of that the library computes.
struct Behind {
    product: Product,
    by_library: Option<&'static str>,
}

/// What is behind a product.
#[derive(Clone, Copy)]
enum Added {
    Nothing,
    /// An element for each of the result's last axis.
    Along,
    /// As `Along`, of two axes, the first of one element.
    AsRow,
    /// One for each of the result's first axis.
    Across,
    /// A tensor like the result.
    Whole,
}

/// A product with a bias and `max(x, 0)` behind it, or one of the two.
fn with_behind(
    dtype: &str,
    layout: [&str; 3],
    (added, rectified): (Added, bool),
    size: &dyn Fn(char) -> String,
    symbols: &str,
) -> String {
    let shape = |labels: &str| labels.chars().map(size).collect::<Vec<_>>().join(", ");
    let [left, right, out] = layout;
    let result = shape(out);
    let last = size(out.chars().next_back().expect("an axis"));
    let first = size(out.chars().next().expect("an axis"));
    let acc = if dtype.ends_with("16") { "; acc=f32" } else { "" };
    let bias = match added {
        Added::Nothing => String::new(),
        Added::Along => format!(", %b: {dtype}[{last}]"),
        Added::AsRow => format!(", %b: {dtype}[1, {last}]"),
        Added::Across => format!(", %b: {dtype}[{first}, 1]"),
        Added::Whole => format!(", %b: {dtype}[{result}]"),
    };
    let shown = match added {
        Added::Nothing => "",
        Added::Whole => "%2 = add %b, %0",
        _ => "%1 = expand %b : T\n %2 = add %0, %1",
    };
    let shown = match shown {
        "" => String::new(),
        text => format!("{text} : T").replace(": T", &format!(": {dtype}[{result}]")),
    };
    let sum = if shown.is_empty() { "%0" } else { "%2" };
    let (max, value) = match rectified {
        true => (
            format!(
                "%3 = const 0.0 : {dtype}[]
                 %4 = expand %3 : {dtype}[{result}]
                 %5 = max {sum}, %4 : {dtype}[{result}]"
            ),
            "%5",
        ),
        false => (String::new(), sum),
    };
    format!(
        "graph @behind(%x: {dtype}[{}], %y: {dtype}[{}]{bias}){symbols} {{
           %0 = einsum %x, %y {{{left},{right}->{out}{acc}}} : {dtype}[{result}]
           {shown}
           {max}
           return {value}
         }}",
        shape(left),
        shape(right),
    )
}

/// Everything that may be behind a product, and what the library computes of it.
fn behind() -> Vec<Behind> {
    let known = |l: char| ["70", "40", "33", "3"]["abcx".find(l).unwrap_or_default()].to_string();
    let case = |dtype, layout, what, by_library| Behind {
        product: product(with_behind(dtype, layout, what, &known, "")),
        by_library,
    };
    let mut all = Vec::new();
    let layouts = [
        ["ab", "bc", "ac"],
        ["ba", "cb", "ac"],
        ["ab", "cb", "ca"],
        ["xab", "xbc", "xac"],
        ["axb", "bc", "axc"],
    ];
    for layout in layouts {
        let [bias, relu, both] = ["bias", "relu", "bias and relu"].map(Some);
        all.push(case("f32", layout, (Added::Along, true), both));
        all.push(case("f32", layout, (Added::Along, false), bias));
        all.push(case("f32", layout, (Added::Nothing, true), relu));
        all.push(case("f32", layout, (Added::AsRow, true), both));
        // It would be added before sums are rounded.
        for dtype in ["f16", "bf16"] {
            all.push(case(dtype, layout, (Added::Nothing, true), relu));
            all.push(case(dtype, layout, (Added::Along, true), None));
        }
        all.push(case("f64", layout, (Added::Along, true), None));
        all.push(case("f32", layout, (Added::Whole, true), None));
    }
    all.push(case("f32", layouts[0], (Added::Across, true), None));
    // Sizes that are not known, some of which leave one row, one column or nothing.
    let sizes = [
        [0, 7, 9],
        [5, 0, 3],
        [5, 7, 0],
        [1, 1, 1],
        [1, 40, 33],
        [64, 1, 17],
        [3, 33, 1],
        [65, 64, 33],
    ];
    for layout in [["ab", "bc", "ac"], ["ba", "cb", "ac"], ["ab", "cb", "ca"]] {
        for (what, by_library) in [((Added::Along, true), "bias and relu"), ((Added::Along, false), "bias")] {
            let symbols = " where a in 0..=100, b in 0..=100, c in 0..=100";
            let mut case = case("f32", layout, what, Some(by_library));
            case.product.text = with_behind("f32", layout, what, &|l| l.to_string(), symbols);
            case.product.sizes = sizes.iter().map(|s| s.to_vec()).collect();
            all.push(case);
        }
    }
    // Another shape in between, and a sum that something else needs too.
    all.push(Behind {
        product: product(
            "graph @shaped(%x: f32[70, 40], %y: f32[40, 32], %b: f32[4, 8]) {
               %0 = einsum %x, %y {ab,bc->ac} : f32[70, 32]
               %1 = reshape %0 : f32[70, 4, 8]
               %2 = expand %b : f32[70, 4, 8]
               %3 = add %2, %1 : f32[70, 4, 8]
               return %3
             }"
            .into(),
        ),
        by_library: Some("bias"),
    });
    all.push(Behind {
        product: product(
            "graph @needed(%x: f32[70, 40], %y: f32[40, 32], %b: f32[32]) {
               %0 = einsum %x, %y {ab,bc->ac} : f32[70, 32]
               %1 = expand %b : f32[70, 32]
               %2 = add %0, %1 : f32[70, 32]
               return %2, %0
             }"
            .into(),
        ),
        by_library: None,
    });
    all
}

/// What the library computes behind a product.
fn by_library(executable: &Executable) -> Option<String> {
    executable.plan().steps.iter().find_map(|s| match s {
        Step::Gemm(g) => Some(g.epilogue.as_ref()?.library?.to_string()),
        _ => None,
    })
}

fn options(products: Products) -> CompileOptions {
    CompileOptions {
        threads: Some(2),
        specialize: Specialize::Never,
        device: Device::cuda(0),
        products,
        ..CompileOptions::default()
    }
}

/// Steps that are the library's.
fn library_steps(executable: &Executable) -> usize {
    let steps = executable.plan().steps.iter();
    steps.filter(|s| matches!(s, Step::Gemm(_))).count()
}

/// Runs a product three times: step by step, as it is recorded, and as it was. Its results are within the interpreter's bounds.
fn check(product: &Product, bits: &mut DefaultHasher) -> Result<(), String> {
    let graph = parse_graph(&product.text, &mut no_data).map_err(|e| format!("{e:?}"))?;
    let names: Vec<String> = graph.symbols().iter().map(|s| s.name.clone()).collect();
    let executable = compile_ir(&graph, &options(Products::Library)).map_err(|e| format!("compile: {e}"))?;
    if (library_steps(&executable) == 1) != product.taken {
        return Err(format!("the library's or not: {}", executable.plan()));
    }
    for sizes in &product.sizes {
        let mut rng = Rng::new(7);
        let inputs: Vec<HostTensor> = (graph.inputs().iter())
            .map(|&i| {
                let ty = graph.ty(i);
                let size = |d: &tlc_ir::IndexExpr| d.eval_symbols(sizes).expect("a size") as usize;
                let shape: Vec<usize> = ty.shape.iter().map(size).collect();
                random_tensor(&mut rng, ty.dtype, &shape)
            })
            .collect();
        let interpreted = interp::Options {
            symbols: names.iter().cloned().zip(sizes.iter().copied()).collect(),
            ..interp::Options::default()
        };
        let exact = interpret(&graph, &inputs, &interpreted).map_err(|e| format!("interpreter: {e}"))?;
        let bounded = interpret_with_bounds(&graph, &inputs, &interpreted).map_err(|e| format!("interpreter: {e}"))?;
        for _ in 0..3 {
            let found = run(&executable, &inputs).map_err(|e| format!("at {sizes:?}: {e}"))?;
            compare_all(&found, &exact, &bounded).map_err(|e| format!("at {sizes:?}: {e}"))?;
            found.iter().for_each(|t| t.bytes().hash(bits));
        }
    }
    Ok(())
}

#[test]
fn products_by_the_library_have_the_same_bits_at_three_schedules() {
    let Some(library) = library() else { return };
    for test in ["products::children::all", "products::children::random"] {
        same_bits_of(test, &[("TLC_CUBLASLT", &library)]);
    }
}

#[test]
fn what_the_library_computes_behind_products_has_the_same_bits_at_three_schedules() {
    let Some(library) = library() else { return };
    same_bits_of("products::children::behind", &[("TLC_CUBLASLT", &library)]);
    // A kernel does it where the library has no algorithm for that, or for the product either.
    for offer in ["plain", "none"] {
        let set = [("TLC_CUBLASLT", &*library), ("TLC_SIM_PRODUCTS_OFFER", offer)];
        simulated("products::children::behind", &set);
    }
}

/// Two layers are two calls of the library and no kernel; where it has no algorithm for what is behind, they are two kernels more, which are
/// launched in the first call, and to be recorded.
#[test]
fn layers_are_products_of_the_library_and_no_kernels() {
    let Some(library) = library() else { return };
    for (offer, kernels) in [("all", 0), ("plain", 4)] {
        let folder = tempfile::tempdir().expect("a folder");
        let report = folder.path().join("report");
        let path = report.to_str().expect("a path in UTF-8");
        let set = [
            ("TLC_CUBLASLT", &*library),
            ("TLC_SIM_PRODUCTS_OFFER", offer),
            ("TLC_SIM_REPORT", path),
        ];
        if simulated("products::children::two_layers", &set).is_none() || !report.exists() {
            return;
        }
        let text = std::fs::read_to_string(&report).expect("a report");
        let report: serde_json::Value = serde_json::from_str(text.lines().last().expect("a line")).expect("JSON");
        let calls = |name: &str| report["calls"][name].as_u64().unwrap_or(0);
        assert_eq!(calls("cuLaunchKernel"), kernels, "{text}");
        assert_eq!(report["device_bytes"], 0, "{text}");
    }
}

#[test]
fn a_warm_call_with_products_is_one_graph_and_one_wait() {
    let Some(library) = library() else { return };
    let set = [("TLC_CUBLASLT", &*library)];
    let Some(calls) = ten_warm_calls("products::children::steps", &set) else {
        return;
    };
    let expected = [("cuGraphLaunch", 10), ("cuStreamSynchronize", 10)];
    assert_eq!(calls, expected.map(|(name, n)| (name.to_string(), n)).into());
}

/// A matrix that moved has the product's own graph captured again, and nothing else: the library is not asked to decide anew.
#[test]
fn a_product_whose_matrix_moved_is_the_one_node_that_changes() {
    let Some(library) = library() else { return };
    let set = [("TLC_CUBLASLT", &*library)];
    let Some(calls) = ten_warm_calls("products::children::moved", &set) else {
        return;
    };
    let each = [
        "cuStreamBeginCapture_v2",
        // What the library gives the stream: what it leaves in its workspace, and the product.
        "cublasLtMatmul",
        "cuMemsetD8Async",
        "tlcSimProduct",
        "cuStreamEndCapture",
        "cuGraphExecChildGraphNodeSetParams",
        // What was captured, when the executable goes.
        "cuGraphDestroy",
    ];
    assert_eq!(calls, given_alone(10, &each.map(|name| (name, 10))));
}

/// One that is back where it was before costs a call for the node: what was captured then is kept.
#[test]
fn a_product_whose_matrix_comes_back_costs_one_call_more() {
    let Some(library) = library() else { return };
    let set = [("TLC_CUBLASLT", &*library)];
    let Some(calls) = ten_warm_calls("products::children::moved_back", &set) else {
        return;
    };
    let more = [("cuGraphExecChildGraphNodeSetParams", 20)];
    assert_eq!(calls, given_alone(10, &more));
}

#[test]
fn what_the_library_has_no_algorithm_for_a_kernel_multiplies() {
    let Some(library) = library() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("report");
    let path = report.to_str().expect("a path in UTF-8");
    let set = [("TLC_CUBLASLT", &*library), ("TLC_SIM_PRODUCTS_OFFER", "none")];
    simulated("products::children::all", &set);
    let reported = [&set[..], &[("TLC_SIM_REPORT", path)]].concat();
    if simulated("products::children::leaks", &reported).is_none() || !report.exists() {
        return;
    }
    let text = std::fs::read_to_string(&report).expect("a report");
    let report: serde_json::Value = serde_json::from_str(text.lines().last().expect("a line")).expect("JSON");
    let left = ["device_bytes", "pinned_bytes", "handles"].map(|what| report[what].as_u64());
    // The library's own stays with the process.
    assert_eq!(left, [0, 0, 1].map(Some), "{text}");
    assert!(report["calls"]["tlcSimProduct"].is_null(), "{text}");
    // A product that moved is the one node that changes here too.
    let Some(calls) = ten_warm_calls("products::children::moved_back", &set) else {
        return;
    };
    assert_eq!(calls.get("cuGraphExecChildGraphNodeSetParams"), Some(&20), "{calls:?}");
}

#[test]
fn products_leave_nothing_behind() {
    let Some(library) = library() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("report");
    let path = report.to_str().expect("a path in UTF-8");
    let set = [("TLC_CUBLASLT", &*library), ("TLC_SIM_REPORT", path)];
    if simulated("products::children::leaks", &set).is_none() || !report.exists() {
        return;
    }
    let text = std::fs::read_to_string(&report).expect("a report");
    let report: serde_json::Value = serde_json::from_str(text.lines().last().expect("a line")).expect("JSON");
    for what in ["device_bytes", "pinned_bytes"] {
        assert_eq!(report[what], 0, "{what} in {text}");
    }
    // The library's own stays with the process.
    assert_eq!(report["handles"], 1, "{text}");
    assert_eq!(report["calls"]["cublasLtMatmulDescCreate"], 200, "{text}");
}

#[test]
fn every_fault_beside_products_is_an_error_and_what_follows_is_right() {
    let Some(library) = library() else { return };
    for fault in [
        "alloc:1",
        "alloc:2",
        "alloc:3",
        "alloc:4",
        "alloc:5",
        "alloc:6",
        "launch:2",
        "illegal-address:5",
        "ecc:8",
    ] {
        simulated(
            "products::children::fault",
            &[("TLC_CUBLASLT", &library), ("TLC_SIM_FAULT", fault)],
        );
    }
}

const LARGE: &str = "graph @large(%x: f32[512, 600], %y: f32[600, 520]) {
  %0 = einsum %x, %y {ab,bc->ac} : f32[512, 520]
  return %0
}
";

/// A copy of a library in which a name is another one.
fn without(library: &str, name: &str, folder: &Path) -> PathBuf {
    let mut bytes = std::fs::read(library).expect("the library");
    let places: Vec<usize> = (0..bytes.len() - name.len())
        .filter(|&i| bytes[i..].starts_with(name.as_bytes()))
        .collect();
    assert!(!places.is_empty(), "{name}");
    places.into_iter().for_each(|at| bytes[at] = b'x');
    let copy = folder.join("libcublasLt.so.13");
    std::fs::write(&copy, bytes).expect("written");
    copy
}

#[test]
fn without_a_library_kernels_multiply_unless_it_is_asked_for() {
    let Some(library) = library() else { return };
    if no_nvrtc() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let large = folder.path().join("large.tlir");
    std::fs::write(&large, LARGE).expect("written");
    let large = large.to_str().expect("a path of text");
    let explain = |products: &str, set: &[(&str, &str)]| {
        tlc(set, &["explain", large, "--device", "cuda", "--products", products])
    };
    let set = [("TLC_CUBLASLT", &*library)];
    let measured = "no extent below 512, and faster as measured than a kernel with what is around it";
    expect(explain("auto", &set), 0, &["library matmul", measured]);
    let not_measured = "no extent below 512: taken to be faster, not measured";
    let of_another = [set[0], ("TLC_SIM_DEVICE", "a100")];
    expect(explain("auto", &of_another), 0, &["library matmul", not_measured]);
    expect(
        explain("library", &set),
        0,
        &[
            "a matrix product by the library (asked for)",
            "that it has no algorithm for, as its sizes show, is computed by a kernel of one thread a result",
        ],
    );
    let by_kernels = |found: Option<(i32, String)>| {
        assert!(
            !found.as_ref().is_some_and(|f| f.1.contains("library matmul")),
            "{found:?}"
        );
        expect(found, 0, &["kernel 0"]);
    };
    by_kernels(explain("kernels", &set));
    by_kernels(explain("auto", &[]));
    expect(
        explain("library", &[]),
        4,
        &["there is no cuBLASLt: the device is simulated", "TLC_CUBLASLT"],
    );
    let missing = [("TLC_CUBLASLT", "/nonexistent/libcublasLt.so.13")];
    by_kernels(explain("auto", &missing));
    expect(
        explain("library", &missing),
        4,
        &["there is no cuBLASLt: /nonexistent/libcublasLt.so.13"],
    );
    let name = "cublasLtMatmulAlgoConfigGetAttribute";
    let partial = without(&library, name, folder.path());
    let partial = [("TLC_CUBLASLT", partial.to_str().expect("a path of text"))];
    by_kernels(explain("auto", &partial));
    expect(explain("library", &partial), 4, &[&format!("has no `{name}`")]);
    let other = without(&library, "tlcSimCublasLt", folder.path());
    let other = [("TLC_CUBLASLT", other.to_str().expect("a path of text"))];
    expect(
        explain("library", &other),
        4,
        &["is not the stand-in, and the device is simulated"],
    );
    expect(explain("fast", &set), 2, &["expected auto, kernels or library"]);
}

mod children {
    use super::*;

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn all() {
        let mut bits = DefaultHasher::new();
        let mut failures = 0;
        for product in products() {
            if let Err(e) = check(&product, &mut bits) {
                println!("{}\n{e}", product.text);
                failures += 1;
            }
        }
        println!("bits {:016x}", bits.finish());
        assert_eq!(failures, 0);
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn behind() {
        let mut bits = DefaultHasher::new();
        let mut failures = 0;
        for Behind { product, by_library } in super::behind() {
            let graph = parse_graph(&product.text, &mut no_data).expect("a graph");
            let executable = compile_ir(&graph, &options(Products::Library)).expect("it compiles");
            let found = super::by_library(&executable);
            let launches = executable.plan().launches().len();
            let right = found.as_deref() == by_library && (by_library.is_none() || launches == 1);
            let checked = check(&product, &mut bits).and(match right {
                true => Ok(()),
                false => Err(format!("{found:?} by the library:\n{}", executable.plan())),
            });
            if let Err(e) = checked {
                println!("{}\n{e}", product.text);
                failures += 1;
            }
        }
        println!("bits {:016x}", bits.finish());
        assert_eq!(failures, 0);
    }

    /// Three calls of two layers whose matrices stay where they are.
    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn two_layers() {
        let g = Graph::new("two_layers");
        let x = g.input("x", DType::F32, [64, 48]);
        let (a, b) = (g.input("a", DType::F32, [48, 40]), g.input("b", DType::F32, [40]));
        let (c, d) = (g.input("c", DType::F32, [40, 24]), g.input("d", DType::F32, [24]));
        let hidden = (&x.matmul(&a) + &b).relu();
        g.output("y", &(&hidden.matmul(&c) + &d));
        let compiled = |device| {
            let options = CompileOptions {
                device,
                ..options(Products::Library)
            };
            g.compile(&options).expect("it compiles")
        };
        let there = compiled(Device::cuda(0));
        let told = there.explain().to_string();
        for what in ["library matmul with bias and relu", "library matmul with bias"] {
            assert!(told.contains(what), "{told}");
        }
        let here = g.compile(&CompileOptions::default()).expect("it compiles");
        let mut rng = Rng::new(3);
        for _ in 0..3 {
            let shapes: [&[usize]; 5] = [&[64, 48], &[48, 40], &[40], &[40, 24], &[24]];
            let inputs: Vec<HostTensor> = (shapes.iter())
                .map(|shape| {
                    let values: Vec<f32> = (0..shape.iter().product()).map(|_| rng.below(9) as f32 - 4.0).collect();
                    HostTensor::from_slice(shape, &values).expect("as many")
                })
                .collect();
            let found = run(&there, &inputs).expect("it runs");
            // Sums of small integers are exact.
            assert_eq!(found[0].bytes(), run(&here, &inputs).expect("it runs")[0].bytes());
        }
    }

    /// Of random sizes, layouts, types and stacks.
    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn random() {
        let mut bits = DefaultHasher::new();
        let mut failures = Vec::new();
        for seed in seeds(0..60) {
            let mut rng = Rng::new(seed);
            let [a, b, c] = [0; 3].map(|_| rng.pick(&[15i64, 16, 24, 31, 33, 64, 65, 100]));
            let dtype = rng.pick(&["f32", "f64", "f16", "bf16"]);
            let batch = rng.pick(&["", "x"]);
            let mut labels = |own: [&str; 2]| format!("{batch}{}", rng.pick(&own));
            let layout = [labels(["ab", "ba"]), labels(["bc", "cb"]), labels(["ac", "ca"])];
            let size = |l: char| [a, b, c, 3]["abcx".find(l).unwrap_or_default()].to_string();
            let product = Product {
                // Kernels are as fast where there is little to do.
                taken: a * b * c >= 8 << 10,
                ..product(einsum(dtype, layout.each_ref().map(|l| &**l), &size, ""))
            };
            if let Err(e) = check(&product, &mut bits) {
                println!("seed {seed}: {}\n{e}", product.text);
                failures.push(seed);
            }
        }
        println!("bits {:016x}", bits.finish());
        assert!(failures.is_empty(), "{failures:?}");
    }

    /// Two layers of any number of rows, and a sum that does not depend on them.
    fn layers() -> Graph {
        let g = Graph::new("layers");
        let n = g.symbol("n", 1..=100);
        let x = g.input("x", DType::F32, [n, 24.into()]);
        let a = g.input("a", DType::F32, [24, 104]);
        let b = g.input("b", DType::F32, [104, 8]);
        g.output("y", &x.matmul(&a).tanh().matmul(&b));
        g.output("z", &x.sum(0));
        g
    }

    fn by_library(g: &Graph) -> Executable {
        let executable = g.compile(&options(Products::Library)).expect("it compiles");
        assert!(library_steps(&executable) > 0, "{}", executable.plan());
        executable
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn steps() {
        let g = layers();
        let here = g.compile(&CompileOptions::default()).expect("it compiles");
        let there = by_library(&g);
        for call in 0..times() {
            let inputs = network_inputs(60, call);
            let found = run(&there, &inputs).expect("it runs");
            crate::recorded::assert_close(&found, &run(&here, &inputs).expect("it runs"));
        }
    }

    /// A product of one matrix that is elsewhere in each call, and a kernel on its result.
    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn moved() {
        let g = Graph::new("moved");
        let (x, y) = (g.input("x", DType::F32, [64, 48]), g.input("y", DType::F32, [48, 40]));
        g.output("sums", &x.matmul(&y).softmax(-1).sum(0));
        let there = by_library(&g);
        let upload = |shape: [usize; 2], value: f32| {
            let tensor = HostTensor::from_slice(&shape, &vec![value; shape[0] * shape[1]]).expect("as many");
            Device::cuda(0).upload(&tensor).expect("uploaded")
        };
        let y = upload([48, 40], 0.5);
        // As many however often is called, each somewhere else.
        let all: Vec<_> = (0..14).map(|call| upload([64, 48], call as f32 / 64.0)).collect();
        let mut last = None;
        for x in all.iter().take(times()) {
            // What is let go of is there for the next call: results stay where they are.
            drop(last.take());
            last = Some(there.run_on_device(inputs![x, &y]).expect("it runs"));
        }
        // Copies to the host would be counted with the calls.
        let last = last.expect("a call")["sums"].to_host().expect("it is there");
        for sum in last.as_slice::<f32>().expect("f32") {
            assert!((sum - 64.0 / 40.0).abs() < 1e-4, "{sum}");
        }
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn moved_back() {
        let g = Graph::new("moved_back");
        let x = ["x", "y"].map(|name| g.input(name, DType::F32, [64, 48]));
        let w = g.input("w", DType::F32, [48, 40]);
        for (name, x) in ["p", "q"].into_iter().zip(&x) {
            g.output(name, &x.matmul(&w));
        }
        let there = by_library(&g);
        let upload = |shape: [usize; 2], value: f32| {
            let tensor = HostTensor::from_slice(&shape, &vec![value; shape[0] * shape[1]]).expect("as many");
            Device::cuda(0).upload(&tensor).expect("uploaded")
        };
        let w = upload([48, 40], 0.5);
        let all: Vec<_> = (0..9).map(|k| upload([64, 48], k as f32)).collect();
        let mut last = None;
        // Nine addresses each, and more pairs of them than there are recordings for.
        for call in 0..27 + times() {
            let [x, y] = [call % 9, (call + call / 9) % 9];
            drop(last.take());
            let found = there.run_on_device(inputs![&all[x], &all[y], &w]).expect("it runs");
            last = Some((found, [x, y]));
        }
        let (found, places) = last.expect("a call");
        for (found, place) in found.iter().zip(places) {
            let found = found.to_host().expect("it is there");
            assert!(
                found
                    .as_slice::<f32>()
                    .expect("f32")
                    .iter()
                    .all(|v| *v == place as f32 * 24.0)
            );
        }
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn leaks() {
        let g = Graph::new("leaks");
        let (x, y) = (g.input("x", DType::F32, [40, 48]), g.input("y", DType::F32, [48, 40]));
        g.output("z", &x.matmul(&y));
        let given = [vec![1.0f32; 40 * 48], vec![2.0f32; 40 * 48]];
        for round in 0..200 {
            let executable = by_library(&g);
            for _ in 0..3 {
                let outputs = executable.run(&inputs![&given[0], &given[1]]).expect("it runs");
                assert_eq!(outputs[0].as_slice::<f32>().expect("f32")[1599], 96.0, "round {round}");
            }
        }
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn fault() {
        let fault = std::env::var("TLC_SIM_FAULT").expect("a fault");
        let executable = by_library(&layers());
        let call = |n: usize| run(&executable, &network_inputs(60, n));
        let Some((failed, message)) = (0..8).find_map(|n| Some((n, call(n).err()?))) else {
            // Memory for staging can be done without.
            assert!(fault.starts_with("alloc:"), "{fault}: nothing failed");
            return;
        };
        let next = call(failed);
        match fault.starts_with("alloc") {
            true => {
                assert!(message.contains("has no memory for"), "{fault}: {message}");
                assert!(next.is_ok(), "{fault}: {next:?}");
            }
            false => {
                assert!(message.contains("found at step "), "{fault}: {message}");
                let next = next.expect_err("the device is lost");
                assert!(next.contains("is lost since"), "{fault}: {next}");
            }
        }
    }
}
