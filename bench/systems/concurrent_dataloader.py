"""concurrent: how long a batch from a bucket takes, beside one object at a time, threads, and local files."""

from __future__ import annotations

import os
import statistics
from typing import Any

from harness import Context, Stream, median
from matplotlib.axes import Axes
from plots import grouped

from .model import Busy, Claim, Found, Json, System, Table, theirs
from .photographs import BATCH, Bucket, bucket

COUNT = 4_000
SERIAL = {"20ms": 6, "150ms": 3}  # batches read one object at a time, by link
THREADS = 64  # of each worker: the best of those that they try
SIDES = ("one at a time", "their threads", "Bowstring, objects", "Bowstring, tars", "local files")


def seconds(stream: Stream) -> float:
    """Seconds of a batch in the mean of an epoch."""
    return stream.seconds / len(stream.marks)


def side(kept: Bucket, name: str, link: str, first: int) -> float:
    """Seconds of a batch by a side."""
    if name.startswith("Bowstring"):
        tars = name.endswith("tars")
        batches = -(-kept.count // BATCH)
        room = 1.1 * kept.count if tars else 0  # for the neighbours that a read of a tar brings
        stream = kept.ours(link, "tars" if tars else "files", held=room, batches=batches, first=first)
        return stream.marks[-1][0] / batches
    spec: dict[str, Any] = {"place": kept.objects(link), "folder": str(kept.folder), "batch": BATCH}
    if name == "local files":
        return seconds(theirs(kept.context, "files", 120, **spec, workers=os.cpu_count()))
    if name == "their threads":
        return seconds(theirs(kept.context, "objects", 120, **spec, workers=os.cpu_count(), threads=THREADS))
    return seconds(theirs(kept.context, "objects", 120, **spec, workers=1, batches=SERIAL[link]))


def run(context: Context, smoke: bool) -> Found:
    """Interleave all sides over both links."""
    links: dict[str, float | None] = {"20ms": 20.0} if smoke else {"20ms": 20.0, "150ms": 150.0}
    count = 4 * BATCH if smoke else COUNT
    took: dict[str, dict[str, list[float]]] = {link: {} for link in links}
    busy: list[float] = []
    with bucket(context, count, links) as kept:
        for round_ in range(context.rounds):
            for link in links:
                for name in SIDES:
                    with Busy() as meter:
                        took[link].setdefault(name, []).append(side(kept, name, link, 1000 * round_))
                    if name == "Bowstring, objects":
                        busy.append(meter.share)
    middle = {link: {name: median(values) for name, values in sides.items()} for link, sides in took.items()}
    gains = {link: times["one at a time"] / times["Bowstring, objects"] for link, times in middle.items()}
    rows = [
        [name, *(f"{1000 * middle[link][name]:.0f}" for link in links),
         *(f"{middle[link]['one at a time'] / middle[link][name]:.1f}" for link in links)]
        for name in SIDES
    ]  # fmt: skip
    limit = f"the {os.cpu_count()} cores were {100 * statistics.mean(busy):.0f} % busy"
    return Found(
        [
            Claim(
                "faster",
                "batches from objects, relative to one object at a time, over the nearer bucket",
                min(gains.values()),
                at_least=12,
                limit=limit,
            ),
            Claim(
                "vs_local",
                "batches from tars in the bucket, relative to local files, over the worse link",
                min(times["local files"] / times["Bowstring, tars"] for times in middle.values()),
                at_least=1,
                limit=limit,
            ),
        ],
        [
            Table(
                "Milliseconds of a batch of 64, and how many times as fast as one object at a time",
                ["side", *(f"ms, {link}" for link in links), *(f"times, {link}" for link in links)],
                rows,
            )
        ],
        {name: {link: 1000 * middle[link][name] for link in links} for name in SIDES},
    )


def plot(axes: Axes, series: Json) -> None:
    """Time of a batch by side and link."""
    links = list(next(iter(series.values())))
    sides = {name: list(times.values()) for name, times in series.items()}
    for bars, times in zip(grouped(axes, sides, links, "ms for a batch of 64"), sides.values(), strict=True):
        axes.bar_label(bars, [f"{t:.0f}" for t in times], fontsize=7)
    axes.set_yscale("log")


SYSTEM = System(
    name="concurrent",
    title="ConcurrentDataloader",
    source="[Svogor et al., *Profiling and Improving the PyTorch Dataloader for high-latency Storage*, 2022]"
    "(https://arxiv.org/abs/2211.04908)",
    published="Batches from S3 up to 12 times as fast as PyTorch's DataLoader, and training from S3 as from a local "
    "disk.",
    there="A DataLoader whose workers request the objects of a batch side by side, by threads or asyncio. ImageNet's "
    "JPEGs in S3, in the region of the machine, which has a GPU. The base line requests one object after another in "
    "each worker.",
    here="4,000 JPEGs of 110 KB, an object each, are read once by each side, in a global shuffle and in batches of 64. "
    "Their threads are a DataLoader with as many workers as cores and 64 threads in each. Bowstring reads the same "
    "objects by a server without a spill, and tars of them by a server whose spill is empty. Local files are in the "
    "page cache, which is the fastest that they can be.",
    apart="S3's latency varies, and a link's here does not. Their figure is of a training loop with decoding; here "
    "the bytes are handed over undecoded. Clients, servers and links share the cores of one machine.",
    run=run,
    plot=plot,
)
