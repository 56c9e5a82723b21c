"""The store in a real Cassandra: epochs, tables of other programs, several processes, and what can go wrong."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.concurrent import execute_concurrent_with_args
from cassandra.policies import RoundRobinPolicy
from conftest import Cassandra, StartCassandra, StartNode, free_port
from node import Node
from wire import PATIENCE, UNREAD, act, command, put, read, stats, stream, ticket, until

pytestmark = pytest.mark.slow

Bowstring = Callable[..., subprocess.CompletedProcess[str]]
TRAIN = 270


class Keyspace(NamedTuple):
    """A keyspace that no other test uses."""

    address: str  # HOST:PORT
    name: str

    def uri(self, parameters: str = "") -> str:
        """The address of a store in it."""
        return f"cql://{self.address}/{self.name}?conns=2{parameters}"


@pytest.fixture(scope="module")
def cql(cassandra: str) -> Iterator[Session]:
    """A session of the driver that other programs use."""
    host, _, port = cassandra.rpartition(":")
    profile = ExecutionProfile(RoundRobinPolicy(), request_timeout=60)
    with Cluster(
        [host], port=int(port), protocol_version=4, execution_profiles={EXEC_PROFILE_DEFAULT: profile}
    ) as cluster:
        yield cluster.connect()


@pytest.fixture(scope="module")
def new_keyspace(cassandra: str, cql: Session) -> Iterator[Callable[[], Keyspace]]:
    """Name keyspaces, and drop them at the end: a server of this size has room for few."""
    names: list[str] = []

    def begin() -> Keyspace:
        names.append(f"py{os.getpid()}_{len(names)}")
        return Keyspace(cassandra, names[-1])

    yield begin
    for name in names:
        cql.execute(f"DROP KEYSPACE IF EXISTS {name}")


@pytest.fixture(scope="module")
def new_store(new_keyspace: Callable[[], Keyspace], bowstring: Bowstring) -> Callable[[], Keyspace]:
    """Make stores in keyspaces of their own."""

    def begin() -> Keyspace:
        keyspace = new_keyspace()
        bowstring("store", "init", "--replication", "1", "--store", keyspace.uri())
        return keyspace

    return begin


@pytest.fixture(scope="module")
def filled(new_store: Callable[[], Keyspace], folder: Path, bowstring: Bowstring) -> Keyspace:
    """A keyspace into which the folder was imported as `photos`. The tests only read it."""
    keyspace = new_store()
    bowstring("import", folder, "photos", "--store", keyspace.uri())
    return keyspace


@pytest.fixture(scope="module")
def cql_node(filled: Keyspace, binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A server of that keyspace."""
    with Node(binary, filled.uri(), log=tmp_path_factory.mktemp("cql") / "server.log") as node:
        yield node


@pytest.fixture
def remote(cql_node: Node) -> Iterator[fl.FlightClient]:
    """A connection to it; `client` is one to a server of the same photographs in the embedded store."""
    with fl.connect(cql_node.url) as connected:
        yield connected


def ids(pieces: Any) -> list[Any]:
    return [i for p in pieces for i in p.data["id"].to_pylist()]


# --- an import, served ---------------------------------------------------------------------------------------------


def test_images_are_the_files(remote: fl.FlightClient, folder: Path) -> None:
    files = {p.name: p.read_bytes() for p in folder.rglob("*.jpg")}
    for shuffle in ({"seed": 8, "epoch": 0}, {"seed": 8, "epoch": 1}):
        table = read(remote, dataset="photos", columns=["image", "file_name"], shuffle=shuffle)
        assert table.num_rows == len(files)
        assert {Path(r["file_name"]).name: r["image"] for r in table.to_pylist()} == files


def test_it_serves_what_the_embedded_store_serves(remote: fl.FlightClient, client: fl.FlightClient) -> None:
    """Where samples are kept changes neither ids, nor order, nor a byte."""
    request: dict[str, Any] = {
        "dataset": "photos",
        "batch": 16,
        "shuffle": {"seed": 3, "epoch": 7},
        "world": {"size": 3},
    }
    here, there = (read(c, **request) for c in (client, remote))
    assert here == there
    assert here.schema.equals(there.schema, check_metadata=True)


@pytest.mark.parametrize("world", [1, 3, 8])
@pytest.mark.parametrize("epoch", [0, 1])
def test_every_sample_exactly_once_over_the_ranks(remote: fl.FlightClient, world: int, epoch: int) -> None:
    everything = Counter(read(remote, dataset="photos", split="train", columns=["id"])["id"].to_pylist())
    assert len(everything) == TRAIN
    info = remote.get_flight_info(
        command(dataset="photos", split="train", columns=["id", "image"], batch=16, world={"size": world},
                shuffle={"seed": 11, "epoch": epoch})
    )  # fmt: skip
    with ThreadPoolExecutor(world) as pool:
        ranks = list(pool.map(lambda endpoint: ids(stream(remote, endpoint)), info.endpoints))
    assert sum(map(Counter, ranks), Counter[Any]()) == everything


def test_where(remote: fl.FlightClient) -> None:
    everything = read(remote, dataset="photos", columns=["id", "width", "label", "file_name"]).to_pylist()
    before = stats(remote)["engine"]["reads"]
    cases: list[tuple[str, Callable[[dict[str, Any]], bool]]] = [
        ("width > 500 and label in [2, 5]", lambda r: r["width"] > 500 and r["label"] in (2, 5)),
        ('file_name contains "3"', lambda r: "3" in r["file_name"]),
        ("label == 1 or width < 0", lambda r: r["label"] == 1),
    ]
    for where, right in cases:
        wanted = [r["id"] for r in everything if right(r)]
        assert 0 < len(wanted) < len(everything)
        assert read(remote, dataset="photos", columns=["id"], where=where)["id"].to_pylist() == wanted
    assert stats(remote)["engine"]["reads"] == before  # the manifest says it all
    table = read(remote, dataset="photos", columns=["image"], where="label == 1")
    assert stats(remote)["engine"]["reads"] - before == table.num_rows


def test_resume_on_another_server(filled: Keyspace, remote: fl.FlightClient, start: StartNode) -> None:
    request: dict[str, Any] = {"dataset": "photos", "columns": ["id", "image"], "batch": 8, "batch_bytes": 250_000,
                               "shuffle": {"seed": 3, "epoch": 1}}  # fmt: skip
    everything = ticket(**request, epochs=UNREAD)
    whole = ids(stream(remote, everything))
    first = start("--window-memory", "8MiB", store=filled.uri())
    with fl.connect(first.url) as own:
        parts = stream(own, everything)
        served = [next(parts) for _ in range(9)]
        first.kill()
        with pytest.raises((fl.FlightUnavailableError, fl.FlightInternalError)):
            list(parts)  # what is on its way still arrives, and is not counted
    assert 0 < len(ids(served)) < len(whole)
    with fl.connect(start(store=filled.uri()).url) as own:
        assert ids(served) + ids(stream(own, ticket(**served[-1].about["resume"]))) == whole


def test_the_counters_say_what_was_read(remote: fl.FlightClient, cql_node: Node) -> None:
    before = stats(remote)
    table = read(remote, dataset="photos", columns=["image"], selection={"positions": list(range(0, 300, 3))})
    after = stats(remote)
    size = sum(map(len, table["image"].to_pylist()))
    assert after["engine"]["read_bytes"] - before["engine"]["read_bytes"] == size
    assert after["engine"]["failed_reads"] == 0
    assert after["store"]["blob_reads"] - before["store"]["blob_reads"] >= 100
    assert str(cql_node.store).startswith("cql://")


# --- nodes of a cluster --------------------------------------------------------------------------------------------


def test_ranks_get_what_their_nodes_own(
    filled: Keyspace, start: StartNode, bowstring: Bowstring, tmp_path: Path
) -> None:
    """Two nodes, whichever is asked: one layout, endpoints that lead to both, each sample once, most at home."""
    flags = ["--cluster", "c", "--spill-bytes", "256MiB"]
    a = start(*flags, "--node", "a", "--spill", str(tmp_path / "a"), store=filled.uri())
    b = start(*flags, "--node", "b", "--spill", str(tmp_path / "b"), store=filled.uri())
    status = json.loads(bowstring("cluster", "status", "c", "--json", "--store", filled.uri()).stdout)
    assert [(n["id"], n["address"], n["share"]) for n in status["nodes"]] == [("a", a.url, 0.5), ("b", b.url, 0.5)]
    request: dict[str, Any] = {"dataset": "photos", "columns": ["position", "image"], "batch": 60, "world": {"size": 2},
                               "assign": "local", "shuffle": {"seed": 3, "epoch": 1}}  # fmt: skip
    with fl.connect(a.url) as to_a, fl.connect(b.url) as to_b:
        until(lambda: [n["id"] for n in stats(to_a)["cluster"]["nodes"]] == ["a", "b"], "a knows of b")
        infos = [client.get_flight_info(command(**request)) for client in (to_b, to_a)]
        assert infos[0].app_metadata == infos[1].app_metadata
        ranks = infos[1].endpoints
        assert [[str(place.uri, "ascii") for place in e.locations] for e in ranks] == [[a.url, b.url], [b.url, a.url]]
        assert [e.ticket for e in infos[0].endpoints] == [e.ticket for e in ranks]
        served = [positions_of(client, e.ticket) for client, e in zip((to_a, to_b), ranks, strict=True)]
        assert sorted(served[0] + served[1]) == list(range(300))
        # The other node serves the same to a rank whose own is gone.
        assert positions_of(to_b, ranks[0].ticket) == served[0]
        b.stop()
        assert positions_of(to_a, ranks[1].ticket) == served[1]


def test_nodes_read_from_each_other(filled: Keyspace, start: StartNode, tmp_path: Path) -> None:
    """Two nodes that serve all of a job each: the store is read once for both, and one that dies is not missed."""
    key = tmp_path / "cluster.key"
    key.write_text("k" * 40)
    flags = ["--cluster", "d", "--spill-bytes", "256MiB", "--cluster-key-file", str(key)]
    a = start(*flags, "--node", "a", "--spill", str(tmp_path / "a"), store=filled.uri())
    b = start(*flags, "--node", "b", "--spill", str(tmp_path / "b"), store=filled.uri())
    with fl.connect(a.url) as to_a, fl.connect(b.url) as to_b:
        until(lambda: up(to_a) == ["b"] and up(to_b) == ["a"], "the nodes reach each other")
        for epoch in range(3):
            everything = ticket(dataset="photos", columns=["position", "image"], shuffle={"seed": 3, "epoch": epoch})
            assert [sorted(positions_of(client, everything)) for client in (to_a, to_b)] == [list(range(300))] * 2
        engines = [stats(client)["engine"] for client in (to_a, to_b)]
        assert all(e["peer_reads"] > 100 for e in engines), engines
        # Each of 300 images once for both nodes, and the manifest for each; some more where a machine is so busy that
        # reads are hedged.
        assert sum(e["reads"] for e in engines) < 400, engines
        b.kill()
        again = ticket(dataset="photos", columns=["position", "image"], shuffle={"seed": 4, "epoch": 0})
        assert sorted(positions_of(to_a, again)) == list(range(300))


def up(client: fl.FlightClient) -> list[str]:
    """Which other nodes a node reaches."""
    return [peer["node"] for peer in stats(client)["cluster"].get("peers", []) if peer["up"]]


def positions_of(client: fl.FlightClient, where: fl.Ticket) -> list[int]:
    found: list[int] = client.do_get(where).read_all()["position"].to_pylist()
    assert all(isinstance(position, int) for position in found)
    return found


# --- tables of other programs --------------------------------------------------------------------------------------


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
    told = json.loads(done.stdout)
    assert told["rows"] == len(foreign.rows)
    assert told["bytes"] == sum(len(row["data"]) for row in foreign.rows.values())
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


def test_attach_refuses(foreign: Foreign, filled: Keyspace, bowstring: Bowstring, cql: Session) -> None:
    cql.execute(f"CREATE TABLE {foreign.keyspace}.clustered (id uuid, n int, data blob, PRIMARY KEY ((id), n))")
    cql.execute(f"CREATE TABLE {foreign.keyspace}.empty (id uuid PRIMARY KEY, data blob)")
    table = f"{foreign.keyspace}.data"
    for args, says in (
        (["d", f"{foreign.keyspace}.nothing"], [f"{foreign.keyspace}.nothing"]),
        (["d", "data"], ["data", "KEYSPACE.TABLE"]),
        (["d", f"{foreign.keyspace}.clustered"], ["clustered", "primary key of one uuid"]),
        (["d", f"{foreign.keyspace}.empty"], ["no rows"]),
        (["d", f"{foreign.keyspace}.metadata"], ["no blob column"]),
        (["d", table, "--columns", "data,lable"], ["lable", "label"]),
        (["d", table, "--split-column", "label"], ["label", "text"]),
        (["photos", table], ["photos", "append", "replace"]),
        (["a/b", table], ["a/b"]),
    ):
        done = bowstring("attach", *args, "--store", filled.uri(), status=1)
        for part in says:
            assert part in done.stderr, f"{args}: {done.stderr!r} does not say {part!r}"
    assert {d["dataset"] for d in json.loads(bowstring("ls", "--json", "--store", filled.uri()).stdout)} == {"photos"}


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
        told = json.loads(attach("--mode", "append", "--skip-existing"))
        assert (told["snapshot"], told["rows"], told["skipped"]) == (snapshot, rows, skipped)


def test_doctor(
    new_keyspace: Callable[[], Keyspace], bowstring: Bowstring, start: StartNode, cql: Session, tmp_path: Path
) -> None:
    """What is wrong with a keyspace is said, with the statement that mends it."""
    keyspace = new_keyspace()
    assert "store init" in bowstring("doctor", keyspace.uri(), status=1).stdout
    bowstring("store", "init", "--replication", "1", "--store", keyspace.uri())
    told = json.loads(bowstring("doctor", "--json", "--store", keyspace.uri()).stdout)
    assert told["worst"] == "warning"  # one node, one replica
    well = {f["check"] for f in told["findings"] if f["level"] == "ok"}
    assert well >= {"nodes", "latency", "clocks", "schema agreement", "consistency", "tables", "transactions"}
    cql.execute(f"ALTER TABLE {keyspace.name}.blob_parts WITH gc_grace_seconds = 0")
    out = bowstring("doctor", keyspace.uri(), status=1).stdout
    assert f"ALTER TABLE {keyspace.name}.blob_parts WITH gc_grace_seconds = 864000" in out
    start(store=keyspace.uri())
    log = tmp_path / "server0.log"
    until(lambda: "blob_parts has gc_grace_seconds = 0" in log.read_text(), "the server's mention of the problem")


# --- stores: made, named wrongly, out of reach ---------------------------------------------------------------------


def test_store_init(
    new_keyspace: Callable[[], Keyspace], folder: Path, bowstring: Bowstring, start: StartNode, cql: Session
) -> None:
    """It alone makes a keyspace, with as many replicas as it is told."""
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


def test_a_keyspace_of_somebody_else(foreign: Foreign, cassandra: str, bowstring: Bowstring, cql: Session) -> None:
    cql.execute(f"CREATE TABLE IF NOT EXISTS {foreign.keyspace}.blobs (id uuid PRIMARY KEY, data blob)")
    done = bowstring("store", "init", "--store", Keyspace(cassandra, foreign.keyspace).uri(), status=1)
    assert f"keyspace {foreign.keyspace} has a table blobs" in done.stderr


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


def test_nobody_answers(bowstring: Bowstring) -> None:
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
    uri = f"cql://{guarded.address}/photos?rf=1&conns=1"
    wrong = tmp_path / "wrong"
    wrong.write_text("ABC-not-the-password\n")

    def run(uri: str, **environment: str) -> tuple[int, str]:
        done = subprocess.run(
            [binary, "store", "init", "--store", uri], check=False, capture_output=True, text=True, timeout=120,
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
    uri = f"cql://{guarded.address}/hangs?rf=1&conns=2&timeout=1s&user=cassandra&password_file={password}"
    bowstring("store", "init", "--store", uri)
    bowstring("import", folder, "photos", "--store", uri)
    node = start("--window-memory", "4MiB", "--read-timeout", "60s", store=uri)
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
    node = start("--window-memory", "4MiB", "--read-timeout", "3s", store=uri)
    with fl.connect(node.url) as own:
        parts = stream(own, ticket(**request, epochs=UNREAD))
        next(parts)
        guarded.kill()
        with pytest.raises(fl.FlightUnavailableError) as caught:
            list(parts)
        for part in ("sample", "position", "photos@1", "image", guarded.address.rpartition(":")[2]):
            assert part in str(caught.value)


# --- several processes on one store --------------------------------------------------------------------------------


def rows_of(cql: Session, keyspace: Keyspace, table: str) -> int:
    return int(cql.execute(f"SELECT count(*) FROM {keyspace.name}.{table}").one()[0])  # noqa: S608


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
        # What one commits, the other serves; what was handed out before stays what it was.
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
    return ids(stream(client, endpoint))


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
        _, err = process.communicate(timeout=180)
        assert process.returncode == 0, err
    with fl.connect(start(store=uri).url) as own:
        (told,) = act(own, "list", dataset="both")
        assert {s["name"]: s["rows"] for s in told["splits"]} == {"train": TRAIN, "test": TRAIN, "val": 30}
        assert told["snapshots"] == [1, 2, 3]
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
        info = reader.get_flight_info(command(dataset="photos", columns=["image"], batch=4))
        parts = stream(reader, info.endpoints[0])
        batches = [next(parts).data]
        assert act(other, "drop", dataset="photos")[0]["dropped"] == [1]
        assert act(other, "gc")[0]["dead_blobs"] == 0
        with pytest.raises(KeyError):
            other.get_flight_info(fl.FlightDescriptor.for_path("photos"))
        batches += [p.data for p in parts]
        assert pa.Table.from_batches(batches)["image"].combine_chunks() == expected.combine_chunks()
    bowstring("gc", "--store", keyspace.uri())


# --- what looks after a store -------------------------------------------------------------------------------------


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
        told = json.loads(bowstring("copy", source, target, "photos", "--selections", "--json").stdout)
        assert [(s["snapshot"], s["as"]) for s in told["snapshots"]] == [(1, 1)]
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
    bowstring("backup", keyspace.uri(), saved)
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
    told = json.loads(bowstring("verify", keyspace.uri(), "--repair", "--from", saved, "--json").stdout)
    assert told["repaired"] == 2
    assert json.loads(bowstring("verify", keyspace.uri(), "--every-replica", "--json").stdout)["damaged"] == []
    other = new_store()
    bowstring("restore", saved, other.uri())
    bowstring("verify", other.uri())
    about = [bowstring("describe", "photos", "--json", "--store", k.uri()).stdout for k in (keyspace, other)]
    assert about[0] == about[1]


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
