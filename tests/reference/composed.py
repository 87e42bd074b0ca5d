"""Derivatives of further functions as PyTorch computes them, in f64, as `gradients.py` does: those that the recording has as a few
operations, or as one with options (tests/gradients/composed.rs).

Prints what `composed.json` holds. Needs torch and torchvision; written with the version of torch that the file names.
"""

import math

import torch
import torch.nn.functional as F
import torchvision.ops as vision

from gradients import D, case, generic, inf, printed, rows

rows.clear()

pi = math.pi
positive = lambda *shape: generic(*shape, lift=3.0)
COMPOSED = {
    "addcmul": (lambda a, b, c: torch.addcmul(a, b, c, value=0.5), (4,), (4,), (4,)),
    "addmm": (lambda a, b, c: torch.addmm(a, b, c, beta=0.5, alpha=2.0), (2, 4), (2, 3), (3, 4)),
    "addmv": (torch.addmv, (2,), (2, 3), (3,)), "addr": (torch.addr, (3, 4), (3,), (4,)), "addbmm": (torch.addbmm, (2, 4), (2, 2, 3), (2, 3, 4)),
    "baddbmm": (torch.baddbmm, (2, 2, 4), (2, 2, 3), (2, 3, 4)), "bmm": (torch.bmm, (2, 2, 3), (2, 3, 4)), "mm": (torch.mm, (2, 3), (3, 2)),
    "mv": (torch.mv, (2, 3), (3,)), "inner": (torch.inner, (2, 3), (4, 3)), "kron": (torch.kron, (2, 3), (2, 2)),
    "tensordot": (lambda a, b: torch.tensordot(a, b, dims=([1, 2], [1, 0])), (2, 3, 4), (4, 3, 2)),
    "multi_dot": (lambda a, b, c: torch.linalg.multi_dot([a, b, c]), (2, 3), (3, 4), (4, 2)),
    "bilinear_form": (F.bilinear, (2, 3), (2, 4), (5, 3, 4), (5,)), "cross": (lambda a, b: torch.linalg.cross(a, b), (2, 3), (2, 3)),
    "cdist": (torch.cdist, (3, 2), (4, 2)), "pairwise_distance": (F.pairwise_distance, (3, 4), (3, 4)), "hypot": (torch.hypot, (5,), (5,)),
    "logaddexp": (torch.logaddexp, (5,), (5,)), "logaddexp2": (torch.logaddexp2, (5,), (5,)), "rsub": (torch.rsub, (3,), (3,)),
    "copysign": (torch.copysign, (5,), (5,)), "dist": (torch.dist, (3, 4), (3, 4)), "block_diag": (torch.block_diag, (2, 2), (2, 3)),
    "meshgrid": (lambda a, b: torch.stack(torch.meshgrid(a, b, indexing="ij")), (3,), (2,)), "cartesian_prod": (torch.cartesian_prod, (3,), (2,)),
    "hstack": (lambda a, b: torch.hstack([a, b]), (2, 3), (2, 2)), "vstack": (lambda a, b: torch.vstack([a, b]), (2, 3), (1, 3)),
    "dstack": (lambda a, b: torch.dstack([a, b]), (2, 3), (2, 3)), "slice_scatter": (lambda a, b: torch.slice_scatter(a, b, 1, 1, 3), (3, 4), (3, 2)),
    "select_scatter": (lambda a, b: torch.select_scatter(a, b, 0, 1), (3, 4), (4,)),
    "prelu": (F.prelu, (2, 3, 4), (3,)), "rms_norm_affine": (lambda x, w: F.rms_norm(x, (4,), w, eps=1e-5), (3, 4), (4,)),
    "batch_norm": (lambda x, w, b: F.batch_norm(x, generic(2), positive(2), w, b), (3, 2, 4), (2,), (2,)),
    "batch_norm_training": (lambda x, w, b: F.batch_norm(x, torch.zeros(2, dtype=D), torch.ones(2, dtype=D), w, b, training=True), (3, 2, 4), (2,), (2,)),
    "conv3d": (F.conv3d, (1, 1, 3, 3, 3), (2, 1, 2, 2, 2)), "conv_depthwise": (lambda x, w: F.conv2d(x, w, groups=3), (1, 3, 4, 4), (3, 1, 2, 2)),
    "conv_transpose1d": (lambda x, w: F.conv_transpose1d(x, w, stride=2, padding=1), (1, 2, 4), (2, 3, 3)),
    "conv_transpose2d": (lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2), (1, 2, 3, 2), (2, 3, 2, 2), (3,)),
    "margin_ranking": (lambda a, b: F.margin_ranking_loss(a, b, torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=D), margin=0.3), (4,), (4,)),
    "poisson_nll": (F.poisson_nll_loss, (3, 4), (3, 4)), "mse_sum": (lambda a, b: F.mse_loss(a, b, reduction="sum"), (3, 4), (3, 4)),
    "triplet_margin": (F.triplet_margin_loss, (3, 4), (3, 4), (3, 4)), "huber_sum": (lambda a, b: F.huber_loss(a, b, reduction="sum"), (3, 4), (3, 4)),
    "lstm_cell": (lambda x, h, c, u, v, b: torch.lstm_cell(x, (h, c), u, v, b, b * 0.5)[0], (2, 3), (2, 2), (2, 2), (8, 3), (8, 2), (8,)),
    "gru_cell": (lambda x, h, u, v, b, d: torch.gru_cell(x, h, u, v, b, d), (2, 3), (2, 2), (6, 3), (6, 2), (6,), (6,)),
    "rnn_tanh_cell": (lambda x, h, u, v, b: torch.rnn_tanh_cell(x, h, u, v, b, b), (2, 3), (2, 2), (2, 3), (2, 2), (2,)),
    "rnn_relu_cell": (lambda x, h, u, v, b: torch.rnn_relu_cell(x, h, u, v, b, b), (2, 3), (2, 2), (2, 3), (2, 2), (2,)),
    "affine_grid": (lambda t: F.affine_grid(t, (2, 1, 3, 4), align_corners=False), (2, 2, 3)),
    "affine_grid_aligned": (lambda t: F.affine_grid(t, (2, 1, 3, 4), align_corners=True), (2, 2, 3)),
}
for name, (f, *shapes) in COMPOSED.items():
    case(name, f, *[generic(*s, lift=k / 16, scale=1.0 - k / 8) for k, s in enumerate(shapes)])
case("addcdiv", lambda a, b, c: torch.addcdiv(a, b, c, value=0.5), generic(4), generic(4, scale=0.5), positive(4))
case("xlogy", torch.xlogy, generic(5), positive(5))
case("xlog1py", torch.special.xlog1py, generic(5), positive(5))
case("gaussian_nll", lambda x, y, v: F.gaussian_nll_loss(x, y, v), generic(3, 4), generic(3, 4, scale=0.5), positive(3, 4))

ONE = {
    "deg2rad": torch.deg2rad, "rad2deg": torch.rad2deg, "frac": torch.frac, "sinc": torch.sinc, "erfc": torch.erfc,
    "clamp_max": lambda x: torch.clamp_max(x, 0.4), "clamp_min": lambda x: torch.clamp_min(x, 0.4), "threshold": lambda x: F.threshold(x, 0.1, -2.0),
    "celu": lambda x: F.celu(x, 1.5), "selu": F.selu, "rrelu": lambda x: F.rrelu(x, training=False), "hardshrink": F.hardshrink, "softshrink": F.softshrink,
    "tanhshrink": F.tanhshrink, "softmin": lambda x: F.softmin(x, 1), "glu": lambda x: F.glu(x, 1), "normalize": lambda x: F.normalize(x, dim=1),
    "norm1": lambda x: torch.linalg.vector_norm(x, 1, dim=1), "norm_inf": lambda x: torch.linalg.vector_norm(x, inf, dim=1),
    "norm3": lambda x: torch.linalg.vector_norm(x, 3, dim=1), "frobenius": torch.linalg.matrix_norm, "median": lambda x: torch.median(x[:, :3], 1).values,
    "kthvalue": lambda x: torch.kthvalue(x, 2, 1).values, "quantile": lambda x: torch.quantile(x, 0.4, dim=1), "trapezoid": lambda x: torch.trapezoid(x, dx=0.5, dim=1),
    "cumulative_trapezoid": lambda x: torch.cumulative_trapezoid(x, dx=0.5, dim=1), "diff": torch.diff, "logcumsumexp": lambda x: torch.logcumsumexp(x, 1),
    "cov": torch.cov, "corrcoef": torch.corrcoef, "narrow": lambda x: torch.narrow(x, 1, 1, 2), "flatten": torch.flatten, "unflatten": lambda x: torch.unflatten(x, 1, (2, 2)),
    "unsqueeze": lambda x: torch.unsqueeze(x, 1) * x, "chunk": lambda x: torch.chunk(x, 2, 1)[1], "split": lambda x: torch.split(x, [1, 3], 1)[1], "rot90": torch.rot90,
    "fliplr": torch.fliplr, "diag": torch.diag, "index_select": lambda x: torch.index_select(x, 0, torch.tensor([2, 0, 2])), "take_flat": lambda x: torch.take(x, torch.tensor([0, 5, 5, 11])),
    "embedding_bag": lambda x: F.embedding_bag(torch.tensor([[0, 2], [1, 1]]), x), "index_copy": lambda x: torch.ones(5, 4, dtype=D).index_copy(0, torch.tensor([3, 0, 1]), x),
    "broadcast_to": lambda x: torch.broadcast_to(x, (2, 3, 4)), "unbind": lambda x: torch.unbind(x, 0)[1].exp(), "column_stack": lambda x: torch.column_stack([x, x[:, 0]]),
    "mean_all": torch.mean, "var_all": torch.var, "std_all": torch.std, "logsumexp_all": lambda x: torch.logsumexp(x, (0, 1)), "swapaxes": lambda x: torch.swapaxes(x, 0, 1) * 3,
    "multi_margin": lambda x: F.multi_margin_loss(x, torch.tensor([1, 0, 3])), "multilabel_soft_margin": lambda x: F.multilabel_soft_margin_loss(x, (generic(3, 4) > 0).to(D)),
    "soft_margin": lambda x: F.soft_margin_loss(x, torch.sign(generic(3, 4))), "hinge_embedding": lambda x: F.hinge_embedding_loss(x, torch.sign(generic(3, 4))),
    "focal": lambda x: vision.sigmoid_focal_loss(x, (generic(3, 4) > 0).to(D), reduction="mean"), "matrix_power": lambda x: torch.linalg.matrix_power(x[:, :3], 3),
    "slogdet": lambda x: torch.linalg.slogdet(x[:, :3]).logabsdet,
}
for name, f in ONE.items():
    case(name, f, generic(3, 4, lift=0.02))
case("logit", torch.logit, generic(5, lift=0.5, scale=0.3))
case("entr", torch.special.entr, positive(5))
case("combinations", torch.combinations, generic(4))
case("diag_embed", torch.diag_embed, generic(2, 3))
case("squeeze", lambda x: torch.squeeze(x, 1).exp(), generic(3, 1, 4))
case("det_each", torch.linalg.det, generic(2, 3, 3))

IMAGES = {
    "movedim": (lambda x: torch.movedim(x, 1, 3) * 2, (1, 2, 3, 4)), "amax_axes": (lambda x: torch.amax(x, (0, 2)), (2, 3, 4)), "instance_norm": (F.instance_norm, (2, 3, 4)),
    "local_response_norm": (lambda x: F.local_response_norm(x, 3, alpha=0.5), (1, 5, 3)), "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), (1, 8, 2, 2)),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), (1, 2, 4, 4)), "channel_shuffle": (lambda x: F.channel_shuffle(x, 3), (1, 6, 2, 2)),
    "im2col": (lambda x: F.unfold(x, 2), (1, 2, 4, 4)), "col2im": (lambda x: F.fold(x, (4, 4), 2), (1, 8, 9)), "pad_reflect": (lambda x: F.pad(x, (2, 1), mode="reflect"), (1, 3, 4)),
    "pad_replicate": (lambda x: F.pad(x, (2, 1), mode="replicate"), (1, 3, 4)), "pad_circular": (lambda x: F.pad(x, (2, 1), mode="circular"), (1, 3, 4)),
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 2), (1, 2, 6)), "avg_pool3d": (lambda x: F.avg_pool3d(x, 2), (1, 1, 4, 4, 2)), "max_pool3d": (lambda x: F.max_pool3d(x, 2), (1, 1, 4, 4, 2)),
    "lp_pool1d": (lambda x: F.lp_pool1d(x, 2, 2), (1, 2, 6)), "adaptive_avg_pool1d": (lambda x: F.adaptive_avg_pool1d(x, 3), (1, 2, 6)),
    "adaptive_max_pool1d": (lambda x: F.adaptive_max_pool1d(x, 2), (1, 2, 6)), "max_unpool1d": (lambda x: F.max_unpool1d(*F.max_pool1d(x, 2, return_indices=True), 2), (1, 2, 6)),
    "linear1d": (lambda x: F.interpolate(x, size=7, mode="linear"), (1, 2, 4)), "linear1d_aligned": (lambda x: F.interpolate(x, size=7, mode="linear", align_corners=True), (1, 2, 4)),
    "bilinear_aligned": (lambda x: F.interpolate(x, size=(5, 7), mode="bilinear", align_corners=True), (1, 1, 3, 4)), "bicubic": (lambda x: F.interpolate(x, size=(5, 7), mode="bicubic"), (1, 1, 3, 4)),
    "bicubic_aligned": (lambda x: F.interpolate(x, size=(5, 7), mode="bicubic", align_corners=True), (1, 1, 3, 4)), "trilinear": (lambda x: F.interpolate(x, size=(3, 5, 4), mode="trilinear"), (1, 1, 2, 3, 2)),
    "bilinear_antialias": (lambda x: F.interpolate(x, size=(3, 4), mode="bilinear", antialias=True), (1, 1, 6, 6)),
    "bicubic_antialias": (lambda x: F.interpolate(x, size=(3, 4), mode="bicubic", antialias=True), (1, 1, 6, 6)), "nearest_exact": (lambda x: F.interpolate(x, size=7, mode="nearest-exact"), (1, 2, 4)),
    "area": (lambda x: F.interpolate(x, size=3, mode="area"), (1, 2, 6)), "fft": (lambda x: torch.view_as_real(torch.fft.fft(x)), (2, 5)), "rfft": (lambda x: torch.view_as_real(torch.fft.rfft(x)), (2, 5)),
    "ifft": (lambda x: torch.view_as_real(torch.fft.ifft(torch.view_as_complex(x))), (2, 4, 2)), "irfft": (lambda x: torch.fft.irfft(torch.view_as_complex(x), 4), (2, 3, 2)),
}
for name, (f, shape) in IMAGES.items():
    case(name, f, generic(*shape))

GRIDS = {
    "grid_bilinear": dict(), "grid_border": dict(padding_mode="border"), "grid_reflection": dict(padding_mode="reflection"), "grid_aligned": dict(align_corners=True),
    "grid_bicubic": dict(mode="bicubic"), "grid_nearest": dict(mode="nearest"),
}
for name, options in GRIDS.items():
    case(name, lambda x, g: F.grid_sample(x, g, **{"align_corners": False, **options}), generic(1, 2, 4, 5), generic(1, 3, 3, 2, scale=1.13))
case("grid_trilinear", lambda x, g: F.grid_sample(x, g, align_corners=False), generic(1, 2, 3, 4, 3), generic(1, 2, 2, 2, 3, scale=0.77))
case("deform_conv2d", vision.deform_conv2d, generic(1, 2, 4, 4), generic(1, 8, 3, 3, scale=0.41), generic(2, 2, 2, 2))
case("deform_conv2d_masked", lambda x, o, w, m: vision.deform_conv2d(x, o, w, mask=m), generic(1, 2, 4, 4), generic(1, 8, 3, 3, scale=0.41), generic(2, 2, 2, 2), generic(1, 4, 3, 3))
boxes = torch.tensor([[0.0, 0.3, 0.2, 5.1, 4.7], [0.0, 1.2, 2.1, 2.9, 3.3]], dtype=D)
case("roi_align", lambda x: vision.roi_align(x, boxes, 2, 1.0, 2, True), generic(1, 2, 6, 6))
case("roi_align_scaled", lambda x: vision.roi_align(x, boxes, 2, 0.5, 2, False), generic(1, 2, 6, 6))

print(printed())
