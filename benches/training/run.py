"""Steps of training in tlc, JAX, PyTorch and candle, taking turns, each in a process of its own.

python3 benches/training/run.py [--threads 1,2] [--rounds 7] [--cases mlp,cnn] [--candle] [--parts] [--quiet COMMAND]

Builds benches/training first, and with --candle the program of benches/compare. Peers that are not installed are left out (`pip install jax`,
`pip install torch`). All programs begin with the same parameters and the same batch, and the losses after the same number of steps are printed,
so that it shows if one does less. A time is the least of the medians of the rounds. Memory is what a process had at most less what it had
before the case began (for tlc and candle, all of it), beside what tlc says before that a call needs. With --parts, forward passes of tlc and forward with
backward ones are timed in turns, against the ratio of their floors. A command given by --quiet is put in front of each measured process.
"""

import argparse, json, os, shlex, subprocess, sys, time
from pathlib import Path

HERE = Path(__file__).resolve().parent
STEPS = {"mlp": 200, "adam": 30, "adam_clipped": 30, "conv_dx": 30, "conv_dw": 30, "cnn": 30, "transformer": 8}


def wave(count, scale):
    import numpy as np

    values = np.sin(np.arange(count, dtype=np.float64) * 12.9898) * 43_758.5453
    return (np.modf(values)[0].astype(np.float32) * np.float32(scale)).astype(np.float32)


def resident_bytes(field):
    """A size of this process: `VmRSS` now, or `VmHWM` at most."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))


def measured(step, steps):
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        step()
        times.append((time.perf_counter() - begin) * 1e6)
    times.sort()
    return times[len(times) // 2], times[0]


def jax_adam(loss_of, p, rate, steps, kept=None):
    """Steps of Adam from the parameters `p`, timed; `loss_of(p, kept)` returns the loss and what is kept for the next step."""
    import jax, jax.numpy as jnp

    def step(p, m, v, t, kept):
        (loss, kept), g = jax.value_and_grad(loss_of, has_aux=True)(p, kept)
        t = t + 1
        m = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, m, g)
        v = jax.tree.map(lambda a, b: 0.999 * a + 0.001 * b * b, v, g)
        moved = lambda q, a, b: q - rate * (a / (1 - 0.9**t)) / (jnp.sqrt(b / (1 - 0.999**t)) + 1e-8)
        return jax.tree.map(moved, p, m, v), m, v, t, kept, loss

    zeros = lambda: jax.tree.map(jnp.zeros_like, p)
    state = [p, zeros(), zeros(), jnp.float32(0), kept]
    begin = time.perf_counter()
    compiled = jax.jit(step, donate_argnums=(0, 1, 2, 4)).lower(*state).compile()
    compile_ms = (time.perf_counter() - begin) * 1e3
    loss = None

    def run():
        nonlocal state, loss
        *state, loss = compiled(*state)
        loss.block_until_ready()

    for _ in range(3):
        run()
    median, least = measured(run, steps)
    return {"compile_ms": compile_ms, "median_us": median, "least_us": least, "loss": float(loss)}


def jax_mlp(steps):
    import jax, jax.numpy as jnp, numpy as np

    shapes = [(784, 256), (256,), (256, 128), (128,), (128, 10), (10,)]
    p = [jnp.asarray(wave(int(np.prod(s)), 0.05).reshape(s)) for s in shapes]
    x = jnp.asarray(wave(64 * 784, 1.0).reshape(64, 784))
    labels = jnp.asarray(np.arange(64) * 7 % 10)

    def loss_of(p, kept):
        h = jax.nn.relu(x @ p[0] + p[1])
        h = jax.nn.relu(h @ p[2] + p[3])
        logs = jax.nn.log_softmax(h @ p[4] + p[5])
        return -jnp.take_along_axis(logs, labels[:, None], 1).mean(), kept

    return jax_adam(loss_of, p, 0.001, steps)


def jax_convolution(by_images):
    """The derivative of the convolution of benches/training/src/images.rs, by its images or its weights."""

    def run(steps):
        import jax, jax.numpy as jnp, numpy as np

        images, weights = (8, 64, 56, 56), (64, 64, 3, 3)
        of = lambda shape, scale: jnp.asarray(wave(int(np.prod(shape)), scale).reshape(shape))
        x, w, d = of(images, 1.0), of(weights, 0.05), of(images, 1.0)

        def derivative(x, w, d):
            by = lambda x, w: jax.lax.conv_general_dilated(x, w, (1, 1), ((1, 1), (1, 1)))
            _, back = jax.vjp((lambda x: by(x, w)) if by_images else (lambda w: by(x, w)), x if by_images else w)
            return back(d)[0]

        begin = time.perf_counter()
        compiled = jax.jit(derivative).lower(x, w, d).compile()
        compile_ms = (time.perf_counter() - begin) * 1e3
        found = None

        def step():
            nonlocal found
            found = compiled(x, w, d)
            found.block_until_ready()

        for _ in range(3):
            step()
        median, least = measured(step, steps)
        return {"compile_ms": compile_ms, "median_us": median, "least_us": least, "loss": float(found[0, 0, 0, 0])}

    return run


def jax_cnn(steps):
    """The residual network of benches/training/src/images.rs."""
    import jax, jax.numpy as jnp, numpy as np

    parameters, statistics = {}, {}

    def declare(name, inner, outer, size):
        scale = np.float32(np.sqrt(np.float32(6.0 / (inner * size * size))))
        parameters[name + ".w"] = ((outer, inner, size, size), scale)
        parameters[name + ".scale"] = ((outer,), 0.0)
        parameters[name + ".offset"] = ((outer,), 0.0)
        statistics[name + ".mean"] = statistics[name + ".var"] = outer

    blocks = []
    declare("stem", 3, 16, 3)
    inner = 16
    for stage, outer in enumerate([16, 32, 64]):
        for block in range(2):
            stride = 2 if stage > 0 and block == 0 else 1
            name = f"stage{stage}.{block}"
            blocks.append((name, stride))
            declare(name + ".a", inner, outer, 3)
            declare(name + ".b", outer, outer, 3)
            if stride > 1:
                declare(name + ".short", inner, outer, 1)
            inner = outer
    parameters["head.w"] = ((64, 10), 0.1)
    parameters["head.b"] = ((10,), 0.0)
    p = {n: jnp.asarray(wave(int(np.prod(s)), scale).reshape(s)) for n, (s, scale) in parameters.items()}
    running = {n: jnp.ones(c, jnp.float32) for n, c in statistics.items()}
    x = jnp.asarray(wave(32 * 3 * 32 * 32, 1.0).reshape(32, 3, 32, 32))
    labels = jnp.asarray(np.arange(32) * 7 % 10)

    def loss_of(p, running):
        new = {}

        def normalized(name, x, size, stride):
            pad = size // 2
            y = jax.lax.conv_general_dilated(x, p[name + ".w"], (stride, stride), ((pad, pad), (pad, pad)))
            mean, var = y.mean((0, 2, 3)), y.var((0, 2, 3))
            count = y.size / y.shape[1]
            new[name + ".mean"] = 0.9 * running[name + ".mean"] + 0.1 * mean
            new[name + ".var"] = 0.9 * running[name + ".var"] + 0.1 * var * count / (count - 1)
            column = lambda v: v[None, :, None, None]
            y = (y - column(mean)) * jax.lax.rsqrt(column(var) + 1e-5)
            return y * column(p[name + ".scale"] + 1) + column(p[name + ".offset"])

        h = jax.nn.relu(normalized("stem", x, 3, 1))
        for name, stride in blocks:
            y = jax.nn.relu(normalized(name + ".a", h, 3, stride))
            y = normalized(name + ".b", y, 3, 1)
            if stride > 1:
                h = normalized(name + ".short", h, 1, stride)
            h = jax.nn.relu(h + y)
        logs = jax.nn.log_softmax(h.mean((2, 3)) @ p["head.w"] + p["head.b"])
        return -jnp.take_along_axis(logs, labels[:, None], 1).mean(), new

    return jax_adam(loss_of, p, 0.001, steps, running)


def transformer_shapes():
    """Names and shapes of the transformer of benches/training/src/main.rs, in its order."""
    width, hidden, tokens = 384, 1536, 256
    shapes = [("embed", (tokens, width)), ("place", (128, width))]
    for layer in range(6):
        parts = [
            ("norm1.weight", (width,)), ("norm1.bias", (width,)),
            ("qkv.weight", (width, 3 * width)), ("qkv.bias", (3 * width,)),
            ("out.weight", (width, width)), ("out.bias", (width,)),
            ("norm2.weight", (width,)), ("norm2.bias", (width,)),
            ("up.weight", (width, hidden)), ("up.bias", (hidden,)),
            ("down.weight", (hidden, width)), ("down.bias", (width,)),
        ]
        shapes += [(f"{layer}.{name}", shape) for name, shape in parts]
    return shapes + [("head", (width, tokens))]


def jax_transformer(steps):
    """The transformer of benches/training/src/main.rs."""
    import jax, jax.numpy as jnp, numpy as np

    def first(name, shape):
        if "norm" in name and name.endswith("weight"):
            return jnp.ones(shape, jnp.float32)
        return jnp.asarray(wave(int(np.prod(shape)), 0.05).reshape(shape))

    p = {name: first(name, shape) for name, shape in transformer_shapes()}
    number = np.arange(8 * 128).reshape(8, 128)
    x, labels = jnp.asarray(number * 7 % 251), jnp.asarray((number * 7 + 7) % 251)
    hidden_keys = jnp.tril(jnp.ones((128, 128), bool))

    def normalized(h, weight, bias):
        mean = h.mean(-1, keepdims=True)
        return (h - mean) * jax.lax.rsqrt(h.var(-1, keepdims=True) + 1e-5) * weight + bias

    def loss_of(p, kept):
        h = p["embed"][x] + p["place"]
        for layer in range(6):
            w = lambda name: p[f"{layer}.{name}"]
            n = normalized(h, w("norm1.weight"), w("norm1.bias"))
            heads = (n @ w("qkv.weight") + w("qkv.bias")).reshape(8, 128, 3, 6, 64).transpose(2, 0, 3, 1, 4)
            scores = heads[0] @ heads[1].swapaxes(-1, -2) * (1 / np.sqrt(64))
            seen = jax.nn.softmax(jnp.where(hidden_keys, scores, -jnp.inf)) @ heads[2]
            h = h + seen.transpose(0, 2, 1, 3).reshape(8, 128, 384) @ w("out.weight") + w("out.bias")
            n = normalized(h, w("norm2.weight"), w("norm2.bias"))
            h = h + jax.nn.gelu(n @ w("up.weight") + w("up.bias")) @ w("down.weight") + w("down.bias")
        logs = jax.nn.log_softmax(h @ p["head"])
        return -jnp.take_along_axis(logs, labels[..., None], -1).mean(), kept

    return jax_adam(loss_of, p, 0.0001, steps)


def torch_adam(loss_of, p, rate, steps):
    """Steps of Adam from the parameters `p`, timed; the peer of `jax_adam`."""
    import torch

    adam = torch.optim.Adam(p, lr=rate, fused=True)
    loss = None

    def run():
        nonlocal loss
        adam.zero_grad()
        loss = loss_of()
        loss.backward()
        adam.step()

    for _ in range(3):
        run()
    median, least = measured(run, steps)
    return {"compile_ms": 0.0, "median_us": median, "least_us": least, "loss": float(loss.detach())}


def torch_of(shape, scale, learned=False):
    import numpy as np, torch

    return torch.tensor(wave(int(np.prod(shape)), scale).reshape(shape), requires_grad=learned)


def torch_mlp(steps):
    import torch

    shapes = [(784, 256), (256,), (256, 128), (128,), (128, 10), (10,)]
    p = [torch_of(s, 0.05, True) for s in shapes]
    x = torch_of((64, 784), 1.0)
    labels = torch.arange(64) * 7 % 10

    def loss_of():
        h = torch.relu(x @ p[0] + p[1])
        h = torch.relu(h @ p[2] + p[3])
        return torch.nn.functional.cross_entropy(h @ p[4] + p[5], labels)

    return torch_adam(loss_of, p, 0.001, steps)


def torch_convolution(by_images):
    """The peer of `jax_convolution`."""

    def run(steps):
        import torch

        images, weights = (8, 64, 56, 56), (64, 64, 3, 3)
        x, w, d = torch_of(images, 1.0), torch_of(weights, 0.05), torch_of(images, 1.0)
        by = torch.nn.grad.conv2d_input if by_images else torch.nn.grad.conv2d_weight
        operands = (images, w, d) if by_images else (x, weights, d)
        found = None

        def step():
            nonlocal found
            found = by(*operands, padding=1)

        for _ in range(3):
            step()
        median, least = measured(step, steps)
        return {"compile_ms": 0.0, "median_us": median, "least_us": least, "loss": float(found[0, 0, 0, 0])}

    return run


def torch_cnn(steps):
    """The residual network of benches/training/src/images.rs."""
    import numpy as np, torch
    from torch.nn import functional as F

    p, statistics, blocks = {}, {}, []

    def declare(name, inner, outer, size):
        p[name + ".w"] = torch_of((outer, inner, size, size), np.sqrt(np.float32(6.0 / (inner * size * size))), True)
        # The scale is 1 and what is learned, as there.
        p[name + ".scale"] = torch.zeros(outer, requires_grad=True)
        p[name + ".offset"] = torch.zeros(outer, requires_grad=True)
        statistics[name] = (torch.ones(outer), torch.ones(outer))

    declare("stem", 3, 16, 3)
    inner = 16
    for stage, outer in enumerate([16, 32, 64]):
        for block in range(2):
            stride = 2 if stage > 0 and block == 0 else 1
            name = f"stage{stage}.{block}"
            blocks.append((name, stride))
            declare(name + ".a", inner, outer, 3)
            declare(name + ".b", outer, outer, 3)
            if stride > 1:
                declare(name + ".short", inner, outer, 1)
            inner = outer
    p["head.w"] = torch_of((64, 10), 0.1, True)
    p["head.b"] = torch.zeros(10, requires_grad=True)
    x = torch_of((32, 3, 32, 32), 1.0)
    labels = torch.arange(32) * 7 % 10

    def normalized(name, x, size, stride):
        y = F.conv2d(x, p[name + ".w"], stride=stride, padding=size // 2)
        mean, var = statistics[name]
        return F.batch_norm(y, mean, var, p[name + ".scale"] + 1, p[name + ".offset"], training=True, momentum=0.1, eps=1e-5)

    def loss_of():
        h = torch.relu(normalized("stem", x, 3, 1))
        for name, stride in blocks:
            y = torch.relu(normalized(name + ".a", h, 3, stride))
            y = normalized(name + ".b", y, 3, 1)
            if stride > 1:
                h = normalized(name + ".short", h, 1, stride)
            h = torch.relu(h + y)
        return F.cross_entropy(h.mean((2, 3)) @ p["head.w"] + p["head.b"], labels)

    return torch_adam(loss_of, list(p.values()), 0.001, steps)


def torch_transformer(steps):
    """The transformer of benches/training/src/main.rs."""
    import torch
    from torch.nn import functional as F

    def first(name, shape):
        if "norm" in name and name.endswith("weight"):
            return torch.ones(shape, requires_grad=True)
        return torch_of(shape, 0.05, True)

    p = {name: first(name, shape) for name, shape in transformer_shapes()}
    number = torch.arange(8 * 128).reshape(8, 128)
    x, labels = number * 7 % 251, (number * 7 + 7) % 251

    def loss_of():
        h = F.embedding(x, p["embed"]) + p["place"]
        for layer in range(6):
            w = lambda name: p[f"{layer}.{name}"]
            n = F.layer_norm(h, (384,), w("norm1.weight"), w("norm1.bias"))
            heads = (n @ w("qkv.weight") + w("qkv.bias")).reshape(8, 128, 3, 6, 64).permute(2, 0, 3, 1, 4)
            seen = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
            h = h + seen.transpose(1, 2).reshape(8, 128, 384) @ w("out.weight") + w("out.bias")
            n = F.layer_norm(h, (384,), w("norm2.weight"), w("norm2.bias"))
            h = h + F.gelu(n @ w("up.weight") + w("up.bias"), approximate="tanh") @ w("down.weight") + w("down.bias")
        return F.cross_entropy((h @ p["head"]).reshape(-1, 256), labels.reshape(-1))

    return torch_adam(loss_of, list(p.values()), 0.0001, steps)


def torch_many(clipped):
    """AdamW over 300 tensors, behind a clip by their global norm or not."""

    def run(steps):
        import torch

        sizes = [33_333 + (k % 7 - 3) * 16 for k in range(300)]
        p = [torch.ones(n, requires_grad=True) for n in sizes]
        adam = torch.optim.AdamW(p, lr=0.001, weight_decay=0.01, fused=True)
        given = [torch.full_like(q, 0.1) for q in p]

        def step():
            # Clipping changes gradients where they are.
            for q, g in zip(p, given):
                q.grad = g
            if clipped:
                torch.nn.utils.clip_grad_norm_(p, 1.0, foreach=True)
            adam.step()

        for _ in range(3):
            step()
        median, least = measured(step, steps)
        return {"compile_ms": 0.0, "median_us": median, "least_us": least, "loss": 0.1}

    return run


PEERS = {
    ("jax", "mlp"): jax_mlp,
    ("jax", "conv_dx"): jax_convolution(True),
    ("jax", "conv_dw"): jax_convolution(False),
    ("jax", "cnn"): jax_cnn,
    ("jax", "transformer"): jax_transformer,
    ("torch", "mlp"): torch_mlp,
    ("torch", "conv_dx"): torch_convolution(True),
    ("torch", "conv_dw"): torch_convolution(False),
    ("torch", "cnn"): torch_cnn,
    ("torch", "transformer"): torch_transformer,
    ("torch", "adam"): torch_many(False),
    ("torch", "adam_clipped"): torch_many(True),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cases", default=",".join(STEPS))
    parser.add_argument("--candle", action="store_true")
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--quiet", type=shlex.split, default=[])
    parser.add_argument("--be", nargs=3, metavar=("PEER", "CASE", "THREADS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be:
        peer, case, threads = options.be
        if peer == "torch":
            import torch

            torch.set_num_threads(int(threads))
        # What a peer imports and starts is not what the case needs.
        __import__({"jax": "jax.numpy", "torch": "torch"}[peer])
        before = resident_bytes("VmRSS")
        found = PEERS[peer, case](STEPS[case])
        print(json.dumps(found | {"peak_bytes": resident_bytes("VmHWM") - before}))
        return
    target = HERE.parent.parent / "target"
    programs = {"tlc": (HERE, "tlc-training", target / "training")}
    if options.candle:
        programs["candle"] = (HERE.parent / "compare", "training", target / "compare")
    for where, binary, built in programs.values():
        subprocess.run(["cargo", "build", "--release", "--quiet", "--bin", binary, "--target-dir", built], cwd=where, check=True)

    def run(program, case, threads):
        """What a process prints, with its peak; None if it fails."""
        cores = ",".join(str(c) for c in range(int(threads)))
        environment = dict(os.environ, OMP_NUM_THREADS=threads, RAYON_NUM_THREADS=threads)
        steps = str(STEPS[case.split(":")[0]])
        if program in programs:
            _, binary, built = programs[program]
            command = [str(built / "release" / binary), case, *([threads] if program == "tlc" else []), steps]
        else:
            command = [sys.executable, os.path.abspath(__file__), "--be", program, case, threads]
        # JAX takes as many threads as there are cores.
        done = subprocess.run([*options.quiet, "taskset", "-c", cores, *command], env=environment, capture_output=True, text=True)
        return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None

    def rounds(programs_and_cases, threads):
        found = {}
        for _ in range(options.rounds):
            for key in programs_and_cases:
                result = run(*key, threads)
                if result:
                    found.setdefault(key, []).append(result)
        return found

    for threads in options.threads.split(","):
        for case in options.cases.split(","):
            if options.parts:
                parts = [("tlc", f"{case}:forward"), ("tlc", f"{case}:gradients")]
                found = rounds(parts, threads)
                times, floors = ([min(r[what] for r in found[part]) for part in parts] for what in ("median_us", "floor_us"))
                ratios = times[1] / times[0], floors[1] / floors[0]
                print(
                    f"{case} threads {threads}: forward {times[0]:.0f} us, with gradients {times[1]:.0f} us, ratio {ratios[0]:.2f}, "
                    f"of floors {ratios[1]:.2f} ({floors[0]:.0f} and {floors[1]:.0f} us), {ratios[0] / ratios[1]:.2f} of it",
                    flush=True,
                )
                continue
            peers = ["tlc", *[peer for peer, of in PEERS if of == case], *(["candle"] if options.candle else [])]
            found = rounds([(peer, case) for peer in peers], threads)
            base = min(r["median_us"] for r in found["tlc", case])
            for (program, _), runs in found.items():
                best = min(r["median_us"] for r in runs)
                compiled = min(r["compile_ms"] for r in runs)
                more = {k: v for k, v in runs[0].items() if k in ("steps", "beside_products", "peak_bytes", "memory_bytes", "loss")}
                print(
                    f"{case} threads {threads} {program}: {best:.0f} us a step, {best / base:.2f} of tlc's, compile {compiled:.1f} ms, {more}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
