"""Blobs that are read in place in the server's files are the same, and stay so whatever happens to the files."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bowstring
import pyarrow as pa
import pytest
from bowstring._transport.views import with_views
from conftest import StartNode
from local_photos import Seen, digests, photos, rings, ways
from node import Node
from wire import PATIENCE, until

StartFar = Callable[..., Node]


@pytest.fixture
def shared(start: StartNode, tmp_path: Path) -> Node:
    """A server whose blobs are in the files of its embedded store."""
    return start("--local", str(tmp_path / "socket"), "--local-ring=16MiB", "--local-references")


@pytest.fixture
def far(imported: Path, lab: Path, tmp_path: Path) -> Iterator[StartFar]:
    """Start servers of the test's own that keep a third of the photographs in a spill, and fewer in windows.

    A window that holds all photographs takes the next epoch's from itself: the spill is asked for nothing then.
    """
    started: list[Node] = []
    store = tmp_path / "store"
    shutil.copytree(imported, store)
    size = "16MiB"
    flags = ["--spill", str(tmp_path / "spill"), "--spill-bytes", size, "--spill-min-bytes", size]
    flags += ["--spill-keep-free=1MiB", "--spill-policy=lru", "--local", str(tmp_path / "socket"), "--local-ring=16MiB"]
    flags += ["--local-references", "--local-pinned=8MiB"]
    flags += ["--window-memory=8MiB"]

    def begin() -> Node:
        log = tmp_path / f"far{len(started)}.log"
        own = Node(lab, store, "--rtt", "1ms", *flags, log=log)
        own.start()
        started.append(own)
        return own

    yield begin
    for own in started:
        own.kill()


def by_tcp(node: Node, monkeypatch: pytest.MonkeyPatch) -> Seen:
    with monkeypatch.context() as off:
        off.setenv("BOWSTRING_LOCAL", "off")
        seen: Seen = {}
        for batch in photos(bowstring.connect(node.url)).batches(16):
            seen.update(digests(batch))
    assert len(seen) == 300
    return seen


@pytest.mark.parametrize("layout", ["large_binary", "binary", "huggingface"])
def test_the_same_bytes_come(shared: Node, monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    seen: Seen = {}
    came = set()
    client = bowstring.connect(shared.url)
    for batch, way in ways(photos(client, layout=layout).batches(16, references=True)):
        seen.update(digests(batch))
        came.add(way)
        assert pa.types.is_struct(batch["image"].type) or batch["image"].type == pa.binary_view()
    assert seen == by_tcp(shared, monkeypatch)
    assert came == ({"shared"} if layout == "huggingface" else {"referenced"})
    assert (rings(client)["referred"] > 0) == (layout != "huggingface")
    del batch
    gc.collect()
    until(lambda: rings(client)["pinned"] == 0, "pinned is 0")


def test_whatever_way_it_comes_the_schema_is_one(shared: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    client = bowstring.connect(shared.url)
    assert "shared" in {way for _, way in ways(photos(client).batches(16))}  # who does not ask gets none
    here = list(photos(client).batches(16, references=True))
    monkeypatch.setenv("BOWSTRING_LOCAL", "off")
    there = list(photos(bowstring.connect(shared.url)).batches(16, references=True))
    assert pa.Table.from_batches(here + there).num_rows == 600
    assert [digests(a) for a in here] == [digests(b) for b in there]


def test_a_batch_holds_its_own_bytes_alone(shared: Node) -> None:
    """A copy of a batch, to another process for instance, copies no file of the server's."""
    with photos(bowstring.connect(shared.url)).batches(16, references=True) as batches:
        batch = next(batches)
        image = batch["image"]
        size = sum(len(value) for value in image.to_pylist())
        assert size <= image.nbytes < size + 100_000
        assert digests(pickle.loads(pickle.dumps(batch))) == digests(batch)
        assert image.cast(pa.large_binary()).to_pylist() == image.to_pylist()


def test_who_keeps_everything_gets_the_rest_copied(shared: Node) -> None:
    client = bowstring.connect(shared.url)
    kept, now, came = [], [], []
    with photos(client).batches(16, epochs=30, references=True) as batches:
        for batch, way in ways(batches):
            came.append(way)
            kept.append(batch)
            now.append(digests(batch))
            if len(set(came)) == 3:
                break
    assert came[0] == "referenced"
    assert set(came) == {"referenced", "shared", "tcp"}
    assert [digests(batch) for batch in kept] == now
    stats = rings(client)
    assert 0 < stats["pinned"] <= 256 << 20  # a quarter of what all may have
    assert stats["copied"] > 0
    kept.clear()
    del batch
    gc.collect()
    until(lambda: rings(client)["pinned"] == 0 == rings(client)["held"], "nothing is pinned")


def test_what_is_read_is_not_evicted(far: StartFar, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the spill takes other blobs in many times over."""
    node = far()
    client = bowstring.connect(node.url)
    want = by_tcp(node, monkeypatch)
    kept: list[tuple[pa.RecordBatch, Seen]] = []
    came = set()
    evicted = 0
    for batch, way in ways(photos(client).batches(8, epochs=20_000, references=True)):
        seen = digests(batch)
        assert seen.items() <= want.items()
        came.add(way)
        kept.append((batch, seen))
        kept = kept[-5:]
        evicted = client.stats()["engine"]["spill"]["evicted"]
        if evicted > 100 and "referenced" in came:
            break  # the busier the machine is, the less of an epoch the spill takes in
    assert "referenced" in came
    assert evicted > 100
    assert all(digests(batch) == seen for batch, seen in kept)
    del batch
    kept.clear()
    gc.collect()
    until(lambda: rings(client)["pinned"] == 0, "pinned is 0")


def referenced(node: Node, want: Seen, keep: int = 4) -> list[tuple[pa.RecordBatch, Seen]]:
    """Batches that are in the spill, at least partly."""
    kept = []
    for batch, way in ways(photos(bowstring.connect(node.url)).batches(8, epochs=20_000, references=True)):
        if way == "referenced":
            seen = digests(batch)
            assert seen.items() <= want.items()
            kept.append((batch, seen))
            if len(kept) == keep:
                break
    assert len(kept) == keep
    return kept


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_what_was_read_outlives_the_server(far: StartFar, monkeypatch: pytest.MonkeyPatch, how: signal.Signals) -> None:
    """The one that comes after it evicts, too, but not what somebody reads still."""
    node = far()
    want = by_tcp(node, monkeypatch)
    kept = referenced(node, want)
    os.kill(node.pid, how)
    node.wait()
    after = far()
    client = bowstring.connect(after.url)
    for _ in range(6):
        for batch in photos(client).batches(8, epochs=4):
            assert digests(batch).items() <= want.items()
        assert all(digests(old) == seen for old, seen in kept)
    kept.clear()
    gc.collect()

    def evicts() -> bool:
        before = client.stats()["engine"]["spill"]["evicted"]
        for batch in photos(client).batches(8):
            assert digests(batch).items() <= want.items()
        return bool(client.stats()["engine"]["spill"]["evicted"] > before)

    until(evicts, "the spill evicts again")


def _child(batch: pa.RecordBatch, before: Seen, go: Any, answer: Any) -> None:
    go.wait()
    answer.put(digests(batch) == before)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_keeps_what_its_parent_releases(far: StartFar, monkeypatch: pytest.MonkeyPatch) -> None:
    node = far()
    client = bowstring.connect(node.url)
    want = by_tcp(node, monkeypatch)
    kept = referenced(node, want, 1)
    context = multiprocessing.get_context("fork")
    go, answer = context.Event(), context.Queue()
    child = context.Process(target=_child, args=(*kept[0], go, answer))
    child.start()
    kept.clear()
    gc.collect()
    for _ in photos(client).batches(8, epochs=8):  # evicts all that it may
        pass
    go.set()
    assert answer.get(timeout=PATIENCE)
    child.join()
    until(lambda: rings(client)["pinned"] == 0, "pinned is 0")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_parent_keeps_what_its_child_releases(far: StartFar, monkeypatch: pytest.MonkeyPatch) -> None:
    node = far()
    client = bowstring.connect(node.url)
    kept = referenced(node, by_tcp(node, monkeypatch), 1)
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)
    for _ in photos(client).batches(8, epochs=8):
        pass
    assert all(digests(batch) == seen for batch, seen in kept)
    kept.clear()
    gc.collect()
    until(lambda: rings(client)["pinned"] == 0, "pinned is 0")


def test_a_closed_connection_keeps_blobs_that_are_read(far: StartFar, monkeypatch: pytest.MonkeyPatch) -> None:
    node = far()
    want = by_tcp(node, monkeypatch)
    client = bowstring.connect(node.url)
    kept = referenced(node, want)
    gc.collect()  # the connection that they came by
    assert rings(client)["pinned"] > 0
    for _ in photos(client).batches(8, epochs=8):
        pass
    assert all(digests(batch) == seen for batch, seen in kept)


KILLED = """
import sys, bowstring
batches = bowstring.connect(sys.argv[1]).dataset("photos").columns(["image"]).batches(16, epochs=100, references=True)
kept = [next(batches) for _ in range(3)]
print(batches.place["transport"], flush=True)
sys.stdin.read()
"""


def test_a_client_that_dies_pins_nothing(shared: Node) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, shared.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "referenced"
        client = bowstring.connect(shared.url)
        assert rings(client)["pinned"] > 0
        process.kill()
        process.wait()
    until(lambda: rings(client)["pinned"] == 0, "pinned is 0")


def test_a_ring_ends_with_its_server_whatever_it_has_not_heard(shared: Node) -> None:
    """A file that was handed over for a batch which was not read."""
    batches = photos(bowstring.connect(shared.url)).batches(16, references=True)
    batches._open().read_chunk()
    ring = batches._ring
    assert ring is not None
    batches.close()
    assert ring.alive
    assert ring._files
    shared.kill()
    assert not ring.alive


LEFT = """
import sys, bowstring
dataset = bowstring.connect(sys.argv[1]).dataset("photos").columns(["image"])
kept = list(dataset.batches(16, references=True))
batches = dataset.batches(16, references=True)
kept.append(next(batches))
"""


def test_an_interpreter_ends_with_batches(shared: Node) -> None:
    done = subprocess.run([sys.executable, "-c", LEFT, shared.url], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--tenants", "tenants.yaml"], "--local-references and --tenants exclude each other"),
        (["--rules", "rules.yaml"], "--local-references and --rules exclude each other"),
        (["--store", "cql://127.0.0.1:1/nowhere"], "there is no spill"),
    ],
)
def test_where_others_could_read_it_is_refused(binary: Path, tmp_path: Path, flags: list[str], says: str) -> None:
    local = ["--local", str(tmp_path / "socket"), "--local-references", "--listen", "127.0.0.1:0"]
    store = [] if "--store" in flags else ["--store", str(tmp_path / "store")]
    done = subprocess.run([binary, "serve", *store, *local, *flags], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert says in done.stderr


def test_operators_at_the_client_get_no_references(shared: Node) -> None:
    dataset = photos(bowstring.connect(shared.url)).operators(image=[{"Decode": {}}]).options(place="client")
    with pytest.raises(bowstring.InvalidRequest, match="references"):
        dataset.batches(16, references=True)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_views_of_what_came_by_the_connection(kind: pa.DataType) -> None:
    values = [b"", None, b"a", b"x" * 12, b"y" * 13, None, bytes(range(256)), b""]
    for column in (pa.array(values, kind), pa.array([b"before", *values, b"after"], kind).slice(1, len(values))):
        batch = with_views(pa.record_batch({"v": column, "n": pa.array(range(len(values)))}))
        batch.validate(full=True)
        assert batch["v"].type == pa.binary_view()
        assert batch["v"].to_pylist() == values
    empty = with_views(pa.record_batch({"v": pa.array([], kind)}))
    assert empty["v"].to_pylist() == []
    same = pa.record_batch({"n": pa.array([1])})
    assert with_views(same) is same
