"""A server to be measured: `bowstring serve`, or `bowstring-lab serve` behind a link of chosen latency."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow.flight as fl
from harness import MIB, lab
from node import Node
from samples import SIZE

INDEX = 8 * MIB  # what a spill sets aside of its budget for its index
HEADER = 256  # and for each blob, its header included
LEAST = 16 * MIB  # of a budget; a server takes no less, which is room for more than smoke runs ask for


@contextlib.contextmanager
def spill(folder: Path, count: float) -> Iterator[list[str]]:
    """Flags of a server with a new, empty spill that has room for at most this number of photographs.

    Its budget stays what it is. The directory goes when the `with` block is left.
    """
    size = max(LEAST, round(INDEX + count * (SIZE + HEADER)))
    with tempfile.TemporaryDirectory(prefix="spill-", dir=folder) as directory:
        yield [f"--spill={directory}", f"--spill-bytes={size}B", f"--spill-min-bytes={size}B"]


class Server(Node):
    """A node whose store is far away if there are options of the link, such as `rtt="20ms"`.

    See `bowstring-lab serve --help` for these.
    """

    def __init__(self, binary: Path, store: str | Path, *options: str, **link: str | float) -> None:
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in link.items()]
        self._folder = tempfile.TemporaryDirectory(prefix="bowstring-server-")
        super().__init__(lab(binary) if link else binary, store, *options, *flags, log=Path(self._folder.name) / "log")

    def start(self, listen: str = "127.0.0.1:0", began: Callable[[int], object] | None = None) -> None:
        """Start the server; if it does not, the error has what it logged."""
        try:
            super().start(listen, began)
        except RuntimeError as error:
            raise RuntimeError(f"{error}:\n{self.logged()}") from None

    def __enter__(self) -> Server:
        self.start()
        return self

    def logged(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-4000:] if self.log else ""

    def fetched(self) -> dict[str, Any]:
        """The counters of its engine: reads from the store, from the spill, and so on."""
        found: dict[str, Any] = self.stats()["engine"]
        return found

    def stats(self) -> dict[str, Any]:
        """The answer of its action `stats`."""
        with fl.connect(self.url) as client:
            (answer,) = client.do_action(("stats", b""))
            found: dict[str, Any] = json.loads(answer.body.to_pybytes())
        return found

    def peak_mb(self) -> float:
        """The most memory that it has had resident, in MiB; pages of mapped files count."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
        raise RuntimeError(f"no VmHWM in /proc/{self.pid}/status")

    def connections(self) -> dict[int, int]:
        """How many TCP connections it has, by the port at the other end."""
        found: dict[int, int] = {}
        for c in psutil.Process(self.pid).net_connections("tcp"):
            if c.status == psutil.CONN_ESTABLISHED:
                found[c.raddr.port] = found.get(c.raddr.port, 0) + 1
        return found
