"""Parquet, by pandas, Polars, DuckDB, pyarrow, datasets, and in Spark's layout."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import Any

import datasets
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq

from .kind import Kind, Made, kind
from .pictures import encoded

KINDS: list[Kind] = []
COUNT = 6
NUMBERS = list(range(COUNT))


def table(**columns: Any) -> pa.Table:
    """Columns with the number of the row and a picture before them."""
    images = pa.array([encoded(i) for i in NUMBERS], pa.binary())
    return pa.table({"n": pa.array(NUMBERS), "image": images, **columns})


def read(path: Path) -> list[dict[str, Any]]:
    """The rows that pyarrow reads from a file or from all files of a folder."""
    found = pa.dataset.dataset(path, format="parquet").to_table() if path.is_dir() else pq.ParquetFile(path).read()
    return rows(found)


def rows(found: pa.Table) -> list[dict[str, Any]]:
    return list(found.to_pylist(maps_as_pydicts="strict"))


def written(folder: Path, made: pa.Table, **options: Any) -> Made:
    """A file by pyarrow."""
    pq.write_table(made, folder / "t.parquet", **options)
    return Made(folder / "t.parquet", read(folder / "t.parquet"))


@kind(KINDS)
def parquet_pandas(folder: Path) -> Made:
    table(price=pa.array([0.5] * COUNT)).to_pandas().to_parquet(folder / "t.parquet")
    return Made(folder / "t.parquet", pd.read_parquet(folder / "t.parquet").to_dict("records"))


@kind(KINDS)
def parquet_pandas_category(folder: Path) -> Made:
    frame = table().to_pandas()
    frame["kind"] = pd.Categorical(["cat", "dog", "cat", "bird", None, "dog"])
    frame["grade"] = pd.Categorical([3, 1, 2, 3, 1, 2], ordered=True)
    frame.to_parquet(folder / "t.parquet")
    return Made(folder / "t.parquet", read(folder / "t.parquet"))


@kind(KINDS)
def parquet_pandas_times(folder: Path) -> Made:
    frame = table().to_pandas()
    frame["at"] = pd.date_range("2026-01-01", periods=COUNT, freq="37min", tz="Europe/Berlin")
    frame["took"] = pd.to_timedelta(NUMBERS, unit="s")
    frame.to_parquet(folder / "t.parquet")
    return Made(folder / "t.parquet", read(folder / "t.parquet"))


@kind(KINDS)
def parquet_polars(folder: Path) -> Made:
    frame = pl.from_arrow(table(name=["a", None, "", "d", "long " * 30, "f"]))
    assert isinstance(frame, pl.DataFrame)
    frame = frame.with_columns(
        pl.Series("kind", ["x", "y", "x", None, "y", "x"], dtype=pl.Categorical),
        pl.Series("level", ["low", "high", "low", "low", "high", None], dtype=pl.Enum(["low", "high"])),
        pl.Series("pair", [[1, 2]] * COUNT, dtype=pl.Array(pl.Int16, 2)),
    )
    frame.write_parquet(folder / "t.parquet")
    return Made(folder / "t.parquet", pl.read_parquet(folder / "t.parquet").to_dicts())


@kind(KINDS)
def parquet_polars_lz4(folder: Path) -> Made:
    frame = pl.from_arrow(table(name=["word " * i for i in NUMBERS]))
    assert isinstance(frame, pl.DataFrame)
    frame.write_parquet(folder / "t.parquet", compression="lz4")
    return Made(folder / "t.parquet", pl.read_parquet(folder / "t.parquet").to_dicts())


@kind(KINDS)
def parquet_duckdb(folder: Path) -> Made:
    frame = table(word=["a", "b", "a", "b", "a", "b"]).to_pandas()
    with duckdb.connect() as db:
        db.register("frame", frame)
        db.execute(
            "COPY (SELECT *, DATE '2026-01-02' AS day, TIME '01:02:03' AS hour, "
            "170141183460469231731::HUGEINT AS huge, 12.50::DECIMAL(9,2) AS price, [1, 2] AS list, "
            "{'a': 1, 'b': 'x'} AS pair, 7::UTINYINT AS tiny "
            f"FROM frame) TO '{folder / 't.parquet'}' (FORMAT parquet)"
        )
        names = [c[0] for c in db.execute(f"SELECT * FROM '{folder / 't.parquet'}'").description]
        found = [dict(zip(names, row, strict=True)) for row in db.fetchall()]
    return Made(folder / "t.parquet", found)


def compressed(codec: str) -> None:
    @kind(KINDS, f"parquet_{codec}")
    def make(folder: Path) -> Made:
        return written(folder, table(text=["word " * 50] * COUNT), compression=codec)


for each in ("none", "gzip", "brotli", "zstd", "snappy", "lz4"):
    compressed(each)


def encoding(name: str, columns: dict[str, str]) -> None:
    @kind(KINDS, f"parquet_{name}")
    def make(folder: Path) -> Made:
        made = table(
            whole=pa.array([2**40 + i * 7 for i in NUMBERS]),
            small=pa.array(NUMBERS, pa.int32()),
            real=pa.array([i / 3 for i in NUMBERS]),
            half=pa.array([i / 3 for i in NUMBERS], pa.float32()),
            word=pa.array([f"prefix-{i}" for i in NUMBERS]),
        )
        return written(folder, made, use_dictionary=False, column_encoding=columns)


encoding("byte_stream_split", dict.fromkeys(("whole", "small", "real", "half"), "BYTE_STREAM_SPLIT"))
encoding("delta_binary_packed", dict.fromkeys(("whole", "small"), "DELTA_BINARY_PACKED"))
encoding("delta_length", {"word": "DELTA_LENGTH_BYTE_ARRAY"})
encoding("delta_byte_array", {"word": "DELTA_BYTE_ARRAY"})


@kind(KINDS)
def parquet_second_data_page(folder: Path) -> Made:
    made = table(word=["a", None, "b", "a", None, "b"], flag=[True, False, None, True, True, False])
    return written(folder, made, data_page_version="2.0", write_page_checksum=True, compression="zstd")


@kind(KINDS)
def parquet_int96(folder: Path) -> Made:
    at = [datetime.datetime(2026, 1, 2, 3, 4, 5, 678901) + datetime.timedelta(days=i) for i in NUMBERS]
    return written(folder, table(at=pa.array(at, pa.timestamp("us"))), use_deprecated_int96_timestamps=True)


@kind(KINDS)
def parquet_int96_far_away(folder: Path) -> Made:
    at = [datetime.datetime(1 + 1000 * i, 1, 2, 3, 4, 5, 678901) for i in NUMBERS]
    made = written(folder, table(at=pa.array(at, pa.timestamp("us"))), use_deprecated_int96_timestamps=True)
    made.rows = rows(pq.read_table(folder / "t.parquet", coerce_int96_timestamp_unit="us"))
    return made


@kind(KINDS)
def parquet_times(folder: Path) -> Made:
    at = [datetime.datetime(2026, 1, 2, 3, 4, 5) + datetime.timedelta(days=i) for i in NUMBERS]
    columns = {f"at_{u}": pa.array(at, pa.timestamp("us")).cast(pa.timestamp(u), safe=False) for u in ("ms", "us")}
    columns["utc"] = pa.array(at, pa.timestamp("us", "UTC"))
    columns["offset"] = pa.array(at, pa.timestamp("us", "+02:00"))
    columns["day"] = pa.array([a.date() for a in at])
    columns["hour"] = pa.array([a.time() for a in at], pa.time64("us"))
    columns["old"] = pa.array([datetime.datetime(1066, 10, 14)] * COUNT, pa.timestamp("ms"))
    return written(folder, table(**columns))


@kind(KINDS)
def parquet_null_column(folder: Path) -> Made:
    made = written(folder, table(nothing=pa.nulls(COUNT), word=["a"] * COUNT))
    made.rows = [{k: v for k, v in row.items() if k != "nothing"} for row in made.rows]
    return made


@kind(KINDS)
def parquet_list_of_null(folder: Path) -> Made:
    return written(folder, table(tags=pa.array([[None], [], None, [None, None], [], []], pa.list_(pa.null()))))


@kind(KINDS)
def parquet_map(folder: Path) -> Made:
    kinds = pa.map_(pa.string(), pa.int64())
    made = written(folder, table(counts=pa.array([[("a", i), ("b", None)] for i in NUMBERS], kinds)))
    for row in made.rows:  # a map is stored as a list of its entries
        row["counts"] = [{"key": key, "value": value} for key, value in row["counts"].items()]
    return made


@kind(KINDS)
def parquet_decimals(folder: Path) -> Made:
    price = [decimal.Decimal(i).scaleb(-2) for i in NUMBERS]
    return written(
        folder,
        table(
            small=pa.array(price, pa.decimal128(9, 2)),
            large=pa.array(price, pa.decimal128(38, 2)),
            huge=pa.array(price, pa.decimal256(60, 2)),
        ),
    )


@kind(KINDS)
def parquet_large_nested(folder: Path) -> Made:
    box = pa.struct({"name": pa.large_string(), "at": pa.large_list(pa.float32())})
    values = [{"name": f"b{i}", "at": [i / 2, None]} for i in NUMBERS]
    return written(
        folder,
        table(
            boxes=pa.array([[v] * i for i, v in enumerate(values)], pa.large_list(box)),
            text=pa.array(["a"] * COUNT, pa.large_string()),
            pair=pa.array([[1, 2]] * COUNT, pa.list_(pa.int8(), 2)),
        ),
    )


@kind(KINDS)
def parquet_unsigned(folder: Path) -> Made:
    return written(
        folder,
        table(
            hash=pa.array([2**64 - 1 - i for i in NUMBERS], pa.uint64()),
            small=pa.array(NUMBERS, pa.uint8()),
            half=pa.array(np.arange(COUNT, dtype=np.float16) / 3),
        ),
    )


@kind(KINDS)
def parquet_several_pictures_a_row(folder: Path) -> Made:
    image = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    pictures = pa.array(
        [[{"bytes": encoded(j), "path": f"{j}.png"} for j in range(2)] for _ in NUMBERS], pa.list_(image)
    )
    pq.write_table(pa.table({"n": pa.array(NUMBERS), "images": pictures}), folder / "t.parquet")
    found = [
        {"n": r["n"], **{f"images_{j}": i["bytes"] for j, i in enumerate(r["images"])}}
        for r in read(folder / "t.parquet")
    ]
    return Made(folder / "t.parquet", found, args=["--spread", "images=2"])


def shards(name: str, first: dict[str, Any], second: dict[str, Any]) -> None:
    """Two files that differ harmlessly."""

    @kind(KINDS, f"parquet_shards_{name}")
    def make(folder: Path) -> Made:
        there = folder / "shards"
        there.mkdir()
        expected: list[dict[str, Any]] = []
        for number, more in enumerate((first, second)):
            columns = {"n": pa.array([i + number * COUNT for i in NUMBERS]), "image": table()["image"], **more}
            if name == "in_another_order" and number:
                columns = dict(reversed(columns.items()))
            pq.write_table(pa.table(columns), there / f"train-{number:05d}-of-00002.parquet")
            expected += rows(pa.table(columns))
        return Made(there, expected)


WORDS = ["a", "b", "a", "b", "a", "b"]
shards("null_and_text", {"word": pa.nulls(COUNT)}, {"word": pa.array(WORDS)})
shards("int32_and_int64", {"count": pa.array(NUMBERS, pa.int32())}, {"count": pa.array([2**40] * COUNT)})
shards("float_and_double", {"x": pa.array([0.1] * COUNT, pa.float32())}, {"x": pa.array([0.1] * COUNT)})
shards("in_another_order", {"word": pa.array(WORDS)}, {"word": pa.array(WORDS)})
shards("dictionary_and_plain", {"word": pa.array(WORDS).dictionary_encode()}, {"word": pa.array(WORDS)})
shards("large_and_not", {"word": pa.array(WORDS, pa.large_string())}, {"word": pa.array(WORDS)})


@kind(KINDS)
def parquet_spark(folder: Path) -> Made:
    """As Spark writes: a folder with parts, a mark and checksums; times as INT96; text as optional."""
    there = folder / "photos.parquet"
    there.mkdir()
    at = pa.array([datetime.datetime(2026, 1, 2, 3, 4, 5)] * COUNT, pa.timestamp("us"))
    for part in range(2):
        made = table(at=at).set_column(0, "n", pa.array([i + part * COUNT for i in NUMBERS]))
        name = f"part-{part:05d}-4f3cd0a5-1d8f-4f6c-9d3e-0c9c3a0b7a11-c000.snappy.parquet"
        pq.write_table(made, there / name, use_deprecated_int96_timestamps=True, compression="snappy")
        (there / f".{name}.crc").write_bytes(b"crc\0\0\0\2\0")
    (there / "_SUCCESS").touch()
    return Made(there, read(there))


@kind(KINDS)
def parquet_hugging_face(folder: Path) -> Made:
    features = datasets.Features(
        {
            "n": datasets.Value("int64"),
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["zebra", "ape"]),
            "boxes": datasets.Sequence({"x": datasets.Value("float32")}),
        }
    )
    values = {
        "n": NUMBERS,
        "image": [{"bytes": encoded(i), "path": f"{i}.png"} for i in NUMBERS],
        "label": [i % 2 for i in NUMBERS],
        "boxes": [{"x": [0.5] * i} for i in NUMBERS],
    }
    made = datasets.Dataset.from_dict(values, features=features)
    made.to_parquet(folder / "t.parquet")
    back = datasets.Dataset.from_parquet(str(folder / "t.parquet"), cache_dir=str(folder / "cache"))
    found = [{k: v for k, v in row.items() if k != "image"} for row in back]
    return Made(folder / "t.parquet", found)
