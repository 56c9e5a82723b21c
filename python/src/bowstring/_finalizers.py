"""Finalizers that also work while the interpreter exits."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def finalizer(release: Callable[[T], None]) -> Callable[[T], None]:
    """Make a `__del__` that ignores errors while the interpreter exits.

    By then modules may have lost their names, including the standard library's. The process's end releases descriptors,
    memory and processes in any case.
    """

    # Everything that this function needs is bound here, so it exists until the end.
    def finalize(
        self: T,
        _release: Callable[[T], None] = release,
        _ends: Callable[[], bool] = sys.is_finalizing,
        _failed: type[Exception] = Exception,
    ) -> None:
        try:
            _release(self)
        except _failed:
            if not _ends():
                raise

    finalize.__doc__ = release.__doc__
    return finalize
