//! Products of matrices with vectors where a machine's prefetchers follow rows that lie far apart: results and edge values
//! against the interpreter, and the same bits for any number of threads. And what such a machine streams in vectors narrower than its widest.

use std::sync::Arc;

use tlc_ir::interp::{self, compare, interpret_with_bounds};
use tlc_ir::kernel::Bind;
use tlc_ir::kernel::visit::walk;
use tlc_ir::target::Cpu;
use tlc_ir::text::{no_data, parse_module};
use tlc_ir::{DType, Graph, HostTensor, Scalar};
use tlc_passes::planner::Planned;
use tlc_passes::tuning::{Pin, Pins, Tunable};
use tlc_passes::{Options, compile};
use tlc_runtime::driver::{Executable, TensorView};
use tlc_runtime::memory::BufferPool;
use tlc_runtime::pool::Pool;

/// What a schedule says of rows that are apart.
const APART: &str = "apart, are multiplied with the vector together";

/// Small values, and special ones in a few rows alone, for each of them ends in every sum of its row or column.
fn data(dtype: DType, shape: &[usize], special: bool) -> HostTensor {
    let mut out = HostTensor::zeros(dtype, shape).unwrap();
    for i in 0..out.len() {
        let value = match i {
            7 if special => f64::NAN,
            100_019 if special => f64::INFINITY,
            200_031 if special => f64::NEG_INFINITY,
            _ if i % 31 == 0 => -0.0,
            _ => ((i * 37 + 11) % 101) as f64 / 25.0 - 2.0,
        };
        out.set(i, Scalar::from_f64(dtype, value));
    }
    out
}

fn graph(text: &str) -> Graph {
    let module = parse_module(text, &mut no_data).unwrap_or_else(|e| panic!("{text}: {e:?}"));
    module.graphs.into_iter().next().unwrap()
}

/// This machine, as one whose second cache is small, which turns matrices, and that is as the test says.
fn machine(threads: usize, follows_distant_rows: bool, streamed_bits: Option<u32>) -> Cpu {
    Cpu {
        l1_bytes: 8 << 10,
        l2_bytes: 64 << 10,
        streams_lines: false,
        follows_distant_rows,
        streamed_bits,
        ..tlc_runtime::target::cpu(tlc_runtime::cpu::jit::emitters().unwrap(), threads)
    }
}

fn planned(graph: &Graph, cpu: Cpu, pins: Option<Pins>) -> Planned {
    let options = Options {
        pins: pins.map(Arc::new),
        ..Options::new(cpu)
    };
    let planned = compile(graph, &options).unwrap().planned;
    tlc_ir::plan::verify::check(&planned.plan).unwrap_or_else(|e| panic!("{e}"));
    planned
}

fn run(planned: Planned, threads: usize, inputs: &[HostTensor]) -> HostTensor {
    let (pool, pack) = (Arc::new(Pool::new(threads)), tlc_passes::memory::pack);
    let executable = Executable::new(planned.plan, pool, BufferPool::new(), pack).unwrap();
    let view = |x| TensorView {
        dtype: HostTensor::dtype(x),
        shape: x.shape(),
        data: x.bytes(),
    };
    let views: Vec<TensorView<'_>> = inputs.iter().map(view).collect();
    let found = executable.run(&views).unwrap().remove(0);
    HostTensor::from_bytes(found.dtype, &found.shape, found.bytes()).unwrap()
}

fn says(planned: &Planned, what: &str) -> bool {
    planned.launches.iter().any(|l| l.schedule.to_string().contains(what))
}

/// Asserts that a graph is right with rows far apart and without, and with them the same for one thread and several.
fn assert_right(text: &str, shapes: &[Vec<usize>], dtype: DType, apart: bool) {
    let graph = graph(text);
    for special in [false, true] {
        let inputs: Vec<HostTensor> = shapes.iter().map(|s| data(dtype, s, special)).collect();
        let bounded = interpret_with_bounds(&graph, &inputs, &interp::Options::default()).unwrap();
        let mut bits: Option<HostTensor> = None;
        for (threads, follows) in [(1, false), (1, true), (2, true), (3, true)] {
            let planned = planned(&graph, machine(threads, follows, None), None);
            assert_eq!(says(&planned, APART), follows && apart, "{threads}: {text}");
            let found = run(planned, threads, &inputs);
            compare(&found, &bounded[0]).unwrap_or_else(|e| panic!("{threads} {follows}: {e}\n{text}"));
            if follows {
                let first = bits.get_or_insert_with(|| found.clone());
                assert!(first.bytes() == found.bytes(), "{threads} threads: other bits\n{text}");
            }
        }
    }
}

/// Whether there are registers for sums of four rows.
fn has_registers() -> bool {
    let emitters = tlc_runtime::cpu::jit::emitters().unwrap();
    emitters.iter().any(|e| e.table.vector_registers >= 32)
}

#[test]
fn a_matrix_times_a_long_vector_takes_rows_far_apart() {
    for (dtype, m, k, apart) in [
        (DType::F32, 128, 1024, true),
        (DType::F32, 96, 1500, true),
        (DType::F32, 128, 9000, true),
        (DType::F64, 128, 700, true),
        (DType::F32, 129, 1024, false),
        (DType::F32, 128, 512, false),
        (DType::F32, 8, 4096, false),
    ] {
        let text = format!(
            "graph @product(%x: {dtype}[{m}, {k}], %y: {dtype}[{k}], %z: {dtype}[{m}]) {{
  %0 = einsum %x, %y {{ab,b->a}} : {dtype}[{m}]
  %1 = add %0, %z : {dtype}[{m}]
  return %1
}}"
        );
        assert_right(&text, &[vec![m, k], vec![k], vec![m]], dtype, apart && has_registers());
    }
}

/// A row's sum is the same whether its neighbours are computed with it or not.
#[test]
fn a_row_of_a_product_with_a_vector_does_not_depend_on_the_others() {
    for k in [1024usize, 1500, 9000] {
        let (x, y) = (data(DType::F32, &[64, k], false), data(DType::F32, &[k], false));
        let product = |m: usize| {
            let text = format!(
                "graph @product(%x: f32[{m}, {k}], %y: f32[{k}]) {{
  %0 = einsum %x, %y {{ab,b->a}} : f32[{m}]
  return %0
}}"
            );
            let planned = planned(&graph(&text), machine(1, true, None), None);
            assert_eq!(says(&planned, APART), m == 64 && has_registers());
            let rows = HostTensor::from_bytes(DType::F32, &[m, k], &x.bytes()[..m * k * 4]).unwrap();
            run(planned, 1, &[rows, y.clone()])
        };
        let (all, some) = (product(64), product(61));
        assert!(all.bytes()[..61 * 4] == *some.bytes(), "{k}");
    }
}

/// The most lanes of a kernel's loops.
fn most_lanes(planned: &Planned) -> i64 {
    let kernels = planned.plan.kernels.iter();
    let lanes = kernels.flat_map(|k| {
        walk(&k.body).filter_map(|s| match s {
            tlc_ir::kernel::Stmt::Loop {
                var, bind: Bind::Lanes, ..
            } => k.extents[var.0 as usize].as_const(),
            _ => None,
        })
    });
    lanes.max().unwrap_or(0)
}

/// A kernel that only moves what the second cache does not hold has the vectors that the machine streams best, others and sums the widest; a pin
/// says otherwise, and the bits are the same.
#[test]
fn what_is_streamed_has_vectors_of_that_width() {
    if tlc_runtime::cpu::level::wide().is_none() {
        println!("SKIP: vectors have one width");
        return;
    }
    let emitters = tlc_runtime::cpu::jit::emitters().unwrap();
    let widest = emitters.iter().map(|e| e.table.lanes(DType::F32)).max().unwrap();
    let half = Some(16 * widest as u32);
    let elementwise = |n: usize, body: &str| {
        graph(&format!("graph @moves(%x: f32[{n}], %y: f32[{n}]) {{\n{body}\n}}").replace("[N]", &format!("[{n}]")))
    };
    let add = "  %0 = add %x, %y : f32[N]\n  return %0";
    let exp = "  %0 = add %x, %y : f32[N]\n  %1 = exp %0 : f32[N]\n  return %1";
    let sum = "  %0 = mul %x, %y : f32[N]\n  %1 = reduce add %0 {axes=[0]} : f32[]\n  return %1";
    for (n, body, lanes) in [
        (40_003, add, widest / 2),
        (4_000, add, widest),
        (40_003, exp, widest),
        (40_003, sum, widest),
    ] {
        let graph = elementwise(n, body);
        let inputs = [data(DType::F32, &[n], true), data(DType::F32, &[n], false)];
        let open = planned(&graph, machine(2, false, half), Some(Pins::default()));
        assert_eq!(most_lanes(&open), lanes, "{n}: {body}");
        assert_eq!(
            most_lanes(&planned(&graph, machine(2, false, None), None)),
            widest,
            "{n}: {body}"
        );
        let (key, choices) = (open.launches[0].key.unwrap(), open.launches[0].schedule.choices.clone());
        let expected = run(open, 2, &inputs);
        let bounded = interpret_with_bounds(&graph, &inputs, &interp::Options::default()).unwrap();
        compare(&expected, &bounded[0]).unwrap_or_else(|e| panic!("{n}: {e}"));
        let widths = choices.iter().filter(|c| c.tunable == Tunable::VectorBits);
        for &value in widths.flat_map(|c| &c.candidates) {
            let mut pins = Pins::default();
            let tunable = Tunable::VectorBits;
            pins.set(
                key,
                vec![Pin {
                    tunable,
                    ordinal: 0,
                    value,
                }],
            );
            let pinned = planned(&graph, machine(2, false, half), Some(pins));
            assert_eq!(most_lanes(&pinned) * 32, value, "{body}");
            assert!(run(pinned, 2, &inputs).bytes() == expected.bytes(), "{value}: {body}");
        }
    }
}

/// The product of a vector with the first columns of a matrix.
fn product_with_columns(x: &HostTensor, w: &HostTensor, case: &Columns) -> HostTensor {
    let (k, n) = (w.shape()[0], case.columns);
    let shape = match case.turned {
        true => [n, k],
        false => [k, n],
    };
    let mut matrix = HostTensor::zeros(w.dtype(), &shape).unwrap();
    for i in 0..n * k {
        let (row, column) = (i / n.max(1), i % n.max(1));
        let at = if case.turned { column * k + row } else { i };
        matrix.set(at, w.get(row * w.shape()[1] + column));
    }
    let g = tlc::Graph::new("product");
    let dim = |name: &str, n: usize, symbolic: bool| -> tlc::Dim {
        match symbolic {
            true => (&g.symbol(name, 0..=1 << 14)).into(),
            false => n.into(),
        }
    };
    let (sum, columns) = (dim("k", k, case.symbolic_sum), dim("n", n, case.symbolic));
    let input = g.input("x", w.dtype(), [1.into(), sum.clone()]);
    let mut inputs = vec![x.into()];
    let weights = match case.frozen {
        true => g.constant(&matrix),
        false => {
            inputs.push((&matrix).into());
            let shape = if case.turned { [columns, sum] } else { [sum, columns] };
            g.input("w", w.dtype(), shape)
        }
    };
    let weights = if case.turned { weights.permute([1, 0]) } else { weights };
    g.output("y", &input.matmul(&weights));
    let options = tlc::CompileOptions {
        threads: Some(case.threads),
        specialize: tlc::Specialize::Never,
        ..tlc::CompileOptions::default()
    };
    let e = tlc::compile_ir(&g.finish().unwrap(), &options).unwrap();
    e.run(&inputs).unwrap()[0].to_host()
}

/// A product of a vector.
#[derive(Clone, Copy, Debug)]
struct Columns {
    columns: usize,
    /// Whether the elements of each column lie together.
    turned: bool,
    /// Whether the matrix never changes.
    frozen: bool,
    symbolic: bool,
    symbolic_sum: bool,
    threads: usize,
}

/// All ways in which a product of a vector with so many columns comes, for matrices that lie one way.
fn ways(columns: usize, k: usize, turned: bool, threads: usize) -> Vec<Columns> {
    let plain = Columns {
        columns,
        turned,
        frozen: false,
        symbolic: false,
        symbolic_sum: false,
        threads,
    };
    let open = |symbolic, symbolic_sum| Columns {
        symbolic,
        symbolic_sum,
        ..plain
    };
    let mut ways = vec![plain, open(true, false)];
    // Many rows that are no whole groups of vectors are turned, and added up as columns are.
    if !turned || columns < FEWEST_TURNED || k.is_multiple_of(WHOLE_ROW) {
        ways.push(Columns { frozen: true, ..plain });
    }
    // Of short rows of unknown length it is not known that they are short.
    if !turned || k >= SHORT_ROW {
        ways.extend([open(false, true), open(true, true)]);
    }
    ways
}

/// Elements that four vectors have, or a multiple of them.
const WHOLE_ROW: usize = 64;

/// Rows that may be turned.
const FEWEST_TURNED: usize = 128;

/// Elements from which on a row is added up as one of unknown length.
const SHORT_ROW: usize = 128;

/// Asserts that each of some columns has the bits that it has among the others.
fn assert_columns_alone(dtype: DType, turned: bool, lengths: &[(usize, usize)]) {
    for &(k, all) in lengths {
        let x = data(dtype, &[1, k], false);
        let w = data(dtype, &[k, all], false);
        let mut first: Option<HostTensor> = None;
        let some = [all, 1024, 576, 500, 320, 128, 33, 32, 17, 16, 15, 4, 3, 2];
        for (number, columns) in some.into_iter().filter(|n| *n <= all).enumerate() {
            for case in ways(columns, k, turned, 1 + number % 4) {
                let found = product_with_columns(&x, &w, &case);
                let first = first.get_or_insert_with(|| found.clone());
                let bytes = columns * dtype.bytes();
                assert!(
                    first.bytes()[..bytes] == *found.bytes(),
                    "{dtype}, sums of {k}, {case:?}"
                );
            }
        }
    }
}

/// The sum of a column has the same bits whatever columns are beside it (if there are any: two vectors are multiplied another way), how many threads share
/// them, whether the matrix is read through a copy in blocks of columns, and whether sizes are known when compiled.
#[test]
fn a_column_of_a_product_with_a_vector_does_not_depend_on_the_others() {
    let lengths = [
        (1, 5000),
        (7, 5000),
        (16, 1024),
        (33, 1024),
        (64, 5000),
        (129, 1024),
        (264, 1024),
        (1031, 1024),
        (4100, 576),
    ];
    assert_columns_alone(DType::F32, false, &lengths);
    let some = [(7, 1024), (16, 576), (129, 576), (1031, 576)];
    for dtype in [DType::F64, DType::BF16, DType::F16] {
        assert_columns_alone(dtype, false, &some);
    }
}

/// So has the sum of a row, of a matrix whose rows lie along the sum: also where it is turned, as those are that never change, if rows are whole groups
/// of vectors.
#[test]
fn a_row_of_a_product_with_a_vector_does_not_depend_on_how_it_lies() {
    let lengths = [
        (1, 1024),
        (7, 1024),
        (16, 1024),
        (33, 576),
        (64, 576),
        (128, 1024),
        (129, 576),
        (768, 1024),
        (2304, 576),
        (4096, 576),
        (4100, 576),
        (8448, 320),
    ];
    assert_columns_alone(DType::F32, true, &lengths);
    let some = [(16, 576), (128, 576), (1031, 576), (4096, 576)];
    for dtype in [DType::F64, DType::BF16, DType::F16] {
        assert_columns_alone(dtype, true, &some);
    }
}

/// A scale of each channel that a product in blocks of columns computes is stored before images are multiplied with it: beside a row its addends would be loaded one
/// by one, a block's width from each other.
#[test]
fn a_product_in_blocks_of_columns_is_no_part_of_the_rows_that_it_scales() {
    for k in [168, 256] {
        let g = tlc::Graph::new("scaled");
        let (x, images) = ([1, k, 1, 1], [1, 672, 14, 14]);
        let weights = g.constant(data(DType::F32, &[672, k, 1, 1], false));
        let scales = g.input("x", DType::F32, x).conv2d(&weights, None, &tlc::Conv::new());
        g.output("y", &(g.input("images", DType::F32, images) * scales.hard_sigmoid()));
        let graph = g.finish().unwrap();
        let planned = planned(&graph, machine(1, true, None), None);
        let kernels: usize = planned.plan.steps.iter().map(|s| s.launches().len()).sum();
        assert_eq!(kernels, 2, "{}", planned.plan);
        let inputs = [data(DType::F32, &x, false), data(DType::F32, &images, false)];
        let expected = interpret_with_bounds(&graph, &inputs, &interp::Options::default()).unwrap();
        compare(&run(planned, 1, &inputs), &expected[0]).unwrap_or_else(|e| panic!("{e}"));
    }
}
