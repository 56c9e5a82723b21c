"""hostile: what an honest stream gets of a server with 2 GiB of memory that is sent all that no client would send."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyarrow.flight as fl
from harness import Context, Figure, Result, Stream, TimedReaders, anonymous_mb, emit, median
from ports import free_port
from samples import COUNT, SIZE, image_folder
from server import Server
from sizes import sized

LIMIT_MB = 2048
ALONE_S, ATTACK_S, AFTER_S = sized((12, 60, 10), smoke=(4, 3, 3))
WARM_S = sized(2, smoke=1)  # of the time alone, not counted
BACK = 0.8  # of its throughput alone, and a stream has it again
OPTIONS = ("--window-memory=512MiB",)


@dataclass
class Watch:
    """Figures of a process, sampled ten times a second."""

    pid: int
    peak_mb: float = 0
    gone: bool = False
    _over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Sample until `stop` is called, or the process has ended."""
        try:
            while not self._over.wait(0.1):
                self.peak_mb = max(self.peak_mb, anonymous_mb(self.pid))
        except (OSError, RuntimeError, psutil.Error):
            self.gone = True

    def stop(self) -> None:
        """End the samples."""
        self._over.set()


@dataclass
class Other:
    """Another tenant, that asks for a `where` which is new and for a batch, again and again."""

    url: str
    waits: list[tuple[float, float, str]] = field(default_factory=list)  # begun (seconds since 1970), seconds, what
    failed: str = ""
    _over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Send requests until `stop` is called."""
        options = fl.FlightCallOptions(headers=[(b"bowstring-tenant", b"other")], timeout=60)
        try:
            with fl.connect(self.url) as client:
                turn = 0
                while not self._over.wait(0.05):
                    turn += 1
                    self._where(client, options, turn)
                    self._batch(client, options, turn)
        except fl.FlightError as error:
            self.failed = str(error)

    def _where(self, client: fl.FlightClient, options: fl.FlightCallOptions, turn: int) -> None:
        begun = time.time()
        command = {"dataset": "honest", "columns": ["position"], "where": f"position != {turn}"}
        client.get_flight_info(fl.FlightDescriptor.for_command(json.dumps(command)), options)
        self.waits.append((begun, time.time() - begun, "where"))

    def _batch(self, client: fl.FlightClient, options: fl.FlightCallOptions, turn: int) -> None:
        begun = time.time()
        ticket = {
            "dataset": "honest",
            "columns": ["id", "image"],
            "batch": 8,
            "stop": 1,
            "shuffle": {"seed": turn},
            "rank": 0,
        }
        for _ in client.do_get(fl.Ticket(json.dumps(ticket)), options):
            pass
        self.waits.append((begun, time.time() - begun, "batch"))

    def stop(self) -> None:
        """Ask no more."""
        self._over.set()

    def longest(self, start: float, end: float) -> dict[str, float]:
        """The longest that it waited for each of those that it began meanwhile."""
        found = {"where": 0.0, "batch": 0.0}
        for begun, seconds, what in self.waits:
            if start <= begun < end:
                found[what] = max(found[what], seconds)
        return found

    def waited_for(self, sent: list[tuple[float, float, str]]) -> list[tuple[float, list[str]]]:
        """The longest waits, and the cases that were sent meanwhile."""
        longest = sorted(self.waits, key=lambda wait: wait[1], reverse=True)[:3]
        return [
            (round(seconds, 3), [case for at, took, case in sent if at < begun + seconds and begun < at + took])
            for begun, seconds, _ in longest
        ]


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


@dataclass
class Seen:
    """The state of a server after an attack."""

    stream: Stream
    watch: Watch
    others: dict[str, float]
    waited_for: list[tuple[float, list[str]]]
    failed: str
    wrong: int


def attacked(context: Context, attacker: Path, folder: Path) -> Seen:
    """One server, one honest stream, another tenant, and one attacker in the middle of their time."""
    admin = f"127.0.0.1:{free_port()}"
    own = {"GOMEMLIMIT": f"{LIMIT_MB * 9 // 10}MiB", "BOWSTRING_ADMIN_TOKEN": "only the operators of it know"}
    os.environ.update(own)
    try:
        records = (f"--usage={folder / 'usage'}", f"--lineage={folder / 'lineage'}", f"--admin={admin}")
        server = Server(context.binary, stored(context), *OPTIONS, *records)
        server.start()
    finally:
        for name in own:
            del os.environ[name]
    watch, other = Watch(server.pid), Other(server.url)
    threads = [threading.Thread(target=watch.run), threading.Thread(target=other.run)]
    wrong = 0
    began = ended = 0.0
    sent: list[tuple[float, float, str]] = []  # begun, seconds, case

    def attack() -> None:
        nonlocal wrong, began, ended
        began = time.time()
        address = server.url.removeprefix("grpc://")
        done = subprocess.run(
            # Its own work is that of another machine, so it gets idle processors only.
            [
                *("nice", "-n", "19", attacker, "-addr", address, "-admin", admin),
                *("-seconds", str(ATTACK_S)),
            ],
            check=False,
            capture_output=True,
            text=True,
        )
        ended = time.time()
        for line in done.stdout.splitlines():
            found = json.loads(line)
            wrong += "wrong" in found
            sent.append((found["began"], found["seconds"], found["case"]))
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
        for thread in threads:
            thread.start()
        timer.start()
        (stream,) = readers.run()
    finally:
        timer.cancel()
        timer.join()
        watch.stop()
        other.stop()
        for thread in threads:
            thread.join()
        try:
            watch.gone = watch.gone or server.stop() != 0
        except subprocess.TimeoutExpired:  # what it was sent holds it: no better than a crash
            watch.gone = True
    return Seen(stream, watch, other.longest(began, ended), other.waited_for(sent), other.failed, wrong)


def run(context: Context) -> Result:
    """Read alone, under attack, and after it."""
    attacker = context.folder / "attacker"
    subprocess.run(["go", "build", "-o", attacker, "./internal/hostile/attacker"], cwd=context.root, check=True)  # noqa: S607
    with tempfile.TemporaryDirectory(prefix="hostile-", dir=context.folder) as folder:
        seen = attacked(context, attacker, Path(folder))
    stream, watch = seen.stream, seen.watch
    alone = max(median(rate(stream, s) for s in range(WARM_S, ALONE_S - 1)), 1e-9)
    under = [rate(stream, s) / alone for s in range(ALONE_S, ALONE_S + ATTACK_S - 1)]
    end = ALONE_S + ATTACK_S
    back = next((t / 10 for t in range(10 * (AFTER_S - 1)) if rate(stream, end + t / 10) >= BACK * alone), AFTER_S)
    return Result(
        "hostile",
        [
            Figure("crashes", int(watch.gone)),
            Figure("honest_share", min(under)),
            Figure("rss_over_limit_mb", max(0.0, watch.peak_mb - LIMIT_MB)),
            Figure("others_wait_s", float(ATTACK_S) if seen.failed else max(seen.others.values())),
            Figure("after_s", back),
        ],
        {
            "wrong_answers": seen.wrong,
            "others": {what: round(seconds, 3) for what, seconds in seen.others.items()},
            "others_waited_for": seen.waited_for,
            "others_failed": seen.failed,
            "alone_mb_per_s": round(alone, 1),
            "worst_seconds": {i: round(under[i], 2) for i in sorted(range(len(under)), key=under.__getitem__)[:5]},
            "median_share": round(median(under), 3),
            "peak_mb": round(watch.peak_mb),
        },
    )
