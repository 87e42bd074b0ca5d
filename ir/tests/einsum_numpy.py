#!/usr/bin/env python3
"""Records what NumPy's einsum accepts, for the parity test `einsum_numpy.rs`.

Run `python3 einsum_numpy.py > einsum_numpy.txt` with NumPy installed. One case a line, fields separated by tabs: the
expression as a JSON string, the operand shapes (`2x3` and so on, `-` for a scalar, separated by spaces), and the
verdict: `ok SHAPE` or `refused REASON`. Only ASCII expressions are recorded: NumPy refuses other letters, tlc takes them.
"""

import json
import random
import sys

import numpy as np

WRITTEN = [
    # matrices, spaces, implicit outputs, case
    ("ij,jk", "2x3 3x4"), ("ij,jk->ik", "2x3 3x4"), ("ij,jk->ki", "2x3 3x4"), ("i j,jk->ik", "2x3 3x4"),
    (" ij, jk -> ik ", "2x3 3x4"), ("i j , j k ->i k", "2x3 3x4"), ("ij,jk- >ik", "2x3 3x4"), ("ij,jk - > ik", "2x3 3x4"),
    ("ba", "2x3"), ("bA", "2x3"), ("Ba", "2x3"), ("aB", "2x3"), ("zZaA", "2x3x4x5"), ("kij", "2x3x4"),
    ("ji,kj", "2x3 4x2"), ("i,j", "2 3"), ("j,i", "2 3"), ("i,i", "3 3"), ("i,i->i", "3 3"), ("ij->", "2x3"),
    ("ij->j", "2x3"), ("ij->ji", "2x3"), ("ij,kj,lj->ikl", "2x3 4x3 5x3"), ("i,i,i", "3 3 3"), ("i,i,i->i", "3 3 3"),
    ("abcd,cdef,efgh->abgh", "2x2x3x2 3x2x2x2 2x2x2x3"), ("ab,bc,cd,de,ef", "2x3 3x4 4x5 5x2 2x3"),
    # blanks
    (" ", "-"), ("   ", "-"), ("i\tj", "2x2"), ("i\nj", "2x2"), ("\ti", "2"), ("i\r", "2"), ("i\u000bj", "2x2"),
    ("i ->", "2"), ("i-> ", "2"), ("i -> ", "2"), (" ->", "-"), (" , ->", "- -"), ("i ,", "2 -"),
    # scalars and emptiness
    ("", "-"), ("", "2"), ("->", "-"), ("->", "2"), (",", "- -"), (",->", "- -"), (",,->", "- - -"), ("i,", "2 -"),
    (",i", "- 2"), (",i->i", "- 2"), (",i->", "- 2"), ("i,->i", "2 -"), ("->i", "-"), ("", "- -"), (",", "-"), (",", "-  - -"),
    ("i->", "2"), ("i,j->", "2 3"), (",,i,", "- - 3 -"),
    # arrows and other characters
    ("i>i", "2"), ("i-i", "2"), ("i-", "2"), ("i->->i", "2"), ("i->i->", "2"), ("-i", "2"), (">i", "2"), ("->->", "-"),
    ("ij->ij,", "2x2"), ("i->,", "2"), ("i->i,j", "2"), ("i1", "2x3"), ("1", "2"), ("i_", "2x3"), ("i+j", "2 3"),
    ("i;j", "2 3"), ("(i)", "2"), ("i*j", "2x3"), ("i->i-", "2"), ("i->i>", "2"), ("i->-", "2"), ("i--> i", "2"),
    ("i->1", "2"), ("i=>i", "2"), ("ij->i j", "2x3"), ("@", "2"), ("[", "2"), ("`", "2"), ("{", "2"), ("i\\", "2x2"),
    ("i\"", "2x2"), ("i'", "2x2"), ("i/j", "2 3"), ("i&j", "2 3"), ("i,j;", "2 3"), ("\x00", "2"), ("i\x7f", "2x2"),
    # number of operands
    ("i", "2 2"), ("i,j->i", "2"), ("i,j,k", "2 3"), ("i,j", "2 3 4"), ("...", "2 2"), ("ij,jk,", "2x3 3x4"), ("ij,,jk", "2x3 3x4"),
    # ranks
    ("i", "-"), ("i", "2x3"), ("ij", "2"), ("ij->ij", "2x3x4"), ("ij,j", "2x3 -"), ("ij...", "2"), ("...i->...", "-"),
    ("i...", "-"), ("ij,jk->ik", "2x3x4 4x5"), ("i...j", "2"),
    # outputs
    ("ij->iij", "2x2"), ("i->ii", "2"), ("ij->ijji", "2x2"), ("i->j", "2"), ("ij,jk->il", "2x3 3x4"), ("ij->J", "2x3"),
    ("i->ij", "2"), ("ij->...ij...", "2x3"), ("...i->i...i", "2x3"), ("...->i", "2"), ("...i->...j", "2x3"),
    # diagonals
    ("ii", "3x3"), ("ii->i", "3x3"), ("ii->", "3x3"), ("iii->i", "2x2x2"), ("iij->ij", "2x2x3"), ("iji->j", "2x3x2"),
    ("iji", "2x3x2"), ("ijij->ij", "2x3x2x3"), ("ijij", "2x3x2x3"), ("ijji", "2x3x3x2"), ("ii,i->i", "3x3 3"), ("ii,jj", "2x2 3x3"),
    ("ii,jj->ij", "2x2 3x3"), ("ii,ij,jj", "2x2 2x3 3x3"), ("ii", "2x3"), ("ii->i", "3x1"), ("ii", "1x2"), ("ii", "1x1"), ("ii->i", "1x1"),
    ("ii", "2x1"), ("i,ii", "3 1x3"), ("i,ii->i", "1 1x3"), ("ii,i->i", "1x1 3"), ("i,ii->i", "1 3x3"), ("ii->i", "0x0"),
    ("ii->i", "0x1"), ("ii,i->i", "0x0 1"), ("iij,jkk->ik", "2x2x3 3x4x4"), ("iij,jkk->ik", "2x2x3 1x4x4"), ("iij,jkk->ik", "2x2x3 2x4x4"),
    # ellipses
    ("...", "-"), ("...", "2"), ("...", "2x3x4"), ("...->...", "2x3"), ("...->...", "-"), ("...->", "-"), ("...->", "2"), ("...,...", "2x3 2x3"),
    ("...,...", "2x3 3"), ("...,...", "3 2x3"), ("...,...", "2x1 1x3"), ("...,...", "2 3"), ("...,...->...", "4x1x3 2x1"), ("...,...->", "- -"),
    ("...,...->", "2 -"), ("i...", "2"), ("i...", "2x3"), ("i...->i...", "2x3x4"), ("i...->...i", "2x3x4"), ("...i->i...", "4x5x3"),
    ("i...->i", "2"), ("i...->i", "2x3"), ("i...->...", "2"), ("i...->...", "2x3"), ("i...j->ij...", "2x4x3"), ("i...j", "2x4x3"), ("j...i", "2x4x3"),
    ("i...i", "2x5x2"), ("i...i->i...", "2x5x2"), ("i...i->...i", "2x5x2"), ("...ii->...i", "4x3x3"), ("...ii", "4x3x3"), ("i...i", "2x5x3"),
    ("...ij,...jk->...ik", "2x3 3x4"), ("...ij,...jk->...ik", "5x2x3 3x4"), ("...ij,...jk->...ik", "2x3 5x3x4"), ("...ij,...jk", "6x1x2x3 5x3x4"),
    ("...ij,...jk->...ik", "5x2x3 4x3x4"), ("...ij,jk->...ik", "5x2x3 3x4"), ("ij,...jk->ik...", "2x3 5x6x3x4"), ("i...,...j->ij...", "2x5 5x3"),
    ("i...,...j->ij", "2x5 5x3"), ("i...,...j", "2x5 5x3"), ("i...,j...->...", "2x5 3x5"), ("i...,i...->...", "2x5 2x1"), ("...,i->...i", "- 3"),
    ("...,i->i...", "4 3"), ("i->...i", "3"), ("ij->...ij", "2x3"), ("ij->i...j", "2x3"), ("...i,...i", "2x1x3 4x3"), ("a...,...->...", "2x3 1"),
    ("... i->... i", "2x3"), (" ... i -> i ... ", "2x3"), ("i... j->...ij", "2x4x3"), ("b...a", "2x3x4"), ("B...a", "2x3x4"), ("b...A,a", "2x3x4 5"),
    ("...a,...b,...c->...abc", "2 3x4 5x3x6"), ("...a,b...,c...d", "2x3 4x2 5x6"), ("...,ii", "2 3x3"), ("...,...,...", "4x1x1 3x1 2"),
    ("..", "2x3"), (".", "2"), (". ..i->i", "2x3"), (". . .i", "2x3"), ("i..", "2"), ("....i", "2x3"), ("......", "2"), ("i...k...", "2x3"), ("... ...", "2"),
    ("...,....", "2 2"), ("...->..", "2"), ("...->.", "2"), ("i->.", "2"), ("i->..", "2"), ("...a->......a", "2x3"), ("...->....", "2"), ("...i->...i...", "2x3"),
    (".i..", "2"), ("..i.", "2"), ("i.,j", "2 3"), ("i->. ..", "2"), ("...,.->", "- -"),
    # broadcasting of 1, and 0
    ("ij,jk", "2x1 3x4"), ("ij,jk", "2x3 1x4"), ("ij,jk", "2x0 1x4"), ("ij,jk", "2x0 0x4"), ("ij,jk", "2x0 3x4"), ("i,i", "0 1"), ("i,i", "1 0"),
    ("i,i", "0 2"), ("i,i->i", "0 1"), ("i,i->i", "1 1"), ("i,i,i->i", "1 3 1"), ("i,i,i->i", "3 1 2"), ("i,i,i->i", "1 1 4"), ("ij,ij->ij", "1x3 2x1"),
    ("ij,jk", "2x3 4x5"), ("ij,kj", "2x3 4x2"), ("i,ij,j", "2 1x3 1"), ("i,ij,j", "2 3x3 3"), ("...i,i", "2x1 3"), ("...i,i", "2x4 3"), ("...,...", "0 1"),
    ("...,...", "0 3"), ("i...,i...", "1x3 2x1"), ("ij->ij", "0x3"), ("ij->", "0x3"), ("...->...", "0x2"), ("ii,ij->j", "1x1 4x2"),
]


def shape_text(shape):
    return "x".join(map(str, shape)) if shape else "-"


def parse_shape(text):
    return () if text == "-" else tuple(int(n) for n in text.split("x"))


def generated(rng):
    """A random expression with shapes that mostly fit, then sometimes damaged."""
    letters = rng.sample("abcxyzABZ", rng.randint(1, 5))
    extents = {c: rng.choice([1, 2, 2, 3, 4, 5, 0]) for c in letters}
    ellipsis = [rng.choice([2, 3, 4]) for _ in range(rng.randint(0, 2))]
    use_ellipsis = rng.random() < 0.5
    operands, shapes = [], []
    for _ in range(rng.randint(1, 4)):
        labels = [rng.choice(letters) for _ in range(rng.randint(0, 3))]
        shape = [extents[c] for c in labels]
        if len(set(labels)) == len(labels):
            shape = [1 if rng.random() < 0.08 else n for n in shape]
        if use_ellipsis and rng.random() < 0.7:
            at = rng.randint(0, len(labels))
            own = ellipsis[rng.randint(0, len(ellipsis)):]
            own = [1 if rng.random() < 0.15 else n for n in own]
            labels.insert(at, "...")
            shape[at:at] = own
        operands.append("".join(labels))
        shapes.append(tuple(shape))
    expr = ",".join(operands)
    if rng.random() < 0.7:
        used = sorted({c for o in operands for c in o if c != "."})
        out = rng.sample(used, rng.randint(0, len(used)))
        if any("..." in o for o in operands) and rng.random() < 0.85:
            out.insert(rng.randint(0, len(out)), "...")
        expr += "->" + "".join(out)
    if rng.random() < 0.3:
        at = rng.randint(0, len(expr))
        kind = rng.random()
        if kind < 0.5:
            expr = expr[:at] + rng.choice(" .,->abQ1") + expr[at:]
        elif kind < 0.8:
            expr = expr[:at] + expr[at + 1:]
        else:
            k = rng.randrange(len(shapes))
            shapes[k] = shapes[k] + (2,) if rng.random() < 0.5 else shapes[k][:-1]
    return expr, shapes


def verdict(expr, shapes):
    try:
        result = np.einsum(expr, *[np.zeros(s, dtype=np.int8) for s in shapes])
    except ValueError as error:
        return "refused " + " ".join(str(error).split())
    return "ok " + shape_text(np.shape(result))


def main():
    print(f"# numpy {np.__version__}; written by einsum_numpy.py, do not edit")
    rng = random.Random(20250)
    cases = [(e, [parse_shape(s) for s in shapes.split()]) for e, shapes in WRITTEN]
    cases += [generated(rng) for _ in range(500)]
    seen = set()
    for expr, shapes in cases:
        line = f"{json.dumps(expr)}\t{' '.join(map(shape_text, shapes))}"
        if line not in seen:
            seen.add(line)
            print(f"{line}\t{verdict(expr, shapes)}")


if __name__ == "__main__":
    sys.exit(main())
