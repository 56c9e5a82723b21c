"""Uploads by DoPut: create, append, replace; nothing is seen of one that did not end well."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import hashlib
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from node import Node
from wire import act, command, decode, put, read, stats, stream


def table(first: int, rows: int, size: int = 1000) -> pa.Table:
    """Rows that differ from each other and can be identified by their key."""
    keys = range(first, first + rows)
    blobs = [hashlib.shake_128(str(k).encode()).digest(size + k % 97) for k in keys]
    return pa.table(
        {
            "name": pa.array([f"row-{k:06d}" for k in keys]),
            "score": pa.array([k / 2 for k in keys], pa.float32()),
            "image": pa.array(blobs, pa.large_binary()),
        }
    )


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, binary: Any) -> Iterator[str]:
    root = tmp_path_factory.mktemp("put")
    with Node(binary, root / "store", log=root / "log") as own:
        yield own.url


@pytest.fixture
def client(url: str) -> Iterator[fl.FlightClient]:  # an empty server instead of the shared one
    with fl.connect(url) as connected:
        yield connected


def stored(client: fl.FlightClient, dataset: str, **request: Any) -> pa.Table:
    return read(client, dataset=dataset, columns=["name", "score", "image"], **request)


def absent(client: fl.FlightClient, dataset: str) -> bool:
    return act(client, "list", dataset=dataset) == []


def test_create_append_replace(client: fl.FlightClient) -> None:
    a, b, c = table(0, 500), table(500, 300), table(1000, 10)
    done = put(client, a, dataset="life", key="name", source="a test")
    assert (done["dataset"], done["snapshot"], done["rows"], done["changed"]) == ("life", 1, 500, True)
    assert stored(client, "life").equals(a)

    done = put(client, b, dataset="life", key="name", mode="append")
    assert (done["snapshot"], done["rows"]) == (2, 300)
    assert stored(client, "life").equals(pa.concat_tables([a, b]))

    done = put(client, c, dataset="life", key="name", mode="replace")
    assert (done["snapshot"], done["rows"]) == (3, 10)
    assert stored(client, "life").equals(c)

    # Old snapshots stay as they were.
    assert stored(client, "life", snapshot=1).equals(a)
    assert stored(client, "life", snapshot=2).equals(pa.concat_tables([a, b]))
    assert act(client, "describe", dataset="life", snapshot=1)[0]["source"] == "a test"
    assert act(client, "list", dataset="life")[0]["snapshots"] == [1, 2, 3]


def test_merge(client: fl.FlightClient) -> None:
    """Columns by key, with nothing but pyarrow, as docs/protocol.md shows it."""
    whole = table(0, 500)
    put(client, whole, dataset="merged", key="name")
    graded = pa.table({"name": ["row-000003", "row-000400"], "grade": ["a", "b"]})
    done = put(client, graded, dataset="merged", mode="merge", on="name")
    assert done == {
        "dataset": "merged", "snapshot": 2, "rows": 2, "changed": True, "matched": 2, "inserted": 0, "ignored": 0,
        "deleted": 0,
    }  # fmt: skip
    grades = read(client, dataset="merged", columns=["grade"])["grade"].to_pylist()
    assert [(n, g) for n, g in enumerate(grades) if g] == [(3, "a"), (400, "b")]
    assert stored(client, "merged").equals(whole)
    done = put(client, graded.select(["name"]), dataset="merged", mode="delete", on="name")
    assert (done["snapshot"], done["deleted"]) == (3, 2)
    (done,) = act(client, "alter", dataset="merged", drop_columns=["grade"], delete_where="score >= 10")
    assert (done["snapshot"], done["rows"], done["deleted"]) == (4, 19, 479)
    with pytest.raises(pa.ArrowInvalid, match='would drop "image"'):
        put(client, whole.select(["name", "score"]), dataset="merged", mode="replace", key="name")


def test_repeating_an_upload_changes_nothing(client: fl.FlightClient) -> None:
    rows = table(0, 100)
    put(client, rows, dataset="again", key="name")
    ids = read(client, dataset="again", columns=["id"])["id"].to_pylist()
    before = stats(client)["store"]
    done = put(client, rows, dataset="again", key="name", mode="replace")
    assert (done["snapshot"], done["changed"]) == (1, False)
    assert read(client, dataset="again", columns=["id"])["id"].to_pylist() == ids
    assert stats(client)["store"]["blob_dedups"] - before["blob_dedups"] >= 100


def test_acknowledgements_count_rows_and_bytes(client: fl.FlightClient) -> None:
    rows = table(0, 100)
    writer, reader = client.do_put(command(put={"dataset": "acks"}), rows.schema)
    with writer:
        sent = size = 0
        for n, batch in enumerate(rows.to_batches(max_chunksize=30)):
            writer.write_batch(batch)
            sent += batch.num_rows
            size += sum(len(b.as_py()) for b in batch["image"])
            assert decode(reader.read()) == {"batch": n, "rows": sent, "bytes": size}
        assert absent(client, "acks")  # not before the stream has ended
        writer.done_writing()
        assert decode(reader.read())["snapshot"] == 1
        assert reader.read() is None
    assert not absent(client, "acks")


def test_splits_by_path_and_append(client: fl.FlightClient) -> None:
    for path, rows in ((("sets", "train"), table(0, 20)), (("sets", "val"), table(20, 5))):
        request: dict[str, Any] = {"dataset": path[0], "split": path[1], "key": "name"}
        if path[1] == "train":
            writer, reader = client.do_put(fl.FlightDescriptor.for_path(*path), rows.schema)
            with writer:
                writer.write_table(rows)
                writer.done_writing()
                while reader.read() is not None:
                    pass
        else:
            put(client, rows, **request, mode="append")
    assert stored(client, "sets", split="val").equals(table(20, 5))
    assert client.get_flight_info(fl.FlightDescriptor.for_path("sets", "train")).total_records == 20


@pytest.mark.parametrize("end", ["killed", "timed out", "raised"])
def test_an_upload_that_did_not_end_leaves_nothing(client: fl.FlightClient, url: str, end: str) -> None:
    name = f"half-{end[:5]}"
    before = stats(client)["store"]["blob_writes"]
    first = {"killed": 5000, "timed out": 6000, "raised": 7000}[end]  # rows of its own
    if end == "killed":
        script = """
import sys, json, os, pyarrow as pa, pyarrow.flight as fl
client = fl.connect(sys.argv[1])
batch = pa.record_batch({"image": pa.array([os.urandom(1000) for _ in range(50)], pa.large_binary())})
writer, reader = client.do_put(fl.FlightDescriptor.for_path(sys.argv[2]), batch.schema)
writer.write_batch(batch)
reader.read()
print("sent", flush=True)
sys.stdin.read()
"""
        with subprocess.Popen(
            [sys.executable, "-c", script, url, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"sent\n"
            process.kill()
    else:
        rows = table(first, 50)
        request = command(put={"dataset": name, "commit": "message" if end == "raised" else "end"})
        for seconds in (1, 5, 25) if end == "timed out" else (60,):
            options = fl.FlightCallOptions(timeout=seconds)
            writer, reader = client.do_put(request, rows.schema, options=options)
            begun = False  # if it has timed out already, it is tried with more time
            with contextlib.suppress(*([fl.FlightError, pa.ArrowException] if end == "timed out" else [])):
                writer.write_table(rows)
                begun = reader.read() is not None
            if end == "timed out":
                assert not begun or reader.read() is None
                # Server and client keep time each by itself. Where the server is first, the call was cancelled.
                with pytest.raises((fl.FlightTimedOutError, fl.FlightCancelledError)):
                    writer.close()
            else:
                with pytest.raises(pa.ArrowInvalid, match="commit"):
                    writer.close()  # as `with` does when its block raises; no commit message was sent
            if begun:
                break
        assert begun
    assert stats(client)["store"]["blob_writes"] > before  # it had begun
    assert absent(client, name)
    # The name is free, and what was uploaded before is no obstacle.
    assert put(client, table(first, 50), dataset=name, key="name")["snapshot"] == 1


def test_commit_by_message(client: fl.FlightClient) -> None:
    rows = table(0, 40)
    for said, fine in ((39, False), (40, True)):
        writer, reader = client.do_put(command(put={"dataset": "said", "commit": "message"}), rows.schema)
        writer.write_table(rows)
        writer.write_metadata(json.dumps({"commit": True, "rows": said}).encode())
        writer.done_writing()
        if fine:
            assert decode(reader.read())["rows"] == 40
            assert decode(reader.read())["snapshot"] == 1
            writer.close()
        else:
            with pytest.raises(pa.ArrowInvalid, match="39"):
                writer.close()
            assert absent(client, "said")


def test_a_20_mb_image_goes_both_ways(client: fl.FlightClient) -> None:
    images = [os.urandom(20_000_000), b"small", os.urandom(21_000_001)]
    put(client, pa.table({"n": [0, 1, 2], "image": pa.array(images, pa.large_binary())}), rows=2, dataset="huge")
    info = client.get_flight_info(command(dataset="huge", columns=["image", "n"]))
    assert info.total_bytes >= sum(map(len, images))
    got = client.do_get(info.endpoints[0].ticket).read_all()
    assert [i.as_py() for i in got["image"]] == images
    shuffled = read(client, dataset="huge", columns=["image", "n"], shuffle={"seed": 3}, batch_bytes=1_000_000)
    assert {r["n"]: r["image"] for r in shuffled.to_pylist()} == dict(enumerate(images))
    writer, reader = client.do_exchange(command(take={"dataset": "huge", "columns": ["image"]}))
    with writer:
        writer.begin(pa.schema([("position", pa.int64())]))
        writer.write_batch(pa.record_batch({"position": [2, 0]}))
        writer.done_writing()
        assert [i.as_py() for c in reader for i in c.data["image"]] == [images[2], images[0]]


def test_ids_may_be_given(client: fl.FlightClient) -> None:
    ids = [uuid.UUID(int=n + 1) for n in range(3)]
    for dataset, array in (
        ("ids-uuid", pa.array([i.bytes for i in ids], pa.uuid())),
        ("ids-bytes", pa.array([i.bytes for i in ids], pa.binary(16))),
        ("ids-text", pa.array([str(i) for i in ids])),
    ):
        put(client, pa.table({"id": array, "x": [1, 2, 3]}), dataset=dataset, blobs=[])
        assert read(client, dataset=dataset, columns=["id"])["id"].to_pylist() == ids


def test_hugging_face_columns_are_taken_apart(client: fl.FlightClient) -> None:
    cells = [{"bytes": b"one", "path": "a/1.jpg"}, {"bytes": b"two", "path": "a/2.jpg"}, None]
    column = pa.array(cells, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    put(client, pa.table({"image": column, "label": [0, 1, 0]}), dataset="hf")
    plain = read(client, dataset="hf")
    assert plain["image"].to_pylist() == [b"one", b"two", None]
    assert plain["file_name"].to_pylist() == ["a/1.jpg", "a/2.jpg", None]
    back = read(client, dataset="hf", columns=["image"], layout="huggingface")
    assert back["image"].to_pylist() == cells


def test_metadata_types_come_back_as_they_were(client: fl.FlightClient) -> None:
    rows = pa.table(
        {
            "b": pa.array([True, None, False]),
            "i8": pa.array([1, None, -128], pa.int8()),
            "u64": pa.array([2**64 - 1, None, 0], pa.uint64()),
            "f": pa.array([1.5, None, float("inf")], pa.float64()),
            "s": pa.array(["ä", None, ""]),
            "ls": pa.array(["x", None, "y"], pa.large_string()),
            "fsb": pa.array([b"abc", None, b"def"], pa.binary(3)),
            "d": pa.array([dt.date(2020, 2, 29), None, dt.date(1969, 1, 1)]),
            "ts": pa.array([0, None, 10**15], pa.timestamp("us", "UTC")),
            "dec": pa.array([decimal.Decimal("1.25"), None, decimal.Decimal("-3.00")], pa.decimal128(10, 2)),
            "list": pa.array([[1.0, 2.0], None, []], pa.list_(pa.float32())),
            "box": pa.array([[1, 2, 3, 4], None, [5, 6, 7, 8]], pa.list_(pa.int32(), 4)),
            "struct": pa.array([{"x": 1, "y": "a"}, None, {"x": None, "y": "b"}]),
            "image": pa.array([b"1", None, b"3"], pa.large_binary()),
        }
    )
    put(client, rows, dataset="types")
    assert read(client, dataset="types", columns=rows.column_names).equals(rows)
    reverse = read(client, dataset="types", columns=rows.column_names, shuffle={"seed": 5}, batch=2)
    order = read(client, dataset="types", columns=["position"], shuffle={"seed": 5}, batch=2)["position"]
    assert reverse.equals(rows.take(order))


def test_dictionaries_are_stored_as_their_values(client: fl.FlightClient) -> None:
    words = pa.array(["cat", "dog", "cat"]).dictionary_encode()
    put(client, pa.table({"word": words}), dataset="words")
    assert read(client, dataset="words", columns=["word"])["word"].to_pylist() == ["cat", "dog", "cat"]


def test_a_selection_is_uploaded_and_named(client: fl.FlightClient) -> None:
    put(client, table(0, 100), dataset="chosen", key="name")
    wanted = [90, 5, 33]
    names = []
    for column in ("position", "id"):
        if column == "position":
            rows = pa.table({"position": pa.array(wanted, pa.int64())})
        else:
            ids = read(client, dataset="chosen", columns=["id"])["id"].combine_chunks()
            rows = pa.table({"id": ids.take(pa.array(wanted[::-1]))})
        writer, reader = client.do_put(command(selection={"dataset": "chosen"}), rows.schema)
        with writer:
            writer.write_table(rows)
            writer.done_writing()
            said = decode(reader.read())
        assert (said["dataset"], said["snapshot"], said["rows"]) == ("chosen", 1, 3)
        names.append(said["selection"])
    assert names[0] == names[1]
    request = {"dataset": "chosen", "columns": ["position"], "selection": {"name": names[0]}}
    assert read(client, **request)["position"].to_pylist() == sorted(wanted)
    ranks = client.get_flight_info(command(**request, world={"size": 2}, shuffle={"seed": 1})).endpoints
    assert sorted(p for e in ranks for s in stream(client, e) for p in s.data["position"].to_pylist()) == sorted(wanted)


def test_two_writers_at_once(url: str) -> None:
    with fl.connect(url) as one, fl.connect(url) as two:
        put(one, table(0, 10), dataset="race", key="name")
        uploads = []
        for client, first in ((one, 10), (two, 20)):
            rows = table(first, 10)
            writer, reader = client.do_put(
                command(put={"dataset": "race", "key": "name", "mode": "append"}), rows.schema
            )
            writer.write_table(rows)
            assert decode(reader.read())["rows"] == 10
            uploads.append((writer, reader))
        outcomes = []
        for writer, reader in uploads:
            writer.done_writing()
            try:
                outcomes.append(decode(reader.read())["snapshot"])
                writer.close()
            except fl.FlightUnavailableError as e:
                outcomes.append("race" in str(e))
        # Either the second gets an error that says to try again, or its rows come after the first's: never are rows
        # lost.
        rows_now = read(one, dataset="race", columns=["name"]).num_rows
        assert outcomes == [2, True] or (outcomes == [2, 3] and rows_now == 30)
