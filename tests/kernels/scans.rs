//! Scans along one long axis, which run in blocks: against the interpreter, within its bounds and exactly where they are exact,
//! on one thread and two with the same bits, at lengths around the blocks' ends.

use tlc::{CompileOptions, compile_ir};
use tlc_ir::interp::{self, compare, interpret_with_bounds};
use tlc_ir::text::parse_graph;
use tlc_ir::{DType, Graph, HostTensor};
use tlc_passes::cluster::{ClusterKind, ScanForm};

fn graph(text: &str) -> Graph {
    parse_graph(text, &mut tlc_ir::text::no_data).unwrap_or_else(|e| panic!("{e:?}\n{text}"))
}

/// Compiled results, which one thread and two agree on bit by bit. Every scan runs in blocks, or none does.
fn run(graph: &Graph, inputs: &[HostTensor], in_blocks: bool) -> Vec<HostTensor> {
    let with = |threads| {
        let options = CompileOptions {
            threads: Some(threads),
            ..CompileOptions::default()
        };
        let executable = compile_ir(graph, &options).unwrap_or_else(|e| panic!("{e}"));
        tlc_ir::plan::verify::check_thoroughly(executable.plan()).unwrap_or_else(|e| panic!("{e}\n{graph}"));
        let clusters = &executable.decisions().clusters.clusters;
        let scans = clusters.iter().filter_map(|c| match c.kind {
            ClusterKind::Scan(form) => Some(matches!(form, ScanForm::Blocks(_))),
            _ => None,
        });
        assert!(
            scans.clone().count() > 0 && scans.clone().all(|b| b == in_blocks),
            "{graph}"
        );
        let outputs = executable.run(&inputs.iter().map(Into::into).collect::<Vec<_>>());
        let outputs = outputs.unwrap_or_else(|e| panic!("{e}"));
        outputs.iter().map(|o| o.to_host()).collect::<Vec<_>>()
    };
    let one = with(1);
    let two = with(2);
    for (one, two) in one.iter().zip(&two) {
        assert_eq!(one.bytes(), two.bytes(), "one thread and two differ");
    }
    one
}

fn agrees(text: &str, inputs: &[HostTensor], in_blocks: bool) {
    let g = graph(text);
    let bounded = interpret_with_bounds(&g, inputs, &interp::Options::default()).unwrap_or_else(|e| panic!("{e}"));
    for (k, (found, bounded)) in run(&g, inputs, in_blocks).iter().zip(&bounded).enumerate() {
        compare(found, bounded).unwrap_or_else(|e| panic!("output {k}: {e}\n{text}"));
    }
}

const BLOCK: usize = 8192;
const LENGTHS: [usize; 8] = [
    8 * BLOCK,
    8 * BLOCK + BLOCK / 2,
    8 * BLOCK + 1,
    9 * BLOCK - 1,
    9 * BLOCK,
    11 * BLOCK + 5,
    12 * BLOCK - 1,
    12 * BLOCK + BLOCK / 2,
];

fn flags() -> impl Iterator<Item = &'static str> {
    ["", ", exclusive", ", reverse", ", exclusive, reverse"].into_iter()
}

#[test]
fn integers_are_exact_at_every_length_along_every_axis() {
    for (k, n) in LENGTHS.into_iter().enumerate() {
        for flags in flags() {
            let rows = [1usize, 3][k % 2];
            let dtype = ["i32", "u8", "i64"][k % 3];
            let (shape, axis) = [([rows, n], 1), ([n, rows], 0)][k / 2 % 2];
            let [a, b] = shape;
            let text = format!(
                "graph @s(%x: {dtype}[{a}, {b}]) {{ %0 = scan add %x {{axis={axis}{flags}}} : {dtype}[{a}, {b}]
                 %1 = scan max %x {{axis={axis}{flags}}} : {dtype}[{a}, {b}]
                 return %0 as y, %1 as z }}"
            );
            let values: Vec<i32> = (0..a * b)
                .map(|i| (i as i32).wrapping_mul(0x9E37_79B1u32 as i32))
                .collect();
            let x = match dtype {
                "u8" => HostTensor::from_slice(&shape, &values.iter().map(|&v| v as u8).collect::<Vec<_>>()),
                "i64" => HostTensor::from_slice(&shape, &values.iter().map(|&v| v.into()).collect::<Vec<i64>>()),
                _ => HostTensor::from_slice(&shape, &values),
            };
            agrees(&text, &[x.unwrap()], true);
        }
    }
}

#[test]
fn floats_are_within_the_bounds_of_the_interpreter() {
    for (k, n) in LENGTHS.into_iter().enumerate() {
        for flags in flags() {
            let text = format!(
                "graph @s(%x: f32[{n}]) {{ %0 = scan add %x {{axis=0{flags}}} : f32[{n}]
                 %1 = scan min %x {{axis=0{flags}}} : f32[{n}]
                 %2 = neg %x : f32[{n}]\n %3 = scan max %2 {{axis=0{flags}}} : f32[{n}]
                 return %0 as y, %1 as z, %3 as w }}"
            );
            let mut x: Vec<f32> = (0..n).map(|i| ((i * 37 + 11) % 101) as f32 * 0.1 - 5.0).collect();
            // Special values inside of blocks and at their ends.
            match k % 4 {
                1 => x[2 * BLOCK - 1] = f32::NAN,
                2 => x[3 * BLOCK] = f32::INFINITY,
                3 => x.iter_mut().for_each(|x| *x = -0.0),
                _ => {}
            }
            agrees(&text, &[HostTensor::from_slice(&[n], &x).unwrap()], true);
        }
    }
}

#[test]
fn lengths_that_a_call_says_may_be_none_few_or_many() {
    for n in [
        0,
        1,
        2,
        BLOCK - 1,
        BLOCK,
        BLOCK + 1,
        4 * BLOCK,
        4 * BLOCK + 1,
        9 * BLOCK + 77,
    ] {
        for flags in flags() {
            let text = format!(
                "graph @s(%x: i32[n], %f: f32[n]) where n in 0..=16777216 {{
                 %0 = scan add %x {{axis=0{flags}}} : i32[n]
                 %1 = scan add %f {{axis=0{flags}}} : f32[n]
                 return %0 as y, %1 as z }}"
            );
            let x: Vec<i32> = (0..n).map(|i| (i as i32).wrapping_mul(0x9E37_79B1u32 as i32)).collect();
            let f: Vec<f32> = x.iter().map(|&x| (x % 1000) as f32 / 7.0).collect();
            let inputs = [
                HostTensor::from_slice(&[n], &x).unwrap(),
                HostTensor::from_slice(&[n], &f).unwrap(),
            ];
            agrees(&text, &inputs, true);
        }
    }
}

/// What is kept among the results would be rounded there.
#[test]
fn narrow_floats_stay_one_chain() {
    let n = 9 * BLOCK;
    let text = format!("graph @s(%x: f16[{n}]) {{ %0 = scan add %x {{axis=0}} : f16[{n}]\n return %0 as y }}");
    let x = HostTensor::zeros(DType::F16, &[n]).unwrap();
    agrees(&text, &[x], false);
}

/// Scans along an axis that is not the last go along the last one, in vectors: whatever is left over of these, and whatever is computed of elements
/// before they are added.
#[test]
fn columns_are_scanned_side_by_side() {
    for (k, columns) in [1usize, 3, 15, 16, 17, 31, 63, 64, 65, 100, 131]
        .into_iter()
        .enumerate()
    {
        for (rows, flags) in [0usize, 1, 2, 37].into_iter().zip(flags()) {
            let dtype = ["f32", "i32", "f64", "u8", "i64"][k % 5];
            let shape = [2, rows, columns];
            let of = format!("{dtype}[2, {rows}, {columns}]");
            let text = format!(
                "graph @s(%x: {of}, %t: {dtype}[{columns}, {rows}, 2]) {{
                 %0 = scan add %x {{axis=1{flags}}} : {of}
                 %1 = mul %x, %x : {of}
                 %2 = scan max %1 {{axis=1{flags}}} : {of}
                 %3 = permute %t {{axes=[2, 1, 0]}} : {of}
                 %4 = add %3, %x : {of}
                 %5 = scan add %4 {{axis=1{flags}}} : {of}
                 return %0 as y, %2 as z, %5 as w }}"
            );
            let values: Vec<i32> = (0..2 * rows * columns)
                .map(|i| (i * 37 + 11) as i32 % 101 - 50)
                .collect();
            let host = |shape: &[usize]| match dtype {
                "u8" => HostTensor::from_slice(shape, &values.iter().map(|&v| v as u8).collect::<Vec<_>>()),
                "i64" => HostTensor::from_slice(shape, &values.iter().map(|&v| v.into()).collect::<Vec<i64>>()),
                "f64" => HostTensor::from_slice(shape, &values.iter().map(|&v| f64::from(v) / 7.0).collect::<Vec<_>>()),
                "f32" => HostTensor::from_slice(shape, &values.iter().map(|&v| v as f32 / 7.0).collect::<Vec<_>>()),
                _ => HostTensor::from_slice(shape, &values),
            };
            agrees(
                &text,
                &[host(&shape).unwrap(), host(&[columns, rows, 2]).unwrap()],
                false,
            );
        }
    }
}

#[test]
fn columns_of_any_number_are_scanned_side_by_side() {
    for [rows, columns] in [[0usize, 5], [5, 0], [1, 1], [3, 15], [7, 16], [2, 17], [40, 130]] {
        for flags in flags() {
            let text = format!(
                "graph @s(%x: f32[n, m]) where n in 0..=1000, m in 0..=1000 {{
                 %0 = scan add %x {{axis=0{flags}}} : f32[n, m]
                 %1 = scan min %x {{axis=0{flags}}} : f32[n, m]
                 return %0 as y, %1 as z }}"
            );
            let mut x: Vec<f32> = (0..rows * columns)
                .map(|i| ((i * 37 + 11) % 101) as f32 * 0.1 - 5.0)
                .collect();
            for (i, special) in [(3, f32::NAN), (17, f32::INFINITY), (20, -0.0), (50, f32::NEG_INFINITY)] {
                if let Some(x) = x.get_mut(i) {
                    *x = special;
                }
            }
            agrees(&text, &[HostTensor::from_slice(&[rows, columns], &x).unwrap()], false);
        }
    }
}
