"""The process that runs operators at the client, where it does not answer, or others hold what leads to it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bowstring
import pytest
from bowstring._operators import exchange as local_exchange
from bowstring._operators import process as operator_process
from bowstring._operators import stream as local_stream
from place_photos import CROP, photos, store
from wire import PATIENCE

__all__ = ["photos", "store"]  # fixtures

# Answers the first frame, and no other. A child of it holds its ends of the pipes until the test ends.
SILENT = """#!{python}
import os, struct, sys
size, = struct.unpack("<I", os.read(0, 4))
while size:
    size -= len(os.read(0, size))
os.write(1, struct.pack("<I", 12) + b'{{"forms":{{}}}}')
os.fork()
open({held!r}).read()
"""


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[str]:
    """A program that does not answer."""
    held = tmp_path / "held"
    os.mkfifo(held)
    keep = os.open(held, os.O_RDWR)  # so that no thread sees its end before the test does
    program = tmp_path / "bowstring"
    program.write_text(SILENT.format(python=sys.executable, held=str(held)))
    program.chmod(0o755)
    yield str(program)
    os.close(keep)


@pytest.fixture
def crops(photos: bowstring.Dataset) -> bowstring.Dataset:
    return photos.columns(["position", "image"]).operators(image=CROP)


@pytest.mark.parametrize("where", ["_read", "_write"])
@pytest.mark.parametrize("reported", [True, False])
def test_closed_where_others_hold_the_pipes(
    silent: str, monkeypatch: pytest.MonkeyPatch, where: str, reported: bool
) -> None:
    """The end of the process wakes a waiting thread, though the pipes do not end."""
    monkeypatch.setenv("BOWSTRING_BINARY", silent)
    if not reported:  # as a kernel that does not report the end of a process
        monkeypatch.delattr(os, "pidfd_open")
    worker = operator_process.OperatorProcess({"image": {}}, 0)
    assert (worker._end is not None) == reported
    waiting = threading.Event()
    seen: list[object] = []

    def use() -> None:
        with worker._pipes:
            waiting.set()
            try:
                if where == "_read":
                    worker._read(1)
                else:
                    worker._write(memoryview(bytes(16 << 20)))  # more than pipes hold
            except bowstring.BowstringError as error:
                seen.append(error)

    user = threading.Thread(target=use)
    user.start()
    assert waiting.wait(PATIENCE)
    worker.close()
    user.join(PATIENCE)
    assert "status -9" in str(seen[0])
    assert isinstance(seen[0], bowstring.ServerError)
    for pipe in (worker._process.stdin, worker._process.stdout):
        assert pipe is not None
        assert pipe.closed
    worker.close()


class Turn:
    """A lock that says when somebody else wants it, too."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.wanted = 0
        self.by_two = threading.Event()

    def __enter__(self) -> None:
        self.wanted += 1
        if self.wanted == 2:
            self.by_two.set()
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()

    def acquire(self, timeout: float) -> bool:
        return self.lock.acquire(timeout=timeout)

    def release(self) -> None:
        self.lock.release()


def test_an_exchange_is_closed_under_takes(
    silent: str, crops: bowstring.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One waits for the process, and one for its turn: both end, and no other process is started."""
    monkeypatch.setenv("BOWSTRING_BINARY", silent)
    begun: list[operator_process.OperatorProcess] = []
    usual = operator_process.process_for

    def process_for(*args: Any) -> operator_process.OperatorProcess:
        begun.append(usual(*args))
        return begun[-1]

    monkeypatch.setattr(local_exchange, "process_for", process_for)
    exchange = crops.options(place="client").exchange()
    assert isinstance(exchange, local_exchange.LocalExchange)
    turn = Turn()
    exchange._turn = turn  # type: ignore[assignment]
    waits = threading.Event()
    receive = operator_process.OperatorProcess.receive

    def received(worker: operator_process.OperatorProcess) -> Any:
        waits.set()
        return receive(worker)

    monkeypatch.setattr(operator_process.OperatorProcess, "receive", received)
    seen: list[object] = []

    def take() -> None:
        try:
            seen.append(exchange.take([1, 3]))
        except bowstring.BowstringError as error:
            seen.append(error)

    takers = [threading.Thread(target=take) for _ in range(2)]
    for taker in takers:
        taker.start()
    assert waits.wait(PATIENCE)
    assert turn.by_two.wait(PATIENCE)
    exchange.close()
    for taker in takers:
        taker.join(PATIENCE)
    assert [type(found) for found in seen] == [bowstring.Cancelled, bowstring.Cancelled], seen
    assert len(begun) == 1
    assert begun[0]._process.returncode is not None
    assert exchange._worker is None


def test_a_process_starts_between_forks(crops: bowstring.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork by another thread waits: its child would hold the pipes of the process."""
    free: list[bool] = []
    usual = subprocess.Popen

    def popen(*args: Any, **options: Any) -> Any:
        def try_lock() -> None:
            free.append(operator_process._starting.acquire(blocking=False))

        other = threading.Thread(target=try_lock)
        other.start()
        other.join()
        return usual(*args, **options)

    monkeypatch.setattr(subprocess, "Popen", popen)
    with crops.options(place="client", on_error="null").batches(3) as batches:
        next(batches)
    assert free == [False]
    assert operator_process._starting.acquire(blocking=False)
    operator_process._starting.release()


def test_a_batch_that_is_too_large(crops: bowstring.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused before it is sent, and says what would be right. A caller that continues loses no row."""
    made = crops.options(on_error="null")
    whole = list(made.batches(3, epoch=3))
    most = operator_process._MOST
    monkeypatch.setattr(operator_process, "_MOST", 1000)
    batches = made.options(place="client").batches(3, epoch=3)
    assert isinstance(batches, local_stream.LocalBatches)
    with batches:
        with pytest.raises(
            bowstring.LimitExceeded, match=r"a batch of 3 rows has \d+ bytes.*at most 1000.*batch_bytes"
        ):
            batches._next()  # __next__ would try again
        monkeypatch.setattr(operator_process, "_MOST", most)
        assert list(batches) == whole


@pytest.mark.parametrize("on_error", ["fail", "null"])
def test_an_engine_that_is_not_there(crops: bowstring.Dataset, monkeypatch: pytest.MonkeyPatch, on_error: Any) -> None:
    """It is no fault of the sample, whatever on_error is: the stream fails, and the sample comes to who goes on."""
    made = crops.where("position % 2 == 0").options(on_error=on_error)  # none of them is damaged
    usual = operator_process.OperatorProcess.receive
    answers = 0

    def receive(worker: operator_process.OperatorProcess) -> Any:
        nonlocal answers
        answers += 1
        got, faults = usual(worker)
        if answers == 2:
            here = {"row": 0, "position": 6, "column": "image", "operator": "Decode", "cause": "no process"}
            faults = [*faults, {**here, "code": "UNAVAILABLE"}]
        return got, faults

    whole = list(made.batches(2, epoch=3))
    monkeypatch.setattr(operator_process.OperatorProcess, "receive", receive)
    batches = made.options(place="client").batches(2, epoch=3)
    assert isinstance(batches, local_stream.LocalBatches)
    with batches:
        assert next(batches) == whole[0]
        with pytest.raises(bowstring.Unavailable, match=r"position 6 .*no process"):
            batches._next()  # __next__ would try again
        assert list(batches) == whole[1:]
