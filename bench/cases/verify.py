"""verify: an embedded store from the page cache, and what a stream keeps of its rate during another verification."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path

from harness import Context, Figure, Result, emit, median, shuffled, throughput
from server import Server

from .loopback import stored

SECONDS, SKIP = 8, 2


class Verifying:
    """A store that is verified again and again as long as the `with` block lasts."""

    def __init__(self, context: Context, store: Path) -> None:
        self._context, self._store = context, store
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.runs = 0

    def _run(self) -> None:
        while not self._over.is_set():
            command: list[str | Path] = [self._context.binary, "verify", self._store]
            with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
                while process.poll() is None:
                    if self._over.wait(0.02):
                        process.terminate()
                        process.wait()
                        return
                if process.returncode:
                    raise RuntimeError(f"bowstring verify ended with {process.returncode}")
            self.runs += 1

    def __enter__(self) -> Verifying:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def run(context: Context) -> Result:
    """Interleave verification alone, a stream alone, and both."""
    verified, served = stored(context, "store-verified"), stored(context, "store-served")
    rates, shares = [], []
    with Server(context.binary, served) as server:
        for round_ in range(-1, context.rounds):  # the first one warms
            found = json.loads(context.bowstring("verify", verified, "--json"))
            ticket = shuffled(seed=7, epoch=1000 * (round_ + 1))
            alone = throughput(server.url, SECONDS, SKIP, ticket)[0]
            with Verifying(context, verified) as verifying:
                during = throughput(server.url, SECONDS, SKIP, ticket)[0]
            if round_ < 0:
                continue
            rates.append(found["bytes"] / 1e9 / found["seconds"])
            shares.append(during / alone)
            emit(
                case="verify",
                gb_per_s=rates[-1],
                alone_mb_per_s=alone,
                during_mb_per_s=during,
                verified_meanwhile=verifying.runs,
            )
    return Result(
        "verify",
        [
            Figure("gb_per_s", median(rates)),
            Figure("stream_share", median(shares)),
        ],
        {"processors": os.cpu_count()},
    )
