"""Batches on the device before they are used, and the rate of steps."""

from __future__ import annotations

import collections
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

Tensors = tuple[torch.Tensor, ...]
AHEAD = 2  # batches on the device that wait, and steps that the device has not done


class Feed:
    """Moves batches to the device in a thread and a CUDA stream of its own, so that copies run beside steps.

    `moved` returns a batch's tensors on the device. The feed owns the iterator, and closes it. If a feed gives nothing
    for `stalled` seconds, it has failed.
    """

    def __init__(
        self, batches: Iterator[Any], moved: Callable[[Any], Tensors], device: torch.device, stalled: float
    ) -> None:
        self._batches, self._moved, self._device, self._stalled = batches, moved, device, stalled
        self._ready: queue.Queue[tuple[Tensors, torch.cuda.Event | None] | Exception] = queue.Queue(AHEAD)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        stream = torch.cuda.Stream() if self._device.type == "cuda" else None  # type: ignore[no-untyped-call]
        item: tuple[Tensors, torch.cuda.Event | None] | Exception
        try:
            while not self._ended.is_set():
                batch = next(self._batches)
                with torch.cuda.stream(stream) if stream else contextlib.nullcontext():
                    item = self._moved(batch), stream.record_event() if stream else None
                self._put(item)
        except Exception as error:  # noqa: BLE001 (raised where the batch is taken)
            self._put(error)
        finally:
            with contextlib.suppress(AttributeError):
                self._batches.close()  # type: ignore[attr-defined]

    def _put(self, item: tuple[Tensors, torch.cuda.Event | None] | Exception) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(queue.Full):
                self._ready.put(item, timeout=0.1)
                return

    def __next__(self) -> Tensors:
        try:
            item = self._ready.get(timeout=self._stalled)
        except queue.Empty:
            raise TimeoutError(f"no batch came in {self._stalled:.0f} s") from None
        if isinstance(item, Exception):
            raise item
        tensors, copied = item
        if copied is not None:
            current = torch.cuda.current_stream()
            current.wait_event(copied)
            for tensor in tensors:
                tensor.record_stream(current)  # the allocator may reuse it only after the step
        return tensors

    def close(self) -> None:
        """End the thread, and the loader with it."""
        self._ended.set()
        self._thread.join(self._stalled)


def rate(take: Callable[[], Tensors], step: Callable[..., None], units: int, warm: int, seconds: float) -> float:
    """Units (samples or tokens of a batch) a second.

    As in training, the host submits steps before the device has done earlier ones. The clock stops when all are done.
    """
    cuda = torch.cuda.is_available()
    under_way: collections.deque[torch.cuda.Event] = collections.deque()

    def one() -> None:
        step(*take())
        if cuda:
            under_way.append(torch.cuda.current_stream().record_event())
            if len(under_way) > AHEAD:
                under_way.popleft().synchronize()

    for _ in range(warm):
        one()
    if cuda:
        torch.cuda.synchronize()
    done, began = 0, time.perf_counter()
    while not done or time.perf_counter() - began < seconds:
        one()
        done += 1
    if cuda:
        torch.cuda.synchronize()
    return done * units / (time.perf_counter() - began)
