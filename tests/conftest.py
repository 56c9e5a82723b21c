"""Fixtures: the built binary, a folder of real photographs, a real Cassandra, and servers of the tests' own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

import photos
import pyarrow as pa
import pyarrow.flight as fl
import pytest
from node import Node
from ports import free_port
from wire import read

ROOT = Path(__file__).parent.parent
PHOTOGRAPHS = 300

# The files that take longest, in the order in which processes of pytest take them: none is left alone at the end.
FIRST = [
    "test_notebooks",
    "test_torch",
    "test_torch_resume",
    "test_console",
    "test_cluster_nodes",
    "test_examples",
    "test_cassandra",
    "test_cassandra_maintenance",
    "test_cassandra_stores",
    "test_cassandra_attached",
    "test_cassandra_shared",
]

StartNode = Callable[..., Node]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak-seconds", type=float, default=60.0, help="how long the soak test runs")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that take longest first; those of one file stay together, in order."""
    items.sort(key=lambda item: FIRST.index(item.path.stem) if item.path.stem in FIRST else len(FIRST))


@pytest.fixture(scope="session")
def binary() -> Path:
    """Path of the server, as `make build` leaves it; BOWSTRING names another."""
    path = Path(os.environ.get("BOWSTRING", ROOT / "build" / "bin" / "bowstring"))
    if not path.exists():
        pytest.fail(f"{path} is not built; run `make test-python`, or `make build` first")
    return path


@pytest.fixture(scope="session")
def lab(binary: Path) -> Path:
    """The program for experiments, which is built beside the server; its `serve` has flags for a link to the store."""
    return binary.with_name(f"{binary.name}-lab")


@pytest.fixture(scope="session")
def bowstring(binary: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a command of the binary to its end."""

    def run(*args: str | Path, status: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [binary, *args],
            check=False,
            capture_output=True,
            text=True,
            timeout=600,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == status, f"{args} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done

    return run


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ImageFolder of real photographs with the splits train and val."""
    root = tmp_path_factory.mktemp("photos")
    for _ in photos.write_all(root, PHOTOGRAPHS, workers=2):
        pass
    return root


@pytest.fixture(scope="session")
def imported(
    folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
    bowstring: Callable[..., subprocess.CompletedProcess[str]],
) -> Path:
    """A store into which the folder was imported as `photos`. No test may serve or change it: copy it."""
    store = tmp_path_factory.mktemp("imported") / "store"
    bowstring("import", folder, "photos", "--store", store)
    return store


@pytest.fixture(scope="session")
def node(imported: Path, binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A server with the dataset `photos`, shared by the tests that do not harm it."""
    store = tmp_path_factory.mktemp("shared") / "store"
    shutil.copytree(imported, store)
    with Node(binary, store, "--lineage", str(store.parent / "lineage"), log=store.parent / "server.log") as shared:
        yield shared


@pytest.fixture
def client(node: Node) -> Iterator[fl.FlightClient]:
    """A connection to the shared server."""
    with fl.connect(node.url) as connected:
        yield connected


@pytest.fixture
def start(imported: Path, binary: Path, tmp_path: Path) -> Iterator[StartNode]:
    """Start servers of the test's own, which end with it: each on a copy of the imported store, or on one named."""
    started: list[Node] = []

    def begin(*options: str, store: Path | str | None = None) -> Node:
        if store is None:
            store = tmp_path / f"store{len(started)}"
            shutil.copytree(imported, store)
        own = Node(binary, store, *options, log=tmp_path / f"server{len(started)}.log")
        own.start(f"127.0.0.1:{free_port()}")  # where it can be started again: no connection gets the port meanwhile
        started.append(own)
        return own

    yield begin
    for own in started:
        own.kill()  # whatever a failed test has left open: nothing is to be waited for


@pytest.fixture
def serve(start: StartNode) -> Callable[[Path], AbstractContextManager[fl.FlightClient]]:
    """Serve a store, and connect to the server."""

    @contextmanager
    def connect(store: Path) -> Iterator[fl.FlightClient]:
        node = start(store=store)
        with fl.connect(node.url) as client:
            yield client
        node.stop()

    return connect


@pytest.fixture
def imports(
    bowstring: Callable[..., subprocess.CompletedProcess[str]],
    serve: Callable[[Path], AbstractContextManager[fl.FlightClient]],
    tmp_path: Path,
) -> Callable[..., pa.Table]:
    """Import a path into a store of its own, and read what it became from a server."""

    def run(path: Path | str, *options: str, columns: list[str] | None = None) -> pa.Table:
        store = tmp_path / f"imports{len(list(tmp_path.glob('imports*')))}"
        bowstring("import", path, "d", "--store", store, *options)
        with serve(store) as client:
            return read(client, dataset="d", **({"columns": columns} if columns else {}))

    return run


# --- Cassandra -----------------------------------------------------------------------------------------------------

CASSANDRA = ROOT / "tests" / "cassandra" / "cassandra.sh"


class Cassandra(NamedTuple):
    """A running node of the tests' own."""

    folder: Path
    address: str  # HOST:PORT

    def signal(self, number: signal.Signals) -> None:
        os.kill(int((self.folder / "pid").read_text()), number)

    def kill(self) -> None:
        cassandra_script("stop", self.folder, "KILL")


StartCassandra = Callable[..., Cassandra]


def cassandra_script(*args: str | Path, **environment: str) -> None:
    done = subprocess.run(
        [CASSANDRA, *args],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode != 0:
        pytest.fail(f"no Cassandra to test with: {done.stderr.strip()}")


@pytest.fixture(scope="session")
def start_cassandra(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartCassandra]:
    """Start nodes of Cassandra, each alone and gone with the session."""
    nodes: list[Cassandra] = []

    def begin(**environment: str) -> Cassandra:
        port = free_port()
        own = Cassandra(tmp_path_factory.mktemp("cassandra"), f"127.0.0.1:{port}")
        cassandra_script("start", own.folder, PORT=str(port), STORAGE_PORT=str(free_port()), **environment)
        nodes.append(own)
        cassandra_script("wait", own.folder, "600")
        return own

    yield begin
    for own in nodes:
        own.kill()
        shutil.rmtree(own.folder)


@pytest.fixture(scope="session")
def cassandra(start_cassandra: StartCassandra) -> str:
    """HOST:PORT of a Cassandra without passwords: the one that BOWSTRING_CASSANDRA_ADDR names, else a new one."""
    if folder := os.environ.get("BOWSTRING_CASSANDRA_DIR"):
        cassandra_script("wait", folder, "900")  # `make test` starts it beside all else
    return os.environ.get("BOWSTRING_CASSANDRA_ADDR") or start_cassandra().address
