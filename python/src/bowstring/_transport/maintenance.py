"""A thread that serves idle connections, and memory that servers share.

A server sends keepalives, and closes a connection whose socket stays full. So if a consumer has not read for some
seconds, this thread receives what has arrived, up to the window of flow control.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
import weakref
from typing import Protocol

LULL = 5.0  # seconds without a consumer; servers wait for twenty and more


class Kept(Protocol):
    """A connection."""

    lock: threading.Lock  # its holder reads the connection
    served: float  # when it was last read, by the monotonic clock

    def catch_up(self) -> None:
        """Receive what has arrived. The caller holds `lock`."""

    def settle(self) -> None:
        """Called after `lock` is released."""

    def drop(self) -> None:
        """Close it in this process, a forked child. It stays open in the parent."""


class Maintained:
    """An object that needs periodic work, also while it is in use."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.served = -math.inf

    def catch_up(self) -> None:
        """Do the periodic work. Other threads may use the object at the same time."""

    def settle(self) -> None:
        """Do nothing: no work waits for `lock`."""

    def drop(self) -> None:
        """Do nothing: a child has no work."""


class _Maintenance:
    """The thread, which ends when there are no objects to serve."""

    def __init__(self) -> None:
        self._links: weakref.WeakSet[Kept] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._runs = False

    def add(self, link: Kept) -> None:
        with self._lock:
            self._links.add(link)
            if not self._runs:
                threading.Thread(target=self._run, name="bowstring keeps", daemon=True).start()
                self._runs = True

    def _run(self) -> None:
        while True:
            time.sleep(LULL / 2)
            with self._lock:
                links = list(self._links)
                self._runs = bool(links)
            if not links:
                return
            while links:
                _serve(links.pop())

    def forget(self) -> None:
        """Close the parent's connections in this process."""
        for link in list(self._links):
            link.drop()


def _serve(link: Kept) -> None:
    if time.monotonic() - link.served < LULL or not link.lock.acquire(blocking=False):
        return
    try:
        with contextlib.suppress(Exception):  # the next reader gets the error
            link.catch_up()
    finally:
        link.lock.release()
        link.settle()


_maintenance = _Maintenance()


def keep(link: Kept) -> None:
    """Serve a connection as long as something else refers to it."""
    _maintenance.add(link)


def _in_child() -> None:
    global _maintenance
    parent, _maintenance = _maintenance, _Maintenance()
    parent.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
