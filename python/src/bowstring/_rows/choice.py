"""Convert a choice of rows, in any common form, to one array of Arrow."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bowstring._messages import listed
from bowstring._rows.integers import to_arrow
from bowstring.errors import InvalidRequest


def rows_of(rows: Any) -> pa.Array:
    """A choice of rows as one array of Arrow: booleans, integers, or ids."""
    if isinstance(rows, (pa.Table, pa.RecordBatch)) or (hasattr(rows, "columns") and hasattr(rows, "__getitem__")):
        names = list(rows.column_names if isinstance(rows, (pa.Table, pa.RecordBatch)) else rows.columns)
        for name in ("position", "id"):
            if name in names:
                return rows_of(rows[name])
        raise InvalidRequest(f"rows: got a table without a column `position` or `id`; it has {listed(names)}")
    if isinstance(rows, (str, bytes, uuid.UUID, int)):
        raise TypeError(f"rows: got one {type(rows).__name__}, want a list of them: [{rows!r}]")
    array = _array(rows)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type
    if pa.types.is_dictionary(kind):
        array = array.dictionary_decode()
        kind = array.type
    if array.null_count and kind != pa.bool_() and not pa.types.is_null(kind):
        raise InvalidRequest(f"rows: got {array.null_count} nulls among them, want a position or an id for each")
    if pa.types.is_null(kind) and len(array):
        raise InvalidRequest("rows: got nothing but nulls, want positions, ids or booleans")
    if pa.types.is_floating(kind):
        raise InvalidRequest(f"rows: got {kind}, want integers, ids or booleans")
    if pa.types.is_uint64(kind) and len(array) and pc.max(array).as_py() >= 2**63:
        raise InvalidRequest(f"rows: got position {pc.max(array).as_py()}, want less than 2^63")
    if kind == pa.bool_() or pa.types.is_integer(kind) or pa.types.is_null(kind):
        return array
    if any(test(kind) for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)):
        return pc.cast(array, pa.utf8())
    if pa.types.is_binary_view(kind):
        array = pc.cast(array, pa.binary())
        kind = array.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        sizes = pc.unique(pc.binary_length(array)).to_pylist()
        if sizes and sizes != [16]:
            raise InvalidRequest(f"rows: got ids of {max(sizes)} bytes, want 16")
        return pc.cast(pc.cast(array, pa.binary()), pa.binary(16))
    raise InvalidRequest(f"rows: got {kind}, want integers, ids or booleans")


def _array(rows: Any) -> pa.Array | pa.ChunkedArray:
    if isinstance(rows, (pa.Array, pa.ChunkedArray)):
        return rows
    if isinstance(rows, np.ndarray):
        if rows.ndim != 1:
            raise InvalidRequest(f"rows: got an array of {rows.ndim} dimensions, want one")
        if rows.dtype.kind in "iu" and rows.dtype != np.uint64:
            return to_arrow(rows.astype(np.int64))
        if rows.dtype.kind == "b":
            return pc.cast(to_arrow(rows.astype(np.int64)), pa.bool_())
        return pa.array(rows.tolist()) if rows.dtype.kind == "O" else pa.array(rows)
    if hasattr(rows, "__arrow_c_array__") or hasattr(rows, "__arrow_c_stream__"):
        if hasattr(rows, "__arrow_c_stream__"):
            return pa.chunked_array(rows)
        return pa.array(rows)
    if hasattr(rows, "__array__"):
        return _array(np.asarray(rows))
    if not isinstance(rows, Iterable):
        raise TypeError(f"rows: got {type(rows).__name__}, want a list or an array")
    values = list(rows)
    if values and isinstance(values[0], uuid.UUID):
        return pa.array([v.bytes if isinstance(v, uuid.UUID) else v for v in values], pa.binary())
    if values and isinstance(values[0], bool) and not all(isinstance(v, bool) for v in values):
        raise InvalidRequest("rows: got booleans and others, want one kind")
    # Not by `pa.array`, which imports pandas to check for its series.
    if values and all(isinstance(v, (bool, np.bool_)) for v in values):
        return _array(np.array(values, np.bool_))
    if values and all(isinstance(v, (int, np.integer)) and -(2**63) <= v < 2**63 for v in values):
        return to_arrow(np.array(values, np.int64))
    try:
        return pa.array([v.item() if isinstance(v, np.generic) else v for v in values])
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise InvalidRequest(f"rows: want integers, ids or booleans: {error}") from None
