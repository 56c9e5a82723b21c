"""The parts that the headlines share: what one of them is, how a run describes itself, and the sides that are read."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
from bounds import Bound
from harness import Context, Stream
from matplotlib.axes import Axes

Json = dict[str, Any]
BENCH = Path(__file__).parent.parent
PACKAGES = ("pyarrow", "torch", "cassandra-driver", "mosaicml-streaming", "nvidia-dali-cuda120")
BESIDE = {"mosaicml": "build/mosaicml", "dali": "build/dali"}  # where packages are that are not among the tests'


@dataclass
class Claim:
    """A figure that has to be reached."""

    name: str
    says: str  # what it is, for the page
    value: float
    at_least: float | None = None
    at_most: float | None = None
    limit: str = ""  # what limits it, by a measurement of the same run

    @property
    def reached(self) -> bool:
        """Whether the figure is within its bound."""
        return Bound(self.at_least, self.at_most).keeps(self.value)


@dataclass
class Table:
    """A table of the page: its first column names what was read."""

    title: str
    columns: list[str]
    rows: list[list[Any]] = field(default_factory=list)


@dataclass
class Found:
    """The measurements of a system."""

    claims: list[Claim]
    tables: list[Table]
    series: Json  # what the plot is of
    left_out: dict[str, str] = field(default_factory=dict)  # what was not measured, and why


@dataclass(frozen=True)
class System:
    """A published system: what is known of it, how it is measured here, and how the figures are drawn."""

    name: str  # as CASE has it
    title: str
    source: str
    published: str
    there: str
    here: str
    apart: str  # what cannot be compared, and why
    run: Callable[[Context, bool], Found]
    plot: Callable[[Axes, Json], None]
    rounds: int = 3  # of interleaved sides, so that all systems take 90 minutes at most


def machine() -> str:
    """The machine in words."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory = psutil.virtual_memory().total / 2**30
    return f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.release()}"


def versions(context: Context) -> dict[str, str]:
    """The versions of the programs that are measured, as far as they are installed."""
    found = {"bowstring": context.bowstring("version").strip().splitlines()[0], "Python": platform.python_version()}
    kept = list(sys.path)
    sys.path += [str(context.root / place) for place in BESIDE.values()]
    try:
        for name in PACKAGES:
            with contextlib.suppress(PackageNotFoundError):
                found[name] = version(name)
    finally:
        sys.path[:] = kept
    return found


def measured(system: System, context: Context, smoke: bool) -> Json:
    """Run a system; what is kept of it."""
    load, began = os.getloadavg()[0], time.monotonic()
    found = system.run(context, smoke)
    return {
        "system": system.name,
        "date": f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M}",
        "machine": machine(),
        "versions": versions(context),
        "load_before": round(load, 2),
        "minutes": round((time.monotonic() - began) / 60, 1),
        "rounds": context.rounds,
        "smoke": smoke,
        **asdict(found),
        "claims": [{**asdict(claim), "reached": claim.reached} for claim in found.claims],
    }


def installed(context: Context, side: str) -> bool:
    """Whether the packages of a side are there."""
    return (context.root / BESIDE[side] / ".installed").exists()


class Busy:
    """The share of the machine's CPU time that is used while the `with` block runs."""

    share = 0.0

    def __enter__(self) -> Busy:
        self._before = psutil.cpu_times()
        return self

    def __exit__(self, *_: object) -> None:
        now = psutil.cpu_times()
        spent = [b - a for a, b in zip(self._before[:8], now[:8], strict=True)]
        self.share = 1 - (spent[3] + spent[4]) / max(sum(spent), 1e-9)

    @property
    def says(self) -> str:
        """The share in words."""
        return f"the {os.cpu_count()} cores were {100 * self.share:.0f} % busy"


@contextlib.contextmanager
def started(context: Context, side: str, **spec: Any) -> Iterator[subprocess.Popen[str]]:
    """A process of bucket_reader.py that is ready to read."""
    usual = {"place": "", "batches": 0, "compute": 0.0, "epochs": 1, "workers": 1, "threads": 0, "held": 0}
    full = {**usual, "cache": str(context.folder), **spec, "side": side}
    environment = dict(os.environ)
    if side in BESIDE:
        environment["PYTHONPATH"] = str(context.root / BESIDE[side])
    with subprocess.Popen(
        [sys.executable, BENCH / "bucket_reader.py", json.dumps(full)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        yield process


def theirs(context: Context, side: str, at_most_s: float, **spec: Any) -> Stream:
    """Read by another system's method; what came when. One that does not end in time is an error."""
    with started(context, side, **spec) as process:
        try:
            out, err = process.communicate("go\n", timeout=at_most_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise RuntimeError(f"{side}: not done in {at_most_s:.0f} s") from None
    if process.returncode:
        raise RuntimeError(f"{side} ended with {process.returncode}: {err[-600:]}")
    marks = json.loads(out.splitlines()[-1])
    return Stream([(at, rows, size) for at, rows, size, _ in marks], [wait for *_, wait in marks], marks[-1][0])
