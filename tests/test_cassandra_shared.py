"""Several processes on one store in a real Cassandra."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from cassandra.cluster import Session
from conftest import StartNode
from keyspaces import Bowstring, Keyspace, cql, new_keyspace, new_store, rows_of
from wire import UNREAD, act, command, put, read, stream, ticket

__all__ = ["cql", "new_keyspace", "new_store"]  # fixtures

pytestmark = pytest.mark.slow

TRAIN = 270


def test_two_servers_on_one_keyspace(
    new_store: Callable[[], Keyspace], start: StartNode, folder: Path, bowstring: Bowstring
) -> None:
    uri = new_store().uri()
    bowstring("import", folder, "photos", "--split", "val", "--store", uri)
    with fl.connect(start(store=uri).url) as one, fl.connect(start(store=uri).url) as other:
        request: dict[str, Any] = {"dataset": "photos", "columns": ["id", "image"], "batch": 4, "shuffle": {"seed": 1}}
        # Ranks of one job at two servers.
        info = one.get_flight_info(command(**request, world={"size": 2}))
        parts = [read_ids(c, e) for c, e in zip((one, other), info.endpoints, strict=True)]
        assert Counter(parts[0] + parts[1]) == Counter(read(other, **request)["id"].to_pylist())
        # Each server serves what the other commits; earlier tickets stay valid.
        before = other.get_flight_info(command(**request))
        rows = pa.table({"key": [f"k{i}" for i in range(50)],
                         "image": pa.array([bytes([i]) * 1000 for i in range(50)], pa.large_binary())})  # fmt: skip
        put(one, rows, dataset="new", key="key")
        assert read(other, dataset="new")["image"].to_pylist() == rows["image"].to_pylist()
        put(other, rows.slice(10), dataset="new", key="key", mode="replace")
        assert act(one, "list", dataset="new")[0]["snapshots"] == [1, 2]
        assert read(one, dataset="new").num_rows == 40
        assert len(read_ids(other, before.endpoints[0])) == before.total_records
        # A selection that was uploaded here has a meaning there.
        writer, reader = one.do_put(command(selection={"dataset": "new"}), pa.schema([("position", pa.int64())]))
        with writer:
            writer.write_table(pa.table({"position": pa.array([3, 1, 8], pa.int64())}))
            writer.done_writing()
            name = json.loads(reader.read().to_pybytes())["selection"]
        picked = read(other, dataset="new", columns=["position"], selection={"name": name})
        assert picked["position"].to_pylist() == [1, 3, 8]


def read_ids(client: fl.FlightClient, endpoint: fl.FlightEndpoint) -> list[Any]:
    return [i for piece in stream(client, endpoint) for i in piece.data["id"].to_pylist()]


def test_two_importers_at_once(
    new_store: Callable[[], Keyspace], folder: Path, tmp_path: Path, binary: Path, bowstring: Bowstring,
    start: StartNode, cql: Session,
) -> None:  # fmt: skip
    """Into the same dataset, and at the same time into another: no commit is lost, and each blob is kept once."""
    keyspace = new_store()
    uri = keyspace.uri()
    again = tmp_path / "again"  # the same bytes under other names, so that both importers store them
    shutil.copytree(folder / "train", again / "test")
    bowstring("import", folder, "both", "--split", "val", "--store", uri)
    importers = [
        subprocess.Popen([binary, "import", source, name, "--split", split, "--mode", mode, "--store", uri],
                         stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for source, name, split, mode in ((folder, "both", "train", "append"), (again, "both", "test", "append"),
                                          (folder, "other", "val", "create"))
    ]  # fmt: skip
    for process in importers:
        _, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
    with fl.connect(start(store=uri).url) as own:
        (described,) = act(own, "list", dataset="both")
        assert {s["name"]: s["rows"] for s in described["splits"]} == {"train": TRAIN, "test": TRAIN, "val": 30}
        assert described["snapshots"] == [1, 2, 3]
        files = {p.name: p.read_bytes() for p in folder.rglob("*.jpg")}
        table = read(own, dataset="both", columns=["file_name", "split", "image"])
        assert all(r["image"] == files[Path(r["file_name"]).name] for r in table.to_pylist())
        assert read(own, dataset="other")["image"].to_pylist() == \
            read(own, dataset="both", split="val")["image"].to_pylist()  # fmt: skip
        # The chunks of manifests are blobs like others: "both" has three, and those of its third snapshot that lost
        # the race to be the second may be left for a collection.
        act(own, "gc")
        blobs = len(set(files.values())) + 3 + 1  # with a chunk for each of what was imported
        assert blobs <= rows_of(cql, keyspace, "blobs") <= blobs + 4  # the records of four snapshots, if they are large


def test_dropped_while_it_is_streamed(
    new_store: Callable[[], Keyspace], folder: Path, bowstring: Bowstring, start: StartNode
) -> None:
    """By another process, which collects right after: the stream's lease keeps what it reads."""
    keyspace = new_store()
    bowstring("import", folder, "photos", "--split", "train", "--store", keyspace.uri())
    with (
        fl.connect(start("--window-memory", "4MiB", store=keyspace.uri()).url) as reader,
        fl.connect(start(store=keyspace.uri()).url) as other,
    ):
        expected = read(other, dataset="photos", columns=["image"])["image"]
        parts = stream(reader, ticket(dataset="photos", columns=["image"], batch=4, epochs=UNREAD))
        first = next(parts)
        images = (image for piece in chain([first], parts) for image in piece.data["image"].to_pylist())
        assert act(other, "drop", dataset="photos")[0]["dropped"] == [1]
        assert act(other, "gc")[0]["dead_blobs"] == 0
        with pytest.raises(KeyError):
            other.get_flight_info(fl.FlightDescriptor.for_path("photos"))
        assert list(islice(images, len(expected))) == expected.to_pylist()
        act(reader, "cancel", plan=first.about["plan"])
    bowstring("gc", "--store", keyspace.uri())
