"""Start a bowstring server as a child process, and stop it again."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

STOP_SECONDS = 180  # longer than a server drains


class Node:
    """A running `bowstring serve` on a free port of this machine.

    The store is a directory, or the address of one in Scylla or Cassandra (`cql://HOST/KEYSPACE`), which
    `bowstring store init` has made.
    Use it in a `with` block: it starts on entry and is stopped on exit, however the block is left.
    """

    def __init__(self, binary: Path, store: Path | str, *options: str, log: Path | None = None) -> None:
        self.binary = binary
        self.store = store
        self.options = options
        self.log = log
        self.url = ""  # grpc://host:port, once started
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, listen: str = "127.0.0.1:0", began: Callable[[int], object] | None = None) -> None:
        """Start the server and wait until it takes calls. `began` is called with its process id at once."""
        with tempfile.TemporaryDirectory(prefix="bowstring-") as folder, contextlib.ExitStack() as stack:
            ready = Path(folder) / "ready"
            out = stack.enter_context(self.log.open("ab")) if self.log else subprocess.DEVNULL
            command: list[str | Path] = [
                self.binary,
                "serve",
                "--store",
                self.store,
                "--listen",
                listen,
                "--ready-file",
                ready,
            ]
            self._process = subprocess.Popen([*command, *self.options], stdout=out, stderr=out)
            if began:
                began(self._process.pid)
            # The server creates the file in one piece, with its address, when it listens.
            while not ready.exists():
                if self._process.poll() is not None:
                    where = f"; see {self.log}" if self.log else ""
                    raise RuntimeError(f"{self.binary.name} serve ended with {self._process.returncode}{where}")
                time.sleep(0.01)
            self.url = ready.read_text().strip()

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        return self._running().pid

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return int(self.url.rpartition(":")[2])

    def terminate(self) -> None:
        """Ask the server to drain and end, and do not wait."""
        self._running().send_signal(signal.SIGTERM)

    def wait(self, seconds: float = STOP_SECONDS) -> int:
        """Wait for the end and return the exit status."""
        return self._running().wait(seconds)

    def stop(self) -> int:
        """Let the server drain and end; kill it if it does not. Returns the exit status."""
        process = self._running()
        process.send_signal(signal.SIGTERM)
        try:
            status = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        self._process = None
        return status

    def kill(self) -> None:
        """End the server at once, as a power cut would (`kill -9`)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process

    def __enter__(self) -> Node:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self.stop()
