"""A dataset as a stream of batches for torch's DataLoader."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

import pyarrow as pa
import torch
import torch.distributed
from torch.utils.data import IterableDataset, get_worker_info

from bowstring._source import opened
from bowstring.client import Client, Tls
from bowstring.dataset import Dataset
from bowstring.errors import ServerError
from bowstring.stream import Batches
from bowstring.torch import _share
from bowstring.torch._columns import Batch, tune_malloc
from bowstring.torch._decode import Decode
from bowstring.torch._rows import steps_for
from bowstring.torch._state import Place, Share, State, check, of_worker, place_for, portable
from bowstring.torch._state import portable_state as portable_state_of

_WORKERS = 1024  # that a loader may have
_EPOCH, _EXPLICIT, _LOADS, _ITERATED, _USED = range(5)  # of what processes share; from _USED on, one for each worker


class BowstringDataset(IterableDataset[Any]):
    """A dataset as an `IterableDataset`, for each rank and each worker its share.

    ```python
    dataset = BowstringDataset("grpc://127.0.0.1:8815", "photos", split="train", shuffle=7, batch_size=256)
    loader = StatefulDataLoader(dataset, batch_size=None, num_workers=2)
    for epoch in range(10):
        dataset.set_epoch(epoch)
        for batch in loader:
            train(batch["image"], batch["label"])
    ```

    Give the DataLoader `batch_size=None`: the batches are made by the server. Step k of an epoch is the same samples
    with any number of ranks and workers; a rank gets its part of them. Worker w of N serves the steps w, w + N, and so
    on, so that a loader, which takes turns, gives them in order.

    Args:
        source: A [Dataset][bowstring.Dataset], narrowed and shuffled as you like; or a client, or an address.
        name: The dataset's name, if the source is a client or an address.
        batch_size: Samples of a global batch, all ranks together.
        split: Which split of it.
        snapshot: Which snapshot; without it, the newest one now.
        columns: Which columns.
        where: Which rows.
        shuffle: The seed of the global shuffle, another order for each epoch; False for order of position. Without it,
            as the source is.
        rank: Which rank this is. Without it, what torch.distributed says if it is initialised; else the environment
            variables RANK and WORLD_SIZE; else there is only one.
        world_size: How many ranks there are.
        output: `batches`, each a [Batch][bowstring.torch.Batch]; or `samples`, each a dictionary, for a DataLoader
            with a batch size of its own.
        decode: How images are decoded, in the worker: `torchvision`, `pillow`, `auto` (the first of them that is
            installed), a function of a `uint8` tensor, or a dictionary of these by column. Without it their bytes come
            as they are, as [Blobs][bowstring.torch.Blobs].
        transform: A function of a sample (a dictionary), called after decoding.
        collate: A function of the list of a batch's samples, in the place of [collate][bowstring.torch.collate].
        on_decode_error: `raise` a [DecodeError][bowstring.torch.DecodeError], or `skip` the sample: then its batch is
            smaller.
        tune_malloc: Whether workers let glibc keep its memory between batches. It applies to them alone.
        token: As of [connect][bowstring.connect], if the source is an address.
        tls: Likewise.
    """

    def __init__(
        self,
        source: Dataset | Client | str,
        name: str | None = None,
        *,
        batch_size: int = 64,
        split: str | None = None,
        snapshot: int | None = None,
        columns: Iterable[str] | None = None,
        where: str | None = None,
        shuffle: int | Literal[False] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        output: Literal["batches", "samples"] = "batches",
        decode: str | Decode | Mapping[str, str | Decode] | None = None,
        transform: Callable[[Any], Any] | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        on_decode_error: Literal["raise", "skip"] = "raise",
        tune_malloc: bool = True,
        token: str | None = None,
        tls: Tls | None = None,
    ) -> None:
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"batch_size: got {batch_size!r}, want an integer, 1 or more")
        if output not in ("batches", "samples"):
            raise ValueError(f"output: got {output!r}, want 'batches' or 'samples'")
        if output == "samples" and collate is not None:
            raise ValueError("collate: goes with output='batches'; for samples, give collate_fn to the DataLoader")
        dataset = opened(
            source, name, split=split, snapshot=snapshot, columns=columns, where=where, token=token, tls=tls
        )
        if shuffle is not None:
            dataset = dataset.shuffle(shuffle) if shuffle is not False else dataset._but(_seed=None)
        if (rank is None) != (world_size is None):
            raise ValueError("rank, world_size: want both or none")
        if rank is not None and world_size is not None:
            _check_rank(rank, world_size, "rank", batch_size)
        self.batch_size = batch_size
        self.output = output
        self._dataset, self._steps = steps_for(dataset, decode, transform, collate, on_decode_error)
        self._ranks = None if rank is None or world_size is None else (rank, world_size)
        self._tune = tune_malloc
        self._strict = dataset.request().get("order", "strict") == "strict"
        if output == "samples" and not self._strict:
            raise ValueError("order: single samples come in strict order only; output='batches' takes the others, too")
        # One for all processes: a worker that persists learns of the next epoch here.
        self._shared = _share.shared(torch.zeros(_USED + _WORKERS, dtype=torch.int64))
        self._pending: State | None = None
        self._loads = 0  # how often a state was loaded, when this object was copied to a worker
        self._iterator: DatasetIterator | None = None
        self._length: int | None = None

    # --- what it is -------------------------------------------------------

    @property
    def dataset(self) -> Dataset:
        """What is read."""
        return self._dataset

    @property
    def rank(self) -> int:
        """The rank whose share this is."""
        return self._resolved()[0]

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return self._resolved()[1]

    def _resolved(self) -> tuple[int, int]:
        if self._ranks is not None:
            return self._ranks
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
        if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
            try:
                rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            except ValueError:
                raise ValueError(
                    f"RANK, WORLD_SIZE: got {os.environ['RANK']!r}, {os.environ['WORLD_SIZE']!r}, want integers"
                ) from None
            _check_rank(rank, world, "RANK", self.batch_size)
            return rank, world
        return 0, 1

    def __repr__(self) -> str:
        return f"<BowstringDataset of {self._dataset!r}, batches of {self.batch_size}>"

    def __len__(self) -> int:
        """Batches that this rank gets in an epoch, all its workers together; samples, if `output` says so.

        The server is asked once.
        """
        if self._length is None:
            rank, world = self._resolved()
            share = self._dataset.plan(batch=self.batch_size, world_size=world).ranks[rank]
            full = (rank + 1) * self.batch_size // world - rank * self.batch_size // world  # of a step but the last
            nothing = share.rows == full * (share.steps - 1)  # is left of the last step for it
            self._length = share.steps - nothing if self.output == "batches" else share.rows
        return self._length

    def __bool__(self) -> bool:
        return True

    def __getstate__(self) -> dict[str, Any]:
        # A worker that is not forked does not know of torch.distributed.
        return {**self.__dict__, "_ranks": self._resolved(), "_iterator": None}

    # --- epochs -----------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration is of."""
        return int(self._shared[_EPOCH])

    def set_epoch(self, epoch: int) -> None:
        """Say of which epoch the next iteration is; call it in each, before the loop, as with `DistributedSampler`.

        Workers that persist are told. Without it every iteration has the order of epoch 0. A state that was loaded
        into the dataset is forgotten, unless it is of this epoch.
        """
        if isinstance(epoch, bool) or not isinstance(epoch, int) or not 0 <= epoch < 2**63:
            raise ValueError(f"epoch: got {epoch!r}, want an integer, 0 or more")
        self._shared[_EPOCH] = epoch
        self._shared[_EXPLICIT] = 1
        if self._pending is not None and self._pending["epoch"] != epoch:
            self._pending = None  # workers that were started have taken it

    # --- iteration --------------------------------------------------------

    def _share_of(self) -> Share:
        info = get_worker_info()
        rank, world = self._resolved()
        return Share(rank, world, info.id, info.num_workers) if info is not None else Share(rank, world)

    def __iter__(self) -> DatasetIterator:
        share = self._share_of()
        if share.workers > _WORKERS:
            raise ValueError(f"num_workers: got {share.workers}, want {_WORKERS} at most")
        _check_rank(share.rank, share.world, "rank", self.batch_size)
        if get_worker_info() is not None:
            self._shared[_ITERATED] = 1
            if self._tune and not any(name.startswith("MALLOC_") for name in os.environ):
                tune_malloc()
        state = self._taken(share)
        place = Place(self.epoch, share.worker, share.workers) if state is None else place_for(state, share)
        self._iterator = DatasetIterator(self, share, place)
        self._iterator._late = self._loads != int(self._shared[_LOADS])
        return self._iterator

    def _taken(self, share: Share) -> State | None:
        """The state that was loaded, if this is the first iteration since."""
        loads = int(self._shared[_LOADS])
        if self._loads == -1:  # loaded in this process, by a loader
            state, self._pending, self._loads = self._pending, None, loads
            return state
        if self._loads != loads:  # which the iterator says: a worker that persists does not survive an error here
            return None
        if self._pending is None or int(self._shared[_USED + share.worker]) == loads:
            return None
        self._shared[_USED + share.worker] = loads
        return self._pending

    # --- states -----------------------------------------------------------

    def _request(self) -> dict[str, Any]:
        return self._dataset.request(batch=self.batch_size)

    def state_at(self, step: int, epoch: int | None = None) -> State:
        """The state of a job that has done the steps before `step`.

        A training loop that counts its steps needs no other: it works with every loader and trainer.
        """
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise ValueError(f"step: got {step!r}, want an integer, 0 or more")
        return portable(self._request(), self.epoch if epoch is None else epoch, step)

    def state_after(self, batch: Batch) -> State:
        """The state of a job that has done all steps up to the one of a batch."""
        if not isinstance(batch, Batch) or batch.step < 0:
            raise TypeError("batch: want one that this dataset gave; state_at takes a step's number")
        return self.state_at(batch.step + 1, batch.epoch)

    def state_dict(self) -> State:
        """Where this process is in its share of the epoch: for StatefulDataLoader, which asks each worker.

        In a process whose workers do the reading nobody knows: ask the StatefulDataLoader, or use `state_at`.
        """
        if self._iterator is not None:
            return self._iterator.state_dict()
        if get_worker_info() is None and self._shared[_ITERATED]:
            raise RuntimeError(
                "the workers read, and this process does not know how much of it was used: take the state_dict of a "
                "StatefulDataLoader, or state_at(step) of this dataset"
            )
        pending = None if self._pending is None else dict(self._pending)
        return pending or portable(self._request(), self.epoch, 0)

    def load_state_dict(self, state: Mapping[str, Any] | list[Any]) -> None:
        """Go on where a job was, in the next iteration; in those after it, from the beginning.

        Takes what `state_dict` of a StatefulDataLoader gave, whatever its number of ranks and workers, a list of such
        of all ranks, or what [portable_state][bowstring.torch.portable_state] made of them; or a state of a dataset.
        Load it before the workers are started.
        """
        whole = isinstance(state, list) or "bowstring" not in state
        found = check(portable_state_of(state) if whole else state, self._request())
        if get_worker_info() is not None:
            self._pending, self._loads = found, -1
            return
        if "worker" in found:  # of an iterator: for this very share, or of all there is
            share = self._share_of()
            theirs = Share(found["rank"], found["world"], found["worker"], found["workers"])
            if theirs != share:
                found = check(portable_state_of(found), self._request())
        self._loads = int(self._shared[_LOADS]) + 1
        self._shared[_LOADS] = self._loads
        self._pending = found
        if not self._shared[_EXPLICIT]:
            self._shared[_EPOCH] = found["epoch"]


class DatasetIterator(Iterator[Any]):
    """One process's share of an epoch. Made by `iter` of a [BowstringDataset][bowstring.torch.BowstringDataset]."""

    def __init__(self, dataset: BowstringDataset, share: Share, place: Place) -> None:
        self._dataset = dataset
        self._share = share
        self._place = place
        self._restored = False
        self._late = False  # whether a state was loaded that this process does not know of
        self._stream: Batches | None = None
        self._single = False  # whether the stream is of one step alone
        self._rest: list[tuple[int, Any]] = []  # samples of the current step, last first, with their rows
        self._ended = False

    def __iter__(self) -> DatasetIterator:
        return self

    def __next__(self) -> Any:
        if self._late:
            raise RuntimeError(
                "load_state_dict of the dataset was called when the workers had been started; make a new DataLoader"
            )
        while not self._ended:
            if self._dataset.output == "samples":
                if self._rest:
                    row, sample = self._rest.pop()
                    self._place = replace(self._place, row=row + 1) if self._rest else self._place.after()
                    return sample
                first = self._place.row
                _, record = self._next_share()
                if record is None:
                    break
                samples = self._dataset._steps.samples(record)
                self._rest = [(first + row, sample) for row, sample in reversed(samples)]
                if not samples:
                    self._place = self._place.after()
                continue
            step, record = self._next_share()
            if record is None:
                break
            batch = self._dataset._steps.batch(record, self._place.epoch, step)
            self._place = self._after(step)
            if batch is not None:
                return batch
        self._ended = True
        self.close()
        raise StopIteration

    def _next_share(self) -> tuple[int, pa.RecordBatch | None]:
        """The share of the next step, and the step's number; None at the end of the epoch."""
        while True:
            stream = self._stream or self._open()
            parts = []
            for record in stream:
                parts.append(record)
                if stream.place is not None and stream.place["last"]:
                    break
            if parts:
                break
            if not self._single:
                return -1, None
            self._place = self._place.after()  # a last step of which this rank has no part
            self.close()
        if stream.place is None or not stream.place["last"]:
            raise ServerError(f"step {self._place.next} ended before its last row")
        step: int = stream.place["step"]
        if self._dataset._strict and step != self._place.next:
            raise ServerError(f"the server sent step {step} instead of {self._place.next}")
        if self._restored:
            self._check_epoch()
        return step, parts[0] if len(parts) == 1 else pa.concat_batches(parts)

    def _check_epoch(self) -> None:
        self._restored = False
        shared = self._dataset._shared
        if shared[_EXPLICIT] and int(shared[_EPOCH]) != self._place.epoch:
            raise ValueError(
                f"epoch: the loader's state is within epoch {self._place.epoch}, set_epoch said {int(shared[_EPOCH])}"
            )

    def _after(self, step: int) -> Place:
        stream = self._stream
        if self._dataset._strict or stream is None:
            place = self._place.after()
        else:
            ticket = stream.ticket
            place = replace(
                self._place, step=ticket["step"], row=ticket.get("row", 0), served=ticket.get("served"), single=()
            )
        if self._single:
            self.close()
        del step
        return place

    def _open(self) -> Batches:
        place, share, dataset = self._place, self._share, self._dataset._dataset
        self._single = bool(place.single)
        ticket = dataset.ticket(
            batch=self._dataset.batch_size,
            rank=share.rank,
            world_size=share.world,
            epoch=place.epoch,
            step=place.next,
            row=place.row,
            stride=1 if self._single else place.stride,
            stop=place.next + 1 if self._single else None,
        )
        if place.served is not None:
            ticket["served"] = place.served
        self._stream = dataset.resume(ticket)
        return self._stream

    def close(self) -> None:
        """End the stream."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def state_dict(self) -> State:
        """Where it is, for the same worker of the same rank."""
        return of_worker(self._dataset._request(), self._share, self._place)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another iterator was."""
        found = check(state, self._dataset._request())
        place = place_for(found, self._share)
        self.close()
        self._place, self._rest, self._ended, self._restored = place, [], False, True


def _check_rank(rank: int, world: int, name: str, batch: int) -> None:
    if world < 1 or not 0 <= rank < world:
        raise ValueError(f"{name}: got rank {rank} of {world}, want one from 0 to {max(world, 1) - 1}")
    if batch < world:
        raise ValueError(f"batch_size: got {batch}, which leaves some of {world} ranks without samples")
