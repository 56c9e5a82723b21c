"""Choose one of two places for operators: the one where the consumer waits less per row."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

# Batches that a measurement has, after the first of a stream, which opens it.
_MEASURED = 6
# Seconds of waiting that also end a measurement: the first one, and one that is compared, where staying costs nothing.
_LONG, _LONGER = 0.5, 1.0
# Minimum seconds of one batch whose pace shows that a place cannot win.
_SURE = 0.2
# For that, the factor by which it has to be slower than the other place.
_HOPELESS = 2
# How many times as long as a measurement the better place is used.
_STAY = 40
# Factor by which the wait per row has to grow for a new measurement at once.
_WORSE = 1.5
# A share of the time that is not worth a move.
_LITTLE = 0.02


class _Window:
    """The waiting time of some consecutive batches."""

    def __init__(self, begun: float) -> None:
        self.begun = self.ended = begun
        self.batches = self.rows = 0
        self.waited = 0.0

    def add(self, rows: int, waited: float, now: float) -> None:
        self.batches += 1
        self.rows += rows
        self.waited += waited
        self.ended = now

    @property
    def full(self) -> bool:
        return self.batches >= _MEASURED and self.rows > 0

    @property
    def idle(self) -> bool:
        """Whether there was next to no waiting."""
        return self.waited < _LITTLE * (self.ended - self.begun)

    @property
    def a_row(self) -> float:
        """Seconds of waiting per row."""
        return self.waited / self.rows if self.rows else 0.0


class Chooser:
    """Chooses where operators run, from the consumer's waiting time: see "Where operators run" in docs/operators.md.

    It measures one place, then the other, and uses the better one for many times as long. A measurement ends early once
    it has taken as long as a whole one at the other place. It ends earlier still if the operators' input comes too
    slowly for that place to win: trying a slow place costs little.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.place = "server"
        self._clock = clock
        self._measuring = True  # at this place; otherwise the place is settled
        self._known: _Window | None = None  # of the other place, during a measurement of this one
        self._took = 0.0  # seconds of the longer of two measurements, with opening the stream
        self._pace: float | None = None  # seconds per row at the settled place, in its first full window
        self._other = math.inf  # and at the other place, when that was measured
        self._until = 0.0  # when the next measurement begins
        self._going = False  # it moves next
        self._least = 0.0  # lower bound of the seconds per row here, if the place cannot win
        self._opened = False  # the first batch at this place has come
        self._since = 0.0  # when that was requested
        self._window = _Window(0.0)

    @property
    def measuring(self) -> bool:
        """Whether a measurement is running."""
        return self._measuring

    def note(self, rows: int, waited: float) -> None:
        """Record a batch that was delivered, and the wait for it."""
        if self._going:  # it was made before, and says nothing about the pace
            return
        now = self._clock()
        if not self._opened:
            self._opened, self._since, self._window = True, now - waited, _Window(now)
            return
        if not self._measuring and self._window.full and not self._going:
            self._window = _Window(now - waited)
        self._window.add(rows, waited, now)

    def came(self, rows: int, waited: float) -> None:
        """Record input of the operators, except the first of a stream: no batch can be made sooner."""
        known = self._known
        if known is not None and rows and waited > max(_SURE, _HOPELESS * known.a_row * rows):
            self._least = max(self._least, waited / rows)

    def settling(self) -> bool:
        """Whether a move is next, before which prefetched batches have to be delivered.

        If it stays, prefetched batches stay, too: a stream that is drained at each measurement has to fill again.
        """
        if not self._going and (self._measured() if self._measuring else self._restless()):
            self._going = not self._stays()
        return self._going

    def moves(self) -> bool:
        """Whether the next batch comes from the other place, which is then `place`."""
        if not self.settling():
            return False
        self._going = self._opened = False
        self.place = "client" if self.place == "server" else "server"
        return True

    def _stays(self) -> bool:
        """Evaluate a measurement: whether to stay at this place."""
        seen, known, now = self._window, self._known, self._clock()
        if not self._measuring:
            self._took = 0.0
            self._measuring, self._known = True, seen
            return False
        self._took = max(self._took, now - self._since)
        if known is None and not seen.idle:
            self._known = seen
            return False
        here = max(seen.a_row, self._least)
        stays = known is None or here <= known.a_row
        self._other = math.inf if known is None else max(here, known.a_row)
        self._least = 0.0
        self._measuring, self._known = False, None
        # The first batches of a stream say little, because buffers on the path fill during that time.
        self._pace = None
        self._until = now + _STAY * self._took
        self._window = _Window(now)
        return stays

    def _measured(self) -> bool:
        """Whether there is enough data to judge this place."""
        seen, known = self._window, self._known
        if not self._opened:
            return False
        if self._least:
            return True
        if seen.rows == 0:
            return False
        if seen.full or seen.waited > (_LONG if known is None else _LONGER):
            return True
        return known is not None and seen.waited > known.waited * _MEASURED / known.batches

    def _restless(self) -> bool:
        """Whether it is time to measure the other place again, or this one has become worse."""
        seen = self._window
        if not self._opened or not seen.full or seen.idle:
            return False
        if self._pace is None:
            self._pace = seen.a_row
            return seen.a_row > _WORSE * self._other
        # A wait that is still shorter than the other place's was is no reason to move.
        bad = max(_WORSE * self._pace, 0.0 if math.isinf(self._other) else self._other)
        return self._clock() >= self._until or seen.a_row > bad
