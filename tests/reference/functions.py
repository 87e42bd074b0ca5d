"""Reference values for tests/kernels/functions.rs: python3 tests/reference/functions.py > tests/reference/functions.json

Needs mpmath. Every function is its definition in 1,000 bits (more than its cancellations lose), rounded once; the limit at
infinities. Numbers are the bits of f64 in hexadecimal (of an f32 argument's value too), those of a result for f32 arguments
the nearest f64.
"""
import json
import random
import struct

import mpmath as mp

mp.mp.prec = 1000


def f64(bits):
    return struct.unpack("<d", struct.pack("<Q", bits))[0]


def f32(bits):
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def hexadecimal(x):
    return struct.pack(">d", x).hex()


INF, NAN = float("inf"), float("nan")


def limits(low, high):
    """The limits at the infinities, around a function of a finite number."""

    def around(f):
        def whole(x):
            if x != x:
                return NAN
            if x in (INF, -INF):
                return high if x > 0 else low
            return f(mp.mpf(x))

        return whole

    return around


def exp(x):
    # Beyond that the result is of no interest, and its digits would fill the memory.
    return mp.exp(max(mp.mpf(-3000), min(mp.mpf(3000), x)))


def asinh(x):
    a = abs(x)
    return mp.sign(x) * mp.log(a + mp.sqrt(a * a + 1)) if a > 2**-100 else x - x**3 / 6


def atanh(x):
    if abs(x) > 1:
        return NAN
    if abs(x) == 1:
        return INF * float(x)
    return mp.log((1 + x) / (1 - x)) / 2 if abs(x) > 2**-100 else x + x**3 / 3


def tanh(x):
    return x if abs(x) < 2**-100 else (1 - exp(-2 * x)) / (1 + exp(-2 * x))


def expm1(x):
    return x + x * x / 2 if abs(x) < 2**-100 else exp(x) - 1


def gelu(x):
    if abs(x) > 300:
        return max(x, mp.mpf(0))
    return x * mp.erfc(-x / mp.sqrt(2)) / 2


FUNCTIONS = {
    "asinh": limits(-INF, INF)(asinh),
    "acosh": limits(NAN, INF)(lambda x: NAN if x < 1 else mp.log(x + mp.sqrt(x * x - 1))),
    "atanh": limits(NAN, NAN)(atanh),
    "sinh": limits(-INF, INF)(lambda x: x + x**3 / 6 if abs(x) < 2**-100 else (exp(x) - exp(-x)) / 2),
    "cosh": limits(INF, INF)(lambda x: (exp(x) + exp(-x)) / 2),
    "tanh": limits(-1.0, 1.0)(tanh),
    "log1p": limits(NAN, INF)(
        lambda x: NAN if x < -1 else -INF if x == -1 else x - x * x / 2 if abs(x) < 2**-100 else mp.log(1 + x)
    ),
    "expm1": limits(-1.0, INF)(expm1),
    "sigmoid": limits(0.0, 1.0)(lambda x: 1 / (1 + exp(-x))),
    "silu": limits(-0.0, INF)(lambda x: x / (1 + exp(-x))),
    "softplus": limits(0.0, INF)(lambda x: x if x > 3000 else mp.log(1 + exp(x)) if x > -300 else exp(x)),
    "log_sigmoid": limits(-INF, -0.0)(
        lambda x: x if x < -3000 else -mp.log(1 + exp(-x)) if x < 300 else -exp(-x)
    ),
    "mish": limits(-0.0, INF)(lambda x: x if x > 3000 else x * tanh(mp.log(1 + exp(x)) if x > -300 else exp(x))),
    "softsign": limits(-1.0, 1.0)(lambda x: x / (1 + abs(x))),
    "elu": limits(-1.0, INF)(lambda x: x if x > 0 else expm1(x)),
    "gelu": limits(-0.0, INF)(gelu),
    "gelu_tanh": limits(-0.0, INF)(
        lambda x: x / (1 + exp(-2 * mp.sqrt(2 / mp.pi) * (x + mp.mpf("0.044715") * x**3)))
    ),
    "hard_sigmoid": limits(0.0, 1.0)(lambda x: max(mp.mpf(0), min(mp.mpf(1), x / 6 + mp.mpf("0.5")))),
    "hard_swish": limits(-0.0, INF)(lambda x: x * max(mp.mpf(0), min(mp.mpf(1), x / 6 + mp.mpf("0.5")))),
}


def rounded(y):
    if isinstance(y, float) or y == 0:
        return float(y)
    # Once: through an integer number of the denormals' last place, or in 53 bits.
    if abs(y) < mp.mpf(2) ** -1022:
        return float(mp.nint(mp.ldexp(y, 1074))) * 2.0**-1074
    with mp.workprec(53):
        return float(+y) if abs(y) < mp.mpf(2) ** 1024 else INF * float(mp.sign(y))


def arguments(single):
    of = f32 if single else f64
    width, digits = (32, 23) if single else (64, 52)
    infinity = (0xFF << 23) if single else (0x7FF << 52)
    bits = [0, 1, 2, 3, (1 << digits) - 1, 1 << digits, (1 << digits) + 1, infinity - 1, infinity, infinity + 1]
    # Around where algorithms and results change over.
    centres = [
        1e-30, 1e-10, 1e-5, 2**-12, 1e-3, 0.1, 0.25, 0.30, 0.5, 0.70710678, 0.75, 0.9, 1, 1.25, 2, 2.5, 3, 4, 5, 5.6, 6, 8, 10,
        16.6, 18, 20, 36.7, 40, 64, 86, 87.33655, 88.02969, 88.72284, 89.415985, 100, 103.97208, 104, 110, 255, 256, 257, 1e3,
        65504, 1e5, 2**23, 2**26, 1e9, 1.8446744e19, 1e20, 1e30, 2.0**63,
    ] + ([] if single else [300, 708.4, 709.78, 710.4758, 745.13, 746, 2**27, 2**52, 2**55, 1e100, 1.3407807929942596e154, 1e200, 1e300])
    pack, unpack = ("<f", "<I") if single else ("<d", "<Q")
    for c in centres:
        middle = struct.unpack(unpack, struct.pack(pack, c))[0]
        bits += [middle - 1, middle, middle + 1]
    source = random.Random(12)
    bits += [source.randrange(infinity) for _ in range(40)]
    # Most functions live in a few powers of two.
    middle = 127 if single else 1023
    bits += [(middle + source.randrange(-8, 8) << digits) | source.getrandbits(digits) for _ in range(80)]
    return [of(b | sign << (width - 1)) for b in sorted(set(bits)) for sign in (0, 1)]


result = {}
for name, single in (("f32", True), ("f64", False)):
    xs = arguments(single)
    table = {"x": [hexadecimal(x) for x in xs]}
    for function, f in FUNCTIONS.items():
        # Those that are zero at zero keep its sign.
        values = [x if x == 0 and f(0.0) == 0 else rounded(f(x)) for x in xs]
        table[function] = [hexadecimal(y) for y in values]
    result[name] = table
print(json.dumps(result, separators=(",", ":")).replace('],"', '],\n"'))
