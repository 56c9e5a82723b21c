"""latency: epochs from a real Cassandra over links of 0, 20 and 150 ms, with windows as Linux has them."""

from __future__ import annotations

import contextlib
import json

import pyarrow.flight as fl
from cassandra_node import stored, warm
from harness import CASSANDRA, Context, Figure, Result, TimedReaders, emit, median, needs, shuffled, throughput
from server import Server
from sizes import sized

LINKS = {"0ms": 0.0, "20ms": 0.020, "150ms": 0.150}  # round trips in seconds
WINDOW = "6MiB"  # of a connection: Linux's default limit of a receive buffer
SECONDS, SKIP = sized((15.0, 5.0), smoke=(1.5, 0.5))
FIRST = sized(256, smoke=64)  # samples in a batch whose time is taken


def first_batch(url: str, epoch: int) -> float:
    """Seconds from DoGet to a whole batch of a new stream, its FlightInfo known."""
    request = {"dataset": "bench", "columns": ["id", "label", "image"], "batch": FIRST, "batch_bytes": 64 << 20}
    request["shuffle"] = {"seed": 9, "epoch": epoch}
    with fl.connect(url) as client:
        info = client.get_flight_info(fl.FlightDescriptor.for_command(json.dumps(request)))
        ticket = json.loads(info.endpoints[0].ticket.ticket)
    (stream,) = TimedReaders(url, 60, [{"ticket": ticket, "batches": 1}]).run()
    if stream.marks[0][1] != FIRST:
        raise RuntimeError(f"the first batch has {stream.marks[0][1]} rows instead of {FIRST}")
    return stream.first_s


@needs(CASSANDRA)
def run(context: Context) -> Result:
    """Interleave the links, each with a server of its own that stays up."""
    rates: dict[str, list[float]] = {name: [] for name in LINKS}
    ratios: dict[str, list[float]] = {"20ms": [], "150ms": []}  # relative to no link
    firsts: dict[str, list[float]] = {name: [] for name in LINKS}
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(stored(context))
        urls = {
            name: stack.enter_context(Server(context.binary, node.uri(), rtt=name, window=WINDOW)).url for name in LINKS
        }
        emit(case="latency", warm_mb_per_s=[round(r) for r in warm(context.binary, node.uri())])
        for round_ in context.repeat(*ratios.values()):
            for name, url in urls.items():
                (rate,) = throughput(url, SECONDS, SKIP, shuffled(seed=7, epoch=1000 * round_))
                rates[name].append(rate)
                firsts[name].append(first_batch(url, round_))
                emit(case="latency", link=name, mb_per_s=rate, first_batch_s=firsts[name][-1])
            for name, found in ratios.items():
                found.append(rates[name][-1] / rates["0ms"][-1])
    far = [(a - b) / LINKS["150ms"] for a, b in zip(firsts["150ms"], firsts["0ms"], strict=True)]
    return Result(
        "latency",
        [
            Figure("ratio_20ms", ratios["20ms"]),
            Figure("ratio_150ms", ratios["150ms"]),
            Figure("first_batch_rtts", far),
        ],
        {f"mb_per_s_{name}": round(median(r), 1) for name, r in rates.items()},
    )
