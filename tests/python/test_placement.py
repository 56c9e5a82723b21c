"""Where operators run: a consumer whose clock is the test's, and two places of whatever speed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from bowstring._operators.placement import Chooser

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


def test_a_consumer_that_never_waits_stays() -> None:
    consumer = Consumer(server=0.0001, client=0.0, works=0.05)
    consumer.read(500)
    assert consumer.moves == 0


def test_batches_without_rows_are_no_reason() -> None:
    chooser = Chooser(lambda: 0.0)
    for _ in range(100):
        chooser.note(0, 1.0)
        assert not chooser.moves()


def test_prefetched_batches_are_delivered_before_a_move() -> None:
    """Once a move is to come it stays so, until it is made."""
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


def test_prefetched_batches_are_no_measure_of_a_pace() -> None:
    """Batches that were made before a move was to come are given at once, however slow the place is."""
    consumer = Consumer(server=0.04, client=0.03)
    while consumer.chooser.place == "server" or consumer.chooser.measuring:
        consumer.read(0.001)
    while not consumer.chooser.settling():  # it measures again
        consumer.read(0.001)
    for _ in range(12):
        consumer.chooser.note(ROWS, 0.0)
    consumer.waits["server"] = 0.02
    consumer.read(1)
    assert consumer.chooser.place == "server"


def test_prefetched_batches_stay_if_the_place_stays() -> None:
    """A look that ends in staying lets nothing run dry."""
    consumer = Consumer(server=0.02, client=0.01)
    settled = []
    while consumer.chooser.measuring:
        consumer.read(0.001)
        if consumer.chooser.place == "client":
            settled.append(consumer.chooser.settling())
    assert len(settled) > 1
    assert not any(settled)


def measures_client(consumer: Consumer) -> Chooser:
    """Reads until a batch is to come of the client, for the first time."""
    while not consumer.chooser.settling():
        consumer.read(0.001)
    assert consumer.chooser.moves()
    return consumer.chooser


def test_what_comes_too_slowly_is_left_at_once() -> None:
    """The place where blobs alone take longer than whole batches elsewhere has no batch to make for its look."""
    consumer = Consumer(server=0.11, client=0.4)
    chooser = measures_client(consumer)
    chooser.came(ROWS, 0.4)
    assert not chooser.settling(), "its first batch has not come"
    chooser.note(ROWS, 0.9)
    assert chooser.moves()
    assert (chooser.place, chooser.measuring) == ("server", False)


@pytest.mark.parametrize("waited", [0.15, 0.25])
def test_what_may_win_is_looked_at(waited: float) -> None:
    """A pause of a moment, or a pace that is not twice as long, is no bound."""
    consumer = Consumer(server=0.14 if waited > 0.2 else 0.01, client=0.4)
    chooser = measures_client(consumer)
    chooser.came(ROWS, waited)
    chooser.note(ROWS, 0.5)
    assert not chooser.settling()


def test_slow_batches_are_few() -> None:
    """Where a batch takes as long as a look may, two of a place are enough: that which opens it, and one."""
    consumer = Consumer(server=0.6, client=0.3)
    consumer.read(10)
    assert consumer.batches["server"] == 2
    assert consumer.moves == 1


def test_a_pause_is_no_pace() -> None:
    """A compared place is measured for a second: half a second may be a pause of a busy machine."""
    consumer = Consumer(server=0.3, client=0.2)
    chooser = measures_client(consumer)
    consumer.read(0.001)
    consumer.waits["client"] = 0.6
    consumer.read(0.001)
    consumer.waits["client"] = 0.1
    consumer.read(1)
    assert (chooser.place, chooser.measuring) == ("client", False)


def test_worse_than_before_but_better_than_the_other() -> None:
    """If this place becomes slower, a slow other place is not measured again before its time."""
    consumer = Consumer(server=0.1, client=0.4)
    consumer.read(5)
    assert (consumer.chooser.place, consumer.chooser.measuring, consumer.moves) == ("server", False, 2)
    consumer.waits["server"] = 0.25
    consumer.read(20)
    assert consumer.moves == 2
    consumer.waits["server"] = 0.5
    consumer.read(10)
    assert (consumer.chooser.place, consumer.chooser.measuring) == ("client", False)
