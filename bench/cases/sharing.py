"""sharing: what two jobs on one dataset, started together, read from the store beside what one reads."""

from __future__ import annotations

from harness import Context, Figure, Result, TimedReaders, emit, median, shuffled
from samples import COUNT
from server import Server, spill

from .loopback import stored
from .wait import BANDWIDTH

RTT = "20ms"
AT_MOST_S = 300


def jobs(context: Context, epoch: int, *seeds: int) -> dict[str, float]:
    """An epoch of each job with a new server and a new spill that has room for all."""
    with (
        spill(context.folder, 1.5 * COUNT) as flags,
        Server(context.binary, stored(context), *flags, rtt=RTT, bandwidth=BANDWIDTH) as server,
    ):
        tickets = [{"ticket": shuffled(seed, epoch, epochs=1)} for seed in seeds]
        found = TimedReaders(server.url, AT_MOST_S, tickets).run()
        rows = sum(s.rows for s in found)
        if rows != COUNT * len(seeds):
            raise RuntimeError(f"{rows} rows instead of {COUNT * len(seeds)}")
        engine = server.fetched()
        names = ("reads", "read_bytes", "spill_reads", "shared_reads", "hedges")
        got = {"seconds": max(s.marks[-1][0] for s in found), **{name: engine[name] for name in names}}
    emit(case="sharing", jobs=len(seeds), **got)
    return got


def run(context: Context) -> Result:
    """Interleave one job and two of different seeds."""
    rounds = []
    reads: list[float] = []
    for r in context.repeat(reads):
        rounds.append((jobs(context, r, 1), jobs(context, r, 1, 2)))
        reads.append(rounds[-1][1]["reads"] / rounds[-1][0]["reads"])

    def ratio(name: str) -> float:
        return median(two[name] / one[name] for one, two in rounds)

    return Result(
        "sharing",
        [Figure("reads_ratio", reads)],
        {"bytes_ratio": round(ratio("read_bytes"), 3), "seconds_ratio": round(ratio("seconds"), 3)},
    )
