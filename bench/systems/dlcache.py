"""dlcache: the measure of DLCache's authors over their grid, from a bucket, under limits as Kubernetes sets them."""

from __future__ import annotations

import tempfile
from itertools import product
from statistics import mean
from typing import Any

import speech
from bucket import attach, linked, served
from cases.dlcache import COUNTS, GRID, RTT_S, SCALE, forget, photographs
from cases.image_ops import pillow12
from harness import Context, median
from matplotlib.axes import Axes
from plots import COLOURS, legend
from ready import read
from server import Server

from .limits import limited
from .model import Busy, Claim, Found, Json, System, Table

CPUS, MEMORY = 1.5, 4 << 30  # of a pod: all processes of a side
CACHE = 2 << 30  # bytes that the cache may grow to; it begins with a tenth
NAMES = {"image": "photographs", "audio": "speech"}
PUBLISHED = {"image": 147, "audio": 157}


def run(context: Context, smoke: bool) -> Found:
    """Every cell once a round, by both sides; what counts is samples for each second within `next`."""
    grid = GRID["try" if smoke else "all"]
    gains: dict[str, dict[tuple[int, float], float]] = {media: {} for media in grid}
    walls: list[float] = []
    scaled: dict[str, Any] = {}
    why = ""
    with Busy() as busy:
        for media, (workers, sizes, steps, batches) in grid.items():
            files = photographs(context) if media == "image" else speech.folder(context, COUNTS["audio"])
            store, cache = context.folder / f"store-{media}", tempfile.mkdtemp(dir=context.folder)
            pillow = pillow12(context)
            with (
                served(context.binary, files.parent) as url,
                linked(context.binary, url, {"far": 1000 * RTT_S}) as urls,
            ):
                attach(context, store, urls["far"], files.name, "bench")
                # The bucket and the link are the world outside: they are not in the pod.
                with (
                    limited(CPUS, MEMORY) as why,
                    Server(context.binary, store, f"--spill={cache}", f"--spill-bytes={CACHE}B") as server,
                ):
                    for count, size, step in product(workers, sizes, steps):
                        batch = max(1, size // SCALE)
                        spec: dict[str, Any] = {"media": media, "workers": count, "batch": batch}
                        spec |= {"step_s": step / SCALE, "batches": min(batches, COUNTS[media] // batch)}
                        found = []
                        for _ in range(context.rounds):
                            forget(files)
                            theirs = read("files", str(files), pillow=pillow, rtt_s=RTT_S, **spec)
                            ours = read("bowstring", server.url, server.pid, **{**spec, "workers": 0})
                            found.append((theirs["waited"] / ours["waited"], theirs["seconds"] / ours["seconds"]))
                        gains[media][size, step] = median(gain for gain, _ in found)
                        walls.append(median(wall for _, wall in found))
                    scaled[media] = server.stats()["engine"]["spill"]
    return result(gains, walls, scaled, why, busy.says)


def result(
    gains: dict[str, dict[tuple[int, float], float]],
    walls: list[float],
    scaled: dict[str, Any],
    why: str,
    busy: str,
) -> Found:
    """The claims and the grid."""
    claims, tables = [], []
    best: dict[str, dict[str, float]] = {}
    for media, cells in gains.items():
        sizes = sorted({size for size, _ in cells})
        steps = sorted({step for _, step in cells})
        best[media] = {str(size): 100 * (max(cells[size, step] for step in steps) - 1) for size in sizes}
        claims.append(
            Claim(
                f"gain_{media}",
                f"% more samples a second than PyTorch, of {NAMES[media]}: the mean of the best cells of each batch",
                mean(best[media].values()),
                at_least=200,
                limit=busy,
            )
        )
        kept = scaled[media]
        tables.append(
            Table(
                f"% more samples a second, of {NAMES[media]}, by batch and by seconds of a step (theirs; ours are a "
                f"sixteenth). The cache had {kept['entries']} blobs at the end",
                ["batch", *(f"{step:g} s" for step in steps)],
                [[size, *(f"{100 * (cells[size, step] - 1):+.0f}" for step in steps)] for size in sizes],
            )
        )
    claims.append(
        Claim("wall", "wall time of PyTorch relative to Bowstring, in the worst cell", min(walls), at_least=0.97,
              limit=busy)
    )  # fmt: skip
    every = [gain for cells in gains.values() for gain in cells.values()]
    tables.append(
        Table(
            "All cells",
            ["cells", "mean", "worst", "best"],
            [[len(every), *(f"{100 * (value - 1):+.0f} %" for value in (mean(every), min(every), max(every)))]],
        )
    )
    return Found(claims, tables, best, {"limits of control groups": f"{why}."} if why else {})


def plot(axes: Axes, series: Json) -> None:
    """The best cell of each batch, beside what is published."""
    for n, (media, cells) in enumerate(series.items()):
        places = [place + (n - 0.5) * 0.4 for place in range(len(cells))]
        bars = axes.bar(places, list(cells.values()), 0.36, label=NAMES[media], color=COLOURS[2 * n])
        axes.bar_label(bars, [f"{size}: +{gain:.0f} %" for size, gain in cells.items()], fontsize=7)
        label = f"published, {'ImageNet' if media == 'image' else 'LibriSpeech'}"
        axes.axhline(PUBLISHED[media], linestyle="--", label=label, color=COLOURS[2 * n + 1])
    axes.set_xticks([])
    axes.set_xlabel("batch (theirs; ours are a sixteenth)")
    axes.set_ylabel("% more samples a second, best cell")
    axes.set_yscale("symlog", linthresh=100)  # a cell may have no gain
    axes.grid(axis="y")
    legend(axes, fontsize=8)


SYSTEM = System(
    name="dlcache",
    title="DLCache",
    source="Kang et al., DLCache, and their scripts ([VUZhuangweiKang/DLCache]"
    "(https://github.com/VUZhuangweiKang/DLCache))",
    published="147 % more samples a second than PyTorch's DataLoader on ImageNet, and 157 % more on LibriSpeech.",
    there="A cluster of Kubernetes reads S3 through a control plane, a cache of several tiers that is scaled at run "
    "time, and operators. Their script reads 100 batches, sleeps a step after each, and divides samples by the sum of "
    "the time in `next`. The grid has four batches, and six steps from 0.5 to 3 s, for each data set.",
    here="The grid is theirs, each cell once, with batches and steps of a sixteenth, so that samples a second are "
    "the same. PyTorch's DataLoader, with their numbers of workers, reads files that are not in the page cache, "
    "each a round trip of 20 ms away, with Pillow and torchaudio. Bowstring reads the same files as objects of "
    "a bucket, 20 ms away. Its server runs the operators, and scales its cache from 205 MiB to at most 2 GiB. "
    "All processes of either side are in one control group with 1.5 CPUs and 4 GiB, as the kubelet sets limits. "
    "Photographs and speech come from packages.",
    apart="Their figures are of S3 and of other machines. The files of PyTorch cost no CPU time for a transfer, which "
    "favours PyTorch. A cell of speech and of large photographs has fewer than 100 batches, because the data set is "
    "read once. Bowstring's cache stays from cell to cell, which favours Bowstring: PyTorch keeps nothing, and its "
    "files leave the page cache before each cell.",
    run=run,
    plot=plot,
    rounds=1,
)
