#!/usr/bin/env python3
"""Times kernels as each level makes them, in turns: `TLC_CPU=sse` (the portable emitter, 128 bits), `avx2` and `avx512` (the wide one).

    cargo build --release --bin tlc
    python3 benches/levels/run.py [--tlc target/release/tlc] [--levels sse,avx2,avx512] [--threads 1] [--rounds 5] [NAME...]

Prints a table: for each graph the least of the medians of all rounds, by level, how many times faster each is than the first, and the
least time to compile. Only the ratios carry over to other machines.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

EACH = "65536"
ROWS, COLUMNS = 4096, 1024


def elementwise(op, count=EACH):
    return f"graph @g(%x: f32[{count}]) {{\n  %0 = {op} %x : f32[{count}]\n  return %0\n}}\n"


def rows(body, rows=ROWS, columns=COLUMNS):
    whole, kept, one = f"f32[{rows}, {columns}]", f"f32[{rows}, 1]", f"f32[{rows}]"
    lines = [f"graph @g(%x: {whole}) {{"]
    for line in body.strip().splitlines():
        lines.append("  " + line.strip().replace("WHOLE", whole).replace("KEPT", kept).replace("ONE", one))
    return "\n".join(lines) + "\n}\n"


SHIFTED = """
    %0 = reduce max %x {axes=[1]} : ONE
    %1 = reshape %0 : KEPT
    %2 = expand %1 : WHOLE
    %3 = sub %x, %2 : WHOLE
    %4 = exp %3 : WHOLE
    %5 = reduce add %4 {axes=[1]} : ONE
"""

SOFTMAX = SHIFTED + """
    %6 = const 1.0 : f32[]
    %7 = expand %6 : ONE
    %8 = div %7, %5 : ONE
    %9 = reshape %8 : KEPT
    %10 = expand %9 : WHOLE
    %11 = mul %4, %10 : WHOLE
    return %11
"""

LOG_SOFTMAX = SHIFTED + """
    %6 = log %5 : ONE
    %7 = reshape %6 : KEPT
    %8 = expand %7 : WHOLE
    %9 = sub %3, %8 : WHOLE
    return %9
"""


def reduced(what, axes, result):
    return f"graph @g(%x: f32[1024, 1024]) {{\n  %0 = reduce {what} %x {{axes={axes}}} : {result}\n  return %0\n}}\n"


def fma_relu(count=EACH):
    t = f"f32[{count}]"
    return (
        f"graph @g(%a: {t}, %b: {t}, %c: {t}) {{\n  %0 = mul %a, %b : {t}\n  %1 = add %0, %c : {t}\n"
        f"  %2 = const 0.0 : f32[]\n  %3 = expand %2 : {t}\n  %4 = max %1, %3 : {t}\n  return %4\n}}\n"
    )


def gelu(count=EACH):
    t = f"f32[{count}]"
    return (
        f"graph @g(%x: {t}) {{\n  %0 = const 0.70710678 : f32[]\n  %1 = expand %0 : {t}\n  %2 = mul %x, %1 : {t}\n"
        f"  %3 = erf %2 : {t}\n  %4 = const 1.0 : f32[]\n  %5 = expand %4 : {t}\n  %6 = add %3, %5 : {t}\n"
        f"  %7 = const 0.5 : f32[]\n  %8 = expand %7 : {t}\n  %9 = mul %x, %8 : {t}\n  %10 = mul %9, %6 : {t}\n  return %10\n}}\n"
    )


GRAPHS = {
    **{f"{op} 64k": elementwise(op) for op in ("exp", "tanh", "log", "erf", "sin")},
    "gelu 64k": gelu(),
    "exp 1M": elementwise("exp", "1048576"),
    "relu(a*b+c) 64k": fma_relu(),
    "softmax 4096x1024": rows(SOFTMAX),
    "log_softmax 4096x1024": rows(LOG_SOFTMAX),
    "log_softmax 4096x10": rows(LOG_SOFTMAX, columns=10),
    "softmax 4096x100": rows(SOFTMAX, columns=100),
    "sum 1024x1024": reduced("add", "[0, 1]", "f32[]"),
    "sum axis 0": reduced("add", "[0]", "f32[1024]"),
    "sum axis 1": reduced("add", "[1]", "f32[1024]"),
    "max axis 1": reduced("max", "[1]", "f32[1024]"),
    "argmax axis 1": reduced("argmax", "[1]", "i64[1024]"),
}


def seconds(tlc, level, path, threads, time):
    command = [tlc, "bench", path, "--time", str(time), "--threads", str(threads), "--format", "json"]
    ran = subprocess.run(command, env=dict(os.environ, TLC_CPU=level), capture_output=True, text=True)
    if ran.returncode:
        sys.exit(f"{' '.join(command)} with TLC_CPU={level}: {ran.stderr.strip()}")
    result = json.loads(ran.stdout)
    return result["median_ns"] * 1e-9, result["compile_ns"] * 1e-9, result["cpu"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tlc", default="target/release/tlc")
    parser.add_argument("--levels", default="sse,avx2,avx512", help="levels of this machine, the first is what others are compared with")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--time", type=float, default=0.2, help="seconds a measurement")
    parser.add_argument("names", nargs="*", help="graphs; default all")
    args = parser.parse_args()
    unknown = [n for n in args.names if n not in GRAPHS]
    if unknown:
        sys.exit(f"unknown graph {unknown[0]!r}; expected one of {', '.join(GRAPHS)}")
    levels = args.levels.split(",")
    first = levels[0]
    heads = [f"{level}, us" for level in levels]
    heads += [f"{first} / {level}" for level in levels[1:]]
    heads += [f"compile {level}, ms" for level in levels]
    print("| graph | " + " | ".join(heads) + " |")
    print("|---" * (len(heads) + 1) + "|")
    cpu = None
    with tempfile.TemporaryDirectory() as folder:
        for name in args.names or GRAPHS:
            path = os.path.join(folder, "graph.tlir")
            with open(path, "w") as f:
                f.write(GRAPHS[name])
            best = {level: (float("inf"), float("inf")) for level in levels}
            for _ in range(args.rounds):
                for level in levels:
                    run, compiled, cpu = seconds(args.tlc, level, path, args.threads, args.time)
                    best[level] = (min(best[level][0], run), min(best[level][1], compiled))
            row = [f"{best[level][0] * 1e6:.1f}" for level in levels]
            row += [f"{best[first][0] / best[level][0]:.2f}" for level in levels[1:]]
            row += [f"{best[level][1] * 1e3:.2f}" for level in levels]
            print(f"| {name} | " + " | ".join(row) + " |", flush=True)
    print(f"\n{cpu}, {args.threads} thread(s), least of {args.rounds} medians")


if __name__ == "__main__":
    main()
