#!/usr/bin/env python3
"""Derives every polynomial of `coefficients.rs`: `python3 derive_coefficients.py > coefficients.rs` (needs mpmath).

Each entry asks for the minimax approximation, under a weight, of a function in the span of some monomials on an
interval. The solver is Remez' exchange on a dense grid of Chebyshev points, in 60-digit arithmetic. Coefficients are
rounded to the target format one at a time, lowest degree first, and the others are solved for again, so that the
rounding of the important ones is made good by the rest. The error printed beside each table is of the rounded one.
"""
import struct
import sys

from mpmath import mp, mpf, matrix, lu_solve, pi, sqrt, exp, log, log1p, expm1, sin, tan, atan, asin, sinh, tanh, erf, erfc

mp.dps = 60
LN2 = log(mpf(2))


def round_to(value, bits):
    """Nearest float with `bits` of precision (24 or 53); no value here is subnormal."""
    if bits == 24:
        return mpf(struct.unpack("f", struct.pack("f", float(value)))[0])
    return mpf(float(value))


def remez(basis, target, weight, free, fixed, grid):
    """Coefficients of the `free` rows of `basis` minimizing max |weight * (target - sum)|; `fixed` maps row to value."""
    count, points = len(free), len(grid)
    rest = [target[i] - sum(c * basis[k][i] for k, c in fixed.items()) for i in range(points)]
    nodes = [round(j * (points - 1) / count) for j in range(count + 1)]
    best = None
    for _ in range(40):
        a = matrix(count + 1, count + 1)
        b = matrix(count + 1, 1)
        for row, i in enumerate(nodes):
            for column, k in enumerate(free):
                a[row, column] = basis[k][i] * weight[i]
            a[row, count] = (-1) ** row
            b[row] = rest[i] * weight[i]
        solution = lu_solve(a, b)
        error = [
            weight[i] * (rest[i] - sum(solution[c] * basis[k][i] for c, k in enumerate(free))) for i in range(points)
        ]
        worst = max(abs(x) for x in error)
        if best is None or worst < best[0]:
            best = (worst, [solution[c] for c in range(count)])
        if worst <= abs(solution[count]) * mpf("1.0005"):
            break
        # Exchange: the extremum of every run of one sign, then drop the smallest end until count + 1 are left.
        runs = []
        for i, x in enumerate(error):
            if x == 0:
                continue
            if runs and (error[runs[-1]] > 0) == (x > 0):
                if abs(x) > abs(error[runs[-1]]):
                    runs[-1] = i
            else:
                runs.append(i)
        while len(runs) > count + 1:
            runs.pop(0 if abs(error[runs[0]]) < abs(error[runs[-1]]) else -1)
        if len(runs) < count + 1:
            break
        nodes = runs
    return best


def further(value, ulps, bits):
    """`value` moved away from zero by `ulps` of its last place."""
    return value + ulps * mp.sign(value) * mpf(2) ** (mp.frexp(value)[1] - bits)


def fit(name, doc, bits, f, low, high, degree, weight, lock=None, nudges=None):
    """Approximates f(t) by sum c_k t^k, k = 0..=degree, on [low, high] with error weight(t).

    `nudges` (k: ulps) end coefficient k that much further from zero than the best fit, the first of them before the others are
    solved for: where the rounded sum of that fit passes a bound of f. They were found by random search.
    """
    nudges = nudges or {}
    low, high = mpf(low), mpf(high)
    points = max(200, 24 * (degree + 2))
    grid = [(low + high) / 2 - (high - low) / 2 * mp.cos(pi * (i + mpf("0.5")) / points) for i in range(points)]
    target = [f(t) for t in grid]
    weights = [abs(weight(t)) for t in grid]
    basis = [[t**k for t in grid] for k in range(degree + 1)]
    fixed = {}
    # In double precision only the first few coefficients matter to the total, and each round costs a solve.
    for k in range(min(degree, lock if lock is not None else (degree if bits == 24 else 4))):
        free = list(range(k, degree + 1))
        fixed[k] = round_to(remez(basis, target, weights, free, fixed, grid)[1][0], bits)
        if k == 0:
            fixed[k] = further(fixed[k], nudges.get(k, 0), bits)
    free = [k for k in range(degree + 1) if k not in fixed]
    _, rest = remez(basis, target, weights, free, fixed, grid)
    values = [fixed[k] for k in sorted(fixed)] + [round_to(c, bits) for c in rest]
    for k, ulps in nudges.items():
        if k > 0:
            values[k] = further(values[k], ulps, bits)
    worst = max(w * abs(y - sum(c * t**k for k, c in enumerate(values))) for t, y, w in zip(grid, target, weights))
    exponent = float(mp.log(worst, 2))
    print(f"\n/// {doc}; error 2^{exponent:.1f}.")
    print(f"pub const {name}: &[f64] = &[")
    for c in values:
        print(f"    {literal(c)},")
    print("];", flush=True)
    print(name, f"2^{exponent:.2f}", file=sys.stderr)


def literal(c):
    text = repr(float(c))
    return text if "." in text or "e" in text else text + ".0"


def parts(name, doc, value, widths):
    """A constant as a sum of floats: every width is the number of bits kept in that part."""
    out, rest = [], value
    for width in widths:
        m, e = mp.frexp(rest)
        part = mpf(int(mp.nint(m * mpf(2) ** width))) * mpf(2) ** (e - width)
        out.append(part)
        rest -= part
    print(f"\n/// {doc}.")
    print(f"pub const {name}: &[f64] = &[{', '.join(literal(p) for p in out)}];")


def chunks(name, doc, value, width, count):
    """Consecutive `width`-bit digits of 0 <= value < 1, digit k scaled as it stands: digit * 2^(-width (k + 1))."""
    print(f"\n/// {doc}.")
    print(f"pub const {name}: &[u64] = &[")
    rest = value
    for _ in range(count):
        rest *= mpf(2) ** width
        digit = int(mp.floor(rest))
        rest -= digit
        print(f"    {digit},")
    print("];")


def series(f, t, terms, small=mpf("1e-9")):
    """f(t), or its Taylor expansion where f would cancel."""
    return sum(mpf(c) * t**k for k, c in enumerate(terms)) if abs(t) < small else f(t)


def main():
    print("//! Minimax polynomials and split constants, written by `derive_coefficients.py`; do not edit.")
    print("//!")
    print("//! A table is in ascending powers of the variable that its comment names. Tables of `F32_*` hold f32 values.")
    print("#![allow(")
    for lint in ("excessive_precision", "unreadable_literal", "approx_constant"):
        print(f"    clippy::{lint},")
    print('    reason = "written by derive_coefficients.py: every digit of the fit, some near well-known constants"')
    print(")]")
    for bits, prefix in ((24, "F32"), (53, "F64")):
        single = bits == 24
        pick = lambda a, b: a if single else b
        mp.dps = pick(45, 70)
        one = mpf(1)
        parts(f"{prefix}_LN2", "ln 2; the first part times a small integer is exact", LN2, pick((15, 24), (40, 53)))
        parts(f"{prefix}_LOG2_E", "log2 e", 1 / LN2, (bits, bits))
        parts(f"{prefix}_PI", "pi", pi, (bits, bits, bits))
        parts(f"{prefix}_THIRD", "1/3", one / 3, (bits, bits))
        half = LN2 / 2 * mpf("1.002")
        fit(f"{prefix}_EXP", "(e^r - 1 - r) / r^2 on |r| <= ln 2 / 2, relative to e^r", bits,
            lambda r: series(lambda t: (expm1(t) - t) / t**2, r, [one / 2, one / 6, one / 24]),
            -half, half, pick(4, 9), lambda r: r * r / exp(r))
        middle = mpf("0.5001")
        fit(f"{prefix}_EXP2", "(2^r - 1) / r on |r| <= 1/2, relative to 2^r", bits,
            lambda r: series(lambda t: expm1(t * LN2) / t, r, [LN2, LN2**2 / 2, LN2**3 / 6]),
            -middle, middle, pick(5, 10), lambda r: r / exp(r * LN2))
        if single:
            fit("F32_EXP2_SHORT", "(2^r - 1) / r on |r| <= 1/2, relative to 2^r, of what is rounded to 16 bits", bits,
                lambda r: series(lambda t: expm1(t * LN2) / t, r, [LN2, LN2**2 / 2, LN2**3 / 6]),
                -middle, middle, 3, lambda r: r / exp(r * LN2))
        fit(f"{prefix}_EXPM1", "(e^r - 1 - r) / r^2 on |r| <= ln 2 / 2, relative to e^r - 1", bits,
            lambda r: series(lambda t: (expm1(t) - t) / t**2, r, [one / 2, one / 6, one / 24]),
            -half, half, pick(4, 10), lambda r: r * r / expm1(r) if abs(r) > mpf("1e-30") else abs(r))
        atanh_tail = lambda z: series(lambda t: (mp.atanh(sqrt(t)) / sqrt(t) - 1) / t, z, [one / 3, one / 5, one / 7])
        fit(f"{prefix}_ATANH", "(2 atanh(s) - 2 s) / s^3 in s^2, |s| <= 0.1716, relative to 2 atanh(s)", bits,
            lambda z: 2 * atanh_tail(z), mpf("1e-12"), mpf("0.02945"), pick(2, 7), lambda z: z / 2)
        # pow: log2(m) = (2 / ln 2) (s + s^3 / 3 + s^5 / 5 ...), m in [sqrt(1/2), sqrt 2], |s| <= 0.1716
        bound = mpf("0.02945")
        fit(f"{prefix}_POW_LOG", pick("(atanh(s) - s) / s^3 in s^2, |s| <= 0.1716, relative to s",
                                      "(atanh(s) - s - s^3 / 3) / s^5 in s^2, |s| <= 0.1716, relative to s"), bits,
            pick(atanh_tail, lambda z: series(lambda t: (atanh_tail(t) - one / 3) / t, z, [one / 5, one / 7, one / 9])),
            mpf("1e-12"), bound, pick(3, 8), lambda z: pick(z, z * z))
        quarter = (pi / 2 * mpf("1.001"))
        fit(f"{prefix}_SIN", "(sin(r) - r) / r^3 in r^2, |r| <= pi/2, relative to sin(r)", bits,
            lambda z: (sin(sqrt(z)) - sqrt(z)) / sqrt(z) ** 3, mpf("1e-12"), quarter**2, pick(4, 7),
            lambda z: z * sqrt(z) / sin(sqrt(z)), nudges=pick({0: -1, 1: -1, 2: 1, 3: -56, 4: -36}, None))
        eighth = (pi / 4 * mpf("1.001"))
        fit(f"{prefix}_TAN", "(tan(r) - r) / r^3 in r^2, |r| <= pi/4, relative to tan(r)", bits,
            lambda z: (tan(sqrt(z)) - sqrt(z)) / sqrt(z) ** 3, mpf("1e-12"), eighth**2, pick(5, 13),
            lambda z: z * sqrt(z) / tan(sqrt(z)))
        fit(f"{prefix}_ATAN", "(atan(t) - t) / t^3 in t^2, |t| <= 1, relative to atan(t)", bits,
            lambda z: (atan(sqrt(z)) - sqrt(z)) / sqrt(z) ** 3, mpf("1e-12"), 1, pick(7, 19),
            lambda z: z * sqrt(z) / atan(sqrt(z)))
        fit(f"{prefix}_ASIN", "(asin(s) - s) / s^3 in s^2, |s| <= 1/2, relative to asin(s)", bits,
            lambda z: (asin(sqrt(z)) - sqrt(z)) / sqrt(z) ** 3, mpf("1e-12"), mpf("0.25"), pick(4, 12),
            lambda z: z * sqrt(z) / asin(sqrt(z)))
        fit(f"{prefix}_SINH", "(sinh(x) - x) / x^3 in x^2, |x| <= 1, relative to sinh(x)", bits,
            lambda z: (sinh(sqrt(z)) - sqrt(z)) / sqrt(z) ** 3, mpf("1e-12"), 1, pick(2, 6),
            lambda z: z * sqrt(z) / sinh(sqrt(z)))
        eighths = (7 * LN2 / 16 * mpf("1.002")) ** 2
        fit(f"{prefix}_TANH", "(tanh(r) - r) / r^3 in r^2, |r| <= 7/16 ln 2, relative to tanh(r)", bits,
            lambda z: series(lambda t: (tanh(sqrt(t)) - sqrt(t)) / sqrt(t) ** 3, z, [-one / 3, one * 2 / 15, -one * 17 / 315]),
            mpf("1e-12"), eighths, pick(2, 7), lambda z: z * sqrt(z) / tanh(sqrt(z)))
        fit(f"{prefix}_ERF", "erf(x) / x - 1 in x^2, |x| <= 1, relative to erf(x)", bits,
            lambda z: erf(sqrt(z)) / sqrt(z) - 1, mpf("1e-12"), 1, pick(6, 13), lambda z: sqrt(z) / erf(sqrt(z)))
        centre, top = pick((mpf("2.5"), mpf("4")), (mpf("3"), mpf("6")))
        # d(v^4) = 4 v^3 dv, absolute, against erf near 1
        fit(f"{prefix}_ERFC_ROOT", f"erfc(x)^(1/4) in x - {float(centre)}, 1 <= x <= {float(top)}, absolute on erfc", bits,
            lambda u: erfc(u + centre) ** (one / 4), mpf("0.99") - centre, top - centre, pick(8, 20),
            lambda u: 4 * erfc(u + centre) ** (mpf(3) / 4) + mpf(2) ** pick(-14, -30), lock=pick(None, 0))
    mp.dps = 400
    chunks("F32_INVERSE_TWO_PI", "24-bit digits of 1 / (2 pi)", 1 / (2 * pi), 24, 10)
    chunks("F64_INVERSE_TWO_PI", "53-bit digits of 1 / (2 pi)", 1 / (2 * pi), 53, 25)


main()
