"""Writes narrow_cases.txt: what ml_dtypes and onnx say of the storage types (see ir/src/narrow.rs).

    pip install numpy==2.4.6 ml_dtypes==0.6.0 onnx==1.23.2
    python narrow_cases.py > narrow_cases.txt

`decode DTYPE HEX`: the f32 of every bit pattern, in order. `encode DTYPE RULE FROM HEX HEX`: operands of dtype FROM (`=`: those
of the line above) and the bits they convert to, RULE being `saturate` (onnx's saturate_cast), `unbounded` (ml_dtypes' cast) or, for f8e8m0fnu,
`up`, `down`, `nearest`, each also with `_unbounded` (onnx's to_float8e8m0). Any NaN stands for any other.

Left out, because the references leave it open or disagree with ONNX's own table: NaN to f4e2m1fn, floats to integers out of
range, and to f8e8m0fnu negative numbers, denormals, infinity under saturation, and zero where nothing saturates.
"""

import ml_dtypes
import numpy as np
from onnx.numpy_helper import saturate_cast, to_float8e8m0

np.seterr(all="ignore")
FLOATS = {
    "f8e4m3fn": ml_dtypes.float8_e4m3fn,
    "f8e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "f8e5m2": ml_dtypes.float8_e5m2,
    "f8e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "f4e2m1fn": ml_dtypes.float4_e2m1fn,
}
INTS = {"i4": (ml_dtypes.int4, 4), "u4": (ml_dtypes.uint4, 4), "i2": (ml_dtypes.int2, 2), "u2": (ml_dtypes.uint2, 2)}
E8M0 = ml_dtypes.float8_e8m0fnu
WIDE = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64, "i32": np.int32}


def text(x):
    size = x.dtype.itemsize
    return "".join(f"{int(w):0{2 * size}x}" for w in np.ascontiguousarray(x).view(f"u{size}").ravel())


def decode(name, dtype, bits):
    every = np.arange(1 << bits, dtype=np.uint8).view(dtype)
    print("decode", name, text(every.astype(np.float32)))
    return every.astype(np.float64)


LAST = [""]


def encode(name, rule, source, x, y):
    given = text(x)
    print("encode", name, rule, source, "=" if given == LAST[0] else given, text(y))
    LAST[0] = given


def odd(x):
    """f64 rounded to an f32 whose last bit says whether bits were lost: ml_dtypes rounds f64 to f32 on its way, which would
    round twice."""
    single = x.astype(np.float32)
    bits = single.view(np.uint32)
    inexact = (single.astype(np.float64) != x) & np.isfinite(single)
    down = np.where(np.abs(single.astype(np.float64)) > np.abs(x), bits - np.uint32(1), bits)
    return np.where(inexact, down | np.uint32(1), bits).astype(np.uint32).view(np.float32)


def operands(values, source):
    """Every value, what lies half way between two, both neighbours of that, and what lies beyond; in dtype `source`."""
    finite = np.unique(values[np.isfinite(values)])
    middles = (finite[1:] + finite[:-1]) / 2
    top = finite[-1] + (finite[-1] - finite[-2]) / 2
    beyond = np.array([top, 2 * top, 1e9, 1e30, np.inf])
    tiny = np.array([0.0, finite[finite > 0][0] / 2, finite[finite > 0][0] / 4, 1e-30])
    exact = np.concatenate([finite, middles, beyond, -beyond, tiny, -tiny]).astype(WIDE[source])
    if source == "bf16":
        return np.append(exact, np.array([np.nan], WIDE[source]))
    up = np.nextafter(exact, WIDE[source](np.inf))
    down = np.nextafter(exact, WIDE[source](-np.inf))
    all = np.concatenate([exact, up, down, np.array([np.nan, -0.0], WIDE[source])])
    return all.view(f"u{all.itemsize}")[np.sort(np.unique(all.view(f"u{all.itemsize}"), return_index=True)[1])].view(WIDE[source])


for name, dtype in FLOATS.items():
    bits = 4 if name == "f4e2m1fn" else 8
    values = decode(name, dtype, bits)
    for source in ("f32", "f64", "f16", "bf16"):
        x = operands(values, source)
        if name == "f4e2m1fn":
            x = x[~np.isnan(x)]
        given = odd(x) if source == "f64" else x
        encode(name, "saturate", source, x, saturate_cast(given, dtype).astype(dtype))
        encode(name, "unbounded", source, x, given.astype(dtype))
    x = np.concatenate([np.arange(-600, 600), np.arange(-70000, 70000, 977)]).astype(np.int32)
    encode(name, "saturate", "i32", x, saturate_cast(x.astype(np.float64), dtype).astype(dtype))

decode("f8e8m0fnu", E8M0, 8)
powers = np.exp2(np.arange(-126, 128)).astype(np.float32)
x = np.concatenate([powers * np.float32(f) for f in (1, 1.25, 1.5, 1.75)])
x = np.concatenate([x, np.nextafter(x, np.float32(np.inf)), np.nextafter(x[1:], np.float32(0))])
x = np.append(x[np.isfinite(x) & (x >= powers[0])], np.float32(np.nan))
for rule in ("up", "down", "nearest"):
    zero = np.append(x, np.float32(0))
    encode("f8e8m0fnu", rule, "f32", zero, to_float8e8m0(zero, True, rule))
    infinite = np.append(x, np.float32(np.inf))
    encode("f8e8m0fnu", rule + "_unbounded", "f32", infinite, to_float8e8m0(infinite, False, rule))
infinite = np.append(x, np.array([np.inf, 0, -1], np.float32))
encode("f8e8m0fnu", "nearest_unbounded", "f32", infinite, infinite.astype(E8M0))

for name, (dtype, bits) in INTS.items():
    values = decode(name, dtype, bits)
    x = np.arange(-300, 300).astype(np.int32)
    encode(name, "saturate", "i32", x, x.astype(dtype))
    x = np.arange(values.min() * 8, values.max() * 8 + 1).astype(np.float32) / 8
    encode(name, "saturate", "f32", x, x.astype(dtype))
