"""broken_off: streams that are broken off in ten ways, over each store. A server has no more afterwards than before.

BROKEN_OFF (2,000) says how many streams, of all stores and ways together.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow.flight as fl
from cassandra_node import Cassandra
from harness import CASSANDRA, MIB, Context, Figure, Result, anonymous_mb, emit, needs
from ports import free_port
from samples import SIZE, image_folder
from server import Server
from sizes import sized

from .tls import Authority

SAMPLES = sized(256, smoke=128)
WAYS = ["leave", "cancel", "deadline", "close", "kill", "cut", "tls", "ring", "operators", "exchange"]
# Streams of each way beforehand: what a server makes once is there then, and its heap has its size.
WARM = sized(20, smoke=2)
HEAP = {"HEAP": "512m", "MEMTABLE": "64MiB", "JVM": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
QUIET = sized(5.0, smoke=2.0)
SETTLES = 180.0  # seconds that a server has to notice what has become of its clients


@dataclass
class Kept:
    """Resources of a server that streams use."""

    window_kept_mb: float
    pins: int
    goroutines: int
    descriptors: int
    rss_mb: float

    def more_than(self, before: Kept) -> bool:
        """Whether any of what has to be given back is more than before."""
        return any(after > was for after, was in zip(self.counts(), before.counts(), strict=True))

    def counts(self) -> tuple[float, ...]:
        """All but the resident memory."""
        return self.window_kept_mb, self.pins, self.goroutines, self.descriptors

    def __add__(self, other: Kept) -> Kept:
        return Kept(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))

    def __sub__(self, other: Kept) -> Kept:
        return Kept(*(a - b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))


class Watched(Server):
    """A server whose resources can be counted."""

    def __init__(self, binary: Path, store: str | Path, *options: str, ca: Path | None = None) -> None:
        self._admin = free_port()
        self._ca = ca
        super().__init__(binary, store, f"--admin=127.0.0.1:{self._admin}", *options)

    def stats(self) -> dict[str, Any]:
        """The answer of its action `stats`."""
        with fl.connect(self.url, tls_root_certs=self._ca.read_bytes() if self._ca else None) as client:
            (answer,) = client.do_action(("stats", b""))
            found: dict[str, Any] = json.loads(answer.body.to_pybytes())
        return found

    def _ask(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._admin}{path}", timeout=180) as answer:
            found: str = answer.read().decode()
        return found

    def goroutines(self) -> list[str]:
        """The stacks of its goroutines, with their number, except goroutines that wait for input.

        The engine keeps as many of these as it has read at once, 256 at most.
        """
        _, _, text = self._ask("/debug/pprof/goroutine?debug=1").partition("\n")
        return [group for group in text.strip().split("\n\n") if "tiers.(*Reader).work" not in group]

    def kept(self) -> Kept:
        """Its resources now."""
        stats = self.stats()
        shared = stats.get("shm", {})
        return Kept(
            window_kept_mb=stats["engine"]["window_used"] / MIB,
            pins=sum(shared.get(name, 0) for name in ("rings", "held", "pinned")),
            goroutines=sum(int(group.split(maxsplit=1)[0]) for group in self.goroutines()),
            descriptors=len(list(Path(f"/proc/{self.pid}/fd").iterdir())),
            rss_mb=anonymous_mb(self.pid),
        )


class Breakers:
    """A client process for each way, each with what it needs of servers."""

    def __init__(self, plain: Watched, sealed: Watched, ca: Path) -> None:
        self.servers = plain, sealed
        self._processes = {}
        for way in WAYS:
            url = sealed.url if way == "tls" else plain.url
            environment = {**os.environ, "BOWSTRING_SERVER_CA": str(ca) if way == "tls" else ""}
            if way != "ring":
                environment["BOWSTRING_LOCAL"] = "off"
            self._processes[way] = subprocess.Popen(
                [sys.executable, Path(__file__).parent.parent / "breaker.py", way, url],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
        for way in WAYS:
            self._hear(way, "ready")

    def _hear(self, way: str, word: str) -> None:
        out = self._processes[way].stdout
        if out is None or (line := out.readline().strip()) != word:
            raise RuntimeError(f"the client that breaks off by {way} said {line!r} instead of {word}")

    def break_off(self, way: str, count: int) -> None:
        """Break off `count` streams."""
        pipe = self._processes[way].stdin
        if pipe is not None:
            pipe.write(f"{count}\n")
            pipe.flush()
        self._hear(way, "done")

    def kept(self) -> Kept:
        """The resources of the servers."""
        plain, sealed = self.servers
        return plain.kept() + sealed.kept()

    def quiet(self) -> Kept:
        """Their resources, once these have not decreased for some seconds."""
        least, since = self.kept(), time.monotonic()
        while time.monotonic() < since + QUIET:
            time.sleep(0.2)
            if least.more_than(now := self.kept()):
                least, since = now, time.monotonic()
        return least

    def settled(self, before: Kept) -> Kept:
        """Their resources, once these are no more than before, or after some seconds."""
        until = time.monotonic() + SETTLES
        while (now := self.kept()).more_than(before) and time.monotonic() < until:
            time.sleep(0.2)
        return now

    def __enter__(self) -> Breakers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes.values():
            if process.stdin:
                process.stdin.close()
            process.wait(180)


@contextlib.contextmanager
def _over(context: Context, store: str) -> Iterator[tuple[str | Path, str | Path]]:
    """Where two servers find the samples: in one keyspace, or in an embedded store for each."""
    source = context.folder / "imagefolder-broken-off"
    image_folder(source, SAMPLES, SIZE)
    if store == "embedded":
        folders = context.folder / "store-broken-off", context.folder / "store-broken-off-tls"
        for folder in folders:
            if not folder.exists():
                context.bowstring("import", "--store", folder, source / "images", "bench")
        yield folders
        return
    with Cassandra(context.folder / "cassandra-broken-off", **HEAP) as node:
        uri = node.uri("broken_off")
        context.bowstring("store", "init", "--store", uri)
        context.bowstring("import", "--store", uri, source / "images", "bench")
        yield uri, uri


def _measure(context: Context, store: str, count: int) -> Kept:
    """Break off `count` streams by each way, and return what the servers have more than before."""
    authority = Authority(context.folder / "broken-off-certificates")
    authority.server()
    with _over(context, store) as (at, sealed_at):
        certificate = [f"--tls-cert={authority.folder / 'server.pem'}", f"--tls-key={authority.folder / 'server.key'}"]
        plain = Watched(context.binary, at, f"--local={context.folder / 'broken-off-socket'}")
        sealed = Watched(context.binary, sealed_at, *certificate, ca=authority.folder / "ca.pem")
        with plain, sealed, Breakers(plain, sealed, authority.folder / "ca.pem") as breakers:
            for way in WAYS:
                breakers.break_off(way, WARM)
            before = breakers.quiet()
            for way in WAYS:
                start = time.monotonic()
                breakers.break_off(way, count)
                more = breakers.settled(before) - before
                seconds = round(time.monotonic() - start, 1)
                emit(
                    case="broken_off", store=store, way=way, streams=count, seconds=seconds, **dataclasses.asdict(more)
                )
            found = breakers.settled(before)
            if found.goroutines > before.goroutines:
                (context.folder / f"goroutines-{store}").write_text(
                    "\n\n".join(plain.goroutines() + sealed.goroutines())
                )
        return found - before


@needs(CASSANDRA)
def run(context: Context) -> Result:
    """Each store has servers of its own."""
    stores = ["embedded", "cassandra"]
    count = max(1, int(os.environ.get("BROKEN_OFF", sized("2000", smoke="40"))) // (len(stores) * len(WAYS)))
    found = {store: _measure(context, store, count) for store in stores}
    return Result(
        "broken_off",
        [
            Figure("window_kept_mb", max(f.window_kept_mb for f in found.values())),
            Figure("pins", max(f.pins for f in found.values())),
            Figure("goroutines", max(f.goroutines for f in found.values())),
            Figure("descriptors", max(f.descriptors for f in found.values())),
            Figure("rss_growth_mb", max(f.rss_mb for f in found.values())),
        ],
        {"streams": count * len(stores) * len(WAYS), **{s: dataclasses.asdict(f) for s, f in found.items()}},
    )
