//! What kernels do on a device, counted: sectors, bank conflicts, instructions. Counts are exact and the same in every run, so that
//! they stand for speed where there is no GPU.

use std::path::Path;

use serde_json::Value;
use tlc::{CompileOptions, Device, HostTensor, Precision, Scalar, compile_ir};
use tlc_ir::text::{no_data, parse_graph};

use crate::child::simulated;

/// A graph whose launches are counted.
struct Counted {
    name: &'static str,
    /// The graph.
    text: &'static str,
    /// The most kernels that a call launches.
    kernels: usize,
    /// The most sectors that requests may touch, in hundredths of what inputs and outputs occupy.
    sectors: u64,
    /// The fewest bytes that a thread moves at once between global memory and itself, on average over warps, of which the last of a row may
    /// not be full.
    access_bytes: u64,
    /// The most cycles lost to bank conflicts.
    conflicts: u64,
    /// The most barriers that warps pass, if they are counted.
    barriers: Option<u64>,
    /// The most instructions of a thread for each 16 bytes of the output, in tenths. Beyond that a thread has `SETUP` of them.
    instructions: Option<u64>,
    /// The fewest threads of all launches together.
    threads: Option<u64>,
    /// The most instructions of a thread, on average.
    each: Option<u64>,
    /// The most requests of all launches together.
    requests: Option<u64>,
    /// How many products are added up, and the most instructions of a thread for a thousand of them.
    products: Option<[u64; 2]>,
    /// How exactly products are computed.
    precision: Precision,
}

/// Instructions that a thread of an elementwise kernel may need before it accesses anything.
const SETUP: u64 = 24;

/// One kernel that touches what goes in and out, once, with no more said of it.
const PLAIN: Counted = Counted {
    name: "",
    text: "",
    kernels: 1,
    sectors: 100,
    access_bytes: 0,
    conflicts: 0,
    barriers: None,
    instructions: None,
    threads: None,
    each: None,
    requests: None,
    products: None,
    precision: Precision::Exact,
};

/// Graphs and what they may cost.
const COUNTED: &[Counted] = &[
    Counted {
        name: "add",
        text: "graph @add(%x: f32[64, 1024], %y: f32[64, 1024]) {
           %0 = add %x, %y : f32[64, 1024]
           return %0
         }",
        // Two loads, a store, four additions, and five.
        instructions: Some(120),
        access_bytes: 16,
        ..PLAIN
    },
    Counted {
        name: "relu",
        text: "graph @relu(%x: f32[64, 1024]) {
           %c = const 0.0 : f32[]
           %c1 = expand %c : f32[64, 1024]
           %0 = max %x, %c1 : f32[64, 1024]
           return %0
         }",
        // A load, a store, four comparisons, and five.
        instructions: Some(110),
        access_bytes: 16,
        ..PLAIN
    },
    Counted {
        name: "scaled sum",
        text: "graph @axpy(%x: f32[64, 1024], %y: f32[64, 1024]) {
           %c = const 1.5 : f32[]
           %c1 = expand %c : f32[64, 1024]
           %0 = mul %x, %c1 : f32[64, 1024]
           %1 = add %0, %y : f32[64, 1024]
           return %1
         }",
        // Two loads, a store, four products and as many sums, and five.
        instructions: Some(160),
        access_bytes: 16,
        ..PLAIN
    },
    Counted {
        name: "bounded",
        text: "graph @bounded(%x: f32[64, 1024], %y: f32[64, 1024]) {
           %0 = lt %x, %y : bool[64, 1024]
           %1 = select %0, %x, %y : f32[64, 1024]
           return %1
         }",
        // Two loads, a store, four comparisons and as many choices, and five.
        instructions: Some(160),
        access_bytes: 16,
        ..PLAIN
    },
    Counted {
        name: "root and quotient",
        text: "graph @quotient(%x: f32[64, 1024], %y: f32[64, 1024]) {
           %0 = sqrt %x : f32[64, 1024]
           %1 = div %y, %0 : f32[64, 1024]
           return %1
         }",
        // Two loads, a store, four roots and as many quotients, and five.
        instructions: Some(160),
        access_bytes: 16,
        ..PLAIN
    },
    Counted {
        name: "add i32",
        text: "graph @add(%x: i32[64, 1024], %y: i32[64, 1024]) {
           %0 = add %x, %y : i32[64, 1024]
           return %0
         }",
        instructions: Some(120),
        access_bytes: 16,
        ..PLAIN
    },
    Counted {
        name: "mul f64",
        text: "graph @mul(%x: f64[64, 1024], %y: f64[64, 1024]) {
           %0 = mul %x, %y : f64[64, 1024]
           return %0
         }",
        // Two loads, a store, two products, and five.
        instructions: Some(100),
        access_bytes: 16,
        ..PLAIN
    },
    Counted {
        name: "add f16",
        text: "graph @add(%x: f16[64, 1024], %y: f16[64, 1024]) {
           %0 = add %x, %y : f16[64, 1024]
           return %0
         }",
        // Two loads, a store, and five; eight sums of f32, with 24 conversions.
        instructions: Some(400),
        access_bytes: 16,
        ..PLAIN
    },
    Counted {
        name: "rounded",
        text: "graph @rounded(%x: f32[64, 1024]) {
           %0 = convert %x : bf16[64, 1024]
           return %0
         }",
        // Two loads, a store, eight conversions, and five. What is stored takes half as many bytes as what is loaded.
        instructions: Some(160),
        access_bytes: 12,
        ..PLAIN
    },
    Counted {
        name: "adam",
        text: "graph @adam(%w: f32[65536], %g: f32[65536], %m: f32[65536], %v: f32[65536]) {
           %b1 = const 0.9 : f32[]
           %b2 = const 0.99 : f32[]
           %c1 = const 0.1 : f32[]
           %c2 = const 0.01 : f32[]
           %eps = const 1e-8 : f32[]
           %b1e = expand %b1 : f32[65536]
           %b2e = expand %b2 : f32[65536]
           %c1e = expand %c1 : f32[65536]
           %c2e = expand %c2 : f32[65536]
           %epse = expand %eps : f32[65536]
           %0 = mul %m, %b1e : f32[65536]
           %1 = mul %g, %c1e : f32[65536]
           %2 = add %0, %1 : f32[65536]
           %3 = mul %v, %b2e : f32[65536]
           %4 = mul %g, %g : f32[65536]
           %5 = mul %4, %c2e : f32[65536]
           %6 = add %3, %5 : f32[65536]
           %7 = sqrt %6 : f32[65536]
           %8 = add %7, %epse : f32[65536]
           %9 = div %2, %8 : f32[65536]
           %10 = mul %9, %c2e : f32[65536]
           %11 = sub %w, %10 : f32[65536]
           return %11, %2, %6
         }",
        access_bytes: 16,
        ..PLAIN
    },
    // A warp for each chunk of a row, whose threads take neighbours: what goes in is read twice.
    Counted {
        name: "scan",
        text: "graph @scan(%x: f32[1024, 1024]) {
           %0 = scan add %x {axis=1} : f32[1024, 1024]
           return %0
         }",
        access_bytes: 16,
        ..PLAIN
    },
    Counted {
        name: "scan from behind",
        text: "graph @scan(%x: f16[64, 1024]) {
           %0 = scan add %x {axis=1, reverse} : f16[64, 1024]
           return %0
         }",
        access_bytes: 16,
        ..PLAIN
    },
    Counted {
        name: "scan of one row",
        text: "graph @scan(%x: f32[1000000]) {
           %0 = scan add %x {axis=0} : f32[1000000]
           return %0
         }",
        kernels: 3,
        sectors: 152,
        access_bytes: 13,
        threads: Some(2 * 132 * 128),
        ..PLAIN
    },
    Counted {
        name: "scan of few rows",
        text: "graph @scan(%x: f32[64, 8192]) {
           %0 = scan max %x {axis=1, exclusive} : f32[64, 8192]
           return %0
         }",
        kernels: 3,
        sectors: 155,
        access_bytes: 12,
        threads: Some(132 * 128),
        ..PLAIN
    },
    Counted {
        name: "scan of columns",
        text: "graph @scan(%x: f32[8192, 64]) {
           %0 = scan add %x {axis=0} : f32[8192, 64]
           return %0
         }",
        kernels: 3,
        // What is scanned in blocks is read again where it lies, and its totals with each element.
        sectors: 255,
        ..PLAIN
    },
    // Parts of a warp with a row each.
    Counted {
        name: "softmax of 16",
        text: "graph @softmax(%x: f32[4096, 16]) {
           %0 = reduce max %x {axes=[1]} : f32[4096]
           %1 = reshape %0 : f32[4096, 1]
           %2 = expand %1 : f32[4096, 16]
           %3 = sub %x, %2 : f32[4096, 16]
           %4 = exp %3 : f32[4096, 16]
           %5 = reduce add %4 {axes=[1]} : f32[4096]
           %6 = reshape %5 : f32[4096, 1]
           %7 = expand %6 : f32[4096, 16]
           %8 = div %4, %7 : f32[4096, 16]
           return %8
         }",
        access_bytes: 16,
        barriers: Some(0),
        ..PLAIN
    },
    Counted {
        name: "norm of 10",
        text: "graph @norm(%x: f32[4096, 10]) {
           %1 = mul %x, %x : f32[4096, 10]
           %2 = reduce add %1 {axes=[1]} : f32[4096]
           %6 = rsqrt %2 : f32[4096]
           %7 = reshape %6 : f32[4096, 1]
           %8 = expand %7 : f32[4096, 10]
           %9 = mul %x, %8 : f32[4096, 10]
           return %9
         }",
        access_bytes: 5,
        barriers: Some(0),
        ..PLAIN
    },
    Counted {
        name: "norm of 7",
        text: "graph @norm(%x: f32[4096, 7]) {
           %1 = mul %x, %x : f32[4096, 7]
           %2 = reduce add %1 {axes=[1]} : f32[4096]
           %6 = rsqrt %2 : f32[4096]
           %7 = reshape %6 : f32[4096, 1]
           %8 = expand %7 : f32[4096, 7]
           %9 = mul %x, %8 : f32[4096, 7]
           return %9
         }",
        // What a warp has of rows of an odd length ends within a sector.
        sectors: 115,
        barriers: Some(0),
        ..PLAIN
    },
    Counted {
        name: "sums of 3",
        text: "graph @sums(%x: f32[4096, 3]) {
           %0 = reduce add %x {axes=[1]} : f32[4096]
           return %0
         }",
        sectors: 101,
        barriers: Some(0),
        ..PLAIN
    },
    Counted {
        name: "positions in 20",
        text: "graph @largest(%x: f32[4096, 20]) {
           %0 = reduce argmax %x {axes=[1]} : i64[4096]
           return %0
         }",
        sectors: 101,
        barriers: Some(0),
        ..PLAIN
    },
    // Neighbours of a row by threads side by side, each of which walks all indices; all threads of a warp read the same one.
    Counted {
        name: "rows scattered",
        text: "graph @scatter(%x: f32[1000, 64], %u: f32[500, 64], %i: i64[500]) {
           %0 = scatter add %x, %u, %i {axes=[0]} : f32[1000, 64]
           return %0
         }",
        kernels: 2,
        sectors: 2700,
        threads: Some(132 * 128),
        each: Some(500 * 6),
        ..PLAIN
    },
    // Rows of products in the kernel of the product. Each block reads all weights, and tiles have 16 rows where there are few.
    Counted {
        name: "norm of product f16",
        text:
            "graph @norm(%x: f16[512, 256], %w: f16[256, 64], %b: f16[64], %r: f16[512, 64], %g: f32[64], %c: f32[64]) {
           %p = einsum %x, %w {ab,bc->ac; acc=f32} : f16[512, 64]
           %be = expand %b : f16[512, 64]
           %pb = add %p, %be : f16[512, 64]
           %pr = add %pb, %r : f16[512, 64]
           %t = convert %pr : f32[512, 64]
           %s = reduce add %t {axes=[1]} : f32[512]
           %sr = reshape %s : f32[512, 1]
           %nc = const 64.0 : f32[]
           %n = expand %nc : f32[512, 1]
           %m = div %sr, %n : f32[512, 1]
           %me = expand %m : f32[512, 64]
           %d = sub %t, %me : f32[512, 64]
           %d2 = mul %d, %d : f32[512, 64]
           %v = reduce add %d2 {axes=[1]} : f32[512]
           %vr = reshape %v : f32[512, 1]
           %va = div %vr, %n : f32[512, 1]
           %ec = const 1e-5 : f32[]
           %e = expand %ec : f32[512, 1]
           %ve = add %va, %e : f32[512, 1]
           %rs = rsqrt %ve : f32[512, 1]
           %rse = expand %rs : f32[512, 64]
           %y = mul %d, %rse : f32[512, 64]
           %ge = expand %g : f32[512, 64]
           %yg = mul %y, %ge : f32[512, 64]
           %ce = expand %c : f32[512, 64]
           %o = add %yg, %ce : f32[512, 64]
           %oc = convert %o : f16[512, 64]
           return %oc
         }",
        sectors: 380,
        ..PLAIN
    },
    Counted {
        name: "norm of product f32",
        text:
            "graph @norm(%x: f32[256, 128], %w: f32[128, 50], %b: f32[50], %r: f32[256, 50], %g: f32[50], %c: f32[50]) {
           %p = einsum %x, %w {ab,bc->ac} : f32[256, 50]
           %be = expand %b : f32[256, 50]
           %pb = add %p, %be : f32[256, 50]
           %pr = add %pb, %r : f32[256, 50]
           %s = reduce add %pr {axes=[1]} : f32[256]
           %sr = reshape %s : f32[256, 1]
           %nc = const 50.0 : f32[]
           %n = expand %nc : f32[256, 1]
           %m = div %sr, %n : f32[256, 1]
           %me = expand %m : f32[256, 50]
           %d = sub %pr, %me : f32[256, 50]
           %d2 = mul %d, %d : f32[256, 50]
           %v = reduce add %d2 {axes=[1]} : f32[256]
           %vr = reshape %v : f32[256, 1]
           %va = div %vr, %n : f32[256, 1]
           %ec = const 1e-5 : f32[]
           %e = expand %ec : f32[256, 1]
           %ve = add %va, %e : f32[256, 1]
           %rs = rsqrt %ve : f32[256, 1]
           %rse = expand %rs : f32[256, 50]
           %y = mul %d, %rse : f32[256, 50]
           %ge = expand %g : f32[256, 50]
           %yg = mul %y, %ge : f32[256, 50]
           %ce = expand %c : f32[256, 50]
           %o = add %yg, %ce : f32[256, 50]
           return %o
         }",
        sectors: 430,
        // Neighbours that a row ends between are stored one by one.
        conflicts: 512,
        ..PLAIN
    },
    Counted {
        name: "softmax of product",
        text: "graph @softmax(%x: f32[256, 128], %w: f32[128, 128], %b: f32[128]) {
           %p = einsum %x, %w {ab,bc->ac} : f32[256, 128]
           %be = expand %b : f32[256, 128]
           %pb = add %p, %be : f32[256, 128]
           %mx = reduce max %pb {axes=[1]} : f32[256]
           %mr = reshape %mx : f32[256, 1]
           %me = expand %mr : f32[256, 128]
           %d = sub %pb, %me : f32[256, 128]
           %ex = exp %d : f32[256, 128]
           %s = reduce add %ex {axes=[1]} : f32[256]
           %sr = reshape %s : f32[256, 1]
           %se = expand %sr : f32[256, 128]
           %o = div %ex, %se : f32[256, 128]
           return %o
         }",
        sectors: 420,
        ..PLAIN
    },
    Counted {
        name: "rms of product",
        text: "graph @rms(%x: bf16[512, 256], %w: bf16[256, 256], %b: bf16[256], %r: bf16[512, 256]) {
           %p = einsum %x, %w {ab,cb->ac; acc=f32} : bf16[512, 256]
           %be = expand %b : bf16[512, 256]
           %pb = add %p, %be : bf16[512, 256]
           %pr = add %pb, %r : bf16[512, 256]
           %t = convert %pr : f32[512, 256]
           %d2 = mul %t, %t : f32[512, 256]
           %v = reduce add %d2 {axes=[1]} : f32[512]
           %vr = reshape %v : f32[512, 1]
           %nc = const 256.0 : f32[]
           %n = expand %nc : f32[512, 1]
           %va = div %vr, %n : f32[512, 1]
           %ec = const 1e-5 : f32[]
           %e = expand %ec : f32[512, 1]
           %ve = add %va, %e : f32[512, 1]
           %rs = rsqrt %ve : f32[512, 1]
           %rse = expand %rs : f32[512, 256]
           %o = mul %t, %rse : f32[512, 256]
           %oc = convert %o : bf16[512, 256]
           return %oc
         }",
        sectors: 580,
        ..PLAIN
    },
    // Each thread walks all indices, which a block reads once.
    Counted {
        name: "many scattered",
        text: "graph @scatter(%x: f32[1000, 64], %u: f32[5000, 64], %i: i64[5000]) {
           %0 = scatter add %x, %u, %i {axes=[0]} : f32[1000, 64]
           return %0
         }",
        kernels: 2,
        sectors: 800,
        requests: Some(75_000),
        ..PLAIN
    },
    Counted {
        name: "softmax",
        text: "graph @softmax(%x: f32[64, 1024]) {
           %0 = reduce max %x {axes=[1]} : f32[64]
           %1 = reshape %0 : f32[64, 1]
           %2 = expand %1 : f32[64, 1024]
           %3 = sub %x, %2 : f32[64, 1024]
           %4 = exp %3 : f32[64, 1024]
           %5 = reduce add %4 {axes=[1]} : f32[64]
           %6 = reshape %5 : f32[64, 1]
           %7 = expand %6 : f32[64, 1024]
           %8 = div %4, %7 : f32[64, 1024]
           return %8
         }",
        access_bytes: 16,
        ..PLAIN
    },
    Counted {
        name: "softmax 4096x1024",
        text: "graph @softmax(%x: f32[4096, 1024]) {
           %0 = reduce max %x {axes=[1]} : f32[4096]
           %1 = reshape %0 : f32[4096, 1]
           %2 = expand %1 : f32[4096, 1024]
           %3 = sub %x, %2 : f32[4096, 1024]
           %4 = exp %3 : f32[4096, 1024]
           %5 = reduce add %4 {axes=[1]} : f32[4096]
           %6 = reshape %5 : f32[4096, 1]
           %7 = expand %6 : f32[4096, 1024]
           %8 = div %4, %7 : f32[4096, 1024]
           return %8
         }",
        access_bytes: 16,
        barriers: Some(0),
        ..PLAIN
    },
    // Their exponentials fit as well.
    Counted {
        name: "softmax 20000",
        text: "graph @softmax(%x: f32[8, 20000]) {
           %0 = reduce max %x {axes=[1]} : f32[8]
           %1 = reshape %0 : f32[8, 1]
           %2 = expand %1 : f32[8, 20000]
           %3 = sub %x, %2 : f32[8, 20000]
           %4 = exp %3 : f32[8, 20000]
           %5 = reduce add %4 {axes=[1]} : f32[8]
           %6 = reshape %5 : f32[8, 1]
           %7 = expand %6 : f32[8, 20000]
           %8 = div %4, %7 : f32[8, 20000]
           return %8
         }",
        access_bytes: 15,
        ..PLAIN
    },
    Counted {
        name: "norm 50000",
        text: "graph @norm(%x: f32[8, 50000]) {
           %sum = reduce add %x {axes=[1]} : f32[8]
           %n = const 50000.0 : f32[]
           %ns = expand %n : f32[8]
           %mean = div %sum, %ns : f32[8]
           %mean1 = reshape %mean : f32[8, 1]
           %mean2 = expand %mean1 : f32[8, 50000]
           %off = sub %x, %mean2 : f32[8, 50000]
           %square = mul %off, %off : f32[8, 50000]
           %squares = reduce add %square {axes=[1]} : f32[8]
           %variance = div %squares, %ns : f32[8]
           %root = sqrt %variance : f32[8]
           %root1 = reshape %root : f32[8, 1]
           %root2 = expand %root1 : f32[8, 50000]
           %y = div %off, %root2 : f32[8, 50000]
           return %y
         }",
        access_bytes: 15,
        ..PLAIN
    },
    // Longer than what stays on chip: read twice, in pieces by as many blocks as there are, and by what writes the results.
    Counted {
        name: "softmax 65536",
        text: "graph @softmax(%x: f32[132, 65536]) {
           %0 = reduce max %x {axes=[1]} : f32[132]
           %1 = reshape %0 : f32[132, 1]
           %2 = expand %1 : f32[132, 65536]
           %3 = sub %x, %2 : f32[132, 65536]
           %4 = exp %3 : f32[132, 65536]
           %5 = reduce add %4 {axes=[1]} : f32[132]
           %6 = reshape %5 : f32[132, 1]
           %7 = expand %6 : f32[132, 65536]
           %8 = div %4, %7 : f32[132, 65536]
           return %8
         }",
        kernels: 2,
        sectors: 151,
        access_bytes: 15,
        ..PLAIN
    },
    Counted {
        name: "softmax 100000",
        text: "graph @softmax(%x: f32[4, 100000]) {
           %0 = reduce max %x {axes=[1]} : f32[4]
           %1 = reshape %0 : f32[4, 1]
           %2 = expand %1 : f32[4, 100000]
           %3 = sub %x, %2 : f32[4, 100000]
           %4 = exp %3 : f32[4, 100000]
           %5 = reduce add %4 {axes=[1]} : f32[4]
           %6 = reshape %5 : f32[4, 1]
           %7 = expand %6 : f32[4, 100000]
           %8 = div %4, %7 : f32[4, 100000]
           return %8
         }",
        kernels: 3,
        // What writes the results asks for the two numbers of its row once a warp.
        sectors: 157,
        access_bytes: 10,
        threads: Some(132 * 256),
        ..PLAIN
    },
    Counted {
        name: "norm 80000",
        text: "graph @norm(%x: f32[4, 80000]) {
           %sum = reduce add %x {axes=[1]} : f32[4]
           %n = const 80000.0 : f32[]
           %ns = expand %n : f32[4]
           %mean = div %sum, %ns : f32[4]
           %mean1 = reshape %mean : f32[4, 1]
           %mean2 = expand %mean1 : f32[4, 80000]
           %off = sub %x, %mean2 : f32[4, 80000]
           %square = mul %off, %off : f32[4, 80000]
           %squares = reduce add %square {axes=[1]} : f32[4]
           %variance = div %squares, %ns : f32[4]
           %root = sqrt %variance : f32[4]
           %root1 = reshape %root : f32[4, 1]
           %root2 = expand %root1 : f32[4, 80000]
           %y = div %off, %root2 : f32[4, 80000]
           return %y
         }",
        kernels: 3,
        // What writes the results asks for the two numbers of its row once a warp.
        sectors: 157,
        access_bytes: 10,
        threads: Some(132 * 256),
        ..PLAIN
    },
    // A warp for each row, which waits for no other; the last block has fewer rows than warps.
    Counted {
        name: "softmax of many",
        text: "graph @softmax(%x: f16[1026, 1024]) {
           %0 = convert %x : f32[1026, 1024]
           %1 = reduce max %0 {axes=[1]} : f32[1026]
           %2 = reshape %1 : f32[1026, 1]
           %3 = expand %2 : f32[1026, 1024]
           %4 = sub %0, %3 : f32[1026, 1024]
           %5 = exp %4 : f32[1026, 1024]
           %6 = reduce add %5 {axes=[1]} : f32[1026]
           %7 = reshape %6 : f32[1026, 1]
           %8 = expand %7 : f32[1026, 1024]
           %9 = div %5, %8 : f32[1026, 1024]
           %10 = convert %9 : f16[1026, 1024]
           return %10
         }",
        access_bytes: 16,
        barriers: Some(0),
        ..PLAIN
    },
    Counted {
        name: "norm of many",
        text: "graph @norm(%x: f32[1026, 512], %y: f32[1026, 512], %w: f32[512]) {
           %0 = add %x, %y : f32[1026, 512]
           %1 = mul %0, %0 : f32[1026, 512]
           %2 = reduce add %1 {axes=[1]} : f32[1026]
           %3 = const 512.0 : f32[]
           %4 = expand %3 : f32[1026]
           %5 = div %2, %4 : f32[1026]
           %6 = rsqrt %5 : f32[1026]
           %7 = reshape %6 : f32[1026, 1]
           %8 = expand %7 : f32[1026, 512]
           %9 = mul %0, %8 : f32[1026, 512]
           %10 = expand %w : f32[1026, 512]
           %11 = mul %9, %10 : f32[1026, 512]
           return %11, %0
         }",
        // Each row reads the weights.
        sectors: 126,
        access_bytes: 16,
        barriers: Some(0),
        ..PLAIN
    },
    Counted {
        name: "sums of many",
        text: "graph @sums(%x: f32[1026, 1024]) {
           %0 = reduce add %x {axes=[1]} : f32[1026]
           %1 = reduce max %x {axes=[1]} : f32[1026]
           return %0, %1
         }",
        sectors: 101,
        access_bytes: 12,
        barriers: Some(0),
        ..PLAIN
    },
    // A block for each row, of which threads hold what they read: two barriers for each of 8 warps.
    Counted {
        name: "softmax 4096",
        text: "graph @softmax(%x: f32[64, 4096]) {
           %0 = reduce max %x {axes=[1]} : f32[64]
           %1 = reshape %0 : f32[64, 1]
           %2 = expand %1 : f32[64, 4096]
           %3 = sub %x, %2 : f32[64, 4096]
           %4 = exp %3 : f32[64, 4096]
           %5 = reduce add %4 {axes=[1]} : f32[64]
           %6 = reshape %5 : f32[64, 1]
           %7 = expand %6 : f32[64, 4096]
           %8 = div %4, %7 : f32[64, 4096]
           return %8
         }",
        access_bytes: 16,
        barriers: Some(64 * 2 * 8),
        ..PLAIN
    },
    Counted {
        name: "sum of rows",
        text: "graph @rows(%x: f32[64, 1024]) {
           %0 = reduce add %x {axes=[1]} : f32[64]
           return %0
         }",
        sectors: 101,
        access_bytes: 14,
        ..PLAIN
    },
    Counted {
        name: "sum of columns",
        text: "graph @columns(%x: f32[256, 1024]) {
           %0 = reduce add %x {axes=[0]} : f32[1024]
           return %0
         }",
        kernels: 2,
        sectors: 110,
        ..PLAIN
    },
    // Threads take 16 bytes of each row; the 32 pieces that are left are one kernel more.
    Counted {
        name: "sum of tall columns",
        text: "graph @columns(%x: f32[4096, 1024]) {
           %0 = reduce add %x {axes=[0]} : f32[1024]
           return %0
         }",
        kernels: 2,
        sectors: 102,
        access_bytes: 15,
        ..PLAIN
    },
    // Of many pieces a second kernel adds up each 32.
    Counted {
        name: "sum of taller columns",
        text: "graph @columns(%x: f16[32768, 128]) {
           %0 = convert %x : f32[32768, 128]
           %1 = reduce add %0 {axes=[0]} : f32[128]
           return %1
         }",
        kernels: 3,
        sectors: 105,
        ..PLAIN
    },
    // Two warps for each row, whose threads find the best of theirs by shuffles.
    Counted {
        name: "position of the largest",
        text: "graph @largest(%x: f32[4096, 1024]) {
           %0 = reduce argmax %x {axes=[1]} : i64[4096]
           return %0
         }",
        sectors: 101,
        access_bytes: 14,
        ..PLAIN
    },
    Counted {
        name: "sum of all",
        text: "graph @all(%x: f32[256, 1024]) {
           %0 = reduce add %x {axes=[0, 1]} : f32[]
           return %0
         }",
        kernels: 2,
        sectors: 101,
        access_bytes: 14,
        ..PLAIN
    },
    Counted {
        name: "transposition",
        text: "graph @transposition(%x: f32[256, 512]) {
           %0 = permute %x {axes=[1, 0]} : f32[512, 256]
           %1 = add %0, %0 : f32[512, 256]
           return %1
         }",
        access_bytes: 16,
        ..PLAIN
    },
    Counted {
        name: "transposition f16",
        text: "graph @transposition(%x: f16[256, 512]) {
           %0 = permute %x {axes=[1, 0]} : f16[512, 256]
           return %0
         }",
        access_bytes: 16,
        ..PLAIN
    },
    // Tiles at the ends are cut off.
    Counted {
        name: "transposition 1000",
        text: "graph @transposition(%x: f32[1000, 1000]) {
           %0 = permute %x {axes=[1, 0]} : f32[1000, 1000]
           return %0
         }",
        access_bytes: 15,
        // Of tiles at the ends a warp touches a few pieces, which lie in banks together.
        conflicts: 750,
        ..PLAIN
    },
    Counted {
        name: "transposition bf16 1000",
        text: "graph @transposition(%x: bf16[1000, 1000]) {
           %0 = permute %x {axes=[1, 0]} : bf16[1000, 1000]
           return %0
         }",
        // Rows of 2000 bytes begin within sectors.
        sectors: 113,
        access_bytes: 15,
        conflicts: 500,
        ..PLAIN
    },
    Counted {
        name: "transposition i8",
        text: "graph @transposition(%x: i8[256, 512]) {
           %0 = permute %x {axes=[1, 0]} : i8[512, 256]
           return %0
         }",
        access_bytes: 16,
        ..PLAIN
    },
    Counted {
        name: "transposition bool",
        text: "graph @transposition(%x: bool[320, 256]) {
           %0 = permute %x {axes=[1, 0]} : bool[256, 320]
           return %0
         }",
        access_bytes: 14,
        ..PLAIN
    },
    Counted {
        name: "transposition i64",
        text: "graph @transposition(%x: i64[256, 128]) {
           %0 = permute %x {axes=[1, 0]} : i64[128, 256]
           return %0
         }",
        access_bytes: 16,
        ..PLAIN
    },
    Counted {
        name: "transposition f64",
        text: "graph @transposition(%x: f64[100, 256]) {
           %0 = permute %x {axes=[1, 0]} : f64[256, 100]
           return %0
         }",
        access_bytes: 15,
        conflicts: 128,
        ..PLAIN
    },
    // Rows of results begin where no 16 bytes do.
    Counted {
        name: "transposition 197",
        text: "graph @transposition(%x: f32[197, 768]) {
           %0 = permute %x {axes=[1, 0]} : f32[768, 197]
           return %0
         }",
        sectors: 113,
        ..PLAIN
    },
    Counted {
        name: "transposition 50x49",
        text: "graph @transposition(%x: f32[16, 50, 49]) {
           %0 = permute %x {axes=[0, 2, 1]} : f32[16, 49, 50]
           return %0
         }",
        sectors: 127,
        ..PLAIN
    },
    Counted {
        name: "channels last",
        text: "graph @transposition(%x: f32[2, 64, 28, 28]) {
           %0 = permute %x {axes=[0, 2, 3, 1]} : f32[2, 28, 28, 64]
           return %0
         }",
        access_bytes: 15,
        conflicts: 64,
        ..PLAIN
    },
    Counted {
        name: "product",
        text: "graph @product(%x: f32[256, 256], %y: f32[256, 256]) {
           %0 = einsum %x, %y {ab,bc->ac} : f32[256, 256]
           return %0
         }",
        // Each tile of 64 sides reads its rows and columns, 4 times both operands.
        sectors: 300,
        products: Some([256 * 256 * 256, 1250]),
        ..PLAIN
    },
    // In one kernel the second sum would load all that it multiplies.
    Counted {
        name: "two products",
        text: "graph @two(%x: f32[256, 256], %y: f32[256, 256], %z: f32[256, 256]) {
           %0 = einsum %x, %y {ab,bc->ac} : f32[256, 256]
           %1 = einsum %x, %z {ab,bc->ac} : f32[256, 256]
           %2 = exp %0 : f32[256, 256]
           %3 = mul %2, %1 : f32[256, 256]
           return %3
         }",
        kernels: 2,
        sectors: 500,
        products: Some([2 * 256 * 256 * 256, 1300]),
        ..PLAIN
    },
    // The end of a residual block of a quantized network, whose shortcut is a convolution of its own.
    Counted {
        name: "two convolutions i8",
        text: "graph @two(%x: i8[1, 64, 30, 30], %y: i8[64, 64, 3, 3], %z: i8[1, 32, 56, 56], %w: i8[64, 32, 1, 1]) {
           %0 = window %x {axis=2, size=3, stride=1, dilation=1} : i8[1, 64, 28, 30, 3]
           %1 = window %0 {axis=3, size=3, stride=1, dilation=1} : i8[1, 64, 28, 28, 3, 3]
           %2 = einsum %1, %y {abcdef,gbef->agcd; acc=i32} : i32[1, 64, 28, 28]
           %4 = slice %z {start=[0, 0, 0, 0], step=[1, 1, 2, 2]} : i8[1, 32, 28, 28]
           %5 = reshape %w : i8[64, 32]
           %6 = einsum %4, %5 {abcd,eb->aecd; acc=i32} : i32[1, 64, 28, 28]
           %7 = add %2, %6 : i32[1, 64, 28, 28]
           return %7
         }",
        kernels: 2,
        sectors: 2700,
        products: Some([28 * 28 * 64 * (64 * 9 + 32), 2500]),
        ..PLAIN
    },
    Counted {
        name: "product f16",
        text: "graph @product(%x: f16[256, 256], %y: f16[256, 256]) {
           %0 = einsum %x, %y {ab,bc->ac; acc=f32} : f32[256, 256]
           return %0
         }",
        sectors: 250,
        products: Some([256 * 256 * 256, 100]),
        ..PLAIN
    },
    Counted {
        name: "product bf16, turned",
        text: "graph @product(%x: bf16[256, 256], %y: bf16[256, 256]) {
           %0 = einsum %x, %y {ba,cb->ac; acc=f32} : bf16[256, 256]
           return %0
         }",
        // A row of a tile's results is 16 bytes a store, half of a sector, which the cache puts together.
        sectors: 340,
        products: Some([256 * 256 * 256, 110]),
        ..PLAIN
    },
    Counted {
        name: "product tf32",
        text: "graph @product(%x: f32[256, 256], %y: f32[256, 256]) {
           %0 = einsum %x, %y {ab,bc->ac} : f32[256, 256]
           return %0
         }",
        sectors: 300,
        products: Some([256 * 256 * 256, 230]),
        precision: Precision::Tf32,
        ..PLAIN
    },
    Counted {
        name: "product tf32, turned",
        text: "graph @product(%x: f32[256, 256], %y: f32[256, 256]) {
           %0 = einsum %x, %y {ba,cb->ac} : f32[256, 256]
           return %0
         }",
        sectors: 300,
        products: Some([256 * 256 * 256, 230]),
        precision: Precision::Tf32,
        ..PLAIN
    },
    Counted {
        name: "32 products f16",
        text: "graph @product(%x: f16[32, 256, 128], %y: f16[32, 128, 256]) {
           %0 = einsum %x, %y {xab,xbc->xac; acc=f32} : f32[32, 256, 256]
           return %0
         }",
        sectors: 200,
        products: Some([32 * 256 * 128 * 256, 90]),
        ..PLAIN
    },
    Counted {
        name: "40 products f16",
        text: "graph @product(%x: f16[40, 256, 128], %y: f16[40, 128, 256]) {
           %0 = einsum %x, %y {xab,xbc->xac; acc=f32} : f32[40, 256, 256]
           return %0
         }",
        sectors: 150,
        products: Some([40 * 256 * 128 * 256, 70]),
        ..PLAIN
    },
    Counted {
        name: "layer f16",
        text: "graph @layer(%x: f16[200, 512], %w: f16[256, 512], %b: f16[256], %r: f16[200, 256]) {
           %0 = einsum %x, %w {ab,cb->ac; acc=f32} : f32[200, 256]
           %1 = convert %b : f32[256]
           %2 = expand %1 : f32[200, 256]
           %3 = add %0, %2 : f32[200, 256]
           %4 = convert %r : f32[200, 256]
           %5 = add %3, %4 : f32[200, 256]
           %6 = convert %5 : f16[200, 256]
           return %6
         }",
        sectors: 345,
        products: Some([200 * 512 * 256, 130]),
        ..PLAIN
    },
    Counted {
        name: "dequantized f16",
        text: "graph @dequantized(%x: f16[64, 512], %w: i8[256, 512], %s: f32[256]) {
           %0 = convert %w : f32[256, 512]
           %1 = reshape %s : f32[256, 1]
           %2 = expand %1 : f32[256, 512]
           %3 = mul %0, %2 : f32[256, 512]
           %4 = convert %3 : f16[256, 512]
           %5 = einsum %x, %4 {ab,cb->ac; acc=f32} : f32[64, 256]
           return %5
         }",
        // A tile of 64 rows computes its operands once.
        sectors: 180,
        products: Some([64 * 512 * 256, 140]),
        ..PLAIN
    },
    Counted {
        name: "steps in turn",
        text: "graph @steps(%x: f32[32, 32], %w: f32[32, 32]) {
           %zero = const 0.0 : f32[]
           %zeros = expand %zero : f32[32, 32]
           %0 = einsum %x, %w {ab,bc->ac} : f32[32, 32]
           %1 = max %0, %zeros : f32[32, 32]
           %2 = einsum %1, %w {ab,bc->ac} : f32[32, 32]
           %3 = max %2, %zeros : f32[32, 32]
           %4 = einsum %3, %w {ab,bc->ac} : f32[32, 32]
           %5 = max %4, %zeros : f32[32, 32]
           %6 = einsum %5, %w {ab,bc->ac} : f32[32, 32]
           return %6
         }",
        // One block does all four, and each reads what the one before it wrote.
        sectors: 400,
        products: Some([4 * 32 * 32 * 32, 2000]),
        ..PLAIN
    },
    Counted {
        name: "one query",
        text: "graph @attention(%q: f16[2, 1, 64], %k: f16[2, 4096, 64], %v: f16[2, 4096, 64]) {
           %s = einsum %q, %k {abc,adc->abd; acc=f32} : f32[2, 1, 4096]
           %max = reduce max %s {axes=[2]} : f32[2, 1]
           %max1 = reshape %max : f32[2, 1, 1]
           %max2 = expand %max1 : f32[2, 1, 4096]
           %away = sub %s, %max2 : f32[2, 1, 4096]
           %power = exp %away : f32[2, 1, 4096]
           %sum = reduce add %power {axes=[2]} : f32[2, 1]
           %sum1 = reshape %sum : f32[2, 1, 1]
           %sum2 = expand %sum1 : f32[2, 1, 4096]
           %p = div %power, %sum2 : f32[2, 1, 4096]
           %r = convert %p : f16[2, 1, 4096]
           %y = einsum %r, %v {abd,adc->abc; acc=f32} : f16[2, 1, 64]
           return %y
         }",
        // 32 blocks for each row, and one that adds up 66 numbers of each: a block has 128 keys, so that as many of them as there are
        // multiprocessors for wait for memory at the same time.
        kernels: 2,
        sectors: 103,
        ..PLAIN
    },
    Counted {
        name: "attention f16",
        text: "graph @attention(%q: f16[2, 128, 64], %k: f16[2, 128, 64], %v: f16[2, 128, 64]) {
           %s = einsum %q, %k {abc,adc->abd; acc=f32} : f16[2, 128, 128]
           %c = const 0.125 : f16[]
           %c1 = expand %c : f16[2, 128, 128]
           %x = mul %s, %c1 : f16[2, 128, 128]
           %wide = convert %x : f32[2, 128, 128]
           %max = reduce max %wide {axes=[2]} : f32[2, 128]
           %max1 = reshape %max : f32[2, 128, 1]
           %max2 = expand %max1 : f32[2, 128, 128]
           %away = sub %wide, %max2 : f32[2, 128, 128]
           %power = exp %away : f32[2, 128, 128]
           %sum = reduce add %power {axes=[2]} : f32[2, 128]
           %sum1 = reshape %sum : f32[2, 128, 1]
           %sum2 = expand %sum1 : f32[2, 128, 128]
           %p = div %power, %sum2 : f32[2, 128, 128]
           %r = convert %p : f16[2, 128, 128]
           %y = einsum %r, %v {abd,adc->abc; acc=f32} : f16[2, 128, 64]
           return %y
         }",
        sectors: 150,
        products: Some([2 * 2 * 128 * 128 * 64, 9999]),
        ..PLAIN
    },
    // Queries and results once, keys and values for each 64 queries: 8 times, of four equal tensors.
    Counted {
        name: "attention of 12 heads",
        text: "graph @attention(%q: f16[12, 512, 64], %k: f16[12, 512, 64], %v: f16[12, 512, 64]) {
           %s = einsum %q, %k {abc,adc->abd; acc=f32} : f32[12, 512, 512]
           %c = const 0.125 : f32[]
           %c1 = expand %c : f32[12, 512, 512]
           %x = mul %s, %c1 : f32[12, 512, 512]
           %max = reduce max %x {axes=[2]} : f32[12, 512]
           %max1 = reshape %max : f32[12, 512, 1]
           %max2 = expand %max1 : f32[12, 512, 512]
           %away = sub %x, %max2 : f32[12, 512, 512]
           %power = exp %away : f32[12, 512, 512]
           %sum = reduce add %power {axes=[2]} : f32[12, 512]
           %sum1 = reshape %sum : f32[12, 512, 1]
           %sum2 = expand %sum1 : f32[12, 512, 512]
           %p = div %power, %sum2 : f32[12, 512, 512]
           %r = convert %p : f16[12, 512, 512]
           %y = einsum %r, %v {abd,adc->abc; acc=f32} : f16[12, 512, 64]
           return %y
         }",
        sectors: (2 + 8 * 2) * 100 / 4,
        products: Some([2 * 12 * 512 * 512 * 64, 9999]),
        ..PLAIN
    },
    Counted {
        name: "attention tf32",
        text: "graph @attention(%q: f32[2, 128, 64], %k: f32[2, 128, 64], %v: f32[2, 128, 64]) {
           %s = einsum %q, %k {abc,adc->abd; acc=f32} : f32[2, 128, 128]
           %c = const 0.125 : f32[]
           %c1 = expand %c : f32[2, 128, 128]
           %x = mul %s, %c1 : f32[2, 128, 128]
           %max = reduce max %x {axes=[2]} : f32[2, 128]
           %max1 = reshape %max : f32[2, 128, 1]
           %max2 = expand %max1 : f32[2, 128, 128]
           %away = sub %x, %max2 : f32[2, 128, 128]
           %power = exp %away : f32[2, 128, 128]
           %sum = reduce add %power {axes=[2]} : f32[2, 128]
           %sum1 = reshape %sum : f32[2, 128, 1]
           %sum2 = expand %sum1 : f32[2, 128, 128]
           %p = div %power, %sum2 : f32[2, 128, 128]
           %y = einsum %p, %v {abd,adc->abc; acc=f32} : f32[2, 128, 64]
           return %y
         }",
        sectors: 150,
        products: Some([2 * 2 * 128 * 128 * 64, 9999]),
        precision: Precision::Tf32,
        ..PLAIN
    },
    Counted {
        name: "attention",
        text: "graph @attention(%q: f32[2, 128, 64], %k: f32[2, 128, 64], %v: f32[2, 128, 64]) {
           %s = einsum %q, %k {abc,adc->abd} : f32[2, 128, 128]
           %c = const 0.125 : f32[]
           %c1 = expand %c : f32[2, 128, 128]
           %scaled = mul %s, %c1 : f32[2, 128, 128]
           %i = iota {axis=1} : i64[2, 128, 128]
           %j = iota {axis=2} : i64[2, 128, 128]
           %seen = le %j, %i : bool[2, 128, 128]
           %low = const -inf : f32[]
           %low1 = expand %low : f32[2, 128, 128]
           %x = select %seen, %scaled, %low1 : f32[2, 128, 128]
           %max = reduce max %x {axes=[2]} : f32[2, 128]
           %max1 = reshape %max : f32[2, 128, 1]
           %max2 = expand %max1 : f32[2, 128, 128]
           %away = sub %x, %max2 : f32[2, 128, 128]
           %power = exp %away : f32[2, 128, 128]
           %sum = reduce add %power {axes=[2]} : f32[2, 128]
           %sum1 = reshape %sum : f32[2, 128, 1]
           %sum2 = expand %sum1 : f32[2, 128, 128]
           %p = div %power, %sum2 : f32[2, 128, 128]
           %y = einsum %p, %v {abd,adc->abc} : f32[2, 128, 64]
           return %y
         }",
        // Queries and results once, keys and values for each 64 rows: 2 times.
        sectors: 150,
        ..PLAIN
    },
];

/// Counters of the launches of one call, added up.
#[derive(Default)]
struct Sum {
    launches: usize,
    threads: u64,
    lanes: u64,
    requests: u64,
    sectors: u64,
    bytes: u64,
    conflicts: u64,
    barriers: u64,
    local: u64,
}

impl Sum {
    fn add(&mut self, launch: &Value) {
        let number = |v: &Value| v.as_u64().expect("a count");
        let threads = |what: &str| {
            let sides = launch[what].as_array().expect("sides");
            sides.iter().map(number).product::<u64>()
        };
        self.launches += 1;
        self.threads += threads("grid") * threads("block");
        self.lanes += number(&launch["lane_instructions"]);
        for traffic in [&launch["global_loads"], &launch["global_stores"]] {
            self.requests += number(&traffic["requests"]);
            self.sectors += number(&traffic["sectors"]);
            self.bytes += number(&traffic["bytes"]);
        }
        self.conflicts += number(&launch["bank_conflicts"]);
        self.barriers += number(&launch["barriers"]);
        self.local += number(&launch["local_bytes"]);
    }
}

#[test]
fn kernels_cost_what_they_may() {
    let folder = tempfile::tempdir().expect("a folder");
    let only = std::env::var("TLC_COUNTED").ok();
    println!(
        "{:16} {:>7} {:>8} {:>12} {:>9} {:>9} {:>6} {:>9} {:>8} {:>6}",
        "graph", "kernels", "threads", "instr/thread", "requests", "sectors", "ratio", "conflicts", "barriers", "local"
    );
    let mut missed = Vec::new();
    for counted in COUNTED.iter().filter(|c| only.as_ref().is_none_or(|o| o == c.name)) {
        let file = folder.path().join(counted.name);
        let path = file.to_str().expect("a path of text");
        let settings = [("TLC_COUNTED", counted.name), ("TLC_SIM_COUNTERS", path)];
        let Some(printed) = simulated("counts::children::counted", &settings) else {
            return;
        };
        let word = |name: &str| -> u64 {
            let line = printed.printed(name)[0];
            line.split(' ').nth(1).and_then(|n| n.parse().ok()).expect("a number")
        };
        let (whole, results) = (word("bytes"), word("results"));
        let mut sum = Sum::default();
        read(&file).iter().for_each(|launch| sum.add(launch));
        let each = sum.lanes as f64 / sum.threads as f64;
        let ratio = sum.sectors * 3200 / whole;
        println!(
            "{:16} {:7} {:8} {each:12.1} {:9} {:9} {:6.2} {:9} {:8} {:6}",
            counted.name,
            sum.launches,
            sum.threads,
            sum.requests,
            sum.sectors,
            ratio as f64 / 100.0,
            sum.conflicts,
            sum.barriers,
            sum.local
        );
        let mut at_most = |what: &str, found: u64, most: u64| {
            if found > most {
                missed.push(format!("{}: {what}: {found}, at most {most}", counted.name));
            }
        };
        at_most("kernels", sum.launches as u64, counted.kernels as u64);
        at_most("sectors of 100", ratio, counted.sectors);
        // Each request is of a warp.
        let least = counted.access_bytes * 32 * sum.requests;
        at_most("bytes of warps that move so many a thread", least, sum.bytes);
        at_most("bank conflicts", sum.conflicts, counted.conflicts);
        at_most("bytes of local memory", sum.local, 0);
        at_most("barriers", sum.barriers, counted.barriers.unwrap_or(sum.barriers));
        at_most(
            "threads that there should be",
            counted.threads.unwrap_or(0),
            sum.threads,
        );
        at_most("requests", sum.requests, counted.requests.unwrap_or(sum.requests));
        at_most(
            "instructions of threads",
            sum.lanes,
            counted.each.map_or(sum.lanes, |n| n * sum.threads),
        );
        if let Some([products, most]) = counted.products {
            println!(
                "{:16} {:.3} instructions a product",
                "",
                sum.lanes as f64 / products as f64
            );
            at_most("instructions of a thousand products", sum.lanes * 1000 / products, most);
        }
        if let Some(instructions) = counted.instructions {
            let vectors = results.div_ceil(16);
            at_most(
                "instructions",
                sum.lanes * 10,
                sum.threads * SETUP * 10 + vectors * instructions,
            );
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

/// The launches that a driver counted.
fn read(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).expect("counters");
    let launch = |line: &str| serde_json::from_str(line).expect("a line of JSON");
    text.lines().map(launch).collect()
}

mod children {
    use super::*;

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn counted() {
        let name = std::env::var("TLC_COUNTED").expect("a name");
        let counted = COUNTED.iter().find(|c| c.name == name).expect("a graph of that name");
        let graph = parse_graph(counted.text, &mut no_data).unwrap_or_else(|e| panic!("{e:?}"));
        let inputs: Vec<HostTensor> = graph
            .inputs()
            .iter()
            .map(|&i| {
                let ty = graph.ty(i);
                let sizes: Vec<usize> = ty
                    .shape
                    .iter()
                    .map(|d| d.as_const().expect("a constant") as usize)
                    .collect();
                let mut x = HostTensor::zeros(ty.dtype, &sizes).expect("a tensor");
                for k in 0..x.len() {
                    x.set(k, Scalar::from_f64(ty.dtype, ((k * 37 + 11) % 101) as f64 / 25.0 + 0.5));
                }
                x
            })
            .collect();
        let options = CompileOptions {
            device: Device::cuda(0),
            precision: counted.precision,
            ..CompileOptions::default()
        };
        let executable = compile_ir(&graph, &options).expect("an executable");
        let given: Vec<tlc::Input<'_>> = inputs.iter().map(Into::into).collect();
        let outputs = executable.run(&given).expect("outputs");
        let results: usize = outputs.iter().map(|o| o.to_host().bytes().len()).sum();
        let bytes: usize = inputs.iter().map(|t| t.bytes().len()).sum();
        println!("results {results}");
        println!("bytes {}", results + bytes);
    }
}
