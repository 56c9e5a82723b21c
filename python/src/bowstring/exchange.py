"""Random access to rows, by a call that stays open."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as fl

from bowstring import _fork
from bowstring._rows import rows_of
from bowstring._wire import decoded, keep_forever
from bowstring.connection import Connection
from bowstring.errors import BowstringError, InvalidRequest, LimitExceeded, ServerError, Unavailable, translate
from bowstring.stream import retrying, worth_retrying


class Exchange:
    """Random access by one open call (DoExchange), made by [Dataset.exchange][bowstring.Dataset.exchange].

    It may be used by several threads, by one at a time. If the server restarts, the call is made again.
    """

    def __init__(self, connection: Connection, take: dict[str, Any], schema: pa.Schema) -> None:
        self._connection = connection
        self._schema = schema
        self._command = json.dumps({"take": take})
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._calls: dict[str, tuple[Any, Any]] = {}  # by the column that is sent

    def take(self, rows: Any) -> pa.Table:
        """Rows by position or id, in the order asked for, repeats included."""
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
            if self._calls:
                keep_forever(self._calls)  # the fork was hidden from Python
            self._calls, self._lock, self._pid = {}, threading.Lock(), os.getpid()
        with self._lock:
            try:
                return self._take(column, batch)
            except (Unavailable, LimitExceeded) as error:
                if not self._connection.retries or not worth_retrying(error):
                    raise
                failed = error
            table: pa.Table = retrying(self._connection.retries, failed)(self._take, column, batch)
            return table

    def _take(self, column: str, batch: pa.RecordBatch) -> pa.Table:
        try:
            with translate():
                if column not in self._calls:
                    descriptor = fl.FlightDescriptor.for_command(self._command)
                    with _fork.connecting():
                        self._calls[column] = self._connection.flight().do_exchange(
                            descriptor, self._connection.options(stream=True)
                        )
                        _fork.hold(self)
                    self._calls[column][0].begin(batch.schema)
                writer, reader = self._calls[column]
                writer.write_batch(batch)
                parts = []
                while True:
                    chunk = reader.read_chunk()
                    parts.append(chunk.data)
                    if decoded(chunk.app_metadata)["last"]:
                        return pa.Table.from_batches(parts)
        except StopIteration:
            self._forget(column)
            raise ServerError("the server ended a take without an answer") from None
        except BaseException as error:
            said = self._forget(column)
            if isinstance(error, BowstringError) and said is not None and not isinstance(error, type(said)):
                raise said from error
            raise

    def _forget(self, column: str) -> BowstringError | None:
        """End a call that has failed; the error it ended with, which says more than that of a write."""
        call = self._calls.pop(column, None)
        if call is None:
            return None
        try:
            with translate():
                call[0].close()
        except BowstringError as error:
            return error
        return None

    def _let_go(self) -> None:
        if self._lock.acquire(timeout=1):  # once the take that is under way is answered
            for column in list(self._calls):
                self._calls[column][1].cancel()
                self._forget(column)
            self._lock.release()

    def close(self) -> None:
        """End the call."""
        if self._pid != os.getpid():
            return  # there is none
        with self._lock:
            calls, self._calls = self._calls, {}
            for writer, _ in calls.values():
                with contextlib.suppress(BowstringError), translate():
                    writer.done_writing()
                    writer.close()

    def __enter__(self) -> Exchange:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
