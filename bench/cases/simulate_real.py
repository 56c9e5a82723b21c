"""simulate_real: settings of real nodes measured, simulated by calibrated rates, and compared: bytes by link, and time.

    bench/run.py simulate_real                              all settings: some eight minutes
    SETTINGS=two-all,four-half bench/run.py simulate_real   some of them

Each way to the store is calibrated once, by `bowstring calibrate` of a lone node that is behind it, and the client
once, by what a rank takes of a processor for a sample. No setting is measured for that, and nothing is fitted to one.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
from pathlib import Path
from typing import Any

from cassandra_node import Cassandra
from harness import CASSANDRA, Context, Figure, Result, emit, needs
from job import Ranks, job
from nodes import DATASET, Nodes, Wire, spill_bytes, stored
from sizes import sized

from .real_cluster import BATCH, HEAP, SAMPLES, SEED, SIZE, Setting, run_setting
from .real_cluster_settings import ALL, SETTINGS
from .simulate import Json, simulated

MEASURED = sized(len(SETTINGS), smoke=2)  # settings
CALIBRATE_S = sized(4, smoke=1)
WINDOW = 128 << 20  # of a node: as bench/nodes.py starts them
CORES = os.cpu_count() or 1  # which nodes, clients, links and the store share


def calibrated(context: Context, uri: str, folder: Path, wire: Wire) -> Json:
    """The rates of a node whose store is at the end of a wire."""
    with Nodes(context.binary, uri, folder, [spill_bytes(ALL, SIZE)], far=wire) as nodes:
        url = nodes.members[0].url
        text = context.bowstring("calibrate", url, f"--dataset={DATASET}", f"--seconds={CALIBRATE_S}", "--json")
    found: Json = json.loads(text)
    return {name: found[name] for name in ("store", "spill", "node")}


def client_seconds(context: Context, uri: str, folder: Path) -> float:
    """CPU time of a client for a sample, of a lone rank that reads what its node holds."""
    with (
        Nodes(context.binary, uri, folder, [spill_bytes(ALL, SIZE)]) as nodes,
        Ranks(nodes, job(SEED, BATCH, 1), 1, epochs=2, barrier=True) as ranks,
    ):
        for _ in range(2):
            ranks.go()
            (found,) = ranks.epoch()
    return float(found["cpu"]) / float(found["rows"])


def file_of(setting: Setting, rates: Json, client_s: float, pause_s: float) -> Json:
    """A setting as the simulator takes it.

    Nodes and clients share the processors by what each sample takes of both, so that neither waits for the other one:
    together they are as fast as the machine.
    """
    node = rates["node"]
    server_s = node.get("us_per_sample", 0) / 1e6 + node.get("s_per_gb", 0) / 1e9 * setting.sample_bytes
    part = server_s / (server_s + client_s)  # of the processors, the nodes'
    crowd = max(1.0, setting.ranks / CORES / (1 - part))  # by how much clients that compute at once are slower
    rows = setting.batch / setting.ranks
    net = {"latency_ms": setting.net.latency_ms, "bytes_per_s": setting.net.bytes_per_s}
    return {
        "seed": 1,
        "nodes": {
            "count": setting.nodes,
            "ranks": max(1, setting.ranks // setting.nodes),
            "window_bytes": WINDOW,
        },
        # A node's links to other nodes are separate from its link to the store.
        "store": rates["store"],
        "network": net,
        "spill": rates["spill"] | {"bytes": spill_bytes(setting.cache_samples, setting.sample_bytes)},
        "node": node | {"cores": CORES * part / setting.nodes},
        "datasets": [{"name": "d", "samples": setting.samples, "bytes": setting.sample_bytes}],
        "jobs": [
            {
                "dataset": "d",
                "batch": setting.batch,
                "seed": setting.seed,
                "epochs": setting.epochs,
                "assign": setting.assign,
                "ranks": setting.ranks,
                "step_ms": 1e3 * (setting.compute_s + client_s * rows * crowd),
                "apart": True,
                "pause_s": pause_s,
            }
        ],
    }


def pause_of(measured: list[Json]) -> float:
    """How long nothing is read between two epochs, while what was read is counted: caches are filled meanwhile."""
    pauses = [b["begin"] - a["end"] for a, b in itertools.pairwise(measured)]
    return statistics.mean(pauses) if pauses else 0.0


def epochs_of(report: Json) -> list[Json]:
    """The compared figures of each epoch of a simulation."""
    return [
        {
            "read_bytes": e["traffic"]["store_bytes"],
            "peer_bytes": e["traffic"]["peer_bytes"],
            "seconds": e["seconds"],
        }
        for e in report["jobs"][0]["epochs"]
    ]


def errors(real: list[Json], report: Json, setting: Setting) -> tuple[float, float]:
    """How far bytes are apart, as a part of what was served, and seconds, as a part of those measured.

    Bytes are those of the pauses, too: both sides bring what comes next meanwhile.
    """
    served = setting.epochs * setting.samples * setting.sample_bytes
    traffic = report["traffic"]
    counted = {"read_bytes": traffic["store_bytes"], "peer_bytes": traffic["peer_bytes"]}
    by_bytes = max(abs(counted[k] - sum(e[k] for e in real)) / served for k in counted)
    seconds = sum(e["seconds"] for e in real)
    return by_bytes, abs(sum(e["seconds"] for e in epochs_of(report)) - seconds) / seconds


@needs(CASSANDRA)
def run(context: Context) -> Result:
    """Calibrate, measure, simulate and compare."""
    chosen = [name for name in os.environ.get("SETTINGS", "").split(",") if name] or list(SETTINGS)[:MEASURED]
    if unknown := [name for name in chosen if name not in SETTINGS]:
        raise ValueError(f"SETTINGS: got {', '.join(unknown)}, want some of {', '.join(SETTINGS)}")
    by_bytes: dict[str, float] = {}
    by_time: dict[str, float] = {}
    with Cassandra(context.folder / "cassandra-real", **HEAP) as cassandra:
        uri = f"cql://127.0.0.1:{cassandra.port}/simulated?rf=1"
        with stored(context.binary, uri, SAMPLES, SIZE):
            client_s = client_seconds(context, uri, context.folder / "client")
            rates: dict[Wire, Json] = {}
            for wire in {SETTINGS[name].store: None for name in chosen}:
                rates[wire] = calibrated(context, uri, context.folder / f"calibrate-{len(rates)}", wire)
                emit(case="simulate_real", wire=vars(wire), client_us=1e6 * client_s, rates=rates[wire])
            for name in chosen:
                setting = SETTINGS[name]
                measured: list[dict[str, Any]] = run_setting(
                    context.binary, uri, context.folder / f"real-{name}", setting
                )
                report, _ = simulated(
                    context, name, file_of(setting, rates[setting.store], client_s, pause_of(measured))
                )
                found = epochs_of(report)
                by_bytes[name], by_time[name] = errors(measured, report, setting)
                real = [{k: e[k] for k in ("read_bytes", "peer_bytes", "seconds")} for e in measured]
                about = {"bytes_error": by_bytes[name], "time_error": by_time[name], "real": real, "simulated": found}
                emit(case="simulate_real", setting=name, **about)
    return Result(
        "simulate_real",
        [
            Figure("bytes_error", max(by_bytes.values())),
            Figure("time_error_median", statistics.median(by_time.values())),
            Figure("time_error_max", max(by_time.values())),
            Figure("settings", len(chosen)),
        ],
        {"bytes_error_median": statistics.median(by_bytes.values())},
    )
