"""How a batch gets from a worker of a DataLoader to its main process: one copy, into memory that is used again.

torch makes a new shared file for each tensor, whose pages the kernel has to find and clear: for batches of photographs
that costs several times as much as to receive them. Here a worker keeps a few segments, copies a batch into one that
is free, and says where it is. The main process maps each segment once; its tensors point into it, and when the last of
them is gone the segment is marked free.
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
    """A tensor's place in what is sent."""

    __slots__ = ("dtype", "offset", "shape")

    def __init__(self, offset: int, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        self.offset = offset
        self.dtype = dtype
        self.shape = shape

    def __reduce__(self) -> tuple[Any, ...]:
        return _Tensor, (self.offset, self.dtype, self.shape)


class _Layout:
    """Where the tensors of a batch go, one after another."""

    def __init__(self) -> None:
        self.size = 0
        self.tensors: list[tuple[int, torch.Tensor]] = []

    def skeleton(self, value: Any) -> Any:
        """The value with places instead of tensors."""
        if isinstance(value, torch.Tensor):
            if value.device.type != "cpu" or value.layout != torch.strided or value.requires_grad or value.is_quantized:
                return value  # torch's own way
            offset = self.size
            self.tensors.append((offset, value))
            self.size = offset + -(-value.numel() * value.element_size() // 64) * 64
            return _Tensor(offset, value.dtype, tuple(value.shape))
        if isinstance(value, Blobs):
            return Blobs(self.skeleton(value.data), self.skeleton(value.offsets))
        if type(value) is dict:
            return {name: self.skeleton(v) for name, v in value.items()}
        if type(value) in (list, tuple):
            if isinstance(value[0] if value else None, str):
                return value
            return type(value)(self.skeleton(v) for v in value)
        return value

    def write(self, memory: torch.Tensor) -> None:
        """Copy the tensors to their places."""
        for offset, tensor in self.tensors:
            if tensor.numel():
                size = tensor.numel() * tensor.element_size()
                memory[offset : offset + size].view(tensor.dtype).view(tensor.shape).copy_(tensor)


def _fleshed(value: Any, memory: torch.Tensor) -> Any:
    """The opposite of a skeleton."""
    if isinstance(value, _Tensor):
        count = 1
        for n in value.shape:
            count *= n
        if not count:
            return torch.empty(value.shape, dtype=value.dtype)
        size = count * value.dtype.itemsize
        return memory[value.offset : value.offset + size].view(value.dtype).view(value.shape)
    if isinstance(value, Blobs):
        return Blobs(_fleshed(value.data, memory), _fleshed(value.offsets, memory))
    if type(value) is dict:
        return {name: _fleshed(v, memory) for name, v in value.items()}
    if type(value) in (list, tuple):
        if isinstance(value[0] if value else None, str):
            return value
        return type(value)(_fleshed(v, memory) for v in value)
    return value


class _Segment:
    """A piece of shared memory. Its first word is 1 while a batch is in it, and 0 when it is free."""

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.size = size
        self.map = mmap.mmap(fd, HEADER + size)
        self.busy = np.frombuffer(self.map, np.int64, 1)

    def memory(self, size: int) -> torch.Tensor:
        return torch.from_numpy(np.frombuffer(self.map, np.uint8, size, HEADER))


class _Pool:
    """The segments of a worker."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.name = secrets.token_hex(8)
        self.lock = threading.Lock()
        self.segments: dict[int, _Segment] = {}
        self.made = 0

    def take(self, size: int) -> tuple[int, _Segment, bool, list[int]]:
        """A free segment, now taken: its number, itself, whether it is new, and which others are gone."""
        free = [n for n, s in self.segments.items() if not s.busy[0]]
        fitting = sorted((self.segments[n].size, n) for n in free if self.segments[n].size >= size)
        gone = [n for n in free if self.segments[n].size < size] if not fitting else [n for _, n in fitting[IDLE:]]
        for n in gone:
            os.close(self.segments.pop(n).fd)
        new = not fitting
        if new:
            number = self.made
            self.made += 1
            capacity = -(-(size + size // 4) // GRAIN) * GRAIN
            fd = os.memfd_create("bowstring", os.MFD_CLOEXEC)
            os.ftruncate(fd, HEADER + capacity)
            self.segments[number] = _Segment(fd, capacity)
        else:
            number = fitting[0][1]
        segment = self.segments[number]
        segment.busy[0] = 1
        return number, segment, new, gone


_pool: _Pool | None = None
_peers: dict[tuple[int, str], dict[int, _Segment]] = {}  # in the main process: by worker, what was mapped
_peers_lock = threading.Lock()


def _reduce(batch: Batch) -> tuple[Any, ...]:
    """What is sent of a batch, by a queue of multiprocessing's."""
    about = {name: value for name, value in batch.__dict__.items() if name != "valid"}
    if not AVAILABLE or get_worker_info() is None:
        return _plain, (dict(batch), batch.valid, about)
    layout = _Layout()
    body = layout.skeleton(dict(batch)), layout.skeleton(batch.valid), about
    if layout.size <= SMALL:
        inline = torch.empty(layout.size, dtype=torch.uint8)
        layout.write(inline)
        return _from_bytes, (bytearray(inline.numpy().tobytes()), *body)
    global _pool
    if _pool is None or _pool.pid != os.getpid():
        _pool = _Pool()
    with _pool.lock:
        number, segment, new, gone = _pool.take(layout.size)
    layout.write(segment.memory(layout.size))
    handle = (DupFd(segment.fd), segment.size) if new else None
    return _from_segment, ((_pool.pid, _pool.name), number, handle, gone, layout.size, *body)


def _plain(columns: dict[str, Any], valid: dict[str, Any], about: dict[str, Any]) -> Batch:
    batch = Batch(columns)
    batch.__dict__.update(about)
    batch.valid = valid
    return batch


def _from_bytes(raw: bytearray, columns: Any, valid: Any, about: dict[str, Any]) -> Batch:
    memory = torch.frombuffer(raw, dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)
    return _plain(_fleshed(columns, memory), _fleshed(valid, memory), about)


def _from_segment(
    worker: tuple[int, str],
    number: int,
    handle: tuple[Any, int] | None,
    gone: list[int],
    size: int,
    columns: Any,
    valid: Any,
    about: dict[str, Any],
) -> Batch:
    with _peers_lock:
        if worker not in _peers:
            for other in [peer for peer in _peers if not os.path.exists(f"/proc/{peer[0]}")]:  # noqa: PTH110
                del _peers[other]
        mapped = _peers.setdefault(worker, {})
        for n in gone:
            mapped.pop(n, None)  # unmapped when its last tensor goes
        if handle is not None:
            fd = handle[0].detach()
            mapped[number] = _Segment(fd, handle[1])
            os.close(fd)
        segment = mapped[number]
    array = np.frombuffer(segment.map, np.uint8, size, HEADER)
    # torch keeps the array for as long as a tensor points into it.
    finalizer = weakref.finalize(array, _release, segment, os.getpid())
    finalizer.atexit = False
    memory = torch.from_numpy(array)
    return _plain(_fleshed(columns, memory), _fleshed(valid, memory), about)


def _release(segment: _Segment, pid: int) -> None:
    if os.getpid() == pid:  # a child that was forked has the tensors too, but not the say
        segment.busy[0] = 0


ForkingPickler.register(Batch, _reduce)
