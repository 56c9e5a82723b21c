"""Random access to rows, over a call that stays open."""

from __future__ import annotations

import logging
import os
import threading
from functools import partial
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bowstring._messages import shown
from bowstring._rows.choice import rows_of
from bowstring._transport.background import BackgroundCall
from bowstring._transport.calls import Reader, Writer
from bowstring._transport.wire import decoded
from bowstring.connection import Connection
from bowstring.errors import Cancelled, InvalidRequest, LimitExceeded, ServerError, Unavailable, translate
from bowstring.stream import retrying, worth_retrying

_LOG = logging.getLogger("bowstring.exchange")
_PATIENCE = 1.0  # seconds that a running take may last before close cancels it

_Call = tuple[Writer, Reader]


class Exchange:
    """Random access over one open call (DoExchange), made by [Dataset.exchange][bowstring.Dataset.exchange].

    Several threads may use it, one at a time. If the server restarts, the call is made again.
    """

    def __init__(self, connection: Connection, take: dict[str, Any], schema: pa.Schema) -> None:
        self._connection = connection
        self._schema = schema
        self._take_of = {"take": take}
        self._lock = threading.Lock()  # held while rows are taken
        self._pid = os.getpid()
        self._calls: dict[str, _Call] = {}  # by the column that is sent
        self._opening: BackgroundCall[_Call] | None = None
        self._closes = 0  # number of calls of close

    def take(self, rows: Any) -> pa.Table:
        """Rows by position or id, in the given order, with repeats.

        If another thread closes the exchange, a running take fails unless its answer comes soon.
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
        if self._pid != os.getpid():  # the calls belong to the parent
            self._calls, self._lock, self._pid, self._opening = {}, threading.Lock(), os.getpid(), None
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
        try:
            return self._taken(column, batch, closes)
        except (Cancelled, Unavailable):
            if self._closes == closes:
                raise
            raise Cancelled("take: the exchange was closed meanwhile, by another thread") from None

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
                    if decoded(chunk.app_metadata.to_pybytes())["last"]:
                        return pa.Table.from_batches(parts)
        except StopIteration:
            self._forget(column, call)
            raise ServerError("the server ended a take without an answer") from None
        except BaseException:
            self._forget(column, call)
            raise

    def _begun(self, column: str, schema: pa.Schema, closes: int) -> _Call:
        """Make a new call."""
        self._opening = opening = BackgroundCall(partial(self._connection.batches_exchanged, self._take_of), _dropped)
        if self._closes != closes:
            opening.cancel()
        try:
            opening.take(partial(self._calls.__setitem__, column))
        except BaseException:  # such as a signal's
            opening.cancel()
            raise
        call = self._calls.get(column)
        if call is None:
            raise Cancelled("take: its call was cancelled")
        call[0].begin(schema)
        return call

    def _forget(self, column: str, call: _Call | None) -> None:
        """End a failed call."""
        call = self._calls.pop(column, None) or call
        if call is not None:
            call[1].cancel()

    def close(self) -> None:
        """End the call. It waits at most briefly for the server."""
        if self._pid != os.getpid():
            return  # there is none
        self._closes += 1
        idle = self._lock.acquire(timeout=_PATIENCE)  # otherwise the running take fails
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.cancel()
        calls, self._calls = self._calls, {}
        for _, reader in calls.values():
            if idle:
                reader.end(_PATIENCE)
            else:
                reader.cancel()
        if idle:
            self._lock.release()

    def __enter__(self) -> Exchange:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _dropped(call: _Call) -> None:
    """End a call that is not used any more."""
    call[1].cancel()
