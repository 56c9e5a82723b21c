"""How a batch gets from a worker of a DataLoader to its main process: by memory that both have, and that is used again.

torch makes a new shared file for each tensor, whose pages the kernel has to find and clear: for batches of photographs
that costs several times as much as to receive them. Here a worker keeps a few segments. Data from the network is
received into one of them, and goes to the main process without a copy. Data that the worker has made is copied into
one. The main process maps each segment once; its tensors point into it, and when the last of them is gone the segment
is free.
"""

from __future__ import annotations

import mmap
import os
import secrets
import sys
import threading
import weakref
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from bowstring._transport import buffers
from bowstring.torch._columns import Batch, Blobs

SMALL = 32 << 10  # bytes of a batch that go with the message
HEADER = 64
GRAIN = 2 << 20
IDLE = 8  # segments that are kept though they are free

# Linux has memory that is a file without a name, so that nothing is left behind by a process that is killed, and no
# limit of /dev/shm, which is 64 MB in a container, stands in the way.
AVAILABLE = sys.platform == "linux" and hasattr(os, "memfd_create")


def shared(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in memory that processes which are given it share."""
    tensor.share_memory_()  # type: ignore[no-untyped-call]
    return tensor


class _Tensor:
    """A tensor's place in what is sent: in what was copied, or in the segment that it came in."""

    __slots__ = ("dtype", "landed", "offset", "shape")

    def __init__(self, landed: bool, offset: int, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        self.landed = landed
        self.offset = offset
        self.dtype = dtype
        self.shape = shape

    def __reduce__(self) -> tuple[Any, ...]:
        return _Tensor, (self.landed, self.offset, self.dtype, self.shape)


class _Layout:
    """Where the tensors of a batch are, or go, one after another."""

    def __init__(self, pool: _Pool) -> None:
        self.size = 0  # of what is copied
        self.tensors: list[tuple[int, torch.Tensor]] = []  # that are
        self.landed: _Segment | None = None  # where others are already
        self._pool = pool

    def skeleton(self, value: Any) -> Any:
        """The value with places instead of tensors."""
        if isinstance(value, torch.Tensor):
            if value.device.type != "cpu" or value.layout != torch.strided or value.requires_grad or value.is_quantized:
                return value  # torch's own way
            offset = self._landed(value)
            landed = offset is not None
            if offset is None:
                offset = self.size
                self.tensors.append((offset, value))
                self.size = offset + -(-value.numel() * value.element_size() // 64) * 64
            return _Tensor(landed, offset, value.dtype, tuple(value.shape))
        if isinstance(value, Blobs):
            return type(value)(self.skeleton(value.data), self.skeleton(value.offsets))
        if type(value) is dict:
            return {name: self.skeleton(v) for name, v in value.items()}
        if type(value) in (list, tuple):
            if isinstance(value[0] if value else None, str):
                return value
            return type(value)(self.skeleton(v) for v in value)
        return value

    def _landed(self, tensor: torch.Tensor) -> int | None:
        """The location of a tensor in the segment that it came in. A batch is sent with one of these."""
        if not tensor.numel() or not tensor.is_contiguous():
            return None
        segment = self._pool.segment_at(tensor.data_ptr())
        if segment is None or self.landed not in (None, segment) or segment.busy[0]:
            return None  # the last: another batch of it is on its way
        self.landed = segment
        return tensor.data_ptr() - segment.address

    def write(self, memory: torch.Tensor) -> None:
        """Copy the tensors to their places."""
        for offset, tensor in self.tensors:
            if tensor.numel():
                size = tensor.numel() * tensor.element_size()
                memory[offset : offset + size].view(tensor.dtype).view(tensor.shape).copy_(tensor)


def _fleshed(value: Any, copied: torch.Tensor, landed: torch.Tensor) -> Any:
    """The opposite of a skeleton."""
    if isinstance(value, _Tensor):
        count = 1
        for n in value.shape:
            count *= n
        if not count:
            return torch.empty(value.shape, dtype=value.dtype)
        memory, size = landed if value.landed else copied, count * value.dtype.itemsize
        return memory[value.offset : value.offset + size].view(value.dtype).view(value.shape)
    if isinstance(value, Blobs):
        return type(value)(_fleshed(value.data, copied, landed), _fleshed(value.offsets, copied, landed))
    if type(value) is dict:
        return {name: _fleshed(v, copied, landed) for name, v in value.items()}
    if type(value) in (list, tuple):
        if isinstance(value[0] if value else None, str):
            return value
        return type(value)(_fleshed(v, copied, landed) for v in value)
    return value


class _Segment:
    """A piece of shared memory. Its first word is 1 while the main process may have a batch in it, else 0."""

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.size = size
        self.map = mmap.mmap(fd, HEADER + size)
        self.busy = np.frombuffer(self.map, np.int64, 1)
        self.address: int = self.busy.ctypes.data + HEADER
        # Only in a worker.
        self.number = -1
        self.known = False  # to the main process
        self.held = False  # something of this process's is in it

    def memory(self, size: int) -> torch.Tensor:
        return torch.from_numpy(np.frombuffer(self.map, np.uint8, size, HEADER))

    def view(self, size: int) -> memoryview:
        return memoryview(self.map)[HEADER : HEADER + size]


class _Pool:
    """The segments of a worker: blocks that messages land in, too."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.name = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._segments: dict[int, _Segment] = {}
        self._made = 0
        self._gone: list[int] = []  # that the main process has still to forget

    def take(self, size: int) -> _Segment:
        """A free segment, which this process has until it gives it back."""
        with self._lock:
            free = [s for s in self._segments.values() if not s.held and not s.busy[0]]
            fitting = sorted((s for s in free if s.size >= size), key=lambda s: (s.size, s.number))
            for s in fitting[IDLE:] if fitting else free:
                os.close(self._segments.pop(s.number).fd)
                if s.known:
                    self._gone.append(s.number)
            segment = fitting[0] if fitting else self._new(size)
            segment.held = True
            return segment

    def _new(self, size: int) -> _Segment:
        capacity = -(-(size + size // 4) // GRAIN) * GRAIN
        fd = os.memfd_create("bowstring", os.MFD_CLOEXEC)
        os.ftruncate(fd, HEADER + capacity)
        segment = self._segments[self._made] = _Segment(fd, capacity)
        segment.number = self._made
        self._made += 1
        return segment

    def give(self, block: Any) -> None:
        """Nothing of the process is in a segment any more. Called from the collector, too: so it takes no lock."""
        block.held = False

    def segment_at(self, address: int) -> _Segment | None:
        """The segment that contains an address."""
        with self._lock:
            for s in self._segments.values():
                if s.held and 0 <= address - s.address < s.size:
                    return s
        return None

    def sent(self, segment: _Segment) -> tuple[int, Any, int]:
        """Say which segment is sent. From now on the main process has it, too, until it says otherwise."""
        segment.busy[0] = 1
        handle = None if segment.known else DupFd(segment.fd)
        segment.known = True
        return segment.number, handle, segment.size

    def gone(self) -> list[int]:
        """Segments that the main process has to forget."""
        with self._lock:
            gone, self._gone = self._gone, []
        return gone


_pool: _Pool | None = None
_peers: dict[tuple[int, str], dict[int, _Segment]] = {}  # in the main process: by worker, what was mapped
_peers_lock = threading.Lock()


def _own() -> _Pool:
    """The segments of this worker."""
    global _pool
    if _pool is None or _pool.pid != os.getpid():
        _pool = _Pool()
    return _pool


def _blocks() -> buffers.Blocks:
    """Where a new stream's messages land."""
    return _own() if AVAILABLE and get_worker_info() is not None else buffers.Private()


buffers.set_source(_blocks)


def _reduce(batch: Batch) -> tuple[Any, ...]:
    """The description of a batch that is sent by a queue of multiprocessing's."""
    about = {name: value for name, value in batch.__dict__.items() if name != "valid"}
    if not AVAILABLE or get_worker_info() is None:
        return _plain, (dict(batch), batch.valid, about)
    pool = _own()
    layout = _Layout(pool)
    body = layout.skeleton(dict(batch)), layout.skeleton(batch.valid), about
    landed = None if layout.landed is None else pool.sent(layout.landed)
    copied: bytearray | tuple[int, Any, int]
    if layout.size <= SMALL:
        inline = torch.empty(layout.size, dtype=torch.uint8)
        layout.write(inline)
        copied = bytearray(inline.numpy().tobytes())
    else:
        segment = pool.take(layout.size)
        layout.write(segment.memory(layout.size))
        copied = pool.sent(segment)
        pool.give(segment)
    return _received, ((pool.pid, pool.name), pool.gone(), copied, landed, *body)


def _plain(columns: dict[str, Any], valid: dict[str, Any], about: dict[str, Any]) -> Batch:
    batch = Batch(columns)
    batch.__dict__.update(about)
    batch.valid = valid
    return batch


def _received(
    worker: tuple[int, str],
    gone: list[int],
    copied: bytearray | tuple[int, Any, int],
    landed: tuple[int, Any, int] | None,
    columns: Any,
    valid: Any,
    about: dict[str, Any],
) -> Batch:
    """The batch, in the main process."""
    with _peers_lock:
        if worker not in _peers:
            for other in [peer for peer in _peers if not os.path.exists(f"/proc/{peer[0]}")]:  # noqa: PTH110
                del _peers[other]
        mapped = _peers.setdefault(worker, {})
        for n in gone:
            mapped.pop(n, None)  # unmapped when its last tensor goes
        memories = [
            sent if isinstance(sent, bytearray) else _mapped(mapped, *sent) for sent in (copied, landed or bytearray())
        ]
    tensors = [_tensor(memory) for memory in memories]
    return _plain(_fleshed(columns, *tensors), _fleshed(valid, *tensors), about)


def _mapped(mapped: dict[int, _Segment], number: int, handle: Any, size: int) -> _Segment:
    if handle is not None:
        fd = handle.detach()
        mapped[number] = _Segment(fd, size)
        os.close(fd)
    return mapped[number]


def _tensor(memory: bytearray | _Segment) -> torch.Tensor:
    """Memory as a tensor. Anything that points into it keeps it alive."""
    if isinstance(memory, bytearray):
        return torch.frombuffer(memory, dtype=torch.uint8) if memory else torch.empty(0, dtype=torch.uint8)
    array = np.frombuffer(memory.map, np.uint8, memory.size, HEADER)
    # torch keeps the array for as long as a tensor points into it.
    finalizer = weakref.finalize(array, _release, memory, os.getpid())
    finalizer.atexit = False
    return torch.from_numpy(array)


def _release(segment: _Segment, pid: int) -> None:
    if os.getpid() == pid:  # a child that was forked has the tensors too, but not the say
        segment.busy[0] = 0


ForkingPickler.register(Batch, _reduce)
