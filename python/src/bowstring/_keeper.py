"""The thread that looks after connections which nobody reads at the moment, and memory that servers share.

A server asks now and then whether its client is still there, and takes one for dead whose socket stays full. So where a
consumer has not come for some seconds, what has arrived is taken in, as far as the server may send ahead.
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

    lock: threading.Lock  # who has it reads
    looked: float  # when it was last read, by the monotonic clock

    def catch_up(self) -> None:
        """Take in what has come. The caller holds `lock`."""

    def settle(self) -> None:
        """`lock` was let go of."""

    def drop(self) -> None:
        """Close it in this process, a forked child. It goes on in the parent."""


class Tended:
    """Something else that is looked at now and then, whoever uses it meanwhile."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.looked = -math.inf

    def catch_up(self) -> None:
        """Do what is to be done now and then, at any time beside those who use it."""

    def settle(self) -> None:
        """Nothing has waited for `lock`."""

    def drop(self) -> None:
        """Nothing is to be done in a child."""


class _Keeper:
    """The thread, which ends when there is nothing to look after."""

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
                _look(links.pop())

    def forget(self) -> None:
        """Close those of the process that this one is a child of."""
        for link in list(self._links):
            link.drop()


def _look(link: Kept) -> None:
    if time.monotonic() - link.looked < LULL or not link.lock.acquire(blocking=False):
        return
    try:
        with contextlib.suppress(Exception):  # who reads it next is told
            link.catch_up()
    finally:
        link.lock.release()
        link.settle()


_keeper = _Keeper()


def keep(link: Kept) -> None:
    """Look after a connection for as long as there is something else that knows it."""
    _keeper.add(link)


def _in_child() -> None:
    global _keeper
    parent, _keeper = _keeper, _Keeper()
    parent.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
