"""Datasets as lazy frames: what comes out is what Polars says, however it is run, and errors reach the caller."""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bowstring
import bowstring.polars
import duckdb
import polars as pl
import pytest
from node import Node
from PIL import Image
from polars.testing import assert_frame_equal
from polars_samples import BLOB, ROWS, Served, mixed, scan, sent, served
from sent import Sent

__all__ = ["scan", "sent", "served"]  # fixtures


def test_everything(served: Served) -> None:
    whole = pl.from_arrow(mixed())
    assert isinstance(whole, pl.DataFrame)
    assert_frame_equal(served.frame.drop("position"), whole)
    assert served.frame["position"].to_list() == list(range(ROWS))


def test_types(served: Served) -> None:
    schema = bowstring.polars.scan(
        served.dataset.columns(["id", "position", "split", "image", "tags", "seen"])
    ).collect_schema()
    assert schema == {
        "id": pl.Binary(),  # Polars knows no UUID
        "position": pl.Int64(),
        "split": pl.String(),
        "image": pl.Binary(),
        "tags": pl.List(pl.String()),
        "seen": pl.Datetime("ns", "UTC"),
    }
    frame = bowstring.polars.scan(served.dataset.columns(["id", "split"])).head(3).collect()
    assert [len(i) for i in frame["id"]] == [16] * 3
    assert frame["split"].to_list() == ["train"] * 3


def test_photographs(node: Node) -> None:
    frame = bowstring.polars.scan(node.url, "photos", split="val", columns=["image", "width", "height"])
    found = frame.filter(pl.col("width") > pl.col("height")).collect()
    assert found.height > 5
    for image, width, height in found.iter_rows():
        with Image.open(io.BytesIO(image)) as opened:
            assert opened.size == (width, height)


def test_dataset_narrowed_before(served: Served) -> None:
    narrow = served.dataset.where("label < 60").select(list(range(0, ROWS, 3)))
    expected = served.frame.filter(pl.col("position") % 3 == 0, pl.col("label") < 60)
    scan = bowstring.polars.scan(narrow)
    assert_frame_equal(scan.collect(), expected)
    for condition in (pl.col("label") > 30, pl.col("label") % 2 == 1):
        assert_frame_equal(scan.filter(condition).collect(), expected.filter(condition))
    assert_frame_equal(
        bowstring.polars.scan(served.dataset, where="label < 60", columns=["key"]).collect(),
        served.frame.filter(pl.col("label") < 60).select("key"),
    )


def test_shuffled_dataset_keeps_its_order(served: Served) -> None:
    scan = bowstring.polars.scan(served.dataset.shuffle(5))
    whole = scan.collect()
    assert whole["position"].to_list() != served.frame["position"].to_list()
    assert_frame_equal(whole.sort("position"), served.frame)
    # Filters that the server applies change the number of rows, and with it the order; but never the set.
    for condition in (pl.col("label") < 10, pl.col("label") % 10 == 3):
        found = scan.filter(condition).select("position", "image", "key").collect()
        expected = served.frame.filter(condition).select("position", "image", "key")
        assert_frame_equal(found.sort("position"), expected)
    odd = scan.filter(pl.col("label") % 10 == 3).collect()
    assert_frame_equal(odd, whole.filter(pl.col("label") % 10 == 3))


def test_options_of_the_dataset(served: Served) -> None:
    hugging = served.dataset.columns(["label", "mask"]).options(layout="huggingface", order="free", remainder="drop")
    found = bowstring.polars.scan(hugging).filter(pl.col("label") % 10 == 3).collect()
    expected = served.frame.filter(pl.col("label") % 10 == 3)
    assert found["label"].to_list() == expected["label"].to_list()
    assert found["mask"].to_list() == expected["mask"].to_list()
    skip = served.dataset.options(on_error="skip")
    odd = pl.col("label") % 10 == 3
    assert_frame_equal(bowstring.polars.scan(skip).filter(odd).collect(), served.frame.filter(odd))


# --- how it is run ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_engines(served: Served, scan: pl.LazyFrame, engine: Any, tmp_path: Path) -> None:
    query = scan.filter(pl.col("label") % 10 == 3).group_by("word").agg(pl.col("image").bin.size().sum()).sort("word")
    expected = served.frame.filter(pl.col("label") % 10 == 3).group_by("word")
    assert_frame_equal(query.collect(engine=engine), expected.agg(pl.col("image").bin.size().sum()).sort("word"))
    scan.select("key", "image").sink_parquet(tmp_path / "images.parquet", engine=engine)
    assert_frame_equal(pl.read_parquet(tmp_path / "images.parquet"), served.frame.select("key", "image"))
    joined = scan.select("key", "label").join(scan.filter(pl.col("label") > 90).select("key", "image"), on="key")
    assert joined.collect(engine=engine).height == served.frame.filter(pl.col("label") > 90).height


def test_batches(served: Served, scan: pl.LazyFrame) -> None:
    pieces = list(scan.select("key", "label").collect_batches(chunk_size=500, maintain_order=True))
    assert len(pieces) > 1
    assert_frame_equal(pl.concat(pieces), served.frame.select("key", "label"))


def test_batch_size_is_kept(served: Served) -> None:
    source = bowstring.polars._Scan(served.dataset)
    for columns, predicate in ((["label"], None), (["image"], None), (["image"], pl.col("label") % 2 == 0)):
        frames = list(source(columns, predicate, None, 100))
        assert max(f.height for f in frames) <= 100
        assert sum(f.height for f in frames) > 1_000
    frames = list(source(["image"], None, 250, 100))
    assert [f.height for f in frames] == [100, 100, 50]


def test_a_query_that_ends_early_closes_its_stream(served: Served, sent: Callable[[], Sent]) -> None:
    frames = bowstring.polars._Scan(served.dataset)(["image"], pl.col("label") > 3, None, 10)
    assert next(frames).height <= 10
    del frames
    sent()  # waits until no stream is left, and fails where one stays


def test_threads_and_pickles(served: Served, scan: pl.LazyFrame) -> None:
    found: list[pl.DataFrame] = []

    def collect() -> None:
        found.append(scan.filter(pl.col("label") % 10 == 3).select("image").collect())

    threads = [threading.Thread(target=collect) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = served.frame.filter(pl.col("label") % 10 == 3).select("image")
    assert len(found) == 4
    for frame in found:
        assert_frame_equal(frame, expected)
    source = pickle.loads(pickle.dumps(bowstring.polars._Scan(served.dataset)))
    assert_frame_equal(pl.concat(source(["key"], None, 5, None)), served.frame.select("key").head(5))


def test_explain(scan: pl.LazyFrame) -> None:
    text = scan.filter(pl.col("label") > 3).select("key").explain()
    assert "bowstring mixed@1" in text
    assert "PROJECT 2/22 COLUMNS" in text


def test_server_restarts_between_batches(binary: Path, tmp_path: Path) -> None:
    with Node(binary, tmp_path / "store", log=tmp_path / "log") as node:
        client = bowstring.connect(node.url)
        client.ingest("mixed", mixed(500), key="key", progress=False)
        source = bowstring.polars._Scan(client.dataset("mixed").options(batch_bytes=100_000))
        frames = source(["key", "image"], pl.col("label") % 2 == 0, None, 20)
        first = next(frames)
        port = node.port
        node.kill()
        node.start(f"127.0.0.1:{port}")
        found = pl.concat([first, *frames])
        expected = pl.DataFrame(mixed(500).select(["key", "image", "label"])).filter(pl.col("label") % 2 == 0)
        assert_frame_equal(found, expected.select("key", "image"))


# --- errors ----------------------------------------------------------------------------------------------------------


def test_wrong_arguments(served: Served) -> None:
    client, scan = bowstring.connect(served.dataset.client.uri), bowstring.polars.scan
    with pytest.raises(TypeError, match=r"source: got int, want a Dataset, a Client, or the address"):
        scan(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="name: got None, want the name of a dataset"):
        scan(client)
    with pytest.raises(TypeError, match="split: goes with an address or a client"):
        scan(served.dataset, split="train")
    with pytest.raises(TypeError, match="belong to the client"):
        scan(client, "mixed", token="secret")
    with pytest.raises(bowstring.NotFound, match="none"):
        scan(client, "none")
    with pytest.raises(bowstring.InvalidRequest, match="lable"):
        scan(client, "mixed", columns=["lable"])
    with pytest.raises(bowstring.InvalidRequest, match="did you mean"):
        scan(client, "mixed", where="lable == 3")
    with pytest.raises(pl.exceptions.ColumnNotFoundError):
        scan(client, "mixed").select("lable").collect()


def test_an_error_of_the_server_reaches_the_caller(binary: Path, tmp_path: Path) -> None:
    with Node(binary, tmp_path / "store", log=tmp_path / "log") as node:
        client = bowstring.connect(node.url, retries=0)
        client.ingest("mixed", mixed(50), key="key", progress=False)
        scan = bowstring.polars.scan(client, "mixed")
        node.kill()
        with pytest.raises((bowstring.Unavailable, pl.exceptions.ComputeError), match="Connection refused"):
            scan.collect()


# --- DuckDB ----------------------------------------------------------------------------------------------------------


def test_duckdb(served: Served) -> None:
    metadata = served.dataset.columns(["position", "word", "label", "day"])
    with duckdb.connect() as database:
        found = database.from_arrow(metadata.reader()).aggregate("word, count(*) as n", "word").order("word nulls last")
        expected = served.frame.group_by("word").agg(pl.len().alias("n")).sort("word", nulls_last=True)
        assert found.fetchall() == expected.rows()
        # A dataset is an Arrow stream, too: the query names the variable.
        rows = database.sql("select max(label), min(day), count(*) from metadata where label < 50").fetchall()
        low = served.frame.filter(pl.col("label") < 50)
        assert rows == [(low["label"].max(), low["day"].min(), low.height)]
        blobs = served.dataset.where("label == 7").columns(["key", "image"])  # noqa: F841 - the query names it
        size = [(BLOB * served.frame.filter(pl.col("label") == 7).height,)]
        assert database.sql("select sum(octet_length(image)) from blobs").fetchall() == size
