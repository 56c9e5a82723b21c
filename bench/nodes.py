"""Real nodes of a cluster on one machine: processes with spills of their own, over one store, behind links.

    store ── link of a rate and a latency, shared by all ── node a, b, …
    node b, … ── link of node a ── node a

`bowstring-lab links` stands between the processes: it counts bytes by their sender, and cuts or holds a link. Clients
connect to the nodes themselves.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import io
import json
import os
import random
import signal
import subprocess
import threading
import time
import urllib.parse
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pyarrow.parquet as pq
from harness import lab
from node import Node
from ports import free_port

INDEX = 8 << 20  # what a spill sets aside of its budget for its index
HEADER = 256  # and for each blob, its header included
LEAST = 16 << 20  # of a budget; a node takes no less, which is room for more than smoke runs ask for
PATIENCE = 180  # seconds to wait for what is bound to happen
DATASET = "samples"


@dataclass(frozen=True)
class Wire:
    """A link: round trip in milliseconds and by how much it may be longer, bytes a second in each direction.

    `window` has the bytes of a connection that may be unacknowledged; 0 is no limit of each. `loss` is the share of
    packets that are lost, and needs a window.
    """

    latency_ms: float = 0
    bytes_per_s: int = 0
    jitter_ms: float = 0
    window: int = 0
    loss: float = 0


class Links:
    """A running `bowstring-lab links`."""

    def __init__(self, binary: Path) -> None:
        self._process = subprocess.Popen(
            [lab(binary), "links"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._turn = threading.Lock()

    def do(self, **command: Any) -> dict[str, Any]:
        """Give a command and return the answer."""
        with self._turn:
            if not self._process.stdin or not self._process.stdout:
                raise RuntimeError("links has no pipes")
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
            answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise RuntimeError(f"links, {command}: {answer['error']}")
        return answer

    def link(self, name: str, wire: Wire) -> None:
        """Make a link."""
        self.do(
            link={
                "name": name,
                "rtt_us": round(1000 * wire.latency_ms),
                "jitter_us": round(1000 * wire.jitter_ms),
                "bytes_per_s": wire.bytes_per_s,
                "window": wire.window,
                "loss": wire.loss,
            }
        )

    def proxy(self, name: str, link: str, to: str) -> str:
        """Open a proxy and return its address."""
        address: str = self.do(open={"proxy": name, "link": link, "to": to})["address"]
        return address

    def counts(self) -> dict[tuple[str, str], dict[str, int]]:
        """The counts, by proxy and process."""
        return {(c["proxy"], c["from"]): c for c in self.do(count={}).get("counts", [])}

    def close(self) -> None:
        """End all links."""
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()


@contextlib.contextmanager
def objects(binary: Path, folder: Path, *options: str) -> Iterator[str]:
    """The URL of an empty bucket of a server of S3, which `bowstring-lab objects` is."""
    (folder / "bucket").mkdir(parents=True)
    command: list[str | Path] = [lab(binary), "objects", "--root", folder, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        if not server.stdout:
            raise RuntimeError("the server of objects has no pipe")
        try:
            yield f"s3://bucket?endpoint={server.stdout.readline().strip()}&anonymous=true"
        finally:  # else the block above would wait for a server that nothing ends
            server.terminate()
            server.wait(PATIENCE)


def within(bucket: str, prefix: str) -> str:
    """The URL of the objects under a prefix of a bucket."""
    return bucket.replace("?", f"/{prefix}?", 1)


def host_of(store: str) -> str:
    """HOST:PORT of a store."""
    parts = urllib.parse.urlsplit(store)
    endpoint = urllib.parse.parse_qs(parts.query).get("endpoint")
    return urllib.parse.urlsplit(endpoint[0]).netloc if endpoint else parts.netloc


def spill_bytes(samples: float, size: int) -> int:
    """The budget of a spill that has room for this number of samples."""
    return max(LEAST, round(INDEX + samples * (size + HEADER)))


def blob(key: int, size: int) -> bytes:
    """The bytes of a sample."""
    return random.Random(key).randbytes(size)


SCHEMA = pa.schema([("key", pa.int64()), ("sum", pa.int64()), ("image", pa.large_binary())])


def rows(first: int, end: int, size: int) -> pa.RecordBatch:
    """Rows that say what their bytes have to be: `key`, `sum` (CRC-32) and `image`."""
    keys = list(range(first, end))
    images = [blob(k, size) for k in keys]
    sums = [zlib.crc32(image) for image in images]
    return pa.record_batch([keys, sums, pa.array(images, pa.large_binary())], schema=SCHEMA)


def attach(binary: Path, store: str, bucket: str, samples: int, size: int) -> None:
    """Attach the dataset that `upload` uploads, as files of Parquet in a bucket."""
    each = max(samples // 2, 1)
    for first in range(0, samples, each):
        out = io.BytesIO()
        table = pa.Table.from_batches([rows(first, min(first + each, samples), size)])
        pq.write_table(table, out, compression="none", use_dictionary=False, write_statistics=False)
        name = f"{urllib.parse.urlsplit(bucket).netloc}/attached/{first:09}.parquet"
        connection = http.client.HTTPConnection(host_of(bucket))
        connection.request("PUT", f"/{name}", out.getvalue())
        answer = connection.getresponse()
        answer.read()
        connection.close()
        if answer.status != http.HTTPStatus.OK:
            raise RuntimeError(f"{name} is not taken: {answer.status}")
    command: list[str | Path] = [binary, "attach", within(bucket, "attached"), DATASET, "--store", store]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"attach: {done.stderr}")


def upload(url: str, samples: int, size: int, name: str = DATASET) -> None:
    """Upload a dataset of such rows."""
    with fl.connect(url) as client:
        request = json.dumps({"put": {"dataset": name, "key": "key"}})
        writer, reader = client.do_put(fl.FlightDescriptor.for_command(request), SCHEMA)
        with writer:
            for first in range(0, samples, 64):
                writer.write_batch(rows(first, min(first + 64, samples), size))
            writer.done_writing()
            while reader.read() is not None:
                pass


class Member:
    """A node: its process, its proxies and its spill, which outlive the process."""

    def __init__(self, nodes: Nodes, name: str, spill: int, options: tuple[str, ...]) -> None:
        self.name = name
        self.nodes = nodes
        self.listen = f"127.0.0.1:{free_port()}"
        self.log = nodes.folder / f"{name}.log"
        links, host = nodes.links, nodes.store_host
        links.link(f"net-{name}", nodes.net)
        proxy = links.proxy(name, f"net-{name}", self.listen)
        store = nodes.store.replace(host, links.proxy(f"store-{name}", "store", host), 1)
        self.node = Node(
            nodes.server,
            store,
            f"--cluster={nodes.cluster}",
            f"--node={name}",
            f"--advertise=grpc://{self.listen if nodes.direct else proxy}",
            f"--cluster-key-file={nodes.key}",
            f"--spill={nodes.folder / name}",
            f"--spill-bytes={spill}B",
            f"--spill-min-bytes={spill}B",
            "--window-memory=128MiB",
            "--drain-timeout=2s",
            *options,
            log=self.log,
        )
        self.running = False

    @property
    def url(self) -> str:
        """Where clients reach it."""
        return f"grpc://{self.listen}"

    def start(self) -> None:
        """Start the process; its proxies know it from then on."""
        try:
            self.node.start(self.listen, began=lambda pid: self.nodes.links.do(name={"pid": pid, "name": self.name}))
        except RuntimeError as error:
            raise RuntimeError(f"{error}:\n{self.log.read_text(errors='replace')[-3000:]}") from None
        self.running = True

    def kill(self) -> None:
        """End it as a power cut would."""
        self.running = False
        self.node.kill()

    def leave(self) -> None:
        """End it in order."""
        self.running = False
        self.node.stop()

    def freeze(self) -> None:
        """Stop the process: its connections stay, and say nothing."""
        os.kill(self.node.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume it."""
        os.kill(self.node.pid, signal.SIGCONT)

    def stats(self) -> dict[str, Any]:
        """The answer of its action `stats`."""
        with fl.connect(self.url) as client:
            (answer,) = client.do_action(("stats", b""))
            found: dict[str, Any] = json.loads(answer.body.to_pybytes())
            return found


class Nodes:
    """The nodes `a`, `b` and so on of one cluster. Use it in a `with` block; they start on entry, side by side.

    The store is `cql://HOST:PORT/KEYSPACE` or `s3://BUCKET/PREFIX?endpoint=http://HOST:PORT`, which is there already.
    """

    def __init__(
        self,
        binary: Path,
        store: str,
        folder: Path,
        spills: list[int],
        *options: str,
        far: Wire | None = None,
        net: Wire | None = None,
        more: dict[str, tuple[str, ...]] | None = None,
        direct: bool = False,
        server: Path | None = None,
    ) -> None:
        self.binary, self.store, self.folder = binary, store, folder
        self.server = server or binary  # what the nodes are, such as bowstring-lab with a clock of its own
        self.direct = direct  # nodes read from each other without a proxy between them, which would split messages
        self.store_host = host_of(store)
        self.cluster = f"c{random.getrandbits(40):x}"  # none that a run before has left leases of
        self.net = net or Wire()
        self.key = folder / "cluster.key"
        folder.mkdir(parents=True, exist_ok=True)
        self.key.write_text("a key of the nodes of a benchmark, no secret\n")
        self.links = Links(binary)
        self.links.link("store", far or Wire())
        names = [chr(ord("a") + i) for i in range(len(spills))]
        self.members = [
            Member(self, name, size, (*options, *(more or {}).get(name, ())))
            for name, size in zip(names, spills, strict=True)
        ]

    def __enter__(self) -> Nodes:
        try:
            with concurrent.futures.ThreadPoolExecutor() as pool:
                list(pool.map(Member.start, self.members))
            self.whole()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Kill what runs and end the links."""
        for m in self.members:
            with contextlib.suppress(RuntimeError, ProcessLookupError):
                m.thaw()
            m.kill()
        self.links.close()

    def there(self) -> list[Member]:
        """Those that run."""
        return [m for m in self.members if m.running]

    def is_whole(self) -> bool:
        """Whether each node that runs knows all that run, and no other, and can ask each."""
        for m in self.there():
            cluster = m.stats()["cluster"]
            names = {o.name for o in self.there()}
            up = {p["node"] for p in cluster.get("peers", []) if p["up"] and not p["silent"]}
            if {n["id"] for n in cluster["nodes"]} != names or up != names - {m.name}:
                return False
        return True

    def whole(self, seconds: float = PATIENCE) -> float:
        """Wait until it is; return how long that took."""
        begin = time.monotonic()
        while not self.is_whole():
            if time.monotonic() - begin > seconds:
                raise RuntimeError(f"the nodes have not found each other within {seconds} s")
            time.sleep(0.05)
        return time.monotonic() - begin

    def part(self, member: Member, fault: str) -> None:
        """Set a fault of all connections between a node and the others, and the store: `cut`, `hold`, or none."""
        for other in self.members:
            if other is not member:
                self.links.do(set={"proxy": other.name, "from": member.name, "fault": fault})
                self.links.do(set={"proxy": member.name, "from": other.name, "fault": fault})
        self.links.do(set={"proxy": f"store-{member.name}", "from": member.name, "fault": fault})

    def suffer(self, member: Member, what: str, seconds: float, *, back: bool = True) -> None:
        """Let a node suffer for some seconds: `kill`, `leave`, `freeze`, or a fault of its connections.

        A node that was killed or has left starts again, unless it is not to come `back`.
        """
        if what in ("kill", "leave"):
            (member.kill if what == "kill" else member.leave)()
            time.sleep(seconds)
            if back:
                member.start()
        elif what == "freeze":
            member.freeze()
            time.sleep(seconds)
            member.thaw()
        else:
            self.part(member, what)
            time.sleep(seconds)
            self.part(member, "")

    def held(self) -> int:
        """How many blobs the spills have."""
        return sum(m.stats()["engine"]["spill"]["entries"] for m in self.there())

    def totals(self) -> dict[str, int]:
        """The counters of all nodes: reads and bytes by tier; and what went over links, by kind."""
        engines = [m.stats()["engine"] for m in self.there()]
        found = {
            name: sum(e[name] for e in engines)
            for name in (
                "reads",
                "read_bytes",
                "peer_reads",
                "peer_bytes",
                "spill_reads",
                "spill_bytes",
                "hedges",
                "fills",
            )
        }
        for name in ("spans", "bytes", "singles"):
            found[f"span_{name}"] = sum(e["spans"][name] for e in engines)
        counts = self.links.counts()
        store = [c for (proxy, _), c in counts.items() if proxy.startswith("store-")]
        peers = [c for (proxy, _), c in counts.items() if not proxy.startswith("store-")]
        found["store_link_bytes"] = sum(c["back_bytes"] for c in store)
        found["peer_link_bytes"] = sum(c["back_bytes"] for c in peers)
        return found


@contextlib.contextmanager
def stored(binary: Path, uri: str, samples: int, size: int) -> Iterator[str]:
    """A store with the dataset, which is made in it; a keyspace stays, and costs nothing but room."""
    initialise(binary, uri)
    with Node(binary, uri) as node:
        upload(node.url, samples, size)
    yield uri


def initialise(binary: Path, uri: str) -> None:
    """Make a store ready."""
    done = subprocess.run([binary, "store", "init", "--store", uri], check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"store init: {done.stderr}")
