//! Products of matrices: by threads, by matrix instructions, with what is computed before and behind them.

use tlc::Precision;

use super::{Counted, PLAIN};

/// Graphs and what they may cost.
pub const COUNTED: &[Counted] = &[
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
        text: "graph @two(%x: i8[1, 64, 16, 16], %y: i8[64, 64, 3, 3], %z: i8[1, 32, 28, 28], %w: i8[64, 32, 1, 1]) {
           %0 = window %x {axis=2, size=3, stride=1, dilation=1} : i8[1, 64, 14, 16, 3]
           %1 = window %0 {axis=3, size=3, stride=1, dilation=1} : i8[1, 64, 14, 14, 3, 3]
           %2 = einsum %1, %y {abcdef,gbef->agcd; acc=i32} : i32[1, 64, 14, 14]
           %4 = slice %z {start=[0, 0, 0, 0], step=[1, 1, 2, 2]} : i8[1, 32, 14, 14]
           %5 = reshape %w : i8[64, 32]
           %6 = einsum %4, %5 {abcd,eb->aecd; acc=i32} : i32[1, 64, 14, 14]
           %7 = add %2, %6 : i32[1, 64, 14, 14]
           return %7
         }",
        kernels: 2,
        sectors: 2700,
        products: Some([14 * 14 * 64 * (64 * 9 + 32), 2500]),
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
        text: "graph @product(%x: f16[32, 256, 64], %y: f16[32, 64, 256]) {
           %0 = einsum %x, %y {xab,xbc->xac; acc=f32} : f32[32, 256, 256]
           return %0
         }",
        sectors: 160,
        products: Some([32 * 256 * 64 * 256, 110]),
        ..PLAIN
    },
    Counted {
        name: "40 products f16",
        text: "graph @product(%x: f16[40, 256, 64], %y: f16[40, 64, 256]) {
           %0 = einsum %x, %y {xab,xbc->xac; acc=f32} : f32[40, 256, 256]
           return %0
         }",
        sectors: 120,
        products: Some([40 * 256 * 64 * 256, 60]),
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
];
