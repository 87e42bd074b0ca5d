//! Softmax and norms of rows: short ones by parts of warps, others in registers, in shared memory, or read twice.

use super::{Counted, PLAIN};

/// Graphs and what they may cost.
pub const COUNTED: &[Counted] = &[
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
        name: "softmax 1032x1024",
        text: "graph @softmax(%x: f32[1032, 1024]) {
           %0 = reduce max %x {axes=[1]} : f32[1032]
           %1 = reshape %0 : f32[1032, 1]
           %2 = expand %1 : f32[1032, 1024]
           %3 = sub %x, %2 : f32[1032, 1024]
           %4 = exp %3 : f32[1032, 1024]
           %5 = reduce add %4 {axes=[1]} : f32[1032]
           %6 = reshape %5 : f32[1032, 1]
           %7 = expand %6 : f32[1032, 1024]
           %8 = div %4, %7 : f32[1032, 1024]
           return %8
         }",
        access_bytes: 16,
        barriers: Some(0),
        ..PLAIN
    },
    // Their exponentials fit as well.
    Counted {
        name: "softmax 20000",
        text: "graph @softmax(%x: f32[3, 20000]) {
           %0 = reduce max %x {axes=[1]} : f32[3]
           %1 = reshape %0 : f32[3, 1]
           %2 = expand %1 : f32[3, 20000]
           %3 = sub %x, %2 : f32[3, 20000]
           %4 = exp %3 : f32[3, 20000]
           %5 = reduce add %4 {axes=[1]} : f32[3]
           %6 = reshape %5 : f32[3, 1]
           %7 = expand %6 : f32[3, 20000]
           %8 = div %4, %7 : f32[3, 20000]
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
    // Few of them, longer than what stays on chip: pieces by as many blocks as there are.
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
        // What writes the results asks for the two numbers of its row once a block.
        sectors: 150,
        access_bytes: 14,
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
        // What writes the results asks for the two numbers of its row once a block.
        sectors: 150,
        access_bytes: 14,
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
];
