"""An import in a real Cassandra, served by one node and by nodes of a cluster."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.flight as fl
import pytest
from conftest import StartNode
from keyspaces import Bowstring, Keyspace, cql, new_keyspace, new_store
from node import Node
from wire import UNREAD, command, read, stats, stream, ticket, until

__all__ = ["cql", "new_keyspace", "new_store"]  # fixtures

pytestmark = pytest.mark.slow

TRAIN = 270


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
    until(lambda: stats(remote)["engine"]["window_used"] == 0, "no blob being held")  # it would not be read again
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
    until(lambda: stats(remote)["engine"]["window_used"] == 0, "no blob being held")  # it would not be read again
    before = stats(remote)
    table = read(remote, dataset="photos", columns=["image"], selection={"positions": list(range(0, 300, 3))})
    after = stats(remote)
    size = sum(map(len, table["image"].to_pylist()))
    assert after["engine"]["read_bytes"] - before["engine"]["read_bytes"] == size
    assert after["engine"]["failed_reads"] == before["engine"]["failed_reads"]
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
        for client in (to_a, to_b):
            until(lambda c=client: nodes_of(c) == ["a", "b"], "each knows of both")  # type: ignore[misc]
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
        # reads are hedged, or a node is silent for some seconds. Without each other they would read 600.
        assert sum(e["reads"] for e in engines) < 550, engines
        b.kill()
        again = ticket(dataset="photos", columns=["position", "image"], shuffle={"seed": 4, "epoch": 0})
        assert sorted(positions_of(to_a, again)) == list(range(300))


def nodes_of(client: fl.FlightClient) -> list[str]:
    """Which nodes a node knows, itself included."""
    return [n["id"] for n in stats(client)["cluster"]["nodes"]]


def up(client: fl.FlightClient) -> list[str]:
    """Which other nodes a node reaches."""
    return [peer["node"] for peer in stats(client)["cluster"].get("peers", []) if peer["up"]]


def positions_of(client: fl.FlightClient, where: fl.Ticket) -> list[int]:
    found: list[int] = client.do_get(where).read_all()["position"].to_pylist()
    assert all(isinstance(position, int) for position in found)
    return found
