"""Parquet of each kind that libraries write, imported, and compared cell by cell with what pyarrow reads."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import parquet_kinds
import polars as pl
import pyarrow as pa
import pyarrow.flight as fl
import pyarrow.parquet as pq
import pytest
from node import Node
from parquet_kinds import KINDS
from wire import put, read

Bowstring = Callable[..., subprocess.CompletedProcess[str]]


class Imported:
    """The outcome for each kind: the expected rows, and the client of a server that has them."""

    def __init__(self, client: fl.FlightClient) -> None:
        self.client = client
        self.names: dict[str, str] = {}
        self.want: dict[str, pa.Table] = {}
        self.failed: dict[str, str] = {}


@pytest.fixture(scope="module")
def kinds(bowstring: Bowstring, binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Imported]:
    store = tmp_path_factory.mktemp("kinds") / "store"
    names, wants, failed = {}, {}, {}
    for i, (kind, write) in enumerate(KINDS.items()):
        root = tmp_path_factory.mktemp("kind")
        want = write(root)
        wants[kind] = pq.read_table(root) if want is None else want
        names[kind] = f"k{i}"
        try:
            bowstring("import", root, names[kind], "--verify", "none", "--store", store)
        except AssertionError as error:
            failed[kind] = str(error)
    with Node(binary, store, log=store.parent / "server.log") as node, fl.connect(node.url) as client:
        result = Imported(client)
        result.names, result.want, result.failed = names, wants, failed
        yield result


def stored(kind: pa.DataType, top: bool = True) -> str:
    """The type of a dataset's column, in words: the names of elements and whether they may be null left out."""
    if pa.types.is_dictionary(kind):
        return stored(kind.value_type, top)
    if isinstance(kind, pa.BaseExtensionType):
        return stored(kind.storage_type, top)
    if pa.types.is_map(kind):
        return f"list<struct<key: {stored(kind.key_type, False)}, value: {stored(kind.item_type, False)}>>"
    if pa.types.is_fixed_size_list(kind):
        return f"list<{stored(kind.value_type, False)}>[{kind.list_size}]"
    if hasattr(kind, "value_type"):
        return f"list<{stored(kind.value_type, False)}>"
    if pa.types.is_struct(kind):
        if [f.name for f in kind] == ["bytes", "path"]:
            return "blob"
        return f"struct<{', '.join(f'{f.name}: {stored(f.type, False)}' for f in kind)}>"
    if str(kind) in ("string", "large_string", "string_view", "null"):
        return "text"
    if str(kind) in ("binary", "large_binary", "binary_view"):
        return "blob"
    return str(kind)


def cells(column: pa.ChunkedArray) -> list[Any]:
    """The cells of a column, in a form in which those that are equal compare so."""
    if pa.types.is_temporal(column.type):
        width = pa.int32() if column.type.bit_width == 32 else pa.int64()
        found: list[Any] = column.cast(width).to_pylist()
        return found
    return [value(v, column.type) for v in column.to_pylist()]


def value(v: Any, kind: pa.DataType) -> Any:
    if v is None:
        return None
    if pa.types.is_map(kind):
        return [{"key": k, "value": value(x, kind.item_type)} for k, x in v]
    if pa.types.is_struct(kind) and [f.name for f in kind] == ["bytes", "path"]:
        return v["bytes"]
    if hasattr(v, "bytes") and isinstance(kind, pa.BaseExtensionType):
        return v.bytes
    if isinstance(v, float):
        return "nan" if math.isnan(v) else (v, math.copysign(1, v))
    return v


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind(kinds: Imported, kind: str) -> None:
    assert kind not in kinds.failed, kinds.failed[kind]
    want = kinds.want[kind]
    got = read(kinds.client, dataset=kinds.names[kind])
    assert got.num_rows == want.num_rows
    for name in want.column_names:
        assert stored(got.schema.field(name).type) == stored(want.schema.field(name).type), name
        assert cells(got[name]) == cells(want[name]), name


def test_there_are_many_kinds() -> None:
    assert len(KINDS) >= 90


def refused(bowstring: Bowstring, root: Path, *options: str) -> str:
    return bowstring("import", root, "refused", "--dry-run", "--store", root / "no-store", *options, status=1).stderr


def test_what_is_refused_says_what_to_do(bowstring: Bowstring, tmp_path: Path) -> None:
    def file(name: str, table: pa.Table) -> Path:
        root = tmp_path / name
        root.mkdir()
        pq.write_table(table, root / "x.parquet")
        return root

    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    several = file("several", pa.table({"pics": pa.array([[{"bytes": b"a", "path": "p"}]], pa.list_(image))}))
    message = refused(bowstring, several)
    for word in ("pics", "--spread pics=N", "--as-metadata pics", "--leave-out pics"):
        assert word in message
    within = file("within", pa.table({"s": [{"a": b"x", "b": 1}]}))
    message = refused(bowstring, within)
    assert "--as-metadata s" in message
    assert "--spread" not in message
    wide = tmp_path / "wide"
    wide.mkdir()
    pl.DataFrame({"big": pl.Series([1], dtype=pl.Int128)}).write_parquet(wide / "x.parquet")
    assert "64 bits" in refused(bowstring, wide)
    lake = file("lake", parquet_kinds.plain())
    (lake / "_delta_log").mkdir()
    assert "Delta Lake" in refused(bowstring, lake)


def test_shards_that_differ_are_refused_by_name(bowstring: Bowstring, tmp_path: Path) -> None:
    first = pa.table({"x": [1], "y": ["a"]})
    for name, other, words in (
        ("text", pa.table({"x": ["1"], "y": ["a"]}), ["b.parquet", "column x", "utf8", "int64", "a.parquet"]),
        ("missing", pa.table({"x": [1]}), ["b.parquet", "y is missing", "a.parquet"]),
        ("more", pa.table({"x": [1], "y": ["a"], "z": [1]}), ["b.parquet", "z is one more"]),
        ("real", pa.table({"x": [0.5], "y": ["a"]}), ["column x", "float64", "int64"]),
    ):
        root = tmp_path / name
        root.mkdir()
        pq.write_table(first, root / "a.parquet")
        pq.write_table(other, root / "b.parquet")
        message = refused(bowstring, root)
        for word in words:
            assert word in message, message


def test_a_timestamp_that_a_wider_column_does_not_hold_is_bad(bowstring: Bowstring, tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([1, 2**61, 3], pa.timestamp("us"))}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": pa.array([1], pa.timestamp("ns"))}), tmp_path / "b.parquet")
    message = refused(bowstring, tmp_path)
    assert "a.parquet#1" in message
    assert "a.parquet#0" not in message


def test_several_images_a_row_become_columns(bowstring: Bowstring, binary: Path, tmp_path: Path) -> None:
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows = [[{"bytes": b"a", "path": "p"}, {"bytes": b"b", "path": "q"}], None, [], [{"bytes": b"c", "path": None}]]
    root, store = tmp_path / "in", tmp_path / "store"
    root.mkdir()
    pq.write_table(
        pa.table({"pics": pa.array(rows, pa.list_(image)), "raw": pa.array([[b"1"]] * 4, pa.list_(pa.binary()))}),
        root / "x.parquet",
    )
    bowstring("import", root, "several", "--spread", "pics=2", "--as-metadata", "raw", "--store", store)
    message = refused(bowstring, root, "--spread", "pics=1", "--leave-out", "raw")
    assert "x.parquet#0" in message
    assert "2 elements" in message
    with Node(binary, store, log=tmp_path / "server.log") as node, fl.connect(node.url) as client:
        got = read(client, dataset="several")
        assert got["pics_0"].to_pylist() == [b"a", None, None, b"c"]
        assert got["pics_1"].to_pylist() == [b"b", None, None, None]
        assert got["raw"].to_pylist() == [[b"1"]] * 4
        with pytest.raises(pa.ArrowInvalid, match=r"pics.*put\.blobs"):
            put(client, pa.table({"pics": pa.array([[b"x"]], pa.list_(pa.binary()))}), dataset="other")


def test_columns_that_cannot_be_read_are_left_out(bowstring: Bowstring, tmp_path: Path) -> None:
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"n": [1], "pics": pa.array([[{"bytes": b"a", "path": "p"}]], pa.list_(image))})
    pq.write_table(table, tmp_path / "x.parquet")
    done = bowstring("import", tmp_path, "some", "--leave-out", "pics", "--dry-run", "--json")
    assert json.loads(done.stdout)["rows"] == 1
    done = bowstring("import", tmp_path, "some", "--columns", "n", "--dry-run", "--json")
    assert json.loads(done.stdout)["rows"] == 1
