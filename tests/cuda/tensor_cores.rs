//! Products by matrix instructions on a device, against the interpreter: of 16-bit floats, and of f32 where they may be rounded to tf32.

use std::hash::{DefaultHasher, Hash, Hasher};

use tlc::{CompileOptions, Device, HostTensor, Precision, Specialize, compile_ir};
use tlc_ir::DType;
use tlc_ir::interp::{self, interpret, interpret_with_bounds};
use tlc_ir::precision::to_tf32;
use tlc_ir::rng::Rng;
use tlc_ir::testgen::random_tensor;
use tlc_ir::text::{no_data, parse_graph};

use crate::judged::judges;
use crate::states::compare_all;

/// A graph, and the values of its symbols that it is run with.
struct Product {
    text: String,
    sizes: Vec<Vec<i64>>,
    precision: Precision,
}

fn product(text: impl Into<String>) -> Product {
    Product {
        text: text.into(),
        sizes: vec![Vec::new()],
        precision: Precision::Exact,
    }
}

/// Products of every form that matrix instructions take, of operands of these types.
fn products(dtypes: &[&str]) -> Vec<Product> {
    let mut all = Vec::new();
    for &dtype in dtypes {
        // Whole tiles, one and several; and sizes that no tile divides, of a sum and of sides, aligned or not.
        for [m, k, n] in [
            [16, 16, 16],
            [64, 64, 64],
            [128, 192, 64],
            [32, 256, 48],
            [64, 72, 96],
            [70, 40, 33],
            // So long that several blocks of it are copied ahead.
            [24, 584, 40],
            [17, 129, 65],
            [100, 8, 64],
        ] {
            all.push(product(format!(
                "graph @plain(%x: {dtype}[{m}, {k}], %y: {dtype}[{k}, {n}]) {{
                   %0 = einsum %x, %y {{ab,bc->ac; acc=f32}} : {dtype}[{m}, {n}]
                   return %0
                 }}"
            )));
        }
        // Each operand along either side, and results turned.
        for (left, right, out) in [
            ("ab", "cb", "ac"),
            ("ba", "bc", "ac"),
            ("ba", "cb", "ac"),
            ("ab", "bc", "ca"),
        ] {
            let size = |label: char| match label {
                'a' => 72,
                'b' => 80,
                _ => 96,
            };
            let shape = |labels: &str| {
                labels
                    .chars()
                    .map(|c| size(c).to_string())
                    .collect::<Vec<_>>()
                    .join(", ")
            };
            all.push(product(format!(
                "graph @turned(%x: {dtype}[{}], %y: {dtype}[{}]) {{
                   %0 = einsum %x, %y {{{left},{right}->{out}; acc=f32}} : f32[{}]
                   return %0
                 }}",
                shape(left),
                shape(right),
                shape(out)
            )));
        }
        // What is behind a product, and in front of it.
        let in_f32 = |to: &str, from: &str, shape: &str| match dtype {
            "f32" => format!("{to} = neg {from} : f32{shape}"),
            _ => format!("{to} = convert {from} : f32{shape}"),
        };
        let (bias, residual) = (in_f32("%1", "%b", "[96]"), in_f32("%5", "%r", "[64, 96]"));
        let result = match dtype {
            "f32" => "%7 = neg %6 : f32[64, 96]".into(),
            _ => format!("%7 = convert %6 : {dtype}[64, 96]"),
        };
        all.push(product(format!(
            "graph @layer(%x: {dtype}[64, 128], %w: {dtype}[96, 128], %b: {dtype}[96], %r: {dtype}[64, 96]) {{
               %0 = einsum %x, %w {{ab,cb->ac; acc=f32}} : f32[64, 96]
               {bias}
               %2 = expand %1 : f32[64, 96]
               %3 = add %0, %2 : f32[64, 96]
               %4 = tanh %3 : f32[64, 96]
               {residual}
               %6 = add %4, %5 : f32[64, 96]
               {result}
               return %7
             }}"
        )));
        let narrowed = match dtype {
            "f32" => "mul %3, %3 : f32[64, 128]".into(),
            _ => format!("convert %3 : {dtype}[64, 128]"),
        };
        all.push(product(format!(
            "graph @dequantized(%x: {dtype}[48, 128], %w: i8[64, 128], %s: f32[64]) {{
               %0 = convert %w : f32[64, 128]
               %1 = reshape %s : f32[64, 1]
               %2 = expand %1 : f32[64, 128]
               %3 = mul %0, %2 : f32[64, 128]
               %4 = {narrowed}
               %5 = einsum %x, %4 {{ab,cb->ac; acc=f32}} : {dtype}[48, 64]
               return %5
             }}"
        )));
        all.push(product(format!(
            "graph @batches(%q: {dtype}[2, 3, 40, 64], %k: {dtype}[2, 3, 56, 64]) {{
               %0 = einsum %q, %k {{xhab,xhcb->xhac; acc=f32}} : f32[2, 3, 40, 56]
               return %0
             }}"
        )));
        // Sizes that calls decide.
        all.push(Product {
            text: format!(
                "graph @rows(%x: {dtype}[n, 96], %w: {dtype}[96, 64]) where n in 1..=4096 {{
                   %0 = einsum %x, %w {{ab,bc->ac; acc=f32}} : {dtype}[n, 64]
                   return %0
                 }}"
            ),
            sizes: vec![vec![1], vec![31], vec![32], vec![77]],
            precision: Precision::Exact,
        });
        all.push(Product {
            text: format!(
                "graph @all(%x: {dtype}[n, m], %w: {dtype}[m, l]) where n in 0..=500, m in 0..=500, l in 1..=500 {{
                   %0 = einsum %x, %w {{ab,bc->ac; acc=f32}} : f32[n, l]
                   return %0
                 }}"
            ),
            sizes: vec![
                vec![1, 1, 1],
                vec![40, 0, 70],
                vec![64, 130, 64],
                vec![33, 200, 17],
                vec![5, 64, 90],
            ],
            precision: Precision::Exact,
        });
    }
    all
}

/// Those of f32, which may be rounded.
fn rounded() -> Vec<Product> {
    // Sizes by themselves are those of other types: every third of them will do.
    let plain = |p: &Product| p.text.starts_with("graph @plain");
    let (sizes, mut all): (Vec<Product>, Vec<Product>) = products(&["f32"]).into_iter().partition(plain);
    all.extend(sizes.into_iter().step_by(3));
    // One operand of another type: both are rounded where they are f32.
    all.push(product(
        "graph @mixed(%x: f32[40, 72], %y: bf16[72, 64]) {
           %0 = einsum %x, %y {ab,bc->ac; acc=f32} : f32[40, 64]
           return %0
         }",
    ));
    all.iter_mut().for_each(|p| p.precision = Precision::Tf32);
    all
}

/// Products of which each block takes a large tile, on a device of one multiprocessor: whole tiles, and some that are nearly full, of one
/// block of steps and several.
fn large() -> Vec<Product> {
    let mut all = Vec::new();
    for (dtype, [m, k, n], [left, right]) in [
        ("f16", [128, 70, 128], ["ab", "bc"]),
        ("bf16", [128, 136, 250], ["ba", "cb"]),
        ("f32", [250, 40, 128], ["ab", "bc"]),
        ("f32", [250, 48, 128], ["ba", "cb"]),
    ] {
        let size = |label: char| [m, k, n]["abc".find(label).expect("a label")];
        let shape = |labels: &str| {
            let sizes: Vec<String> = labels.chars().map(|l| size(l).to_string()).collect();
            sizes.join(", ")
        };
        let (x, y) = (shape(left), shape(right));
        let text = format!(
            "graph @large(%x: {dtype}[{x}], %y: {dtype}[{y}], %b: f32[{n}]) {{
               %0 = einsum %x, %y {{{left},{right}->ac; acc=f32}} : f32[{m}, {n}]
               %1 = expand %b : f32[{m}, {n}]
               %2 = add %0, %1 : f32[{m}, {n}]
               %3 = tanh %2 : f32[{m}, {n}]
               return %3, %0
             }}"
        );
        all.push(Product {
            precision: if dtype == "f32" {
                Precision::Tf32
            } else {
                Precision::Exact
            },
            ..product(text)
        });
    }
    all
}

/// Products of four warps whose operands come in whole tiles: matrices that tiles fill and such that they reach beyond on each side, sums of as many steps
/// as stages and more, several of them, and one whose result is of f32.
fn of_tiles() -> Vec<Product> {
    let mut all = Vec::new();
    for (dtype, to, batch, [m, k, n], [left, right]) in [
        ("bf16", "bf16", 1, [256, 448, 128], ["ab", "bc"]),
        ("f16", "f16", 1, [250, 392, 248], ["ab", "bc"]),
        ("f16", "f32", 1, [248, 400, 250], ["ba", "cb"]),
        ("bf16", "bf16", 2, [128, 384, 128], ["ab", "cb"]),
        // Rows of one of several matrices, behind which those of the next begin: of the sum, of either side, of all of them.
        ("f16", "f16", 3, [200, 128, 128], ["ab", "bc"]),
        ("bf16", "f32", 2, [128, 200, 128], ["ab", "bc"]),
        ("f16", "f16", 3, [120, 72, 232], ["ab", "cb"]),
        ("bf16", "bf16", 2, [200, 136, 232], ["ab", "bc"]),
        ("f16", "f16", 2, [248, 136, 250], ["ba", "cb"]),
        ("bf16", "f32", 2, [200, 200, 232], ["ba", "bc"]),
    ] {
        let size = |label: char| [m, k, n]["abc".find(label).expect("a label")];
        let shape = |labels: &str| {
            let sizes: Vec<String> = labels.chars().map(|l| size(l).to_string()).collect();
            format!("{batch}, {}", sizes.join(", "))
        };
        let (x, y, z) = (shape(left), shape(right), shape("ac"));
        let text = format!(
            "graph @tiles(%x: {dtype}[{x}], %y: {dtype}[{y}], %r: {to}[{z}]) {{
               %0 = einsum %x, %y {{x{left},x{right}->xac; acc=f32}} : {to}[{z}]
               %1 = add %0, %r : {to}[{z}]
               return %1
             }}"
        );
        all.push(product(text));
    }
    all
}

/// As [`of_tiles`], of sizes that calls decide: of rows, matrices and both sides, of a tile, of less and of more, and of nothing.
fn of_tiles_at_any_size() -> Vec<Product> {
    let graph = |text: &str, sizes: &[&[i64]]| Product {
        text: text.into(),
        sizes: sizes.iter().map(|s| s.to_vec()).collect(),
        precision: Precision::Exact,
    };
    vec![
        graph(
            "graph @rows(%x: f16[n, 200], %y: f16[200, 248], %r: f16[n, 248]) where n in 0..=4096 {
               %0 = einsum %x, %y {ab,bc->ac; acc=f32} : f16[n, 248]
               %1 = add %0, %r : f16[n, 248]
               return %1
             }",
            &[&[0], &[1], &[64], &[65], &[150]],
        ),
        graph(
            "graph @many(%x: bf16[n, 256], %y: bf16[128, 256]) {
               %0 = einsum %x, %y {ab,cb->ac; acc=f32} : bf16[n, 128]
               return %0
             }",
            &[&[0], &[7], &[128], &[200]],
        ),
        graph(
            "graph @matrices(%x: bf16[n, 120, 136], %y: bf16[n, 136, 128]) where n in 0..=4096 {
               %0 = einsum %x, %y {xab,xbc->xac; acc=f32} : bf16[n, 120, 128]
               return %0
             }",
            &[&[0], &[1], &[3]],
        ),
        graph(
            "graph @heads(%x: f16[m, 2, n, 136], %y: f16[m, 2, l, 136]) where m in 0..=64, n in 0..=4096, l in 0..=4096 {
               %0 = einsum %x, %y {xhab,xhcb->xhac; acc=f32} : f32[m, 2, n, l]
               return %0
             }",
            &[
                &[0, 1, 1],
                &[1, 0, 5],
                &[1, 5, 0],
                &[2, 65, 130],
                &[1, 64, 129],
                &[2, 3, 128],
            ],
        ),
    ]
}

/// A convolution of images with so many groups, channels of each and output channels of each, on a device of one multiprocessor: large enough for the tile of four
/// warps.
#[derive(Clone, Copy)]
struct Convolved {
    dtype: &'static str,
    groups: i64,
    channels: i64,
    out: i64,
    image: [i64; 2],
    window: [i64; 2],
    stride: [i64; 2],
    dilation: [i64; 2],
    pad: [i64; 4],
    /// Whether the image has its channels last already.
    last: bool,
}

impl Convolved {
    fn text(&self) -> String {
        let Convolved {
            dtype,
            groups: g,
            channels: c,
            out: o,
            ..
        } = *self;
        let [top, left, bottom, right] = self.pad;
        let padded = [self.image[0] + top + bottom, self.image[1] + left + right];
        let places = [0, 1].map(|i| (padded[i] - (self.window[i] - 1) * self.dilation[i] - 1) / self.stride[i] + 1);
        let ([h, w], [ph, pw], [oh, ow], [kh, kw]) = (self.image, padded, places, self.window);
        let ([sh, sw], [dh, dw]) = (self.stride, self.dilation);
        let (given, image) = match self.last {
            true => (
                format!("{dtype}[2, {g}, {h}, {w}, {c}]"),
                format!("%i = permute %x {{axes=[0, 1, 4, 2, 3]}} : {dtype}[2, {g}, {c}, {h}, {w}]"),
            ),
            false => (
                format!("{dtype}[2, {g}, {c}, {h}, {w}]"),
                format!("%i = neg %x : {dtype}[2, {g}, {c}, {h}, {w}]"),
            ),
        };
        format!(
            "graph @convolved(%x: {given}, %w: {dtype}[{g}, {o}, {c}, {kh}, {kw}], %b: f32[{o}, 1, 1]) {{
               {image}
               %0 = pad %i {{lo=[0, 0, 0, {top}, {left}], hi=[0, 0, 0, {bottom}, {right}], value=0.0}} : {dtype}[2, {g}, {c}, {ph}, {pw}]
               %1 = window %0 {{axis=3, size={kh}, stride={sh}, dilation={dh}}} : {dtype}[2, {g}, {c}, {oh}, {pw}, {kh}]
               %2 = window %1 {{axis=4, size={kw}, stride={sw}, dilation={dw}}} : {dtype}[2, {g}, {c}, {oh}, {ow}, {kh}, {kw}]
               %3 = einsum %2, %w {{ngcyxij,gocij->ngoyx; acc=f32}} : f32[2, {g}, {o}, {oh}, {ow}]
               %4 = expand %b : f32[2, {g}, {o}, {oh}, {ow}]
               %5 = add %3, %4 : f32[2, {g}, {o}, {oh}, {ow}]
               %6 = convert %5 : {dtype}[2, {g}, {o}, {oh}, {ow}]
               return %6
             }}"
        )
    }
}

/// Convolutions whose windows four warps multiply: of sizes that tiles divide and not, with padding, strides, dilations and groups, of channels that are steps of a tile,
/// half of them and several, and of images whose channels lie last.
fn convolutions() -> Vec<Product> {
    let plain = Convolved {
        dtype: "f16",
        groups: 1,
        channels: 64,
        out: 64,
        image: [12, 20],
        window: [3, 3],
        stride: [1, 1],
        dilation: [1, 1],
        pad: [1, 1, 1, 1],
        last: false,
    };
    let all = [
        Convolved { last: true, ..plain },
        Convolved {
            dtype: "bf16",
            channels: 32,
            image: [24, 30],
            stride: [2, 2],
            pad: [1, 0, 1, 3],
            ..plain
        },
        Convolved {
            channels: 96,
            out: 100,
            image: [11, 24],
            dilation: [2, 3],
            pad: [2, 3, 2, 3],
            ..plain
        },
        Convolved {
            groups: 2,
            channels: 32,
            image: [16, 16],
            window: [1, 3],
            pad: [0, 0, 0, 0],
            ..plain
        },
        Convolved {
            dtype: "bf16",
            out: 128,
            image: [8, 16],
            window: [2, 3],
            pad: [0, 1, 1, 1],
            ..plain
        },
        plain,
    ];
    all.iter().map(|c| product(c.text())).collect()
}

/// Products of random sizes, layouts and types, with something behind them or not.
fn random_product(seed: u64) -> Product {
    let mut rng = Rng::new(seed);
    let sides = [1, 15, 16, 17, 24, 31, 32, 40, 63, 64, 65, 72, 100, 130];
    let sums = [0, 1, 7, 8, 15, 16, 17, 32, 33, 56, 64, 65, 80, 127, 128, 136, 192, 260];
    let (a, b, c) = (rng.pick(&sides), rng.pick(&sums), rng.pick(&sides));
    let batch: Option<i64> = rng.pick(&[None, None, Some(2), Some(3)]);
    let size = |label: char| match label {
        'a' => a,
        'b' => b,
        'c' => c,
        _ => batch.unwrap_or(1),
    };
    let dtype = rng.pick(&["f16", "bf16", "f32"]);
    let to = rng.pick(&["f32", dtype]);
    let mut labels = |all: [&str; 2]| {
        let own = rng.pick(&all);
        batch.map_or(own.to_string(), |_| format!("x{own}"))
    };
    let (left, right, out) = (labels(["ab", "ba"]), labels(["bc", "cb"]), labels(["ac", "ca"]));
    let shape = |labels: &str| {
        let sizes: Vec<String> = labels.chars().map(|l| size(l).to_string()).collect();
        sizes.join(", ")
    };
    let (x, y, z) = (shape(&left), shape(&right), shape(&out));
    let behind = match rng.below(3) {
        0 => "return %0".to_string(),
        1 => format!("%1 = tanh %0 : {to}[{z}]\n return %1"),
        _ => format!("%1 = add %0, %r : {to}[{z}]\n return %1, %0"),
    };
    let text = format!(
        "graph @random(%x: {dtype}[{x}], %y: {dtype}[{y}], %r: {to}[{z}]) {{
           %0 = einsum %x, %y {{{left},{right}->{out}; acc=f32}} : {to}[{z}]
           {behind}
         }}"
    );
    Product {
        precision: if dtype == "f32" {
            Precision::Tf32
        } else {
            Precision::Exact
        },
        ..product(text)
    }
}

fn run(product: &Product, bits: &mut DefaultHasher) -> Result<(), String> {
    let graph = parse_graph(&product.text, &mut no_data).map_err(|e| format!("{e:?}"))?;
    let names: Vec<String> = graph.symbols().iter().map(|s| s.name.clone()).collect();
    let options = CompileOptions {
        specialize: Specialize::Never,
        device: Device::cuda(0),
        precision: product.precision,
        ..CompileOptions::default()
    };
    let executable = compile_ir(&graph, &options).map_err(|e| format!("compile: {e}"))?;
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
            precision: product.precision,
            ..interp::Options::default()
        };
        let given: Vec<tlc::Input<'_>> = inputs.iter().map(Into::into).collect();
        let found = executable.run(&given).map_err(|e| format!("run at {sizes:?}: {e}"))?;
        let found: Vec<HostTensor> = found.iter().map(|o| o.to_host()).collect();
        if judges() {
            let exact = interpret(&graph, &inputs, &interpreted).map_err(|e| format!("interpreter: {e}"))?;
            let bounded = interpret_with_bounds(&graph, &inputs, &interpreted);
            let bounded = bounded.map_err(|e| format!("interpreter: {e}"))?;
            compare_all(&found, &exact, &bounded).map_err(|e| format!("at {sizes:?}: {e}"))?;
        }
        found.iter().for_each(|t| t.bytes().hash(bits));
    }
    Ok(())
}

mod children {
    use tlc_ir::testgen::seeds;

    use super::*;

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn random() {
        let mut bits = DefaultHasher::new();
        let mut failures = Vec::new();
        for seed in seeds(0..40) {
            let product = random_product(seed);
            if let Err(e) = run(&product, &mut bits) {
                println!("seed {seed}: {}\n{e}", product.text);
                failures.push(seed);
            }
        }
        println!("bits {:016x}", bits.finish());
        assert!(failures.is_empty(), "{failures:?}");
    }

    /// Runs products, of which those must be multiplied by matrix instructions that have a precision other than exact.
    fn run_all(products: Vec<Product>) {
        let mut bits = DefaultHasher::new();
        let mut failures = 0;
        for product in products {
            if let Err(e) = run(&product, &mut bits) {
                println!("{}\n{e}", product.text);
                failures += 1;
            }
        }
        println!("bits {:016x}", bits.finish());
        assert_eq!(failures, 0);
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn all() {
        run_all(products(&["f16", "bf16"]));
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn in_tf32() {
        run_all(rounded());
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn in_large_tiles() {
        for product in large() {
            let graph = parse_graph(&product.text, &mut no_data).expect("a graph");
            let options = CompileOptions {
                device: Device::cuda(0),
                precision: product.precision,
                ..CompileOptions::default()
            };
            let explained = compile_ir(&graph, &options).expect("an executable").explain();
            assert!(explained.contains("warps multiply 128 by 128"), "{explained}");
        }
        run_all(large());
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn of_whole_tiles() {
        for product in of_tiles().into_iter().chain(of_tiles_at_any_size()) {
            let graph = parse_graph(&product.text, &mut no_data).expect("a graph");
            let options = CompileOptions {
                device: Device::cuda(0),
                ..CompileOptions::default()
            };
            let executable = compile_ir(&graph, &options).expect("an executable");
            let plan = executable.plan();
            let kernels = plan.kernels.iter();
            let tiled = kernels.map(|k| {
                let placed = tlc_codegen::cuda::with_fragments_placed(k);
                let flat = tlc_codegen::cuda::flatten(&placed, "sm_90a").expect("a lowered form");
                let operands: std::collections::BTreeSet<u32> = flat.matrices.iter().map(|m| m.param).collect();
                operands.len()
            });
            let tiled: Vec<usize> = tiled.collect();
            assert_eq!(tiled, [2], "{}: {}", product.text, executable.explain());
        }
        run_all(of_tiles());
        run_all(of_tiles_at_any_size());
    }

    /// Whether sizes are numbers or symbols, an element is summed in the same order, in tiles of four warps and in those of single ones.
    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn sizes_known_or_not() {
        for (m, n) in [(40, 128), (70, 128), (200, 256)] {
            let bits = |rows: &str| {
                let product = product(format!(
                    "graph @known(%x: f16[{rows}, 200], %y: f16[200, {n}]) {{
                       %0 = einsum %x, %y {{ab,bc->ac; acc=f32}} : f32[{rows}, {n}]
                       return %0
                     }}"
                ));
                let sizes = match rows {
                    "n" => vec![vec![m]],
                    _ => vec![Vec::new()],
                };
                let mut bits = DefaultHasher::new();
                run(&Product { sizes, ..product }, &mut bits).expect("it is right");
                bits.finish()
            };
            assert_eq!(bits("n"), bits(&m.to_string()), "{m} by {n}");
        }
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn convolved() {
        for product in convolutions() {
            let graph = parse_graph(&product.text, &mut no_data).expect("a graph");
            let options = CompileOptions {
                device: Device::cuda(0),
                ..CompileOptions::default()
            };
            let executable = compile_ir(&graph, &options).expect("an executable");
            let swizzled = |k: &tlc_ir::Kernel| k.scratch.iter().any(|s| s.swizzled);
            let plan = executable.plan();
            let in_groups = plan.kernels.iter().filter(|k| swizzled(k)).count();
            assert_eq!(in_groups, 1, "{}: {}", product.text, executable.explain());
        }
        run_all(convolutions());
    }

    /// What matrix instructions of tf32 come to is what the product of rounded operands is, but for the rounding of sums.
    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn operands_are_rounded_to_the_nearest() {
        let (m, k, n) = (48, 100, 33);
        for (x_labels, y_labels) in [("ab", "bc"), ("ba", "cb"), ("ab", "cb"), ("ba", "bc")] {
            let shape = |labels: &str| -> Vec<usize> {
                let size = |l| [m, k, n]["abc".find(l).expect("a label")];
                labels.chars().map(size).collect()
            };
            let (xs, ys) = (shape(x_labels), shape(y_labels));
            let text = format!(
                "graph @rounded(%x: f32{xs:?}, %y: f32{ys:?}) {{
                   %0 = einsum %x, %y {{{x_labels},{y_labels}->ac}} : f32[{m}, {n}]
                   return %0
                 }}"
            );
            let graph = parse_graph(&text, &mut no_data).expect("a graph");
            let mut rng = Rng::new(3);
            let inputs = [&xs, &ys].map(|shape| random_tensor(&mut rng, DType::F32, shape));
            let at = |t: &HostTensor, labels: &str, [row, column]: [usize; 2], first: char| {
                let (i, j) = if labels.starts_with(first) {
                    (row, column)
                } else {
                    (column, row)
                };
                f64::from(to_tf32(t.get(i * t.shape()[1] + j).as_f64() as f32))
            };
            let options = CompileOptions {
                device: Device::cuda(0),
                precision: Precision::Tf32,
                ..CompileOptions::default()
            };
            let executable = compile_ir(&graph, &options).expect("an executable");
            assert!(
                executable.explain().contains("rounded to tf32"),
                "{}",
                executable.explain()
            );
            let given: Vec<tlc::Input<'_>> = inputs.iter().map(Into::into).collect();
            let found = executable.run(&given).expect("outputs")[0].to_host();
            for i in 0..m {
                for j in 0..n {
                    let terms =
                        (0..k).map(|s| at(&inputs[0], x_labels, [i, s], 'a') * at(&inputs[1], y_labels, [s, j], 'b'));
                    let (sum, size) = terms.fold((0.0, 0.0), |(sum, size): (f64, f64), t| (sum + t, size + t.abs()));
                    let value = found.get(i * n + j).as_f64();
                    let most = (k + 1) as f64 * 2f64.powi(-24) * size;
                    assert!(
                        (value - sum).abs() <= most || !(sum.is_finite() && size < 1e37),
                        "{x_labels},{y_labels} at {i}, {j}: {value} for {sum}"
                    );
                }
            }
        }
    }
}
