"""Writes numpy_cases.txt: what NumPy computes where its semantics agree with ours (see ir/src/scalar.rs, ir/src/graph).

Run with NumPy 2 on a machine whose long double has 64 significant bits:  python numpy_cases.py > numpy_cases.txt

A case is `case NAME KIND.. [ulp=N] [zeros]`, then one line per operand and one for the result: either `@LET` or
`DTYPE SHAPE HEX`, elements in C order, each as its bits in fixed-width hexadecimal. `let NAME DTYPE SHAPE HEX` names a
shared operand. `ulp=N` allows N steps of the result's dtype, `zeros` any sign of a zero; NaNs are equal whatever their bits.

Left out, because NumPy means something else or nothing: integer division and remainders by zero, shifts by less than 0 or at
least the width, float to integer out of range, gather and scatter out of range, the sign of a zero sum of negative zeros.
Integer division is NumPy's through fmod, (x - fmod(x, y)) / y, since // floors. NumPy has no bfloat16, erf or fma: bf16 is
computed in f32 and rounded here, erf is C's, fma is exact rational arithmetic rounded here.
f32, f16 and bf16 functions and sums are NumPy's in f64 or long double, rounded once (sums of f16: to f32, then f16).
"""

import itertools
import math
import sys
from fractions import Fraction

import numpy as np

np.seterr(all="ignore")
OUT = sys.stdout
INTS = {"i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
        "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64}
FLOATS = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
TYPES = {"bool": np.bool_, **INTS, **FLOATS}
NAMES = {np.dtype(t): n for n, t in TYPES.items()}


class B16:
    """bf16 elements: f32 values that are bf16 numbers."""

    def __init__(self, values):
        self.v = values
        self.shape = values.shape


def to_bf16(x):
    """Rounds f64 or f32 to bf16 with one rounding, ties to even."""
    x = np.asarray(x, np.float64)
    single = x.astype(np.float32)
    bits = single.view(np.uint32)
    # Round to odd on the way through f32, so that no tie is seen twice.
    inexact = (single.astype(np.float64) != x) & np.isfinite(single)
    down = np.where(np.abs(single.astype(np.float64)) > np.abs(x), bits - np.uint32(1), bits)
    bits = np.where(inexact, down | np.uint32(1), bits).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16).astype(np.uint32)
    nan = np.isnan(x)
    return B16(np.where(nan, np.float32(np.nan), rounded.view(np.float32)).astype(np.float32))


def wide(x):
    return x.v.astype(np.float64) if isinstance(x, B16) else x.astype(np.float64)


def narrow(name, x):
    if name == "bf16":
        return to_bf16(x)
    return np.asarray(x).astype(TYPES[name])


def text(x):
    shape = ",".join(map(str, x.shape)) or "-"
    if isinstance(x, B16):
        words = (np.ascontiguousarray(x.v).view(np.uint32) >> 16).astype(np.uint16).ravel()
        return f"bf16 {shape} " + ("".join(f"{int(w):04x}" for w in words) or "-")
    name = NAMES[x.dtype]
    size = x.dtype.itemsize
    words = np.ascontiguousarray(x).view(f"u{size}").ravel()
    return f"{name} {shape} " + ("".join(f"{int(w):0{2 * size}x}" for w in words) or "-")


LETS = {}


def let(name, x):
    LETS[name] = x
    print(f"let {name} {text(x)}", file=OUT)
    return f"@{name}"


def case(kind, operands, result, *flags):
    print("case", kind, *flags, file=OUT)
    for o in operands:
        print(o if isinstance(o, str) else text(o), file=OUT)
    print(text(result), file=OUT)


def get(ref):
    return LETS[ref[1:]]


# Operands.
def edges(name):
    if name == "bool":
        return np.array([False, True])
    if name in INTS:
        i = np.iinfo(INTS[name])
        extra = [-1, -2, -3, -7, i.min + 1] if i.min < 0 else [i.max // 2, i.max // 2 + 1]
        values = [0, 1, 2, 3, 7, 100, i.max, i.max - 1, i.min, *extra]
        return np.array([v & (2 ** i.bits - 1) for v in values], np.uint64).astype(INTS[name])
    info = {"f16": (6e-8, 6.1e-5, 65504.0), "bf16": (9.2e-41, 1.1754944e-38, 3.3895314e38),
            "f32": (1e-45, 1.1754944e-38, 3.4028235e38), "f64": (5e-324, 2.2250738585072014e-308, 1.7976931348623157e308)}
    tiny, normal, big = info[name]
    values = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 1.1, -7.3, tiny, -normal, big, -big, math.inf, -math.inf, math.nan]
    return narrow(name, np.array(values))


def more(name):
    """Operands of functions."""
    rng = np.random.default_rng(7)
    values = [0.1, 0.25, 0.9, 0.999, 1.5, 2.0, 4.0, 10.0, 20.5, 31.0, 80.0, 88.0, 100.0, 700.0, -0.1, -0.5, -3.2, -4.0,
              -10.0, -87.0, 1e-3, 1e-5, -1e-5, 1.5707963267948966, 3.141592653589793]
    values += list(rng.normal(size=7)) + list(rng.uniform(-30, 30, size=7))
    v = narrow(name, np.array(values))
    e = edges(name)
    return B16(np.concatenate([e.v, v.v])) if name == "bf16" else np.concatenate([e, v])


def pairs(x):
    v = x.v if isinstance(x, B16) else x
    a, b = np.meshgrid(v, v, indexing="ij")
    a, b = a.ravel(), b.ravel()
    return (B16(a), B16(b)) if isinstance(x, B16) else (a, b)


FLOAT_NAMES = ["f16", "bf16", "f32", "f64"]
for n in ["bool", *INTS, *FLOAT_NAMES]:
    let(f"u_{n}", more(n) if n in FLOAT_NAMES else edges(n))
    # Fewer in pairs: the table stays small.
    e = edges(n)
    few = [0, 1, 3, 5, 6, 8, 9, 11, 14, 15] if n in FLOAT_NAMES else [0, 1, 3, 4, 6, 8, 9, 12][: e.size]
    a, b = pairs(e if n == "bool" else B16(e.v[few]) if n == "bf16" else e[[i for i in few if i < e.size]])
    let(f"x_{n}", a)
    let(f"y_{n}", b)

# Unary operations.
ROUNDING = {"neg": np.negative, "abs": np.abs, "sign": None, "floor": np.floor, "ceil": np.ceil, "round": np.rint,
            "trunc": np.trunc}
ERF = np.vectorize(math.erf, otypes=[np.float64])
FUNCTIONS = {"exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log1p": np.log1p,
             "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
             "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "erf": ERF}
for n in FLOAT_NAMES:
    x = wide(get(f"@u_{n}"))
    for op, f in ROUNDING.items():
        # np.sign gives 0 for -0; the sign of zero is ours to state.
        y = np.where(x == 0, x, np.sign(x)) if op == "sign" else f(x)
        case(f"map {op}", [f"@u_{n}"], narrow(n, y))
    case("map sqrt", [f"@u_{n}"], narrow(n, np.sqrt(x)))
    case("map rsqrt", [f"@u_{n}"], narrow(n, 1.0 / np.sqrt(x)))
    for op, f in FUNCTIONS.items():
        case(f"map {op}", [f"@u_{n}"], narrow(n, f(x)), "ulp=2" if n == "f64" else "ulp=1")
for n in INTS:
    x = get(f"@u_{n}")
    for op, f in {"neg": np.negative, "abs": np.abs, "sign": np.sign, "not": np.invert}.items():
        case(f"map {op}", [f"@u_{n}"], f(x))
case("map not", ["@u_bool"], np.logical_not(get("@u_bool")))

# Binary operations.
COMPARE = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal}
for n in FLOAT_NAMES:
    refs = [f"@x_{n}", f"@y_{n}"]
    x, y = map(get, refs)
    native = n not in ("bf16",)
    if not native:
        x, y = x.v, y.v
    for op, f in {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}.items():
        case(f"map {op}", refs, f(x, y) if native else to_bf16(f(x, y)))
    X, Y = x.astype(np.float64), y.astype(np.float64)
    case("map rem", refs, narrow(n, np.fmod(X, Y)))
    case("map mod", refs, narrow(n, np.mod(X, Y)))
    case("map max", refs, narrow(n, np.maximum(X, Y)), "zeros")
    case("map min", refs, narrow(n, np.minimum(X, Y)), "zeros")
    case("map pow", refs, narrow(n, np.power(X, Y)), "ulp=2" if n == "f64" else "ulp=1")
    case("map atan2", refs, narrow(n, np.arctan2(X, Y)), "ulp=2" if n == "f64" else "ulp=1")
    for op, f in COMPARE.items():
        case(f"map {op}", refs, f(X, Y))
    c = np.arange(X.size) % 3 == 0
    case("map select", [c, *refs], B16(np.where(c, x, y)) if n == "bf16" else np.where(c, x, y))
for n in INTS:
    refs = [f"@x_{n}", f"@y_{n}"]
    x, y = map(get, refs)
    for op, f in {"add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum, "min": np.minimum,
                  "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, **COMPARE}.items():
        case(f"map {op}", refs, f(x, y))
    ok = y != 0
    a, b = x[ok], y[ok]
    refs = [let(f"a_{n}", a), let(f"b_{n}", b)]
    rem = np.fmod(a, b)
    lowest = (a == np.iinfo(a.dtype).min) & (b.astype(np.int64) == -1) if np.iinfo(a.dtype).min < 0 else np.zeros(a.shape, bool)
    quotient = np.where(lowest, a, (a - rem) // np.where(lowest, np.ones_like(b), b))
    case("map div", refs, quotient.astype(a.dtype))
    case("map rem", refs, rem)
    case("map mod", refs, np.mod(a, b))
    shift = np.array([0, 1, 2, np.iinfo(a.dtype).bits // 2, np.iinfo(a.dtype).bits - 1], a.dtype)
    a, b = (v.ravel() for v in np.meshgrid(edges(n)[::2], shift, indexing="ij"))
    refs = [let(f"s_{n}", a), let(f"t_{n}", b)]
    case("map shl", refs, np.left_shift(a, b))
    case("map shr", refs, np.right_shift(a, b))
refs = ["@x_bool", "@y_bool"]
x, y = map(get, refs)
for op, f in {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor, "max": np.maximum, "min": np.minimum,
              **COMPARE}.items():
    case(f"map {op}", refs, f(x, y))


def rounded(value, precision, smallest):
    """A rational rounded to `precision` bits, ties to even, no finer than 2^smallest."""
    if value == 0:
        return 0.0
    size = abs(value)
    e = size.numerator.bit_length() - size.denominator.bit_length()
    e -= size < Fraction(2) ** e
    unit = Fraction(2) ** max(e - precision + 1, smallest)
    return float(round(size / unit) * unit) * (1 if value > 0 else -1)


rng = np.random.default_rng(3)
for n, bits, smallest in [("f32", 24, -149), ("f64", 53, -1074)]:
    v = [(rng.normal(size=60) * 10.0 ** rng.integers(-4, 4, 60)).astype(TYPES[n]) for _ in range(3)]
    v[2][:30] = -(v[0][:30] * v[1][:30])  # cancellation: only one rounding keeps the remainder
    r = [rounded(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)), bits, smallest) for a, b, c in zip(*v)]
    case("map fma", v, np.array(r).astype(TYPES[n]))

# Conversions.
SOURCES = {n: get(f"@u_{n}") for n in ["bool", *INTS, *FLOAT_NAMES]}
for n, x in SOURCES.items():
    source_is_float = n in FLOAT_NAMES
    for to in ["bool", *INTS, *FLOAT_NAMES]:
        if to == n:
            continue
        v = x.v if n == "bf16" else x
        keep = np.ones(v.shape, bool)
        if source_is_float and to in INTS:
            i = np.iinfo(INTS[to])
            t = np.trunc(v.astype(np.float64))
            keep = np.isfinite(v) & (t >= float(i.min)) & (t <= float(i.max)) & (t < 2.0 ** (i.bits - (i.min < 0)))
        if not source_is_float and to in ("f16", "bf16"):
            keep = np.array([abs(int(k)) < 2 ** 24 for k in v])  # NumPy rounds larger ones twice
        picked = v[keep]
        result = narrow(to, picked.astype(np.float64)) if to == "bf16" else picked.astype(TYPES[to])
        operand = f"@u_{n}" if keep.all() else (B16(picked) if n == "bf16" else picked)
        case(f"convert {to}", [operand], result)
# Halfway cases and one past them, in f64.
ties = np.array([1 + 2.0 ** -24, 1 + 3 * 2.0 ** -24, 1 + 2.0 ** -24 + 2.0 ** -50, 1 + 2.0 ** -11, 1 + 3 * 2.0 ** -11,
                 1 + 2.0 ** -11 + 2.0 ** -40, 1 + 2.0 ** -8, 1 + 3 * 2.0 ** -8, 1 + 2.0 ** -8 + 2.0 ** -40, 65519.99, 65520.0,
                 2.0 ** -25, 2.0 ** -25 * 1.0001, 2.0 ** -150, 2.0 ** -150 * 1.0001, 3.4028235677973366e38])
for to in ["f16", "bf16", "f32"]:
    case(f"convert {to}", [ties], narrow(to, ties))
big = np.array([2 ** 24 + 1, 2 ** 24 + 3, 2 ** 53 + 1, 2 ** 53 + 3, 2 ** 62 + 2 ** 38, 2 ** 62 + 2 ** 38 + 1, -(2 ** 53) - 1], np.int64)
for to in ["f32", "f64"]:
    case(f"convert {to}", [big], big.astype(TYPES[to]))

# Reductions and scans.
def axes_text(axes):
    return ",".join(map(str, axes)) or "-"


def random(name, shape):
    if name == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if name in INTS:
        i = np.iinfo(INTS[name])
        return rng.integers(i.min, i.max, shape, INTS[name], endpoint=True)
    return narrow(name, rng.normal(size=shape))


LONG = np.longdouble


def carried(name, x):
    """A long double result rounded as the node says: to the accumulator, then to the dtype."""
    if name in ("f16", "bf16"):
        return narrow(name, x.astype(np.float32).astype(np.float64))
    return x.astype(TYPES[name])


def long(x):
    return (x.v if isinstance(x, B16) else x).astype(LONG)


for n in ["bool", *INTS, *FLOAT_NAMES]:
    x = random(n, (2, 4, 2))
    ref = let(f"r_{n}", x)
    v = x.v if n == "bf16" else x
    for axes in [(0,), (2,), (0, 2), (0, 1, 2)] + [()] * (n == "f32"):
        t = axes_text(axes)
        if n in FLOAT_NAMES:
            case(f"reduce add {t}", [ref], carried(n, np.sum(long(x), axis=axes)), "ulp=1")
            case(f"reduce mul {t}", [ref], carried(n, np.prod(long(x), axis=axes)), "ulp=2" if len(axes) < 2 else "ulp=8")
        elif n != "bool":
            case(f"reduce add {t}", [ref], np.sum(x, axis=axes, dtype=x.dtype))
            case(f"reduce mul {t}", [ref], np.prod(x, axis=axes, dtype=x.dtype))
        wrap = B16 if n == "bf16" else (lambda a: a)
        case(f"reduce max {t}", [ref], wrap(np.max(v, axis=axes)))
        case(f"reduce min {t}", [ref], wrap(np.min(v, axis=axes)))
        if n == "bool":
            case(f"reduce and {t}", [ref], np.all(x, axis=axes))
            case(f"reduce or {t}", [ref], np.any(x, axis=axes))
        elif n in INTS:
            case(f"reduce and {t}", [ref], np.bitwise_and.reduce(x, axis=axes))
            case(f"reduce or {t}", [ref], np.bitwise_or.reduce(x, axis=axes))
    for axis in range(3):
        case(f"reduce argmax {axis}", [ref], np.argmax(v, axis=axis))
        case(f"reduce argmin {axis}", [ref], np.argmin(v, axis=axis))
        for exclusive, reverse in itertools.product([0, 1], [0, 1]) if axis == 1 else [(0, 0), (1, 1)][axis // 2:][:1]:
            def scan(f, identity, source):
                s = np.flip(source, axis) if reverse else source
                out = f.accumulate(s, axis=axis, dtype=source.dtype)
                if exclusive:
                    first = np.full_like(np.take(out, [0], axis), identity)
                    out = np.concatenate([first, np.take(out, range(out.shape[axis] - 1), axis)], axis)
                return np.flip(out, axis) if reverse else out
            tail = f"{axis} {exclusive} {reverse}"
            if n in FLOAT_NAMES:
                case(f"scan add {tail}", [ref], carried(n, scan(np.add, 0, long(x))), "ulp=1")
                case(f"scan mul {tail}", [ref], carried(n, scan(np.multiply, 1, long(x))), "ulp=2")
                lo, hi = -np.inf, np.inf
            elif n == "bool":
                lo, hi = False, True
            else:
                case(f"scan add {tail}", [ref], scan(np.add, 0, x))
                case(f"scan mul {tail}", [ref], scan(np.multiply, 1, x))
                lo, hi = np.iinfo(x.dtype).min, np.iinfo(x.dtype).max
            if axis == 1:
                case(f"scan max {tail}", [ref], wrap(scan(np.maximum, lo, v)))
                case(f"scan min {tail}", [ref], wrap(scan(np.minimum, hi, v)))
                if n in INTS:
                    case(f"scan and {tail}", [ref], scan(np.bitwise_and, ~x.dtype.type(0), x))
                    case(f"scan or {tail}", [ref], scan(np.bitwise_or, 0, x))
for n in ["f32", "f64"]:
    x = np.array([[1, np.nan, 3, np.nan], [2, 5, 5, 2], [-np.inf, np.inf, np.inf, -np.inf], [0.0, -0.0, 0.0, -0.0]], TYPES[n])
    ref = let(f"special_{n}", x)
    for op, f in {"argmax": np.argmax, "argmin": np.argmin}.items():
        case(f"reduce {op} 1", [ref], f(x, axis=1))
    for op, f in {"add": np.sum, "mul": np.prod, "max": np.max, "min": np.min}.items():
        case(f"reduce {op} 1", [ref], f(x, axis=1), "zeros")
    case("scan max 1 0 0", [ref], np.maximum.accumulate(x, axis=1), "zeros")
    case("scan add 1 0 0", [ref], np.cumsum(x, axis=1), "zeros")
    empty = np.zeros((2, 0, 3), TYPES[n])
    case("reduce add 1", [empty], np.sum(empty, axis=1))
    case("reduce mul 1", [empty], np.prod(empty, axis=1))
    case("reduce max 1", [empty], np.max(empty, axis=1, initial=-np.inf))
    case("reduce max 0", [empty], np.max(empty, axis=0))
    case("scan add 1 1 0", [empty], np.cumsum(empty, axis=1))

# Einsum.
EXPRESSIONS = [("ij,jk->ik", (3, 4), (4, 5)), ("ij,kj->ik", (3, 4), (5, 4)), ("bij,bjk->bik", (2, 3, 4), (2, 4, 2)),
               ("ii->i", (4, 4)), ("ii->", (4, 4)), ("iij->ji", (3, 3, 2)), ("ij->ji", (2, 5)), ("ij->", (3, 4)),
               ("i,j->ij", (3,), (4,)), ("i,i->", (6,), (6,)), (",i->i", (), (4,)), ("ij,jk,kl->il", (2, 3), (3, 4), (4, 2)),
               ("ij,ij,j->i", (3, 4), (3, 4), (4,)), ("ijij->ij", (2, 3, 2, 3)), ("ij,i->", (3, 4), (3,)),
               ("ij,jk->ik", (3, 0), (0, 2)), ("ij,jk->ki", (1, 4), (4, 3))]
for n in ["i8", "i32", "u16", "i64", "f16", "f32", "f64"]:
    for e, *shapes in EXPRESSIONS:
        args = [random(n, s) for s in shapes]
        if n in FLOATS:
            r = carried(n, np.einsum(e, *[a.astype(LONG) for a in args], optimize=False))
            acc = "f32" if n == "f16" else n
            case(f"einsum {e} add-mul {acc} {n}", args, np.asarray(r), "ulp=1")
        else:
            r = np.einsum(e, *args, optimize=False)
            case(f"einsum {e} add-mul {n} {n}", args, np.asarray(r))
a, b = random("i8", (3, 4)), random("i8", (4, 2))
case("einsum ij,jk->ik add-mul i32 i32", [a, b], a.astype(np.int32) @ b.astype(np.int32))
case("einsum ij,jk->ik add-mul i32 f64", [a, b], (a.astype(np.int32) @ b.astype(np.int32)).astype(np.float64))
for n in ["i16", "f32", "f64"]:
    a, b = random(n, (3, 4)), random(n, (4, 2))
    for ring, s, p in [("max-add", np.max, np.add), ("min-add", np.min, np.add), ("max-mul", np.max, np.multiply)]:
        case(f"einsum ij,jk->ik {ring} {n} {n}", [a, b], s(p(a[:, :, None], b[None]), axis=1))
a, b = random("bool", (3, 4)), random("bool", (4, 2))
case("einsum ij,jk->ik or-and bool bool", [a, b], np.any(a[:, :, None] & b[None], axis=1))

# Views.
for n in ["bool", "i16", "f32", "u64"]:
    x = random(n, (3, 4, 2))
    ref = let(f"v_{n}", x)
    case("view reshape 2,12", [ref], x.reshape(2, 12))
    case("view reshape 24,1", [ref], x.reshape(24, 1))
    for p in itertools.permutations(range(3)):
        case(f"view permute {axes_text(p)}", [ref], x.transpose(p))
    y = random(n, (3, 1, 2))
    case("view expand 5,3,4,2", [y], np.broadcast_to(y, (5, 3, 4, 2)))
    case("view expand 3,0,2", [y], np.broadcast_to(y, (3, 0, 2)))
    s = random(n, ())
    case("view expand 2,3", [s], np.broadcast_to(s, (2, 3)))
    fill = random(n, ())
    word = text(fill).split()[2]
    case(f"view pad 1,0,2 0,3,1 {word}", [ref], np.pad(x, [(1, 0), (0, 3), (2, 1)], constant_values=fill))
    case("view slice 2,0,1 -1,2,1 3,2,1", [ref], x[::-1, 0::2, 1:])
    case("view slice 0,3,0 1,-3,1 3,2,2", [ref], x[:, 3::-3, :])
    case("view slice 0,4,0 1,1,1 3,0,2", [ref], x[:, 4:, :])
    z = random(n, (2, 9))
    for size, stride, dilation in [(3, 1, 1), (2, 2, 1), (3, 2, 2), (9, 1, 1), (1, 4, 3)]:
        w = np.lib.stride_tricks.sliding_window_view(z, (size - 1) * dilation + 1, axis=1)[:, ::stride, ::dilation]
        case(f"view window 1 {size} {stride} {dilation}", [z], w)

# Iota.
for n in [*INTS, "f32", "f64"]:
    case(f"iota {n} 2,3,2 1", [], np.broadcast_to(np.arange(3).reshape(3, 1), (2, 3, 2)).astype(TYPES[n]))

# Gather and scatter.
def front(x, axes):
    return np.moveaxis(x, axes, range(len(axes)))


for n in ["i16", "f32"]:
    x = random(n, (3, 4, 2))
    ref = let(f"g_{n}", x)
    for axes, shape in [((0,), (6,)), ((1,), (2, 2)), ((2,), ()), ((0, 1), (4,)), ((2, 0), (2, 3)), ((0, 1, 2), (7,)), ((1,), (0,))]:
        index = [rng.integers(0, x.shape[a], shape).astype(t) for a, t in zip(axes, [np.int64, np.uint8, np.int16])]
        index = [np.asarray(i) for i in index]
        rows = front(x, axes)[tuple(index)]
        case(f"gather {axes_text(axes)}", [ref, *index], np.asarray(rows))
        updates = random(n, rows.shape)
        for op, f in {"set": None, "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}.items():
            base = x.copy()
            target = front(base, axes)
            if f is None:
                for at in np.ndindex(*shape):
                    target[tuple(i[at] for i in index)] = updates[at]
            else:
                f.at(target, tuple(index), updates)
            case(f"scatter {op} {axes_text(axes)}", [ref, updates, *index], base)
    case("gather 0", [ref, np.array([2, 0, 2])], np.take(x, [2, 0, 2], axis=0))
