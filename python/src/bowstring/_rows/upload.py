"""Uploads of rows: the inputs that are accepted, and the call that sends them."""

from __future__ import annotations

import contextlib
import json
import queue
import re
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from bowstring._cancellation import check
from bowstring._messages import shown
from bowstring._progress import progress_bar
from bowstring._rows.storable import stored, stored_type
from bowstring._transport import fork
from bowstring._transport.wire import decoded
from bowstring.connection import Connection
from bowstring.errors import BowstringError, InvalidRequest, ServerError, translate

_POLARS_ALONE = {
    "Int128": "Decimal(38, 0) or to text", "UInt128": "Decimal(38, 0) or to text", "Object": "text or to bytes",
}  # fmt: skip
_MESSAGE_BYTES = 8 << 20  # of one batch of an upload


@dataclass(frozen=True)
class IngestResult:
    """The result of an upload.

    Attributes:
        dataset: The dataset.
        snapshot: Its newest snapshot.
        rows: Rows sent.
        bytes: Size of their blobs.
        changed: False if the newest snapshot already was identical.
        matched: Rows for which `merge` or `delete` found a sample.
        inserted: Rows that `merge` added as new samples.
        ignored: Rows left out because no sample has their key.
        deleted: Samples that `delete` has deleted.
    """

    dataset: str
    snapshot: int
    rows: int
    bytes: int
    changed: bool
    matched: int = 0
    inserted: int = 0
    ignored: int = 0
    deleted: int = 0


@dataclass(frozen=True)
class AlterResult:
    """The result of [Client.alter][bowstring.Client.alter].

    Attributes:
        dataset: The dataset.
        snapshot: Its newest snapshot.
        changed: False if there was nothing to change.
        rows: Rows of the snapshot.
        deleted: Rows that were deleted.
    """

    dataset: str
    snapshot: int
    changed: bool
    rows: int
    deleted: int


def upload(connection: Connection, put: dict[str, Any], reader: Any, *, progress: bool) -> IngestResult:
    """Send the rows of a reader as one upload."""
    with contextlib.ExitStack() as ending:
        schema, batches, total = _batches_of(reader, ending)
        if put["mode"] in ("merge", "delete"):
            schema, batches = _without_index(schema, batches)
        known = _known(connection, put) if pa.null() in schema.types else {}
        schema, batches = _stored(schema, batches, put.get("blobs"), known)
        return _Upload(connection, put, schema, total, progress).run(batches)


def _batches_of(reader: Any, ending: contextlib.ExitStack) -> tuple[pa.Schema, Iterator[pa.RecordBatch], int | None]:
    """Schema, batches and, if known, number of rows of an upload's input. `ending` releases the input."""
    if isinstance(reader, pa.RecordBatch):
        reader = pa.Table.from_batches([reader])
    if isinstance(reader, pa.Table):
        return reader.schema, iter(reader.to_batches()), reader.num_rows
    if isinstance(reader, pa.RecordBatchReader):
        return reader.schema, iter(reader), None
    if hasattr(reader, "__arrow_c_stream__"):
        if isinstance(kinds := getattr(reader, "schema", None), Mapping):
            check_polars(kinds)
        total = len(reader) if hasattr(reader, "__len__") else None
        try:
            stream = pa.RecordBatchReader.from_stream(reader)
        except pa.ArrowInvalid as error:
            raise InvalidRequest(f"reader: pyarrow cannot read what {type(reader).__name__} gives: {error}") from error
        # A query of DuckDB holds its connection until it is read or closed, and a traceback may keep the stream.
        ending.callback(stream.close)
        return stream.schema, iter(stream), total
    if isinstance(reader, (str, bytes, dict)) or not isinstance(reader, Iterable):
        raise TypeError(
            f"reader: got {type(reader).__name__}, want a pyarrow.Table, a RecordBatchReader, an iterable of record "
            "batches, or anything with __arrow_c_stream__"
        )
    pieces = iter(reader)
    first = next(pieces, None)
    if first is None:
        raise ValueError("reader: got no batch, so its schema is not known; an empty pyarrow.Table has one")
    if not isinstance(first, (pa.RecordBatch, pa.Table)):
        raise TypeError(f"reader: got an iterable of {type(first).__name__}, want one of pyarrow.RecordBatch")

    def batches() -> Iterator[pa.RecordBatch]:
        piece: Any = first
        while piece is not None:
            if isinstance(piece, pa.Table):
                yield from piece.to_batches()
            else:
                yield piece
            piece = next(pieces, None)

    return first.schema, batches(), None


def _known(connection: Connection, put: dict[str, Any]) -> dict[str, pa.DataType]:
    """The types of the dataset's columns, for columns of the upload without a value, whose type is unknown."""
    if put["mode"] == "create":
        return {}
    with contextlib.suppress(BowstringError):  # the upload itself returns the error
        schema = connection.schema({"dataset": put["dataset"]})
        return {field.name: getattr(field.type, "storage_type", field.type) for field in schema}
    return {}


def check_polars(schema: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for a column of Polars whose type no Arrow type can hold, also within lists and structs.

    Polars gives an Object to Arrow as the address of a Python object.
    """
    for name, kind in schema.items():
        kinds = [kind]
        for found in kinds:
            kinds += [field.dtype for field in getattr(found, "fields", ())]
            if (inner := getattr(found, "inner", None)) is not None:
                kinds.append(inner)
        for found in map(str, kinds):
            if found in _POLARS_ALONE:
                raise InvalidRequest(
                    f"reader: column {shown(name)} is {kind}, which Arrow does not have: cast {found} to "
                    f"{_POLARS_ALONE[found]}"
                )


def _stored(
    schema: pa.Schema, batches: Iterator[pa.RecordBatch], blobs: list[str] | None, known: Mapping[str, pa.DataType]
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Convert types that exist only in memory, such as those of Polars, to types that a server stores."""
    plain = pa.schema(
        [
            field.with_type(
                known[field.name]
                if pa.types.is_null(field.type) and field.name in known
                else stored_type(field.type, field.name, blob=blobs is None or field.name in blobs)
            )
            for field in schema
        ],
        schema.metadata,
    )
    if plain.types == schema.types:
        return schema, batches
    return plain, (
        pa.RecordBatch.from_arrays(
            [stored(column, field.type) for column, field in zip(batch.columns, plain, strict=True)], schema=plain
        )
        for batch in batches
    )


def _without_index(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Remove the index column that pandas adds to filtered rows: it would become a column of all rows."""
    names = [name for name in schema.names if not re.fullmatch(r"__index_level_\d+__", name)]
    if len(names) == len(schema.names) or not names:
        return schema, batches
    kept = pa.schema([schema.field(name) for name in names], schema.metadata)
    return kept, (batch.select(names) for batch in batches)


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch into messages of a suitable size."""
    rows = batch.num_rows
    step = max(1, rows * _MESSAGE_BYTES // max(1, batch.nbytes))
    for start in range(0, rows, step):
        yield batch.slice(start, step)


class _Upload:
    """A running upload. Another thread reads the server's acknowledgements, so that the server does not block."""

    def __init__(
        self, connection: Connection, put: dict[str, Any], schema: pa.Schema, total: int | None, progress: bool
    ):
        self._connection = connection
        self._put = put
        self._schema = schema
        self._bars = (
            progress_bar(progress, f"ingest {put['dataset']}", total, "row"),
            progress_bar(progress, "stored", None, "B"),
        )
        self._stored = 0  # bytes of blobs that the server has acknowledged
        self._notes: list[str] = []  # the server's messages for the user
        self._results: queue.SimpleQueue[dict[str, Any] | BowstringError | None] = queue.SimpleQueue()

    def run(self, batches: Iterator[pa.RecordBatch]) -> IngestResult:
        descriptor = fl.FlightDescriptor.for_command(json.dumps({"put": self._put}))
        rows, size = self._bars
        with rows, size, fork.uploading():
            with translate():
                writer, reader = self._connection.flight().do_put(
                    descriptor, self._schema, self._connection.options(stream=True)
                )
            listener = threading.Thread(target=self._listen, args=(reader,), daemon=True)
            listener.start()
            try:
                sent = self._send(writer, batches)
                with translate():
                    writer.write_metadata(json.dumps({"commit": True, "rows": sent}).encode())
                    writer.done_writing()
            except BaseException as error:
                # Without the last message nothing is committed. The server's error has priority over the broken
                # connection that follows it.
                said = self._end(writer, listener)
                if said is not None and isinstance(error, BowstringError):
                    raise said from error
                raise
            listener.join()
            last = self._results.get()
            try:
                with translate():
                    writer.close()
            except BowstringError as error:  # if the server refused the upload, this is the reason
                if not isinstance(last, dict) or "snapshot" not in last:
                    raise (last if isinstance(last, BowstringError) else error) from None
            if isinstance(last, BowstringError):
                raise last
            if last is None or "snapshot" not in last:
                raise ServerError(f"the upload ended without a result: {last}")
            for note in self._notes:
                warnings.warn(f"ingest into {last['dataset']}: {note}", stacklevel=4)
            counts = {name: last[name] for name in ("matched", "inserted", "ignored", "deleted") if name in last}
            return IngestResult(
                last["dataset"], last["snapshot"], last["rows"], self._stored, last["changed"], **counts
            )

    def _send(self, writer: Any, batches: Iterator[pa.RecordBatch]) -> int:
        sent = 0
        for batch in batches:  # exceptions of the caller's reader pass unchanged
            for piece in _cut(batch):
                check()  # a call of gRPC cannot be cancelled, and without the last message nothing is committed
                with translate():
                    writer.write_batch(piece)
                sent += piece.num_rows
        return sent

    def _listen(self, reader: Any) -> None:
        """Read the server's messages until it ends the call; the last one is the result."""
        rows, size = self._bars
        last: dict[str, Any] | BowstringError | None = None
        try:
            while True:
                with translate():
                    message = reader.read()
                if message is None:
                    break
                last = decoded(message.to_pybytes())
                if "note" in last:
                    self._notes.append(last["note"])
                if "batch" in last:
                    rows.update(last["rows"] - rows.n)
                    size.update(last["bytes"] - self._stored)
                    self._stored = last["bytes"]
        except BowstringError as error:
            last = error
        except Exception as error:  # noqa: BLE001 - it is raised in the waiting thread
            last = ServerError(f"{type(error).__name__}: {error}")
        self._results.put(last)

    def _end(self, writer: Any, listener: threading.Thread) -> BowstringError | None:
        """End a failed upload, and return the server's error, if there is one."""
        with contextlib.suppress(BowstringError), translate():
            writer.done_writing()
        listener.join()  # before the call is closed, which waits for the listener's messages
        last = self._results.get()
        said = last if isinstance(last, BowstringError) else None
        try:
            with translate():
                writer.close()
        except BowstringError as error:
            said = said or error
        return said
