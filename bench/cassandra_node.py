"""A real Cassandra for measurements, by tests/cassandra/cassandra.sh, with options fit for throughput."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from harness import Context, TimedReaders, shuffled
from ports import free_port
from samples import COUNT, SIZE, image_folder
from server import Server
from sizes import sized

SCRIPT = Path(__file__).parent.parent / "tests/cassandra/cassandra.sh"

# Added to the tests' settings. With the default of 128 threads a read of 110 KB costs nearly twice the CPU time that it
# costs with as many threads as processors; docs/benchmarks/log.md has the figures.
SETTINGS = {
    "native_transport_max_threads": os.cpu_count(),
    "concurrent_reads": os.cpu_count(),
    "disk_access_mode": "mmap",
    "key_cache_size": "64MiB",
}
HEAP, MEMTABLE = sized(("2g", "256MiB"), smoke=("512m", "64MiB"))
JVM = sized(
    "-XX:+UseParallelGC -XX:TLABSize=2m -XX:-ResizeTLAB -XX:+UseTransparentHugePages -XX:+AlwaysPreTouch",
    smoke="-XX:+UseSerialGC -XX:TieredStopAtLevel=1",  # starts in half of the time
)
WARM_SECONDS = sized(40, smoke=1)


class Cassandra:
    """A running node in a folder of its own, stopped when the `with` block is left."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder.absolute()
        self.port = self._setting("native_transport_port") if self.running() else free_port()
        settings = " ".join(f"-Dcassandra.settings.{name}={value}" for name, value in SETTINGS.items())
        self._environment = {
            **os.environ,
            "PORT": str(self.port),
            "STORAGE_PORT": str(free_port()),
            "HEAP": os.environ.get("HEAP", HEAP),
            "MEMTABLE": os.environ.get("MEMTABLE", MEMTABLE),
            "JVM": f"{os.environ.get('JVM', JVM)} -Dcassandra.config.allow_system_properties=true {settings}",
            **environment,
        }

    def running(self) -> bool:
        """Whether a node runs in the folder, started by this or another process."""
        try:
            return "CassandraDaemon" in Path(f"/proc/{self.pid}/cmdline").read_text()
        except OSError:
            return False

    def _setting(self, name: str) -> int:
        for line in (self.folder / "conf/cassandra.yaml").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1])
        raise RuntimeError(f"no {name} in {self.folder}/conf/cassandra.yaml")

    def uri(self, keyspace: str = "bench", port: int = 0) -> str:
        """The address of a store on the node, or behind another port that leads to it."""
        return f"cql://127.0.0.1:{port or self.port}/{keyspace}?rf=1"

    @property
    def pid(self) -> int:
        """The process id of the server."""
        return int((self.folder / "pid").read_text())

    def _script(self, *args: str) -> None:
        done = subprocess.run(
            [SCRIPT, args[0], self.folder, *args[1:]],
            check=False,
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"cassandra.sh {' '.join(args)} in {self.folder}: {done.stderr}")

    def start(self) -> None:
        """Start the server and wait until it answers."""
        self._script("start")
        self._script("wait", "300")

    def stop(self) -> None:
        """End the server, after it has written to its tables what it holds in memory."""
        self._script("stop")

    def __enter__(self) -> Cassandra:
        try:
            self.start()
        except BaseException:
            if (self.folder / "pid").exists():
                self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


@contextlib.contextmanager
def stored(context: Context, **more: int) -> Iterator[Cassandra]:
    """A node with the photographs in the dataset `bench`, all in tables on disk; its JVM is cold.

    Each keyword of `more` adds a dataset with that number of photographs. They have the first ones in common.
    """
    node = Cassandra(context.folder / "cassandra")
    missing = {
        name: count
        for name, count in {"bench": COUNT, **more}.items()
        if not (context.folder / f"cassandra-has-{name}").exists()
    }
    if missing:
        with node:
            context.bowstring("store", "init", "--store", node.uri())
            for name, count in missing.items():
                source = context.folder / ("imagefolder" if count == COUNT else f"imagefolder-{count}")
                image_folder(source, count, SIZE)
                context.bowstring("import", "--store", node.uri(), source / "images", name)
                (context.folder / f"cassandra-has-{name}").touch()
    with node:
        yield node


def warm(binary: Path, store: str) -> list[float]:
    """Read by a server of its own until the JVM has compiled what reads; MB/s of each second.

    A cold JVM reads at a fifth of its speed. It takes a hundred thousand reads to have compiled what matters: from the
    15th epoch to the 30th its CPU time for one halves.
    """
    with Server(binary, store, "--window-memory=128MiB") as server:  # less than an epoch, so that all is read
        (stream,) = TimedReaders(server.url, WARM_SECONDS, [{"ticket": shuffled(seed=1)}]).run()
    return [sum(n for at, _, n in stream.marks if s < at <= s + 1) / 1e6 for s in range(WARM_SECONDS)]
