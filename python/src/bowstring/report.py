"""Values that training computes for samples, as new columns of their dataset."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from bowstring._messages import listed, shown
from bowstring._rows.upload import IngestResult
from bowstring.dataset import Dataset
from bowstring.errors import InvalidRequest, Unavailable
from bowstring.lineage import Held

_TRIES = 8  # tries of a commit while other commits conflict; the server repeats each try itself


class Server(Protocol):
    """The part of a client that a report uses."""

    def dataset(self, name: str, /) -> Dataset: ...

    def lineage(self, job: str, step: int, /, *, epoch: int | None, rank: int | None) -> list[Held]: ...

    def ingest(
        self,
        name: str,
        reader: Any,
        /,
        *,
        mode: str,
        on: str | None,
        blobs: Iterable[str] | None,
        source: str | None,
        progress: bool,
    ) -> IngestResult: ...


class Report:
    """Values by sample, such as losses, for `commit` to store: see [Client.report][bowstring.Client.report].

    Nothing is sent before `commit`. If a sample has several values, the last one counts. Each process has its own
    report; those of all ranks are merged in the dataset, in any order of commits.
    """

    def __init__(self, client: Server, dataset: Dataset) -> None:
        self._client = client
        self._dataset = dataset
        self._columns: list[str] = []
        self._rows: list[pa.Array] = []  # ids, of 16 bytes
        self._values: list[list[pa.Array]] = []  # by column

    def __len__(self) -> int:
        """The number of values per column, with repeats."""
        return sum(map(len, self._rows))

    def add(self, rows: Any, **values: Any) -> None:
        """Add values of samples.

        ```python
        report.add(batch["position"], loss=losses)
        ```

        Args:
            rows: Positions in the dataset's snapshot, or ids, as `Dataset.take` takes them; or a batch that has one of
                the two as a column.
            **values: By column, one value for each row, or one for all. Every call has the same columns.
        """
        if isinstance(rows, (pa.RecordBatch, pa.Table)):
            rows = self._named(rows)
        self._note(self._ids(self._dataset, rows), values)

    def step(self, job: str, step: int, *, epoch: int | None = None, rank: int | None = None, **values: Any) -> int:
        """Add values of the samples that a step of a job held, from the server's record.

        Args:
            job: As `Client.lineage` takes it; `step`, `epoch` and `rank` likewise.
            step: The step.
            epoch: The epoch. Default: the last one recorded, or the plan's.
            rank: One rank. Default: all, one after the other.
            **values: As for `add`, in the order of delivery.

        Returns:
            The number of samples.
        """
        ids = []
        for piece in sorted(
            self._client.lineage(job, step, epoch=epoch, rank=rank), key=lambda piece: (piece.rank, piece.row or 0)
        ):
            if piece.ids:
                ids.append(self._ids(self._dataset, piece.ids))
                continue
            name = piece.dataset.rpartition("@")[0]
            if name != self._dataset.name:
                raise InvalidRequest(f"job: it reads {shown(piece.dataset)}, and the report is of {self._dataset.name}")
            ids.append(self._ids(self._client.dataset(piece.dataset), piece.positions))
        held = pa.concat_arrays(ids)
        self._note(held, values)
        return len(held)

    def commit(self, *, source: str | None = None, progress: bool = False) -> IngestResult | None:
        """Make a snapshot with these values, and clear the report. None if there are no values.

        The columns are added if the dataset does not have them, null for samples without a value; otherwise samples
        without a value keep theirs. Running jobs continue with their snapshot. It needs the rights to read and to write
        the dataset.

        Args:
            source: Free text that is stored with the snapshot.
            progress: Whether to show a progress bar.
        """
        if not self._rows:
            return None
        table = self._table()
        for again in range(_TRIES - 1):
            with contextlib.suppress(Unavailable):
                return self._committed(table, source, progress)
            time.sleep(random.uniform(0.05, 0.2) * 2**again)  # noqa: S311
        return self._committed(table, source, progress)

    def _committed(self, table: pa.Table, source: str | None, progress: bool) -> IngestResult:
        made = self._client.ingest(
            self._dataset.name, table, mode="merge", on="id", blobs=[], source=source, progress=progress
        )
        self._columns, self._rows, self._values = [], [], []
        return made

    def _named(self, batch: pa.RecordBatch | pa.Table) -> Any:
        for column in ("id", "position"):
            if column in batch.schema.names:
                return batch.column(column)
        raise InvalidRequest(
            f"rows: got a batch with columns {listed(batch.schema.names)}, want `id` or `position` too"
        )

    def _ids(self, dataset: Dataset, rows: Any) -> pa.Array:
        if isinstance(rows, pa.ChunkedArray):
            rows = rows.combine_chunks()
        if isinstance(rows, pa.ExtensionArray):
            rows = rows.storage
        if isinstance(rows, pa.FixedSizeBinaryArray) and rows.type.byte_width == 16 and not rows.null_count:
            return rows
        found = dataset.take(rows, columns=["id"]).column("id").combine_chunks()
        return found.storage if isinstance(found, pa.ExtensionArray) else found

    def _note(self, ids: pa.Array, values: dict[str, Any]) -> None:
        if not values:
            raise InvalidRequest("values: want a column, such as loss=…")
        if self._rows and sorted(values) != self._columns:
            raise InvalidRequest(
                f"values: got {listed(sorted(values))}, want {listed(self._columns)} as before; other columns go into "
                "a report of their own, as what is missing would be made null"
            )
        arrays = [_array(name, values[name], len(ids)) for name in sorted(values)]
        self._columns = sorted(values)
        self._rows.append(ids)
        self._values.append(arrays)

    def _table(self) -> pa.Table:
        """The last value of each sample."""
        ids = pa.concat_arrays(self._rows)
        keys = np.frombuffer(ids.buffers()[1], dtype="V16")[ids.offset : ids.offset + len(ids)]
        _, back = np.unique(keys[::-1], return_index=True)
        last = pa.array(np.sort(len(ids) - 1 - back))
        columns = [ids] + [pa.concat_arrays(list(parts)) for parts in zip(*self._values, strict=True)]
        return pa.table(columns, names=["id", *self._columns]).take(last)


def _array(name: str, values: Any, rows: int) -> pa.Array:
    """A column of values, one per row."""
    if hasattr(values, "detach"):  # a tensor on any device
        values = values.detach().cpu().numpy()
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, (np.ndarray, np.generic)) and values.ndim == 0:
        values = values.item()
    if isinstance(values, (bool, int, float, str, bytes)):
        return pa.repeat(pa.scalar(values), rows)
    array = (
        values if isinstance(values, pa.Array) else pa.array(np.asarray(values) if hasattr(values, "dtype") else values)
    )
    if len(array) != rows:
        raise InvalidRequest(f"{name}: got {len(array)} values for {rows} rows, want one for each, or one for all")
    return array
