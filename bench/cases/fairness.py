"""fairness: what streams and tenants cost one another on one link, and what many of them cost in memory."""

from __future__ import annotations

from typing import Any

from cassandra_node import stored as in_cassandra
from harness import CASSANDRA, MIB, Context, Figure, Result, TimedReaders, emit, median, needs, shuffled, throughput
from server import Server
from sizes import sized

from .loopback import stored

RTT, BANDWIDTH = "20ms", "200MB"  # of all connections together, a second
SECONDS, SKIP = sized((10.0, 3.0), smoke=(1.5, 0.5))
BATCH = 16  # small, so that a batch more or less in the time is no difference
MANY, MANY_BATCH = sized((100, 4), smoke=(4, 4))
STREAMS, BUDGET = sized((64, 512 * MIB), smoke=(4, 64 * MIB))


def job(seed: int, epoch: int, ranks: int = 1) -> list[dict[str, Any]]:
    """Tickets of a job's streams."""
    return [shuffled(seed, epoch, BATCH * ranks, world={"size": ranks}, rank=r) for r in range(ranks)]


def shares(url: str, epoch: int) -> tuple[float, float]:
    """The slower of two jobs' part of half of what both get: with a stream each, and one with four."""
    one, other = throughput(url, SECONDS, SKIP, *job(1, epoch), *job(2, epoch))
    single, *four = throughput(url, SECONDS, SKIP, *job(3, epoch), *job(4, epoch, ranks=4))
    emit(case="fairness", streams="1 and 1", mb_per_s=[one, other])
    emit(case="fairness", streams="1 and 4", mb_per_s=[single, sum(four)])
    return (
        min(one, other) / ((one + other) / 2),
        min(single, sum(four)) / ((single + sum(four)) / 2),
    )


def tenants(server: Server, epoch: int, jobs: int, batch: int = BATCH) -> float:
    """The same of a tenant with one job of one stream beside another with several."""
    names = ["a"] + ["b"] * jobs
    streams = [{"tenant": name, "ticket": shuffled(10 + i, epoch, batch)} for i, name in enumerate(names)]
    before = server.fetched()
    single, *others = (s.mb_per_s(SKIP) for s in TimedReaders(server.url, SECONDS, streams).run())
    counted = {name: server.fetched()[name] - before[name] for name in ("reads", "shared_reads")}
    emit(case="fairness", tenants=f"1 and {jobs}", mb_per_s=[single, sum(others)], **counted)
    return min(single, sum(others)) / ((single + sum(others)) / 2)


def stalled_cost(url: str, epoch: int) -> float:
    """The throughput that two jobs lose by a third that has stopped reading."""
    two = [{"ticket": t} for t in job(5, epoch) + job(6, epoch)]
    third: dict[str, Any] = {"ticket": job(7, epoch)[0], "stall": True}
    rates: dict[str, float] = {}
    for name, streams in {"alone": two, "beside a stalled one": [*two, third]}.items():
        found = TimedReaders(url, SECONDS, streams).run()
        rates[name] = sum(s.mb_per_s(SKIP) for s in found[:2])
    emit(case="fairness", mb_per_s=rates)
    return 1 - rates["beside a stalled one"] / rates["alone"]


def memory(context: Context, uri: str) -> float:
    """The most memory a new server takes for many streams beyond the budget of their windows, in MiB."""
    with Server(context.binary, uri, f"--window-memory={BUDGET}") as server:
        streams = [{"ticket": t} for seed in range(STREAMS) for t in job(seed, epoch=0)]
        rates = [s.mb_per_s(SKIP) for s in TimedReaders(server.url, SECONDS, streams).run()]
        peak = server.peak_mb()
        emit(case="fairness", streams=STREAMS, mb_per_s=sum(rates), slowest=min(rates), peak_mb=peak)
        return peak - BUDGET / MIB


@needs(CASSANDRA)
def run(context: Context) -> Result:
    """A simulated store behind a narrow link for the shares; Cassandra for the memory, which is all the server's."""
    even: list[float] = []
    of_four: list[float] = []
    few: list[float] = []
    many: list[float] = []
    costs: list[float] = []
    with Server(context.binary, stored(context), rtt=RTT, bandwidth=BANDWIDTH) as server:
        throughput(server.url, SECONDS, SKIP, *job(1, 0))  # warms
        for round_ in context.repeat(even, few, many):
            one, four = shares(server.url, 1000 * round_)
            even.append(one)
            of_four.append(four)
            few.append(tenants(server, 1000 * round_, 4))
            many.append(tenants(server, 1000 * round_, MANY, MANY_BATCH))
            costs += [stalled_cost(server.url, 1000 * (2 * round_ + i)) for i in range(2)]  # a small difference
    with in_cassandra(context) as node:
        over = [memory(context, node.uri()) for _ in range(sized(3, smoke=1))]
    return Result(
        "fairness",
        [
            Figure("slower_share", even),
            Figure("slower_share_tenants", few),
            Figure("slower_share_1_and_100", many),
            Figure("stalled_cost", costs),
            Figure("rss_over_budget_mb", max(over)),
        ],
        {"slower_share_1_and_4": round(median(of_four), 3)},
    )
