"""wait_objects: how long a consumer with a pace waits for a bucket, far away, with all, a half and a quarter held."""

from __future__ import annotations

import os
from typing import Any

from bucket import attach, linked, served
from harness import Context, Figure, Result, Stream, TimedReaders, emit, median, shuffled
from samples import SIZE, image_folder
from server import Server, spill
from sizes import sized

from .objects_cost import write_tars

LINKS: dict[str, float | None] = {"20ms": 20.0, "150ms": 150.0}  # round trips in milliseconds
BATCH = sized(64, smoke=8)
COMPUTE = 0.080  # seconds that the consumer computes for a batch; it sleeps
STEPS = sized(30, smoke=3)  # batches of an epoch
PHOTOGRAPHS = STEPS * BATCH
SHARD = sized(480, smoke=12)  # photographs
EPOCHS = int(os.environ.get("EPOCHS", sized("3", smoke="2")))
HELD = {"half": 0.5, "quarter": 0.25}
# Batches read one sample at a time, by link; one takes 1.4 s and 10 s.
SERIAL = sized({"20ms": 6, "150ms": 3}, smoke={"20ms": 2, "150ms": 2})
BLINK = 0.010  # seconds: what a batch that is there takes to come is no waiting for the bucket
AT_MOST_S = 200


def consume(context: Context, link: str, epoch: int, *flags: str, batches: int = 0) -> tuple[Stream, dict[str, Any]]:
    """Read and compute with a new server; what came when, and what its engine counts."""
    stream: dict[str, Any] = {"compute": COMPUTE}
    stream["ticket"] = shuffled(
        seed=7, epoch=epoch, batch=BATCH, epochs=EPOCHS, dataset=f"wait-{link}", columns=["id", "image"]
    )
    if batches:
        stream["batches"] = batches
    with Server(context.binary, context.folder / "wait-objects-store", *flags, rtt="0s") as server:
        (got,) = TimedReaders(server.url, AT_MOST_S, [stream]).run()
        if len(got.marks) != (batches or EPOCHS * STEPS):
            raise RuntimeError(f"{len(got.marks)} batches came instead of {batches or EPOCHS * STEPS}")
        return got, server.fetched()


def serial(context: Context, link: str) -> float:
    """Seconds waited for a batch with one read at a time, as all batches are alike."""
    stream, _ = consume(context, link, 0, "--max-reads=1", batches=SERIAL[link])
    return sum(stream.waited[1:]) / (SERIAL[link] - 1)


def waits(context: Context, link: str, epoch: int) -> dict[str, dict[str, float]]:
    """Seconds waited before the first batch and in all later ones, by what the spill has room for."""
    found = {}
    for side, part in HELD.items():
        with spill(context.folder, PHOTOGRAPHS * part) as flags:
            stream, engine = consume(context, link, epoch, *flags)
        later = stream.waited[1:]
        found[side] = {
            "first_s": stream.waited[0],
            "later_s": sum(later),
            "waited": sum(w for w in later if w > BLINK),
            "batches_waited_for": sum(w > BLINK for w in later),
        }
        by_epoch = [round(sum(stream.waited[i : i + STEPS]), 3) for i in range(0, EPOCHS * STEPS, STEPS)]
        counts = {name: engine["spans"][name] for name in ("spans", "singles", "joined")}
        rounded = {name: round(value, 3) for name, value in found[side].items()}
        emit(case="wait_objects", link=link, side=side, **rounded, waited_s=by_epoch, **counts)
    return found


def run(context: Context) -> Result:
    """Interleave what is held, on each link; one read at a time is measured once."""
    root = context.folder / "wait-objects"
    image_folder(context.folder / "wait-objects-images", PHOTOGRAPHS, SIZE)
    write_tars(context.folder / "wait-objects-images", root / "bench/tars", SHARD)
    found: dict[str, list[dict[str, dict[str, float]]]] = {link: [] for link in LINKS}
    with served(context.binary, root) as url, linked(context.binary, url, LINKS) as urls:
        for link in LINKS:
            attach(context, context.folder / "wait-objects-store", urls[link], "bench/tars", f"wait-{link}")
        alone = {link: serial(context, link) for link in LINKS}
        emit(case="wait_objects", side="serial", waited_s_a_batch={k: round(v, 3) for k, v in alone.items()})
        for round_ in context.repeat():
            for link, rounds in found.items():
                rounds.append(waits(context, link, 1000 * round_))
    details: dict[str, float] = {}
    cuts, quarter, batches = [], [], []
    for link, rounds in found.items():
        for side in HELD:
            for name in ("first_s", "later_s", "batches_waited_for"):
                details[f"{side}_{name}_{link}"] = round(median(r[side][name] for r in rounds), 3)
        details[f"serial_s_{link}"] = round(alone[link], 3)
        total = alone[link] * EPOCHS * STEPS
        cuts.append(median(1 - (r["half"]["first_s"] + r["half"]["later_s"]) / total for r in rounds))
        details[f"cut_half_{link}"] = round(cuts[-1], 4)
        quarter.append(median(r["quarter"]["waited"] for r in rounds))
        batches.append(details[f"quarter_batches_waited_for_{link}"])
    step = COMPUTE * (EPOCHS * STEPS - 1)
    return Result(
        "wait_objects",
        [
            Figure("cut_half", min(cuts)),
            Figure("quarter_later_share", max(quarter) / step),
        ],
        {**details, "quarter_batches_waited_for": max(batches)},
    )
