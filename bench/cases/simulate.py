"""simulate: clusters in virtual time: how long ImageNet on 256 nodes takes, and the speedups of Yang and Cong.

Yang and Cong ("Accelerating Data Loading in Deep Neural Network Training", HiPC 2019) load D samples in D/R + D/pU
from a store of R samples a second, by p learners that load U each. With caches that hold all, and locality, that is
b·D/Rb + D/pU, where b of the samples move between nodes and Rb is what all links carry together. Which of these rates
are not in the paper, and what is taken for them, stands in docs/simulate.md.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Mapping
from typing import Any

from harness import GO_SIZES, Context, Figure, Result, emit
from sizes import sized

Json = dict[str, Any]
PUBLISHED, BYTES = 256, 110_000  # nodes of the published job
NODES, LEARNERS, SAMPLES = sized((PUBLISHED, 1024, 1_281_167), smoke=(4, 16, 2_000))
STORE = 5e9  # bytes a second: what a parallel file system gives all learners together
LINK = 12.5e9  # of a node: InfiniBand EDR


def simulated(context: Context, name: str, file: Mapping[str, Any]) -> tuple[Json, float]:
    """Run a file; the report, and the seconds that it took."""
    path = context.folder / f"{name}.json"
    path.write_text(json.dumps(file))
    began = time.monotonic()
    report: Json = json.loads(context.lab("simulate", "--json", path))
    return report, time.monotonic() - began


def imagenet() -> Json:
    """An epoch of ImageNet on 256 nodes of four learners."""
    return {
        "seed": 1,
        "nodes": {"count": NODES, "ranks": LEARNERS // NODES},
        "store": {"latency_ms": 5, "bytes_per_s": STORE},
        "spill": {"bytes": 2_000_000_000},
        "network": {"latency_ms": 0.02, "bytes_per_s": LINK},
        "datasets": [{"name": "imagenet", "samples": SAMPLES, "bytes": BYTES}],
        "jobs": [{"dataset": "imagenet", "batch": 128 * NODES, "assign": "local"}],
    }


def table(context: Context) -> list[dict[str, Any]]:
    """Yang and Cong's speedups: published, by their formulas, by the model of explain, and simulated."""
    done = subprocess.run(
        ["go", "test", "-run", "^$", "-bench", "^BenchmarkHiPC$", "-benchtime", "1x", *GO_SIZES, "./internal/simulate"],  # noqa: S607
        cwd=context.root,
        check=True,
        capture_output=True,
        text=True,
    )
    rows = []
    for name, rest in re.findall(r"BenchmarkHiPC/(\S+?-\d+)(?:-\d+)?\s+1\s+(.*)", done.stdout):
        row: dict[str, Any] = {unit: float(value) for value, unit in re.findall(r"([\d.e+-]+) ([a-z_]+)(?=\s|$)", rest)}
        row["name"] = name
        emit(case="simulate", **row)
        rows.append(row)
    if not rows:
        raise RuntimeError(f"the benchmark reports nothing:\n{done.stdout}")
    return rows


def run(context: Context) -> Result:
    """Simulate an epoch of ImageNet on 256 nodes, and the jobs of the published speedups."""
    report, took = simulated(context, "imagenet-256", imagenet())
    first = report["jobs"][0]["epochs"][0]["seconds"]
    emit(case="simulate", nodes=NODES, seconds=took, virtual_s=report["seconds"], store_epoch_s=first)
    rows = table(context)
    speedup = next(r["simulated"] for r in rows if r["name"] == f"ImageNet-{PUBLISHED}")
    return Result(
        "simulate",
        [
            Figure("seconds", took),
            Figure("speedup_256", speedup),
            Figure("table_error", max(abs(r["theirs"] / r["published"] - 1) for r in rows)),
        ],
        {"ours_error": max(abs(r["ours"] / r["published"] - 1) for r in rows)},
    )
