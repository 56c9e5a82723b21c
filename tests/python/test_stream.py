"""Streams that break go on where they stood: every row comes once."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bowstring
import pyarrow as pa
import pytest
from conftest import StartNode
from wire import PATIENCE, RETRIES, until

EVERY = list(range(300))


def slow(client: bowstring.Client) -> bowstring.Dataset:
    """Batches that together exceed the buffers between server and client."""
    return client.dataset("photos").columns(["position", "image"]).shuffle(5)


@pytest.mark.parametrize("order", ["strict", "window:2", "free"])
@pytest.mark.parametrize("end", ["kill", "terminate"])
@pytest.mark.slow
def test_a_restart_loses_and_repeats_nothing(start: StartNode, end: str, order: str) -> None:
    node = start("--drain-timeout=100ms")
    dataset = slow(bowstring.connect(node.url, retries=RETRIES)).options(order=order)
    rows: dict[int, list[int]] = {}
    later = threading.Thread()
    with dataset.batches(10, epochs=3) as batches:
        for n, batch in enumerate(batches):
            assert batches.place is not None
            rows.setdefault(batches.place["epoch"], []).extend(batch["position"].to_pylist())
            if n in (3, 40):
                if later.ident:
                    later.join()  # what comes may have been sent by the server that has gone
                port = node.port
                if end == "kill":
                    node.kill()
                else:
                    node.stop()
                later = threading.Timer(0.3, node.start, [f"127.0.0.1:{port}"])
                later.start()
    later.join()
    assert {epoch: sorted(seen) for epoch, seen in rows.items()} == {0: EVERY, 1: EVERY, 2: EVERY}


def test_it_stops_retrying(start: StartNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node = start()
    dataset = slow(bowstring.connect(node.url, retries=2))
    batches = dataset.batches(1, epochs=100)
    next(batches)
    node.kill()
    waits: list[float] = []
    with monkeypatch.context() as here:
        here.setattr(time, "sleep", waits.append)
        with pytest.raises(bowstring.Unavailable):
            for _ in batches:
                pass
    (wait,) = waits  # between two attempts
    assert 0.25 <= wait <= 0.5
    # It can be tried again later, and goes on after the last batch.
    ticket = batches.ticket
    node.start(f"127.0.0.1:{node.port}")
    end = time.monotonic() + PATIENCE
    while True:
        try:
            next(batches)
            break
        except bowstring.Unavailable:  # gRPC waits before it connects once more
            assert time.monotonic() < end
    again = dataset.resume(ticket)
    next(again)
    assert batches.place is not None
    assert again.place is not None
    assert {k: batches.place[k] for k in ("step", "row", "epoch")} == {
        k: again.place[k] for k in ("step", "row", "epoch")
    }
    batches.close()
    again.close()


def test_it_comes_again_when_the_server_says(start: StartNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tenants.yaml"
    file.write_text("tenants: [{name: default, ceilings: {streams: 1}}]\n")
    node = start(f"--tenants={file}")
    first = slow(bowstring.connect(node.url)).batches(1, epochs=100)
    next(first)
    with pytest.raises(bowstring.LimitExceeded, match=r'tenant\.streams: tenant "default" may have 1') as refused:
        next(slow(bowstring.connect(node.url, retries=0)).batches(1))
    assert refused.value.retry_after is not None
    assert 0.5 < refused.value.retry_after < 3
    waits: list[float] = []
    sleep = time.sleep

    def until_the_first_has_ended(seconds: float) -> None:
        waits.append(seconds)
        first.close()
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", until_the_first_has_ended)
    with slow(bowstring.connect(node.url)).batches(1) as second:
        assert next(second).num_rows == 1
    assert waits[0] > 1  # as the server has said; by itself it waits less


def test_no_retries(start: StartNode) -> None:
    node = start()
    batches = slow(bowstring.connect(node.url, retries=0)).batches(1, epochs=100)
    next(batches)
    node.kill()
    with pytest.raises(bowstring.Unavailable):
        for _ in batches:
            pass


def test_resume_by_ticket(here: bowstring.Client) -> None:
    dataset = here.dataset("photos").columns(["position"]).shuffle(9)
    whole = [batch["position"].to_pylist() for batch in dataset.batches(16, epochs=2)]
    for stop in range(0, len(whole), 7):
        first = dataset.batches(16, epochs=2)
        seen = [next(first)["position"].to_pylist() for _ in range(stop)]
        first.close()
        rest = [batch["position"].to_pylist() for batch in dataset.resume(first.ticket)]
        assert seen + rest == whole
    with pytest.raises(bowstring.InvalidRequest, match="photos@1"):
        dataset.resume({"dataset": "other", "snapshot": 1})


def test_place_and_waits(here: bowstring.Client) -> None:
    batches = here.dataset("photos").batches(100)
    assert not batches.place
    assert batches.ticket["step"] == 0
    steps: list[int] = []
    for batch in batches:
        assert batches.place is not None
        assert batches.place["rows"] == batch.num_rows
        assert "resume" not in batches.place
        steps.append(batches.place["step"])
    assert steps == [0, 1, 2]
    assert batches.ticket["step"] == 3
    assert set(batches.waits) == {"store", "spill", "peer", "window", "encode", "consumer"}
    assert 0 < batches.waited < 300  # seconds
    assert next(batches, None) is None  # it stays at its end


def streams(client: bowstring.Client, plan: str) -> int:
    return sum(s.get("plan") == plan for s in client.stats()["streams"])


def begun(client: bowstring.Client, seed: int) -> tuple[bowstring.Batches, str]:
    batches = client.dataset("photos").shuffle(seed).batches(1, epochs=1000)
    next(batches)
    assert batches.place is not None
    plan = batches.place["plan"]
    assert streams(client, plan) == 1
    return batches, plan


def test_close_ends_the_call(here: bowstring.Client) -> None:
    batches, plan = begun(here, 21)
    batches.close()
    until(lambda: streams(here, plan) == 0, "the end of the stream")
    assert next(batches, None) is None
    batches.close()


def test_leaving_the_block_ends_the_call(here: bowstring.Client) -> None:
    batches, plan = begun(here, 22)
    with pytest.raises(RuntimeError, match="mine"), batches:
        raise RuntimeError("mine")
    until(lambda: streams(here, plan) == 0, "the end of the stream")


def test_forgetting_it_ends_the_call(here: bowstring.Client) -> None:
    batches, plan = begun(here, 23)
    del batches
    gc.collect()
    until(lambda: streams(here, plan) == 0, "the end of the stream")


def test_close_from_another_thread(here: bowstring.Client) -> None:
    batches, _ = begun(here, 24)
    count = 0
    reads = threading.Event()

    def close() -> None:
        assert reads.wait(PATIENCE)
        batches.close()

    closer = threading.Thread(target=close)
    closer.start()
    for _ in batches:  # ends as if there were no more
        count += 1
        reads.set()
    closer.join()
    assert 0 < count < 1000 * len(EVERY)


@pytest.mark.parametrize("where", ["off", "shared"])
def test_an_interrupt_loses_nothing(
    start: StartNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """If a signal's handler raises after a batch was read and before it is delivered, the batch comes again."""
    if where == "off":
        monkeypatch.setenv("BOWSTRING_LOCAL", "off")
    node = start("--local", str(tmp_path / "socket"))
    photos = bowstring.connect(node.url).dataset("photos").columns(["position", "image"])

    class Interrupted:
        first = True

        def __init__(self, reader: Any) -> None:
            self.reader = reader

        def read_chunk(self) -> Any:
            chunk, first, self.first = self.reader.read_chunk(), self.first, False
            if first:
                raise KeyboardInterrupt
            return chunk

        def cancel(self) -> None:
            self.reader.cancel()

    with photos.batches(50) as batches:
        seen = next(batches)["position"].to_pylist()
        batches._reader = Interrupted(batches._reader)
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        for batch in batches:
            seen += batch["position"].to_pylist()
    assert seen == list(range(300))


def test_no_batch(here: bowstring.Client) -> None:
    nothing = here.dataset("photos").where("width < 0")
    assert nothing.num_rows == 0
    assert list(nothing.batches()) == []
    assert nothing.to_arrow().num_rows == 0
    assert nothing.to_arrow().schema.equals(nothing.schema)


def test_ranks_share_each_step(here: bowstring.Client) -> None:
    dataset = here.dataset("photos", split="train").columns(["position"]).shuffle(1)

    def parts(world: int) -> Iterator[list[int]]:
        readers = [iter(dataset.batches(30, rank=rank, world_size=world)) for rank in range(world)]
        for batches in zip(*readers, strict=True):
            yield sorted(p for batch in batches for p in batch["position"].to_pylist())

    expected: list[Any] = list(parts(1))
    assert len(expected) == 9
    assert list(parts(2)) == expected
    assert list(parts(3)) == expected


def test_async(photos: bowstring.Dataset) -> None:
    """Asynchronous tasks get the same batches, and a task that is cancelled loses none."""
    expected = pa.Table.from_batches(photos.columns(["position"]).batches(16, rank=0, world_size=1))

    async def read() -> list[pa.RecordBatch]:
        found = []
        async with photos.columns(["position"]).batches(16, rank=0, world_size=1) as batches:
            waiting = asyncio.ensure_future(batches.__anext__())
            await asyncio.sleep(0)  # the task has begun to wait
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                found.append(await waiting)
            found += [batch async for batch in batches]
        return found

    assert pa.Table.from_batches(asyncio.run(read())) == expected

    async def several() -> list[int]:
        async def rows(epoch: int) -> int:
            return sum([b.num_rows async for b in photos.batches(16, epoch=epoch, rank=0, world_size=1)])

        return await asyncio.gather(*map(rows, range(4)))

    assert asyncio.run(several()) == [photos.num_rows] * 4
