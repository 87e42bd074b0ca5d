//! Norms and softmax of the rows of products, in the kernel of the product. Each block reads all weights.

use tlc::Precision;

use super::{Counted, PLAIN};

/// Graphs and what they may cost.
pub const COUNTED: &[Counted] = &[
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
    // Tiles whose last columns are cut off within what a warp stores.
    Counted {
        name: "softmax of product f16 36",
        text: "graph @softmax(%x: f16[256, 128], %w: f16[128, 36]) {
           %p = einsum %x, %w {ab,bc->ac; acc=f32} : f16[256, 36]
           %t = convert %p : f32[256, 36]
           %mx = reduce max %t {axes=[1]} : f32[256]
           %mr = reshape %mx : f32[256, 1]
           %me = expand %mr : f32[256, 36]
           %d = sub %t, %me : f32[256, 36]
           %ex = exp %d : f32[256, 36]
           %s = reduce add %ex {axes=[1]} : f32[256]
           %sr = reshape %s : f32[256, 1]
           %se = expand %sr : f32[256, 36]
           %o = div %ex, %se : f32[256, 36]
           return %o
         }",
        sectors: 999,
        ..PLAIN
    },
    Counted {
        name: "softmax of product tf32 36",
        text: "graph @softmax(%x: f32[256, 128], %w: f32[128, 36]) {
           %p = einsum %x, %w {ab,bc->ac} : f32[256, 36]
           %mx = reduce max %p {axes=[1]} : f32[256]
           %mr = reshape %mx : f32[256, 1]
           %me = expand %mr : f32[256, 36]
           %d = sub %p, %me : f32[256, 36]
           %ex = exp %d : f32[256, 36]
           %s = reduce add %ex {axes=[1]} : f32[256]
           %sr = reshape %s : f32[256, 1]
           %se = expand %sr : f32[256, 36]
           %o = div %ex, %se : f32[256, 36]
           return %o
         }",
        sectors: 999,
        precision: Precision::Tf32,
        ..PLAIN
    },
    Counted {
        name: "softmax of product f16 50",
        text: "graph @softmax(%x: f16[256, 128], %w: f16[128, 50]) {
           %p = einsum %x, %w {ab,bc->ac; acc=f32} : f16[256, 50]
           %t = convert %p : f32[256, 50]
           %mx = reduce max %t {axes=[1]} : f32[256]
           %mr = reshape %mx : f32[256, 1]
           %me = expand %mr : f32[256, 50]
           %d = sub %t, %me : f32[256, 50]
           %ex = exp %d : f32[256, 50]
           %s = reduce add %ex {axes=[1]} : f32[256]
           %sr = reshape %s : f32[256, 1]
           %se = expand %sr : f32[256, 50]
           %o = div %ex, %se : f32[256, 50]
           return %o
         }",
        sectors: 999,
        ..PLAIN
    },
    Counted {
        name: "softmax of product tf32 50",
        text: "graph @softmax(%x: f32[256, 128], %w: f32[128, 50]) {
           %p = einsum %x, %w {ab,bc->ac} : f32[256, 50]
           %mx = reduce max %p {axes=[1]} : f32[256]
           %mr = reshape %mx : f32[256, 1]
           %me = expand %mr : f32[256, 50]
           %d = sub %p, %me : f32[256, 50]
           %ex = exp %d : f32[256, 50]
           %s = reduce add %ex {axes=[1]} : f32[256]
           %sr = reshape %s : f32[256, 1]
           %se = expand %sr : f32[256, 50]
           %o = div %ex, %se : f32[256, 50]
           return %o
         }",
        sectors: 999,
        precision: Precision::Tf32,
        ..PLAIN
    },
    Counted {
        name: "softmax of product f16 130",
        text: "graph @softmax(%x: f16[256, 128], %w: f16[128, 130]) {
           %p = einsum %x, %w {ab,bc->ac; acc=f32} : f16[256, 130]
           %t = convert %p : f32[256, 130]
           %mx = reduce max %t {axes=[1]} : f32[256]
           %mr = reshape %mx : f32[256, 1]
           %me = expand %mr : f32[256, 130]
           %d = sub %t, %me : f32[256, 130]
           %ex = exp %d : f32[256, 130]
           %s = reduce add %ex {axes=[1]} : f32[256]
           %sr = reshape %s : f32[256, 1]
           %se = expand %sr : f32[256, 130]
           %o = div %ex, %se : f32[256, 130]
           return %o
         }",
        sectors: 999,
        ..PLAIN
    },
    Counted {
        name: "softmax of product tf32 130",
        text: "graph @softmax(%x: f32[256, 128], %w: f32[128, 130]) {
           %p = einsum %x, %w {ab,bc->ac} : f32[256, 130]
           %mx = reduce max %p {axes=[1]} : f32[256]
           %mr = reshape %mx : f32[256, 1]
           %me = expand %mr : f32[256, 130]
           %d = sub %p, %me : f32[256, 130]
           %ex = exp %d : f32[256, 130]
           %s = reduce add %ex {axes=[1]} : f32[256]
           %sr = reshape %s : f32[256, 1]
           %se = expand %sr : f32[256, 130]
           %o = div %ex, %se : f32[256, 130]
           return %o
         }",
        sectors: 999,
        precision: Precision::Tf32,
        ..PLAIN
    },
];
