"""Reference values for tests/optimizers/curves.rs: python3 tests/reference/curves.py > tests/reference/curves.json

Needs PyTorch and NumPy. The losses of 50 steps of two small networks in f32, from weights that follow from a formula: a convolutional one with batch
norms, by SGD with momentum, and a transformer, by AdamW. Before they are printed, the same steps in f64 are taken, which may be no further away than a
tenth of what the test allows: the curves are those of the networks and not of rounding.
"""
import json

import numpy as np
import torch
from torch.nn import functional as f

torch.set_num_threads(1)


def numbers(shape, seed, scale, middle=0.0):
    i = np.arange(int(np.prod(shape)), dtype=np.int64)
    return torch.tensor((((i * i * 7 + i * 37 + seed * 11) % 101) / 50 - 1).reshape(shape) * scale + middle)


CNN = [  # shape, scale, middle
    ((6, 1, 3, 3), 0.5, 0), ((6,), 0.2, 1), ((6,), 0.1, 0),
    ((8, 6, 3, 3), 0.2, 0), ((8,), 0.2, 1), ((8,), 0.1, 0),
    ((8, 4), 0.4, 0), ((4,), 0.1, 0),
]


def cnn(p, dtype):
    x = numbers((16, 1, 8, 8), 1, 1).to(dtype)
    labels = torch.arange(16) * 7 % 4
    h = f.conv2d(x, p[0], padding=1)
    h = f.max_pool2d(torch.relu(f.batch_norm(h, None, None, p[1], p[2], training=True)), 2)
    h = f.conv2d(h, p[3], padding=1)
    h = torch.relu(f.batch_norm(h, None, None, p[4], p[5], training=True)).mean((2, 3))
    return f.cross_entropy(h @ p[6] + p[7], labels)


WIDTH, HEADS, LENGTH, WORDS = 16, 2, 10, 12
TRANSFORMER = [
    ((WORDS, WIDTH), 0.5, 0), ((LENGTH, WIDTH), 0.2, 0),
    ((WIDTH,), 0.1, 1), ((WIDTH,), 0.1, 0), ((WIDTH, 3 * WIDTH), 0.3, 0), ((WIDTH, WIDTH), 0.3, 0),
    ((WIDTH,), 0.1, 1), ((WIDTH,), 0.1, 0), ((WIDTH, 2 * WIDTH), 0.3, 0), ((2 * WIDTH, WIDTH), 0.3, 0),
    ((WIDTH, WORDS), 0.3, 0),
]


def transformer(p, dtype):
    ids = ((torch.arange(8 * (LENGTH + 1)) ** 2 * 5 + torch.arange(8 * (LENGTH + 1)) * 3) % WORDS).reshape(8, LENGTH + 1)
    x = p[0][ids[:, :-1]] + p[1]
    h = f.layer_norm(x, (WIDTH,), p[2], p[3])
    q, k, v = [t.reshape(8, LENGTH, HEADS, -1).transpose(1, 2) for t in (h @ p[4]).split(WIDTH, -1)]
    a = f.scaled_dot_product_attention(q, k, v, is_causal=True)
    x = x + a.transpose(1, 2).reshape(8, LENGTH, WIDTH) @ p[5]
    h = f.layer_norm(x, (WIDTH,), p[6], p[7])
    x = x + f.gelu(h @ p[8]) @ p[9]
    return f.cross_entropy((x @ p[10]).reshape(-1, WORDS), ids[:, 1:].reshape(-1))


def curve(network, parameters, optimizer, dtype):
    ps = [numbers(shape, k + 2, scale, middle).to(dtype).requires_grad_() for k, (shape, scale, middle) in enumerate(parameters)]
    update = optimizer(ps)
    losses = []
    for _ in range(50):
        update.zero_grad()
        loss = network(ps, dtype)
        loss.backward()
        update.step()
        losses.append(loss.item())
    return losses


curves = {}
for name, network, parameters, optimizer in [
    ("cnn", cnn, CNN, lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9)),
    ("transformer", transformer, TRANSFORMER, lambda ps: torch.optim.AdamW(ps, lr=3e-3, weight_decay=0.01)),
]:
    narrow, wide = (curve(network, parameters, optimizer, dtype) for dtype in (torch.float32, torch.float64))
    apart = max(abs(a - b) for a, b in zip(narrow, wide))
    assert apart < 1e-5, f"{name}: {apart}"
    curves[name] = narrow

print("{")
print(f'"torch": "{torch.__version__}",')
print(",\n".join(f'"{name}": {json.dumps(losses, separators=(",", ":"))}' for name, losses in curves.items()))
print("}")
