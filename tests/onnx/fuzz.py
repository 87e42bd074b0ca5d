#!/usr/bin/env python3
"""Breaks valid ONNX models in their structure and gives them to `tlc run`: outside of the test suite, for as long as one likes.

    python3 tests/conformance/fetch.py                      # the models to break, with inputs
    target/onnx-conformance/venv/bin/python tests/onnx/fuzz.py TLC [FIRST [COUNT]] [--only WORDS] [--keep FOLDER]

Case N is the same on every machine. A case is wrong if tlc ends otherwise than with 0, 3, 4 or 5, takes more than 10 s of
processor time or 1 GiB of memory, says something else than one line `error: FILE: ...`, or leaves a file behind. Wrong cases
are kept in FOLDER (target/onnx-fuzz unless given) with what tlc said.
"""

import argparse
import collections
import os
import pathlib
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile

import numpy
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

root = pathlib.Path(__file__).resolve().parents[2]
SECONDS, BYTES = 10, 1 << 30
INTS = [0, 1, -1, 2, -2, 3, 7, 64, 65, 1000, 50_000, 3_000_000, 100_000_000, 2**31 - 1, 2**31, -(2**31), 2**40, 2**62, 2**63 - 1, -(2**63)]
FLOATS = [0.0, -0.0, 1.0, -1.0, 1e-45, 1e38, -1e38, float("nan"), float("inf"), float("-inf"), 2.0**63, 0.5]
TEXTS = ["", "x", "SAME_UPPER", "NOTSET", "bidirectional", "reverse", "linear", "cubic", "mean", "a->b", "...ij->", "\n", "tanh"]
# Operators whose operands steer sizes: their inputs are made constants more often.
STEERED = """Expand Tile Range OneHot Pad Resize ConstantOfShape Loop Reshape Slice TopK Upsample Split EyeLike Trilu CenterCropPad
NonMaxSuppression HannWindow HammingWindow BlackmanWindow DFT STFT Col2Im MaxUnpool AffineGrid Squeeze Unsqueeze CumSum""".split()


class Break:
    """One model being broken, with the values of its inputs."""

    def __init__(self, rng, model, inputs):
        self.rng, self.model, self.inputs = rng, model, inputs
        self.one = rng.choice

    def graphs(self):
        found, open_ = [], [self.model.graph]
        while open_:
            graph = open_.pop()
            found.append(graph)
            for node in graph.node:
                for a in node.attribute:
                    if a.type == AttributeProto.GRAPH:
                        open_.append(a.g)
        return found

    def holders(self):
        """Everything that holds nodes."""
        return [h for h in self.graphs() + list(self.model.functions) if h.node]

    def node(self):
        holders = self.holders()
        return self.one(self.one(holders).node) if holders else None

    def names(self):
        names = [i.name for i in self.model.graph.input] + [t.name for t in self.model.graph.initializer]
        return names + [o for h in self.holders() for n in h.node for o in n.output] + ["", "nowhere"]

    # What can be broken. Each answers False where there is nothing to break.

    def input_becomes_constant(self):
        graph = self.model.graph
        known = [i for i in graph.input if i.name in self.inputs]
        if not known:
            return False
        chosen = self.one(known)
        graph.initializer.append(numpy_helper.from_array(self.inputs.pop(chosen.name), chosen.name))
        graph.input.remove(chosen)

    def constant_values(self):
        tensors = list(self.model.graph.initializer)
        tensors += [a.t for h in self.holders() for n in h.node for a in n.attribute if a.type == AttributeProto.TENSOR]
        tensors = [t for t in tensors if t.data_type in (1, 6, 7, 10, 11) and len(t.dims) < 9]
        if not tensors:
            return False
        tensor = self.one(tensors)
        try:
            values = numpy_helper.to_array(tensor).copy()
        except Exception:
            return False
        if not values.size:
            return False
        extreme = self.one(FLOATS) if values.dtype.kind == "f" else self.one(INTS)
        with numpy.errstate(all="ignore"):
            values.flat[self.rng.randrange(values.size)] = numpy.array(extreme).astype(values.dtype)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))

    def constant_dims(self):
        if not self.model.graph.initializer:
            return False
        tensor = self.one(self.model.graph.initializer)
        how = self.rng.randrange(4)
        if how == 0:
            tensor.dims.extend([1] * self.one([1, 3, 60, 1000]))
        elif how == 1 and tensor.dims:
            tensor.dims[self.rng.randrange(len(tensor.dims))] = self.one(INTS)
        elif how == 2:
            tensor.data_type = self.rng.randrange(30)
        else:
            del tensor.dims[:]

    def input_dims(self):
        values = [v for v in list(self.model.graph.input) + list(self.model.graph.output) if v.type.HasField("tensor_type")]
        if not values:
            return False
        shape = self.one(values).type.tensor_type.shape
        how = self.rng.randrange(6)
        if how == 0 and shape.dim:
            self.one(shape.dim).dim_value = self.one(INTS)
        elif how == 1 and shape.dim:
            self.one(shape.dim).dim_param = self.one(["n", "m", "?", "a*b", "", "1"])
        elif how == 2:
            for _ in range(self.one([1, 3, 64, 1000])):
                shape.dim.add().dim_value = 1
        elif how == 3 and shape.dim:
            del shape.dim[-1]
        elif how == 4:
            # Every extent a symbol of its own.
            for i, d in enumerate(shape.dim):
                d.dim_param = f"d{i}"
        else:
            for d in shape.dim:
                d.dim_param = "same"

    def element_type(self):
        values = [v for v in list(self.model.graph.input) + list(self.model.graph.output) if v.type.HasField("tensor_type")]
        if not values:
            return False
        self.one(values).type.tensor_type.elem_type = self.rng.randrange(30)

    def operands(self):
        node = self.node()
        if node is None:
            return False
        how = self.rng.randrange(6)
        if how == 0 and len(node.input) > 1:
            a, b = self.rng.sample(range(len(node.input)), 2)
            node.input[a], node.input[b] = node.input[b], node.input[a]
        elif how == 1 and node.input:
            node.input[self.rng.randrange(len(node.input))] = self.one(self.names())
        elif how == 2 and node.input:
            del node.input[self.rng.randrange(len(node.input))]
        elif how == 3:
            node.input.append(self.one(self.names()))
        elif how == 4 and node.output:
            node.output[self.rng.randrange(len(node.output))] = self.one(self.names())
        else:
            node.output.append("one_more")

    def attribute_value(self):
        node = self.node()
        if node is None or not node.attribute:
            return False
        a = self.one(node.attribute)
        if a.type == AttributeProto.INT:
            a.i = self.one(INTS + list(range(1, 28)))
        elif a.type == AttributeProto.FLOAT:
            a.f = self.one([f for f in FLOATS if abs(f) < 3e38 or f != f or abs(f) == float("inf")])
        elif a.type == AttributeProto.STRING:
            a.s = self.one(TEXTS).encode()
        elif a.type == AttributeProto.INTS:
            if a.ints and self.rng.random() < 0.7:
                a.ints[self.rng.randrange(len(a.ints))] = self.one(INTS)
            elif self.rng.random() < 0.5:
                a.ints.extend([self.one(INTS)] * self.one([1, 2, 100]))
            else:
                del a.ints[self.rng.randrange(len(a.ints) + 1) :]
        elif a.type == AttributeProto.FLOATS:
            a.floats.append(self.one([0.0, -1.0, 1e30]))
        else:
            return False

    def attribute_kind(self):
        node = self.node()
        if node is None or not node.attribute:
            return False
        a = self.one(node.attribute)
        how = self.rng.randrange(4)
        if how == 0:
            node.attribute.remove(a)
        elif how == 1:
            a.type = self.rng.randrange(15)
        elif how == 2:
            a.name = self.one(["axis", "axes", "to", "body", "mode", "k"])
        else:
            node.attribute.append(a)

    def operator(self):
        node, other = self.node(), self.node()
        if node is None:
            return False
        names = [other.op_type, "Add", "Neg", "Loop", "If", "Scan", "NonZero", "Unique", "Shape", "Size", "Identity", "Cast", "TopK"]
        node.op_type = self.one(names + STEERED)

    def nodes(self):
        holders = self.holders()
        if not holders:
            return False
        nodes = self.one(holders).node
        i, j = self.rng.randrange(len(nodes)), self.rng.randrange(len(nodes))
        how = self.rng.randrange(4)
        if how == 0:
            del nodes[i]
        elif how == 1:
            nodes.append(nodes[i])
        elif how == 2 and len(nodes) > 1:
            a, b = onnx.NodeProto(), onnx.NodeProto()
            a.CopyFrom(nodes[i]), b.CopyFrom(nodes[j])
            nodes[i].CopyFrom(b), nodes[j].CopyFrom(a)
        elif nodes[i].input and nodes[j].output:
            nodes[i].input[0] = nodes[j].output[0]

    def names_twice(self):
        graph = self.model.graph
        for some in self.rng.sample([graph.initializer, graph.input, graph.output], 3):
            if some:
                some.append(self.one(some))
                return
        return False

    def drops(self):
        graph = self.model.graph
        for some in self.rng.sample([graph.initializer, graph.input, graph.output], 3):
            if some:
                some.remove(self.one(some))
                return
        return False

    def versions(self):
        if not self.model.opset_import:
            return False
        self.one(self.model.opset_import).version = self.one([0, 1, 5, 6, 7, 8, 9, 10, 11, 12, 13, 17, 21, 23, 28, 29, 10**6, -1])

    def external(self):
        if not self.model.graph.initializer:
            return False
        tensor = self.one(self.model.graph.initializer)
        for field in ("raw_data", "float_data", "int64_data", "int32_data", "double_data"):
            tensor.ClearField(field)
        tensor.data_location = TensorProto.EXTERNAL
        options = {
            "location": ["../secret", "/etc/passwd", "data.bin", ".", "", "no/such", "model.onnx", "a\0b"],
            "offset": ["0", "-1", "99999999999999999999", "x", str(2**62), "3"],
            "length": ["0", "-1", str(2**63), "8", "x"],
        }
        for key, values in options.items():
            if self.rng.random() < 0.8:
                tensor.external_data.add(key=key, value=self.one(values))

    def call(self):
        """A node becomes a call of a function that holds it, or that calls itself."""
        graph = self.model.graph
        if not graph.node:
            return False
        node = self.one(graph.node)
        inner = onnx.NodeProto()
        inner.CopyFrom(node)
        formals = list(dict.fromkeys(i for i in node.input if i))
        function = helper.make_function("own", "F", formals, list(node.output), [inner], list(self.model.opset_import))
        if self.rng.random() < 0.3:
            inner.op_type, inner.domain = "F", "own"
            del function.node[:]
            function.node.append(inner)
        self.model.functions.append(function)
        if not any(o.domain == "own" for o in self.model.opset_import):
            self.model.opset_import.append(helper.make_opsetid("own", 1))
        node.op_type, node.domain = "F", "own"
        del node.input[:], node.attribute[:]
        node.input.extend(formals)

    def data(self):
        """The values of an input that is given."""
        if not self.inputs:
            return False
        name = self.one(list(self.inputs))
        values = self.inputs[name].copy()
        if not values.size or values.dtype.kind not in "iuf":
            return False
        extreme = self.one(FLOATS) if values.dtype.kind == "f" else self.one(INTS)
        with numpy.errstate(all="ignore"):
            values.flat[self.rng.randrange(values.size)] = numpy.array(extreme).astype(values.dtype)
        self.inputs[name] = values

    WAYS = {
        "input_becomes_constant": 6, "constant_values": 10, "constant_dims": 2, "input_dims": 5, "element_type": 2,
        "operands": 6, "attribute_value": 8, "attribute_kind": 3, "operator": 3, "nodes": 3, "names_twice": 1, "drops": 1,
        "versions": 1, "external": 1, "call": 1, "data": 3,
    }  # fmt: skip

    def break_(self):
        done = []
        if self.rng.random() < 0.6 and any(n.op_type in STEERED for n in self.model.graph.node):
            for _ in range(len(self.inputs)):
                if self.rng.random() < 0.7:
                    self.input_becomes_constant()
            if self.constant_values() is not False:
                done.append("constant_values")
        for way in self.rng.choices(list(self.WAYS), self.WAYS.values(), k=self.rng.choice([1, 1, 2, 2, 3, 5])):
            if getattr(self, way)() is not False:
                done.append(way)
        return done


def case(folder, models, number, only):
    rng = random.Random(number)
    source = rng.choice(models)
    model = onnx.load(source / "model.onnx", load_external_data=False)
    inputs = {}
    for k, value in enumerate(model.graph.input):
        file = source / "test_data_set_0" / f"input_{k}.pb"
        if file.exists() and value.type.HasField("tensor_type"):
            tensor = onnx.load_tensor(file)
            values = numpy_helper.to_array(tensor)
            if values.dtype.kind in "biuf":
                inputs[value.name] = values
    done = Break(rng, model, inputs).break_()
    bytes_ = bytearray(model.SerializeToString())
    if rng.random() < 0.1:
        for _ in range(rng.choice([1, 2, 8])):
            bytes_[rng.randrange(len(bytes_))] = rng.randrange(256)
        done.append("bytes")
    (folder / "model.onnx").write_bytes(bytes_)
    arguments = []
    for k, (name, values) in enumerate(inputs.items()):
        numpy.save(folder / f"in{k}.npy", values)
        arguments += ["--input", f"{name}=in{k}.npy"]
    return source.name, done, arguments


def limits():
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
    resource.setrlimit(resource.RLIMIT_AS, (6 * BYTES, 6 * BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run(tlc, folder, arguments):
    command = [tlc, "run", "model.onnx", "--output-dir", "out", "--max-memory", "512MiB", "--threads", "2", *arguments]
    with open(folder / "stderr", "wb") as err, open(folder / "stdout", "wb") as out:
        child = subprocess.Popen(command, cwd=folder, stderr=err, stdout=out, stdin=subprocess.DEVNULL, preexec_fn=limits)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    return command, child.returncode, usage, (folder / "stderr").read_text(errors="replace")


def judge(folder, code, usage, said):
    errors = [line for line in said.splitlines() if not line.startswith(("note: ", "wrote "))]
    if code not in (0, 3, 4, 5):
        return f"code {code}"
    if usage.ru_maxrss * 1024 > BYTES:
        return f"{usage.ru_maxrss >> 10} MiB"
    if code == 0:
        return None
    if (folder / "out").exists():
        return "files left behind"
    if len(errors) != 1 or not re.match(r"error: (model\.onnx|in\d+\.npy|out)[: ]", errors[0]):
        return "another message"
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tlc", type=pathlib.Path)
    parser.add_argument("first", type=int, nargs="?", default=0)
    parser.add_argument("count", type=int, nargs="?", default=1000)
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", type=pathlib.Path, default=root / "target" / "onnx-fuzz")
    parser.add_argument("--messages", action="store_true", help="count what tlc said, numbers and names left out")
    given = parser.parse_args()
    tests = pathlib.Path(os.environ.get("TLC_ONNX_CONFORMANCE", root / "target" / "onnx-conformance"))
    models = sorted(m.parent for m in tests.glob("*/*/model.onnx") if m.stat().st_size < 1 << 20)
    models = [m for m in models if not given.only or any(w in m.name for w in given.only.split(","))]
    if not models:
        sys.exit(f"no models in {tests}; tests/conformance/fetch.py puts them there")
    codes, wrong, messages = collections.Counter(), collections.Counter(), collections.Counter()
    for number in range(given.first, given.first + given.count):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            source, done, arguments = case(folder, models, number, given.only)
            command, code, usage, said = run(given.tlc.resolve(), folder, arguments)
            codes[code] += 1
            seconds = usage.ru_utime + usage.ru_stime
            verdict = judge(folder, code, usage, said)
            if seconds > 3 or verdict:
                print(number, source, "+".join(done), verdict, f"{seconds:.1f} s", said.strip()[:300], flush=True)
            if given.messages and code:
                line = next((l for l in said.splitlines() if l.startswith("error")), "")
                messages[re.sub(r"'[^']*'|`[^`]*`|-?\d+", "#", line)[:160]] += 1
            if verdict:
                wrong[verdict] += 1
                kept = given.keep / f"{number}-{source}"
                shutil.rmtree(kept, ignore_errors=True)
                shutil.copytree(folder, kept)
                (kept / "command").write_text(" ".join(map(str, command)))
    for message, n in messages.most_common():
        print(n, message)
    print(f"{given.count} cases from {given.first}:", dict(codes), "wrong:", dict(wrong))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
