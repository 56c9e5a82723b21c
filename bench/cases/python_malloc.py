"""python_malloc: what `bowstring-run` gains where pyarrow receives, the same reader with it and without it by turns."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bowstring.run import SETTINGS
from harness import Context, Figure, Result, emit, median
from node import Node

from .loopback import stored

SECONDS = 3.0


def read(url: str, *launcher: str) -> float:
    """MB/s of one run."""
    command: list[str | Path] = [
        sys.executable,
        Path(__file__).parent.parent / "malloc_reader.py",
        url,
        "bench",
        str(SECONDS),
    ]
    plain = {name: value for name, value in os.environ.items() if name not in SETTINGS} | {"BOWSTRING_HTTP2": "off"}
    done = subprocess.run(
        [sys.executable, *launcher, *command] if launcher else command,
        check=True,
        capture_output=True,
        text=True,
        env=plain,
        timeout=120,
    )
    return float(done.stdout)


def run(context: Context) -> Result:
    """Interleave them, from the embedded store's warm segments."""
    with Node(context.binary, stored(context)) as node:
        read(node.url)  # warm
        gains = []
        for _ in range(max(5, context.rounds)):
            plain, launched = read(node.url), read(node.url, "-m", "bowstring.run")
            emit(case="python_malloc", plain_mb_per_s=plain, launched_mb_per_s=launched)
            gains.append(launched / plain)
    return Result("python_malloc", [Figure("malloc_gain", median(gains), at_least=1.0)])
