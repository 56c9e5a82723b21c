"""imagenet_like: ready tensors from a store behind 20 ms, from the second epoch on, beside DataLoaders with Pillow.

The loaders have as many workers as there are processors. They ask a server that keeps nothing for the bytes of one
sample at a time: a worker for one after another, or each of its threads.
"""

from __future__ import annotations

from harness import Context, Figure, Result, emit, median
from ready import read
from server import Server, spill
from sizes import sized

from .image_ops import SERVED, pillow12, stored

RTT = "20ms"
THREADS = sized(16, smoke=2)  # of each worker
EPOCHS = {
    "bowstring": sized(4, smoke=1),
    "workers": 1,
    "threads": sized(2, smoke=1),
}  # of a round, after one to warm up


def run(context: Context) -> Result:
    """Interleave the three; what counts is wall time."""
    pillow = pillow12(context)
    gains: dict[str, list[float]] = {"workers": [], "threads": []}
    rates = []
    with (
        spill(context.folder, 4.0 * SERVED) as flags,
        Server(context.binary, stored(context), *flags, rtt=RTT) as ours,
        Server(context.binary, stored(context, "store-plain"), rtt=RTT) as far,
    ):
        for _ in context.repeat(*gains.values()):
            found = {
                "bowstring": read("bowstring", ours.url, ours.pid, epochs=EPOCHS["bowstring"], workers=0),
                "workers": read("store", far.url, pillow=pillow, epochs=EPOCHS["workers"]),
                "threads": read("store", far.url, pillow=pillow, epochs=EPOCHS["threads"], threads=THREADS),
            }
            per_s = {name: got["rows"] / got["seconds"] for name, got in found.items()}
            emit(case="imagenet_like", **{name: round(rate, 1) for name, rate in per_s.items()})
            rates.append(per_s["bowstring"])
            for name, values in gains.items():
                values.append(per_s["bowstring"] / per_s[name])
    return Result(
        "imagenet_like",
        [
            Figure("gain", gains["workers"]),
            Figure("gain_threads", gains["threads"]),
        ],
        {"samples_per_s": round(median(rates), 1)},
    )
