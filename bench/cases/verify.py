"""verify: an embedded store from the page cache, and what a stream keeps of its rate during another verification."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path

from harness import Context, Figure, Result, emit, shuffled, throughput
from server import Server
from sizes import sized

from .loopback import stored

SECONDS, SKIP = sized((8.0, 2.0), smoke=(1.5, 0.5))


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
    rates: list[float] = []
    shares: list[float] = []
    with Server(context.binary, served) as server:
        for round_ in context.repeat(shares, warm=1):
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
            Figure("gb_per_s", rates),
            Figure("stream_share", shares),
        ],
        {"processors": os.cpu_count()},
    )
