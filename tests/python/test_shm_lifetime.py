"""Memory that a server on this node shares, in time: clients that idle, are short of something, or come too early."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import bowstring
import pytest
from bowstring._transport import maintenance, shm
from bowstring._transport import rings as _rings
from conftest import StartNode
from local_photos import Seen, a_ring, digests, photos, rings, ways
from node import Node
from wire import until


@pytest.fixture
def shared(start: StartNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A server whose blobs are in the files of its embedded store, and a thread that serves rings often."""
    monkeypatch.setattr(maintenance, "LULL", 0.1)
    monkeypatch.setattr(maintenance, "_maintenance", maintenance._Maintenance())  # the process's may sleep for long
    return start("--local", str(tmp_path / "socket"), "--local-ring=16MiB", "--local-references")


def test_who_has_been_there_for_long_is_handed_files(shared: Node) -> None:
    client = bowstring.connect(shared.url)
    assert {way for _, way in ways(photos(client).batches(16))} == {"shared"}  # by a ring, and no file
    time.sleep(1.2)  # more than the server gives a client for taking a ring
    assert {way for _, way in ways(photos(client).batches(16, references=True))} == {"referenced"}
    assert rings(client)["rings"] == 1


def test_a_file_that_cannot_be_taken_once_costs_a_ring(shared: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server hands a file over once. A client that lacked a resource then goes on with another ring."""
    client = bowstring.connect(shared.url)
    mapped = shm._Mapped
    failed: list[int] = []

    def short(descriptor: int, length: int) -> Any:
        if not failed:
            failed.append(length)
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return mapped(descriptor, length)

    monkeypatch.setattr(shm, "_Mapped", short)
    seen: Seen = {}
    came = set()
    for batch, way in ways(photos(client).batches(16, references=True)):
        seen.update(digests(batch))
        came.add(way)
    assert failed
    assert len(seen) == 300
    assert came == {"referenced"}
    until(lambda: rings(client)["rings"] == 1, "the ring that is of no use is given back")


def test_a_client_without_a_free_descriptor_gets_the_reason(shared: Node) -> None:
    """In a process of its own, which has no descriptor left as a file is handed over."""
    ended = subprocess.run([sys.executable, "-c", SCARCE, shared.url], text=True, stdout=subprocess.PIPE, timeout=600)
    assert ended.stdout.split() == ["Unavailable", "referenced"], ended.stdout


SCARCE = """
import os, resource, sys
import bowstring
from bowstring._transport import shm
dataset = bowstring.connect(sys.argv[1], retries=0).dataset("photos")
with dataset.batches(16) as batches:
    next(batches)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
held, handed = [], shm.Ring._file
def scarce(self, number):
    if number not in self._files:
        try:
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
    return handed(self, number)
shm.Ring._file = scarce
try:
    next(dataset.batches(16, references=True))
except bowstring.Unavailable as error:
    assert os.strerror(24) in str(error), error
    print("Unavailable")
shm.Ring._file = handed
for descriptor in held:
    os.close(descriptor)
with dataset.batches(16, references=True) as batches:
    next(batches)
    print(batches.place["transport"])
"""


def test_who_came_before_the_server_shares_with_it_later(shared: Node) -> None:
    port = shared.port
    shared.kill()
    client = bowstring.connect(f"grpc://127.0.0.1:{port}", retries=0)
    assert client.ring() is None
    shared.start(f"127.0.0.1:{port}")
    until(lambda: client.ring() is not None, "the server shares memory")


def test_what_could_not_be_said_is_said_when_nothing_comes(shared: Node) -> None:
    """A client releases its batches while the server receives nothing, and does nothing more."""
    client = bowstring.connect(shared.url)
    ring = a_ring(client)
    client.rings.back(ring)
    batches = photos(client).batches(16, epochs=4)
    kept = [next(batches) for _ in range(3)]
    assert batches._ring is ring
    batches.close()
    send, ring._send_reports = ring._send_reports, lambda: False  # type: ignore[method-assign]
    kept.clear()
    gc.collect()
    assert ring._unsaid
    assert rings(client)["held"] > 0
    ring._send_reports = send  # type: ignore[method-assign]
    until(lambda: rings(client)["held"] == 0, "held is 0")


def test_a_ring_that_was_idle_for_long_is_given_back(shared: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    client = bowstring.connect(shared.url)
    client.rings.back(a_ring(client))
    until(lambda: rings(client)["rings"] == 1, "rings is 1")  # one was dropped, which the server has to notice
    monkeypatch.setattr(_rings, "_REST", 0.0)
    until(lambda: rings(client)["rings"] == 0, "rings is 0")
    assert a_ring(client).alive


def test_a_ring_of_a_server_that_has_ended_is_released(shared: Node) -> None:
    """And what is mapped with it, which the server after that one would wait for."""
    client = bowstring.connect(shared.url)
    ring = a_ring(client)
    client.rings.back(ring)
    gone = weakref.ref(ring)
    del ring
    shared.kill()
    until(lambda: gone() is None, "the ring is gone")
