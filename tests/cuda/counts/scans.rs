//! Scans: of rows by warps, of few rows and of columns in blocks.

use super::{Counted, PLAIN};

/// Graphs and what they may cost.
pub const COUNTED: &[Counted] = &[
    // A warp for each chunk of a row, whose threads take neighbours: what goes in is read twice.
    Counted {
        name: "scan",
        text: "graph @scan(%x: f32[1024, 256]) {
           %0 = scan add %x {axis=1} : f32[1024, 256]
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
        text: "graph @scan(%x: f32[300000]) {
           %0 = scan add %x {axis=0} : f32[300000]
           return %0
         }",
        kernels: 3,
        sectors: 152,
        access_bytes: 13,
        threads: Some(132 * 128),
        ..PLAIN
    },
    Counted {
        name: "scan of few rows",
        text: "graph @scan(%x: f32[16, 8192]) {
           %0 = scan max %x {axis=1, exclusive} : f32[16, 8192]
           return %0
         }",
        // A block for each, whose threads hold all of it.
        access_bytes: 16,
        threads: Some(16 * 256),
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
];
