"""mixture: which source a row of a mixture is of, index by index, and jobs whose weights and ranks change."""

from __future__ import annotations

from harness import Context, Figure, Result, go_benchmark, median


def run(context: Context) -> Result:
    """Measure an index, then walk through 1,000 random histories of jobs with five sources of 10^3 to 10^9 rows."""
    index = go_benchmark(context, "mixture", "./fetch/plan", "BenchmarkMixture")
    back = go_benchmark(context, "mixture", "./fetch/plan", "BenchmarkMixtureNext")
    found = go_benchmark(context, "mixture", "./fetch/plan", "BenchmarkMixtureHistories", "-benchtime", "1x")
    return Result(
        "mixture",
        [
            Figure("lost", found["lost"]),
            Figure("doubled", found["doubled"]),
            Figure("prefix_error", found["prefix_error"]),
            Figure("prefix_error_changed", found["prefix_error_changed"]),
            Figure("batches_off", found["batches_off"]),
            Figure("ticket_bytes", found["ticket_bytes"]),
            Figure("ticket_64_bytes", found["ticket_64_bytes"]),
            Figure("ns_per_index", index["ns/op"]),
            Figure("allocs", max(index["allocs/op"], back["allocs/op"], key=median)),
        ],
        {"ns_next": median(back["ns/op"])},
    )
