"""objects_cost: CPU time of the server for a GB that it reads from a bucket and sends to a client, checked."""

from __future__ import annotations

import contextlib
import os
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bucket import attach, served
from harness import Context, Figure, Result, TimedReaders, cpu_seconds, emit, median
from samples import image_folder
from server import Server
from sizes import sized

from .tls import Authority

COUNT, SIZE = sized(4_000, smoke=200), 100_000
SHARD = sized(500, smoke=50)  # samples
SECONDS = int(os.environ.get("SECONDS_EACH", sized("8", smoke="1")))

# Spans are of a run in order through shards, single ranges of a shuffle of objects that are samples. The server keeps
# nothing on disk: all goes from socket to socket.
SIDES: dict[str, dict[str, Any]] = {"http": {}, "tls": {}, "ranges": {"shuffle": {"seed": 3}}}


@dataclass
class Cost:
    """CPU seconds of the server for the bytes that it read from the bucket."""

    s_per_gb: float
    us_per_sample: float
    mb_per_s: float
    requests: float  # for each sample that was read
    share: float  # of what the client got that was read for it; the rest was still there from the epoch before


def write_tars(source: Path, to: Path, shard: int) -> None:
    """Write images, and their classes, as WebDataset tars."""
    to.mkdir(parents=True)
    paths = sorted(source.rglob("*.jpg"), key=lambda p: p.name)
    for first in range(0, len(paths), shard):
        with tarfile.open(to / f"shard-{first // shard:05}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for path in paths[first : first + shard]:
                tar.add(path, path.name)


def requests(server: Server) -> dict[str, int]:
    """The bytes that the server has read from buckets."""
    buckets = server.stats()["objects"]
    return {"gets": sum(b["gets"] for b in buckets), "bytes": sum(b["bytes_in"] for b in buckets)}


def cost(server: Server, ticket: dict[str, Any]) -> Cost:
    """Read for some seconds."""
    before, counted = cpu_seconds(server.pid), requests(server)
    (stream,) = TimedReaders(server.url, SECONDS, [{"ticket": ticket}]).run()
    now = requests(server)
    took, size = cpu_seconds(server.pid) - before, now["bytes"] - counted["bytes"]
    return Cost(
        took / size * 1e9,
        took / size * SIZE * 1e6,
        stream.mb_per_s(),
        (now["gets"] - counted["gets"]) / size * SIZE,
        size / sum(n for _, _, n in stream.marks),
    )


def run(context: Context) -> Result:
    """Interleave spans over HTTP, spans over TLS and single ranges."""
    root = context.folder / "objects-cost"
    image_folder(root / "bench/files", COUNT, SIZE)
    write_tars(root / "bench/files", root / "bench/tars", SHARD)
    authority = Authority(context.folder / "objects-cost-authority")
    authority.server()
    pair = [f"--tls-cert={authority.folder / 'server.pem'}", f"--tls-key={authority.folder / 'server.key'}"]
    os.environ["AWS_CA_BUNDLE"] = str(authority.folder / "ca.pem")
    found: dict[str, list[Cost]] = {side: [] for side in SIDES}
    costs: dict[str, list[float]] = {side: [] for side in SIDES}  # the figure of each
    store = context.folder / "objects-cost-store"
    with contextlib.ExitStack() as stack:
        for side, options in {"http": [], "tls": pair}.items():
            url = stack.enter_context(served(context.binary, root, *options))
            attach(context, store, url, "bench/tars", side)
            if side == "http":
                attach(context, store, url, "bench/files/images", "ranges")
        server = stack.enter_context(Server(context.binary, store))
        for side in SIDES:  # connects, and takes the memory
            TimedReaders(server.url, 2, [{"ticket": ticket(side)}]).run()
        for round_ in context.repeat(*costs.values()):
            for side in sorted(SIDES, reverse=round_ % 2 == 1):
                found[side].append(cost(server, ticket(side)))
                costs[side].append(found[side][-1].us_per_sample if side == "ranges" else found[side][-1].s_per_gb)
                emit(case="objects_cost", side=side, **{k: round(v, 4) for k, v in vars(found[side][-1]).items()})
    return Result(
        "objects_cost",
        [
            Figure("http_s_per_gb", costs["http"]),
            Figure("tls_s_per_gb", costs["tls"]),
            Figure("us_per_range", costs["ranges"]),
        ],
        {
            f"{side}_{name}": round(median(getattr(c, name) for c in of_side), 3)
            for side, of_side in found.items()
            for name in ("mb_per_s", "requests", "share")
        },
    )


def ticket(side: str) -> dict[str, Any]:
    """Epochs without end."""
    return {"dataset": side, "columns": ["id", "image"], "batch": 64, "epochs": 1000, **SIDES[side]}
