"""Ray on two nodes beside two nodes of a cluster: each read task runs beside the server that owns its rows."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bowstring
import bowstring.ray
import local_ray
import pytest
import ray
from bowstring.ray import BowstringDatasource, _node_of, _on_node
from node import Node
from nodes import stored
from ports import free_port
from wire import until

# A node that joins by `ray start` is found by every `ray.init` of the machine: no other test may run at the same time.
pytestmark = [pytest.mark.slow, pytest.mark.clients, pytest.mark.timeout(600)]

SAMPLES, SIZE, TASKS = 400, 4_000, 6
SECOND = "127.0.0.2"  # where the second node of Ray is; the first has the address that Ray gives this machine


def known(url: str) -> int:
    with bowstring.connect(url) as client:
        return len(client.stats()["cluster"]["nodes"])


@pytest.fixture(scope="module")
def urls(
    cassandra: str, binary: Path, worker_id: str, rays: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[str]]:
    """A server of the cluster at each address."""
    folder = tmp_path_factory.mktemp("nodes")
    with stored(binary, f"cql://{cassandra}/ray_{worker_id}?rf=1", SAMPLES, SIZE) as uri:
        nodes = []
        try:
            for name, address in zip("ab", rays, strict=True):
                options = ["--insecure", "--cluster=rays", f"--node={name}", f"--spill={folder / name}"]
                nodes.append(Node(binary, uri, *options, log=folder / "log"))
                nodes[-1].start(f"{address}:{free_port(address)}")
            until(lambda: all(known(n.url) == len(nodes) for n in nodes), "the nodes know each other")
            yield [n.url for n in nodes]
        finally:
            for n in nodes:
                n.kill()


@pytest.fixture(scope="module")
def rays() -> Iterator[list[str]]:
    """Two nodes of Ray, and their addresses."""
    os.environ["RAY_AUTH_MODE"] = "disabled"
    own = str(Path(bowstring.__file__).parent.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([own, os.environ.get("PYTHONPATH", "")])
    local_ray.start(address="local", num_cpus=2, object_store_memory=100 << 20)
    ray.data.DataContext.get_current().enable_progress_bars = False
    join = [f"--address={ray.get_runtime_context().gcs_address}", f"--node-ip-address={SECOND}", "--num-cpus=2"]
    second = subprocess.Popen(
        [Path(sys.executable).with_name("ray"), "start", "--block", f"--object-store-memory={100 << 20}", *join],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: len(bowstring.ray.ray_nodes()) == 2, "the second node of Ray")
        yield sorted(bowstring.ray.ray_nodes())
    finally:
        second.terminate()  # and with it all that it has started
        second.wait()
        ray.shutdown()


def marking(read: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """A reader whose blocks say what they were sent to, and the node of Ray that it runs on."""

    def marked(*args: Any) -> Iterator[Any]:  # within another, so that workers need not know this file
        here = ray.get_runtime_context().get_node_id()
        for table in read(*args):
            rows = table.num_rows
            yield table.append_column("ran", [[here] * rows]).append_column("sent", [[args[-1][0]] * rows])

    return marked


def on_node_only(node: str) -> dict[str, Any]:
    """Options by which Ray runs tasks on one node only. By default any node with room may run them."""
    return {name: value for name, value in _on_node(node).items() if name != "fallback_strategy"}


def test_tasks_run_on_their_nodes(urls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    at = bowstring.ray.ray_nodes()
    monkeypatch.setattr(bowstring.ray, "_on_node", on_node_only)
    monkeypatch.setattr(bowstring.ray, "_blocks", marking(bowstring.ray._blocks))
    with bowstring.connect(urls[0]) as client:
        dataset = client.dataset("samples").columns(["key"])
        for shuffle in (None, 5):
            rows = bowstring.ray.read(dataset, assign="local", shuffle=shuffle, parallelism=TASKS, concurrency=1)
            assert rows.count() == SAMPLES
            found = rows.take_all()
            assert sorted(r["key"] for r in found) == list(range(SAMPLES))
            local = sum(r["ran"] == at[r["sent"].removeprefix("grpc://").partition(":")[0]] for r in found)
            assert local == SAMPLES
            assert len({r["ran"] for r in found}) == 2
        monkeypatch.setattr(bowstring.ray, "_on_node", _on_node)
        few = bowstring.ray.read(dataset, assign="local", parallelism=TASKS)
        assert few.filter(expr="key < 7").count() == 7
        assert few.limit(9).count() == 9


def test_parts_are_all(urls: list[str], rays: list[str]) -> None:
    """Whatever nodes of Ray there are, all sources together read each rank once."""
    with bowstring.connect(urls[0]) as client:
        dataset = client.dataset("samples").options(assign="local")
        source = BowstringDatasource(dataset)
        assert source.split(TASKS, {}) == []
        assert BowstringDatasource(client.dataset("samples")).split(TASKS, {rays[0]: "x"}) == []
        for nodes in ({rays[0]: "x"}, {rays[0]: "x", rays[1]: "y"}):
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
