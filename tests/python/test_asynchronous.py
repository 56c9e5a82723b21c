"""Calls that are awaited give what the others give, and a cancelled one leaves no thread that waits."""

from __future__ import annotations

import asyncio
import contextlib
import math
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bowstring
import pyarrow as pa
import pytest
from bowstring._cancellation import Cancellation
from bowstring._local import attach, servers
from bowstring._transport import background
from node import Node
from relay import Relay
from wire import PATIENCE


@pytest.fixture
def relay(node: Node, monkeypatch: pytest.MonkeyPatch) -> Iterator[Relay]:
    """A way to the server that may fall silent."""
    monkeypatch.setenv("BOWSTRING_LOCAL", "off")
    with Relay(node.port) as found:
        yield found


def no_thread_waits() -> None:
    """Threads of calls are idle or have ended."""
    end = time.monotonic() + PATIENCE
    while True:
        there = [thread for thread in threading.enumerate() if thread.name == "bowstring waits"]
        if len(there) <= len(background._idle):
            return
        assert time.monotonic() < end, there
        time.sleep(0.01)


def test_calls_give_the_same(here: bowstring.Client) -> None:
    name = f"async-{uuid.uuid4().hex[:8]}"

    async def calls() -> None:
        client = bowstring.asynchronous(here)
        photos = await client.dataset("photos", split="train")
        rows = bowstring.asynchronous(photos)
        assert photos == here.dataset("photos", split="train")
        assert "take" in dir(rows)
        assert await rows.num_rows == photos.num_rows
        assert await rows.where("label < 3") == photos.where("label < 3")
        assert client.uri == here.uri
        take = bowstring.asynchronous(photos.columns(["position"]).take)
        found = await asyncio.gather(*(take([n, 3]) for n in range(20)))
        assert [table["position"].to_pylist() for table in found] == [[n, 3] for n in range(20)]
        with pytest.raises(bowstring.NotFound):
            await client.dataset("nothing")
        made = await client.ingest(name, pa.table({"n": [1, 2]}), progress=False)
        assert made.rows == 2
        await client.drop(name)
        narrow = bowstring.asynchronous(photos.columns(["label"]))
        assert await narrow.to_arrow() == photos.columns(["label"]).to_arrow()

    asyncio.run(calls())
    no_thread_waits()


CALLS: dict[str, Callable[[bowstring.Dataset], Any]] = {
    "take": lambda photos: bowstring.asynchronous(photos.take)([1]),
    "to_arrow": lambda photos: bowstring.asynchronous(photos.to_arrow)(),
    "schema": lambda photos: bowstring.asynchronous(photos.columns)(["width"]),
    "an action": lambda photos: bowstring.asynchronous(photos.client).stats(),
}


@pytest.mark.parametrize("connected", [True, False], ids=["connected", "new"])
@pytest.mark.parametrize("name", CALLS)
def test_a_cancelled_call(relay: Relay, name: str, connected: bool) -> None:
    """The server is silent. The task ends when it is cancelled, and so does the thread; the next call succeeds."""
    photos = bowstring.connect(relay.url).dataset("photos")
    _ = photos.schema
    if not connected:
        photos.client.close()
    relay.falls_silent()

    async def cancelled() -> None:
        task = asyncio.create_task(CALLS[name](photos))
        await asyncio.to_thread(relay.waits_for_a_client)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    no_thread_waits()
    relay.talks()
    assert asyncio.run(CALLS[name](photos)) is not None


def test_the_end_of_a_stream(here: bowstring.Client) -> None:
    """Futures of asyncio take no StopIteration: the task would wait for ever."""
    photos = here.dataset("photos").columns(["position"])

    async def all_batches() -> int:
        rows = 0
        with photos.batches(200) as batches, contextlib.suppress(StopAsyncIteration):
            while True:
                rows += (await bowstring.asynchronous(next)(batches)).num_rows
        return rows

    assert asyncio.run(asyncio.wait_for(all_batches(), PATIENCE)) == photos.num_rows


def test_a_stream_goes_on_after_a_cancelled_read(relay: Relay) -> None:
    """The next call returns the batch that the cancelled one did not."""
    photos = bowstring.connect(relay.url).dataset("photos").columns(["position"])
    with photos.batches(64) as batches:
        rows = next(batches)["position"].to_pylist()
        relay.falls_silent()

        async def cancelled() -> None:
            task = asyncio.create_task(bowstring.asynchronous(next)(batches))
            await asyncio.sleep(0.1)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                rows.extend((await task)["position"].to_pylist())  # it may have come before the silence

        asyncio.run(cancelled())
        relay.talks()
        for batch in batches:
            rows += batch["position"].to_pylist()
    assert rows == list(range(photos.num_rows))


def test_a_cancelled_wait_for_a_lock(tmp_path: Path) -> None:
    """Another process may hold it for hours."""
    with servers.locked(tmp_path / "lock", PATIENCE):

        async def cancelled() -> None:
            task = asyncio.create_task(bowstring.asynchronous(hold)(tmp_path / "lock"))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(cancelled())
    no_thread_waits()


def hold(path: Path) -> None:
    with servers.locked(path, math.inf):
        pass


def test_a_cancelled_pause() -> None:
    """The task does not wait for the next attempt at a server that is away."""
    client = bowstring.connect("grpc://127.0.0.1:1", retries=5)
    photos = bowstring.Dataset(client, "photos", 1, None, 300)
    slept = threading.Event()

    def sleep(cancellation: Cancellation, _: float) -> None:
        slept.set()
        cancellation._over.wait()
        cancellation.check()

    async def cancelled() -> None:
        task = asyncio.create_task(bowstring.asynchronous(next)(photos.batches(1, rank=0, world_size=1)))
        await asyncio.to_thread(slept.wait, PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with pytest.MonkeyPatch.context() as during:
        during.setattr(Cancellation, "sleep", sleep)
        asyncio.run(cancelled())
    no_thread_waits()


def test_a_cancelled_upload(here: bowstring.Client) -> None:
    """Nothing is stored, although batches were sent."""
    name = f"async-{uuid.uuid4().hex[:8]}"
    sent, goes_on = threading.Event(), threading.Event()

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"n": [1]})
        sent.set()
        goes_on.wait(PATIENCE)
        yield pa.record_batch({"n": [2]})

    async def cancelled() -> None:
        task = asyncio.create_task(bowstring.asynchronous(here.ingest)(name, batches(), progress=False))
        await asyncio.to_thread(sent.wait, PATIENCE)
        task.cancel()
        await asyncio.sleep(0)  # the task cancels its call
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert not here.datasets(name)
    no_thread_waits()


def test_a_cancelled_attach(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program that attaches is ended."""
    begun: list[subprocess.Popen[str]] = []
    started = threading.Event()
    usual = subprocess.Popen

    def popen(*args: Any, **options: Any) -> subprocess.Popen[str]:
        begun.append(usual(*args, **options))
        return begun[-1]

    def bar(*_: Any) -> Any:
        started.set()
        return contextlib.nullcontext(type("Bar", (), {"total": None, "n": 0, "update": lambda *_: None})())

    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setattr(attach, "progress_bar", bar)
    script = 'import sys, time; print(\'{"rows": 0, "of": 0}\', file=sys.stderr, flush=True); time.sleep(600)'

    async def cancelled() -> None:
        run = bowstring.asynchronous(attach._run)
        task = asyncio.create_task(run([sys.executable, "-c", script], "photos", "attach", progress=False))
        await asyncio.to_thread(started.wait, PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert begun[0].returncode is not None
    no_thread_waits()
