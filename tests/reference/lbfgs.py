"""Reference values for tests/optimizers: python3 tests/reference/lbfgs.py > tests/reference/lbfgs.txt

Needs NumPy. Steps of `torch.optim.LBFGS` with `max_iter=1` and without a line search, one call of `step` each, written after its documentation and
Nocedal and Wright, "Numerical Optimization", 2006, algorithms 7.4 and 7.5: in f64 down a quadratic with the matrix A^T A + I / 2, from a start that
follows from a formula. A line has the settings, the number of the call, and the point behind it.
"""
import numpy as np

N, ROWS = 7, 9
A = np.array([[((7 * i + 3 * j) % 11 - 5) / 4 for j in range(N)] for i in range(ROWS)])
H = A.T @ A + np.eye(N) / 2
B = np.array([((5 * i) % 7 - 3) / 2 for i in range(N)])
START = np.array([((29 * i) % 17) / 8 - 1 for i in range(N)])


def gradient(x):
    return H @ x - B


def lbfgs(lr, history, tolerance_grad=1e-7, tolerance_change=1e-9):
    """The point behind each call. Pairs are kept the oldest first, as lists, which is how torch has them."""
    x = START.copy()
    moves, changes, scale = [], [], 1.0
    calls, last_gradient, last_direction, last_length = 0, None, None, None
    while True:
        g = gradient(x)
        if np.abs(g).max() <= tolerance_grad:
            yield x
            continue
        calls += 1
        if calls == 1:
            d = -g
        else:
            y, s = g - last_gradient, last_length * last_direction
            if y @ s > 1e-10:
                if len(moves) == history:
                    moves.pop(0)
                    changes.pop(0)
                moves.append(s)
                changes.append(y)
                scale = (y @ s) / (y @ y)
            alphas, q = [], -g
            for s, y in zip(moves[::-1], changes[::-1]):
                alphas.append((s @ q) / (y @ s))
                q = q - alphas[-1] * y
            d = scale * q
            for s, y, alpha in zip(moves, changes, alphas[::-1]):
                d = d + (alpha - (y @ d) / (y @ s)) * s
        length = lr * min(1.0, 1 / np.abs(g).sum()) if calls == 1 else lr
        last_gradient, last_direction, last_length = g, d, length
        if g @ d <= -tolerance_change:
            x = x + length * d
        yield x


for lr, history in [(1.0, 10), (1.0, 3), (0.7, 1), (0.3, 5), (0.1, 100)]:
    for number, x in zip(range(1, 21), lbfgs(lr, history)):
        print(f"lbfgs:lr={lr:g},history={history}", number, *(repr(float(v)) for v in x))
