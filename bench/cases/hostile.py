"""hostile: what an honest stream gets of a server with 2 GiB of memory that is sent all that no client would send."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from harness import Context, Figure, Result, Stream, TimedReaders, anonymous_mb, emit, median
from samples import COUNT, SIZE, image_folder
from server import Server

LIMIT_MB = 2048
ALONE_S, ATTACK_S, AFTER_S = 12, 60, 10
WARM_S = 2  # of the time alone, not counted
BACK = 0.8  # of its throughput alone, and a stream has it again
OPTIONS = ("--window-memory=512MiB", "--request-timeout=2s")


@dataclass
class Watch:
    """What is seen of a process, ten times a second."""

    pid: int
    peak_mb: float = 0
    gone: bool = False
    _over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Look until told to stop, or the process is gone."""
        try:
            while not self._over.wait(0.1):
                self.peak_mb = max(self.peak_mb, anonymous_mb(self.pid))
        except (OSError, RuntimeError, psutil.Error):
            self.gone = True

    def stop(self) -> None:
        """Look no more."""
        self._over.set()


def stored(context: Context) -> Path:
    """An embedded store with the samples, under the name that the cases know."""
    store = context.folder / "store-honest"
    if not store.exists():
        source = context.folder / "imagefolder"
        image_folder(source, COUNT, SIZE)
        context.bowstring("import", "--store", store, source / "images", "honest")
    return store


def rate(stream: Stream, start: float) -> float:
    """MB that came in the second from `start` on."""
    return sum(size for at, _, size in stream.marks if start <= at < start + 1) / 1e6


def attacked(context: Context, attacker: Path) -> tuple[Stream, Watch, int]:
    """One server, one honest stream, and one attacker in the middle of its time."""
    os.environ["GOMEMLIMIT"] = f"{LIMIT_MB * 9 // 10}MiB"
    try:
        server = Server(context.binary, stored(context), *OPTIONS)
        server.start()
    finally:
        del os.environ["GOMEMLIMIT"]
    watch = Watch(server.pid)
    watcher = threading.Thread(target=watch.run)
    wrong = 0

    def attack() -> None:
        nonlocal wrong
        address = server.url.removeprefix("grpc://")
        done = subprocess.run(
            # Its own work is another machine's: it takes the processors that nobody else wants.
            ["nice", "-n", "19", attacker, "-addr", address, "-seconds", str(ATTACK_S)],  # noqa: S607
            check=False,
            capture_output=True,
            text=True,
        )
        for line in done.stdout.splitlines():
            found = json.loads(line)
            wrong += "wrong" in found
            emit(**{**found, "case": "hostile", "sent": found["case"]})

    timer = threading.Timer(ALONE_S, attack)
    try:
        ticket = {
            "dataset": "honest",
            "columns": ["id", "label", "image"],
            "batch": 64,
            "shuffle": {"seed": 7},
            "epochs": 100_000,
        }
        readers = TimedReaders(server.url, ALONE_S + ATTACK_S + AFTER_S, [{"ticket": ticket}])
        watcher.start()
        timer.start()
        (stream,) = readers.run()
    finally:
        timer.cancel()
        timer.join()
        watch.stop()
        watcher.join()
        watch.gone = watch.gone or server.stop() != 0
    return stream, watch, wrong


def run(context: Context) -> Result:
    """Read alone, under attack, and after it."""
    attacker = context.folder / "attacker"
    subprocess.run(["go", "build", "-o", attacker, "./flight/hostile/attacker"], cwd=context.root, check=True)  # noqa: S607
    stream, watch, wrong = attacked(context, attacker)
    alone = median(rate(stream, s) for s in range(WARM_S, ALONE_S - 1))
    under = [rate(stream, s) / alone for s in range(ALONE_S, ALONE_S + ATTACK_S - 1)]
    end = ALONE_S + ATTACK_S
    back = next((t / 10 for t in range(10 * (AFTER_S - 1)) if rate(stream, end + t / 10) >= BACK * alone), AFTER_S)
    return Result(
        "hostile",
        [
            Figure("crashes", int(watch.gone), at_most=0),
            Figure("honest_share", min(under), at_least=0.5),
            Figure("rss_over_limit_mb", max(0.0, watch.peak_mb - LIMIT_MB), at_most=0),
            Figure("after_s", back, at_most=1),
        ],
        {
            "wrong_answers": wrong,
            "alone_mb_per_s": round(alone, 1),
            "worst_seconds": {i: round(under[i], 2) for i in sorted(range(len(under)), key=under.__getitem__)[:5]},
            "median_share": round(median(under), 3),
            "peak_mb": round(watch.peak_mb),
        },
    )
