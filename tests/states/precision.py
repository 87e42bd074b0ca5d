"""Records precision.txt: training of f16 and bf16 parameters as PyTorch does it, with NumPy 2.

Lines `scale`: steps of gradient descent on an f16 parameter of 3 elements, whose loss is the sum of its elements times an f32 input, with the loss
scale of the documentation of torch.amp.GradScaler (growth 2 behind 3 good steps, backoff 0.5). The cotangent of the parameter is the input times
the scale, rounded to f16; what is unscaled in f32 moves a master in f32. A line has the number of the call, the three inputs, and behind the
call the scale, the good steps, the steps that were taken, and the master.

Lines `adam`: 300 steps of Adam with rate 1e-3 (PyTorch's defaults) on a bf16 parameter with a master in f32, down the sum of (p - c)^2 / 2, whose
gradient is rounded to bf16. A line has the step and the master, for every 50th. Run it as `python3 precision.py > precision.txt`.
"""

import numpy as np

f16, f32 = np.float16, np.float32


def bf16(x):
    """The nearest bf16, ties to even, of f32."""
    bits = np.asarray(x, f32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16
    return bits.astype(np.uint32).view(f32)


np.seterr(over="ignore")
x = [np.array([1.0, -2.0, 0.5]) * k for k in (1, 1e-6, 3, 40, 1e-3, 0.7, np.nan, 0.3, 2e-7, 2, 1e-7, 5, 70, 0.2, 1, 0.1)]
master, scale, good, taken = np.ones(3, f32), f32(65536), 0, 0
for call, values in enumerate(x, 1):
    values = values.astype(f32)
    gradient = (values * scale).astype(f16)
    if np.isfinite(gradient).all():
        master = master - f32(0.01) * (gradient.astype(f32) * (f32(1) / scale))
        taken, good = taken + 1, good + 1
        if good == 3:
            scale, good = scale * f32(2), 0
    else:
        scale, good = scale * f32(0.5), 0
    print("scale", call, *(repr(float(v)) for v in (*values, scale, good, taken, *master)))

c = bf16([0.1, -0.7, 1.3])
master, mean, square = np.array([1, 1, -1], f32), np.zeros(3, f32), np.zeros(3, f32)
for t in range(1, 301):
    g = bf16(bf16(master) - c)
    mean, square = f32(0.9) * mean + f32(0.1) * g, f32(0.999) * square + f32(0.001) * g * g
    master = master - f32(1e-3 / (1 - 0.9**t)) * mean / (np.sqrt(square) / f32(np.sqrt(1 - 0.999**t)) + f32(1e-8))
    if t % 50 == 0:
        print("adam", t, *(repr(float(v)) for v in master))
