"""A dataset as its reader sees it: which rows, which columns, in which order."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as fl

from bowstring import _fork
from bowstring._wire import Positions, decoded, keep_forever, to_arrow, to_numpy
from bowstring.errors import BowstringError, InvalidRequest, NotFound, ServerError, Unavailable, translate
from bowstring.stream import Batches, retrying

if TYPE_CHECKING:
    from bowstring.client import Client
    from bowstring.preview import Explanation, Preview

INLINE = 1000  # positions that go with each request; more are uploaded once


@dataclass(frozen=True)
class RankPlan:
    """One rank's share of an epoch."""

    rank: int
    rows: int
    steps: int
    ticket: dict[str, Any]
    _endpoint: bytes = field(repr=False)

    @property
    def expires(self) -> datetime | None:
        """Until when the ticket may be relied on."""
        # Not before it is asked for: pyarrow imports pandas for it, which takes most of a second.
        found = fl.FlightEndpoint.deserialize(self._endpoint).expiration_time
        return None if found is None else datetime.fromisoformat(str(found))


@dataclass(frozen=True)
class Plan:
    """What reading an epoch comes to, before a byte of it is read.

    Attributes:
        id: The plan's name, which batches carry and `Client.cancel` takes.
        rows: Rows served, over all ranks.
        bytes: Bytes of their values in the columns asked for.
        steps: Steps of each rank.
        dropped: Rows that `remainder="drop"` leaves out.
        padded: Rows that `remainder="pad"` serves again.
        ranks: Each rank's share, with the ticket for it.
        schema: What the batches are like.
    """

    id: str
    rows: int
    bytes: int
    steps: int
    dropped: int
    padded: int
    ranks: list[RankPlan]
    schema: pa.Schema


class Dataset:
    """Rows and columns of a snapshot, in an order. Each method that narrows or orders it returns a new one.

    A dataset never changes: it is of one snapshot, it may be pickled, and it may be read by many at once. Nothing is
    read before `batches`, `take`, `to_arrow`, `reader` or `head`.

    Made by [Client.dataset][bowstring.Client.dataset].
    """

    def __init__(self, client: Client, name: str, snapshot: int, split: str | None, total: int) -> None:
        self._client = client
        self._name = name
        self._snapshot = snapshot
        self._split = split
        self._total = total  # rows of the snapshot, all splits together
        self._where: tuple[str, ...] = ()
        self._selection: dict[str, Any] | None = None
        self._columns: tuple[str, ...] | None = None
        self._seed: int | None = None
        self._options: dict[str, Any] = {}
        self._schema: pa.Schema | None = None
        self._size: tuple[int, int] | None = None  # rows and bytes, once asked for

    @classmethod
    def _open(cls, client: Client, name: str, split: str | None, snapshot: int | None) -> Dataset:
        if not isinstance(name, str):
            raise TypeError(f"name: got {type(name).__name__}, want str")
        about = client.action("describe", dataset=name, **({} if snapshot is None else {"snapshot": snapshot}))[0]
        splits = {s["name"]: s["rows"] for s in about["splits"]}
        if split is not None and split not in splits:
            raise NotFound(f"dataset {name}@{about['snapshot']} has no split {split!r}; it has {', '.join(splits)}")
        return cls(client, name, about["snapshot"], split, about["rows"])

    # --- what it is -------------------------------------------------------

    @property
    def client(self) -> Client:
        """The client that it is read with."""
        return self._client

    @property
    def name(self) -> str:
        """The dataset's name."""
        return self._name

    @property
    def snapshot(self) -> int:
        """The number of its snapshot."""
        return self._snapshot

    @property
    def split(self) -> str | None:
        """The split, or None for all rows."""
        return self._split

    @property
    def schema(self) -> pa.Schema:
        """What its batches are like."""
        if self._schema is None:
            descriptor = fl.FlightDescriptor.for_command(json.dumps(self.request()))
            with translate():
                self._schema = self._client.flight().get_schema(descriptor, self._client.options()).schema
        return self._schema

    @property
    def num_rows(self) -> int:
        """How many rows there are, `where` and `select` applied."""
        return self._sized()[0]

    @property
    def nbytes(self) -> int:
        """Bytes of the values of all rows in the columns asked for."""
        return self._sized()[1]

    def __len__(self) -> int:
        return self.num_rows

    def __bool__(self) -> bool:
        return True  # without it, `if dataset:` would ask the server

    def _sized(self) -> tuple[int, int]:
        if self._size is None:
            plain = self._but(_options={k: v for k, v in self._options.items() if k == "layout"}, _seed=None)
            plan = plain.plan()
            self._size = plan.rows, plan.bytes
        return self._size

    def classes(self, column: str) -> list[str] | None:
        """The names of a column's classes, by number; None if it has none."""
        schema = self.schema
        if column not in schema.names:
            schema = self.columns([column]).schema
        found = (schema.field(column).metadata or {}).get(b"bowstring.classes")
        return None if found is None else list(json.loads(found))

    def __repr__(self) -> str:
        name = f"{self._name}@{self._snapshot}" + (f"/{self._split}" if self._split else "")
        parts = [f"where {json.dumps(w, ensure_ascii=False)}" for w in self._where]
        if self._selection is not None:
            parts.append("a selection")
        if self._columns is not None:
            parts.append(f"columns {', '.join(self._columns)}")
        if self._seed is not None:
            parts.append(f"shuffled by {self._seed}")
        parts += [f"{name}={value!r}" for name, value in self._options.items()]
        return f"<bowstring.Dataset {'; '.join([name, *parts])}>"

    def _repr_html_(self) -> str | None:
        from bowstring.preview import dataset_html

        try:
            return dataset_html(self)
        except BowstringError:  # the server is away, or it was dropped: the text says what it is
            return None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_schema": None}  # asked for again where it is needed: it may have thousands of names

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Dataset):
            return NotImplemented
        return self._client.uri == other._client.uri and self.request() == other.request()

    def __hash__(self) -> int:
        return hash((self._client.uri, json.dumps(self.request())))

    # --- narrowing and ordering -------------------------------------------

    def _but(self, **changed: Any) -> Dataset:
        """A copy in which some fields are different. What was learnt of this one does not hold for it."""
        copy = object.__new__(Dataset)
        copy.__dict__.update(self.__dict__)
        copy.__dict__.update({"_schema": None, "_size": None, **changed})
        return copy

    def where(self, expression: str) -> Dataset:
        """The rows that meet an expression over metadata columns, such as `label < 10 and width >= 400`.

        Several of them all have to hold. The server evaluates it at once: a mistake in it is told here, with its place.
        """
        if not isinstance(expression, str):
            raise TypeError(f"expression: got {type(expression).__name__}, want str, such as 'width >= 400'")
        narrowed = self._but(_where=(*self._where, expression), _schema=self._schema)
        if not self._where:
            _ = narrowed.num_rows
        else:
            # By itself, so that one that is wrong alone, such as `a) or (b`, does not become right among the others.
            self._but(_where=(expression,)).plan()
        return narrowed

    def select(self, rows: Any) -> Dataset:
        """The rows that are in a set. What was selected before stays selected only if it is in both.

        Args:
            rows: Positions in the snapshot (a list, or an array of NumPy, Arrow, Polars or pandas); or a mask of
                booleans, one for each row of this dataset in order of position; or a table or frame with a column
                `position`, or else `id`.

        A set has no order: the rows come in order of position, or as `shuffle` says, and `take` gives rows in the order
        asked for.
        """
        chosen = _rows(rows)
        if chosen.type == pa.bool_():
            positions = self._masked(chosen)
        elif pa.types.is_integer(chosen.type) or pa.types.is_null(chosen.type):
            positions = np.sort(to_numpy(chosen))
            self._check(positions)
        else:  # ids, which the server knows the positions of
            named = self._but(_split=None, _where=(), _selection={"name": self._upload(chosen, "id")})
            if self._selection is None:
                return self._but(_selection=named._selection)
            positions = named.positions()
        if self._selection is not None:
            plain = self._but(_split=None, _where=())
            positions = np.intersect1d(positions, plain.positions(), assume_unique=True)
        if 0 < len(positions) <= INLINE:
            return self._but(_selection={"positions": positions.tolist()}, _schema=self._schema)
        return self._but(_selection={"name": self._upload(to_arrow(positions), "position")}, _schema=self._schema)

    def _masked(self, mask: pa.Array) -> Positions:
        if len(mask) != self.num_rows:
            raise InvalidRequest(f"select: got a mask of {len(mask)} booleans for {self.num_rows} rows")
        if mask.null_count:
            mask = pc.fill_null(mask, False)
        return self.positions()[to_numpy(pc.indices_nonzero(mask))]

    def _check(self, positions: Positions) -> None:
        """Say what is wrong with positions, in order, before they are sent."""
        if not len(positions):
            return
        for p in (int(positions[0]), int(positions[-1])):
            if not 0 <= p < self._total:
                raise InvalidRequest(f"select: got position {p}, want 0 to {self._total - 1}, those of the snapshot")
        twice = np.flatnonzero(positions[1:] == positions[:-1])
        if len(twice):
            raise InvalidRequest(
                f"select: got position {positions[twice[0]]} twice; a selection is a set, `take` gives rows repeatedly"
            )

    def _upload(self, rows: pa.Array, column: str) -> str:
        """Store a selection on the server; its name."""
        put = {"selection": {"dataset": self._name, "snapshot": self._snapshot}}
        descriptor = fl.FlightDescriptor.for_command(json.dumps(put))
        batch = pa.record_batch([rows], names=[column])
        with translate():
            writer, reader = self._client.flight().do_put(descriptor, batch.schema, self._client.options(stream=True))
            with writer:
                writer.write_batch(batch)
                writer.done_writing()
                message = reader.read()
            # An error comes with the end of the block; without one there is a message.
        name: str = decoded(message)["selection"]
        return name

    def columns(self, names: Iterable[str]) -> Dataset:
        """Only some columns, in this order. `position` and `split` may be among them."""
        if isinstance(names, str):
            raise TypeError(f"columns: got a str, want a list of names; perhaps [{names!r}]")
        found = self._but(_columns=tuple(names))
        _ = found.schema  # a name that is none is told here
        return found

    def shuffle(self, seed: int = 0) -> Dataset:
        """In an order that depends on nothing but the seed, the epoch and the number of rows."""
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**64:
            raise InvalidRequest(f"seed: got {seed!r}, want an integer from 0 to 2^64-1")
        return self._but(_seed=int(seed), _schema=self._schema, _size=self._size)

    def options(
        self,
        *,
        order: str | None = None,
        remainder: Literal["drop", "pad", "uneven"] | None = None,
        on_error: Literal["fail", "null", "skip"] | None = None,
        layout: Literal["large_binary", "binary", "huggingface"] | None = None,
        batch_bytes: int | None = None,
    ) -> Dataset:
        """How rows are served; what is not given stays as it is.

        Args:
            order: `strict`; `window:K` and `free`, which do not wait for the slowest reads.
            remainder: What becomes of the last, incomplete global batch.
            on_error: What becomes of a sample that cannot be read.
            layout: How columns of bytes are laid out.
            batch_bytes: What a record batch exceeds by at most one sample.
        """
        given = {
            "order": order,
            "remainder": remainder,
            "on_error": on_error,
            "layout": layout,
            "batch_bytes": batch_bytes,
        }
        changed = self._with_options(**{k: v for k, v in given.items() if v is not None})
        _ = changed.schema  # a wrong value is told here
        return changed

    def _with_options(self, **options: Any) -> Dataset:
        return self._but(_options={**self._options, **options})

    # --- what is asked of the server --------------------------------------

    def request(self, *, batch: int | None = None, world_size: int = 1, epoch: int = 0) -> dict[str, Any]:
        """The JSON that a descriptor of Flight takes, for clients in other languages, or by hand."""
        request: dict[str, Any] = {"dataset": self._name, "snapshot": self._snapshot}
        if self._split is not None:
            request["split"] = self._split
        if self._where:
            request["where"] = _joined(self._where)
        if self._selection is not None:
            request["selection"] = self._selection
        if self._columns is not None:
            request["columns"] = list(self._columns)
        if self._seed is not None:
            request["shuffle"] = {"seed": self._seed, "epoch": epoch}
        if batch is not None:
            request["batch"] = batch
        if world_size != 1:
            request["world"] = {"size": world_size}
        return {**request, **self._options}

    def ticket(
        self,
        *,
        batch: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        epoch: int = 0,
        epochs: int = 1,
        step: int = 0,
        row: int = 0,
        stride: int = 1,
        stop: int | None = None,
    ) -> dict[str, Any]:
        """A ticket, made here: what one stream of an epoch serves. The protocol says what each field means."""
        ticket = self.request(batch=batch, world_size=world_size, epoch=epoch) | {"rank": rank, "step": step}
        if row:
            ticket["row"] = row
        if stride != 1:
            ticket["stride"] = stride
        if stop is not None:
            ticket["stop"] = stop
        elif epochs != 1:
            ticket["epochs"] = epochs
        return ticket

    def plan(self, *, batch: int | None = None, world_size: int = 1, epoch: int = 0) -> Plan:
        """Ask the server what an epoch comes to: rows, bytes, steps, and a ticket for each rank."""
        command = json.dumps(self.request(batch=batch, world_size=world_size, epoch=epoch))
        with translate():
            info = self._client.flight().get_flight_info(
                fl.FlightDescriptor.for_command(command), self._client.options()
            )
        about = _object(info.app_metadata)
        ranks = []
        for endpoint in info.endpoints:
            share = _object(endpoint.app_metadata)
            ranks.append(
                RankPlan(
                    rank=share["rank"],
                    rows=share["rows"],
                    steps=share["steps"],
                    ticket=json.loads(endpoint.ticket.ticket),
                    _endpoint=endpoint.serialize(),
                )
            )
        return Plan(
            id=about["plan"],
            rows=info.total_records,
            bytes=info.total_bytes,
            steps=about["steps"],
            dropped=about["dropped"],
            padded=about["padded"],
            ranks=ranks,
            schema=info.schema,
        )

    # --- reading ----------------------------------------------------------

    def batches(
        self,
        batch_size: int | None = None,
        *,
        rank: int = 0,
        world_size: int = 1,
        epoch: int = 0,
        epochs: int = 1,
        step: int = 0,
    ) -> Batches:
        """The record batches of an epoch, or of one rank's share of it.

        Args:
            batch_size: Rows of a global batch, all ranks together. Without it, 64, or 65,536 if no column holds bytes.
            rank: Whose share.
            world_size: How many ranks there are.
            epoch: Which epoch of the shuffle.
            epochs: How many, one after another; the first batch of each is read ahead while the one before is used.
            step: The step to begin with.
        """
        return Batches(
            self._client,
            self.ticket(batch=batch_size, rank=rank, world_size=world_size, epoch=epoch, epochs=epochs, step=step),
        )

    def resume(self, ticket: dict[str, Any]) -> Batches:
        """Go on from a ticket that [Batches.ticket][bowstring.Batches] gave, here or in another process."""
        if ticket.get("dataset") != self._name or ticket.get("snapshot") != self._snapshot:
            theirs = f"{ticket.get('dataset')}@{ticket.get('snapshot')}"
            raise InvalidRequest(f"ticket: got one of {theirs}, want one of {self._name}@{self._snapshot}")
        return Batches(self._client, dict(ticket))

    def positions(self) -> Positions:
        """The positions of its rows in the snapshot, in order: what `take` and `select` go by."""
        narrow = self._but(_columns=("position",), _seed=None, _options={})
        parts = [to_numpy(batch.column(0)) for batch in narrow.batches()]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def take(self, rows: Any, *, columns: Iterable[str] | None = None) -> pa.Table:
        """Single rows, in the order asked for, repeats included.

        Args:
            rows: Positions in the snapshot, or ids, as bytes, `uuid.UUID` or text; a list or an array.
            columns: Which columns, if not those of this dataset.

        For many calls, [exchange][bowstring.Dataset.exchange] keeps the call to the server open.
        """
        with (self if columns is None else self.columns(columns)).exchange() as exchange:
            return exchange.take(rows)

    def exchange(self) -> Exchange:
        """An open call for many `take`s, each a round trip."""
        return Exchange(self)

    def reader(self) -> pa.RecordBatchReader:
        """All rows, as a reader of record batches: what DuckDB, Polars and others take."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.reader().__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> pa.Table:
        """All rows, in memory."""
        return pa.Table.from_batches(self.batches(), self.schema)

    def head(self, n: int = 5) -> Preview:
        """The first rows, to look at: a notebook shows images as thumbnails."""
        from bowstring.preview import Preview

        if n < 1:
            raise InvalidRequest(f"n: got {n}, want 1 or more")
        with Batches(self._client, self.ticket(batch=n, stop=1)) as batches:
            return Preview(pa.Table.from_batches(batches, self.schema), self)

    def explain(self, *, batch: int | None = None, world_size: int = 1) -> Explanation:
        """What would be read, and how much; nothing is."""
        from bowstring.preview import explain

        return explain(self, batch=batch, world_size=world_size)


class Exchange:
    """Random access by one open call (DoExchange), made by [Dataset.exchange][bowstring.Dataset.exchange].

    It may be used by several threads, by one at a time. If the server restarts, the call is made again.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._client = dataset.client
        self._schema = dataset.schema
        take = {"dataset": dataset.name, "snapshot": dataset.snapshot, "columns": self._schema.names}
        allowed = ("layout", "batch_bytes")
        take.update({k: v for k, v in dataset._options.items() if k in allowed})
        self._command = json.dumps({"take": take})
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._calls: dict[str, tuple[Any, Any]] = {}  # by the column that is sent

    def take(self, rows: Any) -> pa.Table:
        """Rows by position or id, in the order asked for, repeats included."""
        wanted = _rows(rows)
        if wanted.type == pa.bool_():
            raise InvalidRequest("take: got booleans, want positions or ids; `select` takes a mask")
        column = "position" if pa.types.is_integer(wanted.type) or pa.types.is_null(wanted.type) else "id"
        if column == "position":
            wanted = pc.cast(wanted, pa.int64())
        if not len(wanted):
            return self._schema.empty_table()
        batch = pa.record_batch([wanted], names=[column])
        if self._pid != os.getpid():
            if self._calls:
                keep_forever(self._calls)  # the fork was hidden from Python
            self._calls, self._lock, self._pid = {}, threading.Lock(), os.getpid()
        with self._lock:
            try:
                return self._take(column, batch)
            except Unavailable:
                if not self._client.retries:
                    raise
                table: pa.Table = retrying(self._client.retries)(self._take, column, batch)
                return table

    def _take(self, column: str, batch: pa.RecordBatch) -> pa.Table:
        try:
            with translate():
                if column not in self._calls:
                    descriptor = fl.FlightDescriptor.for_command(self._command)
                    with _fork.connecting():
                        self._calls[column] = self._client.flight().do_exchange(
                            descriptor, self._client.options(stream=True)
                        )
                        _fork.hold(self)
                    self._calls[column][0].begin(batch.schema)
                writer, reader = self._calls[column]
                writer.write_batch(batch)
                parts = []
                while True:
                    chunk = reader.read_chunk()
                    parts.append(chunk.data)
                    if decoded(chunk.app_metadata)["last"]:
                        return pa.Table.from_batches(parts)
        except StopIteration:
            self._forget(column)
            raise ServerError("the server ended a take without an answer") from None
        except BaseException as error:
            said = self._forget(column)
            if isinstance(error, BowstringError) and said is not None and not isinstance(error, type(said)):
                raise said from error
            raise

    def _forget(self, column: str) -> BowstringError | None:
        """End a call that has failed; the error it ended with, which says more than that of a write."""
        call = self._calls.pop(column, None)
        if call is None:
            return None
        try:
            with translate():
                call[0].close()
        except BowstringError as error:
            return error
        return None

    def _let_go(self) -> None:
        if self._lock.acquire(timeout=1):  # once the take that is under way is answered
            for column in list(self._calls):
                self._calls[column][1].cancel()
                self._forget(column)
            self._lock.release()

    def close(self) -> None:
        """End the call."""
        if self._pid != os.getpid():
            return  # there is none
        with self._lock:
            calls, self._calls = self._calls, {}
            for writer, _ in calls.values():
                with contextlib.suppress(BowstringError), translate():
                    writer.done_writing()
                    writer.close()

    def __enter__(self) -> Exchange:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _object(metadata: bytes | pa.Buffer) -> dict[str, Any]:
    return decoded(pa.py_buffer(metadata))


def _joined(expressions: tuple[str, ...]) -> str:
    """One expression of several that all have to hold."""
    if len(expressions) == 1:
        return expressions[0]
    # On a line of its own, the parenthesis is no part of a comment that the expression ends with.
    return " and ".join(f"({e}\n)" if "//" in e else f"({e})" for e in expressions)


def _rows(rows: Any) -> pa.Array:
    """What says which rows, as one array of Arrow: booleans, integers, or ids."""
    if isinstance(rows, (pa.Table, pa.RecordBatch)) or (
        hasattr(rows, "columns") and hasattr(rows, "__getitem__") and not isinstance(rows, Dataset)
    ):
        names = list(rows.column_names if isinstance(rows, (pa.Table, pa.RecordBatch)) else rows.columns)
        for name in ("position", "id"):
            if name in names:
                return _rows(rows[name])
        raise InvalidRequest(
            f"rows: got a table without a column `position` or `id`; it has {', '.join(map(str, names))}"
        )
    if isinstance(rows, Dataset):
        raise TypeError("rows: got a Dataset, want positions; its method `positions` gives them")
    if isinstance(rows, (str, bytes, uuid.UUID, int)):
        raise TypeError(f"rows: got one {type(rows).__name__}, want a list of them: [{rows!r}]")
    array = _array(rows)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type
    if pa.types.is_dictionary(kind):
        array = array.dictionary_decode()
        kind = array.type
    if array.null_count and kind != pa.bool_() and not pa.types.is_null(kind):
        raise InvalidRequest(f"rows: got {array.null_count} nulls among them, want a position or an id for each")
    if pa.types.is_null(kind) and len(array):
        raise InvalidRequest("rows: got nothing but nulls, want positions, ids or booleans")
    if pa.types.is_floating(kind):
        raise InvalidRequest(f"rows: got {kind}, want integers, ids or booleans")
    if pa.types.is_uint64(kind) and len(array) and pc.max(array).as_py() >= 2**63:
        raise InvalidRequest(f"rows: got position {pc.max(array).as_py()}, want less than 2^63")
    if kind == pa.bool_() or pa.types.is_integer(kind) or pa.types.is_null(kind):
        return array
    if any(test(kind) for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)):
        return pc.cast(array, pa.utf8())
    if pa.types.is_binary_view(kind):
        array = pc.cast(array, pa.binary())
        kind = array.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        sizes = pc.unique(pc.binary_length(array)).to_pylist()
        if sizes and sizes != [16]:
            raise InvalidRequest(f"rows: got ids of {max(sizes)} bytes, want 16")
        return pc.cast(pc.cast(array, pa.binary()), pa.binary(16))
    raise InvalidRequest(f"rows: got {kind}, want integers, ids or booleans")


def _array(rows: Any) -> pa.Array | pa.ChunkedArray:
    if isinstance(rows, (pa.Array, pa.ChunkedArray)):
        return rows
    if isinstance(rows, np.ndarray):
        if rows.ndim != 1:
            raise InvalidRequest(f"rows: got an array of {rows.ndim} dimensions, want one")
        if rows.dtype.kind in "iu" and rows.dtype != np.uint64:
            return to_arrow(rows.astype(np.int64))
        if rows.dtype.kind == "b":
            return pc.cast(to_arrow(rows.astype(np.int64)), pa.bool_())
        return pa.array(rows.tolist()) if rows.dtype.kind == "O" else pa.array(rows)
    if hasattr(rows, "__arrow_c_array__") or hasattr(rows, "__arrow_c_stream__"):
        if hasattr(rows, "__arrow_c_stream__"):
            return pa.chunked_array(rows)
        return pa.array(rows)
    if hasattr(rows, "__array__"):
        return _array(np.asarray(rows))
    if not isinstance(rows, Iterable):
        raise TypeError(f"rows: got {type(rows).__name__}, want a list or an array")
    values = list(rows)
    if values and isinstance(values[0], uuid.UUID):
        return pa.array([v.bytes if isinstance(v, uuid.UUID) else v for v in values], pa.binary())
    if values and isinstance(values[0], bool) and not all(isinstance(v, bool) for v in values):
        raise InvalidRequest("rows: got booleans and others, want one kind")
    # `pa.array` imports pandas, to see whether what it got is one of its series.
    if values and all(isinstance(v, (bool, np.bool_)) for v in values):
        return _array(np.array(values, np.bool_))
    if values and all(isinstance(v, (int, np.integer)) and -(2**63) <= v < 2**63 for v in values):
        return to_arrow(np.array(values, np.int64))
    try:
        return pa.array([v.item() if isinstance(v, np.generic) else v for v in values])
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise InvalidRequest(f"rows: want integers, ids or booleans: {error}") from None
