"""A client process of a long run: it reads, checks, and says what it has found, until its standard input ends.

    python -m soak.client KIND '{"urls": [...], "seed": N, ...}'

A kind is a module of soak.clients with a class `Client`. Each turn of it is a line of JSON on the standard output:
`rows`, `wrong`, `lost`, `doubled`, `broken` streams with the last `errors`, and what the process holds: `arrow` bytes
and `objects` of Python. In between, at most once a second, a line `{}` says that the client goes on. A client whose
server is away repeats what it does: the sum of the turns is exact whatever breaks.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import importlib
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import bowstring
import pyarrow as pa
import pyarrow.flight as fl
from bowstring.errors import BowstringError, LimitExceeded, TimedOut, Unavailable

from soak import content

PAUSE = 0.5  # seconds before what failed is repeated
COLUMNS = ["position", "key", "image"]
AWAY = (Unavailable, TimedOut, fl.FlightUnavailableError, fl.FlightTimedOutError, ConnectionError)


class OverError(Exception):
    """The run is over."""


class Reader:
    """The part that the clients share: addresses, findings of this turn, and epochs that survive their server."""

    batch = 32

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.urls: list[str] = spec["urls"]
        self.random = random.Random(spec["seed"])
        self.over = threading.Event()
        self.at = 0
        self.found: collections.Counter[str] = collections.Counter()
        self.errors: list[str] = []
        self.progress = True
        self._beaten = 0.0
        self._client: bowstring.Client | None = None

    @property
    def client(self) -> bowstring.Client:
        """A client of the server whose turn it is."""
        if self._client is None:
            self._client = bowstring.connect(self.urls[self.at % len(self.urls)], retries=2)
        return self._client

    def elsewhere(self) -> None:
        """Go on at the next server; at the same one, by a new connection, if there is one alone."""
        if self._client is not None:
            self._client.close()
        self._client = None
        self.at += 1

    def dataset(self, name: str = content.DATASET) -> bowstring.Dataset:
        """A dataset, with the columns that are checked."""
        return self.client.dataset(name).columns(COLUMNS)

    def beat(self) -> None:
        """Say that there is progress; raise OverError if the run is over."""
        if self.over.is_set():
            raise OverError
        if time.monotonic() > self._beaten + 1:
            self._beaten = time.monotonic()
            say({})

    def pause(self, seconds: float) -> None:
        """Wait, unless the run is over."""
        self.beat()
        if self.over.wait(seconds):
            raise OverError

    def failed(self, error: BaseException) -> None:
        """Take note of a call or a stream that broke, and wait before it is repeated. Unexpected errors are raised."""
        if not expected(error):
            raise error
        self.found["broken"] += 1
        self.errors = [*self.errors, f"{type(error).__name__}: {error}"[:300]][-3:]
        if self.over.wait(PAUSE):
            raise OverError
        say({})  # a client that repeats is not stuck; that its epochs end is what the turns say

    def until_done(self, call: Callable[[], Any]) -> Any:
        """Repeat a call until it succeeds."""
        while True:
            try:
                return call()
            except (BowstringError, pa.ArrowException, OSError) as error:  # noqa: PERF203  # a call takes milliseconds
                self.failed(error)
                self.elsewhere()

    def epoch(
        self,
        dataset: Callable[[], Any],
        wanted: Iterable[Any],
        *,
        check: Callable[[pa.RecordBatch], int] = content.wrong,
        each: Callable[[Any, pa.RecordBatch], object] = lambda _, __: None,
        identity: Callable[[pa.RecordBatch], Iterable[Any]] = lambda batch: batch.column("position").to_pylist(),
        **options: Any,
    ) -> None:
        """Read an epoch to its end, whatever breaks, and count what is wrong, lost and doubled.

        `dataset` makes the dataset at the server whose turn it is. `each` is called with each batch, after its check.
        It may close the stream, which is then resumed from the ticket of the last batch.
        """
        seen: collections.Counter[Any] = collections.Counter()
        ticket = None
        while True:
            try:
                made = dataset()
                stream = made.resume(ticket) if ticket else made.batches(self.batch, rank=0, world_size=1, **options)
                with stream as batches:
                    for batch in batches:
                        self.beat()
                        self.found["rows"] += batch.num_rows
                        self.found["wrong"] += check(batch)
                        seen.update(identity(batch))
                        ticket = batches.ticket
                        if each(batches, batch) == "leave":
                            break
                    else:
                        break
            except (BowstringError, pa.ArrowException, OSError) as error:
                self.failed(error)
                self.elsewhere()
        self.judge(seen, wanted)

    def judge(self, seen: collections.Counter[Any], wanted: Iterable[Any]) -> None:
        """Count what an epoch lacks, and what it has more than once."""
        expected_times = collections.Counter(wanted)
        self.found["lost"] += (expected_times - seen).total()
        self.found["doubled"] += (seen - expected_times).total()
        self.found["epochs"] += 1

    def turn(self, number: int) -> None:
        """A unit of what the client does."""
        raise NotImplementedError

    def close(self) -> None:
        """End what the client has open."""
        if self._client is not None:
            self._client.close()


def expected(error: BaseException) -> bool:
    """Whether an error is bound to happen while servers and stores are away."""
    if isinstance(error, LimitExceeded):
        return error.retry_after is not None
    return isinstance(error, AWAY)


def say(line: dict[str, Any]) -> None:
    """Write a line for the owner of the run."""
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def run(reader: Reader) -> None:
    """Take turns until the run is over."""

    def wait() -> None:
        # Not sys.stdin: a forked worker closes that, and would wait for the lock that this thread has.
        while os.read(0, 1):
            pass
        reader.over.set()

    threading.Thread(target=wait, daemon=True).start()
    say({})
    number = 0
    while not reader.over.is_set():
        reader.found.clear()
        reader.errors = []
        with contextlib.suppress(OverError):
            reader.turn(number)
        gc.collect()
        held = {"arrow": pa.total_allocated_bytes(), "objects": len(gc.get_objects())}
        say({"turn": number, **reader.found, "errors": reader.errors, **held})
        number += 1
        reader.over.wait(reader.spec.get("pause", 0.2))
    reader.close()


def main(kind: str, spec: str) -> None:
    """Run a client of a kind."""
    run(importlib.import_module(f"soak.clients.{kind}").Client(json.loads(spec)))


if __name__ == "__main__":
    from soak import client  # the module that the kinds import, and not a second one called __main__

    client.main(*sys.argv[1:])
