"""real_cluster_settings: what the simulator's answers are judged by: bytes by link and times of real nodes.

Each setting is a line of JSON, with what it is in `setting` and its epochs in `measured`; all of them are in
build/real_cluster_settings.jsonl afterwards.
"""

from __future__ import annotations

import json

from cassandra_node import Cassandra
from harness import CASSANDRA, Context, Figure, Result, emit, needs
from nodes import Wire, stored
from sizes import sized

from .real_cluster import HEAP, SAMPLES, SIZE, Setting, run_setting

ALL, HALF = 1.3 * SAMPLES, 0.5 * SAMPLES  # that the caches hold together
SLOW = Wire(latency_ms=20, bytes_per_s=12_000_000)
NARROW = Wire(latency_ms=1, bytes_per_s=20_000_000)  # a network that is narrower than what is asked of it

SETTINGS = {
    "alone-all": Setting(1, ALL),
    "alone-half": Setting(1, HALF),
    "alone-half-slow": Setting(1, HALF, store=SLOW),
    "two-all": Setting(2, ALL / 2),
    "two-half": Setting(2, HALF / 2),
    "two-half-local": Setting(2, HALF / 2, assign="local"),
    "two-all-narrow": Setting(2, ALL / 2, net=NARROW),
    "four-all": Setting(4, ALL / 4),
    "four-all-local": Setting(4, ALL / 4, assign="local"),
    "four-all-slow": Setting(4, ALL / 4, store=SLOW),
    "four-half": Setting(4, HALF / 4),
    "four-half-local": Setting(4, HALF / 4, assign="local"),
    "four-half-slow": Setting(4, HALF / 4, store=SLOW),
    "four-all-narrow-local": Setting(4, ALL / 4, net=NARROW, assign="local"),
    "four-all-trained": Setting(4, ALL / 4, compute_s=0.02),
    "four-none": Setting(4, 140),
}


@needs(CASSANDRA)
def run(context: Context) -> Result:
    """Run each of them once."""
    kept = context.root / "build" / sized("real_cluster_settings.jsonl", smoke="real_cluster_settings-smoke.jsonl")
    done = 0
    with Cassandra(context.folder / "cassandra-real", **HEAP) as cassandra:
        uri = f"cql://127.0.0.1:{cassandra.port}/settings?rf=1"
        with stored(context.binary, uri, SAMPLES, SIZE), kept.open("w") as out:
            for name, setting in list(SETTINGS.items())[: sized(len(SETTINGS), smoke=2)]:
                measured = run_setting(context.binary, uri, context.folder / f"setting-{name}", setting)
                line = {
                    "case": "real_cluster_settings",
                    "name": name,
                    "setting": setting.described(),
                    "measured": measured,
                }
                emit(**line)
                print(json.dumps(line), file=out, flush=True)
                done += 1
    return Result("real_cluster_settings", [Figure("settings", done)], {"file": str(kept)})
