"""churn: real nodes that are killed, stopped, cut off, and that leave and join; and a view under load.

NODE_SEEDS (20, or 0) and NODE_SEEDS_FROM (1) say which seeds; LOAD_MINUTES (10) for how long the view is watched while
eight times as many processes compute as there are processors, 0 for not at all.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import asdict

from cassandra_node import Cassandra
from churn import churn
from harness import CASSANDRA, Context, Figure, Result, emit, median, needs
from nodes import Nodes, Wire, spill_bytes, stored
from sizes import sized

SAMPLES, SIZE, NODES = sized((1_200, 24_000, 4), smoke=(300, 8_000, 3))
STORE, NET = Wire(latency_ms=3, bytes_per_s=24_000_000), Wire(latency_ms=0.2)
EVENTS, LONGEST = sized((4, 8.0), smoke=(1, 2.0))
LOAD = 8  # processes that compute, for each processor that this one may use
CHANGED = "the nodes of the cluster are others now"
HEAP = {"HEAP": "512m", "MEMTABLE": "64MiB"}


@needs(CASSANDRA)
def run(context: Context) -> Result:
    """Each seed has a cluster of its own."""
    first, seeds = (
        int(os.environ.get("NODE_SEEDS_FROM", "1")),
        int(os.environ.get("NODE_SEEDS", sized("20", smoke="1"))),
    )
    minutes = float(os.environ.get("LOAD_MINUTES", sized("10", smoke="0.05")))
    found = []
    spills = [spill_bytes(SAMPLES / 2, SIZE)] * NODES
    with Cassandra(context.folder / "cassandra-churn", **HEAP) as cassandra:
        uri = f"cql://127.0.0.1:{cassandra.port}/churn?rf=1"
        with stored(context.binary, uri, SAMPLES, SIZE):
            for seed in range(first, first + seeds):
                folder = context.folder / f"churn-{seed}"
                with Nodes(context.binary, uri, folder, spills, far=STORE, net=NET) as nodes:
                    outcome = churn(nodes, seed, SAMPLES, EVENTS, LONGEST, stay_away=True)
                found.append(outcome)
                emit(case="churn", **asdict(outcome))
            changes = 0
            if minutes:
                with Nodes(context.binary, uri, context.folder / "churn-load", spills, far=STORE, net=NET) as nodes:
                    changes = false_changes(nodes, 60 * minutes)
    others = [share for o in found for share in o.others] or [1.0]  # events may be too short for one
    return Result(
        "churn",
        [
            Figure("lost", sum(o.lost for o in found)),
            Figure("doubled", sum(o.doubled for o in found)),
            Figure("wrong", sum(o.wrong for o in found)),
            Figure("others", median(others)),
            Figure("whole_s", max((s for o in found for s in o.whole_s), default=0)),
            Figure("false_changes", changes),
        ],
        {"seeds": seeds, "epochs": sum(o.epochs for o in found), "others_least": min(others), "minutes": minutes},
    )


def false_changes(nodes: Nodes, seconds: float) -> int:
    """How often a node takes the view for another one while the processors have far too much to do."""

    def changes() -> int:
        return sum(m.log.read_text(errors="replace").count(CHANGED) for m in nodes.members)

    before, end = changes(), time.monotonic() + seconds
    spin = "while True: pass"
    load = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(LOAD * len(os.sched_getaffinity(0)))]
    try:
        while time.monotonic() < end:
            time.sleep(min(10, max(end - time.monotonic(), 0)))
            emit(case="churn", false_changes=changes() - before, left_s=round(end - time.monotonic()))
    finally:
        for p in load:
            p.kill()
            p.wait()
    return changes() - before
