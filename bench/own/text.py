"""Tables as text: CSV, TSV and JSON lines, by pandas, Polars, DuckDB and Python's own modules."""

from __future__ import annotations

import csv
import json
import math
import unicodedata
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl

from .kind import Kind, Made, kind
from .pictures import files

KINDS: list[Kind] = []
BIG = 2**63  # the first whole number that no int64 holds


def table(folder: Path, names: list[str] | None = None, /, **columns: list[Any]) -> dict[str, list[Any]]:
    """Columns with the number of the row and the path of a picture before them."""
    count = len(next(iter(columns.values())))
    return {"n": list(range(count)), "path": files(folder, names or [f"{i}.png" for i in range(count)]), **columns}


def rows(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """The rows of columns, without the paths."""
    names = [name for name in columns if name != "path"]
    return [dict(zip(names, values, strict=True)) for values in zip(*(columns[n] for n in names), strict=True)]


def read(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows that pandas read, with None where there is no value."""
    plain = frame.drop(columns="path").astype(object)
    return [{str(k): v for k, v in row.items()} for row in plain.where(plain.notna(), None).to_dict("records")]


@kind(KINDS)
def csv_pandas(folder: Path) -> Made:
    columns = table(folder, count=[3, -4, 2**62], share=[0.5, 1e-300, -2.0], name=["a", "b c", "d,e"])
    pd.DataFrame(columns).to_csv(folder / "t.csv", index=False)
    return Made(folder / "t.csv", read(pd.read_csv(folder / "t.csv")))


@kind(KINDS)
def csv_pandas_with_its_index(folder: Path) -> Made:
    pd.DataFrame(table(folder, name=["a", "b"])).to_csv(folder / "t.csv")
    frame = pd.read_csv(folder / "t.csv")
    return Made(folder / "t.csv", read(frame.drop(columns=frame.columns[0])))


@kind(KINDS)
def csv_text_that_resembles_numbers(folder: Path) -> Made:
    columns = table(folder, version=["1.10", "1234e56", "77e1", "True", "n-a"], code=["1", "2.50", "x", "-0", "+5"])
    pd.DataFrame(columns).to_csv(folder / "t.csv", index=False)
    return Made(folder / "t.csv", read(pd.read_csv(folder / "t.csv", dtype={"version": str, "code": str})))


@kind(KINDS)
def csv_leading_zeros(folder: Path) -> Made:
    columns = table(folder, zip=["00501", "10115", "007"], phone=["+49", "+1", "0"])
    pl.DataFrame(columns).write_csv(folder / "t.csv")
    frame = pl.read_csv(folder / "t.csv", schema_overrides={"zip": pl.String, "phone": pl.String})
    return Made(folder / "t.csv", frame.drop("path").to_dicts())


@kind(KINDS)
def csv_uint64(folder: Path) -> Made:
    columns = table(folder, hash=[BIG, BIG + 1, 2**64 - 1])
    pd.DataFrame(columns).to_csv(folder / "t.csv", index=False)
    return Made(folder / "t.csv", read(pd.read_csv(folder / "t.csv", dtype={"hash": "uint64"})))


@kind(KINDS)
def csv_numbers_beyond_uint64(folder: Path) -> Made:
    columns = table(folder, hash=[str(2**64 + 1), str(2**64), "7"])
    pd.DataFrame(columns).to_csv(folder / "t.csv", index=False)
    return Made(folder / "t.csv", read(pd.read_csv(folder / "t.csv", dtype={"hash": str})))


@kind(KINDS)
def csv_whole_numbers_and_a_fraction(folder: Path) -> Made:
    columns = table(folder, mixed=[str(2**53 + 1), "0.5", str(2**53)], small=["1", "0.5", "3"])
    pl.DataFrame(columns).write_csv(folder / "t.csv")
    frame = pl.read_csv(folder / "t.csv", schema_overrides={"mixed": pl.String, "small": pl.Float64})
    return Made(folder / "t.csv", frame.drop("path").to_dicts())


@kind(KINDS)
def csv_classes_that_resemble_numbers(folder: Path) -> Made:
    columns = table(folder, label=["1.10", "1.1", "x", "1.10"])
    pd.DataFrame(columns).to_csv(folder / "t.csv", index=False)
    frame = pd.read_csv(folder / "t.csv", dtype={"label": "category"})
    return Made(folder / "t.csv", [{"n": n, "label": int(c)} for n, c in enumerate(frame["label"].cat.codes)])


@kind(KINDS)
def csv_duckdb(folder: Path) -> Made:
    frame = pd.DataFrame(table(folder, at=["2026-01-02 03:04:05", None], ok=[True, False], name=['a "b"', "c\nd"]))
    with duckdb.connect() as db:
        db.register("frame", frame)
        db.execute(f"COPY frame TO '{folder / 't.csv'}' (HEADER)")
        found = db.read_csv(str(folder / "t.csv"), dtype={"at": "VARCHAR"}).fetchall()
    return Made(folder / "t.csv", [{"n": r[0], "at": r[2], "ok": r[3], "name": r[4]} for r in found])


@kind(KINDS)
def csv_polars_with_nulls(folder: Path) -> Made:
    columns = table(folder, count=[1, None, 3], share=[None, 0.25, 0.5], text=["a", None, "c"])
    pl.DataFrame(columns).write_csv(folder / "t.csv")
    return Made(folder / "t.csv", pl.read_csv(folder / "t.csv").drop("path").to_dicts())


@kind(KINDS)
def csv_byte_order_mark(folder: Path) -> Made:
    pd.DataFrame(table(folder, name=["ä", "ö"])).to_csv(folder / "t.csv", index=False, encoding="utf-8-sig")
    return Made(folder / "t.csv", read(pd.read_csv(folder / "t.csv", encoding="utf-8-sig")))


@kind(KINDS)
def csv_windows(folder: Path) -> Made:
    columns = table(folder, ["a/0.png", "a/1.png"], text=["x", "two\r\nlines"])
    columns["path"] = [name.replace("/", "\\") for name in columns["path"]]
    pd.DataFrame(columns).to_csv(folder / "t.csv", index=False, lineterminator="\r\n")
    return Made(folder / "t.csv", rows(columns))


@kind(KINDS)
def csv_bare_quotation_mark(folder: Path) -> Made:
    columns = table(folder, name=['12" disc', "plain"])
    text = "n,path,name\n" + "".join(f"{n},{n}.png,{name}\n" for n, name in enumerate(columns["name"]))
    (folder / "t.csv").write_text(text)
    return Made(folder / "t.csv", read(pd.read_csv(folder / "t.csv")))


@kind(KINDS)
def csv_other_unicode_form(folder: Path) -> Made:
    columns = table(folder, [unicodedata.normalize("NFD", n) for n in ("é.png", "ü.png")], name=["e", "u"])
    columns["path"] = [unicodedata.normalize("NFC", name) for name in columns["path"]]
    pd.DataFrame(columns).to_csv(folder / "t.csv", index=False)
    return Made(folder / "t.csv", rows(columns))


@kind(KINDS)
def csv_long_column_names(folder: Path) -> Made:
    name = "measured by the second camera from the left " * 4
    columns = table(folder, **{name + "a": [1, 2], name + "b": [3, 4]})
    pd.DataFrame(columns).to_csv(folder / "t.csv", index=False)
    return Made(folder / "t.csv", [{"n": 0}, {"n": 1}])


@kind(KINDS)
def csv_booleans(folder: Path) -> Made:
    pd.DataFrame(table(folder, ok=[True, False], other=[False, True])).to_csv(folder / "t.csv", index=False)
    return Made(folder / "t.csv", read(pd.read_csv(folder / "t.csv")))


@kind(KINDS)
def csv_ragged_line(folder: Path) -> Made:
    files(folder, ["0.png", "1.png", "2.png", "3.png"])
    (folder / "t.csv").write_text("n,path,name\n0,0.png,a\n7,2.png\n8,3.png,x,y\n1,1.png,b\n")
    frame = pd.read_csv(folder / "t.csv", on_bad_lines="skip").dropna()
    return Made(folder / "t.csv", read(frame), args=["--skip-bad"])


@kind(KINDS)
def csv_without_files(folder: Path) -> Made:
    frame = pd.DataFrame({"n": [0, 1], "prompt": ["Why?", "How?"], "answer": ["So.", "Thus."]})
    frame.to_csv(folder / "t.csv", index=False)
    return Made(folder / "t.csv", frame.to_dict("records"))


@kind(KINDS)
def tsv_pandas(folder: Path) -> Made:
    columns = table(folder, name=['say "x"', "tab\there", "plain"])
    pd.DataFrame(columns).to_csv(folder / "t.tsv", sep="\t", index=False)
    return Made(folder / "t.tsv", read(pd.read_csv(folder / "t.tsv", sep="\t")))


@kind(KINDS)
def tsv_without_quoting(folder: Path) -> Made:
    columns = table(folder, name=['12" disc', 'a "b" c'])
    pd.DataFrame(columns).to_csv(folder / "t.tsv", sep="\t", index=False, quoting=csv.QUOTE_NONE)
    return Made(folder / "t.tsv", read(pd.read_csv(folder / "t.tsv", sep="\t", quoting=csv.QUOTE_NONE)))


@kind(KINDS)
def jsonl_pandas(folder: Path) -> Made:
    columns = table(folder, share=[0.1, 1e300, -1.5], name=["a", 'b"c', "d\ne"], ok=[True, False, True])
    pd.DataFrame(columns).to_json(folder / "t.jsonl", orient="records", lines=True, double_precision=15)
    return Made(folder / "t.jsonl", read(pd.read_json(folder / "t.jsonl", lines=True, precise_float=True)))


@kind(KINDS)
def jsonl_polars(folder: Path) -> Made:
    frame = pl.DataFrame(table(folder, tags=[["a", "b"], []], box=[{"x": 1, "y": 0.5}, {"x": 2, "y": 1.5}]))
    frame.write_ndjson(folder / "t.jsonl")
    found = pl.read_ndjson(folder / "t.jsonl").drop("path")
    return Made(folder / "t.jsonl", [{"n": r["n"], "tags": r["tags"]} for r in found.to_dicts()])


@kind(KINDS)
def jsonl_duckdb(folder: Path) -> Made:
    frame = pd.DataFrame(table(folder, name=["a", None], count=[2**53 + 1, -1]))
    with duckdb.connect() as db:
        db.register("frame", frame)
        db.execute(f"COPY frame TO '{folder / 't.jsonl'}' (FORMAT json)")
        found = db.execute(f"SELECT n, name, count FROM read_json('{folder / 't.jsonl'}')").fetchall()
    return Made(folder / "t.jsonl", [{"n": r[0], "name": r[1], "count": r[2]} for r in found])


def json_lines(folder: Path, columns: dict[str, list[Any]], mark: str = "") -> Path:
    """JSON lines as Python's json writes them."""
    names = list(columns)
    lines = [json.dumps(dict(zip(names, values, strict=True))) for values in zip(*columns.values(), strict=True)]
    (folder / "t.jsonl").write_text(mark + "\n".join(lines) + "\n")
    return folder / "t.jsonl"


def loaded(path: Path) -> list[dict[str, Any]]:
    """The rows that Python's json reads, without the paths."""
    found = [json.loads(line) for line in path.read_text(encoding="utf-8-sig").splitlines()]
    return [{k: v for k, v in row.items() if k != "path"} for row in found]


@kind(KINDS)
def jsonl_nan_and_infinity(folder: Path) -> Made:
    path = json_lines(folder, table(folder, score=[math.nan, math.inf, -math.inf, 0.5]))
    return Made(path, loaded(path))


@kind(KINDS)
def jsonl_byte_order_mark(folder: Path) -> Made:
    path = json_lines(folder, table(folder, name=["a", "b"]), mark="\ufeff")
    return Made(path, loaded(path))


@kind(KINDS)
def jsonl_uint64(folder: Path) -> Made:
    path = json_lines(folder, table(folder, hash=[BIG + 1, BIG + 3, 0]))
    return Made(path, loaded(path))


@kind(KINDS)
def jsonl_numbers_beyond_uint64(folder: Path) -> Made:
    path = json_lines(folder, table(folder, hash=[2**64 + 1, 2**64 + 3, -1]))
    return Made(path, [{"n": r["n"], "hash": str(r["hash"])} for r in loaded(path)])


@kind(KINDS)
def jsonl_without_files(folder: Path) -> Made:
    path = json_lines(folder, {"n": [0, 1], "prompt": ["Why?", "How?"], "answer": ["So.", "Thus."]})
    return Made(path, loaded(path))
