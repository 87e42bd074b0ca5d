"""Records steps.txt: steps of optimizers down the mean of squares of A w + b - y, in f64 with NumPy 2.

Gradients are in closed form, and the optimizers are those of the documentation of torch.optim (SGD, Adam, AdamW). A line has the
optimizer, the number of steps taken, and w and b then. Run it as `python3 steps.py > steps.txt` with NumPy installed.
"""

import numpy as np

ROWS, COLUMNS = 6, 4
A = np.array([[((7 * i + 3 * j) % 11 - 5) / 4 for j in range(COLUMNS)] for i in range(ROWS)])
Y = np.array([((5 * i) % 7 - 3) / 2 for i in range(ROWS)])


def gradient(p):
    residual = A @ p[:COLUMNS] + p[COLUMNS] - Y
    return np.append(2 / ROWS * (A.T @ residual), 2 / ROWS * residual.sum())


def sgd(lr, momentum=0.0, dampening=0.0, wd=0.0, nesterov=False):
    p, buffer = np.zeros(COLUMNS + 1), None
    while True:
        g = gradient(p) + wd * p
        if momentum:
            buffer = g.copy() if buffer is None else momentum * buffer + (1 - dampening) * g
            g = g + momentum * buffer if nesterov else buffer
        p = p - lr * g
        yield p


def adam(lr, wd=0.0, decoupled=False, amsgrad=False, b1=0.9, b2=0.999, eps=1e-8):
    p = np.zeros(COLUMNS + 1)
    m, v, most, t = np.zeros_like(p), np.zeros_like(p), np.zeros_like(p), 0
    while True:
        t += 1
        g = gradient(p)
        if decoupled:
            p = p - lr * wd * p
        else:
            g = g + wd * p
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        most = np.maximum(most, v)
        divisor = np.sqrt(most if amsgrad else v) / np.sqrt(1 - b2**t) + eps
        p = p - lr / (1 - b1**t) * m / divisor
        yield p


RUNS = [
    ("sgd:lr=0.05", sgd(0.05)),
    ("sgd:lr=0.05,momentum=0.9", sgd(0.05, momentum=0.9)),
    ("sgd:lr=0.05,momentum=0.9,dampening=0.3,wd=0.01", sgd(0.05, momentum=0.9, dampening=0.3, wd=0.01)),
    ("sgd:lr=0.05,momentum=0.9,nesterov=true", sgd(0.05, momentum=0.9, nesterov=True)),
    ("adam:lr=0.1", adam(0.1)),
    ("adam:lr=0.1,wd=0.01,amsgrad=true", adam(0.1, wd=0.01, amsgrad=True)),
    ("adamw:lr=0.1,wd=0.05", adam(0.1, wd=0.05, decoupled=True)),
]

for name, steps in RUNS:
    for number, p in zip(range(1, 21), steps):
        print(name, number, *(repr(float(x)) for x in p))
