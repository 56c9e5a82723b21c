"""Parts that the cases share: their context, the figures they report, and the processes they measure."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

MIB = 1 << 20


def lab(binary: Path) -> Path:
    """The program for experiments, which `make build` leaves beside the server."""
    return binary.with_name(f"{binary.name}-lab")


@dataclass
class Context:
    """The context of a case."""

    binary: Path
    root: Path
    folder: Path  # empty at first; cases may leave data for one another
    rounds: int

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


@dataclass
class Figure:
    """One measured figure and the bound that it should keep."""

    name: str
    value: float
    at_least: float | None = None
    at_most: float | None = None

    @property
    def reached(self) -> bool:
        """Whether the figure is within its bound."""
        return (self.at_least is None or self.value >= self.at_least) and (
            self.at_most is None or self.value <= self.at_most
        )

    @property
    def bound(self) -> str:
        """The bound as text."""
        return f">= {self.at_least:g}" if self.at_least is not None else f"<= {self.at_most:g}"


@dataclass
class Result:
    """The figures of a case."""

    case: str
    figures: list[Figure]
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def reached(self) -> bool:
        """Whether every figure is within its bound."""
        return all(f.reached for f in self.figures)

    def as_json(self) -> dict[str, Any]:
        """The case's last line."""
        return {
            "case": self.case,
            **{f.name: round(f.value, 4) for f in self.figures},
            **self.details,
            "bounds": {f.name: f.bound for f in self.figures},
            "reached": self.reached,
        }


def emit(**line: Any) -> None:
    """Print one JSON line."""
    print(json.dumps(line), flush=True)


def median(values: Iterable[float]) -> float:
    """The median."""
    return statistics.median(values)


def go_benchmark(context: Context, case: str, package: str, name: str, *flags: str) -> dict[str, float]:
    """The metrics of a Go benchmark, by unit: medians over its runs, of the worst of its cases."""
    done = subprocess.run(
        ["go", "test", "-run", "^$", "-bench", f"^{name}$", "-benchmem", *flags, package],  # noqa: S607
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
    return {unit: max(median(v) for v in cases.values()) for unit, cases in found.items()}


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
    """MB/s of streams read side by side, after their first seconds."""
    found = TimedReaders(url, seconds, [{"ticket": t} for t in tickets]).run()
    rates = [s.mb_per_s(skip) for s in found]
    if not all(rates):
        raise RuntimeError(f"a stream gave nothing between {skip} s and {seconds} s: {rates} MB/s")
    return rates
