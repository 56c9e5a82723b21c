"""tenants: whether each tenant gets its share by weight, and what one that wants more than its quota costs others."""

from __future__ import annotations

from typing import Any

from harness import Context, Figure, Load, Result, TimedReaders, emit, shuffled
from server import Server
from sizes import sized

from .loopback import stored

RTT, BANDWIDTH = "20ms", "100MB"  # of all connections together, a second
SECONDS, SKIP = sized((10.0, 3.0), smoke=(2.0, 0.5))
BATCH = 16  # small, so that a batch more or less in the time is no difference
WEIGHTS = {"one": 1, "two": 2, "four": 4}
STREAMS = {"one": 1, "two": 30, "four": 5}
GREEDY, QUOTA = 20, "1MB"  # streams of a tenant that may be served so much a second

TENANTS = "tenants:\n" + "".join(
    [f"  - {{name: {name}, weight: {weight}}}\n" for name, weight in WEIGHTS.items()]
    + [f"  - {{name: greedy, ceilings: {{streams: {GREEDY // 2}, bytes_per_second: {QUOTA}, windows: 1%}}}}\n"]
)


def jobs(name: str, epoch: int) -> list[dict[str, Any]]:
    """A tenant's streams, each a job of its own."""
    first = 100 * list(WEIGHTS).index(name)
    return [{"tenant": name, "ticket": shuffled(first + i, epoch, BATCH)} for i in range(STREAMS[name])]


def error(url: str, epoch: int) -> float:
    """How far the tenant that is furthest from its share is from it, as a part of the share."""
    streams = [s for name in WEIGHTS for s in jobs(name, epoch)]
    got = dict.fromkeys(WEIGHTS, 0.0)
    for stream, found in zip(streams, TimedReaders(url, SECONDS, streams).run(), strict=True):
        got[stream["tenant"]] += found.mb_per_s(SKIP)
    whole, parts = sum(got.values()), sum(WEIGHTS.values())
    emit(case="tenants", mb_per_s={name: round(rate, 1) for name, rate in got.items()})
    return max(abs(got[name] / whole / (weight / parts) - 1) for name, weight in WEIGHTS.items())


def cost(url: str, epoch: int) -> float:
    """The loss of two tenants by a third that requests far more than its quota: half its streams are refused."""
    streams = [s for name in ("one", "four") for s in jobs(name, epoch)]
    greedy = [{"tenant": "greedy", "ticket": shuffled(900 + i, epoch, BATCH), "reads": True} for i in range(GREEDY)]

    def rate() -> float:
        return sum(s.mb_per_s(SKIP) for s in TimedReaders(url, SECONDS, streams).run())

    alone = max(rate(), 1e-9)
    with Load(url, GREEDY, greedy):
        contended = rate()
    emit(case="tenants", mb_per_s={"alone": round(alone, 1), "contended a greedy one": round(contended, 1)})
    return 1 - contended / alone


def run(context: Context) -> Result:
    """A simulated store behind a narrow link, which is what there is to share."""
    file = context.folder / "tenants.yaml"
    file.write_text(TENANTS)
    errors: list[float] = []
    costs: list[float] = []
    with Server(context.binary, stored(context), f"--tenants={file}", rtt=RTT, bandwidth=BANDWIDTH) as server:
        error(server.url, 0)  # warms
        for round_ in context.repeat():
            errors.append(error(server.url, 1000 * (round_ + 1)))
            costs.append(cost(server.url, 1000 * (round_ + 1) + 500))
    return Result(
        "tenants",
        [Figure("error", errors), Figure("quota_cost", costs)],
        {},
    )
