"""Whole networks on a GPU: tlc and PyTorch, with weights in f16 and inputs that stay on the device.

python3 benches/gpu/networks.py [--tlc PATH] [--time S] [--compile] [--keep FOLDER] [NAME...]

Needs torch with a GPU, torchvision, transformers and onnxscript. Each network has random weights and is exported to ONNX. Results are compared with PyTorch's in
f32 (`off` is the distance in relation to the length, and `PyTorch off` is that of PyTorch's own in f16). Times are medians in microseconds, tlc's of calls of `tlc bench --resident`, PyTorch's as in run.py: eager, of a CUDA graph that
was captured of it, which leaves out what the host takes, and of `torch.compile` where that is asked for.
"""

import argparse
import copy
import json
import math
import pathlib
import re
import subprocess
import tempfile

import numpy as np
import torch
from run import torch_us


class Hidden(torch.nn.Module):
    """A network whose results are the hidden states, or the logits, alone."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, *given):
        found = self.network(*given)
        return found[0] if not isinstance(found, torch.Tensor) else found


class Decoding(torch.nn.Module):
    """One token of a GPT-2 whose keys and values of the tokens before are inputs."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, token, *cache):
        from transformers import DynamicCache

        past = DynamicCache()
        for layer in range(len(cache) // 2):
            past.update(cache[2 * layer], cache[2 * layer + 1], layer)
        return self.network(token, past_key_values=past, use_cache=True).logits


def bert():
    from transformers import BertConfig, BertModel

    return Hidden(BertModel(BertConfig(), add_pooling_layer=False)), [torch.randint(0, 30000, (8, 512))]


def gpt2():
    from transformers import GPT2Config, GPT2Model

    return Hidden(GPT2Model(GPT2Config(use_cache=False))), [torch.randint(0, 50000, (4, 1024))]


def gpt2_decode():
    from transformers import GPT2Config, GPT2LMHeadModel

    cache = [torch.randn(1, 12, 1023, 64) * 0.3 for _ in range(24)]
    return Decoding(GPT2LMHeadModel(GPT2Config())), [torch.randint(0, 50000, (1, 1)), *cache]


def vit():
    from torchvision.models import vit_b_16

    network = vit_b_16()
    # It begins with a head of zeros.
    torch.nn.init.normal_(network.heads.head.weight, std=0.02)
    return network, [torch.randn(16, 3, 224, 224)]


def resnet50():
    from torchvision.models import resnet50

    return resnet50(), [torch.randn(32, 3, 224, 224)]


NETWORKS = {"bert": bert, "gpt2": gpt2, "gpt2_decode": gpt2_decode, "vit": vit, "resnet50": resnet50}


def replayed(call):
    """A call that replays what one call of a function launches."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def distance(found, exact):
    return float((found.double() - exact.double()).norm() / exact.double().norm())


def measure(name, folder, args):
    torch.manual_seed(1)
    network, given = NETWORKS[name]()
    network = network.eval()
    half = lambda t: t.half() if t.is_floating_point() else t
    model = folder / f"{name}.onnx"
    eager = network.half()
    given = [half(t) for t in given]
    torch.onnx.export(eager, tuple(given), str(model), dynamo=True, verbose=False)
    eager = eager.cuda()
    on_device = [t.cuda() for t in given]
    with torch.no_grad():
        found = eager(*on_device)
        exact = copy.deepcopy(eager).float()(*(t.float() if t.is_floating_point() else t for t in on_device))
        own = distance(found, exact)
        times = {"eager": torch_us(lambda: eager(*on_device), args.time)}
        try:
            times["replayed"] = torch_us(replayed(lambda: eager(*on_device)), args.time)
        except RuntimeError as e:
            print(f"{name}: no CUDA graph: {str(e).splitlines()[0]}", flush=True)
        if args.compile:
            compiled = torch.compile(eager)
            times["compiled"] = torch_us(lambda: compiled(*on_device), args.time)
    import onnx

    inputs = [i.name for i in onnx.load(str(model), load_external_data=False).graph.input]
    command = [args.tlc, "run", str(model), "--device", "cuda", "--precision", args.precision, "-o", str(folder / "found")]
    for i, (input, tensor) in enumerate(zip(inputs, given, strict=True)):
        np.save(folder / f"{i}.npy", tensor.numpy())
        command += ["-i", f"{input}={folder}/{i}.npy"]
    subprocess.run(command, check=True, capture_output=True)
    (output,) = (folder / "found").glob("*.npy")
    off = distance(torch.from_numpy(np.load(output)).cuda(), exact)
    bench = [args.tlc, "bench", str(model), "--device", "cuda", "--precision", args.precision, "--resident", "--format", "json", "--time", str(args.time)]
    call = json.loads(subprocess.run(bench, check=True, capture_output=True, text=True).stdout)["median_ns"] / 1e3
    best = min(times.values())
    others = " | ".join(f"{times[of]:.0f}" if of in times else "" for of in ("eager", "replayed", "compiled"))
    print(f"| {name} | {call:.0f} | {others} | {call / best:.2f} | {off:.1e} | {own:.1e} |", flush=True)
    return call / best


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tlc", default="target/release/tlc")
    parser.add_argument("--time", type=float, default=0.2)
    parser.add_argument("--precision", default="exact")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--keep", type=pathlib.Path, help="leave the exported networks in this folder")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    print("| network | tlc | PyTorch | replayed | compiled | tlc / the best | off | PyTorch off |")
    print("|---|---|---|---|---|---|---|---|")
    ratios = []
    for name in args.names or list(NETWORKS):
        with tempfile.TemporaryDirectory() as scratch:
            folder = args.keep / name if args.keep else pathlib.Path(scratch)
            folder.mkdir(parents=True, exist_ok=True)
            try:
                ratios.append(measure(name, folder, args))
            except subprocess.CalledProcessError as e:
                said = e.stderr if isinstance(e.stderr, str) else e.stderr.decode()
                print(f"| {name} | {said.strip().splitlines()[-1]} |", flush=True)
    if ratios:
        print(f"geometric mean: {math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}")


if __name__ == "__main__":
    main()
