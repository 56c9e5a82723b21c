"""locality: what moves from node to node where ranks get what their nodes own, by the functions that servers use."""

from __future__ import annotations

import re
import subprocess

from harness import GO_SIZES, Context, Figure, Result, emit

LINE = re.compile(r"Benchmark(Locality|Position)/(\S+?)(?:-\d+)?\s+\d+\s+([\d.]+) ns/op(.*)")
METRIC = re.compile(r"(-?[\d.e+-]+) (moved2?|error)\b")


def run(context: Context) -> Result:
    """Share steps out over 2 to 256 nodes, and compare with the formula and with contiguous shares."""
    out = subprocess.run(
        [  # noqa: S607
            "go",
            "test",
            "-run",
            "^$",
            "-bench",
            "^(BenchmarkPosition|BenchmarkLocality)$",
            "-benchtime",
            "1000000x",
            *GO_SIZES,
            "./fetch/plan",
        ],
        cwd=context.root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    plan, locality = 0.0, 0.0
    errors: list[float] = []
    seconds: list[float] = []
    contiguous: list[float] = []
    for name, size, ns, rest in LINE.findall(out):
        if name == "Position":
            plan = max(plan, float(ns))
            continue
        metrics = {key: float(value) for value, key in METRIC.findall(rest)}
        nodes = int(size)
        locality = max(locality, float(ns))
        errors.append(abs(metrics["error"]))
        seconds.append(metrics["moved2"] / metrics["moved"])
        contiguous.append(metrics["moved"] / (1 - 1 / nodes))  # without locality each node owns 1/N of what it uses
        emit(case="locality", nodes=nodes, ns_per_index=float(ns), of_contiguous=contiguous[-1], **metrics)
    if not (plan and errors):
        raise RuntimeError(f"benchmarks are missing from the output:\n{out}")
    return Result(
        "locality",
        [
            Figure("formula_error", max(errors)),
            Figure("second_owners", max(seconds)),
            Figure("ns_ratio", locality / plan),
        ],
        {"ns_per_index": locality, "ns_plan": plan, "of_contiguous": max(contiguous)},
    )
