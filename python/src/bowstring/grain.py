"""Datasets as sources of Grain. Needs the extra `[grain]`.

[DataSource][bowstring.grain.DataSource] is for pipelines of Grain that choose the order themselves: samples by index,
with many reads in flight.

```python
import grain
from bowstring.grain import DataSource

photos = DataSource("grpc://127.0.0.1:8815", "photos", split="train", columns=["image", "label"])
pipeline = grain.MapDataset.source(photos).seed(7).shuffle().map(decode).batch(64).to_iter_dataset()
```

[IterDataset][bowstring.grain.IterDataset] is for the order of the server's plan: each rank's share of each step,
assembled by the server, prefetched, and resumed exactly on any number of ranks and of Grain's worker processes.

```python
from bowstring.grain import IterDataset

photos = IterDataset("grpc://127.0.0.1:8815", "photos", split="train", columns=["image", "label"], shuffle=7,
                     global_batch_size=256, epochs=None)
iterator = iter(photos.map(decode_batch).mp_prefetch(grain.MultiprocessingOptions(num_workers=4)))
state = iterator.get_state()            # iterator.set_state(state) goes on after the batch that came last
```

Columns of numbers, and tensors that operators made, are arrays of NumPy. A blob is an array of `uint8`, which
`io.BytesIO` takes, and `tobytes` converts to `bytes`. All of them are read-only views of the received memory, without a
copy.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import operator
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import grain
import numpy as np
import pyarrow as pa

from bowstring._requests.launcher import check_given, check_rank, check_size, ranks, ranks_of_jax
from bowstring._requests.state import Place, Share, State, StateMismatch, check, digest, of_worker
from bowstring._rows.arrays import batch_of, samples_of
from bowstring._rows.positions import range_of
from bowstring._source import counted, opened
from bowstring.errors import ServerError

if TYPE_CHECKING:
    from typing import Self

    from bowstring._rows.integers import Positions
    from bowstring._transport.tls import Tls
    from bowstring.client import Client
    from bowstring.dataset import Dataset
    from bowstring.exchange import Exchange
    from bowstring.stream import Batches

__all__ = ["DataSource", "IterDataset", "StateMismatch"]


_CALLS = 4  # calls in flight of a process for a source
_ROWS = 256  # rows of a call that serves several threads


class _Read:
    """A thread's request."""

    __slots__ = ("ended", "failed", "positions", "samples", "taken")

    def __init__(self, positions: Positions) -> None:
        self.positions = positions
        self.samples: list[dict[str, Any]] = []
        self.taken = False  # by a call
        self.ended = False  # that call
        self.failed = False  # the call failed


class DataSource:
    """A dataset by index: a `RandomAccessDataSource` of Grain, for `grain.MapDataset.source` and `grain.DataLoader`.

    An index is a row of the dataset in order of position, with `where` and `select` applied. A sample is a dictionary
    of columns; a null is None. Grain's threads (`grain.ReadOptions`) determine the number of reads in flight. They
    share few calls, which stay open: requests that threads of a process make at once are combined, as is a batched
    read.

    It may be pickled, and connects anew in each process. The same index always gives the same sample, as Grain
    requires: random operators of the server draw the same for it in each epoch.

    Args:
        source: A [Dataset][bowstring.Dataset], narrowed as needed; or a client, or an address.
        name: The dataset's name, if the source is a client or an address.
        split: A split of the dataset.
        snapshot: A snapshot, by number or tag. Default: the newest one now.
        columns: The columns.
        where: An expression that selects rows.
        sql: Likewise, in SQL, as of [Dataset.where][bowstring.Dataset.where].
        token: As for [connect][bowstring.connect], if the source is an address.
        tls: As for [connect][bowstring.connect], if the source is an address.
    """

    def __init__(
        self,
        source: Dataset | Client | str,
        name: str | None = None,
        *,
        split: str | None = None,
        snapshot: int | str | None = None,
        columns: Iterable[str] | None = None,
        where: str | None = None,
        sql: str | None = None,
        token: str | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._dataset = opened(
            source, name, split=split, snapshot=snapshot, columns=columns, where=where, sql=sql, token=token, tls=tls
        )
        self._size = self._dataset.num_rows
        self._begin()

    def _begin(self) -> None:
        """Set up the state of one process."""
        self._rows: range | Positions | None = None  # the position of each index, once requested
        self._lock = threading.Lock()  # held while they are requested
        self._changed = threading.Condition(threading.Lock())  # guards what follows; notified when a call has ended
        self._waiting: list[_Read] = []
        self._busy = 0  # calls in flight
        self._idle: list[Exchange] = []  # idle calls
        self._pid = os.getpid()

    @property
    def dataset(self) -> Dataset:
        """The dataset that is read."""
        return self._dataset

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"<bowstring.grain.DataSource of {self._dataset!r}>"  # DataLoader compares it with a checkpoint's

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._getitems([index])[0]

    def _getitems(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Several samples in one request: Grain calls this for a batched read."""
        wanted = np.array([operator.index(index) for index in indices], np.int64)
        if not len(wanted):
            return []
        size = self._size
        if int(wanted.min()) < -size or int(wanted.max()) >= size:
            bad = next(i for i in wanted.tolist() if not -size <= i < size)
            raise IndexError(f"index: got {bad}, there are {size} samples")
        rows = self._positions()
        wanted %= size
        return self._read(wanted + rows.start if isinstance(rows, range) else rows[wanted])

    def _positions(self) -> range | Positions:
        if self._pid != os.getpid():  # forked: a thread of the parent may hold a lock, and calls are the parent's
            self._begin()
        if self._rows is None:
            with self._lock:
                if self._rows is None:
                    found = range_of(self._dataset, self._dataset._stream)
                    self._rows = self._dataset.positions() if found is None else found
        return self._rows

    def _read(self, positions: Positions) -> list[dict[str, Any]]:
        """Samples by position, in a call of this thread or in a combined call of another one."""
        read = _Read(positions)
        group: list[_Read] = []
        with self._changed:
            self._waiting.append(read)
            while not read.ended:
                if not read.taken and self._busy < _CALLS:
                    group = self._taken_with(read)
                    break
                self._changed.wait()
        if group:
            self._lead(group)
        if read.failed:  # in a combined call, another read of which may be the reason
            read.failed = False
            self._lead([read], alone=True)
        return read.samples

    def _taken_with(self, read: _Read) -> list[_Read]:
        """A read, with others that wait; the caller holds the lock."""
        self._waiting.remove(read)
        group, rows = [read], len(read.positions)
        while self._waiting and rows + len(self._waiting[0].positions) <= _ROWS:
            group.append(self._waiting.pop(0))
            rows += len(group[-1].positions)
        for one in group:
            one.taken = True
        self._busy += 1
        return group

    def _lead(self, group: list[_Read], *, alone: bool = False) -> None:
        """Make a call for several reads. If it fails, each is repeated alone, as others' samples may be bad."""
        try:
            with self._exchange() as exchange:
                table = exchange.take(np.concatenate([read.positions for read in group]))
            samples = samples_of(table.combine_chunks().to_batches()[0])
            for read in group:
                read.samples, samples = samples[: len(read.positions)], samples[len(read.positions) :]
        except Exception:
            if len(group) == 1:
                raise
        finally:
            with self._changed:
                for read in group:
                    read.failed = len(read.samples) != len(read.positions)
                    read.ended = True
                self._busy -= 0 if alone else 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def _exchange(self) -> Iterator[Exchange]:
        try:
            exchange = self._idle.pop()
        except IndexError:
            exchange = self._dataset.exchange()
        try:
            yield exchange
        finally:
            self._idle.append(exchange)

    def close(self) -> None:
        """End the idle calls of this process. The next read makes new ones."""
        while self._idle:
            with contextlib.suppress(IndexError):
                self._idle.pop().close()

    def __getstate__(self) -> dict[str, Any]:
        return {"_dataset": self._dataset, "_size": self._size}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()


class IterDataset(grain.IterDataset):  # type: ignore[misc]
    """A rank's share of each step of a dataset, batch by batch: a `grain.IterDataset` whose iterators have a state.

    A batch is a dictionary of columns. Numbers, and tensors of one shape, are one array, with the samples along its
    first axis; blobs, text, lists and tensors of several shapes are a list. Step k of an epoch has the same samples
    with any number of ranks and of worker processes; a rank gets its part of them. With N workers of `mp_prefetch`,
    worker w serves the steps w, w + N, and so on, so that the order is that of the plan for any N.

    A state says how many steps are done, so it is the same on all ranks: `set_state` accepts that of any rank of a job
    with any number of ranks. For another number of worker processes, [resume][bowstring.grain.IterDataset.resume] makes
    a dataset that continues from it.

    Args:
        source: A [Dataset][bowstring.Dataset], narrowed and shuffled as needed, in strict order; or a client, or an
            address.
        name: The dataset's name, if the source is a client or an address.
        global_batch_size: Samples per step, all ranks together.
        epochs: The number of epochs, counted from epoch 0 also when resuming; None for no end. Each epoch of a shuffled
            dataset has another order. (`RepeatIterDataset` of Grain repeats one order.)
        rank: This process's rank. Default: that of jax.distributed or torch.distributed if it is initialised; else the
            environment variables RANK and WORLD_SIZE; else 0 of 1.
        world_size: The number of ranks.
        split: A split of the dataset.
        snapshot: A snapshot, by number or tag. Default: the newest one now.
        columns: The columns.
        where: An expression that selects rows.
        sql: Likewise, in SQL, as of [Dataset.where][bowstring.Dataset.where].
        shuffle: The seed of the global shuffle. Default: the source's order.
        token: As for [connect][bowstring.connect], if the source is an address.
        tls: As for [connect][bowstring.connect], if the source is an address.
    """

    def __init__(
        self,
        source: Dataset | Client | str,
        name: str | None = None,
        *,
        global_batch_size: int = 64,
        epochs: int | None = 1,
        rank: int | None = None,
        world_size: int | None = None,
        split: str | None = None,
        snapshot: int | str | None = None,
        columns: Iterable[str] | None = None,
        where: str | None = None,
        sql: str | None = None,
        shuffle: int | None = None,
        token: str | None = None,
        tls: Tls | None = None,
    ) -> None:
        super().__init__()
        size = counted("global_batch_size", global_batch_size)
        if epochs is not None:
            epochs = counted("epochs", epochs)
        check_given(rank, world_size)
        dataset = opened(
            source, name, split=split, snapshot=snapshot, columns=columns, where=where, sql=sql, token=token, tls=tls
        )
        if shuffle is not None:
            dataset = dataset.shuffle(shuffle)
        if (order := dataset.request().get("order", "strict")) != "strict":
            raise ValueError(f"order: got {order!r}, want 'strict', as a state of Grain's says how many steps are done")
        self._dataset, self._size, self._epochs = dataset, size, epochs
        self._ranks = None if rank is None or world_size is None else (rank, world_size)
        self._sent: tuple[int, tuple[int, int]] | None = None  # the process that pickled it, and its rank
        self._first = (0, 0)  # the first epoch and step
        self._worker = (0, 1)  # index and number of worker processes
        self._steps: int | None = None  # per epoch, once requested
        self._resolved()

    @property
    def dataset(self) -> Dataset:
        """The dataset that is read."""
        return self._dataset

    @property
    def steps(self) -> int:
        """Steps per epoch. The server is asked once."""
        if self._steps is None:
            world = self._resolved()[1]
            self._steps = self._read_by(world).plan(batch=self._size, world_size=world).steps
        return self._steps

    def _resolved(self) -> tuple[int, int]:
        """The rank and the number of ranks."""
        parent = multiprocessing.parent_process()
        name = "rank"
        if self._ranks is not None:
            found = self._ranks
        elif self._sent is not None and parent is not None and self._sent[0] == parent.pid:
            found = self._sent[1]  # a worker process, which has no process group
        else:
            found, name = ranks_of_jax() or ranks()
        check_rank(*found, name)
        check_size(self._size, found[1])
        return found

    def _read_by(self, world: int) -> Dataset:
        """The dataset for that many ranks: all get the same number of batches, unless the source says otherwise."""
        alone = world == 1 or "remainder" in self._dataset.request()
        return self._dataset if alone else self._dataset._with_options(remainder="pad")

    def __repr__(self) -> str:
        rank, world = self._resolved()
        share = f", rank {rank} of {world}" if world > 1 else ""
        return f"<bowstring.grain.IterDataset of {self._dataset!r}; global batches of {self._size}{share}>"

    __str__ = __repr__

    def __iter__(self) -> DatasetIterator:
        rank, world = self._resolved()
        return DatasetIterator(self, Share(rank, world, *self._worker))

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Make this worker process serve its part of the steps. Grain calls this on the process's copy."""
        if sequential_slice:
            raise ValueError("sequential_slice: got True, want False: worker processes take turns, step by step")
        self._worker = (sl.start or 0, sl.step or 1)

    def resume(self, state: Any) -> Self:
        """A dataset that continues from a state, with any number of ranks and worker processes before and after.

        ```python
        pipeline = photos.resume(state).map(decode).mp_prefetch(grain.MultiprocessingOptions(num_workers=8))
        ```

        The state comes from `get_state` of an iterator of this dataset or of a pipeline made from it; or it is the
        state of a `BowstringDataset` of the same samples, made by `portable_state`.
        """
        request = self._request()
        named = list(_states(state))
        if not named:
            raise StateMismatch(f"there is no state of a bowstring.grain.IterDataset in this: {str(state)[:200]}")
        ours = [one for one in named if one.get("digest") == digest(request)]
        # Whose error describes the first state, if none matches
        found = [check(one, request) for one in ours or named[:1]]
        workers = max(one.get("workers", 1) for one in found)
        places = [_whole_steps(one) for one in found]
        if workers == 1:
            first = places[0]
            if any(place != first for place in places):
                raise StateMismatch(f"the states are of different steps: {places}")
        else:
            first = self._agreed(found, places, workers)
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made._first, made.has_child = first, False
        return made

    def _agreed(self, found: list[State], places: list[tuple[int, int]], workers: int) -> tuple[int, int]:
        """The next step, from the states of the worker processes."""
        if [one["worker"] if one["workers"] > 1 else i for i, one in enumerate(found)] != list(range(workers)):
            raise StateMismatch(f"got the states of {len(found)} of {workers} workers, want that of each, in order")
        # A worker that has returned nothing yet has the state of the whole dataset, in which its part begins later.
        nexts = [
            epoch * self.steps + step + (i if found[i]["workers"] == 1 else 0) for i, (epoch, step) in enumerate(places)
        ]
        least = min(nexts)
        if sorted(nexts) != list(range(least, least + workers)):
            raise StateMismatch(f"the workers are not of one point of the job: their next steps are {nexts}")
        return divmod(least, max(1, self.steps))

    def _request(self) -> dict[str, Any]:
        # Without fields that depend on the number of ranks, because a state continues with any number of them.
        return self._dataset.request(batch=self._size)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sent": (os.getpid(), self._resolved())}


class DatasetIterator(grain.DatasetIterator):  # type: ignore[misc]
    """The batches of one process, with its progress: `iter` of an [IterDataset][bowstring.grain.IterDataset]."""

    _stream: Batches | None = None
    _closed = True  # while it is made

    def __init__(self, dataset: IterDataset, share: Share) -> None:
        super().__init__()
        self._dataset, self._share = dataset, share
        self._epoch, self._step = dataset._first
        self._step += share.worker
        self._request = dataset._request()
        self._about = of_worker(self._request, share, Place(self._epoch, self._step))

    def __str__(self) -> str:
        return f"bowstring.grain.DatasetIterator({self._about['of']})"

    def __next__(self) -> dict[str, Any]:
        if self._closed:
            raise ValueError("the iterator is closed; iter(dataset) makes another one, and set_state takes it on")
        while True:
            stream = self._stream or self._open()
            if stream is None:
                raise StopIteration
            try:
                parts = stream._step()
            except BaseException:  # the step's batches are lost here, and come again by another stream
                self._leave()
                raise
            if self._closed:  # in the meantime, by another thread
                raise StopIteration
            if not parts:
                self._ended()
                continue
            if stream.place is None or not stream.place["last"]:
                raise ServerError(f"step {self._step} ended before its last row")
            if stream.place["step"] != self._step:
                raise ServerError(f"the server sent step {stream.place['step']} instead of {self._step}")
            self._step += self._share.workers
            return batch_of(parts[0] if len(parts) == 1 else pa.concat_batches(parts))

    def _open(self) -> Batches | None:
        """The stream of the rest of the epoch; None after the last epoch."""
        dataset, share = self._dataset, self._share
        if not dataset.steps:
            return None
        self._epoch, self._step = self._place()
        if dataset._epochs is not None and self._epoch >= dataset._epochs:
            return None
        read = dataset._read_by(share.world)
        ticket = read.ticket(
            batch=dataset._size,
            rank=share.rank,
            world_size=share.world,
            epoch=self._epoch,
            step=self._step,
            stride=share.workers,
        )
        self._stream = read.resume(ticket)
        return self._stream

    def _ended(self) -> None:
        """The stream has ended: the epoch is over, or other ranks have the whole last step."""
        self._leave()
        steps = self._dataset.steps
        if self._step < steps - 1:
            raise ServerError(f"the server ended epoch {self._epoch} before step {self._step} of {steps}")
        if self._step == steps - 1:
            self._step += self._share.workers

    def _place(self) -> tuple[int, int]:
        """The next epoch and step; a step after the end of an epoch belongs to a later one."""
        steps = self._dataset._steps
        if not steps:  # not requested yet, because nothing was read
            return self._epoch, self._step
        return self._epoch + self._step // steps, self._step % steps

    def get_state(self) -> dict[str, Any]:
        """The progress: a small dictionary of numbers and text, whose keys are always the same."""
        epoch, step = self._place()
        return {**self._about, "epoch": epoch, "step": step}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue where another iterator was, on any rank of any number."""
        found = check(state, self._request)
        epoch, step = _whole_steps(found)
        theirs = (found.get("worker", 0), found.get("workers", 1))
        if theirs[1] == 1:  # of the whole dataset: this worker's part of the rest begins that much later
            step += self._share.worker
        elif theirs != (self._share.worker, self._share.workers):
            raise StateMismatch(
                f"the state is of worker {theirs[0]} of {theirs[1]}, this is worker {self._share.worker} of "
                f"{self._share.workers}; give the state of the whole pipeline to resume of the dataset"
            )
        self._leave()
        self._epoch, self._step = epoch, step

    def _leave(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def close(self) -> None:
        """End the stream. Grain calls this."""
        super().close()
        self._leave()


def _states(state: Any) -> Iterator[Mapping[str, Any]]:
    """The datasets' states within the state of a pipeline, in order."""
    if isinstance(state, Mapping) and "bowstring" in state:
        yield state
    elif isinstance(state, (Mapping, list, tuple)):
        for part in state.values() if isinstance(state, Mapping) else state:
            yield from _states(part)


def _whole_steps(state: State) -> tuple[int, int]:
    """The epoch and the step with which a state continues, if it is at the beginning of one."""
    if state.get("row"):
        raise StateMismatch(f"the state is within step {state['step']}; batches begin with a whole one")
    if state.get("single") or state.get("done"):
        raise StateMismatch(
            f"the state says that some steps behind {state['step']} are done, of workers that were not at one point; "
            "take it after a whole turn of them"
        )
    return state["epoch"], state["step"]
