"""Uploads: from whatever holds rows, all or nothing, with a progress bar."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import bowstring
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from node import Node

ROWS = 500


def rows(first: int = 0, count: int = ROWS, size: int = 1000) -> pa.Table:
    rng = np.random.default_rng(first)
    return pa.table(
        {
            "name": [f"row {n:05d}" for n in range(first, first + count)],
            "score": pa.array(np.arange(first, first + count) / 2),
            "image": pa.array([rng.bytes(size) for _ in range(count)], pa.large_binary()),
        }
    )


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, binary: Any) -> Iterator[str]:
    root = tmp_path_factory.mktemp("ingest")
    with Node(binary, root / "store", log=root / "log") as own:
        yield own.url


@pytest.fixture
def here(url: str) -> bowstring.Client:
    return bowstring.connect(url)


def batches(table: pa.Table) -> Iterator[pa.RecordBatch]:
    yield from table.to_batches(max_chunksize=7)


SOURCES: dict[str, Any] = {
    "table": lambda t: t,
    "batch": lambda t: t.combine_chunks().to_batches()[0],
    "reader": lambda t: t.to_reader(max_chunksize=10),
    "generator": batches,
    "list": lambda t: list(batches(t)),
    "tables": lambda t: [t.slice(0, 3), t.slice(3)],
    "polars": lambda t: pl.DataFrame(t.drop_columns("image")),
    "pandas": lambda t: t.drop_columns("image").to_pandas(),
    "duckdb": lambda t: duckdb.from_arrow(t),
}


@pytest.mark.parametrize("name", SOURCES)
def test_from_whatever_has_rows(here: bowstring.Client, name: str) -> None:
    table = rows()
    result = here.ingest(f"from-{name}", SOURCES[name](table), key="name", progress=False)
    assert (result.dataset, result.snapshot, result.rows, result.changed) == (f"from-{name}", 1, ROWS, True)
    columns = [c for c in table.column_names if c != "image" or result.bytes]
    stored = here.dataset(f"from-{name}").columns(columns).to_arrow()
    assert stored.to_pylist() == table.select(columns).to_pylist()
    assert result.bytes in (0, ROWS * 1000)


def test_modes(here: bowstring.Client) -> None:
    first = here.ingest("modes", rows(), key="name", media={"image": "image"}, source="a test", progress=False)
    assert first.changed
    before = here.dataset("modes")
    again = here.ingest("modes", rows(), key="name", mode="replace", media={"image": "image"}, progress=False)
    assert (again.snapshot, again.changed) == (1, False)
    image = {"image": "image"}
    more = here.ingest("modes", rows(ROWS, 20), mode="append", split="val", key="name", media=image, progress=False)
    assert (more.snapshot, more.rows) == (2, 20)
    assert before.num_rows == before.to_arrow().num_rows == ROWS  # it is of its snapshot
    now = here.dataset("modes")
    assert (now.snapshot, now.num_rows, here.dataset("modes", split="val").num_rows) == (2, ROWS + 20, 20)
    assert now.schema.field("image").metadata[b"bowstring.media"] == b"image"
    assert here.datasets("modes")[0].snapshots == [1, 2]
    assert here.drop("modes", 1) == [1]
    assert here.drop("modes") == [2]
    assert here.datasets("modes") == []
    with pytest.raises(bowstring.NotFound):
        before.to_arrow()


def test_which_columns_are_blobs(here: bowstring.Client) -> None:
    table = rows(size=10)
    table = table.set_column(2, "image", table["image"].cast(pa.binary())).append_column("raw", [[b"x"] * ROWS])
    here.ingest("blobs", table, key="name", blobs=["raw"], progress=False)
    kinds = {c["name"]: c["kind"] for c in here.action("describe", dataset="blobs")[0]["columns"]}
    assert kinds["raw"] == "blob"
    assert kinds["image"] == "metadata"


def test_large_batches_are_cut(here: bowstring.Client) -> None:
    table = rows(count=100, size=1 << 20)
    result = here.ingest("large", table, key="name", progress=False)
    assert (result.rows, result.bytes) == (100, 100 << 20)
    assert here.dataset("large").columns(["image"]).take([99])["image"][0] == table["image"][99]


def test_all_or_nothing(here: bowstring.Client) -> None:
    def fails() -> Iterator[pa.RecordBatch]:
        yield from rows(size=100_000).to_batches(max_chunksize=50)
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        here.ingest("nothing", fails(), key="name", progress=False)
    assert here.datasets("nothing") == []

    def interrupted() -> Iterator[pa.RecordBatch]:
        yield from rows().to_batches()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        here.ingest("nothing", interrupted(), progress=False)
    assert here.datasets("nothing") == []

    def changes() -> Iterator[pa.RecordBatch]:
        yield rows().to_batches()[0]
        yield pa.record_batch({"other": [1]})

    with pytest.raises(bowstring.InvalidRequest):
        here.ingest("nothing", changes(), progress=False)
    assert here.datasets("nothing") == []


def test_what_the_server_refuses(here: bowstring.Client) -> None:
    twice = pa.concat_tables([rows(), rows()])
    with pytest.raises(bowstring.InvalidRequest, match="written twice"):
        here.ingest("refused", twice, key="name", progress=False)
    with pytest.raises(bowstring.InvalidRequest, match="mode"):
        here.ingest("refused", rows(), mode="overwrite", progress=False)
    with pytest.raises(bowstring.InvalidRequest, match="nome"):
        here.ingest("refused", rows(), key="nome", progress=False)
    # The error comes in the middle of a long upload.
    with pytest.raises(bowstring.InvalidRequest, match="written twice"):
        here.ingest("refused", (b for _ in range(100) for b in rows(size=20_000).to_batches()), key="name",
                    progress=False)  # fmt: skip
    here.ingest("refused", rows(), progress=False)
    with pytest.raises(bowstring.AlreadyExists, match=r"^already exists: dataset refused"):
        here.ingest("refused", (b for _ in range(100) for b in rows(size=20_000).to_batches()), progress=False)


@pytest.mark.parametrize("reader", [5, "file.parquet", {"a": [1]}, None, [1, 2], [{"a": 1}]])
def test_what_has_no_rows(here: bowstring.Client, reader: Any) -> None:
    with pytest.raises(TypeError, match=r"^reader: got "):
        here.ingest("never", reader)
    with pytest.raises(ValueError, match="no batch"):
        here.ingest("never", [])


def test_empty(here: bowstring.Client) -> None:
    result = here.ingest("empty", rows().slice(0, 0), progress=False)
    assert result.rows == 0
    empty = here.dataset("empty")
    assert empty.num_rows == 0
    assert empty.where("score > 1").to_arrow().num_rows == 0
    assert len(empty.head()) == 0


def test_progress(here: bowstring.Client, capfd: pytest.CaptureFixture[str]) -> None:
    here.ingest("shown", rows(), key="name")
    shown = capfd.readouterr().err
    assert "ingest shown: 100%" in shown
    assert "stored" in shown
    here.ingest("hidden", rows(), key="name", progress=False)
    assert capfd.readouterr().err == ""


def test_a_killed_upload_leaves_nothing(here: bowstring.Client) -> None:
    script = """
import os, signal, sys, bowstring, pyarrow as pa
def rows():
    for n in range(100):
        if n == 90:
            os.kill(os.getpid(), signal.SIGKILL)
        yield pa.record_batch({"image": pa.array([bytes(100_000)] * 10, pa.large_binary())})
bowstring.connect(sys.argv[1]).ingest("killed", rows(), progress=False)
"""
    done = subprocess.run([sys.executable, "-c", script, here.uri], check=False, timeout=600)
    assert done.returncode == -9
    assert here.datasets("killed") == []


def test_a_copy_of_a_dataset(here: bowstring.Client) -> None:
    """Batches that were read can be uploaded again unchanged, from one dataset into another."""
    here.ingest("source", rows(), key="name", progress=False)
    source = here.dataset("source")
    here.ingest("copy", source.where("score < 50"), progress=False)
    copied = here.dataset("copy").to_arrow()
    assert copied["id"].to_pylist() == source.where("score < 50").to_arrow()["id"].to_pylist()
    assert copied.num_rows == 100


def test_frames(here: bowstring.Client) -> None:
    values = {
        "text": ["a", None],
        "bytes": [b"x", b"yz"],
        "list": [["x", "y"], []],
        "struct": [{"a": "b"}, {"a": None}],
        "n": [1, 2],
    }
    frame = pl.DataFrame(values)
    assert here.ingest("frame", frame, progress=False).rows == 2
    assert pl.DataFrame(here.dataset("frame").columns(list(values))).to_dict(as_series=False) == values
    assert here.ingest("pandas", pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}), progress=False).rows == 2


def test_tags(here: bowstring.Client) -> None:
    here.ingest("tagged", rows(0, 10), key="name", progress=False)
    here.ingest("tagged", rows(10, 5), key="name", mode="append", progress=False)
    assert here.tag("tagged", "prod", 1) == 1
    assert here.tag("tagged", "newest") == 2
    prod = here.dataset("tagged@prod")
    assert (prod.name, prod.snapshot, len(prod)) == ("tagged", 1, 10)
    assert here.dataset("tagged@2").snapshot == here.dataset("tagged", snapshot="newest").snapshot == 2
    (listed,) = here.datasets("tagged")
    assert listed.tags == {"newest": 2, "prod": 1}
    assert here.tag("tagged@newest", "prod") == 2
    assert len(prod) == 10  # it is of a snapshot, wherever the tag goes
    with pytest.raises(bowstring.InvalidRequest, match="untag tagged@newest"):
        here.drop("tagged")
    with pytest.raises(bowstring.NotFound, match='did you mean "prod"'):
        here.dataset("tagged@prd")
    with pytest.raises(bowstring.InvalidRequest, match="one of them"):
        here.dataset("tagged@prod", snapshot=1)
    assert (here.untag("tagged", "prod"), here.untag("tagged", "newest")) == (2, 2)
    assert here.drop("tagged") == [1, 2]
