"""doors: how many wrong ways to what the rules hide are tried, what comes by them, and how many can be told apart."""

from __future__ import annotations

import re
import subprocess

from harness import Context, Figure, Result

TOLD = re.compile(r"wrong ways: ways=(\d+) bytes_out=(\d+) distinguishable=(\d+)")


def run(context: Context) -> Result:
    """Run the table of the tests, which logs what came of it."""
    done = subprocess.run(
        ["go", "test", "-count=1", "-v", "-run", "^TestWrongWays$", "./flight"],  # noqa: S607
        cwd=context.root,
        check=False,  # what failed is in the figures
        capture_output=True,
        text=True,
    )
    told = TOLD.search(done.stdout)
    if told is None:
        message = f"the test told nothing: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        raise RuntimeError(message)
    ways, sent, distinguishable = (int(n) for n in told.groups())
    return Result(
        "doors",
        [
            Figure("ways", ways, at_least=60),
            Figure("bytes_out", sent, at_most=0),
            Figure("distinguishable", distinguishable, at_most=0),
        ],
    )
