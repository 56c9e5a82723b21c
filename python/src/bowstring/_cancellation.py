"""A wait of a thread ends when the asynchronous task that needs it is cancelled."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from bowstring.errors import Cancelled


class Cancellation:
    """Whether a task was cancelled, and what its threads wait for."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # held by `cancel`, so a wait that ends does not go on before it has returned
        self._ends: list[Callable[[], object]] = []
        self._over = threading.Event()

    def cancel(self) -> None:
        """End each wait, now and later. The waiting threads raise errors."""
        with self._lock:
            self._over.set()
            for end in self._ends:
                end()

    @contextlib.contextmanager
    def waiting(self, end: Callable[[], object]) -> Iterator[None]:
        """While the block runs, `cancel` calls `end`. Cancelled if the task was cancelled before the block's end."""
        with self._lock:
            self.check()
            self._ends.append(end)
        try:
            yield
        finally:
            with self._lock:
                self._ends.remove(end)
        self.check()

    @property
    def over(self) -> bool:
        """Whether the task was cancelled."""
        return self._over.is_set()

    def check(self) -> None:
        """Raise Cancelled if the task was cancelled."""
        if self.over:
            raise Cancelled("the task that needs it was cancelled")

    def sleep(self, seconds: float) -> None:
        """Sleep, or raise Cancelled when the task is cancelled."""
        self._over.wait(seconds)
        self.check()


# The cancellation of the task that the thread works for. Threads that work for this one inherit it.
current: ContextVar[Cancellation | None] = ContextVar("bowstring.cancellation", default=None)


def waiting(end: Callable[[], object]) -> contextlib.AbstractContextManager[None]:
    """While the block runs, `end` is called if the thread's task is cancelled. The block raises Cancelled then."""
    found = current.get()
    return contextlib.nullcontext() if found is None else found.waiting(end)


def cancelled() -> bool:
    """Whether the thread's task was cancelled."""
    return (found := current.get()) is not None and found.over


def check() -> None:
    """Raise Cancelled if the thread's task was cancelled."""
    if (found := current.get()) is not None:
        found.check()


def sleep(seconds: float) -> None:
    """Sleep, or raise Cancelled when the thread's task is cancelled."""
    (time if (found := current.get()) is None else found).sleep(seconds)
