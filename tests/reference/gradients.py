"""Derivatives as PyTorch computes them, in f64: of Σ y[i] (1 + i/4) by every operand.

Prints what `gradients.json` holds. Needs torch; written with the version that the file names. (2.15 gives clamp another derivative at its
bounds, 0 for numbers and half for tensors; 2.9 passes all of it there, which is the convention here, too.)
"""

import json
import math

import torch
import torch.nn.functional as F

D = torch.float64
nan, inf = math.nan, math.inf
rows = []


def generic(*shape, lift=0.0, scale=1.0):
    """Numbers without ties that are no corner of anything."""
    n = math.prod(shape)
    return torch.tensor([((i * 37 + 11) % 101) / 40 - 1.2625 + i / 1024 for i in range(n)], dtype=D).reshape(shape) * scale + lift


def case(name, f, *operands):
    operands = [torch.as_tensor(x, dtype=D) for x in operands]
    leaves = [x.clone().requires_grad_() for x in operands]
    y = f(*leaves)
    weights = 1 + torch.arange(y.numel(), dtype=D).reshape(y.shape) / 4
    found = torch.autograd.grad(y, leaves, weights, allow_unused=True)
    numbers = lambda t: [repr(v) if not math.isfinite(v) else v for v in t.detach().flatten().tolist()]
    rows.append(
        {
            "name": name,
            "operands": [{"shape": list(x.shape), "data": numbers(x)} for x in operands],
            "value": numbers(y),
            "gradients": [numbers(torch.zeros_like(x) if d is None else d) for x, d in zip(operands, found)],
        }
    )


UNARY = {
    "neg": torch.neg, "abs": torch.abs, "sign": torch.sign, "square": torch.square, "exp": torch.exp, "exp2": torch.exp2,
    "expm1": torch.expm1, "sin": torch.sin, "cos": torch.cos, "tanh": torch.tanh, "sinh": torch.sinh, "cosh": torch.cosh,
    "asinh": torch.asinh, "atan": torch.atan, "erf": torch.erf, "floor": torch.floor, "ceil": torch.ceil, "round": torch.round,
    "trunc": torch.trunc, "relu": torch.relu, "relu6": F.relu6, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "sigmoid": torch.sigmoid, "silu": F.silu, "softplus": F.softplus, "log_sigmoid": F.logsigmoid, "elu": lambda x: F.elu(x, 1.5),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.25), "softsign": F.softsign, "mish": F.mish, "hard_sigmoid": F.hardsigmoid,
    "hard_swish": F.hardswish, "hard_tanh": F.hardtanh, "clamp": lambda x: x.clamp(-1.0, 2.0), "clamp_low": lambda x: x.clamp(min=0.0),
    "pow0": lambda x: x**0, "pow1": lambda x: x**1, "pow2": lambda x: x**2, "pow3": lambda x: x**3, "reciprocal": torch.reciprocal,
    "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "log": torch.log, "log2": torch.log2, "log10": torch.log10, "log1p": torch.log1p,
    "pow_half": lambda x: x**0.5, "pow_minus": lambda x: x**-1.5, "tan": torch.tan,
}
for name, f in UNARY.items():
    only_positive = name in ("sqrt", "rsqrt", "log", "log2", "log10", "log1p", "pow_half", "pow_minus", "reciprocal")
    case(name, f, generic(3, 4, lift=1.5 if only_positive else 0.0))
    case(name, f, [-3.0, -2.0, -1.0, -0.0, 0.0, 0.5, 1.0, 2.0, 3.0, 6.0])
    case(name, f, [nan])
    case(name, f, torch.zeros(0, 3))
for name, f in {"asin": torch.asin, "acos": torch.acos, "atanh": torch.atanh, "erfinv_like": lambda x: torch.atanh(x) * x}.items():
    case(name, f, generic(5, scale=0.5))
    case(name, f, [-1.0, 0.0, 1.0])
case("acosh", torch.acosh, generic(5, lift=3.0))
case("acosh", torch.acosh, [1.0, 2.0])
for name in ("exp", "tanh", "sigmoid", "relu", "relu6", "hard_tanh", "hard_sigmoid", "clamp", "abs", "erf", "atan", "softplus", "elu", "leaky_relu"):
    case(name, UNARY[name], [inf, -inf])
for name in ("sigmoid", "silu", "gelu", "gelu_tanh", "softplus", "log_sigmoid", "mish", "tanh", "elu", "expm1", "softsign"):
    case(name, UNARY[name], [-1000.0, -720.0, -100.0, -40.0, 40.0, 100.0, 700.0])

BINARY = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "maximum": torch.maximum, "minimum": torch.minimum,
    "atan2": torch.atan2, "fmod": torch.fmod, "remainder": torch.remainder,
}
for name, f in BINARY.items():
    x, y = generic(2, 3), generic(2, 3, lift=2.0)
    case(name, f, x, y)
    case(name, f, x, y[0])
    case(name, f, x[:, :1], y[:1])
    case(name, f, x, torch.tensor(1.75))
    if name not in ("fmod", "remainder"):
        case(name, f, [1.0, -1.0, 2.0], [1.0, -1.0, 0.5])
case("pow", torch.pow, generic(4, lift=2.0), generic(4))
case("pow", torch.pow, [0.0, 0.0, 2.0, 1.0, 3.0], [0.0, 2.0, 0.0, 5.0, -1.0])
case("lerp", lambda a, b, t: torch.lerp(a, b, t), generic(4), generic(4, lift=1.0), generic(4, scale=0.3))
case("where", lambda a, b: torch.where(a > b, a, b * 2), generic(6), generic(6, scale=0.5))
case("fma", lambda a, b, c: a * b + c, generic(4), generic(4, lift=0.5), generic(4, lift=-0.5))
case("clamp_between", lambda x, lo, hi: x.clamp(lo, hi), [-2.0, -1.0, 0.0, 1.0, 2.0], [-1.0] * 5, [1.0] * 5)
case("clamp_between", lambda x, lo, hi: x.clamp(lo, hi), generic(6, scale=2.0), generic(6, lift=-1.5), generic(6, lift=1.5))
case("masked_fill", lambda x: x.masked_fill(x > 0, 2.5), generic(6))

REDUCE = {
    "sum": lambda x: x.sum(1), "sum_all": torch.sum, "mean": lambda x: x.mean(1), "prod": lambda x: x.prod(1), "max_all": torch.amax,
    "amax": lambda x: x.amax(1), "amin": lambda x: x.amin(1), "var": lambda x: x.var(1, correction=1), "std": lambda x: x.std(1, correction=0),
    "logsumexp": lambda x: x.logsumexp(1), "norm": lambda x: torch.linalg.vector_norm(x, dim=1), "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(1), "cumsum": lambda x: x.cumsum(1), "cumprod": lambda x: x.cumprod(1),
    "cummax": lambda x: x.cummax(1).values, "cummin": lambda x: x.cummin(1).values, "max_dim": lambda x: x.sort(dim=1, descending=True, stable=True).values[:, 0],
    "sort": lambda x: x.sort(dim=1, stable=True).values, "topk": lambda x: x.sort(dim=1, descending=True, stable=True).values[:, :2],
    "layer_norm": lambda x: F.layer_norm(x, x.shape[1:]), "logcumsum": lambda x: x.exp().cumsum(1).log(), "sum_keep": lambda x: x / x.sum(1, keepdim=True),
    "rms_norm": lambda x: x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-5),
}
for name, f in REDUCE.items():
    case(name, f, generic(3, 4))
    if name not in ("std", "sum_keep"):
        case(name, f, [[2.0, 2.0, 1.0, 2.0], [0.0, 3.0, -1.0, 3.0]])
    if name not in ("std", "sum_keep", "var", "topk", "max_all", "layer_norm", "rms_norm"):
        case(name, f, [[1.25]])
for name in ("prod", "cumprod"):
    case(name, REDUCE[name], [[2.0, 0.0, 4.0, 5.0], [0.0, 3.0, 0.0, 3.0]])
for name in ("norm", "sum", "softmax"):
    case(name, REDUCE[name], torch.zeros(2, 3))

VIEWS = {
    "reshape": lambda x: x.reshape(6, 2), "permute": lambda x: x.permute(1, 0), "expand": lambda x: x[:, :1].expand(3, 5), "flip": lambda x: x.flip(1),
    "roll": lambda x: x.roll(1, 1), "slice": lambda x: x[:, 1:4:2], "select": lambda x: x[1], "pad": lambda x: F.pad(x, (1, 2)), "tile": lambda x: x.tile(2, 2),
    "repeat": lambda x: x.repeat_interleave(2, 1), "tril": torch.tril, "triu": torch.triu, "diagonal": lambda x: torch.diagonal(x, 1), "trace": lambda x: torch.trace(x[:, :3]),
    "concat": lambda x: torch.cat([x, x * 2], 1), "stack": lambda x: torch.stack([x, x.exp()], 0), "take": lambda x: x[:, [0, 2, 2, 1]],
    "take_along": lambda x: x.gather(1, torch.tensor([[0, 0], [3, 1], [2, 2]])), "embedding": lambda x: F.embedding(torch.tensor([2, 0, 2]), x),
    "scatter_add": lambda x: torch.zeros(5, 4, dtype=D).index_add(0, torch.tensor([1, 1, 4]), x), "unfold": lambda x: x.unfold(1, 2, 1), "swap": lambda x: x.transpose(0, 1) * 2,
}
for name, f in VIEWS.items():
    case(name, f, generic(3, 4))

CONTRACT = {
    "matmul": (torch.matmul, (3, 4), (4, 2)), "batched": (torch.matmul, (2, 3, 4), (2, 4, 2)), "matvec": (torch.matmul, (3, 4), (4,)), "dot": (torch.dot, (5,), (5,)),
    "outer": (torch.outer, (3,), (4,)), "trace_product": (lambda a, b: torch.einsum("ij,ji->", a, b), (3, 4), (4, 3)),
    "diagonal_product": (lambda a, b: torch.einsum("ii,ij->i", a, b), (3, 3), (3, 2)), "linear": (F.linear, (3, 4), (2, 4), (2,)),
    "three": (lambda a, b, c: torch.einsum("ab,bc,cd->ad", a, b, c), (2, 3), (3, 4), (4, 2)), "hadamard": (lambda a, b: torch.einsum("ij,ij->ij", a, b), (3, 2), (3, 2)),
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, stride=2, padding=1), (2, 3, 7), (4, 3, 3), (4,)),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, padding=1), (1, 2, 4, 5), (3, 2, 3, 3), (3,)),
    "conv_dilated": (lambda x, w: F.conv2d(x, w, stride=2, dilation=2), (1, 2, 7, 7), (2, 2, 2, 2)),
    "conv_grouped": (lambda x, w: F.conv2d(x, w, groups=2), (1, 4, 4, 4), (4, 2, 2, 2)),
    "attention": (F.scaled_dot_product_attention, (1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 4)),
    "attention_causal": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), (1, 1, 4, 2), (1, 1, 4, 2), (1, 1, 4, 2)),
    "layer_norm_affine": (lambda x, w, b: F.layer_norm(x, (4,), w, b), (3, 4), (4,), (4,)),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), (2, 4, 3), (4,), (4,)),
}
for name, (f, *shapes) in CONTRACT.items():
    case(name, f, *[generic(*s, scale=1.0 - k / 4) for k, s in enumerate(shapes)])

POOL = {
    "max_pool1d": lambda x: F.max_pool1d(x, 3, 2, 1), "max_pool2d": lambda x: F.max_pool2d(x[None], 2)[0], "max_pool_overlap": lambda x: F.max_pool2d(x[None], 3, 1)[0],
    "avg_pool": lambda x: F.avg_pool2d(x[None], 2)[0], "avg_pool_padded": lambda x: F.avg_pool2d(x[None], 3, 2, 1, count_include_pad=False)[0],
    "global_avg": lambda x: F.adaptive_avg_pool2d(x[None], 1)[0], "bilinear": lambda x: F.interpolate(x[None], size=(6, 8), mode="bilinear", align_corners=False)[0],
    "nearest": lambda x: F.interpolate(x[None], scale_factor=2, mode="nearest")[0],
}
for name, f in POOL.items():
    case(name, f, generic(2, 4, 6))
    case(name, f, torch.ones(1, 4, 4))

labels = torch.tensor([1, 0, 3])
case("cross_entropy", lambda x: F.cross_entropy(x, labels), generic(3, 4))
case("cross_entropy", lambda x: F.cross_entropy(x, labels), [[1e4, -1e4, 0.0, 0.0], [0.0] * 4, [-1e4, 0.0, 1e4, 1.0]])
weights = torch.tensor([0.5, 1.0, 2.0, 0.25], dtype=D)
case("ce_ignored", lambda x: F.cross_entropy(x, torch.tensor([1, -100, 3])), generic(3, 4))
case("ce_smooth", lambda x: F.cross_entropy(x, labels, label_smoothing=0.1), generic(3, 4))
case("ce_weighted", lambda x: F.cross_entropy(x, labels, weight=weights), generic(3, 4))
case("ce_all", lambda x: F.cross_entropy(x, torch.tensor([1, -100, 3]), weight=weights, label_smoothing=0.2, ignore_index=-100), generic(3, 4))
case("ce_sum", lambda x: F.cross_entropy(x, labels, reduction="sum"), generic(3, 4))
case("ce_each", lambda x: F.cross_entropy(x, labels, reduction="none"), generic(3, 4))
case("nll", lambda x: F.nll_loss(x, labels), generic(3, 4))
PAIRS = {
    "mse": F.mse_loss, "l1": F.l1_loss, "huber": lambda x, y: F.huber_loss(x, y, delta=0.75), "smooth_l1": lambda x, y: F.smooth_l1_loss(x, y, beta=0.5),
    "mse_each": lambda x, y: F.mse_loss(x, y, reduction="none"), "l1_sum": lambda x, y: F.l1_loss(x, y, reduction="sum"),
}
for name, f in PAIRS.items():
    case(name, f, generic(3, 4), generic(3, 4, scale=0.5))
    case(name, f, [1.0, 2.0, 3.0], [1.0, 1.0, 5.0])
part = generic(3, 4, lift=1.5, scale=0.3)
case("bce", lambda x, y: F.binary_cross_entropy(x, y), (part / 2.0).clamp(0.01, 0.99), torch.tensor([[0.0, 1.0, 0.25, 1.0]] * 3))
case("bce_logits", lambda x, y: F.binary_cross_entropy_with_logits(x, y), generic(3, 4), torch.tensor([[0.0, 1.0, 0.25, 1.0]] * 3))
case("bce_logits", lambda x, y: F.binary_cross_entropy_with_logits(x, y), [1e4, -1e4, 0.0, 0.5], [1.0, 1.0, 0.5, 0.0])
case("kl_batch", lambda x, y: F.kl_div(x, y, reduction="sum"), generic(3, 4), part)
case("kl_log", lambda x, y: F.kl_div(x, y, reduction="mean", log_target=True), generic(3, 4), generic(3, 4, scale=0.5))
case("cosine", lambda x, y: F.cosine_similarity(x, y, dim=1), generic(3, 4), generic(3, 4, lift=0.5, scale=0.5))
same = torch.tensor([1.0, -1.0, 1.0], dtype=D)
case("cosine_embedding", lambda x, y: F.cosine_embedding_loss(x, y, same, margin=0.1), generic(3, 4), generic(3, 4, lift=0.5, scale=0.5))
for name, how in (("ctc", "mean"), ("ctc_each", "none")):
    spell = lambda x: F.ctc_loss(x.log_softmax(2), torch.tensor([[1, 2, 2], [3, 1, 1]]), torch.tensor([6, 5]), torch.tensor([3, 1]), reduction=how)
    case(name, spell, generic(6, 2, 4))

case("softmax_large", lambda x: x.softmax(0), [1e3, 1e3, -1e3])
case("square_of_norm", lambda x: torch.linalg.vector_norm(x) ** 2, generic(4))
case("det", torch.linalg.det, generic(3, 3))

def printed():
    """The rows so far, as JSON."""
    text = ",\n".join("  " + json.dumps(row) for row in rows)
    return '{"torch": %s, "rows": [\n%s\n]}' % (json.dumps(torch.__version__), text)


if __name__ == "__main__":
    print(printed())
