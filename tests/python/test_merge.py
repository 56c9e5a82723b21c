"""Columns and rows that change by key, while blobs stay as they are."""

from __future__ import annotations

import random
import uuid
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

ROWS = 3000


def samples(first: int = 0, count: int = ROWS) -> pa.Table:
    rng = np.random.default_rng(first)
    numbers = range(first, first + count)
    return pa.table(
        {
            "name": [f"row {n:05d}" for n in numbers],
            "number": pa.array(numbers, pa.int32()),
            "image": pa.array([rng.bytes(20) for _ in numbers], pa.large_binary()),
        }
    )


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, binary: Any) -> Iterator[str]:
    root = tmp_path_factory.mktemp("merge")
    with Node(binary, root / "store", log=root / "log") as own:
        yield own.url


@pytest.fixture
def here(url: str) -> bowstring.Client:
    return bowstring.connect(url)


@pytest.fixture
def name(here: bowstring.Client, request: pytest.FixtureRequest) -> str:
    name: str = request.node.name.split("[")[0] + "." + uuid.uuid4().hex[:8]
    here.ingest(name, samples(), key="name", media={"image": "image"}, progress=False)
    return name


def read(client: bowstring.Client, name: str, *columns: str) -> dict[str, list[Any]]:
    dataset = client.dataset(name)
    found: dict[str, list[Any]] = (dataset.columns(list(columns)) if columns else dataset).to_arrow().to_pydict()
    return found


SOURCES: dict[str, Any] = {
    "table": lambda t: t,
    "reader": lambda t: t.to_reader(max_chunksize=10),
    "batches": lambda t: t.to_batches(max_chunksize=70),
    "polars": lambda t: pl.DataFrame(t),
    "pandas": lambda t: t.to_pandas(),
    "duckdb": lambda t: duckdb.from_arrow(t),
}


@pytest.mark.parametrize("source", SOURCES)
def test_columns_from_whatever_has_rows(here: bowstring.Client, name: str, source: str) -> None:
    before, written = read(here, name), here.stats()["store"]["blob_writes"]
    frame = samples().select(["name"]).append_column("score", pa.array([n / 4 for n in range(ROWS)])).slice(100, 1500)
    result = here.ingest(name, SOURCES[source](frame), mode="merge", on="name", progress=False)
    assert (result.snapshot, result.changed, result.matched, result.rows, result.bytes) == (2, True, 1500, 1500, 0)
    after = read(here, name)
    assert after.pop("score") == [n / 4 if 100 <= n < 1600 else None for n in range(ROWS)]
    assert after == before
    assert here.stats()["store"]["blob_writes"] - written <= 4  # pages of the manifest and their list
    again = here.ingest(name, SOURCES[source](frame), mode="merge", on="name", progress=False)
    assert (again.snapshot, again.changed, again.matched) == (2, False, 1500)


def test_by_ids_as_they_were_read(here: bowstring.Client, name: str) -> None:
    earlier = here.dataset(name)
    frame = earlier.columns(["id", "number"]).to_arrow().to_pandas()
    frame["number"] *= 2  # int64, as pandas calculates, fits the int32 that the dataset has
    frame = frame[frame["number"] % 3 == 0]  # an index that is no column
    result = here.ingest(name, frame, mode="merge", on="id", progress=False)
    assert result.matched == ROWS / 3
    now = here.dataset(name)
    assert now.schema.field("number").type == pa.int32()
    assert now.schema.names == earlier.schema.names
    assert now.columns(["number"]).to_arrow()["number"].to_pylist() == [n if n % 3 else 2 * n for n in range(ROWS)]
    assert earlier.columns(["number"]).to_arrow()["number"].to_pylist() == list(range(ROWS))


def test_insert_and_delete(here: bowstring.Client, name: str) -> None:
    more = samples(ROWS - 1, 3)
    with pytest.raises(bowstring.InvalidRequest, match=r'2 rows have keys in column "name".*"row 03000" \(row 1\)'):
        here.ingest(name, more, mode="merge", on="name", progress=False)
    done = here.ingest(name, more, mode="merge", on="name", missing="insert", split="val", progress=False)
    assert (done.matched, done.inserted, done.bytes) == (1, 2, 60)
    assert read(here, name, "name", "split")["split"][-3:] == ["train", "val", "val"]
    assert read(here, name, "image")["image"][-3:] == more["image"].to_pylist()
    keys = pa.table({"number": pa.array([5, 7, ROWS, 10**6])})
    done = here.ingest(name, keys, mode="delete", on="number", progress=False)
    assert (done.deleted, done.ignored) == (3, 1)
    assert read(here, name, "number")["number"] == [n for n in range(ROWS + 2) if n not in (5, 7, ROWS)]
    with pytest.raises(bowstring.InvalidRequest, match="rows have keys"):
        here.ingest(name, keys, mode="delete", on="number", missing="error", progress=False)


def test_alter(here: bowstring.Client, name: str) -> None:
    done = here.alter(name, drop_columns=["number"], rename_columns={"image": "photo"}, delete_where="number >= 10")
    assert (done.changed, done.snapshot, done.rows, done.deleted) == (True, 2, 10, ROWS - 10)
    assert read(here, name, "name", "photo") == {
        "name": samples()["name"].to_pylist()[:10],
        "photo": samples()["image"].to_pylist()[:10],
    }
    with pytest.raises(bowstring.InvalidRequest, match=r"drop_columns: got.*want a column of"):
        here.alter(name, drop_columns=["number"])
    with pytest.raises(bowstring.NotFound):
        here.alter(f"{name}.not", drop_columns=["number"])


def test_replace_drops_nothing_unsaid(here: bowstring.Client, name: str) -> None:
    frame = pl.DataFrame(samples().drop_columns("image"))
    with pytest.raises(bowstring.InvalidRequest, match=r'would drop "image" \(blob.*"merge".*drop_columns'):
        here.ingest(name, frame, mode="replace", key="name", progress=False)
    assert here.dataset(name).snapshot == 1
    with pytest.warns(UserWarning, match="splits that are gone: train"):
        here.ingest(name, frame, mode="replace", key="name", split="all", drop_columns=["image"], progress=False)
    assert here.dataset(name).schema.names == ["id", "name", "number"]


def test_what_is_refused(here: bowstring.Client, name: str) -> None:
    def merge(columns: dict[str, Any], **how: Any) -> None:
        here.ingest(name, pa.table(columns), mode="merge", progress=False, **how)

    for columns, on, said in (
        ({"name": ["row 00001"], "number": ["x"]}, "name", 'column "number": got utf8'),
        ({"name": ["row 00001", "row 00002"], "number": [1.0, 1.5]}, "name", 'column "number", row 1: got 1.5'),
        ({"name": ["row 00001"], "number": [2**40]}, "name", "got 1099511627776"),
        ({"name": ["row 00001"] * 2, "number": [1, 2]}, "name", "rows 0 and 1 have the same key"),
        ({"name": ["row 00001"], "position": [1]}, "name", "position"),
        ({"name": ["row 00001"], "image.size": [1]}, "name", "it is the size of blobs"),
        ({"name": ["row 00001"], "image": ["text"]}, "name", "image"),
        ({"number": [1]}, None, 'want a column "id" in the rows'),
    ):
        with pytest.raises(bowstring.InvalidRequest) as error:
            merge(columns, **({"on": on} if on else {}))
        assert said in str(error.value)
    merge({"name": ["row 00001"], "number": ["one"]}, on="name", drop_columns=["number"])  # another type, if it is said
    assert read(here, name, "number")["number"][:3] == [None, "one", None]


def test_random_changes(here: bowstring.Client, name: str) -> None:
    """Sequences of changes give what pandas makes of them, and blobs stay as they are."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    frame = samples().to_pandas().set_index("name", drop=False).rename_axis(None)
    frame["number"] = frame["number"].astype("Int64")
    images = set(frame["image"])
    fresh = 0
    for step in range(15):
        keys = rng.sample(list(frame.index), rng.randrange(1, len(frame)))
        what = rng.choice(("merge", "merge", "delete", "where", "rename", "drop", "insert"))
        extra = [c for c in frame.columns if c.startswith("c")]
        if what == "delete":
            keys = keys[: len(frame) // 10]
            here.ingest(name, pd.DataFrame({"name": keys}), mode="delete", on="name", progress=False)
            frame = frame.drop(index=keys)
        elif what == "where":
            least = rng.randrange(ROWS)
            gone = frame.index[(frame["number"] >= least) & (frame["number"] < least + 200)]
            if len(gone) < len(frame):
                here.alter(name, delete_where=f"number >= {least} and number < {least + 200}")
                frame = frame.drop(index=gone)
        elif what in ("rename", "drop") and extra:
            column = rng.choice(extra)
            if what == "drop":
                here.alter(name, drop_columns=[column])
                frame = frame.drop(columns=column)
            else:
                fresh += 1
                here.alter(name, rename_columns={column: f"c{fresh}"})
                frame = frame.rename(columns={column: f"c{fresh}"})
        elif what == "insert":
            fresh += 1
            more = samples(10_000 * fresh, rng.randrange(1, 50))
            here.ingest(name, more, mode="merge", on="name", missing="insert", progress=False)
            images |= set(more["image"].to_pylist())
            new = more.to_pandas().set_index("name", drop=False).rename_axis(None).astype({"number": "Int64"})
            frame = pd.concat([frame, new])
        else:
            column = rng.choice([*extra, "number", "new"])
            if column == "new":
                fresh += 1
                column = f"c{fresh}"
                frame[column] = pd.array([None] * len(frame), "Int64")
            values = pd.array([rng.choice((None, rng.randrange(100))) for _ in keys], "Int64")
            changes = pd.DataFrame({"name": keys, column: values})
            here.ingest(name, changes, mode="merge", on="name", progress=False)
            frame.loc[keys, column] = values
        now = here.dataset(name).columns(list(frame.columns)).to_arrow()
        want = {c: [None if pd.isna(v) else v for v in frame[c]] for c in frame.columns}
        assert now.to_pydict() == want, f"seed {seed}, step {step}: {what}"
        assert set(now["image"].to_pylist()) <= images
