"""Memory in which a message's large part lands, and stays: it is used again when nothing refers to it any more.

A new block costs the kernel as much as the bytes in it do: its pages are found and cleared. So a stream keeps some.
"""

from __future__ import annotations

import collections
import contextlib
import mmap
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from bowstring._collected import collected

SMALL = 256 << 10  # bytes: what is smaller has memory of Arrow's
_GRAIN = 64 << 10  # bytes
_IDLE = 3  # blocks that a stream keeps though nothing is in them
# Windows has one kind of memory that is no file's.
_MAPPED: dict[str, Any] = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
# Linux backs memory with pages of 2 MiB where it is asked to, and where there are some.
_HUGE = getattr(mmap, "MADV_HUGEPAGE", None)


class Block(Protocol):
    """A piece of memory, which can be written to."""

    @property
    def size(self) -> int:
        """Bytes that it has room for."""

    @property
    def address(self) -> int:
        """Where it begins: a multiple of 64."""

    def view(self, size: int) -> memoryview:
        """Its first bytes."""


class Blocks(Protocol):
    """Where blocks come from."""

    def take(self, size: int) -> Block:
        """A block of at least some bytes that nobody uses."""

    def give(self, block: Block) -> None:
        """A block that nothing refers to any more. Called by whatever thread lets go of it last."""


class _Lease:
    """A block in use. It is given back when no buffer over it is left."""

    __slots__ = ("_block", "_blocks")

    def __init__(self, blocks: Blocks, block: Block) -> None:
        self._blocks = blocks
        self._block = block

    @collected
    def __del__(self) -> None:
        if hasattr(self, "_block"):  # else a signal ended it as it was made
            self._blocks.give(self._block)


class _Private:
    """A block of this process's own."""

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
        # A deque and no lock: blocks are given back from the collector, too.
        self._free: collections.deque[Block] = collections.deque(maxlen=_IDLE)

    def take(self, size: int) -> Block:
        """One that is large enough and free, or a new one, for which one that is too small makes room."""
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


def landing(blocks: Blocks, size: int) -> tuple[memoryview, pa.Buffer]:
    """Memory for so many bytes, and the buffer that they will be."""
    if size < SMALL:
        small = pa.allocate_buffer(size)
        return memoryview(small).cast("B"), small
    block = blocks.take(size)
    return block.view(size), pa.foreign_buffer(block.address, size, _Lease(blocks, block))


def of_process() -> Blocks:
    """Blocks for a new stream."""
    return _source() if _source is not None else Private()


_source: Any = None


def land_in(source: Any) -> None:
    """From now on have streams of this process land where `source` says: a function that returns Blocks."""
    global _source
    _source = source
