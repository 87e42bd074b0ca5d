#!/usr/bin/env python3
"""Times single convolutions, as exported networks have them, beside ONNX Runtime, in turns, on one thread.

    cargo build --release --bin tlc
    python3 benches/conv/run.py [--tlc target/release/tlc] [--before OTHER/tlc] [--rounds 3] [--peak GFLOPS] [--half] [WORD...]

Needs Python with `onnx`, `onnxruntime` and `numpy`. A row is a graph of one convolution with bias and ReLU behind it, sizes written
into it or (`~`) batch, height and width left open and given when it runs. Columns: microseconds of tlc (of the version before, where
`--before` names one), of ONNX Runtime, their ratio, and how many times its floor tlc takes: the larger of multiply-adds by the peak
and bytes by the bandwidth of this run. `--half` has all of it in f16. Each figure is the least over all rounds; WORDs keep the rows that have one in their name.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper


class Case:
    """A convolution: `n` images of `c` channels, `h` by `w`, to `f` channels by windows of `k` by `k`."""

    def __init__(self, name, n, c, h, w, f, k, stride=1, dilation=1, pad=None, groups=1, op="Conv", act="Relu"):
        self.name, self.n, self.c, self.h, self.w, self.f, self.k = name, n, c, h, w, f, k
        self.stride, self.dilation, self.groups, self.op, self.act = stride, dilation, groups, op, act
        self.pad = dilation * (k - 1) // 2 if pad is None else pad

    def shape(self):
        if self.op == "Conv":
            side = lambda d: (d + 2 * self.pad - self.dilation * (self.k - 1) - 1) // self.stride + 1
        else:
            side = lambda d: (d - 1) * self.stride - 2 * self.pad + self.dilation * (self.k - 1) + 1
        return side(self.h), side(self.w)

    def flops(self):
        h, w = self.shape() if self.op == "Conv" else (self.h, self.w)
        return 2 * self.n * self.f * h * w * (self.c // self.groups) * self.k * self.k

    def bytes(self, half):
        h, w = self.shape()
        weight = self.f * (self.c // self.groups) * self.k * self.k
        return (2 if half else 4) * (self.n * self.c * self.h * self.w + self.n * self.f * h * w + weight)

    def model(self, symbolic, half):
        dtype, element = (np.float16, TensorProto.FLOAT16) if half else (np.float32, TensorProto.FLOAT)
        rng = np.random.default_rng(1)
        of_groups = (self.f, self.c // self.groups) if self.op == "Conv" else (self.c, self.f // self.groups)
        scale = (self.c // self.groups * self.k * self.k) ** -0.5
        weight = (rng.standard_normal((*of_groups, self.k, self.k)) * scale).astype(dtype)
        bias = rng.standard_normal(self.f).astype(dtype)
        inits = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias, "b")]
        settings = dict(
            strides=[self.stride] * 2, dilations=[self.dilation] * 2, pads=[self.pad] * 4, group=self.groups
        )
        nodes = [helper.make_node(self.op, ["x", "w", "b"], ["y"], kernel_shape=[self.k, self.k], **settings)]
        out = "y"
        if self.act:
            nodes.append(helper.make_node(self.act, ["y"], ["z"]))
            out = "z"
        # An image of one pixel stays one: that is what a network has behind a mean over all pixels.
        sides = [self.h, self.w] if self.h == 1 else ["h", "w"]
        dims = ["n", self.c, *sides] if symbolic else [self.n, self.c, self.h, self.w]
        dims_out = [None, self.f, None, None] if symbolic else [self.n, self.f, *self.shape()]
        graph = helper.make_graph(
            nodes,
            "conv",
            [helper.make_tensor_value_info("x", element, dims)],
            [helper.make_tensor_value_info(out, element, dims_out)],
            inits,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


CASES = [
    Case("3x3 64 56x56", 1, 64, 56, 56, 64, 3),
    Case("3x3 64 56x56 b8", 8, 64, 56, 56, 64, 3),
    Case("3x3 256 14x14", 1, 256, 14, 14, 256, 3),
    Case("3x3 512 7x7", 1, 512, 7, 7, 512, 3),
    Case("3x3 128->32 28x28", 1, 128, 28, 28, 32, 3),
    Case("3x3 s2 64->128 56x56", 1, 64, 56, 56, 128, 3, stride=2),
    Case("3x3 s2 3->32 224x224", 1, 3, 224, 224, 32, 3, stride=2),
    Case("7x7 s2 3->64 224x224", 1, 3, 224, 224, 64, 7, stride=2),
    Case("1x1 64->256 56x56", 1, 64, 56, 56, 256, 1),
    Case("1x1 s2 256->512 56x56", 1, 256, 56, 56, 512, 1, stride=2),
    Case("1x1 512 7x7", 1, 512, 7, 7, 512, 1),
    Case("1x1 512 7x7 b8", 8, 512, 7, 7, 512, 1),
    Case("1x1 96->24 28x28", 1, 96, 28, 28, 24, 1),
    Case("1x1 24->144 56x56", 1, 24, 56, 56, 144, 1),
    Case("1x1 960->240 1x1", 1, 960, 1, 1, 240, 1),
    Case("1x1 960->240 1x1 b8", 8, 960, 1, 1, 240, 1),
    Case("dw 3x3 96 56x56", 1, 96, 56, 56, 96, 3, groups=96),
    Case("dw 3x3 960 7x7", 1, 960, 7, 7, 960, 3, groups=960),
    Case("dw 3x3 s2 96 112x112", 1, 96, 112, 112, 96, 3, stride=2, groups=96),
    Case("dw 5x5 240 28x28", 1, 240, 28, 28, 240, 5, groups=240),
    Case("dw 5x5 s2 240 28x28", 1, 240, 28, 28, 240, 5, stride=2, groups=240),
    Case("dw 5x5 672 14x14", 1, 672, 14, 14, 672, 5, groups=672),
    Case("3x3 d2 256 28x28", 1, 256, 28, 28, 256, 3, dilation=2),
    Case("3x3 d4 512 28x28", 1, 512, 28, 28, 512, 3, dilation=4),
    Case("3x3 d12 960->256 14x14", 1, 960, 14, 14, 256, 3, dilation=12),
    Case("3x3 d12 960->256 28x28", 1, 960, 28, 28, 256, 3, dilation=12),
    Case("3x3 g32 128 56x56", 1, 128, 56, 56, 128, 3, groups=32),
    Case("1x1 g4 240 28x28", 1, 240, 28, 28, 240, 1, groups=4),
    Case("3x3 1->16 28x28", 1, 1, 28, 28, 16, 3),
    Case("3x3 1->16 28x28 b16", 16, 1, 28, 28, 16, 3),
    Case("5x5 6->16 14x14", 1, 6, 14, 14, 16, 5, pad=0),
    Case("T 2x2 s2 128->64 28x28", 1, 128, 28, 28, 64, 2, stride=2, pad=0, op="ConvTranspose"),
    Case("T 4x4 s2 64->32 28x28", 1, 64, 28, 28, 32, 4, stride=2, pad=1, op="ConvTranspose"),
]


def tlc_seconds(tlc, path, case, symbolic, seconds):
    command = [tlc, "bench", "--threads", "1", "--time", str(seconds), "--format", "json", path]
    if symbolic:
        command += ["--set", f"n={case.n}"]
        if case.h != 1:
            command += ["--set", f"h={case.h}", "--set", f"w={case.w}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(case.name, done.stderr or done.stdout, file=sys.stderr)
        return float("inf")
    return json.loads(done.stdout)["min_ns"] * 1e-9


class Peer:
    def __init__(self, path, case, half):
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self.session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        x = np.random.default_rng(2).standard_normal((case.n, case.c, case.h, case.w))
        x = x.astype(np.float16 if half else np.float32)
        binding = self.session.io_binding()
        binding.bind_cpu_input("x", x)
        binding.bind_output(self.session.get_outputs()[0].name, "cpu")
        self.binding = binding
        for _ in range(3):
            self.session.run_with_iobinding(binding)

    def seconds(self, seconds):
        best, end = float("inf"), time.perf_counter() + seconds
        while time.perf_counter() < end:
            begin = time.perf_counter()
            self.session.run_with_iobinding(self.binding)
            best = min(best, time.perf_counter() - begin)
        return best


def bandwidth():
    """Bytes a second of a copy within the second-level cache's reach, which is what one convolution moves."""
    a, b = np.ones(1 << 18, np.float32), np.zeros(1 << 18, np.float32)
    best = float("inf")
    for _ in range(200):
        begin = time.perf_counter()
        np.copyto(b, a)
        best = min(best, time.perf_counter() - begin)
    return 2 * a.nbytes / best


def peak():
    """Multiply-adds a second, counted twice, of a large product on one thread."""
    a = np.ones((1024, 1024), np.float32)
    best = float("inf")
    for _ in range(10):
        begin = time.perf_counter()
        a @ a
        best = min(best, time.perf_counter() - begin)
    return 2 * 1024**3 / best


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("words", nargs="*")
    parser.add_argument("--tlc", default="target/release/tlc")
    parser.add_argument("--before")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--time", type=float, default=0.15)
    parser.add_argument("--peak", type=float, help="GFLOP/s; measured if absent")
    parser.add_argument("--half", action="store_true", help="images and weights of f16")
    parser.add_argument("--fixed", action="store_true", help="only graphs whose sizes are written into them")
    args = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    flops, copied = (args.peak or 0) * 1e9 or peak(), bandwidth()
    print(f"peak {flops / 1e9:.0f} GFLOP/s, copies {copied / 1e9:.0f} GB/s", file=sys.stderr)
    head = ["", "tlc us", *(["before us"] if args.before else []), "ORT us", "tlc / ORT", "x floor"]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            if args.words and not any(w in case.name for w in args.words):
                continue
            for symbolic in [False] if args.fixed else [False, True]:
                path = os.path.join(folder, "model.onnx")
                onnx.save(case.model(symbolic, args.half), path)
                peer = Peer(path, case, args.half)
                best = [float("inf")] * 3
                for _ in range(args.rounds):
                    best[0] = min(best[0], tlc_seconds(args.tlc, path, case, symbolic, args.time))
                    if args.before:
                        best[1] = min(best[1], tlc_seconds(args.before, path, case, symbolic, args.time))
                    best[2] = min(best[2], peer.seconds(args.time))
                floor = max(case.flops() / flops, case.bytes(args.half) / copied)
                cells = [f"{best[0] * 1e6:.1f}", *([f"{best[1] * 1e6:.1f}"] if args.before else [])]
                cells += [f"{best[2] * 1e6:.1f}", f"{best[0] / best[2]:.2f}", f"{best[0] / floor:.1f}"]
                ratios.append(best[0] / best[2])
                print(f"| {case.name}{' ~' if symbolic else ''} | " + " | ".join(cells) + " |", flush=True)
    print(f"\ngeometric mean {np.exp(np.mean(np.log(ratios))):.2f}, worst {max(ratios):.2f}")


if __name__ == "__main__":
    main()
