"""What is done as an object is collected, also where the interpreter ends."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def collected(let_go: Callable[[T], None]) -> Callable[[T], None]:
    """A `__del__` that says nothing where it fails as the interpreter ends.

    Modules may have lost their names by then, those of the standard library, too. Descriptors, memory and processes go
    with the process in any case.
    """

    # All that this needs itself is bound here, and so is there to the end.
    def finalize(
        self: T,
        _let_go: Callable[[T], None] = let_go,
        _ends: Callable[[], bool] = sys.is_finalizing,
        _failed: type[Exception] = Exception,
    ) -> None:
        try:
            _let_go(self)
        except _failed:
            if not _ends():
                raise

    finalize.__doc__ = let_go.__doc__
    return finalize
