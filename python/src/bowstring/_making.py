"""Streams whose operators run here, or wherever it takes less time."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence

import pyarrow as pa

from bowstring._chooser import Chooser
from bowstring._maker import Json, Maker, assembled, fault_of, maker_of, raw_columns
from bowstring.connection import Connection
from bowstring.errors import BowstringError, InvalidRequest, Unavailable
from bowstring.stream import Batches

# Batches that are with the process that runs operators. It takes as many in before it has written one.
_AHEAD = 3
# As many at first: so many suffice where what it runs on is longer on its way, and are sooner there to begin with.
_AT_FIRST = 2


class MadeBatches(Batches):
    """Batches whose operators run in a process beside this one, where the ticket's place says so.

    What is given is what the server would have given: the same rows, bytes and schema. `place["place"]` says where a
    batch was made.
    """

    def __init__(self, connection: Connection, ticket: Json, locations: Sequence[str] = ()) -> None:
        if ticket.get("on_error") == "skip":
            raise InvalidRequest(
                'on_error: got "skip" with operators at the client, want "fail" or "null": '
                "the server alone has other samples to put in"
            )
        self._chooser = Chooser() if ticket["place"] == "auto" else None
        self._where = "server" if self._chooser else "client"
        self._wanted = ticket  # as it was asked for
        self._schema: pa.Schema | None = None  # of what is given
        self._pending: deque[tuple[Maker, Json, Json, pa.RecordBatch]] = deque()
        self._raw_ended = False
        self._maker: Maker | None = None
        self._maker_pid = os.getpid()
        self._ahead = _AT_FIRST
        self._given = ticket  # goes on after what was given
        super().__init__(connection, ticket, locations)
        self._resume = {}  # is made when the schema is known

    @property
    def ticket(self) -> Json:
        """As of Batches, and with the place that was asked for."""
        return self._given

    def _next(self) -> pa.RecordBatch:
        if self._closed:
            raise StopIteration
        if self._maker_pid != os.getpid():  # what waits is of the parent's process
            self._pending.clear()
            self._maker, self._maker_pid, self._resume = None, os.getpid(), {}
            self._ended = self._raw_ended = False
        ended = self._ended or self._raw_ended
        if self._chooser is not None and not self._pending and not ended and self._chooser.moves():
            self._where = self._chooser.place
            self._cancel()
            self._resume, self._ahead = {}, _AT_FIRST
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
        """The next batch. Whatever ends this, of what was not given nothing is lost: it is asked for again."""
        try:
            return self._next_made()
        except StopIteration:
            raise
        except BaseException as error:
            self._abandon()
            if self._closed and isinstance(error, Exception):  # from another thread
                raise StopIteration from None
            raise

    def _abandon(self) -> None:
        """Drop what was asked for and not given. The next batch is asked for by the ticket of the last one given."""
        self._pending.clear()
        self._end()
        self._cancel()
        self._resume = {}
        self._ended = self._raw_ended = False

    def _next_made(self) -> pa.RecordBatch:
        came = 0.0
        while len(self._pending) < self._most() and not self._raw_ended:
            opened, began = self._reader is not None, time.perf_counter()
            try:
                raw = super()._next()
            except StopIteration:
                self._raw_ended = True
                break
            except BowstringError:
                if self._pending:  # what came before is given first
                    break
                raise
            took = time.perf_counter() - began
            came += took
            if opened and self._chooser is not None:
                self._chooser.came(raw.num_rows, took)
            place = self.place or {}
            maker = self._maker = self._maker or self._begin(raw.schema)
            if self._closed:  # before there was one to be ended
                self._end()
                raise StopIteration
            maker.send(raw, place["epoch"])
            self._pending.append((maker, place, self._resume, raw))
        if not self._pending:
            self._end()
            raise StopIteration
        maker, place, ticket, raw = self._pending.popleft()
        began = time.perf_counter()
        made, faults = maker.receive()
        if time.perf_counter() - began > came:  # it is the process that is waited for
            self._ahead = _AHEAD
        if faults:
            self._told(faults, place)
        batch = assembled(self._target(), raw, made, maker.forms)
        self.place, self._given = place, self._as_wanted(ticket)
        return batch

    def _most(self) -> int:
        """How many batches are ahead: none where the stream is about to move."""
        if self._chooser is None:
            return self._ahead
        if self._chooser.settling():
            return 1
        return _AT_FIRST if self._chooser.looking else self._ahead

    def _begin(self, schema: pa.Schema) -> Maker:
        return maker_of(schema, (self._wanted.get("shuffle") or {}).get("seed", 0))

    def _asked(self) -> Json:
        """The ticket that goes on after what was given, for the place where operators run now."""
        ticket = {name: value for name, value in self._given.items() if name != "place"}
        if self._where == "server":
            return ticket
        columns = raw_columns(self._target().names, ticket["operators"])
        return {**ticket, "columns": columns, "place": "client"}

    def _as_wanted(self, ticket: Json) -> Json:
        """A ticket of the server's in the terms of who asked."""
        given = {name: value for name, value in ticket.items() if name != "columns"}
        if "columns" in self._wanted:
            given["columns"] = self._wanted["columns"]
        return {**given, "place": self._wanted["place"]}

    def _target(self) -> pa.Schema:
        """What batches are like that the server makes."""
        if self._schema is None:
            of_one = ("rank", "step", "row", "stride", "stop", "epochs", "served", "place")
            request = {name: value for name, value in self._wanted.items() if name not in of_one}
            self._schema = self._connection.schema(request)
        return self._schema

    def _told(self, faults: list[Json], place: Json) -> None:
        """Raise what ends the stream, and note in a batch's place what does not."""
        # What could not be made just now is no fault of the sample, whatever on_error is.
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
        maker, self._maker = self._maker, None
        if maker is not None:
            maker.close()

    def close(self) -> None:
        """As of Batches."""
        super().close()
        self._pending.clear()
        self._end()


def kind_of(ticket: Json) -> type[Batches]:
    """What reads a ticket."""
    return Batches if ticket.get("place", "server") == "server" else MadeBatches
