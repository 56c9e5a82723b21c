"""Parquet files of each kind that libraries write: codecs, encodings, versions of pages, types, layouts."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 200
D = decimal.Decimal
# Writes the files of a kind into its folder. Returns the rows, if they are not those that pyarrow reads.
Kind = Callable[[Path], "pa.Table | None"]


def plain() -> pa.Table:
    """Some rows of flat types, with nulls."""
    return pa.table(
        {
            "i": pa.array([None if k % 7 == 0 else k * 1000003 - 5 for k in range(ROWS)], pa.int64()),
            "f": pa.array([k / 3 if k % 5 else None for k in range(ROWS)], pa.float64()),
            "f4": pa.array([k / 3 if k % 5 else None for k in range(ROWS)], pa.float32()),
            "i4": pa.array(range(ROWS), pa.int32()),
            "s": pa.array([f"word{k % 13}" * (k % 3) if k % 11 else None for k in range(ROWS)]),
            "b": pa.array([k % 2 == 0 for k in range(ROWS)]),
            "fixed": pa.array([k.to_bytes(5, "big") for k in range(ROWS)], pa.binary(5)),
            "l": pa.array([None if k % 9 == 0 else list(range(k % 4)) for k in range(ROWS)], pa.list_(pa.int16())),
        }
    )


def written(**options: Any) -> Kind:
    def write(root: Path) -> None:
        pq.write_table(plain(), root / "x.parquet", **options)

    return write


def column(values: Any, kind: pa.DataType | None = None, **options: Any) -> Kind:
    def write(root: Path) -> None:
        array = values if isinstance(values, pa.Array) else pa.array(values, kind)
        pq.write_table(pa.table({"x": array, "k": pa.array(range(len(array)))}), root / "x.parquet", **options)

    return write


def shards(*tables: pa.Table, want: pa.Table | None = None) -> Kind:
    def write(root: Path) -> pa.Table | None:
        for i, table in enumerate(tables):
            pq.write_table(table, root / f"part-{i}.parquet")
        return want

    return write


def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "c": pd.Categorical(["a", "b", None]),
            "o": pd.Categorical(["lo", "hi", "lo"], categories=["lo", "hi"], ordered=True),
            "n": pd.Categorical([3, 1, 3]),
            "t": pd.to_datetime(["2020-01-01", None, "2021-05-05"]),
            "z": pd.to_datetime(["2020-01-01", None, "2021-05-05"]).tz_localize("Europe/Berlin"),
            "td": pd.to_timedelta([1, 2, None], unit="s"),
            "I": pd.array([1, None, 3], dtype="Int64"),
            "B": pd.array([True, None, False], dtype="boolean"),
            "p": pd.period_range("2020-01", periods=3, freq="M"),
            "v": pd.interval_range(0, 3),
            "s": ["a", None, "c"],
            "l": [np.array([1.5, 2.5]), None, np.array([], dtype=float)],
        }
    )


def pandas(**options: Any) -> Kind:
    return lambda root: frame().to_parquet(root / "x.parquet", **options)


def polars_frame() -> pl.DataFrame:
    return pl.DataFrame(
        {
            "c": pl.Series(["a", "b", None], dtype=pl.Categorical),
            "e": pl.Series(["a", "b", None], dtype=pl.Enum(["a", "b"])),
            "l": [["x"], None, []],
            "a": pl.Series([[1, 2], [3, 4], None], dtype=pl.Array(pl.Int32, 2)),
            "d": pl.Series(["1.23", None, "4.5"]).cast(pl.Decimal(10, 2)),
            "t": [dt.datetime(2020, 1, 1), None, dt.datetime(2021, 1, 1)],
            "du": [dt.timedelta(1), None, dt.timedelta(2)],
            "ti": [dt.time(1, 2, 3), None, dt.time(4)],
            "s": [{"a": 1, "b": "x"}, None, {"a": 2, "b": None}],
            "n": [None, None, None],
            "u": pl.Series([1, None, 2**64 - 1], dtype=pl.UInt64),
            "i1": pl.Series([1, None, -128], dtype=pl.Int8),
        }
    )


def polars(**options: Any) -> Kind:
    return lambda root: polars_frame().write_parquet(root / "x.parquet", **options)


DUCK = """select * from (values (1::hugeint, 'a'::enum('a', 'b'), [1, 2], {'a': 1, 'b': 'x'}, map{'k': 1},
    1.5::decimal(38, 3), time '01:02:03', timestamptz '2020-01-01', interval 3 day, uuid(), '{"a": 1}'::json,
    date '2020-01-01', x'aa'::blob, timestamp_ns '2020-01-01 00:00:00.123456789', 7::utinyint, null))
    t(h, e, l, s, m, d, ti, tz, iv, u, j, da, bl, tn, ut, nu)"""


def duck(options: str) -> Kind:
    def write(root: Path) -> None:
        with duckdb.connect() as db:
            db.execute(f"copy ({DUCK}) to '{root}/x.parquet' (format parquet, {options})")

    return write


def duck_parts(root: Path) -> pa.Table:
    with duckdb.connect() as db:
        rows = db.sql("select range as n, range % 2 as half, 'w' || range % 3 as word from range(20)")
        rows.to_parquet(str(root), partition_by=["half", "word"], overwrite=True)
    table = pq.read_table(root)
    return table.set_column(table.schema.get_field_index("half"), "half", table["half"].cast(pa.int64()))


def spark(root: Path) -> pa.Table:
    """A folder as Spark leaves it: parts of which one has no rows, timestamps as INT96, a checksum, a marker."""
    when = [dt.datetime(1900, 1, 1), None, dt.datetime(2020, 1, 2, 3, 4, 5, 678901)]
    rows = pa.table({"n": pa.array([1, 2, 3], pa.int32()), "when": pa.array(when, pa.timestamp("us"))})
    options: dict[str, Any] = {"use_deprecated_int96_timestamps": True, "compression": "snappy", "store_schema": False}
    for i, part in enumerate([rows.slice(0, 2), rows.slice(0, 0), rows.slice(2)]):
        name = f"part-{i:05d}-6f1c2a9e-0d5c-4c2b-9c53-3f2d7e6f5a10-c000.snappy.parquet"
        pq.write_table(part, root / name, use_compliant_nested_type=False, **options)
        (root / f".{name}.crc").write_bytes(b"crc\0")
    (root / "_SUCCESS").write_bytes(b"")
    (root / "_temporary").mkdir()
    (root / "_temporary" / "part-9.parquet").write_bytes(b"half of")
    pq.write_metadata(rows.schema, root / "_metadata")
    return rows.cast(pa.schema([("n", pa.int32()), ("when", pa.timestamp("ns"))]))


def far(root: Path) -> pa.Table:
    """Timestamps beyond nanoseconds: pyarrow reads other times than were written."""
    when = [dt.datetime(1, 1, 1), None, dt.datetime(2020, 1, 2, 3, 4, 5, 678901), dt.datetime.max]
    table = pa.table({"x": pa.array(when, pa.timestamp("us")), "l": pa.array([when, [], None, when[:1]])})
    pq.write_table(table, root / "x.parquet", use_deprecated_int96_timestamps=True)
    return table


def near(root: Path) -> None:
    table = pa.table({"x": pa.array([1, None, -(2**63), 2**63 - 1], pa.timestamp("ns"))})
    pq.write_table(table, root / "x.parquet", use_deprecated_int96_timestamps=True)


def hive(root: Path) -> pa.Table:
    rows: list[dict[str, Any]] = []
    for year, word in ((2023, "a b"), (2024, "c"), (2024, None)):
        folder = root / f"year={year}" / f"word={'__HIVE_DEFAULT_PARTITION__' if word is None else word}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"n": [len(rows)]}), folder / "part-0.parquet")
        rows.append({"n": len(rows), "year": year, "word": word})
    # In the order of the names of the folders.
    return pa.Table.from_pylist([rows[0], rows[2], rows[1]])


def images(root: Path) -> None:
    row = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    values = [{"bytes": b"one", "path": "a"}, {"bytes": b"", "path": None}, None]
    pq.write_table(pa.table({"x": pa.array(values, row), "file_name": ["a", None, None]}), root / "x.parquet")


KINDS: dict[str, Kind] = {
    **{
        f"codec {c}": written(compression=c, data_page_version=v)
        for c, v in zip(["none", "snappy", "gzip", "brotli", "zstd", "lz4"], ["1.0", "2.0"] * 3, strict=True)
    },
    "pages v1": written(data_page_version="1.0", compression="lz4"),
    "pages v2": written(data_page_version="2.0", compression="none"),
    "format 1.0": written(version="1.0"),
    "format 2.4": written(version="2.4"),
    "checksums": written(write_page_checksum=True),
    "page index": written(write_page_index=True),
    "no dictionaries": written(use_dictionary=False),
    "small pages": written(data_page_size=64, use_dictionary=False),
    "large dictionaries": written(dictionary_pagesize_limit=16),
    "row groups": written(row_group_size=17),
    "no Arrow schema": written(store_schema=False),
    "older names of lists": written(use_compliant_nested_type=False),
    "split floats": written(use_dictionary=False, use_byte_stream_split=["f", "f4"]),
    "split floats, v2": written(use_dictionary=False, use_byte_stream_split=["f", "f4"], data_page_version="2.0"),
    "split integers": written(
        use_dictionary=False, column_encoding=dict.fromkeys(("i", "i4", "fixed", "l.list.element"), "BYTE_STREAM_SPLIT")
    ),
    "delta integers": written(
        use_dictionary=False, column_encoding={"i": "DELTA_BINARY_PACKED", "i4": "DELTA_BINARY_PACKED"}
    ),
    "delta lengths": written(use_dictionary=False, column_encoding={"s": "DELTA_LENGTH_BYTE_ARRAY"}),
    "delta strings": written(
        use_dictionary=False, column_encoding={"s": "DELTA_BYTE_ARRAY", "fixed": "DELTA_BYTE_ARRAY"}
    ),
    "run-length bools": written(use_dictionary=False, column_encoding={"b": "RLE"}),
    "run-length bools, v2": written(use_dictionary=False, column_encoding={"b": "RLE"}, data_page_version="2.0"),
    "int8": column([1, None, -128], pa.int8()),
    "int16": column([1, None, -32768], pa.int16()),
    "uint8": column([1, None, 255], pa.uint8()),
    "uint16": column([1, None, 65535], pa.uint16()),
    "uint32": column([1, None, 2**32 - 1], pa.uint32()),
    "uint64": column([1, None, 2**64 - 1], pa.uint64()),
    "float16": column(np.array([1.5, 2, -3], np.float16)),
    "nan": column([float("inf"), -0.0, float("nan"), None], pa.float64()),
    "date32": column([dt.date(1, 1, 1), None, dt.date.max], pa.date32()),
    "date64": column([dt.date(1, 1, 1), None, dt.date.max], pa.date64()),
    "time32 s": column([1, None, 86399], pa.time32("s")),
    "time32 ms": column([1, None, 86399999], pa.time32("ms")),
    "time64 us": column([1, None, 3], pa.time64("us")),
    "time64 ns": column([1, None, 3], pa.time64("ns")),
    "timestamp s": column([1, None, 2**40], pa.timestamp("s")),
    "timestamp ms": column([1, None, 2**50], pa.timestamp("ms", "UTC")),
    "timestamp us": column([1, None, 2**62], pa.timestamp("us", "+02:00")),
    "timestamp ns": column([1, None, -(2**62)], pa.timestamp("ns", "Europe/Berlin")),
    "duration s": column([1, None, 2**40], pa.duration("s")),
    "duration ns": column([1, None, -(2**62)], pa.duration("ns")),
    "INT96": near,
    "INT96, far": far,
    "decimal128": column([D("1.23"), None, D("-" + "9" * 36 + ".99")], pa.decimal128(38, 2)),
    "decimal of 5 digits": column([D("1.23"), None, D("-9.99")], pa.decimal128(5, 2)),
    "decimal as integer": column([D("1.23"), None, D("-9.99")], pa.decimal128(15, 2), store_decimal_as_integer=True),
    "decimal256": column([D("1.23"), None, D("-" + "9" * 60 + ".99")], pa.decimal256(76, 2)),
    "null": column(pa.nulls(3)),
    "list of null": column([[None], None, []], pa.list_(pa.null())),
    "map": column([[("a", 1), ("b", None)], None, []], pa.map_(pa.string(), pa.int32())),
    "large_string": column(["a", None, "b"], pa.large_string()),
    "string_view": column(["a", None, "b"], pa.string_view()),
    "binary": column([b"abcd", None, b""], pa.binary()),
    "large_binary": column([b"abcd", None, b""], pa.large_binary()),
    "binary_view": column([b"a", None, b"b"], pa.binary_view()),
    "fixed_size_binary": column([b"abcd", None, b"efgh"], pa.binary(4)),
    "large_list": column([["a"], None, ["b", None]], pa.large_list(pa.large_string())),
    "list_view": column([["a"], None, ["b", "c"]], pa.list_view(pa.string())),
    "fixed_size_list": column([[1, 2], [5, 6], [3, None]], pa.list_(pa.int32(), 2)),
    "fixed_size_list with null": column([[1, 2], None, [3, 4], None], pa.list_(pa.int32(), 2)),
    "fixed_size_lists in a list": column([[[1, 2], None], None, [], [[3, 4]]], pa.list_(pa.list_(pa.int32(), 2))),
    "struct": column(
        [{"a": 1, "b": "x"}, None, {"a": None, "b": None}], pa.struct([("a", pa.int32()), ("b", pa.large_string())])
    ),
    "list of struct": column(
        [[{"a": 1, "b": "x"}], None, [{"a": None, "b": None}, None]],
        pa.list_(pa.struct([("a", pa.int32()), ("b", pa.large_string())])),
    ),
    "struct of lists": column(
        [{"a": [1], "b": ["x"]}, None, {"a": None, "b": []}],
        pa.struct([("a", pa.list_(pa.int32())), ("b", pa.large_list(pa.large_string()))]),
    ),
    "list of lists": column([[[1, None], None, []], None, []], pa.list_(pa.list_(pa.int32()))),
    "map of lists": column([[("a", [1, 2]), ("b", None)], None], pa.map_(pa.string(), pa.large_list(pa.int8()))),
    "dictionary": column(pa.array(["a", None, "b"]).dictionary_encode()),
    "dictionary of integers": column(pa.array([5, None, 7]).dictionary_encode()),
    "ordered dictionary": column(
        pa.DictionaryArray.from_arrays(pa.array([0, None, 1], pa.int8()), ["lo", "hi"], ordered=True)
    ),
    "list of dictionary": column(pa.ListArray.from_arrays([0, 1, 3, 3], pa.array(["a", "b", "a"]).dictionary_encode())),
    "uuid": column([uuid.UUID(int=5).bytes, None, uuid.UUID(int=7).bytes], pa.uuid()),
    "json": column(['{"a": 1}', None, "2"], pa.json_()),
    "Hugging Face images": images,
    "no rows": shards(plain().slice(0, 0), plain(), want=plain()),
    "pandas": pandas(),
    "pandas, brotli": pandas(compression="brotli", index=True),
    "pandas, as decimals": pandas(coerce_timestamps="ms", allow_truncated_timestamps=True),
    **{f"polars, {c}": polars(compression=c) for c in ("uncompressed", "snappy", "gzip", "brotli", "lz4", "zstd")},
    "polars, small pages": polars(data_page_size=16, row_group_size=2, statistics="full"),
    **{f"duckdb, {c}": duck(f"codec '{c}'") for c in ("uncompressed", "snappy", "gzip", "zstd", "brotli", "lz4_raw")},
    "duckdb, v2": duck("parquet_version v2"),
    "duckdb, parts": duck_parts,
    "spark": spark,
    "parts by folders": hive,
    "shards, wider integers": shards(
        pa.table({"x": pa.array([1, None], pa.int32()), "y": pa.array([1, 2], pa.uint8())}),
        pa.table({"x": pa.array([2**40], pa.int64()), "y": pa.array([-1], pa.int8())}),
        want=pa.table({"x": pa.array([1, None, 2**40]), "y": pa.array([1, 2, -1], pa.int16())}),
    ),
    "shards, wider floats": shards(
        pa.table({"x": pa.array([0.1, None], pa.float32())}),
        pa.table({"x": pa.array([0.1], pa.float64())}),
        want=pa.table({"x": pa.array([float(np.float32(0.1)), None, 0.1])}),
    ),
    "shards, nothing in one": shards(
        pa.table({"x": pa.nulls(2), "l": pa.array([[None], []], pa.list_(pa.null()))}),
        pa.table({"x": ["a"], "l": pa.array([[7]], pa.list_(pa.int64()))}),
        want=pa.table({"x": [None, None, "a"], "l": [[None], [], [7]]}),
    ),
    "shards, other order": shards(
        pa.table({"x": [1], "y": ["a"]}),
        pa.table({"y": ["b"], "x": [2]}),
        want=pa.table({"x": [1, 2], "y": ["a", "b"]}),
    ),
    "shards, dictionary or plain": shards(
        pa.table({"x": pa.array(["a", "b", None]).dictionary_encode()}),
        pa.table({"x": pa.array(["c"], pa.large_string())}),
        pa.table({"x": pa.array(["d"], pa.string_view())}),
        want=pa.table({"x": ["a", "b", None, "c", "d"]}),
    ),
    "shards, nullable or not": shards(
        pa.table([pa.array([1])], pa.schema([pa.field("x", pa.int64(), nullable=False)])),
        pa.table({"x": pa.array([None, 2])}),
        want=pa.table({"x": [1, None, 2]}),
    ),
    "shards, units of time": shards(
        pa.table({"x": pa.array([1], pa.timestamp("ms")), "d": pa.array([1], pa.duration("s"))}),
        pa.table({"x": pa.array([1], pa.timestamp("us")), "d": pa.array([1], pa.duration("ns"))}),
        want=pa.table({"x": pa.array([1000, 1], pa.timestamp("us")), "d": pa.array([10**9, 1], pa.duration("ns"))}),
    ),
    "shards, decimals": shards(
        pa.table({"x": pa.array([D("1.23")], pa.decimal128(5, 2))}),
        pa.table({"x": pa.array([D("123456.789")], pa.decimal128(9, 3))}),
        want=pa.table({"x": pa.array([D("1.230"), D("123456.789")], pa.decimal128(9, 3))}),
    ),
    "shards, structs": shards(
        pa.table({"x": [{"a": 1, "b": None}]}),
        pa.table({"x": [{"b": "t", "a": 2}]}),
        want=pa.table({"x": [{"a": 1, "b": None}, {"a": 2, "b": "t"}]}),
    ),
    "shards, lists of fixed size": shards(
        pa.table({"x": pa.array([[1, 2], None], pa.list_(pa.int32(), 2))}),
        pa.table({"x": pa.array([[3]], pa.list_(pa.int64()))}),
        want=pa.table({"x": [[1, 2], None, [3]]}),
    ),
}
