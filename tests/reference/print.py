"""Writes print.json: arrays as NumPy prints them, for tests/api/print.rs.

    python3 tests/reference/print.py        (NumPy 2)

Elements are given as their bits, or as a formula where there are many: element i is ((7 * i) % 1009 - 500) / 8.
"""

import json
import pathlib

import numpy as np

WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
NAMES = {"bool": "bool", "float16": "f16", "float32": "f32", "float64": "f64"}
NAMES |= {f"{kind}{bits}": f"{kind[0]}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}

cases = []


def case(array, ramp=False):
    array = np.ascontiguousarray(array).reshape(np.shape(array))
    data = "ramp" if ramp else [int(v) for v in array.reshape(-1).view(WORDS[array.itemsize])]
    text = np.array2string(array)
    cases.append({"dtype": NAMES[array.dtype.name], "shape": list(array.shape), "data": data, "text": text})


def ramp(shape, dtype):
    n = int(np.prod(shape))
    case((((np.arange(n) * 7) % 1009 - 500) / 8).astype(dtype).reshape(shape), ramp=True)


random = np.random.default_rng(7)
inf, nan = np.inf, np.nan
for dtype in (np.float32, np.float64, np.float16):
    for values in (
        [0], [1], [-1], [0.5], [1, 2, 3], [1.5, -2.25, 1000], [0.1, 0.2, 0.3], [1 / 3, 2 / 3], [0, -0.0],
        [nan], [inf], [-inf], [nan, 1], [inf, 1], [-inf, 1], [-inf, nan, 2.5], [nan, 12345.678], [inf, 1e-6],
        [1e-5], [1e-4], [0.0001, 0.1], [0.0001, 0.11], [999, 1], [1001, 1], [12345, 54321], [0.99999999, 1],
        [1e-7, -1], [65000, 0], [1, 0.00012], [3.14159265358979, -2.718281828], [nan, nan], [0, nan, inf, -inf],
        [1e-7, nan], [-1e-7, inf], [1e-7, -inf, -2e-7],
    ):
        case(np.array(values, dtype))
    for n in (2, 5, 20, 33):
        case(random.standard_normal(n).astype(dtype))
        case((random.standard_normal(n) * np.exp(2 * random.standard_normal(n))).astype(dtype))
    for shape in ((2, 3), (3, 2, 2), (2, 1, 3, 2), (4, 17), (1, 1), (2, 2, 30)):
        case(random.standard_normal(shape).astype(dtype))
    case(np.array(2.5, dtype))
    case(np.zeros((0, 3), dtype))
for dtype in (np.float32, np.float64):
    for values in ([1e8], [123456789, 1], [99999999, 1e5], [1e10, 1], [1e20, -1e-20], [1e30], [3e-39, 1], [1e16, 1e17],
                   [999999, 1e4], [1e6, 1e4], [1234567, 1e5], [0.1, 1e7], [1, 1001, 0.1], [1e7, nan, -inf]):
        case(np.array(values, dtype))
    case(np.exp(30 * random.standard_normal(25)).astype(dtype))
case(np.array([1e300, 1e-300, -1e100]))
case(np.array([5e-324, 1.7976931348623157e308]))
case(np.array([0.123456785, 0.1234567850000001, 2.5e-9 + 1]))
for dtype in (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64):
    info = np.iinfo(dtype)
    case(np.array([0, 1, info.min, info.max], dtype))
    case(random.integers(info.min, info.max, (3, 40), dtype, endpoint=True))
    case(np.arange(24, dtype=dtype).reshape(2, 3, 4))
    case(np.array(7, dtype))
case(np.array([True, False]))
case(np.array([True]))
case(np.array(False))
case(random.integers(0, 2, (3, 40)).astype(bool))
for shape in ((1000,), (1001,), (1008, 2), (2, 1008), (40, 40), (7, 8, 30), (5, 6, 200), (3, 3, 1001), (300, 4, 5), (6, 200)):
    for dtype in (np.float32, np.int64, np.float64):
        ramp(shape, dtype)
ramp((7, 7, 7, 7), np.float16)

path = pathlib.Path(__file__).with_name("print.json")
path.write_text("[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]\n")
print(len(cases), "cases")
