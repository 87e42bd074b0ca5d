#!/usr/bin/env python3
"""Reads the text in page.png with NumPy, SciPy and ONNX Runtime, and stores what came out at each step in reference.npz.

    python3 examples/fetch.py vision
    pip install numpy scipy pillow onnxruntime
    python3 examples/vision/reference.py

The steps are those of main.rs, written again: nothing here was made by tlc.
"""

import pathlib

import numpy
import onnxruntime
from PIL import Image
from scipy import ndimage

here = pathlib.Path(__file__).resolve().parent
weights = here.parents[1] / "target" / "weights" / "vision"

ENLARGE, MULTIPLE = 3, 32  # the detector's picture: three times as large, in whole blocks of 32
TEXT, SURE, GROW = 0.3, 0.5, 1.6  # a pixel is text, a region is sure, by how much a region is smaller than its text
HEIGHT = 48  # of a line for the recognizer


def session(name):
    return onnxruntime.InferenceSession(weights / name, providers=["CPUExecutionProvider"])


def bilinear(picture, y, x):
    """The picture [h, w, c] between its pixels, at places y [..] and x [..]; outside it is its border."""
    h, w, _ = picture.shape
    y, x = numpy.clip(y, 0, h - 1), numpy.clip(x, 0, w - 1)
    y0, x0 = numpy.floor(y).astype(int), numpy.floor(x).astype(int)
    y1, x1 = numpy.minimum(y0 + 1, h - 1), numpy.minimum(x0 + 1, w - 1)
    fy, fx = (y - y0)[..., None], (x - x0)[..., None]
    top = picture[y0, x0] * (1 - fx) + picture[y0, x1] * fx
    bottom = picture[y1, x0] * (1 - fx) + picture[y1, x1] * fx
    return top * (1 - fy) + bottom * fy


def for_detector(picture):
    h, w, _ = picture.shape
    rows, columns = (max(1, (ENLARGE * n + MULTIPLE // 2) // MULTIPLE) * MULTIPLE for n in (h, w))
    y = (numpy.arange(rows) + 0.5) * (h / rows) - 0.5
    x = (numpy.arange(columns) + 0.5) * (w / columns) - 0.5
    resized = bilinear(picture, *numpy.meshgrid(y, x, indexing="ij"))
    return resized.transpose(2, 0, 1)[None].astype(numpy.float32)


def boxes(probability, h, w):
    """Regions of text as (left, top, right, bottom) in pixels of the picture, top to bottom."""
    rows, columns = probability.shape
    regions, count = ndimage.label(probability > TEXT)  # neighbours share an edge
    found = []
    for i, (ys, xs) in enumerate(ndimage.find_objects(regions), 1):
        if probability[ys, xs][regions[ys, xs] == i].mean() < SURE:
            continue
        high, wide = ys.stop - ys.start, xs.stop - xs.start
        if min(high, wide) < 3:
            continue
        grow = high * wide * GROW / (2 * (high + wide))
        left, right = max(0, xs.start - grow), min(columns, xs.stop + grow)
        top, bottom = max(0, ys.start - grow), min(rows, ys.stop + grow)
        found.append([left * w / columns, top * h / rows, right * w / columns, bottom * h / rows])
    return numpy.array(sorted(found, key=lambda b: (b[1] + b[3], b[0])))


def for_recognizer(picture, boxes):
    """The lines [n, 3, 48, width], each as wide as it is; behind a line's end is 0."""
    high, wide = boxes[:, 3] - boxes[:, 1], boxes[:, 2] - boxes[:, 0]
    width = int(numpy.ceil((wide / high).max() * HEIGHT))
    y = (numpy.arange(HEIGHT) + 0.5) / HEIGHT
    x = (numpy.arange(width) + 0.5) / HEIGHT
    lines = []
    for (left, top, right, bottom) in boxes:
        columns = left + x * (bottom - top)
        ys, xs = numpy.meshgrid(top + y * (bottom - top) - 0.5, columns - 0.5, indexing="ij")
        lines.append(bilinear(picture, ys, xs) * (columns < right)[:, None])
    return numpy.stack(lines).transpose(0, 3, 1, 2).astype(numpy.float32)


def main():
    picture = numpy.asarray(Image.open(here / "page.png").convert("RGB"))[:, :, ::-1]  # blue first
    picture = picture.astype(numpy.float64) / 127.5 - 1
    probability = session("detect.onnx").run(None, {"x": for_detector(picture)})[0][0, 0]
    found = boxes(probability, *picture.shape[:2])
    recognize = session("recognize.onnx")
    characters = ["", *recognize.get_modelmeta().custom_metadata_map["character"].splitlines(), " "]
    assert len(characters) == recognize.get_outputs()[0].shape[2]
    scores = recognize.run(None, {"x": for_recognizer(picture, found)})[0]
    best = scores.argmax(2)
    for row, b in zip(best, found):
        distinct = row[numpy.r_[True, row[1:] != row[:-1]]]
        print(b.round(1), "".join(characters[i] for i in distinct))
    numpy.savez_compressed(
        here / "reference.npz",
        probability=probability[::5, ::5],
        boxes=found,
        best=best.astype(numpy.int64),
        score=scores.max(2),
    )


if __name__ == "__main__":
    main()
