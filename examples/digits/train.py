#!/usr/bin/env python3
"""Makes everything in this folder that is not text: the data, two trained classifiers and their reference outputs.

    python3 -m venv /tmp/digits && /tmp/digits/bin/pip install -r requirements.txt
    JAX_PLATFORMS=cpu /tmp/digits/bin/python train.py [--data-only]

Writes beside itself:
    digits.npz        train_images u8[1437, 8, 8], train_labels u8[1437], test_images u8[360, 8, 8], test_labels u8[360]
    mlp.safetensors   fc1 (128x64), fc2 (64x128), fc3 (10x64): `.weight` [out, in] and `.bias` [out], f32
    cnn.safetensors   conv1 (16x1x3x3), conv2 (32x16x3x3): `.weight` [out, in, kh, kw]; fc (10x512); `.bias`; f32
    reference.npz     mlp_logits, cnn_logits: f32[360, 10], each model's outputs for the held-out images

Both models read pixels divided by 16. Every seed is fixed. The recipe below looks at the training part only: the
held-out images take part in no choice of it and are evaluated once, after the last step.
"""

import os
import sys
import zipfile
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

HERE = Path(__file__).resolve().parent
HELD_OUT = 360
SPLIT_SEED = 20240
EPOCHS = 160
BATCH = 64
PEAK_RATE = 3e-3
WEIGHT_DECAY = 1e-3
LABEL_SMOOTHING = 0.05


def savez(path, **arrays):
    """`np.savez_compressed` with fixed timestamps, so that the same arrays give the same bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, array in arrays.items():
            entry = zipfile.ZipInfo(name + ".npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            with archive.open(entry, "w") as target:
                np.lib.format.write_array(target, np.ascontiguousarray(array), version=(1, 0))


def make_data():
    digits = load_digits()
    images = digits.images.astype(np.uint8)
    labels = digits.target.astype(np.uint8)
    assert images.shape == (1797, 8, 8) and images.max() == 16
    assert np.array_equal(images, digits.images), "pixels are whole numbers"
    train_images, test_images, train_labels, test_labels = train_test_split(
        images, labels, test_size=HELD_OUT, random_state=SPLIT_SEED, stratify=labels
    )
    data = dict(
        train_images=train_images, train_labels=train_labels, test_images=test_images, test_labels=test_labels
    )
    savez(HERE / "digits.npz", **data)
    return data


def he_normal(key, shape):
    fan_in = int(np.prod(shape[1:]))
    return jax.random.normal(key, shape, jnp.float32) * np.float32(np.sqrt(2.0 / fan_in))


def init(key, shapes):
    """`shapes` maps a layer to its weight's shape, output extent first; biases start at zero."""
    params = {}
    for key, (name, shape) in zip(jax.random.split(key, len(shapes)), shapes.items()):
        params[name + ".weight"] = he_normal(key, shape)
        params[name + ".bias"] = jnp.zeros(shape[0], jnp.float32)
    return params


MLP_SHAPES = {"fc1": (128, 64), "fc2": (64, 128), "fc3": (10, 64)}
CNN_SHAPES = {"conv1": (16, 1, 3, 3), "conv2": (32, 16, 3, 3), "fc": (10, 32 * 4 * 4)}


def linear(p, name, x):
    return x @ p[name + ".weight"].T + p[name + ".bias"]


def conv3x3(p, name, x):
    """Cross-correlation, stride 1, one pixel of zeros on every side; x is [batch, channel, height, width]."""
    y = jax.lax.conv_general_dilated(x, p[name + ".weight"], (1, 1), ((1, 1), (1, 1)))
    return y + p[name + ".bias"][None, :, None, None]


def mlp(p, images):
    x = images.reshape(images.shape[0], 64)
    x = jax.nn.relu(linear(p, "fc1", x))
    x = jax.nn.relu(linear(p, "fc2", x))
    return linear(p, "fc3", x)


def cnn(p, images):
    x = images[:, None, :, :]
    x = jax.nn.relu(conv3x3(p, "conv1", x))
    x = jax.nn.relu(conv3x3(p, "conv2", x))
    x = x.reshape(x.shape[0], 32, 4, 2, 4, 2).max((3, 5))
    return linear(p, "fc", x.reshape(x.shape[0], 512))


def augment(key, images):
    """Moves each image by a random fraction of a pixel (up to 0.7) along both axes, bilinearly, and adds some noise."""
    k_shift, k_noise = jax.random.split(key)
    shift = jax.random.uniform(k_shift, (images.shape[0], 2), minval=-0.7, maxval=0.7)

    def along(x, by, axis):
        by = by[:, None, None]
        padded = jnp.pad(x, [(0, 0)] + [(1, 1) if a == axis else (0, 0) for a in (1, 2)])
        before = jax.lax.slice_in_dim(padded, 0, 8, axis=axis)
        after = jax.lax.slice_in_dim(padded, 2, 10, axis=axis)
        return (1 - jnp.abs(by)) * x + jnp.maximum(by, 0) * before + jnp.maximum(-by, 0) * after

    moved = along(along(images, shift[:, 0], 1), shift[:, 1], 2)
    return moved + 0.03 * jax.random.normal(k_noise, images.shape)


def train(forward, params, images, labels, seed):
    """AdamW with one cosine decay after a short warm-up, cross-entropy with label smoothing."""
    count = images.shape[0]
    steps_per_epoch = count // BATCH
    total = EPOCHS * steps_per_epoch

    def loss(p, x, y):
        target = jax.nn.one_hot(y, 10) * (1 - LABEL_SMOOTHING) + LABEL_SMOOTHING / 10
        return -(target * jax.nn.log_softmax(forward(p, x))).sum(-1).mean()

    @jax.jit
    def epoch(state, order, key, first_step):
        def step(state, inputs):
            p, m, v = state
            rows, key, t = inputs
            grads = jax.grad(loss)(p, augment(key, images[rows]), labels[rows])
            t = t.astype(jnp.float32)
            rate = PEAK_RATE * jnp.minimum(t / 100, 0.5 * (1 + jnp.cos(jnp.pi * t / total)))
            m = jax.tree.map(lambda a, g: 0.9 * a + 0.1 * g, m, grads)
            v = jax.tree.map(lambda a, g: 0.999 * a + 0.001 * g * g, v, grads)
            c1, c2 = 1 - 0.9**t, 1 - 0.999**t
            p = jax.tree.map(
                lambda w, a, b: w - rate * (a / c1 / (jnp.sqrt(b / c2) + 1e-8) + WEIGHT_DECAY * w), p, m, v
            )
            return (p, m, v), None

        steps = first_step + 1 + jnp.arange(steps_per_epoch)
        keys = jax.random.split(key, steps_per_epoch)
        return jax.lax.scan(step, state, (order, keys, steps))[0]

    zeros = jax.tree.map(jnp.zeros_like, params)
    state = (params, zeros, zeros)
    shuffle = np.random.default_rng(seed)
    key = jax.random.key(seed)
    for e in range(EPOCHS):
        order = shuffle.permutation(count)[: steps_per_epoch * BATCH].reshape(steps_per_epoch, BATCH)
        state = epoch(state, order, jax.random.fold_in(key, e), e * steps_per_epoch)
    return state[0]


def main():
    data = make_data()
    print("digits.npz:", {name: a.shape for name, a in data.items()})
    if "--data-only" in sys.argv[1:]:
        return
    scaled = {part: jnp.asarray(data[part + "_images"], jnp.float32) / 16 for part in ("train", "test")}
    labels = jnp.asarray(data["train_labels"], jnp.int32)
    logits = {}
    for name, forward, shapes, seed in (("mlp", mlp, MLP_SHAPES, 1), ("cnn", cnn, CNN_SHAPES, 2)):
        params = train(forward, init(jax.random.key(seed), shapes), scaled["train"], labels, seed)
        out = np.asarray(jax.jit(forward)(params, scaled["test"]))
        fitted = np.asarray(jax.jit(forward)(params, scaled["train"])).argmax(-1) == data["train_labels"]
        right = out.argmax(-1) == data["test_labels"]
        tensors = {key: np.asarray(value, np.float32) for key, value in params.items()}
        (HERE / f"{name}.safetensors").write_bytes(save(tensors, {"format": "np"}))
        logits[f"{name}_logits"] = out
        size = sum(t.size for t in tensors.values())
        print(f"{name}: {size} parameters, training accuracy {fitted.mean():.4f}")
        print(f"{name}: held-out accuracy {right.mean():.4f} ({right.sum()} of {right.size})")
        print(f"{name}: first 5 rows of logits\n{np.array_str(out[:5], precision=4, max_line_width=120)}")
        assert right.mean() >= 0.96, "the recipe has lost its accuracy"
    savez(HERE / "reference.npz", **logits)


if __name__ == "__main__":
    main()
