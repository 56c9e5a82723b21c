"""A kind of files: what makes them, and what the library that people use reads back."""

from __future__ import annotations

import datetime
import decimal
import math
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Row = dict[str, Any]


class UnavailableError(Exception):
    """The library that makes this kind is not installed."""


@dataclass
class Made:
    """Files that were made: what `bowstring import` gets, and the rows that a library reads from them."""

    source: Path | str  # the argument of `bowstring import`
    rows: list[Row]  # what a library reads, by the columns that are compared
    key: str = "n"  # the column that identifies rows
    args: list[str] = field(default_factory=list)  # further arguments of the import
    operators: Mapping[str, Any] = field(default_factory=dict)  # of the request that reads the rows back
    tolerance: float = 0  # of pixels and of samples of sound: the largest difference


@dataclass
class Kind:
    """One kind of files."""

    name: str
    make: Callable[[Path], Made]
    refused: str = ""  # words of docs/cli.md that say that this kind is refused, if it is


def kind(kinds: list[Kind], name: str = "", refused: str = "") -> Callable[[Callable[[Path], Made]], Any]:
    """Add a function that makes a kind to a list of kinds."""

    def add(make: Callable[[Path], Made]) -> Callable[[Path], Made]:
        kinds.append(Kind(name or make.__name__, make, refused))
        return make

    return add


def plain(value: Any) -> Any:
    """A value of any library in the form that is compared: equal forms are equal values of a like type."""
    match value:
        case None:
            return None
        case np.ndarray():
            return value if value.ndim and value.dtype.kind in "fiub" else plain(value.tolist())
        case bool() | np.bool_():
            return bool(value)
        case float() | np.floating():
            number = float(value)
            return "NaN" if math.isnan(number) else number
        case int() | np.integer():
            return int(value)
        case decimal.Decimal():
            return value.normalize()
        case datetime.datetime():
            return value.astimezone(datetime.timezone.utc) if value.tzinfo else value
        case uuid.UUID():
            return value.bytes
        case str() | bytes() | datetime.date() | datetime.time() | datetime.timedelta():
            return value
        case bytearray() | memoryview():
            return bytes(value)
        case Mapping():
            return {str(k): plain(v) for k, v in value.items()}
        case Iterable():
            return [plain(v) for v in value]
    return value


def same(expected: Any, got: Any, tolerance: float = 0) -> bool:
    """Whether two values are equal; arrays within the tolerance. A whole number is not equal to a rounded float."""
    expected, got = plain(expected), plain(got)
    if isinstance(expected, np.ndarray) or isinstance(got, np.ndarray):
        a, b = np.asarray(expected), np.asarray(got)
        if a.shape != b.shape or a.dtype.kind in "OUS" or b.dtype.kind in "OUS":
            return False
        # A NaN of a file is a NaN here.
        difference = np.abs(a.astype(np.float64) - b.astype(np.float64))
        return bool(np.all((difference <= tolerance) | (np.isnan(a.astype(float)) & np.isnan(b.astype(float)))))
    if isinstance(expected, list) and isinstance(got, list):
        return len(expected) == len(got) and all(same(a, b) for a, b in zip(expected, got, strict=True))
    if isinstance(expected, dict) and isinstance(got, dict):
        return expected.keys() == got.keys() and all(same(v, got[k]) for k, v in expected.items())
    if isinstance(expected, bool) != isinstance(got, bool) or isinstance(expected, str) != isinstance(got, str):
        return False
    return bool(expected == got)


def differences(made: Made, got: list[Row]) -> list[str]:
    """The differences between the rows that a library reads and those that came through Bowstring."""
    found = {str(plain(row.get(made.key))): row for row in got}
    differences = []
    if len(found) != len(got) or len(got) != len(made.rows):
        differences.append(f"{len(got)} rows with {len(found)} keys, of {len(made.rows)}")
    for row in made.rows:
        key = str(plain(row[made.key]))
        if key not in found:
            differences.append(f"{made.key} {key} is missing")
            continue
        for name, value in row.items():
            if name not in found[key]:
                differences.append(f"column {name} is missing")
            elif not same(value, found[key][name], made.tolerance):
                differences.append(f"{made.key} {key}: {name} is {short(found[key][name])}, not {short(value)}")
    return differences


def short(value: Any) -> str:
    """A value for a message."""
    text = repr(value)
    return text if len(text) <= 120 else text[:120] + "…"
