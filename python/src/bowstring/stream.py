"""The batches of a stream, which goes on by itself where it broke."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import pyarrow as pa
import tenacity

from bowstring import _fork
from bowstring._collected import collected
from bowstring._opening import Opening
from bowstring._samenode import LARGE, Ring
from bowstring._shown import shown
from bowstring._views import with_shared, with_views
from bowstring._wire import keep_forever
from bowstring.connection import Connection, Opened
from bowstring.errors import BowstringError, Cancelled, LimitExceeded, ServerError, Unavailable, translate

T = TypeVar("T")

_LOG = logging.getLogger("bowstring.stream")
# How often a stream moves from node to node without a batch: nodes that leave may name each other.
_MOST_MOVES = 8
_PATIENCE = 1.0  # seconds for another thread that reads to let go of its call before a fork


def worth_retrying(error: BaseException) -> bool:
    """Whether the server could not be reached, or has said when to try again."""
    return isinstance(error, Unavailable) or (isinstance(error, LimitExceeded) and error.retry_after is not None)


def retrying(retries: int, failed: BaseException) -> tenacity.Retrying:
    """Try again what failed as the server could not be reached: at once, after 0.25 s, three times that, and so on.

    The five attempts that are usual take about ten seconds, which is longer than a server needs to start. Where the
    server has said when to come again, that is waited for, before the first attempt too.
    """
    usual = tenacity.wait_exponential(multiplier=0.25, exp_base=3, max=10) + tenacity.wait_random(0, 0.25)

    def wait(state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        after = error.retry_after if isinstance(error, LimitExceeded) else None
        return usual(state) if after is None else after

    if isinstance(failed, LimitExceeded):
        time.sleep(failed.retry_after or 0)
    return tenacity.Retrying(
        sleep=time.sleep,
        retry=tenacity.retry_if_exception(worth_retrying),
        stop=tenacity.stop_after_attempt(retries),
        wait=wait,
        reraise=True,
    )


class Batches(Iterator[pa.RecordBatch]):
    """The record batches of a ticket, as an iterator.

    If the server restarts or drains, the stream is opened again where it stood, so that every row comes once. Where
    it is a node that leaves its cluster, it goes on at another one, and so does all else on the same connection. After
    `retries` attempts in a row that bring no batch it fails with [Unavailable][bowstring.Unavailable]. Where its tenant
    has as many streams as it may, it comes again when the server has said, as often, before it fails with
    [LimitExceeded][bowstring.LimitExceeded].

    Attributes:
        place: What came with the batch that was given last: `epoch`, `step`, `row`, `rows`, `last`, `wait`, `faults`,
            `plan`; and `transport`, which is `shared` where its blobs came by memory that a server on this node shares,
            `referenced` where some are read where they lie in its files, else `tcp`. None before the first.
        waits: Where the server's time went, in seconds by kind: `store`, `spill`, `peer`, `window`, `encode`,
            `consumer`; and `quota` where the tenant is served only so fast.
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
        self._resume = ticket  # goes on after what has come
        self.waits: dict[str, float] = {}
        self.waited = 0.0
        self._connection = connection
        connection.learn(locations)
        # Who serves the ticket: the next one when one cannot be reached, and in the end the server that was asked. That
        # is None here, as its connection may move.
        places = [None if place == connection.uri else place for place in locations]
        self._places: list[str | None] = places if None in places else [*places, None]
        self._turn = 0
        self._others: dict[str, Connection] = {}
        self._uri = connection.uri  # where the stream was opened
        self._moves = 0  # since the last batch
        self._reader: Any = None
        self._opening: Opening[Any] | None = None  # of the call, while its server has not answered
        self._ring: Ring | None = None
        self._overflowed = False  # a batch came by TCP for want of room in a ring
        self._rings = connection.rings  # that the ring is of
        self._pid = os.getpid()
        self._lock = threading.RLock()  # held while a batch is read
        self._waits = False  # who has it waits for a call to be made, and has nothing of gRPC's
        self._ended = False
        self._closed = False

    @property
    def ticket(self) -> dict[str, Any]:
        """What goes on after the batch given last, for [Dataset.resume][bowstring.Dataset.resume].

        Before the first batch it is the ticket asked for.
        """
        return self._resume

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> pa.RecordBatch:
        start = time.perf_counter()
        failed: BowstringError | None = None
        try:
            try:
                return self._next()  # the usual case, without the machinery for the others
            except (Unavailable, LimitExceeded) as error:
                if not self._connection.retries or not worth_retrying(error):
                    raise
                failed = error
            _LOG.warning("%s: it broke off at %s, and is opened again: %s", self._named(), self._uri, shown(failed))
            return retrying(self._connection.retries, failed)(self._next)
        finally:
            failed = None  # its traceback has this frame, and those that have the batch
            self.waited += time.perf_counter() - start

    def _named(self) -> str:
        """What messages call this stream."""
        ticket = self._resume
        return f"stream of {ticket.get('dataset')}@{ticket.get('snapshot')}, rank {ticket.get('rank', 0)}"

    def _step(self) -> list[pa.RecordBatch]:
        """The record batches up to the end of a step, or of the stream; none at the end of that."""
        parts = []
        for record in self:
            parts.append(record)
            if self.place is not None and self.place["last"]:
                break
        return parts

    def _overflow(self, batch: pa.RecordBatch, ring: Ring) -> None:
        """Say once that a batch found no room in a ring."""
        sizes = (buffer.size for column in batch.columns for buffer in column.buffers() if buffer is not None)
        if max(sizes, default=0) >= LARGE:
            self._overflowed = True
            text = "%s: the memory that %s shares has no room, and batches come by TCP meanwhile; %d are kept here"
            _LOG.info(text, self._named(), self._uri, ring.leases)

    def _next(self) -> pa.RecordBatch:
        try:
            return self._read()
        except (StopIteration, BowstringError):
            raise
        except BaseException:  # such as a signal's: what the call has brought may be lost, and has to come again
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
                    # Closed from another thread, or let go for a fork: it is no longer this stream's. A call that was
                    # cancelled before there was a reader was cancelled by the server.
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
                    # Closed from another thread, or let go for a fork, before the slot was taken: the server may write
                    # it anew. The batch was not given, and comes again where the stream goes on.
                    if self._closed or self._reader is not reader:
                        continue
                    raise ServerError("the server says that blobs lie in memory that this stream has not asked for")
                batch: pa.RecordBatch = chunk.data
                if shared is not None and ring is not None:
                    try:
                        batch = with_shared(batch, shared, ring, lease)
                    except Unavailable:  # by another ring it comes again
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
                self._resume = resume  # last: until then the batch was not given
                return batch
        raise StopIteration

    def _move(self, error: Unavailable) -> bool:
        """Whether to go on at once: where a node that leaves has said, or at the next that serves the ticket."""
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
            self._connection.turn(self._uri)  # the next try may be at another node
        self._turn += 1
        if self._turn % len(self._places) == 0:
            return False
        _LOG.info("%s: it goes on at %s, as %s cannot be reached: %s", self._named(), self.uri, self._uri, shown(error))
        return True

    def _renew(self) -> None:
        """Forget what is the parent's, if this is a child whose fork was hidden from Python."""
        if self._pid != os.getpid():
            for kept in (self._reader, self._opening):
                if kept is not None:
                    keep_forever(kept)
            self._reader, self._lock, self._pid = None, threading.RLock(), os.getpid()
            self._opening, self._waits, self._ring = None, False, None

    def _open(self) -> Any:
        """The call, made now if there is none. None if it was given up meanwhile: it is closed, or was forked."""
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
        """Wait for what takes the server's answer. False if it was given up."""
        self._waits = True
        try:
            with _fork.connecting():
                _fork.hold(self)
                self._opening = opening = Opening(make, drop)
            if self._closed:  # by another thread, which has seen nothing
                self._cancel()
            try:
                return opening.take(keep)
            except BaseException:  # such as a signal's
                opening.give_up()
                raise
        finally:
            self._waits = False

    @property
    def uri(self) -> str:
        """The address that the stream is read from, or will be."""
        return self._places[self._turn % len(self._places)] or self._connection.uri

    def _at(self) -> Connection:
        """The connection to the node whose turn it is."""
        place = self._places[self._turn % len(self._places)]
        if place is None:
            return self._connection
        if place not in self._others:
            self._others[place] = self._connection._at(place)
        return self._others[place]

    def close(self) -> None:
        """End the stream, whatever is left of it. The server is told. May be called from another thread."""
        self._closed = True
        self._cancel()
        for other in self._others.values():
            other.close()

    def _let_go(self) -> None:
        self._cancel()
        end = time.monotonic() + _PATIENCE
        while not self._waits and time.monotonic() < end:  # until who was reading has let go, too
            if self._lock.acquire(timeout=0.001):
                self._lock.release()
                return

    def _leave(self) -> None:
        """Give the ring back, if there is one. What came by it stays."""
        ring, self._ring = self._ring, None
        if ring is not None:
            self._rings.back(ring)  # of the server that it was opened at

    def _cancel(self) -> None:
        opening, self._opening = self._opening, None
        if opening is not None and self._pid == os.getpid():
            opening.give_up()
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

    @collected
    def __del__(self) -> None:
        if getattr(self, "_reader", None) is not None:
            self.close()
