//! Kernels for a GPU give what the graph means: tiles of sums of products, whose operands go through shared memory, and pieces of
//! elementwise results, which move together.

use std::sync::Arc;

use crate::oracle::generate::Case;
use crate::oracle::stages::{check, gpu};
use tlc_ir::kernel::{Bind, Kernel, Memory, Scope, Stmt};
use tlc_ir::target::{Cpu, Gpu, Multiprocessor};
use tlc_ir::text::{no_data, parse_graph};
use tlc_ir::{HostTensor, Scalar};
use tlc_passes::Options;
use tlc_passes::devices::Devices;
use tlc_passes::directive::Directive;
use tlc_passes::pipeline::Pipeline;

/// The case of a graph with inputs for values of its symbols.
fn case(text: &str, symbols: &[i64], tolerance: Option<f64>) -> Case {
    let graph = parse_graph(text, &mut no_data).unwrap_or_else(|e| panic!("{e:?}\n{text}"));
    let inputs: Vec<HostTensor> = graph
        .inputs()
        .iter()
        .map(|&i| {
            let ty = graph.ty(i);
            let sizes = ty.shape.iter().map(|d| d.eval_symbols(symbols).unwrap() as usize);
            let mut x = HostTensor::zeros(ty.dtype, &sizes.collect::<Vec<_>>()).unwrap();
            for k in 0..x.len() {
                let value = ((k * 37 + 11) % 101) as f64 / 25.0 - 2.0;
                x.set(k, Scalar::from_f64(x.dtype(), value));
            }
            x
        })
        .collect();
    Case {
        tolerance: vec![tolerance; graph.outputs().len()],
        graph,
        inputs,
        symbols: symbols.to_vec(),
    }
}

/// Whether a kernel of the plan is a contraction.
fn contracts(case: &Case) -> bool {
    let compiled = check(case, &Pipeline::default(), gpu()).unwrap_or_else(|e| panic!("{e}"));
    let launches = &compiled.planned.launches;
    let contraction = |s: &Stmt| matches!(s, Stmt::Contract(_));
    launches.iter().any(|l| l.scheduled.statements().any(contraction))
}

/// Elements of 8 bytes that lie apart are no copy of 16 bytes together, and a vector's lanes no threads that could begin one each.
#[test]
fn wide_elements_are_copied_beside_the_threads_one_by_one() {
    let text = "graph @product(%x: f64[32, 16], %y: f64[1, 16]) {
      %0 = permute %x {axes=[1, 0]} : f64[16, 32]
      %1 = permute %y {axes=[1, 0]} : f64[16, 1]
      %2 = expand %1 : f64[16, 32]
      %3 = einsum %0, %2 {ab,cb->ac} : f64[16, 16]
      return %3
    }";
    let case = case(text, &[], Some(1e-12));
    assert!(contracts(&case));
}

#[test]
fn large_products_are_tiled_and_small_ones_are_not() {
    let product = |m: usize, k: usize, n: usize| {
        format!(
            "graph @product(%x: i8[{m}, {k}], %y: i8[{k}, {n}], %b: i32[{n}]) {{
               %0 = einsum %x, %y {{ab,bc->ac; acc=i32}} : i32[{m}, {n}]
               %1 = expand %b : i32[{m}, {n}]
               %2 = add %0, %1 : i32[{m}, {n}]
               return %2, %0
             }}"
        )
    };
    for (sizes, tiled) in [
        ([16, 48, 16], true),
        ([17, 33, 70], true),
        ([64, 40, 16], true),
        ([80, 64, 65], true),
        // Blocks would be mostly empty.
        ([15, 40, 64], false),
        ([64, 40, 1], false),
    ] {
        let text = product(sizes[0], sizes[1], sizes[2]);
        assert_eq!(contracts(&case(&text, &[], None)), tiled, "{sizes:?}");
    }
}

#[test]
fn batches_windows_and_narrow_floats_are_tiled() {
    let attention = "graph @scores(%q: f16[2, 20, 48], %k: f16[2, 33, 48]) {
       %0 = einsum %q, %k {hab,hcb->hac; acc=f32} : f32[2, 20, 33]
       %1 = tanh %0 : f32[2, 20, 33]
       return %1
     }";
    assert!(contracts(&case(attention, &[], Some(1e-4))));
    let scaled = "graph @scaled(%x: f32[20, 40], %w: u8[40, 24], %s: f32[40]) {
       %0 = convert %w : f32[40, 24]
       %1 = reshape %s : f32[40, 1]
       %2 = expand %1 : f32[40, 24]
       %3 = mul %0, %2 : f32[40, 24]
       %4 = convert %3 : f64[40, 24]
       %5 = convert %x : f64[20, 40]
       %6 = einsum %5, %4 {ab,bc->ac} : f64[20, 24]
       return %6
     }";
    check(&case(scaled, &[], Some(1e-9)), &Pipeline::default(), gpu()).unwrap_or_else(|e| panic!("{e}"));
    let symbolic = "graph @rows(%x: i16[n, m], %y: i16[m, 40]) where n in 1..=4096, m in 0..=4096 {
       %0 = einsum %x, %y {ab,bc->ac; acc=i32} : i32[n, 40]
       return %0
     }";
    for sizes in [[1, 5], [40, 17], [33, 0], [64, 16]] {
        assert!(contracts(&case(symbolic, &sizes, None)), "{sizes:?}");
    }
}

/// How many elements a thread of the only kernel takes at once.
fn pieces(text: &str, symbols: &[i64]) -> i64 {
    let compiled =
        check(&case(text, symbols, Some(1e-5)), &Pipeline::default(), gpu()).unwrap_or_else(|e| panic!("{e}"));
    let [launch] = &compiled.planned.launches[..] else {
        panic!("several kernels of {text}")
    };
    let kernel = &launch.scheduled;
    let lanes = kernel.statements().find_map(|s| match s {
        Stmt::Loop {
            var, bind: Bind::Lanes, ..
        } => kernel.extents[var.0 as usize].as_const(),
        _ => None,
    });
    lanes.unwrap_or(1)
}

#[test]
fn threads_take_aligned_pieces_of_elementwise_results() {
    let chain = |dtype: &str, shape: &str| {
        format!(
            "graph @chain(%x: {dtype}[{shape}]) {{
               %0 = add %x, %x : {dtype}[{shape}]
               return %0
             }}"
        )
    };
    for (dtype, shape, symbols, expected) in [
        ("f32", "16384", &[][..], 4),
        ("f64", "128, 129", &[], 2),
        ("bf16", "17000", &[], 8),
        ("u8", "n", &[16385], 16),
        ("f32", "n", &[3], 4),
        ("f32", "n, 6", &[5], 4),
        ("f32", "n", &[0], 4),
        // Few elements are a thread each.
        ("f32", "100, 100", &[], 1),
    ] {
        assert_eq!(pieces(&chain(dtype, shape), symbols), expected, "{dtype}[{shape}]");
    }
    // Of several types the widest decides; rows and columns that are repeated are read as often as they need to be.
    let mixed = "graph @mixed(%x: f32[n, 36], %row: f16[36], %column: f32[n], %m: bool[n, 36]) {
       %0 = convert %row : f32[36]
       %1 = expand %0 : f32[n, 36]
       %2 = reshape %column : f32[n, 1]
       %3 = expand %2 : f32[n, 36]
       %4 = mul %x, %1 : f32[n, 36]
       %5 = select %m, %4, %3 : f32[n, 36]
       return %5
     }";
    assert_eq!(pieces(mixed, &[7]), 4);
    // Rows that do not begin at multiples, and an operand that begins elsewhere.
    for (text, symbols) in [
        (
            "graph @odd(%x: f32[n, 35], %row: f32[35]) {
               %0 = expand %row : f32[n, 35]
               %1 = add %x, %0 : f32[n, 35]
               return %1
             }",
            &[9][..],
        ),
        (
            "graph @shifted(%x: f32[20001]) {
               %0 = slice %x {start=[1], step=[1]} : f32[20000]
               %1 = neg %0 : f32[20000]
               return %1
             }",
            &[],
        ),
        (
            "graph @padded(%x: f32[20000]) {
               %0 = pad %x {lo=[4], hi=[4], value=1.0} : f32[20008]
               %1 = neg %0 : f32[20008]
               return %1
             }",
            &[],
        ),
    ] {
        assert_eq!(pieces(text, symbols), 1, "{text}");
    }
}

#[test]
fn threads_take_aligned_pieces_of_rows() {
    let softmax = |dtype: &str, rows: &str, columns: usize| {
        let (all, each) = (format!("{dtype}[{rows}, {columns}]"), format!("{dtype}[{rows}]"));
        format!(
            "graph @softmax(%x: {all}) {{
               %0 = reduce max %x {{axes=[1]}} : {each}
               %1 = reshape %0 : {dtype}[{rows}, 1]
               %2 = expand %1 : {all}
               %3 = sub %x, %2 : {all}
               %4 = exp %3 : {all}
               %5 = reduce add %4 {{axes=[1]}} : {each}
               %6 = reshape %5 : {dtype}[{rows}, 1]
               %7 = expand %6 : {all}
               %8 = div %4, %7 : {all}
               return %8
             }}"
        )
    };
    for (dtype, rows, columns, symbols, expected) in [
        ("f32", "6", 128, &[][..], 4),
        ("f32", "n", 2052, &[3], 4),
        ("f64", "4", 66, &[], 2),
        ("f64", "4", 1026, &[], 2),
        // Too short for a warp, and rows that begin elsewhere.
        ("f32", "70", 64, &[], 2),
        ("f32", "6", 130, &[], 2),
        ("f32", "6", 129, &[], 1),
    ] {
        let found = pieces(&softmax(dtype, rows, columns), symbols);
        assert_eq!(found, expected, "{dtype}[{rows}, {columns}]");
    }
    let norm = "graph @norm(%x: bf16[5, 512], %w: f32[512]) {
       %0 = convert %x : f32[5, 512]
       %1 = mul %0, %0 : f32[5, 512]
       %2 = reduce add %1 {axes=[1]} : f32[5]
       %3 = rsqrt %2 : f32[5]
       %4 = reshape %3 : f32[5, 1]
       %5 = expand %4 : f32[5, 512]
       %6 = mul %0, %5 : f32[5, 512]
       %7 = expand %w : f32[5, 512]
       %8 = mul %6, %7 : f32[5, 512]
       return %8
     }";
    assert_eq!(pieces(norm, &[]), 4);
    let sums = "graph @sums(%x: i16[9, 1024]) {
       %0 = reduce add %x {axes=[1]} : i16[9]
       return %0
     }";
    assert_eq!(pieces(sums, &[]), 8);
}

/// How the only kernel of a softmax of rows shares work: whether a warp has a row, bytes of shared memory, barriers, and elements that a
/// thread holds of the row.
fn rows_of(dtype: &str, rows: &str, columns: usize, symbols: &[i64]) -> (bool, i64, usize, i64) {
    let all = format!("[{rows}, {columns}]");
    let wide = if dtype == "f64" { "f64" } else { "f32" };
    let condition = if symbols.is_empty() {
        ""
    } else {
        "where n in 0..=1000000"
    };
    let text = format!(
        "graph @softmax(%x: {dtype}{all}) {condition} {{
           %0 = convert %x : {wide}{all}
           %1 = reduce max %0 {{axes=[1]}} : {wide}[{rows}]
           %2 = reshape %1 : {wide}[{rows}, 1]
           %3 = expand %2 : {wide}{all}
           %4 = sub %0, %3 : {wide}{all}
           %5 = exp %4 : {wide}{all}
           %6 = reduce add %5 {{axes=[1]}} : {wide}[{rows}]
           %7 = reshape %6 : {wide}[{rows}, 1]
           %8 = expand %7 : {wide}{all}
           %9 = div %5, %8 : {wide}{all}
           %10 = convert %9 : {dtype}{all}
           return %10
         }}"
    );
    let text = match dtype {
        "f32" | "f64" => text
            .replace(&format!("%0 = convert %x : {wide}{all}"), "")
            .replace(&format!("%10 = convert %9 : {dtype}{all}"), "")
            .replace("%10", "%9")
            .replace("%0,", "%x,")
            .replace("max %0", "max %x"),
        _ => text,
    };
    let case = case(&text, symbols, Some(1e-3));
    let compiled = check(&case, &Pipeline::default(), gpu()).unwrap_or_else(|e| panic!("{e}"));
    let [launch] = &compiled.planned.launches[..] else {
        panic!("several kernels of {text}")
    };
    let kernel = &launch.scheduled;
    let extent = |v: &tlc_ir::VarId| &kernel.extents[v.0 as usize];
    let block = match &kernel.body[..] {
        [Stmt::Loop { var, body, .. }] => (extent(var), &body[..]),
        _ => panic!("no block loop"),
    };
    let by_warps = matches!(block.1, [Stmt::Loop { bind: Bind::Warp, .. }]);
    let barriers = kernel.statements().filter(|s| matches!(s, Stmt::Barrier)).count();
    let shared = kernel.grid().expect("a grid").shared_bytes;
    let thread = |s: &&tlc_ir::kernel::Scratch| s.scope == Scope::Thread;
    let held = kernel.scratch.iter().filter(thread).filter_map(|s| s.len.as_const());
    (by_warps, shared, barriers, held.max().unwrap_or(0))
}

#[test]
fn warps_take_many_rows_and_hold_them() {
    for (dtype, rows, columns, symbols, held) in [
        ("f32", "n", 1024, &[5][..], 32),
        ("f16", "n", 1024, &[6], 32),
        ("bf16", "n", 256, &[3], 8),
        ("f64", "n", 512, &[3], 16),
        // One element at a time, and in the last turn not all threads.
        ("f32", "n", 1023, &[3], 32),
        ("f32", "n", 1000, &[3], 32),
        // Four elements at a time: registers of eight that the last turn leaves as they are do not fit beside the others.
        ("f16", "n", 1000, &[2], 32),
        ("f32", "1026", 40, &[], 2),
    ] {
        let found = rows_of(dtype, rows, columns, symbols);
        assert_eq!(found, (true, 0, 0, held), "{dtype}[{rows}, {columns}]");
    }
}

#[test]
fn blocks_take_long_rows_and_few_and_their_threads_hold_what_is_theirs() {
    // What warps come to is shared.
    let warps = |n: i64| 2 * 4 * n.max(4);
    for (dtype, rows, columns, symbols, shared, held) in [
        ("f32", "n", 2048, &[5][..], warps(8), 8),
        ("f32", "6", 1024, &[], warps(8), 4),
        ("f16", "n", 4096, &[2], warps(8), 16),
    ] {
        let found = rows_of(dtype, rows, columns, symbols);
        assert_eq!(found, (false, shared, 2, held), "{dtype}[{rows}, {columns}]");
    }
}

#[test]
fn what_is_walked_across_goes_through_tiles_in_shared_memory() {
    let across = |dtype: &str, shape: &str, turned: &str, axes: &str| {
        format!(
            "graph @across(%x: {dtype}[{shape}], %y: {dtype}[{turned}]) {{
               %0 = permute %y {{axes={axes}}} : {dtype}[{shape}]
               %1 = add %x, %0 : {dtype}[{shape}]
               return %1
             }}"
        )
    };
    for (dtype, shape, turned, axes, symbols, tiled) in [
        ("f32", "64, 96", "96, 64", "[1, 0]", &[][..], true),
        ("f32", "40, 33", "33, 40", "[1, 0]", &[], true),
        ("bf16", "n, m", "m, n", "[1, 0]", &[35, 70], true),
        ("u8", "n, m", "m, n", "[1, 0]", &[0, 7], true),
        ("i64", "3, 40, 50", "3, 50, 40", "[0, 2, 1]", &[], true),
        ("f32", "40, 3, 50", "50, 3, 40", "[2, 1, 0]", &[], true),
        // Distances that are sums of products are one side of a tile.
        ("f32", "k, m + 1, n", "n, k, m + 1", "[1, 2, 0]", &[5, 39, 40], true),
        // Too short for tiles, and what is walked along all the same.
        ("f32", "64, 20", "20, 64", "[1, 0]", &[], false),
        ("f32", "40, 3, 50", "3, 40, 50", "[1, 0, 2]", &[], false),
    ] {
        let text = across(dtype, shape, turned, axes);
        let compiled = check(&case(&text, symbols, Some(1e-5)), &Pipeline::default(), gpu());
        let compiled = compiled.unwrap_or_else(|e| panic!("{e}"));
        let kernel = &compiled.planned.launches[0].scheduled;
        let shared = kernel.scratch.iter().any(|s| s.scope == Scope::Shared);
        assert_eq!(shared, tiled, "{text}");
    }
    // Two that are walked across, one of them repeated along a row, beside one that is not.
    let text = "graph @several(%x: f32[64, 64], %y: f32[64, 64], %z: f32[64]) {
       %0 = permute %y {axes=[1, 0]} : f32[64, 64]
       %1 = permute %x {axes=[1, 0]} : f32[64, 64]
       %2 = reshape %z : f32[64, 1]
       %3 = expand %2 : f32[64, 64]
       %4 = fma %0, %1, %3 : f32[64, 64]
       %5 = add %4, %x : f32[64, 64]
       return %5
     }";
    check(&case(text, &[], Some(1e-5)), &Pipeline::default(), gpu()).unwrap_or_else(|e| panic!("{e}"));
}

/// A product, with the operands' dtype, and the options of a GPU whose kernels multiply what a library would.
fn product_case(dtype: &str, [m, _, n]: [i64; 3], labels: &str, shapes: [[i64; 2]; 2]) -> (Case, Options) {
    let [[a, b], [c, d]] = shapes;
    let text = format!(
        "graph @product(%x: {dtype}[{a}, {b}], %y: {dtype}[{c}, {d}]) {{
           %0 = einsum %x, %y {{{labels}; acc=f32}} : f32[{m}, {n}]
           return %0
         }}"
    );
    let without_library = Gpu {
        products: None,
        ..Gpu::any(tlc_codegen::cuda::emitter().into())
    };
    let host = Cpu::modest(Arc::new(tlc_codegen::clif::emitter(true)));
    let options = Options::new(Devices::new(host, [without_library]));
    (case(&text, &[], Some(1e-3)), options)
}

/// The kernel of a product, and the directives that were refused.
fn product_of(dtype: &str, sizes: [i64; 3], labels: &str, shapes: [[i64; 2]; 2]) -> (Kernel, String) {
    let (case, options) = product_case(dtype, sizes, labels, shapes);
    let compiled = check(&case, &Pipeline::default(), options).unwrap_or_else(|e| panic!("{sizes:?}: {e}"));
    let [launch] = &compiled.planned.launches[..] else {
        panic!("several kernels of {sizes:?}")
    };
    ((*launch.scheduled).clone(), launch.schedule.to_string())
}

/// Whether warps multiply, and how many copies run beside the threads.
fn forms(kernel: &Kernel) -> (bool, usize) {
    let scope = |m: Memory| match m {
        Memory::Scratch(i) => Some(kernel.scratch[i as usize].scope),
        Memory::Param(_) => None,
    };
    let multiplies = |s: &Stmt| matches!(s, Stmt::Contract(c) if scope(c.dst) == Some(Scope::WarpFragment));
    let copies = kernel.statements().filter(|s| matches!(s, Stmt::CopyAsync(_)));
    (kernel.statements().any(multiplies), copies.count())
}

#[test]
fn warps_multiply_floats_of_sixteen_bits() {
    for (dtype, sizes, copies) in [
        // One block of steps: nothing to copy beside.
        ("f16", [16, 16, 16], 0),
        ("bf16", [32, 40, 16], 0),
        // Two, and three: each operand twice, or thrice and in a loop.
        ("bf16", [32, 128, 16], 4),
        ("f16", [16, 192, 16], 6),
        // Not whole tiles, but whole copies.
        ("f16", [18, 136, 24], 6),
        // Rows that are not aligned.
        ("f16", [18, 131, 17], 0),
    ] {
        let [m, k, n] = sizes;
        let (kernel, why) = product_of(dtype, sizes, "ab,bc->ac", [[m, k], [k, n]]);
        assert_eq!(forms(&kernel), (true, copies), "{dtype} {sizes:?}\n{why}\n{kernel}");
    }
    for (labels, shapes) in [
        ("ab,cb->ac", [[32, 72], [48, 72]]),
        ("ba,bc->ac", [[72, 32], [72, 48]]),
        ("ba,cb->ac", [[72, 32], [48, 72]]),
    ] {
        let (kernel, why) = product_of("f16", [32, 72, 48], labels, shapes);
        assert_eq!(forms(&kernel), (true, 4), "{labels}\n{why}\n{kernel}");
        assert!(
            why.contains("warps multiply 32 by 32 sums of products by matrix instructions"),
            "{why}"
        );
    }
    // Too few rows for a tile.
    let (kernel, why) = product_of("f16", [15, 32, 32], "ab,bc->ac", [[15, 32], [32, 32]]);
    assert_eq!(forms(&kernel), (false, 0), "{why}\n{kernel}");
    assert!(why.contains("is too short for matrix instructions"), "{why}");
    let (kernel, why) = product_of("f32", [32, 48, 16], "ab,bc->ac", [[32, 48], [48, 16]]);
    // Sums of f32 are added up by threads; copies run beside these too.
    assert_eq!(forms(&kernel), (false, 6), "{why}\n{kernel}");
    assert!(
        why.contains("there is no matrix instruction for f32 and f32 that adds up f32"),
        "{why}"
    );
}

#[test]
fn warps_multiply_what_is_computed_and_rows_that_calls_decide() {
    let text = "graph @rows(%x: f16[n, m], %w: i8[64, m], %s: f32[64], %b: f16[64]) where n in 0..=300, m in 0..=300 {
       %0 = convert %w : f32[64, m]
       %1 = reshape %s : f32[64, 1]
       %2 = expand %1 : f32[64, m]
       %3 = mul %0, %2 : f32[64, m]
       %4 = convert %3 : f16[64, m]
       %5 = einsum %x, %4 {ab,cb->ac; acc=f32} : f32[n, 64]
       %6 = convert %b : f32[64]
       %7 = expand %6 : f32[n, 64]
       %8 = add %5, %7 : f32[n, 64]
       %9 = tanh %8 : f32[n, 64]
       %10 = convert %9 : f16[n, 64]
       return %10
     }";
    for sizes in [[1, 5], [40, 17], [33, 0], [64, 130], [0, 4]] {
        let case = case(text, &sizes, Some(1e-2));
        let compiled = check(&case, &Pipeline::default(), gpu()).unwrap_or_else(|e| panic!("{sizes:?}: {e}"));
        let multiplies = compiled.planned.launches.iter().filter(|l| forms(&l.scheduled).0);
        assert_eq!(multiplies.count(), 1);
    }
}

#[test]
fn why_a_product_has_no_more_stages_is_said() {
    let of = |dtype: &str, sizes: [i64; 3]| {
        let [m, k, n] = sizes;
        let (case, options) = product_case(dtype, sizes, "ab,bc->ac", [[m, k], [k, n]]);
        let compiled = tlc_passes::compile(&case.graph, &options).expect("a plan");
        compiled.planned.launches[0].schedule.to_string()
    };
    // Three blocks of steps: the next one is copied, and there is nothing to copy further ahead for long.
    let why = of("f16", [32, 192, 16]);
    assert!(
        why.contains("the next block of a sum is copied while this one is multiplied"),
        "{why}"
    );
    for (least, stages) in [(8, 4), (6, 3)] {
        let few = format!("is not known to have the {least} iterations that are worth {stages} stages");
        assert!(why.contains(&few), "{why}");
    }
    // Nine blocks of a small tile, all of whose stages fit, and of one of which two blocks of threads must have room.
    let why = of("f16", [16, 576, 16]);
    assert!(
        why.contains("the next 3 blocks of a sum are copied while one is multiplied"),
        "{why}"
    );
    let why = of("f16", [64, 576, 64]);
    assert!(
        why.contains("of shared memory a multiprocessor has 1 of its blocks, expected at least 2"),
        "{why}"
    );
    assert!(
        why.contains("the next block of a sum is copied while this one is multiplied"),
        "{why}"
    );
}

/// Large tiles of a device where four warps multiply together: both operands are swizzled, along whichever side they lie together.
#[test]
fn four_warps_multiply_large_tiles_together() {
    for (sizes, labels, shapes) in [
        ([256, 200, 256], "ab,bc->ac", [[256, 200], [200, 256]]),
        ([256, 64, 256], "ab,cb->ac", [[256, 64], [256, 64]]),
        ([250, 72, 256], "ba,bc->ac", [[72, 250], [72, 256]]),
    ] {
        let (case, _) = product_case("bf16", sizes, labels, shapes);
        let gpu = Gpu {
            products: None,
            multiprocessors: 4,
            opt_in_shared_bytes: 227 << 10,
            ..Gpu::any(tlc_codegen::cuda::emitter_for("sm_90a").into())
        };
        let host = Cpu::modest(Arc::new(tlc_codegen::clif::emitter(true)));
        let options = Options::new(Devices::new(host, [gpu]));
        let compiled = check(&case, &Pipeline::default(), options).unwrap_or_else(|e| panic!("{sizes:?}: {e}"));
        let [launch] = &compiled.planned.launches[..] else {
            panic!("several kernels of {sizes:?}")
        };
        let kernel = &launch.scheduled;
        let groups = kernel.statements().filter(|s| match s {
            Stmt::Contract(c) => c.operands().iter().all(|o| kernel.is_swizzled(o.memory)),
            _ => false,
        });
        assert!(groups.count() > 0, "{labels}: {}", launch.schedule);
        assert_eq!(kernel.grid().map(|g| g.threads), Some(256), "{labels}");
    }
}

/// The kernels of a graph for a GPU of that architecture that multiplies itself; nothing is computed.
fn kernels_for(arch: &str, text: &str) -> Vec<Kernel> {
    let gpu = Gpu {
        products: None,
        multiprocessors: 4,
        opt_in_shared_bytes: 227 << 10,
        multiprocessor: Multiprocessor::of(tlc_codegen::cuda::capability(arch).expect("an architecture")),
        ..Gpu::any(tlc_codegen::cuda::emitter_for(arch).into())
    };
    let host = Cpu::modest(Arc::new(tlc_codegen::clif::emitter(true)));
    let graph = parse_graph(text, &mut no_data).expect("a graph");
    let options = Options::new(Devices::new(host, [gpu]));
    let compiled = tlc_passes::pipeline::compile(&graph, &options).expect("a plan");
    let launches = compiled.planned.launches.iter();
    launches.map(|l| (*l.scheduled).clone()).collect()
}

/// What four warps multiply together comes to shared memory in whole tiles, where it lies in rows: where a mask says no more than where the matrix ends,
/// or the same for all of a tile.
#[test]
fn operands_of_four_warps_are_copied_in_whole_tiles() {
    for (sizes, labels, [[a, b], [c, d]], whole) in [
        ([256, 512, 256], "ab,bc->ac", [[256, 512], [512, 256]], [true; 2]),
        ([256, 512, 256], "ab,cb->ac", [[256, 512], [256, 512]], [true; 2]),
        ([256, 512, 256], "ba,bc->ac", [[512, 256], [512, 256]], [true; 2]),
        // The last tiles reach beyond the matrices: down, across, along the sum.
        ([250, 512, 256], "ab,bc->ac", [[250, 512], [512, 256]], [true; 2]),
        ([256, 512, 248], "ab,bc->ac", [[256, 512], [512, 248]], [true; 2]),
        ([256, 520, 256], "ab,bc->ac", [[256, 520], [520, 256]], [true; 2]),
        ([256, 520, 256], "ba,cb->ac", [[520, 256], [256, 520]], [true; 2]),
        // Rows that do not begin at a multiple of 16 bytes.
        ([256, 512, 250], "ab,bc->ac", [[256, 512], [512, 250]], [true, false]),
    ] {
        let [m, _, n] = sizes;
        let text = format!(
            "graph @product(%x: bf16[{a}, {b}], %y: bf16[{c}, {d}]) {{
               %0 = einsum %x, %y {{{labels}; acc=f32}} : f32[{m}, {n}]
               return %0
             }}"
        );
        let kernels = kernels_for("sm_90a", &text);
        let [kernel] = &kernels[..] else {
            panic!("several kernels")
        };
        let placed = tlc_codegen::cuda::with_fragments_placed(kernel);
        let [flat, without] =
            ["sm_90a", "sm_80"].map(|arch| tlc_codegen::cuda::flatten(&placed, arch).expect("a lowered form"));
        let found = [0, 1].map(|p| flat.matrices.iter().any(|m| m.param == p));
        assert_eq!(found, whole, "{labels} {sizes:?}:\n{kernel}");
        assert_eq!(
            flat.to_string().contains("copy_async"),
            whole.contains(&false),
            "{labels} {sizes:?}"
        );
        assert!(without.matrices.is_empty());
    }
}

/// What all threads of a warp load in front of a row's store keeps no row from a warp: such a kernel does not run in place.
#[test]
fn warps_take_rows_of_which_all_threads_need_a_value_that_is_stored() {
    let text = "graph @rows(%x: f32[2048, 128], %y: f32[2048]) {
       %0 = reduce max %x {axes=[1]} : f32[2048]
       %1 = mul %0, %y : f32[2048]
       %2 = reshape %1 : f32[2048, 1]
       %3 = expand %2 : f32[2048, 128]
       %4 = sub %x, %3 : f32[2048, 128]
       return %4, %1
     }";
    let kernels = kernels_for("sm_90a", text);
    let [kernel] = &kernels[..] else {
        panic!("several kernels")
    };
    let by_warps = |s: &Stmt| matches!(s, Stmt::Loop { bind: Bind::Warp, .. });
    assert!(kernel.statements().any(by_warps), "{kernel}");
    let of_rows = |p: &u32| kernel.params[*p as usize].len.is(2048);
    let (read, written): (Vec<u32>, Vec<u32>) = (0..kernel.params.len() as u32)
        .filter(of_rows)
        .partition(|p| kernel.params[*p as usize].access == tlc_ir::kernel::Access::Read);
    assert!(
        !tlc_ir::plan::verify::runs_in_place(kernel, read[0], written[0]),
        "{kernel}"
    );
}

/// A convolution of 64 channels to so many others by windows of 3 by 3.
fn convolution(image: [i64; 4], out: i64) -> String {
    let [n, c, h, w] = image;
    let (ph, pw) = (h + 2, w + 2);
    format!(
        "graph @convolution(%x: bf16[{n}, {c}, {h}, {w}], %w: bf16[{out}, {c}, 3, 3]) {{
           %0 = pad %x {{lo=[0, 0, 1, 1], hi=[0, 0, 1, 1], value=0.0}} : bf16[{n}, {c}, {ph}, {pw}]
           %1 = window %0 {{axis=2, size=3, stride=1, dilation=1}} : bf16[{n}, {c}, {h}, {pw}, 3]
           %2 = window %1 {{axis=3, size=3, stride=1, dilation=1}} : bf16[{n}, {c}, {h}, {w}, 3, 3]
           %3 = einsum %2, %w {{ncyxij,ocij->noyx; acc=f32}} : bf16[{n}, {out}, {h}, {w}]
           return %3
         }}"
    )
}

/// Windows of images whose channels lie together are copied 16 bytes at a time, beside the threads, and weights in whole tiles; where four warps multiply together,
/// each block has rows of the channels and pixels that leave least of a tile empty.
#[test]
fn windows_are_copied_beside_the_threads() {
    for (image, out, tile, blocks) in [
        ([4, 64, 56, 56], 64, [64, 112], 3),
        ([8, 128, 28, 28], 128, [128, 112], 2),
        ([8, 96, 16, 24], 192, [64, 128], 3),
    ] {
        let text = convolution(image, out);
        for arch in ["sm_80", "sm_90a", "sm_100"] {
            let kernels = kernels_for(arch, &text);
            let kernel = kernels.iter().find(|k| k.params.len() == 3).expect("a convolution");
            let is = |f: &dyn Fn(&Stmt) -> bool| kernel.statements().filter(|s| f(s)).count();
            let copies = is(&|s| matches!(s, Stmt::CopyAsync(_)));
            let loads = is(&|s| {
                s.accesses()
                    .any(|a| matches!(a.memory, Memory::Param(p) if p < 2) && !a.effect.writes())
            });
            assert!(copies > 0 && loads == copies, "{arch}: {kernel}");
            let options = tlc_codegen::cuda::CudaOptions {
                arch: arch.into(),
                ..Default::default()
            };
            let emitted = tlc_codegen::cuda::emit(kernel, "convolution", &options).expect("text");
            let in_groups = kernel.scratch.iter().any(|s| s.swizzled);
            assert_eq!(in_groups, arch == "sm_90a", "{arch}");
            if !in_groups {
                continue;
            }
            let of_weights = emitted.matrices.iter().map(|m| m.param).collect::<Vec<_>>();
            assert_eq!(of_weights, [1], "{kernel}");
            let [rows, columns] = tile;
            let swizzled = kernel.scratch.iter().filter(|s| s.swizzled);
            let lengths: Vec<_> = swizzled.filter_map(|s| s.len.as_const()).collect();
            assert!(
                lengths.contains(&(rows * 64)) && lengths.contains(&(columns * 64)),
                "{lengths:?}"
            );
            assert_eq!(
                (kernel.grid().map(|g| g.threads), kernel.residents),
                (Some(2 * rows), blocks)
            );
        }
    }
}

/// Results of 16 bits leave in pieces of 16 bytes, each of what four neighbouring threads have of a row: on every architecture, and where rows begin at a
/// multiple of them alone.
#[test]
fn results_of_16_bits_are_stored_by_four_threads_together() {
    for (columns, arch, together) in [(256, "sm_90a", true), (256, "sm_80", true), (252, "sm_80", false)] {
        let text = format!(
            "graph @product(%x: f16[256, 192], %y: f16[192, {columns}]) {{
               %0 = einsum %x, %y {{ab,bc->ac; acc=f32}} : f16[256, {columns}]
               return %0
             }}"
        );
        let options = tlc_codegen::cuda::CudaOptions {
            arch: arch.into(),
            ..Default::default()
        };
        let kernels = kernels_for(arch, &text);
        let emitted = kernels
            .iter()
            .map(|k| tlc_codegen::cuda::emit(k, "product", &options).expect("text").source);
        let source: String = emitted.collect();
        assert_eq!(
            source.contains("store_quad(&p2["),
            together,
            "{columns} {arch}: {source}"
        );
    }
}

/// What is done to the kernel of a graph that has one, which is right.
fn directives(text: &str, symbols: &[i64], tolerance: Option<f64>) -> Vec<Directive> {
    let compiled = check(&case(text, symbols, tolerance), &Pipeline::default(), gpu());
    let compiled = compiled.unwrap_or_else(|e| panic!("{text}: {e}"));
    let [launch] = &compiled.planned.launches[..] else {
        panic!("several kernels of {text}")
    };
    launch.schedule.applied.iter().map(|a| a.directive.clone()).collect()
}

/// In how many groups the threads of a block share rows.
fn groups(directives: &[Directive]) -> Option<(i64, bool)> {
    directives.iter().find_map(|d| match d {
        Directive::ShareRows { groups, lane, .. } => Some((*groups, lane.is_some())),
        _ => None,
    })
}

#[test]
fn threads_share_the_rows_of_few_columns() {
    let product = |dtype: &str, [k, n]: [&str; 2], symbols: &str| {
        format!(
            "graph @product(%x: {dtype}[{k}], %w: {dtype}[{k}, {n}], %b: {dtype}[{n}]){symbols} {{
               %0 = einsum %x, %w {{a,ab->b; acc=f32}} : {dtype}[{n}]
               %1 = add %0, %b : {dtype}[{n}]
               return %1
             }}"
        )
    };
    for (dtype, sizes, expected) in [
        ("f32", ["300", "48"], Some((64, true))),
        ("f16", ["1000", "64"], Some((128, true))),
        // No whole vectors, and ragged tiles.
        ("f32", ["300", "40"], Some((32, false))),
        ("f16", ["768", "33"], Some((16, false))),
        ("bf16", ["1000", "7"], Some((64, false))),
        // Few rows are not worth it.
        ("f32", ["6", "40"], None),
    ] {
        // A step of the type at the largest sums.
        let tolerance = match dtype {
            "f32" => 1e-3,
            "f16" => 0.5,
            _ => 4.0,
        };
        let found = directives(&product(dtype, sizes, ""), &[], Some(tolerance));
        assert_eq!(groups(&found), expected, "{dtype} {sizes:?}");
    }
    let symbols = " where k in 0..=4096, n in 0..=4096";
    for values in [[0, 40], [5, 3], [700, 33], [129, 0], [300, 64], [1, 1]] {
        directives(&product("f32", ["k", "n"], symbols), &values, Some(1e-3));
    }
    // What is exact stays so.
    for (reduce, dtype) in [
        ("max", "f32"),
        ("min", "i32"),
        ("add", "i64"),
        ("add", "u8"),
        ("mul", "i32"),
    ] {
        let text = format!(
            "graph @columns(%x: {dtype}[300, 5, 9]) {{
               %0 = reduce {reduce} %x {{axes=[0]}} : {dtype}[5, 9]
               return %0
             }}"
        );
        let found = directives(&text, &[], Some(0.0));
        assert!(groups(&found).is_some(), "{reduce} {dtype}: {found:?}");
    }
}

/// Tokens of few batches that lie inside of them: a tile has rows of many tokens.
#[test]
fn tiles_have_their_rows_along_the_longer_axis() {
    let text = "graph @product(%x: f16[4, 97, 64], %w: f16[64, 128]) {
      %0 = einsum %x, %w {abc,cd->bad; acc=f32} : f16[97, 4, 128]
      return %0
    }";
    let found = directives(text, &[], Some(2e-2));
    let rows = found.iter().find_map(|d| match d {
        Directive::Contract { rows, .. } => Some(*rows),
        _ => None,
    });
    assert!(rows >= Some(64), "{found:?}");
}

/// Weights that never change are laid out once, and read where they then lie; windows of one element that skip others are copied as they are shown.
#[test]
fn what_is_laid_out_for_convolutions_is_read_where_it_lies() {
    let input = convolution([8, 128, 28, 28], 128);
    let fixed = input.replace(", %w: bf16[128, 128, 3, 3])", ")").replace(
        "%0 = pad",
        "%number = iota {axis=2} : bf16[128, 128, 3, 3]
           %w = exp %number : bf16[128, 128, 3, 3]
           %0 = pad",
    );
    let skipping = "graph @skipping(%x: bf16[32, 256, 56, 56], %w: bf16[512, 256, 1, 1]) {
      %0 = window %x {axis=2, size=1, stride=2, dilation=1} : bf16[32, 256, 28, 56, 1]
      %1 = window %0 {axis=3, size=1, stride=2, dilation=1} : bf16[32, 256, 28, 28, 1, 1]
      %2 = einsum %1, %w {ncyxij,ocij->noyx; acc=f32} : bf16[32, 512, 28, 28]
      return %2
    }";
    for text in [&input, &fixed, skipping] {
        let kernels = kernels_for("sm_90a", text);
        let found = kernels.iter().find(|k| k.scratch.iter().any(|s| s.swizzled));
        let kernel = found.unwrap_or_else(|| panic!("{text}: no product of four warps"));
        let accesses = kernel.statements().flat_map(|s| match s {
            Stmt::CopyAsync(_) => Vec::new(),
            s => s.accesses().collect(),
        });
        let mut loads = accesses.filter(|a| matches!(a.memory, Memory::Param(p) if p < 2) && !a.effect.writes());
        assert!(loads.next().is_none(), "{text}: {kernel}");
    }
}

/// What a layer computes of its product in another shape is part of the product's kernel, and what reads it as rows again reads what that stored.
#[test]
fn what_is_computed_of_a_reshaped_product_is_part_of_its_kernel() {
    let text = "graph @layer(%x: f32[4, 8, 32], %w: f32[32, 64], %b: f32[64], %v: f32[64, 32]) {
      %0 = reshape %x : f32[32, 32]
      %1 = einsum %0, %w {ab,bc->ac} : f32[32, 64]
      %2 = expand %b : f32[32, 64]
      %3 = add %1, %2 : f32[32, 64]
      %4 = reshape %3 : f32[4, 8, 64]
      %5 = tanh %4 : f32[4, 8, 64]
      %6 = mul %4, %5 : f32[4, 8, 64]
      %7 = expand %b : f32[4, 8, 64]
      %8 = add %6, %7 : f32[4, 8, 64]
      %9 = reshape %8 : f32[32, 64]
      %10 = einsum %9, %v {ab,bc->ac} : f32[32, 32]
      %11 = reshape %10 : f32[4, 8, 32]
      %12 = add %11, %x : f32[4, 8, 32]
      return %12, %8
    }";
    let compiled = check(&case(text, &[], Some(1e-3)), &Pipeline::default(), gpu()).unwrap_or_else(|e| panic!("{e}"));
    let launches = &compiled.planned.launches;
    assert_eq!(launches.len(), 2);
}

/// Columns of any number beside an axis of none.
#[test]
fn columns_of_nothing_are_counted() {
    let text = "graph @columns(%x: f32[300, 0, n]) where n {
      %0 = reduce add %x {axes=[0]} : f32[0, n]
      return %0
    }";
    for n in [0, 5] {
        let compiled = check(&case(text, &[n], Some(0.0)), &Pipeline::default(), gpu());
        compiled.unwrap_or_else(|e| panic!("{e}"));
    }
}
