"""Record batches whose large buffers came through shared memory, and byte columns as views of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from bowstring._transport.shm import Ring


def with_shared(batch: pa.RecordBatch, shared: dict[str, Any], ring: Ring, lease: Any) -> pa.RecordBatch:
    """The batch with its buffers from the ring, whose slot the lease keeps."""
    found = {index: ring.buffer(lease, offset, length) for index, offset, length in shared["buffers"]}
    views = {r["buffer"]: r for r in shared.get("references", ())}
    columns = []
    first = 0
    for column in batch.columns:
        buffers = column.buffers()
        of_column = range(first, first + len(buffers))
        here = {index - first: found[index] for index in of_column if index in found}
        referring = [views[index] for index in of_column if index in views]
        if referring:
            column = _viewed(column, buffers[0], referring[0], ring, lease)
        elif here:
            old = enumerate(buffers)
            column = _rebuilt(column, iter([here.get(i, buffer) for i, buffer in old]))
        columns.append(column)
        first += len(buffers)
    if not views:
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)
    return pa.RecordBatch.from_arrays(columns, schema=_schema_of(batch.schema, columns))


def _schema_of(schema: pa.Schema, columns: list[pa.Array]) -> pa.Schema:
    fields = [field.with_type(column.type) for field, column in zip(schema, columns, strict=True)]
    return pa.schema(fields, schema.metadata)


def _viewed(like: pa.Array, valid: pa.Buffer | None, said: dict[str, Any], ring: Ring, lease: Any) -> pa.Array:
    """A column some of whose blobs are in files of the server."""
    views = ring.buffer(lease, *said["views"])
    data = [ring.buffer(lease, *said["data"]), *ring.referred(lease, said["table"])]
    return pa.Array.from_buffers(pa.binary_view(), len(like), [valid, views, *data], like.null_count)


def with_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with byte columns as views of the same memory, so that all batches of a stream have one schema."""
    came = batch.columns
    columns = [_as_views(column) for column in came]
    if all(new is old for new, old in zip(columns, came, strict=True)):
        return batch
    return pa.RecordBatch.from_arrays(columns, schema=_schema_of(batch.schema, columns))


_VIEW = np.dtype([("length", "<i4"), ("prefix", "S4"), ("buffer", "<i4"), ("offset", "<i4")])
_PART = 1 << 30  # of a buffer, in which views begin: offsets have 31 bits
_INLINE = 12  # length up to which a value is stored in its view


def _as_views(column: pa.Array) -> pa.Array:
    kind = column.type
    if kind not in (pa.binary(), pa.large_binary()):
        return column
    valid, bounds, values = column.buffers()
    rows = len(column)
    views = np.zeros(rows, _VIEW)
    parts = []
    if rows and bounds is not None and values is not None and values.size:
        width = np.int64 if kind == pa.large_binary() else np.int32
        offsets = np.frombuffer(bounds, width, rows + 1 + column.offset)[column.offset :].astype(np.int64)
        starts, lengths = offsets[:-1], np.diff(offsets)
        if lengths.max(initial=0) > np.iinfo(np.int32).max:
            raise OSError("a view has no place for a blob of 2 GiB and more; read it without references")
        content = np.frombuffer(values, np.uint8)
        views["length"] = lengths
        long = lengths > _INLINE
        first = starts[long]
        prefixes = content[first[:, None] + np.arange(4)] if len(first) else np.empty((0, 4), np.uint8)
        raw = views.view(np.uint8).reshape(rows, 16)
        raw[long, 4:8] = prefixes
        views["buffer"][long] = first // _PART
        views["offset"][long] = first % _PART
        for row in np.flatnonzero(~long & (lengths > 0)).tolist():
            raw[row, 4 : 4 + lengths[row]] = content[starts[row] : starts[row] + lengths[row]]
        parts = [values.slice(at) for at in range(0, values.size, _PART)]
    if column.offset and valid is not None:
        valid = column.is_valid().buffers()[1]
    return pa.Array.from_buffers(
        pa.binary_view(), rows, [valid, pa.py_buffer(views.view(np.uint8)), *parts], column.null_count
    )


def _rebuilt(like: pa.Array, buffers: Iterator[pa.Buffer | None]) -> pa.Array:
    """An array like another one, over the next buffers."""
    kind = like.type
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _rebuilt(like.storage, buffers))
    own = [next(buffers) for _ in range(kind.num_buffers)]
    children = [_rebuilt(child, buffers) for child in _children(like)]
    return pa.Array.from_buffers(kind, len(like), own, like.null_count, like.offset, children or None)


def _children(like: pa.Array) -> list[pa.Array]:
    if pa.types.is_struct(like.type):
        return [like.field(i) for i in range(like.type.num_fields)]
    if pa.types.is_list(like.type) or pa.types.is_large_list(like.type) or pa.types.is_fixed_size_list(like.type):
        return [like.values]
    return []
