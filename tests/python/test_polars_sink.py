"""Frames of Polars become snapshots of a dataset: whole, or not at all."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bowstring
import bowstring.polars
import polars as pl
import pytest
from bowstring._local import servers
from polars.testing import assert_frame_equal


@pytest.fixture
def name(here: bowstring.Client) -> Iterator[str]:
    """A dataset of the test's own."""
    made = f"sink-{uuid.uuid4().hex[:8]}"
    yield made
    if here.datasets(made):
        here.drop(made)


def samples(rows: int) -> pl.LazyFrame:
    """Samples whose categories come one after another, so that batches have different ones."""
    n = pl.int_range(rows, eager=True)
    return pl.LazyFrame(
        {
            "name": pl.select(pl.format("row {}", n)).to_series(),
            "kind": pl.select((n // 10).cast(pl.String).cast(pl.Categorical)).to_series(),
            "sizes": pl.select(pl.concat_list(n, n + 1)).to_series(),
            "place": pl.select(pl.struct(n.alias("n"), pl.lit(None).alias("none"))).to_series(),
            "data": [b"%d" % i for i in range(rows)],
        }
    )


def test_a_query_is_written_batch_by_batch(here: bowstring.Client, name: str) -> None:
    seen: list[int] = []

    def noted(frame: pl.DataFrame) -> pl.DataFrame:
        seen.append(frame.height)
        return frame

    query = samples(1000).filter(pl.col("name") != "row 7")
    streamed = query.map_batches(noted, streamable=True)
    made = bowstring.polars.sink(streamed, name, here, key="name", batch_rows=64)
    assert (made.snapshot, made.rows) == (1, 999)
    assert sum(seen) == 999
    want = query.with_columns(pl.col("kind").cast(pl.String)).collect()
    read = bowstring.polars.scan(here, name).select(want.columns).collect()
    for column in want.columns:
        assert read[column].to_list() == want[column].to_list(), column
    more = pl.DataFrame({"name": ["row 7"], "kind": ["0"], "sizes": [[7, 8]], "place": [{"n": 7}], "data": [b"7"]})
    more = more.with_columns(pl.col("place").cast(pl.Struct({"n": pl.Int64, "none": pl.String})))
    assert bowstring.polars.sink(more, name, here, mode="merge", on="name", missing="insert").inserted == 1
    assert here.dataset(name).num_rows == 1000


def test_an_error_leaves_nothing(here: bowstring.Client, name: str) -> None:
    """A query that fails after some batches, and a type that is not stored."""

    def broken(frame: pl.DataFrame) -> pl.DataFrame:
        if "row 900" in frame["name"]:
            raise ZeroDivisionError("of the query")
        return frame

    bowstring.polars.sink(samples(3), name, here)
    query = samples(1000).map_batches(broken, streamable=True)
    with pytest.raises((ZeroDivisionError, pl.exceptions.ComputeError), match="of the query"):
        bowstring.polars.sink(query, name, here, mode="append", batch_rows=10)
    assert here.dataset(name).num_rows == 3
    assert here.dataset(name).snapshot == 1


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (pl.Int128, 1, r"column bad is Int128, .* cast Int128 to Decimal"),
        (pl.List(pl.UInt128), [1], r"column bad is List\(UInt128\), .* cast UInt128 to Decimal"),
        (pl.Object, object(), "column bad is Object, .* cast Object to text"),
    ],
)
def test_what_arrow_does_not_have_is_refused_by_name(
    here: bowstring.Client, name: str, kind: Any, value: Any, said: str
) -> None:
    frame = pl.DataFrame({"name": ["a"], "bad": pl.Series([value], dtype=kind)})
    with pytest.raises(bowstring.InvalidRequest, match=said):
        bowstring.polars.sink(frame, name, here)
    with pytest.raises(bowstring.InvalidRequest, match=said):
        here.ingest(name, frame, progress=False)
    assert not here.datasets(name)


def test_mistakes(here: bowstring.Client, name: str) -> None:
    with pytest.raises(TypeError, match="frame: got dict, want"):
        bowstring.polars.sink({"a": [1]}, name, here)  # type: ignore[arg-type]
    with pytest.raises(bowstring.InvalidRequest, match="batch_rows: got 0"):
        bowstring.polars.sink(samples(1), name, here, batch_rows=0)


def test_into_a_folder(binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOWSTRING_BINARY", str(binary))
    monkeypatch.setenv("BOWSTRING_CACHE", str(tmp_path / "cache"))
    try:
        bowstring.polars.sink(pl.DataFrame({"n": [1, 2]}), "numbers", tmp_path / "store")
        opened = bowstring.open(f"{(tmp_path / 'store').as_uri()}#numbers", progress=False)
        assert_frame_equal(opened.select("n").to_polars(), pl.DataFrame({"n": [1, 2]}))
    finally:
        for server in servers.known():
            server.stop()
