#!/usr/bin/env python3
"""Writes the files in `golden/` that `golden.rs` reads.

    pip install numpy==2.4.6 ml_dtypes==0.6.0 safetensors==0.8.0
    python make_golden.py

Every array holds the values of `values` below at C-order positions 0, 1, 2, ..., so the Rust side computes what it
expects. File names say dtype and variant. Timestamps are fixed: the same versions give the same bytes.
"""

import io
import json
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save

GOLDEN = Path(__file__).resolve().parent / "golden"
SHAPE = (2, 3, 4)
DTYPES = {
    "bool": np.bool_, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64, "u8": np.uint8,
    "u16": np.uint16, "u32": np.uint32, "u64": np.uint64, "f16": np.float16, "f32": np.float32, "f64": np.float64,
}  # fmt: skip
STORAGE = {
    "f8e4m3fn": ml_dtypes.float8_e4m3fn, "f8e4m3fnuz": ml_dtypes.float8_e4m3fnuz, "f8e5m2": ml_dtypes.float8_e5m2,
    "f8e5m2fnuz": ml_dtypes.float8_e5m2fnuz, "f8e8m0fnu": ml_dtypes.float8_e8m0fnu, "f4e2m1fn": ml_dtypes.float4_e2m1fn,
    "i4": ml_dtypes.int4, "u4": ml_dtypes.uint4, "i2": ml_dtypes.int2, "u2": ml_dtypes.uint2,
}  # fmt: skip


def values(name, shape):
    """bool: whether i is a multiple of 3; integers: a hash of i, so that every byte counts; floats: (i - 3) / 4;
    storage types: the bits of i * 37 + 5."""
    i = np.arange(int(np.prod(shape)), dtype=np.uint64)
    if name == "bool":
        flat = i % 3 == 0
    elif name in STORAGE:
        bits = {"4": 4, "2": 2}.get(name[1], 8)
        flat = ((i * np.uint64(37) + np.uint64(5)) & np.uint64((1 << bits) - 1)).astype(np.uint8).view(STORAGE[name])
    elif name[0] in "iu":
        with np.errstate(over="ignore"):
            mixed = (i + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        width = np.dtype(DTYPES[name]).itemsize
        flat = (mixed >> np.uint64(64 - 8 * width)).astype(f"<u{width}").view(f"<i{width}" if name[0] == "i" else f"<u{width}")
    else:
        flat = ((i.astype(np.float64) - 3) / 4).astype(ml_dtypes.bfloat16 if name == "bf16" else DTYPES[name])
    return flat.reshape(shape)


def npy(array, version=(1, 0)):
    out = io.BytesIO()
    np.lib.format.write_array(out, array, version=version, allow_pickle=True)
    return out.getvalue()


def put(name, data):
    (GOLDEN / name).write_bytes(data)


def npz(method, arrays):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, array in arrays.items():
            entry = zipfile.ZipInfo(name + ".npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = method
            with archive.open(entry, "w", force_zip64=True) as target:  # as numpy.savez does
                np.lib.format.write_array(target, array)
    return out.getvalue()


def raw(dtype, shape, data, y):
    """A safetensors file of `x` with these bytes, and `y`."""
    infos = {
        "y": {"dtype": "F32", "shape": list(y.shape), "data_offsets": [0, y.nbytes]},
        "x": {"dtype": dtype, "shape": list(shape), "data_offsets": [y.nbytes, y.nbytes + len(data)]},
    }
    header = json.dumps(infos, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + y.tobytes() + data


def main():
    GOLDEN.mkdir(exist_ok=True)
    for old in GOLDEN.iterdir():
        old.unlink()
    for name in DTYPES:
        array = values(name, SHAPE)
        put(f"{name}_c.npy", npy(array))
        put(f"{name}_fortran.npy", npy(np.asfortranarray(array)))
        if array.itemsize > 1:
            put(f"{name}_big.npy", npy(array.astype(array.dtype.newbyteorder(">"))))
    for name in STORAGE:
        put(f"{name}_c.npy", npy(values(name, SHAPE)))
        put(f"{name}_fortran.npy", npy(np.asfortranarray(values(name, SHAPE))))
    put("bf16_c.npy", npy(values("bf16", SHAPE)))
    put("f32_v2.npy", npy(values("f32", SHAPE), (2, 0)))
    put("f32_v3.npy", npy(values("f32", SHAPE), (3, 0)))
    put("f32_rank0.npy", npy(values("f32", ()).reshape(())))
    put("f64_rank1.npy", npy(values("f64", (5,))))
    put("f64_empty.npy", npy(values("f64", (0, 3))))
    put("i32_rank9.npy", npy(values("i32", (1, 2, 3, 1, 2, 1, 2, 2, 1))))
    big = values("i32", (1, 2, 3, 1, 2, 1, 2, 2, 1)).astype(">i4")
    put("i32_rank9_fortran_big.npy", npy(np.asfortranarray(big)))
    put("u16_large_fortran.npy", npy(np.asfortranarray(values("u16", (37, 2, 41)))))

    put("unsupported_complex.npy", npy(np.zeros(2, np.complex64)))
    put("unsupported_unicode.npy", npy(np.array(["ab", "c"])))
    put("unsupported_bytes.npy", npy(np.array([b"ab", b"c"])))
    put("unsupported_object.npy", npy(np.array([None, 1], dtype=object)))
    put("unsupported_structured.npy", npy(np.zeros(2, [("x", "<f4"), ("y", "<i2")])))
    put("unsupported_datetime.npy", npy(np.zeros(2, "datetime64[s]")))
    put("unsupported_raw.npy", npy(np.zeros(2, "V3")))
    put("unsupported_extended.npy", npy(np.zeros(2, np.longdouble)))

    arrays = {"weights": values("f32", SHAPE), "labels": values("u8", (7,)), "scalar": values("i64", ()).reshape(())}
    put("stored.npz", npz(zipfile.ZIP_STORED, arrays))
    put("deflated.npz", npz(zipfile.ZIP_DEFLATED, arrays))
    put("unsupported_bzip2.npz", npz(zipfile.ZIP_BZIP2, {"weights": values("f32", SHAPE)}))

    tensors = {name: values(name, SHAPE) for name in [*DTYPES, "bf16"]}
    tensors["scalar"] = values("f32", ()).reshape(())
    tensors["empty"] = values("f32", (0, 3))
    put("all.safetensors", save(tensors, {"made": "by make_golden.py"}))
    # The package has no name for 4-bit integers, and 6-bit floats none in NumPy: a header by hand.
    storage = {name: values(name, SHAPE) for name in STORAGE if name[:2] == "f8"}
    put("storage.safetensors", save(storage))
    packed = values("f4e2m1fn", SHAPE).view(np.uint8).ravel()
    put("f4.safetensors", raw("F4", SHAPE, (packed[0::2] | packed[1::2] << 4).tobytes(), values("f32", (2,))))
    put("unsupported_f6.safetensors", raw("F6_E2M3", (4,), bytes(3), values("f32", (2,))))


if __name__ == "__main__":
    main()
