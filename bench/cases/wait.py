"""wait: how long a consumer waits over a link that carries half of what it needs, with half of the data in a spill."""

from __future__ import annotations

from typing import Any

from cassandra_node import stored, warm
from harness import CASSANDRA, Context, Figure, Result, Stream, TimedReaders, emit, median, needs, shuffled
from samples import SIZE
from server import Server, spill
from sizes import sized

from .latency import WINDOW

LINKS = ("20ms", "150ms")  # round trips
BATCH, COMPUTE = sized(64, smoke=8), 0.040  # seconds that the consumer computes for a batch; it sleeps
BANDWIDTH = BATCH * SIZE / COMPUTE / 2  # bytes a second: half of what it could use
STEPS = sized(30, smoke=3)  # batches of an epoch
PHOTOGRAPHS = STEPS * BATCH
EPOCHS = sized(4, smoke=2)  # the first one fills the spill, and is not counted
COUNTED = (EPOCHS - 1) * PHOTOGRAPHS
# Batches read one sample at a time, by link; one takes 1.4 s and 10 s.
SERIAL = sized({"20ms": 11, "150ms": 5}, smoke={"20ms": 2, "150ms": 2})
AT_MOST_S = 300


def consume(
    context: Context, uri: str, rtt: str, epoch: int, *flags: str, batches: int = 0
) -> tuple[Stream, dict[str, Any]]:
    """Read and compute with a new server; what came when, and what its engine counts."""
    stream: dict[str, Any] = {"compute": COMPUTE}
    stream["ticket"] = shuffled(seed=7, epoch=epoch, batch=BATCH, epochs=EPOCHS, dataset="wait")
    if batches:
        stream["batches"] = batches
    with Server(context.binary, uri, *flags, rtt=rtt, window=WINDOW, bandwidth=BANDWIDTH) as server:
        (got,) = TimedReaders(server.url, AT_MOST_S, [stream]).run()
        if len(got.marks) != (batches or EPOCHS * STEPS):
            raise RuntimeError(f"{len(got.marks)} batches came instead of {batches or EPOCHS * STEPS}")
        return got, server.fetched()


def serial(context: Context, uri: str, rtt: str) -> float:
    """Seconds waited in the counted epochs with one read at a time, by what some batches take, as all are alike."""
    stream, _ = consume(context, uri, rtt, 0, "--max-reads=1", batches=SERIAL[rtt])
    return sum(stream.waited[1:]) / (SERIAL[rtt] - 1) * (EPOCHS - 1) * STEPS


def waits(context: Context, uri: str, rtt: str, epoch: int) -> dict[str, float]:
    """Seconds waited in the counted epochs without a spill and with one, and its rate of hits."""
    found = {}
    for side in ("prefetch", "spill"):
        with spill(context.folder, PHOTOGRAPHS / 2) as flags:
            stream, engine = consume(context, uri, rtt, epoch, *(flags if side == "spill" else []))
        found[side] = sum(stream.waited[STEPS:])
        by_epoch = [round(sum(stream.waited[i : i + STEPS]), 3) for i in range(0, EPOCHS * STEPS, STEPS)]
        counts = {name: engine[name] for name in ("reads", "spill_reads", "hedges")}
        emit(case="wait", link=rtt, side=side, waited_s=by_epoch, seconds=round(stream.marks[-1][0], 2), **counts)
    return {**found, "hit_rate": engine["spill_reads"] / COUNTED}


@needs(CASSANDRA)
def run(context: Context) -> Result:
    """Interleave a window of reads without a spill and with one, on each link; one read at a time is measured once."""
    found: dict[str, list[dict[str, float]]] = {rtt: [] for rtt in LINKS}
    with stored(context, wait=PHOTOGRAPHS) as node:
        emit(case="wait", warm_mb_per_s=[round(r) for r in warm(context.binary, node.uri())])
        alone = {rtt: serial(context, node.uri(), rtt) for rtt in LINKS}
        emit(case="wait", side="serial", waited_s=alone)
        for round_ in context.repeat():
            for rtt, rounds in found.items():
                rounds.append(waits(context, node.uri(), rtt, 1000 * round_))
    figures: dict[str, dict[str, float]] = {}
    for rtt, rounds in found.items():
        cuts = [1 - r["spill"] / r["prefetch"] for r in rounds]
        figures[rtt] = {
            "serial_s": alone[rtt],
            "prefetch_s": median(r["prefetch"] for r in rounds),
            "spill_s": median(r["spill"] for r in rounds),
            "hit_rate": median(r["hit_rate"] for r in rounds),
            "cut_vs_serial": median(1 - r["spill"] / alone[rtt] for r in rounds),
            "cut_vs_prefetch": median(cuts),
            "cut_vs_prefetch_minus_hit_rate": median(c - r["hit_rate"] for c, r in zip(cuts, rounds, strict=True)),
        }
    return Result(
        "wait",
        [
            Figure(name, min(f[name] for f in figures.values()))
            for name in ("cut_vs_serial", "cut_vs_prefetch_minus_hit_rate")
        ],
        {f"{name}_{rtt}": round(value, 3) for rtt, f in figures.items() for name, value in f.items()},
    )
