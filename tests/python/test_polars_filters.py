"""Filters of Polars as expressions of the server: they mean the same, whatever the filter."""

from __future__ import annotations

import datetime as dt
import decimal
import logging
import math
import os
import random
import secrets
import sys
from collections.abc import Iterator
from typing import Any

import bowstring
import bowstring.polars
import polars as pl
import pytest
from bowstring._filters.polars import conjuncts, translate
from polars.testing import assert_frame_equal
from polars_samples import BLOB, ROWS, UTC, WORDS, Served, served

__all__ = ["served"]  # fixtures

C = pl.col
EXPRESSIONS = [
    (C("label") > 3, "label > 3"),
    (pl.lit(3) < C("label"), "label > 3"),
    (C("label") != 3, "label != 3"),
    (~((C("label") > 3) & (C("word") == "cat")), '(label <= 3) or (word != "cat")'),
    (C("label").is_between(1, 5, closed="left"), "(label >= 1) and (label < 5)"),
    (C("label").is_in([1, None]), "label in [1]"),
    (C("label").is_in([1, None], nulls_equal=True), "(label in [1]) or (label == nil)"),
    (C("label").eq_missing(None), "label == nil"),
    (C("label").ne_missing(3), "(label != 3) or (label == nil)"),
    (C("label") > 2.5, "label > 2"),
    (C("label") >= 2.5, "label > 2"),
    (C("label") <= -2.5, "label <= -3"),
    (C("score") > 0.5, "score > 0.5 or score != score"),
    (C("score") <= 0.5, "score <= 0.5"),
    (C("word").str.contains("a.b", literal=True), 'word contains "a.b"'),
    (C("word").str.contains("cat"), 'word contains "cat"'),
    (~C("word").str.starts_with('q"'), r'word != nil and not (word startsWith "q\"")'),
    (C("word").str.ends_with("é"), 'word endsWith "é"'),
    (C("flag"), "flag == true"),
    (~C("flag"), "flag != true"),
    (C("image").is_null() | (C("label") > 3), None),
    (C("image").is_not_null() & (C("label") > 3), "label > 3"),
    (C("day") == dt.date(2024, 2, 29), 'day == date("2024-02-29")'),
    (C("taken") < dt.datetime(2024, 1, 1, 12, 0, 0, 5), 'taken < date("2024-01-01T12:00:00.000005000Z")'),
    (C("tags").list.contains("cat"), '"cat" in tags'),
    (C("and") == C("small"), '$env["and"] == small'),
    (C("huge") == C("label"), "huge == label"),
    (C("word") == C("other"), "word == other"),
    (C("and") == 3, '$env["and"] == 3'),
    (C("a b").is_null(), '$env["a b"] == nil'),
    (C("image").bin.size() > 10, '$env["image.size"] > 10'),
    (C("label") + 1 > 3, None),
    (C("word").str.contains("a.b"), None),
    (C("price") > decimal.Decimal("1.5"), None),
    (C("huge") > 2**63, "huge > 9223372036854775808"),
    (C("label").is_in(C("codes")), None),
    (pl.lit(True), "true"),
]


@pytest.mark.parametrize(("predicate", "text"), EXPRESSIONS, ids=[str(i) for i in range(len(EXPRESSIONS))])
def test_translation(served: Served, predicate: pl.Expr, text: str | None) -> None:
    seen: list[pl.Expr] = []
    schema = served.frame.schema

    def source(_: Any, given: pl.Expr | None, *__: Any) -> Iterator[pl.DataFrame]:
        seen.append(pl.lit(True) if given is None else given)
        yield served.frame if given is None else served.frame.filter(given)

    scan = pl.io.plugins.register_io_source(source, schema=schema)
    scan.filter(predicate).select(pl.all()).collect()
    found = translate(seen[0], served.dataset.schema).true.text
    if text is None:
        assert found is None
    else:
        assert found == text


def test_conjuncts() -> None:
    a, b, c = C("a") > 1, C("b") > 2, C("c") > 3
    assert [str(p) for p in conjuncts((a & b) & c)] == [str(a), str(b), str(c)]
    assert [str(p) for p in conjuncts(a | b)] == [str(a | b)]
    assert [str(p) for p in conjuncts(a)] == [str(a)]


class Filters:
    """Random filters."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def any(self, depth: int) -> pl.Expr:
        rng = self.rng
        if depth == 0 or rng.random() < 0.2:
            return self.test()
        match rng.randrange(5):
            case 0:
                return ~self.any(depth - 1)
            case 1 | 2:
                return self.any(depth - 1) & self.any(depth - 1)
            case 3:
                return self.any(depth - 1) | self.any(depth - 1)
            case _:
                return pl.any_horizontal(self.any(depth - 1), self.any(depth - 1))

    def test(self) -> pl.Expr:
        rng = self.rng
        numbers = [-300, -5, -1, 0, 1, 2, 3, 7, 50, 99, 2**31, 2**53, 2**53 + 1, -(2**63), 2**63 - 1, 2**63, 2**64 - 1]
        floats = [-2.5, -0.0, 0.0, 0.1, 0.5, 2.0, 1e-7, 1e300, math.inf, -math.inf, math.nan]
        start = dt.datetime(2024, 1, 1)
        column = rng.choice(["small", "label", "big", "huge", "single", "score", "and", "a b", "position"])
        word = rng.choice(["word", "other", "key"])
        text = rng.choice([*WORDS, "c", "row-1", "\\", "\n"])
        match rng.randrange(14):
            case 0 | 1:
                return self.compare(C(column), rng.choice(numbers))
            case 2:
                return self.compare(C(column), rng.choice(floats))
            case 3:
                low, high = sorted(rng.sample(range(-9, 99), 2))
                closed: Any = rng.choice(["both", "left", "right", "none"])
                return C(column).is_between(low, high, closed=closed)
            case 4:
                return C(column).is_in(rng.choices([0, 1, 2, 3, 7, None], k=3), nulls_equal=rng.random() < 0.5)
            case 5:
                return self.compare(C(word), text)
            case 6:
                if rng.random() < 0.5:
                    return C(word).str.contains(text, literal=True)
                return C(word).str.starts_with(text) if rng.random() < 0.5 else C(word).str.ends_with(text)
            case 7:
                return C(word).is_in(rng.choices([*WORDS, None], k=3), nulls_equal=rng.random() < 0.5)
            case 8:
                name = rng.choice([column, word, "flag", "tags", "box", "day", "seen", "price", "image"])
                return C(name).is_null() if rng.random() < 0.5 else C(name).is_not_null()
            case 9:
                return C("flag") if rng.random() < 0.5 else self.compare(C("flag"), rng.random() < 0.5)
            case 10:
                value = start + dt.timedelta(seconds=rng.randrange(-9, 10) / 2)
                if rng.random() < 0.3:
                    return self.compare(C("day"), value.date() + dt.timedelta(rng.randrange(-9, 10)))
                if rng.random() < 0.5:
                    return self.compare(C("seen"), value.replace(tzinfo=UTC))
                return self.compare(C("taken"), value)
            case 11:
                if rng.random() < 0.5:
                    return C("codes").list.contains(rng.choice([1, 2, 9]))
                return C("tags").list.contains(rng.choice(WORDS))
            case 12:
                pairs = ["word other", "label big", "label position", "day taken", "single score", "huge label"]
                pairs.append("huge big")
                left, right = rng.choice(pairs).split()
                return self.compare(C(left), C(right))
            case _:
                others = [
                    C("label") % 3 == 1,
                    C("box").struct.field("width") > 4,
                    C("image").bin.size() > rng.randrange(2 * BLOB),
                    C("mask").bin.size() > 4,
                    C("price") > decimal.Decimal("1.5"),
                    C("label").is_null() ^ C("flag"),
                    C("label") > C("label").cast(pl.Float64) / 2,
                    pl.lit(rng.choice([True, False, None]), dtype=pl.Boolean),
                    C("score").is_nan(),
                ]
                return rng.choice(others)

    def compare(self, left: pl.Expr, right: Any) -> pl.Expr:
        operators = ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__", "eq_missing", "ne_missing")
        found: pl.Expr = getattr(left, self.rng.choice(operators))(right)
        return found


def test_random_filters(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever the filter: the result is that of Polars on the whole frame."""
    seed = int(os.environ.get("BOWSTRING_SEED") or secrets.randbelow(2**32))
    print(f"BOWSTRING_SEED={seed}", file=sys.stderr)
    caplog.set_level(logging.WARNING, "bowstring.polars")
    filters, rng = Filters(seed), random.Random(seed)
    scans = {
        "in order": (bowstring.polars.scan(served.dataset), served.frame),
        "narrowed": (
            bowstring.polars.scan(served.dataset.where("label > 20 or label == nil")),
            served.frame.filter((C("label") > 20) | C("label").is_null()),
        ),
    }
    compared = pushed = 0
    for number in range(300):
        predicate = filters.any(rng.randrange(4))
        name = rng.choice(["in order", "in order", "narrowed"])
        scan, frame = scans[name]
        columns = rng.sample(frame.columns, rng.randrange(1, 5))
        head = rng.choice([None, None, 1, 100, ROWS])
        engine: Any = rng.choice(["in-memory", "streaming"])
        place = f"filter {number} of seed {seed}, {name}, head {head}, {columns}, {engine}: {predicate}"
        if head is not None:
            scan, frame = scan.head(head), frame.head(head)
        try:
            expected = frame.filter(predicate).select(columns)
        except pl.exceptions.PolarsError:  # Polars does not compare these
            continue
        try:
            found = scan.filter(predicate).select(columns).collect(engine=engine)
            assert_frame_equal(found, expected)
        except (AssertionError, pl.exceptions.PolarsError) as error:
            raise AssertionError(place) from error
        assert not caplog.records, f"{place}: {caplog.text}"
        compared += 1
        pushed += translate(predicate, served.dataset.schema).true.text is not None
    assert compared > 150
    assert pushed > 75
