"""cql_cpu: CPU time of the server and of Cassandra for a GB, with reads that gather and with reads one by one."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Any

from cassandra_node import Cassandra, stored, warm
from harness import CASSANDRA, Context, Figure, Result, TimedReaders, cpu_seconds, emit, median, needs, shuffled
from samples import image_folder
from server import Server
from sizes import sized

SMALL_COUNT, SMALL_SIZE = sized(8_000, smoke=4_000), 8_000
SECONDS = int(os.environ.get("SECONDS_EACH", sized("10", smoke="2")))
# Less than an epoch, or the next one finds there what this one has read.
WINDOW = sized("--window-memory=128MiB", smoke="--window-memory=8MiB")
KEYS = {"one": "&keys=1", "gathered": ""}  # by what the store's address says
FAR = {"rtt": "150ms", "window": "6MiB"}
LINKS: dict[str, dict[str, Any]] = {"near": {}, "far": FAR, "slow_start": {**FAR, "slow_start": "true"}}


@dataclass
class Cost:
    """CPU seconds for a GB from the store, and its throughput."""

    server: float
    cassandra: float
    mb_per_s: float
    first_s: float
    share: float  # of what the client got that was read for it; the rest was still there from the epoch before


def cost(server: Server, node: Cassandra, ticket: dict[str, Any]) -> Cost:
    """Read for some seconds."""
    before = cpu_seconds(server.pid), cpu_seconds(node.pid), server.fetched()["read_bytes"]
    (stream,) = TimedReaders(server.url, SECONDS, [{"ticket": ticket}]).run()
    gb = (server.fetched()["read_bytes"] - before[2]) / 1e9
    ours, theirs = cpu_seconds(server.pid) - before[0], cpu_seconds(node.pid) - before[1]
    share = gb * 1e9 / sum(n for _, _, n in stream.marks)
    return Cost(ours / gb, theirs / gb, stream.mb_per_s() * share, stream.first_s, share)


@needs(CASSANDRA)
def run(context: Context) -> Result:
    """Interleave both ways of reading, over each link: photographs everywhere, small ones where the store is near."""
    found: dict[tuple[str, str], list[Cost]] = {}
    ratios: list[float] = []  # of Cassandra's CPU time, near
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(stored(context))
        source = context.folder / "imagefolder-small"
        image_folder(source, SMALL_COUNT, SMALL_SIZE)
        context.bowstring("import", "--store", node.uri(), source / "images", "small")
        servers = {
            (link, keys): stack.enter_context(Server(context.binary, node.uri() + address, WINDOW, **LINKS[link]))
            for link in LINKS
            for keys, address in KEYS.items()
        }
        for address in KEYS.values():  # each statement has a way of its own through the JVM
            warm(context.binary, node.uri() + address)
        for round_ in context.repeat(ratios):
            for place, dataset in {**dict.fromkeys(LINKS, "bench"), "near_small": "small"}.items():
                link = place.removesuffix("_small")
                for keys in sorted(KEYS, reverse=round_ % 2 == 1):
                    ticket = shuffled(seed=3, epoch=1000 * round_, dataset=dataset)
                    c = cost(servers[link, keys], node, ticket)
                    found.setdefault((place, keys), []).append(c)
                    emit(case="cql_cpu", place=place, keys=keys, **vars(c))
            ratios.append(found["near", "gathered"][-1].cassandra / found["near", "one"][-1].cassandra)
    details = {
        f"{place}_{name}": round(
            median(
                getattr(new, name) / getattr(old, name)
                for new, old in zip(found[place, "gathered"], found[place, "one"], strict=True)
            ),
            3,
        )
        for place in ("near", "far", "slow_start", "near_small")
        for name in ("server", "cassandra", "mb_per_s", "first_s")
    }
    return Result(
        "cql_cpu",
        [
            Figure("server_s_per_gb", [c.server for c in found["near", "gathered"]]),
            Figure("cassandra_ratio", ratios),
        ],
        details,
    )
