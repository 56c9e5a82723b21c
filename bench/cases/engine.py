"""engine: what a link of 150 ms and the engine itself cost, with a simulated store that is never the limit."""

from __future__ import annotations

import contextlib
import re
import subprocess

from harness import Context, Figure, Result, emit, median, shuffled, throughput
from server import Server

from .loopback import stored

SECONDS, SKIP = 15, 5
BENCHMARK = "BenchmarkEngine"


def costs(context: Context) -> dict[str, float]:
    """The metrics of the engine's benchmark per sample: medians over its runs, of the worst of its cases."""
    done = subprocess.run(
        ["go", "test", "-run", "^$", "-bench", f"^{BENCHMARK}$", "-benchmem", "-count", str(context.rounds), "./fetch"],  # noqa: S607
        cwd=context.root,
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{BENCHMARK} failed:\n{done.stdout}{done.stderr}")
    found: dict[str, dict[str, list[float]]] = {}  # metric: case: values
    for line in done.stdout.splitlines():
        if line.startswith(BENCHMARK):
            name, _, *values = line.split()  # name, iterations, then value and unit by turns
            emit(case="engine", benchmark=name, metrics=" ".join(values))
            for value, unit in zip(values[::2], values[1::2], strict=True):
                found.setdefault(unit, {}).setdefault(re.sub(r"-\d+$", "", name), []).append(float(value))
    if not {"us/sample", "allocs/sample"} <= found.keys():
        raise RuntimeError(f"{BENCHMARK} does not report us/sample and allocs/sample:\n{done.stdout}")
    return {unit: max(median(v) for v in cases.values()) for unit, cases in found.items()}


def run(context: Context) -> Result:
    """Interleave the store at no distance and the same far away, then run the benchmark."""
    rates: dict[str, list[float]] = {"0ms": [], "150ms": []}
    with contextlib.ExitStack() as stack:
        urls = {
            name: stack.enter_context(Server(context.binary, stored(context, f"store-{name}"), rtt=name)).url
            for name in rates
        }
        for round_ in range(-1, context.rounds):  # the first one warms
            for name, url in urls.items():
                (rate,) = throughput(url, SECONDS, SKIP, shuffled(seed=7, epoch=1000 * (round_ + 1)))
                if round_ >= 0:
                    rates[name].append(rate)
                    emit(case="engine", link=name, mb_per_s=rate)
    metrics = costs(context)
    return Result(
        "engine",
        [
            Figure("ratio_150ms", median(b / a for a, b in zip(*rates.values(), strict=True)), at_least=0.95),
            Figure("us_per_sample", metrics["us/sample"], at_most=20),
            Figure("allocs_per_sample", metrics["allocs/sample"], at_most=2),
        ],
        {f"mb_per_s_{name}": round(median(r), 1) for name, r in rates.items()},
    )
