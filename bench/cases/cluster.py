"""cluster: nodes that read from each other's caches, beside a lone one, and beside Belady's rule."""

from __future__ import annotations

from harness import Context, Figure, Result, go_benchmark, median

PACKAGE = "./cmd/bowstring/cluster"


def run(context: Context) -> Result:
    """Whole engines with spills and servers of their own, in one process, over a store of limited rate."""
    flags = ("-benchtime=1x", f"-count={context.rounds}")
    whole = go_benchmark(context, "cluster", PACKAGE, "BenchmarkCluster", *flags)
    half = go_benchmark(context, "cluster", PACKAGE, "BenchmarkClusterHalf", *flags)
    return Result(
        "cluster",
        [
            Figure("store_reads", whole["store_reads"]),
            Figure("store_share", whole["store_share"]),
            Figure("speedup", whole["speedup"]),
            Figure("belady_ratio", half["belady_ratio"]),
        ],
        details={"held": median(half["held"])},
    )
