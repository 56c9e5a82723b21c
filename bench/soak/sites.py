"""The servers of a long run and their stores: one node on an embedded store, and three nodes of a cluster."""

from __future__ import annotations

import contextlib
import http.client
import io
import os
import random
import shutil
import signal
import subprocess
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import bowstring
import pyarrow.parquet as pq
from cassandra_node import Cassandra
from harness import lab
from node import Node
from nodes import INDEX, Links, Nodes, Wire, host_of, initialise, objects, within
from ports import free_port
from server import Server

from soak import content
from soak.clients import tenants

MIB = 1 << 20
SPILL = INDEX + 12 * MIB  # less than what is read, so that it evicts all the time
LONGEST = 4.0  # seconds of a fault
WHOLE = 120.0  # seconds in which nodes have to find each other after one
HEAP = {"HEAP": "512m", "MEMTABLE": "64MiB", "JVM": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
FAR = "bucket"  # the proxy before the bucket with the attached data
EVERYTHING = (
    *("tcp", "shared", "attached", "slow", "resumed", "where", "operators", "packed", "mixed", "loader"),
    *("broken", "writer"),
)


@dataclass
class Event:
    """A fault that was caused: what, to whom, and when it began and ended, in seconds of the monotonic clock."""

    what: str
    whom: str
    began: float
    ended: float = 0.0


@dataclass
class Site:
    """Servers that clients read from, and what can go wrong with them.

    `servers` are those that live as long as the run; `urls` has all.
    """

    name: str
    urls: list[str]
    sockets: list[str]  # that nodes share memory by
    servers: dict[str, tuple[Callable[[], int], str]]  # by name: the process, and the listener for operators
    folders: dict[str, Path]  # stores and spills on disk
    faults: dict[str, Callable[[random.Random], str]]  # by name; each causes one, ends it, and returns whom it met
    ended: Callable[[], list[str]]  # servers that have ended by themselves
    stop: Callable[[], list[int]]  # end all servers in order; their exit statuses
    kinds: tuple[str, ...] = EVERYTHING
    processes: dict[str, int] = field(default_factory=dict)  # others that live as long as the run


def put(url: str, name: str, body: bytes) -> None:
    """Write an object into a bucket."""
    connection = http.client.HTTPConnection(host_of(url))
    connection.request("PUT", f"/{urllib.parse.urlsplit(url).netloc}/{name}", body)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    if answer.status != http.HTTPStatus.OK:
        raise RuntimeError(f"{name} is not taken: {answer.status}")


def attach(binary: Path, store: str | Path, bucket: str) -> None:
    """Attach the samples as files of Parquet in a bucket."""
    rows, each = content.table(list(range(content.SAMPLES))), content.SAMPLES // 3
    for first in range(0, content.SAMPLES, each):
        out = io.BytesIO()
        pq.write_table(rows.slice(first, each), out, compression="none", use_dictionary=False)
        put(bucket, f"attached/{first:06}.parquet", out.getvalue())
    command: list[str | Path] = [binary, "attach", within(bucket, "attached"), content.ATTACHED, "--store", store]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"attach: {done.stderr}")


def upload(url: str) -> None:
    """Upload the samples."""
    with bowstring.connect(url) as client:
        rows = content.table(list(range(content.SAMPLES)))
        client.ingest(content.DATASET, rows, key="key", media={"image": "image"}, progress=False)


def proxied(links: Links, url: str) -> str:
    """The URL of a bucket behind a proxy that can be cut."""
    links.link(FAR, Wire(latency_ms=2))
    host = host_of(url)
    return url.replace(host, links.proxy(FAR, FAR, host))


def store_fault(links: Links, ways: list[tuple[str, str]], kind: str) -> Callable[[random.Random], str]:
    """A fault of all connections by some ways, each a proxy and a process: `cut` resets them, `hold` silences them."""

    def cause(rng: random.Random) -> str:
        for proxy, process in ways:
            links.do(set={"proxy": proxy, "from": process, "fault": kind})
        time.sleep(rng.uniform(0.2, LONGEST))
        for proxy, process in ways:
            links.do(set={"proxy": proxy, "from": process, "fault": ""})
        return ", ".join(sorted({process for _, process in ways}))

    return cause


@contextlib.contextmanager
def one(binary: Path, folder: Path) -> Iterator[Site]:
    """A node on an embedded store, behind a link so that its spill is used, with tenants."""
    folder.mkdir()
    file, local, admin = folder / "tenants.yaml", folder / "local", f"127.0.0.1:{free_port()}"
    file.write_text(tenants.FILE)
    links = Links(binary)
    with objects(binary, folder / "objects", "--refuse=0.002") as real:
        attach(binary, folder / "store", proxied(links, real))
        options = [f"--spill={folder / 'spill'}", f"--spill-bytes={SPILL}B", f"--spill-min-bytes={SPILL}B"]
        options += [f"--admin={admin}", "--window-memory=128MiB", f"--tenants={file}", f"--local={local}"]
        server = Server(binary, folder / "store", *options, rtt="1ms")
        server.start(f"127.0.0.1:{free_port()}")
        try:
            upload(server.url)
            yield Site(
                "one",
                [server.url],
                [str(local)],
                {"one": (lambda: server.pid, admin)},
                {"store": folder / "store", "spill": folder / "spill"},
                {f"{FAR} {kind}": store_fault(links, [(FAR, "")], kind) for kind in ("cut", "hold")},
                lambda: [] if alive(server) else ["one"],
                lambda: [status_of(server)],
                (*EVERYTHING, "tenants"),
            )
        finally:
            server.kill()
            links.close()


@contextlib.contextmanager
def cluster(binary: Path, folder: Path, kind: str) -> Iterator[Site]:
    """Three nodes on a store in a bucket, or in Cassandra. Node `a` is never ended; `b` and `c` come and go."""
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        bucket = stack.enter_context(objects(binary, folder / "objects", "--refuse=0.002", "--lose=0.005"))
        database, clock, own_clock = None, folder / "database-clock", folder / "clock"
        clock.write_text("+0\n")
        own_clock.write_text("0s\n")
        if kind == "cassandra":
            environment = {**HEAP, **({"CLOCK": str(clock)} if steps_clocks() else {})}
            database = stack.enter_context(Cassandra(folder / "cassandra", **environment))
        store = database.uri("soak") if database else within(bucket, "store")
        initialise(binary, store)
        admins = {name: f"127.0.0.1:{free_port()}" for name in "abc"}
        more: dict[str, tuple[str, ...]] = {
            name: (f"--admin={admins[name]}", f"--local={folder}/local-{name}", "--local-references") for name in "abc"
        }
        nodes = Nodes(
            binary,
            store,
            folder,
            [SPILL] * 3,
            f"--clock={own_clock}",
            far=Wire(latency_ms=1),
            net=Wire(latency_ms=0.2),
            more=more,
            server=lab(binary),
        )
        with nodes:
            attach(binary, store, proxied(nodes.links, bucket))
            a = nodes.members[0]
            upload(a.url)
            stores = [(f"store-{m.name}", m.name) for m in nodes.members]
            buckets = [(FAR, m.name) for m in nodes.members]
            faults = {f"node {what}": node_fault(nodes, what) for what in ("kill", "leave", "freeze", "cut", "hold")}
            faults |= {f"store {what}": store_fault(nodes.links, stores, what) for what in ("cut", "hold")}
            faults |= {f"{FAR} {what}": store_fault(nodes.links, buckets, what) for what in ("cut", "hold")}
            faults["node clock"] = stepped(own_clock, "nodes", "0s")
            if database:
                faults["database stop"] = stopped(database.pid)
                if steps_clocks():
                    faults["database clock"] = stepped(clock, "cassandra", "+0")
            yield Site(
                kind,
                [m.url for m in nodes.members],
                [str(folder / f"local-{m.name}") for m in nodes.members],
                {"a": (lambda: a.node.pid, admins["a"])},
                {f"spill-{m.name}": folder / m.name for m in nodes.members},
                faults,
                lambda: [m.name for m in nodes.there() if not alive(m.node)],
                lambda: [status_of(m.node) for m in nodes.there()],
            )


def status_of(node: Node) -> int:
    """The exit status of a server that is asked to end; -9 if it had to be killed."""
    try:
        return node.stop()
    except subprocess.TimeoutExpired:
        return -9


def alive(node: Node) -> bool:
    """Whether a server that was not ended runs."""
    try:
        os.kill(node.pid, 0)
    except (RuntimeError, ProcessLookupError):
        return False
    return "\nState:\tZ" not in Path(f"/proc/{node.pid}/status").read_text()


def node_fault(nodes: Nodes, what: str) -> Callable[[random.Random], str]:
    """A fault of one of the nodes that come and go; it returns when the nodes have found each other again."""

    def cause(rng: random.Random) -> str:
        member, seconds = rng.choice(nodes.members[1:]), rng.uniform(0.2, LONGEST)
        nodes.suffer(member, what, seconds)
        nodes.whole(WHOLE)
        return member.name

    return cause


def stopped(pid: int) -> Callable[[random.Random], str]:
    """The database's process says nothing for a while."""

    def cause(rng: random.Random) -> str:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(rng.uniform(0.2, LONGEST))
        os.kill(pid, signal.SIGCONT)
        return "cassandra"

    return cause


def steps_clocks() -> bool:
    """Whether libfaketime, which steps the database's clock, is installed."""
    return any(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))


def stepped(clock: Path, whose: str, right: str) -> Callable[[random.Random], str]:
    """A clock steps, and back again. Its file says by how much it is wrong, and is read each second."""

    def cause(rng: random.Random) -> str:
        by = rng.uniform(-60, 60)
        for text in (f"{by:+.1f}s", right):
            new = clock.with_suffix(".new")
            new.write_text(text + "\n")
            new.replace(clock)
            time.sleep(rng.uniform(2, LONGEST))
        return f"{whose} by {by:+.1f} s"

    return cause


def has_java() -> bool:
    """Whether a Cassandra can be started."""
    return shutil.which("java") is not None and shutil.which("mvn") is not None


SITES: dict[str, Callable[[Path, Path], contextlib.AbstractContextManager[Site]]] = {
    "one": one,
    "bucket": lambda binary, folder: cluster(binary, folder, "bucket"),
    "cassandra": lambda binary, folder: cluster(binary, folder, "cassandra"),
}
