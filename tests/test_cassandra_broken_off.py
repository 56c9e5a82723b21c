"""Streams over a real Cassandra that are broken off in every way: their server keeps nothing of them."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pyarrow.flight as fl
import pytest
from conftest import ROOT, StartNode
from keyspaces import Bowstring, Keyspace, cql, new_keyspace, new_store
from ports import free_port
from wire import PATIENCE, read, stats, until

__all__ = ["cql", "new_keyspace", "new_store"]  # fixtures

pytestmark = pytest.mark.slow

WAYS = "leave", "cancel", "deadline", "close", "kill", "cut", "ring", "operators", "exchange"
STREAMS = 10  # by each way


def goroutines(admin: int) -> int:
    """Goroutines of a server, except those that its engine keeps for later reads."""
    with urllib.request.urlopen(f"http://127.0.0.1:{admin}/debug/pprof/goroutine?debug=1", timeout=PATIENCE) as answer:
        _, _, text = answer.read().decode().partition("\n")
    groups = [g for g in text.strip().split("\n\n") if "tiers.(*Reader).work" not in g]
    return sum(int(g.split(maxsplit=1)[0]) for g in groups)


def files(pid: int) -> int:
    """Descriptors that a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def break_off(url: str, count: int) -> None:
    """Break off `count` streams by each way, all ways at the same time."""
    script = ROOT / "bench" / "breaker.py"
    clients = [
        subprocess.Popen([sys.executable, script, way, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                         env={**os.environ, **({} if way == "ring" else {"BOWSTRING_LOCAL": "off"})})
        for way in WAYS
    ]  # fmt: skip
    for way, client in zip(WAYS, clients, strict=True):
        said, _ = client.communicate(f"{count}\n", timeout=3 * PATIENCE)
        assert said.split() == ["ready", "done"], way


def test_nothing_is_kept(
    new_store: Callable[[], Keyspace], folder: Path, bowstring: Bowstring, start: StartNode, tmp_path: Path
) -> None:
    uri = new_store().uri()
    bowstring("import", folder, "bench", "--store", uri)
    admin = free_port()
    local = f"--local={tmp_path / 'socket'}"
    node = start("--window-memory=32MiB", f"--admin=127.0.0.1:{admin}", local, store=uri)
    break_off(node.url, 2)  # what a server makes once is there then
    with fl.connect(node.url) as client:

        def has() -> tuple[int, int, int]:
            found = stats(client)
            shared = found["shm"]
            return found["engine"]["window_used"], found["engine"]["live_streams"], \
                shared["rings"] + shared["held"] + shared["pinned"]  # fmt: skip

        until(lambda: has() == (0, 0, 0), "that nothing is held")
        descriptors, running = files(node.pid), goroutines(admin)
        break_off(node.url, STREAMS)
        until(lambda: has() == (0, 0, 0), "that nothing is held")
        until(lambda: files(node.pid) <= descriptors, "that files are closed")
        until(lambda: goroutines(admin) <= running, "that goroutines end")
        assert read(client, dataset="bench", columns=["image"]).num_rows > 0  # there is room for others
