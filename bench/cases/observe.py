"""observe: what it costs to be looked at: scraped every second and traced by one call in a hundred, beside neither."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import urllib.request
from collections.abc import Iterator

from harness import Context, Figure, Readers, Result, cpu_seconds, emit, go_benchmark, median
from node import Node
from ports import free_port
from samples import COUNT, SIZE
from sizes import sized

from .loopback import stored, ticket

PASSES = sized(3, smoke=1)


def scrape(port: int) -> str:
    """The metrics that Prometheus would see."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as answer:
        text: str = answer.read().decode()
    return text


@contextlib.contextmanager
def scraped(port: int) -> Iterator[list[int]]:
    """Scrape every second; the lengths of the answers."""
    lengths: list[int] = []
    done = threading.Event()

    def work() -> None:
        while not done.wait(1):
            lengths.append(len(scrape(port)))

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield lengths
    finally:
        done.set()
        worker.join()


def read(url: str) -> float:
    """Read some epochs; GB/s."""
    got = Readers(url, [ticket(0)], PASSES).run()
    return COUNT * PASSES * SIZE / 1e9 / got["seconds"]


def run(context: Context) -> Result:
    """Interleave a server that is looked at with one that is not."""
    port, unused = free_port(), free_port()  # no collector listens: spans are sampled, and lost
    rates: dict[str, list[float]] = {"plain": [], "observed": []}
    cpu: dict[str, list[float]] = {"plain": [], "observed": []}  # seconds of the server for each GB
    with (
        Node(context.binary, stored(context)) as plain,
        Node(
            context.binary,
            stored(context, "store-observed"),
            f"--admin=127.0.0.1:{port}",
            f"--otlp-endpoint=http://127.0.0.1:{unused}",
        ) as observed,
    ):
        scrapes = 0
        ratios: list[float] = []
        for turn in context.repeat(ratios):
            sides = ["plain", "observed"] if turn % 2 else ["observed", "plain"]
            for side in sides:
                pid = (plain if side == "plain" else observed).pid
                before = cpu_seconds(pid)
                if side == "plain":
                    rates[side].append(read(plain.url))
                else:
                    with scraped(port) as lengths:
                        rates[side].append(read(observed.url))
                    scrapes += len(lengths)
                # With the epoch that warms the reader.
                cpu[side].append((cpu_seconds(pid) - before) / (COUNT * (PASSES + 1) * SIZE / 1e9))
                emit(
                    case="observe", side=side, gb_per_s=round(rates[side][-1], 3), cpu_s_per_gb=round(cpu[side][-1], 3)
                )
            ratios.append(rates["observed"][-1] / rates["plain"][-1])
        text = scrape(port)
    series = sum(1 for line in text.splitlines() if line and not line.startswith("#"))
    cost = [1 - ratio for ratio in ratios]
    engine = go_benchmark(context, "observe", "./fetch", "BenchmarkTraced", "-benchtime=20000x", "-count=3")
    names = len(set(re.findall(r"^# TYPE (bowstring_\S+)", text, re.MULTILINE)))
    return Result(
        "observe",
        [
            Figure("cost", cost),
            Figure("allocs_per_sample", engine["allocs/more"]),
            Figure("series", series),
        ],
        {
            "cpu_cost": round(median(b / a for a, b in zip(cpu["plain"], cpu["observed"], strict=True)) - 1, 4),
            "metrics": names,
            "scrapes": scrapes,
            "rates": json.loads(json.dumps(rates)),
        },
    )
