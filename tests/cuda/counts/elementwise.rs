//! Elementwise kernels: what goes in and out once, 16 bytes a thread, and few instructions beside the arithmetic.

use super::{Counted, PLAIN};

/// Graphs and what they may cost.
pub const COUNTED: &[Counted] = &[
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
        name: "add i8",
        text: "graph @add(%x: i8[64, 1024], %y: i8[64, 1024]) {
           %0 = add %x, %y : i8[64, 1024]
           return %0
         }",
        // Two loads, a store, 16 additions, and five.
        instructions: Some(240),
        access_bytes: 16,
        ..PLAIN
    },
    Counted {
        name: "differences of u8",
        text: "graph @differences(%x: u8[64, 1024], %y: u8[64, 1024]) {
           %c = const 7 : u8[]
           %c1 = expand %c : u8[64, 1024]
           %0 = xor %y, %c1 : u8[64, 1024]
           %1 = sub %x, %0 : u8[64, 1024]
           return %1
         }",
        // Two loads, a store, 16 differences and as many exchanges, and five.
        instructions: Some(400),
        access_bytes: 16,
        ..PLAIN
    },
    Counted {
        name: "less i8",
        text: "graph @less(%x: i8[64, 1024], %y: i8[64, 1024]) {
           %0 = lt %x, %y : bool[64, 1024]
           return %0
         }",
        // Two loads, a store, 16 comparisons, and five.
        instructions: Some(240),
        access_bytes: 16,
        ..PLAIN
    },
    Counted {
        name: "equal u8",
        text: "graph @equal(%x: u8[64, 1024], %y: u8[64, 1024]) {
           %0 = eq %x, %y : bool[64, 1024]
           return %0
         }",
        instructions: Some(240),
        access_bytes: 16,
        ..PLAIN
    },
    Counted {
        name: "larger i8",
        text: "graph @larger(%x: i8[64, 1024], %y: i8[64, 1024]) {
           %0 = max %x, %y : i8[64, 1024]
           return %0
         }",
        instructions: Some(240),
        access_bytes: 16,
        ..PLAIN
    },
    Counted {
        name: "chosen u8",
        text: "graph @chosen(%c: bool[64, 1024], %x: u8[64, 1024], %y: u8[64, 1024]) {
           %0 = select %c, %x, %y : u8[64, 1024]
           return %0
         }",
        // Three loads, a store, 16 choices, and five.
        instructions: Some(250),
        access_bytes: 16,
        ..PLAIN
    },
    Counted {
        name: "chosen i16",
        text: "graph @chosen(%c: bool[64, 1024], %x: i16[64, 1024], %y: i16[64, 1024]) {
           %0 = select %c, %x, %y : i16[64, 1024]
           return %0
         }",
        // Three loads, a store, eight choices, and five.
        instructions: Some(170),
        access_bytes: 14,
        ..PLAIN
    },
    Counted {
        name: "chosen f16",
        text: "graph @chosen(%c: bool[64, 1024], %x: f16[64, 1024], %y: f16[64, 1024]) {
           %0 = select %c, %x, %y : f16[64, 1024]
           return %0
         }",
        instructions: Some(170),
        access_bytes: 14,
        ..PLAIN
    },
    Counted {
        name: "chosen bf16",
        text: "graph @chosen(%c: bool[64, 1024], %x: bf16[64, 1024], %y: bf16[64, 1024]) {
           %0 = select %c, %x, %y : bf16[64, 1024]
           return %0
         }",
        instructions: Some(170),
        access_bytes: 14,
        ..PLAIN
    },
    Counted {
        name: "both",
        text: "graph @both(%x: bool[64, 1024], %y: bool[64, 1024]) {
           %0 = not %y : bool[64, 1024]
           %1 = and %x, %0 : bool[64, 1024]
           return %1
         }",
        // Two loads, a store, two operations on each word, and five.
        instructions: Some(160),
        access_bytes: 16,
        ..PLAIN
    },
    Counted {
        name: "limited i8",
        text: "graph @limited(%x: i8[64, 1024]) {
           %c = const 0 : i8[]
           %c1 = expand %c : i8[64, 1024]
           %0 = lt %x, %c1 : bool[64, 1024]
           %1 = abs %x : i8[64, 1024]
           %2 = select %0, %c1, %1 : i8[64, 1024]
           return %2
         }",
        // A load, a store, 48 operations, and five.
        instructions: Some(550),
        access_bytes: 16,
        ..PLAIN
    },
    Counted {
        name: "rounded i8",
        text: "graph @rounded(%x: f32[64, 1024]) {
           %0 = convert %x : i8[64, 1024]
           return %0
         }",
        // Four threads have the 16 elements: of each a load and a store, four conversions that are kept within the range, and five.
        instructions: Some(760),
        ..PLAIN
    },
    Counted {
        name: "add i16",
        text: "graph @add(%x: i16[64, 1024], %y: i16[64, 1024]) {
           %0 = add %x, %y : i16[64, 1024]
           return %0
         }",
        // Two loads, a store, eight additions, and five.
        instructions: Some(160),
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
];
