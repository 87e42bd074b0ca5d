"""Records players.txt: two players, each with parameters and a loss of its own, in f64 with NumPy 2.

One moves x down (x - c)^2 + x^T M y by Adam, the other y down y^2 / 2 - x^T M y + d y by gradient descent with momentum, both from where the other was
before. The optimizers are those of the documentation of torch.optim. A line has the number of steps taken, x, and y then. Run it as
`python3 players.py > players.txt` with NumPy installed.
"""

import numpy as np

M = np.array([[1.0, -0.5], [0.25, 2.0], [-1.5, 0.75]])
C, D = np.array([0.5, -1.0, 2.0]), np.array([0.3, -0.2])

x, y = np.zeros(3), np.ones(2)
mean, square, momentum = np.zeros(3), np.zeros(3), None
for t in range(1, 31):
    gx = 2 * (x - C) + M @ y
    gy = y - M.T @ x + D
    mean, square = 0.9 * mean + 0.1 * gx, 0.999 * square + 0.001 * gx * gx
    momentum = gy if momentum is None else 0.5 * momentum + gy
    x = x - 0.1 / (1 - 0.9**t) * mean / (np.sqrt(square) / np.sqrt(1 - 0.999**t) + 1e-8)
    y = y - 0.05 * momentum
    print(t, *(repr(float(v)) for v in (*x, *y)))
