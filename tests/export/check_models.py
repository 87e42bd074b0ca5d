"""Checks exported models: onnx.checker accepts them, and ONNX Runtime answers what this project does.

Usage: check_models.py FOLDER. Each FOLDER/NAME has model.onnx and the arrays in.K.npy and out.K.npy of its inputs and outputs
in order, or the model alone where only its form is checked; tolerance.json holds the largest differences of floats (relative to the largest value, and absolute). Prints a line
for each case: `ok NAME`, `unsupported NAME: reason` where ONNX Runtime lacks a kernel, or `wrong NAME: reason`; the last line
is `done`. Exits with 77 if onnx or onnxruntime is absent.
"""

import json
import pathlib
import sys

try:
    import numpy as np
    import onnx
    import onnxruntime
except ImportError as error:
    print(f"SKIP {error}")
    sys.exit(77)


def session(path):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def difference(found, expected, tolerance):
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return f"{found.dtype}{found.shape} for {expected.dtype}{expected.shape}"
    if found.dtype.kind != "f":
        return None if np.array_equal(found, expected) else f"{found} for {expected}"
    a, b = found.astype(np.float64), expected.astype(np.float64)
    finite = np.abs(b[np.isfinite(b)])
    scale = finite.max() if finite.size else 0.0
    with np.errstate(invalid="ignore"):
        close = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= tolerance["relative"] * scale + tolerance["absolute"])
    if close.all():
        return None
    at = np.argwhere(~close)[0]
    return f"element {tuple(at)}: {a[tuple(at)]} for {b[tuple(at)]}"


def check(case):
    path = case / "model.onnx"
    onnx.checker.check_model(str(path), full_check=True)
    if not (case / "tolerance.json").exists():
        return f"ok {case.name}"
    tolerance = json.loads((case / "tolerance.json").read_text())
    try:
        run = session(path)
    except Exception as error:  # noqa: BLE001: the library has no narrower one for a kernel that it lacks
        text = str(error).replace("\n", " ")
        if "NOT_IMPLEMENTED" in text or "Could not find an implementation" in text:
            return f"unsupported {case.name}: {text[:200]}"
        return f"wrong {case.name}: {text[:300]}"
    count = len(run.get_inputs())
    inputs = {run.get_inputs()[k].name: np.load(case / f"in.{k}.npy") for k in range(count)}
    try:
        outputs = run.run(None, inputs)
    except Exception as error:  # noqa: BLE001
        text = str(error).replace("\n", " ")
        kind = "unsupported" if "NOT_IMPLEMENTED" in text else "wrong"
        return f"{kind} {case.name}: {text[:300]}"
    for k, found in enumerate(outputs):
        problem = difference(np.asarray(found), np.load(case / f"out.{k}.npy"), tolerance)
        if problem:
            return f"wrong {case.name}: output {k}: {problem}"
    return f"ok {case.name}"


for case in sorted(p for p in pathlib.Path(sys.argv[1]).iterdir() if p.is_dir()):
    try:
        print(check(case), flush=True)
    except Exception as error:  # noqa: BLE001: a case that fails in any way is a line, and the next one is tried
        print(f"wrong {case.name}: {type(error).__name__}: {str(error)[:300]}".replace("\n", " "), flush=True)
print("done")
