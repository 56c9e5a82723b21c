"""kubernetes: an upgrade and a drain of the chart in a real control plane, while a client reads. Needs root."""

from __future__ import annotations

import json
import os
import subprocess

from harness import Context, Figure, Need, Result, emit, needs
from sizes import SMOKE


def missing() -> str:
    """Why there is no control plane."""
    if SMOKE:
        return "`make nightly-kubernetes` is its run, of a quarter of an hour"
    return "" if os.geteuid() == 0 else "it starts containers, which only root may"


@needs(Need("a control plane", missing))
def run(context: Context) -> Result:
    """Run `make nightly-kubernetes`, whose test logs the figures."""
    done = subprocess.run(
        ["make", "nightly-kubernetes"],  # noqa: S607
        cwd=context.root,
        check=False,
        capture_output=True,
        text=True,
    )
    logged = [line for line in done.stdout.splitlines() if '"case": "kubernetes"' in line]
    if not logged:
        message = f"the test logged no figures: {done.stdout[-3000:]}{done.stderr[-1000:]}"
        raise RuntimeError(message)
    figures = json.loads(logged[0][logged[0].index("{") :])
    emit(**figures)
    return Result(
        "kubernetes",
        [
            Figure("failed_epochs", figures["failed_epochs"]),
            Figure("share_upgrade", figures["share_upgrade"]),
            Figure("share_drain", figures["share_drain"]),
        ],
    )
