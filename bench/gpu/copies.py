"""GB/s of copies to the device: from ordinary memory, from pinned memory, and from a server's shared memory."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from typing import Any

import torch
from bowstring.torch import BowstringDataset
from torch.utils.data import DataLoader

from gpu.images import CROP
from gpu.ring import Ring
from gpu.served import photographs
from gpu.sizes import Sizes

READ_ONLY = 8  # cudaHostRegisterReadOnly: the server has sealed its memory against writes of others


class Copies:
    """The three kinds of copies."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        self._sizes, self._device = sizes, device
        self._cuda = device.type == "cuda"

    def plain(self) -> dict[str, float]:
        """GB/s of ordinary and of pinned memory."""
        ordinary = torch.randint(0, 256, (self._sizes.copy,), dtype=torch.uint8)
        pinned = ordinary.pin_memory() if self._cuda else ordinary
        return {
            "pageable": self._rate([ordinary] * self._sizes.copies),
            "pinned": self._rate([pinned] * self._sizes.copies),
        }

    def _rate(self, sources: Iterable[torch.Tensor]) -> float:
        """GB/s of the copies alone, without the first."""
        seconds, size = 0.0, 0
        target = torch.empty(0, dtype=torch.uint8, device=self._device)
        for number, source in enumerate(sources):
            if len(target) < len(source):
                target = torch.empty(len(source), dtype=torch.uint8, device=self._device)
            self._wait()
            began = time.perf_counter()
            target[: len(source)].copy_(source, non_blocking=True)
            self._wait()
            if number:
                seconds += time.perf_counter() - began
                size += len(source)
        return size / seconds / 1e9

    def _wait(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()

    def ring(self, url: str) -> float:
        """GB/s of batches of pixels that the server has written to its ring, which is registered once."""
        batches = self._batches(url)
        first = next(batches)["image"]
        ring = Ring(first.data_ptr())
        self._register(ring)
        try:
            return self._rate(self._views(ring, first, batches))
        finally:
            self._unregister(ring)

    def _views(self, ring: Ring, first: torch.Tensor, batches: Any) -> Iterable[torch.Tensor]:
        yield self._checked(ring, first)
        for _ in range(self._sizes.copies):
            pixels = next(batches)["image"]
            yield self._checked(ring, pixels)  # the batch is kept until the copy has ended

    @staticmethod
    def _checked(ring: Ring, pixels: torch.Tensor) -> torch.Tensor:
        view = ring.view(pixels)
        if not torch.equal(view, pixels.contiguous().view(-1)):
            raise RuntimeError("the second view of the ring has other bytes")
        return view

    def _batches(self, url: str) -> Any:
        photos = photographs(url).operators({"image": CROP}).columns(["image"])
        dataset = BowstringDataset(photos, shuffle=7, global_batch_size=self._sizes.batch, rank=0, world_size=1)
        loader: DataLoader[Any] = DataLoader(dataset, batch_size=None)
        while True:
            yield from loader

    def _register(self, ring: Ring) -> None:
        if self._cuda:
            runtime: Any = torch.cuda.cudart  # without types
            try:
                torch.cuda.check_error(int(runtime().cudaHostRegister(ring.address, ring.size, READ_ONLY)))
            except RuntimeError:
                with contextlib.suppress(RuntimeError):  # CUDA reports the error once more, at the next launch
                    torch.zeros(1, device=self._device)
                raise

    def _unregister(self, ring: Ring) -> None:
        if self._cuda:
            runtime: Any = torch.cuda.cudart
            torch.cuda.check_error(int(runtime().cudaHostUnregister(ring.address)))
