"""One stream by several connections: where one processor of the client's cannot read as fast as the server sends."""

from __future__ import annotations

import collections
import os
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from bowstring.connection import Connection
from bowstring.errors import InvalidRequest
from bowstring.stream import Batches

MOST = 64  # connections of a stream
# Batches that each connection has read ahead, beside the one that it is just reading.
_AHEAD = 2
# Seconds for the threads to end. They cannot while whoever stops them has what they wait for.
_PATIENCE = 2.0


class SeveralBatches(Batches):
    """The batches of a ticket, read by several connections, in the order in which one would bring them.

    Each connection has a thread, and every so many steps of the ticket. Where the server shares its memory with this
    process one connection reads, as it copies nothing.
    """

    def __init__(
        self,
        connection: Connection,
        ticket: dict[str, Any],
        locations: Sequence[str] = (),
        *,
        references: bool = False,
        connections: int,
    ) -> None:
        if not isinstance(connections, (int, np.integer)) or not 1 <= connections <= MOST:
            raise InvalidRequest(f"connections: got {connections!r}, want 1 to {MOST}")
        order = ticket.get("order", "strict")
        if connections > 1 and order != "strict":
            raise InvalidRequest(
                f"connections: got {connections} with order {order!r}, want 1, or order 'strict': "
                "steps are divided among connections, and any other order mixes them"
            )
        super().__init__(connection, ticket, locations, references=references)
        self._locations = locations
        self._count = int(connections)
        self._readers: _Readers | None = None
        self._finalizer: Any = None

    def __next__(self) -> pa.RecordBatch:
        if self._readers is None and not (self._ended or self._closed) and self._alone():
            return super().__next__()
        start = time.perf_counter()
        try:
            return self._merged()
        finally:
            self.waited += time.perf_counter() - start

    def _alone(self) -> bool:
        """Whether one connection reads: it does already, or the server shares its memory."""
        if self._count == 1 or self._reader is not None:
            return True
        self._renew()
        found: list[bool] = []
        while not (found or self._closed):
            self._wait_for(self._at().shares, bool, found.append)
        return found == [True]

    def _merged(self) -> pa.RecordBatch:
        """The next batch of all connections, each of which has tried again by itself where it broke."""
        if self._readers is not None and self._readers.pid != os.getpid():  # threads are not forked
            self._readers = None
        self._renew()
        with self._lock:
            if self._closed or self._ended:
                raise StopIteration
            readers = self._readers or self._begin()
            try:
                found = readers.take()
            except BaseException:
                self._stop()  # what goes on begins anew after what was given
                raise
            if found is None:
                self._ended = not self._closed
                self._stop()
                raise StopIteration
            self._resume, self.place = found.ticket, found.place
            for kind, microseconds in found.place["wait"].items():
                self.waits[kind] = self.waits.get(kind, 0.0) + microseconds / 1e6
            return found.batch

    def _begin(self) -> _Readers:
        """Begin to read what is left."""
        readers = _Readers(self._connection, self._resume, self._count, self._locations, self._references)
        self._readers = readers
        self._finalizer = weakref.finalize(self, readers.stop)  # also where the process ends
        if self._closed:  # from another thread, which has seen no readers
            self._stop()
            raise StopIteration
        return readers

    def close(self) -> None:
        """End the stream, whatever is left of it. The server is told. May be called from another thread."""
        super().close()
        self._stop()

    def _let_go(self) -> None:
        if self._readers is None:  # else their streams let go
            super()._let_go()

    def _stop(self) -> None:
        readers, self._readers = self._readers, None
        if readers is not None:
            self._finalizer.detach()
            readers.stop()


@dataclass
class _Found:
    """A batch, what came with it, and the ticket that goes on after it and all before it."""

    batch: pa.RecordBatch
    place: dict[str, Any]
    ticket: dict[str, Any]
    at: tuple[int, int, int]  # its place in the order of one connection: lap, step, row


class _Steps(Batches):
    """The stream of one connection, which waits for no other attempt once all is stopped."""

    def __init__(self, stopped: threading.Event, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._stopped = stopped

    def _sleep(self, seconds: float) -> None:
        self._stopped.wait(seconds)


class _Part:
    """What one connection brings. Fields are guarded by the readers' condition, but `batches`."""

    def __init__(self, batches: Batches, first: tuple[int, int, int]) -> None:
        self.batches = batches
        self.before = first  # nothing that comes is before that
        self.ready: collections.deque[_Found] = collections.deque()
        self.error: BaseException | None = None
        self.ended = False  # nothing more comes


class _Readers:
    """The threads that read a ticket's parts, and what they have brought.

    It does not know who reads it, so that it is stopped when that is collected.
    """

    def __init__(
        self, connection: Connection, ticket: dict[str, Any], count: int, locations: Sequence[str], references: bool
    ) -> None:
        self.pid = os.getpid()
        self._base = ticket
        self._changed = threading.Condition()
        self._closed = False
        self._stopped = threading.Event()
        self._own = [connection._at(connection.uri) for _ in range(count - 1)]
        self._parts = [
            _Part(
                _Steps(self._stopped, one, ticket, locations, references=references),
                (0, ticket.get("step", 0), ticket.get("row", 0)),
            )
            for one, ticket in zip([connection, *self._own], self._tickets(count), strict=True)
        ]
        self._threads = [
            threading.Thread(target=self._read, args=(part,), name=f"bowstring-{i}", daemon=True)
            for i, part in enumerate(self._parts)
        ]
        for thread in self._threads:
            thread.start()

    def _tickets(self, count: int) -> list[dict[str, Any]]:
        """The ticket of each connection: every so many of the base's steps."""
        step, stride = self._base.get("step", 0), self._base.get("stride", 1)
        rest = {name: value for name, value in self._base.items() if name != "row"}  # that is of the first step
        tickets = [rest | {"step": step + i * stride, "stride": stride * count} for i in range(count)]
        tickets[0] = self._base | tickets[0]
        if (stop := self._base.get("stop")) is not None:
            for ticket in tickets:
                ticket["step"] = min(ticket["step"], stop)
        return tickets

    def _read(self, part: _Part) -> None:
        """Read a part to its end, in a thread of its own."""
        try:
            for batch in part.batches:
                place = part.batches.place or {}
                lap, *before = part.before
                if [place["step"], place["row"]] < before:  # the next epoch has begun
                    lap += 1
                # The least that may follow in this lap: a batch of the same step and row would be of the next one.
                part.before = (lap, place["step"], place["row"] + 1)
                at = (lap, place["step"], place["row"])
                found = _Found(batch, place, self._after(part.batches.ticket, at), at)
                del batch
                with self._changed:
                    self._changed.wait_for(lambda: self._closed or len(part.ready) < _AHEAD)
                    if self._closed:
                        return
                    part.ready.append(found)
                    self._changed.notify_all()
                del found
        except BaseException as error:  # noqa: BLE001 - who takes raises it
            part.error = error
        finally:
            with self._changed:
                part.ended = True
                self._changed.notify_all()

    def _after(self, ticket: dict[str, Any], at: tuple[int, int, int]) -> dict[str, Any]:
        """The base's ticket that goes on after a batch, by that of its connection."""
        base, (lap, step, _) = self._base, at
        row = ticket.get("row", 0)
        if row == 0:  # the step is done
            step += base.get("stride", 1)
            if (stop := base.get("stop")) is not None:
                step = min(step, stop)
        after = {name: value for name, value in ticket.items() if name not in ("stride", "epochs", "step", "row")}
        after |= {name: base[name] for name in ("stride", "epochs") if name in base}
        after |= {"step": step} | ({"row": row} if row else {})
        if lap:
            after["epochs"] = base["epochs"] - lap
        if "shuffle" in base:
            after["shuffle"] = base["shuffle"] | {"epoch": base["shuffle"].get("epoch", 0) + lap}
        return after

    def take(self) -> _Found | None:
        """The next batch in the order of one connection; None after the last, or once stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or all(part.ready or part.ended for part in self._parts))
            if self._closed:
                return None
            for part in self._parts:
                if part.error is not None and not part.ready:
                    raise part.error
            first = min((p for p in self._parts if p.ready), key=lambda p: p.ready[0].at, default=None)
            if first is None:
                return None
            found = first.ready.popleft()
            self._changed.notify_all()
            return found

    def stop(self) -> None:
        """End all calls, and wait for the threads. What they have brought and nobody has taken comes again.

        A thread that does not end, as whoever stops it has what it waits for, is left: it ends when it has that, or
        with the process.
        """
        if self.pid != os.getpid():
            return
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._stopped.set()
        for part in self._parts:
            part.batches.close()
        if threading.current_thread() not in self._threads:
            end = time.monotonic() + _PATIENCE
            for thread in self._threads:
                thread.join(max(0.0, end - time.monotonic()))
        # Else the collector runs in one of them: it may hold the condition, which the others need to end.
        for one in self._own:
            one.close()
        for part in self._parts:
            part.ready.clear()
