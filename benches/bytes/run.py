#!/usr/bin/env python3
"""Times quantized products, as ONNX models have them, beside ONNX Runtime, in turns, on one thread, and compares results.

    cargo build --release --bin tlc
    python3 benches/bytes/run.py [--tlc target/release/tlc] [--before OTHER/tlc] [--rounds 3] [--time 0.3] [WORD...]

Needs Python with `onnx`, `onnxruntime` and `numpy`. Activations are u8 with a zero point, weights s8. Columns: microseconds of tlc (of the
version before, where `--before` names one), of ONNX Runtime, and their ratio, each the least over all rounds, and how many elements of the result
differ (ONNX Runtime rounds a scale in another order). The convolutions that are called dynamic, and products of two values that each call brings, have weights
of u8 with a zero point, as ONNX Runtime's quantizer writes them. WORDs keep the rows that have one in their name.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto as T
from onnx import helper, numpy_helper

RNG = np.random.default_rng(0)


def number(x, dtype=np.float32):
    return np.array(x, dtype)


def weights(*shape):
    return RNG.integers(-128, 128, shape).astype(np.int8)


def model(nodes, shape, out, dtype, inits, float_input=False):
    graph = helper.make_graph(
        nodes,
        "bytes",
        [helper.make_tensor_value_info("x", T.FLOAT if float_input else T.UINT8, shape)],
        [helper.make_tensor_value_info("y", dtype, out)],
        [numpy_helper.from_array(v, k) for k, v in inits.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def integer_product(m, k, n):
    node = helper.make_node("MatMulInteger", ["x", "w", "xz"], ["y"])
    return model([node], [m, k], [m, n], T.INT32, {"w": weights(k, n), "xz": number(7, np.uint8)})


def linear_product(m, k, n):
    node = helper.make_node("QLinearMatMul", ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"], ["y"])
    inits = dict(xs=number(0.02), xz=number(120, np.uint8), w=weights(k, n), ws=number(0.01), wz=number(0, np.int8))
    inits.update(ys=number(0.7), yz=number(128, np.uint8))
    return model([node], [m, k], [m, n], T.UINT8, inits)


def convolution(c, f, k, side, groups=1):
    names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"]
    node = helper.make_node("QLinearConv", names, ["y"], kernel_shape=[k, k], pads=[k // 2] * 4, group=groups)
    inits = dict(xs=number(0.02), xz=number(120, np.uint8), w=weights(f, c // groups, k, k), wz=np.zeros(f, np.int8))
    inits.update(ws=(RNG.random(f) * 0.01 + 0.001).astype(np.float32), ys=number(0.1), yz=number(128, np.uint8))
    inits.update(b=RNG.integers(-1000, 1000, f).astype(np.int32))
    return model([node], [1, c, side, side], [1, f, side, side], T.UINT8, inits)


def dynamic(m, k, n):
    """A product of floats whose activations are quantized by their range."""
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=T.FLOAT),
        helper.make_node("Mul", ["s", "ws"], ["t"]),
        helper.make_node("Mul", ["f", "t"], ["y"]),
    ]
    return model(nodes, [m, k], [m, n], T.FLOAT, {"w": weights(k, n), "ws": number(0.01)}, float_input=True)


def dynamic_convolution(c, f, k, side, groups=1, stride=1):
    """A convolution of floats whose image is quantized by its range, of weights of u8 that have a zero point."""
    out = (side - 1) // stride + 1
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node(
            "ConvInteger", ["q", "w", "z", "wz"], ["i"], kernel_shape=[k, k], pads=[k // 2] * 4, group=groups, strides=[stride] * 2
        ),
        helper.make_node("Cast", ["i"], ["f"], to=T.FLOAT),
        helper.make_node("Mul", ["s", "ws"], ["t"]),
        helper.make_node("Mul", ["f", "t"], ["y"]),
    ]
    w = RNG.integers(0, 256, (f, c // groups, k, k)).astype(np.uint8)
    inits = {"w": w, "wz": number(119, np.uint8), "ws": number(0.01)}
    return model(nodes, [1, c, side, side], [1, f, out, out], T.FLOAT, inits, float_input=True)


def product_of_values(batch, m, n):
    """A value times a part of itself: neither is known before the call."""
    nodes = [
        helper.make_node("Slice", ["x", "zero", "n", "axis"], ["part"]),
        helper.make_node("MatMulInteger", ["x", "part", "xz", "wz"], ["y"]),
    ]
    inits = dict(zero=np.zeros(1, np.int64), n=np.array([n]), axis=np.array([2]), xz=number(7, np.uint8), wz=number(119, np.uint8))
    return model(nodes, [batch, m, m], [batch, m, n], T.INT32, inits)


def pool(c, side):
    """The largest of windows, every other one."""
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])
    return model([node], [1, c, side, side], [1, c, side // 2, side // 2], T.UINT8, {})


def sigmoid_linear_unit(c, side):
    """A function of a byte in two steps."""
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["f"]),
        helper.make_node("Sigmoid", ["f"], ["g"]),
        helper.make_node("QuantizeLinear", ["g", "gs", "gz"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "gs", "gz"], ["h"]),
        helper.make_node("Mul", ["f", "h"], ["m"]),
        helper.make_node("QuantizeLinear", ["m", "ys", "yz"], ["y"]),
    ]
    inits = dict(xs=number(0.06), xz=number(120, np.uint8), gs=number(1 / 256), gz=number(0, np.uint8))
    inits.update(ys=number(0.04), yz=number(7, np.uint8))
    return model(nodes, [1, c, side, side], [1, c, side, side], T.UINT8, inits)


CASES = {
    "MatMulInteger 1x1024x1024": lambda: integer_product(1, 1024, 1024),
    "MatMulInteger 4x1024x1024": lambda: integer_product(4, 1024, 1024),
    "MatMulInteger 64x1024x1024": lambda: integer_product(64, 1024, 1024),
    "MatMulInteger 256x1024x1024": lambda: integer_product(256, 1024, 1024),
    "MatMulInteger 128x768x1000": lambda: integer_product(128, 768, 1000),
    "QLinearMatMul 64x1024x1024": lambda: linear_product(64, 1024, 1024),
    "dynamic 16x768x3072": lambda: dynamic(16, 768, 3072),
    "QLinearConv 3x3 64 56x56": lambda: convolution(64, 64, 3, 56),
    "QLinearConv 3x3 256 14x14": lambda: convolution(256, 256, 3, 14),
    "QLinearConv 1x1 256->64 56x56": lambda: convolution(256, 64, 1, 56),
    "QLinearConv 7x7 3->64 112x112": lambda: convolution(3, 64, 7, 112),
    "QLinearConv 3x3 depthwise 64 56x56": lambda: convolution(64, 64, 3, 56, 64),
    "dynamic convolution 3x3 64 56x56": lambda: dynamic_convolution(64, 64, 3, 56),
    "dynamic convolution 3x3 256 28x28": lambda: dynamic_convolution(256, 256, 3, 28),
    "dynamic convolution 3x3 256 28x28, stride 2": lambda: dynamic_convolution(256, 256, 3, 28, stride=2),
    "dynamic convolution 3x3 512 7x7": lambda: dynamic_convolution(512, 512, 3, 7),
    "dynamic convolution 1x1 256->64 56x56": lambda: dynamic_convolution(256, 64, 1, 56),
    "dynamic convolution 7x7 3->64 112x112": lambda: dynamic_convolution(3, 64, 7, 112),
    "dynamic convolution 3x3 64->4 56x56": lambda: dynamic_convolution(64, 4, 3, 56),
    "dynamic convolution 3x3 64 28x28, two groups": lambda: dynamic_convolution(64, 64, 3, 28, 2),
    "dynamic convolution 3x3 depthwise 96 56x56": lambda: dynamic_convolution(96, 96, 3, 56, 96),
    "MaxPool 3x3 stride 2 64 112x112": lambda: pool(64, 112),
    "SiLU in steps 96 112x112": lambda: sigmoid_linear_unit(96, 112),
    "values 12x384x384x64": lambda: product_of_values(12, 384, 64),
    "values 1x512x512x512": lambda: product_of_values(1, 512, 512),
}


def seconds_of_tlc(tlc, path, seconds):
    command = [tlc, "bench", path, "--threads", "1", "--format", "json", "--time", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["min_ns"] * 1e-9


def result_of_tlc(tlc, path, x, folder):
    np.save(os.path.join(folder, "x.npy"), x)
    command = [tlc, "run", path, "--input", f"x={folder}/x.npy", "--output-dir", folder]
    subprocess.run(command, capture_output=True, check=True)
    return np.load(os.path.join(folder, "y.npy"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("words", nargs="*")
    parser.add_argument("--tlc", default="target/release/tlc")
    parser.add_argument("--before")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--time", type=float, default=0.3)
    args = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    head = ["", "tlc us", *(["before us"] if args.before else []), "ORT us", "tlc / ORT", "differ"]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        for name, make in CASES.items():
            if args.words and not any(w in name for w in args.words):
                continue
            path = os.path.join(folder, "model.onnx")
            onnx.save(make(), path)
            options = ort.SessionOptions()
            options.intra_op_num_threads = options.inter_op_num_threads = 1
            options.log_severity_level = 3
            session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
            of = session.get_inputs()[0]
            floats = of.type == "tensor(float)"
            x = RNG.standard_normal(of.shape).astype(np.float32) if floats else RNG.integers(0, 256, of.shape).astype(np.uint8)
            binding = session.io_binding()
            binding.bind_cpu_input("x", x)
            binding.bind_output("y", "cpu")
            best = [float("inf")] * 3
            for _ in range(args.rounds):
                best[0] = min(best[0], seconds_of_tlc(args.tlc, path, args.time))
                if args.before:
                    best[1] = min(best[1], seconds_of_tlc(args.before, path, args.time))
                end = time.perf_counter() + args.time
                while time.perf_counter() < end:
                    begin = time.perf_counter()
                    session.run_with_iobinding(binding)
                    best[2] = min(best[2], time.perf_counter() - begin)
            found, expected = result_of_tlc(args.tlc, path, x, folder), session.run(None, {"x": x})[0]
            differ = int((found != expected).sum())
            cells = [f"{best[0] * 1e6:.1f}", *([f"{best[1] * 1e6:.1f}"] if args.before else [])]
            cells += [f"{best[2] * 1e6:.1f}", f"{best[0] / best[2]:.2f}", f"{differ} of {found.size}"]
            ratios.append(best[0] / best[2])
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    print(f"\ngeometric mean {np.exp(np.mean(np.log(ratios))):.2f}, worst {max(ratios):.2f}")


if __name__ == "__main__":
    main()
