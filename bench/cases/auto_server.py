"""auto_server: the server that bowstring.open starts, beside one that was started by hand, and when it is killed."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from unittest import mock

import bowstring
from bowstring._local import servers
from harness import Context, Figure, Result, emit, needs, program
from node import Node
from samples import SIZE, image_folder
from server_kills import killed_at_random
from sizes import sized

BATCH = 64
COUNT, EPOCHS, KILLS = sized((2000, 4, 100), smoke=(128, 1, 3))


@needs(program("setsid"))
def run(context: Context) -> Result:
    """Time starts and interleave the two servers, then kill the automatic one."""
    image_folder(context.folder / "automatic", COUNT, SIZE)
    photographs, cache = context.folder / "automatic" / "images", context.folder / "cache"
    # Stores of other kinds have other catalogs: this is of the kind that the package makes.
    store, socket = (context.folder / "by-hand").as_uri(), context.folder / "by-hand.socket"
    context.bowstring("store", "init", "--store", store)
    context.bowstring("attach", "--store", store, photographs, "photographs")
    settings = {"BOWSTRING_BINARY": str(context.binary), "BOWSTRING_CACHE": str(cache)}
    seed = secrets.randbelow(1 << 32)
    with mock.patch.dict(os.environ, settings):
        automatic = bowstring.open(photographs, progress=False)
        starts = [started() for _ in context.repeat()]
        node = Node(own_session(context), store, "--local", str(context.folder / "by-hand.memory"))
        node.start(f"grpc+unix://{socket}")
        try:
            sides = {"automatic": automatic, "by_hand": bowstring.open(f"{node.url}#photographs")}
            ratios: list[float] = []
            for round_ in context.repeat(ratios, warm=1):
                seconds = dict.fromkeys(sides, 0.0)
                for name in (*sides, *reversed(sides)):  # a machine that slows down slows both
                    seconds[name] += read(sides[name])
                if round_ >= 0:
                    emit(case="auto_server", **{f"seconds_{name}": found for name, found in seconds.items()})
                    ratios.append(seconds["by_hand"] / seconds["automatic"])
        finally:
            node.stop()
        found = killed_at_random(photographs, cache, COUNT, kills=KILLS, seed=seed)
    for said in found.wrong:
        emit(case="auto_server", wrong=said)
    return Result(
        "auto_server",
        [
            Figure("start_s", starts),
            Figure("throughput", ratios),
            Figure("hangs", found.hangs),
            Figure("wrong", len(found.wrong)),
            Figure("leaked", found.leaked),
        ],
        {"kills": found.kills, "seed": seed},
    )


def own_session(context: Context) -> Path:
    """A program that runs the server in a session of its own, as the package does.

    Linux gives each session its share of a busy processor: a server in the session of its client has less.
    """
    script = context.folder / "serve"
    script.write_text(f'#!/bin/sh\nexec setsid {context.binary} "$@"\n')
    script.chmod(0o755)
    return script


def started() -> float:
    """Seconds that a start takes until the server answers."""
    (server,) = servers.known()
    server.stop()
    begun = time.monotonic()
    server.ensure()
    return time.monotonic() - begun


def read(dataset: bowstring.Dataset) -> float:
    """Seconds that shuffled epochs take."""
    begun, rows = time.monotonic(), 0
    with dataset.columns(["image"]).shuffle(seed=7).batches(BATCH, epochs=EPOCHS, rank=0, world_size=1) as batches:
        for batch in batches:
            rows += batch.num_rows
    if rows != EPOCHS * COUNT:
        raise RuntimeError(f"{dataset} gave {rows} rows, want {EPOCHS * COUNT}")
    return time.monotonic() - begun
