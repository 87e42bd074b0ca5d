#!/usr/bin/env python3
"""Records results of NumPy's einsum, for the parity test `einsum_numpy.rs`.

Run `python3 einsum_numpy.py > einsum_numpy.txt` with NumPy installed. One case a line, fields separated by tabs: the
expression as a JSON string, the operand shapes (`2x3`, `-` for a scalar, separated by spaces), their dtypes, and the
result: `ok DTYPE SHAPE VALUE...` or `refused`. Operand k has the elements `(7 i + 3 k + 1) mod 5 - 2` (bools:
`(7 i + 3 k + 1) mod 3 == 0`) for i = 0, 1, ... in C order, so every sum is exact in every dtype. Labels that are no letters,
which opt_einsum takes and NumPy refuses, are given to NumPy as letters in the same order.
"""

import json
import random
import string

import numpy as np

DTYPES = {"f32": np.float32, "f64": np.float64, "i32": np.int32, "i64": np.int64, "u8": np.uint8, "bool": np.bool_}
NAMES = {np.dtype(t): n for n, t in DTYPES.items()}
# Mixtures that promote to one dtype in NumPy and in tlc.
MIXTURES = [["i32", "i64"], ["f32", "f64"], ["i32", "f64"], ["bool", "i32"], ["bool", "f32"]]
MOST_ELEMENTS = 40
MOST_WORK = 1 << 14


def data(k, shape, dtype):
    i = np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.int64)
    x = 7 * i + 3 * k + 1
    if dtype == "bool":
        return (x % 3 == 0).reshape(shape)
    x = x % 5 - (0 if dtype == "u8" else 2)
    return x.astype(DTYPES[dtype]).reshape(shape)


def shape_text(shape):
    return "x".join(map(str, shape)) if shape else "-"


def generate(rng):
    """A random expression with shapes that mostly fit."""
    labels = rng.sample("abcdefgXYZ", rng.randint(1, 6))
    extents = {l: rng.choice([1, 2, 2, 3, 3, 4]) for l in labels}
    if rng.random() < 0.03:
        extents[rng.choice(labels)] = 0
    ellipsis = [rng.choice([1, 2, 3]) for _ in range(rng.randint(0, 2))]
    terms, shapes = [], []
    uses_ellipsis = rng.random() < 0.3
    for _ in range(rng.choice([1, 1, 2, 2, 2, 3, 3, 4])):
        own = [rng.choice(labels) for _ in range(rng.choice([0, 1, 1, 2, 2, 2, 3, 3]))]
        if rng.random() < 0.7:
            own = list(dict.fromkeys(own))
        one = rng.random() < 0.15
        shape = [1 if one and rng.random() < 0.5 else extents[l] for l in own]
        term = "".join(own)
        if uses_ellipsis and rng.random() < 0.7:
            at = rng.randint(0, len(own))
            dims = ellipsis[rng.randint(0, len(ellipsis)) :]
            dims = [1 if rng.random() < 0.15 else d for d in dims]
            term = term[:at] + "..." + term[at:]
            shape[at:at] = dims
        if shape and rng.random() < 0.03:
            shape[rng.randrange(len(shape))] += 1
        terms.append(term)
        shapes.append(tuple(shape))
    text = ",".join(terms)
    if rng.random() < 0.6:
        used = sorted(set("".join(terms)) - {"."})
        output = "".join(rng.sample(used, rng.randint(0, len(used))))
        if "..." in text and rng.random() < 0.9:
            at = rng.randint(0, len(output))
            output = output[:at] + "..." + output[at:]
        text += "->" + output
    if rng.random() < 0.15:
        for _ in range(rng.randint(1, 4)):
            at = rng.randint(0, len(text))
            text = text[:at] + " " + text[at:]
    if rng.random() < 0.08 and text:
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice([",", "->", ".", "1", "a", "a", "", ">", "-", ";", "..."]) + text[at + rng.randint(0, 1) :]
    return text, shapes


def work(text, shapes):
    """A bound of the loop nest's size, by the largest extents."""
    size = 1
    for shape in shapes:
        for d in shape:
            size *= max(d, 1)
    return size


def einsum(text, operands):
    try:
        return np.asarray(np.einsum(text, *operands))
    except ValueError as error:
        if "must be letters" not in str(error):
            raise
    labels = sorted(set(text) - set(" ,.->"))
    letters = dict(zip(labels, sorted(string.ascii_letters)))
    return np.asarray(np.einsum("".join(letters.get(c, c) for c in text), *operands))


def main():
    rng = random.Random(20250311)
    print(f"# numpy {np.__version__}; written by einsum_numpy.py, do not edit")
    seen = set()
    accepted = refused = 0
    while accepted < 3000 or refused < 500:
        text, shapes = generate(rng)
        kind = rng.choice(["f32", "f64", "i32", "i64", "u8", "bool", "mixed"])
        if kind == "mixed":
            mixture = rng.choice(MIXTURES)
            dtypes = [rng.choice(mixture) for _ in shapes]
        else:
            dtypes = [kind] * len(shapes)
        case = (text, tuple(shapes), tuple(dtypes))
        if case in seen or work(text, shapes) > MOST_WORK:
            continue
        seen.add(case)
        operands = [data(k, s, d) for k, (s, d) in enumerate(zip(shapes, dtypes))]
        try:
            result = einsum(text, operands)
        except (ValueError, TypeError):
            if refused >= 500:
                continue
            refused += 1
            verdict = "refused"
        else:
            if accepted >= 3000 or result.size > MOST_ELEMENTS:
                continue
            accepted += 1
            values = " ".join(str(int(v)) for v in result.ravel())
            verdict = f"ok {NAMES[result.dtype]} {shape_text(result.shape)} {values}".rstrip()
        print(json.dumps(text), " ".join(map(shape_text, shapes)), " ".join(dtypes), verdict, sep="\t")


main()
