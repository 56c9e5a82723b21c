"""real_cluster: nodes as processes of their own over Cassandra, beside a lone one; and what the peer tier costs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cassandra_node import Cassandra
from harness import CASSANDRA, Context, Figure, Readers, Result, cpu_seconds, emit, median, needs
from job import Ranks, job
from nodes import DATASET, Nodes, Wire, spill_bytes, stored
from server import Server
from sizes import sized

SAMPLES, SIZE = sized(2_000, smoke=192), 64_000
SEED, BATCH, WORLD = 7, 64, 4
STORE = Wire(latency_ms=5, bytes_per_s=24_000_000)  # far less than the processors could carry
NET = Wire(latency_ms=0.2)
HEAP = {"HEAP": "768m", "MEMTABLE": "128MiB"}


@dataclass(frozen=True)
class Setting:
    """A job on a cluster: all that its figures depend on."""

    nodes: int
    cache_samples: float  # that a node's spill has room for
    store: Wire = STORE
    net: Wire = NET
    ranks: int = WORLD
    samples: int = SAMPLES
    sample_bytes: int = SIZE
    epochs: int = sized(4, smoke=2)
    batch: int = BATCH
    seed: int = SEED
    assign: str = "plan"
    compute_s: float = 0  # that a rank trains after each of its batches

    def described(self) -> dict[str, Any]:
        """The setting as the simulator takes it."""
        found = asdict(self)
        found["cache_bytes_per_node"] = spill_bytes(self.cache_samples, self.sample_bytes)
        found["store"] = {"latency_ms": self.store.latency_ms, "bytes_per_s": self.store.bytes_per_s}
        found["network"] = {"latency_ms": self.net.latency_ms, "bytes_per_s": self.net.bytes_per_s}
        del found["net"]
        return found


def steps_of(setting: Setting, rank: int) -> list[int]:
    """How many rows the plan gives a rank in each step of an epoch."""
    found = []
    for first in range(0, setting.samples, setting.batch):
        n = min(setting.batch, setting.samples - first)
        found.append(n * (rank + 1) // setting.ranks - n * rank // setting.ranks)
    return found


def run_setting(binary: Path, uri: str, folder: Path, setting: Setting) -> list[dict[str, Any]]:
    """Run its epochs one after another, all ranks together; what each took, and what it read from where."""
    spills = [spill_bytes(setting.cache_samples, setting.sample_bytes)] * setting.nodes
    more = {"assign": "local"} if setting.assign == "local" else {}
    epochs = []
    with (
        Nodes(binary, uri, folder, spills, far=setting.store, net=setting.net) as nodes,
        Ranks(
            nodes,
            job(setting.seed, setting.batch, setting.ranks, **more),
            setting.ranks,
            epochs=setting.epochs,
            barrier=True,
            compute=setting.compute_s,
        ) as ranks,
    ):
        before = nodes.totals()
        for number in range(setting.epochs):
            ranks.go()
            found = ranks.epoch()
            now = nodes.totals()
            check(setting, found)
            begin, end = min(r["begin"] for r in found), max(r["end"] for r in found)
            epochs.append(
                {
                    "epoch": number,
                    "begin": round(begin, 4),  # by the machine's monotonic clock
                    "end": round(end, 4),
                    "seconds": round(end - begin, 4),
                    "rank_seconds": [round(r["end"] - r["begin"], 4) for r in found],
                    "counts_equal": all(list(r["steps"].values()) == steps_of(setting, r["rank"]) for r in found),
                    "held": nodes.held(),
                    **{name: now[name] - before[name] for name in now},
                }
            )
            before = now
    return epochs


def check(setting: Setting, found: list[dict[str, Any]]) -> None:
    """Raise where a sample is missing, came twice, or has other bytes."""
    served = sorted(p for r in found for p in r["positions"])
    if served != list(range(setting.samples)):
        raise RuntimeError(f"{len(served)} samples of {setting.samples} came, {len(set(served))} different ones")
    if wrong := sum(r["wrong"] for r in found):
        raise RuntimeError(f"{wrong} samples have wrong bytes")
    if errors := [e for r in found for e in r["errors"]]:
        raise RuntimeError(f"streams broke: {errors}")


@needs(CASSANDRA)
def run(context: Context) -> Result:
    """Four ranks at a lone node and at four, in rotation; caches that hold the dataset together, then half of it."""
    alone: list[float] = []
    speedups: list[float] = []
    reads, shares, halves = [], [], []
    equal = True
    whole, half = SAMPLES / 3, SAMPLES / 8
    with Cassandra(context.folder / "cassandra-real", **HEAP) as cassandra:
        uri = f"cql://127.0.0.1:{cassandra.port}/real?rf=1"
        with stored(context.binary, uri, SAMPLES, SIZE):
            for number in context.repeat(speedups):
                took = {}
                for nodes, room in ((1, whole), (4, whole), (4, half)):
                    setting = Setting(nodes, room)
                    folder = context.folder / f"real-{number}-{nodes}-{room:.0f}"
                    epochs = run_setting(context.binary, uri, folder, setting)
                    for e in epochs:
                        emit(case="real_cluster", nodes=nodes, room=round(room), **e)
                    equal = equal and all(e["counts_equal"] for e in epochs)
                    took[nodes, room] = sum(e["seconds"] for e in epochs[1:])
                    store = [e["reads"] / SAMPLES for e in epochs]
                    if (nodes, room) == (4, whole):
                        reads.append(sum(store))
                        shares.append(sum(store[1:]) / (setting.epochs - 1))
                    elif room == half:
                        held = sum(e["held"] for e in epochs[1:]) / (setting.epochs - 1) / SAMPLES
                        halves.append((1 - sum(store[1:]) / (setting.epochs - 1)) / held)
                alone.append(took[1, whole])
                speedups.append(took[1, whole] / took[4, whole])
            peers, cpu = cost(context, uri)
    return Result(
        "real_cluster",
        [
            Figure("store_reads", reads),
            Figure("store_share", shares),
            Figure("speedup", speedups),
            Figure("belady_ratio", halves),
            Figure("counts_equal", float(equal)),
            Figure("peers_share", peers),
            Figure("peers_cpu_ratio", cpu),
        ],
        {"alone_s": round(median(alone), 2)},
    )


# Passes of each side: one takes half a second, in which other things happen on a machine, too.
PAIRS = sized(6, smoke=1)


def cost(context: Context, uri: str) -> tuple[list[float], list[float]]:
    """The throughput that an unused peer tier costs, and the cost of a read through it.

    Sides are in rotation, in either order. CPU time is that of servers alone, both nodes together, from warm spills.
    """
    large = 1 << 30
    small = 16 << 20  # the least: a sixty-fourth of the other one
    epoch = {"dataset": DATASET, "columns": ["key", "image"], "batch": BATCH, "shuffle": {"seed": SEED}, "epochs": 6}
    ticket = [bytes(str(epoch).replace("'", '"'), "ascii")]
    spill = context.folder / "cost-alone"
    flags = [f"--spill={spill}", f"--spill-bytes={large}B", f"--spill-min-bytes={large}B", "--window-memory=128MiB"]
    shares, ratios = [], []
    with (
        Server(context.binary, uri, *flags) as alone,
        # Node a owns all but a sixty-fourth; b asks it for that.
        Nodes(context.binary, uri, context.folder / "cost", [large, small], direct=True) as nodes,
    ):
        owns, asks = nodes.members
        sides = [("alone", alone.url), ("owns", owns.url), ("asks", asks.url)]
        for _, url in sides:
            Readers(url, ticket).run()  # fills the spills
        for number in range(max(PAIRS, context.rounds)):
            rate: dict[str, float] = {}
            cpu: dict[str, float] = {}
            for name, url in sides if number % 2 == 0 else sides[::-1]:
                before = cpu_seconds(owns.node.pid) + cpu_seconds(asks.node.pid)
                peer = asks.stats()["engine"]["peer_bytes"]
                found = Readers(url, ticket, 1).run()
                # With the pass that warms.
                cpu[name] = (cpu_seconds(owns.node.pid) + cpu_seconds(asks.node.pid) - before) / (2 * found["bytes"])
                rate[name] = found["bytes"] / found["seconds"]
                peer = (asks.stats()["engine"]["peer_bytes"] - peer) / (2 * found["bytes"])
                emit(
                    case="real_cluster",
                    side=name,
                    mb_per_s=rate[name] / 1e6,
                    cpu_s_per_gb=cpu[name] * 1e9,
                    peer_share=peer,
                )
            shares.append(rate["owns"] / rate["alone"])
            ratios.append(cpu["asks"] / cpu["owns"])
    return shares, ratios
