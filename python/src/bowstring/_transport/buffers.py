"""Memory into which the large part of a message is received; it is reused when nothing refers to it any more.

A new block costs the kernel as much as its bytes: pages are found and cleared. So a stream keeps some blocks.
"""

from __future__ import annotations

import collections
import contextlib
import mmap
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from bowstring._finalizers import finalizer

SMALL = 256 << 10  # bytes: a smaller part gets memory of Arrow
_GRAIN = 64 << 10  # bytes
_IDLE = 3  # unused blocks that a stream keeps
# Windows has a single kind of anonymous memory.
_MAPPED: dict[str, Any] = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
# Linux backs memory with pages of 2 MiB on request, if there are some.
_HUGE = getattr(mmap, "MADV_HUGEPAGE", None)


class Block(Protocol):
    """A piece of writable memory."""

    @property
    def size(self) -> int:
        """Its size in bytes."""

    @property
    def address(self) -> int:
        """Its address, a multiple of 64."""

    def view(self, size: int) -> memoryview:
        """Its first bytes."""


class Blocks(Protocol):
    """A source of blocks."""

    def take(self, size: int) -> Block:
        """An unused block of at least that many bytes."""

    def give(self, block: Block) -> None:
        """Take back a block without references. The thread that drops the last one calls it."""


class _Lease:
    """A block in use. It is returned when no buffer over it is left."""

    __slots__ = ("_block", "_blocks")

    def __init__(self, blocks: Blocks, block: Block) -> None:
        self._blocks = blocks
        self._block = block

    @finalizer
    def __del__(self) -> None:
        if hasattr(self, "_block"):  # otherwise a signal interrupted its creation
            self._blocks.give(self._block)


class _Private:
    """A block of this process."""

    __slots__ = ("_memory", "address", "size")

    def __init__(self, size: int) -> None:
        self.size = -(-size // _GRAIN) * _GRAIN
        try:
            self._memory = mmap.mmap(-1, self.size, **_MAPPED)
        except OSError as error:
            raise MemoryError(f"no memory for {size} bytes of a batch") from error
        if _HUGE is not None:
            with contextlib.suppress(OSError):  # a kernel without such pages
                self._memory.madvise(_HUGE)
        self.address: int = np.frombuffer(self._memory, np.uint8, 1).ctypes.data

    def view(self, size: int) -> memoryview:
        return memoryview(self._memory)[:size]


class Private:
    """The blocks of one stream."""

    def __init__(self) -> None:
        # A deque without a lock, because the garbage collector also returns blocks.
        self._free: collections.deque[Block] = collections.deque(maxlen=_IDLE)

    def take(self, size: int) -> Block:
        """A free block that is large enough, or a new one. Blocks that are too small are dropped."""
        for _ in range(len(self._free)):
            try:
                block = self._free.popleft()
            except IndexError:  # another thread has it
                break
            if block.size >= size:
                return block
        return _Private(size)

    def give(self, block: Block) -> None:
        """Keep a block for the next message."""
        self._free.append(block)


def allocate(blocks: Blocks, size: int) -> tuple[memoryview, pa.Buffer]:
    """Memory for that many bytes, and the buffer over it."""
    if size < SMALL:
        small = pa.allocate_buffer(size)
        return memoryview(small).cast("B"), small
    block = blocks.take(size)
    return block.view(size), pa.foreign_buffer(block.address, size, _Lease(blocks, block))


def of_process() -> Blocks:
    """Blocks for a new stream."""
    return _source() if _source is not None else Private()


_source: Any = None


def set_source(source: Any) -> None:
    """From now on, streams of this process use the Blocks that the function `source` returns."""
    global _source
    _source = source
