"""Translate filters of Polars to expressions of the server with the same meaning, as far as possible."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import polars as pl
import pyarrow as pa

from bowstring._filters import where
from bowstring._filters.where import Column, Condition, Instant
from bowstring._unstable.polars import literal, tree

_COMPARISONS = {"Eq": "==", "NotEq": "!=", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="}
_STRING_TESTS = {"StartsWith": "startsWith", "EndsWith": "endsWith"}
_REGEX = frozenset("\\.+*?()|[]{}^$")
_UNITS = {"ms": 1_000_000, "us": 1_000, "ns": 1}


def conjuncts(predicate: pl.Expr) -> list[pl.Expr]:
    """The parts of a conjunction."""
    try:
        node = tree(predicate)
        if node["BinaryExpr"]["op"] not in ("And", "LogicalAnd"):
            return [predicate]
        parts = predicate.meta.pop()
    except (KeyError, TypeError, ValueError, pl.exceptions.PolarsError):
        return [predicate]
    if len(parts) != 2:
        return [predicate]
    return [part for side in reversed(parts) for part in conjuncts(side)]


def translate(predicate: pl.Expr, schema: pa.Schema) -> Condition:
    """Translate a filter of Polars to expressions of the server, as far as possible.

    It reads the serialized form of Polars. A node that it does not know, because it is new or has changed, matches all
    rows.
    """
    try:
        node = tree(predicate)
    except ValueError:
        return where.UNKNOWN
    return _Reader(schema).condition(node)


class _Reader:
    """Reads the tree of an expression."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def condition(self, node: Any) -> Condition:
        try:
            return self._condition(node)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, pl.exceptions.PolarsError):
            return where.UNKNOWN

    def _condition(self, node: Any) -> Condition:
        kind, body = _only(node)
        match kind:
            case "BinaryExpr":
                return self._binary(body["op"], body["left"], body["right"])
            case "Function":
                return self._function(body["function"], body["input"])
            case "Column":
                return where.is_true(self._column(node))
            case "Literal":
                value = self._value(node)
                return where.constant(value) if value is None or isinstance(value, bool) else where.UNKNOWN
        return where.UNKNOWN

    def _binary(self, op: str, left: Any, right: Any) -> Condition:
        if op in ("And", "LogicalAnd"):
            return self.condition(left) & self.condition(right)
        if op in ("Or", "LogicalOr"):
            return self.condition(left) | self.condition(right)
        missing = op in ("EqValidity", "NotEqValidity")  # null counts as a value
        symbol = {"EqValidity": "==", "NotEqValidity": "!="}.get(op) or _COMPARISONS[op]
        if self._is_literal(left):
            left, right, symbol = right, left, where.MIRRORED[symbol]
        column = self._column(left)
        if not self._is_literal(right):
            return where.UNKNOWN if missing else where.compare_columns(column, symbol, self._column(right))
        value = self._value(right)
        if not missing:
            return where.compare(column, symbol, value, nan_is_greatest=True)
        if value is None:
            null = where.is_null(column)
            return null if symbol == "==" else ~null
        equal = where.compare(column, "==", value, nan_is_greatest=True)
        null = where.is_null(column)
        equal = Condition(equal.true, equal.false | null.true)
        return equal if symbol == "==" else ~equal

    def _function(self, function: Any, inputs: list[Any]) -> Condition:
        family, which = _only(function)
        name, options = _only(which)
        match family, name:
            case "Boolean", "Not":
                return ~self.condition(inputs[0])
            case "Boolean", "IsNull":
                return where.is_null(self._column(inputs[0]))
            case "Boolean", "IsNotNull":
                return ~where.is_null(self._column(inputs[0]))
            case "Boolean", "AllHorizontal":
                return every(map(self.condition, inputs))
            case "Boolean", "AnyHorizontal":
                return ~every(~self.condition(i) for i in inputs)
            case "Boolean", "IsBetween":
                low, high = {"Both": (">=", "<="), "Left": (">=", "<"), "Right": (">", "<="), "None": (">", "<")}[
                    options["closed"]
                ]
                return self._binary_symbol(inputs[0], low, inputs[1]) & self._binary_symbol(inputs[0], high, inputs[2])
            case "Boolean", "IsIn":
                return self._is_in(inputs[0], inputs[1], options["nulls_equal"])
            case "StringExpr", "Contains":
                value = self._value(inputs[1])
                if not options["literal"] and (not isinstance(value, str) or _REGEX.intersection(value)):
                    return where.UNKNOWN
                return where.string_test(self._column(inputs[0]), "contains", value)
            case "StringExpr", ("StartsWith" | "EndsWith"):
                return where.string_test(self._column(inputs[0]), _STRING_TESTS[name], self._value(inputs[1]))
            case "ListExpr", "Contains":
                return where.has_item(self._column(inputs[0]), self._value(inputs[1]))
        return where.UNKNOWN

    def _binary_symbol(self, left: Any, symbol: str, right: Any) -> Condition:
        return where.compare(self._column(left), symbol, self._value(right), nan_is_greatest=True)

    def _is_in(self, left: Any, right: Any, nulls_equal: bool) -> Condition:
        column = self._column(left)
        items = self._series(right)
        if items.dtype not in (pl.List, pl.Array):
            return where.UNKNOWN
        values = items.explode().to_list()
        found = where.is_in(column, [v for v in values if v is not None])
        if nulls_equal:
            null = where.is_null(column)
            found = found | null if None in values else Condition(found.true, found.false | null.true)
        return found

    def _column(self, node: Any) -> Column:
        """The column of a node, also if cast to a type that holds all its values. KeyError if it is none."""
        kind, body = _only(node)
        if kind == "Column":
            return Column(self._schema.field(body))
        if kind == "Function" and body["function"] == {"BinaryExpr": "Size"}:  # known without reading the blob
            blob = self._schema.field(_only(body["input"][0])[1])
            if not where.is_blob(blob) or not pa.types.is_large_binary(blob.type):
                raise KeyError(blob.name)
            return Column(pa.field(f"{blob.name}.size", pa.int64()))
        if kind == "Cast":
            column = self._column(body["expr"])
            dtype = body["dtype"]["Literal"]
            signed = {"Int8": 8, "Int16": 16, "Int32": 32, "Int64": 64, "Int128": 128}
            unsigned = {"UInt8": 8, "UInt16": 16, "UInt32": 32, "UInt64": 64}
            ours = str(column.field.type)  # such as int32
            if column.kind == "int" and not column.as_float:
                bits = column.field.type.bit_width
                wide = signed.get(dtype, 0) - ours.startswith("uint")
                if (unsigned.get(dtype, 0) if ours.startswith("uint") else 0) >= bits or wide >= bits:
                    return column
                if dtype == "Float64":
                    return Column(column.field, as_float=True)
            if column.kind == "float" and dtype == "Float64":
                return Column(column.field, as_float=True)
        raise KeyError(kind)

    def _is_literal(self, node: Any) -> bool:
        return _only(node)[0] == "Literal"

    def _series(self, node: Any) -> pl.Series:
        """Let Polars evaluate a literal."""
        if not self._is_literal(node):
            raise KeyError("Literal")
        series = literal(node)
        if len(series) != 1:
            raise ValueError("a literal is one value")
        return series

    def _value(self, node: Any) -> where.Value:
        series = self._series(node)
        if series.dtype == pl.Date:
            days = series.to_physical().item()
            return None if days is None else Instant(days * 86_400_000_000_000)
        if isinstance(series.dtype, pl.Datetime):
            ticks = series.to_physical().item()
            return None if ticks is None else Instant(ticks * _UNITS[series.dtype.time_unit])
        value = series.item()
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        raise ValueError(f"a literal of type {series.dtype}")


def _only(node: Any) -> tuple[str, Any]:
    """A node's kind and body; some nodes have no body."""
    if isinstance(node, str):
        return node, None
    ((kind, body),) = node.items()
    return kind, body


def every(conditions: Iterable[Condition]) -> Condition:
    """The conjunction of conditions."""
    out = where.constant(True)
    for condition in conditions:
        out = out & condition
    return out
