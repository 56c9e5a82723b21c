"""simulate_store: the protocol of the stores, simulated from seeds, with and without planted mistakes."""

from __future__ import annotations

import json
import subprocess

from harness import Context, Figure, Result
from sizes import sized

SEEDS = sized(10_000, smoke=50)
TESTS = "^(TestSimulation|TestPlanted)$"


def run(context: Context) -> Result:
    """Run the package's simulation, which writes what came of it."""
    out = context.folder / "simulate_store.json"
    subprocess.run(
        [  # noqa: S607
            "go",
            "test",
            "-count=1",
            "-run",
            TESTS,
            "./fetch/store/protocol",
            "-args",
            f"-seeds={SEEDS}",
            f"-report={out}",
        ],
        cwd=context.root,
        check=False,  # what failed is in the figures
        capture_output=True,
    )
    figures = json.loads(out.read_text())
    return Result(
        "simulate_store",
        [
            Figure("seeds", figures["seeds"]),
            Figure("seconds", figures["seconds"]),
            Figure("planted", figures["planted"]),
            Figure("planted_missed", figures["planted_missed"]),
            Figure("violations", figures["violations"]),
        ],
        {"missed": figures["missed"] or []},
    )
