"""Tables that pandas, Polars, DuckDB, Python and people write, read back cell by cell."""

from __future__ import annotations

import csv
import json
import math
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.flight as fl
import pyarrow.parquet
import pytest
from node import Node
from PIL import Image
from wire import read

TEXT = ["1.10", "1234e56", "77e1", "True", "007", "+1", " 1", 'x"y', "a,b\tc;d", "l\nm", None, "", "é", "NaN", "null"]
N = len(TEXT)

# Values that are written, and come back: whole numbers exactly, text byte for byte.
COLUMNS: dict[str, list[Any]] = {
    "text": TEXT,
    "zip": [f"{i * 501:05}" for i in range(N)],
    "int": [2**63 - 1, -(2**63), *range(N - 2)],
    "uint": [2**64 - 1 - i for i in range(N)],
    "float": [math.nan, math.inf, -math.inf, None, 1e16, 1e-7, 1.5e300, *(i / 10 for i in range(N - 7))],
    "bool": [i % 2 == 0 for i in range(N)],
    "maybe": [None, *([True] * (N - 1))],
}
TYPES = {
    "text": pa.string(),
    "zip": pa.string(),
    "int": pa.int64(),
    "uint": pa.uint64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "maybe": pa.bool_(),
}
FILES = [f"img/{i}.png" for i in range(N)]

Write = Callable[[Path], Any]


def pandas() -> pd.DataFrame:
    return pd.DataFrame({"file_name": FILES, **COLUMNS})


def polars() -> pl.DataFrame:
    return pl.DataFrame({"file_name": FILES, **COLUMNS}, strict=False, schema_overrides={"uint": pl.UInt64})


def duck(how: str = "") -> Write:
    def write(path: Path) -> None:
        with duckdb.connect() as connection:
            connection.register("frame", polars().to_arrow())
            connection.execute(f"COPY frame TO '{path}' {how}")

    return write


def rows() -> list[dict[str, Any]]:
    return [dict(zip(["file_name", *COLUMNS], row, strict=True)) for row in zip(FILES, *COLUMNS.values(), strict=True)]


def python(**options: Any) -> Write:
    def write(path: Path) -> None:
        with path.open("w", newline="", encoding=options.pop("encoding", "utf-8")) as file:
            out = csv.DictWriter(file, ["file_name", *COLUMNS], **options)
            out.writeheader()
            out.writerows(rows())

    return write


# Values that a writer does not distinguish: an empty text and none, NaN and none, infinities and none.
EMPTY, NAN, INFINITE = "empty", "nan", "infinite"

# Each kind of file: its name, what writes it, and what of the values that leaves out.
KINDS: dict[str, tuple[str, Write, set[str]]] = {
    "pandas": ("x.csv", lambda p: pandas().to_csv(p), {EMPTY, NAN}),
    "pandas without index": ("x.csv", lambda p: pandas().to_csv(p, index=False), {EMPTY, NAN}),
    "pandas, all quoted": ("x.csv", lambda p: pandas().to_csv(p, quoting=csv.QUOTE_ALL), {EMPTY, NAN, "quoted"}),
    "pandas, text quoted": ("x.csv", lambda p: pandas().to_csv(p, quoting=csv.QUOTE_NONNUMERIC), {NAN, "quoted"}),
    "pandas with mark": ("x.csv", lambda p: pandas().to_csv(p, encoding="utf-8-sig"), {EMPTY, NAN}),
    "pandas in UTF-16": ("x.csv", lambda p: pandas().to_csv(p, encoding="utf-16"), {EMPTY, NAN}),
    "pandas with ;": ("x.csv", lambda p: pandas().to_csv(p, sep=";"), {EMPTY, NAN}),
    "pandas with NaN": ("x.csv", lambda p: pandas()[["file_name", "float"]].to_csv(p, na_rep="NaN"), {"nan for none"}),
    "pandas of Windows": ("x.csv", lambda p: pandas().to_csv(p, lineterminator="\r\n"), {EMPTY, NAN}),
    "pandas, tabs": ("x.tsv", lambda p: pandas().to_csv(p, sep="\t"), {EMPTY, NAN}),
    "pandas, lines": ("x.jsonl", lambda p: pandas().to_json(p, orient="records", lines=True), {NAN, INFINITE}),
    "pandas, list": ("x.json", lambda p: pandas().to_json(p, orient="records", indent=2), {NAN, INFINITE}),
    "polars": ("x.csv", lambda p: polars().write_csv(p), set()),
    "polars with mark": ("x.csv", lambda p: polars().write_csv(p, include_bom=True), set()),
    "polars, all quoted": ("x.csv", lambda p: polars().write_csv(p, quote_style="always"), {"none is empty"}),
    "polars, tabs": ("x.tsv", lambda p: polars().write_csv(p, separator="\t"), set()),
    "polars, lines": ("x.ndjson", lambda p: polars().write_ndjson(p), {NAN, INFINITE}),
    "polars, list": ("x.json", lambda p: polars().write_json(p), {NAN, INFINITE}),
    "duckdb": ("x.csv", duck(), set()),
    "duckdb, quoted": ("x.csv", duck("(FORMAT csv, FORCE_QUOTE *)"), set()),
    "duckdb, tabs": ("x.tsv", duck("(FORMAT csv, DELIMITER '\t')"), set()),
    "duckdb with |": ("x.csv", duck("(FORMAT csv, DELIMITER '|')"), set()),
    "duckdb, lines": ("x.jsonl", duck("(FORMAT json)"), set()),
    "duckdb, list": ("x.json", duck("(FORMAT json, ARRAY true)"), set()),
    "python": ("x.csv", python(), {EMPTY}),
    "python, tabs": ("x.tsv", python(dialect="excel-tab"), {EMPTY}),
    "python in UTF-16": ("x.tsv", python(dialect="excel-tab", encoding="utf-16"), {EMPTY}),
    "python of Unix": ("x.csv", python(dialect="unix"), {"none is empty"}),
    "python, lines": ("x.jsonl", lambda p: p.write_text("".join(json.dumps(r) + "\n" for r in rows())), set()),
    "python, list": ("x.json", lambda p: p.write_text(json.dumps(rows(), indent=1, ensure_ascii=False)), set()),
    "pandas, metadata": ("metadata.csv", lambda p: pandas().to_csv(p, index=False), {EMPTY, NAN}),
    "polars, metadata": ("metadata.jsonl", lambda p: polars().write_ndjson(p), {NAN, INFINITE}),
}


def expected(name: str, lost: set[str]) -> list[Any]:
    """The values of a column, as far as a writer keeps them."""

    def one(v: Any) -> Any:
        if isinstance(v, float) and ((math.isnan(v) and NAN in lost) or (math.isinf(v) and INFINITE in lost)):
            return None
        if name == "text" and (v == "" and EMPTY in lost):
            return None
        if name == "text" and v is None and lost & {"none is empty"}:
            return ""
        return math.nan if v is None and name == "float" and "nan for none" in lost else v

    if name == "text" and "quoted" in lost:  # None and "" are both written as ""
        return [v or "" for v in COLUMNS[name]]
    return [one(v) for v in COLUMNS[name]]


def same(a: Any, b: Any) -> bool:
    return a == b or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b))


def images(root: Path, *names: str) -> None:
    for i, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (1 + i % 5, 1 + i // 5), i % 256).save(root / name)


@pytest.fixture(scope="module")
def client(
    bowstring: Callable[..., Any], binary: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[fl.FlightClient]:
    """A server with a dataset of each kind of file."""
    store = tmp_path_factory.mktemp("tables") / "store"
    for i, (file, write, _) in enumerate(KINDS.values()):
        root = tmp_path_factory.mktemp("kind")
        images(root, *FILES)
        write(root / file)
        path = root if file.startswith("metadata") else root / file
        bowstring("import", path, f"k{i}", "--store", store)
    with Node(binary, store, log=store.parent / "server.log") as node, fl.connect(node.url) as connected:
        yield connected


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_table(client: fl.FlightClient, kind: str) -> None:
    file, _, lost = KINDS[kind]
    table = read(client, dataset=f"k{list(KINDS).index(kind)}")
    table = table.take([table["file_name"].to_pylist().index(f) for f in FILES])
    written = ["float"] if "nan for none" in lost else list(COLUMNS)
    for name in written:
        assert table.schema.field(name).type == TYPES[name], name
        got, want = table[name].to_pylist(), expected(name, lost)
        assert all(map(same, got, want)), f"{name}: {got}, want {want}"
    index = {"column_1"} if file.endswith(("csv", "tsv")) and kind.startswith("pandas") else set()
    if kind in ("pandas without index", "pandas, metadata"):
        index = set()
    made = {"id", "file_name", "image", "width", "height", "format", "orientation", "label"}
    assert set(table.schema.names) - made == set(written) | index


def import_one(bowstring: Callable[..., Any], root: Path, file: str, *options: str) -> tuple[pa.Table, dict[str, Any]]:
    """Import a table and read its dataset back from a file."""
    summary = bowstring("import", root / file, "d", "--store", root / "store", "--json", *options)
    bowstring("get", "d", "--to", root / "out.arrow", "--store", root / "store", "--force")
    with pa.memory_map(str(root / "out.arrow")) as source:
        return pa.ipc.open_file(source).read_all(), json.loads(summary.stdout)


def test_classes_are_text_as_it_is_written(bowstring: Callable[..., Any], tmp_path: Path) -> None:
    names = ["1.10", "1.1", "007", "7", "True", "1e5"]
    images(tmp_path, *(f"{i}.png" for i in range(len(names))))
    frame = pd.DataFrame({"path": [f"{i}.png" for i in range(len(names))], "label": names})
    for file in ("x.csv", "x.tsv", "x.jsonl"):
        if file == "x.jsonl":
            frame.to_json(tmp_path / file, orient="records", lines=True)
        else:
            frame.to_csv(tmp_path / file, index=False, sep="," if file == "x.csv" else "\t")
        table, _ = import_one(bowstring, tmp_path, file)
        classes = json.loads(table.schema.field("label").metadata[b"bowstring.classes"])
        assert classes == sorted(names)
        assert [classes[i] for i in table["label"].to_pylist()] == names


def test_nested_json(bowstring: Callable[..., Any], tmp_path: Path) -> None:
    images(tmp_path, "a.png", "b.png")
    (tmp_path / "x.jsonl").write_text(
        '{"file_name": "a.png", "at": {"x": 1, "y": 2.50}, "box": [1, 2], "tags": ["1.10", "x"], "any": [1, "a"], '
        '"objects": [{"id": 12345678901234567890123, "score": 1.50}], "mixed": 1.50, "none": null}\n'
        '{"file_name": "b.png", "at": {"x": 18446744073709551615}, "box": [0.5], "tags": [], "any": [true, null], '
        '"objects": [], "mixed": ["a",  1], "at_z": {"deep": {"er": false}}}\n'
    )
    table, _ = import_one(bowstring, tmp_path, "x.jsonl")
    (a, b) = table.to_pylist()
    assert (a["at_x"], b["at_x"], table.schema.field("at_x").type) == (1, 2**64 - 1, pa.uint64())
    assert (a["at_y"], b["at_y"]) == (2.5, None)
    assert (a["box"], b["box"]) == ([1.0, 2.0], [0.5])
    assert (a["tags"], b["tags"]) == (["1.10", "x"], [])
    assert (a["any"], b["any"]) == (["1", "a"], ["true", None])
    assert (a["objects"], b["objects"]) == (['{"id": 12345678901234567890123, "score": 1.50}'], [])
    assert (a["mixed"], b["mixed"]) == ("1.50", '["a",  1]')
    assert (a["at_z_deep_er"], b["at_z_deep_er"]) == (None, False)
    assert (a["none"], b["none"], table.schema.field("none").type) == (None, None, pa.string())


def test_messy_tables(bowstring: Callable[..., Any], tmp_path: Path) -> None:
    """Lines that do not fit, names written otherwise, and columns that are left out."""
    nfc, nfd = (unicodedata.normalize(form, "café.png") for form in ("NFC", "NFD"))
    images(tmp_path, "img/a.png", "img/b.png", nfd)
    long = "n" * 200
    (tmp_path / "x.csv").write_bytes(
        f'\ufeff,file_name,size,size,{long},junk\n0,img\\a.png,5" disk,1,x,y\n1,{nfc},"6"" disk",2,x,y\n2,img/b.png\n'
        f"3,img/c\ufffd.png,z,3,x,y\n".encode().replace("\ufffd".encode(), b"\xff")
    )
    failed = bowstring("import", tmp_path / "x.csv", "d", "--store", tmp_path / "store", status=1)
    assert "x.csv:4: the number of its cells is 2, and that of columns 6" in failed.stderr
    assert "x.csv:5: cell 2 is not valid UTF-8" in failed.stderr
    bad = tmp_path / "bad.jsonl"
    table, summary = import_one(
        bowstring, tmp_path, "x.csv", "--skip-bad", "--bad-list", str(bad), "--leave-out", "junk,column_*,width"
    )
    assert [json.loads(line)["key"] for line in bad.read_text().splitlines()] == ["x.csv:4", "x.csv:5"]
    assert table["file_name"].to_pylist() == ["img/a.png", nfc]
    assert table["size"].to_pylist() == ['5" disk', '6" disk']
    assert table["size_2"].to_pylist() == [1, 2]
    (short,) = (name for name in table.schema.names if name.startswith("nnn"))
    assert len(short) <= 128
    assert set(table.schema.names) == {
        "id",
        "file_name",
        "size",
        "size_2",
        short,
        "height",
        "format",
        "orientation",
        "image",
    }
    assert any(long in note and short in note for note in summary["notes"])
    refused = bowstring(
        "import", tmp_path / "x.csv", "d", "--store", tmp_path / "store", "--leave-out", "jank", status=1
    )
    assert "--leave-out: there is no column jank" in refused.stderr
    assert "did you mean junk?" in refused.stderr


def test_floats_that_json_lacks(bowstring: Callable[..., Any], tmp_path: Path) -> None:
    images(tmp_path, *(f"{i}.png" for i in range(4)))
    values = [math.nan, math.inf, -math.inf, 0.5]
    pl.DataFrame({"path": [f"{i}.png" for i in range(4)], "f": values}).write_csv(tmp_path / "x.csv")
    import_one(bowstring, tmp_path, "x.csv")
    store = ("--store", tmp_path / "store")

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    taken = json.loads(bowstring("take", "d", "0", "1", "2", "3", "--json", *store).stdout, parse_constant=refuse)
    assert [row["f"] for row in taken] == ["NaN", "Infinity", "-Infinity", 0.5]
    bowstring("get", "d", "--to", f"{tmp_path}/out/", *store)
    bowstring("import", tmp_path / "out", "again", *store)
    bowstring("get", "again", "--to", tmp_path / "again.parquet", *store)
    table = pa.parquet.read_table(tmp_path / "again.parquet")
    assert table.schema.field("f").type == pa.float64()
    assert all(map(same, table["f"].to_pylist(), values))
