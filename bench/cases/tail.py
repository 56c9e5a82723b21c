"""tail: one read in a hundred takes two seconds longer; what that costs in each order."""

from __future__ import annotations

import contextlib

from harness import Context, Figure, Result, emit, shuffled, throughput
from server import Server
from sizes import sized

from .loopback import stored

ORDERS = ("free", "window", "strict")
RTT = "20ms"
SECONDS, SKIP = sized((10.0, 3.0), smoke=(1.5, 0.5))


def run(context: Context) -> Result:
    """Interleave the orders, each with and without slow reads."""
    ratios: dict[str, list[float]] = {order: [] for order in ORDERS}
    with contextlib.ExitStack() as stack:
        clean = stack.enter_context(Server(context.binary, stored(context, "store-clean"), rtt=RTT))
        slow = stack.enter_context(
            Server(context.binary, stored(context, "store-slow"), rtt=RTT, slow_share=0.01, slow_by="2s")
        )
        for round_ in context.repeat(*ratios.values(), warm=1):
            for order, found in ratios.items():
                ticket = shuffled(seed=7, epoch=1000 * (round_ + 1), order=order)
                rates = [throughput(s.url, SECONDS, SKIP, ticket)[0] for s in (clean, slow)]
                if round_ >= 0:
                    emit(case="tail", order=order, clean_mb_per_s=rates[0], slow_mb_per_s=rates[1])
                    found.append(rates[1] / rates[0])
        engine = slow.stats()["engine"]
    return Result(
        "tail",
        [Figure(order, ratios[order]) for order in ORDERS],
        {name: engine.get(name) for name in ("hedges", "hedges_won", "retries")},
    )
