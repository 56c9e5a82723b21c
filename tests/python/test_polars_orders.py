"""Datasets as lazy frames: a query gives the same rows, in the same order, whether Polars or the server does a part."""

from __future__ import annotations

import os
import random
import secrets
import sys
from collections.abc import Callable

import bowstring
import bowstring.polars
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from polars_samples import ROWS, Served, sent, served
from sent import Sent

__all__ = ["sent", "served"]  # fixtures

COLUMNS = ["position", "key", "label", "word", "mask"]
ORDERS: dict[str, Callable[[bowstring.Dataset], bowstring.Dataset]] = {
    "by position": lambda d: d,
    "shuffled": lambda d: d.shuffle(3),
    "some, shuffled": lambda d: d.where("label < 70").shuffle(4),
    "shuffled, and some of them": lambda d: d.shuffle(4).where("label < 70"),
    "selected, shuffled": lambda d: d.select(range(5, ROWS, 3)).shuffle(5),
    "like lengths": lambda d: d.shuffle(6).options(bucket_by_length="mask"),
    "others in the place of what fails": lambda d: d.shuffle(7).options(on_error="skip"),
}


class Queries:
    """Random queries."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def condition(self) -> pl.Expr:
        rng = self.rng
        return rng.choice(
            [
                pl.col("label") < rng.randrange(100),
                pl.col("label") % 7 == rng.randrange(7),  # not for the server
                pl.col("word").is_in(["cat", "dog", "a"]),
                pl.col("mask").bin.size() > rng.randrange(9),
                pl.col("label").is_null() | (pl.col("position") > rng.randrange(ROWS)),
            ]
        )

    def steps(self) -> list[Callable[[pl.LazyFrame], pl.LazyFrame]]:
        found: list[Callable[[pl.LazyFrame], pl.LazyFrame]] = []
        numbered = False
        for _ in range(self.rng.randrange(1, 5)):
            step = self.step(numbered)
            numbered = numbered or step.__name__ == "number"
            found.append(step)
        return found

    def step(self, numbered: bool) -> Callable[[pl.LazyFrame], pl.LazyFrame]:
        rng = self.rng
        condition, n, offset = self.condition(), rng.choice([0, 1, 5, 64, 500]), rng.choice([0, 3, 100, -40])

        def filtered(f: pl.LazyFrame) -> pl.LazyFrame:
            return f.filter(condition)

        def number(f: pl.LazyFrame) -> pl.LazyFrame:
            return f.with_row_index("number")

        steps = [
            filtered,
            filtered,
            lambda f: f.head(n),
            lambda f: f.tail(n),
            lambda f: f.slice(offset, n),
            lambda f: f.select([*COLUMNS, *(["number"] if numbered else [])]),
        ]
        return rng.choice(steps if numbered else [*steps, number])


@pytest.mark.parametrize("order", ORDERS)
def test_queries_give_the_rows_of_the_frame(served: Served, order: str) -> None:
    seed = int(os.environ.get("SEED", secrets.randbits(32)))
    print(f"repeat with SEED={seed}", file=sys.stderr)
    queries = Queries(seed)
    scan = bowstring.polars.scan(ORDERS[order](served.dataset.columns(COLUMNS)))
    frame = scan.collect()
    assert frame.height > ROWS // 4
    some = 0
    for _ in range(25):
        asked, here = scan, frame.lazy()
        for step in queries.steps():
            asked, here = step(asked), step(here)
        found, expected = asked.collect(), here.collect()
        assert_frame_equal(found, expected)
        some += 0 < found.height < frame.height
    assert some > 1  # six of ten in the mean


def test_first_rows_of_a_shuffled_dataset_that_meet_a_filter(served: Served, sent: Callable[[], Sent]) -> None:
    scan = bowstring.polars.scan(served.dataset.columns(COLUMNS).shuffle(3))
    frame = scan.collect()
    meets = pl.col("label") < 10
    sent()
    assert_frame_equal(scan.filter(meets).head(5).collect(), frame.filter(meets).head(5))
    assert_frame_equal(scan.filter(meets).collect(), frame.filter(meets))
    # Blobs are read of rows that are left, and no others.
    narrow = bowstring.polars.scan(served.dataset.columns([*COLUMNS, "image"]).shuffle(3))
    sent()
    found = narrow.filter(meets).collect()
    assert sent().rows == ROWS + found.height
