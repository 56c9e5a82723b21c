"""One case of `make bench`, at random, in a smoke run; `make nightly` has all of them.

The day chooses, so that a failure repeats the same day. BENCH_SEED=20261127 repeats the choice of another day, and
BENCH_CASE names a case.
"""

from __future__ import annotations

import datetime
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import bounds
import pytest

ROOT = Path(__file__).parent.parent
# Cases whose smoke run takes longer than 15 seconds on two processors, by what takes it.
LONG = {
    **dict.fromkeys(("dlcache", "image_ops", "image_same", "imagenet_like"), "another Pillow is installed"),
    **dict.fromkeys(
        ("access", "attach_objects", "chunk_price", "cluster", "manifest", "observe", "replicas"),
        "tests of many packages are built",
    ),
    "engine": "a store is made in memory for each order",
    "groups": "24 clients start",
    "own_data": "the libraries of all kinds of files are imported",
    "simulate": "jobs of eight nodes are simulated",
    "simulate_store": "each mistake is planted",
}


def run(*args: str, timeout: float = 300) -> tuple[int, list[dict[str, Any]], str]:
    """The exit status of bench/run.py, its lines, and what it says besides."""
    command: list[str | Path] = [sys.executable, ROOT / "bench" / "run.py", *args]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=timeout)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return done.returncode, lines, done.stdout[-2000:] + done.stderr[-4000:]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_one_case() -> None:
    """The case ends, has all figures that bounds.py has of it, and has made no mistake."""
    seed = int(os.environ.get("BENCH_SEED", f"{datetime.datetime.now(datetime.timezone.utc):%Y%m%d}"))
    short = sorted(bounds.BOUNDS.keys() - LONG.keys())
    order = random.Random(seed).sample(short, len(short))
    chosen = os.environ.get("BENCH_CASE") or next(name for name in order if not run("--list", name)[1][0]["needs"])
    print(f"BENCH_SEED={seed} chooses BENCH_CASE={chosen}")
    status, lines, said = run(chosen, "--smoke", timeout=660)  # the run itself says after 600 where it hangs
    assert status == 0, said
    last = lines[-1]
    assert last["case"] == chosen
    assert last["smoke"]
    assert last["reached"]
    assert {name for name, bound in bounds.BOUNDS[chosen].items() if not bound.only} <= last.keys()


def test_cases_that_need_what_is_missing_are_skipped(tmp_path: Path) -> None:
    """The kit of peers is a folder outside this repository."""
    command: list[str | Path] = [sys.executable, ROOT / "bench" / "run.py", "objects", "--smoke"]
    environment = os.environ | {"PEERS": str(tmp_path)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "PEERS names the folder" in json.loads(done.stdout)["skipped"][0]
