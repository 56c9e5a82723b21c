"""collect: a collection of a Cassandra store 150 ms away that has 10,000 snapshots, a hundred of them dropped."""

from __future__ import annotations

import os

from harness import CASSANDRA, Context, Figure, Result, go_benchmark, median, needs
from sizes import sized


@needs(CASSANDRA)
def run(context: Context) -> Result:
    """Make the snapshots on a real node, and collect them once over the delaying link."""
    os.environ.setdefault("SNAPSHOTS", sized("10000", smoke="100"))
    metrics = go_benchmark(
        context, "collect", "./fetch/store/cql", "BenchmarkCollect", "-tags", "cassandra", "-benchtime", "1x"
    )
    return Result(
        "collect",
        [Figure("seconds", metrics["collect_s"])],
        {"live_blobs": median(metrics["live"]), "dead_blobs": median(metrics["dead"])},
    )
