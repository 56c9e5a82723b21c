"""Datasets as lazy frames: what comes out is what Polars says, and no more is read than is needed for it."""

from __future__ import annotations

import datetime as dt
import decimal
import io
import logging
import math
import os
import pickle
import random
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import bowstring
import bowstring.polars
import duckdb
import polars as pl
import pyarrow as pa
import pytest
from bowstring import _where
from bowstring.polars import conjuncts, translate
from node import Node
from PIL import Image
from polars.testing import assert_frame_equal

ROWS, BLOB = 3_000, 4_000
UTC = dt.timezone.utc
WORDS = [
    "",
    "a",
    "cat",
    "caterpillar",
    "dog",
    "über",
    'quo"te',
    "back\\slash",
    "new\nline",
    "tab\t",
    "𝄞 clef",
    "%",
    "nil",
]


def mixed(rows: int = ROWS, seed: int = 1) -> pa.Table:
    """Metadata of many types, with nulls, NaN, infinities and what lies at the ends of a type; and two blobs."""
    rng = random.Random(seed)

    def some(make: Callable[[], Any], dtype: pa.DataType) -> pa.Array:
        return pa.array([None if rng.random() < 0.15 else make() for _ in range(rows)], dtype)

    edges = [-(2**63), -(2**53) - 1, 0, 1, 2**53 + 1, 2**63 - 1]
    floats = [math.nan, math.inf, -math.inf, 0.0, -0.0, 0.1, 0.5, 1e300]
    halves = [math.nan, math.inf, -0.0, 0.1, 0.5, 2.0]
    start = dt.datetime(2024, 1, 1)
    struct = pa.struct({"width": pa.int32(), "name": pa.utf8()})
    return pa.table(
        {
            "key": pa.array([f"row-{i}" for i in range(rows)]),
            "small": some(lambda: rng.randrange(-128, 128), pa.int8()),
            "label": some(lambda: rng.randrange(100), pa.int64()),
            "big": some(lambda: rng.choice(edges), pa.int64()),
            "huge": some(lambda: rng.choice([0, 7, 2**63 - 1, 2**63, 2**64 - 1]), pa.uint64()),
            "single": some(lambda: rng.choice(halves), pa.float32()),
            "score": some(lambda: rng.choice([*floats, rng.uniform(-2, 2)]), pa.float64()),
            "word": some(lambda: rng.choice(WORDS), pa.utf8()),
            "other": some(lambda: rng.choice(WORDS), pa.large_utf8()),
            "flag": some(lambda: rng.random() < 0.5, pa.bool_()),
            "day": some(lambda: start.date() + dt.timedelta(rng.randrange(-9, 10)), pa.date32()),
            "taken": some(lambda: start + dt.timedelta(seconds=rng.randrange(-9, 10) / 2), pa.timestamp("us")),
            "seen": some(lambda: start.replace(tzinfo=UTC) + dt.timedelta(rng.randrange(5)), pa.timestamp("ns", "UTC")),
            "tags": some(lambda: [rng.choice(WORDS) for _ in range(rng.randrange(4))], pa.list_(pa.utf8())),
            "codes": some(lambda: [rng.choice([None, 1, 2, 3]) for _ in range(rng.randrange(4))], pa.list_(pa.int64())),
            "box": some(lambda: {"width": rng.randrange(9), "name": rng.choice(WORDS)}, struct),
            "price": some(lambda: decimal.Decimal(rng.randrange(-99, 99)) / 10, pa.decimal128(9, 2)),
            "and": some(lambda: rng.randrange(4), pa.int16()),  # a name that is a word of the server's language
            "a b": some(lambda: rng.randrange(4), pa.uint8()),
            "image": pa.array([rng.randbytes(BLOB) for _ in range(rows)], pa.large_binary()),
            "mask": pa.array([rng.randbytes(rng.randrange(9)) for _ in range(rows)], pa.large_binary()),
        }
    )


class Served(NamedTuple):
    """A server, the dataset there, and all of it in memory."""

    node: Node
    dataset: bowstring.Dataset
    frame: pl.DataFrame


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, binary: Path) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("polars")
    with Node(binary, root / "store", log=root / "log") as node, bowstring.connect(node.url) as client:
        client.ingest("mixed", mixed(), key="key", progress=False)
        dataset = client.dataset("mixed").columns([*mixed(1).column_names, "position"])
        yield Served(node, dataset, bowstring.polars.scan(dataset).collect())


@pytest.fixture
def scan(served: Served) -> pl.LazyFrame:
    return bowstring.polars.scan(served.dataset)


class Sent(NamedTuple):
    """What a server sent."""

    rows: int
    bytes: int
    calls: int


@pytest.fixture
def sent(served: Served) -> Callable[[], Sent]:
    """What the server has sent since the last call."""

    def now() -> Sent:
        # A stream that was closed early is counted when the server has noticed.
        deadline = time.monotonic() + 30
        while (stats := served.dataset.client.stats())["streams"]:
            assert time.monotonic() < deadline, stats["streams"]
            time.sleep(0.01)
        server = stats["server"]
        return Sent(server["rows"], server["bytes"], server["calls"])

    before = now()

    def since() -> Sent:
        nonlocal before
        after = now()
        difference = Sent(*(a - b for a, b in zip(after, before, strict=True)))
        before = after
        return difference

    return since


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


# --- what the server is asked for ----------------------------------------------------------------------------------


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
    # What the server applies changes the number of rows, and with it the order; but never the set.
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
    assert sent().rows < ROWS  # which waits until no stream is left


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


def test_long_filters_stay_here(scan: pl.LazyFrame, sent: Callable[[], Sent]) -> None:
    keys = [f"row-{i}" for i in range(0, ROWS, 2)]
    found = scan.filter(pl.col("key").is_in(keys)).select("key", "mask").collect()
    assert found["key"].to_list() == keys
    assert sent().rows == ROWS + len(keys)


def test_a_filter_that_the_server_refuses(
    served: Served, scan: pl.LazyFrame, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = _where.exactly("word > 3", "word <= 3")
    monkeypatch.setattr(bowstring.polars, "translate", lambda *_: wrong)
    found = scan.filter(pl.col("label") > 90).select("key", "image").collect()
    assert_frame_equal(found, served.frame.filter(pl.col("label") > 90).select("key", "image"))
    assert "the server does not take the filter word > 3" in caplog.text


# --- filters as expressions ------------------------------------------------------------------------------------------

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
    (C("huge") == C("label"), None),
    (C("word") == C("other"), "word == other"),
    (C("and") == 3, '$env["and"] == 3'),
    (C("a b").is_null(), '$env["a b"] == nil'),
    (C("image").bin.size() > 10, '$env["image.size"] > 10'),
    (C("label") + 1 > 3, None),
    (C("word").str.contains("a.b"), None),
    (C("price") > decimal.Decimal("1.5"), None),
    (C("huge") > 2**63, None),
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
        numbers = [-300, -5, -1, 0, 1, 2, 3, 7, 50, 99, 2**31, 2**53, 2**53 + 1, -(2**63), 2**63 - 1, 2**63]
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
                pairs = ["word other", "label big", "label position", "day taken", "score single", "huge label"]
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


# --- DuckDB ----------------------------------------------------------------------------------------------------------


def test_duckdb(served: Served) -> None:
    metadata = served.dataset.columns(["position", "word", "label", "day"])
    with duckdb.connect() as database:
        found = database.from_arrow(metadata.reader()).aggregate("word, count(*) as n", "word").order("word nulls last")
        expected = served.frame.group_by("word").agg(pl.len().alias("n")).sort("word", nulls_last=True)
        assert found.fetchall() == expected.rows()
        # A dataset is an Arrow stream, too: the query names the variable.
        rows = database.sql("select max(label), min(day), count(*) from metadata where label < 50").fetchall()
        low = served.frame.filter(C("label") < 50)
        assert rows == [(low["label"].max(), low["day"].min(), low.height)]
        blobs = served.dataset.where("label == 7").columns(["key", "image"])  # noqa: F841 - the query names it
        size = [(BLOB * served.frame.filter(C("label") == 7).height,)]
        assert database.sql("select sum(octet_length(image)) from blobs").fetchall() == size
