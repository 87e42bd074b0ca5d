"""The networks of export.py in tlc and ONNX Runtime, in turns, each in a process of its own.

python3 benches/networks/run.py FOLDER [--threads 1,2] [--rounds 5] [--tlc PATH] [--before PATH] [NAME...]

First tlc's outputs are compared with ONNX Runtime's; a network that differs by more than a thousandth of an output's largest value has no
time. Networks with symbolic sizes (NAME_sym) are compiled for any sizes and called with these: their time is that of the version that tlc makes for
sizes that recur, once it has made it, and the last column is the code for any sizes, and that in parts of the version's. A quantized one (NAME_qdq) may differ by three hundredths, a few steps of its bytes: a sum near the middle between two bytes is rounded to either. A time is the least of the medians of the rounds. `--before` is another tlc that takes turns as well. Prints a table, and the geometric
means of the ratios.
"""

import argparse
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np

SECONDS = 0.5

# Of an output's largest value: how far outputs of floats may differ, and of bytes.
FLOATS, BYTES = 1e-3, 3e-2


def runtime_session(model, threads):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def be_runtime(model, inputs, threads):
    """The median of calls, in milliseconds."""
    session, feeds = runtime_session(model, int(threads)), dict(np.load(inputs))
    for _ in range(3):
        session.run(None, feeds)
    times, end = [], time.time() + SECONDS
    while time.time() < end or len(times) < 3:
        begin = time.perf_counter()
        session.run(None, feeds)
        times.append(time.perf_counter() - begin)
    print(sorted(times)[len(times) // 2] * 1e3)


def tlc_ms(tlc, model, inputs, threads, *more):
    given = [word for name in np.load(inputs).files for word in ("-i", f"{name}={inputs}:{name}")]
    command = [tlc, "bench", str(model), "--time", str(SECONDS), "--threads", str(threads), "--format", "json"]
    return json.loads(subprocess.run([*command, *given, *more], capture_output=True, text=True).stdout)["median_ns"] / 1e6


def differs(tlc, model, inputs):
    """What tlc computes differently, or `None`."""
    arrays, session = dict(np.load(inputs)), runtime_session(model, 1)
    with tempfile.TemporaryDirectory() as folder:
        given = [word for name in arrays for word in ("-i", f"{name}={inputs}:{name}")]
        done = subprocess.run([tlc, "run", str(model), *given, "-o", folder], capture_output=True, text=True)
        if done.returncode:
            return done.stderr.strip().splitlines()[-1]
        for output, expected in zip(session.get_outputs(), session.run(None, arrays)):
            found = np.load(pathlib.Path(folder) / f"{output.name}.npy")
            if found.shape != expected.shape:
                return f"{output.name}: {found.shape} for {expected.shape}"
            off = np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-30)
            if not off < (BYTES if model.stem.endswith("_qdq") else FLOATS):
                return f"{output.name}: off by {off:.1e}"
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tlc", default="target/release/tlc")
    parser.add_argument("--before")
    options = parser.parse_intermixed_args()
    programs = {"tlc": options.tlc, **({"before": options.before} if options.before else {})}
    print("| network | threads | tlc | " + ("before | " if options.before else "") + "ONNX Runtime | tlc / ONNX Runtime | tlc, code for any sizes |")
    print("|---" * (len(programs) + 5) + "|")
    for threads in map(int, options.threads.split(",")):
        ratios = []
        for model in sorted(options.folder.glob("*.onnx")):
            name = model.stem.removesuffix("_sym").removesuffix("_qdq")
            if options.names and name not in options.names:
                continue
            inputs, symbolic = options.folder / f"{name}.npz", model.stem.endswith("_sym")
            if wrong := differs(options.tlc, model, inputs):
                print(f"| {model.stem} | {threads} | {wrong} |", flush=True)
                continue
            times = {}
            for _ in range(options.rounds):
                for program, path in programs.items():
                    times.setdefault(program, []).append(tlc_ms(path, model, inputs, threads))
                if symbolic:
                    times.setdefault("any sizes", []).append(tlc_ms(options.tlc, model, inputs, threads, "--any-sizes"))
                run = [sys.executable, __file__, "--be-runtime", str(model), str(inputs), str(threads)]
                done = subprocess.run(run, capture_output=True, text=True, check=True)
                times.setdefault("runtime", []).append(float(done.stdout))
            least = {program: min(all_rounds) for program, all_rounds in times.items()}
            any_sizes = least.pop("any sizes", None)
            ratios.append(least["tlc"] / least["runtime"])
            cells = " | ".join(f"{ms:.3g} ms" for ms in least.values())
            print(f"| {model.stem} | {threads} | {cells} | {ratios[-1]:.2f} |", end="", flush=True)
            print(f" {any_sizes:.3g} ms, {any_sizes / least['tlc']:.2f} |" if any_sizes else " |", flush=True)
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            print(f"\n{threads} thread(s): geometric mean {mean:.2f}, worst {max(ratios):.2f}, of {len(ratios)}\n", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--be-runtime"]:
        be_runtime(*sys.argv[2:])
    else:
        main()
