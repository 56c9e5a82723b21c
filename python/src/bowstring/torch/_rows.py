"""From a record batch to what the training loop gets: decoding, transforms, collation."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import torch
from torch.utils.data import default_collate

from bowstring._messages import listed, shown
from bowstring._unstable.torch import collate_by
from bowstring.dataset import Dataset
from bowstring.operators import is_ragged
from bowstring.torch._columns import Batch, Blobs, batch_of
from bowstring.torch._decode import Decode, DecodeError, decoder

NAMES = ("position", "id")  # what errors name a sample by


@dataclass
class Steps:
    """The steps from a received batch to samples, in the process that received it."""

    decode: dict[str, Decode] = field(default_factory=dict)
    transform: Callable[[Any], Any] | None = None
    collate: Callable[[list[Any]], Any] | None = None
    skip: bool = False
    dlpack: bool = False
    hidden: tuple[str, ...] = ()  # columns that are read for errors' sake alone

    def batch(self, record: pa.RecordBatch, epoch: int, step: int) -> Any:
        """A whole batch; None if every sample of it was skipped."""
        if self.dlpack:
            return _exchangeable(record)
        batch, _ = self._decoded(record)
        if not len(batch) or not _length(batch):
            return None
        if self.transform is None and self.collate is None:
            for name in self.decode:
                batch[name] = _stacked(batch[name])
            made: Any = batch
        else:
            samples = batch.samples()
            if self.transform is not None:
                samples = [self.transform(sample) for sample in samples]
            made = (self.collate or collate)(samples)
        if isinstance(made, Batch):
            made.epoch, made.step = epoch, step
        return made

    def samples(self, record: pa.RecordBatch) -> list[tuple[int, Any]]:
        """The samples that are left, with their row in the record batch."""
        batch, kept = self._decoded(record)
        samples = batch.samples()
        if self.transform is not None:
            samples = [self.transform(sample) for sample in samples]
        return list(zip(kept, samples, strict=True))

    def _decoded(self, record: pa.RecordBatch) -> tuple[Batch, list[int]]:
        batch = batch_of(record)
        kept = list(range(record.num_rows))
        for name, decode in self.decode.items():
            valid = batch.valid.get(name)
            column = batch[name]
            if isinstance(column, dict):  # as the `datasets` library has it
                column = column["bytes"]
            images: list[Any] = []
            bad: set[int] = set()
            for i, data in enumerate(column):
                image, error = _attempt(decode, data, valid is None or bool(valid[i]))
                if error is not None:
                    if not self.skip:
                        raise DecodeError(f"{_name(batch, i)}, column {shown(name)}: {error}") from error
                    bad.add(i)
                images.append(image)
            batch[name] = images
            if bad:
                left = [i for i in range(len(images)) if i not in bad]
                batch = _chosen(batch, left)
                kept = [kept[i] for i in left]
        for name in self.hidden:
            batch.pop(name, None)
            batch.valid.pop(name, None)
        return batch, kept


def _exchangeable(record: pa.RecordBatch) -> dict[str, Any]:
    """Columns as what has `__dlpack__`; those that cannot be are as Arrow has them."""
    made: dict[str, Any] = dict(zip(record.schema.names, record.columns, strict=True))
    tensors = batch_of(record)
    given = {
        name: column
        for name, column in tensors.items()
        if isinstance(column, torch.Tensor) or (isinstance(column, list) and is_ragged(record.schema.field(name)))
    }
    return made | given


def steps_for(
    dataset: Dataset,
    decode: str | Decode | Mapping[str, str | Decode] | None,
    transform: Callable[[Any], Any] | None,
    collate: Callable[[list[Any]], Any] | None,
    on_decode_error: str,
) -> tuple[Dataset, Steps]:
    """The steps for a dataset's rows, and the dataset with the columns that they need."""
    if on_decode_error not in ("raise", "skip"):
        raise ValueError(f"on_decode_error: got {on_decode_error!r}, want 'raise' or 'skip'")
    steps = Steps(transform=transform, collate=collate, skip=on_decode_error == "skip")
    if decode is None:
        return dataset, steps
    schema = dataset.schema
    if isinstance(decode, Mapping):
        if missing := [name for name in decode if name not in schema.names]:
            raise ValueError(f"decode: there is no column {missing[0]!r}; there are {listed(schema.names)}")
        wanted = {name: decoder(d) for name, d in decode.items()}
    else:
        images = [f.name for f in schema if _is_image(f)]
        if not images:
            raise ValueError(f"decode: no column holds images; there are {listed(schema.names)}")
        wanted = {name: decoder(decode) for name in images}
    steps.decode = {name: d for name, d in wanted.items() if d is not None}
    steps.hidden = tuple(name for name in NAMES if name not in schema.names)
    if steps.hidden:
        dataset = dataset.columns([*schema.names, *steps.hidden])
    return dataset, steps


def _attempt(decode: Decode, data: torch.Tensor, valid: bool) -> tuple[Any, Exception | None]:
    if not valid:
        return None, ValueError("there are no bytes")
    try:
        return decode(data), None
    except Exception as error:  # noqa: BLE001 - whatever a decoder raises for bytes that it cannot read
        return None, error


def _is_image(column: pa.Field) -> bool:
    kind = column.type
    if pa.types.is_struct(kind):
        return {"bytes", "path"} <= {f.name for f in kind}
    if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        return False
    media: bytes = (column.metadata or {}).get(b"bowstring.media", b"image")
    return media == b"image"


def collate(samples: list[Any]) -> Any:
    """A batch of samples that are dictionaries: tensors of one shape are stacked, the rest become lists.

    It is what `default_collate` of torch's is, for samples that are not all of one size, such as undecoded images.
    Samples that are no dictionaries are left to `default_collate`.
    """
    if not samples or not isinstance(samples[0], Mapping):
        return default_collate(samples)
    return Batch({name: _stacked([sample[name] for sample in samples]) for name in samples[0]})


def _no_batches(batches: list[Any], **_: Any) -> Any:
    raise TypeError(
        f"DataLoader: got {len(batches)} whole batches to make one of; give it batch_size=None, as the server makes "
        "the batches, or output='samples' to the dataset"
    )


collate_by(Batch, _no_batches)  # torch would stack them, to tensors of another dimension


def _stacked(values: list[Any]) -> Any:
    first = values[0] if values else None
    if isinstance(first, torch.Tensor):
        if all(isinstance(v, torch.Tensor) and v.shape == first.shape and v.dtype == first.dtype for v in values):
            return torch.stack(values)
    elif isinstance(first, (bool, int, float)):
        return torch.tensor(values)
    return values


def _length(batch: Batch) -> int:
    column = next(iter(batch.values()))
    while isinstance(column, dict):
        column = next(iter(column.values()))
    return len(column)


def _chosen(batch: Batch, left: list[int]) -> Batch:
    def chosen(column: Any) -> Any:
        if isinstance(column, torch.Tensor):
            return column[left]
        if isinstance(column, dict):
            return {name: chosen(c) for name, c in column.items()}
        if isinstance(column, Blobs):
            blobs = list(column)
            data = [blobs[i] for i in left]
            offsets = torch.tensor([0, *(len(b) for b in data)]).cumsum(0)
            return type(column)(torch.cat(data) if data else column.data[:0], offsets)
        return [column[i] for i in left]

    made = Batch({name: chosen(column) for name, column in batch.items()})
    made.valid = {name: mask[left] for name, mask in batch.valid.items()}
    return made


def _name(batch: Batch, row: int) -> str:
    identity = batch["id"][row]
    if isinstance(identity, torch.Tensor):
        identity = uuid.UUID(bytes=identity.numpy().tobytes())
    return f"position {int(batch['position'][row])}, id {identity}"
