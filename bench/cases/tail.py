"""tail: one read in a hundred takes two seconds longer; what that costs in each order."""

from __future__ import annotations

import contextlib

from harness import Context, Figure, Result, emit, median, shuffled, throughput
from server import Server

from .loopback import stored

BOUNDS = {"free": 0.9, "window": 0.9, "strict": 0.7}
RTT = "20ms"
SECONDS, SKIP = 10, 3


def run(context: Context) -> Result:
    """Interleave the orders, each with and without slow reads."""
    ratios: dict[str, list[float]] = {order: [] for order in BOUNDS}
    with contextlib.ExitStack() as stack:
        clean = stack.enter_context(Server(context.binary, stored(context, "store-clean"), rtt=RTT))
        slow = stack.enter_context(
            Server(context.binary, stored(context, "store-slow"), rtt=RTT, slow_share=0.01, slow_by="2s")
        )
        for round_ in range(-1, context.rounds):  # the first one warms
            for order, found in ratios.items():
                ticket = shuffled(seed=7, epoch=1000 * (round_ + 1), order=order)
                rates = [throughput(s.url, SECONDS, SKIP, ticket)[0] for s in (clean, slow)]
                if round_ >= 0:
                    emit(case="tail", order=order, clean_mb_per_s=rates[0], slow_mb_per_s=rates[1])
                    found.append(rates[1] / rates[0])
        engine = slow.stats()["engine"]
    return Result(
        "tail",
        [Figure(order, median(ratios[order]), at_least=bound) for order, bound in BOUNDS.items()],
        {name: engine.get(name) for name in ("hedges", "hedges_won", "retries")},
    )
