"""Columns of Arrow as arrays of NumPy over the same memory: whole columns, and single samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bowstring._messages import shown
from bowstring.errors import InvalidRequest
from bowstring.operators import is_ragged, tensors

# Types that Arrow stores as integers, in the unit of the type.
_INTEGERS = {
    pa.types.is_date32: pa.int32(),
    pa.types.is_time32: pa.int32(),
    pa.types.is_date64: pa.int64(),
    pa.types.is_time64: pa.int64(),
    pa.types.is_timestamp: pa.int64(),
    pa.types.is_duration: pa.int64(),
}


def batch_of(record: pa.RecordBatch) -> dict[str, Any]:
    """A record batch as whole columns.

    Numbers and tensors of one shape are one array, with the samples along its first axis. Blobs, text, lists and
    tensors of several shapes are a list with a value for each sample. A column with nulls is an error, because an array
    cannot represent them.
    """
    return {field.name: _whole(column, field) for field, column in zip(record.schema, record.columns, strict=True)}


def samples_of(record: pa.RecordBatch) -> list[dict[str, Any]]:
    """A dictionary for each row of a record batch; a null is None."""
    names = record.schema.names
    columns = [_cells(column, field) for field, column in zip(record.schema, record.columns, strict=True)]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _whole(column: pa.Array, field: pa.Field) -> Any:
    if column.null_count:
        raise InvalidRequest(
            f"column {shown(field.name)} has nulls, for which an array has no place; narrow the dataset by where, "
            "leave the column out, or read single samples"
        )
    if pa.types.is_struct(column.type) and not is_ragged(field):
        return {child.name: _whole(column.field(i), child) for i, child in enumerate(column.type)}
    return _values(column, field)


def _cells(column: pa.Array, field: pa.Field) -> list[Any]:
    cells: list[Any]
    if pa.types.is_struct(column.type) and not is_ragged(field):
        names = [child.name for child in column.type]
        children = [_cells(column.field(i), child) for i, child in enumerate(column.type)]
        cells = [dict(zip(names, row, strict=True)) for row in zip(*children, strict=True)]
    else:
        cells = list(_values(column, field))
    if column.null_count:
        valid = column.is_valid().to_pylist()
        cells = [cell if there else None for cell, there in zip(cells, valid, strict=True)]
    return cells


def _values(column: pa.Array, field: pa.Field) -> npt.NDArray[Any] | list[Any]:
    """A value for each row; the value of a null is undefined."""
    if is_ragged(field) or isinstance(column.type, pa.FixedShapeTensorType):
        return tensors(column, field)
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _values(column.dictionary_decode(), field)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _slices(_bytes(column.buffers()[2]), column)
    if pa.types.is_fixed_size_binary(kind):
        width = kind.byte_width
        flat = _bytes(column.buffers()[1])[column.offset * width : (column.offset + len(column)) * width]
        return flat.reshape(len(column), width)
    if _is_list(kind) and _is_number(kind.value_type) and not column.values.null_count:
        return _slices(_numbers(column.values), column)
    if pa.types.is_fixed_size_list(kind) and _is_number(kind.value_type) and not column.values.null_count:
        size = kind.list_size
        return _numbers(column.values.slice(column.offset * size, len(column) * size)).reshape(len(column), size)
    return _numbers(column) if _is_number(kind) else column.to_pylist()


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_number(kind: pa.DataType) -> bool:
    plain = pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return bool(plain or any(test(kind) for test in _INTEGERS))


def _slices(flat: npt.NDArray[Any], column: pa.Array) -> list[npt.NDArray[Any]]:
    """The values between the offsets of a column of bytes or of lists."""
    if not len(column):
        return []
    wide = pa.types.is_large_binary(column.type) or pa.types.is_large_list(column.type)
    kind = np.dtype(np.int64 if wide else np.int32)
    bounds = np.frombuffer(column.buffers()[1], kind, len(column) + 1, column.offset * kind.itemsize).tolist()
    return [flat[bounds[i] : bounds[i + 1]] for i in range(len(column))]


def _bytes(buffer: pa.Buffer | None) -> npt.NDArray[np.uint8]:
    return np.empty(0, np.uint8) if buffer is None or not buffer.size else np.frombuffer(buffer, np.uint8)


def _numbers(column: pa.Array) -> npt.NDArray[Any]:
    """The values of a column of numbers; the value of a null is undefined."""
    for test, integer in _INTEGERS.items():
        if test(column.type):
            column = column.view(integer)
    if pa.types.is_boolean(column.type):  # Arrow packs them to bits
        return _numbers(pc.cast(pc.fill_null(column, False), pa.uint8())).view(np.bool_)
    # Not by to_numpy and to_pandas_dtype, for which some versions of pyarrow import pandas.
    kind = str(column.type)
    dtype = np.dtype({"halffloat": "float16", "float": "float32", "double": "float64"}.get(kind, kind))
    buffer = column.buffers()[1]
    if buffer is None or not len(column):
        return np.zeros(len(column), dtype)
    return np.frombuffer(buffer, dtype, len(column), column.offset * dtype.itemsize)
