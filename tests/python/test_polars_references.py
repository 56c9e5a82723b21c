"""Frames of Polars over blobs in the server's files."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import bowstring
import bowstring.polars
import polars as pl
import pytest
from conftest import StartNode
from local_photos import photos, rings
from node import Node
from polars.testing import assert_frame_equal
from wire import until


@pytest.fixture
def shared(start: StartNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A server whose blobs are in the files of its embedded store."""
    monkeypatch.setattr("bowstring._transport.shm._PATIENCE", 30.0)  # a machine may be busy; in the end it would be TCP
    return start("--local", str(tmp_path / "socket"), "--local-ring=16MiB", "--local-references")


def _some(frame: pl.LazyFrame, query: str) -> pl.LazyFrame:
    """Each way in which a scan reads blobs."""
    if query == "head":
        return frame.head(40)
    if query == "filtered":  # by what the server does not know
        return frame.filter(pl.col("position") % 7 == 1)
    return frame


@pytest.mark.parametrize("query", ["all", "head", "filtered"])
def test_a_frame_points_into_files(shared: Node, monkeypatch: pytest.MonkeyPatch, query: str) -> None:
    with monkeypatch.context() as off:
        off.setenv("BOWSTRING_LOCAL", "off")
        want = _some(bowstring.polars.scan(photos(bowstring.connect(shared.url))), query).collect()
    client = bowstring.connect(shared.url)
    plain = _some(bowstring.polars.scan(photos(client)), query).collect()
    assert_frame_equal(plain, want)
    assert rings(client)["referred"] == 0  # who does not ask gets none
    found = _some(bowstring.polars.scan(photos(client), references=True), query).collect()
    assert rings(client)["referred"] > 0
    gc.collect()
    assert rings(client)["pinned"] > 0  # the frame was not copied
    assert_frame_equal(found, want)
    del found
    gc.collect()
    until(lambda: rings(client)["pinned"] == 0, "pinned is 0")


@pytest.mark.parametrize("late", [False, True], ids=["by metadata", "by bytes, too"])
def test_rows_by_position(shared: Node, monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    """Rows that Polars alone chooses are asked for by their positions, in the order of these."""
    read = bowstring.polars._Query._with_rest
    asked: list[int] = []

    def with_rest(
        self: bowstring.polars._Query, plain: bowstring.Dataset, rows: pl.DataFrame
    ) -> Iterator[pl.DataFrame]:
        asked.extend(rows["position"])
        yield from read(self, plain, rows)

    monkeypatch.setattr(bowstring.polars._Query, "_with_rest", with_rest)
    chosen = pl.col("position") % 7 == 1  # which the server does not know
    if late:
        chosen &= pl.col("image").bin.size() % 2 == 0
    client = bowstring.connect(shared.url)
    dataset = client.dataset("photos").columns(["position", "image", "label"])
    want = bowstring.polars.scan(dataset).collect().filter(chosen)
    assert 1 < want.height < 60
    assert rings(client)["referred"] == 0
    found = bowstring.polars.scan(dataset, references=True).filter(chosen).collect()
    assert asked == list(range(1, dataset.num_rows, 7))
    assert rings(client)["referred"] > 0
    gc.collect()
    assert rings(client)["pinned"] > 0  # the rows that are left point into the files
    assert_frame_equal(found, want)
    del found
    gc.collect()
    until(lambda: rings(client)["pinned"] == 0, "pinned is 0")


def test_a_part_keeps_its_batch(shared: Node) -> None:
    client = bowstring.connect(shared.url)
    frame = bowstring.polars.scan(photos(client), references=True).head(40).collect()
    few = frame.head(2)
    want = [bytes(image) for image in frame["image"].head(2)]
    del frame
    gc.collect()
    assert rings(client)["pinned"] > 0
    assert few["image"].to_list() == want
    del few
    gc.collect()
    until(lambda: rings(client)["pinned"] == 0, "pinned is 0")
