#!/usr/bin/env python3
"""Records which characters opt_einsum takes for labels, for the test `labels_are_the_characters_that_opt_einsum_takes`.

Run `python3 einsum_labels.py > einsum_labels.txt` with NumPy and opt_einsum installed. One case a line, fields separated by
tabs: the character's code point, the expression with `?` in its place, the operand shapes, and the verdict: `ok SHAPE` or
`refused`.
"""

import numpy as np
import opt_einsum

# Operands of distinct extents, so that the order of an implicit output shows in its shape.
PATTERNS = [("?b,b->?", "2x3 3"), ("?b->b?", "2x3"), ("?M", "2x3"), ("k?j", "4x2x3"), ("ij->?", "2x3")]
POINTS = [*range(0x100), *(ord(opt_einsum.get_symbol(n)) for n in range(116, 140)), 0x301, 0x2003, 0x200B, 0x2028, 0x4E00]
# Not 55156, whose symbol is half a character.
POINTS += [ord(opt_einsum.get_symbol(n)) for n in (5000, 55155, 60000)] + [0xFFFD, 0x1F600, 0x10FFFF]


def shape_text(shape):
    return "x".join(map(str, shape)) if shape else "-"


def verdict(expression, shapes):
    operands = [np.zeros([int(n) for n in s.split("x")]) for s in shapes.split()]
    try:
        return "ok " + shape_text(np.shape(opt_einsum.contract(expression, *operands)))
    except (ValueError, KeyError):
        return "refused"


def main():
    print(f"# opt_einsum {opt_einsum.__version__}; written by einsum_labels.py, do not edit")
    for point in POINTS:
        for pattern, shapes in PATTERNS:
            print(f"{point:04x}", pattern, shapes, verdict(pattern.replace("?", chr(point)), shapes), sep="\t")


main()
