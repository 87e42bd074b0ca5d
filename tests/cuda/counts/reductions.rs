//! Reductions of rows, of columns and of all.

use super::{Counted, PLAIN};

/// Graphs and what they may cost.
pub const COUNTED: &[Counted] = &[
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
];
