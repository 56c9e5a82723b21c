"""The sizes of the cases: the full ones, and those of a smoke run, which ends in seconds.

A case names each of its sizes once, as `COUNT = sized(4000, smoke=64)`, and has the same code for both. The choice is
made when the process starts, by an environment variable, because the programs that a case starts have sizes, too.
"""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")
VARIABLE = "BENCH_SMOKE"
SMOKE = os.environ.get(VARIABLE) == "1"


def sized(full: T, *, smoke: T) -> T:
    """The full size, or that of a smoke run if this process is of one."""
    return smoke if SMOKE else full
