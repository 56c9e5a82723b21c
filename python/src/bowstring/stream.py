"""The batches of a stream, which continues by itself after a failure."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import pyarrow as pa
import tenacity

from bowstring._cancellation import cancelled, sleep
from bowstring._finalizers import finalizer
from bowstring._messages import shown
from bowstring._transport import fork
from bowstring._transport.background import BackgroundCall, in_future
from bowstring._transport.fork import keep_forever
from bowstring._transport.shm import LARGE, Ring
from bowstring._transport.views import with_shared, with_views
from bowstring.connection import Connection, Opened
from bowstring.errors import BowstringError, Cancelled, LimitExceeded, ServerError, Unavailable, translate

T = TypeVar("T")

_LOG = logging.getLogger("bowstring.stream")
# How often a stream moves from node to node without a batch, because leaving nodes may name each other.
_MOST_MOVES = 8
_PATIENCE = 1.0  # seconds for a reading thread to release its call before a fork


def worth_retrying(error: BaseException) -> bool:
    """Whether the server could not be reached, or has said when to retry."""
    return isinstance(error, Unavailable) or (isinstance(error, LimitExceeded) and error.retry_after is not None)


def retrying(retries: int, failed: BaseException) -> tenacity.Retrying:
    """Retry while the server cannot be reached: at once, after 0.25 s, three times that, and so on.

    The default of five attempts takes about ten seconds, longer than a server needs to start. If the server has said
    when to retry, that time is waited, also before the first attempt.
    """
    usual = tenacity.wait_exponential(multiplier=0.25, exp_base=3, max=10) + tenacity.wait_random(0, 0.25)

    def wait(state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        after = error.retry_after if isinstance(error, LimitExceeded) else None
        return usual(state) if after is None else after

    if isinstance(failed, LimitExceeded):
        sleep(failed.retry_after or 0)
    return tenacity.Retrying(
        sleep=sleep,
        retry=tenacity.retry_if_exception(worth_retrying),
        stop=tenacity.stop_after_attempt(retries),
        wait=wait,
        reraise=True,
    )


class Batches(Iterator[pa.RecordBatch]):
    """The record batches of a ticket, as an iterator, and as an asynchronous one (`async for`).

    If the server restarts or drains, the stream is opened again where it stopped, so that every row comes once. If a
    node leaves its cluster, the stream continues at another node, as do other streams of the same connection. After
    `retries` consecutive attempts without a batch it fails with [Unavailable][bowstring.Unavailable]. If its tenant is
    at its limit of streams, it retries when the server has said, as often, and then fails with
    [LimitExceeded][bowstring.LimitExceeded].

    Attributes:
        place: Metadata of the last batch: `epoch`, `step`, `row`, `rows`, `last`, `wait`, `faults`, `plan`; and
            `transport`, which is `shared` if its blobs came through memory that a server on this node shares,
            `referenced` if some are read in place from its files, else `tcp`. None before the first batch.
        waits: The server's waiting time in seconds, by kind: `store`, `spill`, `peer`, `window`, `encode`, `consumer`;
            and `quota` if the tenant's rate is limited.
        waited: Seconds that this process has waited for batches.
    """

    def __init__(
        self,
        connection: Connection,
        ticket: dict[str, Any],
        locations: Sequence[str] = (),
        *,
        references: bool = False,
    ) -> None:
        self._references = references
        self.place: dict[str, Any] | None = None
        self._resume = ticket  # continues after the last received batch
        self.waits: dict[str, float] = {}
        self.waited = 0.0
        self._connection = connection
        connection.learn(locations)
        # The servers of the ticket in order: the next one is used if one cannot be reached, and last the server that
        # was asked. That one is None here, because its connection may move.
        places = [None if place == connection.uri else place for place in locations]
        self._places: list[str | None] = places if None in places else [*places, None]
        self._turn = 0
        self._others: dict[str, Connection] = {}
        self._uri = connection.uri  # the server of the open stream
        self._moves = 0  # since the last batch
        self._reader: Any = None
        self._awaited: Future[Any] | None = None  # the batch that an asynchronous task waits for
        self._opening: BackgroundCall[Any] | None = None  # the call while its server has not answered
        self._ring: Ring | None = None
        self._overflowed = False  # a batch came by TCP because a ring had no room
        self._rings = connection.rings  # the owner of the ring
        self._pid = os.getpid()
        self._lock = threading.RLock()  # held while a batch is read
        self._waits = False  # the lock's holder waits for a call to be made, and uses nothing of gRPC
        self._ended = False
        self._closed = False

    @property
    def ticket(self) -> dict[str, Any]:
        """The ticket that continues after the last batch, for [Dataset.resume][bowstring.Dataset.resume].

        Before the first batch it is the requested ticket.
        """
        return self._resume

    def __iter__(self) -> Batches:
        return self

    def __aiter__(self) -> Batches:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        """The next batch, while other tasks run. If this task is cancelled, the next call returns the batch."""
        awaited = self._awaited = self._awaited or self._read_beside()
        # Without the shield, a cancelled task would cancel the future, and its batch would be lost.
        try:
            batch = await asyncio.shield(asyncio.wrap_future(awaited))
        except Exception:
            self._awaited = None
            raise
        self._awaited = None
        if batch is None:
            raise StopAsyncIteration
        return batch

    def _read_beside(self) -> Future[Any]:
        """Read a batch in a thread; None after the last one."""
        return in_future(partial(next, self, None))

    async def __aenter__(self) -> Batches:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def __next__(self) -> pa.RecordBatch:
        start = time.perf_counter()
        failed: BowstringError | None = None
        try:
            try:
                return self._next()  # the common case, without the machinery of retries
            except (Unavailable, LimitExceeded) as error:
                if not self._connection.retries or not worth_retrying(error):
                    raise
                failed = error
            _LOG.warning("%s: it broke off at %s, and is opened again: %s", self._named(), self._uri, shown(failed))
            return retrying(self._connection.retries, failed)(self._next)
        finally:
            failed = None  # its traceback refers to this frame, and frames that have the batch
            self.waited += time.perf_counter() - start

    def _named(self) -> str:
        """The stream's name in messages."""
        ticket = self._resume
        return f"stream of {ticket.get('dataset')}@{ticket.get('snapshot')}, rank {ticket.get('rank', 0)}"

    def _step(self) -> list[pa.RecordBatch]:
        """The record batches up to the end of a step, or of the stream; none after its end."""
        parts = []
        for record in self:
            parts.append(record)
            if self.place is not None and self.place["last"]:
                break
        return parts

    def _overflow(self, batch: pa.RecordBatch, ring: Ring) -> None:
        """Log once that a batch found no room in a ring."""
        sizes = (buffer.size for column in batch.columns for buffer in column.buffers() if buffer is not None)
        if max(sizes, default=0) >= LARGE:
            self._overflowed = True
            text = "%s: the memory that %s shares has no room, and batches come by TCP meanwhile; %d are kept here"
            _LOG.info(text, self._named(), self._uri, ring.leases)

    def _next(self) -> pa.RecordBatch:
        try:
            return self._read()
        except Cancelled:
            if cancelled():  # not the stream, but a task that waited for it: the next call goes on from the ticket
                self._cancel()
            raise
        except (StopIteration, BowstringError):
            raise
        except BaseException:  # such as a signal's: what the call has received may be lost, and has to come again
            self._cancel()
            raise

    def _read(self) -> pa.RecordBatch:
        self._renew()
        while not (self._ended or self._closed):
            with self._lock:
                reader: Any = None
                ring: Ring | None = None
                try:
                    with translate():
                        reader = self._open()
                        if reader is None:
                            continue
                        ring = self._ring
                        if ring is not None:
                            ring.flush()
                        chunk = reader.read_chunk()
                except StopIteration:
                    self._ended = True
                    self._leave()
                    break
                except Cancelled:
                    # Closed by another thread, or released for a fork: the call does not belong to this stream any
                    # more. A call that was cancelled before there was a reader was cancelled by the server.
                    if self._closed or (reader is not None and self._reader is not reader):
                        continue
                    raise
                except (Unavailable, LimitExceeded) as error:
                    self._reader = None
                    self._leave()
                    if isinstance(error, Unavailable) and self._move(error):
                        continue
                    raise
                place: dict[str, Any] = json.loads(chunk.app_metadata.to_pybytes())
                shared = place.pop("shared", None)
                refers = shared is not None and "references" in shared
                lease = None if shared is None or ring is None else ring.take(shared)
                if shared is not None and (lease is None or self._ring is not ring):
                    # Closed by another thread, or released for a fork, before the slot was taken: the server may
                    # overwrite it. The batch was not delivered, and comes again when the stream continues.
                    if self._closed or self._reader is not reader:
                        continue
                    raise ServerError("the server says that blobs are in memory that this stream has not requested")
                batch: pa.RecordBatch = chunk.data
                if shared is not None and ring is not None:
                    try:
                        batch = with_shared(batch, shared, ring, lease)
                    except Unavailable:  # it comes again through another ring
                        self._cancel()
                        raise
                if self._references:
                    batch = with_views(batch)
                resume = place.pop("resume")
                for kind, microseconds in place["wait"].items():
                    self.waits[kind] = self.waits.get(kind, 0.0) + microseconds / 1e6
                place["transport"] = "tcp" if shared is None else "referenced" if refers else "shared"
                if shared is None and ring is not None and not self._overflowed:
                    self._overflow(batch, ring)
                self.place = place
                self._moves = 0
                self._resume = resume  # last, because the batch is not delivered before
                return batch
        raise StopIteration

    def _move(self, error: Unavailable) -> bool:
        """Whether to continue at once: where a leaving node has said, or at the ticket's next server."""
        at = self._turn % len(self._places)
        own = self._places[at] is None
        if named := error.elsewhere:
            self._moves += 1
            if self._moves > _MOST_MOVES:
                return False
            if own:
                return self._connection.move(self._uri, named)
            if named := self._at().allowed(self._uri, named):
                self._places[at] = named[0]
                _LOG.info("%s: it goes on at %s: %s", self._named(), named[0], shown(error))
                return True
        if own:
            self._connection.turn(self._uri)  # the next attempt may be at another node
        self._turn += 1
        if self._turn % len(self._places) == 0:
            return False
        _LOG.info("%s: it goes on at %s, as %s cannot be reached: %s", self._named(), self.uri, self._uri, shown(error))
        return True

    def _renew(self) -> None:
        """Forget the parent's objects, if this is a child whose fork Python did not see."""
        if self._pid != os.getpid():
            for kept in (self._reader, self._opening):
                if kept is not None:
                    keep_forever(kept)
            self._reader, self._lock, self._pid = None, threading.RLock(), os.getpid()
            self._opening, self._waits, self._ring = None, False, None

    def _open(self) -> Any:
        """The call, made now if there is none. None if it was cancelled because the stream was closed or forked."""
        if self._reader is None:
            self._leave()
            connection = self._at()
            self._uri = connection.uri
            make = partial(connection.stream, self._resume, references=self._references)
            self._wait_for(make, Opened.end, self._has)
        return self._reader

    def _has(self, opened: Opened) -> None:
        self._reader, self._uri = opened.reader, opened.uri
        self._ring, self._rings = opened.ring, opened.rings

    def _wait_for(self, make: Callable[[], T], drop: Callable[[T], object], keep: Callable[[T], object]) -> bool:
        """Wait for an operation that needs the server's answer. False if it was cancelled."""
        self._waits = True
        try:
            with fork.connecting():
                fork.hold(self)
                self._opening = opening = BackgroundCall(make, drop)
            if self._closed:  # by another thread, before it could cancel the opening
                self._cancel()
            try:
                return opening.take(keep)
            except BaseException:  # such as a signal's
                opening.cancel()
                raise
        finally:
            self._waits = False

    @property
    def uri(self) -> str:
        """The address that the stream is or will be read from."""
        return self._places[self._turn % len(self._places)] or self._connection.uri

    def _at(self) -> Connection:
        """The connection to the current server."""
        place = self._places[self._turn % len(self._places)]
        if place is None:
            return self._connection
        if place not in self._others:
            self._others[place] = self._connection._at(place)
        return self._others[place]

    def close(self) -> None:
        """End the stream, and cancel it at the server. Another thread may call this."""
        self._closed = True
        self._cancel()
        for other in self._others.values():
            other.close()

    def _release(self) -> None:
        self._cancel()
        end = time.monotonic() + _PATIENCE
        while not self._waits and time.monotonic() < end:  # until the reading thread has released the call, too
            if self._lock.acquire(timeout=0.001):
                self._lock.release()
                return

    def _leave(self) -> None:
        """Return the ring, if there is one. Received batches stay valid."""
        ring, self._ring = self._ring, None
        if ring is not None:
            self._rings.back(ring)  # of the server that it was opened at

    def _cancel(self) -> None:
        opening, self._opening = self._opening, None
        if opening is not None and self._pid == os.getpid():
            opening.cancel()
        reader, self._reader = self._reader, None
        if reader is not None and self._pid != os.getpid():
            keep_forever(reader)
        elif reader is not None and not self._ended:
            with contextlib.suppress(pa.ArrowException, OSError):
                reader.cancel()
        self._leave()

    def __enter__(self) -> Batches:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @finalizer
    def __del__(self) -> None:
        if getattr(self, "_reader", None) is not None:
            self.close()
