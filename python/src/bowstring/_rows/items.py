"""Rows of a dataset by their index, one after another, and as frames: the words of Hugging Face datasets."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bowstring._requests.request import Request
from bowstring._rows.integers import Positions, to_numpy
from bowstring._rows.map import Mapped
from bowstring._rows.positions import are_several, range_of
from bowstring.errors import InvalidRequest
from bowstring.operators import is_ragged, tensors

if TYPE_CHECKING:
    from typing import Self

    from bowstring.stream import Batches

Format = Literal["python", "arrow", "numpy", "pandas", "polars", "torch"]


class Items(Request):
    """Rows by their index. [Dataset][bowstring.Dataset] adds how they are chosen and read."""

    if TYPE_CHECKING:  # of Dataset

        def columns(self, names: Sequence[str]) -> Self: ...
        def positions(self) -> Positions: ...
        def to_arrow(self) -> pa.Table: ...
        def take(self, rows: Any) -> pa.Table: ...
        def _stream(self, ticket: dict[str, Any]) -> Batches: ...
        def _whole(self, batch: int | None = None) -> Batches: ...

    @property
    def column_names(self) -> list[str]:
        """The names of its columns."""
        return list(self.schema.names)

    @property
    def features(self) -> dict[str, pa.Field]:
        """Its columns by name. `classes` gives the names of a column's classes."""
        return {field.name: field for field in self.schema}

    def with_format(self, name: Format) -> Self:
        """The same rows; `dataset[…]` and iteration return them in another form.

        Args:
            name: `python`: a row is a dictionary of values, and several rows are one of lists. `numpy` and `torch`:
                likewise, of arrays or tensors where the values are numbers of one shape. `arrow`, `pandas` and
                `polars`: a table or a frame, which has one row for one index.
        """
        if name not in get_args(Format):
            raise InvalidRequest(f"with_format: got {name!r}, want one of {', '.join(get_args(Format))}")
        return self._but(_format=name, _schema=self._schema, _size=self._size, _places=self._places)

    def map(
        self,
        function: Callable[..., Any],
        *,
        batched: bool = False,
        batch_size: int = 64,
        remove_columns: Iterable[str] = (),
    ) -> Mapped:
        """Run a function in this process on each row when it is read. Nothing is read or stored before.

        ```python
        for row in photos.map(lambda row: {"ratio": row["width"] / row["height"]}):
            ...
        ```

        Args:
            function: It gets a row as a dictionary, and returns a dictionary of columns to add or to replace, or None.
            batched: Whether it gets several rows as a dictionary of lists or arrays. It may then return more or
                fewer rows, if `remove_columns` drops the columns that it does not return.
            batch_size: The largest number of rows of such a call in iteration.
            remove_columns: Columns to drop.
        """
        return Mapped(self, (), batch_size).map(function, batched=batched, remove_columns=remove_columns)

    def to_pandas(self) -> Any:
        """All rows, as a frame of pandas."""
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """All rows, as a frame of Polars."""
        return _formatted(self.to_arrow(), "polars")

    def __getitem__(self, index: Any) -> Any:
        """Rows by their index, in the order of epoch 0, or a column by its name.

        An integer gives a row; a slice, a list or an array of integers gives several; `with_format` says as what.
        """
        if isinstance(index, str):
            return _formatted(self.columns([index]).to_arrow(), self._format, column=index)
        if isinstance(index, slice):
            rows = np.arange(*index.indices(len(self._order())), dtype=np.int64)
            return _formatted(self.take(self._positions_of(rows)), self._format)
        if are_several(index):
            given = np.asarray(index)
            if given.ndim != 1 or (given.dtype.kind not in "iu" and len(given)):
                raise TypeError(f"index: got {given.dtype} of {given.ndim} dimensions, want a list of integers")
            return _formatted(self.take(self._positions_of(given)), self._format)
        table = self.take(self._positions_of(np.array([operator.index(index)])))
        return _formatted(table, self._format, one=True)

    def __getitems__(self, indexes: Sequence[int]) -> list[Any]:
        """The rows of a batch, one by one but read together: torch's DataLoader asks for them so."""
        table = self.take(self._positions_of(np.asarray(indexes)))
        return [_formatted(table.slice(row, 1), self._format, one=True) for row in range(table.num_rows)]

    def __iter__(self) -> Iterator[Any]:
        """The rows of epoch 0, one after another, whatever rank this is."""
        with self._whole() as batches:
            for batch in batches:
                table = pa.Table.from_batches([batch])
                for row in range(table.num_rows):
                    yield _formatted(table.slice(row, 1), self._format, one=True)

    def _batch(self, batch: pa.RecordBatch) -> Any:
        """The rows of a batch, as the format says."""
        return _formatted(pa.Table.from_batches([batch]), self._format)

    def _order(self) -> range | Positions:
        """The positions of its rows in the order of epoch 0."""
        if "pack" in self._options:
            raise InvalidRequest("index: documents that are packed have none; read sequences by `batches`")
        if self._places is None:
            # These decide the order, too. `bucket_by_length` sorts steps, which have 64 rows whatever the columns.
            kept = {name: o for name, o in self._options.items() if name in ("sample", "bucket_by_length")}
            if self._seed is None and not kept:
                found = range_of(self, self._stream)
                self._places = self.positions() if found is None else found
            else:
                plain = self._but(_columns=("position",), _options={**kept, "remainder": "uneven"})
                parts = [to_numpy(batch.column(0)) for batch in plain._whole()]
                self._places = np.concatenate(parts) if parts else np.empty(0, np.int64)
        places: range | Positions = self._places
        return places

    def _positions_of(self, rows: npt.NDArray[Any]) -> Positions:
        """The positions of rows by index; one below 0 counts from the end."""
        order = self._order()
        size = len(order)
        for row in rows:
            if not -size <= row < size:
                raise IndexError(f"index: got {row}, there are {size} rows")
        rows = rows.astype(np.int64) % max(size, 1)
        return rows + order.start if isinstance(order, range) else order[rows]


def are_columns(dataset: Request, given: Any) -> bool:
    """Whether what `select` was given are names of columns, and no ids of rows."""
    if not isinstance(given, (list, tuple)) or not given or not all(isinstance(name, str) for name in given):
        return False
    known = {*dataset._but(_columns=None).schema.names, "position", "split"}
    return all(name in known or name.rpartition(".")[0] in known for name in given)


def _formatted(table: pa.Table, name: str, *, one: bool = False, column: str | None = None) -> Any:
    """Rows as the format says: one of them, several, or a column of them."""
    if name == "arrow":
        return table if column is None else table[column]
    if name in ("pandas", "polars"):
        if name == "pandas":
            frame = table.to_pandas()
        else:
            import polars

            frame = polars.from_arrow(table)
        return frame if column is None else frame[column]
    values = {field.name: _values(table[field.name], field, name) for field in table.schema}
    if column is not None:
        return values[column]
    return {field: found[0] for field, found in values.items()} if one else values


def _values(column: pa.ChunkedArray, field: pa.Field, name: str) -> Any:
    """The values of a column, as a list, or as an array or a tensor where they are numbers of one shape."""
    if is_ragged(field) or isinstance(field.type, pa.FixedShapeTensorType):
        return _made(column, field, name)
    values = column.to_pylist()
    kind = column.type
    while not pa.types.is_primitive(kind) and hasattr(kind, "value_type"):  # lists and dictionaries
        kind = kind.value_type
    number = pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)
    if name == "python" or not number or column.null_count:
        return values
    try:
        array = np.asarray(values)
    except ValueError:  # lists of different lengths
        return values
    if array.dtype.kind not in "biuf":
        return values
    array = array.astype(kind.to_pandas_dtype(), copy=False)
    if name == "numpy":
        return array
    import torch

    return torch.from_numpy(array.copy()) if array.dtype.kind != "u" or array.itemsize == 1 else torch.tensor(values)


def _made(column: pa.ChunkedArray, field: pa.Field, name: str) -> Any:
    """The tensors of a column, which operators have made: one, or a list where their shapes differ or one is null."""
    cells: list[Any] = []
    for chunk in column.chunks:
        there = chunk.is_valid().to_pylist()
        found = tensors(chunk, field, writable=True)
        cells += [cell if valid else None for cell, valid in zip(found, there, strict=True)]
    if name == "python":
        return [None if cell is None else cell.tolist() for cell in cells]
    if name == "torch":
        import torch

        cells = [None if cell is None else torch.from_numpy(cell) for cell in cells]
    if is_ragged(field) or column.null_count or not cells:
        return cells
    if name == "torch":
        return torch.stack(cells)
    return np.stack(cells)
