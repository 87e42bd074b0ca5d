//! Integers of one byte and bools, which a device computes as words of four of them: every pair there is, against the interpreter. Floats as integers at the ends of
//! what these hold.

use tlc::{CompileOptions, Device, HostTensor, Scalar, compile_ir};
use tlc_ir::DType;
use tlc_ir::interp::{Options, interpret};
use tlc_ir::rng::Rng;
use tlc_ir::text::{no_data, parse_graph};

mod children {
    use super::*;

    /// Runs a graph, whose results are exact.
    fn check(text: &str, inputs: &[HostTensor]) {
        let graph = parse_graph(text, &mut no_data).unwrap_or_else(|e| panic!("{e:?}\n{text}"));
        let options = CompileOptions {
            device: Device::cuda(0),
            ..CompileOptions::default()
        };
        let executable = compile_ir(&graph, &options).expect("an executable");
        let given: Vec<tlc::Input<'_>> = inputs.iter().map(Into::into).collect();
        let found = executable.run(&given).expect("it runs");
        let expected = interpret(&graph, inputs, &Options::default()).expect("results");
        for (k, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let found = found.to_host();
            for i in 0..expected.len() {
                assert_eq!(found.get(i), expected.get(i), "result {k} of element {i}\n{text}");
            }
        }
    }

    /// Every value, as rows or as columns.
    fn all(dtype: DType, along: fn(usize) -> usize) -> HostTensor {
        let mut x = HostTensor::zeros(dtype, &[256, 256]).expect("a tensor");
        for i in 0..x.len() {
            x.set(i, Scalar::from_bits(dtype, along(i) as u64));
        }
        x
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn of_every_pair() {
        for t in [DType::I8, DType::U8, DType::Bool] {
            let mut lines = String::new();
            let mut results = Vec::new();
            let mut result = |op: &str, operands: &str, dtype: DType| {
                let name = format!("%{}", results.len());
                lines.push_str(&format!("{name} = {op} {operands} : {dtype}[256, 256]\n"));
                results.push(name.clone());
                name
            };
            for op in ["eq", "ne", "lt", "le"] {
                let truth = result(op, "%x, %y", DType::Bool);
                result(op, "%x, %c", DType::Bool);
                result(op, "%c, %y", DType::Bool);
                // What compares is chosen by, counted, and more.
                result("select", &format!("{truth}, %y, %x"), t);
                result("not", &truth, DType::Bool);
                result("convert", &truth, DType::I8);
            }
            for op in ["max", "min"] {
                result(op, "%x, %y", t);
                result(op, "%x, %c", t);
            }
            for op in ["and", "or", "xor"] {
                result(op, "%x, %y", t);
            }
            result("not", "%x", t);
            if t != DType::Bool {
                for op in ["add", "sub", "mul"] {
                    result(op, "%x, %y", t);
                }
                result("neg", "%x", t);
                result("abs", "%x", t);
                // The same bits as another type.
                let sum = result("xor", "%x, %y", t);
                let other = if t == DType::I8 { DType::U8 } else { DType::I8 };
                result("bitcast", &sum, other);
                result("bitcast", &sum, DType::F8E4M3FN);
            }
            for to in [DType::I8, DType::U8, DType::Bool, DType::I32, DType::F32, DType::F16] {
                if to != t {
                    result("convert", "%x", to);
                }
            }
            let constant = if t == DType::Bool { "true" } else { "5" };
            let text = format!(
                "graph @words(%x: {t}[256, 256], %y: {t}[256, 256]) {{
                   %k = const {constant} : {t}[]
                   %c = expand %k : {t}[256, 256]
                   {lines}
                   return {}
                 }}",
                results.join(", ")
            );
            check(&text, &[all(t, |i| i / 256), all(t, |i| i % 256)]);
        }
    }

    /// Integers that are loaded together and computed one by one: what is computed of one has to stay within its bits, which a larger result,
    /// a comparison and a shift to the right see.
    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device of one multiprocessor"]
    fn one_by_one() {
        for t in [DType::I8, DType::U8, DType::I16, DType::U16] {
            let mut rng = Rng::new(t as u64);
            let input = |first: u64, step: u64| {
                let mut x = HostTensor::zeros(t, &[3, 16384]).expect("a tensor");
                for i in 0..x.len() {
                    x.set(i, Scalar::from_bits(t, (first + step * i as u64) % (1 << t.bits())));
                }
                x
            };
            let ops = ["div %x, %c", "neg %x", "sub %x, %y", "mul %x, %y", "add %x, %c"];
            let behind = [
                "max %0, %x",
                "abs %0",
                "div %0, %c",
                "shr %0, %y",
                "rem %0, %y",
                "min %0, %y",
            ];
            for (first, second) in ops.iter().flat_map(|f| behind.iter().map(move |b| (f, b))) {
                let text = format!(
                    "graph @apart(%x: {t}[3, 16384], %y: {t}[3, 16384]) {{
                       %k = const 4 : {t}[]
                       %c = expand %k : {t}[3, 16384]
                       %0 = {first} : {t}[3, 16384]
                       %1 = {second} : {t}[3, 16384]
                       return %1
                     }}"
                );
                check(&text, &[input(7, 1), input(0, 37)]);
            }
            for _ in 0..16 {
                let mut lines = String::new();
                let mut values = vec!["%x".to_string(), "%y".to_string()];
                for i in 0..4 {
                    let any = |rng: &mut Rng, of: &[String]| of[rng.below(of.len())].clone();
                    let by = [1, 2, 3, 4, 8, 5, 100, 64][rng.below(8)];
                    let by = if t.is_signed_int() && rng.chance(1, 3) { -by } else { by };
                    lines.push_str(&format!(
                        "%k{i} = const {by} : {t}[]\n%e{i} = expand %k{i} : {t}[3, 16384]\n"
                    ));
                    let op = [
                        "div", "div", "rem", "mod", "shr", "shl", "max", "min", "sub", "add", "mul", "neg", "abs",
                    ][rng.below(13)];
                    let x = any(&mut rng, &values);
                    let operands = match op {
                        "neg" | "abs" => x,
                        _ if rng.chance(1, 3) => format!("{x}, {}", any(&mut rng, &values)),
                        _ => format!("{x}, %e{i}"),
                    };
                    lines.push_str(&format!("%v{i} = {op} {operands} : {t}[3, 16384]\n"));
                    values.push(format!("%v{i}"));
                }
                let text = format!(
                    "graph @apart(%x: {t}[3, 16384], %y: {t}[3, 16384]) {{
                       {lines}
                       %w = convert %v2 : f32[3, 16384]
                       return %v3, %v1, %w
                     }}"
                );
                let [x, y] = [1, 37].map(|step| input(rng.below(1 << t.bits()) as u64, step));
                check(&text, &[x, y]);
            }
        }
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn of_two_bytes() {
        for t in [DType::I16, DType::U16] {
            let text = format!(
                "graph @chosen(%c: bool[256, 256], %x: {t}[256, 256], %y: {t}[256, 256]) {{
                   %k = const 300 : {t}[]
                   %e = expand %k : {t}[256, 256]
                   %0 = select %c, %x, %y : {t}[256, 256]
                   %1 = select %c, %e, %y : {t}[256, 256]
                   %2 = select %c, %0, %e : {t}[256, 256]
                   return %0, %1, %2
                 }}"
            );
            // Every four conditions that are beside each other, of numbers with bits in both bytes.
            let c = all(DType::Bool, |i| ((i / 4) >> (i % 4)) & 1);
            check(&text, &[c, all(t, |i| i), all(t, |i| 65_535 - 7 * i % 65_536)]);
        }
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn of_floats() {
        let integers = [
            DType::I8,
            DType::I16,
            DType::I32,
            DType::I64,
            DType::U8,
            DType::U16,
            DType::U32,
            DType::U64,
        ];
        for from in [DType::F16, DType::BF16, DType::F32, DType::F64] {
            let mut values = vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 1e-9, -0.99, 0.99];
            for exponent in [7, 8, 15, 16, 31, 32, 63, 64] {
                let limit = 2f64.powi(exponent);
                let next = f64::from((limit as f32).next_down());
                values.extend([limit, limit - 1.0, limit - 0.5, limit + 1.0, next, 2.0 * limit]);
            }
            let negative: Vec<f64> = values.iter().map(|v| -v).collect();
            values.extend(negative);
            let n = values.len();
            let mut x = HostTensor::zeros(from, &[n]).expect("a tensor");
            values
                .iter()
                .enumerate()
                .for_each(|(i, v)| x.set(i, Scalar::from_f64(from, *v)));
            let lines: String = (integers.iter().enumerate())
                .map(|(k, to)| format!("%{k} = convert %x : {to}[{n}]\n"))
                .collect();
            let results: Vec<String> = (0..integers.len()).map(|k| format!("%{k}")).collect();
            let text = format!(
                "graph @floats(%x: {from}[{n}]) {{\n{lines}return {}\n}}",
                results.join(", ")
            );
            check(&text, &[x]);
        }
    }
}
