"""A dataset with random access, for samplers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import Dataset as TorchDataset

from bowstring._rows.positions import range_of
from bowstring._source import opened
from bowstring._transport.tls import Tls
from bowstring.client import Client
from bowstring.dataset import Dataset
from bowstring.exchange import Exchange
from bowstring.torch import _shared_memory
from bowstring.torch._decode import Decode
from bowstring.torch._epochs import Draws
from bowstring.torch._rows import steps_for


class BowstringMapDataset(TorchDataset[Any]):
    """A dataset by index, for `RandomSampler`, `WeightedRandomSampler` and others.

    ```python
    photos = BowstringMapDataset("grpc://127.0.0.1:8815", "photos", split="train")
    sampler = BatchSampler(RandomSampler(photos), 64, drop_last=False)
    loader = DataLoader(photos, sampler=sampler, batch_size=None, num_workers=2)     # whole batches
    ```

    Each batch is one request. A stream ([BowstringDataset][bowstring.torch.BowstringDataset]) is read ahead by the
    server and needs no sampler: prefer it where the order need not be of your making.

    An index is a row of the dataset in order of position, `where` and `select` applied; with a list of indices, as a
    `BatchSampler` gives them, the result is a whole [Batch][bowstring.torch.Batch], else a sample. With a `batch_size`
    in the DataLoader, give it [collate][bowstring.torch.collate] as `collate_fn` where samples differ in size.

    Args:
        source: A [Dataset][bowstring.Dataset]; or a client, or an address.
        name: The dataset's name, if the source is a client or an address.
        split: Which split of it.
        snapshot: Which snapshot, by number or tag; without it, the newest one now.
        columns: Which columns.
        where: Which rows.
        sql: Likewise, in SQL, as of [Dataset.where][bowstring.Dataset.where].
        decode: As of [BowstringDataset][bowstring.torch.BowstringDataset], like the following.
        transform: A function of a sample.
        collate: A function of the list of a batch's samples.
        on_decode_error: Only `raise`: a sampler counts on every sample.
        token: As of [connect][bowstring.connect], if the source is an address.
        tls: Likewise.
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
        decode: str | Decode | Mapping[str, str | Decode] | None = None,
        transform: Callable[[Any], Any] | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        on_decode_error: Literal["raise"] = "raise",
        token: str | None = None,
        tls: Tls | None = None,
    ) -> None:
        if on_decode_error != "raise":
            raise ValueError(f"on_decode_error: got {on_decode_error!r}; with random access only 'raise' is possible")
        dataset = opened(
            source, name, split=split, snapshot=snapshot, columns=columns, where=where, sql=sql, token=token, tls=tls
        )
        self._dataset, self._steps = steps_for(dataset, decode, transform, collate, on_decode_error)
        # Read only where they do not follow one another; and shared, so that workers do not each have a copy.
        self._positions = range_of(dataset, dataset._stream) or _shared_memory.shared(
            torch.from_numpy(dataset.positions())
        )
        self._epochs = Draws(len(self)) if "operators" in self._dataset.request() else None
        self._exchange: Exchange | None = None
        self._exchanged = 0  # the epoch that it is of

    @property
    def dataset(self) -> Dataset:
        """The dataset that is read."""
        return self._dataset

    @property
    def positions(self) -> torch.Tensor:
        """The position in the snapshot of each index."""
        rows = self._positions
        return torch.arange(rows.start, rows.stop) if isinstance(rows, range) else rows

    def __repr__(self) -> str:
        return f"<BowstringMapDataset of {self._dataset!r}>"

    def __len__(self) -> int:
        return len(self._positions)

    @property
    def epoch(self) -> int:
        """The epoch that random operators of the server's draw of, 0 without such."""
        return 0 if self._epochs is None else self._epochs.epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the server's random operators from now on, also in persistent workers.

        Without it, an index that comes again begins the next epoch: with a sampler that gives each index once, that is
        each iteration. The order is the sampler's.
        """
        if isinstance(epoch, bool) or not isinstance(epoch, int) or not 0 <= epoch < 2**31:
            raise ValueError(f"epoch: got {epoch!r}, want an integer from 0 to 2^31-1")
        if self._epochs is not None:
            self._epochs.say(epoch)

    def __getitem__(self, index: int | Sequence[int] | torch.Tensor) -> Any:
        if isinstance(index, (list, tuple, torch.Tensor, np.ndarray)) and np.ndim(index):
            return self._steps.batch(self._take(index), 0, -1)
        return self.__getitems__([int(index)])[0]  # type: ignore[arg-type]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Several samples by one request; DataLoader calls this."""
        return [sample for _, sample in self._steps.samples(self._take(indices))]

    def _take(self, indices: Any) -> Any:
        wanted = torch.as_tensor(indices, dtype=torch.int64)
        size = len(self)
        if not len(wanted):
            raise IndexError("got no index")
        if int(wanted.min()) < -size or int(wanted.max()) >= size:
            bad = next(i for i in wanted.tolist() if not -size <= i < size)
            raise IndexError(f"index: got {bad}, there are {size} samples")
        wanted = wanted % size
        epoch = 0 if self._epochs is None else self._epochs.drawn(wanted)
        if self._exchange is not None and epoch != self._exchanged:
            self._exchange.close()
            self._exchange = None
        if self._exchange is None:
            # Operators draw by seed and epoch; without a seed there is no place for an epoch.
            seeded = self._dataset if epoch == 0 or self._dataset._seed is not None else self._dataset.shuffle(0)
            self._exchange, self._exchanged = seeded.exchange(epoch=epoch), epoch
        rows = self._positions
        positions = wanted + rows.start if isinstance(rows, range) else rows[wanted]
        table = self._exchange.take(positions.numpy())
        return table.combine_chunks().to_batches()[0]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_exchange": None}
