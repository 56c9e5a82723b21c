"""Series of what processes hold: memory, descriptors, threads, sockets and files, sampled as series."""

from __future__ import annotations

import contextlib
import math
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from soak.trend import Bound, Trend, trend

MIB = 1 << 20

# Series may grow by so much in a run, by the last part of the series' name. Memory of a Go program and of an allocator
# with arenas moves by some MiB without a reason that lasts.
BOUNDS = {
    "rss": Bound(0.10, 24 * MIB),
    "pss": Bound(0.10, 24 * MIB),
    "heap": Bound(0.10, 8 * MIB),
    "arrow": Bound(0.10, 8 * MIB),
    "objects": Bound(0.05, 5_000),
    "disk": Bound(0.15, 64 * MIB),
    "descriptors": Bound(0.10, 6),
    "sockets": Bound(0.10, 6),
    "shared": Bound(0.10, 4),
    "goroutines": Bound(0.10, 16),
    "threads": Bound(0.10, 6),
}
# Drawn, and not judged: a process's part of shared pages changes with each worker that it forks. A leak grows in `rss`
# as well.
UNJUDGED = {"pss"}
UNITS = {name: "MiB" if bound.least >= MIB else "" for name, bound in BOUNDS.items()}
_WANTED = {"go_goroutines": "goroutines", "go_memstats_heap_alloc_bytes": "heap"}

Read = Callable[[], dict[str, float]]


def process(pid: int) -> dict[str, float]:
    """Memory, descriptors and threads of a process; nothing if it has ended.

    `shared` are descriptors and mappings of memory that processes share: rings, and files of the spill that a client
    reads in place. `sockets` are those of this machine (AF_UNIX).
    """
    base = Path(f"/proc/{pid}")
    try:
        status = (base / "status").read_text()
        rollup = (base / "smaps_rollup").read_text()
        maps = (base / "maps").read_text()
        opened = list(_opened(base / "fd"))
    except (OSError, ValueError):
        return {}
    return {
        "rss": _kib(status, "VmRSS") * 1024,
        "pss": _kib(rollup, "Pss") * 1024,
        "threads": _kib(status, "Threads"),
        "descriptors": len(opened),
        "sockets": len(_local_sockets() & {name[8:-1] for name in opened if name.startswith("socket:[")}),
        "shared": sum(name.startswith("/memfd:") for name in opened) + maps.count("/memfd:"),
    }


def _opened(folder: Path) -> Iterator[str]:
    for link in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            yield str(link.readlink())


def _kib(text: str, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else 0


def _local_sockets() -> set[str]:
    """The inodes of the machine's sockets of AF_UNIX."""
    return {line.split()[6] for line in Path("/proc/net/unix").read_text().splitlines()[1:]}


def server(admin: str) -> dict[str, float]:
    """Goroutines of a server, and its heap right after a collection, by its listener for operators.

    Between collections the heap grows by as much as it has, so its size says little without one.
    """
    try:
        with urllib.request.urlopen(f"http://{admin}/debug/pprof/heap?gc=1", timeout=30) as answer:
            answer.read()
        with urllib.request.urlopen(f"http://{admin}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
    except (urllib.error.URLError, OSError):
        return {}
    pairs = (line.rsplit(" ", 1) for line in lines if line and line[0] != "#")
    return {_WANTED[name]: float(value) for name, value in pairs if name in _WANTED}


@dataclass
class Series:
    """A named series; the last part of the name is what it counts. A new process begins a new series."""

    name: str
    times: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """The resource that it counts, a key of BOUNDS."""
        return self.name.rpartition(".")[2]

    def trend(self, since: float = 0, until: float = math.inf) -> Trend | None:
        """Its trend between two times, if that is long enough."""
        kept = [(t, v) for t, v in zip(self.times, self.values, strict=True) if since <= t <= until]
        return trend([t for t, _ in kept], [v for _, v in kept], BOUNDS[self.kind])


class Sampler:
    """Samples of sources at an interval, in a thread of its own while the `with` block lasts.

    A source is a function that returns values by name. Sources may be added at any time. One that returns nothing has
    no sample then. `add_sample` takes samples that others have made.
    """

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self._sources: dict[str, Read] = {}
        self._series: dict[str, Series] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self.began = time.monotonic()

    def watch(self, name: str, read: Read) -> None:
        """Sample a source from now on."""
        with self._lock:
            self._sources[name] = read

    def forget(self, name: str) -> None:
        """Sample a source no more; what was sampled stays."""
        with self._lock:
            self._sources.pop(name, None)

    def add_sample(self, name: str, found: dict[str, float]) -> None:
        """Add a sample of a source."""
        at = time.monotonic() - self.began
        with self._lock:
            for what, value in found.items():
                series = self._series.setdefault(f"{name}.{what}", Series(f"{name}.{what}"))
                series.times.append(at)
                series.values.append(value)

    def series(self) -> list[Series]:
        """All series, sorted by name."""
        with self._lock:
            return [self._series[name] for name in sorted(self._series)]

    def _run(self) -> None:
        while not self._over.wait(self.interval):
            with self._lock:
                sources = list(self._sources.items())
            for name, read in sources:
                self.add_sample(name, read())

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
