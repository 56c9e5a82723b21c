"""The form in which Polars writes expressions, which may change with any version."""

from __future__ import annotations

import io
import json
from typing import Any

import polars as pl


def tree(expression: pl.Expr) -> Any:
    """The tree of an expression, of objects with one member: the kind of the node. ValueError if it has none."""
    try:
        return json.loads(expression.meta.serialize(format="json"))
    except pl.exceptions.PolarsError as error:  # as of a function of Python
        raise ValueError(str(error)) from error


def literal(node: Any) -> pl.Series:
    """The value of a node of the kind Literal, in a series of one row. Polars itself evaluates it."""
    found = pl.Expr.deserialize(io.BytesIO(json.dumps(node).encode()), format="json")
    return pl.select(found).to_series()
