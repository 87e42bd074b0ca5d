//! erf.
//!
//! Below 1, `x + x R(x^2)`. From 1, `1 - Q(x)^4` with a polynomial `Q = erfc^(1/4)`: two squarings instead of an
//! exponential and a division; the rounding of `Q` grows fourfold but is scaled by `erfc(1) = 0.157`.

use super::{Emit, Format};

#[inline(always)]
pub(super) fn erf<F: Format, E: Emit>(e: &mut E, x: E::V) -> E::V {
    let z = e.mul(x, x);
    let r = F::polynomial(e, z, F::ERF, 1.0);
    let small = e.fma(x, r, x);
    let a = e.abs(x);
    let flat = F::float(e, F::ERF_FLAT);
    let one = F::float(e, 1.0);
    let is_small = e.lt(a, one);
    let centre = F::float(e, F::ERFC_CENTRE);
    let clamped = e.min(flat, a);
    let u = e.sub(clamped, centre);
    let root = F::polynomial(e, u, F::ERFC_ROOT, 1.0);
    let second = e.mul(root, root);
    let minus = e.neg(second);
    let large = e.fma(minus, second, one);
    let sign = F::sign(e, x);
    let large = F::flip(e, large, sign);
    e.select(is_small, small, large)
}
