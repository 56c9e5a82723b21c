"""Streams whose operators run here, or wherever that takes less time."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence

import pyarrow as pa

from bowstring._operators.placement import Chooser
from bowstring._operators.process import Json, OperatorProcess, assembled, fault_of, process_for, raw_columns
from bowstring.connection import Connection
from bowstring.errors import BowstringError, InvalidRequest, Unavailable
from bowstring.stream import Batches

# Batches in the process that runs operators. It reads that many before it has written one.
_PREFETCH = 3
# The first value: it suffices if input takes longer to arrive, and the first batch comes sooner.
_FIRST_PREFETCH = 2


class LocalBatches(Batches):
    """Batches whose operators run in a separate process on this machine, if the ticket's place says so.

    The batches equal the server's: the same rows, bytes and schema. `place["place"]` says where a batch was made.
    """

    def __init__(self, connection: Connection, ticket: Json, locations: Sequence[str] = ()) -> None:
        if ticket.get("on_error") == "skip":
            raise InvalidRequest(
                'on_error: got "skip" with operators at the client, want "fail" or "null": '
                "the server alone has other samples to put in"
            )
        self._chooser = Chooser() if ticket["place"] == "auto" else None
        self._where = "server" if self._chooser else "client"
        self._wanted = ticket  # as requested
        self._schema: pa.Schema | None = None  # of the delivered batches
        self._pending: deque[tuple[OperatorProcess, Json, Json, pa.RecordBatch]] = deque()
        self._raw_ended = False
        self._worker: OperatorProcess | None = None
        self._worker_pid = os.getpid()
        self._prefetch = _FIRST_PREFETCH
        self._given = ticket  # continues after the last delivered batch
        super().__init__(connection, ticket, locations)
        self._resume = {}  # set when the schema is known

    @property
    def ticket(self) -> Json:
        """As in Batches, with the requested place."""
        return self._given

    def _next(self) -> pa.RecordBatch:
        if self._closed:
            raise StopIteration
        if self._worker_pid != os.getpid():  # the pending batches are in the parent's process
            self._pending.clear()
            self._worker, self._worker_pid, self._resume = None, os.getpid(), {}
            self._ended = self._raw_ended = False
        ended = self._ended or self._raw_ended
        if self._chooser is not None and not self._pending and not ended and self._chooser.moves():
            self._where = self._chooser.place
            self._cancel()
            self._resume, self._prefetch = {}, _FIRST_PREFETCH
        if not self._resume:
            self._resume = self._asked()
        began = time.perf_counter()
        batch = super()._next() if self._where == "server" else self._made()
        if self._where == "server":
            self._given = self._as_wanted(self._resume)
        self.place = {**(self.place or {}), "place": self._where}
        if self._chooser is not None:
            self._chooser.note(batch.num_rows, time.perf_counter() - began)
        return batch

    def _made(self) -> pa.RecordBatch:
        """The next batch. If this fails, no batch is lost: batches that were not delivered are requested again."""
        try:
            return self._next_made()
        except StopIteration:
            raise
        except BaseException as error:
            self._abandon()
            if self._closed and isinstance(error, Exception):  # by another thread
                raise StopIteration from None
            raise

    def _abandon(self) -> None:
        """Drop batches that were not delivered. The ticket of the last delivered batch requests them again."""
        self._pending.clear()
        self._end()
        self._cancel()
        self._resume = {}
        self._ended = self._raw_ended = False

    def _next_made(self) -> pa.RecordBatch:
        came = 0.0
        while len(self._pending) < self._prefetched() and not self._raw_ended:
            opened, began = self._reader is not None, time.perf_counter()
            try:
                raw = super()._next()
            except StopIteration:
                self._raw_ended = True
                break
            except BowstringError:
                if self._pending:  # earlier batches are delivered first
                    break
                raise
            took = time.perf_counter() - began
            came += took
            if opened and self._chooser is not None:
                self._chooser.came(raw.num_rows, took)
            place = self.place or {}
            worker = self._worker = self._worker or self._begin(raw.schema)
            if self._closed:  # before there was a process to end
                self._end()
                raise StopIteration
            worker.send(raw, place["epoch"])
            self._pending.append((worker, place, self._resume, raw))
        if not self._pending:
            self._end()
            raise StopIteration
        worker, place, ticket, raw = self._pending.popleft()
        began = time.perf_counter()
        made, faults = worker.receive()
        if time.perf_counter() - began > came:  # the process is the bottleneck
            self._prefetch = _PREFETCH
        if faults:
            self._record_faults(faults, place)
        batch = assembled(self._target(), raw, made, worker.forms)
        self.place, self._given = place, self._as_wanted(ticket)
        return batch

    def _prefetched(self) -> int:
        """How many batches to prefetch: none if the stream is about to move."""
        if self._chooser is None:
            return self._prefetch
        if self._chooser.settling():
            return 1
        return _FIRST_PREFETCH if self._chooser.measuring else self._prefetch

    def _begin(self, schema: pa.Schema) -> OperatorProcess:
        return process_for(schema, (self._wanted.get("shuffle") or {}).get("seed", 0))

    def _asked(self) -> Json:
        """The ticket that continues after the last delivered batch, for the place where operators run now."""
        ticket = {name: value for name, value in self._given.items() if name != "place"}
        if self._where == "server":
            return ticket
        columns = raw_columns(self._target().names, ticket["operators"])
        return {**ticket, "columns": columns, "place": "client"}

    def _as_wanted(self, ticket: Json) -> Json:
        """A ticket of the server in the caller's terms."""
        given = {name: value for name, value in ticket.items() if name != "columns"}
        if "columns" in self._wanted:
            given["columns"] = self._wanted["columns"]
        return {**given, "place": self._wanted["place"]}

    def _target(self) -> pa.Schema:
        """The schema of batches that the server makes."""
        if self._schema is None:
            of_one = ("rank", "step", "row", "stride", "stop", "epochs", "served", "place")
            request = {name: value for name, value in self._wanted.items() if name not in of_one}
            self._schema = self._connection.schema(request)
        return self._schema

    def _record_faults(self, faults: list[Json], place: Json) -> None:
        """Raise a fault that ends the stream, and record others in the batch's place."""
        # A temporary failure is no fault of the sample, whatever on_error is.
        ends = [fault for fault in faults if fault["code"] == Unavailable.code]
        if self._wanted.get("on_error", "fail") == "fail":
            ends = faults
        if ends:
            raise fault_of(ends[0], f"{self._wanted['dataset']}@{self._wanted['snapshot']}")
        known = place.setdefault("faults", [])
        for fault in faults:
            known.append({name: fault[name] for name in ("position", "column", "operator", "cause") if name in fault})
        known.sort(key=lambda fault: fault["position"])

    def _end(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def close(self) -> None:
        """As in Batches."""
        super().close()
        self._pending.clear()
        self._end()


def kind_of(ticket: Json) -> type[Batches]:
    """The class that reads a ticket."""
    return Batches if ticket.get("place", "server") == "server" else LocalBatches
