"""Random access with operators that run here: a call brings the blobs, and cells are made from them in parallel."""

from __future__ import annotations

import os
import threading
from typing import Any

import pyarrow as pa

from bowstring._operators.process import _PATIENCE, Json, OperatorProcess, assembled, fault_of, process_for, raw_columns
from bowstring.connection import Connection
from bowstring.errors import Cancelled
from bowstring.exchange import Exchange


class LocalExchange(Exchange):
    """An exchange whose operators run in a separate process on this machine. Its results equal the server's."""

    def __init__(self, connection: Connection, take: Json, schema: pa.Schema) -> None:
        columns = raw_columns(schema.names, take["operators"])
        super().__init__(connection, {**take, "columns": columns, "place": "client"}, schema)
        self._drawn = {"seed": 0, "epoch": 0, **(take.get("shuffle") or {})}
        self._of = f"{take['dataset']}@{take['snapshot']}"
        self._worker: OperatorProcess | None = None
        self._turn = threading.Lock()  # held while the process makes a table
        self._closes = 0  # number of calls of close: a take that began before one then fails
        self._made_pid = os.getpid()

    def take(self, rows: Any) -> pa.Table:
        """As in Exchange. It fails if another thread closes the exchange."""
        closes = self._closes
        raw = super().take(rows)
        if not raw.num_rows:
            return self._schema.empty_table()
        if self._made_pid != os.getpid():  # the process belongs to the parent
            self._worker, self._turn, self._made_pid = None, threading.Lock(), os.getpid()
        with self._turn:
            try:
                return pa.Table.from_batches([self._made(batch, closes) for batch in raw.to_batches()], self._schema)
            except BaseException as error:  # its next answer may be for this batch
                self._end()
                if self._closes != closes and isinstance(error, Exception):
                    raise Cancelled("take: the exchange was closed meanwhile, by another thread") from None
                raise

    def _made(self, raw: pa.RecordBatch, closes: int) -> pa.RecordBatch:
        if self._worker is None and self._closes == closes:
            self._worker = process_for(raw.schema, self._drawn["seed"])
        if self._worker is None or self._closes != closes:  # closed before there was a process to end
            raise Cancelled("take: the exchange is closed")
        self._worker.send(raw, self._drawn["epoch"])
        made, faults = self._worker.receive()
        if faults:
            raise fault_of(faults[0], self._of)
        return assembled(self._schema, raw, made, self._worker.forms)

    def _end(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def close(self) -> None:
        """As in Exchange."""
        self._closes += 1
        worker = self._worker
        if worker is not None:
            worker.close()  # a thread that waits for it is woken, and releases the lock
        super().close()
        if self._made_pid == os.getpid() and self._turn.acquire(timeout=_PATIENCE):
            try:
                self._end()
            finally:
                self._turn.release()
