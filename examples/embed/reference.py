#!/usr/bin/env python3
"""Embeds sentences.txt with NumPy in f64, and stores tokens and embeddings in reference.npz.

    python3 examples/fetch.py embed
    pip install numpy scipy tokenizers safetensors
    python3 examples/embed/reference.py

Written from the papers and the model's configuration, one sentence at a time without filling up: nothing here was made by tlc.
"""

import pathlib

import numpy
from safetensors.numpy import load_file
from scipy.special import erf
from tokenizers import Tokenizer

here = pathlib.Path(__file__).resolve().parent
weights = here.parents[1] / "target" / "weights" / "embed"
LAYERS, HEADS, EPSILON = 6, 12, 1e-12

w = {k: v.astype(numpy.float64) for k, v in load_file(weights / "model.safetensors").items()}


def linear(name, x):
    return x @ w[name + ".weight"].T + w[name + ".bias"]


def layer_norm(name, x):
    x = x - x.mean(-1, keepdims=True)
    return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * w[name + ".weight"] + w[name + ".bias"]


def attention(name, x):
    heads = lambda part: linear(f"{name}.self.{part}", x).reshape(len(x), HEADS, -1).transpose(1, 0, 2)
    q, k, v = heads("query"), heads("key"), heads("value")
    scores = numpy.exp(q @ k.transpose(0, 2, 1) / numpy.sqrt(q.shape[-1]))
    mixed = scores / scores.sum(-1, keepdims=True) @ v
    return linear(f"{name}.output.dense", mixed.transpose(1, 0, 2).reshape(len(x), -1))


def embed(tokens):
    x = w["embeddings.word_embeddings.weight"][tokens] + w["embeddings.token_type_embeddings.weight"][0]
    x = layer_norm("embeddings.LayerNorm", x + w["embeddings.position_embeddings.weight"][: len(tokens)])
    for i in range(LAYERS):
        name = f"encoder.layer.{i}"
        x = layer_norm(f"{name}.attention.output.LayerNorm", x + attention(f"{name}.attention", x))
        y = linear(f"{name}.intermediate.dense", x)
        y = linear(f"{name}.output.dense", y * 0.5 * (1 + erf(y / numpy.sqrt(2))))
        x = layer_norm(f"{name}.output.LayerNorm", x + y)
    mean = x.mean(0)
    return mean / numpy.linalg.norm(mean)


def main():
    tokenizer = Tokenizer.from_file(str(weights / "tokenizer.json"))
    tokenizer.no_padding()
    sentences = (here / "sentences.txt").read_text().splitlines()
    tokens = [tokenizer.encode(s).ids for s in sentences]
    table = numpy.zeros((len(tokens), max(map(len, tokens))), dtype=numpy.int64)
    for row, t in zip(table, tokens):
        row[: len(t)] = t
    embeddings = numpy.stack([embed(t) for t in tokens]).astype(numpy.float32)
    numpy.savez_compressed(here / "reference.npz", tokens=table, embeddings=embeddings)


if __name__ == "__main__":
    main()
