"""Which of two places operators run at: where the consumer waits less for a row."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

# Batches that are looked at, after the first of a stream, which opens it.
_LOOK = 6
# Seconds of waiting that end a look, too: the first, and one at a place that is compared, where staying costs nothing.
_LONG, _LONGER = 0.5, 1.0
# Seconds that one batch takes, at least, for its pace to tell of a place that cannot win.
_SURE = 0.2
# How many times as long as at the other place it has to take for that.
_HOPELESS = 2
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
        return self.waited / self.rows if self.rows else 0.0


class Chooser:
    """Where operators run, by what the consumer has waited for: see "Where operators run" in docs/operators.md.

    It looks at one place, then at the other, and stays with the better one for many times as long. A look ends early
    where it has taken as long as a whole one at the other place, and earlier where what operators run on comes too
    slowly for that place to win: what is slow costs little to try.
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
        self._going = False  # it moves next
        self._least = 0.0  # seconds that a row has to be waited for here at least, where it cannot win so
        self._opened = False  # this place's first batch has come
        self._since = 0.0  # when that was asked for
        self._window = _Window(0.0)

    @property
    def looking(self) -> bool:
        """Whether it does not know yet if it stays with this place."""
        return self._looking

    def note(self, rows: int, waited: float) -> None:
        """A batch was given, and waited for."""
        if self._going:  # it was made before, and says nothing of the pace
            return
        now = self._clock()
        if not self._opened:
            self._opened, self._since, self._window = True, now - waited, _Window(now)
            return
        if not self._looking and self._window.full and not self._going:
            self._window = _Window(now - waited)
        self._window.add(rows, waited, now)

    def came(self, rows: int, waited: float) -> None:
        """What operators run on came, other than the first of a stream: no batch is made sooner than that comes."""
        known = self._known
        if known is not None and rows and waited > max(_SURE, _HOPELESS * known.a_row * rows):
            self._least = max(self._least, waited / rows)

    def settling(self) -> bool:
        """Whether it moves next, for which what is ahead has to be given first.

        Where it stays, what is ahead stays, too: a stream that runs dry at each look has to fill again.
        """
        if not self._going and (self._looked() if self._looking else self._restless()):
            self._going = not self._stays()
        return self._going

    def moves(self) -> bool:
        """Whether the next batch is to come of the other place. It is `place` then."""
        if not self.settling():
            return False
        self._going = self._opened = False
        self.place = "client" if self.place == "server" else "server"
        return True

    def _stays(self) -> bool:
        """Go on with what follows from what was seen: whether that is at this place."""
        seen, known, now = self._window, self._known, self._clock()
        if not self._looking:
            self._took = 0.0
            self._looking, self._known = True, seen
            return False
        self._took = max(self._took, now - self._since)
        if known is None and not seen.idle:
            self._known = seen
            return False
        here = max(seen.a_row, self._least)
        stays = known is None or here <= known.a_row
        self._other = math.inf if known is None else max(here, known.a_row)
        self._least = 0.0
        self._looking, self._known = False, None
        # What the first batches of a stream were waited for says little: buffers on the way fill meanwhile.
        self._pace = None
        self._until = now + _STAY * self._took
        self._window = _Window(now)
        return stays

    def _looked(self) -> bool:
        """Whether there is enough to judge this place by."""
        seen, known = self._window, self._known
        if not self._opened:
            return False
        if self._least:
            return True
        if seen.rows == 0:
            return False
        if seen.full or seen.waited > (_LONG if known is None else _LONGER):
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
        # What is still better than the other place was is no reason to go there.
        bad = max(_WORSE * self._pace, 0.0 if math.isinf(self._other) else self._other)
        return self._clock() >= self._until or seen.a_row > bad
