"""Ray on two nodes beside two nodes of a cluster: each read task runs beside the server that owns what it reads."""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bowstring
import bowstring.ray
import pytest
import ray
from bowstring.ray import BowstringDatasource, _node_of
from node import Node
from nodes import stored
from ray.cluster_utils import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SAMPLES, SIZE, TASKS = 400, 4_000, 6
ADDRESSES = ("127.0.0.1", "127.0.0.2")


def port(address: str) -> int:
    with socket.socket() as s:
        s.bind((address, 0))
        return int(s.getsockname()[1])


@pytest.fixture(scope="module")
def urls(cassandra: str, binary: Path, worker_id: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """A server of the cluster at each address."""
    folder = tmp_path_factory.mktemp("nodes")
    with stored(binary, f"cql://{cassandra}/ray_{worker_id}?rf=1", SAMPLES, SIZE) as uri:
        nodes = []
        try:
            for name, address in zip("ab", ADDRESSES, strict=True):
                options = ["--cluster=rays", f"--node={name}", f"--spill={folder / name}"]
                nodes.append(Node(binary, uri, *options, log=folder / "log"))
                nodes[-1].start(f"{address}:{port(address)}")
            yield [n.url for n in nodes]
        finally:
            for n in nodes:
                n.kill()


@pytest.fixture(scope="module")
def rays() -> Iterator[None]:
    """A node of Ray at each address."""
    os.environ["RAY_AUTH_MODE"] = "disabled"
    own = str(Path(bowstring.__file__).parent.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([own, os.environ.get("PYTHONPATH", "")])
    cluster = Cluster()
    try:
        for address in ADDRESSES:
            cluster.add_node(num_cpus=2, node_ip_address=address, object_store_memory=100 << 20)
        ray.init(address=cluster.address, log_to_driver=False)
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


def marked(read: Callable[..., Iterator[Any]], *args: Any) -> Iterator[Any]:
    """The blocks of a task, with what it was sent to, and the node of Ray that it runs on."""
    here = ray.get_runtime_context().get_node_id()
    for table in read(*args):
        rows = table.num_rows
        yield table.append_column("ran", [[here] * rows]).append_column("sent", [[args[-1][0]] * rows])


@pytest.mark.usefixtures("rays")
def test_tasks_run_beside_their_nodes(urls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    at = bowstring.ray.ray_nodes()
    assert set(at) == set(ADDRESSES)
    monkeypatch.setattr(bowstring.ray, "_blocks", functools.partial(marked, bowstring.ray._blocks))
    with bowstring.connect(urls[0]) as client:
        dataset = client.dataset("samples").columns(["key"])
        for shuffle in (None, 5):
            rows = bowstring.ray.read(dataset, assign="local", shuffle=shuffle, parallelism=TASKS)
            assert rows.count() == SAMPLES
            found = rows.take_all()
            assert sorted(r["key"] for r in found) == list(range(SAMPLES))
            beside = sum(r["ran"] == at[r["sent"].removeprefix("grpc://").partition(":")[0]] for r in found)
            assert beside == SAMPLES
            assert len({r["ran"] for r in found}) == len(ADDRESSES)
        few = bowstring.ray.read(dataset, assign="local", parallelism=TASKS)
        assert few.filter(expr="key < 7").count() == 7
        assert few.limit(9).count() == 9


def test_parts_are_all(urls: list[str]) -> None:
    """Whatever nodes of Ray there are, all sources together read each rank once."""
    with bowstring.connect(urls[0]) as client:
        dataset = client.dataset("samples").options(assign="local")
        source = BowstringDatasource(dataset)
        assert source.split(TASKS, {}) == []
        assert BowstringDatasource(client.dataset("samples")).split(TASKS, {"127.0.0.1": "x"}) == []
        for nodes in ({"127.0.0.1": "x"}, {"127.0.0.1": "x", "127.0.0.2": "y"}):
            parts = source.split(TASKS, nodes)
            assert {node for node, _, _ in parts} == {*nodes.values(), *([None] if len(nodes) == 1 else [])}
            assert sum(count for _, _, count in parts) == TASKS
            tasks = [t for _, part, count in parts for t in part.get_read_tasks(count)]
            assert sum(t.metadata.num_rows or 0 for t in tasks) == SAMPLES


def test_nodes_by_name() -> None:
    nodes = {"127.0.0.1": "x", "10.0.0.2": "y"}
    assert _node_of(["grpc://localhost:5", "grpc://10.0.0.2:5"], nodes) == "x"
    assert _node_of(["grpc+tls://10.0.0.2:5"], nodes) == "y"
    assert _node_of(["grpc://10.0.0.9:5", "grpc://10.0.0.2:5"], nodes) is None
    assert _node_of([], nodes) is None
    assert _node_of(["grpc://no-such-host.invalid:5"], nodes) is None
