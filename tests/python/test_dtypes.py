"""Each type that Arrow, Polars, pandas and DuckDB have in memory is stored with its values, or refused by name."""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import bowstring
import bowstring.polars
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from bowstring._rows.storable import stored_type

NOON, DAY = dt.datetime(2020, 1, 2, 12, 0, 5, 6000), dt.timedelta(days=1)
BLOBS = [b"a", b"bb", b"ccc"]


@pytest.fixture
def name(here: bowstring.Client) -> Iterator[str]:
    """A dataset of the test's own."""
    made = f"types-{uuid.uuid4().hex[:8]}"
    yield made
    if here.datasets(made):
        here.drop(made)


def stored(here: bowstring.Client, name: str, frame: Any, **options: Any) -> bowstring.Dataset:
    here.ingest(name, frame, blobs=["blob"], progress=False, **options)
    return here.dataset(name)


def _polars() -> dict[str, pl.Series]:
    numbers = [pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64, pl.Float32, pl.Float64]
    made = {f"{kind}": pl.Series([1, None, 100], dtype=kind) for kind in numbers}
    for unit in ("ms", "us", "ns"):
        made[f"datetime {unit}"] = pl.Series([NOON, None, NOON - 9999 * DAY], dtype=pl.Datetime(unit))
        made[f"zoned {unit}"] = pl.Series([NOON, None, NOON], dtype=pl.Datetime(unit, "Europe/Paris"))
        made[f"duration {unit}"] = pl.Series([DAY, None, -DAY], dtype=pl.Duration(unit))
    inner = pl.Struct({"b": pl.Binary, "c": pl.Categorical, "n": pl.Null})
    return made | {
        "boolean": pl.Series([True, None, False]),
        "date": pl.Series([dt.date(2020, 1, 2), None, dt.date(1900, 1, 1)]),
        "time": pl.Series([dt.time(1, 2, 3, 4), None, dt.time(0)]),
        "decimal": pl.Series([Decimal("1.10"), None, Decimal("-3.30")], dtype=pl.Decimal(20, 2)),
        "string": pl.Series(["a", None, ""]),
        "binary": pl.Series([b"a", None, b""]),
        "categorical": pl.Series(["x", None, "y"], dtype=pl.Categorical),
        "enum": pl.Series(["x", None, "y"], dtype=pl.Enum(["y", "x"])),
        "null": pl.Series([None, None, None], dtype=pl.Null),
        "list": pl.Series([[1], None, []], dtype=pl.List(pl.Int64)),
        "list of binary": pl.Series([[b"a", None], None, []], dtype=pl.List(pl.Binary)),
        "list of categorical": pl.Series([["x"], None, []], dtype=pl.List(pl.Categorical)),
        "list of lists": pl.Series([[["a"], []], None, []], dtype=pl.List(pl.List(pl.String))),
        "list of structs": pl.Series([[{"b": b"x", "c": "y", "n": None}], None, []], dtype=pl.List(inner)),
        "array": pl.Series([[1, 2], None, [3, None]], dtype=pl.Array(pl.Int64, 2)),
        "array of string": pl.Series([["a", "b"], None, ["c", None]], dtype=pl.Array(pl.String, 2)),
        "struct": pl.Series([{"b": b"x", "c": "y", "n": None}, None, {"b": None, "c": None, "n": None}], dtype=inner),
    }


def test_polars(here: bowstring.Client, name: str) -> None:
    given = pl.DataFrame({**_polars(), "blob": BLOBS})
    # In several chunks, each with categories of its own, and parts of longer ones.
    frame = pl.concat([given, given.slice(1), given.slice(0, 1)], rechunk=False)
    read = stored(here, name, frame).to_arrow()
    for column in frame.columns:
        assert read[column].to_pylist() == frame[column].to_list(), column
    scanned = bowstring.polars.scan(here, name).collect()
    for column in frame.columns:
        assert scanned[column].to_list() == frame[column].to_list(), column


@pytest.mark.parametrize("kind", [pl.Int128, pl.UInt128])
def test_what_polars_alone_has_is_refused_by_name(here: bowstring.Client, name: str, kind: Any) -> None:
    frame = pl.DataFrame({"wide": pl.Series([1, 2, 3], dtype=kind), "blob": BLOBS})
    with pytest.raises(
        bowstring.InvalidRequest, match=r"column wide is U?Int128, .* cast U?Int128 to Decimal\(38, 0\)"
    ):
        stored(here, name, frame)


def _arrow() -> dict[str, pa.Array]:
    text, bits, numbers = ["a", "b", None], [b"a", b"b", None], [1, 2, None]
    lists = [[1], None, [2, 3]]
    made = {
        str(kind): pa.array([1000, 2000, None] if "ns" in str(kind) else numbers, kind)
        for kind in (
            pa.int8(), pa.uint64(), pa.float32(), pa.date32(), pa.time32("s"), pa.time32("ms"),
            pa.time64("us"), pa.time64("ns"), pa.duration("s"), pa.timestamp("s"), pa.timestamp("us", "+05:30"),
            pa.timestamp("ns", "UTC"), pa.decimal128(10, 2),
        )
    }  # fmt: skip
    made |= {str(kind): pa.array(text, kind) for kind in (pa.utf8(), pa.large_utf8(), pa.string_view())}
    made |= {str(kind): pa.array(bits, kind) for kind in (pa.binary(), pa.large_binary(), pa.binary_view())}
    for kind in (pa.list_, pa.large_list, pa.list_view, pa.large_list_view):
        made[f"{kind.__name__} of int64"] = pa.array(lists, kind(pa.int64()))
        made[f"{kind.__name__} of dictionary"] = pa.array(
            [["x"], None, ["y", "x"]], kind(pa.dictionary(pa.int8(), pa.utf8()))
        )
    for kind_name in ("decimal32", "decimal64"):
        if hasattr(pa, kind_name):
            made[kind_name] = pa.array([Decimal("1.1"), None, Decimal("2.2")], getattr(pa, kind_name)(5, 1))
    return made | {
        "float16": pa.array([np.float16(1.5), None, np.float16(2)], pa.float16()),
        "date64": pa.array([86400000, None, 0], pa.date64()),
        "fixed_size_binary": pa.array([b"ab", b"cd", None], pa.binary(2)),
        "dictionary": pa.array(text).dictionary_encode(),
        "dictionary of views": pa.DictionaryArray.from_arrays([0, 1, None], pa.array(["a", "b"], pa.string_view())),
        "dictionary of int64": pa.array(numbers).dictionary_encode(),
        "run_end_encoded": pa.RunEndEncodedArray.from_arrays([2, 3], ["a", None]),
        "null": pa.nulls(3),
        "list of null": pa.array([[None], None, []], pa.list_(pa.null())),
        "fixed_size_list": pa.array([[1, 2], None, [3, None]], pa.list_(pa.int64(), 2)),
        "struct": pa.array(
            [{"a": None, "v": "x", "l": [b"x"]}, None, {"a": None, "v": None, "l": None}],
            pa.struct([("a", pa.null()), ("v", pa.string_view()), ("l", pa.large_list(pa.binary_view()))]),
        ),
        "empty struct": pa.array([{}, None, {}], pa.struct([("one", pa.int8())])),
        "json": pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a":1}', None, "1"])),
        "bool8": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, None, 0], pa.int8())),
    }


def test_arrow(here: bowstring.Client, name: str) -> None:
    whole = pa.table({**_arrow(), "blob": pa.array(BLOBS)})
    frame = pa.concat_tables([whole, whole.slice(1, 2)])
    read = stored(here, name, frame).to_arrow()
    for column in frame.column_names:
        assert read[column].to_pylist() == frame[column].to_pylist(), column


def test_objects_that_ray_has_pickled_are_refused() -> None:
    """Their storage is bytes, which would be stored as samples' bytes."""

    class Pickled(pa.ExtensionType):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(pa.large_binary(), "ray.data.arrow_pickled_object")

        def __arrow_ext_serialize__(self) -> bytes:
            return b""

    with pytest.raises(bowstring.InvalidRequest, match="column thing has pickled objects of Python"):
        stored_type(Pickled(), "thing", blob=True)


def test_a_map_is_a_list_of_pairs_and_a_uuid_is_its_bytes(here: bowstring.Client, name: str) -> None:
    ids = [uuid.uuid4() for _ in range(3)]
    maps = pa.array([[("a", 1)], None, []], pa.map_(pa.string_view(), pa.int64()))
    named = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([one.bytes for one in ids], pa.binary(16)))
    read = stored(here, name, pa.table({"map": maps, "uuid": named, "blob": pa.array(BLOBS)})).to_arrow()
    assert read["map"].to_pylist() == [[{"key": "a", "value": 1}], None, []]
    assert read["uuid"].to_pylist() == [one.bytes for one in ids]


REFUSED: dict[str, Callable[[], pa.Array]] = {
    "decimal256": lambda: pa.array([Decimal("1.1")] * 3, pa.decimal256(50, 2)),
    "month_day_nano_interval": lambda: pa.array([pa.MonthDayNano([1, 2, 3])] * 3),
    "union": lambda: pa.UnionArray.from_sparse(pa.array([0] * 3, pa.int8()), [pa.array([1, 2, 3])]),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("nested", [False, True])
def test_what_is_not_stored_is_refused_by_name(here: bowstring.Client, name: str, kind: str, nested: bool) -> None:
    column = REFUSED[kind]()
    if nested:
        column = pa.StructArray.from_arrays([column], ["inner"])
    with pytest.raises(
        bowstring.InvalidRequest, match=rf"column odd is of type .*{kind}.*, which is not stored; want "
    ):
        stored(here, name, pa.table({"odd": column, "blob": pa.array(BLOBS)}))
    assert not here.datasets(name)


def test_a_column_without_values_is_what_the_dataset_has(here: bowstring.Client, name: str) -> None:
    stored(here, name, pa.table({"n": pa.array([1, 2, 3]), "blob": pa.array(BLOBS)}))
    more = stored(here, name, pa.table({"n": pa.nulls(3), "blob": pa.array(BLOBS)}), mode="append")
    assert more.to_arrow()["n"].to_pylist() == [1, 2, 3, None, None, None]
    assert more.schema.field("n").type == pa.int64()


def test_pandas(here: bowstring.Client, name: str) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(
        {
            "category": pd.Categorical(["x", None, "y"]),
            "text": pd.array(["a", None, "b"], "string"),
            "object": pd.Series(["a", None, "b"], dtype=object),
            "nothing": pd.Series([None, None, None], dtype=object),
            "int": pd.array([1, None, 2**62], "Int64"),
            "bool": pd.array([True, None, False], "boolean"),
            "zoned": pd.Series([NOON] * 3).dt.tz_localize("+05:30"),
            "duration": pd.Series([DAY, None, -DAY]),
            "lists": pd.Series([[1], None, []]),
            "blob": BLOBS,
        }
    )
    arrow = pa.Table.from_pandas(frame, preserve_index=False)
    read = stored(here, name, frame).to_arrow()
    for column in frame.columns:
        assert read[column].to_pylist() == arrow[column].to_pylist(), column


DUCKDB = {
    "hugeint": "170141183460469231731687303715884105727::hugeint",
    "varint": "1::bigint",
    "time": "time '01:02:03'",
    "zoned": "timestamptz '2020-01-02 03:04:05+05:30'",
    "enum": "'a'::enum('b', 'a')",
    "uuid": "'123e4567-e89b-12d3-a456-426614174000'::uuid",
    "list": "[1, null]",
    "array": "[1, 2]::integer[2]",
    "struct": "{'a': 'x', 'b': 'y'::blob}",
    "map": "map {'a': 1}",
    "nothing": "null",
    "bits": "'x'::blob",
    "interval": "interval 1 month",
    "union": "union_value(a := 1)",
}
DUCKDB_REFUSES = {"interval", "union"}


def test_duckdb(here: bowstring.Client, name: str) -> None:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        kept = {kind: sql for kind, sql in DUCKDB.items() if kind not in DUCKDB_REFUSES | {"map"}}
        columns = ", ".join(f'{sql} as "{kind}"' for kind, sql in kept.items())
        query = f"select 'x'::blob as blob, {columns} from range(3)"  # noqa: S608
        wanted = connection.sql(query).to_arrow_table()
        read = stored(here, name, connection.sql(query)).to_arrow()
        for kind in kept:
            wanted_values = wanted[kind].to_pylist()
            if kind == "uuid":
                wanted_values = [getattr(one, "bytes", one) for one in wanted_values]
            assert read[kind].to_pylist() == wanted_values, kind


@pytest.mark.parametrize("kind", ["a name", *sorted(DUCKDB_REFUSES)])
def test_a_connection_of_duckdb_is_free_after_a_refusal(here: bowstring.Client, name: str, kind: str) -> None:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        connection.execute(
            f"create table t as select 'x'::blob as blob, {DUCKDB.get(kind, '1')} as odd from range(300000)"  # noqa: S608
        )
        with pytest.raises(bowstring.InvalidRequest) as refused:
            here.ingest("no name/" if kind == "a name" else name, connection.sql("from t"), progress=False)
        dropped: list[Any] = []

        def drops() -> None:
            connection.execute("drop table t")
            dropped.append(connection.execute("select 1").fetchall())

        thread = threading.Thread(target=drops, daemon=True)
        thread.start()
        thread.join(60)
        assert dropped == [[(1,)]], refused


@pytest.mark.parametrize("zone", ["+02:00", "+05:30", "-00:30", "Z", "+0200"])
def test_a_scan_has_offsets_as_utc(here: bowstring.Client, name: str, zone: str) -> None:
    times = pa.array([0, 3_600_000_000, None], pa.timestamp("us", zone))
    nested = pa.StructArray.from_arrays([times], ["at"])
    stored(here, name, pa.table({"at": times, "in": nested, "blob": pa.array(BLOBS)}))
    scan = bowstring.polars.scan(here, name)
    assert scan.collect_schema()["at"] == pl.Datetime("us", "UTC")
    begun = dt.datetime(1970, 1, 1, 1, tzinfo=dt.timezone.utc)
    assert scan.filter(pl.col("at") >= begun).collect()["at"].to_list() == [begun]
    assert scan.filter(pl.col("at") < begun).select("in").collect()["in"].to_list() == [
        {"at": dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)}
    ]
