"""Reference values for tests/recording: python3 tests/reference/recording.py > tests/reference/recording.json

Needs NumPy and SciPy. Operands are made by the same formula as in tests/recording/numerics.rs, in f64.
"""
import json

import numpy as np
from scipy import special


def data(shape, seed=0):
    i = np.arange(int(np.prod(shape)), dtype=np.float64)
    return (((i * 37 + seed * 11) % 101) / 25 - 2).reshape(shape)


def softmax(x, axis):
    return special.softmax(x, axis=axis)


def sigmoid(x):
    return special.expit(x)


def conv(x, w, b=None, stride=1, before=0, behind=0, dilation=1, groups=1):
    n = x.ndim - 2
    per = lambda v: [v] * n if isinstance(v, int) else list(v)
    stride, before, behind, dilation = per(stride), per(before), per(behind), per(dilation)
    x = np.pad(x, [(0, 0), (0, 0)] + list(zip(before, behind)))
    out = [(x.shape[2 + i] - dilation[i] * (w.shape[2 + i] - 1) - 1) // stride[i] + 1 for i in range(n)]
    y = np.zeros((x.shape[0], w.shape[0], *out))
    cg, fg = w.shape[1], w.shape[0] // groups
    for bi in range(y.shape[0]):
        for f in range(w.shape[0]):
            for o in np.ndindex(*out):
                s = 0.0
                for c in range(cg):
                    for k in np.ndindex(*w.shape[2:]):
                        at = tuple(o[i] * stride[i] + k[i] * dilation[i] for i in range(n))
                        s += x[(bi, f // fg * cg + c) + at] * w[(f, c) + k]
                y[(bi, f) + o] = s + (0 if b is None else b[f])
    return y


def pool(x, size, stride, padding, how, include=True):
    n = x.ndim - 2
    fill = -np.inf if how == "max" else 0.0
    pads = [(0, 0), (0, 0)] + [(padding, padding)] * n
    p, ones = np.pad(x, pads, constant_values=fill), np.pad(np.ones_like(x), pads)
    out = [(p.shape[2 + i] - size) // stride + 1 for i in range(n)]
    y = np.zeros((*x.shape[:2], *out))
    for o in np.ndindex(*y.shape):
        part = o[:2] + tuple(slice(v * stride, v * stride + size) for v in o[2:])
        y[o] = p[part].max() if how == "max" else p[part].sum() / (size**n if include else ones[part].sum())
    return y


def attention(q, k, v, mask=None, causal=False, scale=None):
    s = q @ np.swapaxes(k, -1, -2) * (scale or 1 / np.sqrt(q.shape[-1]))
    if causal:
        s = np.where(np.tril(np.ones(s.shape[-2:], bool)), s, -np.inf)
    if mask is not None:
        s = np.where(mask, s, -np.inf)
    return softmax(s, -1) @ v


a, b, v = data((3, 4)), data((3, 4), 1), data((4,), 2)
x4, pos = data((2, 4, 5, 6)), np.abs(data((3, 4))) + 0.1
unit = data((3, 4)) / 2.5
norm = lambda x, ax: (x - x.mean(ax, keepdims=True)) / np.sqrt(x.var(ax, keepdims=True) + 1e-5)
group = norm(x4.reshape(2, 2, 2, 5, 6), (2, 3, 4)).reshape(x4.shape)
ch = lambda t: t.reshape(1, 4, 1, 1)
idx = np.array([[2, 0], [1, 1]])
cases = {
    "arith": (a + v) * 2.5 - b / (pos + 1) + (1.5 - a) / 2,
    "floor_divide": np.floor(a / b),
    "remainder": np.where(np.mod(a, pos) == 0, 0.0, np.mod(a, pos)),
    "rem": np.fmod(a, pos),
    "pow": np.power(pos, b),
    "powi": a**5,
    "log10": np.log10(pos),
    "functions": np.exp(a) + np.log(pos) + np.sin(a) * np.cos(b) + np.tanh(a) + special.erf(b) + np.arctan2(a, b),
    "inverse": np.arcsin(unit) + np.arccos(unit) + np.arctan(a) + np.expm1(a) + np.log1p(pos) + np.exp2(a) + np.log2(pos),
    "rounding": np.floor(a) + np.ceil(b) * 10 + np.round(a * 2) * 100 + np.trunc(b) * 1000 + np.sign(a),
    "clamp": np.clip(a, -1, 0.5),
    "gelu": a / 2 * (1 + special.erf(a / np.sqrt(2))),
    "gelu_tanh": a / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (a + 0.044715 * a**3))),
    "sigmoid": sigmoid(a),
    "silu": a * sigmoid(a),
    "softplus": np.logaddexp(a * 300, 0),
    "elu": np.where(a > 0, a, 0.7 * np.expm1(a)),
    "leaky_relu": np.where(a > 0, a, 0.1 * a),
    "mish": a * np.tanh(np.logaddexp(a, 0)),
    "hard_swish": a * np.clip(a / 6 + 0.5, 0, 1),
    "sum": x4.sum((1, 3), keepdims=True),
    "mean": x4.mean((0, -1)),
    "var": x4.var((2, 3), ddof=1),
    "std": x4.std(),
    "prod": a.prod(1),
    "max": x4.max((0, 2)),
    "logsumexp": special.logsumexp(x4 * 300, axis=(1, 2)),
    "argmax": x4.argmax(2),
    "argmin_all": np.array(x4.argmin()),
    "cumsum": x4.cumsum(2),
    "cumprod": a.cumprod(0),
    "cummax": np.maximum.accumulate(a, 1),
    "softmax": softmax(x4 * 200, 1),
    "log_softmax": special.log_softmax(x4, axis=-1),
    "cross_entropy": -special.log_softmax(data((2, 2, 3)), axis=-1)[np.arange(2)[:, None], np.arange(2), idx].mean(),
    "matmul_batch": data((2, 1, 3, 4)) @ data((5, 4, 2), 1),
    "matmul_left_vector": v @ data((2, 4, 3)),
    "matmul_right_vector": data((2, 3, 4)) @ v,
    "matmul_vectors": v @ v,
    "dot": np.dot(data((2, 3, 4)), data((5, 4, 2), 1)),
    "outer": np.outer(a, v),
    "tensordot": np.tensordot(data((2, 3, 4)), data((4, 2, 5), 1), ([0, 2], [1, 0])),
    "einsum": np.einsum("...ij,jk,k->...ik", data((2, 3, 4)), data((4, 5), 1), data((5,), 2)),
    "einsum_diagonal": np.einsum("iij,jk", data((3, 3, 4)), data((1, 2), 1)),
    "trace": np.trace(data((4, 4))),
    "diagonal": np.diagonal(x4, 1, 3, 1),
    "diagonal_below": np.diagonal(x4, -2, 2, 3),
    "linear": data((2, 3, 4)) @ data((5, 4), 1).T + data((5,), 2),
    "tile": np.tile(a, (2, 1, 3)),
    "repeat": np.repeat(a, 3, 1),
    "roll": np.roll(x4, -2, 2),
    "slice": x4[1:, ::-2, 3:0:-1, -2],
    "flip": np.flip(x4, (0, 3)),
    "pad": np.pad(a, [(1, 2), (0, 3)], constant_values=7),
    "concat": np.concatenate([a, b * 2, -a, data((1, 4)), b], 0),
    "stack": np.stack([a, b, a * b], -1),
    "chunk": np.array_split(x4, 4, 2)[1],
    "move_axis": np.moveaxis(x4, 3, 1),
    "take": np.take(x4, idx, 1),
    "take_along": np.take_along_axis(a, np.array([[1, 3], [0, 0], [2, 1]]), 1),
    "one_hot": np.eye(4)[idx],
    "tril": np.tril(x4, 1),
    "triu": np.triu(x4, -1),
    "diag_embed": np.stack([np.diag(r) for r in a]),
    "layer_norm": norm(x4, -1) * data((6,), 3) + data((6,), 4),
    "rms_norm": x4 / np.sqrt((x4**2).mean(-1, keepdims=True) + 1e-6) * data((6,), 3),
    "batch_norm": (x4 - ch(data((4,), 1))) / np.sqrt(ch(np.abs(data((4,), 2))) + 1e-5) * ch(data((4,), 3)) + ch(data((4,), 4)),
    "group_norm": group * ch(data((4,), 3)) + ch(data((4,), 4)),
    "conv1d": conv(data((2, 3, 9)), data((4, 3, 3), 1), data((4,), 2), stride=2, before=1, behind=2),
    "conv2d": conv(data((2, 3, 6, 7)), data((4, 3, 3, 2), 1), data((4,), 2), stride=(2, 1), before=(1, 0), behind=(1, 0), dilation=(1, 2)),
    "conv2d_groups": conv(x4, data((6, 2, 3, 3), 1), groups=2, before=1, behind=1),
    "conv2d_depthwise": conv(x4, data((4, 1, 3, 3), 1), groups=4),
    "conv3d": conv(data((1, 2, 4, 3, 4)), data((3, 2, 2, 2, 3), 1), before=1, behind=1),
    "max_pool": pool(x4, 3, 2, 1, "max"),
    "avg_pool": pool(x4, 3, 2, 1, "avg"),
    "avg_pool_exclude": pool(x4, 3, 2, 1, "avg", include=False),
    "attention": attention(data((2, 3, 5, 4)), data((2, 3, 6, 4), 1), data((2, 3, 6, 2), 2)),
    "attention_causal": attention(data((2, 5, 4)), data((2, 5, 4), 1), data((2, 5, 3), 2), causal=True, scale=0.3),
    "attention_mask": attention(data((2, 3, 4)), data((2, 4, 4), 1), data((2, 4, 3), 2), mask=data((3, 4), 5) < 1.5),
    "arange": np.arange(-1, 2, 0.25),
    "linspace": np.linspace(-1, 2, 7),
    "eye": np.eye(3, 5, 1),
}

print("{")
lines = []
for name, value in cases.items():
    value = np.asarray(value, dtype=np.float64)
    body = json.dumps({"shape": list(value.shape), "values": value.ravel().tolist()})
    lines.append(f'"{name}": {body}')
print(",\n".join(lines))
print("}")
