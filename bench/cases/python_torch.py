"""python, torch's part: photographs' bytes beside plain pyarrow.flight and beside files, and how fast a job resumes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness import Context, Figure, Readers, emit, median
from node import Node
from samples import COUNT, SIZE
from sizes import sized

from . import loopback, million

EPOCHS = sized(8, smoke=1)
WORKERS = 2
BENCH = Path(__file__).parent.parent


def plain(url: str) -> float:
    """GB/s of two processes that read with pyarrow.flight what the two workers read."""
    tickets = [
        json.dumps(
            {
                "dataset": "bench",
                "columns": ["id", "label", "image"],
                "batch": loopback.BATCH,
                "shuffle": {"seed": 7, "epoch": 0},
                "step": worker,
                "stride": WORKERS,
            }
        ).encode()
        for worker in range(WORKERS)
    ]
    got = Readers(url, tickets, EPOCHS).run()
    if got["rows"] != COUNT * EPOCHS:
        raise RuntimeError(f"{got['rows']} rows instead of {COUNT * EPOCHS}")
    return COUNT * EPOCHS * SIZE / 1e9 / got["seconds"]


def loader(side: str, place: str, workers: int = WORKERS, local: str = "off") -> tuple[float, list[float]]:
    """GB/s of a training process with some workers, and CPU seconds for each GB of it and of its workers."""
    done = subprocess.run(
        [sys.executable, BENCH / "torch_reader.py", side, str(EPOCHS), str(workers), place],
        input="go\n",
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "BOWSTRING_LOCAL": local},
    )
    got = json.loads(done.stdout.splitlines()[-1])
    if got["rows"] != COUNT * EPOCHS:
        raise RuntimeError(f"{got['rows']} rows instead of {COUNT * EPOCHS}")
    return got["bytes"] / 1e9 / got["seconds"], got["cpu_s_per_gb"]


def resume(url: str, step: str) -> dict[str, Any]:
    """The time until a new loader resumes at a step, and the size of its states."""
    done = subprocess.run(
        [sys.executable, BENCH / "torch_resume.py", url, step], stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run(context: Context) -> list[Figure]:
    """Interleave plain Flight, BowstringDataset and files; then resume in an epoch of a million samples."""
    store = loopback.stored(context)
    files = str(context.folder / "imagefolder" / "images")
    same_node: list[float] = []
    ratios: list[float] = []
    vs_files: list[float] = []
    with Node(context.binary, store, "--local", str(context.folder / "socket")) as node:
        plain(node.url)  # warm
        loader("files", files)
        for _ in context.repeat(same_node, ratios, vs_files):
            flight = plain(node.url)
            torch, cpu = loader("bowstring", node.url)
            other, _ = loader("files", files)
            # Nothing is left for workers to do where the bytes are there and stay undecoded.
            shared, shared_cpu = loader("bowstring", node.url, workers=0, local="")
            emit(case="python", part="torch", flight=flight, bowstring=torch, files=other, cpu_s_per_gb=cpu)
            emit(case="python", part="torch", transport="shared", bowstring=shared, cpu_s_per_gb=shared_cpu)
            same_node.append(shared / flight)
            ratios.append(torch / flight)
            vs_files.append(torch / other)
    times: dict[str, list[float]] = {"first": [], "last": []}
    sizes = []
    with Node(context.binary, million.stored(context)) as node:
        resume(node.url, "first")  # warm
        for _ in context.repeat():
            for step, found in times.items():
                got = resume(node.url, step)
                emit(case="python", part="resume", step=step, **got)
                found.append(got["resume_ms"])
                sizes.append(got["state_bytes"])
    return [
        Figure("torch_ratio", same_node),
        Figure("torch_ratio_tcp", ratios),
        Figure("vs_files", vs_files),
        Figure("resume_ms", max(median(found) for found in times.values())),
        Figure("state_bytes", max(sizes)),
    ]
