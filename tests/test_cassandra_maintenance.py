"""Maintenance of a store in a real Cassandra: collections, copies, checks and repairs."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cassandra.cluster import Session
from keyspaces import Bowstring, Keyspace, cql, new_keyspace, new_store, rows_of

__all__ = ["cql", "new_keyspace", "new_store"]  # fixtures

pytestmark = pytest.mark.slow


def test_gc_frees_what_no_snapshot_has(
    new_store: Callable[[], Keyspace], folder: Path, tmp_path: Path, bowstring: Bowstring, cql: Session
) -> None:
    keyspace = new_store()
    some = tmp_path / "some"
    shutil.copytree(folder / "val", some / "val")
    bowstring("import", some, "photos", "--store", keyspace.uri())
    everything = sorted(some.rglob("*.jpg"))
    for path in everything[::2]:
        path.unlink()
    bowstring("import", some, "photos", "--store", keyspace.uri())
    before = rows_of(cql, keyspace, "blob_parts")

    def gc(*flags: str) -> dict[str, Any]:
        found = json.loads(bowstring("gc", *flags, "--json", "--store", keyspace.uri()).stdout)
        assert isinstance(found, dict)
        return found

    assert gc()["dead_blobs"] == 0  # snapshot 1 has them all
    bowstring("drop", "photos@1", "--yes", "--store", keyspace.uri())
    trial = gc("--dry-run")
    assert trial["freed_bytes"] == 0
    assert rows_of(cql, keyspace, "blob_parts") == before
    report = gc()
    dead = len(everything[::2]) + 1  # and the chunk of the first manifest
    assert trial["dead_blobs"] == report["dead_blobs"] == dead
    assert report["freed_bytes"] == report["dead_bytes"] > 0
    assert rows_of(cql, keyspace, "blob_parts") == before - dead
    out = tmp_path / "out"
    bowstring("get", "photos", "--to", out, "--format", "folder", "--store", keyspace.uri())
    assert sorted(p.read_bytes() for p in out.rglob("*.jpg")) == sorted(p.read_bytes() for p in everything[1::2])
    bowstring("drop", "photos", "--yes", "--store", keyspace.uri())
    gc()
    assert rows_of(cql, keyspace, "blob_parts") == rows_of(cql, keyspace, "blobs") == 0


def test_copied_here_and_back(
    new_store: Callable[[], Keyspace], folder: Path, tmp_path: Path, binary: Path, bowstring: Bowstring
) -> None:
    """Killed ten times on the way, a copy is what the original is: records, rows, blobs."""
    first, last, uri = tmp_path / "first", tmp_path / "last", new_store().uri()
    bowstring("import", folder, "photos", "--store", first)
    for source, target in ((first, uri), (uri, last)):
        for kill in range(5):
            # Slow enough to be under way when it is killed; what went over by then need not go again.
            copying: list[str | Path] = [binary, "copy", source, target, "photos", "--rate", "2MB", "--workers", "2"]
            with subprocess.Popen(copying, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.4 + 0.3 * kill)
                process.send_signal(signal.SIGKILL)
        report = json.loads(bowstring("copy", source, target, "photos", "--selections", "--json").stdout)
        assert [(s["snapshot"], s["as"]) for s in report["snapshots"]] == [(1, 1)]
        bowstring("verify", target)
    about = [bowstring("describe", "photos", "--json", "--store", store).stdout for store in (first, uri, last)]
    assert about[0] == about[1] == about[2]
    for name, store in (("first", first), ("last", last)):
        bowstring("get", "photos", "--store", store, "--to", tmp_path / f"{name}.arrow")
    assert (tmp_path / "first.arrow").read_bytes() == (tmp_path / "last.arrow").read_bytes()


def test_verified_and_repaired(
    new_store: Callable[[], Keyspace], folder: Path, tmp_path: Path, bowstring: Bowstring, cql: Session
) -> None:
    keyspace, saved = new_store(), tmp_path / "saved"
    bowstring("import", folder, "photos", "--split", "val", "--store", keyspace.uri())
    bowstring("copy", keyspace.uri(), saved, "--all")
    keys = sorted(bytes(row.key) for row in cql.execute(f"SELECT key FROM {keyspace.name}.blobs"))  # noqa: S608
    lost, spoiled = keys[:2]
    cql.execute(f"DELETE FROM {keyspace.name}.blob_parts WHERE key = %s AND part = 0", [lost])  # noqa: S608
    data = bytearray(
        cql.execute(f"SELECT data FROM {keyspace.name}.blob_parts WHERE key = %s AND part = 0", [spoiled]).one().data  # noqa: S608
    )
    data[len(data) // 2] ^= 1
    cql.execute(f"UPDATE {keyspace.name}.blob_parts SET data = %s WHERE key = %s AND part = 0", [bytes(data), spoiled])  # noqa: S608
    found = json.loads(bowstring("verify", keyspace.uri(), "--json", status=1).stdout)
    assert {d["key"] for d in found["damaged"]} == {lost.hex(), spoiled.hex()}
    assert all(d["in"] for d in found["damaged"])
    report = json.loads(bowstring("verify", keyspace.uri(), "--repair", "--from", saved, "--json").stdout)
    assert report["repaired"] == 2
    assert json.loads(bowstring("verify", keyspace.uri(), "--every-replica", "--json").stdout)["damaged"] == []
    other = new_store()
    bowstring("copy", saved, other.uri(), "--all")
    bowstring("verify", other.uri())
    about = [bowstring("describe", "photos", "--json", "--store", k.uri()).stdout for k in (keyspace, other)]
    assert about[0] == about[1]
