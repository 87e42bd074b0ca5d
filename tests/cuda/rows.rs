//! Rows on a device: a warp takes each where there are many, a block where there are few or where they are long. Rows of all lengths, elements
//! of all floats among which some are none or infinite, and a last block with fewer rows than warps.

use std::hash::{DefaultHasher, Hash, Hasher};

use tlc::{CompileOptions, Device, HostTensor, Scalar, compile_ir};
use tlc_ir::DType;
use tlc_ir::interp::{Options, interpret, interpret_with_bounds};
use tlc_ir::text::{no_data, parse_graph};

use crate::judged::judges;
use crate::states::compare_all;

/// Lengths at the edges of vectors, of the threads of a warp, of what registers hold and of blocks.
const LENGTHS: [usize; 14] = [1, 2, 31, 32, 33, 100, 1000, 1023, 1024, 1025, 2048, 4095, 4096, 5000];

/// The functions of rows, as graphs of rows of floats.
fn functions(dtype: DType, rows: &str, n: usize) -> [(&'static str, String); 3] {
    let (all, wide) = (
        format!("[{rows}, {n}]"),
        if dtype == DType::F64 { "f64" } else { "f32" },
    );
    let condition = match rows.parse::<usize>() {
        Ok(_) => "",
        Err(_) => " where r in 0..=1000000",
    };
    let each = |name: &str, of: &str| {
        format!(
            "%{name}_1 = reshape {of} : {wide}[{rows}, 1]
             %{name} = expand %{name}_1 : {wide}{all}"
        )
    };
    let x = dtype.name();
    let softmax = format!(
        "graph @softmax(%g: {x}{all}){condition} {{
           %x = convert %g : {wide}{all}
           %m = reduce max %x {{axes=[1]}} : {wide}[{rows}]
           {}
           %d = sub %x, %me : {wide}{all}
           %e = exp %d : {wide}{all}
           %s = reduce add %e {{axes=[1]}} : {wide}[{rows}]
           {}
           %q = div %e, %se : {wide}{all}
           %o = convert %q : {x}{all}
           %l = log %s : {wide}[{rows}]
           %lse = add %l, %m : {wide}[{rows}]
           return %o, %lse
         }}",
        each("me", "%m"),
        each("se", "%s"),
    );
    let norm = format!(
        "graph @norm(%g: {x}{all}, %h: {x}{all}, %w: {x}[{n}]){condition} {{
           %a = add %g, %h : {x}{all}
           %x = convert %a : {wide}{all}
           %n = const {n}.0 : {wide}[]
           %ne = expand %n : {wide}[{rows}]
           %s = reduce add %x {{axes=[1]}} : {wide}[{rows}]
           %m = div %s, %ne : {wide}[{rows}]
           {}
           %d = sub %x, %me : {wide}{all}
           %d2 = mul %d, %d : {wide}{all}
           %v = reduce add %d2 {{axes=[1]}} : {wide}[{rows}]
           %u = div %v, %ne : {wide}[{rows}]
           %eps = const 1e-5 : {wide}[]
           %epse = expand %eps : {wide}[{rows}]
           %t = add %u, %epse : {wide}[{rows}]
           %k = rsqrt %t : {wide}[{rows}]
           {}
           %y = mul %d, %ke : {wide}{all}
           %wide = convert %w : {wide}[{n}]
           %we = expand %wide : {wide}{all}
           %z = mul %y, %we : {wide}{all}
           %o = convert %z : {x}{all}
           return %o, %a
         }}",
        each("me", "%m"),
        each("ke", "%k"),
    );
    let reductions = format!(
        "graph @reductions(%g: {x}{all}){condition} {{
           %s = reduce add %g {{axes=[1]}} : {x}[{rows}]
           %m = reduce max %g {{axes=[1]}} : {x}[{rows}]
           %p = reduce argmax %g {{axes=[1]}} : i64[{rows}]
           return %s, %m, %p
         }}"
    );
    [("softmax", softmax), ("norm", norm), ("reductions", reductions)]
}

pub mod children {
    use super::*;

    /// An element of a row; of every other row a few are no numbers, infinite, or zeros of both signs.
    fn element(row: usize, k: usize, n: usize) -> f64 {
        let special = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 0.0];
        match row % 6 {
            1 if k == n / 2 => special[row / 6 % 3],
            2 => special[3 + k % 2],
            3 if k + 1 == n => f64::NEG_INFINITY,
            4 => -0.0,
            5 if k % 7 == 3 => f64::NEG_INFINITY,
            _ => ((k * 37 + row * 11) % 101) as f64 / 25.0 - 2.0,
        }
    }

    /// Checks what is made of a graph of so many rows, and adds its bits.
    pub fn check(text: &str, rows: usize, bits: &mut DefaultHasher) {
        check_of(text, rows, &element, bits);
    }

    /// As [`check`], of elements by row, place and length.
    pub fn check_of(text: &str, rows: usize, element: &dyn Fn(usize, usize, usize) -> f64, bits: &mut DefaultHasher) {
        let graph = parse_graph(text, &mut no_data).unwrap_or_else(|e| panic!("{e:?}\n{text}"));
        let inputs: Vec<HostTensor> = graph
            .inputs()
            .iter()
            .map(|&i| {
                let ty = graph.ty(i);
                let size = |d: &tlc_ir::IndexExpr| d.eval_symbols(&[rows as i64]).expect("a size") as usize;
                let sizes: Vec<usize> = ty.shape.iter().map(size).collect();
                let mut x = HostTensor::zeros(ty.dtype, &sizes).expect("a tensor");
                let n = sizes[sizes.len() - 1];
                for at in 0..x.len() {
                    x.set(at, Scalar::from_f64(ty.dtype, element(at / n, at % n, n)));
                }
                x
            })
            .collect();
        let symbols: Vec<(String, i64)> = graph.symbols().iter().map(|s| (s.name.clone(), rows as i64)).collect();
        let options = Options {
            symbols: symbols.clone(),
            ..Options::default()
        };
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
        if judges() {
            let exact = interpret(&graph, &inputs, &options).expect("results");
            let bounded = interpret_with_bounds(&graph, &inputs, &options).expect("bounds");
            compare_all(&found, &exact, &bounded).unwrap_or_else(|e| panic!("{rows} rows: {e}\n{text}"));
        }
        found.iter().for_each(|t| t.bytes().hash(bits));
    }

    /// Rows that a call counts: warps take them.
    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn counted_by_calls() {
        let mut bits = DefaultHasher::new();
        for n in LENGTHS {
            let odd = matches!(n, 1 | 33 | 1000 | 1024 | 1025);
            for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
                if odd || dtype == DType::F32 {
                    for (_, text) in functions(dtype, "r", n) {
                        check(&text, 7, &mut bits);
                    }
                }
            }
        }
        println!("bits {:016x}", bits.finish());
    }

    /// Rows that take a part of a warp each, of which the last warp may have fewer than it has parts.
    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn short() {
        let mut bits = DefaultHasher::new();
        for n in [2, 3, 4, 7, 8, 10, 12, 16, 17, 20, 27, 30, 32] {
            let others = [DType::F16, DType::BF16, DType::F64];
            for dtype in [DType::F32, others[n % 3]] {
                for (k, (_, text)) in functions(dtype, "r", n).into_iter().enumerate() {
                    check(&text, [7, 65, 1][(n + k) % 3], &mut bits);
                }
                for (_, text) in functions(dtype, &(64 + n).to_string(), n) {
                    check(&text, 64 + n, &mut bits);
                }
            }
        }
        println!("bits {:016x}", bits.finish());
    }

    /// Rows of one element beside rows that are made of it: one thread stores the element, where it was read too, and all threads of its row need it.
    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn of_one_element() {
        let mut bits = DefaultHasher::new();
        for n in [2, 3, 4, 7, 16, 27, 32] {
            for (given, rows) in [("135", 135), ("1953", 1953), ("r", 70)] {
                let behind = n - 2;
                let text = format!(
                    "graph @beside(%x: f32[{given}, 1]) where r in 0..=1000000 {{
                       %0 = neg %x : f32[{given}, 1]
                       %1 = pad %0 {{lo=[0, 1], hi=[0, {behind}], value=0.0}} : f32[{given}, {n}]
                       return %0, %1
                     }}"
                );
                check(&text, rows, &mut bits);
                let text = format!(
                    "graph @spread(%x: f32[{given}, 1]) where r in 0..=1000000 {{
                       %0 = sin %x : f32[{given}, 1]
                       %1 = expand %0 : f32[{given}, {n}]
                       return %x, %0, %1
                     }}"
                );
                check(&text, rows, &mut bits);
            }
        }
        println!("bits {:016x}", bits.finish());
    }

    /// Many rows, of which the last block may have fewer than it has warps; and few, each of which a block takes.
    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn counted_before() {
        let mut bits = DefaultHasher::new();
        for (rows, n, dtype) in [
            (1024, 128, DType::F32),
            (1027, 72, DType::F16),
            (1025, 33, DType::F64),
            (6, 1024, DType::F32),
            (6, 1000, DType::F16),
            (6, 4096, DType::F32),
            (6, 5000, DType::BF16),
            (6, 20_000, DType::F32),
        ] {
            for (_, text) in functions(dtype, &rows.to_string(), n) {
                check(&text, rows, &mut bits);
            }
        }
        println!("bits {:016x}", bits.finish());
    }

    /// Rows of which shared memory has room for one, and not for another beside it: what is computed of them goes where they were.
    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn overwritten() {
        let mut bits = DefaultHasher::new();
        for (n, dtype) in [(32_768, DType::F32), (33_001, DType::F32), (40_002, DType::F32)] {
            let [(_, softmax), ..] = functions(dtype, "r", n);
            let graph = parse_graph(&softmax, &mut no_data).expect("a graph");
            let options = CompileOptions {
                device: Device::cuda(0),
                ..CompileOptions::default()
            };
            let executable = compile_ir(&graph, &options).expect("an executable");
            let shared = |k: &tlc_ir::Kernel| {
                let rows = k.scratch.iter().filter(|s| s.len.is(n as i64));
                rows.filter(|s| s.scope == tlc_ir::kernel::Scope::Shared).count()
            };
            let kept: Vec<usize> = executable.plan().kernels.iter().map(shared).collect();
            assert_eq!(kept, [1], "{}", executable.explain());
            // What was read, and what was computed of it.
            let stores = |k: &tlc_ir::Kernel| {
                let written = k.statements().flat_map(|s| s.accesses()).filter(|a| a.effect.writes());
                let row = |m: tlc_ir::kernel::Memory| match m {
                    tlc_ir::kernel::Memory::Scratch(i) => k.scratch[i as usize].len.is(n as i64),
                    tlc_ir::kernel::Memory::Param(_) => false,
                };
                written.filter(|a| row(a.memory)).count()
            };
            let filled: Vec<usize> = executable.plan().kernels.iter().map(stores).collect();
            assert_eq!(filled, [2], "{}", executable.explain());
            check(&softmax, 5, &mut bits);
        }
        println!("bits {:016x}", bits.finish());
    }

    /// Bytes, integers and bools, and rows that lie apart.
    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn of_other_types() {
        let mut bits = DefaultHasher::new();
        for n in [1, 7, 16, 33, 128, 1000] {
            let text = format!(
                "graph @integers(%x: i32[r, {n}], %y: i8[r, {n}], %z: u8[r, {n}]) where r in 0..=1000000 {{
                   %0 = reduce add %x {{axes=[1]}} : i32[r]
                   %1 = reduce max %y {{axes=[1]}} : i8[r]
                   %2 = reduce argmin %z {{axes=[1]}} : i64[r]
                   %3 = reshape %0 : i32[r, 1]
                   %4 = expand %3 : i32[r, {n}]
                   %5 = lt %x, %4 : bool[r, {n}]
                   %6 = reduce or %5 {{axes=[1]}} : bool[r]
                   return %0, %1, %2, %6
                 }}"
            );
            check(&text, 9, &mut bits);
            let apart = format!(
                "graph @apart(%x: f32[3, r, {n}]) where r in 1..=1000000 {{
                   %0 = permute %x {{axes=[1, 0, 2]}} : f32[r, 3, {n}]
                   %1 = reduce add %0 {{axes=[1, 2]}} : f32[r]
                   %2 = reshape %1 : f32[r, 1, 1]
                   %3 = expand %2 : f32[r, 3, {n}]
                   %4 = sub %0, %3 : f32[r, 3, {n}]
                   %5 = mul %4, %4 : f32[r, 3, {n}]
                   %6 = reduce add %5 {{axes=[1, 2]}} : f32[r]
                   return %4, %6
                 }}"
            );
            check(&apart, 9, &mut bits);
        }
        println!("bits {:016x}", bits.finish());
    }
}
