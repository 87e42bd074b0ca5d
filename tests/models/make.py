#!/usr/bin/env python3
"""Builds networks of the kinds that people export, as ONNX models with random weights, and records what ONNX Runtime answers.

    python3 tests/models/make.py [--full FOLDER]

Writes tests/models/NAME.onnx and NAME.npz (inputs `in.K.NAME` and outputs `out.K.NAME` of several calls K with different sizes):
small editions of every network, for the test suite. With --full, writes FOLDER/NAME.onnx in the sizes of the published networks
instead, for the benchmark, with one call of inputs and outputs beside each. The environment needs the wheels onnx, onnxruntime
and numpy; the script makes one in target/models-venv and runs itself there.

Weights are drawn with NumPy's PCG64 under fixed seeds, scaled so that activations keep their size from layer to layer: an error
shows, instead of being drowned or blown up.
"""

import argparse
import pathlib
import subprocess
import sys
import venv

PACKAGES = ["onnx==1.23.2", "onnxruntime==1.31.1", "numpy"]
here = pathlib.Path(__file__).resolve().parent
environment = here.parents[1] / "target" / "models-venv"

if "--inside" not in sys.argv:
    python = environment / "bin" / "python"
    if not python.exists():
        venv.create(environment, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    sys.exit(subprocess.run([python, __file__, "--inside", *sys.argv[1:]]).returncode)

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnxruntime  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

F32, I64 = TensorProto.FLOAT, TensorProto.INT64


class Net:
    """A graph being written: every method adds nodes and answers the name of their result."""

    def __init__(self, name, seed, opset=17):
        self.name, self.opset = name, opset
        self.random = np.random.Generator(np.random.PCG64(seed))
        self.nodes, self.weights, self.inputs, self.outputs = [], [], [], []
        self.calls = []
        self.constants = {}

    def input(self, name, dtype, shape):
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def output(self, value, name, dtype, shape):
        self.nodes.append(helper.make_node("Identity", [value], [name], name=f"out_{name}"))
        self.outputs.append(helper.make_tensor_value_info(name, dtype, shape))

    def __call__(self, op, *inputs, outputs=1, **attributes):
        k = len(self.nodes)
        names = [f"v{k}" if outputs == 1 else f"v{k}_{i}" for i in range(outputs)]
        inputs = [i if isinstance(i, str) else self.constant(i) for i in inputs]
        self.nodes.append(helper.make_node(op, inputs, names, name=f"{op.lower()}_{k}", **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, value):
        array = np.asarray(value)
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self.constants:
            self.constants[key] = self.weight(array)
        return self.constants[key]

    def weight(self, array):
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def normal(self, *shape, fan=None, scale=1.0):
        fan = fan or (np.prod(shape[1:]) if len(shape) > 1 else 1)
        return self.weight((self.random.standard_normal(shape) * scale / np.sqrt(fan)).astype(np.float32))

    def near(self, value, *shape, spread=0.1):
        return self.weight((value + spread * self.random.standard_normal(shape)).astype(np.float32))

    def positive(self, *shape):
        return self.weight(self.random.uniform(0.5, 1.5, shape).astype(np.float32))

    # Layers.

    def conv(self, x, cin, cout, kernel, stride=1, pad=None, groups=1, bias=True, dilation=1, scale=1.4):
        dims = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        pad = [(d - 1) * dilation // 2 for d in dims] if pad is None else [pad] * len(dims)
        w = self.normal(cout, cin // groups, *dims, scale=scale)
        operands = [x, w] + ([self.near(0, cout)] if bias else [])
        return self("Conv", *operands, strides=[stride] * len(dims), pads=pad * 2, group=groups,
                    dilations=[dilation] * len(dims), kernel_shape=list(dims))

    def batch_norm(self, x, c):
        return self("BatchNormalization", x, self.near(1, c), self.near(0, c), self.near(0, c), self.positive(c))

    def linear(self, x, cin, cout, bias=True, scale=1.0):
        y = self("MatMul", x, self.normal(cin, cout, fan=cin, scale=scale))
        return self("Add", y, self.near(0, cout)) if bias else y

    def layer_norm(self, x, c):
        return self("LayerNormalization", x, self.near(1, c), self.near(0, c), axis=-1, epsilon=1e-5)

    def layer_norm_in_parts(self, x, c):
        """As exporters before opset 17 write it."""
        centred = self("Sub", x, self("ReduceMean", x, axes=[-1]))
        variance = self("ReduceMean", self("Pow", centred, np.float32(2)), axes=[-1])
        normal = self("Div", centred, self("Sqrt", self("Add", variance, np.float32(1e-12))))
        return self("Add", self("Mul", normal, self.near(1, c)), self.near(0, c))

    def gelu(self, x):
        erf = self("Erf", self("Div", x, np.float32(np.sqrt(2))))
        return self("Mul", self("Mul", x, self("Add", erf, np.float32(1))), np.float32(0.5))

    def silu(self, x):
        return self("Mul", x, self("Sigmoid", x))

    def size(self, x, axis):
        """One extent of x, as a vector of one, computed in the graph."""
        extent = self("Gather", self("Shape", x), np.int64(axis), axis=0)
        return self("Unsqueeze", extent, np.array([0]))

    def reshape(self, x, *parts):
        """Parts are numbers or names of vectors of one."""
        parts = [p if isinstance(p, str) else np.array([p]) for p in parts]
        return self("Reshape", x, self("Concat", *parts, axis=0))

    def heads(self, x, n, d):
        split = self.reshape(x, self.size(x, 0), self.size(x, 1), n, d)
        return self("Transpose", split, perm=[0, 2, 1, 3])

    def merged(self, x, width):
        swapped = self("Transpose", x, perm=[0, 2, 1, 3])
        return self.reshape(swapped, self.size(swapped, 0), self.size(swapped, 1), width)

    def attention(self, q, k, v, d, mask=None):
        scores = self("MatMul", q, self("Transpose", k, perm=[0, 1, 3, 2]))
        scores = self("Div", scores, np.float32(np.sqrt(d)))
        if mask is not None:
            scores = self("Add", scores, mask)
        return self("MatMul", self("Softmax", scores, axis=-1), v)

    def encoder_layer(self, x, width, heads, hidden, mask=None, first=True, in_parts=False):
        """A transformer layer, normalizing first or last."""
        norm = self.layer_norm_in_parts if in_parts else self.layer_norm
        d = width // heads
        y = norm(x, width) if first else x
        q, k, v = (self.heads(self.linear(y, width, width), heads, d) for _ in range(3))
        mixed = self.linear(self.merged(self.attention(q, k, v, d, mask), width), width, width)
        x = self("Add", x, mixed)
        if not first:
            x = norm(x, width)
        y = norm(x, width) if first else x
        y = self.linear(self.gelu(self.linear(y, width, hidden)), hidden, width)
        x = self("Add", x, y)
        return x if first else norm(x, width)

    def model(self):
        graph = helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], producer_name="tlc")
        model.ir_version = 8
        onnx.checker.check_model(model)
        return model

    def draw(self, *shape):
        return self.random.standard_normal(shape).astype(np.float32)

    def ids(self, limit, *shape):
        return self.random.integers(0, limit, shape, dtype=np.int64)


def residual_cnn(full):
    net = Net("residual_cnn", 1)
    stem, blocks, classes, side = (64, (2, 2, 2, 2), 1000, 224) if full else (8, (1, 1), 10, 32)
    x = net.input("image", F32, ["batch", 3, side, side])
    x = net("Relu", net.batch_norm(net.conv(x, 3, stem, 7, 2, bias=False), stem))
    x = net("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    width = stem
    for stage, count in enumerate(blocks):
        for block in range(count):
            out, stride = stem << stage, 2 if stage > 0 and block == 0 else 1
            y = net("Relu", net.batch_norm(net.conv(x, width, out, 3, stride, bias=False), out))
            y = net.batch_norm(net.conv(y, out, out, 3, bias=False, scale=0.7), out)
            if stride != 1 or out != width:
                x = net.batch_norm(net.conv(x, width, out, 1, stride, bias=False, scale=1), out)
            x, width = net("Relu", net("Add", y, x)), out
    x = net("Flatten", net("GlobalAveragePool", x))
    x = net("Gemm", x, net.normal(classes, width), net.near(0, classes), transB=1)
    net.output(x, "scores", F32, ["batch", classes])
    net.calls = [{"image": net.draw(b, 3, side, side)} for b in ((1,) if full else (1, 3))]
    return net


def mobile(full):
    net = Net("mobile", 2)
    side, classes = (224, 1000) if full else (32, 10)
    # Expansion, output channels, kernel, stride, squeeze-and-excite, hard-swish: MobileNetV3-Small's table, or a part of it.
    table = [(16, 16, 3, 2, 1, 0), (72, 24, 3, 2, 0, 0), (88, 24, 3, 1, 0, 0), (96, 40, 5, 2, 1, 1), (240, 40, 5, 1, 1, 1),
             (240, 40, 5, 1, 1, 1), (120, 48, 5, 1, 1, 1), (144, 48, 5, 1, 1, 1), (288, 96, 5, 2, 1, 1),
             (576, 96, 5, 1, 1, 1), (576, 96, 5, 1, 1, 1)]
    table = table if full else [(16, 16, 3, 2, 1, 0), (24, 16, 3, 1, 0, 0), (32, 24, 5, 2, 1, 1)]
    act = lambda x, hard: net("HardSwish", x) if hard else net("Relu", x)  # noqa: E731
    x = net.input("image", F32, ["batch", 3, side, side])
    x, width = act(net.batch_norm(net.conv(x, 3, 16, 3, 2, bias=False), 16), True), 16
    for expand, out, kernel, stride, squeeze, hard in table:
        y = x
        if expand != width:
            y = act(net.batch_norm(net.conv(y, width, expand, 1, bias=False), expand), hard)
        y = act(net.batch_norm(net.conv(y, expand, expand, kernel, stride, groups=expand, bias=False), expand), hard)
        if squeeze:
            small = max(8, expand // 4)
            s = net("Relu", net.conv(net("GlobalAveragePool", y), expand, small, 1))
            s = net("HardSigmoid", net.conv(s, small, expand, 1), alpha=1 / 6, beta=0.5)
            y = net("Mul", y, s)
        y = net.batch_norm(net.conv(y, expand, out, 1, bias=False, scale=1), out)
        x = net("Add", x, y) if stride == 1 and out == width else y
        width = out
    last = 6 * width
    x = act(net.batch_norm(net.conv(x, width, last, 1, bias=False), last), True)
    x = net("Flatten", net("GlobalAveragePool", x))
    x = net("HardSwish", net("Gemm", x, net.normal(1024 if full else 32, last), net.near(0, 1024 if full else 32), transB=1))
    x = net("Gemm", x, net.normal(classes, 1024 if full else 32), net.near(0, classes), transB=1)
    net.output(x, "scores", F32, ["batch", classes])
    net.calls = [{"image": net.draw(b, 3, side, side)} for b in ((1,) if full else (1, 2))]
    return net


def dense_cnn(full):
    net = Net("dense_cnn", 3)
    growth, blocks, side, classes = (32, (6, 12, 24, 16), 224, 1000) if full else (4, (2, 3), 32, 10)
    x = net.input("image", F32, ["batch", 3, side, side])
    width = 2 * growth
    x = net("Relu", net.batch_norm(net.conv(x, 3, width, 7, 2, bias=False), width))
    x = net("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for k, layers in enumerate(blocks):
        for _ in range(layers):
            y = net("Relu", net.batch_norm(x, width))
            y = net.conv(y, width, 4 * growth, 1, bias=False)
            y = net("Relu", net.batch_norm(y, 4 * growth))
            x = net("Concat", x, net.conv(y, 4 * growth, growth, 3, bias=False), axis=1)
            width += growth
        if k + 1 < len(blocks):
            x = net.conv(net("Relu", net.batch_norm(x, width)), width, width // 2, 1, bias=False)
            x, width = net("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2]), width // 2
    x = net("Relu", net.batch_norm(x, width))
    x = net("Flatten", net("GlobalAveragePool", x))
    x = net("Gemm", x, net.normal(classes, width), net.near(0, classes), transB=1)
    net.output(x, "scores", F32, ["batch", classes])
    net.calls = [{"image": net.draw(b, 3, side, side)} for b in ((1,) if full else (1, 2))]
    return net


def u_net(full):
    net = Net("u_net", 4)
    base, depth, side = (32, 4, 256) if full else (4, 2, 24)
    x = net.input("image", F32, ["batch", 1, "height", "width"])

    def double(x, cin, cout):
        for c in (cin, cout):
            x = net("Relu", net.batch_norm(net.conv(x, c, cout, 3), cout))
        return x

    skips, width = [], 1
    for level in range(depth):
        x = double(x, width, base << level)
        width = base << level
        skips.append(x)
        x = net("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = double(x, width, base << depth)
    width = base << depth
    for level in reversed(range(depth)):
        out = base << level
        x = net("ConvTranspose", x, net.normal(width, out, 2, 2, fan=width), net.near(0, out), strides=[2, 2], kernel_shape=[2, 2])
        x = double(net("Concat", skips[level], x, axis=1), 2 * out, out)
        width = out
    x = net("Sigmoid", net.conv(x, width, 1, 1))
    net.output(x, "mask", F32, ["batch", 1, "height", "width"])
    sizes = ((1, side, side),) if full else ((1, 24, 24), (2, 16, 32))
    net.calls = [{"image": net.draw(b, 1, h, w)} for b, h, w in sizes]
    return net


def conv_next(full):
    net = Net("conv_next", 5)
    widths, depths, side, classes = ((96, 192, 384, 768), (3, 3, 9, 3), 224, 1000) if full else ((8, 16), (1, 1), 32, 10)
    x = net.input("image", F32, ["batch", 3, side, side])
    last = lambda x: net("Transpose", x, perm=[0, 2, 3, 1])  # noqa: E731
    first = lambda x: net("Transpose", x, perm=[0, 3, 1, 2])  # noqa: E731
    x = net.conv(x, 3, widths[0], 4, 4, pad=0)
    x = first(net.layer_norm(last(x), widths[0]))
    for stage, (c, count) in enumerate(zip(widths, depths)):
        if stage > 0:
            x = first(net.layer_norm(last(x), widths[stage - 1]))
            x = net.conv(x, widths[stage - 1], c, 2, 2, pad=0)
        for _ in range(count):
            y = net.layer_norm(last(net.conv(x, c, c, 7, groups=c)), c)
            y = net.linear(net.gelu(net.linear(y, c, 4 * c)), 4 * c, c)
            x = net("Add", x, first(net("Mul", y, net.near(0.5, c))))
    x = net("Flatten", net("GlobalAveragePool", x))
    x = net.layer_norm(x, widths[-1])
    x = net("Gemm", x, net.normal(classes, widths[-1]), net.near(0, classes), transB=1)
    net.output(x, "scores", F32, ["batch", classes])
    net.calls = [{"image": net.draw(b, 3, side, side)} for b in ((1,) if full else (1, 2))]
    return net


def vision_transformer(full):
    net = Net("vision_transformer", 6)
    width, layers, heads, patch, side, classes = (384, 12, 6, 16, 224, 1000) if full else (24, 2, 3, 8, 32, 10)
    x = net.input("image", F32, ["batch", 3, side, side])
    x = net.conv(x, 3, width, patch, patch, pad=0)
    x = net.reshape(x, net.size(x, 0), width, -1)
    x = net("Transpose", x, perm=[0, 2, 1])
    token = net("Expand", net.normal(1, 1, width, fan=1),
                net("Concat", net.size(x, 0), np.array([1]), np.array([width]), axis=0))
    x = net("Concat", token, x, axis=1)
    x = net("Add", x, net.normal(1, (side // patch) ** 2 + 1, width, fan=1))
    for _ in range(layers):
        x = net.encoder_layer(x, width, heads, 4 * width)
    x = net.layer_norm(x, width)
    x = net("Gather", x, np.int64(0), axis=1)
    x = net("Gemm", x, net.normal(classes, width), net.near(0, classes), transB=1)
    net.output(x, "scores", F32, ["batch", classes])
    net.calls = [{"image": net.draw(b, 3, side, side)} for b in ((1,) if full else (1, 2))]
    return net


def encoder(full):
    net = Net("encoder", 7, opset=13)
    width, layers, heads, words, longest = (768, 12, 12, 30522, 512) if full else (24, 2, 3, 50, 32)
    ids = net.input("input_ids", I64, ["batch", "length"])
    kinds = net.input("token_type_ids", I64, ["batch", "length"])
    seen = net.input("attention_mask", I64, ["batch", "length"])
    mask = net("Cast", net("Unsqueeze", seen, np.array([1, 2])), to=F32)
    mask = net("Mul", net("Sub", np.float32(1), mask), np.float32(-10000))
    x = net("Add", net("Gather", net.normal(words, width, fan=1), ids), net("Gather", net.normal(2, width, fan=1), kinds))
    positions = net("Slice", net.weight(np.arange(longest)[None]), np.array([0]), net.size(ids, 1), np.array([1]))
    x = net("Add", x, net("Gather", net.normal(longest, width, fan=1), positions))
    x = net.layer_norm_in_parts(x, width)
    for _ in range(layers):
        x = net.encoder_layer(x, width, heads, 4 * width, mask, first=False, in_parts=True)
    pooled = net("Tanh", net.linear(net("Gather", x, np.int64(0), axis=1), width, width))
    net.output(x, "hidden", F32, ["batch", "length", width])
    net.output(pooled, "pooled", F32, ["batch", width])
    for b, n in ((1, 128),) if full else ((1, 7), (3, 12), (2, 1)):
        seen = np.ones((b, n), np.int64)
        seen[-1, max(1, n - 2):] = 0
        net.calls.append({"input_ids": net.ids(words, b, n), "token_type_ids": net.ids(2, b, n), "attention_mask": seen})
    return net


def decoder(full):
    """Prefill and decode are the same graph, with a cache that is empty or not."""
    net = Net("decoder", 8)
    width, layers, heads, words, longest = (768, 12, 12, 50257, 1024) if full else (24, 2, 3, 60, 32)
    d = width // heads
    ids = net.input("input_ids", I64, ["batch", "length"])
    past = [[net.input(f"past_{kv}_{layer}", F32, ["batch", heads, "past", d]) for kv in ("key", "value")]
            for layer in range(layers)]
    n, p = net.size(ids, 1), net.size(past[0][0], 2)
    total = net("Add", n, p)
    scalar = lambda v: net("Squeeze", v, np.array([0]))  # noqa: E731
    rows = net("Range", scalar(p), scalar(total), np.int64(1))
    columns = net("Range", np.int64(0), scalar(total), np.int64(1))
    hidden = net("Greater", net("Unsqueeze", columns, np.array([0])), net("Unsqueeze", rows, np.array([1])))
    mask = net("Where", hidden, np.float32(-3.4e38), np.float32(0))
    words_table = net.normal(words, width, fan=1)
    x = net("Add", net("Gather", words_table, ids), net("Gather", net.normal(longest, width, fan=1, scale=0.3), rows))
    for layer in range(layers):
        y = net.linear(net.layer_norm(x, width), width, 3 * width)
        q, k, v = (net.heads(part, heads, d) for part in net("Split", y, np.array([width] * 3), axis=2, outputs=3))
        k, v = net("Concat", past[layer][0], k, axis=2), net("Concat", past[layer][1], v, axis=2)
        net.output(k, f"key_{layer}", F32, ["batch", heads, "total", d])
        net.output(v, f"value_{layer}", F32, ["batch", heads, "total", d])
        x = net("Add", x, net.linear(net.merged(net.attention(q, k, v, d, mask), width), width, width))
        y = net.linear(net.layer_norm(x, width), width, 4 * width)
        inner = net("Mul", net("Add", y, net("Mul", net("Pow", y, np.float32(3)), np.float32(0.044715))),
                    np.float32(np.sqrt(2 / np.pi)))
        y = net("Mul", net("Mul", y, np.float32(0.5)), net("Add", net("Tanh", inner), np.float32(1)))
        x = net("Add", x, net.linear(y, 4 * width, width))
    x = net.layer_norm(x, width)
    x = net("MatMul", x, net("Transpose", words_table, perm=[1, 0]))
    net.output(x, "scores", F32, ["batch", "length", words])
    for b, n, p in ((1, 64, 0),) if full else ((1, 5, 0), (2, 1, 6), (1, 3, 4)):
        call = {"input_ids": net.ids(words, b, n)}
        for layer in range(layers):
            call |= {f"past_{kv}_{layer}": net.draw(b, heads, p, d) for kv in ("key", "value")}
        net.calls.append(call)
    return net


def llama(full):
    net = Net("llama", 9)
    width, layers, heads, groups, hidden, words = (768, 8, 12, 4, 2048, 32000) if full else (32, 2, 4, 2, 64, 60)
    d = width // heads

    def rms_norm(x):
        mean = net("ReduceMean", net("Pow", x, np.float32(2)), axes=[-1])
        return net("Mul", net.near(1, width), net("Mul", x, net("Div", np.float32(1), net("Sqrt", net("Add", mean, np.float32(1e-5))))))

    ids = net.input("input_ids", I64, ["batch", "length"])
    positions = net.input("position_ids", I64, ["batch", "length"])
    frequencies = (10000.0 ** (-np.arange(0, d, 2) / d)).astype(np.float32)
    angles = net("Mul", net("Unsqueeze", net("Cast", positions, to=F32), np.array([2])), net.weight(frequencies))
    angles = net("Unsqueeze", net("Concat", angles, angles, axis=-1), np.array([1]))
    cos, sin = net("Cos", angles), net("Sin", angles)

    def rotated(x):
        half = lambda a, b: net("Slice", x, np.array([a]), np.array([b]), np.array([3]))  # noqa: E731
        turned = net("Concat", net("Neg", half(d // 2, 1 << 40)), half(0, d // 2), axis=-1)
        return net("Add", net("Mul", x, cos), net("Mul", turned, sin))

    def repeated(x):
        """Each key head serves heads // groups query heads."""
        b, n, r = net.size(x, 0), net.size(x, 2), heads // groups
        wide = net("Expand", net("Unsqueeze", x, np.array([2])),
                   net("Concat", b, np.array([groups]), np.array([r]), n, np.array([d]), axis=0))
        return net.reshape(wide, b, heads, n, d)

    n = net("Gather", net("Shape", ids), np.int64(1), axis=0)
    square = net("Concat", net.size(ids, 1), net.size(ids, 1), axis=0)
    mask = net("Trilu", net("Expand", np.float32(-3.4e38), square), np.int64(1), upper=1)
    del n
    x = net("Gather", net.normal(words, width, fan=1), ids)
    for _ in range(layers):
        y = rms_norm(x)
        q = rotated(net.heads(net.linear(y, width, width, bias=False), heads, d))
        k = rotated(net.heads(net.linear(y, width, groups * d, bias=False), groups, d))
        v = net.heads(net.linear(y, width, groups * d, bias=False), groups, d)
        mixed = net.attention(q, repeated(k), repeated(v), d, mask)
        x = net("Add", x, net.linear(net.merged(mixed, width), width, width, bias=False))
        y = rms_norm(x)
        y = net("Mul", net.silu(net.linear(y, width, hidden, bias=False)), net.linear(y, width, hidden, bias=False))
        x = net("Add", x, net.linear(y, hidden, width, bias=False))
    net.output(net.linear(rms_norm(x), width, words, bias=False), "scores", F32, ["batch", "length", words])
    for b, n in ((1, 64),) if full else ((1, 6), (2, 9)):
        where = np.broadcast_to(np.arange(n, dtype=np.int64), (b, n)).copy()
        net.calls.append({"input_ids": net.ids(words, b, n), "position_ids": where})
    return net


def recurrent(full, kind):
    net = Net(kind.lower(), 10 if kind == "LSTM" else 11)
    gates = {"LSTM": 4, "GRU": 3}[kind]
    width, inputs, layers = (256, 80, 2) if full else (12, 6, 2)
    x = net.input("frames", F32, ["time", "batch", inputs])
    cin = inputs
    for _ in range(layers):
        w = net.normal(2, gates * width, cin, fan=cin)
        r = net.normal(2, gates * width, width, fan=width)
        b = net.near(0, 2, 2 * gates * width)
        extra = {"linear_before_reset": 1} if kind == "GRU" else {}
        y = net(kind, x, w, r, b, hidden_size=width, direction="bidirectional", outputs=3 if kind == "LSTM" else 2, **extra)
        x = net("Transpose", y[0], perm=[0, 2, 1, 3])
        x = net("Reshape", x, np.array([0, 0, -1]))
        cin = 2 * width
    state = net("Transpose", y[1], perm=[1, 0, 2])
    net.output(net("LogSoftmax", net.linear(x, cin, 30), axis=-1), "labels", F32, ["time", "batch", 30])
    net.output(state, "state", F32, ["batch", 2, width])
    net.calls = [{"frames": net.draw(t, b, inputs)} for t, b in (((100, 1),) if full else ((5, 1), (8, 3), (1, 2)))]
    return net


def diffusion(full):
    net = Net("diffusion", 12)
    c, heads, side, words, text = (128, 4, 32, 77, 256) if full else (8, 2, 8, 5, 12)
    groups = 8 if full else 4
    x = net.input("latent", F32, ["batch", 4, "height", "width"])
    step = net.input("step", F32, ["batch"])
    context = net.input("context", F32, ["batch", words, text])

    def group_norm(x, c):
        flat = net("Reshape", x, np.array([0, groups, -1]))
        flat = net("InstanceNormalization", flat, net.weight(np.ones(groups, np.float32)), net.weight(np.zeros(groups, np.float32)))
        y = net("Reshape", flat, net("Shape", x))
        return net("Add", net("Mul", y, net.near(1, c, 1, 1)), net.near(0, c, 1, 1))

    def residual(x, cin, cout, time, t):
        y = net.conv(net.silu(group_norm(x, cin)), cin, cout, 3)
        y = net("Add", y, net("Unsqueeze", net.linear(net.silu(time), t, cout), np.array([2, 3])))
        y = net.conv(net.silu(group_norm(y, cout)), cout, cout, 3)
        return net("Add", net.conv(x, cin, cout, 1) if cin != cout else x, y)

    def spatial(x, c):
        """Attention over places, then over the text, then a gated network."""
        tokens = net("Transpose", net.reshape(group_norm(x, c), net.size(x, 0), c, -1), perm=[0, 2, 1])
        d = c // heads
        for memory, m in ((None, c), (context, text)):
            y = net.layer_norm(tokens, c)
            source = y if memory is None else memory
            q = net.heads(net.linear(y, c, c, bias=False), heads, d)
            k, v = (net.heads(net.linear(source, m, c, bias=False), heads, d) for _ in range(2))
            tokens = net("Add", tokens, net.linear(net.merged(net.attention(q, k, v, d), c), c, c))
        a, b = net("Split", net.linear(net.layer_norm(tokens, c), c, 8 * c), np.array([4 * c, 4 * c]), axis=2, outputs=2)
        tokens = net("Add", tokens, net.linear(net("Mul", a, net.gelu(b)), 4 * c, c))
        return net("Add", x, net("Reshape", net("Transpose", tokens, perm=[0, 2, 1]), net("Shape", x)))

    t = 4 * c
    frequencies = np.exp(-np.log(10000) * np.arange(c // 2) / (c // 2)).astype(np.float32)
    angles = net("Mul", net("Unsqueeze", step, np.array([1])), net.weight(frequencies))
    time = net("Concat", net("Sin", angles), net("Cos", angles), axis=1)
    time = net.linear(net.silu(net.linear(time, c, t)), t, t)
    x = net.conv(x, 4, c, 3)
    skip = spatial(residual(x, c, c, time, t), c)
    x = net.conv(skip, c, c, 3, 2)
    x = spatial(residual(x, c, 2 * c, time, t), 2 * c)
    x = net("Resize", x, "", np.array([1, 1, 2, 2], np.float32), mode="nearest",
            coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    x = net.conv(x, 2 * c, c, 3)
    x = residual(net("Concat", x, skip, axis=1), 2 * c, c, time, t)
    net.output(net.conv(net.silu(group_norm(x, c)), c, 4, 3), "noise", F32, ["batch", 4, "height", "width"])
    for b, h, w in ((1, side, side),) if full else ((1, 8, 8), (2, 6, 10)):
        net.calls.append({"latent": net.draw(b, 4, h, w), "step": np.linspace(1, 900, b, dtype=np.float32),
                          "context": net.draw(b, words, text)})
    return net


def speech(full):
    net = Net("speech", 13)
    bands, width, layers, heads, longest = (80, 384, 4, 6, 1500) if full else (8, 24, 2, 3, 40)
    x = net.input("features", F32, ["batch", bands, "frames"])
    x = net.gelu(net.conv(x, bands, width, (3,)))
    x = net.gelu(net.conv(x, width, width, (3,), 2))
    x = net("Transpose", x, perm=[0, 2, 1])
    half = width // 2
    angles = np.arange(longest)[:, None] * np.exp(-np.log(10000) / (half - 1) * np.arange(half))[None]
    table = net.weight(np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(np.float32))
    x = net("Add", x, net("Slice", table, np.array([0]), net.size(x, 1), np.array([0])))
    for _ in range(layers):
        x = net.encoder_layer(x, width, heads, 4 * width)
    net.output(net.layer_norm(x, width), "states", F32, ["batch", "time", width])
    net.calls = [{"features": net.draw(b, bands, n)} for b, n in (((1, 1000),) if full else ((1, 21), (2, 16)))]
    return net


NETWORKS = [residual_cnn, mobile, dense_cnn, u_net, conv_next, vision_transformer, encoder, decoder, llama,
            lambda full: recurrent(full, "LSTM"), lambda full: recurrent(full, "GRU"), diffusion, speech]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--full", type=pathlib.Path)
    options = parser.parse_args()
    folder = options.full or here
    folder.mkdir(parents=True, exist_ok=True)
    for make in NETWORKS:
        net = make(options.full is not None)
        model = net.model()
        path = folder / f"{net.name}.onnx"
        path.write_bytes(model.SerializeToString())
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        arrays = {}
        for k, call in enumerate(net.calls):
            arrays |= {f"in.{k}.{name}": value for name, value in call.items()}
            names = [o.name for o in session.get_outputs()]
            answers = dict(zip(names, session.run(names, call)))
            arrays |= {f"out.{k}.{name}": value for name, value in answers.items()}
            spread = ", ".join(f"{name} {list(v.shape)} ±{np.abs(v).max():.3g}" for name, v in list(answers.items())[:3])
            print(f"{net.name} call {k}: {spread}")
        np.savez_compressed(folder / f"{net.name}.npz", **arrays)
        print(f"{net.name}: {len(net.nodes)} nodes, {path.stat().st_size / 1e3:.0f} kB")


main()
