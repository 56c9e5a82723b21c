"""simulate: clusters in virtual time: how long that takes, Yang and Cong's speedup, and settings that were measured.

Yang and Cong ("Accelerating Data Loading in Deep Neural Network Training", HiPC 2019) load D bytes in D/R from
a store of R bytes a second. With caches of a share a, and locality, that is (1 - a)·D/R + a·D·b/Rb, where b of the
bytes move between nodes and Rb is what all links carry together.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness import Context, Figure, Result, emit

Json = dict[str, Any]
SETTINGS = "build/real_cluster_settings.jsonl"  # what real_cluster_settings.py has measured
NODES, LEARNERS, SAMPLES, BYTES = 256, 1024, 1_281_167, 110_000
STORE = 5e9  # bytes a second: what a parallel file system gives all learners together
LINK = 12.5e9  # of a node: InfiniBand EDR


def simulated(
    context: Context, name: str, file: Mapping[str, Any], rates: Mapping[str, Any] | None = None
) -> tuple[Json, float]:
    """Run a file; the report, and the seconds that it took."""
    path = context.folder / f"{name}.json"
    path.write_text(json.dumps(file))
    args: list[str | Path] = ["simulate", "--json", path]
    if rates is not None:
        given = context.folder / f"{name}-rates.json"
        given.write_text(json.dumps(rates))
        args += ["--rates", given]
    began = time.monotonic()
    report: Json = json.loads(context.bowstring(*args))
    return report, time.monotonic() - began


def imagenet(nodes: int, epochs: int, sample: int = 1, cache: int | None = None) -> Json:
    """One job over ImageNet on so many nodes of four learners, by Yang and Cong's parameters."""
    share = NODES // nodes
    return {
        "seed": 1,
        "sample": sample,
        "nodes": {"count": nodes, "ranks": LEARNERS // NODES},
        "store": {"latency_ms": 5, "bytes_per_s": STORE / share},
        "spill": {"bytes": cache or 2_000_000_000},
        "network": {"latency_ms": 0.02, "bytes_per_s": LINK},
        "datasets": [{"name": "imagenet", "samples": SAMPLES // share // sample * sample, "bytes": BYTES}],
        "jobs": [{"dataset": "imagenet", "batch": 128 * nodes, "epochs": epochs, "assign": "local"}],
    }


def model_speedup(nodes: int, batch: int, share: float = 1) -> float:
    """How many times faster loading is by Yang and Cong's formulas, where caches hold a share of the data."""
    data = SAMPLES * BYTES
    moved = 0.40 * math.sqrt((1 - 1 / nodes) / (batch / nodes))
    return (data / STORE) / ((1 - share) * data / STORE + share * data * moved / (LINK * nodes))


def file_of(setting: Mapping[str, Any]) -> Json:
    """The file of one measured setting, with the keys that real_cluster.Setting.described gives it."""
    nodes, ranks = int(setting["nodes"]), int(setting["ranks"])
    compute = 1e3 * float(setting["compute_s"])
    return {
        "seed": 1,
        "nodes": {"count": nodes, "ranks": max(1, ranks // nodes)},
        "store": setting["store"],
        "network": setting["network"],
        "spill": {"bytes": int(setting["cache_bytes_per_node"])},
        "datasets": [{"name": "d", "samples": int(setting["samples"]), "bytes": int(setting["sample_bytes"])}],
        "jobs": [
            {
                "dataset": "d",
                "batch": int(setting["batch"]),
                "seed": int(setting["seed"]),
                "epochs": int(setting["epochs"]),
                "assign": setting["assign"],
                "ranks": ranks,
                "step_ms": compute,
                "apart": True,
            }
        ],
    }


def read_back(report: Json) -> Json:
    """What is compared of a report: bytes by link, and seconds by epoch."""
    return {
        "read_bytes": report["traffic"]["store_bytes"] + report["traffic"]["manifest_bytes"],
        "peer_bytes": report["traffic"]["peer_bytes"],
        "epoch_s": [e["seconds"] for e in report["jobs"][0]["epochs"]],
    }


def compare(context: Context, path: Path) -> list[Figure]:
    """Simulate each measured setting, with build/rates.json if there is one."""
    by_bytes: list[float] = []
    by_time: list[float] = []
    rates = context.root / "build" / "rates.json"
    measured_rates = json.loads(rates.read_text()) if rates.exists() else None
    for line in path.read_text().splitlines():
        real = json.loads(line)
        report, _ = simulated(context, real["name"], file_of(real["setting"]), measured_rates)
        found = read_back(report)
        served = report["traffic"]["served_bytes"]
        # Errors of bytes are of what was served: a link that carries next to nothing has no share that would say much.
        sums = {k: sum(e[k] for e in real["measured"]) for k in ("read_bytes", "peer_bytes", "seconds")}
        bytes_error = max(abs(found[k] - sums[k]) / served for k in ("read_bytes", "peer_bytes"))
        time_error = abs(sum(found["epoch_s"]) - sums["seconds"]) / sums["seconds"]
        by_bytes.append(bytes_error)
        by_time.append(time_error)
        emit(case="simulate", setting=real["name"], bytes_error=bytes_error, time_error=time_error, **found)
    return [
        Figure("bytes_error", max(by_bytes), at_most=0.02),
        Figure("time_error_median", statistics.median(by_time), at_most=0.10),
        Figure("time_error_max", max(by_time), at_most=0.20),
    ]


def run(context: Context) -> Result:
    """An epoch of ImageNet on 256 nodes; loading from caches against the store; settings that were measured."""
    report, took = simulated(context, "imagenet-256", imagenet(NODES, 1))
    first = report["jobs"][0]["epochs"][0]["seconds"]
    emit(case="simulate", nodes=NODES, seconds=took, virtual_s=report["seconds"], store_epoch_s=first)
    # Of two epochs, by a quarter of everything: the second one comes from caches.
    quarter, _ = simulated(context, "imagenet-quarter", imagenet(NODES, 2, sample=4))
    cold, warm = quarter["jobs"][0]["epochs"]
    speedup = cold["seconds"] / warm["seconds"]
    model = model_speedup(NODES, 128 * NODES)
    emit(case="simulate", nodes=NODES, cold_s=cold["seconds"], warm_s=warm["seconds"], speedup=speedup, model=model)
    figures = [Figure("seconds", took, at_most=180), Figure("speedup_256", speedup, at_least=30)]
    measured = context.root / SETTINGS
    if measured.exists():
        figures += compare(context, measured)
    return Result("simulate", figures, {"model_256": model, "compared": measured.exists()})
