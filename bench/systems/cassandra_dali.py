"""dali: raw reading and a training loop of fixed step, from Cassandra and from a bucket, over links up to 300 ms."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from cases.latency import WINDOW
from cassandra_node import Cassandra, warm
from harness import MIB, Context, Stream, TimedReaders, median, shuffled
from matplotlib.axes import Axes
from nodes import Links, Wire
from plots import COLOURS, legend
from server import Server

from .model import Busy, Claim, Found, Json, System, Table, installed, theirs
from .photographs import BATCH, Bucket, bucket

COUNT = 4_000
ROOM = int(WINDOW.removesuffix("MiB")) * MIB
LINKS = {
    "0 ms": Wire(0, window=ROOM),
    "20 ms": Wire(20, jitter_ms=2, window=ROOM),
    "150 ms": Wire(150, jitter_ms=15, window=ROOM),
    "300 ms": Wire(300, jitter_ms=30, window=ROOM, loss=0.001),
}
STEP = 0.080  # seconds that the consumer computes for a batch; it sleeps: 88 MB/s
SECONDS, SKIP = 14, 5  # of raw reading
IN_FLIGHT = 1_024  # reads of their method: 110 MB, which 300 ms carry at 370 MB/s
# Less than the dataset, so that windows do not hold whole epochs, and more than the longest link needs.
MEMORY = "--window-memory=256MiB"
TARS = "Bowstring, tars in the bucket"
OURS = ("Bowstring, Cassandra", "Bowstring, objects in the bucket", TARS)
METHOD, MOSAICML, DALI = "concurrent prepared reads", "MosaicML Streaming", "Bowstring in DALI, objects"


@dataclass
class Bench:
    """The data in Cassandra and in a bucket, with the ways to both."""

    kept: Bucket
    uris: dict[str, str]  # of the store in Cassandra, by link
    hosts: dict[str, str]  # HOST:PORT of Cassandra, by link
    smoke: bool

    @contextlib.contextmanager
    def served(self, side: str, link: str) -> Iterator[tuple[str, str]]:
        """A new server's address, and the name of the dataset."""
        if side == OURS[0]:
            store, name = self.uris[link], "bench"
        else:
            store, name = str(self.kept.store), f"{'tars' if side == TARS else 'files'}-{place(link)}"
        with Server(self.kept.context.binary, store, MEMORY) as server:
            yield server.url, name

    def raw(self, side: str, link: str, first: int) -> float:
        """MB/s of reading as fast as it goes."""
        context = self.kept.context
        if side in OURS:
            seconds, skip = (3, 1) if self.smoke else (SECONDS, SKIP)
            with self.served(side, link) as (url, name):
                ticket = shuffled(seed=7, epoch=first, batch=BATCH, dataset=name, columns=["id", "image"])
                (stream,) = TimedReaders(url, seconds, [{"ticket": ticket}]).run()
            return stream.mb_per_s(skip)
        got = self.read(context, side, link, 0)
        if side == MOSAICML:  # it has much of the epoch before its first sample
            return got.mb_per_s()
        later = sum(size for at, _, size in got.marks if at > got.first_s)
        return later / 1e6 / (got.seconds - got.first_s)

    def trained(self, side: str, link: str, first: int) -> tuple[float, float]:
        """The part of a training loop that is spent in steps, from the second batch on; seconds to the first."""
        batches = -(-self.kept.count // BATCH)
        if side in OURS:
            with self.served(side, link) as (url, name):
                ticket = shuffled(seed=7, epoch=first, batch=BATCH, epochs=1, dataset=name, columns=["id", "image"])
                (stream,) = TimedReaders(url, 120, [{"ticket": ticket, "compute": STEP, "batches": batches}]).run()
        else:
            stream = self.read(self.kept.context, side, link, STEP)
        steps = STEP * (len(stream.marks) - 1)
        return steps / (steps + sum(stream.waited[1:])), stream.first_s

    def read(self, context: Context, side: str, link: str, compute: float) -> Stream:
        """An epoch by another system's method."""
        spec = {"folder": str(self.kept.folder), "batch": BATCH, "compute": compute}
        if side == METHOD:
            return theirs(context, "cassandra", 240, **spec, place=self.hosts[link], threads=IN_FLIGHT)
        if side == MOSAICML:
            place_of = self.kept.shards(place(link))
            return theirs(context, "mosaicml", 240, **spec, place=place_of, workers=os.cpu_count())
        with self.served(side, link) as (url, name):
            return theirs(context, "dali", 240, **spec, place=url, dataset=name)


def place(link: str) -> str:
    """The link's name as part of a dataset's."""
    return link.replace(" ", "")


def fill(context: Context, node: Cassandra, kept: Bucket) -> None:
    """Write the photographs to our tables, and to one as theirs has it: a row with its bytes for each sample."""
    from cassandra.cluster import Cluster
    from cassandra.concurrent import execute_concurrent_with_args

    context.bowstring("store", "init", "--store", node.uri())
    context.bowstring("import", "--store", node.uri(), kept.folder, "bench")
    cluster = Cluster(["127.0.0.1"], port=node.port, protocol_version=4)
    session = cluster.connect()
    session.execute("CREATE KEYSPACE theirs WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    session.execute("CREATE TABLE theirs.photographs (id int PRIMARY KEY, label int, data blob)")
    write = session.prepare("INSERT INTO theirs.photographs (id, label, data) VALUES (?, ?, ?)")
    paths = sorted(kept.folder.rglob("*.jpg"), key=lambda path: path.name)
    rows = ((n, int(path.parent.name.removeprefix("class")), path.read_bytes()) for n, path in enumerate(paths))
    execute_concurrent_with_args(session, write, rows, concurrency=32)
    cluster.shutdown()


@contextlib.contextmanager
def ready(context: Context, smoke: bool) -> Iterator[Bench]:
    """All data in place, and the JVM warm."""
    count = 4 * BATCH if smoke else COUNT
    links = {name: LINKS[name] for name in (("0 ms", "300 ms") if smoke else LINKS)}
    node = Cassandra(context.folder / "cassandra", **({"HEAP": "512m", "MEMTABLE": "64MiB"} if smoke else {}))
    with bucket(context, count, {place(name): wire for name, wire in links.items()}) as kept:
        with node:
            fill(context, node, kept)
        proxies = Links(context.binary)
        try:
            with node:  # started again, it has all in tables on disk
                if not smoke:
                    warm(context.binary, node.uri())
                hosts = {}
                for name, wire in links.items():
                    proxies.link(place(name), wire)
                    hosts[name] = proxies.proxy(place(name), place(name), f"127.0.0.1:{node.port}")
                uris = {name: node.uri(port=int(host.rpartition(":")[2])) for name, host in hosts.items()}
                yield Bench(kept, uris, hosts, smoke)
        finally:
            proxies.close()


def run(context: Context, smoke: bool) -> Found:
    """Interleave all sides over all links; a side that fails once is left out."""
    left_out = {
        "tf.data service": "Its client needs TensorFlow, which the packages of this run do not have.",
        "their plugin itself": "It is a plugin of DALI in C++ with DataStax's driver, which no registry has as a "
        "package; its method runs in Python with DataStax's driver.",
    }
    peers = [METHOD]
    for side, name in ((MOSAICML, "mosaicml"), (DALI, "dali")):
        if installed(context, name):
            peers.append(side)
        else:
            left_out[side] = f"Its packages are not in build/{name}."
    raw: dict[str, dict[str, list[float]]] = {}
    trained: dict[str, dict[str, list[float]]] = {}
    firsts: dict[str, dict[str, list[float]]] = {}
    busy: dict[str, float] = {}
    with ready(context, smoke) as bench:
        for round_ in range(context.rounds):
            for link, side in itertools.product(bench.uris, (*OURS, *peers)):
                if side not in left_out:
                    try:
                        if side != DALI:  # which decodes
                            with Busy() as meter:
                                rate = bench.raw(side, link, 1000 * round_)
                            raw.setdefault(side, {}).setdefault(link, []).append(rate)
                            busy[f"raw {side} {link}"] = meter.share
                        with Busy() as meter:
                            share, first_s = bench.trained(side, link, 1000 * round_)
                        trained.setdefault(side, {}).setdefault(link, []).append(share)
                        firsts.setdefault(side, {}).setdefault(link, []).append(first_s)
                        busy[f"trained {side} {link}"] = meter.share
                    except (RuntimeError, subprocess.SubprocessError) as error:
                        if side in OURS:
                            raise
                        left_out[side] = f"Over {link}: {' '.join(str(error).split())[-200:]}"
    return result(middle(raw), middle(trained), middle(firsts), busy, left_out, smoke)


def middle(found: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    """Medians over rounds."""
    return {side: {link: median(values) for link, values in links.items()} for side, links in found.items()}


def result(
    raw: dict[str, dict[str, float]],
    trained: dict[str, dict[str, float]],
    firsts: dict[str, dict[str, float]],
    busy: dict[str, float],
    left_out: dict[str, str],
    smoke: bool,
) -> Found:
    """The claims and tables."""
    claims = []
    for link, least in {"150 ms": 0.95, "300 ms": 0.9}.items():
        kept = {side: raw[side][link] / raw[side]["0 ms"] for side in OURS if link in raw[side]}
        if kept:
            worst = min(kept, key=lambda side: kept[side])
            extra = " with 0.1 % loss" if link == "300 ms" else ""
            claims.append(
                Claim(
                    f"kept_{place(link)}",
                    f"raw reading at {link}{extra}, relative to 0 ms, of the worst store ({worst})",
                    kept[worst],
                    at_least=least,
                    limit=f"meanwhile {100 * busy[f'raw {worst} {link}']:.0f} % of the {os.cpu_count()} cores were busy"
                    f" (at 0 ms {100 * busy[f'raw {worst} 0 ms']:.0f} %)",
                )
            )
    near = ["0 ms"] if smoke else ["0 ms", "20 ms", "150 ms"]
    shares = {(side, link): trained[side][link] for side in OURS for link in near}
    side, link = min(shares, key=lambda at: shares[at])
    claims.append(
        Claim(
            "share_of_bound",
            f"part of the training bound, the worst up to {near[-1]} ({side}, {link})",
            shares[side, link],
            at_least=0.97,
            limit=f"meanwhile {100 * busy[f'trained {side} {link}']:.0f} % of the {os.cpu_count()} cores were busy",
        )
    )
    links = list(raw[OURS[0]])
    return Found(
        claims,
        [
            Table(
                "MB/s of raw reading",
                ["side", *links],
                [[s, *(f"{rates[at]:.0f}" if at in rates else "-" for at in links)] for s, rates in raw.items()],
            ),
            Table(
                "Part of the training bound, from the second batch on",
                ["side", *links],
                [[s, *(f"{parts[at]:.3f}" if at in parts else "-" for at in links)] for s, parts in trained.items()],
            ),
            Table(
                "Seconds to the first batch of the training loop",
                ["side", *links],
                [[s, *(f"{times[at]:.2f}" if at in times else "-" for at in links)] for s, times in firsts.items()],
            ),
        ],
        {"raw": raw, "trained": trained},
        left_out,
    )


def plot(axes: Axes, series: Json) -> None:
    """The part of the bound by link, beside what is published at low, middle and high latency."""
    trained = series["trained"]
    links = list(next(iter(trained.values())))
    for n, (side, parts) in enumerate(trained.items()):
        axes.plot(list(parts), [100 * p for p in parts.values()], "o-", label=side, color=COLOURS[n])
    if len(links) > 2:
        published = {"published: cassandra-dali-plugin": (95, 95, 95), "published: MosaicML": (57, 49, 33)}
        for n, (name, shares) in enumerate(published.items()):
            axes.plot(links[:3], shares, "s:", label=name, color=COLOURS[len(COLOURS) - 1 - n])
    axes.set_ylim(0, 105)
    axes.set_xlabel("round trip; at 300 ms with 0.1 % loss")
    axes.set_ylabel("% of the training bound")
    axes.grid()
    legend(axes, fontsize=8)


SYSTEM = System(
    name="dali",
    title="cassandra-dali-plugin",
    source="[Versaci and Busonera, *Hiding Latencies in Network-Based Image Loading for Deep Learning*, 2025]"
    "(https://arxiv.org/abs/2503.22643)",
    published="Raw reading at 6, 6 and 4 GB/s at low, middle and high latency, so that 0.67 is kept. Training at 94 "
    "to 96 % of its upper bound, where MosaicML Streaming has 57, 49 and 33 %.",
    there="Cassandra and ScyllaDB on servers in the same data center, and as far away as 150 ms. Machines with "
    "GPUs train ResNet-50 on ImageNet through DALI. Their plugin has many prepared reads in flight, takes the answers "
    "in any order, and grows its prefetch step by step. The bound is training with data in GPU memory.",
    here="4,000 JPEGs of 110 KB are in Cassandra, and as objects, tars and MDS shards in a bucket, behind links of "
    "0, 20 and 150 ms. Another link has 300 ms and loses 0.1 % of the packets. Jitter is a tenth of the round "
    "trip, and a connection's window 6 MiB. Raw reading goes on epoch after epoch with 256 MiB of windows, "
    "which do not hold an epoch. The training loop sleeps 80 ms after each batch of 64, so its bound is the "
    "time of the sleeps. Their method has 1,024 prepared reads in flight, with DataStax's driver for Python. "
    "MosaicML Streaming reads shards of 8 MiB from the same bucket into an empty cache. DALI decodes and "
    "resizes on CPUs what `bowstring.dali` gives it. Servers have no spill. The bounds are of the worst of "
    "Cassandra, objects and tars.",
    apart="Their GB/s are of servers with GPUs and fast networks; here two cores carry client, server, store and link. "
    "So these cannot be compared, but what latency leaves of them can. The driver for Python costs more CPU time than "
    "theirs in C++. A lost packet delays what is behind it by a round trip, and windows do not shrink: a congestion "
    "control that takes loss for congestion would be slower for all sides.",
    run=run,
    plot=plot,
    rounds=2,
)
