"""Three real nodes over a bucket alone, and over other stores with data attached in a bucket."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from churn import Outcome, judge
from job import Ranks, job
from keyspaces import PATIENT
from nodes import Nodes, Wire, attach, initialise, objects, spill_bytes, stored, within
from wire import until

SAMPLES, SIZE = 1200, 80_000  # 96 MB: twelve chunks
WORLD, EPOCHS = 3, 4
CHUNK = 8 << 20

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bucket(binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An empty bucket."""
    with objects(binary, tmp_path_factory.mktemp("objects")) as url:
        yield url


@pytest.fixture(scope="module")
def store(bucket: str, binary: Path) -> Iterator[str]:
    """A store in the bucket, with the dataset in it."""
    with stored(binary, within(bucket, "store"), SAMPLES, SIZE) as uri:
        yield uri


@pytest.fixture(scope="module")
def attached(bucket: str, binary: Path) -> str:
    """A store in the bucket, with the dataset attached."""
    uri = within(bucket, "attached-store")
    initialise(binary, uri)
    attach(binary, uri, bucket, SAMPLES, SIZE)
    return uri


@pytest.fixture
def start(binary: Path, tmp_path: Path) -> Iterator[Callable[[str], Nodes]]:
    """Start three nodes over a store, whose caches hold the dataset together."""
    running: list[Nodes] = []

    def begin(uri: str) -> Nodes:
        spills = [spill_bytes(1.5 * SAMPLES, SIZE)] * WORLD
        running.append(Nodes(binary, uri, tmp_path, spills, far=Wire(latency_ms=2), net=Wire(latency_ms=0.2)))
        return running[-1].__enter__()

    yield begin
    for nodes in running:
        nodes.close()


def read_epochs(nodes: Nodes, **more: Any) -> dict[str, int]:
    """Read all epochs, each after the other, and check every sample; what the nodes count meanwhile."""
    before = nodes.totals()
    with Ranks(nodes, job(3, 32, WORLD, **more), WORLD, epochs=EPOCHS, barrier=True) as ranks:
        for _ in range(EPOCHS):
            ranks.go()
            said = ranks.epoch()
            assert sorted(p for line in said for p in line["positions"]) == list(range(SAMPLES))
            assert [line["wrong"] for line in said] == [0] * WORLD
            assert [line["errors"] for line in said] == [[]] * WORLD
    now = nodes.totals()
    return {name: now[name] - before[name] for name in now}


@pytest.mark.parametrize("assign", ["plan", "local"])
@pytest.mark.parametrize("kind", ["store", "attached"])
def test_each_chunk_is_read_once(
    start: Callable[[str], Nodes], request: pytest.FixtureRequest, kind: str, assign: str
) -> None:
    """In four epochs the bucket is read once, by all nodes together."""
    nodes = start(request.getfixturevalue(kind))
    found = read_epochs(nodes, assign=assign)
    once(found)


def once(found: dict[str, int]) -> None:
    """All nodes together read the data about once, by few large requests, and nodes read from each other.

    The nodes read 1.01 to 1.02 of the data, by 1.05 requests a chunk, with ten processes to a processor too. A node
    that has no answer of another within half a second reads the sample itself. Without each other they would read
    three times the data.
    """
    data = SAMPLES * SIZE
    assert found["span_bytes"] >= data / 2, found
    assert found["span_bytes"] + found["span_singles"] * SIZE <= 1.5 * data, found
    assert found["span_spans"] <= 1.8 * data / CHUNK, found
    assert found["peer_reads"] >= SAMPLES / 2, found


def test_killed_and_cut(start: Callable[[str], Nodes], store: str) -> None:
    """A node that is killed and one that is cut from the bucket take no sample with them, and none comes twice."""
    nodes = start(store)
    a, b, _ = nodes.members
    found = Outcome(0)
    with Ranks(nodes, job(4, 32, WORLD, assign="local"), WORLD, until=True, compute=0.02) as ranks:
        ranks.go()
        until(lambda: all(m.stats()["engine"]["streams"] for m in nodes.members), "each rank reads at its node")
        time.sleep(1)
        a.kill()
        nodes.links.do(set={"proxy": f"store-{b.name}", "from": b.name, "fault": "cut"})
        time.sleep(3)
        nodes.links.do(set={"proxy": f"store-{b.name}", "from": b.name, "fault": ""})
        a.start()
        nodes.whole(120)
        time.sleep(1)
        ranks.go()
        said = ranks.rest()
    judge(found, said, SAMPLES, WORLD)
    assert (found.lost, found.doubled, found.wrong) == (0, 0, 0), found
    assert found.epochs > 0, found
    assert found.broken > 0, found


def test_attached_over_cassandra(
    start: Callable[[str], Nodes], bucket: str, cassandra: str, binary: Path, worker_id: str
) -> None:
    """The same of data that is attached in a database: nodes that have a key need no TLS."""
    uri = f"cql://{cassandra}/attached_bucket_{worker_id}?rf=1{PATIENT}"
    initialise(binary, uri)
    attach(binary, uri, bucket, SAMPLES, SIZE)
    once(read_epochs(start(uri)))
