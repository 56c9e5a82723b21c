"""Stores in a real Cassandra: made, examined, named wrongly, locked, out of reach."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.flight as fl
import pytest
from cassandra.cluster import Session
from conftest import Cassandra, StartCassandra, StartNode
from keyspaces import PATIENT, Bowstring, Keyspace, cql, new_keyspace, new_store
from ports import free_port
from wire import PATIENCE, UNREAD, act, stats, stream, ticket, until

__all__ = ["cql", "new_keyspace", "new_store"]  # fixtures

pytestmark = pytest.mark.slow


def test_store_init(
    new_keyspace: Callable[[], Keyspace], folder: Path, bowstring: Bowstring, start: StartNode, cql: Session
) -> None:
    """It alone makes a keyspace, with the number of replicas in its arguments."""
    keyspace = new_keyspace()
    for args in (["ls"], ["import", folder, "photos"], ["serve", "--listen", "127.0.0.1:0"], ["attach", "d", "k.t"]):
        done = bowstring(*args, "--store", keyspace.uri(), status=1)
        assert keyspace.name in done.stderr
        assert "bowstring store init" in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    done = bowstring("store", "init", "--store", keyspace.uri(), status=1)
    assert "--replication" in done.stderr
    bowstring("store", "init", "--replication", "mars=3", "--store", keyspace.uri(), status=1)
    described = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = %s"
    assert not list(cql.execute(described, [keyspace.name]))
    bowstring("store", "init", "--replication", "1", "--store", keyspace.uri())
    bowstring("store", "init", "--store", keyspace.uri())  # what is there stays
    assert cql.execute(described, [keyspace.name]).one().replication["datacenter1"] == "1"
    assert json.loads(bowstring("ls", "--json", "--store", keyspace.uri()).stdout) == []
    tables = {row.table_name for row in cql.execute(
        "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s", [keyspace.name])}  # fmt: skip
    assert {"blobs", "blob_parts", "catalog", "members"} <= tables
    with fl.connect(start(store=keyspace.uri()).url) as own:
        assert list(own.list_flights()) == []
        with pytest.raises(KeyError, match="photos"):
            own.get_flight_info(fl.FlightDescriptor.for_path("photos"))


def test_doctor(
    new_keyspace: Callable[[], Keyspace], bowstring: Bowstring, start: StartNode, cql: Session, tmp_path: Path
) -> None:
    """Errors of a keyspace are reported, with the statement that repairs it."""
    keyspace = new_keyspace()
    assert "store init" in bowstring("doctor", keyspace.uri(), status=1).stdout
    bowstring("store", "init", "--replication", "1", "--store", keyspace.uri())
    report = json.loads(bowstring("doctor", "--json", "--store", keyspace.uri()).stdout)
    assert report["worst"] == "warning"  # one node, one replica
    well = {f["check"] for f in report["findings"] if f["level"] == "ok"}
    assert well >= {"nodes", "latency", "clocks", "schema agreement", "consistency", "tables", "transactions"}
    cql.execute(f"ALTER TABLE {keyspace.name}.blob_parts WITH gc_grace_seconds = 0")
    out = bowstring("doctor", keyspace.uri(), status=1).stdout
    assert f"ALTER TABLE {keyspace.name}.blob_parts WITH gc_grace_seconds = 864000" in out
    start(store=keyspace.uri())
    log = tmp_path / "server0.log"
    until(lambda: "blob_parts has gc_grace_seconds = 0" in log.read_text(), "the server's mention of the problem")


def test_addresses_that_cannot_be_right(cassandra: str, bowstring: Bowstring) -> None:
    for uri, says in (
        (f"cql://{cassandra}", ["keyspace"]),
        (f"cql://{cassandra}/Photos", ["keyspace", "Photos", "lower-case"]),
        (f"cql://{cassandra}/system_auth", ["keyspace", "system_auth"]),
        (f"cql://{cassandra}/photos?timeuot=3s", ["timeuot", "timeout"]),
        (f"cql://{cassandra}/photos?timeout=3", ["timeout", "3"]),
        ("cql://localhost:0/photos", ["port", "0"]),
    ):
        done = bowstring("ls", "--store", uri, status=1)
        for part in says:
            assert part in done.stderr, f"{uri}: {done.stderr!r} does not say {part!r}"
    for uri in (f"cql://me:verysecret@{cassandra}/photos", f"cql://{cassandra}/photos?password=verysecret"):
        done = bowstring("ls", "--store", uri, status=1)
        assert "password_file" in done.stderr
        assert "verysecret" not in done.stderr


def test_no_node_answers(bowstring: Bowstring) -> None:
    port = free_port()
    for command_ in (["ls"], ["serve", "--listen", "127.0.0.1:0"], ["gc"]):
        done = bowstring(*command_, "--store", f"cql://127.0.0.1:{port}/photos?connect=2s", status=1)
        for part in ("127.0.0.1", str(port), "refused", "nodes are up"):
            assert part in done.stderr, done.stderr


@pytest.fixture(scope="module")
def guarded(start_cassandra: StartCassandra) -> Cassandra:
    """A node that wants a password, and that may be harmed."""
    return start_cassandra(AUTH="1")


def test_passwords(guarded: Cassandra, binary: Path, tmp_path: Path) -> None:
    uri = f"cql://{guarded.address}/photos?rf=1&conns=1{PATIENT}"
    wrong = tmp_path / "wrong"
    wrong.write_text("ABC-not-the-password\n")

    def run(uri: str, **environment: str) -> tuple[int, str]:
        done = subprocess.run(
            [binary, "store", "init", "--store", uri], check=False, capture_output=True, text=True, timeout=PATIENCE,
            env={k: v for k, v in os.environ.items() if not k.startswith("BOWSTRING_CQL")} | environment,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    for status, output in (
        run(uri),
        run(uri, BOWSTRING_CQL_USER="cassandra", BOWSTRING_CQL_PASSWORD="ABC-not-the-password"),
        run(f"{uri}&user=cassandra&password_file={wrong}"),
    ):
        assert status == 1
        assert "ABC-not-the-password" not in output
        for part in ("BOWSTRING_CQL_USER", "BOWSTRING_CQL_PASSWORD", "password_file"):
            assert part in output, output
    assert run(f"{uri}&user=cassandra&password_file={tmp_path / 'gone'}")[0] == 1
    status, output = run(uri, BOWSTRING_CQL_USER="cassandra", BOWSTRING_CQL_PASSWORD="cassandra")
    assert status == 0, output


def test_a_node_that_hangs_and_one_that_is_gone(
    guarded: Cassandra, folder: Path, tmp_path: Path, bowstring: Bowstring, start: StartNode
) -> None:
    password = tmp_path / "password"
    password.write_text("cassandra\n")
    uri = f"cql://{guarded.address}/hangs?rf=1&conns=2&connect=120s&user=cassandra&password_file={password}"
    for words in (["store", "init"], ["import", folder, "photos"]):
        bowstring(*words, "--store", f"{uri}&timeout=60s")
    uri += "&timeout=1s"
    node = start("--window-memory", "4MiB", "--read-timeout", "180s", store=uri)
    with fl.connect(node.url) as own, fl.connect(node.url) as watch, ThreadPoolExecutor(1) as pool:
        request: dict[str, Any] = {"dataset": "photos", "columns": ["id", "image"], "batch": 4, "shuffle": {"seed": 1}}
        whole = [row for piece in stream(own, ticket(**request)) for row in piece.data.to_pylist()]

        # A stream waits for a node that does not answer, and misses nothing.
        # How its rows are cut into batches depends on the memory there is.
        parts = stream(own, ticket(**request, epochs=UNREAD))
        first = next(parts)
        rows = (row for piece in parts for row in piece.data.to_pylist())
        guarded.signal(signal.SIGSTOP)
        try:
            before = stats(watch)["engine"]["retries"]
            rest = pool.submit(list, islice(rows, len(whole) - first.data.num_rows))
            until(lambda: stats(watch)["engine"]["retries"] > before, "a second attempt")
            assert not rest.done()
        finally:
            guarded.signal(signal.SIGCONT)
        assert first.data.to_pylist() + rest.result(timeout=PATIENCE) == whole
        act(own, "cancel", plan=first.about["plan"])

    # One that is gone ends it, with an error that says which sample, where, and that it may be tried again.
    node = start("--window-memory", "4MiB", "--read-timeout", "10s", store=uri)
    with fl.connect(node.url) as own:
        parts = stream(own, ticket(**request, epochs=UNREAD))
        next(parts)
        guarded.kill()
        with pytest.raises(fl.FlightUnavailableError) as caught:
            list(parts)
        for part in ("sample", "position", "photos@1", "image", guarded.address.rpartition(":")[2]):
            assert part in str(caught.value)
