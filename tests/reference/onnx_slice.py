"""Records what ONNX Runtime's Slice takes of 0, 1, 2, ...: `python3 onnx_slice.py > onnx_slice.txt`, with onnx and onnxruntime.

A line is extent, start, end, step, and the elements.
"""

import itertools

import numpy
import onnxruntime
from onnx import helper, numpy_helper

AT = (-(2**63), -(2**31), -4, -3, -2, -1, 0, 1, 2, 4, 2**31 - 1, 2**63 - 1)


def taken(extent, start, end, step):
    number = lambda name, n: numpy_helper.from_array(numpy.array([n], numpy.int64), name)
    nodes = [helper.make_node("Slice", ["x", "start", "end", "axis", "step"], ["y"])]
    x = helper.make_tensor_value_info("x", 1, [extent])
    y = helper.make_tensor_value_info("y", 1, [None])
    numbers = [number("start", start), number("end", end), number("axis", 0), number("step", step)]
    graph = helper.make_graph(nodes, "slice", [x], [y], numbers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, {"x": numpy.arange(extent, dtype=numpy.float32)})[0]


onnxruntime.set_default_logger_severity(4)
for extent, start, end, step in itertools.product((0, 1, 3), AT, AT, (1, -1, -2)):
    # There ONNX Runtime goes on to the first element, where the specification of ONNX clips the end to the last one.
    if step < 0 and end >= 2**31 - 1:
        continue
    elements = ",".join(str(int(v)) for v in taken(extent, start, end, step))
    print(extent, start, end, step, elements or "-")
