"""replicas: three mock nodes over 20 ms, one of which answers in 400 ms, beside the two others alone."""

from __future__ import annotations

from harness import Context, Figure, Result, go_benchmark, median


def run(context: Context) -> Result:
    """Run the benchmark, which alternates between the two clusters."""
    metrics = go_benchmark(
        context,
        "replicas",
        "./fetch/store/cql",
        "BenchmarkReplicas",
        *("-benchtime", "1x", "-count", str(context.rounds)),
    )
    return Result(
        "replicas",
        [Figure("share_of_healthy", metrics["share_of_healthy"])],
        {name: round(median(metrics[f"{name}_MB/s"]), 1) for name in ("healthy", "with_slow")},
    )
