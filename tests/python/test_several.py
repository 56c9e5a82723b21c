"""A stream by several connections is that by one: the same batches, the same tickets, in the same order."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import signal
import threading
from pathlib import Path
from typing import Any

import bowstring
import numpy as np
import pytest
from bowstring import _fork, _several
from bowstring._several import SeveralBatches
from conftest import StartNode
from local_photos import photos as shared_photos
from local_photos import rings
from wire import until


@pytest.fixture(autouse=True)
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that take the server to be on another node."""
    monkeypatch.setenv("BOWSTRING_LOCAL", "off")


def reading() -> list[str]:
    """The threads that read for a stream."""
    return [t.name for t in threading.enumerate() if t.name.startswith("bowstring-")]


def told(batches: bowstring.Batches) -> dict[str, Any]:
    """What came with a batch, but for times."""
    assert batches.place is not None
    return {name: value for name, value in batches.place.items() if name != "wait"}


SHAPES: dict[str, dict[str, Any]] = {
    "an epoch": {},
    "in order of position": {"shuffle": None},
    "a rank": {"rank": 1, "world_size": 3},
    "several epochs": {"epochs": 3},
    "several epochs that are not shuffled": {"epochs": 3, "shuffle": None},
    "epochs of fewer steps than connections": {"epochs": 4, "batch_size": 200},
    "large steps in several batches": {"batch_size": 150, "batch_bytes": 300_000, "epochs": 2},
}


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_what_one_reads(here: bowstring.Client, shape: str, count: int) -> None:
    """Batches, what comes with them, and where each ticket leads: to a stream of as many connections or of one."""
    given = dict(SHAPES[shape])
    dataset = here.dataset("photos", split="train").columns(["position", "image"])
    if (seed := given.pop("shuffle", 5)) is not None:
        dataset = dataset.shuffle(seed)
    if (most := given.pop("batch_bytes", None)) is not None:
        dataset = dataset.options(batch_bytes=most)
    size = given.pop("batch_size", 16)
    with dataset.batches(size, **given) as one:
        want = [(batch, told(one)) for batch in one]
    seed = random.randrange(2**32)
    print("seed", seed)
    stops = random.Random(seed).sample(range(len(want)), 2)
    with dataset.batches(size, connections=count, **given) as several:
        assert isinstance(several, SeveralBatches)
        for n, (batch, place) in enumerate(want):
            assert next(several).equals(batch), n
            assert told(several) == place
            if n not in stops:
                continue
            for more in (1, count, count + 1):
                with dataset.resume(several.ticket, connections=more) as rest:
                    for late, its in want[n + 1 :]:
                        assert next(rest).equals(late)
                        assert told(rest) | {"plan": its["plan"]} == its  # that is of the request's first epoch
                    assert next(rest, None) is None
        assert next(several, None) is None
    assert reading() == []


def test_a_part_of_an_epoch(photos: bowstring.Dataset) -> None:
    """A worker's ticket is divided, too, and one that begins within a step, and ends before the epoch does."""
    dataset = photos.columns(["position"]).shuffle(5)
    for ticket in (
        dataset.ticket(batch=16) | {"step": 1, "stride": 3},
        dataset.ticket(batch=16) | {"step": 2, "row": 5},
        dataset.ticket(batch=16) | {"step": 2, "stop": 4},
        dataset.ticket(batch=16) | {"step": 3, "stop": 3},
        dataset.ticket(batch=16) | {"step": 1, "stride": 3, "epochs": 2, "row": 16},
    ):
        with dataset.resume(ticket) as one, dataset.resume(ticket, connections=4) as several:
            for batch in one:
                assert next(several).equals(batch), ticket
                assert told(several) == told(one)
            assert next(several, None) is None
    assert reading() == []


def test_what_cannot_be_divided(photos: bowstring.Dataset) -> None:
    counts: list[Any] = [0, -1, _several.MOST + 1, 2.5, "4", None]
    for count in counts:
        with pytest.raises(bowstring.InvalidRequest, match=f"connections: got {count!r}, want 1 to 64"):
            photos.batches(16, connections=count)
    two: Any = np.int64(2)  # as whole a number as any
    with photos.batches(16, connections=two) as batches:
        assert next(batches).num_rows == 16
    for order in ("free", "window:2"):
        with pytest.raises(bowstring.InvalidRequest, match=f"connections: got 2 with order '{order}', want 1"):
            photos.options(order=order).batches(16, connections=2)
    crops = (
        photos.columns(["image"]).operators(image=[{"Decode": {}}, {"CenterCrop": {"size": 8}}]).options(place="client")
    )
    with pytest.raises(bowstring.InvalidRequest, match="connections: got 2 with operators at the client, want 1"):
        crops.batches(16, connections=2)


@pytest.mark.parametrize("end", ["close", "forget", "from another thread"])
def test_it_ends_early(photos: bowstring.Dataset, end: str) -> None:
    client = photos.client
    batches = photos.shuffle(5).batches(2, epochs=50, connections=3)
    list(itertools.islice(batches, 7))
    assert len(reading()) == 3
    if end == "close":
        batches.close()
        assert next(batches, None) is None
    elif end == "forget":
        del batches
    else:
        closing = threading.Thread(target=batches.close)
        closing.start()
        for _ in batches:
            pass
        closing.join()
    until(lambda: not reading(), "the end of its threads")
    until(lambda: not client.stats()["streams"], "the end of all streams")


@pytest.mark.timeout(60)
def test_it_ends_though_its_server_is_silent(start: StartNode) -> None:
    """A call without an answer cannot be ended: whoever waits for it is woken, and it is ended when it is answered."""
    node = start()
    photos = bowstring.connect(node.url).dataset("photos").columns(["position"])
    photos.schema  # noqa: B018 - asked for while there is an answer
    batches = photos.batches(2, connections=3)
    os.kill(node.pid, signal.SIGSTOP)
    try:
        waiting = threading.Thread(target=lambda: next(batches, None))
        waiting.start()
        until(lambda: len(reading()) == 3, "threads that make calls")
        batches.close()
        waiting.join()
        assert reading() == []
    finally:
        os.kill(node.pid, signal.SIGCONT)
    until(lambda: not photos.client.stats()["streams"], "the end of all streams")


@pytest.mark.timeout(60)
def test_it_ends_where_nobody_may_connect(photos: bowstring.Dataset) -> None:
    """The collector may run in a thread that makes a connection, or forks, which the stream's own wait for."""
    batches = photos.batches(2, epochs=50, connections=3)
    next(batches)
    assert isinstance(batches, SeveralBatches)
    assert batches._readers is not None
    with _fork.connecting():
        for part in batches._readers._parts:
            part.batches._let_go()  # they make their calls again
        del part
        batches.close()
    until(lambda: not reading(), "the end of its threads")
    until(lambda: not photos.client.stats()["streams"], "the end of all streams")


def test_it_fails_as_one_does(start: StartNode) -> None:
    """An error of one connection is the stream's, which goes on after what was given."""
    node = start()
    dataset = bowstring.connect(node.url, retries=0).dataset("photos").columns(["position", "image"]).shuffle(5)
    many = 40  # epochs: more than lies in buffers on the way
    want = [batch["position"].to_pylist() for batch in dataset.batches(10, epochs=many)]
    with dataset.batches(10, epochs=many, connections=3) as batches:
        got = [batch["position"].to_pylist() for batch in itertools.islice(batches, 9)]
        node.kill()
        with pytest.raises(bowstring.Unavailable):
            got.extend(batch["position"].to_pylist() for batch in batches)
        assert reading() == []
        node.start(f"127.0.0.1:{node.port}")
        got.extend(batch["position"].to_pylist() for batch in batches)
    assert got == want


def test_closing_waits_for_no_other_attempt(start: StartNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """What tries to reach a server that is gone waits for long, but not once its stream is closed."""
    node = start()
    dataset = bowstring.connect(node.url).dataset("photos").columns(["position", "image"]).shuffle(5)
    usual, waits = _several._Steps._sleep, threading.Event()

    def long(self: Any, _: float) -> None:
        waits.set()
        usual(self, 3600)

    monkeypatch.setattr(_several._Steps, "_sleep", long)
    batches = dataset.batches(2, epochs=50, connections=3)
    next(batches)
    node.kill()
    reader = threading.Thread(target=list, args=(batches,))
    reader.start()
    waits.wait()
    batches.close()
    reader.join()
    assert reading() == []


@pytest.mark.slow
def test_a_restart_loses_and_repeats_nothing(start: StartNode) -> None:
    node = start()
    dataset = bowstring.connect(node.url).dataset("photos").columns(["position", "image"]).shuffle(5)
    want = [batch["position"].to_pylist() for batch in dataset.batches(10, epochs=5)]
    got = []
    with dataset.batches(10, epochs=5, connections=3) as batches:
        for n, batch in enumerate(batches):
            got.append(batch["position"].to_pylist())
            if n in (3, 40):
                port = node.port
                node.kill()
                node.start(f"127.0.0.1:{port}")
    assert got == want


def _rest(batches: bowstring.Batches, queue: Any) -> None:
    queue.put([batch["position"].to_pylist() for batch in batches])


@pytest.mark.slow
def test_it_goes_on_after_a_fork(photos: bowstring.Dataset) -> None:
    """Parent and child have the rest each."""
    context = multiprocessing.get_context("fork")
    dataset = photos.columns(["position", "image"]).shuffle(5)
    want = [batch["position"].to_pylist() for batch in dataset.batches(10, epochs=4)]
    with dataset.batches(10, epochs=4, connections=3) as batches:
        got = [next(batches)["position"].to_pylist() for _ in range(5)]
        queue = context.SimpleQueue()
        child = context.Process(target=_rest, args=(batches, queue))
        child.start()
        theirs = queue.get()
        child.join()
        assert child.exitcode == 0
        assert got + theirs == want
        got += [batch["position"].to_pylist() for batch in batches]
        assert got == want


def test_where_memory_is_shared_one_reads(start: StartNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BOWSTRING_LOCAL")
    monkeypatch.setattr("bowstring._samenode._PATIENCE", 30.0)  # a machine may be busy; in the end it would be TCP
    node = start("--local", str(tmp_path / "socket"))
    client = bowstring.connect(node.url)
    with shared_photos(client).batches(16, connections=3) as batches:
        next(batches)
        assert batches.place is not None
        assert batches.place["transport"] == "shared"
        assert reading() == []
        assert rings(client)["rings"] == 1
