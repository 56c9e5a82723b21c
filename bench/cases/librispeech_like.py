"""librispeech_like: log-mel spectrograms of speech from a store behind 20 ms, from the second epoch on.

As imagenet_like: the loaders have as many workers as there are processors, and ask a server that keeps nothing for the
bytes of one sample at a time, a worker for one after another, or each of its threads.
They use soundfile and torchaudio.
"""

from __future__ import annotations

from typing import Any

from harness import Context, Figure, Result, emit, median
from ready import read
from samples import SIZE
from server import Server, spill
from sizes import sized
from speech import stored

RTT = "20ms"
CLIPS, BATCH = sized((256, 16), smoke=(16, 4))
THREADS = sized(16, smoke=2)  # of each worker
EPOCHS = {"bowstring": sized(2, smoke=1), "workers": 1, "threads": 1}  # of a round, after one to warm up
ROOM = 4.0 * CLIPS * 450_000 / SIZE  # of the spill, in photographs


def run(context: Context) -> Result:
    """Interleave the three; what counts is wall time."""
    gains: dict[str, list[float]] = {"workers": [], "threads": []}
    rates = []
    usual: dict[str, Any] = {"media": "audio", "batch": BATCH}
    with (
        spill(context.folder, ROOM) as flags,
        Server(context.binary, stored(context, "store-speech", CLIPS), *flags, rtt=RTT) as ours,
        Server(context.binary, stored(context, "store-speech-plain", CLIPS), rtt=RTT) as far,
    ):
        for _ in context.repeat(*gains.values()):
            found = {
                "bowstring": read("bowstring", ours.url, ours.pid, epochs=EPOCHS["bowstring"], workers=0, **usual),
                "workers": read("store", far.url, epochs=EPOCHS["workers"], **usual),
                "threads": read("store", far.url, epochs=EPOCHS["threads"], threads=THREADS, **usual),
            }
            per_s = {name: got["rows"] / got["seconds"] for name, got in found.items()}
            emit(case="librispeech_like", **{name: round(rate, 1) for name, rate in per_s.items()})
            rates.append(per_s["bowstring"])
            for name, values in gains.items():
                values.append(per_s["bowstring"] / per_s[name])
    return Result(
        "librispeech_like",
        [
            Figure("gain", gains["workers"]),
            Figure("gain_threads", gains["threads"]),
        ],
        {"samples_per_s": round(median(rates), 1)},
    )
