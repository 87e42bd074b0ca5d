#!/usr/bin/env python3
"""Random nodes of com.microsoft with what they compute: ONNX Runtime's CPU provider says it, or, of operators that it does not have, NumPy in f64.

    pip install numpy onnx onnxruntime
    python tests/onnx/contributed.py write                 # tests/onnx/contributed.txt, which tests/onnx/contributed.rs reads
    python tests/onnx/contributed.py compare TLC [SEED [COUNT]] [OPERATOR ...]
    python tests/onnx/contributed.py types

The second gives COUNT nodes of each operator to `tlc run`, and prints those that differ or are refused. The third prints signatures of
onnx/src/operators/microsoft.rs in which other operands have one type than ONNX Runtime's schemas say.
"""

import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

TARGET = pathlib.Path(__file__).with_suffix(".txt")
NAMES = {"float32": "f32", "float64": "f64", "uint8": "u8", "int8": "i8", "int16": "i16", "uint16": "u16", "int32": "i32",
         "uint32": "u32", "int64": "i64", "bool": "bool"}
F, I32, I64, U8, I8 = np.float32, np.int32, np.int64, np.uint8, np.int8
MAKERS = {}
# What has more settings than three nodes show.
MANY_KINDS = {"Attention", "QAttention", "MultiHeadAttention", "GroupQueryAttention", "QLinearAveragePool", "QMoE", "GridSample"}


class Node:
    """An operator with its operands, of which those in `constant` are initializers; `formula` computes its results where ONNX Runtime cannot."""

    def __init__(self, operands, constant=(), results=1, formula=None, operator=None, **attributes):
        self.operands, self.constant, self.results = operands, set(constant), results
        self.formula, self.operator, self.attributes = formula, operator, attributes


def node(make):
    MAKERS[make.__name__] = make
    return make


class Random:
    def __init__(self, *seed):
        self.r = np.random.default_rng(seed)

    def size(self, low, high):
        return int(self.r.integers(low, high + 1))

    def often(self, share=0.5):
        return self.r.random() < share

    def one_of(self, *all):
        return all[self.size(0, len(all) - 1)]

    def floats(self, *shape):
        return self.r.normal(size=shape).round(2).astype(F)

    def whole(self, dtype, *shape):
        info = np.iinfo(dtype)
        return self.r.integers(info.min, info.max + 1, shape).astype(dtype)

    def mask(self, *shape):
        keys = (self.r.random(shape) > 0.3).astype(I32)
        keys[..., 0] = 1
        return keys

    def scale(self):
        return np.array(F(round(self.r.uniform(0.005, 0.05), 4)))

    def zero(self, dtype):
        return np.array(self.whole(dtype, 1)[0])

    def byte(self):
        return self.one_of(U8, I8)

    def maybe(self, value, share=0.5):
        return value if self.often(share) else None


def wide(x):
    return np.asarray(x, dtype=np.float64)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2)))


def convolved(x, w, bias, strides, pads, group):
    """Channels first, in f64."""
    x = np.pad(wide(x), ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    window = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))[:, :, :: strides[0], :: strides[1]]
    parts = zip(np.split(window, group, 1), np.split(wide(w), group, 0))
    y = np.concatenate([np.einsum("bchwij,ocij->bohw", a, b) for a, b in parts], 1)
    return y if bias is None else y + wide(bias).reshape(-1, 1, 1)


def last(x):
    return np.moveaxis(x, 1, -1)


def first(x):
    return np.moveaxis(x, -1, 1)


def attended(q, k, v, heads, seen, bias=None):
    batch, length, _ = q.shape
    q, k, v = (wide(t).reshape(batch, length, heads, -1).swapaxes(1, 2) for t in (q, k, v))
    scores = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[-1]) + (0 if bias is None else wide(bias))
    scores = np.where(seen[:, None, None], scores, -np.inf)
    return (softmax(scores) @ v).swapaxes(1, 2).reshape(batch, length, -1)


def any_mask(r, batch, queries, keys):
    ends = r.r.integers(1, keys + 1, batch)
    return r.one_of(
        None,
        ends.astype(I32),
        np.concatenate([ends, r.r.integers(0, ends)]).astype(I32),
        r.mask(batch, keys),
        r.mask(batch, queries, keys),
        np.full((batch, 1), r.size(0, 1), I32),
    )


def of_attention(r):
    batch, length, heads, size = r.size(1, 2), r.size(1, 4), r.size(1, 2), r.size(1, 3)
    past = r.size(0, 3) if r.often() else 0
    attributes = {"num_heads": heads}
    if r.often(0.3):
        attributes["unidirectional"] = 1
    if r.often(0.3):
        attributes["scale"] = 0.3
    before = r.floats(2, batch, heads, past, size) if past or r.often(0.2) else None
    return batch, length, heads, size, r.size(1, 5), past, before, attributes


@node
def Attention(r):
    batch, length, heads, size, width, past, before, attributes = of_attention(r)
    columns = 3 * heads * size
    bias = r.maybe(r.floats(r.one_of(1, batch), r.one_of(1, heads), length, length), 0.4) if before is None else None
    operands = [r.floats(batch, length, width), r.floats(width, columns), r.floats(columns)]
    operands += [any_mask(r, batch, length, length + past), before, bias]
    return Node(operands, {1, 2}, 1 if before is None else 2, **attributes)


@node
def QAttention(r):
    batch, length, heads, size, width, past, before, attributes = of_attention(r)
    columns, dtype = 3 * heads * size, r.byte()
    x, w = r.whole(U8, batch, length, width), r.whole(dtype, width, columns)
    scale, zero = r.scale(), r.zero(dtype)
    if r.often(0.4):
        scale, zero = np.array([r.scale() for _ in range(columns)]), r.whole(dtype, columns)
    operands = [x, w, r.floats(columns), r.scale(), scale, any_mask(r, batch, length, length + past)]
    operands += [r.maybe(r.zero(U8), 0.7), r.maybe(zero), before]
    return Node(operands, {1, 2, 3, 4, 6, 7}, 1 if before is None else 2, **attributes)


@node
def QEmbedLayerNormalization(r):
    batch, length, width, words, dtype = r.size(1, 2), r.size(1, 4), r.size(2, 5), r.size(2, 6), r.byte()
    segments = r.often(0.6)
    table = lambda *shape: r.whole(dtype, *shape)
    of_segments = lambda t: t if segments else None
    operands = [r.r.integers(0, words, (batch, length)).astype(I32)]
    operands += [of_segments(r.r.integers(0, 2, (batch, length)).astype(I32)), table(words, width), table(5, width)]
    operands += [of_segments(table(2, width)), table(width), table(width), r.maybe(r.mask(batch, length))]
    operands += [r.scale(), r.scale(), of_segments(r.scale()), r.scale(), r.scale()]
    operands += [r.zero(dtype), r.zero(dtype), of_segments(r.zero(dtype)), r.zero(dtype), r.zero(dtype)]
    return Node(operands, {2, 3, 4, 5, 6, *range(8, 18)}, 2, epsilon=1e-3)


@node
def MultiHeadAttention(r):
    batch, heads, size = r.size(1, 2), r.size(1, 2), r.size(1, 3)
    new, past = r.size(1, 3), r.size(0, 3)
    room = past + new + r.size(0, 2)
    masks = None, r.mask(batch, past + new), r.mask(batch, new, past + new)
    attributes = {"unidirectional": 1} if r.often(0.4) else {}
    operands = [r.floats(batch, new, heads * size) for _ in range(3)]
    operands += [r.maybe(r.floats(3 * heads * size)), r.one_of(*masks)]
    operands += [r.maybe(r.floats(r.one_of(1, batch), r.one_of(1, heads), new, past + new), 0.3)]
    operands += [r.floats(batch, heads, room, size), r.floats(batch, heads, room, size), np.array([past], I32)]
    return Node(operands, {3}, 3, num_heads=heads, **attributes)


@node
def DecoderMaskedMultiHeadAttention(r):
    batch, heads, size, past = r.size(1, 2), r.size(1, 2), r.size(1, 3), r.size(0, 3)
    room = past + 1 + r.size(0, 2)
    if r.often(0.3):
        keys = [r.floats(batch, heads, room, size) for _ in range(2)]
        return Node([r.floats(batch, 1, heads * size), *keys, r.maybe(r.mask(batch, room))], num_heads=heads)
    operands = [r.floats(batch, 1, heads * size) for _ in range(3)] + [r.maybe(r.mask(batch, past + 1)), None]
    operands += [r.floats(batch, heads, room, size), r.floats(batch, heads, room, size), np.array([past], I32)]
    operands += [None, None, r.maybe(r.floats(3 * heads * size))]
    return Node(operands, {10}, 3, num_heads=heads, past_present_share_buffer=1)


@node
def GroupQueryAttention(r):
    batch, kept, how = r.size(1, 2), r.size(1, 2), r.one_of("prompt", "grows", "buffer")
    heads, size = kept * r.size(1, 2), 8
    new, past, before = r.size(1, 4) if how == "prompt" else 1, 0, [None, None]
    lengths, total = np.full(batch, new - 1, I32), new
    if how != "prompt":
        past = r.size(2, 5)
        before = [r.floats(batch, kept, past, size) for _ in range(2)]
        lengths, total = np.full(batch, past, I32), past + 1
    if how == "buffer":
        # What lies behind the keys is not said: there is nothing.
        lengths, total = np.full(batch, past - 1, I32), past
    operands = [r.floats(batch, new, n * size) for n in (heads, kept, kept)]
    if r.often(0.3):
        operands = [np.concatenate(operands, 2), None, None]
    attributes, tables, results = {}, [None, None], 3
    if r.often():
        attributes.update(do_rotary=1, rotary_interleaved=r.size(0, 1))
        tables = [r.floats(8, size // 2), r.floats(8, size // 2)]
    if r.often(0.3):
        attributes["softcap"] = 2.0
    if r.often(0.3):
        attributes["smooth_softmax"] = 1
    attributes.update(r.one_of({}, {"causal": 0}, {"local_window_size": r.size(1, 4)}))
    if how != "buffer" and r.often(0.4):
        attributes["qk_output"], results = r.size(1, 2), 4
    operands += [*before, lengths, np.array(total, I32), *tables]
    return Node(operands, {6}, results, num_heads=heads, kv_num_heads=kept, **attributes)


@node
def MoE(r):
    experts, tokens, width, inner = r.size(2, 4), r.size(1, 4), r.size(1, 4), r.size(1, 4)
    kind = r.one_of("relu", "gelu", "silu", "identity", "swiglu")
    attributes = {"activation_type": kind, "k": r.size(1, experts), "normalize_routing_weights": r.size(0, 1)}
    if kind == "swiglu":
        attributes.update(swiglu_fusion=1, activation_alpha=1.75, activation_beta=1.0, swiglu_limit=1.5)
    first = inner * (2 if kind == "swiglu" else 1)
    x = r.floats(tokens, width)
    operands = [r.one_of(x, x[None]), r.floats(tokens, experts), r.floats(experts, first, width)]
    operands += [r.maybe(r.floats(experts, first)), r.floats(experts, width, inner), r.maybe(r.floats(experts, width))]
    return Node(operands, {2, 3, 4, 5}, **attributes)


@node
def MoE_of_three_products(r):
    experts, tokens, width, inner, kind = r.size(2, 3), r.size(1, 3), r.size(1, 3), r.size(1, 3), r.one_of("silu", "swiglu")
    x, scores = r.floats(tokens, width), r.floats(tokens, experts)
    first, second, third = r.floats(experts, inner, width), r.floats(experts, width, inner), r.floats(experts, inner, width)
    biases = [r.floats(experts, inner), r.floats(experts, width), r.floats(experts, inner)]

    def formula():
        shares = softmax(wide(scores))
        shares = np.where(shares == shares.max(-1, keepdims=True), shares, 0)
        product = lambda t, w, bias: t @ wide(w).swapaxes(1, 2) + wide(bias)[:, None]
        gate, value = product(wide(x), first, biases[0]), product(wide(x), third, biases[2])
        y = product(gate * sigmoid(gate) * value, second, biases[1])
        return [(y * shares.T[..., None]).sum(0).astype(F)]

    operands = [x, scores, first, biases[0], second, biases[1], third, biases[2]]
    return Node(operands, range(2, 8), formula=formula, operator="MoE", activation_type=kind)


@node
def QMoE(r):
    # In blocks of 8 bits ONNX Runtime rounds the tokens to bytes as well.
    (bits, block), kind = r.one_of((4, 0), (4, 16), (8, 0)), r.one_of("silu", "swiglu")
    experts, tokens = r.size(2, 3), r.size(1, 3)
    width, inner = (block * r.size(1, 2), block * r.size(1, 2)) if block else (2 * r.size(1, 3), 2 * r.size(1, 3))
    attributes = {"block_size": block} if block else {}
    if kind == "swiglu":
        attributes.update(swiglu_fusion=1, activation_alpha=1.75, activation_beta=1.0)
    outputs = [inner * (2 if kind == "swiglu" else 1), width], [width, inner]
    operands, zeros = [r.floats(tokens, width), r.floats(tokens, experts)], []
    for rows, columns in zip(*outputs):
        scales = [experts, rows] + ([columns // block] if block else [])
        operands += [r.whole(U8, experts, rows, columns * bits // 8), np.abs(r.floats(*scales)) * F(1 / 16)]
        operands += [r.maybe(r.floats(experts, rows))]
        fill = [rows, -(-columns // block * bits // 8)] if block else [-(-rows * bits // 8)]
        zeros.append(r.whole(U8, experts, *fill))
    operands += [None, None, None, *r.one_of([None, None], zeros)]
    return Node(operands, range(2, 13), k=r.size(1, experts), activation_type=kind, expert_weight_bits=bits,
                normalize_routing_weights=r.size(0, 1), **attributes)


def image(r, behind, dtype=None):
    batch, channels, space = r.size(1, 2), r.size(1, 3), [r.size(3, 6), r.size(3, 6)]
    shape = [batch, *space, channels] if behind else [batch, channels, *space]
    return r.floats(*shape) if dtype is None else r.whole(dtype, *shape)


@node
def QLinearConv(r):
    group, behind, dtype = r.size(1, 2), r.often(0.7), r.byte()
    of_weight = I8 if dtype == I8 else r.byte()
    inner, outer, space = group * r.size(1, 2), group * r.size(1, 2), [r.size(3, 6) for _ in range(r.size(1, 2))]
    window, n = [r.size(1, 3) for _ in space], r.size(1, 2)
    x = r.whole(dtype, *([n, *space, inner] if behind else [n, inner, *space]))
    scale, zero = r.scale(), r.zero(U8) if of_weight == U8 else np.array(0, I8)
    if r.often(0.4):
        scale, zero = np.array([r.scale() for _ in range(outer)]), np.zeros(outer, of_weight)
    bias = r.maybe(r.r.integers(-5000, 5000, outer).astype(I32))
    operands = [x, r.scale(), r.zero(dtype), r.whole(of_weight, outer, inner // group, *window), scale, zero]
    operands += [np.array(F(0.5)), r.zero(dtype), bias]
    pads = [r.size(0, 1) for _ in range(2 * len(space))]
    return Node(operands, range(1, 9), channels_last=int(behind), group=group, kernel_shape=window, pads=pads,
                strides=[r.size(1, 2) for _ in space])


@node
def QLinearAveragePool(r):
    behind, dtype = r.often(0.7), r.byte()
    operands = [image(r, behind, dtype), r.scale(), r.zero(dtype), r.scale(), r.zero(dtype)]
    how = r.one_of({"kernel_shape": [r.size(1, 3), r.size(1, 3)]}, {"kernel_shape": [3, 2], "pads": [1, 1, 1, 1]})
    return Node(operands, range(1, 5), channels_last=int(behind), strides=[r.size(1, 2)] * 2,
                ceil_mode=r.size(0, 1), count_include_pad=r.size(0, 1), **how)


@node
def QLinearGlobalAveragePool(r):
    behind, dtype = r.often(0.7), r.byte()
    operands = [image(r, behind, dtype), r.scale(), r.zero(dtype), r.scale(), r.zero(dtype)]
    return Node(operands, range(1, 5), channels_last=int(behind))


@node
def QLinearSoftmax(r):
    dtype = r.byte()
    x = r.whole(dtype, r.size(1, 2), r.size(1, 3), r.size(1, 12))
    scale = np.array(F(r.one_of(1 / 256, 1 / 255, 0.01)))
    operands = [x, r.scale(), r.zero(dtype), scale, np.array(dtype(np.iinfo(dtype).min))]
    return Node(operands, range(1, 5), axis=r.size(-3, 2), opset=r.one_of(11, 13))


@node
def QLinearWhere(r):
    dtype, shape = r.byte(), [r.size(1, 3) for _ in range(3)]
    part = lambda: [n if r.often(0.7) else 1 for n in shape][r.size(0, 2):]
    operands = [r.r.random(part()) > 0.5]
    for _ in range(2):
        operands += [r.whole(dtype, *part()), r.scale(), r.zero(dtype)]
    return Node([*operands, r.scale(), r.zero(dtype)], {2, 3, 5, 6, 7, 8})


@node
def QLinearReduceMean(r):
    dtype, axes, keeps = r.byte(), sorted({r.size(0, 2), r.size(0, 2)}), r.size(0, 1)
    x, scales, zeros = r.whole(dtype, 2, 3, 4), [r.scale(), r.scale()], [r.zero(dtype), r.zero(dtype)]

    def formula():
        mean = ((wide(x) - zeros[0]) * scales[0]).mean(tuple(axes), keepdims=bool(keeps))
        info = np.iinfo(dtype)
        return [np.clip(np.round(mean / scales[1]) + zeros[1], info.min, info.max).astype(dtype)]

    operands = [x, scales[0], zeros[0], scales[1], zeros[1]]
    return Node(operands, range(1, 5), formula=formula, axes=axes, keepdims=keeps)


@node
def ReduceSumInteger(r):
    dtype, axis, keeps = r.byte(), r.size(-3, 2), r.size(0, 1)
    x = r.whole(dtype, 2, 3, 4)
    to = np.uint32 if dtype == U8 else I32
    return Node([x], formula=lambda: [x.sum(axis, to, keepdims=bool(keeps))], axes=[axis], keepdims=keeps)


@node
def MulInteger(r):
    dtype = r.byte()
    (a, b), zeros = (r.whole(dtype, 2, 3), r.whole(dtype, 3)), [r.maybe(r.zero(dtype)) for _ in range(2)]
    less = lambda x, zero: x.astype(I32) - (0 if zero is None else zero.astype(I32))
    return Node([a, zeros[0], b, zeros[1]], {1, 3}, formula=lambda: [less(a, zeros[0]) * less(b, zeros[1])])


@node
def MatMulInteger16(r):
    rows, inner, columns = r.size(1, 3), r.size(1, 4), r.size(1, 3)
    return Node([r.whole(np.int16, rows, inner), r.whole(np.int16, inner, columns)])


@node
def MatMulBnb4(r):
    columns, inner, block = r.size(1, 9), r.size(1, 20), r.one_of(16, 32)
    count = columns * inner
    largest = np.abs(r.floats((count - 1) // block + 1))
    operands = [r.floats(r.size(1, 3), inner), r.whole(U8, (count + 1) // 2), largest]
    return Node(operands, {1, 2}, K=inner, N=columns, block_size=block, quant_type=r.size(0, 1))


@node
def NhwcMaxPool(r):
    x = image(r, True, r.byte())
    return Node([x], kernel_shape=[r.size(2, 3), r.size(2, 3)], pads=[r.size(0, 1) for _ in range(4)],
                strides=[r.size(1, 2)] * 2, ceil_mode=r.size(0, 1))


@node
def NhwcConv(r):
    group = r.size(1, 2)
    outer, window, x = group * r.size(1, 2), [r.size(1, 3), r.size(1, 3)], r.floats(1, r.size(3, 4), r.size(3, 4), 2)
    w, bias, pads = r.floats(outer, *window, 2 // group), r.maybe(r.floats(outer)), [r.size(0, 1) for _ in range(4)]
    formula = lambda: [last(convolved(first(x), first(w), bias, [1, 2], pads, group)).astype(F)]
    return Node([x, w, bias], {1, 2}, formula=formula, kernel_shape=window, pads=pads, strides=[1, 2], group=group)


@node
def NhwcFusedConv(r):
    outer, window, x = r.size(1, 2), [r.size(1, 3), r.size(1, 3)], r.floats(1, r.size(3, 4), r.size(3, 4), 2)
    w, bias = r.floats(outer, 2, *window), r.floats(outer)
    y = last(convolved(first(x), w, bias, [1, 1], [1, 0, 0, 0], 1))
    more = r.maybe(r.floats(*y.shape))
    formula = lambda: [np.maximum(y + (0 if more is None else more), 0).astype(F)]
    return Node([x, w, bias, more], {1, 2}, formula=formula, kernel_shape=window, pads=[1, 0, 0, 0], activation="Relu")


def group_normed(x, groups, scale, shift, silu, eps=1e-5):
    apart = wide(x).reshape(x.shape[0], groups, -1)
    apart = (apart - apart.mean(-1, keepdims=True)) / np.sqrt(apart.var(-1, keepdims=True) + eps)
    y = apart.reshape(x.shape) * wide(scale).reshape(-1, 1, 1) + wide(shift).reshape(-1, 1, 1)
    return y * sigmoid(y) if silu else y


@node
def GroupNorm(r):
    groups, behind, silu = r.size(1, 2), r.size(0, 1), r.size(0, 1)
    channels, space = groups * r.size(1, 2), [r.size(1, 3), r.size(2, 3)]
    x, scale, shift = r.floats(1, channels, *space), r.floats(channels), r.floats(channels)
    to = last if behind else np.asarray
    formula = lambda: [to(group_normed(x, groups, scale, shift, silu)).astype(F)]
    return Node([to(x), scale, shift], {1, 2}, formula=formula, activation=silu, channels_last=behind, groups=groups)


@node
def SkipGroupNorm(r):
    groups, silu, batch = r.size(1, 2), r.size(0, 1), r.size(1, 2)
    channels, space = groups * r.size(1, 2), [r.size(1, 2), r.size(2, 3)]
    x, scale, shift = r.floats(batch, *space, channels), r.floats(channels), r.floats(channels)
    skip = r.one_of(r.floats(*x.shape), r.floats(batch, 1, 1, channels), r.floats(batch, channels))
    bias = r.maybe(r.floats(channels))

    def formula():
        total = wide(x) + wide(skip).reshape(batch, *(space if skip.shape == x.shape else [1, 1]), channels)
        total = total if bias is None else total + bias
        return [last(group_normed(first(total), groups, scale, shift, silu)).astype(F), total.astype(F)]

    return Node([x, scale, shift, skip, bias], {1, 2}, 2, formula=formula, activation=silu, groups=groups)


@node
def BiasAdd(r):
    shape = [r.size(1, 2), r.size(1, 3), r.size(1, 3)]
    x, bias, skip = r.floats(*shape), r.floats(shape[2]), r.floats(*shape)
    return Node([x, bias, skip], {1}, formula=lambda: [x + bias + skip])


@node
def BiasSplitGelu(r):
    half = r.size(1, 3)
    x, bias = r.floats(1, r.size(1, 3), 2 * half), r.floats(2 * half)
    total = wide(x) + bias
    return Node([x, bias], {1}, formula=lambda: [(total[..., :half] * gelu(total[..., half:])).astype(F)])


@node
def BiasSoftmax(r):
    shape, inner, axis = [r.size(1, 2), r.size(1, 2), r.size(1, 3), r.size(1, 4)], r.size(0, 1), r.size(2, 3)
    bias = r.floats(shape[0], 1, 1, shape[3]) if inner else r.floats(1, 1, *shape[2:])
    x = r.floats(*shape)
    formula = lambda: [softmax((wide(x) + bias).reshape(*shape[:axis], -1)).reshape(shape).astype(F)]
    return Node([x, bias], formula=formula, axis=axis, is_inner_broadcast=inner)


@node
def GemmFastGelu(r):
    x, w, bias = r.floats(r.size(1, 2), r.size(1, 2), 3), r.floats(3, 2), r.maybe(r.floats(2))
    y = wide(x) @ wide(w) + (0 if bias is None else bias)
    tanh = np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3))
    return Node([x, w, bias], {1, 2}, formula=lambda: [(0.5 * y * (1 + tanh)).astype(F)])


@node
def RelativePositionBias(r):
    buckets, heads, both = 2 * r.size(2, 8), r.size(1, 2), r.size(0, 1)
    own, farthest, length = buckets // (1 + both), r.size(buckets, 40), r.size(1, 30)
    table = r.floats(buckets, heads)

    def bucket(ahead):
        distance, start = (abs(ahead), own * (ahead > 0)) if both else (max(-ahead, 0), 0)
        if distance < own // 2:
            return start + distance
        step = F(math.log(F(distance / (own // 2)))) / F(math.log(farthest / (own // 2))) * F(own - own // 2)
        return start + min(own // 2 + int(step), own - 1)

    def formula():
        which = [[bucket(key - query) for key in range(length)] for query in range(length)]
        return [table[np.array(which)].transpose(2, 0, 1)[None]]

    # The table's elements lie head by head.
    by_head = np.ascontiguousarray(table.T).reshape(buckets, heads)
    lengths = [np.array([length], I64)] * 2
    return Node([by_head, *lengths], {1, 2}, formula=formula, max_distance=farthest, is_bidirectional=both)


@node
def GatedRelativePositionBias(r):
    batch, length, heads, size, width = r.size(1, 2), r.size(1, 3), r.size(1, 2), r.size(1, 3), 2 * r.size(1, 2)
    q, bias, distance = r.floats(batch, length, heads * size), r.floats(heads * size), r.floats(1, heads, length, length)
    w, shift, more = r.floats(size, width), r.floats(width), r.floats(1, heads, 1, 1)

    def formula():
        query = (wide(q) + bias).reshape(batch, length, heads, size).swapaxes(1, 2)
        gates = sigmoid((query @ w + shift).reshape(batch, heads, length, 2, width // 2).sum(-1))
        return [((gates[..., :1] * (gates[..., 1:] * more - 1) + 2) * distance).astype(F)]

    return Node([q, bias, distance, w, shift, more], {1, 3, 4, 5}, formula=formula, num_heads=heads)


def padded(r):
    batch, length = r.size(1, 3), r.size(1, 4)
    lengths = r.r.integers(1, length + 1, batch).astype(I32)
    kept = np.arange(length) < lengths[:, None]
    offsets = np.concatenate([np.flatnonzero(kept), np.flatnonzero(~kept)]).astype(I32).reshape(batch, length)
    before = np.concatenate([[0], np.cumsum(lengths)]).astype(I32)
    return batch, length, lengths, kept, offsets, before


@node
def RemovePadding(r):
    batch, length, lengths, kept, offsets, before = padded(r)
    x = r.floats(batch, length, r.size(1, 2))
    return Node([x, lengths], results=4, formula=lambda: [x[kept], offsets, before, lengths.max(keepdims=True)])


@node
def RestorePadding(r):
    batch, length, _, kept, offsets, _ = padded(r)
    x = r.floats(batch, length, r.size(1, 2))
    return Node([x[kept], offsets], formula=lambda: [x * kept[..., None]])


@node
def PackedAttention(r):
    batch, length, _, kept, offsets, before = padded(r)
    heads, size, width = r.size(1, 2), r.size(1, 2), r.size(1, 3)
    x, w, bias = r.floats(batch, length, width), r.floats(width, 3 * heads * size), r.floats(3 * heads * size)
    more = r.maybe(r.floats(1, heads, length, length))
    parts = np.split(wide(x) @ w + bias, 3, -1)
    formula = lambda: [attended(*parts, heads, kept, more)[kept].astype(F)]
    return Node([x[kept], w, bias, offsets, before, more], {1, 2}, formula=formula, num_heads=heads)


@node
def PackedMultiHeadAttention(r):
    batch, length, _, kept, offsets, before = padded(r)
    heads, size = r.size(1, 2), r.size(1, 2)
    parts = [r.floats(batch, length, heads * size) for _ in range(3)]
    if r.often(0.4):
        all = np.stack([t.reshape(batch, length, heads, size) for t in parts], 3)
        operands, bias = [all[kept], None, None, None, offsets, before], [0, 0, 0]
    else:
        given = r.maybe(r.floats(3 * heads * size))
        operands = [*(t[kept] for t in parts), given, offsets, before]
        bias = [0, 0, 0] if given is None else np.split(given, 3)
    formula = lambda: [attended(*(wide(t) + b for t, b in zip(parts, bias)), heads, kept)[kept].astype(F)]
    return Node(operands, {3}, formula=formula, num_heads=heads)


def complex_product(r, conjugate):
    a, b = r.floats(r.size(1, 2), 3, 2), r.floats(3, 2)
    of = lambda t: wide(t)[..., 0] + 1j * wide(t)[..., 1]
    product = of(a) * (of(b).conj() if conjugate else of(b))
    return Node([a, b], formula=lambda: [np.stack([product.real, product.imag], -1).astype(F)])


@node
def ComplexMul(r):
    return complex_product(r, False)


@node
def ComplexMulConj(r):
    return complex_product(r, True)


@node
def Rfft(r):
    x = r.floats(*[r.size(1, 3) for _ in range(r.size(0, 2))], 2 * r.size(1, 6))
    y = np.fft.rfft(x)
    return Node([x], formula=lambda: [np.stack([y.real, y.imag], -1).astype(F)], normalized=0, onesided=1, signal_ndim=1)


@node
def Irfft(r):
    x = r.floats(*[r.size(1, 3) for _ in range(r.size(0, 2))], r.size(2, 6), 2)
    y = np.fft.irfft(x[..., 0] + 1j * x[..., 1])
    return Node([x], formula=lambda: [y.astype(F)], normalized=0, onesided=1, signal_ndim=1)


@node
def Trilu(r):
    shape = [*[r.size(1, 2) for _ in range(r.size(0, 1))], r.size(1, 4), r.size(1, 4)]
    return Node([r.floats(*shape), r.maybe(np.array(r.size(-3, 3), I64))], r.one_of({1}, {}), upper=r.size(0, 1))


@node
def Inverse(r):
    n = r.size(1, 5)
    return Node([r.floats(*[r.size(1, 2) for _ in range(r.size(0, 1))], n, n) + 2 * np.eye(n, dtype=F)])


@node
def GridSample(r):
    x, grid = r.floats(1, r.size(1, 2), r.size(2, 4), r.size(2, 4)), (r.floats(1, 2, 3, 2) * F(0.75)).round(3)
    return Node([x, grid], mode=r.one_of("bilinear", "nearest", "bicubic"), align_corners=r.size(0, 1),
                padding_mode=r.one_of("zeros", "border", "reflection"))


@node
def Pad(r):
    shape, mode = [r.size(2, 3) for _ in range(r.size(1, 2))], r.one_of("constant", "reflect", "edge")
    pads = r.r.integers(-1 if mode == "constant" else 0, 2, 2 * len(shape))
    fill = np.array([1.5], F) if mode == "constant" and r.often() else None
    return Node([r.floats(*shape), r.one_of(pads, pads[None]), fill], {1, 2}, mode=mode)


@node
def Range(r):
    dtype, start, limit = r.one_of(I32, I64, F, np.float64, np.int16), r.size(-5, 5), r.size(-5, 9)
    step = r.maybe(r.size(1, 3) * (1 if start <= limit else -1))
    shaped = lambda n: None if n is None else r.one_of(np.array(n, dtype), np.array([n], dtype))
    return Node([shaped(start), shaped(limit), shaped(step)], {0, 1, 2})


@node
def ExpandDims(r):
    shape = [r.size(1, 3) for _ in range(r.size(1, 3))]
    return Node([r.floats(*shape), np.array(r.size(-len(shape) - 1, len(shape)), I32)], {1})


@node
def GatherND(r):
    shape = [r.size(1, 3) for _ in range(r.size(1, 3))]
    places = [r.r.integers(0, n, [r.size(1, 3)] if not i else []) for i, n in enumerate(shape[: r.size(1, len(shape))])]
    return Node([r.floats(*shape), np.stack(np.broadcast_arrays(*places), -1).astype(r.one_of(I32, I64))])


@node
def TransposeMatMul(r):
    a, b, n = r.size(0, 1), r.size(0, 1), r.size(1, 2)
    x, y = r.floats(n, *((4, 2) if a else (2, 4))), r.floats(n, *((3, 4) if b else (4, 3)))
    return Node([x, y], transA=a, transB=b, alpha=0.75)


@node
def Unique(r):
    return Node([r.r.integers(0, 6, r.size(1, 12)).astype(F)], results=3)


@node
def ConvTransposeWithDynamicPads(r):
    group = r.size(1, 2)
    inner, outer, window = group * r.size(1, 2), r.size(1, 2), [r.size(2, 3), r.size(2, 3)]
    x, w = r.floats(1, inner, r.size(2, 3), r.size(2, 3)), r.floats(inner, outer, *window)
    pads, bias = np.array([r.size(0, 1) for _ in range(4)], I64), r.maybe(r.floats(outer * group))
    return Node([x, w, pads, bias], {2}, kernel_shape=window, strides=[r.size(1, 2), r.size(1, 2)], group=group)


@node
def CDist(r):
    n = r.size(1, 4)
    return Node([r.floats(r.size(1, 3), n), r.floats(r.size(1, 3), n)], metric=r.one_of("sqeuclidean", "euclidean"))


def model(name, of):
    """The model as bytes, its inputs, and its operands by name: those of constants begin with `c`."""
    names, inputs, constants, given, named = [], [], [], {}, {}
    for i, operand in enumerate(of.operands):
        key = "" if operand is None else f"{'c' if i in of.constant else 'x'}{i}"
        names.append(key)
        if operand is None:
            continue
        operand = named[key] = np.asarray(operand)
        if i in of.constant:
            constants.append(numpy_helper.from_array(operand, key))
        else:
            dtype = helper.np_dtype_to_tensor_dtype(operand.dtype)
            inputs.append(helper.make_tensor_value_info(key, dtype, operand.shape))
            given[key] = operand
    while not names[-1]:
        names.pop()
    results = [f"y{i}" for i in range(of.results)]
    made = helper.make_node(of.operator or name, names, results, domain="com.microsoft", **of.attributes)
    outputs = [onnx.ValueInfoProto(name=result) for result in results]
    graph = helper.make_graph([made], "g", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    whole = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return whole.SerializeToString(), given, names, named, results


def computed(of, data, given):
    """What ONNX Runtime or the formula makes of the operands, or why ONNX Runtime does not."""
    if of.formula:
        return [np.ascontiguousarray(t) for t in of.formula()]
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    try:
        return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, given)
    except Exception as refusal:
        return str(refusal)


def line(key, t):
    numbers = [f"{v:.6g}" if t.dtype.kind == "f" else str(int(v)) for v in t.ravel()]
    return " ".join([key, NAMES[t.dtype.name], "x".join(map(str, t.shape)) or "-", *numbers])


def setting(value):
    if isinstance(value, list):
        return "[" + ",".join(map(str, value)) + "]"
    return value if isinstance(value, str) else repr(value)


def write(most=90):
    lines = []
    for name, make in MAKERS.items():
        written, seed = 0, 0
        while written < (8 if name in MANY_KINDS else 3):
            of, seed = make(Random(seed, len(name))), seed + 1
            data, given, names, named, results = model(name, of)
            found = computed(of, data, given)
            small = sum(t.size for t in named.values()) + sum(np.size(t) for t in found) <= most + seed // 4
            if isinstance(found, str) or not small or not all(t.size for t in found) or not given and name != "Range":
                assert seed < 1000, (name, found)
                continue
            text = [of.operator or name, *[key or "_" for key in names], "->", *results, "|"]
            text += [f"{key}={setting(value)}" for key, value in sorted(of.attributes.items())]
            lines.append(" ".join(text))
            lines += [line(key, t) for key, t in named.items()]
            lines += [line(key, np.asarray(t)) for key, t in zip(results, found)]
            written += 1
    TARGET.write_text("\n".join(lines) + "\n")


def differs(name, found, expected):
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return f"{found.dtype}{list(found.shape)} for {expected.dtype}{list(expected.shape)}"
    if not expected.size:
        return None
    distance = np.abs(wide(found) - wide(expected)).max()
    is_byte = expected.dtype.itemsize == 1 and name.startswith("Q")
    limit = 1 if is_byte else 5e-4 * (1 + np.abs(wide(expected)).max()) if expected.dtype.kind == "f" else 0
    return None if distance <= limit else f"off by {distance}"


def compare(tlc, seed, count, operators):
    with tempfile.TemporaryDirectory() as folder:
        folder, cases, manifest = pathlib.Path(folder), {}, []
        for name in operators or MAKERS:
            for i in range(count):
                of = MAKERS[name](Random(seed, i, len(name)))
                data, given, _, _, results = model(name, of)
                key = f"{name}.{i}"
                (folder / f"{key}.onnx").write_bytes(data)
                for operand, t in given.items():
                    np.save(folder / f"{key}.{operand}.npy", t)
                sources = {operand: str(folder / f"{key}.{operand}.npy") for operand in given}
                cases[key] = name, of, computed(of, data, given), results
                manifest.append({"id": key, "model": str(folder / f"{key}.onnx"), "inputs": sources,
                                 "output_dir": str(folder / f"{key}.out")})
        (folder / "manifest").write_text("".join(json.dumps(case) + "\n" for case in manifest))
        ran = subprocess.run([tlc, "run", "--batch", folder / "manifest"], capture_output=True, text=True, cwd=folder)
        said = {}
        for text in ran.stdout.splitlines():
            said[json.loads(text).get("id")] = json.loads(text)
        wrong, none = 0, 0
        for key, (name, of, expected, results) in cases.items():
            if isinstance(expected, str):
                none += 1
                continue
            try:
                pairs = [(np.load(folder / f"{key}.out" / f"{result}.npy"), np.asarray(t)) for result, t in zip(results, expected)]
                why = next(filter(None, (differs(name, a, b) for a, b in pairs)), None)
            except FileNotFoundError:
                why = said.get(key, {}).get("error", ran.stderr[-300:])
            if why:
                wrong += 1
                print(key, why, of.attributes, [None if t is None else (np.asarray(t).dtype.name, np.shape(t)) for t in of.operands])
        print(f"{len(cases)} nodes, {wrong} of them wrong, {none} that ONNX Runtime refuses")


def types(schema):
    """A letter for each operand, as the field of `Signature` has them."""
    variables, letters = [i.typeStr for i in schema.inputs], {}
    shared = lambda name: "(" not in name and variables.count(name) > 1
    letter = lambda name: letters.setdefault(name, "ABCDEFGH"[len(letters)]) if shared(name) else "-"
    return re.sub(r"(.)\1+$", r"\1", "".join(map(letter, variables))) if any(map(shared, variables)) else ""


def compare_types():
    source = pathlib.Path(__file__).parents[2] / "onnx/src/operators/microsoft.rs"
    said = {s.name: types(s) for s in get_all_operator_schema() if s.domain == "com.microsoft"}
    for name, found in re.findall(r'row\(\s*"(\w+)",\s*1,\s*\(\d+, \w+\),\s*"([A-Z-]*)"', source.read_text()):
        # This one has its schema in ONNX's own domain.
        expected = "" if name == "SimplifiedLayerNormalization" else said[name]
        if found != expected:
            print(f"{name}: `{found}`; expected `{expected}`")


if sys.argv[1:2] == ["write"]:
    write()
elif sys.argv[1:2] == ["types"]:
    compare_types()
elif sys.argv[1:2] == ["compare"]:
    numbers = [int(word) for word in sys.argv[3:] if word.isdigit()]
    compare(sys.argv[2], *(numbers + [1, 20][len(numbers):]), [word for word in sys.argv[3:] if not word.isdigit()])
else:
    sys.exit(__doc__)
