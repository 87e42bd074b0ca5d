#!/usr/bin/env python3
"""Quantizes networks of tests/models to bytes with ONNX Runtime's own quantizer, and records what the results compute.

    python3 tests/models/quantize.py

Writes tests/models/quantized/NAME.onnx, where float operators lie between QuantizeLinear and DequantizeLinear (activations u8, weights s8
with a scale for each channel, ranges from the recorded calls), and NAME.npz with the calls of tests/models/NAME.npz, the outputs of ONNX
Runtime with its optimizations off (`out.K.NAME`: with them it rounds sums otherwise than the operators say, and differs from itself by
up to three steps) and, for each output, `quantum.NAME`: the step between two values that the quantizer before it tells apart. The
environment needs the wheels onnx, onnxruntime and numpy; the script makes one in target/quantize-venv and runs itself there.
"""

import pathlib
import subprocess
import sys
import tempfile
import venv

PACKAGES = ["onnx==1.23.2", "onnxruntime==1.32.0", "numpy"]
NETWORKS = ["encoder", "mobile", "residual_cnn"]
here = pathlib.Path(__file__).resolve().parent
environment = here.parents[1] / "target" / "quantize-venv"

if "--inside" not in sys.argv:
    python = environment / "bin" / "python"
    if not python.exists():
        venv.create(environment, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    sys.exit(subprocess.run([python, __file__, "--inside"]).returncode)

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnxruntime  # noqa: E402
from onnxruntime.quantization import QuantFormat, QuantType, quantize_static  # noqa: E402
from onnxruntime.quantization.shape_inference import quant_pre_process  # noqa: E402


class Calls:
    """Recorded inputs, as the quantizer wants to be given them."""

    def __init__(self, calls):
        self.left = list(calls)

    def get_next(self):
        return self.left.pop(0) if self.left else None


def quantum(model, output):
    """The scale of the last quantizer before an output; what lies between has a derivative of at most 1."""
    made_by = {name: node for node in model.graph.node for name in node.output}
    node = made_by[output]
    while node.op_type in ("Identity", "Tanh"):
        node = made_by[node.input[0]]
    assert node.op_type == "DequantizeLinear", node.op_type
    (scale,) = [w for w in model.graph.initializer if w.name == node.input[1]]
    return onnx.numpy_helper.to_array(scale)


for name in NETWORKS:
    recorded = dict(np.load(here / f"{name}.npz"))
    arrays = {key: value for key, value in recorded.items() if key.startswith("in.")}
    calls = {}
    for key, value in arrays.items():
        _, call, given = key.split(".", 2)
        calls.setdefault(int(call), {})[given] = value
    path = here / "quantized" / f"{name}.onnx"
    with tempfile.TemporaryDirectory() as scratch:
        prepared = f"{scratch}/prepared.onnx"
        quant_pre_process(str(here / f"{name}.onnx"), prepared, skip_symbolic_shape=True)
        types = dict(activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8)
        ranges = Calls(calls[call] for call in sorted(calls))
        quantize_static(prepared, str(path), ranges, quant_format=QuantFormat.QDQ, per_channel=True, **types)
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.graph_optimization_level = 4, onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options)
    outputs = [o.name for o in session.get_outputs()]
    arrays |= {f"quantum.{output}": quantum(onnx.load(str(path)), output) for output in outputs}
    for call, inputs in calls.items():
        arrays |= {f"out.{call}.{output}": value for output, value in zip(outputs, session.run(outputs, inputs))}
    np.savez_compressed(path.with_suffix(".npz"), **arrays)
    print(f"{name}: {len(calls)} calls, {path.stat().st_size / 1e3:.0f} kB")
