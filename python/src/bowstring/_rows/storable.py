"""Types that a server stores instead of those that exist only in memory, and conversions to them."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from bowstring._messages import shown
from bowstring.errors import InvalidRequest

_MADE: list[tuple[Callable[[pa.DataType], bool], pa.DataType]] = [
    (pa.types.is_string_view, pa.utf8()),
    (pa.types.is_null, pa.utf8()),  # all values are null: text can hold them
]
_ADVICE: list[tuple[Callable[[pa.DataType], bool], str]] = [
    (pa.types.is_decimal256, "a decimal of at most 38 digits (decimal128), or text"),
    (pa.types.is_interval, "a duration, or months, days and nanoseconds as columns of integers"),
    (pa.types.is_union, "a column for each of its kinds, or text such as JSON"),
]
_DECIMALS = tuple(
    kind for name in ("Decimal32Type", "Decimal64Type") if (kind := getattr(pa, name, None)) is not None
)  # of pyarrow 19 and newer


def stored_type(kind: pa.DataType, column: str, *, blob: bool = False) -> pa.DataType:
    """The type that a server stores for a column. InvalidRequest if none can hold its values.

    Args:
        kind: The type of the column.
        column: Its name, for messages.
        blob: Whether it may hold samples' bytes; metadata columns and nested values are small.
    """
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name == "ray.data.arrow_pickled_object":
            raise InvalidRequest(f"column {shown(column)} has pickled objects of Python, want values that Arrow has")
        made = stored_type(kind.storage_type, column, blob=blob)
        return kind if made == kind.storage_type else made
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        made = stored_type(kind.value_type, column, blob=False)
        return pa.dictionary(kind.index_type, made) if pa.types.is_dictionary(kind) else made
    if pa.types.is_binary_view(kind) or pa.types.is_large_binary(kind):
        return pa.large_binary() if blob else pa.binary()
    if isinstance(kind, _DECIMALS):
        return pa.decimal128(kind.precision, kind.scale)
    if pa.types.is_map(kind):
        kind = pa.list_(pa.struct([kind.key_field, kind.item_field]))
    if _is_list(kind):
        return pa.list_(_nested(kind.value_field, column))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_nested(kind.value_field, column), kind.list_size)
    if pa.types.is_struct(kind):
        return pa.struct([_nested(field, column) for field in kind])
    for test, made in _MADE:
        if test(kind):
            return made
    for test, advice in _ADVICE:
        if test(kind):
            raise InvalidRequest(f"column {shown(column)} is of type {kind}, which is not stored; want {advice}")
    return kind


def _nested(field: pa.Field, column: str) -> pa.Field:
    made = stored_type(field.type, column)
    return field.with_type(made.value_type if pa.types.is_dictionary(made) else made)


def _is_list(kind: pa.DataType) -> bool:
    views = (getattr(pa.types, name)(kind) for name in ("is_list_view", "is_large_list_view"))
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or any(views))


def stored(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """An array converted to the type that `stored_type` returned for it."""
    was = array.type
    if was == kind:
        return array
    if isinstance(was, pa.BaseExtensionType):
        return stored(array.storage, kind)
    if pa.types.is_dictionary(was):
        keeps = pa.types.is_dictionary(kind)
        values = stored(array.dictionary, kind.value_type if keeps else kind)
        made = pa.DictionaryArray.from_arrays(array.indices, values)
        return made if keeps else made.dictionary_decode()
    if pa.types.is_run_end_encoded(was):
        return stored(pc.run_end_decode(array), kind)
    if pa.types.is_null(was):
        return pa.nulls(len(array), kind)
    if pa.types.is_map(was):
        array = array.cast(pa.list_(pa.struct([was.key_field, was.item_field])))
        return stored(array, kind)
    missing = array.is_null() if array.null_count else None
    if pa.types.is_struct(was):
        children = [stored(array.field(i), field.type) for i, field in enumerate(kind)]
        if not children:
            return array.cast(kind)
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=missing)
    if pa.types.is_fixed_size_list(was):
        size = was.list_size
        values = stored(array.values.slice(array.offset * size, len(array) * size), kind.value_type)
        return pa.FixedSizeListArray.from_arrays(values, type=kind, mask=missing)
    if _is_list(was):
        lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int64())
        ends = pc.cumulative_sum(lengths)
        offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends]).cast(pa.int32())
        return pa.ListArray.from_arrays(offsets, stored(array.flatten(), kind.value_type), type=kind, mask=missing)
    return array.cast(kind)
