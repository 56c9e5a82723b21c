"""Functions of the caller's over the rows of a dataset, as in Hugging Face datasets."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from bowstring._rows.positions import are_several
from bowstring.errors import InvalidRequest


@dataclass(frozen=True)
class _Step:
    """A function, and how it is called."""

    function: Callable[..., Any]
    batched: bool
    removed: tuple[str, ...]

    def of_rows(self, rows: Any) -> Any:
        """The results for several rows, which are a mapping of columns."""
        if self.batched:
            return self._merged(rows, self.function(rows))
        made = [self._merged(row, self.function(row)) for row in _split(rows)]
        names = list(made[0]) if made else [name for name in rows if name not in self.removed]
        for row in made:
            if list(row) != names:
                raise ValueError(f"map: one row has {', '.join(names)}, and another one {', '.join(row)}")
        return {name: [row[name] for row in made] for name in names}

    def _merged(self, given: Mapping[str, Any], made: Any) -> dict[str, Any]:
        if made is not None and not isinstance(made, Mapping):
            raise TypeError(f"map: the function gave {type(made).__name__}, want a dictionary of columns, or None")
        return {name: value for name, value in given.items() if name not in self.removed} | dict(made or {})


class Mapped:
    """The rows of a dataset, and functions that run on each when it is read.

    [Dataset.map][bowstring.Dataset.map] makes it. It may be pickled if its functions can be, and a DataLoader takes it
    as a dataset.
    """

    def __init__(self, dataset: Any, steps: tuple[_Step, ...], batch_size: int) -> None:
        if batch_size < 1:
            raise InvalidRequest(f"batch_size: got {batch_size}, want 1 or more")
        if dataset._format not in ("python", "numpy", "torch"):
            raise InvalidRequest(f"map: got rows as {dataset._format}, want python, numpy or torch by `with_format`")
        self._dataset = dataset
        self._steps = steps
        self._batch_size = batch_size

    def __repr__(self) -> str:
        names = ", ".join(getattr(step.function, "__name__", repr(step.function)) for step in self._steps)
        return f"<bowstring.Mapped {names}; {self._dataset!r}>"

    def map(
        self,
        function: Callable[..., Any],
        *,
        batched: bool = False,
        batch_size: int | None = None,
        remove_columns: Iterable[str] = (),
    ) -> Mapped:
        """Add a function. It gets the results of the functions before it."""
        if not callable(function):
            raise TypeError(f"function: got {type(function).__name__}, want a function of a row")
        if isinstance(remove_columns, str):
            raise TypeError(f"remove_columns: got a str, want a list of names; perhaps [{remove_columns!r}]")
        step = _Step(function, batched, tuple(remove_columns))
        size = self._batch_size if batch_size is None else batch_size
        return Mapped(self._dataset, (*self._steps, step), size)

    def __len__(self) -> int:
        if any(step.batched for step in self._steps):
            raise TypeError("map: a batched function may make fewer or more rows, so their number is not known")
        return len(self._dataset)

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, index: Any) -> Any:
        """Rows by their index; batched functions get the rows of one call as a batch."""
        if isinstance(index, str):
            raise TypeError("index: got a name, want integers: the columns of a map are read row by row")
        if isinstance(index, slice) or are_several(index):
            return self._rows(self._dataset[index])
        row = operator.index(index)
        made = self._rows(self._dataset[[row]])
        if _count(made) != 1:
            raise InvalidRequest(f"index: a batched function made {_count(made)} rows of one")
        return {name: values[0] for name, values in made.items()}

    def __getitems__(self, indexes: Sequence[int]) -> list[Any]:
        return list(_split(self._rows(self._dataset[list(indexes)])))

    def __iter__(self) -> Iterator[Any]:
        """The rows of epoch 0, one after another, whatever rank this is."""
        # The size of a step decides the order where `bucket_by_length` sorts steps.
        step = None if "bucket_by_length" in self._dataset._options else self._batch_size
        with self._dataset._whole(step) as batches:
            for batch in batches:
                for at in range(0, batch.num_rows, self._batch_size):
                    yield from _split(self._of_batch(batch.slice(at, self._batch_size)))

    def batches(self, batch: int, **options: Any) -> Iterator[Any]:
        """The batches of an epoch as dictionaries of columns, as [batches][bowstring.Dataset.batches] gives them.

        Its arguments are those of `Dataset.batches`. A batched function gets each batch.
        """
        with self._dataset.batches(batch, **options) as batches:
            for found in batches:
                yield self._of_batch(found)

    def _of_batch(self, batch: pa.RecordBatch) -> Any:
        return self._rows(self._dataset._batch(batch))

    def _rows(self, rows: Any) -> Any:
        for step in self._steps:
            rows = step.of_rows(rows)
        return rows


def _count(rows: Mapping[str, Any]) -> int:
    sizes = {name: len(values) for name, values in rows.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(
            f"map: columns of different lengths, {sizes}; remove_columns drops those that the function does not make"
        )
    return next(iter(sizes.values()), 0)


def _split(rows: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for n in range(_count(rows)):
        yield {name: values[n] for name, values in rows.items()}
