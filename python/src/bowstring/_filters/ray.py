"""Translate filters of Ray to expressions of the server."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from ray.data.expressions import (
    AliasExpr,
    BinaryExpr,
    ColumnExpr,
    Expr,
    LiteralExpr,
    Operation,
    PyArrowComputeUDFExpr,
    UDFExpr,
    UnaryExpr,
)

from bowstring._filters import where
from bowstring._filters.where import Column, Condition, Instant, Rows
from bowstring._unstable.ray import text_test

_COMPARISONS = {
    Operation.EQ: "==",
    Operation.NE: "!=",
    Operation.LT: "<",
    Operation.LE: "<=",
    Operation.GT: ">",
    Operation.GE: ">=",
}
_STRING_TESTS = {"starts_with": "startsWith", "ends_with": "endsWith", "match_substring": "contains"}


def translate(expression: Expr, schema: pa.Schema) -> Condition:
    """Translate a filter of Ray to expressions of the server, as far as possible, with Arrow's rules for nulls."""
    try:
        return _condition(expression, schema)
    except (KeyError, TypeError, ValueError, AttributeError, pa.ArrowException):
        return where.UNKNOWN


def _condition(e: Expr, schema: pa.Schema) -> Condition:
    match e:
        case AliasExpr():
            return translate(e.expr, schema)
        case BinaryExpr(op=Operation.AND):
            return translate(e.left, schema) & translate(e.right, schema)
        case BinaryExpr(op=Operation.OR):
            return translate(e.left, schema) | translate(e.right, schema)
        case BinaryExpr(op=Operation.IN):
            return _is_in(e, schema)
        case BinaryExpr(op=Operation.NOT_IN):
            return ~_is_in(e, schema)
        case BinaryExpr():
            return _compare(e, schema)
        case UnaryExpr(op=Operation.NOT):
            return ~translate(e.operand, schema)
        case UnaryExpr(op=Operation.IS_NULL):
            return where.is_null(_column(e.operand, schema))
        case UnaryExpr(op=Operation.IS_NOT_NULL):
            return ~where.is_null(_column(e.operand, schema))
        case ColumnExpr():
            return where.is_true(_column(e, schema))
        case LiteralExpr(value=(bool() | None) as value):
            return where.constant(value)
        case PyArrowComputeUDFExpr() if (test := text_test(e)) is not None:
            name, column, text = test
            return where.string_test(_column(column, schema), _STRING_TESTS[name], text)
    return where.UNKNOWN


def _compare(e: BinaryExpr, schema: pa.Schema) -> Condition:
    left, right, op = e.left, e.right, _COMPARISONS[e.op]
    if isinstance(left, LiteralExpr):
        left, right, op = right, left, where.MIRRORED[op]
    column = _column(left, schema)
    if isinstance(right, LiteralExpr):
        return where.compare(column, op, _value(right.value, column), nan_is_greatest=False)
    return where.compare_columns(column, op, _column(right, schema))


def _is_in(e: BinaryExpr, schema: pa.Schema) -> Condition:
    """Arrow's `is_in`, which is never null: a null is in a list that has one."""
    column = _column(e.left, schema)
    if not isinstance(e.right, LiteralExpr):
        return where.UNKNOWN
    given = e.right.value if isinstance(e.right.value, list) else [e.right.value]
    values = [_value(v, column) for v in given]
    found = where.is_in(column, [v for v in values if v is not None])
    found = Condition(found.true, Rows(found.false.text, found.false.text is not None))
    if None in values:
        null = where.is_null(column)
        found = Condition(found.true | null.true, found.false & null.false)
    return found


def _column(e: Expr, schema: pa.Schema) -> Column:
    if isinstance(e, ColumnExpr):
        return Column(schema.field(e.name))
    raise TypeError("not a column")


def _value(value: Any, column: Column) -> where.Value:
    """A literal of Python or NumPy."""
    if hasattr(value, "item") and not isinstance(value, (list, pa.Array)):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    dtype = column.field.type
    if isinstance(value, dt.datetime):
        if not pa.types.is_timestamp(dtype) or (value.tzinfo is None) != (dtype.tz is None):
            raise TypeError("of another type than the column")
        return Instant(pa.scalar(value).cast(pa.timestamp("ns", dtype.tz)).value)
    if isinstance(value, dt.date) and pa.types.is_date32(dtype):
        return Instant((value - dt.date(1970, 1, 1)).days * 86_400_000_000_000)
    raise TypeError(f"a literal of type {type(value).__name__}")


def columns_of(e: Expr) -> Iterator[str]:
    """The columns that an expression uses."""
    match e:
        case ColumnExpr():
            yield e.name
        case AliasExpr():
            yield from columns_of(e.expr)
        case BinaryExpr():
            yield from columns_of(e.left)
            yield from columns_of(e.right)
        case UnaryExpr():
            yield from columns_of(e.operand)
        case UDFExpr():
            for argument in (*e.args, *e.kwargs.values()):
                yield from columns_of(argument)
