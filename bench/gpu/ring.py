"""A second view of memory that a server shares with this process.

The client maps a ring copy-on-write. To pin such a mapping would give the device copies of its pages, which the server
does not write. This view is mapped shared and for reading alone, so that the device reads what the server writes.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from pathlib import Path

import numpy as np
import torch


class Ring:
    """The file behind the memory at an address, mapped again."""

    def __init__(self, address: int) -> None:
        for line in Path("/proc/self/maps").read_text().splitlines():
            span, _, offset, _, inode = line.split()[:5]
            first, end = (int(part, 16) for part in span.split("-"))
            if first <= address < end and inode != "0":
                self._first = first - int(offset, 16)
                break
        else:
            raise RuntimeError("the batch is in no shared memory")
        descriptor = self._descriptor(int(inode))
        self._map = mmap.mmap(descriptor, os.fstat(descriptor).st_size, mmap.MAP_SHARED, mmap.PROT_READ)
        self._bytes = np.frombuffer(self._map, np.uint8)
        self.address: int = self._bytes.ctypes.data
        self.size = len(self._bytes)

    @staticmethod
    def _descriptor(inode: int) -> int:
        """Python keeps a descriptor of each file that it has mapped."""
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
            with contextlib.suppress(OSError):  # the listing's own is closed by now
                if os.fstat(int(name)).st_ino == inode:
                    return int(name)
        raise RuntimeError("the ring's file has no descriptor")

    def view(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same bytes by this mapping. The caller keeps the batch meanwhile, and writes to neither."""
        start = tensor.data_ptr() - self._first
        length = tensor.numel() * tensor.element_size()
        if not 0 <= start <= start + length <= self.size:
            raise RuntimeError("the batch is in other memory")
        # Not by torch.frombuffer, which warns of memory that is read-only.
        found = np.ctypeslib.as_array((ctypes.c_uint8 * length).from_address(self.address + start))
        return torch.from_numpy(found)
