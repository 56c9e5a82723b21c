"""manifest: snapshots of 10^8 and 10^9 rows over 20 ms: opened, shuffled, filtered, and the memory that takes."""

from __future__ import annotations

from harness import Context, Figure, Result, go_benchmark, median


def run(context: Context) -> Result:
    """The rows are made up by the process that is measured: no disk holds this number."""
    found = go_benchmark(
        context, "manifest", "./fetch", "BenchmarkManifest", "-benchtime=1x", f"-count={context.rounds}"
    )
    return Result(
        "manifest",
        [
            Figure("open_s", found["open_s_1e+08"]),
            Figure("first_batch_ms", found["first_batch_ms_1e+08"]),
            Figure("rss_mb", found["rss_mb_1e+08"]),
            Figure("where_s", found["where_s_1e+08"]),
            Figure("open_s_1e9", found["open_s_1e+09"]),
            Figure("rss_mb_1e9", found["rss_mb_1e+09"]),
        ],
        details={
            "where_sparse_s": median(found["where_sparse_s_1e+08"]),
            "rows_per_s": median(found["rows_per_s_1e+08"]),
        },
    )
