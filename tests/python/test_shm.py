"""Blobs that come by memory which a server on this node shares are the same, and stay so."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import bowstring
import pyarrow as pa
import pytest
from bowstring._transport import fork
from bowstring._transport.shm import Ring
from conftest import StartNode
from local_photos import Seen, a_ring, digests, photos, rings
from node import Node
from wire import PATIENCE, RETRIES, until


@pytest.fixture
def shared(start: StartNode, tmp_path: Path) -> Node:
    return start("--local", str(tmp_path / "socket"), "--local-ring=16MiB")


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
    client = bowstring.connect(shared.url, retries=RETRIES)
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


def test_a_stream_goes_on_by_the_memory_of_a_server_that_was_started_again(shared: Node) -> None:
    with photos(bowstring.connect(shared.url, retries=RETRIES)).batches(16, epochs=12) as batches:
        next(batches)
        shared.kill()
        shared.start(f"127.0.0.1:{shared.port}")
        ways = [batches.place["transport"] for _ in batches if batches.place]
    assert ways[-1] == "shared"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_keeps_what_its_parent_releases(shared: Node) -> None:
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
    assert answer.get(timeout=PATIENCE)
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


class Meanwhile:
    """A reader that does something when a batch has come, before the stream has it."""

    def __init__(self, batches: bowstring.Batches, act: Callable[[], None]) -> None:
        self._batches, self._act = batches, act
        self._reader, batches._reader = batches._reader, self

    def read_chunk(self) -> Any:
        chunk = self._reader.read_chunk()
        self._act()
        return chunk

    def cancel(self) -> None:
        self._reader.cancel()


def test_what_comes_as_the_stream_is_closed_is_no_batch(shared: Node) -> None:
    """Its large buffers are in memory that the server may overwrite."""
    with photos(bowstring.connect(shared.url)).batches(16) as batches:
        next(batches)
        Meanwhile(batches, batches.close)
        assert list(batches) == []


def test_what_comes_as_the_process_forks_comes_again(shared: Node) -> None:
    with photos(bowstring.connect(shared.url)).batches(16) as batches:
        seen = [*next(batches)["position"].to_pylist()]
        Meanwhile(batches, batches._release)
        for batch in batches:
            seen.extend(digests(batch))
    assert sorted(seen) == list(range(300))


def test_a_slot_is_taken_before_its_call_ends(shared: Node) -> None:
    """Whatever is said in the middle of saying something, and wherever the socket has no room."""
    ring = a_ring(bowstring.connect(shared.url))
    sent: list[bytes] = []

    class Full:
        tries = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def send(self, data: bytes, flags: int) -> int:
            self.tries += 1
            if self.tries == 1:
                ring.end()
                raise BlockingIOError
            sent.append(data)
            return real.send(data, flags)

    real, ring._socket = ring._socket, cast("socket.socket", Full())
    lease = ring.take({"slot": 7, "buffers": []})
    ring.flush()
    assert b"".join(sent)[::16] == bytes([1, 3])
    del lease
    ring._socket = real
    ring.close()


def test_a_ring_comes_back_while_one_is_taken(shared: Node) -> None:
    """The collector may end a stream at any time, also while another takes a ring."""
    client = bowstring.connect(shared.url)
    one, two = a_ring(client), a_ring(client)

    class Collecting(Ring):
        @property
        def alive(self) -> bool:
            client.rings.back(two)
            return True

    one.__class__ = Collecting
    client.rings.back(one)
    taker = threading.Thread(target=client.rings.take, daemon=True)
    taker.start()
    taker.join(PATIENCE)
    assert not taker.is_alive()


def test_a_ring_of_a_closed_connection_is_closed(shared: Node) -> None:
    client = bowstring.connect(shared.url)
    batches = photos(client).batches(16)
    next(batches)
    rows = bowstring.connect(shared.url)
    assert rings(rows)["rings"] > 0
    client.rings.close()
    batches.close()
    until(lambda: rings(rows)["rings"] == 0, "rings is 0")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_slot_taken_during_the_release_of_streams_is_kept_for_the_child(shared: Node) -> None:
    ring = a_ring(bowstring.connect(shared.url))
    leases: list[Any] = []

    class Late:
        def _release(self) -> None:
            if not leases:
                leases.append(ring.take({"slot": 1, "buffers": []}))

    late = Late()
    fork.hold(late)
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert ring.forks == 1
    leases.clear()
    ring.close()


CHANGED = """
import sys, torch, bowstring
from bowstring.torch import BowstringDataset
crop = [{"Decode": {}}, {"Resize": {"size": [64, 64]}}]
made = {"operators": {"image": crop}, "global_batch_size": 32}
dataset = BowstringDataset(sys.argv[1], "photos", columns=["position", "image"], **made)
batches = dataset.dataset.batches(32)
batch = next(batches)
assert batches.place["transport"] == "shared"
from bowstring.torch._columns import batch_of
tensors = batch_of(batch)
tensors["image"] += 1
tensors["image"].zero_()
assert next(iter(dataset))["image"].zero_().sum() == 0
print("changed")
"""


def test_numbers_can_be_changed_in_place(shared: Node) -> None:
    done = subprocess.run([sys.executable, "-c", CHANGED, shared.url], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "changed"), done.stderr


LEFT = """
import sys, bowstring
kept = list(bowstring.connect(sys.argv[1]).dataset("photos").columns(["image"]).batches(16))
batches = bowstring.connect(sys.argv[1]).dataset("photos").columns(["image"]).batches(16)
kept.append(next(batches))
"""


def test_an_interpreter_ends_with_batches(shared: Node) -> None:
    done = subprocess.run([sys.executable, "-c", LEFT, shared.url], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


LOADED = """
import hashlib, sys
from torch.utils.data import DataLoader
from bowstring.torch import BowstringDataset

def digests(batch):
    images = [hashlib.sha256(b.numpy().tobytes()).hexdigest() for b in batch["image"]]
    return list(zip(batch["position"].tolist(), images))

def main():
    dataset = BowstringDataset(sys.argv[1], "photos", columns=["position", "image"], shuffle=3, global_batch_size=16)
    alone = sorted(d for batch in dataset for d in digests(batch))
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=sys.argv[2])
    assert sorted(d for batch in loader for d in digests(batch)) == alone
    print(len(alone))

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("how", ["fork", pytest.param("spawn", marks=pytest.mark.nightly)])
def test_workers_have_rings_of_their_own(shared: Node, tmp_path: Path, how: str) -> None:
    script = tmp_path / "loaded.py"
    script.write_text(LOADED)
    done = subprocess.run([sys.executable, script, shared.url, how], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "300"), done.stderr
    client = bowstring.connect(shared.url)
    assert rings(client)["given"] >= 3
    until(lambda: rings(client)["rings"] == 0, "rings is 0")
