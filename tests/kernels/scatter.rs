//! Scatters on several threads: each element gets its updates in the order in which they stand, so the bits are those of a plain
//! loop for any number of threads.

use tlc::{CompileOptions, Conv, DType, Graph, HostTensor, Input, Scalar, ScatterOp, Tensor, compile_ir};
use tlc_ir::interp::{self, interpret};
use tlc_passes::cluster::{ClusterKind, Updates};

const THREADS: [usize; 4] = [1, 2, 3, 8];

/// Values of many magnitudes, so that the order of a sum shows in its bits.
fn uneven(dtype: DType, shape: &[usize]) -> HostTensor {
    let mut out = HostTensor::zeros(dtype, shape).unwrap();
    for i in 0..out.len() {
        let value = match dtype.is_float() {
            true => ((i * 7919 + 13) % 1009) as f64 * [1.0, 1e-3, 97.0, -31.0, 1e3][i % 5],
            false => ((i * 7919 + 13) % 251) as f64,
        };
        out.set(i, Scalar::from_f64(dtype, value));
    }
    out
}

/// Places that often meet, and some that are none.
fn places(dtype: DType, count: usize, extent: usize) -> HostTensor {
    let mut out = HostTensor::zeros(dtype, &[count]).unwrap();
    for i in 0..count {
        let place = match i % 41 {
            7 => extent as i64,
            13 if dtype.is_signed_int() => -1,
            19 if dtype == DType::I64 => i64::MIN,
            23 if matches!(dtype, DType::I64 | DType::U64) => i64::MAX,
            _ => ((i * 37 + i / 11 * 5) % extent) as i64,
        };
        out.set(i, Scalar::from_i64(dtype, place));
    }
    out
}

/// Runs on several numbers of threads, each of which says how it shares out the first scatter, and compares with the interpreter.
fn everywhere(graph: &tlc_ir::Graph, inputs: &[HostTensor], expected: &dyn Fn(usize) -> Updates) -> Vec<HostTensor> {
    let exact = interpret(graph, inputs, &interp::Options::default()).unwrap();
    for threads in THREADS {
        let options = CompileOptions {
            threads: Some(threads),
            ..CompileOptions::default()
        };
        let executable = compile_ir(graph, &options).unwrap_or_else(|e| panic!("{e}\n{graph}"));
        tlc_ir::plan::verify::check_thoroughly(executable.plan()).unwrap_or_else(|e| panic!("{e}\n{graph}"));
        let found = executable
            .decisions()
            .clusters
            .clusters
            .iter()
            .find_map(|c| match c.kind {
                ClusterKind::Scatter(updates) => Some(updates),
                _ => None,
            });
        assert_eq!(found, Some(expected(threads)), "{threads} threads\n{graph}");
        let given: Vec<Input<'_>> = inputs.iter().map(Into::into).collect();
        for _ in 0..2 {
            let outputs = executable.run(&given).unwrap_or_else(|e| panic!("{e}\n{graph}"));
            let outputs: Vec<HostTensor> = outputs.iter().map(|o| o.to_host()).collect();
            assert!(outputs == exact, "{threads} threads\n{graph}");
        }
    }
    exact
}

/// Rows in blocks of an axis, of which there are so many for 2, 3 and 8 threads; 1 is none.
fn row_blocks(axis: usize, of: [i64; 3]) -> impl Fn(usize) -> Updates {
    let blocks = blocks(axis, of);
    move |threads| match blocks(threads) {
        Updates::Blocks { blocks: 1, .. } => Updates::Serial,
        updates => updates,
    }
}

fn owners(extent: i64) -> impl Fn(usize) -> Updates {
    move |threads| match threads {
        1 => Updates::Serial,
        n => Updates::Owners(extent.min(n as i64)),
    }
}

/// Of short rows behind the indexed axis, where blocks do not pay or cannot be.
fn outer(threads: usize) -> Updates {
    if threads < 3 { Updates::Serial } else { Updates::Outer }
}

/// Of short rows, cut into blocks of an axis that has so many positions for 2, 3 and 8 threads.
fn blocks(axis: usize, of: [i64; 3]) -> impl Fn(usize) -> Updates {
    move |threads| match threads {
        1 => Updates::Serial,
        n => Updates::Blocks {
            axis,
            blocks: of[THREADS.iter().position(|t| *t == n).unwrap() - 1],
        },
    }
}

fn outer_of_long_rows(threads: usize) -> Updates {
    if threads == 1 { Updates::Serial } else { Updates::Outer }
}

#[test]
fn rows_are_added_in_blocks_or_by_the_owners_of_their_ranges() {
    // Blocks of 2 KiB at least, as many as there are threads if they divide the row. Owners only of long rows.
    let serial = |_| Updates::Serial;
    type Expected<'a> = &'a dyn Fn(usize) -> Updates;
    let cases: [(usize, usize, usize, Expected<'_>); 7] = [
        (1000, 33, 700, &serial),
        (3, 64, 500, &serial),
        (4, 1536, 30, &row_blocks(1, [2, 3, 3])),
        (5, 17, 1000, &serial),
        (2, 8192, 3, &row_blocks(1, [2, 2, 8])),
        (5, 4099, 7, &owners(5)),
        (2, 8209, 3, &owners(2)),
    ];
    for (extent, row, count, expected) in cases {
        let g = Graph::new("rows");
        let base = g.input("base", DType::F32, vec![extent, row]);
        let index = g.input("index", DType::I64, vec![count]);
        let updates = g.input("updates", DType::F32, vec![count, row]);
        g.output("y", &base.scatter_add(0, &index, &updates));
        let inputs = [
            uneven(DType::F32, &[extent, row]),
            places(DType::I64, count, extent),
            uneven(DType::F32, &[count, row]),
        ];
        let found = everywhere(&g.finish().unwrap(), &inputs, expected);
        // The definition.
        let numbers = |t: &HostTensor| t.as_slice::<f32>().unwrap().to_vec();
        let (mut sums, updates) = (numbers(&inputs[0]), numbers(&inputs[2]));
        for (i, place) in inputs[1].as_slice::<i64>().unwrap().iter().enumerate() {
            if let Some(place) = usize::try_from(*place).ok().filter(|p| *p < extent) {
                (0..row).for_each(|r| sums[place * row + r] += updates[i * row + r]);
            }
        }
        let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&numbers(&found[0])), bits(&sums), "{extent} {row} {count}");
    }
}

#[test]
fn every_way_to_combine_and_every_dtype() {
    for op in ScatterOp::ALL {
        for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16, DType::I32, DType::U8] {
            for of in [DType::I64, DType::I32, DType::U64] {
                let g = Graph::new("combine");
                let base = g.input("base", dtype, vec![5, 4100]);
                let index = g.input("index", of, vec![14]);
                let updates = g.input("updates", dtype, vec![14, 4100]);
                g.output("y", &base.scatter(&[0], &[&index], &updates, op));
                let inputs = [uneven(dtype, &[5, 4100]), places(of, 14, 5), uneven(dtype, &[14, 4100])];
                let parts = match dtype.bytes() {
                    1 => [2, 2, 2],
                    2 => [2, 2, 4],
                    _ => [2, 2, 5],
                };
                everywhere(&g.finish().unwrap(), &inputs, &row_blocks(1, parts));
            }
        }
    }
}

#[test]
fn axes_before_the_indexed_one_are_apart_by_themselves() {
    for (shape, count) in [
        ([6, 50, 7], 30),
        ([2, 3, 1], 20),
        ([700, 5, 3], 3),
        ([5, 20, 16], 40),
        ([3, 9, 33], 25),
    ] {
        let g = Graph::new("outer");
        let base = g.input("base", DType::F32, shape.to_vec());
        let index = g.input("index", DType::I64, vec![count]);
        let updates = g.input("updates", DType::F32, vec![count, shape[0], shape[2]]);
        g.output("y", &base.scatter(&[1], &[&index], &updates, ScatterOp::Add));
        let inputs = [
            uneven(DType::F32, &shape),
            places(DType::I64, count, shape[1]),
            uneven(DType::F32, &[count, shape[0], shape[2]]),
        ];
        let expected = if shape[2] < 16 { outer } else { outer_of_long_rows };
        everywhere(&g.finish().unwrap(), &inputs, &expected);
    }
}

#[test]
fn axes_before_the_indexed_one_are_cut_into_blocks_where_rows_are_short() {
    // Of the axes before it, the first that has several positions is cut: into as many blocks for each thread, if they divide it.
    for (shape, indexed, axis, of) in [
        (vec![700, 5, 3], 1, 0, [2, 20, 50]),
        (vec![60, 90], 1, 0, [2, 3, 60]),
        (vec![1, 48, 5, 7, 2], 3, 1, [2, 3, 8]),
        (vec![49, 30], 1, 0, [7, 7, 49]),
    ] {
        let count = 2000;
        let g = Graph::new("blocks");
        let base = g.input("base", DType::F32, shape.clone());
        let index = g.input("index", DType::I64, vec![count]);
        let mut rest = shape.clone();
        let extent = rest.remove(indexed);
        let of_updates = [vec![count], rest].concat();
        let updates = g.input("updates", DType::F32, of_updates.clone());
        g.output(
            "y",
            &base.scatter(&[indexed as i64], &[&index], &updates, ScatterOp::Add),
        );
        let inputs = [
            uneven(DType::F32, &shape),
            places(DType::I64, count, extent),
            uneven(DType::F32, &of_updates),
        ];
        everywhere(&g.finish().unwrap(), &inputs, &blocks(axis, of));
    }
    // A prime number of positions has no equal blocks.
    let g = Graph::new("prime");
    let base = g.input("base", DType::F32, vec![1009, 3]);
    let index = g.input("index", DType::I64, vec![20]);
    let updates = g.input("updates", DType::F32, vec![20, 1009]);
    g.output("y", &base.scatter(&[1], &[&index], &updates, ScatterOp::Add));
    let inputs = [
        uneven(DType::F32, &[1009, 3]),
        places(DType::I64, 20, 3),
        uneven(DType::F32, &[20, 1009]),
    ];
    everywhere(&g.finish().unwrap(), &inputs, &outer);
}

#[test]
fn an_axis_of_one_position_before_the_indexed_one_has_nothing_to_share_out() {
    let g = Graph::new("one");
    let base = g.input("base", DType::F32, vec![1, 40, 1024]);
    let index = g.input("index", DType::I64, vec![12]);
    let updates = g.input("updates", DType::F32, vec![12, 1, 1024]);
    g.output("y", &base.scatter(&[1], &[&index], &updates, ScatterOp::Add));
    let inputs = [
        uneven(DType::F32, &[1, 40, 1024]),
        places(DType::I64, 12, 40),
        uneven(DType::F32, &[12, 1, 1024]),
    ];
    everywhere(&g.finish().unwrap(), &inputs, &row_blocks(2, [2, 2, 2]));
}

#[test]
fn several_indices_and_computed_updates() {
    let g = Graph::new("several");
    let table = g.input("table", DType::F32, vec![9, 1024]);
    let first = g.input("first", DType::I64, vec![20]);
    let second = g.input("second", DType::I64, vec![20]);
    let updates = (table.gather(&[0], &[&second]) * 3.0).floor();
    let base = g.zeros([21, 9, 1024], DType::F32);
    g.output(
        "y",
        &base.scatter(&[1, 0], &[&second, &first], &updates, ScatterOp::Add),
    );
    // Ranges of a first axis of one element are none; the next axes follow it.
    let (thin, at) = (g.zeros([1, 9, 1024], DType::F32), &first - &first);
    g.output("z", &thin.scatter(&[0, 1], &[&at, &second], &updates, ScatterOp::Max));
    let inputs = [
        uneven(DType::F32, &[9, 1024]),
        places(DType::I64, 20, 21),
        places(DType::I64, 20, 9),
    ];
    everywhere(&g.finish().unwrap(), &inputs, &row_blocks(2, [2, 2, 2]));
}

fn parsed(text: &str) -> tlc_ir::Graph {
    tlc_ir::text::parse_graph(text, &mut tlc_ir::text::no_data).unwrap_or_else(|e| panic!("{}", e[0]))
}

#[test]
fn symbolic_counts_and_rows() {
    let graph = parsed(
        "graph @g(%base: f32[30, d], %index: i64[n], %updates: f32[n, d]) where d in 0..=5000, n in 0..=500 {
  %0 = scatter add %base, %updates, %index {axes=[0]} : f32[30, d]
  return %0
}
",
    );
    for (d, n) in [(0, 5), (5, 0), (1, 1), (40, 500)] {
        let inputs = [
            uneven(DType::F32, &[30, d]),
            places(DType::I64, n, 30),
            uneven(DType::F32, &[n, d]),
        ];
        everywhere(&graph, &inputs, &owners(30));
    }
    // The outer axis and the indexed one may be of any extent.
    let graph = parsed(
        "graph @g(%base: f32[d, m], %index: i64[n], %updates: f32[n, d]) where d in 0..=500, n in 0..=500, m in 0..=500 {
  %0 = scatter add %base, %updates, %index {axes=[1]} : f32[d, m]
  return %0
}
",
    );
    for (d, n, m) in [(0, 5, 3), (5, 0, 2), (3, 4, 0), (40, 300, 50)] {
        let inputs = [
            uneven(DType::F32, &[d, m]),
            places(DType::I64, n, m.max(1)),
            uneven(DType::F32, &[n, d]),
        ];
        everywhere(&graph, &inputs, &outer);
    }
    // Rows behind an indexed first axis of unknown extent are cut as others are, or their owners take turns.
    let turns = |threads| match threads {
        1 => Updates::Serial,
        n => Updates::Turns(n as i64),
    };
    let cases: [(usize, &dyn Fn(usize) -> Updates); 2] = [(1024, &row_blocks(1, [2, 2, 2])), (4099, &turns)];
    for (row, expected) in cases {
        let graph = parsed(&format!(
            "graph @g(%base: f32[m, {row}], %index: i64[n], %updates: f32[n, {row}]) where m in 0..=500, n in 0..=500 {{
  %0 = scatter add %base, %updates, %index {{axes=[0]}} : f32[m, {row}]
  return %0
}}
"
        ));
        for (n, m) in [(0, 3), (4, 0), (100, 30)] {
            let inputs = [
                uneven(DType::F32, &[m, row]),
                places(DType::I64, n, m.max(1)),
                uneven(DType::F32, &[n, row]),
            ];
            everywhere(&graph, &inputs, expected);
        }
    }
    // Between rows of unknown length nothing is known to be apart.
    let graph = parsed(
        "graph @g(%base: f32[m, d], %index: i64[n], %updates: f32[n, d]) where d in 0..=500, m in 0..=500, n in 0..=500 {
  %0 = scatter add %base, %updates, %index {axes=[0]} : f32[m, d]
  return %0
}
",
    );
    let inputs = [
        uneven(DType::F32, &[50, 64]),
        places(DType::I64, 300, 50),
        uneven(DType::F32, &[300, 64]),
    ];
    everywhere(&graph, &inputs, &|_| Updates::Serial);
}

#[test]
fn blocks_that_overlap_are_added_in_parallel() {
    let fold = |x: &Tensor| x.fold([11, 9], &[3, 2], &Conv::new().stride([2, 1]).padding([1, 0]));
    let g = Graph::new("fold");
    let x = g.input("x", DType::F32, vec![4, 5 * 6, 6 * 8]);
    g.output("y", &fold(&x));
    everywhere(&g.finish().unwrap(), &[uneven(DType::F32, &[4, 30, 48])], &outer);
}

#[test]
fn the_elements_of_an_update_are_added_in_lanes() {
    // Axes behind the indexed one that lie together are one loop; what is left over of it runs one by one.
    for (row, threads) in [(vec![16], 1), (vec![3, 25], 1), (vec![8, 8], 2)] {
        let g = Graph::new("lanes");
        let base = g.input("base", DType::F32, [vec![30], row.clone()].concat());
        let index = g.input("index", DType::I64, vec![600]);
        let updates = g.input("updates", DType::F32, [vec![600], row.clone()].concat());
        g.output("y", &base.scatter_add(0, &index, &updates));
        let options = CompileOptions {
            threads: Some(threads),
            ..CompileOptions::default()
        };
        let executable = compile_ir(&g.finish().unwrap(), &options).unwrap();
        let has_updates = |k: &&tlc_ir::kernel::Kernel| k.to_string().contains("clamp");
        let kernel = executable.plan().kernels.iter().find(has_updates).unwrap();
        assert!(kernel.to_string().contains("lanes"), "{row:?}\n{kernel}");
    }
}

#[test]
fn few_updates_and_short_rows_are_one_loop() {
    for (row, count) in [(4, 5000), (64, 20)] {
        let g = Graph::new("few");
        let base = g.input("base", DType::F32, vec![50, row]);
        let index = g.input("index", DType::I64, vec![count]);
        let updates = g.input("updates", DType::F32, vec![count, row]);
        g.output("y", &base.scatter_add(0, &index, &updates));
        let inputs = [
            uneven(DType::F32, &[50, row]),
            places(DType::I64, count, 50),
            uneven(DType::F32, &[count, row]),
        ];
        everywhere(&g.finish().unwrap(), &inputs, &|_| Updates::Serial);
    }
}
