//! Extrema, their positions, short rows and two-stage reductions at their edges: ragged lengths, NaN, infinities, zeros of
//! both signs, ties, and empty axes, against plain loops; on one thread and two.

use tlc::{CompileOptions, compile_ir};
use tlc_ir::HostTensor;
use tlc_ir::interp::{self, compare, interpret_with_bounds};
use tlc_ir::text::parse_graph;

const LENGTHS: [usize; 22] = [
    1, 3, 4, 7, 15, 16, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 130, 191, 200, 256, 1000, 1024,
];

fn graph(text: &str) -> tlc_ir::Graph {
    parse_graph(text, &mut tlc_ir::text::no_data).unwrap_or_else(|e| panic!("{e:?}\n{text}"))
}

/// Compiled results, which one thread and two agree on bit by bit.
fn run(graph: &tlc_ir::Graph, inputs: &[HostTensor]) -> Vec<HostTensor> {
    let with = |threads| {
        let options = CompileOptions {
            threads: Some(threads),
            ..CompileOptions::default()
        };
        let executable = compile_ir(graph, &options).unwrap_or_else(|e| panic!("{e}"));
        let outputs = executable.run(&inputs.iter().map(Into::into).collect::<Vec<_>>());
        let outputs = outputs.unwrap_or_else(|e| panic!("{e}"));
        outputs.iter().map(|o| o.to_host()).collect::<Vec<_>>()
    };
    let one = with(1);
    assert_eq!(one, with(2), "one thread and two differ");
    one
}

/// The position of the extremum: the first NaN, else the first of the best.
fn position<T: Copy + Into<f64>>(row: &[T], most: bool) -> i64 {
    let mut at = 0;
    for (i, &x) in row.iter().enumerate().skip(1) {
        let (best, x): (f64, f64) = (row[at].into(), x.into());
        if !best.is_nan() && (x.is_nan() || if most { x > best } else { x < best }) {
            at = i;
        }
    }
    at as i64
}

/// Rows that tell one mistake from another.
fn rows(n: usize) -> Vec<Vec<f32>> {
    let wave = |i: usize| ((i * 37 + 11) % 101) as f32 - 50.0;
    let plain: Vec<f32> = (0..n).map(wave).collect();
    let mut all = vec![
        plain.clone(),
        vec![0.0; n],
        vec![f32::NEG_INFINITY; n],
        vec![f32::INFINITY; n],
        vec![f32::NAN; n],
        (0..n).map(|i| if i % 2 == 0 { 0.0 } else { -0.0 }).collect(),
        (0..n).map(|i| i as f32).collect(),
        (0..n).map(|i| -(i as f32)).collect(),
    ];
    // One special value at each place that a block, a lane or a tail may mishandle.
    for special in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1000.0, -1000.0] {
        for at in [
            0,
            1,
            3,
            4,
            17,
            31,
            32,
            62,
            63,
            64,
            65,
            127,
            128,
            n / 2,
            n.saturating_sub(1),
        ] {
            if at < n {
                let mut row = plain.clone();
                row[at] = special;
                // The later of two must not win.
                if at + 5 < n {
                    row[n - 1] = special;
                }
                all.push(row);
            }
        }
    }
    all
}

#[test]
fn extrema_and_their_positions_at_every_length() {
    for n in LENGTHS {
        let rows = rows(n);
        let m = rows.len();
        let text = format!(
            "graph @g(%x: f32[{m}, {n}]) {{
  %0 = reduce max %x {{axes=[1]}} : f32[{m}]
  %1 = reduce min %x {{axes=[1]}} : f32[{m}]
  return %0, %1
}}"
        );
        let alone = |what: &str| {
            format!("graph @g(%x: f32[{m}, {n}]) {{\n  %0 = reduce {what} %x {{axes=[1]}} : i64[{m}]\n  return %0\n}}")
        };
        let only_max =
            format!("graph @g(%x: f32[{m}, {n}]) {{\n  %0 = reduce max %x {{axes=[1]}} : f32[{m}]\n  return %0\n}}");
        let x = HostTensor::from_slice(&[m, n], &rows.concat()).unwrap();
        let both = run(&graph(&text), std::slice::from_ref(&x));
        let max = run(&graph(&only_max), std::slice::from_ref(&x));
        let first = run(&graph(&alone("argmax")), std::slice::from_ref(&x));
        let last = run(&graph(&alone("argmin")), std::slice::from_ref(&x));
        for (r, row) in rows.iter().enumerate() {
            let (most, least) = (position(row, true), position(row, false));
            assert_eq!(first[0].get(r).as_i64(), most, "argmax of {row:?}");
            assert_eq!(last[0].get(r).as_i64(), least, "argmin of {row:?}");
            for (found, at) in [(&both[0], most), (&max[0], most), (&both[1], least)] {
                let (found, wanted) = (found.as_slice::<f32>().unwrap()[r], row[at as usize]);
                assert!(
                    found == wanted || (found.is_nan() && wanted.is_nan()),
                    "{found} of {row:?}"
                );
            }
        }
    }
}

/// Squares of these overflow, vanish or are no numbers; only NaN may be taken for NaN.
fn extremes(n: usize) -> Vec<Vec<f64>> {
    let cycle = |values: &[f64]| (0..n).map(|i| values[i % values.len()]).collect::<Vec<f64>>();
    let mut all = vec![
        cycle(&[1e30, -1e30, 3e38, -3e38]),
        cycle(&[1e-40, -1e-40, 0.0, -0.0]),
        cycle(&[f64::INFINITY, f64::NEG_INFINITY]),
        cycle(&[f64::INFINITY, 1e38, f64::NEG_INFINITY, -1e38, 1e-45]),
        cycle(&[-2.0, -1.0, -3.0]),
    ];
    for k in 0..all.len() {
        for at in [n / 3, n - 1] {
            let mut row = all[k].clone();
            row[at] = f64::NAN;
            all.push(row);
        }
    }
    all
}

#[test]
fn extrema_of_any_dtype_take_nothing_but_nan_for_nan() {
    use tlc_ir::{DType, Scalar};
    for n in [31usize, 63, 64, 96, 130, 300] {
        let rows = extremes(n);
        let m = rows.len();
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::I64] {
            let mut x = HostTensor::zeros(dtype, &[m, n]).unwrap();
            for (k, v) in rows.iter().flatten().enumerate() {
                let integer = if v.is_nan() { 7 } else { v.clamp(-1e9, 1e9) as i64 };
                let value = if dtype.is_float() {
                    Scalar::from_f64(dtype, *v)
                } else {
                    Scalar::from_i64(dtype, integer)
                };
                x.set(k, value);
            }
            for (what, most) in [("argmax", true), ("argmin", false)] {
                let text = format!(
                    "graph @g(%x: {dtype}[{m}, {n}]) {{\n  %0 = reduce {what} %x {{axes=[1]}} : i64[{m}]\n  return %0\n}}"
                );
                let found = run(&graph(&text), std::slice::from_ref(&x));
                let extremum = &what[3..];
                let text = format!(
                    "graph @g(%x: {dtype}[{m}, {n}]) {{\n  %0 = reduce {extremum} %x {{axes=[1]}} : {dtype}[{m}]\n  return %0\n}}"
                );
                let values = run(&graph(&text), std::slice::from_ref(&x));
                for r in 0..m {
                    let row: Vec<f64> = (0..n).map(|c| x.get(r * n + c).as_f64()).collect();
                    let wanted = position(&row, most);
                    assert_eq!(found[0].get(r).as_i64(), wanted, "{what} of {dtype} {row:?}");
                    let (value, wanted) = (values[0].get(r).as_f64(), row[wanted as usize]);
                    let same = value == wanted || value.is_nan() && wanted.is_nan();
                    assert!(same, "{extremum} {value} of {dtype} {row:?}");
                }
            }
        }
    }
}

#[test]
fn the_position_among_all_elements_is_the_first_of_the_best() {
    for n in [65_536usize, 70_000, 200_001] {
        let text = format!(
            "graph @g(%x: f32[{n}]) {{\n  %0 = reduce argmax %x {{axes=[0]}} : i64[]\n  %1 = reduce argmin %x {{axes=[0]}} : i64[]\n  return %0, %1\n}}"
        );
        let g = graph(&text);
        let plain: Vec<f32> = (0..n).map(|i| ((i * 7919) % 10_007) as f32).collect();
        let places = [0usize, 1, 16_383, 16_384, 40_000, 65_535, n - 1];
        for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 20_000.0, -1.0] {
            for pair in places.windows(2).rev() {
                let mut x = plain.clone();
                (x[pair[0]], x[pair[1]]) = (special, special);
                let found = run(&g, &[HostTensor::from_slice(&[n], &x).unwrap()]);
                let found: Vec<i64> = found.iter().map(|f| f.get(0).as_i64()).collect();
                assert_eq!(
                    found,
                    [position(&x, true), position(&x, false)],
                    "{special} at {pair:?} of {n}"
                );
            }
        }
    }
}

/// Compiled against the interpreter, within its derived bounds.
fn agrees(text: &str, inputs: &[HostTensor]) {
    let g = graph(text);
    let options = interp::Options::default();
    let bounded = interpret_with_bounds(&g, inputs, &options).unwrap_or_else(|e| panic!("{e}"));
    for (k, (found, bounded)) in run(&g, inputs).iter().zip(&bounded).enumerate() {
        compare(found, bounded).unwrap_or_else(|e| panic!("output {k}: {e}\n{text}"));
    }
}

#[test]
fn short_rows_in_lanes_agree_with_the_interpreter() {
    for m in [1usize, 5, 63, 64, 65, 67, 100, 127, 128, 192, 1000] {
        for n in [1usize, 2, 3, 4, 5, 10, 16] {
            let text = format!(
                "graph @g(%x: f32[{m}, {n}]) {{
  %0 = reduce max %x {{axes=[1]}} : f32[{m}]
  %1 = reshape %0 : f32[{m}, 1]
  %2 = expand %1 : f32[{m}, {n}]
  %3 = sub %x, %2 : f32[{m}, {n}]
  %4 = exp %3 : f32[{m}, {n}]
  %5 = reduce add %4 {{axes=[1]}} : f32[{m}]
  %6 = log %5 : f32[{m}]
  %7 = reshape %6 : f32[{m}, 1]
  %8 = expand %7 : f32[{m}, {n}]
  %9 = sub %3, %8 : f32[{m}, {n}]
  return %9, %0
}}"
            );
            let mut x: Vec<f32> = (0..m * n).map(|i| ((i * 31) % 17) as f32 - 8.0).collect();
            x[m * n / 2] = f32::NAN;
            x[m * n - 1] = f32::NEG_INFINITY;
            agrees(&text, &[HostTensor::from_slice(&[m, n], &x).unwrap()]);
        }
    }
}

#[test]
fn short_rows_of_several_operands_go_through_scratch_and_agree() {
    for m in [64usize, 67, 130, 256] {
        for n in [4usize, 7, 10, 13, 16] {
            // A second operand and a bias for each column; a result of rows, one a row, and one for each kind of access.
            let text = format!(
                "graph @g(%x: f32[{m}, {n}], %y: f32[{m}, {n}], %b: f32[{n}]) {{
  %0 = reshape %b : f32[1, {n}]
  %1 = expand %0 : f32[{m}, {n}]
  %2 = add %x, %1 : f32[{m}, {n}]
  %3 = mul %2, %y : f32[{m}, {n}]
  %4 = reduce max %3 {{axes=[1]}} : f32[{m}]
  %5 = reshape %4 : f32[{m}, 1]
  %6 = expand %5 : f32[{m}, {n}]
  %7 = sub %3, %6 : f32[{m}, {n}]
  return %7, %4
}}"
            );
            let mut x: Vec<f32> = (0..m * n).map(|i| ((i * 31) % 17) as f32 - 8.0).collect();
            let y: Vec<f32> = (0..m * n).map(|i| ((i * 13) % 11) as f32 - 5.0).collect();
            let b: Vec<f32> = (0..n).map(|i| i as f32 * 0.5 - 1.0).collect();
            (x[0], x[m * n / 3], x[m * n - 1]) = (f32::INFINITY, f32::NAN, -0.0);
            let tensor = |shape: &[usize], v: &[f32]| HostTensor::from_slice(shape, v).unwrap();
            agrees(&text, &[tensor(&[m, n], &x), tensor(&[m, n], &y), tensor(&[n], &b)]);
            for what in ["add", "max", "min", "mul"] {
                let text = format!(
                    "graph @g(%x: i32[{m}, {n}]) {{\n  %0 = reduce {what} %x {{axes=[1]}} : i32[{m}]\n  return %0\n}}"
                );
                let x: Vec<i32> = (0..(m * n) as i32).map(|i| (i * 31) % 17 - 8).collect();
                agrees(&text, &[HostTensor::from_slice(&[m, n], &x).unwrap()]);
            }
        }
    }
}

#[test]
fn a_kernel_of_short_rows_copies_each_operand_and_result_once() {
    use tlc_ir::kernel::{Bind, Stmt};
    let text = "graph @g(%x: f32[1000, 10]) {
  %0 = reduce add %x {axes=[1]} : f32[1000]
  %1 = reshape %0 : f32[1000, 1]
  %2 = expand %1 : f32[1000, 10]
  %3 = div %x, %2 : f32[1000, 10]
  return %3
}";
    let executable = compile_ir(&graph(text), &CompileOptions::default()).unwrap();
    let mut copies = 0;
    for kernel in &executable.plan().kernels {
        let copy = |s: &&Stmt| matches!(s, Stmt::Loop { bind: Bind::Copy, .. });
        copies += kernel.statements().filter(copy).count();
    }
    assert_eq!((executable.plan().kernels.len(), copies), (1, 2));
}

#[test]
fn columns_in_two_stages_agree_with_the_interpreter() {
    for (m, n) in [
        (1024usize, 1024usize),
        (1025, 1023),
        (8300, 130),
        (400_000, 3),
        (1_100_000, 1),
    ] {
        for what in ["add", "max", "min"] {
            let text = format!(
                "graph @g(%x: f32[{m}, {n}]) {{\n  %0 = reduce {what} %x {{axes=[0]}} : f32[{n}]\n  return %0\n}}"
            );
            let mut x: Vec<f32> = (0..m * n).map(|i| ((i * 31) % 1009) as f32 - 500.0).collect();
            agrees(&text, &[HostTensor::from_slice(&[m, n], &x).unwrap()]);
            x[m * n / 3] = f32::NAN;
            x[m * n - 1] = f32::INFINITY;
            agrees(&text, &[HostTensor::from_slice(&[m, n], &x).unwrap()]);
        }
    }
}

/// Axes before and behind those that are kept, about the sizes from which they are reduced in two stages: all monoids of floats, fixed and
/// symbolic, with arithmetic in front of them and behind.
#[test]
fn axes_around_others_in_two_stages_agree_with_the_interpreter() {
    // Batch, channels, rows, columns.
    for [n, c, h, w] in [
        [33usize, 16, 16, 16],
        [32, 16, 16, 16],
        [31, 16, 16, 16],
        [700, 13, 3, 5],
        [700, 13, 4, 4],
        [3, 7, 90, 91],
        [2, 9, 90, 92],
        [130_000, 1, 1, 1],
        [9000, 1, 1, 17],
    ] {
        for what in ["add", "max", "min", "mul"] {
            for batch in [n.to_string(), "n".into()] {
                let bounds = if batch == "n" { " where n in 0..=200000" } else { "" };
                let text = format!(
                    "graph @g(%x: f32[{batch}, {c}, {h}, {w}]){bounds} {{
  %0 = abs %x : f32[{batch}, {c}, {h}, {w}]
  %1 = reduce {what} %0 {{axes=[0, 2, 3]}} : f32[{c}]
  %2 = reduce {what} %x {{axes=[0, 2, 3]}} : f32[{c}]
  %3 = sub %2, %1 : f32[{c}]
  return %2, %3
}}"
                );
                let of = |i: usize| match what {
                    "mul" => 1.0 + ((i * 31) % 7) as f32 * 1e-7,
                    _ => ((i * 31) % 1009) as f32 - 500.0,
                };
                let mut x: Vec<f32> = (0..n * c * h * w).map(of).collect();
                agrees(&text, &[HostTensor::from_slice(&[n, c, h, w], &x).unwrap()]);
                x[n * c * h * w / 3] = f32::NAN;
                x[n * c * h * w - 1] = f32::INFINITY;
                agrees(&text, &[HostTensor::from_slice(&[n, c, h, w], &x).unwrap()]);
            }
        }
    }
}

/// Columns in tiles, vectors and what is left over, rows in groups and what is left over: integers, so that every sum is exact.
#[test]
fn products_of_one_row_are_exact_at_every_number_of_columns() {
    for n in [1usize, 3, 4, 5, 511, 513, 777, 1030, 4099, 16_384, 16_391] {
        for k in [1usize, 7, 8, 37] {
            let row: Vec<f32> = (0..k).map(|i| (i % 5) as f32 - 2.0).collect();
            let matrix: Vec<f32> = (0..k * n).map(|i| ((i * 7919 + i / n) % 23) as f32 - 11.0).collect();
            let expected: Vec<f32> = (0..n)
                .map(|c| (0..k).map(|r| row[r] * matrix[r * n + c]).sum())
                .collect();
            let inputs = [
                HostTensor::from_slice(&[1, k], &row).expect("as many"),
                HostTensor::from_slice(&[k, n], &matrix).expect("as many"),
            ];
            for columns in [n.to_string(), "n".into()] {
                let text = format!(
                    "graph @f(%x: f32[1,{k}], %w: f32[{k},{columns}]) {{\n  %0 = einsum %x, %w {{ab,bc->ac}} : f32[1,{columns}]\n  \
                     return %0 as y\n}}\n"
                );
                let text = match columns.as_str() {
                    "n" => text.replacen(") {", ") where n in 0..=99999 {", 1),
                    _ => text,
                };
                let found = run(&graph(&text), &inputs);
                let found: Vec<f32> = (0..n).map(|c| found[0].get(c).as_f64() as f32).collect();
                assert_eq!(found, expected, "{k} rows, {columns} = {n} columns");
            }
        }
    }
}

/// A sum of products that are values of their own is one of rounded numbers, whoever sums and whatever contraction is beside it: a
/// product that is too large is infinite, though the exact one and the rest of the sum would be finite together.
#[test]
fn products_that_are_values_are_rounded_before_they_are_summed() {
    const MUL: &str = "mul %x, %y : f32[40, 50]";
    const OUTER: &str = "einsum %x, %y {ab,ab->ab} : f32[40, 50]";
    let sums = [
        (MUL, "%1 = reduce add %0 {axes=[1]} : f32[40]"),
        (MUL, "%1 = einsum %0 {ab->a} : f32[40]"),
        (
            MUL,
            "%v = permute %0 {axes=[1, 0]} : f32[50, 40]\n %1 = einsum %v {ba->a} : f32[40]",
        ),
        (
            MUL,
            "%c = copy %0 : f32[40, 50]\n %1 = reduce add %c {axes=[1]} : f32[40]",
        ),
        (
            MUL,
            "%s = scan add %0 {axis=1} : f32[40, 50]\n %l = slice %s {start=[0, 49]} : f32[40, 1]\n %1 = reshape %l : f32[40]",
        ),
        (OUTER, "%1 = reduce add %0 {axes=[1]} : f32[40]"),
        (OUTER, "%1 = einsum %0 {ab->a} : f32[40]"),
    ];
    let (mut x, mut y) = (vec![0f32; 40 * 50], vec![1f32; 40 * 50]);
    for row in 0..40 {
        // In every lane, so that whichever has the large product has what would bring its sum down.
        x[50 * row..50 * row + 16].fill(-2e37);
        (x[50 * row + 48], y[50 * row + 48]) = (2e20, 2e18);
    }
    let inputs = [
        HostTensor::from_slice(&[40, 50], &x).unwrap(),
        HostTensor::from_slice(&[40, 50], &y).unwrap(),
        HostTensor::from_slice(&[50], &[1f32; 50]).unwrap(),
    ];
    for (product, sum) in sums {
        for beside in ["", "%2 = einsum %x, %w {ab,b->a} : f32[40]"] {
            let also = if beside.is_empty() { "" } else { ", %2" };
            let text = format!(
                "graph @f(%x: f32[40, 50], %y: f32[40, 50], %w: f32[50]) {{\n %0 = {product}\n {sum}\n {beside}\n return %1{also}\n}}"
            );
            let found = run(&graph(&text), &inputs);
            for i in 0..40 {
                assert_eq!(found[0].get(i).as_f64(), f64::INFINITY, "row {i} of\n{text}");
            }
        }
    }
}

/// Additions on the way of any term of a sum of up to 2^22 terms to its result. In rows: a block of at most 128 iterations, one
/// of 64 of these, one of 64 of those, the at most `2^22 / (16 * 32 * 64 * 64) = 2` that there are where 16 terms are added at
/// once, 4 sums side by side, at most 16 lanes, and what vectors leave over, less than 64. In columns: 8 rows of an iteration,
/// in blocks of 32, 64 and 64, of which there are at most 4. Two stages are two such sums of fewer terms.
const ADDITIONS: f64 = 400.0;

/// The input `x`, sums of it, how many times a term is rounded before it is added, and the sums of the terms in f64.
type LongSum = (&'static str, f64, fn(&[f32], usize) -> Vec<f64>);

fn terms(rows: &[f32], width: usize, f: impl Fn(f64) -> f64) -> Vec<f64> {
    rows.chunks(width)
        .map(|r| r.iter().map(|&x| f(x.into())).sum())
        .collect()
}

fn columns(x: &[f32], width: usize) -> Vec<f64> {
    let of = |c: usize| x.iter().skip(c).step_by(width).map(|&x| f64::from(x)).sum();
    (0..width).map(of).collect()
}

/// Each addition of positive terms is off by at most 2^-24 of what it adds up, so that a sum is off by at most as many times
/// that as additions are on the way of a term (Higham, "Accuracy and stability of numerical algorithms", 4.2).
#[test]
fn long_sums_round_no_more_often_than_their_tree_is_deep() {
    let sums: [LongSum; 5] = [
        ("%0 = reduce add %x {axes=[1]} : f32[N]", 0.0, |x, m| terms(x, m, |x| x)),
        ("%0 = reduce add %x {axes=[0]} : f32[M]", 0.0, columns),
        ("%0 = reduce add %x {axes=[0, 1]} : f32[]", 0.0, |x, _| {
            terms(x, x.len(), |x| x)
        }),
        ("%0 = einsum %x, %x {ab,ab->} : f32[]", 1.0, |x, _| {
            terms(x, x.len(), |x| x * x)
        }),
        (
            "%1 = exp %x : f32[N, M]\n %0 = reduce add %1 {axes=[1]} : f32[N]",
            4.0,
            |x, m| terms(x, m, f64::exp),
        ),
    ];
    // Xorshift, of which no bits repeat from column to column (Marsaglia, 2003).
    let mut state = 1u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / 16_777_216.0
    };
    for (n, m) in [(1, 1 << 22), (1 << 22, 1), (16, 1 << 18), (1 << 19, 8), (100_003, 33)] {
        let equal = vec![0.1f32; n * m];
        let uniform: Vec<f32> = (0..n * m).map(|_| random()).collect();
        for (text, before, reference) in sums {
            for symbolic in [false, true] {
                let named = |t: &str| match symbolic {
                    true => t.replace('N', "n").replace('M', "m"),
                    false => t.replace('N', &n.to_string()).replace('M', &m.to_string()),
                };
                let ranges = if symbolic {
                    "where n in 1..=16777216, m in 1..=16777216"
                } else {
                    ""
                };
                let text = format!(
                    "graph @s({}) {ranges} {{ {}\n return %0 as y }}",
                    named("%x: f32[N, M]"),
                    named(text)
                );
                let graph = graph(&text);
                for (data, most) in [(&equal, f64::INFINITY), (&uniform, 1e-6)] {
                    let x = HostTensor::from_slice(&[n, m], data).unwrap();
                    let y = run(&graph, &[x]).remove(0);
                    let bound = ((ADDITIONS + before) * 2f64.powi(-24)).min(most);
                    for (y, sum) in y.as_slice::<f32>().expect("f32").iter().zip(reference(data, m)) {
                        let off = (f64::from(*y) - sum).abs();
                        assert!(
                            off <= bound * sum,
                            "{n} by {m}: {y} is off by {off:e}, more than {bound:e} of {sum}\n{text}"
                        );
                    }
                }
            }
        }
    }
}

/// Products that the library computes as dot products: blocks of 128 multiply-adds, 64 blocks of these, at most 16 of those, and the
/// lanes.
#[test]
fn long_dot_products_round_no_more_often_than_their_tree_is_deep() {
    let (rows, k) = (3usize, (1usize << 20) + 77);
    for symbolic in [false, true] {
        let (size, range) = match symbolic {
            true => ("k".to_string(), "where k in 1..=16777216"),
            false => (k.to_string(), ""),
        };
        let text = format!(
            "graph @s(%x: f32[{rows}, {size}]) {range} {{ %0 = einsum %x, %x {{ab,cb->ac}} : f32[{rows}, {rows}]
             return %0 as y }}"
        );
        let x = vec![0.1f32; rows * k];
        let y = run(&graph(&text), &[HostTensor::from_slice(&[rows, k], &x).unwrap()]).remove(0);
        let sum = f64::from(0.1f32).powi(2) * k as f64;
        for y in y.as_slice::<f32>().expect("f32") {
            let off = (f64::from(*y) - sum).abs() / sum;
            assert!(off <= 250.0 * 2f64.powi(-24), "{y} is off by {off:e} of {sum}");
        }
    }
}

/// The portable emitter has fewer lanes, and so longer sums.
#[test]
fn long_sums_are_as_exact_by_the_portable_emitter() {
    let program = std::env::current_exe().expect("this program");
    let output = std::process::Command::new(&program)
        .args([
            "--exact",
            "reductions::long_sums_round_no_more_often_than_their_tree_is_deep",
        ])
        .env(tlc_runtime::cpu::level::VARIABLE, "sse")
        .output()
        .expect("it runs");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
}
