//! Rows that do not stay on chip, as many as a device has multiprocessors: of one.

use super::{Counted, PLAIN};

/// Graphs and what they may cost.
pub const COUNTED: &[Counted] = &[
    // Longer than what stays on chip: read twice, in pieces by as many blocks as there are, and by what writes the results.
    Counted {
        name: "softmax 65536",
        text: "graph @softmax(%x: f32[8, 65536]) {
           %0 = reduce max %x {axes=[1]} : f32[8]
           %1 = reshape %0 : f32[8, 1]
           %2 = expand %1 : f32[8, 65536]
           %3 = sub %x, %2 : f32[8, 65536]
           %4 = exp %3 : f32[8, 65536]
           %5 = reduce add %4 {axes=[1]} : f32[8]
           %6 = reshape %5 : f32[8, 1]
           %7 = expand %6 : f32[8, 65536]
           %8 = div %4, %7 : f32[8, 65536]
           return %8
         }",
        kernels: 2,
        sectors: 150,
        access_bytes: 15,
        ..PLAIN
    },
];
