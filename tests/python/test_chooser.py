"""Where operators run: a consumer whose clock is the test's, and two places of whatever speed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from bowstring._chooser import Chooser

ROWS = 10


class Consumer:
    """Reads batches and works on them. A place's first batch takes longer, as it opens a stream."""

    def __init__(self, server: float, client: float, works: float = 0.0) -> None:
        self.now = 0.0
        self.waits = {"server": server, "client": client}  # seconds a batch
        self.works = works
        self.chooser = Chooser(lambda: self.now)
        self.batches: Counter[str] = Counter()
        self.moves = 0

    def read(self, seconds: float) -> None:
        end = self.now + seconds
        opening = self.now == 0
        while self.now < end:
            if self.chooser.moves():
                self.moves += 1
                opening = True
            waited = self.waits[self.chooser.place] * (2 if opening else 1)
            opening = False
            self.now += waited
            self.chooser.note(ROWS, waited)
            self.batches[self.chooser.place] += 1
            self.now += self.works


@pytest.mark.parametrize("slow", [1.1, 2.0, 10.0, 100.0])
@pytest.mark.parametrize("quick", [0.001, 0.05, 1.0])
@pytest.mark.parametrize("better", ["server", "client"])
def test_it_finds_the_better_place(quick: float, slow: float, better: str) -> None:
    other = "client" if better == "server" else "server"
    consumer = Consumer(**{better: quick, other: quick * slow})
    consumer.read(3000 * quick + 20 * quick * slow)
    assert consumer.chooser.place == better or consumer.moves > 1
    before = consumer.batches[better]
    consumer.read(3000 * quick)
    assert consumer.batches[better] - before > 0.92 * 3000, "of what the better place alone gives"


def test_what_changes_is_seen_at_once() -> None:
    consumer = Consumer(server=0.01, client=0.02)
    consumer.read(3)
    assert consumer.chooser.place == "server"
    consumer.waits["server"] = 0.1
    consumer.read(2.5)
    assert consumer.chooser.place == "client"
    assert consumer.batches["server"] < 350


def test_who_waits_for_nothing_stays() -> None:
    consumer = Consumer(server=0.0001, client=0.0, works=0.05)
    consumer.read(500)
    assert consumer.moves == 0


def test_batches_without_rows_are_no_reason() -> None:
    chooser = Chooser(lambda: 0.0)
    for _ in range(100):
        chooser.note(0, 1.0)
        assert not chooser.moves()


def test_what_is_ahead_is_given_before_a_move() -> None:
    """Once a move may come it stays so, until it has been decided."""
    now = [0.0]
    clock: Callable[[], float] = lambda: now[0]  # noqa: E731
    chooser = Chooser(clock)
    for _ in range(7):
        now[0] += 0.1
        chooser.note(ROWS, 0.1)
    for _ in range(3):
        assert chooser.settling()
        now[0] += 0.1
        chooser.note(ROWS, 0.1)
    assert chooser.moves()
    assert chooser.place == "client"
    assert not chooser.settling()
