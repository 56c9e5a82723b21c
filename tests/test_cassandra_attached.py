"""Tables of other programs in a real Cassandra, served as they are."""

from __future__ import annotations

import json
import shutil
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from cassandra.cluster import Session
from cassandra.concurrent import execute_concurrent_with_args
from conftest import StartNode
from keyspaces import Bowstring, Keyspace, cql, new_keyspace, new_store
from wire import act, read

__all__ = ["cql", "new_keyspace", "new_store"]  # fixtures

pytestmark = pytest.mark.slow


class Foreign(NamedTuple):
    keyspace: str
    rows: dict[uuid.UUID, dict[str, Any]]


@pytest.fixture(scope="module")
def foreign(new_keyspace: Callable[[], Keyspace], cql: Session, folder: Path) -> Foreign:
    """Tables as the examples of cassandra-dali-plugin make them, with the photographs."""
    name = new_keyspace().name
    cql.execute(f"CREATE KEYSPACE {name} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}")
    cql.execute(
        f"CREATE TABLE {name}.data (id uuid, label int, data blob, PRIMARY KEY ((id))) "
        "WITH compression = {'enabled': 'false'}"
    )
    cql.execute(f"CREATE TABLE {name}.metadata (id uuid, or_label text, or_split text, label int, PRIMARY KEY ((id)))")
    classes = sorted(p.name for p in (folder / "train").iterdir())
    rows = {
        uuid.uuid5(uuid.NAMESPACE_URL, str(path.relative_to(folder))): {
            "data": path.read_bytes(),
            "label": classes.index(path.parent.name),
            "or_label": path.parent.name,
            "or_split": path.parent.parent.name,
        }
        for path in folder.rglob("*.jpg")
    }
    for table, columns in (("data", ["label", "data"]), ("metadata", ["or_label", "or_split", "label"])):
        marks = ", ".join("?" * len(columns))
        insert = cql.prepare(f"INSERT INTO {name}.{table} (id, {', '.join(columns)}) VALUES (?, {marks})")  # noqa: S608
        values = [(i, *(row[c] for c in columns)) for i, row in rows.items()]
        execute_concurrent_with_args(cql, insert, values, concurrency=16)
    return Foreign(name, rows)


def test_attached_tables_are_served_as_they_are(
    foreign: Foreign, new_store: Callable[[], Keyspace], bowstring: Bowstring, start: StartNode, cql: Session
) -> None:
    store = new_store().uri()
    done = bowstring("attach", "plugin", f"{foreign.keyspace}.data", "--metadata", f"{foreign.keyspace}.metadata",
                     "--split-column", "or_split", "--media", "image", "--json", "--store", store)  # fmt: skip
    report = json.loads(done.stdout)
    assert report["rows"] == len(foreign.rows)
    assert report["bytes"] == sum(len(row["data"]) for row in foreign.rows.values())
    with fl.connect(start(store=store).url) as own:
        splits = {s["name"]: s["rows"] for s in act(own, "list", dataset="plugin")[0]["splits"]}
        assert splits == Counter(row["or_split"] for row in foreign.rows.values())
        table = read(own, dataset="plugin", columns=["id", "label", "or_label", "or_split", "split", "data"],
                     shuffle={"seed": 1})  # fmt: skip
        got = {r["id"]: r for r in table.to_pylist()}
        assert len(got) == table.num_rows
        assert {i: {c: r[c] for c in ("data", "label", "or_label", "or_split")} for i, r in got.items()} == foreign.rows
        assert all(r["split"] == r["or_split"] for r in got.values())
        picked = read(own, dataset="plugin", columns=["id"], where='label == 2 and or_split == "val"')["id"].to_pylist()
        assert set(picked) == {i for i, r in foreign.rows.items() if r["label"] == 2 and r["or_split"] == "val"}

        # A cell that its owner changes is found out, whatever its size, and named.
        (harmed, row), *_ = foreign.rows.items()
        change = cql.prepare(f"UPDATE {foreign.keyspace}.data SET data = ? WHERE id = ?")  # noqa: S608
        cql.execute(change, (row["data"][::-1], harmed))
        try:
            with pytest.raises(pa.ArrowException, match=str(harmed)):
                read(own, dataset="plugin", columns=["data"])
            table = read(own, dataset="plugin", columns=["id", "data"], on_error="null")
            assert [r["id"] for r in table.to_pylist() if r["data"] is None] == [harmed]
        finally:
            cql.execute(change, (row["data"], harmed))
        assert read(own, dataset="plugin", columns=["data"])["data"].null_count == 0


@pytest.mark.parametrize("gone", ["TABLE {}.plain", "KEYSPACE {}"])
def test_an_attached_table_that_was_dropped(
    gone: str,
    new_keyspace: Callable[[], Keyspace],
    new_store: Callable[[], Keyspace],
    bowstring: Bowstring,
    start: StartNode,
    cql: Session,
) -> None:
    """Its bytes are lost: the error names the table, on_error goes on without them, and verify lists each."""
    name, store = new_keyspace().name, new_store().uri()
    cql.execute(f"CREATE KEYSPACE {name} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}")
    cql.execute(f"CREATE TABLE {name}.plain (id uuid PRIMARY KEY, data blob)")
    insert = cql.prepare(f"INSERT INTO {name}.plain (id, data) VALUES (?, ?)")  # noqa: S608
    for i in range(5):
        cql.execute(insert, (uuid.UUID(int=i + 1), bytes([i]) * 10))
    bowstring("attach", "plain", f"{name}.plain", "--store", store)
    with fl.connect(start(store=store).url) as own:
        assert read(own, dataset="plain", columns=["data"])["data"].null_count == 0
        cql.execute("DROP " + gone.format(name))
        with pytest.raises(pa.ArrowException, match=rf"(?s){name}\.plain.*DATA_LOSS|data loss.*{name}\.plain"):
            read(own, dataset="plain", columns=["data"])
        assert read(own, dataset="plain", columns=["data"], on_error="null")["data"].null_count == 5
        with pytest.raises(pa.ArrowException, match="data loss"):  # there is no whole sample to put in
            read(own, dataset="plain", columns=["data"], on_error="skip")
    report = json.loads(bowstring("verify", store, "--json", status=1).stdout)
    assert len(report["damaged"]) == 5
    assert all(name in d["problem"] for d in report["damaged"])


def test_attach_refuses(
    foreign: Foreign, new_store: Callable[[], Keyspace], folder: Path, bowstring: Bowstring, cql: Session
) -> None:
    store = new_store().uri()
    bowstring("import", folder, "photos", "--split", "val", "--store", store)
    cql.execute(f"CREATE TABLE {foreign.keyspace}.clustered (id uuid, n int, data blob, PRIMARY KEY ((id), n))")
    cql.execute(f"CREATE TABLE {foreign.keyspace}.empty (id uuid PRIMARY KEY, data blob)")
    table = f"{foreign.keyspace}.data"
    for args, says in (
        (["d", f"{foreign.keyspace}.nothing"], [f"{foreign.keyspace}.nothing"]),
        (["data", "d"], ["data", "KEYSPACE.TABLE"]),
        (["d", f"{foreign.keyspace}.clustered"], ["clustered", "primary key of one uuid"]),
        (["d", f"{foreign.keyspace}.empty"], ["no rows"]),
        (["d", f"{foreign.keyspace}.metadata"], ["no blob column"]),
        (["d", table, "--columns", "data,lable"], ["lable", "label"]),
        (["d", table, "--split-column", "label"], ["label", "text"]),
        (["photos", table], ["photos", "append", "replace"]),
        (["a/b", table], ["a/b"]),
    ):
        done = bowstring("attach", *args, "--store", store, status=1)
        for part in says:
            assert part in done.stderr, f"{args}: {done.stderr!r} does not say {part!r}"
    assert {d["dataset"] for d in json.loads(bowstring("ls", "--json", "--store", store).stdout)} == {"photos"}


def test_attach_takes_what_is_new(
    new_keyspace: Callable[[], Keyspace], new_store: Callable[[], Keyspace], bowstring: Bowstring, cql: Session
) -> None:
    """A table of nothing but ids and blobs, which grows, is attached again."""
    name, store = new_keyspace().name, new_store().uri()
    cql.execute(f"CREATE KEYSPACE {name} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}")
    cql.execute(f"CREATE TABLE {name}.plain (id uuid PRIMARY KEY, data blob)")
    insert = cql.prepare(f"INSERT INTO {name}.plain (id, data) VALUES (?, ?)")  # noqa: S608

    def attach(*args: str, status: int = 0) -> str:
        done = bowstring("attach", "plain", f"{name}.plain", *args, "--json", "--store", store, status=status)
        return done.stderr if status else done.stdout

    for i in range(20):
        cql.execute(insert, (uuid.UUID(int=i + 1), bytes([i]) * 10))
    assert json.loads(attach()) == {"dataset": "plain", "snapshot": 1, "rows": 20, "bytes": 200, "done": 1,
                                    "no_metadata": 0, "no_sample": 0, "skipped": 0}  # fmt: skip
    (listed,) = json.loads(bowstring("ls", "--json", "--store", store).stdout)
    assert (listed["split"], listed["rows"]) == ("train", 20)
    assert "20 of the ids are in plain@1 already" in attach("--mode", "append", status=1)
    assert "--mode append" in attach("--skip-existing", status=2)
    for i in range(20, 25):
        cql.execute(insert, (uuid.UUID(int=i + 1), bytes([i]) * 10))
    for snapshot, rows, skipped in ((2, 5, 20), (2, 0, 25)):
        report = json.loads(attach("--mode", "append", "--skip-existing"))
        assert (report["snapshot"], report["rows"], report["skipped"]) == (snapshot, rows, skipped)


def test_a_keyspace_of_somebody_else(foreign: Foreign, cassandra: str, bowstring: Bowstring, cql: Session) -> None:
    cql.execute(f"CREATE TABLE IF NOT EXISTS {foreign.keyspace}.blobs (id uuid PRIMARY KEY, data blob)")
    done = bowstring("store", "init", "--store", Keyspace(cassandra, foreign.keyspace).uri(), status=1)
    assert f"keyspace {foreign.keyspace} has a table blobs" in done.stderr


def test_attached_tables_are_verified(
    foreign: Foreign, new_store: Callable[[], Keyspace], bowstring: Bowstring, tmp_path: Path
) -> None:
    store = new_store().uri()
    bowstring("attach", "plugin", f"{foreign.keyspace}.data", "--store", store)
    found = json.loads(bowstring("verify", store, "--json").stdout)
    assert found["damaged"] == []
    assert found["blobs"] == len(foreign.rows) + 1  # and a manifest chunk
    bowstring("copy", store, tmp_path / "copy", "plugin")
    found = json.loads(bowstring("verify", tmp_path / "copy", "--json").stdout)
    assert (found["damaged"], found["blobs"]) == ([], len(foreign.rows) + 1)


def test_copied_by_reference_into_a_bucket(
    foreign: Foreign, new_store: Callable[[], Keyspace], bowstring: Bowstring, folder: Path, tmp_path: Path
) -> None:
    """Attached objects of a bucket are copied by reference to a store in a bucket; cells of tables are refused."""
    store, here, there = new_store().uri(), f"file://{tmp_path}/here", tmp_path / "there"
    photos = tmp_path / "photos"
    shutil.copytree(folder / "val", photos)
    bowstring("store", "init", "--store", here)
    bowstring("attach", f"file://{photos}", "photos", "--store", store)
    bowstring("copy", store, here, "photos", "--attached=reference")
    bowstring("copy", here, there, "photos", "--attached=reference")
    for at in (store, here, there):
        bowstring("get", "photos", "--store", at, "--to", tmp_path / "photos.arrow", "--force")
        with pa.ipc.open_file(tmp_path / "photos.arrow") as file:
            rows = file.read_all()
        assert sorted(rows["image"].to_pylist()) == sorted(p.read_bytes() for p in photos.rglob("*.jpg"))
        assert json.loads(bowstring("verify", at, "--json").stdout)["damaged"] == []
    bowstring("attach", "plugin", f"{foreign.keyspace}.data", "--store", store)
    done = bowstring("copy", store, here, "plugin", "--attached=reference", status=1)
    assert f"cells of table {foreign.keyspace}.data.data" in done.stderr
    assert "copy them by value" in done.stderr
    bowstring("copy", store, here, "plugin")
    assert json.loads(bowstring("verify", here, "plugin", "--json").stdout)["damaged"] == []
