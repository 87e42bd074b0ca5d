"""What the time of a network is spent on, in tlc and in ONNX Runtime, one beside the other.

python3 benches/networks/steps.py FOLDER [--threads 1] [--tlc PATH] [--top 8] NAME...

The networks of export.py. Both are asked for the times of their own steps (`tlc profile`; ONNX Runtime's profiling, the least of its calls for each
node), which makes either a little slower. Steps are not the same: tlc's hold what is fused behind a product, ONNX Runtime's are nodes after its
optimizations. Steps of one kind are added up (`matmul`, `einsum` and so on as tlc names what a step begins with, operators of ONNX Runtime), then
the longest are listed. Prints Markdown.
"""

import argparse
import collections
import json
import pathlib
import subprocess
import tempfile

import numpy as np


def tlc_steps(tlc, model, inputs, threads):
    """Label and microseconds of each step, those of loops included, and microseconds in all."""
    given = [word for name in np.load(inputs).files for word in ("-i", f"{name}={inputs}:{name}")]
    command = [tlc, "profile", str(model), *given, "--threads", str(threads), "--format", "json"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return [(step["label"], step["ns"] / 1e3) for step in found["steps"]], found["total_ns"] / 1e3


def runtime_steps(model, inputs, threads):
    """As `tlc_steps`."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level, options.enable_profiling = threads, 4, True
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(pathlib.Path(folder) / "profile")
        session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        feeds = dict(np.load(inputs))
        for _ in range(20):
            session.run(None, feeds)
        events = json.loads(pathlib.Path(session.end_profiling()).read_text())
    nodes, calls = {}, []
    for event in events:
        if event["cat"] == "Node" and event["name"].endswith("_kernel_time"):
            name = event["name"].removesuffix("_kernel_time")
            kind = event["args"]["op_name"]
            least = min(event["dur"], nodes.get(name, (kind, event["dur"]))[1])
            nodes[name] = (kind, least)
        if event["name"] == "model_run":
            calls.append(event["dur"])
    plain = lambda name: name.removesuffix("_nchwc").removesuffix("_output_0")
    return [(f"{kind} {plain(name)}", us) for name, (kind, us) in nodes.items()], min(calls)


def kinds(steps):
    """Microseconds by the first word of a step."""
    found = collections.Counter()
    for label, us in steps:
        found[label.replace("+", " ").split()[0] if label else "copies"] += us
    return found.most_common()


def pair(ours, theirs, top):
    """Rows of both, side by side."""
    # Names end in what tells them apart.
    short = lambda label: label if len(label) <= 56 else f"{label.split()[0]} ...{label[-40:]}"
    cell = lambda row: f"{short(row[0])} | {row[1]:.0f} us" if row else " | "
    for k in range(min(top, max(len(ours), len(theirs)))):
        print(f"| {cell(ours[k] if k < len(ours) else None)} | {cell(theirs[k] if k < len(theirs) else None)} |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--top", type=int, default=8)
    parser.add_argument("--tlc", default="target/release/tlc")
    options = parser.parse_args()
    for name in options.names:
        model = options.folder / f"{name}.onnx"
        inputs = options.folder / f"{name.removesuffix('_sym').removesuffix('_qdq')}.npz"
        ours, all_ours = tlc_steps(options.tlc, model, inputs, options.threads)
        theirs, all_theirs = runtime_steps(model, inputs, options.threads)
        print(f"\n{name}, {options.threads} thread(s): tlc {all_ours / 1e3:.2f} ms, ONNX Runtime {all_theirs / 1e3:.2f} ms\n")
        print("| tlc | time | ONNX Runtime | time |\n|---|---|---|---|")
        pair(kinds(ours), kinds(theirs), options.top)
        print("| | | | |")
        by_time = lambda steps: sorted(steps, key=lambda step: -step[1])
        pair(by_time(ours), by_time(theirs), options.top)


if __name__ == "__main__":
    main()
