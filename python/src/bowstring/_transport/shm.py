"""Memory that a server on this node shares, so that blobs need no copy through TCP.

Such a server announces its socket. Each stream uses a ring of the process: memory that the server writes. A batch's
metadata says where the large buffers are in it. The server may overwrite a slot when the last buffer over it is
collected.

The ring is mapped copy-on-write. A program that changes a batch in place, as torch allows for all tensors, changes a
copy of the page that the kernel makes for this process; the server and other processes do not see it. Such a copy would
hide what the server writes there next. So the pages of each new slot are checked, and copies are dropped. A slot has
pages of its own, so that no other batch loses its changes.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import mmap
import os
import select
import socket
import struct
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pyarrow as pa

from bowstring._finalizers import finalizer
from bowstring._transport import maintenance
from bowstring._transport.shm_auth import Endpoint, authenticate, received
from bowstring.errors import Unavailable

LARGE = 64 << 10  # bytes from which a buffer uses shared memory
_RECORD = struct.Struct("<B7xQ")
_TAKEN, _RELEASED, _ENDED = 1, 2, 3
_PATIENCE = 10.0  # seconds for the server to pass a ring, or to receive messages; as long as it waits for a client
_MOST_RECORDS = 256  # per message to the server
_PAGE = mmap.PAGESIZE
# By the highest byte of an entry of /proc/self/pagemap: whether a page is present or swapped out, and not the file's.
_COPIED = np.array([byte & 0xC0 != 0 and byte & 0x20 == 0 for byte in range(256)])
_HIGHEST = slice(7 if sys.byteorder == "little" else 0, None, 8)


class _Lease:
    """A slot in use. When nothing refers to it any more, the server is notified."""

    __slots__ = ("_forks", "_number", "_refers", "_ring")

    def __init__(self, ring: Ring, number: int, refers: bool = False) -> None:
        self._ring = ring
        self._number = number
        self._forks = ring.forks
        self._refers = refers
        ring.leases += 1
        if refers:
            ring.referring.add(number)

    @finalizer
    def __del__(self) -> None:
        if self._forks == self._ring.forks:
            self._ring.leases -= 1
            self._ring.say(_RELEASED, self._number)
        # Otherwise a child forked in between may still read it: it stays until the ring's end.
        if self._refers:
            self._ring.forget(self._number)


class _Mapped:
    """A file of the server, mapped for reading up to its largest possible size."""

    __slots__ = ("_end", "address", "length")

    def __init__(self, descriptor: int, length: int) -> None:
        # Not by `mmap`, which requires that the file has the mapped size already.
        address = _libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), f"a file of the server's of {length} bytes cannot be mapped")
        self.address: int = address
        self.length = length
        self._end = _libc.munmap  # bound here, so that it exists when the interpreter exits

    @finalizer
    def __del__(self) -> None:
        if hasattr(self, "address"):
            self._end(self.address, self.length)


if sys.platform == "linux":
    _libc = ctypes.CDLL(None, use_errno=True)
    _libc.mmap.restype = ctypes.c_void_p
    _libc.mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    )
    _libc.munmap.argtypes = _libc.munlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


def _writable(descriptor: int, length: int) -> mmap.mmap:
    """A ring, mapped so that writes go to a private copy."""
    # Not reserved: few programs change batches in place, and only few at a time.
    flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0x4000)
    return mmap.mmap(descriptor, length, flags, mmap.PROT_READ | mmap.PROT_WRITE)


class _Pages:
    """The kernel's information about the pages mapped at an address."""

    def __init__(self, address: int) -> None:
        self._first, self._map = address // _PAGE, -1
        with contextlib.suppress(OSError):  # a sandbox without it
            self._map = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)

    def copied(self, offset: int, length: int) -> bool:
        """Whether a page may be a private copy. True if the kernel does not report it."""
        pages = length // _PAGE
        try:
            said = os.pread(self._map, 8 * pages, 8 * (self._first + offset // _PAGE))
        except OSError:
            return True
        return len(said) < 8 * pages or bool(_COPIED[np.frombuffer(said, np.uint8)[_HIGHEST]].any())

    @finalizer
    def __del__(self) -> None:
        if self._map >= 0:
            os.close(self._map)


class Ring(maintenance.Maintained):
    """Memory that a server shares with this process. One stream at a time uses it.

    The mapping lives as long as anything refers to it, even after the server has ended.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__()
        self.leases = 0  # slots in use by this process
        self.rested = 0.0  # since when it has been idle, by the monotonic clock
        self.whole = True  # every file that the server has passed, which it does once, was received
        self.forks = 0  # number of forks while slots were in use
        self.referring: set[int] = set()  # slots in use, also from before a fork, that refer to files
        self._files: dict[int, _Mapped] = {}
        self._closing = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        self._calls = 0
        self._pid = os.getpid()
        # The garbage collector reports buffers at any time, even during another report, so a deque collects the
        # reports. One thread at a time sends them, in order: if a slot were reported as taken after its call's end, the
        # server would overwrite it.
        self._unsaid: collections.deque[bytes] = collections.deque()
        self._saying = threading.Lock()
        try:
            self._socket.settimeout(_PATIENCE)
            self._socket.connect(endpoint.path)
            authenticate(self._socket, endpoint)
            given, descriptors = received(self._socket)
            said = given or {}
            try:
                if "ring" not in said or len(descriptors) != 1:
                    raise OSError(str(said.get("error", "the server shares no memory")))
                self._memory = _writable(descriptors[0], said["bytes"])
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
            self.name: str = said["ring"]
            self._socket.setblocking(False)
            self._address: int = pa.py_buffer(self._memory).address
            self._pages = _Pages(self._address)
            _rings.add(self)
        except BaseException:
            self._socket.close()
            raise
        maintenance.keep(self)

    def catch_up(self) -> None:
        """Send pending reports, because there may be no other occasion for long."""
        if self._pid == os.getpid():
            self._send_reports()

    def begin(self) -> str:
        """The header of the next call."""
        self._calls += 1
        return f"{self.name}/{self._calls}"

    def end(self) -> None:
        """Report the end of the calls so far: no more slots are taken from them."""
        self.say(_ENDED, self._calls)

    def take(self, shared: dict[str, Any]) -> _Lease:
        """Take the slot of a batch. The report is sent with the next one, or before waiting for the server."""
        number = shared["slot"]
        if self._pid == os.getpid():
            self._unsaid.append(_RECORD.pack(_TAKEN, number))
        lease = _Lease(self, number, "references" in shared)
        self._fresh(shared)
        return lease

    def _fresh(self, shared: dict[str, Any]) -> None:
        """Drop private copies of a slot's pages, which were made when an earlier batch was changed in place."""
        parts = [(offset, length) for _, offset, length in shared["buffers"]]
        for said in shared.get("references", ()):
            parts += [said["views"], said["data"], said["table"]]
        first = min((offset for offset, length in parts if length), default=0) // _PAGE * _PAGE
        end = max((offset + length for offset, length in parts if length), default=0)
        if not 0 <= first <= end <= len(self._memory):
            raise OSError(f"the server names {end - first} bytes at {first} of {len(self._memory)} that it shares")
        length = min(-(-end // _PAGE) * _PAGE, len(self._memory)) - first
        if length and self._pages.copied(first, length):
            try:
                self._memory.madvise(mmap.MADV_DONTNEED, first, length)
            except OSError:  # the process has locked its memory
                _libc.munlock(self._address + first, length)
                self._memory.madvise(mmap.MADV_DONTNEED, first, length)

    def forget(self, number: int) -> None:
        """Release a slot that refers to files."""
        self.referring.discard(number)
        if self._closing and not self.referring:
            self._socket.close()

    def _hear(self) -> bool:
        """Receive a file that the server passes. False if it has closed its side; BlockingIOError if there is none."""
        whole, self.whole = self.whole, False  # also if a signal comes in between
        try:
            said, descriptors = received(self._socket, socket.MSG_DONTWAIT)
        except BlockingIOError:
            self.whole = whole
            raise
        try:
            if said is None:
                return False
            if "file" not in said or len(descriptors) != 1:
                raise OSError("the server says what is not understood")
            for gone in said.get("forget", ()):
                self._files.pop(gone, None)
            self._files[said["file"]] = _Mapped(descriptors[0], said["bytes"])
            self.whole = whole
            return True
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _file(self, number: int) -> _Mapped:
        """A file that the server has passed before it referred to it.

        If this process could not receive it, streams can no longer use the ring.
        """
        try:
            while number not in self._files:
                if not self._hear():
                    raise OSError("the server is gone before it has handed over what it names")  # noqa: TRY301
        except OSError as error:
            self.whole = False
            raise Unavailable(f"a file of the server's cannot be read here: {error.strerror or error}") from error
        return self._files[number]

    def referred(self, lease: _Lease, table: tuple[int, int]) -> list[pa.Buffer]:
        """The blobs in files, each as a buffer that keeps the slot and the files' mappings."""
        entries = np.frombuffer(self.buffer(lease, *table), "<i8").reshape(-1, 3).tolist()
        files = {number: self._file(number) for number in {entry[0] for entry in entries}}
        holder = files, lease
        buffers = []
        foreign = pa.foreign_buffer
        for number, offset, length in entries:
            mapped = files[number]
            if not 0 <= offset <= offset + length <= mapped.length:
                raise OSError(f"the server names {length} bytes at {offset} of a file of {mapped.length}")
            buffers.append(foreign(mapped.address + offset, length, holder))
        return buffers

    def buffer(self, lease: _Lease, offset: int, length: int) -> pa.Buffer:
        """A part of a slot, which it keeps in use."""
        if offset < 0 or length < 0 or offset + length > len(self._memory):
            raise OSError(f"the server names {length} bytes at {offset} of {len(self._memory)} that it shares")
        return pa.foreign_buffer(self._address + offset, length, lease)

    def say(self, what: int, number: int) -> None:
        """Send a report to the server, now or with the next one."""
        if self._pid != os.getpid():
            return  # a fork has copied the buffers, but the slot is the parent's
        self._unsaid.append(_RECORD.pack(what, number))
        self._send_reports()

    def _send_reports(self) -> bool:
        """Send pending reports as far as the socket has room. False if it had none."""
        while self._unsaid and self._saying.acquire(blocking=False):  # otherwise the other thread sends this one, too
            said: list[bytes] = []
            try:
                while self._unsaid:
                    with contextlib.suppress(IndexError):
                        said.extend(self._unsaid.popleft() for _ in range(min(len(self._unsaid), _MOST_RECORDS)))
                    self._socket.send(b"".join(said), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                    said.clear()
            except BlockingIOError:
                self._unsaid.extendleft(reversed(said))
                return False
            except (OSError, ValueError):  # the server is gone, with its memory; or the interpreter exits
                pass
            finally:
                self._saying.release()
        return True

    def flush(self) -> None:
        """Send all pending reports, before waiting for the server, which may wait for them."""
        if self._pid != os.getpid():
            return
        with contextlib.suppress(OSError, ValueError):
            while not self._send_reports():
                room = select.poll()
                room.register(self._socket, select.POLLOUT)
                if not room.poll(_PATIENCE * 1000):
                    return

    @property
    def alive(self) -> bool:
        """Whether the server still has the ring, and this process made it and has received all files."""
        if self._pid != os.getpid():
            return False
        try:
            while self.whole and self._hear():  # files for a stream that has ended before it used them
                pass
        except BlockingIOError:
            return self.whole
        except OSError:
            pass
        return False

    @property
    def left(self) -> bool:
        """Whether the server has closed its side. It receives nothing, so any thread may call it."""
        ended = select.poll()
        ended.register(self._socket, select.POLLRDHUP)
        return bool(ended.poll(0))

    def close(self) -> None:
        """Return the ring to the server. The mapping stays until the last buffer is collected.

        If buffers refer to files of the server, the socket also stays open that long, in each process that has them:
        the server does not change those files until then.
        """
        self._closing = True
        if not self.referring:
            self._socket.close()

    def unmap(self) -> None:
        """Unmap the memory, once no slot is in use: the server counts it as long as a process has it."""
        with contextlib.suppress(BufferError, ValueError):
            self._memory.close()


# All rings of the process, for forks.
_rings: weakref.WeakSet[Ring] = weakref.WeakSet()


def _before_fork() -> None:
    for ring in list(_rings):
        if ring.leases:
            ring.forks, ring.leases = ring.forks + 1, 0


def _in_child() -> None:
    for ring in list(_rings):
        ring.close()  # it stays open in the parent, which owns it; unless this process reads files of the server
        if not (ring.leases or ring.forks or ring.referring):
            ring.unmap()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_in_child)
