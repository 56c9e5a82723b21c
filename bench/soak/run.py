"""Everything together for hours: servers, clients of all kinds and faults. Each sample is checked, and growth is found.

    python -m soak.run --hours 2        as `make soak` does, with all sites that the machine can have
    python -m soak.run --hours .02 --sites one,bucket

This process owns all others. It starts the sites and the clients, causes one fault after another at each site, kills
clients, samples what processes hold, and writes the report. Its status is 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
for folder in ("examples", "bench"):
    sys.path.append(str(ROOT / folder))

from harness import disk  # noqa: E402

from soak import report  # noqa: E402
from soak.resources import Sampler, process, server  # noqa: E402
from soak.sites import SITES, Event, Site, has_java  # noqa: E402

STUCK = 150.0  # seconds without a word from a client; a fault lasts a few
BEGINS = 300.0  # seconds that clients may take to begin, each with its imports
ENDS = 90.0  # seconds that clients may take to end
VICTIMS = ("tcp", "shared", "operators", "mixed")  # kinds of clients that are killed
RESTARTS = 20  # of clients that ended by themselves


@dataclass
class Found:
    """Findings of all clients together; everything but `rows`, `epochs` and `killed` is to be zero."""

    rows: int = 0
    epochs: int = 0
    killed: int = 0  # clients, on purpose
    wrong: int = 0
    lost: int = 0
    doubled: int = 0
    stuck: int = 0  # clients that did not go on, and nodes that did not find each other
    failed: int = 0  # clients and servers that ended by themselves
    left: int = 0  # processes and sockets after the end
    notes: list[str] = field(default_factory=list)


class Clients:
    """The client processes of a site."""

    def __init__(self, binary: Path, site: Site, seed: int, out: Path, sampler: Sampler) -> None:
        self._binary = binary  # operators at the client run it
        self._site = site
        self._out = out / "clients"
        self._out.mkdir(parents=True, exist_ok=True)
        self._sampler = sampler
        self._seed = seed
        self._lock = threading.Lock()
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._threads: list[threading.Thread] = []
        self._said: dict[str, float] = {}
        self._begun: set[str] = set()
        self._restarts = 0
        self._over = False
        self.counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        self.notes: collections.deque[str] = collections.deque(maxlen=200)
        self.failed = self.stuck = self.killed = 0

    def start(self, kind: str, name: str = "", *, watched: bool = True) -> None:
        """Start a client of a kind."""
        name = name or kind
        self._seed += 1
        spec = {"urls": self._site.urls, "seed": self._seed}
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / f) for f in ("bench", "examples"))}
        environment["BOWSTRING_BINARY"] = str(self._binary)
        if kind in ("tcp", "tenants"):
            environment["BOWSTRING_LOCAL"] = "off"
        log = (self._out / f"{self._site.name}-{name}.log").open("ab")
        with log:
            started = subprocess.Popen(
                [sys.executable, "-m", "soak.client", kind, json.dumps(spec)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )
        with self._lock:
            self._processes[name] = started
            self._said[name] = time.monotonic()
        self._threads.append(threading.Thread(target=self._hear, args=(kind, name, started, watched), daemon=True))
        self._threads[-1].start()
        if watched:
            self._sampler.watch(f"{self._site.name}.client.{name}", lambda: process(started.pid))

    def _hear(self, kind: str, name: str, started: subprocess.Popen[str], watched: bool) -> None:
        for line in started.stdout or ():
            found = json.loads(line)
            self._said[name] = time.monotonic()
            self._begun.add(name)
            if "turn" not in found:
                continue
            with self._lock:
                counts = self.counts[name]
                counts.update({k: v for k, v in found.items() if isinstance(v, int) and k not in _NO_COUNT})
                if any(found.get(k) for k in ("wrong", "lost", "doubled")):
                    self.notes.append(f"{self._site.name} {name}: {json.dumps(found)}")
                elif found["errors"]:
                    counts["turns_with_errors"] += 1
                    self._last(name, found["errors"])
            if watched:
                held = {"arrow": float(found["arrow"]), "objects": float(found["objects"])}
                self._sampler.add_sample(f"{self._site.name}.client.{name}", held)
        status = started.wait()
        if not self._over and status != -9:
            with self._lock:
                self.failed += 1
                self._restarts += 1
                again = self._restarts <= RESTARTS
            self.notes.append(f"{self._site.name} {name} ended with {status}: {self._log(name)}")
            if again:
                self._sampler.forget(f"{self._site.name}.client.{name}")
                time.sleep(1)
                self.start(kind, name, watched=False)

    def _last(self, name: str, errors: list[str]) -> None:
        (self._out / f"{self._site.name}-{name}.errors").write_text("\n".join(errors) + "\n")

    def _log(self, name: str) -> str:
        return (self._out / f"{self._site.name}-{name}.log").read_text(errors="replace")[-1500:]

    def kill_one(self, rng: random.Random) -> None:
        """Kill a victim, if there is one, and start another in its place."""
        kind = rng.choice(VICTIMS)
        name = f"victim-{kind}"
        with self._lock:
            victim = self._processes.get(name)
        if victim is not None and victim.poll() is None:
            victim.kill()
            self.killed += 1
        self.start(kind, name, watched=False)

    def wait_ready(self, seconds: float) -> None:
        """Wait until each client has begun: imports take seconds, and minutes on a busy machine."""
        until = time.monotonic() + seconds
        while self._processes.keys() - self._begun and time.monotonic() < until:
            time.sleep(0.1)

    def check(self) -> None:
        """Count clients that have not said anything for long, and end them."""
        for name, started in list(self._processes.items()):
            if started.poll() is None and time.monotonic() - self._said[name] > STUCK:
                self.stuck += 1
                self.notes.append(f"{self._site.name} {name} is stuck: {stacks(started.pid)}")
                started.kill()

    def end(self) -> None:
        """Let all of them end, and count those that do not."""
        self._over = True
        for started in self._processes.values():
            if started.stdin:
                with contextlib.suppress(OSError):
                    started.stdin.close()
        until = time.monotonic() + ENDS
        for name, started in self._processes.items():
            while started.poll() is None and time.monotonic() < until:
                time.sleep(0.05)
            if started.poll() is None:
                self.stuck += 1
                self.notes.append(f"{self._site.name} {name} does not end: {stacks(started.pid)}")
                started.kill()
                started.wait()
            elif started.returncode not in (0, -9):
                self.failed += 1
                self.notes.append(f"{self._site.name} {name} ended with {started.returncode}: {self._log(name)}")
        for thread in self._threads:
            thread.join(10)


_NO_COUNT = ("turn", "arrow", "objects")


def stacks(pid: int) -> str:
    """The kernel functions in which the threads of a process wait."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/wchan"):
        with contextlib.suppress(OSError):
            found.append(task.read_text())
    return ", ".join(found)


class Faults:
    """One fault after another at a site, in a thread of its own, and the clients that are killed."""

    def __init__(self, site: Site, clients: Clients, seed: int, quiet: float) -> None:
        self._site, self._clients, self._quiet = site, clients, quiet
        self._random = random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.events: list[Event] = []
        self.notes: list[str] = []
        self.stuck = self.failed = 0

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def end(self) -> None:
        """End with the fault that is under way."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._random.uniform(0.3, 1.7) * self._quiet):
            self._clients.kill_one(self._random)
            self._clients.check()
            what = self._random.choice(sorted(self._site.faults))
            event = Event(what, "", time.monotonic())
            try:
                event.whom = self._site.faults[what](self._random)
            except RuntimeError as error:
                self.stuck += 1
                self.notes.append(f"{self._site.name}, {what}: {error}")
            event.ended = time.monotonic()
            self.events.append(event)
            for name in self._site.ended():
                self.failed += 1
                self.notes.append(f"{self._site.name}: server {name} has ended by itself")


def watch(site: Site, sampler: Sampler) -> None:
    """Sample the servers and folders of a site."""
    for name, (pid, admin) in site.servers.items():
        sampler.watch(f"{site.name}.server.{name}", partial(serving, pid, admin))
    for name, folder in site.folders.items():
        sampler.watch(f"{site.name}.{name}", partial(stored, folder))


def serving(pid: Callable[[], int], admin: str) -> dict[str, float]:
    """The resources that a server holds."""
    return {**process(pid()), **server(admin)}


def stored(folder: Path) -> dict[str, float]:
    """The disk space that a folder takes."""
    return {"disk": disk(folder)}


def soak(
    binary: Path, out: Path, names: list[str], seconds: float, seed: int, kinds: list[str] | None = None
) -> dict[str, Any]:
    """Run for some seconds; what `report` writes. With `kinds` there are no other clients, except victims."""
    found = Found()
    sampler = Sampler(min(10.0, max(1.0, seconds / 300)))
    with tempfile.TemporaryDirectory(prefix="bowstring-soak-") as work, contextlib.ExitStack() as stack:
        sites = [stack.enter_context(SITES[name](binary, Path(work) / name)) for name in names]
        groups = [Clients(binary, site, seed + 1000 * i, out, sampler) for i, site in enumerate(sites)]
        quiet = min(15.0, max(1.0, seconds / 60))
        faults = [Faults(s, c, seed + i, quiet) for i, (s, c) in enumerate(zip(sites, groups, strict=True))]
        with sampler:
            try:
                for site, clients in zip(sites, groups, strict=True):
                    for kind in site.kinds:
                        if not kinds or kind in kinds:
                            clients.start(kind)
                    watch(site, sampler)
                start, end = go_on(groups, faults, seconds)
            finally:
                for one in faults:
                    one.end()
                for clients in groups:
                    clients.end()
            series = sampler.series()
        for site, clients, one in zip(sites, groups, faults, strict=True):
            finish(found, site, clients, one)
    events = [
        {**asdict(e), "site": s.name, "began": e.began - sampler.began, "ended": e.ended - sampler.began}
        for s, one in zip(sites, faults, strict=True)
        for e in one.events
    ]
    counts = {
        f"{site.name}.{name}": dict(sorted(c.items()))
        for site, clients in zip(sites, groups, strict=True)
        for name, c in sorted(clients.counts.items())
    }
    since, until = start - sampler.began, end - sampler.began
    return report.figures(asdict(found), series, events, counts, since=since, until=until, seed=seed)


def go_on(groups: list[Clients], faults: list[Faults], seconds: float) -> tuple[float, float]:
    """Let clients and faults go on for some seconds, from when all clients have begun. Return the beginning and end.

    An interrupt ends that time, and what was found until then is reported.
    """
    for clients in groups:
        clients.wait_ready(BEGINS)
    print("all clients have begun", flush=True)
    for one in faults:
        one.start()
    said = start = time.monotonic()
    with contextlib.suppress(KeyboardInterrupt):
        while (now := time.monotonic()) < start + seconds:
            time.sleep(min(1.0, start + seconds - now))
            if now > said + 60:
                said = now
                progress(groups, said - start, seconds)
    return start, time.monotonic()


def finish(found: Found, site: Site, clients: Clients, faults: Faults) -> None:
    """Add up what a site's clients have found, end its servers, and count what is left of them."""
    for counts in clients.counts.values():
        for name in ("rows", "epochs", "wrong", "lost", "doubled"):
            setattr(found, name, getattr(found, name) + counts[name])
    found.killed += clients.killed
    found.stuck += clients.stuck + faults.stuck
    found.failed += clients.failed + faults.failed
    found.notes += [*clients.notes, *faults.notes]
    statuses = site.stop()
    if any(statuses):
        found.failed += sum(status != 0 for status in statuses)
        found.notes.append(f"{site.name}: servers ended with {statuses}")
    for path in (Path(name) for name in site.sockets):
        if path.exists():
            found.left += 1
            found.notes.append(f"{path} is left")


def progress(groups: list[Clients], at: float, seconds: float) -> None:
    """Print how far the run is."""
    total: collections.Counter[str] = collections.Counter()
    for clients in groups:
        for counts in clients.counts.values():
            total.update(counts)
        total.update({"failed": clients.failed, "stuck": clients.stuck, "killed": clients.killed})
    names = ("rows", "epochs", "broken", "killed", "wrong", "lost", "doubled", "stuck", "failed")
    print(f"{at:.0f} of {seconds:.0f} s:", ", ".join(f"{total[n]:,} {n}" for n in names), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run everything together and check it.")
    parser.add_argument("--hours", type=float, default=2, help="how long; may be a fraction")
    parser.add_argument("--sites", default="", help=f"some of {','.join(SITES)} (default: those that can be had)")
    parser.add_argument("--kinds", default="", help="some kinds of clients, with commas (default: all)")
    parser.add_argument("--seed", type=int, default=None, help="of clients and faults (default: a new one)")
    parser.add_argument("--bowstring", type=Path, default=ROOT / "build/bin/bowstring", help="the binary")
    parser.add_argument("--out", type=Path, default=ROOT / "build/soak", help="where the report goes")
    given = parser.parse_args()
    names = given.sites.split(",") if given.sites else [n for n in SITES if n != "cassandra" or has_java()]
    if unknown := set(names) - set(SITES):
        parser.error(f"--sites: got {', '.join(sorted(unknown))}, want some of {', '.join(SITES)}")
    seed = random.SystemRandom().getrandbits(16) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    given.out.mkdir(parents=True, exist_ok=True)
    result = soak(
        given.bowstring.resolve(), given.out, names, 3600 * given.hours, seed, [k for k in given.kinds.split(",") if k]
    )
    report.write(result, given.out)
    print(report.summary(result))
    print(f"the report is {given.out / 'report.md'}")
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
