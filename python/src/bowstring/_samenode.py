"""Memory that a server on this node shares, so that blobs come without a copy through TCP.

A server that serves so says where its socket is. Each stream borrows a ring of the process: memory that the server
writes. A batch's metadata says where in it the large buffers lie. A slot is the server's to write again when the last
buffer over it is collected.

The ring is mapped copy-on-write. A program that changes a batch in place, as torch allows for all tensors, changes a
copy of the page that the kernel makes for this process; the server and other processes do not see it. Such a copy would
hide what the server writes there next. So each slot that comes is looked at, and copies of its pages are dropped. A
slot has pages of its own, so that no other batch loses its changes.
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

from bowstring import _keeper
from bowstring._collected import collected
from bowstring._greeting import Place, greet, received
from bowstring.errors import Unavailable

LARGE = 64 << 10  # bytes of a buffer that goes by shared memory
_RECORD = struct.Struct("<B7xQ")
_TAKEN, _RELEASED, _ENDED = 1, 2, 3
_PATIENCE = 2.0  # seconds for the server to hand a ring over, or to take what it is told
_MOST_RECORDS = 256  # of a message to the server
_PAGE = mmap.PAGESIZE
# By the highest byte of an entry of /proc/self/pagemap: whether a page is there, or swapped out, and is not the file's.
_COPIED = np.array([byte & 0xC0 != 0 and byte & 0x20 == 0 for byte in range(256)])
_HIGHEST = slice(7 if sys.byteorder == "little" else 0, None, 8)


class _Lease:
    """A slot that this process has. When nothing refers to it any more, the server is told."""

    __slots__ = ("_forks", "_number", "_refers", "_ring")

    def __init__(self, ring: Ring, number: int, refers: bool = False) -> None:
        self._ring = ring
        self._number = number
        self._forks = ring.forks
        self._refers = refers
        ring.leases += 1
        if refers:
            ring.referring.add(number)

    @collected
    def __del__(self) -> None:
        if self._forks == self._ring.forks:
            self._ring.leases -= 1
            self._ring.say(_RELEASED, self._number)
        # Else a child that was forked meanwhile may read it still: it stays until the ring's end.
        if self._refers:
            self._ring.forget(self._number)


class _Mapped:
    """A file of the server's, mapped for reading as far as it may ever reach."""

    __slots__ = ("_end", "address", "length")

    def __init__(self, descriptor: int, length: int) -> None:
        # Not by `mmap`: that wants a file to be as long as it is mapped already.
        address = _libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), f"a file of the server's of {length} bytes cannot be mapped")
        self.address: int = address
        self.length = length
        self._end = _libc.munmap  # is there as long as this is, also when the interpreter ends

    @collected
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
    """A ring, mapped so that a write goes to a copy of this process's own."""
    # Not reserved: few programs change batches in place, and those change few at a time.
    flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0x4000)
    return mmap.mmap(descriptor, length, flags, mmap.PROT_READ | mmap.PROT_WRITE)


class _Pages:
    """What the kernel says of pages that are mapped at an address."""

    def __init__(self, address: int) -> None:
        self._first, self._map = address // _PAGE, -1
        with contextlib.suppress(OSError):  # a sandbox without it
            self._map = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)

    def copied(self, offset: int, length: int) -> bool:
        """Whether a page may be a copy of this process's own. True where the kernel does not say."""
        pages = length // _PAGE
        try:
            said = os.pread(self._map, 8 * pages, 8 * (self._first + offset // _PAGE))
        except OSError:
            return True
        return len(said) < 8 * pages or bool(_COPIED[np.frombuffer(said, np.uint8)[_HIGHEST]].any())

    @collected
    def __del__(self) -> None:
        if self._map >= 0:
            os.close(self._map)


class Ring(_keeper.Tended):
    """Memory shared by one server with this process. It is used by one stream at a time.

    The mapping lives as long as anything refers to it, whatever becomes of the server.
    """

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.leases = 0  # slots that this process has
        self.rested = 0.0  # since when no stream has it, by the monotonic clock
        self.whole = True  # nothing was lost of what the server has handed over, which it does once
        self.forks = 0  # how often it forked while it had some
        self.referring: set[int] = set()  # slots that this process has, from before a fork too, which refer to files
        self._files: dict[int, _Mapped] = {}
        self._closing = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        self._calls = 0
        self._pid = os.getpid()
        # Collected buffers say so at any time, also in the middle of saying something else: a deque takes it whole. One
        # at a time says what is there, in its order: were a slot taken after its call's end, the server would write it.
        self._unsaid: collections.deque[bytes] = collections.deque()
        self._saying = threading.Lock()
        try:
            self._socket.settimeout(_PATIENCE)
            self._socket.connect(place.path)
            greet(self._socket, place)
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
        _keeper.keep(self)

    def catch_up(self) -> None:
        """Tell the server what is unsaid. Nothing else may come to be said for long."""
        if self._pid == os.getpid():
            self._tell()

    def begin(self) -> str:
        """The header of the next call."""
        self._calls += 1
        return f"{self.name}/{self._calls}"

    def end(self) -> None:
        """Nothing more is taken of the calls so far."""
        self.say(_ENDED, self._calls)

    def take(self, shared: dict[str, Any]) -> _Lease:
        """The slot of a batch that has come. The server is told with what is said next, or before it is waited for."""
        number = shared["slot"]
        if self._pid == os.getpid():
            self._unsaid.append(_RECORD.pack(_TAKEN, number))
        lease = _Lease(self, number, "references" in shared)
        self._fresh(shared)
        return lease

    def _fresh(self, shared: dict[str, Any]) -> None:
        """Drop the copies of a slot's pages that were made as an earlier batch was changed in place."""
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
        """A slot that refers to files is let go."""
        self.referring.discard(number)
        if self._closing and not self.referring:
            self._socket.close()

    def _hear(self) -> bool:
        """Take a file that the server has handed over. False if it has ended its side; BlockingIOError if none came."""
        whole, self.whole = self.whole, False  # also where a signal comes between
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
        """A file that the server has handed over, before it said what lies there.

        Where this process could not take it, the ring is of no more use to streams.
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
        """The blobs that lie in files, each a buffer that keeps the slot and the files' mappings."""
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
        """A part of a slot. It keeps the slot."""
        if offset < 0 or length < 0 or offset + length > len(self._memory):
            raise OSError(f"the server names {length} bytes at {offset} of {len(self._memory)} that it shares")
        return pa.foreign_buffer(self._address + offset, length, lease)

    def say(self, what: int, number: int) -> None:
        """Tell the server. Where it cannot be told now, it is told with what comes next."""
        if self._pid != os.getpid():
            return  # a fork has copied the buffers; the slot is its parent's
        self._unsaid.append(_RECORD.pack(what, number))
        self._tell()

    def _tell(self) -> bool:
        """Send what is unsaid, as far as the socket has room. False if there was none."""
        while self._unsaid and self._saying.acquire(blocking=False):  # else whoever says something says this, too
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
            except (OSError, ValueError):  # the server is gone, and with it what it had; or the interpreter ends
                pass
            finally:
                self._saying.release()
        return True

    def flush(self) -> None:
        """Tell the server all that is unsaid. It may wait for that, so this comes before waiting for the server."""
        if self._pid != os.getpid():
            return
        with contextlib.suppress(OSError, ValueError):
            while not self._tell():
                room = select.poll()
                room.register(self._socket, select.POLLOUT)
                if not room.poll(_PATIENCE * 1000):
                    return

    @property
    def alive(self) -> bool:
        """Whether the server has the ring still, and this process made it, and has all that was handed over."""
        if self._pid != os.getpid():
            return False
        try:
            while self.whole and self._hear():  # of a stream that has ended before it used that
                pass
        except BlockingIOError:
            return self.whole
        except OSError:
            pass
        return False

    @property
    def left(self) -> bool:
        """Whether the server has ended its side. Nothing of what it has said is taken: any thread may ask."""
        ended = select.poll()
        ended.register(self._socket, select.POLLRDHUP)
        return bool(ended.poll(0))

    def close(self) -> None:
        """Let the server have it. What is mapped stays so until the last buffer is collected.

        Where buffers lie in files of the server's, the socket stays open that long, too, in each process that has them:
        the server changes nothing in those meanwhile.
        """
        self._closing = True
        if not self.referring:
            self._socket.close()

    def unmap(self) -> None:
        """Let go of the memory, of which this process has no slot: the server counts it as long as a process has it."""
        with contextlib.suppress(BufferError, ValueError):
            self._memory.close()


# All rings of the process: what a fork has to know of.
_rings: weakref.WeakSet[Ring] = weakref.WeakSet()


def _before_fork() -> None:
    for ring in list(_rings):
        if ring.leases:
            ring.forks, ring.leases = ring.forks + 1, 0


def _in_child() -> None:
    for ring in list(_rings):
        ring.close()  # the parent has it, and its end is the ring's; unless this process reads files of the server's
        if not (ring.leases or ring.forks or ring.referring):
            ring.unmap()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_in_child)
