"""Columns of Arrow as tensors that point to the same memory, and the batches they make up."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator
from typing import Any, Self, overload

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch.utils.dlpack import from_dlpack

from bowstring.operators import is_ragged

Column = Any  # a tensor, Blobs, a list, or a dict of columns

_VIEWS = {  # what torch has no type for, as integers: of the unit of its type
    pa.types.is_date32: pa.int32(),
    pa.types.is_time32: pa.int32(),
    pa.types.is_date64: pa.int64(),
    pa.types.is_time64: pa.int64(),
    pa.types.is_timestamp: pa.int64(),
    pa.types.is_duration: pa.int64(),
}


class Blobs:
    """Bytes of many samples, one after another in one tensor.

    It costs two tensors whatever the number of samples: one to be sent from a worker, pinned, or moved to a device.

    ```python
    blobs = batch["image"]
    len(blobs), blobs[3]                    # the bytes of one sample, as a tensor that points into `data`
    images = [decode_image(b, mode="RGB") for b in blobs]
    ```

    Attributes:
        data: All bytes, `uint8`.
        offsets: Where each sample begins in `data`, and where the last one ends, `int64`.
    """

    __slots__ = ("data", "offsets")

    def __init__(self, data: torch.Tensor, offsets: torch.Tensor) -> None:
        self.data = data
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: int) -> torch.Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> torch.Tensor | Self:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                raise ValueError(f"a slice of blobs has no step, got {step}")
            return type(self)(self.data, self.offsets[start : max(start, stop) + 1])
        if not -len(self) <= index < len(self):
            raise IndexError(f"got index {index}, there are {len(self)}")
        start, stop = self.offsets[index % len(self) :][:2].tolist()
        return self.data[start:stop]

    def __iter__(self) -> Iterator[torch.Tensor]:
        bounds = self.offsets.tolist()
        for start, stop in itertools.pairwise(bounds):
            yield self.data[start:stop]

    def __repr__(self) -> str:
        return f"<{len(self)} blobs, {int(self.lengths.sum())} bytes>"

    @property
    def lengths(self) -> torch.Tensor:
        """Bytes of each sample."""
        return self.offsets.diff()

    def tolist(self) -> list[bytes]:
        """A copy as `bytes`."""
        return [blob.numpy().tobytes() for blob in self]

    def nested(self) -> torch.Tensor:
        """The same bytes as a nested tensor (layout `jagged`) of torch's."""
        nested: torch.Tensor = torch.nested.nested_tensor_from_jagged(self.data, self.offsets)
        return nested

    def pin_memory(self) -> Self:
        """A copy in pinned memory."""
        return type(self)(self.data.pin_memory(), self.offsets.pin_memory())

    def is_pinned(self) -> bool:
        """Whether it is in pinned memory."""
        return self.data.is_pinned()

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """A copy on a device."""
        return type(self)(
            self.data.to(device, non_blocking=non_blocking), self.offsets.to(device, non_blocking=non_blocking)
        )


class Sequences(Blobs):
    """Numbers of several sequences, one after another in one tensor: what `pack` makes of a dataset's rows.

    ```python
    tokens = batch["tokens"]
    tokens.data, tokens.offsets             # all tokens, and where each sequence begins
    tokens[3], tokens.nested()              # one sequence; all as a nested tensor
    ```

    Attributes:
        data: All numbers, of the type that the column has.
        offsets: Where each sequence begins in `data`, and where the last one ends, `int64`.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{len(self)} sequences, {int(self.lengths.sum())} values of {self.data.dtype}>"

    @property
    def lengths(self) -> torch.Tensor:
        """Values of each sequence."""
        return self.offsets.diff()

    def tolist(self) -> list[list[Any]]:  # type: ignore[override]
        """A copy as lists."""
        return [values.tolist() for values in self]


class Batch(dict[str, Column]):
    """The samples of a step for a rank: columns by name, and their position in the plan.

    Numbers are tensors of one dimension, ids a tensor of 16 bytes each, text is a list of `str`, and what is stored as
    bytes is [Blobs][bowstring.torch.Blobs], or what decoding made of it. Numbers of packed sequences are
    [Sequences][bowstring.torch.Sequences], or one tensor where they are padded.

    Attributes:
        epoch: Which epoch it is of.
        step: Which step; the same number on every rank. -1 if it is of no step, as with random access.
        digest: Of the samples of the step, where the dataset was made with `digest=True`; else None.
        valid: For each column that has nulls in this batch, which rows have a value. A null is 0, NaN, or no bytes.
    """

    epoch: int = 0
    step: int = -1
    digest: str | None = None
    valid: dict[str, torch.Tensor]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.valid = {}

    def samples(self) -> list[dict[str, Any]]:
        """One dictionary for each row; its tensors point into the batch."""
        if not self:
            return []
        columns = [rows(column) for column in self.values()]
        return [dict(zip(self, row, strict=True)) for row in zip(*columns, strict=True)]

    def pin_memory(self) -> Batch:
        """A copy in pinned memory: `DataLoader(pin_memory=True)` calls this."""
        return self._each(_pinned)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
        """A copy with the tensors on a device; what is no tensor stays as it is."""

        def moved(column: Column) -> Column:
            return column.to(device, non_blocking=non_blocking) if hasattr(column, "to") else column

        return self._each(moved)

    def _each(self, change: Any) -> Batch:
        other = Batch({name: _deep(column, change) for name, column in self.items()})
        other.__dict__.update(self.__dict__)
        other.valid = {name: change(mask) for name, mask in self.valid.items()}
        return other


def _deep(column: Column, change: Any) -> Column:
    if isinstance(column, dict):
        return {name: _deep(c, change) for name, c in column.items()}
    if isinstance(column, list):
        return [_deep(c, change) for c in column]
    return change(column)


def _pinned(column: Column) -> Column:
    return column.pin_memory() if hasattr(column, "pin_memory") else column


def rows(column: Column) -> list[Any]:
    """A column's values, one by one."""
    if isinstance(column, torch.Tensor):
        return list(column.unbind(0))
    if isinstance(column, dict):
        return [dict(zip(column, row, strict=True)) for row in zip(*map(rows, column.values()), strict=True)]
    return list(column)


def batch_of(record: pa.RecordBatch) -> Batch:
    """A record batch as tensors."""
    batch = Batch()
    for field, array in zip(record.schema, record.columns, strict=True):
        name = field.name
        if is_ragged(field):
            batch[name] = _made(array)
        elif is_packed(field):
            batch[name] = _sequences(array)
        else:
            batch[name] = column_of(array)
        if array.null_count:
            batch.valid[name] = _boolean(pc.is_valid(array))
    return batch


def is_packed(field: pa.Field) -> bool:
    """Whether a column has numbers of packed sequences, which are not padded."""
    kind = field.type
    return (
        b"bowstring.pack" in (field.metadata or {})
        and pa.types.is_list(kind)
        and (pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type))
    )


def column_of(array: pa.Array) -> Column:
    """An array of Arrow as a tensor that points to its memory, where torch allows it.

    Copied are booleans, which Arrow packs to bits, columns with nulls, and offsets of 32 bits. Text and lists of
    varying length become lists of Python's. The tensors may be changed in place: the memory is this process's own, or
    is copied page by page as it is written.
    """
    if isinstance(array.type, pa.FixedShapeTensorType):
        return _tensors(array)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type
    if pa.types.is_dictionary(kind):
        return column_of(array.dictionary_decode())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _blobs(array)
    if pa.types.is_struct(kind):
        return {field.name: column_of(array.field(i)) for i, field in enumerate(kind)}
    for test, integer in _VIEWS.items():
        if test(kind):
            return column_of(array.view(integer))
    if pa.types.is_boolean(kind):
        return _boolean(array)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        if array.null_count:
            array = pc.fill_null(array, pa.scalar(float("nan") if pa.types.is_floating(kind) else 0, kind))
        return _numbers(array)
    if pa.types.is_fixed_size_binary(kind) and not array.null_count:
        width = kind.byte_width
        flat = _bytes(array.buffers()[1], array.offset * width, len(array) * width)
        return flat.reshape(len(array), width)
    if pa.types.is_fixed_size_list(kind) and not array.null_count:
        values = column_of(array.flatten())
        if isinstance(values, torch.Tensor):
            return values.reshape(len(array), kind.list_size, *values.shape[1:])
    return array.to_pylist()


def _tensors(array: pa.ExtensionArray) -> torch.Tensor:
    """Tensors of one shape, which operators made. A null becomes zeros."""
    storage, size = array.storage, array.storage.type.list_size
    values = _numbers(storage.values.slice(storage.offset * size, len(storage) * size))
    return values.reshape(len(array), *array.type.shape)


def _made(array: pa.Array) -> list[torch.Tensor | None]:
    """Tensors of several shapes."""
    if not len(array):
        return []
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    data, shapes = array.field("data"), array.field("shape")
    flat, axes = _numbers(data.values), shapes.type.list_size
    bounds = _numbers(data.offsets).tolist()
    sizes = _numbers(shapes.values.slice(shapes.offset * axes, len(shapes) * axes)).reshape(-1, axes).tolist()
    valid = [True] * len(array) if not array.null_count else array.is_valid().to_pylist()
    return [flat[bounds[i] : bounds[i + 1]].reshape(sizes[i]) if valid[i] else None for i in range(len(array))]


def _numbers(array: pa.Array) -> torch.Tensor:
    if not len(array):
        return from_dlpack(pa.array([0], array.type))[:0]
    # DLPack, as torch warns of memory that it takes to be read-only. It is not: a batch that came over the network is
    # this process's own, and memory that a server shares is mapped copy-on-write.
    tensor = from_dlpack(array)
    if tensor.data_ptr() % tensor.element_size():
        return tensor.clone()  # a long message may begin at any address
    return tensor


def _bytes(buffer: pa.Buffer | None, start: int, length: int) -> torch.Tensor:
    if buffer is None or not length:
        return torch.empty(0, dtype=torch.uint8)
    return from_dlpack(pa.Array.from_buffers(pa.uint8(), length, [None, buffer], offset=start))


def _boolean(array: pa.Array) -> torch.Tensor:
    if array.null_count:
        array = pc.fill_null(array, False)
    return _numbers(pc.cast(array, pa.uint8())).view(torch.bool)


def _blobs(array: pa.Array) -> Blobs:
    wide = pa.types.is_large_binary(array.type)
    _, bounds, data = array.buffers()
    if not len(array) or bounds is None:
        return Blobs(torch.empty(0, dtype=torch.uint8), torch.zeros(len(array) + 1, dtype=torch.int64))
    integer = pa.int64() if wide else pa.int32()
    offsets = _numbers(pa.Array.from_buffers(integer, len(array) + 1, [None, bounds], offset=array.offset))
    offsets = offsets.to(torch.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    return Blobs(_bytes(data, first, last - first), offsets - first if first else offsets)


def _sequences(array: pa.Array) -> Sequences:
    if not len(array):
        return Sequences(_numbers(array.values[:0]), torch.zeros(1, dtype=torch.int64))
    offsets = _numbers(array.offsets).to(torch.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    values = column_of(array.values.slice(first, last - first))
    return Sequences(values, offsets - first if first else offsets)


def tune_malloc() -> bool:
    """Let glibc keep the memory that it has for the next batch, in this process.

    By itself it gives each large block back to the system and asks for it anew, which costs more than the batch. Does
    nothing, and returns False, where there is another C library.
    """
    try:
        libc = ctypes.CDLL("libc.so.6")
        mallopt = libc.mallopt
    except (OSError, AttributeError):
        return False
    trim, top_pad, mmap_threshold = -1, -2, -3
    most = (1 << 31) - 1
    large = mallopt(mmap_threshold, 1 << 30) or mallopt(mmap_threshold, 32 << 20)  # the most that older ones take
    return bool(large and mallopt(trim, most) and mallopt(top_pad, 64 << 20))
