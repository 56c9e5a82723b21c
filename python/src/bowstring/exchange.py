"""Random access to rows, by a call that stays open."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from functools import partial
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as fl

from bowstring import _fork
from bowstring._opening import Opening
from bowstring._rows import rows_of
from bowstring._shown import shown
from bowstring._wire import decoded, keep_forever
from bowstring.connection import Connection
from bowstring.errors import (
    BowstringError,
    Cancelled,
    InvalidRequest,
    LimitExceeded,
    ServerError,
    Unavailable,
    translate,
)
from bowstring.stream import retrying, worth_retrying

_LOG = logging.getLogger("bowstring.exchange")
_PATIENCE = 1.0  # seconds for a take that is under way to be answered, before it is given up

_Call = tuple[Any, Any]  # a writer and a reader


class Exchange:
    """Random access by one open call (DoExchange), made by [Dataset.exchange][bowstring.Dataset.exchange].

    It may be used by several threads, by one at a time. If the server restarts, the call is made again.
    """

    def __init__(self, connection: Connection, take: dict[str, Any], schema: pa.Schema) -> None:
        self._connection = connection
        self._schema = schema
        self._command = json.dumps({"take": take})
        self._lock = threading.Lock()  # held while rows are taken
        self._waits = False  # who has it waits for a call to be made, and has nothing of gRPC's
        self._pid = os.getpid()
        self._calls: dict[str, _Call] = {}  # by the column that is sent
        self._opening: Opening[_Call] | None = None
        self._closes = 0  # how often it was closed
        self._forks = 0  # how often a take was given up for a fork

    def take(self, rows: Any) -> pa.Table:
        """Rows by position or id, in the order asked for, repeats included.

        A take that another thread closes the exchange under fails, if its answer does not come soon.
        """
        wanted = rows_of(rows)
        if wanted.type == pa.bool_():
            raise InvalidRequest("take: got booleans, want positions or ids; `select` takes a mask")
        column = "position" if pa.types.is_integer(wanted.type) or pa.types.is_null(wanted.type) else "id"
        if column == "position":
            wanted = pc.cast(wanted, pa.int64())
        if not len(wanted):
            return self._schema.empty_table()
        batch = pa.record_batch([wanted], names=[column])
        if self._pid != os.getpid():
            if self._calls or self._opening is not None:
                keep_forever((self._calls, self._opening))  # the fork was hidden from Python
            self._calls, self._lock, self._pid = {}, threading.Lock(), os.getpid()
            self._opening, self._waits = None, False
        with self._lock:
            closes = self._closes
            try:
                return self._take(column, batch, closes)
            except (Unavailable, LimitExceeded) as error:
                if not self._connection.retries or not worth_retrying(error):
                    raise
                failed = error
            _LOG.warning("a take broke off at %s, and is repeated: %s", self._connection.uri, shown(failed))
            table: pa.Table = retrying(self._connection.retries, failed)(self._take, column, batch, closes)
            return table

    def _take(self, column: str, batch: pa.RecordBatch, closes: int) -> pa.Table:
        while True:
            forks = self._forks
            try:
                return self._taken(column, batch, closes)
            except (Cancelled, Unavailable):
                if self._closes != closes:
                    raise Cancelled("take: the exchange was closed meanwhile, by another thread") from None
                if self._forks == forks:
                    raise
                # It was given up for a fork, and is repeated.

    def _taken(self, column: str, batch: pa.RecordBatch, closes: int) -> pa.Table:
        call: _Call | None = None
        try:
            with translate():
                call = self._calls.get(column) or self._begun(column, batch.schema, closes)
                writer, reader = call
                writer.write_batch(batch)
                parts = []
                while True:
                    chunk = reader.read_chunk()
                    parts.append(chunk.data)
                    if decoded(chunk.app_metadata)["last"]:
                        return pa.Table.from_batches(parts)
        except StopIteration:
            self._forget(column, call)
            raise ServerError("the server ended a take without an answer") from None
        except BaseException as error:
            said = self._forget(column, call)
            if isinstance(error, BowstringError) and said is not None and not isinstance(error, type(said)):
                raise said from error
            raise

    def _begun(self, column: str, schema: pa.Schema, closes: int) -> _Call:
        """A new call."""
        descriptor = fl.FlightDescriptor.for_command(self._command)
        make = partial(self._connection.call, "do_exchange", descriptor, self._connection.options(stream=True))
        self._waits = True
        try:
            with _fork.connecting():
                _fork.hold(self)
                self._opening = opening = Opening(make, _dropped)
            if self._closes != closes:
                opening.give_up()
            try:
                opening.take(partial(self._calls.__setitem__, column))
            except BaseException:  # such as a signal's
                opening.give_up()
                raise
        finally:
            self._waits = False
        call = self._calls.get(column)
        if call is None:
            raise Cancelled("take: its call was given up")
        call[0].begin(schema)
        return call

    def _forget(self, column: str, call: _Call | None) -> BowstringError | None:
        """End a call that has failed; the error it ended with, which says more than that of a write."""
        call = self._calls.pop(column, None) or call
        if call is None:
            return None
        try:
            with translate():
                call[0].close()
        except BowstringError as error:
            return error
        return None

    def _let_go(self) -> None:
        if self._acquired(for_fork=True):
            for column, call in list(self._calls.items()):
                call[1].cancel()
                self._forget(column, call)
            self._lock.release()
        else:
            self._forks += 1
            self._give_up()

    def _acquired(self, *, for_fork: bool = False) -> bool:
        """Take the lock as soon as nothing is taken. False if what is taken takes too long."""
        end = time.monotonic() + _PATIENCE
        while not self._lock.acquire(timeout=0.001):
            if (for_fork and self._waits) or time.monotonic() > end:
                return False
        return True

    def _give_up(self) -> None:
        """Have the take that is under way fail."""
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.give_up()
        calls, self._calls = self._calls, {}
        for _, reader in calls.values():
            with contextlib.suppress(pa.ArrowException, OSError):
                reader.cancel()

    def close(self) -> None:
        """End the call. It waits for no server for long."""
        if self._pid != os.getpid():
            return  # there is none
        self._closes += 1
        if not self._acquired():
            self._give_up()
            return
        calls, self._calls = self._calls, {}
        self._lock.release()
        for call in calls.values():
            ending = Opening(partial(_ended, call), id)
            if not ending.take(id, _PATIENCE):
                call[1].cancel()  # then it ends

    def __enter__(self) -> Exchange:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _ended(call: _Call) -> None:
    """Say that nothing more is asked for, and wait until the server has ended the call."""
    with contextlib.suppress(BowstringError), translate():
        call[0].done_writing()
        call[0].close()


def _dropped(call: _Call) -> None:
    """End a call that nobody wants any more."""
    with contextlib.suppress(pa.ArrowException, OSError):
        call[1].cancel()
        call[0].close()  # which says that it was cancelled
