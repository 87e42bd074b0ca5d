"""Single operations and small graphs on a processor: tlc beside PyTorch (eager), ONNX Runtime and JAX, in turns.

python3 benches/peers/run.py [--tlc PATH] [--threads 1,2] [--time S] [--rounds N] [NAME...]

Needs torch, onnx, onnxscript, onnxruntime and jax (their wheels for processors). Each workload is a PyTorch function, exported to ONNX once; tlc and ONNX Runtime take that
file, JAX a function that is written beside it, of which results are compared with PyTorch's first. PyTorch, ONNX Runtime and JAX run in a process each, which takes its
turns for the rounds of a workload; tlc in one for each round (`tlc bench`). All ask for huge pages, as NumPy does for its arrays. tlc and ONNX Runtime write into memory that is bound before. A time is the least of the
medians of the rounds. A row whose results differ has no ratio.
"""

import argparse
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import warnings

import numpy as np

K, M = 1 << 10, 1 << 20
F32, F64 = "float32", "float64"


def torch_functions():
    import torch
    import torch.nn.functional as F

    def chain10(x, y):
        z = torch.relu((x * y + x) * 0.5 - y)
        return ((z * z + 1.0) * x).abs() - 0.25

    def gelu_tanh(x):
        return x * 0.5 * (torch.tanh((x + 0.044715 * x * x * x) * 0.7978845608) + 1.0)

    def network_10(a, b, c, d, e, f, g, h, i, j):
        return torch.einsum("pa,pe,aqb,eqf,brc,frg,csd,gsh,dt,ht->", a, b, c, d, e, f, g, h, i, j)

    def mlp(x, w1, b1, w2, b2, w3, b3):
        return torch.relu(torch.relu(x @ w1 + b1) @ w2 + b2) @ w3 + b3

    def encoder(x, q, k, v, wo, g1, b1, w1, c1, w2, c2, g2, b2):
        heads = lambda y: y.view(8, 128, 12, 32).transpose(1, 2)
        y = F.softmax(heads(q) @ heads(k).transpose(-1, -2) * 32**-0.5, -1) @ heads(v)
        y = F.layer_norm(x + y.transpose(1, 2).reshape(8, 128, 384) @ wo, (384,), g1, b1)
        return F.layer_norm(y + F.gelu(y @ w1 + c1) @ w2 + c2, (384,), g2, b2)

    def attention(q, k, v):
        return F.softmax(q @ k.transpose(-1, -2) * 0.125, -1) @ v

    return dict(
        add=lambda x, y: x + y,
        fma_relu=lambda x, y, z: torch.relu(x * y + z),
        gelu_tanh=gelu_tanh,
        sigmoid=torch.sigmoid,
        tanh=torch.tanh,
        exp=torch.exp,
        chain10=chain10,
        sum_all=lambda x: x.sum(),
        sum_axis0=lambda x: x.sum(0),
        sum_axis1=lambda x: x.sum(1),
        mean_axis0=lambda x: x.mean(0),
        max_axis1=lambda x: x.amax(1),
        argmax_axis1=lambda x: x.argmax(1),
        log_softmax=lambda x: F.log_softmax(x, -1),
        softmax=lambda x: F.softmax(x, -1),
        layernorm=lambda x, g, b: F.layer_norm(x, (1024,), g, b),
        rmsnorm=lambda x, g: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * g,
        matmul=lambda x, y: x @ y,
        mm_bias_relu=lambda x, w, b: torch.relu(x @ w + b),
        matvec=lambda x, y: x @ y,
        scores=lambda q, k: torch.einsum("bhqd,bhkd->bhqk", q, k),
        three=lambda x, y, z: torch.einsum("ijk,kl,lm->ijm", x, y, z),
        abcd=lambda x, y, z: torch.einsum("abcd,cdef,efgh->abgh", x, y, z),
        network_10=network_10,
        transpose=lambda x: x.t().contiguous(),
        conv=lambda x, w: F.conv2d(x, w),
        conv_padded=lambda x, w: F.conv2d(x, w, padding=1),
        maxpool=lambda x: F.max_pool2d(x, 2),
        avgpool=lambda x: F.avg_pool2d(x, 2),
        batchnorm=lambda x, m, v, g, b: F.batch_norm(x, m, v, g, b),
        mlp=mlp,
        attention=attention,
        encoder=encoder,
        tiny5=lambda x, y: torch.relu((x + y) * x - y) * 0.5,
    )


def jax_functions():
    import jax
    import jax.numpy as jnp

    def chain10(x, y):
        z = jax.nn.relu((x * y + x) * 0.5 - y)
        return jnp.abs((z * z + 1.0) * x) - 0.25

    def norm(x, g, b):
        mean = x.mean(-1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5) * g + b

    def encoder(x, q, k, v, wo, g1, b1, w1, c1, w2, c2, g2, b2):
        heads = lambda y: y.reshape(8, 128, 12, 32).transpose(0, 2, 1, 3)
        y = jax.nn.softmax(heads(q) @ heads(k).transpose(0, 1, 3, 2) * 32**-0.5, -1) @ heads(v)
        y = norm(x + y.transpose(0, 2, 1, 3).reshape(8, 128, 384) @ wo, g1, b1)
        return norm(y + jax.nn.gelu(y @ w1 + c1, approximate=False) @ w2 + c2, g2, b2)

    def convolution(x, w, pad):
        return jax.lax.conv_general_dilated(x, w, (1, 1), [(pad, pad)] * 2, dimension_numbers=("NCHW", "OIHW", "NCHW"))

    def pooled(x, start, monoid):
        return jax.lax.reduce_window(x, start, monoid, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")

    def batchnorm(x, m, v, g, b):
        along = lambda y: y[None, :, None, None]
        return (x - along(m)) * along(jax.lax.rsqrt(v + 1e-5) * g) + along(b)

    return dict(
        add=lambda x, y: x + y,
        fma_relu=lambda x, y, z: jax.nn.relu(x * y + z),
        gelu_tanh=lambda x: x * 0.5 * (jnp.tanh((x + 0.044715 * x * x * x) * 0.7978845608) + 1.0),
        sigmoid=jax.nn.sigmoid,
        tanh=jnp.tanh,
        exp=jnp.exp,
        chain10=chain10,
        sum_all=jnp.sum,
        sum_axis0=lambda x: x.sum(0),
        sum_axis1=lambda x: x.sum(1),
        mean_axis0=lambda x: x.mean(0),
        max_axis1=lambda x: x.max(1),
        argmax_axis1=lambda x: x.argmax(1),
        log_softmax=lambda x: jax.nn.log_softmax(x, -1),
        softmax=lambda x: jax.nn.softmax(x, -1),
        layernorm=norm,
        rmsnorm=lambda x, g: x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * g,
        matmul=lambda x, y: x @ y,
        mm_bias_relu=lambda x, w, b: jax.nn.relu(x @ w + b),
        matvec=lambda x, y: x @ y,
        scores=lambda q, k: jnp.einsum("bhqd,bhkd->bhqk", q, k),
        three=lambda x, y, z: jnp.einsum("ijk,kl,lm->ijm", x, y, z),
        abcd=lambda x, y, z: jnp.einsum("abcd,cdef,efgh->abgh", x, y, z),
        network_10=lambda *all: jnp.einsum("pa,pe,aqb,eqf,brc,frg,csd,gsh,dt,ht->", *all),
        transpose=lambda x: x.T,
        conv=lambda x, w: convolution(x, w, 0),
        conv_padded=lambda x, w: convolution(x, w, 1),
        maxpool=lambda x: pooled(x, -jnp.inf, jax.lax.max),
        avgpool=lambda x: pooled(x, 0.0, jax.lax.add) * 0.25,
        batchnorm=batchnorm,
        mlp=lambda x, w1, b1, w2, b2, w3, b3: jax.nn.relu(jax.nn.relu(x @ w1 + b1) @ w2 + b2) @ w3 + b3,
        attention=lambda q, k, v: jax.nn.softmax(q @ k.swapaxes(-1, -2) * 0.125, -1) @ v,
        encoder=encoder,
        tiny5=lambda x, y: jax.nn.relu((x + y) * x - y) * 0.5,
    )


SQUARE, ROWS = [1024, 1024], [4096, 1024]
NETWORK = [[16, 64]] * 2 + [[64, 16, 64]] * 6 + [[64, 16]] * 2
LAYER = [[8, 128, 384]] * 4 + [[384, 384], [384], [384], [384, 1536], [1536], [1536, 384], [384], [384], [384]]

# Each row's function and the shapes of its inputs.
WORKLOADS = {
    "add_256x256": ("add", [[256, 256]] * 2),
    "add_1024x1024": ("add", [SQUARE] * 2),
    "fma_relu_64k": ("fma_relu", [[64 * K]] * 3),
    "fma_relu_1m": ("fma_relu", [[M]] * 3),
    "fma_relu_16m": ("fma_relu", [[16 * M]] * 3),
    "gelu_tanh_1m": ("gelu_tanh", [[M]]),
    "sigmoid_1m": ("sigmoid", [[M]]),
    "tanh_1m": ("tanh", [[M]]),
    "exp_1m": ("exp", [[M]]),
    "chain10_1m": ("chain10", [[M]] * 2),
    "chain10_16m": ("chain10", [[16 * M]] * 2),
    "sum_all_256x256": ("sum_all", [[256, 256]]),
    "sum_all_1024x1024": ("sum_all", [SQUARE]),
    "sum_axis0_1024": ("sum_axis0", [SQUARE]),
    "sum_axis1_1024": ("sum_axis1", [SQUARE]),
    "mean_axis0_1024": ("mean_axis0", [SQUARE]),
    "max_axis1_1024": ("max_axis1", [SQUARE]),
    "argmax_axis1_1024": ("argmax_axis1", [SQUARE]),
    "log_softmax_256x10": ("log_softmax", [[256, 10]]),
    "log_softmax_1024x10": ("log_softmax", [[1024, 10]]),
    "log_softmax_4096x10": ("log_softmax", [[4096, 10]]),
    "log_softmax_4096x1024": ("log_softmax", [ROWS]),
    "softmax_4096x1024": ("softmax", [ROWS]),
    "layernorm_4096x1024": ("layernorm", [ROWS, [1024], [1024]]),
    "rmsnorm_4096x1024": ("rmsnorm", [ROWS, [1024]]),
    "matmul_64": ("matmul", [[64, 64]] * 2),
    "matmul_128": ("matmul", [[128, 128]] * 2),
    "matmul_256": ("matmul", [[256, 256]] * 2),
    "matmul_512": ("matmul", [[512, 512]] * 2),
    "matmul_1000": ("matmul", [[1000, 1000]] * 2),
    "matmul_1024": ("matmul", [SQUARE] * 2),
    "matmul_2048": ("matmul", [[2048, 2048]] * 2),
    "matmul_4096": ("matmul", [[4096, 4096]] * 2),
    "matmul_f64_1000": ("matmul", [[1000, 1000]] * 2, F64),
    "mm_bias_relu_1024": ("mm_bias_relu", [SQUARE, SQUARE, [1024]]),
    "mm_bias_relu_64x784x256": ("mm_bias_relu", [[64, 784], [784, 256], [256]]),
    "bmm_32x128x64x128": ("matmul", [[32, 128, 64], [32, 64, 128]]),
    "matvec_4096": ("matvec", [[4096, 4096], [4096]]),
    "einsum_attn_scores": ("scores", [[8, 12, 128, 64]] * 2),
    "einsum_three_operand": ("three", [[32, 64, 256], [256, 256], [256, 128]]),
    "einsum_abcd_16": ("abcd", [[16] * 4] * 3),
    "einsum_network_10": ("network_10", NETWORK),
    "transpose_1024": ("transpose", [SQUARE]),
    "transpose_4096": ("transpose", [[4096, 4096]]),
    "conv2d_32x1x28x28_16x3x3": ("conv", [[32, 1, 28, 28], [16, 1, 3, 3]]),
    "conv2d_8x64x56x56_64x3x3": ("conv_padded", [[8, 64, 56, 56], [64, 64, 3, 3]]),
    "maxpool2d_32x16x24x24": ("maxpool", [[32, 16, 24, 24]]),
    "avgpool2d_32x16x24x24": ("avgpool", [[32, 16, 24, 24]]),
    "batchnorm_32x64x56x56": ("batchnorm", [[32, 64, 56, 56]] + [[64]] * 4),
    "mlp_fwd_b64": ("mlp", [[64, 784], [784, 256], [256], [256, 128], [128], [128, 10], [10]]),
    "attention_8x12x128x64": ("attention", [[8, 12, 128, 64]] * 3),
    "attention_1x12x1024x64": ("attention", [[1, 12, 1024, 64]] * 3),
    "encoder_layer_8x128x384": ("encoder", LAYER),
    "tiny5_16": ("tiny5", [[16]] * 2),
}

# Operands that are the same in every call of a model, and so in its file: weights of networks.
FIXED = {"mlp": range(1, 7), "encoder": range(4, 13), "conv_padded": [1], "conv": [1], "batchnorm": range(1, 5)}


def operands(name):
    """The arrays of a workload, the same in every process; variances are positive, and all is so small that long sums stay so."""
    of, shapes, *dtype = WORKLOADS[name]
    random = np.random.default_rng(7)
    made = [random.standard_normal(s).astype(dtype[0] if dtype else F32) * 0.5 for s in shapes]
    if of == "batchnorm":
        made[2] = np.abs(made[2]) + 0.5
    if of == "network_10":
        made = [x * np.float32(0.2) for x in made]
    return made


def export(name, path):
    """Writes a workload as ONNX; weights are in the file."""
    import torch

    of = WORKLOADS[name][0]
    function, arrays = torch_functions()[of], [torch.from_numpy(x) for x in operands(name)]
    fixed = FIXED.get(of, [])

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for k in fixed:
                self.register_buffer(f"w{k}", arrays[k])

        def forward(self, *given):
            given = iter(given)
            return function(*(getattr(self, f"w{k}") if k in fixed else next(given) for k in range(len(arrays))))

    free = [k for k in range(len(arrays)) if k not in fixed]
    names = [f"x{k}" for k in free]
    warnings.simplefilter("ignore")
    torch.onnx.export(Model(), tuple(arrays[k] for k in free), str(path), input_names=names, dynamo=False, opset_version=17)
    return {n: arrays[k].numpy() for n, k in zip(names, free)}


def median_us(call, seconds):
    """The median time of a call in microseconds, of samples of about a third of a millisecond."""
    begin = time.perf_counter()
    call()
    call()
    count = max(1, int(3e-4 / max((time.perf_counter() - begin) / 2, 1e-7)))
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        begin = time.perf_counter()
        for _ in range(count):
            call()
        times.append((time.perf_counter() - begin) / count)
    return sorted(times)[len(times) // 2] * 1e6


class Torch:
    def __init__(self, threads):
        import torch

        torch.set_num_threads(threads)
        self.torch, self.functions = torch, torch_functions()

    def prepare(self, name, _model):
        arrays, function = [self.torch.from_numpy(x) for x in operands(name)], self.functions[WORKLOADS[name][0]]

        def call():
            with self.torch.inference_mode():
                return function(*arrays)

        return call, lambda: call().numpy()


class Jax:
    def __init__(self, threads):
        # XLA takes the cores that the process may run on.
        os.environ["JAX_ENABLE_X64"] = "1"
        import jax

        self.jax, self.functions = jax, jax_functions()

    def prepare(self, name, _model):
        arrays = [self.jax.numpy.asarray(x) for x in operands(name)]
        function = self.jax.jit(self.functions[WORKLOADS[name][0]])
        return lambda: function(*arrays).block_until_ready(), lambda: np.asarray(function(*arrays))


class Onnxruntime:
    def __init__(self, threads):
        import onnxruntime

        self.runtime, self.threads = onnxruntime, threads

    def prepare(self, name, model):
        options = self.runtime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = self.threads, 4
        session = self.runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        arrays, binding = operands(name), session.io_binding()
        for given in session.get_inputs():
            binding.bind_cpu_input(given.name, arrays[int(given.name[1:])])
        first = session.run(None, {g.name: arrays[int(g.name[1:])] for g in session.get_inputs()})[0]
        out = self.runtime.OrtValue.ortvalue_from_numpy(np.zeros_like(first))
        binding.bind_ortvalue_output(session.get_outputs()[0].name, out)
        self.kept = binding, out
        return lambda: session.run_with_iobinding(binding), lambda: first


PEERS = {"torch": Torch, "onnxruntime": Onnxruntime, "jax": Jax}


def be_peer(peer, threads, seconds):
    """Prints the median for each line, which names a workload and its model; saves the result at first."""
    here, known = PEERS[peer](threads), (None, None, None)
    for line in sys.stdin:
        name, model, result = line.split("\t")
        if known[0] != name:
            known = (name, *here.prepare(name, model))
            np.save(result.strip(), known[2]())
        print(median_us(known[1], seconds), flush=True)


def tlc_us(tlc, model, inputs, threads, seconds):
    given = [word for name, path in inputs.items() for word in ("-i", f"{name}={path}")]
    command = [tlc, "bench", str(model), "--time", str(seconds), "--threads", str(threads), "--format", "json", *given]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(ran.stdout)["median_ns"] / 1e3


def tlc_result(tlc, model, inputs, threads, path):
    given = [word for name, of in inputs.items() for word in ("-i", f"{name}={of}")]
    command = [tlc, "run", str(model), *given, "--threads", str(threads), "-o", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    return np.load(next(path.glob("*.npy")))


def measured(name, at, args, threads, peers):
    """The least median of each peer in microseconds, tlc's among them, or why there is none."""
    model = at / f"{name}.onnx"
    inputs = {}
    for key, array in export(name, model).items():
        np.save(at / f"{key}.npy", array)
        inputs[key] = at / f"{key}.npy"
    times = {peer: math.inf for peer in ["tlc", *peers]}
    for _ in range(args.rounds):
        times["tlc"] = min(times["tlc"], tlc_us(args.tlc, model, inputs, threads, args.time))
        for peer, process in peers.items():
            process.stdin.write(f"{name}\t{model}\t{at / peer}.npy\n")
            process.stdin.flush()
            times[peer] = min(times[peer], float(process.stdout.readline()))
    expected = np.load(at / "torch.npy").astype(np.float64)
    results = {peer: np.load(at / f"{peer}.npy") for peer in ["onnxruntime", "jax"]}
    results["tlc"] = tlc_result(args.tlc, model, inputs, threads, at / "results")
    for peer, found in results.items():
        found = found.astype(np.float64).reshape(expected.shape)
        off = np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-30)
        if not off < 1e-3:
            print(f"{name}: {peer} differs from PyTorch by {off:.1e} of the largest value", file=sys.stderr)
            return None
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tlc", default="target/release/tlc")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--time", type=float, default=0.2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    if args.peer:
        return be_peer(args.peer, int(args.threads), args.time)
    # NumPy asks for huge pages; so does all else then.
    os.environ["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
    cores = sorted(os.sched_getaffinity(0))
    for threads in map(int, args.threads.split(",")):
        os.sched_setaffinity(0, cores[:threads])
        command = [sys.executable, __file__, "--threads", str(threads), "--time", str(args.time), "--peer"]
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL)
        peers = {peer: subprocess.Popen([*command, peer], **pipes) for peer in PEERS}
        print(f"| {threads} thread{'s' * (threads > 1)}, us | tlc | PyTorch | ONNX Runtime | JAX | tlc / best |\n|---|---|---|---|---|---|", flush=True)
        ratios = []
        for name in WORKLOADS:
            if args.names and name not in args.names:
                continue
            with tempfile.TemporaryDirectory() as at:
                times = measured(name, pathlib.Path(at), args, threads, peers)
            if times is None:
                continue
            ratio = times["tlc"] / min(times[peer] for peer in PEERS)
            ratios.append(ratio)
            cells = " | ".join(f"{times[p]:.3g}" for p in ["tlc", "torch", "onnxruntime", "jax"])
            print(f"| {name} | {cells} | {ratio:.2f} |", flush=True)
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            behind = sum(r > 1.03 for r in ratios)
            print(f"\n{len(ratios)} rows, geometric mean {mean:.2f}, {behind} rows above 1.03\n", flush=True)
        for process in peers.values():
            process.stdin.close()
            process.wait()
    os.sched_setaffinity(0, cores)


if __name__ == "__main__":
    main()
