//! Scatters, whose threads walk all indices.

use super::{Counted, PLAIN};

/// Graphs and what they may cost.
pub const COUNTED: &[Counted] = &[
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
    // Each thread walks all indices, which a block reads once.
    Counted {
        name: "many scattered",
        text: "graph @scatter(%x: f32[1000, 64], %u: f32[2000, 64], %i: i64[2000]) {
           %0 = scatter add %x, %u, %i {axes=[0]} : f32[1000, 64]
           return %0
         }",
        kernels: 2,
        sectors: 600,
        requests: Some(30_000),
        ..PLAIN
    },
];
