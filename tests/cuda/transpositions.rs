//! Tensors that are read along one axis and written along another: tiles in shared memory, whole and cut off, of elements of every size, against the
//! interpreter, bit for bit.

use std::hash::{DefaultHasher, Hash, Hasher};

use tlc::{CompileOptions, Device, HostTensor, Scalar, compile_ir};
use tlc_ir::DType;
use tlc_ir::interp::{Options, interpret};
use tlc_ir::text::{no_data, parse_graph};

mod children {
    use super::*;

    /// Numbers that look random, the same in every run.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, n: usize) -> usize {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as usize % n
        }

        fn of<T: Copy>(&mut self, all: &[T]) -> T {
            all[self.below(all.len())]
        }
    }

    /// Every element size; of 16 bits both, for they are stored alike and computed with in different ways.
    const TYPES: [DType; 9] = [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::I8,
        DType::Bool,
        DType::I64,
        DType::F64,
        DType::I32,
        DType::U8,
    ];

    /// The text of a graph that permutes a tensor of these extents, and more.
    fn graph(dtype: DType, sizes: &[usize], axes: &[usize], more: usize, symbolic: Option<usize>) -> String {
        let name = |i: usize| match symbolic {
            Some(s) if s == i => "n".to_string(),
            _ => sizes[i].to_string(),
        };
        let list = |all: Vec<String>| format!("[{}]", all.join(", "));
        let from = list((0..sizes.len()).map(name).collect());
        let to = list(axes.iter().map(|&a| name(a)).collect());
        let order = list(axes.iter().map(|a| a.to_string()).collect());
        let condition = symbolic.map_or("", |_| " where n in 0..=4096");
        let d = dtype.name();
        let permuted = format!("%0 = permute %x {{axes={order}}} : {d}{to}");
        match more {
            // With one that lies as the result does.
            1 if dtype != DType::Bool => format!(
                "graph @g(%x: {d}{from}, %y: {d}{to}){condition} {{
                   {permuted}
                   %1 = add %0, %y : {d}{to}
                   return %1
                 }}"
            ),
            // Two that are both turned, of which one is computed with.
            2 if dtype != DType::Bool => format!(
                "graph @g(%x: {d}{from}, %y: {d}{from}){condition} {{
                   {permuted}
                   %1 = permute %y {{axes={order}}} : {d}{to}
                   %2 = mul %1, %1 : {d}{to}
                   %3 = sub %2, %0 : {d}{to}
                   return %3
                 }}"
            ),
            // To a wider type or a narrower one.
            3 => format!(
                "graph @g(%x: {d}{from}){condition} {{
                   {permuted}
                   %1 = convert %0 : {}{to}
                   return %1
                 }}",
                if dtype.bytes() < 4 { "f32" } else { "f16" }
            ),
            _ => format!(
                "graph @g(%x: {d}{from}){condition} {{
                   {permuted}
                   return %0
                 }}"
            ),
        }
    }

    fn check(text: &str, n: i64, bits: &mut DefaultHasher) {
        let graph = parse_graph(text, &mut no_data).unwrap_or_else(|e| panic!("{e:?}\n{text}"));
        let inputs: Vec<HostTensor> = graph
            .inputs()
            .iter()
            .enumerate()
            .map(|(number, &i)| {
                let ty = graph.ty(i);
                let size = |d: &tlc_ir::IndexExpr| d.eval_symbols(&[n]).expect("a size") as usize;
                let sizes: Vec<usize> = ty.shape.iter().map(size).collect();
                let mut x = HostTensor::zeros(ty.dtype, &sizes).expect("a tensor");
                for at in 0..x.len() {
                    // Different from those that are a few rows or columns away.
                    let value = (at * 37 + at / 97 * 11 + at / 8191 * 5 + number * 3) % 101;
                    x.set(at, Scalar::from_f64(ty.dtype, value as f64));
                }
                x
            })
            .collect();
        let symbols: Vec<(String, i64)> = graph.symbols().iter().map(|s| (s.name.clone(), n)).collect();
        let options = Options {
            symbols: symbols.clone(),
            ..Options::default()
        };
        let exact = interpret(&graph, &inputs, &options).expect("results");
        let compiled = CompileOptions {
            device: Device::cuda(0),
            symbols,
            specialize: tlc::Specialize::Never,
            ..CompileOptions::default()
        };
        let executable = compile_ir(&graph, &compiled).expect("an executable");
        let given: Vec<tlc::Input<'_>> = inputs.iter().map(Into::into).collect();
        let found = executable.run(&given).expect("results");
        for (found, exact) in found.iter().zip(&exact) {
            let found = found.to_host();
            assert!(found.bytes() == exact.bytes(), "{text}");
            found.bytes().hash(bits);
        }
    }

    /// Two to four axes in any order, of which two are long.
    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn random() {
        let mut numbers = Numbers(13);
        let mut bits = DefaultHasher::new();
        for round in 0..45 {
            let dtype = TYPES[round % TYPES.len()];
            let rank = 2 + numbers.below(3);
            let long = [
                32, 33, 36, 40, 48, 49, 50, 63, 64, 72, 96, 100, 121, 124, 128, 130, 144, 197, 200, 250,
            ];
            let mut sizes: Vec<usize> = (0..rank)
                .map(|i| if i < 2 { numbers.of(&long) } else { 1 + numbers.below(3) })
                .collect();
            let mut axes: Vec<usize> = (0..rank).collect();
            for i in (1..rank).rev() {
                sizes.swap(i, numbers.below(i + 1));
                axes.swap(i, numbers.below(i + 1));
            }
            let symbolic = (numbers.below(4) == 0).then(|| numbers.below(rank));
            let text = graph(dtype, &sizes, &axes, numbers.below(5), symbolic);
            check(&text, symbolic.map_or(0, |s| sizes[s] as i64), &mut bits);
        }
        println!("bits {:016x}", bits.finish());
    }

    /// Sizes of networks: rows that 16 bytes divide and 32 elements do not, and such as nothing divides.
    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn of_networks() {
        let mut bits = DefaultHasher::new();
        for (sizes, axes) in [
            (&[197usize, 768][..], &[1usize, 0][..]),
            (&[2, 50, 49], &[0, 2, 1]),
            (&[2, 48, 14, 14], &[0, 2, 3, 1]),
            (&[2, 7, 7, 40], &[0, 3, 1, 2]),
            (&[33, 3, 65], &[2, 1, 0]),
            (&[3, 257, 2, 36], &[3, 0, 2, 1]),
        ] {
            for dtype in TYPES {
                if sizes[0] < 100 || dtype == DType::F32 || dtype == DType::F16 {
                    check(&graph(dtype, sizes, axes, 0, None), 0, &mut bits);
                }
            }
        }
        println!("bits {:016x}", bits.finish());
    }
}
