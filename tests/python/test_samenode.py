"""Blobs that come by memory which a server on this node shares are the same, and stay so."""

from __future__ import annotations

import gc
import hashlib
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import bowstring
import pyarrow as pa
import pytest
from conftest import StartNode
from node import Node
from wire import until

Seen = dict[int, str]


@pytest.fixture
def shared(start: StartNode, tmp_path: Path) -> Node:
    return start("--local", str(tmp_path / "socket"), "--local-ring=16MiB")


def photos(client: bowstring.Client, **options: Any) -> bowstring.Dataset:
    return client.dataset("photos").columns(["position", "image", "label"]).shuffle(5).options(**options)


def digest(value: Any) -> str:
    """Of one cell, in any layout."""
    value = value.as_py()
    return hashlib.sha256(value["bytes"] if isinstance(value, dict) else value).hexdigest()


def digests(batch: pa.RecordBatch) -> Seen:
    batch.validate(full=True)
    return {p.as_py(): digest(image) for p, image in zip(batch["position"], batch["image"], strict=True)}


def rings(client: bowstring.Client) -> dict[str, int]:
    found: dict[str, int] = client.stats()["samenode"]
    return found


@pytest.mark.parametrize("layout", ["large_binary", "binary", "huggingface"])
@pytest.mark.parametrize("order", ["strict", "free"])
def test_the_same_bytes_come(shared: Node, monkeypatch: pytest.MonkeyPatch, layout: str, order: str) -> None:
    def read() -> tuple[Seen, set[str]]:
        seen: Seen = {}
        ways = set()
        dataset = photos(bowstring.connect(shared.url), layout=layout, order=order)
        with dataset.batches(16) as batches:
            for batch in batches:
                seen.update(digests(batch))
                assert batches.place is not None
                ways.add(batches.place["transport"])
        return seen, ways

    by_memory, ways = read()
    assert ways == {"shared"}
    monkeypatch.setenv("BOWSTRING_LOCAL", "off")
    by_tcp, ways = read()
    assert ways == {"tcp"}
    assert by_memory == by_tcp
    assert len(by_tcp) == 300


def test_who_keeps_everything_gets_the_rest_by_tcp(shared: Node) -> None:
    client = bowstring.connect(shared.url)
    ways = []
    kept = []
    now = []
    with photos(client).batches(16, epochs=4) as batches:
        for batch in batches:
            assert batches.place is not None
            ways.append(batches.place["transport"])
            kept.append(batch)
            now.append(digests(batch))
    assert set(ways) == {"shared", "tcp"}
    assert [digests(batch) for batch in kept] == now  # none was written anew
    assert rings(client)["held"] > 0
    kept.clear()
    del batch
    gc.collect()
    until(lambda: rings(client)["held"] == 0, "held is 0")


def test_what_was_read_outlives_the_server(shared: Node) -> None:
    client = bowstring.connect(shared.url)
    with photos(client).batches(16, epochs=2) as batches:
        first = next(batches)
        before = digests(first)
        seen = dict(before)
        port = shared.port
        shared.kill()
        assert digests(first) == before
        shared.start(f"127.0.0.1:{port}")
        for batch in batches:
            seen.update(digests(batch))
        assert batches.place is not None
        assert digests(first) == before
        assert len(seen) == 300
    with photos(bowstring.connect(shared.url)).batches(16) as batches:
        next(batches)
        assert batches.place is not None
        assert batches.place["transport"] == "shared"


def _child(batch: pa.RecordBatch, before: Seen, go: Any, answer: Any) -> None:
    go.wait()
    answer.put(digests(batch) == before)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_keeps_what_its_parent_lets_go(shared: Node) -> None:
    context = multiprocessing.get_context("fork")
    client = bowstring.connect(shared.url)
    go, answer = context.Event(), context.Queue()
    with photos(client).batches(16, epochs=8) as batches:
        batch = next(batches)
        before = digests(batch)
        child = context.Process(target=_child, args=(batch, before, go, answer))
        child.start()
        del batch
        assert sum(batch.num_rows for batch in batches) > 2000  # more than the ring holds
    go.set()
    assert answer.get(timeout=60)
    child.join()
    until(lambda: rings(client)["held"] == 0, "held is 0")  # the child's copy of the socket kept nothing


KILLED = """
import sys, bowstring
client = bowstring.connect(sys.argv[1])
batches = client.dataset("photos").columns(["image"]).batches(16, epochs=100)
kept = [next(batches) for _ in range(3)]
print(batches.place["transport"], flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_client_that_dies_holds_nothing(shared: Node, how: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, shared.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "shared"
        client = bowstring.connect(shared.url)
        assert rings(client)["bytes"] > 0
        process.send_signal(how)
        process.wait()
    until(lambda: rings(client)["bytes"] == 0, "bytes is 0")


def test_who_may_not_is_served_by_tcp(start: StartNode, tmp_path: Path) -> None:
    socket = tmp_path / "socket"
    node = start("--local", str(socket), f"--local-uid={os.getuid() + 1}")
    client = bowstring.connect(node.url)
    with photos(client).batches(16) as batches:
        next(batches)
        assert batches.place is not None
        assert batches.place["transport"] == "tcp"
    assert rings(client)["given"] == 0


def test_streams_share_no_ring(shared: Node) -> None:
    client = bowstring.connect(shared.url)
    with photos(client).batches(16) as one, photos(client).batches(16) as two:
        for a, b in zip(one, two, strict=True):
            assert digests(a) == digests(b)
        assert rings(client)["rings"] == 2
    for _ in range(3):  # a ring that has served one stream serves the next
        with photos(client).batches(16) as again:
            next(again)
    assert rings(client)["given"] == 2
    client.close()
    until(lambda: rings(client)["rings"] == 0, "rings is 0")
