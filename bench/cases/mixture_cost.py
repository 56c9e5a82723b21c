"""mixture_cost: a mixture of 64 datasets beside one dataset of the same samples: throughput, memory, threads."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import psutil
from harness import Context, Figure, Readers, Result, anonymous_mb, cpu_seconds, emit, median
from node import Node
from samples import COUNT, SIZE, image_folder
from sizes import sized

SOURCES = sized(64, smoke=8)
STREAMS = sized(4, smoke=2)
PASSES = sized(3, smoke=1)  # epochs that each stream reads in a round
BATCH = 64


def stored(context: Context) -> Path:
    """A store with the samples as one dataset, and as 64; blobs that both have are stored once."""
    store = context.folder / "store-mixture"
    if not store.exists():
        source = context.folder / "imagefolder-64"
        image_folder(source, COUNT, SIZE, classes=SOURCES)
        context.bowstring("import", "--store", store, source / "images", "whole")
        for i in range(SOURCES):
            context.bowstring("import", "--store", store, source / f"images/class{i}", f"part-{i:02}")
    return store


def ticket(of: dict[str, Any], epoch: int) -> bytes:
    """A shuffled epoch."""
    request = {**of, "columns": ["id", "image"], "batch": BATCH, "shuffle": {"seed": 7, "epoch": epoch}}
    return json.dumps({**request, "rank": 0, "step": 0}).encode()


WHOLE = {"dataset": "whole"}
MIXED = {"mixture": {"sources": [{"dataset": f"part-{i:02}", "repeat": 1} for i in range(SOURCES)]}}


class Watch:
    """The most memory and the most threads that a process has while it is watched."""

    def __init__(self, pid: int) -> None:
        self.memory_mb, self.threads = 0.0, 0
        self._process = psutil.Process(pid)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._done.wait(0.02):
            self.memory_mb = max(self.memory_mb, anonymous_mb(self._process.pid))
            self.threads = max(self.threads, self._process.num_threads())

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def measure(context: Context, of: dict[str, Any]) -> dict[str, float]:
    """A new server that serves some streams."""
    with Node(context.binary, stored(context)) as node:
        Readers(node.url, [ticket(of, 100)]).run()  # warms
        readers = Readers(node.url, [ticket(of, i) for i in range(STREAMS)], PASSES)
        before = cpu_seconds(node.pid)
        with Watch(node.pid) as watch:
            got = readers.run()
        gigabytes = COUNT * PASSES * STREAMS * SIZE / 1e9
        if got["rows"] != COUNT * PASSES * STREAMS:
            raise RuntimeError(f"{got['rows']} rows instead of {COUNT * PASSES * STREAMS}")
        return {
            "gb_per_s": gigabytes / got["seconds"],
            "cpu_s_per_gb": (cpu_seconds(node.pid) - before) / gigabytes,
            "memory_mb": watch.memory_mb,
            "threads": watch.threads,
        }


def run(context: Context) -> Result:
    """Interleave both."""
    rounds = []
    ratios: list[float] = []
    for _ in context.repeat(ratios):
        rounds.append((measure(context, WHOLE), measure(context, MIXED)))
        ratios.append(rounds[-1][1]["gb_per_s"] / rounds[-1][0]["gb_per_s"])
        emit(case="mixture_cost", one=rounds[-1][0], mixed=rounds[-1][1])

    def difference(name: str) -> float:
        return median(mixed[name] - one[name] for one, mixed in rounds)

    def ratio(name: str) -> float:
        return median(mixed[name] / one[name] for one, mixed in rounds)

    return Result(
        "mixture_cost",
        [
            Figure("throughput", ratios),
            Figure("memory_mb", difference("memory_mb")),
            Figure("threads", difference("threads")),
        ],
        {"cpu_ratio": round(ratio("cpu_s_per_gb"), 3)},
    )
