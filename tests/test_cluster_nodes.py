"""Three real nodes over a real Cassandra: upgraded one by one, with tables of others' attached, and drained."""

from __future__ import annotations

import json
import re
import subprocess
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bowstring as bowstring_client
import pyarrow.flight as fl
import pytest
from churn import Outcome, judge
from conftest import ROOT
from job import Ranks, job
from keyspaces import PATIENT, driver
from nodes import Member, Nodes, Wire, blob, spill_bytes, stored
from playwright.sync_api import Browser, expect
from screenshots import admin_of
from test_console import accessible, browser, watched  # noqa: F401
from wire import command, read, until

Run = Callable[..., subprocess.CompletedProcess[str]]

SAMPLES, SIZE, ROWS, EPOCHS = 400, 20_000, 60, 6
OLD = "--peer-protocol=2"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def store(cassandra: str, binary: Path, worker_id: str) -> Iterator[str]:
    """A keyspace with the dataset `samples`, and with `attached`, a table of another program's."""
    name = f"cluster_{worker_id}"
    with stored(binary, f"cql://{cassandra}/{name}?rf=1{PATIENT}", SAMPLES, SIZE) as uri:
        with driver(cassandra) as cluster:
            cql = cluster.connect()
            cql.execute(f"CREATE TABLE IF NOT EXISTS {name}.foreign (id uuid PRIMARY KEY, data blob)")
            insert = cql.prepare(f"INSERT INTO {name}.foreign (id, data) VALUES (?, ?)")  # noqa: S608
            for i in range(ROWS):
                cql.execute(insert, (uuid.UUID(int=i + 1), blob(i, SIZE)))
        subprocess.run([binary, "attach", "attached", f"{name}.foreign", "--store", uri], check=True)
        yield uri


@pytest.fixture
def nodes(store: str, binary: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Nodes]:
    """The nodes: two in one zone, with the options that the test is parametrized by."""
    more = getattr(request, "param", ())
    zones = {
        n: (f"--zone={zone}", "--admin=127.0.0.1:0", f"--lineage={tmp_path / n}-record", *more)
        for n, zone in zip("abc", "xxy", strict=True)
    }
    spills = [spill_bytes(1.5 * SAMPLES, SIZE)] * 3
    with Nodes(binary, store, tmp_path, spills, net=Wire(latency_ms=0.2), more=zones) as found:
        yield found


def again(member: Member, *drop: str) -> None:
    """End a node in order and start it again, with its cache, without some options."""
    member.leave()
    member.node.options = tuple(o for o in member.node.options if o not in drop)
    member.start()


def protocols(nodes: Nodes) -> set[int]:
    return {p["protocol"] for m in nodes.members for p in m.stats()["cluster"]["peers"] if p["up"]}


def settled(nodes: Nodes, new: set[str]) -> bool:
    """Whether each node knows all, and can ask those that speak its protocol: the new ones, or the others."""
    names = {m.name for m in nodes.members}
    for member in nodes.members:
        cluster = member.stats()["cluster"]
        alike = new if member.name in new else names - new
        up = {p["node"] for p in cluster.get("peers", []) if p["up"]}
        if {n["id"] for n in cluster["nodes"]} != names or up != alike - {member.name}:
            return False
    return True


def attached(member: Member) -> dict[uuid.UUID, bytes]:
    with fl.connect(member.url) as client:
        return {row["id"]: row["data"] for row in read(client, dataset="attached", columns=["id", "data"]).to_pylist()}


@pytest.mark.parametrize("nodes", [(OLD,)], indirect=True)
def test_rolling_upgrade(nodes: Nodes) -> None:
    """Programs of two protocols are one cluster: streams go on while nodes are replaced, one by one.

    Nodes read from each other where they speak the same protocol, and from the store where they do not.
    """
    whole = {uuid.UUID(int=i + 1): blob(i, SIZE) for i in range(ROWS)}
    assert protocols(nodes) == {2}
    found = Outcome(0)
    with Ranks(nodes, job(3, 32, 3, assign="local"), 3, until=True, compute=0.02) as ranks:
        ranks.go()
        mixed, new = set(), set[str]()
        for member in nodes.members:
            # A table of another program's, by way of nodes that were not there when it was first asked for.
            assert attached(member) == whole
            again(member, OLD)
            new.add(member.name)
            until(lambda: settled(nodes, new), "nodes find those of their protocol")
            mixed |= protocols(nodes)
            assert attached(member) == whole
        ranks.go()
        said = ranks.rest()
    assert mixed == {1, 2}
    assert protocols(nodes) == {1}
    judge(found, said, SAMPLES, 3)
    assert (found.lost, found.doubled, found.wrong) == (0, 0, 0), found
    assert found.epochs > 0
    assert found.broken > 0
    # Nodes read from each other. For attached tables, whose cells have no hash, they need TLS.
    before = {m.name: m.stats()["engine"]["peer_reads"] for m in nodes.members}
    assert sum(before.values()) > 0
    for member in nodes.members:
        again(member)
        nodes.whole()
        assert attached(member) == whole


def go_on() -> Callable[..., Iterator[Any]]:
    """The lines of docs/protocol.md by which a stock client goes on."""
    text = (ROOT / "docs" / "protocol.md").read_text()
    (block,) = (b for b in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "def go_on(" in b)
    names: dict[str, Any] = {"fl": fl, "json": json}
    exec(block.split("\n\nwhole = ")[0], names)  # noqa: S102
    found: Callable[..., Iterator[Any]] = names["go_on"]
    return found


def test_a_node_drains(nodes: Nodes, bowstring: Run, browser: Browser) -> None:  # noqa: F811
    """A stock client goes on elsewhere; meanwhile JSON and the console show how far the drain is."""
    a, b, _ = nodes.members
    request = job(4, 16, 1, assign="local", ranks=["a"])
    with fl.connect(b.url) as client:
        (endpoint,) = client.get_flight_info(command(**request)).endpoints
    ticket = json.loads(endpoint.ticket.ticket) | {"epochs": EPOCHS}
    batches = go_on()(fl.FlightEndpoint(json.dumps(ticket), endpoint.locations), [])
    positions = Counter(next(batches)["position"].to_pylist())
    bowstring("cluster", "drain", nodes.cluster, "a", "--store", nodes.store)
    until(lambda: [n["id"] for n in b.stats()["cluster"].get("leaving", [])] == ["a"], "a leaves")
    # It cannot end yet, because its stream's reader is stalled.
    status = json.loads(bowstring("cluster", "status", nodes.cluster, "--json", "--store", nodes.store).stdout)
    draining = {n["id"]: n.get("draining") for n in status["nodes"]}
    assert set(draining) == {"a", "b", "c"}
    assert draining["b"] is None
    assert draining["a"].keys() == {"since", "streams", "blobs", "bytes", "held", "done"}
    assert (draining["a"]["streams"], draining["a"]["done"]) == (1, False)
    with watched(browser) as context:
        page = context.new_page()
        page.goto(admin_of(b.log) + "#/cluster")
        rows = page.get_by_role("region", name="Nodes of").get_by_role("row")
        expect(rows).to_have_count(4)
        expect(rows.nth(3)).to_contain_text("draining since")
        expect(rows.nth(3)).to_contain_text("1 streams")
        zones = page.get_by_role("region", name="Zones").get_by_role("row")
        expect(zones).to_have_count(3)
        expect(zones.nth(1)).to_contain_text("50 %")
        accessible(page)
    for data in batches:
        positions.update(data["position"].to_pylist())
    assert positions == Counter(dict.fromkeys(range(SAMPLES), EPOCHS))
    assert a.node.wait() == 0
    a.start()
    nodes.whole()
    # The samples of each step are on record, part of it where the stream began, and the rest where it went on.
    with bowstring_client.connect(b.url) as client:
        (record,) = client.jobs_on_record()
        steps = [(epoch, step) for epoch in range(EPOCHS) for step in range(SAMPLES // 16)]
        held = [p for epoch, step in steps for p in client.lineage(record.job, step, epoch=epoch) if p.stands]
    assert Counter(p for piece in held for p in piece.positions) == positions
    assert len({piece.server for piece in held}) == 2
