"""Datasets as an external source of NVIDIA DALI.

[external_source][bowstring.dali.external_source] returns a callable for `fn.external_source`. The callable returns
batches of encoded files, as DALI's decoders take them, and of numbers.

```python
from bowstring.dali import external_source
from nvidia.dali import fn, pipeline_def

@pipeline_def(batch_size=64, num_threads=2, device_id=None)
def photos(source):
    images, labels = fn.external_source(source, num_outputs=2, batch=True)
    return fn.decoders.image(images), labels

pipeline = photos(external_source("grpc://127.0.0.1:8815", "photos", columns=["image", "label"], shuffle=7,
                                  global_batch_size=64))
```

The module does not import DALI: the user's pipeline calls it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bowstring._requests.launcher import check_given, check_name, check_rank, resolved
from bowstring._source import opened
from bowstring.errors import InvalidRequest

if TYPE_CHECKING:
    from bowstring._transport.tls import Tls
    from bowstring.client import Client
    from bowstring.dataset import Dataset
    from bowstring.stream import Batches

__all__ = ["ExternalSource", "external_source"]

Cell = npt.NDArray[Any]


class ExternalSource:
    """A callable that returns a rank's next batch, and raises `StopIteration` at the end of an epoch, as DALI expects.

    A batch is a list of columns, each of which is a list of arrays, one for each sample: `uint8` of one dimension for a
    blob, of none for a number. The call after the end of an epoch, or after `reset`, begins the next epoch, in another
    order if the dataset is shuffled. Arrays of blobs are views of the received batch, without a copy; DALI copies them.
    Only one thread at a time may call it.

    Attributes:
        epoch: The epoch of the next batch.
    """

    def __init__(self, dataset: Dataset, size: int, rank: int | None, world_size: int | None) -> None:
        check_given(rank, world_size)
        if rank is not None and world_size is not None:
            check_rank(rank, world_size, "rank")
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < max(world_size or 1, 1):
            raise ValueError(f"global_batch_size: got {size!r}, want an integer, a row or more for each rank")
        self.epoch = 0
        self._dataset, self._size, self._rank, self._world_size = dataset, int(size), rank, world_size
        self._most = int(size)  # rows per batch of the rank with the most
        self._batches: Batches | None = None
        self._records: list[pa.RecordBatch] = []  # of an incomplete step, whose last call failed

    def __call__(self) -> list[list[Cell]]:
        """The columns of the next batch."""
        if self._batches is None:
            rank, world_size = resolved(self._rank, self._world_size)
            self._most = -(-self._size // world_size)
            self._batches = self._dataset.batches(self._size, rank=rank, world_size=world_size, epoch=self.epoch)
        records = self._records
        try:
            if not records:
                records.append(next(self._batches))
            # A step may have several record batches
            while self._batches.place is not None and not self._batches.place["last"]:
                records.append(next(self._batches))
        except StopIteration:
            self.reset()
            raise
        self._records = []
        found: list[list[Cell]] = [[] for _ in records[0].columns]
        for record in records:
            for index, column in enumerate(record.columns):
                found[index] += _cells(record.schema.field(index).name, column)
        if len(found[0]) > self._most:
            raise InvalidRequest(f"global_batch_size: {len(found[0])} rows came, and DALI takes {self._most}")
        return found

    def set_epoch(self, epoch: int) -> None:
        """Abandon the current epoch; the next call begins this one."""
        if isinstance(epoch, bool) or not isinstance(epoch, int) or not 0 <= epoch < 2**63:
            raise ValueError(f"epoch: got {epoch!r}, want an integer, 0 or more")
        self.reset()
        self.epoch = epoch

    def reset(self) -> None:
        """Abandon the current epoch, if there is one; the next call begins the one after it."""
        self._records = []
        if self._batches is not None:
            self._batches.close()
            self._batches = None
            self.epoch += 1


def _cells(name: str, column: pa.Array) -> list[Cell]:
    """A column as arrays of single samples."""
    if column.null_count:
        raise InvalidRequest(f"column {name!r} has nulls, which DALI cannot take; narrow the dataset by where")
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    kind = column.type
    if pa.types.is_large_binary(kind) or pa.types.is_binary(kind):
        return [np.frombuffer(cell.as_buffer(), np.uint8) for cell in column]
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        text = (cell.as_py() for cell in column)
        return [np.frombuffer(t.encode() if isinstance(t, str) else t, np.uint8) for t in text]
    if pa.types.is_primitive(kind) and not pa.types.is_temporal(kind):
        return list(column.to_numpy(zero_copy_only=False))
    raise InvalidRequest(f"column {name!r} is {kind}; DALI takes blobs, text and numbers")


def external_source(
    source: Dataset | Client | str,
    name: str | None = None,
    *,
    global_batch_size: int = 64,
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
    batch: None = None,
) -> ExternalSource:
    """A `source` for `nvidia.dali.fn.external_source`, with `batch=True` and `num_outputs` the number of columns.

    Args:
        source: A [Dataset][bowstring.Dataset]; or a client, or an address.
        name: The dataset's name, if the source is a client or an address.
        global_batch_size: Samples per step, all ranks together. DALI's `batch_size` must be at least this number
            divided by the number of ranks, rounded up.
        rank: This process's rank, as `shard_id` of DALI's readers. Default: that of torch.distributed if it is
            initialised; else the environment variables RANK and WORLD_SIZE; else 0 of 1.
        world_size: The number of ranks, as `num_shards`.
        split: A split of the dataset.
        snapshot: A snapshot, by number or tag. Default: the newest one now.
        columns: The columns, in this order.
        where: An expression that selects rows.
        sql: Likewise, in SQL, as of [Dataset.where][bowstring.Dataset.where].
        shuffle: The seed of the global shuffle. Default: the source's order.
        token: As for [connect][bowstring.connect], if the source is an address.
        tls: As for [connect][bowstring.connect], if the source is an address.
        batch: The former name of `global_batch_size`; refused.
    """
    check_name("batch", batch)
    dataset = opened(
        source, name, split=split, snapshot=snapshot, columns=columns, where=where, sql=sql, token=token, tls=tls
    )
    if shuffle is not None:
        dataset = dataset.shuffle(shuffle)
    return ExternalSource(dataset, global_batch_size, rank, world_size)
