"""dlcache: the measure of DLCache's authors, over a grid of workers, batch and step.

Their script (VUZhuangweiKang/DLCache, src/baselines/ImageNet/main.py) reads 100 batches from a DataLoader over files
that are not in the page cache, sleeps a while after each, and divides samples by the sum of what `next` took. Batches
and steps of their grid are divided by 16 here, so that samples a second stay what they are; both sides give the same
tensors. The files are behind the link that our store is behind: each takes a round trip. Our server keeps nothing.

DLCACHE says how much of the grid is run: `try` one cell of each kind, `some` (the default) its corners, `all` of it.
"""

from __future__ import annotations

import os
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import speech
from harness import Context, Figure, Result, emit, median
from ready import read
from server import Server
from sizes import sized

from .image_ops import SERVED, folder, pillow12

RTT_S = 0.02
SCALE = 16
STEPS = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
# By media: workers, batches and steps of the authors; the batches of a cell, 100 with `all`.
GRID: dict[str, dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...], int]]] = {
    "smoke": {"image": ((1,), (256,), (0.5,), 2), "audio": ((1,), (64,), (0.5,), 2)},
    "try": {"image": ((4,), (256,), (2.5,), 8), "audio": ((8,), (128,), (2.5,), 8)},
    "some": {"image": ((2, 4), (256, 1024), (0.5, 2.5), 32), "audio": ((4, 8), (64, 512), (0.5, 2.5), 32)},
    "all": {
        "image": ((4,), (256, 512, 1024, 2048), STEPS, 100),
        "audio": ((8,), (64, 128, 256, 512), STEPS, 100),
    },
}
# Samples of each media; a cell that reads more begins again.
COUNTS = sized({"image": 2048, "audio": 512}, smoke={"image": 64, "audio": 16})


def photographs(context: Context) -> Path:
    """`COUNTS["image"]` files: photographs, and copies whose bytes differ by a comment."""
    made = context.folder / "photos-dlcache"
    if made.exists():
        return made
    made.mkdir()
    sources = [path.read_bytes() for path in sorted(folder(context, SERVED).glob("*.jpg"))]
    for number in range(COUNTS["image"]):
        data = sources[number % len(sources)]
        comment = b"\xff\xfe\x00\x06" + number.to_bytes(4, "big")
        (made / f"{number:05}.jpg").write_bytes(data[:2] + comment + data[2:])
    return made


def forget(place: Path) -> None:
    """Take the files of a folder out of the page cache, as far as no process maps them."""
    for path in place.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cell(context: Context, server: Server, store: Path, files: Path, spec: dict[str, Any]) -> dict[str, float]:
    """Both sides once: samples for each second of waiting, and in all, ours by theirs."""
    forget(files)
    theirs = read("files", str(files), pillow=pillow12(context), rtt_s=RTT_S, **spec)
    forget(store)
    ours = read("bowstring", server.url, server.pid, **{**spec, "workers": 0})
    return {"gain": theirs["waited"] / ours["waited"], "wall": theirs["seconds"] / ours["seconds"]}


def run(context: Context) -> Result:
    """Every cell once a round, sides in rotation, with the median of each."""
    grid = GRID[os.environ.get("DLCACHE", sized("some", smoke="smoke"))]
    gains, walls = [], []
    for media, (workers, sizes, steps, batches) in grid.items():
        files = photographs(context) if media == "image" else speech.folder(context, COUNTS["audio"])
        store = context.folder / f"store-dlcache-{media}"
        if not store.exists():
            context.bowstring("import", "--store", store, "--format", f"{media}folder", files, "bench")
        with Server(context.binary, store, rtt=f"{RTT_S * 1000:g}ms") as server:
            for count, size, step in product(workers, sizes, steps):
                spec = {"media": media, "workers": count, "batch": size // SCALE, "step_s": step / SCALE}
                spec["batches"] = min(batches, COUNTS[media] // (size // SCALE))
                found = [cell(context, server, store, files, spec) for _ in context.repeat()]
                gain, wall = median(f["gain"] for f in found), median(f["wall"] for f in found)
                emit(case="dlcache", **spec, gain=round(gain, 2), wall=round(wall, 3))
                gains.append(gain)
                walls.append(wall)
    return Result(
        "dlcache",
        [
            Figure("gain_best", max(gains)),
            Figure("gain_mean", mean(gains)),
            Figure("wall_worst", min(walls)),
        ],
        {"cells": len(gains), "gain_worst": round(min(gains), 2)},
    )
