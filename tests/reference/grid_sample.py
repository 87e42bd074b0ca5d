"""Reference values for tests/recording/sampling.rs: python3 tests/reference/grid_sample.py > tests/reference/grid_sample.json

Needs NumPy, PyTorch, onnx and ONNX Runtime. The values are PyTorch's, in f64; where ONNX Runtime has the case, too, the script checks
that it agrees. Every mode, padding and alignment, on planes and volumes; grids reach far outside, and no coordinate is near one that
rounds either way.
"""
import json

import numpy as np
import onnxruntime
import torch
from onnx import TensorProto, helper

TORCH = {"nearest": "nearest", "linear": "bilinear", "cubic": "bicubic"}


def data(shape, seed=0):
    i = np.arange(int(np.prod(shape)), dtype=np.float64)
    return (((i * 37 + seed * 11) % 101) / 25 - 2).reshape(shape)


def onnx_runtime(x, grid, mode, padding, align):
    node = helper.make_node("GridSample", ["x", "grid"], ["y"], mode=mode, padding_mode=padding, align_corners=int(align))
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, v.shape) for n, v in (("x", x), ("grid", grid))]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    model = helper.make_model(helper.make_graph([node], "g", values, [y]), opset_imports=[helper.make_opsetid("", 20)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x.astype(np.float32), "grid": grid.astype(np.float32)})[0]


cases = {}
for kind, x, grid in (
    ("plane", data((2, 3, 5, 6)), data((2, 5, 4, 2), 3)),
    ("volume", data((2, 2, 3, 4, 3), 2), data((2, 3, 2, 3, 3), 4)),
):
    grid = grid * 0.9318 + 0.0131
    for align in (False, True):
        for axis, d in enumerate(x.shape[:1:-1]):
            place = (grid[..., axis] + 1) / 2 * (d - 1) if align else ((grid[..., axis] + 1) * d - 1) / 2
            assert np.abs(place % 1 - 0.5).min() > 1e-3, "a coordinate that rounds either way"
        for mode in TORCH:
            for padding in ("zeros", "border", "reflection"):
                x_torch, grid_torch = torch.from_numpy(x), torch.from_numpy(grid)
                y = torch.nn.functional.grid_sample(x_torch, grid_torch, TORCH[mode], padding, align).numpy()
                if not (kind == "volume" and mode == "cubic"):
                    assert np.abs(onnx_runtime(x, grid, mode, padding, align) - y).max() < 1e-4, (kind, mode, padding, align)
                cases[f"{kind}_{mode}_{padding}_{align}"] = y

lines = [f'"{name}": ' + json.dumps({"shape": list(y.shape), "values": [float(f"{v:.16g}") for v in y.ravel()]}) for name, y in cases.items()]
print("{\n" + ",\n".join(lines) + "\n}")
