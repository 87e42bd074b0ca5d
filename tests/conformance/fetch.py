#!/usr/bin/env python3
"""Fetches the ONNX project's backend tests and lays them out as files, for tests/conformance.rs.

    python3 tests/conformance/fetch.py [FOLDER]

Installs onnx from PyPI into a virtual environment of its own, and writes FOLDER/KIND/CASE/{model.onnx, tolerance.json,
test_data_set_N/{input,output}_M.pb}. FOLDER is target/onnx-conformance unless given. Cases of operators are Python code in
the package and are written out here; the others are files in it and are copied.
"""

import json
import pathlib
import shutil
import subprocess
import sys
import venv

# All fixed: what a float becomes that an integer of two or four bits does not hold is for ml_dtypes to say, and changes with its version.
PACKAGES = ["onnx==1.23.2", "numpy==2.4.6", "ml_dtypes==0.6.0"]
root = pathlib.Path(__file__).resolve().parents[2]
folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else root / "target" / "onnx-conformance").resolve()


def in_environment():
    """Runs this script again where onnx is installed."""
    python = folder / "venv" / "bin" / "python"
    if not python.exists():
        venv.create(folder / "venv", with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    subprocess.run([python, __file__, str(folder), "--write"], check=True)


def proto(value, info, numpy_helper):
    kind = info.type.WhichOneof("value")
    if kind == "sequence_type":
        return numpy_helper.from_list(value, info.name)
    if kind == "optional_type":
        return numpy_helper.from_optional(value, info.name)
    if kind == "map_type":
        return numpy_helper.from_dict(value, info.name)
    if hasattr(value, "SerializeToString"):
        return value
    return numpy_helper.from_array(value, info.name)


def write():
    import numpy
    import onnx.backend.test.loader as loader
    from onnx import numpy_helper

    numpy.random.seed(0)
    data = pathlib.Path(loader.DATA_DIR)
    cases = list(loader.load_node_model_tests())
    for kind in ("simple", "pytorch-converted", "pytorch-operator"):
        cases += loader.load_model_tests(str(data), kind=kind)
    from onnx.backend.test.case.model import collect_testcases

    known = {c.name for c in cases}
    cases += [c for c in collect_testcases() if c.name not in known and c.model is not None]
    counts = {}
    for case in cases:
        target = folder / case.kind / case.name
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        counts[case.kind] = counts.get(case.kind, 0) + 1
        (target / "tolerance.json").write_text(json.dumps({"rtol": case.rtol, "atol": case.atol}))
        if case.model_dir is not None:
            shutil.copytree(case.model_dir, target, dirs_exist_ok=True)
            continue
        (target / "model.onnx").write_bytes(case.model.SerializeToString())
        for i, (inputs, outputs) in enumerate(case.data_sets):
            data_set = target / f"test_data_set_{i}"
            data_set.mkdir()
            for what, values, infos in (("input", inputs, case.model.graph.input), ("output", outputs, case.model.graph.output)):
                for j, (value, info) in enumerate(zip(values, infos)):
                    (data_set / f"{what}_{j}.pb").write_bytes(proto(value, info, numpy_helper).SerializeToString())
    print(folder, counts)


if __name__ == "__main__":
    if "--write" in sys.argv:
        write()
    else:
        folder.mkdir(parents=True, exist_ok=True)
        in_environment()
