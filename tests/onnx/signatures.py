#!/usr/bin/env python3
"""Writes onnx/src/signature/table.rs: the operands, which of them have one type, the results and attributes of each supported operator, as ONNX declares them.

    python3 tests/conformance/fetch.py                      # an environment with onnx
    target/onnx-conformance/venv/bin/python tests/onnx/signatures.py

A row holds from its opset on, until the next row of the same operator.
"""

import pathlib
import re
import subprocess

from onnx import defs

root = pathlib.Path(__file__).resolve().parents[2]
target = root / "onnx/src/signature/table.rs"
KINDS = {"INT": "int", "INTS": "ints", "FLOAT": "float", "FLOATS": "floats", "STRING": "text", "STRINGS": "texts",
         "TENSOR": "tensor", "GRAPH": "graph", "SPARSE_TENSOR": "other"}
HEAD = """//! The operands, which of them have one type, the results and attributes of each operator, as ONNX declares them. Written by tests/onnx/signatures.py.

use super::{MANY, Signature, row};

/// Sorted by name, then by the first opset for which they hold. A `!` marks an attribute that must be given.
pub(super) const SIGNATURES: &[Signature] = &[
"""


def count(low, high):
    return f"({low}, {'MANY' if high > 1000 else high})"


def types(schema):
    """A letter for each operand, as the field of `Signature` has them."""
    variables = [i.type_str for i in schema.inputs]
    letters = {}

    def letter(operand):
        many = operand.option == defs.OpSchema.FormalParameterOption.Variadic and operand.is_homogeneous
        # What is in no constraint is a type that the schema names, and no variable.
        variable = any(c.type_param_str == operand.type_str for c in schema.type_constraints)
        shared = variable and (many or variables.count(operand.type_str) > 1)
        return letters.setdefault(operand.type_str, "ABCDEFGH"[len(letters)]) if shared else "-"

    text = "".join(map(letter, schema.inputs))
    return re.sub(r"(.)\1+$", r"\1", text) if letters else ""


def interface(schema):
    attributes = sorted(schema.attributes.values(), key=lambda a: a.name)
    kinds = [f"{a.name}={KINDS[str(a.type).split('.')[-1]]}{'!' if a.required else ''}" for a in attributes]
    return count(schema.min_input, schema.max_input), types(schema), count(schema.min_output, schema.max_output), " ".join(kinds)


schemas = {}
for schema in defs.get_all_schemas_with_history():
    if schema.domain == "":
        schemas.setdefault(schema.name, []).append(schema)
rows = []
table = (root / "onnx/src/operators/table.rs").read_text()
for name, first in re.findall(r'^    (?:op|until)\("(\w+)", (\d+)', table, re.M):
    before = None
    history = sorted(schemas[name], key=lambda s: s.since_version)
    for schema, behind in zip(history, [*history[1:], None]):
        superseded = behind is not None and behind.since_version <= int(first)
        if not superseded and interface(schema) != before:
            before = interface(schema)
            inputs, shared, outputs, attributes = before
            rows.append(f'    row("{name}", {schema.since_version}, {inputs}, "{shared}", {outputs}, "{attributes}"),\n')
target.write_text(HEAD + "".join(rows) + "];\n")
subprocess.run(["rustfmt", "--edition", "2024", "--config-path", root, target], check=True)
