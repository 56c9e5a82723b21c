"""deli: how long a consumer with a pace waits for a bucket, by the share of the data that is held."""

from __future__ import annotations

from typing import Any

from cases.wait_objects import COMPUTE
from harness import Context, Stream, median
from matplotlib.axes import Axes
from plots import COLOURS, legend

from .model import Busy, Claim, Found, Json, System, Table, theirs
from .photographs import BATCH, Bucket, bucket

FRACTIONS = (0.1, 0.25, 0.5, 0.75, 1.0)
SERIAL = {"20ms": 6, "150ms": 3}  # batches read one object at a time, by link: all are alike
STEPS, EPOCHS = 30, 3


def waited(stream: Stream) -> float:
    """Seconds that the consumer waited in all, the first batch included."""
    return sum(stream.waited)


def serial(kept: Bucket, link: str) -> float:
    """Seconds of a batch that is read one object at a time while the consumer does nothing else, as theirs does."""
    stream = theirs(
        kept.context,
        "objects",
        120,
        place=kept.objects(link),
        folder=str(kept.folder),
        batch=BATCH,
        batches=SERIAL[link],
        workers=0,
    )
    return sum(stream.waited[1:]) / (SERIAL[link] - 1)


def run(context: Context, smoke: bool) -> Found:
    """Interleave what is held, by their method and by ours, on each link; one object at a time is read once."""
    steps, epochs = (4, 2) if smoke else (STEPS, EPOCHS)
    links: dict[str, float | None] = {"20ms": 20.0} if smoke else {"20ms": 20.0, "150ms": 150.0}
    fractions = (0.5,) if smoke else FRACTIONS
    count = steps * BATCH
    waits: dict[tuple[str, str, float], list[float]] = {}
    with bucket(context, count, links) as kept, Busy() as busy:
        alone = {link: serial(kept, link) * steps * epochs for link in links}
        for round_ in range(context.rounds):
            for link in links:
                for held in fractions:
                    ours = kept.ours(
                        link, "tars", held=1.05 * held * count, compute=COMPUTE, epochs=epochs, first=1000 * round_,
                        batches=steps * epochs,
                    )  # fmt: skip
                    waits.setdefault((link, "bowstring", held), []).append(waited(ours))
                    spec: dict[str, Any] = {"place": kept.objects(link), "folder": str(kept.folder), "batch": BATCH}
                    spec |= {"compute": COMPUTE, "epochs": epochs, "held": round(held * count)}
                    waits.setdefault((link, "deli", held), []).append(waited(theirs(context, "deli", 300, **spec)))
    cuts = {(link, side, held): 1 - median(w) / alone[link] for (link, side, held), w in waits.items()}
    half = min(cuts[link, "bowstring", 0.5] for link in links)
    rows = [
        [f"{100 * held:g} %", link, *(round(median(waits[link, s, held]), 2) for s in ("bowstring", "deli")),
         *(f"{100 * cuts[link, s, held]:.1f} %" for s in ("bowstring", "deli"))]
        for link in links
        for held in fractions
    ]  # fmt: skip
    return Found(
        [
            Claim(
                "cut_half",
                "waiting that is gone with half of the data held, in the worse link",
                half,
                at_least=0.95,
                limit=busy.says,
            )
        ],
        [
            Table(
                f"Seconds waited in {epochs} epochs of {steps} batches. One object at a time: "
                + ", ".join(f"{alone[link]:.0f} s over {link}" for link in links),
                ["held", "round trip", "Bowstring", "their method", "Bowstring waits less by", "their method by"],
                rows,
            )
        ],
        {
            side: {link: [[held, cuts[link, side, held]] for held in fractions] for link in links}
            for side in ("bowstring", "deli")
        },
    )


def plot(axes: Axes, series: Json) -> None:
    """Waiting that is gone by what is held."""
    for side, marker, name in (("bowstring", "o-", "Bowstring"), ("deli", "s--", "their method")):
        for n, (link, points) in enumerate(series[side].items()):
            held, cut = zip(*points, strict=True)
            colour = COLOURS[n if side == "bowstring" else n + 3]
            axes.plot([100 * x for x in held], [100 * c for c in cut], marker, label=f"{name}, {link}", color=colour)
    axes.axhspan(85.6, 93.5, color=COLOURS[6], alpha=0.25, label="published", linewidth=0)
    axes.set_xlabel("held, % of the data")
    axes.set_ylabel("less waiting, %")
    axes.grid()
    legend(axes, fontsize=8)


SYSTEM = System(
    name="deli",
    title="DELI",
    source="[Krichevsky, St. Louis and Guo, *Quantifying and Improving Performance of Distributed Deep Learning with "
    "Cloud Storage*, IC2E 2021](https://arxiv.org/abs/2108.06322)",
    published="85.6 to 93.5 % less waiting for data than with direct reads of a bucket, while a fraction of the data "
    "is held.",
    there="PyTorch on virtual machines with GPUs reads Google Cloud Storage. The base line reads one object after "
    "another. A prefetch service fills a cache of fixed size in the order of the sampler, and brings the next half "
    "whenever half is used.",
    here="The bucket is behind links of 20 and 150 ms. A consumer sleeps 80 ms after each batch of 64 JPEGs of "
    "110 KB, and reads three epochs. The base line reads one object after another. Their method is its Python "
    "equivalent: a cache in memory of a fraction of the data, and a service of 16 threads. Bowstring reads tars with "
    "a spill of the same fraction. All waits count, the first batch's included.",
    apart="The step is a sleep instead of a GPU's. The links have latency alone: Google's bucket had a rate and "
    "variance, which the paper does not list for each run. Their fractions differ by experiment, so that the plot has "
    "their range as a band.",
    run=run,
    plot=plot,
)
