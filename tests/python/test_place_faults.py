"""Operators at the client where something goes wrong: no row is lost, none comes twice, and nothing is left."""

from __future__ import annotations

import contextlib
import os
import random
import threading
from pathlib import Path
from typing import Any

import bowstring
import pyarrow as pa
import pytest
from bowstring._operators import process as operator_process
from bowstring._operators import stream as local_stream
from bowstring.stream import Batches
from place_photos import CROP, DAMAGED, LISTS, photos, store
from wire import PATIENCE

__all__ = ["photos", "store"]  # fixtures


def at_client(dataset: bowstring.Dataset, size: int = 3, **options: Any) -> local_stream.LocalBatches:
    batches = dataset.options(place="client", **options).batches(size, epoch=3)
    assert isinstance(batches, local_stream.LocalBatches)
    return batches


@pytest.fixture
def crops(photos: bowstring.Dataset) -> bowstring.Dataset:
    return photos.columns(["position", "image"]).operators(image=CROP)


def test_a_fault_stays_one(crops: bowstring.Dataset) -> None:
    """A caller that continues after a sample that fails gets the same failure, and no later row."""
    whole = list(crops.options(on_error="null").batches(3, epoch=3))
    first = next(i for i, b in enumerate(whole) if DAMAGED & set(b["position"].to_pylist()))
    batches = at_client(crops)
    with batches:
        assert [next(batches) for _ in range(first)] == whole[:first]
        for _ in range(3):
            with pytest.raises(bowstring.DataLoss, match="position"):
                next(batches)
            assert batches._worker is None
    with crops.resume({**batches.ticket, "on_error": "null"}) as rest:
        assert list(rest) == whole[first:]


class Interrupted(BaseException):
    """As KeyboardInterrupt, which pytest takes for its own."""


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("where", ["_write", "_read"])
def test_interrupted(crops: bowstring.Dataset, monkeypatch: pytest.MonkeyPatch, where: str, seed: int) -> None:
    """Wherever among the frames it is stopped, what comes next is what would have come."""
    made = crops.options(on_error="null")
    whole = list(made.batches(3, epoch=3))
    drawn = random.Random(seed)
    usual = getattr(operator_process.OperatorProcess, where)
    stopped = 0

    def sometimes(worker: operator_process.OperatorProcess, what: Any) -> Any:
        nonlocal stopped
        if stopped < 5 and drawn.random() < 0.2:
            stopped += 1
            raise Interrupted
        return usual(worker, what)

    monkeypatch.setattr(operator_process.OperatorProcess, where, sometimes)
    found: list[pa.RecordBatch] = []
    with at_client(made) as batches:
        while len(found) < len(whole):
            with contextlib.suppress(Interrupted):
                found.extend(batches)
        assert list(batches) == []
    assert stopped, f"seed {seed}: nothing was stopped"
    assert found == whole, f"seed {seed}"


def test_the_process_dies(crops: bowstring.Dataset) -> None:
    """A caller that continues has another process, and every row once."""
    made = crops.options(on_error="null")
    whole = list(made.batches(3, epoch=3))
    batches = at_client(made)
    with batches:
        found = [next(batches), next(batches)]
        assert batches._worker is not None
        batches._worker._process.kill()
        with pytest.raises(bowstring.ServerError, match="has ended with status -9"):
            found.extend(batches)  # it may have answered before
        assert found + list(batches) == whole


@pytest.mark.parametrize("where", ["send", "receive"])
def test_closed_by_another_thread(crops: bowstring.Dataset, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """A wait for a batch is cancelled: the stream has ended, and so has the process."""
    reached = threading.Event()
    closed = threading.Event()
    usual = getattr(operator_process.OperatorProcess, where)

    def held(worker: operator_process.OperatorProcess, *args: Any) -> Any:
        reached.set()
        assert closed.wait(PATIENCE)
        return usual(worker, *args)

    monkeypatch.setattr(operator_process.OperatorProcess, where, held)
    batches = at_client(crops, on_error="null")
    ended: list[object] = []

    def read() -> None:
        try:
            ended.append(next(batches))
        except (StopIteration, pa.ArrowException, bowstring.BowstringError, OSError, LookupError, ValueError) as error:
            ended.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    assert reached.wait(PATIENCE)
    assert batches._worker is not None
    process = batches._worker._process
    batches.close()
    closed.set()
    reader.join(PATIENCE)
    assert isinstance(ended[0], StopIteration), repr(ended)
    assert process.returncode is not None
    assert list(batches) == []


def test_closed_while_the_process_is_read(crops: bowstring.Dataset) -> None:
    """The process is ended first: its end wakes the waiting thread, not a pipe that is closed."""
    batches = at_client(crops, on_error="null")
    next(batches)
    assert batches._worker is not None
    worker = batches._worker
    waiting = threading.Event()
    seen: list[object] = []

    def read() -> None:
        with worker._pipes:
            waiting.set()
            try:
                while True:  # all that is on its way, and then what never comes
                    seen.append(worker._read(1))
            except bowstring.BowstringError as error:
                seen.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    assert waiting.wait(PATIENCE)
    batches.close()
    reader.join(PATIENCE)
    assert isinstance(seen[-1], bowstring.ServerError)
    assert "status -9" in str(seen[-1])
    assert worker._process.stdout is not None
    assert worker._process.stdout.closed


def test_closed_while_the_process_begins(crops: bowstring.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []
    usual = local_stream.LocalBatches._begin

    def begin(batches: local_stream.LocalBatches, schema: pa.Schema) -> operator_process.OperatorProcess:
        begun.append(usual(batches, schema))
        batches.close()
        return begun[-1]

    monkeypatch.setattr(local_stream.LocalBatches, "_begin", begin)
    assert list(at_client(crops)) == []
    assert begun[0]._process.returncode is not None


@pytest.mark.parametrize("name", LISTS)
def test_no_rows(photos: bowstring.Dataset, name: str) -> None:
    """A batch without rows becomes one, whatever buffers it has."""
    columns = ["position", "image", "image.params"]
    batches = at_client(photos.operators(image=LISTS[name]).columns(columns), on_error="null")
    with batches, Batches(photos.client, batches._asked()) as raw:
        one = next(raw)
        worker = batches._begin(one.schema)
        column = one.schema.get_field_index("image")
        kind = one.schema.field(column).type
        bare = one.slice(1, 0).set_column(
            column,
            one.schema.field(column),
            pa.Array.from_buffers(kind, 0, [None, pa.py_buffer(b""), pa.py_buffer(b"")]),
        )
        for empty in (one.slice(1, 0), bare):
            worker.send(empty, 3)
            made, faults = worker.receive()
            found = operator_process.assembled(batches._target(), empty, made, worker.forms)
            found.validate(full=True)
            assert (found.num_rows, faults) == (0, [])
            assert found.schema.equals(batches._target(), check_metadata=True)
        worker.close()


@pytest.mark.parametrize("kind", ["missing", "a folder", "not executable", "says nothing", "says another thing"])
def test_another_program(crops: bowstring.Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str) -> None:
    """It says what is wrong with the program, and what would be right."""
    program = tmp_path / "bowstring"
    if kind == "a folder":
        program.mkdir()
    elif kind != "missing":
        says = "printf '\\002\\000\\000\\000{}'" if kind == "says another thing" else "exit 3"
        program.write_text(f"#!/bin/sh\n{says}\n")
        program.chmod(0o644 if kind == "not executable" else 0o755)
    monkeypatch.setenv("BOWSTRING_BINARY", str(program))
    with pytest.raises(bowstring.Unsupported, match="BOWSTRING_BINARY") as caught:
        next(at_client(crops))
    assert str(program) in str(caught.value)
    monkeypatch.setenv("BOWSTRING_BINARY", os.devnull)
    with pytest.raises(bowstring.Unsupported, match=os.devnull):
        next(at_client(crops))


def test_failures_are_those_of_the_server() -> None:
    """Whatever `apply` says of a failure, the exception is the one that has its code."""
    for code in ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "DATA_LOSS", "UNIMPLEMENTED", "UNAVAILABLE", "INTERNAL"):
        assert operator_process.error_of(code, "why").code == code


def test_an_interrupt_is_not_for_the_program(crops: bowstring.Dataset) -> None:
    """A terminal interrupts all of a session: a trainer that survives goes on."""
    batches = at_client(crops, on_error="null")
    with batches:
        next(batches)
        assert batches._worker is not None
        assert os.getsid(batches._worker._process.pid) != os.getsid(0)
