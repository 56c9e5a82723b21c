"""Calls in another thread, so that the caller can stop waiting for the server.

pyarrow returns a stream once its server has answered, and cannot cancel it before. So another thread makes the call,
and the caller waits for that thread, where signals, other threads and forks can end the wait. A cancelled call ends
when the server answers, or when a fork closes the connection.
"""

from __future__ import annotations

import collections
import contextvars
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Generic, TypeVar

from bowstring._cancellation import waiting

T = TypeVar("T")

_KEPT = 4  # idle threads: starting one takes as long as a call to a nearby server


class _Thread:
    """A thread that runs one function after another. A forked child has none of its parent's."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="bowstring waits", daemon=True).start()

    def do(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def _run(self) -> None:
        while True:
            self._work.get()()
            if len(_idle) >= _KEPT:
                return
            _idle.append(self)


_idle: collections.deque[_Thread] = collections.deque()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)


def in_thread(work: Callable[[], None]) -> None:
    """Run a function in an idle thread, or in a new one, with the caller's context. It must not raise."""
    work = partial(contextvars.copy_context().run, work)
    try:
        thread = _idle.pop()
    except IndexError:
        thread = _Thread()
    thread.do(work)


def in_future(call: Callable[[], T]) -> Future[T]:
    """A call that another thread makes, as a future."""
    future: Future[T] = Future()

    def make() -> None:
        try:
            future.set_result(call())
        except StopIteration:  # asyncio's futures take none, and would never end
            future.set_exception(StopAsyncIteration())
        except BaseException as error:  # noqa: BLE001 - it is raised where the future is awaited
            future.set_exception(error)

    in_thread(make)
    return future


class BackgroundCall(Generic[T]):
    """A result that another thread makes."""

    def __init__(self, make: Callable[[], T], drop: Callable[[T], object]) -> None:
        self._make = make
        self._drop = drop  # ends a result that was not taken
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._made: list[T] = []
        self._error: BaseException | None = None
        self._over = False  # it was taken, or cancelled
        in_thread(self._run)

    def _run(self) -> None:
        made: list[T] = []
        try:
            made.append(self._make())
        except BaseException as error:  # noqa: BLE001 - take raises it
            self._error = error
        with self._lock:
            if not self._over:
                self._made, made = made, []
            self._ready.set()
        if made:
            self._drop(made.pop())
        if self._over:
            self._error = None

    def take(self, keep: Callable[[T], object], seconds: float | None = None) -> bool:
        """Wait for the result and pass it to `keep`. False if it was cancelled, or is not ready in time.

        A cancelling thread finds the result either here or where `keep` has put it.
        """
        with waiting(self.cancel):
            if not self._ready.wait(seconds):
                return False
        with self._lock:
            if self._over:
                return False
            self._over = True
            if self._error is None:
                keep(self._made.pop())
                return True
        error, self._error = self._error, None
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame

    def cancel(self) -> None:
        """Wake the waiting thread. The result is ended."""
        with self._lock:
            if self._over:
                return
            self._over = True
            made, self._made = self._made, []
            self._ready.set()
        if made:
            self._drop(made.pop())
