"""Loaders of samples that are ready for a model, as processes of their own: see ready_reader.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness import cpu_seconds


def read(side: str, place: str, server: int | None = None, pillow: Path | None = None, **spec: Any) -> dict[str, float]:
    """The cost of a loader's epochs: rows, seconds, and CPU seconds, those of a server included."""
    usual = {"media": "image", "epochs": 2, "workers": os.cpu_count() or 1, "threads": 0, "batch": 64}
    full = {**usual, "batches": 0, "step_s": 0.0, "rtt_s": 0.0, **spec, "side": side, "place": place}
    env = dict(os.environ)
    if pillow is not None:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(pillow), env.get("PYTHONPATH")]))
    script = Path(__file__).with_name("ready_reader.py")
    with subprocess.Popen(
        [sys.executable, script, json.dumps(full)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    ) as process:
        line = process.stdout.readline() if process.stdout else ""
        if line.strip() != "ready":
            raise RuntimeError(f"the loader {side} said {line!r} instead of being ready")
        before = cpu_seconds(server) if server else 0.0
        out, _ = process.communicate("go\n")
        if process.returncode:
            raise RuntimeError(f"the loader {side} ended with {process.returncode}")
        found: dict[str, float] = json.loads(out)
        found["cpu_s"] += (cpu_seconds(server) if server else 0.0) - before
    return found
