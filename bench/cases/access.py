"""access: wrong ways to log in and to hidden data: ways tried, bytes that came, ways that reveal something."""

from __future__ import annotations

import re
import subprocess

from harness import Context, Figure, Result
from sizes import sized

TO_HIDDEN = re.compile(r"wrong ways: ways=(\d+) bytes_out=(\d+) distinguishable=(\d+)")
IN = re.compile(r"wrong ways in: ways=(\d+) bytes_out=(\d+) distinguishable=(\d+)")
FLOOD = re.compile(r"flood: tokens=(\d+) let_in=(\d+) seconds=([\d.]+)")
TOKENS = sized(10_000, smoke=100)


def run(context: Context) -> Result:
    """Run the tables of the tests, which log what came of it, and a flood of wrong tokens."""
    names = "^(TestWrongWays|TestWrongWaysIn|TestFloodOfWrongTokens)$"
    done = subprocess.run(
        ["go", "test", "-count=1", "-v", "-run", names, "./flight", "-args", f"-flood={TOKENS}"],  # noqa: S607
        cwd=context.root,
        check=False,  # what failed is in the figures
        capture_output=True,
        text=True,
    )
    logged = [pattern.search(done.stdout) for pattern in (TO_HIDDEN, IN, FLOOD)]
    if done.returncode or None in logged:
        message = f"the tests failed, or logged no figures: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        raise RuntimeError(message)
    hidden, inward, flood = ([float(n) for n in found.groups()] for found in logged if found)
    return Result(
        "access",
        [
            Figure("ways", hidden[0] + inward[0] + 1),
            Figure("bytes_out", hidden[1] + inward[1] + flood[1]),
            Figure("distinguishable", hidden[2] + inward[2]),
        ],
        {"wrong_tokens": int(flood[0]), "wrong_tokens_per_s": round(flood[0] / flood[2])},
    )
