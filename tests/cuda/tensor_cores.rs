//! Products by matrix instructions on a device, against the interpreter.

use std::hash::{DefaultHasher, Hash, Hasher};

use tlc::{CompileOptions, Device, HostTensor, Specialize, compile_ir};
use tlc_ir::interp::{self, interpret, interpret_with_bounds};
use tlc_ir::rng::Rng;
use tlc_ir::testgen::random_tensor;
use tlc_ir::text::{no_data, parse_graph};

use crate::states::compare_all;

/// A graph, and the values of its symbols that it is run with.
struct Product {
    text: String,
    sizes: Vec<Vec<i64>>,
}

fn product(text: impl Into<String>) -> Product {
    Product {
        text: text.into(),
        sizes: vec![Vec::new()],
    }
}

/// Products of every form that matrix instructions take.
fn products() -> Vec<Product> {
    let mut all = Vec::new();
    for dtype in ["f16", "bf16"] {
        // Whole tiles, one and several; and sizes that no tile divides, of a sum and of sides, aligned or not.
        for [m, k, n] in [
            [16, 16, 16],
            [64, 64, 64],
            [128, 192, 64],
            [32, 256, 48],
            [64, 72, 96],
            [70, 40, 33],
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
        all.push(product(format!(
            "graph @layer(%x: {dtype}[64, 128], %w: {dtype}[96, 128], %b: {dtype}[96], %r: {dtype}[64, 96]) {{
               %0 = einsum %x, %w {{ab,cb->ac; acc=f32}} : f32[64, 96]
               %1 = convert %b : f32[96]
               %2 = expand %1 : f32[64, 96]
               %3 = add %0, %2 : f32[64, 96]
               %4 = tanh %3 : f32[64, 96]
               %5 = convert %r : f32[64, 96]
               %6 = add %4, %5 : f32[64, 96]
               %7 = convert %6 : {dtype}[64, 96]
               return %7
             }}"
        )));
        all.push(product(format!(
            "graph @dequantized(%x: {dtype}[48, 128], %w: i8[64, 128], %s: f32[64]) {{
               %0 = convert %w : f32[64, 128]
               %1 = reshape %s : f32[64, 1]
               %2 = expand %1 : f32[64, 128]
               %3 = mul %0, %2 : f32[64, 128]
               %4 = convert %3 : {dtype}[64, 128]
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
        });
    }
    all
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
    let dtype = rng.pick(&["f16", "bf16"]);
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
    product(format!(
        "graph @random(%x: {dtype}[{x}], %y: {dtype}[{y}], %r: {to}[{z}]) {{
           %0 = einsum %x, %y {{{left},{right}->{out}; acc=f32}} : {to}[{z}]
           {behind}
         }}"
    ))
}

fn run(product: &Product, bits: &mut DefaultHasher) -> Result<(), String> {
    let graph = parse_graph(&product.text, &mut no_data).map_err(|e| format!("{e:?}"))?;
    let names: Vec<String> = graph.symbols().iter().map(|s| s.name.clone()).collect();
    let options = CompileOptions {
        specialize: Specialize::Never,
        device: Device::cuda(0),
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
            ..interp::Options::default()
        };
        let given: Vec<tlc::Input<'_>> = inputs.iter().map(Into::into).collect();
        let found = executable.run(&given).map_err(|e| format!("run at {sizes:?}: {e}"))?;
        let found: Vec<HostTensor> = found.iter().map(|o| o.to_host()).collect();
        let exact = interpret(&graph, &inputs, &interpreted).map_err(|e| format!("interpreter: {e}"))?;
        let bounded = interpret_with_bounds(&graph, &inputs, &interpreted).map_err(|e| format!("interpreter: {e}"))?;
        compare_all(&found, &exact, &bounded).map_err(|e| format!("at {sizes:?}: {e}"))?;
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

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn all() {
        let mut bits = DefaultHasher::new();
        let mut failures = 0;
        for product in products() {
            if let Err(e) = run(&product, &mut bits) {
                println!("{}\n{e}", product.text);
                failures += 1;
            }
        }
        println!("bits {:016x}", bits.finish());
        assert_eq!(failures, 0);
    }
}
