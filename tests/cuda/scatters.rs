//! Scatters on a device: owners of ranges, those who take turns, and positions along other axes, which are apart. Indices that recur, and some that
//! lie outside; whatever comes last stays, and what is added up is added in the order of the updates.

use std::hash::{DefaultHasher, Hash, Hasher};

use tlc::{CompileOptions, Device, HostTensor, Scalar, compile_ir};
use tlc_ir::DType;
use tlc_ir::interp::{Options, interpret, interpret_with_bounds};
use tlc_ir::rng::Rng;
use tlc_ir::text::{no_data, parse_graph};

use crate::states::compare_all;

mod children {
    use super::*;

    /// What is scattered into, the updates, the indices, and the axes that these are of.
    const SPACES: [[&str; 4]; 14] = [
        ["[100, 64]", "[120, 64]", "[120]", "[0]"],
        ["[1000, 7]", "[90, 7]", "[90]", "[0]"],
        ["[50000]", "[100]", "[100]", "[0]"],
        ["[3]", "[900]", "[900]", "[0]"],
        ["[30, 4, 33]", "[5, 20, 4, 33]", "[5, 20]", "[0]"],
        ["[6, 90, 40]", "[50, 6, 40]", "[50]", "[1]"],
        ["[130, 21]", "[60, 130]", "[60]", "[1]"],
        ["[40, 50]", "[300]", "[300]", "[0, 1]"],
        ["[8, 9, 10]", "[70, 9]", "[70]", "[0, 2]"],
        ["[1, 65000]", "[3, 65000]", "[3]", "[0]"],
        ["[v, 16]", "[k, 16]", "[k]", "[0]"],
        ["[v, c]", "[k, c]", "[k]", "[0]"],
        ["[20, c]", "[k, c]", "[k]", "[0]"],
        ["[v]", "[k]", "[k]", "[0]"],
    ];

    fn check(text: &str, sizes: [i64; 3], rng: &mut Rng, bits: &mut DefaultHasher) {
        let graph = parse_graph(text, &mut no_data).unwrap_or_else(|e| panic!("{e:?}\n{text}"));
        let of = |name: &str| sizes[["v", "k", "c"].iter().position(|n| *n == name).expect("a size")];
        let symbols: Vec<(String, i64)> = graph.symbols().iter().map(|s| (s.name.clone(), of(&s.name))).collect();
        let values: Vec<i64> = symbols.iter().map(|s| s.1).collect();
        let size = |d: &tlc_ir::IndexExpr| d.eval_symbols(&values).expect("a size") as usize;
        let widest = graph.ty(graph.inputs()[0]).shape.iter().map(size).max().unwrap_or(0) as i64;
        let mut inputs = Vec::new();
        for (n, &input) in graph.inputs().iter().enumerate() {
            let ty = graph.ty(input);
            let shape: Vec<usize> = ty.shape.iter().map(size).collect();
            let mut x = HostTensor::zeros(ty.dtype, &shape).expect("a tensor");
            for at in 0..x.len() {
                let value = match n {
                    0 | 1 => Scalar::from_f64(
                        ty.dtype,
                        rng.range(-40, 40) as f64 / if ty.dtype.is_float() { 8.0 } else { 1.0 },
                    ),
                    _ if rng.below(9) == 0 => Scalar::from_i64(
                        ty.dtype,
                        rng.pick(&[-1, widest, i64::from(i32::MAX), i64::from(i32::MIN)]),
                    ),
                    _ if rng.below(3) == 0 => Scalar::from_i64(ty.dtype, 1),
                    _ => Scalar::from_i64(ty.dtype, rng.range(0, widest.max(1))),
                };
                x.set(at, value);
            }
            inputs.push(x);
        }
        let options = Options {
            symbols: symbols.clone(),
            ..Options::default()
        };
        let exact = interpret(&graph, &inputs, &options).expect("results");
        let bounded = interpret_with_bounds(&graph, &inputs, &options).expect("bounds");
        let compiled = CompileOptions {
            device: Device::cuda(0),
            symbols,
            specialize: tlc::Specialize::Never,
            ..CompileOptions::default()
        };
        let executable = compile_ir(&graph, &compiled).expect("an executable");
        let given: Vec<tlc::Input<'_>> = inputs.iter().map(Into::into).collect();
        let found: Vec<HostTensor> = executable
            .run(&given)
            .expect("results")
            .iter()
            .map(|o| o.to_host())
            .collect();
        compare_all(&found, &exact, &bounded).unwrap_or_else(|e| panic!("{sizes:?}: {e}\n{text}"));
        // In the order of the updates, so to the bit. All that is not a number is alike.
        for (found, exact) in found.iter().zip(&exact) {
            for at in 0..exact.len() {
                let (x, y) = (found.get(at), exact.get(at));
                let neither = x.as_f64().is_nan() && y.as_f64().is_nan();
                assert!(x == y || neither, "{sizes:?}: {x:?} for {y:?} at {at}\n{text}");
            }
        }
        found.iter().for_each(|t| t.bytes().hash(bits));
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn of_all_kinds() {
        let mut rng = Rng::new(23);
        let mut bits = DefaultHasher::new();
        for [base, updates, indices, axes] in SPACES {
            for kind in 0..3 {
                let dtype = match kind {
                    0 => DType::F32,
                    _ => rng.pick(&[DType::F32, DType::F16, DType::I32, DType::I64, DType::F64]),
                };
                let op = match kind {
                    0 => "add",
                    _ => rng.pick(&["add", "set", "max", "min", "mul"]),
                };
                let (x, int) = (dtype.name(), rng.pick(&["i64", "i32"]));
                let several = axes.matches(',').count() + 1;
                let given: Vec<String> = (0..several).map(|n| format!("%i{n}: {int}{indices}")).collect();
                let names: Vec<String> = (0..several).map(|n| format!("%i{n}")).collect();
                let ranges = [("v", 100_000), ("k", 100_000), ("c", 64)];
                let used = ranges.iter().filter(|r| base.contains(r.0) || updates.contains(r.0));
                let used: Vec<String> = used.map(|(name, most)| format!("{name} in 0..={most}")).collect();
                let condition = match used.is_empty() {
                    true => String::new(),
                    false => format!(" where {}", used.join(", ")),
                };
                let text = format!(
                    "graph @scatter(%w: {x}{base}, %u: {x}{updates}, {}){condition} {{
                       %0 = scatter {op} %w, %u, {} {{axes={axes}}} : {x}{base}
                       return %0
                     }}",
                    given.join(", "),
                    names.join(", "),
                );
                match condition.is_empty() {
                    true => check(&text, [0; 3], &mut rng, &mut bits),
                    false => {
                        for sizes in [[50, 60, 5], [1, 7, 1], [2000, 40, 64], [9, 0, 3]] {
                            check(&text, sizes, &mut rng, &mut bits);
                        }
                    }
                }
            }
        }
        println!("bits {:016x}", bits.finish());
    }
}
