"""Whether a series grows: a robust slope with its interval, and a verdict.

The slope is the median of the slopes between all pairs of points (Theil, 1950). Its interval comes from the variance
of Kendall's rank correlation (Sen, 1968: Estimates of the regression coefficient based on Kendall's tau). A line of
least squares would follow the few peaks that collections of garbage leave in a series. Consecutive samples depend on
each other, which makes such an interval too narrow. So the points are medians of up to BLOCKS blocks of the time.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats

BLOCKS = 60
LEAST = 8  # points; with fewer there is no verdict
CONFIDENCE = 0.99  # of an interval: a run has some hundred series
WARM_UP = 1 / 3  # of the time: caches fill, heaps get their size, tables of the kernel grow


@dataclass(frozen=True)
class Bound:
    """The growth over a run above which a series with a rising slope leaks."""

    share: float  # of its level after the warm-up
    least: float  # in its own unit, for series of a low level

    def of(self, level: float) -> float:
        """The growth that is allowed at a level."""
        return max(self.share * level, self.least)


@dataclass(frozen=True)
class Trend:
    """The growth of a series after the warm-up. Slopes are in units of the series an hour."""

    level: float  # the median
    slope: float
    low: float  # of the slope's interval
    high: float
    growth: float  # by the slope, in the time after the warm-up
    recent: float  # the growth in as much time by the slope of the later half
    allowed: float
    leaks: bool


def blocks(times: Sequence[float], values: Sequence[float], most: int = BLOCKS) -> tuple[list[float], list[float]]:
    """The medians of consecutive blocks of about equal numbers of samples, and their times."""
    count = min(most, len(times))
    edges = [i * len(times) // count for i in range(count + 1)] if count else [0]
    pairs = [(times[a:b], values[a:b]) for a, b in itertools.pairwise(edges)]
    return [statistics.median(t) for t, _ in pairs], [statistics.median(v) for _, v in pairs]


def trend(times: Sequence[float], values: Sequence[float], bound: Bound, warm_up: float = WARM_UP) -> Trend | None:
    """The trend of a series whose times are in seconds, or None if there are too few samples after the warm-up.

    A series leaks if three things hold. The interval of its slope is above zero. Its growth exceeds the bound. The
    slope of the later half alone would exceed the bound as well: a cache that fills grows at first and stays then.
    """
    if not times:
        return None
    start = times[0] + warm_up * (times[-1] - times[0])
    kept = [(t, v) for t, v in zip(times, values, strict=True) if t >= start]
    at, points = blocks([t for t, _ in kept], [v for _, v in kept])
    if len(at) < LEAST:
        return None
    level, length = statistics.median(points), at[-1] - at[0]
    slope, _, low, high = stats.theilslopes(points, at, CONFIDENCE)
    half = len(at) // 2
    later = stats.theilslopes(points[half:], at[half:], CONFIDENCE)[0]
    growth, recent, allowed = slope * length, later * length, bound.of(level)
    leaks = bool(low > 0 and growth > allowed and recent > allowed)
    slope, low, high = (float(3600 * s) for s in (slope, low, high))
    return Trend(level, slope, low, high, float(growth), float(recent), allowed, leaks)
