"""Random access with operators that run here: the blobs come by a call, and cells are made of them beside it."""

from __future__ import annotations

import os
import threading
from typing import Any

import pyarrow as pa

from bowstring._maker import Json, Maker, assembled, fault_of, maker_of, raw_columns
from bowstring.connection import Connection
from bowstring.exchange import Exchange


class MadeExchange(Exchange):
    """An exchange whose operators run in a process beside this one. What it gives is what the server would give."""

    def __init__(self, connection: Connection, take: Json, schema: pa.Schema) -> None:
        columns = raw_columns(schema.names, take["operators"])
        super().__init__(connection, {**take, "columns": columns, "place": "client"}, schema)
        self._drawn = {"seed": 0, "epoch": 0, **(take.get("shuffle") or {})}
        self._of = f"{take['dataset']}@{take['snapshot']}"
        self._maker: Maker | None = None
        self._turn = threading.Lock()  # held while the process makes a table
        self._made_pid = os.getpid()

    def take(self, rows: Any) -> pa.Table:
        """As of Exchange."""
        raw = super().take(rows)
        if not raw.num_rows:
            return self._schema.empty_table()
        if self._made_pid != os.getpid():  # the parent's process is the parent's
            self._maker, self._turn, self._made_pid = None, threading.Lock(), os.getpid()
        with self._turn:
            try:
                return pa.Table.from_batches([self._made(batch) for batch in raw.to_batches()], self._schema)
            except BaseException:  # what it answers next may be of this batch
                self._end()
                raise

    def _made(self, raw: pa.RecordBatch) -> pa.RecordBatch:
        if self._maker is None:
            self._maker = maker_of(raw.schema, self._drawn["seed"])
        self._maker.send(raw, self._drawn["epoch"])
        made, faults = self._maker.receive()
        if faults:
            raise fault_of(faults[0], self._of)
        return assembled(self._schema, raw, made, self._maker.forms)

    def _end(self) -> None:
        maker, self._maker = self._maker, None
        if maker is not None:
            maker.close()

    def close(self) -> None:
        """As of Exchange."""
        super().close()
        if self._made_pid == os.getpid():
            with self._turn:
                self._end()
