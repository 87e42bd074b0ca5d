//! Scans on a device: by a warp for each row, in chunks of rows where there are few, in blocks across columns. Lengths at the edges of vectors, of
//! warps and of chunks, all monoids and types, from both ends, and elements that are none or infinite.

use std::hash::{DefaultHasher, Hash, Hasher};

use tlc::{CompileOptions, Device, HostTensor, Scalar, compile_ir};
use tlc_ir::DType;
use tlc_ir::interp::{Options, interpret, interpret_with_bounds};
use tlc_ir::rng::Rng;
use tlc_ir::text::{no_data, parse_graph};

use crate::judged::judges;
use crate::states::compare_all;

mod children {
    use super::*;

    /// What scans go over: the shape, the axis, and how many rows and elements of each there are.
    const SPACES: [(&str, usize); 18] = [
        ("[2048]", 0),
        ("[2049]", 0),
        ("[5001]", 0),
        ("[4, 8192]", 1),
        ("[8191]", 0),
        ("[8194]", 0),
        ("[2, 6150]", 1),
        ("[20000]", 0),
        ("[65552]", 0),
        ("[3, 2304]", 1),
        ("[5, 3002]", 1),
        ("[2, 3, 4100, 1]", 2),
        ("[1026, 132]", 1),
        ("[1024, 37]", 1),
        ("[4097, 3]", 0),
        ("[3, 2500, 40]", 1),
        ("[r, n]", 1),
        ("[n, r]", 0),
    ];

    /// How what is scanned comes from the input.
    const PRODUCERS: [&str; 5] = ["", "", "neg", "select", "double"];

    fn element(dtype: DType, monoid: &str, rng: &mut Rng, special: bool) -> Scalar {
        let x = match rng.below(1 << 20) {
            0..8 if special => [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0][rng.below(4)],
            k if monoid == "mul" => [1.0, -1.0, 1.0 + (k % 7) as f64 / 256.0 - 3.0 / 256.0][k % 3],
            k => (k % 401) as f64 / 100.0 - 2.0,
        };
        match dtype {
            DType::F32 | DType::F64 | DType::F16 | DType::BF16 => Scalar::from_f64(dtype, x),
            DType::Bool => Scalar::from_bool(rng.below(40) == 0),
            _ if dtype.is_signed_int() => Scalar::from_i64(dtype, rng.range(-125, 125)),
            _ => Scalar::from_i64(dtype, rng.range(0, 250)),
        }
    }

    /// A graph of a scan.
    fn text(space: (&str, usize), dtype: DType, monoid: &str, producer: &str, flags: &str) -> String {
        let (shape, axis) = space;
        let x = dtype.name();
        let (made, scanned) = match producer {
            "neg" => (format!("%y = neg %x : {x}{shape}"), "%y"),
            "double" => (
                format!("%y = add %x, %x : {x}{shape}\n%z = max %y, %x : {x}{shape}"),
                "%z",
            ),
            "select" => (
                format!(
                    "%i = iota {{axis={axis}}} : i64{shape}\n%j = iota {{axis=0}} : i64{shape}\n%m = lt %j, %i : bool{shape}\n%y = select %m, %x, %x : {x}{shape}"
                ),
                "%y",
            ),
            _ => (String::new(), "%x"),
        };
        let condition = match shape.contains('n') {
            true => " where r in 0..=64, n in 0..=1000000",
            false => "",
        };
        format!(
            "graph @scan(%x: {x}{shape}){condition} {{
               {made}
               %s = scan {monoid} {scanned} {{axis={axis}{flags}}} : {x}{shape}
               return %s
             }}"
        )
    }

    fn check(text: &str, calls: &[[usize; 2]], monoid: &str, rng: &mut Rng, bits: &mut DefaultHasher) {
        let graph = parse_graph(text, &mut no_data).unwrap_or_else(|e| panic!("{e:?}\n{text}"));
        let input = graph.ty(graph.inputs()[0]).clone();
        for sizes in calls {
            let symbols: Vec<(String, i64)> = graph
                .symbols()
                .iter()
                .map(|s| (s.name.clone(), sizes[usize::from(s.name == "n")] as i64))
                .collect();
            let values: Vec<i64> = symbols.iter().map(|s| s.1).collect();
            let size = |d: &tlc_ir::IndexExpr| d.eval_symbols(&values).expect("a size") as usize;
            let shape: Vec<usize> = input.shape.iter().map(size).collect();
            let mut x = HostTensor::zeros(input.dtype, &shape).expect("a tensor");
            let special = rng.below(3) == 0;
            for at in 0..x.len() {
                x.set(at, element(input.dtype, monoid, rng, special));
            }
            let options = Options {
                symbols: symbols.clone(),
                ..Options::default()
            };
            let inputs = std::slice::from_ref(&x);
            let compiled = CompileOptions {
                device: Device::cuda(0),
                symbols,
                specialize: tlc::Specialize::Never,
                ..CompileOptions::default()
            };
            let executable = compile_ir(&graph, &compiled).expect("an executable");
            let found: Vec<HostTensor> = executable
                .run(&[(&x).into()])
                .expect("results")
                .iter()
                .map(|o| o.to_host())
                .collect();
            if judges() {
                let exact = interpret(&graph, inputs, &options).expect("results");
                let bounded = interpret_with_bounds(&graph, inputs, &options).expect("bounds");
                compare_all(&found, &exact, &bounded).unwrap_or_else(|e| panic!("{shape:?}: {e}\n{text}"));
            }
            found.iter().for_each(|t| t.bytes().hash(bits));
        }
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn of_all_kinds() {
        let mut rng = Rng::new(17);
        let mut bits = DefaultHasher::new();
        let types = [
            (DType::F32, &["add", "mul", "max", "min"][..]),
            (DType::F16, &["add", "max"][..]),
            (DType::BF16, &["add", "min"][..]),
            (DType::F64, &["add", "mul"][..]),
            (DType::I32, &["add", "mul", "max", "min"][..]),
            (DType::I8, &["add", "max"][..]),
            (DType::U8, &["min", "add"][..]),
            (DType::I64, &["add", "mul"][..]),
            (DType::Bool, &["and", "or"][..]),
        ];
        for space in SPACES {
            // Each space with a few kinds, of which single precision is one.
            for kind in 0..4 {
                let (dtype, monoids) = types[if kind == 0 { 0 } else { rng.below(types.len()) }];
                let monoid = rng.pick(monoids);
                let flags = ["", ", exclusive", ", reverse", ", exclusive, reverse"][rng.below(4)];
                let float = matches!(dtype, DType::F32 | DType::F64 | DType::F16 | DType::BF16);
                let producer = match rng.pick(&PRODUCERS) {
                    _ if !float => "",
                    producer => producer,
                };
                let calls: &[[usize; 2]] = match space.0.contains('n') {
                    true => &[[0, 5], [3, 0], [1, 1], [2, 1024], [3, 2053], [1, 40_000]],
                    false => &[[0, 0]],
                };
                check(
                    &text(space, dtype, monoid, producer, flags),
                    calls,
                    monoid,
                    &mut rng,
                    &mut bits,
                );
            }
        }
        println!("bits {:016x}", bits.finish());
    }
}
