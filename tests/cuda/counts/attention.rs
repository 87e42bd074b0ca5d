//! Attention, whose scores are never written.

use tlc::Precision;

use super::{Counted, PLAIN};

/// Graphs and what they may cost.
pub const COUNTED: &[Counted] = &[
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
    // Queries and results once, keys and values for each 64 queries: 4 times, of four equal tensors.
    Counted {
        name: "attention of 12 heads",
        text: "graph @attention(%q: f16[12, 256, 64], %k: f16[12, 256, 64], %v: f16[12, 256, 64]) {
           %s = einsum %q, %k {abc,adc->abd; acc=f32} : f32[12, 256, 256]
           %c = const 0.125 : f32[]
           %c1 = expand %c : f32[12, 256, 256]
           %x = mul %s, %c1 : f32[12, 256, 256]
           %max = reduce max %x {axes=[2]} : f32[12, 256]
           %max1 = reshape %max : f32[12, 256, 1]
           %max2 = expand %max1 : f32[12, 256, 256]
           %away = sub %x, %max2 : f32[12, 256, 256]
           %power = exp %away : f32[12, 256, 256]
           %sum = reduce add %power {axes=[2]} : f32[12, 256]
           %sum1 = reshape %sum : f32[12, 256, 1]
           %sum2 = expand %sum1 : f32[12, 256, 256]
           %p = div %power, %sum2 : f32[12, 256, 256]
           %r = convert %p : f16[12, 256, 256]
           %y = einsum %r, %v {abd,adc->abc; acc=f32} : f16[12, 256, 64]
           return %y
         }",
        sectors: (2 + 4 * 2) * 100 / 4,
        products: Some([2 * 12 * 256 * 256 * 64, 9999]),
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
