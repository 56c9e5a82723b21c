"""placement: operators at the server, at the client, and where the package moves them, over links and loads.

Server and client have a processor each, as two machines have, and a link between them. A busy server shares its
processor with two programs that compute. The figure is samples a second. `PLACEMENT=100Mbit` takes the cells with
that in their names, which are such as `large, 100Mbit, busy`.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from harness import Context, Figure, Result, emit
from node import Node
from nodes import Links, Wire
from sizes import sized
from speech import stored as speech

from .audio_ops import LOG_MEL
from .image_ops import large, stored

CROP: list[dict[str, Any]] = [
    {"Decode": {}},
    {"RandomResizedCrop": {"size": [224, 224]}},
    {"RandomHorizontalFlip": {}},
    {"ToImage": {}},
]
CELLS = sized("", smoke="image, near, idle")
WIRES = {
    "near": Wire(),
    "1Gbit": Wire(latency_ms=0.5, bytes_per_s=125_000_000),
    "100Mbit": Wire(latency_ms=0.5, bytes_per_s=12_500_000),
}
FIXED_S, AUTO_S = sized((3.0, 15.0), smoke=(0.5, 1.0))  # what finds out has to live with what it has tried
CLIPS = sized(64, smoke=16)
BUSY = 2  # programs beside the server


class Kind(NamedTuple):
    """A kind of samples."""

    name: str
    store: Path
    column: str
    operators: list[dict[str, Any]]
    batch: int


def kinds(context: Context) -> list[Kind]:
    """Small photographs, which grow; large ones, which shrink; and speech."""
    big = context.folder / "store-large"
    if not big.exists():
        context.bowstring("import", "--store", big, large(context), "bench")
    return [
        Kind("image", stored(context), "image", CROP, 32),
        Kind("large", big, "image", CROP, 8),
        Kind("speech", speech(context, "store-speech-placement", CLIPS), "audio", LOG_MEL, 16),
    ]


def pin(pid: int, processor: int) -> None:
    """Give a process and its threads one processor; those that it starts have the same."""
    for thread in Path("/proc", str(pid), "task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), {processor})


@contextlib.contextmanager
def busy(programs: int, processor: int) -> Iterator[None]:
    """Programs that compute on a processor."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(programs)]
    try:
        for process in running:
            pin(process.pid, processor)
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def read(context: Context, kind: Kind, url: str, place: str, processor: int) -> dict[str, Any]:
    """The throughput of a client."""
    spec = {"url": url, "column": kind.column, "operators": kind.operators, "place": place, "batch": kind.batch}
    spec["seconds"] = AUTO_S if place == "auto" else FIXED_S
    script = context.root / "bench" / "place_reader.py"
    command: list[str | Path] = ["taskset", "-c", str(processor), sys.executable, script, json.dumps(spec)]
    env = dict(os.environ) | {"BOWSTRING_BINARY": str(context.binary)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=env, timeout=300)
    found: dict[str, Any] = json.loads(done.stdout)
    return found | {"per_s": found["rows"] / found["seconds"]}


def run(context: Context) -> Result:
    """Every cell, its three places one after another; the figure is of the worst cell."""
    theirs, ours = sorted(os.sched_getaffinity(0))[:2]
    shares: dict[str, list[float]] = {}
    for kind in kinds(context):
        links = Links(context.binary)
        try:
            with Node(context.binary, kind.store) as server:
                pin(server.pid, theirs)
                proxies = {}
                for name, wire in WIRES.items():
                    links.link(name, wire)
                    proxies[name] = links.proxy(name, name, f"127.0.0.1:{server.port}")
                for _ in context.repeat():
                    for name, proxy in proxies.items():
                        for programs in (0, BUSY):
                            cell = f"{kind.name}, {name}, {'busy' if programs else 'idle'}"
                            if os.environ.get("PLACEMENT", CELLS) not in cell:
                                continue
                            with busy(programs, theirs):
                                found = {
                                    p: read(context, kind, f"grpc://{proxy}", p, ours)
                                    for p in ("server", "client", "auto")
                                }
                            share = found["auto"]["per_s"] / max(found["server"]["per_s"], found["client"]["per_s"])
                            shares.setdefault(cell, []).append(share)
                            emit(
                                case="placement",
                                cell=cell,
                                share=round(share, 3),
                                batches=found["auto"]["places"],
                                **{p: round(got["per_s"], 1) for p, got in found.items()},
                            )
        finally:
            links.close()
    middle = {cell: sorted(values)[len(values) // 2] for cell, values in shares.items()}
    worst = min(middle, key=lambda cell: middle[cell])
    return Result(
        "placement",
        [Figure("auto_share", middle[worst])],
        {"worst": worst, "cells": len(middle), "reached_in": sum(share >= 0.9 for share in middle.values())},
    )
