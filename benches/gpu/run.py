"""Single kernels and small networks on a GPU: tlc and PyTorch, eager and compiled, on tensors that stay on the device.

python3 benches/gpu/run.py [--tlc PATH] [--graphs FOLDER] [--time S] [--rounds N] [--precision exact|tf32|fast] [--compile] [NAME...]
python3 benches/gpu/run.py --export FOLDER --tlc PATH [NAME...]

The first needs torch with a GPU, and prints a table: the least time that memory or arithmetic allow (bytes of inputs and outputs at the speed of a
copy within the device's memory that is measured first, floating-point operations at that of the largest product of PyTorch's), and the medians of
each. tlc's time is the host's, of calls of `tlc bench --resident` that each wait for their end, and beside it the sum of what the device says of single kernels
(`tlc profile`, a few microseconds too much for each). PyTorch's is the device's, of calls behind each other. The second writes the graphs that are timed, from the same functions, by way of ONNX.
"""

import argparse
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy as np
import torch
import torch.nn.functional as F

F32, F16, BF16, I64 = torch.float32, torch.float16, torch.bfloat16, torch.int64
M = 1 << 20


def encoder_layer(x, wq, wk, wv, wo, g1, b1, w1, c1, w2, c2, g2, b2):
    batch, length, width = x.shape
    heads = lambda y: y.view(batch, length, 12, width // 12).transpose(1, 2)
    y = F.scaled_dot_product_attention(heads(x @ wq), heads(x @ wk), heads(x @ wv))
    y = F.layer_norm(x + y.transpose(1, 2).reshape(batch, length, width) @ wo, (width,), g1, b1)
    return F.layer_norm(y + F.gelu(y @ w1 + c1) @ w2 + c2, (width,), g2, b2)


def twenty_steps(x, w):
    for _ in range(20):
        x = torch.relu(x @ w)
    return x


def adam(p, g, m, v):
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    return p - 1e-3 * (m / 0.5) / (torch.sqrt(v / 0.3) + 1e-8), m, v


def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


def attention_causal(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def product(x, y):
    return x @ y


def convolution(x, w):
    return F.conv2d(x, w, padding=1)


layer_norm = lambda x, g, b: F.layer_norm(x, (1024,), g, b)
softmax = lambda x: F.softmax(x, -1)
gelu = lambda x: F.gelu(x)
turned = lambda x: x.t().contiguous()
BIG, ROWS, SQUARE = [64 * M], [65536, 1024], [8192, 8192]
HEADS = [8, 16, 2048, 64]
LAYER = [[8, 512, 768]] + [[768, 768]] * 4 + [[768], [768], [768, 3072], [3072], [3072, 768], [768], [768], [768]]

# Each name's function, the types and shapes of its inputs, and the floating-point operations of its products.
TIMED = {
    "add": (lambda x, y: x + y, [(F32, BIG)] * 2, 0),
    "chain": (lambda x, y: torch.relu(x * y + x), [(F32, BIG)] * 2, 0),
    "gelu": (gelu, [(F32, BIG)], 0),
    "gelu_f16": (gelu, [(F16, BIG)], 0),
    "adam": (adam, [(F32, [16 * M])] * 4, 0),
    "softmax": (softmax, [(F32, ROWS)], 0),
    "softmax_f16": (softmax, [(F16, ROWS)], 0),
    "softmax_long": (softmax, [(F32, [2048, 32768])], 0),
    "layer_norm": (layer_norm, [(F32, ROWS), (F32, [1024]), (F32, [1024])], 0),
    "layer_norm_f16": (layer_norm, [(F16, ROWS), (F16, [1024]), (F16, [1024])], 0),
    "sum": (lambda x: x.sum(), [(F32, BIG)], 0),
    "sum_of_rows": (lambda x: x.sum(1), [(F32, ROWS)], 0),
    "sum_of_columns": (lambda x: x.sum(0), [(F32, ROWS)], 0),
    "argmax": (lambda x: x.argmax(1), [(F32, ROWS)], 0),
    "cumsum": (lambda x: x.cumsum(1), [(F32, ROWS)], 0),
    "transpose": (turned, [(F32, SQUARE)], 0),
    "transpose_f16": (turned, [(F16, SQUARE)], 0),
    "product_f32": (product, [(F32, [4096, 4096])] * 2, 2 * 4096**3),
    "product_bf16": (product, [(BF16, [4096, 4096])] * 2, 2 * 4096**3),
    "product_f16": (product, [(F16, [4096, 4096])] * 2, 2 * 4096**3),
    "product_f16_1024": (product, [(F16, [1024, 1024])] * 2, 2 * 1024**3),
    "product_f16_few": (product, [(F16, [16, 4096]), (F16, [4096, 12288])], 2 * 16 * 4096 * 12288),
    "linear_gelu": (
        lambda x, w, b: F.gelu(x @ w + b),
        [(F16, [4096, 1024]), (F16, [1024, 4096]), (F16, [4096])],
        2 * 4096 * 1024 * 4096,
    ),
    "attention": (attention, [(BF16, HEADS)] * 3, 4 * 8 * 16 * 2048 * 2048 * 64),
    "attention_causal": (attention_causal, [(BF16, HEADS)] * 3, 2 * 8 * 16 * 2048 * 2048 * 64),
    "attention_f32": (attention, [(F32, [1, 12, 1024, 64])] * 3, 4 * 12 * 1024 * 1024 * 64),
    "convolution": (convolution, [(F32, [32, 64, 56, 56]), (F32, [64, 64, 3, 3])], 2 * 32 * 64 * 64 * 9 * 56 * 56),
    "convolution_f16": (convolution, [(F16, [32, 64, 56, 56]), (F16, [64, 64, 3, 3])], 2 * 32 * 64 * 64 * 9 * 56 * 56),
    "twenty_steps": (twenty_steps, [(F32, [32, 32])] * 2, 20 * 2 * 32**3),
    "encoder_layer": (encoder_layer, [(F16, s) for s in LAYER], 8 * (512 * 768 * 768 * 2 * 12 + 4 * 512 * 512 * 768)),
}


def inputs_of(name, device):
    torch.manual_seed(1)
    return [(torch.randn(shape, device=device) * 0.1).to(dtype) for dtype, shape in TIMED[name][1]]


def export(folder, tlc, names):
    """Writes each function as a graph."""
    for name in names:
        function, inputs, _ = TIMED[name]

        class Called(torch.nn.Module):
            def forward(self, *given):
                return function(*given)

        # Only shapes matter, and no memory of them is touched.
        given = tuple(torch.empty(shape, dtype=dtype) for dtype, shape in inputs)
        with tempfile.TemporaryDirectory() as scratch:
            model = pathlib.Path(scratch, f"{name}.onnx")
            torch.onnx.export(Called(), given, str(model), dynamo=True, verbose=False)
            subprocess.run([tlc, "import", str(model), "-o", str(pathlib.Path(folder, f"{name}.tlir"))], check=True)


def torch_us(call, seconds):
    """The median of groups of calls, by events, in microseconds."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    groups = []

    def group(calls):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / calls * 1e3

    once = group(1)
    calls = max(1, int(1e3 / once))
    while sum(groups) * calls < seconds * 1e6 or len(groups) < 5:
        groups.append(group(calls))
        if len(groups) > 1000:
            break
    return sorted(groups)[len(groups) // 2]


def tlc_us(tlc, graph, seconds):
    """The median of a call in microseconds, and its steps on the device."""
    common = ["--device", "cuda", "--format", "json", "--time", str(seconds)]
    bench = subprocess.run([*tlc, "bench", graph, "--resident", *common], capture_output=True, text=True)
    profile = subprocess.run([*tlc, "profile", graph, *common], capture_output=True, text=True)
    for ran in (bench, profile):
        if ran.returncode:
            raise RuntimeError(ran.stderr.strip().splitlines()[-1] if ran.stderr.strip() else f"exit {ran.returncode}")
    # Those between the host and the device are not of a call whose tensors stay.
    steps = [s for s in json.loads(profile.stdout)["steps"] if s["bound"] != "link" and not s["on_host"]]
    return json.loads(bench.stdout)["median_ns"] / 1e3, steps


def error(tlc, graph, given, expected):
    """How far tlc's results are from PyTorch's in double precision, in relation to their length; NaN if shapes differ."""
    with tempfile.TemporaryDirectory() as scratch:
        names = re.findall(r"%(\w+): ", pathlib.Path(graph).read_text().split(") {")[0])
        command = [*tlc, "run", graph, "--device", "cuda", "-o", scratch]
        for name, tensor in zip(names, given, strict=True):
            # NumPy has no bf16: its files hold two bytes an element.
            array = tensor.view(torch.int16).cpu().numpy().view("V2") if tensor.dtype == BF16 else tensor.cpu().numpy()
            np.save(f"{scratch}/{name}.npy", array)
            command += ["-i", f"{name}={scratch}/{name}.npy"]
        ran = subprocess.run(command, capture_output=True, text=True)
        if ran.returncode:
            raise RuntimeError(ran.stderr.strip().splitlines()[-1])
        outputs = re.search(r"return (.*)", pathlib.Path(graph).read_text())[1].split(", ")
        worst = 0.0
        for output, wanted in zip(outputs, expected, strict=True):
            found = np.load(f"{scratch}/{output.split()[-1]}.npy")
            found = torch.from_numpy(found.view(np.int16)).view(BF16) if found.dtype.kind == "V" else torch.from_numpy(found)
            if found.shape != wanted.shape:
                return math.nan
            off = (found.to(wanted.device).double() - wanted.double()).norm() / wanted.double().norm()
            worst = max(worst, float(off))
        return worst


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tlc", default="target/release/tlc")
    parser.add_argument("--graphs", default="tests/gpu/timed")
    parser.add_argument("--export")
    parser.add_argument("--time", type=float, default=0.2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--check", action="store_true", help="compare results, in place of times")
    parser.add_argument("--precision", default="exact")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    names = args.names or list(TIMED)
    tlc = [args.tlc, "--precision", args.precision]
    if args.export:
        return export(args.export, args.tlc, names)
    if args.check:
        for name in names:
            function, given = TIMED[name][0], inputs_of(name, "cuda")
            exact = function(*(t.double() for t in given))
            try:
                off = f"{error(tlc, f'{args.graphs}/{name}.tlir', given, exact if isinstance(exact, tuple) else (exact,)):.2e}"
            except RuntimeError as e:
                off = str(e)
            print(f"{name}: {off}", flush=True)
            del given, exact
            torch.cuda.empty_cache()
        return
    x = torch.randn(128 * M, device="cuda")
    y = torch.empty_like(x)
    copied = 2 * 4 * x.numel() / torch_us(lambda: y.copy_(x), 0.2) * 1e6
    del x, y
    wide = torch.randn(8192, 8192, device="cuda", dtype=BF16)
    half = 2 * 8192**3 / torch_us(lambda: wide @ wide, 0.2) * 1e6
    wide = wide.float()
    full = 2 * 8192**3 / torch_us(lambda: wide @ wide, 0.2) * 1e6
    del wide
    print(f"{torch.cuda.get_device_name()}: copies {copied / 1e12:.2f} TB/s, bf16 {half / 1e12:.0f} and f32 {full / 1e12:.1f} TFLOP/s; torch {torch.__version__}")
    print("| graph | floor, us | tlc call | kernels | number | PyTorch | compiled | floor / tlc | tlc / PyTorch |")
    print("|---|---|---|---|---|---|---|---|---|")
    ratios = []
    for name in names:
        function, _, flops = TIMED[name]
        given = inputs_of(name, "cuda")
        found = function(*given)
        results = found if isinstance(found, tuple) else (found,)
        moved = sum(t.numel() * t.element_size() for t in (*given, *results))
        floor = max(moved / copied, flops / (full if given[0].dtype == F32 else half)) * 1e6
        eager = torch_us(lambda: function(*given), args.time)
        compiled = math.nan
        if args.compile:
            built = torch.compile(function)
            try:
                compiled = torch_us(lambda: built(*given), args.time)
            except Exception as e:
                print(f"{name}: torch.compile: {str(e).splitlines()[0]}", file=sys.stderr)
        del given, found, results
        torch.cuda.empty_cache()
        try:
            rounds = [tlc_us(tlc, f"{args.graphs}/{name}.tlir", args.time) for _ in range(args.rounds)]
        except RuntimeError as e:
            print(f"| {name} | {floor:.1f} | {e} | | | {eager:.1f} | {compiled:.1f} | | |", flush=True)
            continue
        call, steps = min(rounds, key=lambda r: r[0])
        kernels = min(sum(s["ns"] for s in steps) for _, steps in rounds) / 1e3
        best = min(eager, compiled) if compiled == compiled else eager
        ratios.append(call / best)
        print(
            f"| {name} | {floor:.1f} | {call:.1f} | {kernels:.1f} | {len(steps)} | {eager:.1f} | {compiled:.1f} | {floor / call:.2f} | {call / best:.2f} |",
            flush=True,
        )
    if ratios:
        print(f"tlc / the better of PyTorch's, geometric mean: {math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}")


if __name__ == "__main__":
    main()
