"""Datasets as lazy frames of Polars.

[scan][bowstring.polars.scan] returns a `polars.LazyFrame`. A query over it requests no more than it needs from the
server:

- **Columns**: those that the query uses.
- **Rows of `head` and `limit`**: as many as requested, if no filter precedes them.
- **Filters** over metadata, as a `where` that the server evaluates. Polars evaluates what the server cannot, and
  applies the whole filter in any case, so that the result is always that of Polars. Filters of a shuffled dataset are
  left to Polars: the server would put the remaining rows in another order. `where` selects rows before they are
  shuffled.
- **Bytes of the remaining samples**: if a filter cannot be left to the server completely, its metadata columns are read
  first, Polars filters them, and then blobs and other columns are read for the rows that passed.

[sink][bowstring.polars.sink] writes a frame, or the result of a query batch by batch, as a snapshot of a dataset.

Tensors of one shape are an `Array` of that shape. Timestamps of a zone that Polars does not know, such as `+02:00`,
become the same instants in UTC. Polars has no type for UUIDs: `id` is 16 bytes of `Binary`. `position`, a number,
identifies a row of a snapshot as well.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal, cast

import polars as pl
import pyarrow as pa
from polars.io.plugins import register_io_source

from bowstring._filters.polars import conjuncts, every, translate
from bowstring._filters.where import MAX_BYTES, Rows, is_blob, keeps_order
from bowstring._rows.upload import IngestResult, check_polars
from bowstring._source import opened, whole
from bowstring._write import client_of
from bowstring.dataset import INLINE
from bowstring.errors import InvalidRequest, ServerError

if TYPE_CHECKING:
    from bowstring._transport.tls import Tls
    from bowstring.client import Client
    from bowstring.dataset import Dataset

__all__ = ["scan", "sink"]

BATCH_ROWS = 65_536  # rows of a batch, if Polars gives no size; the server cuts batches of blobs by their bytes
SHUFFLED_ROWS = 128  # rows whose blobs are reordered in memory
_LOG = logging.getLogger("bowstring.polars")


def scan(
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
    references: bool = False,
) -> pl.LazyFrame:
    """A dataset as a lazy frame. Nothing is read before the query is collected.

    The frame is of the newest snapshot at this time, or the one named by `snapshot`; later imports do not change it.
    Rows come in the order of the dataset: by position, or shuffled. There are no batches, so `bucket_by_length` has no
    effect.

    ```python
    frame = bowstring.polars.scan("grpc://127.0.0.1:8815", "photos", split="train")
    wide = frame.filter(pl.col("width") > 2 * pl.col("height")).select("file_name", "image").collect()
    ```

    Args:
        source: A [Dataset][bowstring.Dataset], narrowed as needed; a [Client][bowstring.Client]; or the address of a
            server.
        name: The dataset's name, if `source` is a client or an address; so for all that follow.
        split: A split of the dataset.
        snapshot: A snapshot other than the newest, by number or tag; `name` may give it as `photos@prod`.
        columns: The columns of the frame. Default: all stored ones. `position` and `split` may be included.
        where: An expression that selects rows, combined with the filters of queries.
        sql: Likewise, in SQL, as of [Dataset.where][bowstring.Dataset.where].
        token: As for [connect][bowstring.connect], if `source` is an address.
        tls: As for [connect][bowstring.connect], if `source` is an address.
        references: Read blobs in place, from the files of a server on this node that allows it, as for
            [batches][bowstring.Dataset.batches]. Polars' `Binary` consists of the same views, so frames refer to the
            files. A frame that is kept, even with few rows of a batch, keeps the batch's blobs from being evicted.
    """
    dataset = opened(
        source, name, split=split, snapshot=snapshot, columns=columns, where=where, sql=sql, token=token, tls=tls
    )
    return register_io_source(
        _Scan(dataset, references),
        schema=_schema(dataset.schema),
        is_pure=True,  # of one snapshot
        explain_name=f"bowstring {dataset.name}@{dataset.snapshot}",
    )


def sink(
    frame: pl.LazyFrame | pl.DataFrame,
    name: str,
    into: str | os.PathLike[str] | Client,
    *,
    mode: Literal["create", "append", "replace", "merge"] = "create",
    split: str = "train",
    key: str | None = None,
    on: str | None = None,
    missing: Literal["error", "insert", "ignore"] | None = None,
    blobs: Iterable[str] | None = None,
    media: Mapping[str, str] | None = None,
    batch_rows: int | None = None,
    progress: bool = False,
) -> IngestResult:
    """Write a frame as a new snapshot of a dataset. If the query or the upload fails, the dataset is unchanged.

    ```python
    query = pl.scan_parquet("photos/*.parquet").filter(pl.col("width") >= 400)
    bowstring.polars.sink(query, "photos", into="store/", key="file_name", media={"image": "image"})
    ```

    Polars runs a query on its streaming engine, and each batch is sent when it is ready. Rows keep their order. Types
    are those of [Client.ingest][bowstring.Client.ingest]: a Categorical or an Enum becomes text, a Null becomes text
    without a value. Arrow has no Int128, UInt128 and Object: before the query runs, such a column is an
    [InvalidRequest][bowstring.InvalidRequest] that names it.

    Args:
        frame: The query, or a frame.
        name: The dataset.
        into: As for [write][bowstring.write]: a folder or another store, the address of a server, or a client.
        mode: As for [Client.ingest][bowstring.Client.ingest]; so for `split`, `key`, `on`, `missing`, `blobs` and
            `media`. Without `blobs`, each column of Binary holds samples' bytes.
        split: The split of the rows, unless they have a column `split`.
        key: The column whose value identifies a row.
        on: The column by which `merge` finds samples.
        missing: How `merge` treats rows whose key no sample has.
        blobs: The columns that hold samples' bytes.
        media: The media in them: `{"image": "image"}`, or `"audio"`.
        batch_rows: Rows of a batch. By default Polars decides, which may be 100,000: with large blobs give fewer.
        progress: Whether to show a progress bar.
    """
    if not isinstance(frame, (pl.LazyFrame, pl.DataFrame)):
        raise TypeError(f"frame: got {type(frame).__name__}, want a polars.LazyFrame or a polars.DataFrame")
    if batch_rows is not None and batch_rows < 1:
        raise InvalidRequest(f"batch_rows: got {batch_rows}, want 1 or more")
    query = frame.lazy()
    schema = query.collect_schema()
    check_polars(schema)
    client = client_of(into)

    def batches() -> Iterator[pa.Table]:
        yield pl.DataFrame(schema=schema).to_arrow()  # the columns, also of a query without a row
        for batch in query.collect_batches(chunk_size=batch_rows, maintain_order=True, engine="streaming"):
            yield batch.to_arrow()

    return client.ingest(
        name, batches(), mode=mode, split=split, key=key, on=on, missing=missing, blobs=blobs,
        media=None if media is None else dict(media), progress=progress,
    )  # fmt: skip


def _schema(schema: pa.Schema) -> pl.Schema:
    return _frame(schema.empty_table()).schema


def _frame(data: pa.Table | pa.RecordBatch) -> pl.DataFrame:
    table = data if isinstance(data, pa.Table) else pa.Table.from_batches([data])
    for i, field in enumerate(table.schema):
        if (known := _known_type(field.type)) != field.type:
            table = table.set_column(i, field.with_type(known), table.column(i).cast(known))
        if isinstance(field.type, pa.FixedShapeTensorType):
            chunks = [_nested(chunk) for chunk in table.column(i).chunks]
            nested = pa.chunked_array(chunks, _nested_type(field.type))
            table = table.set_column(i, field.name, nested)
    return cast(pl.DataFrame, pl.from_arrow(table, rechunk=False))


def _known_type(kind: pa.DataType) -> pa.DataType:
    """A type whose time zones Polars knows: it panics on others, such as +05:30. The instants are the same in UTC."""
    if pa.types.is_timestamp(kind):
        return kind if kind.tz is None or _is_zone(kind.tz) else pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_known_type(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_known_type(kind.value_type)))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_known_type(kind.value_type)), kind.list_size)
    return kind


@functools.lru_cache
def _is_zone(name: str) -> bool:
    """Whether Polars knows a time zone by its name."""
    try:
        pl.Series([None], dtype=pl.Datetime("us", name))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return False
    return not name.startswith(("+", "-"))  # it takes some offsets for zones of other names


def _nested_type(tensor: pa.FixedShapeTensorType) -> pa.DataType:
    """Lists of lists, from whose sizes Polars takes the shape of an `Array`."""
    nested = tensor.value_type
    for size in reversed(tensor.shape):
        nested = pa.list_(nested, size)
    return nested


def _nested(tensors: pa.FixedShapeTensorArray) -> pa.Array:
    """The same values as lists of lists, without a copy."""
    storage = tensors.storage
    size = storage.type.list_size
    values = storage.values.slice(storage.offset * size, len(storage) * size)  # flatten() would drop nulls
    first, *others = tensors.type.shape
    for length in reversed(others):
        values = pa.FixedSizeListArray.from_arrays(values, length)
    mask = storage.is_null() if storage.null_count else None
    return pa.FixedSizeListArray.from_arrays(values, first, mask=mask)


class _Scan:
    """The function that Polars calls for each scan of a query. It is pickled with the query."""

    def __init__(self, dataset: Dataset, references: bool = False) -> None:
        self._dataset = whole(dataset)
        self._references = references

    def __call__(
        self, columns: list[str] | None, predicate: pl.Expr | None, rows: int | None, batch_rows: int | None
    ) -> Iterator[pl.DataFrame]:
        names = list(self._dataset.schema.names) if columns is None else columns
        if rows == 0:
            return
        if not names and predicate is None:  # only the number of rows is needed
            total = self._dataset.num_rows
            yield pl.DataFrame(height=total if rows is None else min(rows, total))
            return
        query = _Query(self._dataset, names, predicate, rows, batch_rows or BATCH_ROWS, self._references)
        for frame in query.frames():
            yield frame if names else pl.DataFrame(height=frame.height)


class _Query:
    """One scan: its columns, its rows, and how they are read."""

    def __init__(
        self,
        dataset: Dataset,
        names: list[str],
        predicate: pl.Expr | None,
        rows: int | None,
        batch_rows: int,
        references: bool,
    ) -> None:
        schema = dataset.schema
        blobs = {f.name for f in schema if is_blob(f)}
        parts = [] if predicate is None else conjuncts(predicate)
        self._early = [p for p in parts if not blobs.intersection(p.meta.root_names())]
        self._late = [p for p in parts if blobs.intersection(p.meta.root_names())]
        looked_at = [root for p in self._early for root in p.meta.root_names()]
        self._needed = list(dict.fromkeys([*names, *(root for p in parts for root in p.meta.root_names())]))
        self._first = list(dict.fromkeys(["position", *looked_at]))
        self._rest = [c for c in self._needed if c not in self._first]
        self._names, self._rows, self._batch_rows = names, rows, batch_rows
        self._references = references
        self._shuffled = "shuffle" in dataset.request()
        self._view, exact = dataset, False
        # The server selects before it limits, so a filter of the first rows is not pushed down. Nor is a filter of an
        # order that depends on the number of rows.
        if predicate is not None and rows is None and keeps_order(dataset.request()):
            early, late = (every(translate(p, schema) for p in side).true for side in (self._early, self._late))
            self._view, taken = _pushed(dataset, early & late)
            exact = taken and early.exact
        self._one_pass = exact or not self._early or not blobs.intersection(self._needed)
        if dataset.request().get("on_error") == "skip":
            self._one_pass = True  # a substitute sample has its own metadata

    def frames(self) -> Iterator[pl.DataFrame]:
        """The result, in pieces."""
        if self._one_pass:
            for frame in self._read(self._needed or ["position"]):
                yield _filtered(frame, self._early + self._late).select(self._names)
            return
        # Positions identify the remaining rows. All other columns are requested by them.
        columns = ("position", *self._rest)
        plain = self._view._but(_split=None, _where=(), _selection=None, _seed=None, _columns=columns)
        for frame in self._read(self._first):
            left = _filtered(frame, self._early)
            for rows in left.iter_slices(SHUFFLED_ROWS if self._shuffled else INLINE):
                for piece in self._with_rest(plain, rows):
                    yield _filtered(piece, self._late).select(self._names)

    def _read(self, columns: list[str]) -> Iterator[pl.DataFrame]:
        """All rows, or as many as Polars wants."""
        view = self._view._but(_columns=tuple(columns))
        if self._rows is None:
            stream = view._whole(self._batch_rows, references=self._references)
        else:
            stream = view.resume(view.ticket(batch=self._rows, stop=1), references=self._references)
        with stream:
            for batch in stream:
                yield from _frame(batch).iter_slices(self._batch_rows)

    def _with_rest(self, plain: Dataset, rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
        """Add the remaining columns to rows that were read."""
        if not rows.height:
            return
        chosen = plain.select(rows["position"])
        with chosen._whole(self._batch_rows, references=self._references) as batches:
            pieces: Iterator[pl.DataFrame] = map(_frame, batches)
            if self._shuffled:  # the server sends them in order of position
                sent = pl.concat(pieces, rechunk=False)
                pieces = iter([sent[rows["position"].arg_sort().arg_sort()]])
            done = 0
            for rest in pieces:
                known = rows.slice(done, rest.height)
                if not known["position"].equals(rest["position"]):
                    raise ServerError(f"got other rows than those asked for, from number {done} of {rows.height}")
                done += rest.height
                yield known.hstack(rest.drop("position"))
        if done != rows.height:
            raise ServerError(f"got {done} rows instead of {rows.height}")


def _filtered(frame: pl.DataFrame, parts: list[pl.Expr]) -> pl.DataFrame:
    return frame.filter(*parts) if parts else frame


def _pushed(dataset: Dataset, rows: Rows) -> tuple[Dataset, bool]:
    """The dataset with a filter that the server applies, and whether it applies it."""
    taken = len(dataset.request().get("where", "").encode()) + len("() and ()\n")
    if rows.text is None or taken + len(rows.text.encode()) > MAX_BYTES:
        return dataset, False
    try:
        return dataset.where(rows.text), True
    except InvalidRequest as error:  # a column of an unusual type or name
        _LOG.warning("the server does not take the filter %s, so Polars applies it alone: %s", rows.text, error)
        return dataset, False
