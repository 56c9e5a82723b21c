"""How sure a median over rounds is: its confidence interval, without an assumption about the distribution.

The interval is bounded by two order statistics. The median of the population is between the k-th smallest and the k-th
largest of n independent values unless fewer than k of them are on one side of it, so the coverage is
1 - 2 P(Binomial(n, 1/2) < k): the sign test inverted (David and Nagaraja, Order Statistics, 3rd edition, 7.1).
Hoefler and Belli recommend it for measurements of computers, whose times are skewed and have outliers (Scientific
Benchmarking of Parallel Computing Systems, SC 2015). A bootstrap of six values would resample
the same six, and be too narrow.

Rounds are added until the interval is narrow, so its true coverage is somewhat less than the one that is stated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A confidence interval of a median."""

    low: float
    high: float
    coverage: float  # what it has by the number of values: less than LEVEL if they are fewer than six

    def narrow(self, width: float) -> bool:
        """Whether it covers LEVEL and is no wider than this part of its middle."""
        middle = abs(self.low + self.high) / 2
        return self.coverage >= LEVEL and self.high - self.low <= width * middle


def interval(values: Sequence[float]) -> Interval:
    """The narrowest interval of two order statistics that covers LEVEL, or that of the least and the largest value."""
    ordered, n = sorted(values), len(values)
    below, k = 1, 1  # ways in which fewer than k values are on one side, of 2**n
    while 2 * (k + 1) <= n and 1 - 2 * (below + math.comb(n, k)) / 2**n >= LEVEL:
        below += math.comb(n, k)
        k += 1
    return Interval(ordered[k - 1], ordered[n - k], 1 - 2 * below / 2**n)
