"""The verdict of long runs about series: a planted leak is found, in numbers and in a process."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from collections.abc import Callable

import pytest
from soak.resources import MIB, Series, process
from soak.trend import Bound, blocks, trend

BOUND = Bound(0.1, 6)
NOISE = random.Random(37)
HOUR = [5.0 * i for i in range(720)]

PROGRAM = """
import os, sys, threading
kept, leaks = [], sys.argv[1] == "leaks"
for line in sys.stdin:
    room, opened = bytearray(b"x" * (1 << 20)), os.open("/dev/null", os.O_RDONLY)
    over = threading.Event()
    thread = threading.Thread(target=over.wait, daemon=True)
    thread.start()
    if leaks:
        kept.append((room, opened, over))
    else:
        os.close(opened)
        over.set()
        thread.join()
    print("done", flush=True)
"""


@pytest.mark.parametrize(
    ("level", "leaks"),
    [
        (lambda _: 100 + NOISE.gauss(0, 5), False),
        (lambda _: 100, False),
        (lambda t: 100 + 40 * (t % 300) / 300, False),  # a store between two collections
        (lambda t: 100 + 40 * (1 - math.exp(-t / 300)), False),  # a cache that fills
        (lambda t: 100 + (30 if t > 600 else 0), False),  # a new level
        (lambda t: 100 - 30 * t / 3600 + NOISE.gauss(0, 5), False),
        (lambda t: 100 + 3 * t / 3600 + NOISE.gauss(0, 1), False),  # grows, by less than the bound
        (lambda t: 100 + 30 * t / 3600 + NOISE.gauss(0, 5), True),
        (lambda t: 100 + t // 200, True),  # a descriptor now and then
        (lambda t: 100 + 40 * (t % 300) / 300 + 40 * t / 3600, True),
        (lambda t: (100 if NOISE.random() < 0.9 else 1000) + 40 * t / 3600, True),
    ],
)
def test_verdict(level: Callable[[float], float], leaks: bool) -> None:
    found = trend(HOUR, [level(t) for t in HOUR], BOUND)
    assert found is not None
    assert found.leaks is leaks, found
    assert found.low <= found.slope <= found.high


def test_slope_is_that_of_the_line() -> None:
    found = trend(HOUR, [7 + 0.01 * t for t in HOUR], BOUND)
    assert found is not None
    assert found.slope == pytest.approx(36)
    assert (found.low, found.high) == pytest.approx((36, 36))
    assert found.growth == pytest.approx(24, rel=0.05)  # two thirds of the hour are after the warm-up


@pytest.mark.parametrize("count", [0, 1, 8])
def test_too_few_samples_have_no_verdict(count: int) -> None:
    assert trend(HOUR[:count], [1.0] * count, BOUND) is None


@pytest.mark.parametrize("count", [1, 59, 60, 61, 1000])
def test_blocks_have_all_samples(count: int) -> None:
    at, values = blocks(range(count), range(count))
    assert len(at) == min(count, 60)
    assert at == values == sorted(set(values))


@pytest.mark.parametrize("leaks", [True, False])
def test_process(leaks: bool) -> None:
    """A real process that leaks memory, descriptors and threads is found by each; its twin by none."""
    series: dict[str, Series] = {}  # by rounds, not by seconds: how fast a round is depends on the machine
    command = [sys.executable, "-c", PROGRAM, "leaks" if leaks else "clean"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin
        assert program.stdout
        for turn in range(60):
            print(file=program.stdin, flush=True)
            assert program.stdout.readline() == "done\n"
            for kind, value in process(program.pid).items():
                series.setdefault(kind, Series(f"program.{kind}"))
                series[kind].times.append(turn)
                series[kind].values.append(value)
        program.stdin.close()
    found = {kind: s.trend() for kind, s in series.items()}
    # Not by its share of pages: it rises when another process ends that had the same pages of a library.
    assert {kind for kind, t in found.items() if t and t.leaks and kind != "pss"} == (
        {"rss", "descriptors", "threads"} if leaks else set()
    )
    assert (trend_of := found["rss"]) is not None
    assert trend_of.level > MIB


def test_process_that_has_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as program:
        program.wait()
        assert process(program.pid) == {}
