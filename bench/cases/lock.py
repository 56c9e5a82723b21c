"""lock: how long a small call waits while streams run whose plans and rows are long lists of nothing."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl
from harness import Context, Figure, Load, Result, emit, median, shuffled
from server import Server
from sizes import sized

from .loopback import stored

# The link is the limit of those that read blobs, and a pause that of those that read none: it is not the wait for a
# processor that is to be measured.
RTT, BANDWIDTH = "20ms", "60MB"
PAUSE = 0.5  # seconds after each batch
CONNECTIONS = sized(8, smoke=2)
EACH = sized(16, smoke=2)  # streams of a kind
STREAMS = 4 * EACH
CALLS, GAP = sized(300, smoke=20), 0.01
SETTLE_S = sized(3, smoke=1)
# Rank 3 of 6 has no row of a global batch of four rows. It has one of a last step of three: a row in 50,001 steps.
ROWS = 200_003
BARREN: dict[str, Any] = {"batch": 4, "world": {"size": 6}, "rank": 3, "epochs": 2**31 - 1, "remainder": "uneven"}


def put_nulls(url: str) -> None:
    """A dataset of one-byte blobs whose second blob column is null except in its first row."""
    table = pa.table(
        {
            "first": pa.array([b"1"] * ROWS, pa.large_binary()),
            "second": pa.array([b"2"] + [None] * (ROWS - 1), pa.large_binary()),
        }
    )
    with fl.connect(url) as client:
        descriptor = fl.FlightDescriptor.for_command(json.dumps({"put": {"dataset": "nulls", "mode": "replace"}}))
        writer, reader = client.do_put(descriptor, table.schema)
        with writer:
            writer.write_table(table, 8192)
            writer.done_writing()
            while reader.read() is not None:
                pass


def streams() -> list[dict[str, Any]]:
    """64 of four kinds, on each connection some of each."""
    found = []
    for i in range(EACH):
        loose = ["free", "window:16", "window:1048576"][i % 3]
        kinds = [
            shuffled(i),
            shuffled(100 + i, order=loose),
            {"dataset": "nulls", "columns": ["id", "first"], "shuffle": {"seed": i}, **BARREN},
            {
                "dataset": "nulls",
                "columns": ["id", "second"],
                "batch": 1024,
                "epochs": 1000,
                "shuffle": {"seed": i},
                "order": ["strict", "free", "window:1048576"][i % 3],
            },
        ]
        turned = kinds[i % 4 :] + kinds[: i % 4]
        found += [{"ticket": kind, "reads": True, "pause": PAUSE} for kind in turned]
    return found


def calls(url: str) -> tuple[list[float], list[float], int]:
    """Calls on a connection of their own: ms of each `stats`, of each call that asks for nothing, and how many streams.

    An action without a request touches no stream: it waits for processors and the network alone.
    """
    found, nothing = [], []
    with fl.connect(url, generic_options=[("grpc.use_local_subchannel_pool", 1)]) as client:
        list(client.list_actions())  # connects
        for _ in range(CALLS):
            time.sleep(GAP)
            start = time.perf_counter()
            (answer,) = client.do_action(("stats", b""))
            found.append(1000 * (time.perf_counter() - start))
            time.sleep(GAP)
            start = time.perf_counter()
            list(client.list_actions())
            nothing.append(1000 * (time.perf_counter() - start))
    return found, nothing, len(json.loads(answer.body.to_pybytes())["streams"])


def run(context: Context) -> Result:
    """Interleave calls to a server that does nothing else and to the same one while the streams run."""
    sides: dict[str, list[list[float]]] = {"alone": [], "beside streams": []}
    nothings: dict[str, list[list[float]]] = {"alone": [], "beside streams": []}
    with Server(context.binary, stored(context), rtt=RTT, bandwidth=BANDWIDTH) as server:
        put_nulls(server.url)

        def measure(side: str) -> None:
            found, nothing, running = calls(server.url)
            sides[side].append(found)
            nothings[side].append(nothing)
            p50, p99 = np.percentile(found, [50, 99])
            nothing_p99 = float(np.percentile(nothing, 99))
            emit(
                case="lock",
                side=side,
                streams=running,
                p50_ms=p50,
                p99_ms=p99,
                max_ms=max(found),
                nothing_ms=nothing_p99,
            )

        for _ in context.repeat():
            measure("alone")
            with Load(server.url, CONNECTIONS, streams()) as load:
                time.sleep(SETTLE_S)
                measure("beside streams")
            emit(case="lock", **load.found)
            if load.found["open"] != STREAMS:
                raise RuntimeError(f"{load.found['open']} streams ran instead of {STREAMS}: {load.found['errors']}")

    def percentile(side: str, at: float, of: dict[str, list[list[float]]] = sides) -> float:
        return median(float(np.percentile(found, at)) for found in of[side])

    # An action without a request waits for processors, too: the rest is the wait for what streams hold.
    waited, nothing = percentile("beside streams", 99), percentile("beside streams", 99, nothings)
    return Result(
        "lock",
        [Figure("stats_beyond_nothing_ms", waited - nothing)],
        {
            "stats_ms": round(waited, 3),
            "stats_p50_ms": round(percentile("beside streams", 50), 3),
            "stats_max_ms": round(max(map(max, sides["beside streams"])), 3),
            "alone_p99_ms": round(percentile("alone", 99), 3),
            "nothing_p99_ms": round(nothing, 3),
        },
    )
