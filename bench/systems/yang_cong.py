"""yang: loading from caches that nodes share, by formulas, by the simulator, and by real nodes."""

from __future__ import annotations

from typing import Any

from cases.real_cluster import HEAP, SIZE, Setting, run_setting
from cases.simulate import NODES, imagenet, simulated
from cases.simulate import table as by_formulas
from cases.simulate_real import calibrated, client_seconds, epochs_of, file_of, pause_of
from cassandra_node import Cassandra
from harness import Context, median
from matplotlib.axes import Axes
from nodes import stored
from plots import COLOURS, legend

from .model import Busy, Claim, Found, Json, System, Table

REAL = (1, 2, 4)  # nodes
SAMPLES = 2_000
RANKS = 4


def setting(nodes: int, samples: int, cached: bool) -> Setting:
    """A job of four ranks, on nodes that hold all samples together, or on a node that holds next to nothing."""
    room = 1.3 * samples / nodes if cached else 140
    return Setting(nodes, room, samples=samples, ranks=RANKS, epochs=3, assign="local" if cached else "plan")


def later(epochs: list[Json]) -> float:
    """Seconds of an epoch after the first."""
    return median(e["seconds"] for e in epochs[1:])


def real(context: Context, samples: int, counts: tuple[int, ...]) -> list[list[Any]]:
    """Rows of nodes, seconds of a cached epoch, speedup, simulated seconds, and samples read from the store."""
    rows = []
    with Cassandra(context.folder / "cassandra", **HEAP) as cassandra:
        uri = f"cql://127.0.0.1:{cassandra.port}/yang?rf=1"
        with stored(context.binary, uri, samples, SIZE):
            client_s = client_seconds(context, uri, context.folder / "client")
            rates = calibrated(context, uri, context.folder / "calibrate", setting(1, samples, True).store)
            found: dict[str, list[float]] = {}
            jobs = {"store": setting(1, samples, False), **{str(n): setting(n, samples, True) for n in counts}}
            reads: dict[str, float] = {}
            foretold: dict[str, float] = {}
            for round_ in range(context.rounds):
                for name, job in jobs.items():
                    epochs = run_setting(context.binary, uri, context.folder / f"real-{name}-{round_}", job)
                    found.setdefault(name, []).append(later(epochs))
                    reads[name] = sum(e["reads"] for e in epochs[1:]) / (samples * (len(epochs) - 1))
                    report, _ = simulated(context, f"real-{name}", file_of(job, rates, client_s, pause_of(epochs)))
                    foretold[name] = later(epochs_of(report))
    base = median(found["store"])
    for name in jobs:
        took = median(found[name])
        label = "1, without a cache" if name == "store" else name
        rows.append([label, round(took, 3), round(base / took, 2), round(foretold[name], 3), round(reads[name], 4)])
    return rows


def small() -> Json:
    """The file of the epoch, with few nodes and samples."""
    file = imagenet()
    file["nodes"] = {"count": 4, "ranks": 4}
    file["datasets"] = [{"name": "imagenet", "samples": 4_000, "bytes": 110_000}]
    file["jobs"] = [{"dataset": "imagenet", "batch": 512, "assign": "local"}]
    return file


def run(context: Context, smoke: bool) -> Found:
    """The simulations first, which need the machine to themselves; then real nodes."""
    with Busy() as busy:
        report, took = simulated(context, "epoch", small() if smoke else imagenet())
    rows = real(context, 256 if smoke else SAMPLES, (1, 2) if smoke else REAL)
    epoch = report["jobs"][0]["epochs"][0]
    size = "4 nodes" if smoke else f"{NODES} nodes of 4 learners"
    claims = [
        Claim("seconds", f"seconds to simulate an epoch of ImageNet on {size}", took, at_most=180, limit=busy.says)
    ]
    tables = [
        Table(
            f"Real nodes, processes over one Cassandra of 24 MB/s that is 5 ms away: an epoch of "
            f"{256 if smoke else SAMPLES:,} samples of 64 KB after the first",
            ["nodes", "seconds", "times as fast", "seconds, simulated", "reads of the store for each sample"],
            rows,
        )
    ]
    series: Json = {"real": {str(row[0]): row[2] for row in rows[1:]}}
    if not smoke:  # the jobs take a minute to simulate
        formulas = by_formulas(context)
        kinds = ("published", "theirs", "ours", "simulated")
        tables.insert(
            0,
            Table(
                "Loading from the nodes' caches, times as fast as from the store",
                ["job and nodes", "published", "their formulas", "the model of `explain`", "simulated"],
                [[row["name"], *(round(row[kind], 1) for kind in kinds)] for row in formulas],
            ),
        )
        series |= {
            kind: {row["name"].rpartition("-")[2]: row[kind] for row in formulas} for kind in ("published", "simulated")
        }
        wide = next(row for row in formulas if row["name"] == f"ImageNet-{NODES}")
        claims.insert(
            0,
            Claim("speedup_256", f"times as fast at {NODES} nodes, simulated by the code of servers",
                  wide["simulated"], at_least=30),
        )  # fmt: skip
    claims.append(
        Claim(
            "speedup_real",
            f"times as fast with {rows[-1][0]} real nodes as one without a cache",
            rows[-1][2],
            at_least=1,
            limit=f"an epoch from the store took {rows[0][1]:.2f} s",
        )
    )
    tables.append(
        Table(
            f"The simulated epoch of ImageNet, of {size}",
            ["virtual seconds", "samples/s", "seconds to simulate"],
            [[round(epoch["seconds"], 2), round(epoch["samples_per_s"]), round(took, 1)]],
        )
    )
    return Found(claims, tables, series)


def plot(axes: Axes, series: Json) -> None:
    """Speedup by nodes: published, simulated, and of real nodes."""
    names = {"published": "published", "simulated": "Bowstring, simulated", "real": "Bowstring, real nodes"}
    styles = {"published": "s--", "simulated": "o-", "real": "D-"}
    for n, (kind, label) in enumerate(names.items()):
        if points := {int(nodes): value for nodes, value in series.get(kind, {}).items()}:
            colour = COLOURS[3 - 3 * n % 5]
            mummi = {at: value for at, value in points.items() if at < NODES}
            axes.plot(list(mummi), list(mummi.values()), styles[kind], label=label, color=colour)
            if NODES in points:  # another job: no line leads to it
                axes.plot([NODES], [points[NODES]], styles[kind][0], color=colour)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    nodes = sorted({int(n) for kind in names for n in series.get(kind, {})})
    axes.set_xticks(nodes, [str(n) for n in nodes])
    axes.set_yticks([2, 4, 8, 16, 32, 64, 128], ["2", "4", "8", "16", "32", "64", "128"])
    axes.set_xlabel("nodes (16 to 128: MuMMI; 256: ImageNet)")
    axes.set_ylabel("loading from the nodes' caches,\ntimes as fast as from the store")
    axes.grid()
    legend(axes)


SYSTEM = System(
    name="yang",
    title="Yang and Cong",
    source="[Yang and Cong, *Accelerating Data Loading in Deep Neural Network Training*, HiPC 2019]"
    "(https://arxiv.org/abs/1910.01196)",
    published="Loading more than 30 times as fast at 256 nodes with 1,024 learners, on ImageNet; 18 to 120 times as "
    "fast on MuMMI at 16 to 128 nodes.",
    there="Up to 256 nodes of a supercomputer with a parallel file system. Nodes keep what they have loaded, and "
    "learners take samples of a batch where they are. The base line reads each sample from the file system.",
    here="Their formulas, the model of `explain`, and the simulator get the jobs of the paper "
    "([rates and assumptions](simulate.md#yang-and-congs-figures)). The simulator runs the code of servers in virtual "
    "time. It also runs an epoch of ImageNet on 256 nodes. Real nodes, one to four, are processes over Cassandra. Four "
    "ranks read from them with `assign: local`, and each read is checked. The simulator runs these jobs, too, with "
    "rates that were measured before.",
    apart="256 real nodes are not here: the figure is simulated. The paper does not give all rates, so some are "
    "assumed. Four real nodes share two cores, so their speedup ends where the cores do; the simulated seconds beside "
    "them show how far the simulator is off where it can be compared.",
    run=run,
    plot=plot,
)
