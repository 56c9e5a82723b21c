"""Uploads and forks: gRPC's state does not work in a forked child, not even for new connections.

All calls except uploads use the package's own connections, and survive a fork. An upload uses a FlightClient of
pyarrow, and so gRPC. gRPC's threads exist only in the parent, and a child that connects waits for them forever. So
before this process forks, each FlightClient that the package holds is released, and its threads are waited for, some
milliseconds. Streams are released, too, because their memory may be a server's, and continue by their tickets.
PyTorch's DataLoader forks.

The program may have objects of gRPC's, too, such as a FlightClient of its own. A FlightClient joins a thread when it is
destroyed. Only the parent has that thread, so a child that destroyed its copy would hang or end with SIGABRT. The
garbage collector may destroy the copy at any time. So if gRPC has threads at the fork, the child never collects what
its parent has made.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import threading
import time
import weakref
from typing import Protocol

# The hook of `shm` is registered first and so runs last, when no stream takes a slot of a ring any more.
from bowstring._transport import shm  # noqa: F401
from bowstring.errors import BowstringError

_LOG = logging.getLogger("bowstring.fork")
_LULL = 0.01  # seconds
_PATIENCE = 3.0  # seconds for gRPC's threads to end; they take 2 to 4 ms on an idle machine
# Names of gRPC's threads on Linux. The last of them to end, grpc_shutdown, holds a lock that a child would wait for.
_THREADS = {"event_engine", "lifeguard", "grpc_global_tim", "grpc_shutdown"}


class Holder(Protocol):
    """An object that is released before a fork."""

    def _release(self) -> None:
        """Release the resource; it is made again when it is needed."""


class _State:
    """State of the hooks. A child has a new one, as the thread with the parent's lock is not in the child."""

    def __init__(self) -> None:
        # Held during a fork, and while connections change; never while waiting for a server
        self.gate = threading.RLock()
        self.holders: weakref.WeakSet[Holder] = weakref.WeakSet()
        self.others: set[str] = set()  # gRPC threads that are not this package's
        self.used = False  # this package has used gRPC
        self.uploads = 0
        self.busy = False  # gRPC had threads at the fork
        self.poisoned = ""  # why gRPC does not work in this process


_state = _State()


def keep_forever(thing: object) -> None:
    """Keep an object that must not be destroyed, not even when the process ends.

    An object that gRPC made before a fork waits, when it is destroyed, for threads that only the parent has.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def connecting() -> threading.RLock:
    """Hold this lock while connections change, and never during a wait."""
    return _state.gate


def check() -> None:
    """Raise an error if gRPC does not work in this process. Call it before a FlightClient is made."""
    if _state.poisoned:
        raise BowstringError(_state.poisoned)
    if not _state.used:
        _state.used, _state.others = True, _threads()


def hold(holder: Holder) -> None:
    """Release this object before the process forks."""
    _state.holders.add(holder)


class uploading:  # noqa: N801
    """A running upload, which cannot be repeated as a stream can: a child that is forked during it cannot upload."""

    def __enter__(self) -> None:
        with _state.gate:
            _state.uploads += 1

    def __exit__(self, *_: object) -> None:
        with _state.gate:
            _state.uploads -= 1


def _threads() -> set[str]:
    """The ids of this process's threads that are gRPC's."""
    found = set()
    with contextlib.suppress(OSError):  # not Linux
        for thread in os.listdir("/proc/self/task"):  # noqa: PTH208 - this may run often
            with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/comm") as file:  # noqa: PTH123
                if file.read().strip() in _THREADS:
                    found.add(thread)  # else it has ended
    return found


def _before() -> None:
    _state.gate.acquire()
    if _state.holders:
        _LOG.debug("the process forks: its streams go on by new connections")
    for holder in list(_state.holders):
        holder._release()
    if _state.used and not _state.uploads and not _quiet(0.1):
        gc.collect()  # the traceback of an error may still hold a call
        if not _quiet(_PATIENCE):
            _LOG.debug("the process forks while gRPC has threads that are not of this package's connections")
    _state.others = _threads()
    _state.busy = bool(_state.others)


def _quiet(seconds: float) -> bool:
    """Wait until gRPC's threads have ended. One may begin as others end, so there has to be none for a while."""
    now = since = time.monotonic()
    end = now + seconds
    while now - since < _LULL:
        time.sleep(0.001)
        now = time.monotonic()
        if _threads() - _state.others:
            since = now
            if now > end:
                return False
    return True


def _in_parent() -> None:
    _state.gate.release()


def _in_child() -> None:
    global _state
    parent, _state = _state, _State()
    _state.poisoned = parent.poisoned
    if parent.busy:
        gc.freeze()  # `keep_forever` for all that the parent has made; its pages stay shared with the parent, too
    if parent.uploads:
        _state.poisoned = (
            "this process was forked while an upload was running in its parent, so gRPC does not work in it, and it "
            "cannot upload; fork before the upload, or start processes by `spawn`"
        )
    elif parent.busy:
        _state.poisoned = (
            "this process was forked while its parent had a connection of gRPC's that is not this package's, such as a "
            "pyarrow.flight.FlightClient, so it cannot upload; close that before, or start processes by `spawn`"
        )


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
