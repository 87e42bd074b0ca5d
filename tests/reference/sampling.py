"""Reference values for tests/recording/sampling.rs: python3 tests/reference/sampling.py > tests/reference/sampling.json

Needs NumPy. Everything is written as loops over the definition, one element at a time.
"""
import json
import math

import numpy as np


def data(shape, seed=0):
    i = np.arange(int(np.prod(shape)), dtype=np.float64)
    return (((i * 37 + seed * 11) % 101) / 25 - 2).reshape(shape)


def cubic(d, a):
    d = abs(d)
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a if d < 2 else 0.0


def weigh(mode, d):
    return max(0.0, 1 - abs(d)) if mode == "linear" else cubic(d, -0.75)


def resample(x, length, mode, place, scale, antialias=False, exclude=False, outside=None):
    """The last axis of x; place(i) is where result i lies."""
    n = x.shape[-1]
    y = np.zeros((*x.shape[:-1], length))
    stretch = min(scale, 1.0) if antialias else 1.0
    for i in range(length):
        p = place(i)
        if outside is not None and not 0 <= p <= n - 1:
            y[..., i] = outside
            continue
        total, weights = np.zeros(x.shape[:-1]), 0.0
        reach = int(math.ceil(2 / stretch)) + 1
        for j in range(math.floor(p) - reach, math.floor(p) + reach + 1):
            w = weigh(mode, (j - p) * stretch)
            if exclude and not 0 <= j < n:
                continue
            total, weights = total + w * x[..., min(max(j, 0), n - 1)], weights + w
        y[..., i] = total / weights if antialias or exclude else total
    return y


def sample(image, place):
    """One value of an image at a place, both of any number of axes, linearly, with zeros outside."""
    base = [math.floor(p) for p in place]
    value = 0.0
    for o in np.ndindex(*[2] * len(place)):
        at = [b + k for b, k in zip(base, o)]
        if all(0 <= a < d for a, d in zip(at, image.shape)):
            value += math.prod(weigh("linear", a - p) for a, p in zip(at, place)) * image[tuple(at)]
    return value


def affine_grid(theta, size, align):
    n = len(size)
    grid = np.zeros((theta.shape[0], *size, n))
    for o in np.ndindex(theta.shape[0], *size):
        at = [2 * i / (d - 1) - 1 if align else (2 * i + 1) / d - 1 for i, d in zip(o[1:], size)][::-1]
        grid[o] = theta[o[0]] @ np.array([*at, 1.0])
    return grid


def deform_conv(x, w, offset, mask, bias, groups, offset_groups, stride, before, dilation):
    b, c, *_ = x.shape
    f, cg, *k = w.shape
    out, points = offset.shape[2:], math.prod(k)
    offset = offset.reshape(b, offset_groups, points, 2, *out)
    mask = mask.reshape(b, offset_groups, points, *out)
    y = np.zeros((b, f, *out))
    for bi, fi, i, j in np.ndindex(*y.shape):
        y[bi, fi, i, j] = bias[fi]
        for ci in range(cg):
            channel = fi // (f // groups) * cg + ci
            og = channel // (c // offset_groups)
            for q, (ki, kj) in enumerate(np.ndindex(*k)):
                d = offset[bi, og, q, :, i, j]
                place = [
                    i * stride[0] - before[0] + ki * dilation[0] + d[0],
                    j * stride[1] - before[1] + kj * dilation[1] + d[1],
                ]
                y[bi, fi, i, j] += w[fi, ci, ki, kj] * mask[bi, og, q, i, j] * sample(x[bi, channel], place)
    return y


def roi_align(x, regions, images, cells, samples, scale, half_pixel, how):
    """samples: rows and columns in a cell; 0 for as many as the cell has elements."""
    h, w = x.shape[2:]
    y = np.zeros((len(regions), x.shape[1], *cells))
    for r, c, i, j in np.ndindex(*y.shape):
        x1, y1, x2, y2 = regions[r] * scale - (0.5 if half_pixel else 0.0)
        size = [y2 - y1, x2 - x1]
        if not half_pixel:
            size = [max(s, 1.0) for s in size]
        cell = [s / n for s, n in zip(size, cells)]
        count = [samples or math.ceil(v) for v in cell]
        values = []
        for si, sj in np.ndindex(*count):
            p = y1 + i * cell[0] + (si + 0.5) * cell[0] / count[0]
            q = x1 + j * cell[1] + (sj + 0.5) * cell[1] / count[1]
            if p < -1 or p > h or q < -1 or q > w:
                values.append([0.0])
                continue
            p, q = min(max(p, 0.0), h - 1.0), min(max(q, 0.0), w - 1.0)
            a, b = int(p), int(q)
            u, v = min(a + 1, h - 1), min(b + 1, w - 1)
            image = x[images[r], c]
            values.append(
                [
                    (1 - (p - a)) * (1 - (q - b)) * image[a, b],
                    (1 - (p - a)) * (q - b) * image[a, v],
                    (p - a) * (1 - (q - b)) * image[u, b],
                    (p - a) * (q - b) * image[u, v],
                ]
            )
        y[r, c, i, j] = max(max(v) for v in values) if how == "max" else sum(sum(v) for v in values) / len(values)
    return y


def roi_max_pool(x, regions, cells, scale):
    half_up = lambda v: math.floor(abs(v) + 0.5) * (1 if v >= 0 else -1)
    h, w = x.shape[2:]
    y = np.zeros((len(regions), x.shape[1], *cells))
    for r, c, i, j in np.ndindex(*y.shape):
        image, x1, y1, x2, y2 = int(regions[r, 0]), *[half_up(v * scale) for v in regions[r, 1:]]
        ch, cw = max(y2 - y1 + 1, 1) / cells[0], max(x2 - x1 + 1, 1) / cells[1]
        rows = range(max(math.floor(i * ch) + y1, 0), min(math.ceil((i + 1) * ch) + y1, h))
        columns = range(max(math.floor(j * cw) + x1, 0), min(math.ceil((j + 1) * cw) + x1, w))
        y[r, c, i, j] = max((x[image, c, a, b] for a in rows for b in columns), default=0.0)
    return y


def fold(x, image, block, stride, dilation, before, behind):
    n, elements = len(image), math.prod(block)
    places = [(image[a] + before[a] + behind[a] - dilation[a] * (block[a] - 1) - 1) // stride[a] + 1 for a in range(n)]
    y = np.zeros((x.shape[0], x.shape[1] // elements, *image))
    for b, c in np.ndindex(*y.shape[:2]):
        for e, k in enumerate(np.ndindex(*block)):
            for l, o in enumerate(np.ndindex(*places)):
                at = tuple(o[a] * stride[a] + k[a] * dilation[a] - before[a] for a in range(n))
                if all(0 <= v < d for v, d in zip(at, image)):
                    y[(b, c) + at] += x[b, c * elements + e, l]
    return y


def max_places(x, size, stride, padding):
    out = [(d + 2 * padding - size) // stride + 1 for d in x.shape[2:]]
    places = np.zeros((*x.shape[:2], *out))
    for o in np.ndindex(*places.shape):
        best = None
        for k in np.ndindex(*[size] * len(out)):
            at = tuple(v * stride - padding + e for v, e in zip(o[2:], k))
            if all(0 <= v < d for v, d in zip(at, x.shape[2:])):
                value, place = x[o[:2] + at], np.ravel_multi_index(o[:2] + at, x.shape)
                if best is None or value > best[0]:
                    best = (value, place)
        places[o] = best[1]
    return places


def parts(z):
    return np.stack([z.real, z.imag], -1)


def stft(x, step, length, window, onesided):
    frames = (x.shape[1] - length) // step + 1
    cut = np.stack([x[:, f * step : f * step + length] for f in range(frames)], 1) * window
    return parts(np.fft.rfft(cut, axis=-1) if onesided else np.fft.fft(cut, axis=-1))


def cosines(n, a, b, c, periodic):
    m = n if periodic else n - 1
    return np.array([a - b * math.cos(2 * math.pi * i / m) + c * math.cos(4 * math.pi * i / m) for i in range(n)])


def reverse_sequence(x, lengths):
    y = x.copy()
    for b, n in enumerate(lengths):
        y[b, :n] = x[b, :n][::-1]
    return y


row = data((2, 7), 1)
x4 = data((2, 3, 5, 6))
half = lambda s: lambda i: (i + 0.5) / s - 0.5
crop = lambda m: lambda i: 0.2 * 6 + i * (1.4 - 0.2) * 6 / (m - 1)
weight, offset, mask = data((4, 2, 2, 3), 1), data((2, 24, 3, 3), 2), data((2, 12, 3, 3), 3)
regions = np.array([[0.3, 0.2, 5.1, 4.7], [-3.0, 1.0, 2.0, 9.0], [2.0, 2.0, 2.4, 2.1], [20.0, 20.0, 25.0, 30.0]])
images = np.array([0, 1, 1, 0])
pooled = np.array([[0, 0.0, 0.0, 5.0, 4.0], [1, 1.4, 1.6, 3.2, 9.9], [1, -4.0, -4.0, 1.0, 0.0], [0, 9.0, 9.0, 12.0, 12.0]])
signal, complex_signal = data((2, 9, 3, 1), 5), data((2, 9, 3, 2), 6)
z = complex_signal[..., 0] + 1j * complex_signal[..., 1]
long_signal = data((2, 1280, 2), 9)
square = data((3, 4, 4), 7) + 3 * np.eye(4)
singular = np.array([[1.0, 2.0], [2.0, 4.0]])

cases = {
    "linear_up": resample(row, 12, "linear", half(12 / 7), 12 / 7),
    "cubic_down": resample(row, 4, "cubic", half(4 / 7), 4 / 7),
    "linear_antialias": resample(row, 3, "linear", half(3 / 7), 3 / 7, antialias=True),
    "cubic_antialias": resample(row, 3, "cubic", half(3 / 7), 3 / 7, antialias=True, exclude=True),
    "cubic_exclude": resample(row, 10, "cubic", half(10 / 7), 10 / 7, exclude=True),
    "align_corners": resample(row, 5, "linear", lambda i: i * 6 / 4, 5 / 7),
    "symmetric": resample(row, 4, "linear", lambda i: 3.5 * (1 - 4 / (7 * 0.6)) + (i + 0.5) / 0.6 - 0.5, 0.6),
    "crop": resample(row, 6, "linear", crop(6), 1.0, outside=-9.0),
    "nearest_repeat": np.repeat(row, 3, 1),
    "nearest_down": row[:, [1, 3, 5]],
    "affine": affine_grid(data((2, 2, 3), 8), (4, 3), False),
    "affine_volume": affine_grid(data((2, 3, 4), 8), (2, 3, 4), True),
    "deform_conv": deform_conv(
        data((2, 4, 5, 6), 0), weight, offset, mask, data((4,), 4), 2, 2, (2, 2), (1, 1), (1, 1)
    ),
    "roi_mean": roi_align(x4, regions, images, (2, 3), 2, 0.8, True, "mean"),
    "roi_adaptive": roi_align(x4, regions, images, (2, 2), 0, 1.0, False, "mean"),
    "roi_max": roi_align(x4, regions, images, (2, 3), 2, 0.8, False, "max"),
    "roi_max_pool": roi_max_pool(x4, pooled, (3, 2), 1.0),
    "fold": fold(data((2, 12, 12), 1), (4, 5), (2, 3), (1, 2), (2, 1), (1, 0), (0, 4)),
    "max_places": max_places(x4, 3, 2, 1),
    "max_unpool": np.where(np.isin(np.arange(180).reshape(x4.shape), max_places(x4, 2, 2, 0)), x4, 0.0),
    "hann": np.hanning(7),
    "hann_periodic": np.hanning(9)[:-1],
    "hamming": cosines(6, 25 / 46, 21 / 46, 0, True),
    "blackman": np.blackman(8),
    "dft": parts(np.fft.fft(signal[..., 0], axis=1)),
    "dft_padded": parts(np.fft.rfft(signal[..., 0], n=12, axis=1)),
    "dft_cut_complex": parts(np.fft.fft(z, n=5, axis=2 - 1)),
    "dft_inverse": parts(np.fft.ifft(z, axis=1)),
    "dft_inverse_odd": np.fft.irfft(z, n=15, axis=1)[..., None],
    "dft_inverse_even": np.fft.irfft(z, n=16, axis=1)[..., None],
    "dft_long": parts(np.fft.fft(long_signal[..., 0] + 1j * long_signal[..., 1], axis=1))[:, ::97],
    "dft_long_onesided": parts(np.fft.rfft(long_signal[..., 0], n=1500, axis=1))[:, ::97],
    "dft_long_inverse": np.fft.irfft(long_signal[..., 0] + 1j * long_signal[..., 1], n=3150, axis=1)[:, ::97, None],
    "stft": stft(data((2, 20)), 3, 8, np.hanning(9)[:-1], True),
    "stft_two_sided": stft(data((2, 20)), 5, 7, np.ones(7), False),
    "det": np.linalg.det(square),
    "det_large": np.linalg.det(data((12, 12), 3) + 3 * np.eye(12)),
    "det_singular": np.linalg.det(singular),
    "reverse_sequence": reverse_sequence(data((3, 4, 2)), [4, 0, 3]),
}

print("{")
lines = []
for name, value in cases.items():
    value = np.asarray(value, dtype=np.float64)
    body = json.dumps({"shape": list(value.shape), "values": value.ravel().tolist()})
    lines.append(f'"{name}": {body}')
print(",\n".join(lines))
print("}")
