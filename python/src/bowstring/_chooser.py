"""Which of two places operators run at: where the consumer waits less for a row."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

# Batches that are looked at, after the first of a stream, which opens it.
_LOOK = 6
# Seconds of waiting that end a look of two batches or more, too.
_LONG = 1.0
# How many times as long as a look it stays with what was better.
_STAY = 40
# How much longer than it did a row has to be waited for to look again at once.
_WORSE = 1.5
# A share of the time that is not worth a move.
_LITTLE = 0.02


class _Window:
    """What was waited for in some batches, one after the other."""

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
        return self.batches >= _LOOK and self.rows > 0

    @property
    def idle(self) -> bool:
        """Whether next to nothing was waited for."""
        return self.waited < _LITTLE * (self.ended - self.begun)

    @property
    def a_row(self) -> float:
        """Seconds that a row was waited for."""
        return self.waited / self.rows


class Chooser:
    """Where operators run, by what the consumer has waited for: see "Where operators run" in docs/operators.md.

    It looks at one place, then at the other, and stays with the better one for many times as long. A look ends early
    where it has taken as long as a whole one at the other place: what is slow costs little to try.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.place = "server"
        self._clock = clock
        self._looking = True  # at this place; otherwise it stays with it
        self._known: _Window | None = None  # of the other place, while it looks at this one
        self._took = 0.0  # seconds of the longer look of two, with opening the stream
        self._pace: float | None = None  # seconds a row where it stays, in the first full window there
        self._other = math.inf  # and at the other place, when that was looked at
        self._until = 0.0  # when it looks again
        self._going = False  # it is to look again, or has seen enough
        self._opened = False  # this place's first batch has come
        self._since = 0.0  # when that was asked for
        self._window = _Window(0.0)

    @property
    def looking(self) -> bool:
        """Whether it does not know yet if it stays with this place."""
        return self._looking

    def note(self, rows: int, waited: float) -> None:
        """A batch was given, and waited for."""
        now = self._clock()
        if not self._opened:
            self._opened, self._since, self._window = True, now - waited, _Window(now)
            return
        if not self._looking and self._window.full and not self._going:
            self._window = _Window(now - waited)
        self._window.add(rows, waited, now)

    def settling(self) -> bool:
        """Whether a move may come next, for which what is ahead has to be given first."""
        self._going = self._going or (self._looked() if self._looking else self._restless())
        return self._going

    def moves(self) -> bool:
        """Whether the next batch is to come of the other place. It is `place` then."""
        if not self.settling():
            return False
        self._going = False
        seen, known, now = self._window, self._known, self._clock()
        if not self._looking:
            self._took = 0.0
            self._look(seen)
            return True
        self._took = max(self._took, now - self._since)
        if known is None and not seen.idle:
            self._look(seen)
            return True
        stays = known is None or seen.a_row <= known.a_row
        self._looking, self._known = False, None
        # What the first batches of a stream were waited for says little: buffers on the way fill meanwhile.
        self._pace = None
        self._other = math.inf if known is None else max(seen.a_row, known.a_row)
        self._until = now + _STAY * self._took
        if stays:
            self._window = _Window(now)
        else:
            self._turn()
        return not stays

    def _look(self, seen: _Window) -> None:
        """Go on to look at the other place."""
        self._looking, self._known = True, seen
        self._turn()

    def _turn(self) -> None:
        self.place = "client" if self.place == "server" else "server"
        self._opened = False

    def _looked(self) -> bool:
        """Whether there is enough to judge this place by."""
        seen, known = self._window, self._known
        if not self._opened or seen.rows == 0:
            return False
        if seen.full or (seen.batches > 1 and seen.waited > _LONG):
            return True
        return known is not None and seen.waited > known.waited * _LOOK / known.batches

    def _restless(self) -> bool:
        """Whether it is time to look at the other place again, or this one has become worse."""
        seen = self._window
        if not self._opened or not seen.full or seen.idle:
            return False
        if self._pace is None:
            self._pace = seen.a_row
            return seen.a_row > _WORSE * self._other
        return self._clock() >= self._until or seen.a_row > _WORSE * self._pace
