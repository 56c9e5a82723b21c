"""Translate conditions of other libraries to `where` expressions of a server.

A condition of Polars or Ray is true, false or null for a row. One of a server is true or false, and a test of a null is
false. So each condition is translated twice: to an expression for the rows where it is true, and to one for the rows
where it is false. `not` swaps the two, and no row is lost to a null.

A part that cannot be translated matches all rows. The result then matches more rows than the condition, never fewer,
and the library has to apply its condition to the rows that it receives.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

MAX_BYTES = 16_384  # largest expression that the server accepts
EXACT_FLOAT = 1 << 53  # up to here every integer is a float
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEYWORDS = frozenset(
    [
        "and",
        "or",
        "not",
        "in",
        "matches",
        "contains",
        "startsWith",
        "endsWith",
        "let",
        "if",
        "else",
        "nil",
        "true",
        "false",
        "date",
        "duration",
    ]
)
OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
MIRRORED = {"==": "==", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}  # 3 < x is x > 3
STRING_TESTS = ("contains", "startsWith", "endsWith")


@dataclass(frozen=True)
class Rows:
    """Rows that an expression matches: all rows if it is None. `exact` if these are exactly the intended ones."""

    text: str | None
    exact: bool

    def __and__(self, other: Rows) -> Rows:
        if NONE in (self, other):
            return NONE
        if EVERY in (self, other):
            return other if self == EVERY else self
        if self.text is None or other.text is None:
            return Rows(other.text if self.text is None else self.text, False)
        return Rows(f"{_grouped(self.text)} and {_grouped(other.text)}", self.exact and other.exact)

    def __or__(self, other: Rows) -> Rows:
        if EVERY in (self, other):
            return EVERY
        if NONE in (self, other):
            return other if self == NONE else self
        if self.text is None or other.text is None:
            return ALL
        return Rows(f"{_grouped(self.text)} or {_grouped(other.text)}", self.exact and other.exact)


ALL = Rows(None, False)
EVERY, NONE = Rows("true", True), Rows("false", True)


@dataclass(frozen=True)
class Condition:
    """The rows for which a condition is true, and those for which it is false."""

    true: Rows
    false: Rows

    def __and__(self, other: Condition) -> Condition:
        return Condition(self.true & other.true, self.false | other.false)

    def __or__(self, other: Condition) -> Condition:
        return Condition(self.true | other.true, self.false & other.false)

    def __invert__(self) -> Condition:
        return Condition(self.false, self.true)


UNKNOWN = Condition(ALL, ALL)
NULL = Condition(NONE, NONE)  # for every row


def constant(value: bool | None) -> Condition:
    """A condition that does not depend on the row."""
    if value is None:
        return NULL
    return Condition(EVERY, NONE) if value else Condition(NONE, EVERY)


def exactly(true: str, false: str) -> Condition:
    """A condition with its two expressions."""
    return Condition(Rows(true, True), Rows(false, True))


@dataclass(frozen=True)
class Instant:
    """A point in time: nanoseconds since 1970, in UTC or without a time zone."""

    ns: int


Value = bool | int | float | str | Instant | None


@dataclass(frozen=True)
class Column:
    """A column of a request, and whether the condition casts it to float without changing a value."""

    field: pa.Field
    as_float: bool = False

    @property
    def text(self) -> str:
        """The column's name in an expression."""
        name = self.field.name
        if IDENTIFIER.fullmatch(name) and name not in _KEYWORDS:
            return str(name)
        return f"$env[{quoted(name)}]"

    @property
    def kind(self) -> str:
        """The kind of its values in an expression; empty if they cannot be compared there without loss."""
        if is_blob(self.field) or self.field.name == "id":
            return ""
        t = self.field.type
        if pa.types.is_boolean(t):
            return "bool"
        if pa.types.is_integer(t):
            return "int"
        if pa.types.is_floating(t):
            return "float"
        if pa.types.is_string(t) or pa.types.is_large_string(t):
            return "str"
        if pa.types.is_timestamp(t) or pa.types.is_date32(t):
            return "time"
        return ""

    @property
    def listed(self) -> str:
        """The kind of a list's items."""
        t = self.field.type
        if is_blob(self.field) or not (pa.types.is_list(t) or pa.types.is_fixed_size_list(t)):
            return ""
        return Column(t.value_field).kind


def keeps_order(request: Mapping[str, Any]) -> bool:
    """Whether matching rows keep their order and identity if only they are served.

    The order of a shuffle depends on the number of rows, and `on_error="skip"` draws substitutes from them.
    """
    return "shuffle" not in request and request.get("on_error") != "skip"


def is_blob(field: pa.Field) -> bool:
    """Whether a column holds blobs, which expressions cannot read."""
    return (field.metadata or {}).get(b"bowstring.kind") == b"blob"


def compare(column: Column, op: str, value: Value, *, nan_is_greatest: bool) -> Condition:
    """`column op value`.

    With `nan_is_greatest`, a NaN equals itself and is greater than all other numbers; otherwise only `!=` is true of
    it.
    """
    if value is None:
        return NULL
    name = column.text
    match column.kind, value:
        case "bool", bool() if op in ("==", "!="):
            return _by_opposite(name, op, str(value).lower())
        case "int", bool():
            return UNKNOWN
        case "int", int():
            if column.as_float and abs(value) >= EXACT_FLOAT:
                return UNKNOWN
            return _by_opposite(name, op, str(value))
        case "int", float():
            if not abs(value) < EXACT_FLOAT:  # also for a NaN
                return UNKNOWN
            if value.is_integer():
                return _by_opposite(name, op, str(int(value)))
            if op in ("==", "!="):
                known = f"{name} != nil"
                return exactly("false", known) if op == "==" else exactly(known, "false")
            # x > 2.5 is x > 2, x >= 2.5 is x > 2, x < 2.5 is x <= 2
            return _by_opposite(name, ">" if op[0] == ">" else "<=", str(math.floor(value)))
        case "float", (int() | float()) if not isinstance(value, bool):
            return _compare_float(column, op, value, nan_is_greatest)
        case "str", str():
            return UNKNOWN if (text := _string(value)) is None else _by_opposite(name, op, text)
        case "time", Instant():
            return UNKNOWN if (text := date(value)) is None else _by_opposite(name, op, text)
    return UNKNOWN


def compare_columns(left: Column, op: str, right: Column) -> Condition:
    """`left op right`, both columns."""
    if left.kind != right.kind or left.kind not in ("int", "str", "time") or left.as_float or right.as_float:
        return UNKNOWN
    if left.kind == "time" and left.field.type != right.field.type:
        return UNKNOWN
    return _by_opposite(left.text, op, right.text)


def is_null(column: Column) -> Condition:
    """Whether a cell is null."""
    if is_blob(column.field):
        return UNKNOWN
    if not column.field.nullable:
        return constant(False)
    return exactly(f"{column.text} == nil", f"{column.text} != nil")


def is_true(column: Column) -> Condition:
    """A boolean column as a condition."""
    return compare(column, "==", True, nan_is_greatest=True)


def is_in(column: Column, values: Iterable[Value]) -> Condition:
    """Whether a value is in a list without nulls. It is null for a null cell.

    The negation is not exact here, because libraries treat nulls differently.
    """
    texts = []
    for value in values:
        match column.kind, value:
            case "int", bool():
                return UNKNOWN
            case "int", int() if not column.as_float:
                texts.append(str(value))
            case "str", str() if (text := _string(value)) is not None:
                texts.append(text)
            case _:
                return UNKNOWN
    if column.kind not in ("int", "str"):
        return UNKNOWN
    if not texts:
        return Condition(NONE, ALL)
    listed = f"{column.text} in [{', '.join(texts)}]"
    return Condition(Rows(listed, True), Rows(f"not ({listed})", False))


def has_item(column: Column, value: Value) -> Condition:
    """Whether a list contains an item."""
    text: str | None = None
    match column.listed, value:
        case "int", bool():
            pass
        case "int", int():
            text = str(value)
        case "str", str():
            text = _string(value)
    if text is None:
        return UNKNOWN
    has = f"{text} in {column.text}"
    return exactly(has, f"{column.text} != nil and not ({has})")


def string_test(column: Column, test: str, value: Value) -> Condition:
    """`contains`, `startsWith` or `endsWith` with a literal string."""
    if value is None:
        return NULL
    if column.kind != "str" or not isinstance(value, str) or (text := _string(value)) is None:
        return UNKNOWN
    holds = f"{column.text} {test} {text}"
    return exactly(holds, f"{column.text} != nil and not ({holds})")


def _by_opposite(left: str, op: str, right: str) -> Condition:
    """A comparison that is neither true nor false only for nulls."""
    return exactly(f"{left} {op} {right}", f"{left} {OPPOSITE[op]} {right}")


def _compare_float(column: Column, op: str, value: float, nan_is_greatest: bool) -> Condition:
    name = column.text
    try:
        number = float(value)
    except OverflowError:
        return UNKNOWN
    # Some libraries round a literal that the column's type cannot hold before they compare.
    if not math.isfinite(number) or number != value or not (column.as_float or _holds(column.field.type, number)):
        return UNKNOWN
    holds = f"{name} {op} {number!r}"
    if not nan_is_greatest:
        return exactly(holds, f"{name} != nil and not ({holds})")

    def with_nan(op: str) -> str:
        text = f"{name} {op} {number!r}"
        return f"{text} or {name} != {name}" if op[0] == ">" else text

    return exactly(with_nan(op), with_nan(OPPOSITE[op]))


def _holds(dtype: pa.DataType, number: float) -> bool:
    if pa.types.is_float64(dtype):
        return True
    try:
        return float(pa.scalar(number, dtype).as_py()) == number
    except (pa.ArrowException, TypeError, ValueError):
        return False


def quoted(text: str) -> str:
    """A text as a literal of an expression."""
    return json.dumps(text, ensure_ascii=False)


def _string(value: str) -> str | None:
    try:
        value.encode()
    except UnicodeEncodeError:
        return None
    return quoted(value)


def date(value: Instant) -> str | None:
    """An instant as a literal of an expression; None outside the years 1 to 9999."""
    seconds, ns = divmod(value.ns, 1_000_000_000)
    days, seconds = divmod(seconds, 86_400)
    if not -719_162 <= days <= 2_932_896:  # the years 1 to 9999
        return None
    import datetime as dt

    day = (dt.date(1970, 1, 1) + dt.timedelta(days)).isoformat()
    if not seconds and not ns:
        return f'date("{day}")'
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f'date("{day}T{clock}{f".{ns:09}" if ns else ""}Z")'


def _grouped(text: str) -> str:
    return f"({text})" if " " in text else text
