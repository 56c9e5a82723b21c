"""A job of several ranks: processes of clients that read from the nodes of a cluster."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from nodes import DATASET, PATIENCE, Nodes


class Ranks:
    """Processes of clients, one for each rank of a job; they are ready before the first epoch."""

    def __init__(self, nodes: Nodes, ticket: dict[str, Any], world: int, **spec: Any) -> None:
        urls = [m.url for m in nodes.members]
        self._processes: list[subprocess.Popen[str]] = []
        self._said: list[queue.Queue[str]] = []  # by process; "" at the end
        self._readers: list[threading.Thread] = []
        for rank in range(world):
            # Its own node, then the others: ranks fill nodes in order, as layouts deal them out.
            at = rank * len(urls) // world
            own = {"urls": urls[at:] + urls[:at], "ticket": ticket, "rank": rank, **spec}
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, Path(__file__).with_name("rank.py"), json.dumps(own)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        for p in self._processes:
            said: queue.Queue[str] = queue.Queue()
            self._said.append(said)
            self._readers.append(threading.Thread(target=self._read, args=(p, said), daemon=True))
            self._readers[-1].start()
        for said in self._said:
            if said.get(timeout=PATIENCE).strip() != "ready":
                raise RuntimeError("a rank is not ready")

    @staticmethod
    def _read(process: subprocess.Popen[str], said: queue.Queue[str]) -> None:
        for line in process.stdout or ():
            said.put(line)
        said.put("")

    def go(self) -> None:
        """Let all of them go on: to the next epoch, or to the end of one that reads until then."""
        for p in self._processes:
            if p.stdin:
                with contextlib.suppress(BrokenPipeError):
                    p.stdin.write("go\n")
                    p.stdin.flush()

    def epoch(self) -> list[dict[str, Any]]:
        """The report of each rank about an epoch."""
        lines = [said.get() for said in self._said]
        if not all(lines):
            raise RuntimeError("a rank has ended")
        return [json.loads(line) for line in lines]

    def rest(self) -> list[dict[str, Any]]:
        """All that they still have to say, until they end."""
        found = []
        for said in self._said:
            while line := said.get(timeout=3 * PATIENCE):
                found.append(json.loads(line))
        if failed := [status for p in self._processes if (status := p.wait())]:
            raise RuntimeError(f"ranks ended with {failed}")
        return found

    def close(self) -> None:
        """End what is left of them."""
        for p in self._processes:
            p.kill()
            p.wait()
        for reader in self._readers:
            reader.join()
        for p in self._processes:
            for pipe in (p.stdin, p.stdout):
                if pipe:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def job(seed: int, batch: int, world: int, **more: Any) -> dict[str, Any]:
    """The ticket of a job over the dataset, without rank and epoch."""
    return {
        "dataset": DATASET,
        "columns": ["position", "key", "sum", "image"],
        "batch": batch,
        "world": {"size": world},
        "remainder": "uneven",
        "shuffle": {"seed": seed},
        **more,
    }
