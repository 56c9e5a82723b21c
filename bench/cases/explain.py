"""explain: jobs in settings without a calibration, compared with the predictions made before they ran."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
from harness import MIB, Context, Figure, Result, TimedReaders, emit, go_benchmark, median
from node import Node
from server import HEADER, INDEX, Server
from sizes import sized

# Datasets: rows and bytes of a sample. Blobs are read of the first alone to calibrate.
CALIBRATED = "mixed"
PART = sized(1, smoke=10)  # what the rows are divided by
SIZES = {
    CALIBRATED: (600 // PART, (4_000, 200_000)),
    "small": (6000 // PART, (20_000,)),
    "photos": (1500 // PART, (110_000,)),
    "large": (400 // PART, (400_000,)),
    # For explain_fresh.
    "thumbs": (8000 // PART, (9_000, 15_000)),
    "scans": (700 // PART, (250_000,)),
}
LINKS = {  # round trip and bytes a second of the store
    "near": ("5ms", 80_000_000),
    "middle": ("30ms", 40_000_000),
    "far": ("150ms", 40_000_000),
    "slow": ("30ms", 15_000_000),
    "edge": ("12ms", 60_000_000),
    "wide": ("80ms", 25_000_000),
}
CALIBRATE_S = sized(6, smoke=1)
AT_MOST_S = 60  # for a job
CORES = 1  # that are left to the server: the other one is the consumers'


@dataclass(frozen=True)
class Setting:
    """A job, and what it runs on."""

    link: str
    dataset: str
    batch: int = 64
    ranks: int = 1
    epochs: int = 1
    pace_ms: float = 0
    cached: float = 0  # room in the spill, as a part of the dataset; 0: no spill
    window: int = 64 * MIB


SETTINGS = [
    Setting("near", "photos", pace_ms=0),
    Setting("near", "photos", pace_ms=150),
    Setting("near", "small", batch=256, ranks=2),
    Setting("near", "large", batch=16, pace_ms=30),
    Setting("near", "photos", epochs=3, cached=0.5),
    Setting("middle", "photos"),
    Setting("middle", "small", batch=128, pace_ms=100),
    Setting("middle", "large", batch=32, ranks=4),
    Setting("middle", "photos", epochs=3, cached=0.3, pace_ms=60),
    Setting("middle", "photos", epochs=4, cached=1.2, pace_ms=120),
    Setting("middle", "small", batch=100, epochs=3, cached=0.6, ranks=2),
    Setting("far", "photos", batch=128),
    Setting("far", "small", batch=32, pace_ms=20),
    Setting("far", "large", batch=8, pace_ms=200),
    Setting("far", "small", window=2 * MIB),
    Setting("far", "photos", window=4 * MIB, batch=16),
    Setting("slow", "photos", epochs=2, cached=0.5, ranks=2),
    Setting("slow", "small", batch=256, pace_ms=150),
    Setting("slow", "large", batch=16, pace_ms=600),
    Setting("slow", "small", epochs=3, cached=1.2, pace_ms=50),
]


def put(url: str, name: str) -> None:
    """Upload a dataset of random bytes."""
    rows, sizes = SIZES[name]
    table = pa.table(
        {
            "key": pa.array([f"{i:06d}" for i in range(rows)]),
            "image": pa.array([os.urandom(sizes[i % len(sizes)]) for i in range(rows)], pa.large_binary()),
        }
    )
    command = {"put": {"dataset": name, "key": "key", "blobs": ["image"]}}
    with fl.connect(url) as client:
        writer, reader = client.do_put(fl.FlightDescriptor.for_command(json.dumps(command)), table.schema)
        with writer:
            for batch in table.to_batches(max_chunksize=64):
                writer.write_batch(batch)
            writer.done_writing()
            while reader.read() is not None:
                pass


def stored(context: Context, settings: list[Setting]) -> Path:
    """A store with the datasets of some settings, and the one to calibrate with."""
    store = context.folder / "store-explain"
    with Node(context.binary, store) as node:
        for name in {CALIBRATED: None} | {s.dataset: None for s in settings}:
            if not (made := context.folder / f"explain-has-{name}").exists():
                put(node.url, name)
                made.touch()
    return store


@contextlib.contextmanager
def served(context: Context, store: Path, s: Setting) -> Iterator[Server]:
    """A server of its own for a setting, with nothing in its spill."""
    rtt, bandwidth = LINKS[s.link]
    flags = [f"--window-memory={s.window}B"]
    with contextlib.ExitStack() as stack:
        if s.cached:
            rows, sizes = SIZES[s.dataset]
            folder = context.folder / f"spill-{time.monotonic_ns()}"
            size = round(INDEX + s.cached * rows * (max(sizes) + HEADER))
            flags += [f"--spill={folder}", f"--spill-bytes={size}B", f"--spill-min-bytes={size}B"]
        yield stack.enter_context(Server(context.binary, store, *flags, rtt=rtt, bandwidth=f"{bandwidth}B"))


def calibrated(context: Context, store: Path, link: str) -> dict[str, Any]:
    """The rates that calibrate finds of a link."""
    with served(context, store, Setting(link, CALIBRATED, cached=1)) as server:
        out = context.bowstring(
            "calibrate", server.url, f"--dataset={CALIBRATED}", f"--seconds={CALIBRATE_S}", "--json"
        )
    found: dict[str, Any] = json.loads(out)
    rates = {name: found[name] for name in ("store", "spill", "node", "network")}
    rates["node"]["cores"] = min(rates["node"]["cores"], CORES)
    rates["network"].pop("bytes_per_s", None)  # of this machine to itself: the processors are the limit
    return rates


def request(s: Setting) -> dict[str, Any]:
    """The job's request."""
    asked: dict[str, Any] = {"dataset": s.dataset, "columns": ["image"], "batch": s.batch}
    asked["shuffle"] = {"seed": 5, "epoch": 0}
    if s.ranks > 1:
        asked["world"] = {"size": s.ranks}
    return asked


def predicted(server: Server, s: Setting, rates: dict[str, Any]) -> dict[str, Any]:
    """The prediction for the job before it runs."""
    body = request(s) | {"pace_ms": s.pace_ms, "epochs": s.epochs, "rates": rates}
    with fl.connect(server.url) as client:
        (answer,) = client.do_action(("explain", json.dumps(body).encode()))
        found: dict[str, dict[str, Any]] = json.loads(answer.body.to_pybytes())
    return found["prediction"]


def measured(server: Server, s: Setting) -> tuple[float, str]:
    """Samples a second of the job, and what limited it, by its waits and by what the link carries."""
    ticket = request(s) | {"epochs": s.epochs}
    streams = [{"ticket": ticket | {"rank": r}, "compute": s.pace_ms / 1000, "prefetch": 2} for r in range(s.ranks)]
    found = TimedReaders(server.url, AT_MOST_S, streams).run()
    rows = sum(f.rows for f in found)
    if rows != SIZES[s.dataset][0] * s.epochs:
        raise RuntimeError(f"{rows} rows came of {s} within {AT_MOST_S} s")
    seconds = max(f.marks[-1][0] for f in found) + s.pace_ms / 1000  # the last step is computed, too
    stats = server.stats()
    wait, store = stats["server"]["wait_ns"], stats["engine"]
    if s.pace_ms and rows / seconds > 0.93 * s.batch / s.pace_ms * 1000:
        return rows / seconds, "consumer"
    kinds = {"store": wait["store"], "spill": wait["spill"], "node": wait["encode"], "consumer": wait["consumer"]}
    limit = max(kinds, key=lambda k: kinds[k])
    if limit == "store" and store["read_bytes"] / seconds > 0.6 * LINKS[s.link][1] * (1 - 0.4 * bool(s.cached)):
        limit = "link"
    return rows / seconds, limit


def errors_of(context: Context, case: str, settings: list[Setting]) -> tuple[list[float], int]:
    """Calibrate each link once, then explain and run each setting on a server of its own; errors, the least first."""
    settings = settings[: sized(len(settings), smoke=2)]
    store = stored(context, settings)
    rates = {}
    for link in {s.link: None for s in settings}:
        rates[link] = calibrated(context, store, link)
        emit(case=case, link=link, rates=rates[link])
    errors, right = [], 0
    for s in settings:
        with served(context, store, s) as server:
            said = predicted(server, s, rates[s.link])
            rate, limit = measured(server, s)
        error = abs(said["samples_per_s"] / rate - 1)
        errors.append(error)
        right += said["limit"] == limit
        of = {"said": said["samples_per_s"], "measured": rate, "error": error}
        emit(case=case, setting=vars(s), **of, said_limit=said["limit"], limit=limit)
    return sorted(errors), right


def p90(errors: list[float]) -> float:
    """The 90th percentile of sorted errors."""
    return errors[math.ceil(0.9 * len(errors)) - 1]


def run(context: Context) -> Result:
    """Measure the settings that the model was made with."""
    errors, right = errors_of(context, "explain", SETTINGS)
    table = go_benchmark(context, "explain", "./fetch/predict", "BenchmarkHiPC", "-benchtime=1x")
    return Result(
        "explain",
        [
            Figure("error_p90", p90(errors)),
            Figure("limits_right", right),
            Figure("table_error", table["table_error"]),
        ],
        details={"settings": len(errors), "error_median": median(errors), "error_max": errors[-1]},
    )
