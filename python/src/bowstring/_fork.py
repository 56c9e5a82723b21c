"""Connections and forks: what gRPC has in memory does not work in a forked child, not even for new connections.

Its threads exist in the parent alone, and a child that connects waits for them for ever. So before this process forks,
everything of gRPC's that the package holds is let go, and its threads are waited for: some milliseconds. Parent and
child then connect anew when they next need to, and streams go on by their tickets. PyTorch's DataLoader forks.

No lock is held while a server is waited for. Calls under way are known here instead: a fork gives their servers a
moment to answer, and then cuts the connections off. What was cut off is made again after the fork.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import os
import socket
import stat
import threading
import time
import weakref
from typing import Protocol

import pyarrow as pa
import pyarrow.flight as fl

# Its hook before a fork is registered first and so runs last: when no stream takes a slot of a ring any more.
from bowstring import _samenode  # noqa: F401
from bowstring.errors import BowstringError

_LOG = logging.getLogger("bowstring.fork")
_LULL = 0.01  # seconds
_ANSWER = 0.5  # seconds for the servers of calls under way to answer
_PATIENCE = 3.0  # seconds for gRPC's threads to end; they take 2 to 4 ms where the machine has time for them
_HANGS = 10.0  # seconds after which a call that takes some ms, on a machine that has time for it, is taken to hang
# gRPC's, as Linux shows their names. The last of them, grpc_shutdown, holds a lock that a child would wait for.
_THREADS = {"event_engine", "lifeguard", "grpc_global_tim", "grpc_shutdown"}


class Holder(Protocol):
    """What holds objects of gRPC's."""

    def _let_go(self) -> None:
        """Drop them; they are made again when they are needed."""


class Call:
    """A call under way, on a connection whose sockets have a mark; `again` says that it may be made twice."""

    __slots__ = ("again", "cut", "mark")

    def __init__(self, mark: int, *, again: bool) -> None:
        self.mark = mark
        self.again = again
        self.cut = False  # its connection was cut off for a fork


class _State:
    """What the hooks share. A child has a new one, as whoever holds the parent's lock is not there."""

    def __init__(self) -> None:
        self.gate = threading.RLock()  # held through a fork, and while an object of gRPC's is made: never for a server
        self.calls: set[Call] = set()
        self.holders: weakref.WeakSet[Holder] = weakref.WeakSet()
        self.others: set[str] | None = None  # threads that are not this package's, as they are there without it
        self.uploads = 0
        self.forked = False  # this is a child
        self.suspect = False  # something was left of gRPC at a fork
        self.poisoned = ""  # why gRPC does not work in this process


_state = _State()


def connecting() -> threading.RLock:
    """Hold this while an object of gRPC's is made, and while nothing is waited for."""
    if _state.suspect and _state.forked:
        _probe()
    if _state.poisoned:
        raise BowstringError(_state.poisoned)
    if _state.others is None:
        _state.others = _threads()
    return _state.gate


def hold(holder: Holder) -> None:
    """Let go what this holds before the process forks."""
    _state.holders.add(holder)


def begin(mark: int, *, again: bool) -> Call:
    """A call begins. The caller holds `connecting()`, and says `end` when it has nothing of gRPC's any more."""
    call = Call(mark, again=again)
    _state.calls.add(call)
    return call


def end(call: Call) -> None:
    """A call has its answer, or has failed."""
    _state.calls.discard(call)


class uploading:  # noqa: N801
    """An upload runs, which cannot be made again as a stream can: a child that is forked meanwhile cannot connect."""

    def __enter__(self) -> None:
        with _state.gate:
            _state.uploads += 1

    def __exit__(self, *_: object) -> None:
        with _state.gate:
            _state.uploads -= 1


def _threads() -> set[str]:
    """The threads of this process that are gRPC's, by id."""
    found = set()
    with contextlib.suppress(OSError):  # not Linux
        for thread in os.listdir("/proc/self/task"):  # noqa: PTH208 - this may run often
            with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/comm") as file:  # noqa: PTH123
                if file.read().strip() in _THREADS:
                    found.add(thread)  # else it has ended
    return found


def _before() -> None:
    _state.gate.acquire()
    if _state.others is None:  # nothing was ever connected here, by this package
        _state.suspect = bool(_threads())
        return
    if _state.holders:
        _LOG.debug("the process forks: its connections are dropped, and its streams go on by new ones")
    for holder in list(_state.holders):
        holder._let_go()
    if _state.uploads:
        return
    silent = set() if _answered(_ANSWER) else _cut_off()
    if not _quiet(0.1, silent):
        gc.collect()  # the traceback of an error may still hold a call
        if not _quiet(_PATIENCE, silent):
            # No warning: those may be Ray's, and in a child that cannot connect an error says why.
            _LOG.debug("the process forks while gRPC has threads that are not of this package's connections")
    # Another gRPC, such as Ray's, does no harm; a FlightClient of the user's own does. A child finds out.
    _state.others = _threads()
    _state.suspect = bool(_state.others)


_marks = itertools.count(1)


def marked() -> tuple[int, list[tuple[str, int]]]:
    """A mark, and gRPC's options that put it on the sockets of a connection.

    It is their TCP_USER_TIMEOUT, a quarter of an hour like that of Linux, and some milliseconds that make it differ.
    gRPC sets it where it would ask a server whether it is there: here in 24 days.
    """
    mark = 900_000 + next(_marks) % 50_000
    never = 2**31 - 1
    return mark, [
        ("grpc.keepalive_time_ms", never - 1),
        ("grpc.keepalive_timeout_ms", mark),
        ("grpc.http2.ping_timeout_ms", never),
    ]


def _answered(seconds: float) -> bool:
    """Wait until no call is under way that may be made again."""
    end = time.monotonic() + seconds
    while any(call.again for call in list(_state.calls)):
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


def _cut_off() -> set[int]:
    """Have calls fail whose servers are silent: pyarrow has no way to end one that has no answer yet. Their marks."""
    kept = {call.mark for call in list(_state.calls) if not call.again}
    silent: set[int] = set()
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        for call in list(_state.calls):
            if call.again and call.mark not in kept:
                if not call.cut:
                    _LOG.info("a call whose server is silent is cut off for a fork, and made again after it")
                call.cut = True
                silent.add(call.mark)
        _shut(silent)
        if not silent or _answered(_LULL):  # else gRPC has tried another address
            break
    return silent


def _shut(marks: set[int]) -> None:
    """Shut the sockets that have one of some marks."""
    with contextlib.suppress(OSError):  # not Linux
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - as above
            with contextlib.suppress(OSError):  # it is closed by now, or of another kind
                number = os.dup(int(name))  # it stays what it is while it is looked at
                if not stat.S_ISSOCK(os.fstat(number).st_mode):
                    os.close(number)
                    continue
                with socket.socket(fileno=number) as found:
                    if found.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) in marks:
                        found.shutdown(socket.SHUT_RDWR)


def _quiet(seconds: float, silent: set[int]) -> bool:
    """Wait until gRPC's threads have ended. One may begin as the others end: so there has to be none for a while.

    What connects to a silent server does not end with its client: its sockets are shut again.
    """
    now = since = time.monotonic()
    end = now + seconds
    while now - since < _LULL:
        time.sleep(0.001)
        now = time.monotonic()
        if _threads() - (_state.others or set()):
            since = now
            if now > end:
                return False
            if silent:
                _shut(silent)
    return True


def _call() -> None:
    with contextlib.suppress(pa.ArrowException, OSError):  # nobody listens there
        list(fl.connect("grpc://127.0.0.1:1").list_actions(fl.FlightCallOptions(timeout=_HANGS / 2)))


def _probe() -> None:
    """Make a call that nobody needs, in a thread that may hang."""
    thread = threading.Thread(target=_call, daemon=True)
    thread.start()
    thread.join(_HANGS)
    if thread.is_alive():
        _state.poisoned = (
            "this process was forked while its parent had a connection of gRPC's that is not this package's, such as a "
            "pyarrow.flight.FlightClient, so gRPC does not work in it; close that before, or start processes by `spawn`"
        )
    _state.suspect = False


def _in_parent() -> None:
    _state.gate.release()


def _in_child() -> None:
    global _state
    parent, _state = _state, _State()
    _state.forked = True
    _state.suspect = parent.suspect
    _state.poisoned = parent.poisoned
    if parent.uploads:
        _state.poisoned = (
            "this process was forked while an upload was running in its parent, so gRPC does not work in it; "
            "fork before the upload, or start processes by `spawn`"
        )


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
