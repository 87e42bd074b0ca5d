"""Batch normalization while training, in f64: prints what `batch_norm.json` holds. Needs NumPy.

The formulas are those that `torch.nn.BatchNorm2d` documents (the population variance normalizes, the sample variance goes into the running one,
`running = (1 - momentum) * running + momentum * batch`), and the derivative that Ioffe and Szegedy give (arXiv:1502.03167, section 3). That derivative is
held to central differences of the value before anything is printed.
"""
import json

import numpy as np


def generic(shape, lift=0.0, scale=1.0):
    i = np.arange(int(np.prod(shape)))
    return ((((i * 37 + 11) % 101) / 40 - 1.2625 + i / 1024) * scale + lift).reshape(shape)


def forward(x, w, b, eps):
    axes = tuple(a for a in range(x.ndim) if a != 1)
    column = lambda v: v.reshape([1, -1] + [1] * (x.ndim - 2))
    mean = x.mean(axes)
    var = ((x - column(mean)) ** 2).mean(axes)
    xhat = (x - column(mean)) / np.sqrt(column(var) + eps)
    return xhat * column(w) + column(b), xhat, mean, var, axes, column


def backward(x, w, b, eps, dy):
    _, xhat, _, var, axes, column = forward(x, w, b, eps)
    dw, db = (dy * xhat).sum(axes), dy.sum(axes)
    m = x.size // x.shape[1]
    dx = column(w) / np.sqrt(column(var) + eps) * (dy - column(db) / m - xhat * column(dw) / m)
    return dx, dw, db


rows = []
for shape, momentum, eps in [((6, 4), 0.1, 1e-5), ((3, 2, 5), 0.01, 1e-5), ((2, 3, 4, 5), 0.1, 1e-3), ((1, 2, 2), 1.0, 0.1), ((2, 1), 0.0, 1e-5)]:
    c = shape[1]
    x, w, b = generic(shape), generic((c,), 1.5), generic((c,), -0.5)
    mean, var = generic((c,), 0.25), generic((c,), 2.0)
    y, _, batch_mean, batch_var, _, _ = forward(x, w, b, eps)
    n = x.size // c
    dy = (1 + np.arange(x.size) / 4).reshape(shape)
    dx, dw, db = backward(x, w, b, eps, dy)
    for which, found in ((0, dx), (1, dw), (2, db)):
        for i in range(found.size):
            moved = [x.copy(), w.copy(), b.copy()]
            at = []
            for step in (1e-5, -1e-5):
                moved[which].flat[i] = (x, w, b)[which].flat[i] + step
                at.append((forward(*moved, eps)[0] * dy).sum())
            assert abs((at[0] - at[1]) / 2e-5 - found.flat[i]) < 1e-6 * (1 + abs(found.flat[i]))
    numbers = lambda v: np.asarray(v).ravel().tolist()
    rows.append({
        "shape": list(shape), "momentum": momentum, "eps": eps,
        "x": numbers(x), "weight": numbers(w), "bias": numbers(b), "mean": numbers(mean), "var": numbers(var), "y": numbers(y),
        "next_mean": numbers((1 - momentum) * mean + momentum * batch_mean),
        "next_var": numbers((1 - momentum) * var + momentum * batch_var * n / (n - 1)),
        "gradients": [numbers(dx), numbers(dw), numbers(db)],
    })

text = ",\n".join("  " + json.dumps(row) for row in rows)
print('{"numpy": %s, "rows": [\n%s\n]}' % (json.dumps(np.__version__), text))
