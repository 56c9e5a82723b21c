"""sampling: epochs drawn by weight from 10^8 rows, which are made up."""

from __future__ import annotations

from harness import Context, Figure, Result, go_benchmark, median


def run(context: Context) -> Result:
    """Run the package's benchmark once: it makes the table of weights, and draws from it by 200 seeds."""
    got = go_benchmark(context, "sampling", "./fetch/plan", "BenchmarkSampling", "-benchtime", "1x")
    return Result(
        "sampling",
        [
            Figure("open_s", got["open_s"]),
            Figure("rss_mb", got["rss_mb"]),
            # The least of 400 chi-squares of single seeds has a probability of about 1/400.
            Figure("chi2_p", got["chi2_p"]),
            Figure("chi2_least_p", got["chi2_least_p"]),
            Figure("ns_per_index", max(got["drawn_ns"], got["dealt_ns"], key=median)),
        ],
        {"drawn_ns": median(got["drawn_ns"]), "dealt_ns": median(got["dealt_ns"])},
    )
