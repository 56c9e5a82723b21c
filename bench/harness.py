"""Parts that the cases share: their context, the figures they report, and the processes they measure."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
from bounds import BOUNDS, Bound
from confidence import Interval, interval
from sizes import SMOKE, sized

MIB = 1 << 20


def lab(binary: Path) -> Path:
    """The program for experiments, which `make build` leaves beside the server."""
    return binary.with_name(f"{binary.name}-lab")


def disk(folder: Path) -> float:
    """Bytes of the disk that a folder's files take."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # it was removed meanwhile
                total += (Path(parent) / name).stat().st_blocks * 512
    return float(total)


@dataclass
class Context:
    """The context of a case."""

    binary: Path
    root: Path
    folder: Path  # empty at first; cases may leave data for one another
    rounds: int  # at least
    most: int = 0  # rounds at most, if more than the least
    width: float = 0.02  # of the interval of a ratio, as a part of the ratio, from which on the case is sure
    seconds: float = 600  # after which no further round begins, if there were the least
    done: int = field(default=0, init=False)  # rounds

    def repeat(self, *ratios: Sequence[float], warm: int = 0) -> Iterator[int]:
        """The numbers of the rounds, from 0: the least, then more until the intervals of all `ratios` are narrow.

        The case appends to each of `ratios` in each round, and makes a figure of it. Without any it has the least.
        Before them come `warm` rounds with numbers below 0, whose times the case drops.
        """
        yield from range(-warm, 0)
        begun = time.monotonic()
        for number in range(max(self.rounds, self.most if ratios else 0)):
            if number >= self.rounds and time.monotonic() - begun > self.seconds:
                break
            yield number
            self.done = max(self.done, number + 1)
            if self.done >= self.rounds and all(interval(values).narrow(self.width) for values in ratios):
                break

    def bowstring(self, *args: str | Path) -> str:
        """Run the binary and return what it prints."""
        return self._run(self.binary, *args)

    def lab(self, *args: str | Path) -> str:
        """Run the program for experiments and return what it prints."""
        return self._run(lab(self.binary), *args)

    def _run(self, binary: Path, *args: str | Path) -> str:
        done = subprocess.run([binary, *args], check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{binary.name} {' '.join(map(str, args))} ended with {done.returncode}: {done.stderr}")
        return done.stdout


@dataclass(frozen=True)
class Need:
    """A thing that a case cannot do without, such as Java."""

    name: str
    missing: Callable[[], str]  # why it cannot be had here, or nothing


def program(*names: str) -> Need:
    """Programs on the path."""

    def missing() -> str:
        absent = [name for name in names if not shutil.which(name)]
        return f"{', '.join(absent)} not on the path" if absent else ""

    return Need(" and ".join(names), missing)


def package(*names: str) -> Need:
    """Python packages."""

    def missing() -> str:
        absent = [name for name in names if not importlib.util.find_spec(name)]
        return f"no {', '.join(absent)} in this Python" if absent else ""

    return Need(" and ".join(names), missing)


# tests/cassandra/cassandra.sh gets the server by these.
CASSANDRA = replace(program("java", "mvn"), name="Cassandra")

Run = Callable[["Context"], "Result"]
_NEEDS: dict[Run, tuple[Need, ...]] = {}


def needs(*of: Need) -> Callable[[Run], Run]:
    """State what the case, whose `run` this decorates, needs beyond the server and the tests' Python packages."""

    def note(run: Run) -> Run:
        _NEEDS[run] = of
        return run

    return note


def needs_of(run: Run) -> tuple[Need, ...]:
    """The needs of a case."""
    return _NEEDS.get(run, ())


@dataclass
class Figure:
    """One measured figure, whose bound is in bounds.py: a value, or one of each round, whose median counts."""

    name: str
    measured: float | Sequence[float]

    @property
    def values(self) -> Sequence[float]:
        """The value, or all of them."""
        return [self.measured] if isinstance(self.measured, (int, float)) else self.measured

    @property
    def value(self) -> float:
        """The value, or the median."""
        return median(self.values)

    @property
    def interval(self) -> Interval | None:
        """The confidence interval of the median, if there is a value of each round."""
        return None if isinstance(self.measured, (int, float)) else interval(self.measured)


class FiguresError(RuntimeError):
    """The figures of a case are not those that bounds.py has."""


@dataclass
class Result:
    """The figures of a case."""

    case: str
    figures: list[Figure]
    details: dict[str, Any] = field(default_factory=dict)

    def bound(self, figure: Figure) -> Bound:
        """The bound of one of the figures."""
        try:
            return BOUNDS[self.case][figure.name]
        except KeyError:
            raise FiguresError(f"{self.case} has the figure {figure.name}, and bench/bounds.py has no bound") from None

    def reached(self, figure: Figure) -> bool:
        """Whether a figure is within its bound, as far as this run judges it; of one that is exact, each value."""
        bound = self.bound(figure)
        if bound.exact:
            return all(map(bound.keeps, figure.values))
        return SMOKE or bound.keeps(figure.value)

    @property
    def all_reached(self) -> bool:
        """Whether every figure is within its bound."""
        return all(self.reached(f) for f in self.figures)

    def check(self) -> None:
        """Raise an error if a figure has no bound, is missing, or is no number."""
        bounds = {f.name: self.bound(f) for f in self.figures}
        missing = [n for n, b in BOUNDS[self.case].items() if n not in bounds and not b.only]
        if SMOKE and missing:
            raise FiguresError(f"{self.case} has no figure {', '.join(missing)}, and bench/bounds.py has bounds")
        if odd := [f.name for f in self.figures if not math.isfinite(f.value)]:
            raise FiguresError(f"{self.case}: {', '.join(odd)} is no number")

    def as_json(self) -> dict[str, Any]:
        """The case's last line."""
        bounds = {f.name: self.bound(f) for f in self.figures}
        intervals = {f.name: i for f in self.figures if (i := f.interval)}
        unsure = [n for n, i in intervals.items() if bounds[n].keeps(i.low) != bounds[n].keeps(i.high)]
        return {
            "case": self.case,
            **{f.name: round(f.value, 4) for f in self.figures},
            **self.details,
            "bounds": {name: str(bound) for name, bound in bounds.items()},
            "intervals": {name: [round(i.low, 4), round(i.high, 4)] for name, i in intervals.items()},
            "coverage": round(min((i.coverage for i in intervals.values()), default=0), 3),
            "unsure": unsure,  # figures whose bound is within their interval
            "quiet": [name for name, bound in bounds.items() if bound.quiet],
            "reached": self.all_reached,
        }


def emit(**line: Any) -> None:
    """Print one JSON line."""
    print(json.dumps(line, allow_nan=False), flush=True)


def median(values: Iterable[float]) -> float:
    """The median."""
    return statistics.median(values)


# Flags of `go test -bench`: with -short, large benchmarks are small.
GO_SIZES = sized([], smoke=["-short", "-benchtime=1x", "-count=1"])


def go_benchmark(context: Context, case: str, package: str, name: str, *flags: str) -> dict[str, list[float]]:
    """The metrics of a Go benchmark, by unit: a value of each of its runs (-count), of the worst of its cases."""
    done = subprocess.run(
        ["go", "test", "-vet=off", "-run", "^$", "-bench", f"^{name}$", "-benchmem", *flags, *GO_SIZES, package],  # noqa: S607
        cwd=context.root,
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{name} failed:\n{done.stdout}{done.stderr}")
    found: dict[str, dict[str, list[float]]] = {}  # metric: case: values
    for line in done.stdout.splitlines():
        if line.startswith(name):
            run, _, *values = line.split()  # name, iterations, then values, each with its unit
            emit(case=case, benchmark=run, metrics=" ".join(values))
            for value, unit in zip(values[::2], values[1::2], strict=True):
                found.setdefault(unit, {}).setdefault(re.sub(r"-\d+$", "", run), []).append(float(value))
    if not found:
        raise RuntimeError(f"{name} in {package} reports nothing:\n{done.stdout}")
    context.done = max(context.done, *(len(values) for cases in found.values() for values in cases.values()))
    return {unit: max(cases.values(), key=median) for unit, cases in found.items()}


def cpu_seconds(pid: int) -> float:
    """User and system time that a process has used."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def anonymous_mb(pid: int) -> float:
    """Resident memory of a process other than the pages of mapped files, in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no RssAnon in /proc/{pid}/status")


class Readers:
    """Client processes that read at the same time, each on a connection of its own.

    They are ready, connected and with their libraries warm, before the clock starts.
    """

    def __init__(self, url: str, tickets: list[bytes], passes: int = 0, **environment: str) -> None:
        script = Path(__file__).with_name("reader.py")
        self._processes = [
            subprocess.Popen(
                [sys.executable, script, url, ticket.hex(), str(passes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, **environment},
            )
            for ticket in tickets
        ]
        for p in self._processes:
            line = p.stdout.readline() if p.stdout else ""
            if line.strip() != "ready":
                raise RuntimeError(f"a reader said {line!r} instead of being ready")

    def run(self) -> dict[str, float]:
        """Let them read; return rows, bytes of columns, and the seconds until the last one ended."""
        start = time.perf_counter()
        for p in self._processes:
            if p.stdin:
                p.stdin.write("go\n")
                p.stdin.flush()
        answers = [json.loads(p.stdout.readline()) for p in self._processes if p.stdout]
        seconds = time.perf_counter() - start
        for p in self._processes:
            if p.stdin:
                p.stdin.close()
            p.wait()
        return {
            "rows": sum(a["rows"] for a in answers),
            "bytes": sum(a["bytes"] for a in answers),
            "first_batch_s": max(a["first_batch_s"] for a in answers),
            "seconds": seconds,
        }


@dataclass
class Stream:
    """The batches of a stream: seconds since the request, rows, and bytes of columns."""

    marks: list[tuple[float, int, int]]
    waited: list[float]  # seconds for each batch
    seconds: float  # that it was read

    @property
    def rows(self) -> int:
        """Rows of all batches."""
        return sum(rows for _, rows, _ in self.marks)

    @property
    def first_s(self) -> float:
        """Seconds until the first batch."""
        return self.marks[0][0]

    def mb_per_s(self, skip: float = 0) -> float:
        """Throughput after the first `skip` seconds."""
        size = sum(n for at, _, n in self.marks if skip < at <= self.seconds)
        return size / 1e6 / (self.seconds - skip)


class TimedReaders:
    """Streams that are read side by side for some seconds, each on a connection of its own.

    The client process is ready and connected before the clock starts. A stream is `{"ticket": {...}}` with `"stall":
    true` if it is to take one batch and no more, `"batches"` if it ends after that number, `"compute"` for seconds to
    sleep after each, `"prefetch"` for the number received meanwhile, and `"tenant"` if it is on that one's account.
    """

    def __init__(self, url: str, seconds: float, streams: list[dict[str, Any]]) -> None:
        script = Path(__file__).with_name("timed.py")
        self._seconds = seconds
        self._process = subprocess.Popen(
            [sys.executable, script, url, str(seconds), json.dumps(streams)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        line = self._process.stdout.readline() if self._process.stdout else ""
        if line.strip() != "ready":
            raise RuntimeError(f"a reader said {line!r} instead of being ready")

    def run(self) -> list[Stream]:
        """Read; what each stream gave."""
        out, _ = self._process.communicate("go\n")
        if self._process.returncode:
            raise RuntimeError(f"a reader ended with {self._process.returncode}")
        found = [
            Stream([(at, rows, size) for at, rows, size, _ in marks], [wait for *_, wait in marks], self._seconds)
            for marks in json.loads(out)
        ]
        if any(not s.marks for s in found):
            raise RuntimeError(
                f"{sum(not s.marks for s in found)} of {len(found)} streams gave no batch in {self._seconds} s"
            )
        return found


class Load:
    """Streams in one client process that are there as long as the `with` block, over some connections.

    A stream is `{"ticket": {...}, "reads": true}`, with `"pause"` for seconds to sleep after each batch, or
    with `"reads": false` if it takes none. Each was asked for, and its schema is there, before the block is entered.
    """

    def __init__(self, url: str, connections: int, streams: list[dict[str, Any]]) -> None:
        script = Path(__file__).with_name("load.py")
        self._command: list[str | Path] = [sys.executable, script, url, str(connections), json.dumps(streams)]
        self.found: dict[str, Any] = {}  # what there was of them, after the block: see load.py

    def __enter__(self) -> Load:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        line = self._process.stdout.readline() if self._process.stdout else ""
        if line.strip() != "ready":
            raise RuntimeError(f"a load said {line!r} instead of being ready")
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        out, _ = self._process.communicate()
        if self._process.returncode and not error:
            raise RuntimeError(f"a load ended with {self._process.returncode}")
        self.found = json.loads(out) if not self._process.returncode else {}


def shuffled(seed: int, epoch: int = 0, batch: int = 64, epochs: int = 1000, **more: Any) -> dict[str, Any]:
    """A ticket of more shuffled epochs of the photographs, one after another, than a case can read."""
    return {
        "dataset": "bench",
        "columns": ["id", "label", "image"],
        "batch": batch,
        "shuffle": {"seed": seed, "epoch": epoch},
        "epochs": epochs,
        **more,
    }


def throughput(url: str, seconds: float, skip: float, *tickets: dict[str, Any]) -> list[float]:
    """MB/s of streams read side by side, after their first seconds; in a smoke run it may be next to nothing."""
    found = TimedReaders(url, seconds, [{"ticket": t} for t in tickets]).run()
    rates = [s.mb_per_s(skip) for s in found]
    if SMOKE:  # a busy machine may bring nothing in so short a time
        return [max(rate, 1e-9) for rate in rates]
    if not all(rates):
        raise RuntimeError(f"a stream gave nothing between {skip} s and {seconds} s: {rates} MB/s")
    return rates
