"""memory: what streams that stop reading take of a server beyond its budget, and what is left for one that reads."""

from __future__ import annotations

import threading
import time
from typing import Any

from cassandra_node import stored as in_cassandra
from cassandra_node import warm
from harness import (
    CASSANDRA,
    MIB,
    Context,
    Figure,
    Load,
    Result,
    TimedReaders,
    anonymous_mb,
    emit,
    median,
    needs,
    shuffled,
)
from samples import COUNT
from server import Server
from sizes import sized

from .hostile import Watch

STREAMS, CONNECTIONS = sized((256, 8), smoke=(8, 2))
BUDGET = 256 * MIB
BATCH_BYTES = [16 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB]  # in turn; an epoch of 438 MB in one batch, where it fits
ORDERS = ["strict", "window:1048576", "free"]
SETTLE_S = sized(10, smoke=1)  # in which the windows fill
AT_MOST_S = 300  # for an epoch


def unread() -> list[dict[str, Any]]:
    """Streams whose batches are as large as they may be, and which take none."""
    return [
        {
            "ticket": shuffled(
                1000 + i, batch=COUNT, batch_bytes=BATCH_BYTES[i % len(BATCH_BYTES)], order=ORDERS[i % len(ORDERS)]
            ),
            "reads": False,
        }
        for i in range(STREAMS)
    ]


def honest(url: str, epoch: int) -> float:
    """MB/s of a stream of one epoch that is read as fast as it comes; an error if a sample is missing."""
    (stream,) = TimedReaders(url, AT_MOST_S, [{"ticket": shuffled(1, epoch, epochs=1)}]).run()
    if stream.rows != COUNT:
        raise RuntimeError(f"an honest stream got {stream.rows} samples of {COUNT} in {AT_MOST_S} s")
    return sum(size for *_, size in stream.marks) / 1e6 / stream.marks[-1][0]


def measure(context: Context, uri: str, round_: int) -> tuple[float, float]:
    """A new server: the most it takes beyond its budget, in MiB, and the honest stream's share of its speed alone."""
    with Server(context.binary, uri, f"--window-memory={BUDGET}") as server:
        honest(server.url, 3 * round_)  # warms
        watch = Watch(server.pid)
        watcher = threading.Thread(target=watch.run)
        watcher.start()
        try:
            alone = honest(server.url, 3 * round_ + 1)
            alone_mb = watch.peak_mb
            with Load(server.url, CONNECTIONS, unread()) as load:
                time.sleep(SETTLE_S)
                stalled_mb = anonymous_mb(server.pid)
                loaded = honest(server.url, 3 * round_ + 2)
            if load.found["open"] != STREAMS:
                raise RuntimeError(f"{load.found['open']} streams were open of {STREAMS}: {load.found['errors']}")
        finally:
            watch.stop()
            watcher.join()
        emit(
            case="memory",
            mb_per_s={"alone": alone, "with others": loaded},
            peak_mb={"alone": alone_mb, "all": watch.peak_mb},
            stalled_mb=stalled_mb,
        )
    return watch.peak_mb - BUDGET / MIB, loaded / alone


@needs(CASSANDRA)
def run(context: Context) -> Result:
    """Cassandra holds the samples, so that all that the server has in memory is its own."""
    with in_cassandra(context) as node:
        warm(context.binary, node.uri())
        found = [measure(context, node.uri(), r) for r in context.repeat()]
    return Result(
        "memory",
        [Figure("rss_over_budget_mb", max(over for over, _ in found))],
        {"honest_share": round(median(share for _, share in found), 3)},
    )
