"""Frames of Polars over blobs that lie in the server's files."""

from __future__ import annotations

import gc
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
    """A server whose blobs lie in the files of its embedded store."""
    monkeypatch.setattr("bowstring._samenode._PATIENCE", 30.0)  # a machine may be busy; in the end it would be TCP
    return start("--local", str(tmp_path / "socket"), "--local-ring=16MiB", "--local-references")


def _some(frame: pl.LazyFrame, query: str) -> pl.LazyFrame:
    """Each way in which a scan reads blobs."""
    if query == "head":
        return frame.head(40)
    if query == "filtered":  # by what no server knows
        odd = pl.col("position").map_batches(lambda s: s % 7 == 1, return_dtype=pl.Boolean)
        return frame.filter(odd)
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
