"""One process's share of an epoch, as an iterator that knows where it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from bowstring._requests.mesh import Mesh
from bowstring._requests.state import Place, Share, State, check, of_idle, of_worker, place_for
from bowstring.dataset import Dataset
from bowstring.errors import ServerError
from bowstring.stream import Batches
from bowstring.torch._columns import Batch
from bowstring.torch._decode import DecodeError
from bowstring.torch._epochs import Began, Epochs
from bowstring.torch._rows import Steps


@dataclass(frozen=True)
class Job:
    """Settings that the iterators of a dataset share.

    Attributes:
        dataset: What is read, in the way in which that many ranks read it.
        request: What its states are of.
        batch: Samples of a global batch.
        steps: What is done with the rows.
        samples: Whether samples are given one by one.
        even: Whether each rank gives as many batches as the others.
        mesh: How ranks are laid out, where some of them get the same samples.
    """

    dataset: Dataset
    request: Mapping[str, Any]
    batch: int
    steps: Steps
    samples: bool
    even: bool
    mesh: Mesh | None = None

    @property
    def strict(self) -> bool:
        """Whether a step's batch has the samples of that step."""
        return bool(self.request.get("order", "strict") == "strict")


class DatasetIterator(Iterator[Any]):
    """One process's share of an epoch. Made by `iter` of a [BowstringDataset][bowstring.torch.BowstringDataset]."""

    def __init__(
        self,
        job: Job,
        share: Share,
        place: Place,
        epochs: Epochs,
        began: Began,
        *,
        said: int | None = None,
        late: bool = False,
    ) -> None:
        self._job = job
        self._share = share
        self._place = place
        self._epochs = epochs
        self._began = began
        self._said = said  # the epoch that `set_epoch` has said for this iteration, if it has
        self._restored = False
        self._late = late  # whether a state was loaded that this process does not know of
        self._stream: Batches | None = None
        self._single = False  # whether the stream is of one step alone
        self._rest: list[tuple[int, Any]] = []  # samples of the current step, last first, with their rows
        self._ended = share.idle

    def __iter__(self) -> DatasetIterator:
        return self

    def __next__(self) -> Any:
        try:
            return self._next()
        except StopIteration:
            raise
        except BaseException:  # what came of the step is lost here, and comes again by another stream
            self.close()
            raise

    def _next(self) -> Any:
        if self._late:
            raise RuntimeError(
                "load_state_dict of the dataset was called when the workers had been started; make a new DataLoader"
            )
        while not self._ended:
            if self._job.samples:
                if self._rest:
                    row, sample = self._rest.pop()
                    self._place = replace(self._place, row=row + 1) if self._rest else self._after()
                    return sample
                first = self._place.row
                _, record = self._next_share()
                if record is None:
                    break
                samples = self._job.steps.samples(record)
                self._rest = [(first + row, sample) for row, sample in reversed(samples)]
                if not samples:
                    self._place = self._after()
                continue
            step, record = self._next_share()
            if record is None:
                break
            batch = self._job.steps.batch(record, self._place.epoch, step)
            if isinstance(batch, Batch) and self._stream is not None and self._stream.place is not None:
                batch.digest = self._stream.place.get("digest")
            self._place = self._after()
            if batch is not None:
                return batch
            if self._job.even:
                raise DecodeError(
                    f"step {step}: none of the {record.num_rows} samples of rank {self._share.rank} can be decoded; "
                    "with a batch less than the others have, it would let them wait for ever"
                )
        self._ended = True
        self.close()
        raise StopIteration

    def _next_share(self) -> tuple[int, pa.RecordBatch | None]:
        """The share of the next step, and the step's number; None at the end of the epoch."""
        while True:
            stream = self._stream or self._open()
            parts = stream._step()
            if parts:
                break
            if not self._single:
                return -1, None
            self._place = self._place.after()  # a last step of which this rank has no part
            self.close()
        if stream.place is None or not stream.place["last"]:
            raise ServerError(f"step {self._place.next} ended before its last row")
        step: int = stream.place["step"]
        if self._job.strict and step != self._place.next:
            raise ServerError(f"the server sent step {step} instead of {self._place.next}")
        if self._restored:
            self._check_epoch()
        return step, parts[0] if len(parts) == 1 else pa.concat_batches(parts)

    def _check_epoch(self) -> None:
        self._restored = False
        if self._said not in (None, self._place.epoch):
            raise ValueError(
                f"epoch: the loader's state is within epoch {self._place.epoch}, set_epoch said {self._said}"
            )

    def _after(self) -> Place:
        stream = self._stream
        if self._job.strict or stream is None:
            place = self._place.after()
        else:
            ticket = stream.ticket
            place = replace(
                self._place, step=ticket["step"], row=ticket.get("row", 0), served=ticket.get("served"), single=()
            )
        if self._single:
            self.close()
        return place

    def _open(self) -> Batches:
        place, share, dataset = self._place, self._share, self._job.dataset
        self._single = bool(place.single)
        ticket = dataset.ticket(
            batch=self._job.batch,
            rank=share.rank,
            world_size=share.world,
            epoch=place.epoch,
            step=place.next,
            row=place.row,
            stride=1 if self._single else place.stride,
            stop=place.next + 1 if self._single else None,
            mesh=self._job.mesh,
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
        if self._share.idle:
            return of_idle(self._job.request, self._share, self._place.epoch)
        return of_worker(self._job.request, self._share, self._place)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another iterator was."""
        found = check(state, self._job.request)
        place = place_for(found, self._share)
        self.close()
        self._place, self._rest, self._ended, self._restored = place, [], self._share.idle, True
        if place.epoch != self._began.epoch:
            self._began = self._epochs.correct(self._began, place.epoch)
