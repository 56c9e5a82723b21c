"""A dataset as its reader sees it: which rows, which columns, in which order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as fl

from bowstring._messages import listed, shown
from bowstring._operators.exchange import LocalExchange
from bowstring._operators.stream import LocalBatches, kind_of
from bowstring._requests.launcher import check_name, resolved
from bowstring._requests.mesh import in_place_of
from bowstring._rows.choice import rows_of
from bowstring._rows.integers import Positions, to_arrow, to_numpy
from bowstring._rows.items import Items, are_columns
from bowstring._rows.positions import check, in_order, range_of
from bowstring._transport import fork
from bowstring._transport.wire import decoded
from bowstring.errors import BowstringError, InvalidRequest, translate
from bowstring.exchange import Exchange
from bowstring.operators import checked, runs_on_blobs
from bowstring.plan import plan_of
from bowstring.preview import (
    Explanation,
    Preview,
    class_names,
    explained,
    schema_html,
    size_text,
    spill_text,
    split_columns,
)
from bowstring.stream import Batches

_TAKEN = ("layout", "batch_bytes", "operators", "shuffle")  # what a request has, and an exchange, too
_SHOWN_ROWS = 3  # rows that a notebook shows of a dataset
_SHOWN_BYTES = 4 << 20  # largest mean size of a row, in bytes, for which it shows rows
STEP = 64  # rows of a step, if a request with blobs or `bucket_by_length` does not say how many
INLINE = 1000  # positions that go with each request; more are uploaded once


class Dataset(Items):
    """Rows and columns of a snapshot, in an order. Each method that narrows or orders it returns a new one.

    A dataset never changes: it is of one snapshot, it may be pickled, and it may be read by many at once. Nothing is
    read before `batches`, `take`, `to_arrow`, `reader` or `head`. [Client.dataset][bowstring.Client.dataset] makes it.
    """

    def classes(self, column: str) -> list[str] | None:
        """The names of a column's classes, by number; None if it has none."""
        schema = self.schema
        if column not in schema.names:
            schema = self.columns([column]).schema
        return class_names(schema.field(column))

    def __repr__(self) -> str:
        name = f"{self._name}@{self._snapshot}" + (f"/{self._split}" if self._split else "")
        parts = [f"where {json.dumps(w, ensure_ascii=False)}" for w in self._where]
        if self._selection is not None:
            parts.append("a selection")
        if self._columns is not None:
            parts.append(f"columns {listed(self._columns)}")
        if self._seed is not None:
            parts.append(f"shuffled by {self._seed}")
        parts += [f"{name}={value!r}" for name, value in self._options.items()]
        return f"<bowstring.Dataset {'; '.join([name, *parts])}>"

    def _repr_html_(self) -> str | None:
        try:
            html = schema_html(f"{repr(self)[1:-1]}: {self.num_rows:,} rows, {size_text(self.nbytes)}", self.schema)
            if 0 <= self.nbytes <= self.num_rows * _SHOWN_BYTES:  # larger rows take too long to read
                html += self.head(_SHOWN_ROWS)._repr_html_()
        except BowstringError:  # the server is away, or it was dropped: the text says what it is
            return None
        return html

    # --- narrowing and ordering -------------------------------------------

    def where(self, expression: str | None = None, *, sql: str | None = None) -> Dataset:
        """The rows that meet a condition over metadata columns.

        ```python
        photos.where("label < 10 and width >= 400")
        photos.where(sql="label = 'cat' AND width >= 400 AND caption LIKE '%dog%'")
        ```

        Several conditions all have to hold. The server evaluates them at once, and an error has the place of the
        mistake. Rows are chosen before they are shuffled, wherever `shuffle` stands: the order depends on the number
        of rows.

        Args:
            expression: A condition in the server's [language](../where.md), in which a test of a null is false.
            sql: A condition as SQL has it after WHERE, in which a test of a null is null. It needs the extra `[sql]`.
        """
        for name, text in {"expression": expression, "sql": sql}.items():
            if text is not None and not isinstance(text, str):
                raise TypeError(f"{name}: got {type(text).__name__}, want str, such as 'width >= 400'")
        if sql is not None:
            from bowstring._filters.sql import expression as translated

            columns = self._client.schema({"dataset": self._name, "snapshot": self._snapshot})
            narrowed = self if expression is None else self.where(expression)
            return narrowed.where(translated(sql, columns))
        if expression is None:
            raise TypeError("where: want an expression, or sql='…'")
        narrowed = self._but(_where=(*self._where, expression), _schema=self._schema)
        if not self._where:
            _ = narrowed.num_rows
        else:
            # By itself: one that is wrong alone, such as `a) or (b`, does not become right among the others.
            self._but(_where=(expression,)).plan()
        return narrowed

    def filter(self, expression: str | None = None, *, sql: str | None = None) -> Dataset:
        """[where][bowstring.Dataset.where] by another name."""
        if callable(expression):
            raise TypeError("expression: got a function, want str, such as 'width >= 400': the server evaluates it")
        return self.where(expression, sql=sql)

    def select(self, rows: Any, *names: str) -> Dataset:
        """The rows that are in a set; or, by names, [columns][bowstring.Dataset.columns].

        Rows that were selected before stay selected only if they are in both.

        Args:
            rows: Names of columns; or positions in the snapshot (a list, or an array of NumPy, Arrow, Polars or
                pandas); or a mask of booleans, one for each row of this dataset in order of position; or a table or
                frame with a column `position`, or else `id`.
            names: Further names, if the first argument is the name of a column: `select("image", "label")`.

        A set has no order: the rows come in order of position, or as `shuffle` says, and `take` gives rows in the order
        asked for.
        """
        given = [rows, *names] if isinstance(rows, str) else rows
        if are_columns(self, given):
            return self.columns(given)
        if names:
            raise TypeError("select: got rows and more arguments, want one list of rows, or names of columns")
        if isinstance(rows, Dataset):
            raise TypeError("rows: got a Dataset, want positions; its method `positions` gives them")
        chosen = rows_of(rows)
        if chosen.type == pa.bool_():
            positions = self._masked(chosen)
        elif pa.types.is_integer(chosen.type) or pa.types.is_null(chosen.type):
            positions = np.sort(to_numpy(chosen))
            check(positions, self._total)
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
        return self.positions()[to_numpy(pc.indices_nonzero(pc.fill_null(mask, False)))]

    def _upload(self, rows: pa.Array, column: str) -> str:
        """Store a selection on the server; its name."""
        put = {"selection": {"dataset": self._name, "snapshot": self._snapshot}}
        descriptor = fl.FlightDescriptor.for_command(json.dumps(put))
        batch = pa.record_batch([rows], names=[column])
        with translate(), fork.uploading():
            writer, reader = self._client.flight().do_put(descriptor, batch.schema, self._client.options(stream=True))
            with writer:
                writer.write_batch(batch)
                writer.done_writing()
                message = reader.read()
            # An error comes with the end of the block; without one there is a message.
        name: str = decoded(message.to_pybytes())["selection"]
        return name

    def columns(self, names: Iterable[str]) -> Dataset:
        """Only some columns, in this order. `position` and `split` may be among them."""
        if isinstance(names, str):
            raise TypeError(f"columns: got a str, want a list of names; perhaps [{names!r}]")
        found = self._but(_columns=tuple(names))
        _ = found.schema  # an unknown name raises an error here
        return found

    select_columns = columns

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
        assign: Literal["plan", "local"] | None = None,
        bucket_by_length: str | Mapping[str, Any] | None = None,
        sample: Mapping[str, Any] | None = None,
        pack: Mapping[str, Any] | None = None,
        place: Literal["server", "client", "auto"] | None = None,
        digest: bool | None = None,
        slices: Literal["contiguous", "zigzag"] | Mapping[str, Any] | None = None,
    ) -> Dataset:
        """How rows are served; what is not given stays as it is.

        Args:
            order: `strict`; `window:K` and `free`, which do not wait for the slowest reads.
            remainder: What becomes of the last, incomplete global batch.
            on_error: What becomes of a sample that cannot be read.
            layout: How columns of bytes are laid out.
            batch_bytes: What a record batch exceeds by at most one sample.
            assign: Which rank gets which samples of a step: `plan`; or `local`, what the node beside it owns. Then each
                rank's stream goes to its node, and to others when that is gone.
            bucket_by_length: Batches of samples of like length, for less padding: the column that says how long they
                are, of numbers or of bytes; or `{"column": …, "window": …}`, with how many steps a sample may move.
                `{"balance": {"cost": "width * height"}}` gives the ranks of a step about the same cost.
            sample: How often each sample comes in an epoch: `{"weights": …}`, a column or an expression, with
                `"replacement": False` for counts that are dealt; or `{"balance": …}`, a column of classes that come in
                equal shares, or in those of `"shares": {…}`. `"epoch_size"` says how many samples an epoch has, if not
                as many as are selected. It goes with a shuffle.
            pack: Documents of tokens in sequences: `{"length": 4096, "column": "tokens"}`, with `"pad": 0` for rows
                of one length. A row is a sequence then, and has `position_ids`, `segment_ids` and `cu_seqlens` beside
                the lists of its documents' values. `take`, `select` and `positions` go by documents as ever.
            place: Where operators run: at the `server`; at the `client`, in a process beside this one; or `auto`, where
                less is waited for, which may change while a stream is read. Rows, bytes and schema are the same.
                `take` asks the server where it is `auto`: single rows are too few to go by.
            digest: Whether the batch that ends a step says by `place["digest"]` which samples the step had, so that
                ranks that are to get the same can be compared.
            slices: Each context parallel rank of a mesh gets its part of a sequence: `contiguous`, or `zigzag`, for
                causal attention. With `pack` that is padded tokens, `position_ids` and `segment_ids` are cut; else
                `{"by": …, "columns": […]}` names the columns of lists of one length.
        """
        if place not in (None, "server", "client", "auto"):
            raise InvalidRequest(f'place: got {place!r}, want "server", "client" or "auto"')
        if isinstance(bucket_by_length, str):
            bucket_by_length = {"column": bucket_by_length}
        if isinstance(slices, str):
            slices = {"by": slices}
        given = {
            "order": order,
            "remainder": remainder,
            "on_error": on_error,
            "layout": layout,
            "batch_bytes": batch_bytes,
            "assign": assign,
            "place": place,
            "digest": digest,
            "bucket_by_length": None if bucket_by_length is None else dict(bucket_by_length),
            "sample": None if sample is None else dict(sample),
            "pack": None if pack is None else dict(pack),
            "slices": None if slices is None else dict(slices),
        }
        changed = self._with_options(**{k: v for k, v in given.items() if v is not None})
        _ = changed.schema  # a wrong value raises an error here
        return changed

    def _with_options(self, **options: Any) -> Dataset:
        return self._but(_options={**self._options, **options})

    def operators(self, columns: Mapping[str, Any] | None = None, /, **more: Any) -> Dataset:
        """Set operators, by column. They replace operators that were set for a column before.

        ```python
        dataset.operators(image=[{"Decode": {}}, {"RandomResizedCrop": {"size": [224, 224]}}])
        ```

        Each is a list of steps; or a transform of torchvision; or `{"follows": "image"}`, for masks that are to get
        their image's geometry; or None, to have the bytes as they are. `docs/operators.md` lists the operators. A name
        that there is not yet takes an [expression][bowstring.operators.expression] over metadata columns, or
        [tokens][bowstring.operators.tokens].
        """
        given = {**(columns or {}), **more}
        kept = {name: o for name, o in self._options.get("operators", {}).items() if name not in given}
        kept.update(checked({name: o for name, o in given.items() if o is not None}))
        options = {name: o for name, o in self._options.items() if name != "operators"}
        changed = self._but(_options={**options, "operators": kept} if kept else options)
        _ = changed.schema  # a mistake raises an error here
        return changed

    # --- reading ----------------------------------------------------------

    def batches(
        self,
        global_batch_size: int | None = None,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        epoch: int = 0,
        epochs: int = 1,
        step: int = 0,
        references: bool = False,
        mesh: Any = None,
        batch_size: None = None,
    ) -> Batches:
        """The record batches of an epoch, or of one rank's share of it.

        Each call is of the epoch that it says: a loop over epochs says which. On several ranks of a launcher, such as
        torchrun, each reads its share; `rank=0, world_size=1` reads all, as `to_arrow`, `reader` and `take` always do.

        Args:
            global_batch_size: Rows of a step, all ranks together. Without it, 64, or 65,536 if no column holds bytes.
            rank: Whose share. Without it, what torch.distributed says if it is initialised; else the environment
                variables RANK and WORLD_SIZE; else there is only one.
            world_size: How many ranks there are.
            epoch: Which epoch of the shuffle.
            epochs: How many, one after another; the first batch of each is prefetched while the one before is used.
            step: The step to begin with.
            references: Read blobs in place, in the files of a server on this node that allows it (`serve
                --local-references`), without any copy. Columns of bytes are `binary_view` then, whatever way a batch
                came. The server cannot evict blobs that the caller keeps, so their bytes are bounded, and further blobs
                are copied. Arrow computes little on views: `column.cast(pa.large_binary())` copies them to plain bytes.
            mesh: In the place of `rank` and `world_size`, how ranks are laid out where some of them get the same
                samples: what [Mesh.of][bowstring.Mesh] takes.
            batch_size: What `global_batch_size` was called once.
        """
        check_name("batch_size", batch_size)
        mesh, rank, world_size = in_place_of(rank, world_size, mesh)
        rank, world_size = resolved(rank, world_size)
        return self._stream(
            self.ticket(
                batch=global_batch_size,
                rank=rank,
                world_size=world_size,
                epoch=epoch,
                epochs=epochs,
                step=step,
                mesh=mesh,
            ),
            references=references,
        )

    def resume(self, ticket: dict[str, Any], *, references: bool = False) -> Batches:
        """Go on from a ticket that [Batches.ticket][bowstring.Batches] gave, here or in another process.

        `references` is as for [batches][bowstring.Dataset.batches].
        """
        if ticket.get("dataset") != self._name or ticket.get("snapshot") != self._snapshot:
            theirs = f"{ticket.get('dataset')}@{ticket.get('snapshot')}"
            raise InvalidRequest(f"ticket: got one of {shown(theirs)}, want one of {self._name}@{self._snapshot}")
        return self._stream(dict(ticket), references=references)

    def _stream(self, ticket: dict[str, Any], *, references: bool = False) -> Batches:
        """The batches of a ticket, from where it is best redeemed."""
        kind = kind_of(ticket)
        options: dict[str, Any] = {}
        if references:
            if kind is LocalBatches:
                raise InvalidRequest(
                    "references: got True with operators at the client, want False: operators read blobs and give none"
                )
            options["references"] = True
        if ticket.get("assign") != "local":
            return kind(self._client, ticket, **options)
        of_one = ("place", "rank", "step", "row", "stride", "stop", "epochs", "served", "digested")
        request = {name: value for name, value in ticket.items() if name not in of_one}
        share = plan_of(self._client.info(request)).ranks[ticket.get("rank", 0)]
        # The layout of the epoch, by its name: every node that is asked means the same by the ticket.
        named = {name: share.ticket[name] for name in ("owners", "ranks") if name in share.ticket}
        return kind(self._client, ticket | named, locations=share.locations, **options)

    def positions(self) -> Positions:
        """The positions of its rows in the snapshot, in order: what `take` and `select` go by."""
        if (found := range_of(self, self._stream)) is not None:
            return np.arange(found.start, found.stop)
        parts = [to_numpy(batch.column(0)) for batch in in_order(self)._whole()]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def _whole(self, batch: int | None = None, *, references: bool = False) -> Batches:
        """All rows, whatever rank this is."""
        return self._stream(self.ticket(batch=batch), references=references)

    def take(self, rows: Any, *, columns: Iterable[str] | None = None) -> pa.Table:
        """Single rows, in the order asked for, repeats included; or the first rows.

        Args:
            rows: Positions in the snapshot, or ids, as bytes, `uuid.UUID` or text; a list or an array. Or the number
                of rows to take from the beginning of epoch 0, in its order.
            columns: Which columns, if not those of this dataset.

        For many calls, [exchange][bowstring.Dataset.exchange] keeps the call to the server open.
        """
        chosen = self if columns is None else self.columns(columns)
        if isinstance(rows, (int, np.integer)) and not isinstance(rows, bool):
            return chosen._first(int(rows))
        with chosen.exchange() as exchange:
            return exchange.take(rows)

    def _first(self, n: int) -> pa.Table:
        if n < 0:
            raise InvalidRequest(f"take: got {n} rows, want 0 or more")
        if n == 0:
            return self.schema.empty_table()
        # The size of a step decides the order where `bucket_by_length` sorts steps; elsewhere one step has all rows.
        step = STEP if "bucket_by_length" in self._options else n
        # Rows by index have the last step, too, also if it is not whole.
        whole = self.options(remainder="uneven") if step == STEP else self
        with self._stream(whole.ticket(batch=step, stop=-(-n // step))) as batches:
            return pa.Table.from_batches(batches, self.schema).slice(0, n)

    def exchange(self, *, epoch: int = 0) -> Exchange:
        """An open call for many `take`s, each a round trip.

        Args:
            epoch: Of which epoch random operators draw.
        """
        if "pack" in self._options:
            return self._documents().exchange(epoch=epoch)
        take = {"dataset": self._name, "snapshot": self._snapshot, "columns": self.schema.names}
        take.update({k: v for k, v in self.request(epoch=epoch).items() if k in _TAKEN})
        if "operators" not in take:
            take.pop("shuffle", None)
        at_client = self._options.get("place") == "client" and runs_on_blobs(take.get("operators", {}))
        return (LocalExchange if at_client else Exchange)(self._client, take, self.schema)

    def reader(self) -> pa.RecordBatchReader:
        """All rows, as a reader of record batches: what DuckDB, Polars and others take."""
        return pa.RecordBatchReader.from_batches(self.schema, self._whole())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.reader().__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> pa.Table:
        """All rows, in memory."""
        return pa.Table.from_batches(self._whole(), self.schema)

    def head(self, n: int = 5) -> Preview:
        """The first rows, to look at: a notebook shows images as thumbnails."""
        if n < 1:
            raise InvalidRequest(f"n: got {n}, want 1 or more")
        return Preview(self._first(n), self._title(), self.num_rows)

    def explain(self, *, batch: int | None = None, world_size: int = 1) -> Explanation:
        """Describe what would be read, and how much, without reading it."""
        plan = self.plan(batch=batch, world_size=world_size)
        blobs, others = split_columns(plan.schema)
        return explained(
            plan,
            self.request(batch=batch),
            title=self._title(),
            narrowing=self._narrowing(),
            blob_bytes=self.columns(blobs).nbytes if blobs and others else plan.bytes,
            spill=self._spill() if blobs else None,
            world_size=world_size,
        )

    def _title(self) -> str:
        return f"{self._name}@{self._snapshot}" + (f", split {self._split}" if self._split else "")

    def _narrowing(self) -> list[str]:
        """How many rows are left after each condition."""
        plain = self._but(_where=(), _selection=None, _split=None, _seed=None, _options={}, _columns=("position",))
        texts = [f"{plain.num_rows:,} in the snapshot"]
        if self._split is not None:
            plain = plain._but(_split=self._split)
            texts.append(f"{plain.num_rows:,} in split {self._split}")
        for n, expression in enumerate(self._where):
            plain = plain._but(_where=self._where[: n + 1])
            texts.append(f"{plain.num_rows:,} where {expression}")
        if self._selection is not None:
            plain = plain._but(_selection=self._selection)
            texts.append(f"{plain.num_rows:,} in the selection")
        return texts

    def _spill(self) -> str | None:
        """The part of the snapshot that the server's spill has, if it has a spill."""
        try:
            spill = self._client.stats()["engine"].get("spill")
        except BowstringError:  # a token may allow reading, and not this
            return None
        return None if spill is None else spill_text(spill, f"{self._name}@{self._snapshot}")
