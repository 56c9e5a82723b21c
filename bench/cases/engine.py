"""engine: what a link of 150 ms and the engine itself cost, with a simulated store that is never the limit."""

from __future__ import annotations

import contextlib
import os

from harness import Context, Figure, Result, emit, go_benchmark, median, shuffled, throughput
from server import Server
from sizes import sized

from .loopback import stored

SECONDS, SKIP = sized((15.0, 5.0), smoke=(1.5, 0.5))


def run(context: Context) -> Result:
    """Interleave the store at no distance and the same far away, then run the benchmark."""
    rates: dict[str, list[float]] = {"0ms": [], "150ms": []}
    ratios: list[float] = []
    with contextlib.ExitStack() as stack:
        urls = {
            name: stack.enter_context(Server(context.binary, stored(context, f"store-{name}"), rtt=name)).url
            for name in rates
        }
        for round_ in context.repeat(ratios, warm=1):
            for name, url in urls.items():
                (rate,) = throughput(url, SECONDS, SKIP, shuffled(seed=7, epoch=1000 * (round_ + 1)))
                if round_ >= 0:
                    rates[name].append(rate)
                    emit(case="engine", link=name, mb_per_s=rate)
            if round_ >= 0:
                ratios.append(rates["150ms"][-1] / rates["0ms"][-1])
    metrics = go_benchmark(context, "engine", "./fetch", "BenchmarkEngine", "-count", str(context.rounds))
    figures = []
    if os.environ.get("SIZE") == "4k":  # small samples: their bytes cost almost nothing
        small = go_benchmark(context, "engine", "./fetch", "BenchmarkEngine4k", "-count", str(context.rounds))
        figures.append(Figure("us_per_sample_4k", small["us/sample"]))
    return Result(
        "engine",
        [
            Figure("ratio_150ms", ratios),
            Figure("us_per_sample", metrics["us/sample"]),
            Figure("allocs_per_sample", metrics["allocs/sample"]),
            *figures,
        ],
        {f"mb_per_s_{name}": round(median(r), 1) for name, r in rates.items()},
    )
