"""Translate a condition in SQL to an expression of a server.

A condition of SQL is true, false or null for a row, and one of a server is true or false. So each condition becomes two
expressions, for the rows where it is true and for those where it is false: `NOT` swaps them, and a null is in neither.
sqlglot parses the text. A NaN equals itself and is greater than all other numbers, as in DuckDB and PostgreSQL.
"""

from __future__ import annotations

import datetime as dt
import difflib
import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from bowstring._filters.where import (
    IDENTIFIER,
    MIRRORED,
    NONE,
    NULL,
    OPPOSITE,
    Column,
    Condition,
    Instant,
    Rows,
    constant,
    date,
    exactly,
    is_blob,
    quoted,
)
from bowstring.errors import InvalidRequest
from bowstring.preview import class_names

try:
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import ParseError, TokenError
except ImportError as error:
    raise ImportError("sql needs the package sqlglot: pip install 'bowstring[sql]'") from error

_AROUND = 80  # characters of a line that an error shows on each side of its place
_NAMES = 64  # columns that an error lists
_COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "==",
    exp.NEQ: "!=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_ARITHMETIC: dict[type[exp.Expr], str] = {
    exp.Neg: "-",
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
}
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
# The server's name of a function, the kinds that it takes, and the kind of its result if that is another.
_FUNCTIONS: dict[type[exp.Expr], tuple[str, tuple[str, ...], str]] = {
    exp.Lower: ("lower", ("str",), ""),
    exp.Upper: ("upper", ("str",), ""),
    exp.Length: ("len", ("str", "list"), "int"),
    exp.Abs: ("abs", ("int", "float"), ""),
}
# The parts of a text that are conditions, apart from columns, literals and parentheses.
_CONDITIONS = (exp.Predicate, exp.Not, exp.Connector, exp.Escape, exp.StartsWith, exp.EndsWith, exp.Contains)


@dataclass(frozen=True)
class _Value:
    """The value of a row for a name, a function or a sum.

    Attributes:
        text: Its expression.
        kind: `int`, `float`, `str`, `time`, `bool`, `list`, `blob`, or empty where SQL cannot compare it.
        type: Its type in Arrow. Literals are rounded to this type, as DuckDB does.
        nulls: Expressions. The value is null if one of them is.
        nan: Whether it may be a NaN.
        classes: The names of its classes, by number.
    """

    text: str
    kind: str
    type: pa.DataType = field(default_factory=pa.float64)
    nulls: tuple[str, ...] = ()
    nan: bool = False
    classes: Sequence[str] = ()

    @property
    def known(self) -> str:
        """The expression for the rows in which it is not null."""
        return " and ".join(f"{name} != nil" for name in self.nulls) or "true"


@dataclass(frozen=True)
class _Literal:
    """A literal of the condition: null, a number, text, a boolean or an instant."""

    value: bool | int | Decimal | float | str | Instant | None


def expression(sql: str, schema: pa.Schema) -> str:
    """The expression for the rows where a condition in SQL is true.

    InvalidRequest, with the place of the mistake, if the text is not such a condition.

    Args:
        sql: The text after WHERE.
        schema: All columns of the dataset.
    """
    return _Reader(sql, schema).read()


class _Reader:
    """Reads the tree of a condition."""

    def __init__(self, sql: str, schema: pa.Schema) -> None:
        self._sql = sql
        self._fields = _fields(schema)

    def read(self) -> str:
        try:
            tree = sqlglot.parse_one(self._sql, into=exp.Condition, dialect="duckdb")
            rows = self._condition(tree).true
        except ParseError as error:
            raise self._unparsed(error.errors[0] if error.errors else {}) from None
        except TokenError:
            raise self._error(_open_quote(self._sql), "a quote is not closed") from None
        except RecursionError:
            raise self._error(0, "the condition is nested too deeply") from None
        return rows.text or "true"

    def _unparsed(self, found: dict[str, Any]) -> InvalidRequest:
        word = found.get("highlight") or ""
        if "line" not in found:
            return self._error(0, "want a condition, such as width >= 400")
        lines = self._sql.split("\n")
        start = sum(len(line) + 1 for line in lines[: found["line"] - 1]) + found["col"] - len(word)
        missing = str(found.get("description")).startswith("Required keyword")
        at_end = not self._sql[start + len(word) :].strip()
        if missing and at_end:
            return self._error(start, f"a value is missing at {word!r}")
        return self._error(start, f"a value is missing before {word!r}" if missing else f"unexpected {word!r}")

    def _error(self, place: int | exp.Expr, message: str) -> InvalidRequest:
        """The error, in the form that the server's errors of expressions have."""
        at = place if isinstance(place, int) else _start(place)
        before = self._sql[:at]
        line, column = before.count("\n"), at - (before.rfind("\n") + 1)
        text = self._sql.split("\n")[line].replace("\t", " ")
        start = max(0, column - _AROUND)
        shown = ("…" if start else "") + text[start : column + _AROUND] + ("…" if column + _AROUND < len(text) else "")
        dots = "." * (column - start + bool(start))
        return InvalidRequest(f"sql:{line + 1}:{column + 1}: {message}\n | {shown}\n | {dots}^")

    # --- conditions -------------------------------------------------------

    def _condition(self, node: exp.Expr) -> Condition:
        match node:
            case exp.Paren():
                return self._condition(node.this)
            case exp.And() | exp.Or():
                return self._joined(node, type(node))
            case exp.Not():
                return ~self._condition(node.this)
            case exp.Boolean():
                return constant(bool(node.this))
            case exp.Null():
                return NULL
            case exp.EQ() | exp.NEQ() | exp.LT() | exp.LTE() | exp.GT() | exp.GTE():
                return self._comparison(node)
            case exp.Between():
                low = self._compared(node, self._value(node.this), ">=", self._value(node.args["low"]))
                return low & self._compared(node, self._value(node.this), "<=", self._value(node.args["high"]))
            case exp.In():
                return self._in(node)
            case exp.Like() | exp.ILike():
                return self._like(node, None)
            case exp.Escape() if isinstance(node.this, (exp.Like, exp.ILike)):
                return self._like(node.this, node.expression)
            case exp.Is():
                return self._is(node)
            case exp.StartsWith():
                return self._string_test(node, "startsWith")
            case exp.EndsWith():
                return self._string_test(node, "endsWith")
            case exp.Contains():
                return self._string_test(node, "contains")
            case exp.ArrayContains():
                return self._has_item(node)
            case exp.Column():
                value = self._column(node)
                if value.kind == "bool":
                    return exactly(f"{value.text} == true", f"{value.text} == false")
                raise self._error(node, f"{node.sql()} is {value.type}: want a condition, such as {node.sql()} = 3")
        raise self._error(node, f"{_named(node)} is not supported in sql")

    def _joined(self, node: exp.Expr, kind: type[exp.Expr]) -> Condition:
        """A chain of AND or OR. A loop joins its parts, because a long chain would nest too many calls."""
        parts, left = [], node
        while type(left) is kind:
            parts.append(left.expression)
            left = left.this
        found = self._condition(left)
        for part in reversed(parts):
            found = found & self._condition(part) if kind is exp.And else found | self._condition(part)
        return found

    def _comparison(self, node: exp.Expr) -> Condition:
        return self._compared(node, self._value(node.this), _COMPARISONS[type(node)], self._value(node.expression))

    def _compared(self, node: exp.Expr, left: _Value | _Literal, op: str, right: _Value | _Literal) -> Condition:
        if _Literal(None) in (left, right):
            return NULL
        if isinstance(left, _Literal):
            if not isinstance(right, _Literal):
                return self._compared(node, right, MIRRORED[op], left)
            a, b = left.value, right.value
            if not (_is_number(a) and _is_number(b)) and type(a) is not type(b):
                raise self._error(node, "the two literals are of different types")
            if isinstance(a, Instant) and isinstance(b, Instant):
                a, b = a.ns, b.ns
            return constant(_OPERATORS[op](a, b))
        if isinstance(right, _Literal):
            return self._with_literal(node, left, op, right)
        numbers = {"int", "float"}
        if left.kind != right.kind and not {left.kind, right.kind} <= numbers:
            raise self._error(node, f"{left.text} is {left.type}, and {right.text} is {right.type}")
        if left.kind not in (*numbers, "str", "time", "bool") or (left.kind == "bool" and op not in ("==", "!=")):
            raise self._error(node, f"{left.text} is {left.type}, which sql does not compare in this way")
        return exactly(_test(left, op, right), _test(left, OPPOSITE[op], right))

    def _with_literal(self, node: exp.Expr, value: _Value, op: str, literal: _Literal) -> Condition:
        given = self._fitted(node, value, literal)
        if value.classes and isinstance(literal.value, str) and op not in ("==", "!="):
            raise self._error(node, f"{value.text} has names of classes: they are equal or not, and have no order")
        if isinstance(given, (Decimal, float)) and value.kind == "int":  # between two integers
            if op in ("==", "!="):
                no = exactly("false", value.known)
                return no if op == "==" else ~no
            # x > 2.5 is x > 2, x >= 2.5 is x > 2, x < 2.5 is x <= 2
            op, given = (">" if op[0] == ">" else "<="), math.floor(given)
        if value.kind == "bool" and op not in ("==", "!="):
            raise self._error(node, f"{value.text} is a boolean, and has no order")
        other = _Value(_written(given), value.kind)
        return exactly(_test(value, op, other), _test(value, OPPOSITE[op], other))

    def _fitted(self, node: exp.Expr, value: _Value, literal: _Literal) -> Any:
        """A literal, converted to the kind of the value that is compared with it."""
        given = literal.value
        match value.kind, given:
            case "int", str() if value.classes:
                if given in value.classes:
                    return value.classes.index(given)
                raise self._error(node, f"{value.text} has no class {given!r}{_meant(given, value.classes)}")
            case (("int" | "float"), bool()):
                pass
            case "int", int():
                return given
            case "int", (Decimal() | float()):
                return int(given) if given == math.floor(given) else given
            case "float", (int() | Decimal() | float()):
                number = _rounded(given, value.type)
                if not math.isinf(number):
                    return number
                raise self._error(node, f"{given} is beyond what {value.type} holds")
            case ("str", str()) | ("bool", bool()) | ("time", Instant()):
                return given
            case "time", str():
                return self._instant(node, given)
        wanted = {"int": "a number", "float": "a number", "str": "text in '…'", "bool": "TRUE or FALSE",
                  "time": "a date, such as '2024-01-31'"}  # fmt: skip
        if value.kind not in wanted:
            raise self._error(node, f"{value.text} is {value.type}, which sql does not compare")
        raise self._error(node, f"{value.text} is {value.type}: want {wanted[value.kind]}")

    def _in(self, node: exp.Expr) -> Condition:
        if not node.expressions:
            raise self._error(node, "want a list of values after IN, such as IN (1, 2)")
        value = self._value(node.this)
        items = [self._value(item) for item in node.expressions]
        given = [item.value for item in items if isinstance(item, _Literal)]
        if isinstance(value, _Literal) or value.kind not in ("int", "float", "str") or len(given) < len(items):
            found = constant(False)
            for item in items:
                found = found | self._compared(node, value, "==", item)
            return found
        fitted = [self._fitted(node, value, _Literal(item)) for item in given if item is not None]
        kept = [item for item in fitted if value.kind != "int" or isinstance(item, int)]
        listed = f"{value.text} in [{', '.join(map(_written, kept))}]" if kept else "false"
        found = _or_null(value, listed)
        return replace(found, false=NONE) if None in given else found

    def _like(self, node: exp.Expr, escape: exp.Expr | None) -> Condition:
        value, pattern = self._value(node.this), self._value(node.expression)
        if _Literal(None) in (value, pattern):
            return NULL
        mark = "" if escape is None else getattr(self._value(escape), "value", None)
        if not isinstance(mark, str) or len(mark) > 1:
            raise self._error(node, "want one character after ESCAPE")
        if not isinstance(pattern, _Literal) or not isinstance(pattern.value, str):
            raise self._error(node.expression, "want a pattern in '…' after LIKE")
        if isinstance(value, _Literal) or (value.kind != "str" and not value.classes):
            raise self._error(node, "LIKE needs a column of text, or of classes")
        try:
            parts = _pattern(pattern.value, mark)
        except ValueError as error:
            raise self._error(node.expression, str(error)) from None
        folded = isinstance(node, exp.ILike)
        if value.classes:
            matches = re.compile(_regex(parts), re.DOTALL | (re.IGNORECASE if folded else 0)).fullmatch
            numbers = [str(n) for n, name in enumerate(value.classes) if matches(name)]
            holds = f"{value.text} in [{', '.join(numbers)}]" if numbers else "false"
        else:
            holds = _like_text(value, parts, folded=folded)
        found = _or_null(value, holds)
        return ~found if node.args.get("negate") else found

    def _is(self, node: exp.Expr) -> Condition:
        wanted = node.expression
        negated = isinstance(wanted, exp.Not)
        wanted = wanted.this if negated else wanted
        if isinstance(wanted, exp.Null):
            found = self._is_null(node.this)
        elif isinstance(wanted, exp.Boolean):
            condition = self._condition(node.this)
            rows = condition.true if wanted.this else condition.false
            found = Condition(rows, _no(rows))
        else:
            raise self._error(node, "want NULL, TRUE or FALSE after IS")
        return ~found if negated else found

    def _is_null(self, node: exp.Expr) -> Condition:
        if isinstance(node, exp.Paren):
            return self._is_null(node.this)
        if isinstance(node, _CONDITIONS):
            condition = self._condition(node)
            known = condition.true | condition.false
            return Condition(_no(known), known)
        value = self._value(node)
        if isinstance(value, _Literal):
            return constant(value.value is None)
        if not value.nulls:
            return constant(False)
        return exactly(" or ".join(f"{name} == nil" for name in value.nulls), value.known)

    def _string_test(self, node: exp.Expr, test: str) -> Condition:
        value, part = self._value(node.this), self._value(node.expression)
        if _Literal(None) in (value, part):
            return NULL
        if not isinstance(value, _Value) or value.kind != "str" or not isinstance(part, _Literal):
            raise self._error(node, f"{_named(node)} needs a column of text, and text in '…'")
        holds = f"{value.text} {test} {_written(self._fitted(node, value, part))}"
        return _or_null(value, holds)

    def _has_item(self, node: exp.Expr) -> Condition:
        value, item = self._value(node.this), self._value(node.expression)
        if _Literal(None) in (value, item):
            return NULL
        if not isinstance(value, _Value) or value.kind != "list" or not isinstance(item, _Literal):
            raise self._error(node, "list_contains needs a column of lists, and a literal")
        items = _Value(value.text, _kind(value.type.value_type), value.type.value_type)
        holds = f"{_written(self._fitted(node, items, item))} in {value.text}"
        return _or_null(value, holds)

    # --- values -----------------------------------------------------------

    def _value(self, node: exp.Expr) -> _Value | _Literal:
        match node:
            case exp.Paren():
                return self._value(node.this)
            case exp.Null():
                return _Literal(None)
            case exp.Boolean():
                return _Literal(bool(node.this))
            case exp.Literal():
                return _Literal(str(node.this) if node.is_string else _number(str(node.this)))
            case exp.Cast() if node.this.is_string and node.to.this.name.startswith(("DATE", "TIMESTAMP")):
                return _Literal(self._instant(node.this, str(node.this.this)))
            case exp.Column():
                return self._column(node)
            case exp.Neg() | exp.Add() | exp.Sub() | exp.Mul() | exp.Div() | exp.Mod():
                return self._sum(node)
            case exp.Lower() | exp.Upper() | exp.Length() | exp.Abs():
                return self._function(node)
            case exp.Coalesce():
                return self._coalesce(node)
        raise self._error(node, f"{_named(node)} is not supported in sql")

    def _column(self, node: exp.Column) -> _Value:
        parts = node.parts
        name = ".".join(part.name for part in parts)
        anycase = not any(part.args.get("quoted") for part in parts)
        if (found := self._field(name, anycase=anycase)) is not None:
            kind = "blob" if is_blob(found) else "str" if found.name == "id" else _kind(found.type)
            nulls: tuple[str, ...] = ()
            if found.nullable and found.name != "id":
                nulls = (Column(self._fields[f"{found.name}.size"] if kind == "blob" else found).text,)
            named = (class_names(found) if kind == "int" else None) or ()
            return _Value(Column(found).text, kind, found.type, nulls, pa.types.is_floating(found.type), named)
        first = self._field(parts[0].name, anycase=anycase)
        if first is not None and pa.types.is_struct(first.type) and len(parts) > 1:
            inner, text = first, Column(first).text
            for part in parts[1:]:
                there = inner.type.get_field_index(part.name) if pa.types.is_struct(inner.type) else -1
                if there < 0 or not IDENTIFIER.fullmatch(part.name):
                    raise self._error(node, f"{text} has no field {part.name!r}")
                inner, text = inner.type.field(there), f"{text}.{part.name}"
            return _Value(text, _kind(inner.type), inner.type, (text,), pa.types.is_floating(inner.type))
        names = [column.name for column in self._fields.values() if not is_blob(column)]
        more = f", and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
        raise self._error(node, f'no column "{name}"{_meant(name, names)}; there are {", ".join(names[:_NAMES])}{more}')

    def _field(self, name: str, *, anycase: bool) -> pa.Field | None:
        if name in self._fields or not anycase:
            return self._fields.get(name)
        found = [column for known, column in self._fields.items() if known.lower() == name.lower()]
        return found[0] if len(found) == 1 else None

    def _sum(self, node: exp.Expr) -> _Value | _Literal:
        if isinstance(node, exp.Neg):
            sides = [_Literal(0), self._value(node.this)]
        else:
            sides = [self._value(node.this), self._value(node.expression)]
        if _Literal(None) in sides:
            return _Literal(None)
        op = _ARITHMETIC[type(node)]
        if all(isinstance(side, _Literal) and _is_number(side.value) for side in sides):
            return self._folded(node, op, *(side.value for side in sides if isinstance(side, _Literal)))
        values = []
        for side in sides:
            if isinstance(side, _Literal) and _is_number(side.value):
                whole = isinstance(side.value, int)
                number = side.value if whole else _rounded(side.value, pa.float64())
                side = _Value(_written(number), "int" if whole else "float", pa.int64() if whole else pa.float64())
            if not isinstance(side, _Value) or side.kind not in ("int", "float"):
                raise self._error(node, f"want numbers on both sides of {op}")
            values.append(side)
        left, right = values
        if op == "%" and (left.kind, right.kind) != ("int", "int"):
            raise self._error(node, "want integers on both sides of %")
        if op == "%" and (not isinstance(sides[1], _Literal) or not sides[1].value):
            raise self._error(node, "want a literal that is not 0 after %")
        floats = op == "/" or "float" in (left.kind, right.kind)
        text = f"(-{right.text})" if isinstance(node, exp.Neg) else f"({left.text} {op} {right.text})"
        nulls = tuple(dict.fromkeys((*left.nulls, *right.nulls)))
        return _Value(text, "float" if floats else "int", pa.float64() if floats else pa.int64(), nulls, floats)

    def _folded(self, node: exp.Expr, op: str, left: Any, right: Any) -> _Literal:
        """The result of an operator for two literals."""
        if op in ("/", "%") and not right:
            raise self._error(node, "a division by 0")
        if op == "/" or isinstance(left, float) or isinstance(right, float):
            left, right = float(left), float(right)
        if op == "%":
            return _Literal(int(math.fmod(left, right)) if abs(left) < 1 << 53 else left % right)
        return _Literal(_OPERATORS[op](left, right))

    def _function(self, node: exp.Expr) -> _Value:
        name, wanted, made = _FUNCTIONS[type(node)]
        value = self._value(node.this)
        if not isinstance(value, _Value) or value.kind not in wanted:
            raise self._error(node, f"{_named(node)} needs a column of {'text' if 'str' in wanted else 'numbers'}")
        kind, stored = (made, pa.int64()) if made else (value.kind, value.type)
        return replace(value, text=f"{name}({value.text})", kind=kind, type=stored, classes=())

    def _coalesce(self, node: exp.Expr) -> _Value | _Literal:
        given = [self._value(part) for part in (node.this, *node.expressions)]
        parts = [part for part in given if part != _Literal(None)]
        if not parts or isinstance(parts[0], _Literal):
            return parts[0] if parts else _Literal(None)
        found = parts[0]
        for part in parts[1:]:
            if not found.nulls:
                break
            if isinstance(part, _Literal):
                fitted = self._fitted(node, found, part)
                kind = "float" if isinstance(fitted, (Decimal, float)) else found.kind
                part = _Value(_written(float(fitted) if kind == "float" else fitted), kind)
            elif part.kind != found.kind:
                raise self._error(node, f"{found.text} is {found.type}, and {part.text} is {part.type}")
            if len(found.nulls) > 1 or len(part.nulls) > 1:
                raise self._error(node, "COALESCE needs columns and literals")
            text = f"({found.text} ?? {part.text})"
            nan = found.nan or part.nan
            stored = found.type if part.kind == found.kind else pa.float64()
            found = _Value(text, part.kind, stored, (text,) if part.nulls else (), nan)
        return found

    def _instant(self, node: exp.Expr, text: str) -> Instant:
        found = re.fullmatch(
            r"\s*(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d(?::\d\d)?)(?:\.(\d{1,9}))?)?(Z|\+00(?::?00)?)?\s*", text
        )
        day, clock, rest, _ = found.groups() if found else ("", "", "", "")
        try:
            at = dt.datetime.fromisoformat(f"{day}T{clock or '00:00'}")
        except ValueError:
            raise self._error(
                node, f"{text!r} is no date: want '2024-01-31' or '2024-01-31 12:30:00', in UTC"
            ) from None
        ns = int((at - dt.datetime(1970, 1, 1)) / dt.timedelta(seconds=1)) * 1_000_000_000
        return Instant(ns + int((rest or "").ljust(9, "0")))


def _test(left: _Value, op: str, right: _Value) -> str:
    """The expression for the rows where a comparison is true: a NaN equals itself and is the greatest number."""
    plain = f"{left.text} {op} {right.text}"
    if op in (">", ">="):
        left, op, right = right, MIRRORED[op], left
    a, b = left.text, right.text
    match op:
        case "==" if left.nan and right.nan:
            return f"{plain} or ({a} != {a} and {b} != {b})"
        case "!=" if left.nan and right.nan:
            return f"{plain} and ({a} == {a} or {b} == {b})"
        case "<" if right.nan:
            number = f"{a} == {a} and " if left.nan else _guard(left)
            return f"{plain} or ({number}{b} != {b})"
        case "<=" if right.nan:
            return f"{plain} or ({_guard(left)}{b} != {b})"
    return plain


def _guard(value: _Value) -> str:
    """The beginning of a condition that is not true where a value is null."""
    return f"{value.known} and " if value.nulls else ""


def _or_null(value: _Value, holds: str) -> Condition:
    """A test of a value. If the value is null, the test is null, too."""
    return exactly(holds, f"{_guard(value)}{_not(holds)}")


def _no(rows: Rows) -> Rows:
    """All rows but these."""
    return Rows(_not(rows.text or ""), True)


def _not(text: str) -> str:
    return {"true": "false", "false": "true"}.get(text, f"not ({text})")


def _fields(schema: pa.Schema) -> dict[str, pa.Field]:
    """The names that a condition may have: columns, and those that the server adds to them."""
    fields = {column.name: column for column in schema}
    fields.setdefault("position", pa.field("position", pa.int64(), nullable=False))
    fields.setdefault("split", pa.field("split", pa.string(), nullable=False))
    for blob in filter(is_blob, schema):
        for part, kind in (("size", pa.int64()), ("key", pa.string())):
            fields.setdefault(f"{blob.name}.{part}", pa.field(f"{blob.name}.{part}", kind, blob.nullable))
    return fields


def _kind(kind: pa.DataType) -> str:
    """The kind of a value of this type."""
    if pa.types.is_dictionary(kind):
        return _kind(kind.value_type)
    if pa.types.is_decimal(kind):
        return "float"
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        return "list"
    return Column(pa.field("", kind)).kind


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, Decimal)) and not isinstance(value, bool)


def _number(text: str) -> int | Decimal | float:
    """A literal number, exactly; one with an exponent is a float, as in DuckDB."""
    if re.fullmatch(r"\d+", text):
        return int(text)
    return float(text) if "e" in text.lower() else Decimal(text)


def _rounded(value: Any, stored: pa.DataType) -> float:
    """A number as a column of floats would store it."""
    number = float(value) if abs(value) < Decimal("1e308") else math.inf
    if pa.types.is_float32(stored) or pa.types.is_float16(stored):
        with np.errstate(over="ignore"):
            return float(stored.to_pandas_dtype()(number))
    return number


def _written(value: Any) -> str:
    """A value as text of an expression."""
    match value:
        case bool():
            return str(value).lower()
        case str():
            return quoted(value)
        case Instant():
            return date(value) or "nil"
        case Decimal():
            return repr(float(value))
        case _:
            return repr(value)


def _pattern(text: str, escape: str) -> list[tuple[str, str]]:
    """The parts of a pattern of LIKE: wildcards, and texts between them."""
    parts: list[tuple[str, str]] = []
    letters = iter(text)
    for letter in letters:
        kind = letter if letter in "%_" else ""
        if escape and letter == escape:
            kind, letter = "", next(letters, "")
            if not letter:
                raise ValueError(f"the pattern ends with its escape {escape!r}")
        if kind == "%" and parts and parts[-1][0] == "%":
            continue
        if not kind and parts and not parts[-1][0]:
            parts[-1] = ("", parts[-1][1] + letter)
        else:
            parts.append((kind, letter))
    return parts


def _regex(parts: Sequence[tuple[str, str]]) -> str:
    """The parts of a pattern as a regular expression of Go and of Python."""
    escaped = re.compile(r"([\\.+*?()|\[\]{}^$])")
    return "".join({"%": ".*", "_": "."}[kind] if kind else escaped.sub(r"\\\1", letters) for kind, letters in parts)


def _like_text(value: _Value, parts: Sequence[tuple[str, str]], *, folded: bool) -> str:
    """The expression of a pattern. If the pattern is simple, it is a test by which the server skips pages."""
    kinds = "".join(kind or "a" for kind, _ in parts)
    inside = quoted(next((letters for kind, letters in parts if not kind), ""))
    simple = {"": "==", "a": "==", "a%": "startsWith", "%a": "endsWith", "%a%": "contains"}
    if kinds == "%":
        return value.known
    if kinds in simple and not folded:
        return f"{value.text} {simple[kinds]} {inside}"
    flags = "is" if folded else "s"
    return f"{value.text} matches {quoted(f'(?{flags})^{_regex(parts)}$')}"


def _meant(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f' (did you mean "{close[0]}"?)' if close else ""


def _named(node: exp.Expr) -> str:
    """The name of a part of a condition."""
    name = node.name if isinstance(node, exp.Anonymous) else type(node).__name__
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).upper() if name != "" else "this"


def _start(node: exp.Expr) -> int:
    """Where a part of a condition begins in the text."""
    places = [found.meta["start"] for found in node.walk() if "start" in found.meta]
    return min(places, default=0)


def _open_quote(sql: str) -> int:
    """Where the quote begins that has no end."""
    start, quote = 0, ""
    for at, letter in enumerate(sql):
        if not quote and letter in "'\"":
            start, quote = at, letter
        elif letter == quote:
            quote = ""
    return start
