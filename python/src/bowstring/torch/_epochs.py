"""Which epoch an iteration is of: counted by the iterations themselves, in a process and all workers of its loaders.

A DataLoader gives a dataset no sign that an iteration begins, but in its workers, each for itself. So each iteration
has a row in memory that a process shares with its workers. A worker finds the row of its iteration, or makes it. The
epoch follows from the row before, so that workers which make it at once write the same; a lock, where the system has
one, keeps the iterations of several loaders apart.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.multiprocessing
from torch.utils.data import get_worker_info

from bowstring._unstable.torch import worker_number
from bowstring.torch import _shared_memory

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_ROWS = 64  # iterations that are remembered
_HEAD = 8  # numbers before them
_SAID, _EPOCH, _LOADS, _READ = range(4)  # of the head
# Of a row: what says whose iteration it is, which comes before which, what was said when it began, and a check sum.
_SEED, _FIRST, _ROUND, _WORKERS, _SEQUENCE, _HEARD, _FRESH, _SAID, _OF, _CHECK = range(10)
_WIDTH = 10


@dataclass(frozen=True)
class Said:
    """An epoch that was said, by `set_epoch` or by a state that was loaded, and the how manieth word it is."""

    number: int = 0
    epoch: int = 0
    load: bool = False


@dataclass(frozen=True)
class Began:
    """An iteration that has begun.

    Attributes:
        epoch: Its epoch.
        said: The word that it begins by; None if it follows the iteration before.
        row: Where it is remembered.
    """

    epoch: int
    said: Said | None
    row: int


class Owned:
    """Memory that a process shares with the workers of its loaders, and with no other process.

    Any other process, which it forks or sends this to, has a copy from then on.
    """

    _pid: int
    _files: bool  # whether the memory is in files that have descriptors here

    def _shares(self, **memory: torch.Tensor) -> None:
        self._files = torch.multiprocessing.get_sharing_strategy() == "file_descriptor"  # type: ignore[no-untyped-call]
        self.__dict__.update({name: _shared_memory.shared(tensor) for name, tensor in memory.items()})
        self._pid = os.getpid()
        _all.add(self)

    def _tensors(self) -> dict[str, torch.Tensor]:
        return {name: value for name, value in self.__dict__.items() if isinstance(value, torch.Tensor)}

    def __getstate__(self) -> dict[str, Any]:
        self.own()
        return dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if not all(_is_shared(tensor) for tensor in self._tensors().values()):  # a plain copy
            self._copy()
        else:
            _all.add(self)

    def own(self) -> None:
        """Have memory of this process's own, if it is no worker: its iterations are no others' business."""
        if self._pid != os.getpid() and get_worker_info() is None:
            self._copy()

    def _copy(self) -> None:
        self._shares(**{name: tensor.clone() for name, tensor in self._tensors().items()})


class Epochs(Owned):
    """The iterations of one dataset by one process, its main one and the workers of its loaders.

    The first is of epoch 0, or of the one that was said; each other is of the next epoch, however far the one before
    it got.
    """

    _memory: torch.Tensor

    def __init__(self) -> None:
        self._shares(_memory=torch.zeros(_HEAD + _ROWS * _WIDTH, dtype=torch.int64))
        self._said = Said()
        self._loads = 0  # that this copy knows of
        self._rounds = 0  # iterations that this worker has begun

    @property
    def _numbers(self) -> Any:
        return self._memory.numpy()

    def _table(self) -> Any:
        return self._numbers[_HEAD:].reshape(_ROWS, _WIDTH)

    def _rows(self) -> list[tuple[int, list[int]]]:
        """The rows that are whole, with their places."""
        table = self._table().tolist()
        return [(i, row) for i, row in enumerate(table) if row[_SEQUENCE] and row[_CHECK] == _sum(row)]

    def _last(self) -> list[int] | None:
        return max((row for _, row in self._rows()), key=lambda row: row[_SEQUENCE], default=None)

    # --- what is said -----------------------------------------------------

    def say(self, epoch: int, *, load: bool = False) -> Said:
        """The next iteration is of this epoch."""
        self.own()
        self._said = Said(self._said.number + 1, epoch, load)
        self._numbers[_EPOCH] = epoch
        self._numbers[_SAID] = self._said.number
        return self._said

    def load(self, epoch: int) -> tuple[Said, int | None]:
        """A state of this epoch was loaded; the word for it, and what `set_epoch` had said for the next iteration."""
        said_epoch = None if self._said.load or self.heard(self._said) else self._said.epoch
        said = self.say(epoch, load=True)
        self._loads += 1
        self._numbers[_LOADS] = self._loads
        return said, said_epoch

    def heard(self, said: Said) -> bool:
        """Whether an iteration has begun by a word, or after it."""
        last = self._last()
        return (0 if last is None else last[_HEARD]) >= said.number

    @property
    def late(self) -> bool:
        """Whether a state was loaded that this copy does not know of."""
        return self._loads != int(self._numbers[_LOADS])

    @property
    def read(self) -> bool:
        """Whether a worker has read."""
        return bool(self._numbers[_READ])

    # --- iterations -------------------------------------------------------

    @property
    def next(self) -> int:
        """The epoch of the next iteration."""
        return self._next(self._last(), self._said)[0]

    @property
    def current(self) -> int:
        """The epoch of the iteration that has begun last; or of the next one, if its epoch was said since."""
        last = self._last()
        return self.next if last is None or self._said.number > last[_HEARD] else last[_OF]

    def _next(self, last: list[int] | None, said: Said) -> tuple[int, bool]:
        if said.number > (0 if last is None else last[_HEARD]):
            return said.epoch, True
        return (0 if last is None else last[_OF] + 1), False

    def begin(self) -> Began:
        """An iteration begins, in this process's share of it."""
        info = get_worker_info()
        if info is None:
            self.own()
            seed, first, turn, workers = 0, 0, 0, 0
            said = self._said
        else:
            seed, workers = info.seed - info.id, info.num_workers
            first, turn = worker_number() - info.id, self._rounds
            # The epoch set when this process was started counts for its first iteration: by now there may be another.
            said = self._said if turn == 0 else Said(int(self._numbers[_SAID]), int(self._numbers[_EPOCH]))
            self._rounds += 1
            self._numbers[_READ] = 1
        with self._alone():
            rows = self._rows()
            found = None if info is None else _found(rows, seed, first, turn, workers)
            if found is not None:
                place, row = found
            else:
                last = max((row for _, row in rows), key=lambda row: row[_SEQUENCE], default=None)
                epoch, fresh = self._next(last, said)
                sequence = 1 if last is None else last[_SEQUENCE] + 1
                heard = said.number if fresh else (0 if last is None else last[_HEARD])
                row = [seed, first, turn, workers, sequence, heard, int(fresh), epoch, epoch, 0]
                place = sequence % _ROWS
                self._write(place, row)
        return Began(row[_OF], Said(row[_HEARD], row[_SAID]) if row[_FRESH] else None, place)

    def correct(self, began: Began, epoch: int) -> Began:
        """The iteration is of this epoch: a state that was loaded into it says so."""
        with self._alone():
            row = self._table()[began.row].tolist()
            if row[_CHECK] == _sum(row) and row[_OF] == began.epoch:
                row[_OF] = epoch
                self._write(began.row, row)
        return replace(began, epoch=epoch)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """No other process or thread looks for a row meanwhile, where the system can see to it."""
        with _threads:
            file: int | None = None
            if fcntl is not None and self._files:
                file = self._memory.untyped_storage()._share_fd_cpu_()[0]
            if file is not None:
                fcntl.lockf(file, fcntl.LOCK_EX)  # ends with its process
            try:
                yield
            finally:
                if file is not None:
                    fcntl.lockf(file, fcntl.LOCK_UN)

    def _write(self, place: int, row: list[int]) -> None:
        row[_CHECK] = _sum(row)
        self._table()[place] = np.array(row, np.int64)  # at once


def _is_shared(tensor: torch.Tensor) -> bool:
    return bool(tensor.is_shared())  # type: ignore[no-untyped-call]


def _sum(row: list[int]) -> int:
    """So that a row which is just being written is not taken for a whole one."""
    return hash(tuple(row[:_CHECK])) & (2**62 - 1)


def _found(
    rows: list[tuple[int, list[int]]], seed: int, first: int, turn: int, workers: int
) -> tuple[int, list[int]] | None:
    """The row of a worker's iteration.

    The workers of an iteration have one seed, and are started one after another; `first` identifies them. The seed
    alone
    does not, as a program may seed anew before each epoch; nor `first` alone, as other threads start processes, too.
    """
    same = [
        (abs(row[_FIRST] - first), -row[_SEQUENCE], place, row)
        for place, row in rows
        if (row[_SEED], row[_ROUND], row[_WORKERS]) == (seed, turn, workers)
    ]
    apart, _, place, row = min(same, key=lambda found: found[:2], default=(workers, 0, 0, []))
    return (place, row) if apart < workers else None


class Draws(Owned):
    """The epoch of each index that is drawn: a new one begins when an index comes that came in this one already.

    A dataset by index has no other sign of a new epoch, because a sampler goes through it. Workers share what they
    detect; two of them that detect it at once write the same.
    """

    _epoch: torch.Tensor
    _last: torch.Tensor

    def __init__(self, size: int) -> None:
        self._shares(
            _epoch=torch.zeros(1, dtype=torch.int64),
            _last=torch.full((size,), -1, dtype=torch.int32),  # the epoch in which each came
        )

    @property
    def epoch(self) -> int:
        """The epoch that an index which has not come yet would be of."""
        return int(self._epoch)

    def say(self, epoch: int) -> None:
        """It is this epoch, and nothing came in it."""
        self.own()
        self._last.fill_(-1)
        self._epoch.fill_(epoch)

    def drawn(self, indices: torch.Tensor) -> int:
        """The epoch of these indices."""
        self.own()
        epoch = int(self._epoch)
        if bool((self._last[indices] == epoch).any()):
            epoch += 1
            self._epoch.fill_(epoch)
        self._last[indices] = epoch
        return epoch


_all: weakref.WeakSet[Owned] = weakref.WeakSet()
_threads = threading.Lock()


def _before_fork() -> None:
    # A process that was forked itself, and has read nothing yet, may now start workers, which will be its own.
    for owned in list(_all):
        owned.own()


def _in_child() -> None:
    global _threads
    _threads = threading.Lock()  # the parent's may be held by a thread that is not here


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_in_child)
