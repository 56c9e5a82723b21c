"""What the cases share: their context, the figures they report, and the processes they measure."""

from __future__ import annotations

import json
import os
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


@dataclass
class Context:
    """What a case runs with."""

    binary: Path
    root: Path
    folder: Path  # empty at first; cases may leave data for one another
    rounds: int

    def bowstring(self, *args: str | Path) -> str:
        """Run the binary and return what it prints."""
        done = subprocess.run([self.binary, *args], check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"bowstring {' '.join(map(str, args))} ended with {done.returncode}: {done.stderr}")
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
    """What a case found."""

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
