"""Datasets as lazy frames: no more is read than is needed for what comes out."""

from __future__ import annotations

from collections.abc import Callable

import bowstring
import bowstring.polars
import polars as pl
import pytest
from bowstring._filters import where
from polars.testing import assert_frame_equal
from polars_samples import BLOB, ROWS, Served, scan, sent, served
from sent import Sent

__all__ = ["scan", "sent", "served"]  # fixtures


def test_columns_are_pushed_down(scan: pl.LazyFrame, sent: Callable[[], Sent]) -> None:
    assert scan.select("label", "word").collect().columns == ["label", "word"]
    assert sent().bytes < ROWS * 50
    assert scan.select(pl.col("label").sum()).collect().height == 1
    assert sent().bytes < ROWS * 12


def test_rows_are_pushed_down(served: Served, scan: pl.LazyFrame, sent: Callable[[], Sent]) -> None:
    assert_frame_equal(scan.head(7).collect(), served.frame.head(7))
    got = sent()
    assert got.rows == 7
    assert 7 * BLOB < got.bytes < 8 * BLOB + 7 * 500
    assert_frame_equal(scan.limit(ROWS + 5).select("label").collect(), served.frame.select("label"))
    assert scan.head(0).collect().height == 0
    # The rows of a slice up to its end, or all, as Polars asks.
    assert_frame_equal(scan.slice(10, 5).collect(), served.frame.slice(10, 5))
    assert_frame_equal(scan.tail(5).select("word").collect(), served.frame.tail(5).select("word"))


def test_rows_without_columns(scan: pl.LazyFrame, sent: Callable[[], Sent]) -> None:
    assert scan.select(pl.len()).collect().item() == ROWS
    numbered = scan.with_row_index().select("index").collect()
    assert numbered["index"].to_list() == list(range(ROWS))
    assert sent().bytes < ROWS * 30
    assert scan.head(9).with_row_index().select("index").collect().height == 9


def test_filters_are_pushed_down(served: Served, scan: pl.LazyFrame, sent: Callable[[], Sent]) -> None:
    found = scan.filter(pl.col("label") == 7).select("key", "image").collect()
    assert_frame_equal(found, served.frame.filter(pl.col("label") == 7).select("key", "image"))
    got = sent()
    assert got.rows == found.height > 10  # in one pass, and no row more than those
    assert got.bytes < 1.1 * found.height * BLOB


def test_first_rows_are_taken_before_they_are_filtered(
    served: Served, scan: pl.LazyFrame, sent: Callable[[], Sent]
) -> None:
    found = scan.head(100).filter(pl.col("label") < 50).collect()
    assert_frame_equal(found, served.frame.head(100).filter(pl.col("label") < 50))
    assert 0 < found.height < 100
    got = sent()
    assert got.rows == 100 + found.height
    assert got.bytes < (found.height + 1) * BLOB + 100 * 500


def test_blobs_of_surviving_rows_alone(served: Served, scan: pl.LazyFrame, sent: Callable[[], Sent]) -> None:
    odd = (pl.col("label") * 7 % 100 == 3) & (pl.col("score") > -1)  # of which the server can do the second part
    found = scan.filter(odd).select("image", "key").collect()
    assert_frame_equal(found, served.frame.filter(odd).select("image", "key"))
    assert 5 < found.height < 60
    got = sent()
    assert served.frame.filter(pl.col("score") > -1).height == got.rows - found.height  # metadata, then blobs
    # The position, and what the filter looks at, of each row; all else for each that is left.
    assert got.bytes < found.height * (BLOB + 100) + ROWS * 28


def test_more_rows_than_a_request_names(served: Served, scan: pl.LazyFrame, sent: Callable[[], Sent]) -> None:
    most = pl.col("label") % 10 != 3
    found = scan.filter(most).select("position", "image", "mask").collect()
    assert_frame_equal(found, served.frame.filter(most).select("position", "image", "mask"))
    assert found.height > 2_000
    assert sent().rows == ROWS + found.height


def test_filter_on_blobs(served: Served, scan: pl.LazyFrame, sent: Callable[[], Sent]) -> None:
    small = pl.col("mask").bin.slice(2, 1) == b""
    found = scan.filter(small, pl.col("label") < 20).select("key", "image").collect()
    assert_frame_equal(found, served.frame.filter(small, pl.col("label") < 20).select("key", "image"))
    assert sent().rows == served.frame.filter(pl.col("label") < 20).height
    # Metadata is filtered before blobs are read, whatever their filter is.
    mean = (pl.col("label") + 1 < 5) & small
    assert_frame_equal(scan.filter(mean).select("key").collect(), served.frame.filter(mean).select("key"))
    got = sent()
    assert got.rows == ROWS + served.frame.filter(pl.col("label") + 1 < 5).height
    assert got.bytes < ROWS * 30
    starts = pl.col("image").bin.starts_with(b"\x00")
    assert_frame_equal(scan.filter(starts).select("key").collect(), served.frame.filter(starts).select("key"))


def test_filter_on_sizes_of_blobs(served: Served, scan: pl.LazyFrame, sent: Callable[[], Sent]) -> None:
    small = pl.col("mask").bin.size() < 3
    for condition in (small, small & (pl.col("label") % 10 == 3), ~small | (pl.col("label") > 90)):
        found = scan.filter(condition).select("key", "image").collect()
        assert_frame_equal(found, served.frame.filter(condition).select("key", "image"))
    sent()
    assert scan.filter(small).select("key", "mask").collect().height == sent().rows
    sizes = bowstring.polars.scan(served.dataset.columns(["key", "image.size", "mask.size"]))
    expected = served.frame.filter(small).select("key", pl.col("mask").bin.size().cast(pl.Int64).alias("mask.size"))
    assert_frame_equal(sizes.filter(pl.col("mask.size") < 3).select("key", "mask.size").collect(), expected)
    got = sent()
    assert got.rows == expected.height


def test_long_filters_stay_here(scan: pl.LazyFrame, sent: Callable[[], Sent]) -> None:
    keys = [f"row-{i}" for i in range(0, ROWS, 2)]
    found = scan.filter(pl.col("key").is_in(keys)).select("key", "mask").collect()
    assert found["key"].to_list() == keys
    assert sent().rows == ROWS + len(keys)


def test_a_filter_that_the_server_refuses(
    served: Served, scan: pl.LazyFrame, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = where.exactly("word > 3", "word <= 3")
    monkeypatch.setattr(bowstring.polars, "translate", lambda *_: wrong)
    found = scan.filter(pl.col("label") > 90).select("key", "image").collect()
    assert_frame_equal(found, served.frame.filter(pl.col("label") > 90).select("key", "image"))
    assert "the server does not take the filter word > 3" in caplog.text
