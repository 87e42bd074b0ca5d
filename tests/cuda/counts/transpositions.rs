//! Tensors that are read along one axis and written along another, through tiles in shared memory.

use super::{Counted, PLAIN};

/// Graphs and what they may cost.
pub const COUNTED: &[Counted] = &[
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
    // Enough for several tiles a block. Of each 16 bytes seven loads and stores, and what says where pieces are that lie rotated.
    Counted {
        name: "transposition 1024",
        text: "graph @transposition(%x: f32[1024, 1024]) {
           %0 = permute %x {axes=[1, 0]} : f32[1024, 1024]
           return %0
         }",
        instructions: Some(220),
        access_bytes: 16,
        ..PLAIN
    },
    Counted {
        name: "transposition i64 512",
        text: "graph @transposition(%x: i64[512, 512]) {
           %0 = permute %x {axes=[1, 0]} : i64[512, 512]
           return %0
         }",
        instructions: Some(200),
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
        each: Some(260),
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
        ..PLAIN
    },
];
