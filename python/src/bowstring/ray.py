"""Datasets as datasets of Ray Data.

[read][bowstring.ray.read] returns a `ray.data.Dataset`. The server divides the rows among as many ranks as there are
read tasks, and each task reads its endpoint's ticket over its worker's own connection.

- **Columns** that later steps do not need are not read, and **filters** by expression become a `where` of the server as
  far as it can evaluate them; the read task applies the rest. Ray applies filters by function, and all filters of
  shuffled data: the server would put the remaining rows in another order. `where` selects rows before they are
  shuffled, and only those rows are read.
- **Row counts** are exact and known in advance, so `count()` reads nothing. Sizes are those of the values.
- **Blocks** stay near Ray's `target_max_block_size`.
- **Places**: with `assign="local"` on a cluster each task reads what a node owns. Ray runs it on its own node at that
  server's address, if there is one with room, else on any.
- **Faults**: a stream that breaks continues from the ticket of its last batch. Ray replaces a worker that dies: the
  task is repeated, and gives the same blocks, because rows always come in the plan's order.

[write][bowstring.ray.write] and [sink][bowstring.ray.sink] write a dataset of Ray Data as one snapshot.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import os
import pickle
import socket
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import ray.data
from ray.data import DataContext
from ray.data.block import Block, BlockAccessor, BlockMetadata
from ray.data.datasource import Datasink, Datasource, ReadTask, WriteResult
from ray.data.expressions import Expr

from bowstring._filters.ray import columns_of, translate
from bowstring._filters.where import MAX_BYTES, keeps_order
from bowstring._messages import shown
from bowstring._operators.stream import kind_of
from bowstring._rows.storable import stored_type
from bowstring._rows.upload import IngestResult
from bowstring._source import opened, whole
from bowstring._unstable.ray import ROWS_ALONE, runs, with_all_columns
from bowstring._write import client_of
from bowstring.errors import AlreadyExists, InvalidRequest, NotFound

if TYPE_CHECKING:
    from bowstring._transport.tls import Tls
    from bowstring._unstable.ray import TaskContext
    from bowstring.client import Client
    from bowstring.dataset import Dataset
    from bowstring.plan import Plan, RankPlan

__all__ = ["BowstringDatasink", "BowstringDatasource", "read", "sink", "write"]

MIN_BATCH_BYTES, MAX_BATCH_BYTES = 64 << 10, 8 << 20
BATCHES_A_BLOCK = 8  # a block exceeds Ray's target by at most one batch
MAX_BATCH, MAX_LOCAL_BATCH = (1 << 31) - 1, 262_144
TASK_BYTES, TASKS_A_CPU = 16 << 20, 4


def read(
    source: Dataset | Client | str,
    name: str | None = None,
    *,
    split: str | None = None,
    snapshot: int | str | None = None,
    columns: Iterable[str] | None = None,
    where: str | None = None,
    sql: str | None = None,
    shuffle: int | None = None,
    epoch: int = 0,
    assign: Literal["plan", "local"] | None = None,
    parallelism: int | None = None,
    concurrency: int | None = None,
    num_cpus: float | None = None,
    memory: float | None = None,
    token: str | None = None,
    tls: Tls | None = None,
    **options: Any,
) -> ray.data.Dataset:
    """A dataset of Ray Data. Nothing is read before it is used.

    It is of the newest snapshot at this time, or the one named by `snapshot`; later imports do not change it.

    ```python
    rows = bowstring.ray.read("grpc://10.0.0.7:8815", "photos", split="train", columns=["image", "label"], shuffle=7)
    for batch in rows.map_batches(decode).iter_torch_batches(batch_size=256):
        ...
    ```

    Args:
        source: A [Dataset][bowstring.Dataset], narrowed as needed; a [Client][bowstring.Client]; or the address of a
            server, which every node of the Ray cluster must be able to reach.
        name: The dataset's name, if `source` is a client or an address; so for `split`, `snapshot`, `token` and `tls`.
        split: A split of the dataset.
        snapshot: A snapshot other than the newest, by number or tag; `name` may give it as `photos@prod`.
        columns: The columns. Default: all stored ones. `position` and `split` may be included.
        where: An expression that selects rows.
        sql: Likewise, in SQL, as of [Dataset.where][bowstring.Dataset.where].
        shuffle: The seed of a global shuffle. Blocks arrive when they are ready: for the order itself, set
            `preserve_order` in Ray's execution options.
        epoch: The epoch of the shuffle of the first run. After each run of the dataset that ends, the next run has the
            next epoch, as in a loop over `iter_batches`, or over `iter_torch_batches` in Ray Train.
        assign: `local` on a cluster: each task reads what a server node owns, on the Ray node beside it if there is
            one. Blocks then come node by node, each with its share of every 262,144 rows of the order.
        parallelism: The number of read tasks. Default: four per CPU; more if each would read more than Ray's
            `target_max_block_size`, fewer if each would read less than 16 MiB.
        concurrency: How many of them run at once; with `assign="local"`, per node.
        num_cpus: CPUs that each of them reserves.
        memory: Bytes of memory that each of them reserves.
        token: As for [connect][bowstring.connect], if `source` is an address.
        tls: As for [connect][bowstring.connect], if `source` is an address.
        options: Further options of `ray.data.read_datasource`.
    """
    for argument, value in (("parallelism", parallelism), ("concurrency", concurrency)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ValueError(f"{argument}: got {value!r}, want an integer, 1 or more")
    dataset = opened(
        source, name, split=split, snapshot=snapshot, columns=columns, where=where, sql=sql, token=token, tls=tls
    )
    if shuffle is not None:
        dataset = dataset.shuffle(shuffle)
    if assign is not None:
        dataset = dataset.options(assign=assign)
    datasource = BowstringDatasource(dataset, epoch=epoch)
    tasks = parallelism or _tasks(datasource.estimate_inmemory_data_size())
    parts: list[tuple[BowstringDatasource, int, dict[str, Any]]] = [(datasource, tasks, options)]
    if not {"scheduling_strategy", "label_selector"} & {*options, *(options.get("ray_remote_args") or {})}:
        parts = [
            (part, count, options | ({} if node is None else _on_node(node)))
            for node, part, count in datasource.split(tasks, ray_nodes())
        ] or parts
    found: list[ray.data.Dataset] = [
        ray.data.read_datasource(
            part,
            override_num_blocks=count,
            concurrency=concurrency,
            num_cpus=num_cpus,
            memory=memory,
            **more,
        )
        for part, count, more in parts
    ]
    return found[0].union(*found[1:]) if len(found) > 1 else found[0]


def _on_node(node: str) -> dict[str, Any]:
    """Options that make Ray run tasks on a node, or on any if that is not possible."""
    return {"label_selector": {"ray.io/node-id": node}, "fallback_strategy": [{"label_selector": {}}]}


def ray_nodes() -> dict[str, str]:
    """The live nodes of Ray by address; empty if Ray is not initialized, because the request would start it."""
    if not ray.is_initialized():
        return {}
    return {n["NodeManagerAddress"]: n["NodeID"] for n in ray.nodes() if n["Alive"]}  # type: ignore[no-untyped-call]


def _node_of(locations: Sequence[str], nodes: dict[str, str]) -> str | None:
    """The Ray node at a ticket's first location: the others serve the ticket only if that one is gone."""
    host = urlsplit(locations[0]).hostname if locations else None
    if host is None or not nodes:
        return None
    if host in nodes:
        return nodes[host]
    try:
        addresses = {str(found[4][0]) for found in socket.getaddrinfo(host, None)}
    except OSError:  # Ray's nodes have another name service than this process
        return None
    return next((nodes[address] for address in sorted(addresses) if address in nodes), None)


def _tasks(size: int) -> int:
    """The number of read tasks for that many bytes: some per CPU, but none small, and none above a block's size.

    Ray's own default, as for files of unknown content, is up to 200, whatever starting them costs.
    """
    cpus = os.cpu_count() or 1
    if ray.is_initialized():
        cpus = ray.cluster_resources().get("CPU", 1)  # type: ignore[no-untyped-call]
    target = DataContext.get_current().target_max_block_size or MAX_BATCH_BYTES * BATCHES_A_BLOCK
    return max(1, math.ceil(size / target), math.ceil(min(size / TASK_BYTES, TASKS_A_CPU * cpus)))


class BowstringDatasource(Datasource):
    """The source that [read][bowstring.ray.read] passes to `ray.data.read_datasource`."""

    def __init__(self, dataset: Dataset, *, epoch: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        with_all_columns(self)
        self._dataset = whole(dataset)  # in the plan's order, because a repeated task has to give the same blocks
        self._epoch = epoch
        self._residual: Expr | None = None  # the part of the filters that the server does not apply
        self._plans: dict[tuple[int, int], Plan] = {}  # by ranks and epoch
        # The number of ranks, and those that are read; None for all
        self._part: tuple[int, frozenset[int]] | None = None

    def split(self, tasks: int, nodes: dict[str, str]) -> list[tuple[str | None, BowstringDatasource, int]]:
        """A source for each Ray node beside a server, with its number of ranks; None for the ranks without one.

        The list is empty if no server has a Ray node beside it. Together the sources read each row once: for one epoch
        of one plan all servers of a cluster return the same endpoints.
        """
        if self._dataset.request().get("assign") != "local":
            return []
        plan = self._plan(tasks)
        ranks: dict[str | None, list[int]] = {}
        for rank in plan.ranks:
            ranks.setdefault(_node_of(rank.locations, nodes), []).append(rank.rank)
        if not set(ranks) - {None}:
            return []
        found: list[tuple[str | None, BowstringDatasource, int]] = []
        for node, own in ranks.items():
            part = copy.copy(self)
            part._part = (len(plan.ranks), frozenset(own))
            found.append((node, part, len(own)))
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plans": {}}

    def get_name(self) -> str:
        """Ray's name for the operator."""
        return "Bowstring"

    # --- what is pushed down --------------------------------------------------

    def supports_projection_pushdown(self) -> bool:
        """Columns can be left out."""
        return True

    def apply_projection(self, projection_map: dict[str, str] | None) -> BowstringDatasource:
        """A source with some of the columns."""
        clone: BowstringDatasource = super().apply_projection(projection_map)  # type: ignore[assignment]
        clone._plans = {}
        return clone

    def supports_predicate_pushdown(self) -> bool:
        """Rows can be left out."""
        return True

    def apply_predicate(self, predicate_expr: Expr) -> BowstringDatasource:
        """A source of the rows that meet a condition, or this one if the server cannot apply any of it."""
        if not keeps_order(self._dataset.request()):
            return self
        rows = translate(predicate_expr, self._dataset.schema).true
        taken = len(self._dataset.request().get("where", "").encode()) + len("() and ()\n")
        if rows.text is None or taken + len(rows.text.encode()) > MAX_BYTES:
            return self
        try:
            dataset = self._dataset.where(rows.text)
        except InvalidRequest:  # a column of an unusual type or name: Ray filters, as for any other source
            return self
        clone: BowstringDatasource = super().apply_predicate(predicate_expr)  # type: ignore[assignment]
        clone._dataset = dataset
        clone._plans = {}
        if not rows.exact:
            clone._residual = predicate_expr if self._residual is None else self._residual & predicate_expr
        return clone

    # --- reading --------------------------------------------------

    def _names(self) -> list[str]:
        """The columns of the result."""
        names = self.get_projection_map()
        return list(self._dataset.schema.names) if names is None else list(names)

    def _view(self) -> Dataset:
        """The request to the server: the result's columns, and those of filters that are applied here."""
        names = self._names()
        if self._residual is not None:
            names = list(dict.fromkeys([*names, *columns_of(self._residual)]))
        return self._dataset._but(_columns=tuple(names or ["position"]))  # rows without columns still count

    @property
    def _most(self) -> int:
        """The largest global batch, in rows."""
        return MAX_LOCAL_BATCH if self._dataset.request().get("assign") == "local" else MAX_BATCH

    def _plan(self, ranks: int, runs: int = 0) -> Plan:
        """The plan of the epoch after that many runs of the dataset."""
        if self._part is not None:
            ranks = self._part[0]
        epoch = self._epoch + (runs if "shuffle" in self._dataset.request() else 0)
        if (ranks, epoch) not in self._plans:
            view = self._view()
            # One global batch with all rows, so that each rank has one piece of the order. The server cuts it by bytes.
            rows = min(max(1, view.num_rows), self._most)
            self._plans[ranks, epoch] = view.plan(batch=rows, world_size=min(ranks, rows), epoch=epoch)
        return self._plans[ranks, epoch]

    def estimate_inmemory_data_size(self) -> int:
        """Size of all values. If the server does not apply the whole filter, this is an upper bound."""
        plan = self._plan(1)
        return plan.bytes * sum(r.rows for r in self._ranks(plan)) // max(1, plan.rows)

    def _ranks(self, plan: Plan) -> list[RankPlan]:
        """The ranks of a plan that this source reads. If later filters drop rows, there may be fewer."""
        if self._part is None:
            return plan.ranks
        return [rank for rank in plan.ranks if rank.rank in self._part[1]]

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: DataContext | None = None
    ) -> list[ReadTask]:
        """One task for each endpoint with rows, for as many ranks as Ray requests."""
        plan = self._plan(max(1, parallelism), runs(data_context))
        names = self._names()
        schema = pa.schema([plan.schema.field(name) for name in names], plan.schema.metadata)
        target = (data_context or DataContext.get_current()).target_max_block_size or MAX_BATCH_BYTES * BATCHES_A_BLOCK
        batch_bytes = min(max(MIN_BATCH_BYTES, target // BATCHES_A_BLOCK), MAX_BATCH_BYTES)
        residual = None if self._residual is None else self._residual.to_pyarrow()
        client = pickle.dumps(self._dataset.client)
        chosen = self._dataset.request()
        tasks = []
        for rank in self._ranks(plan):
            ticket = self._dataset.placed(rank.ticket)
            if "batch_bytes" not in chosen:
                ticket["batch_bytes"] = batch_bytes
            rows = rank.rows
            if per_task_row_limit and residual is None and per_task_row_limit < rows:
                # A smaller global batch, and only the first one: the same rows for each rank, and no more are sent.
                ticket |= {"batch": min(per_task_row_limit * len(plan.ranks), self._most), "stop": 1}
                rows = per_task_row_limit
            metadata = BlockMetadata(
                num_rows=rows if residual is None else None,
                size_bytes=plan.bytes * rows // max(1, plan.rows),
                input_files=None,
                exec_stats=None,
            )
            empty = schema if not rows else None
            function = functools.partial(_blocks, client, ticket, names, residual, empty, tuple(rank.locations))
            tasks.append(ReadTask(function, metadata, schema=schema, per_task_row_limit=per_task_row_limit))
        return tasks


@functools.lru_cache(maxsize=8)
def _client(pickled: bytes) -> Client:
    """The worker's client, whose connection its tasks share."""
    client: Client = pickle.loads(pickled)  # noqa: S301 - pickled by this module
    return client


def _blocks(
    client: bytes,
    ticket: dict[str, Any],
    names: list[str],
    residual: pc.Expression | None,
    empty: pa.Schema | None,
    locations: tuple[str, ...] = (),
) -> Iterator[pa.Table]:
    """Read a ticket, in a worker of Ray."""
    if empty is not None:
        yield empty.empty_table()
        return
    with kind_of(ticket)(_client(client), ticket, locations) as batches:
        for batch in batches:
            table = pa.Table.from_batches([batch])
            if residual is not None:
                table = table.filter(residual)
            yield table.select(names) if names else pa.table({ROWS_ALONE: pa.nulls(table.num_rows)})


def write(
    rows: ray.data.Dataset,
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
    concurrency: int | None = None,
) -> IngestResult:
    """Write a dataset of Ray Data as a new snapshot. If the job fails, the dataset is unchanged.

    ```python
    rows = ray.data.read_binary_files("s3://bucket/photos", include_paths=True).map(labelled)
    bowstring.ray.write(rows, "photos", "grpc://10.0.0.7:8815", key="path", media={"bytes": "image"})
    ```

    Ray has no plug-ins for methods of its datasets, so this is a function. `rows.write_datasink(bowstring.ray.sink(…))`
    does the same.

    Tasks give their rows to an actor, which keeps them in Ray's object store. When all tasks have succeeded, the driver
    sends the rows as one upload, block by block. So each row comes once, whatever tasks Ray repeats. The node of
    the actor spills rows to its disk that do not fit into its object store.

    Args:
        rows: The dataset of Ray Data.
        name: The dataset.
        into: As for [write][bowstring.write]: a folder or another store, the address of a server, or a client. Only the
            driver connects to it.
        mode: As for [Client.ingest][bowstring.Client.ingest]; so for `split`, `key`, `on`, `missing`, `blobs` and
            `media`. Without `blobs`, each column of bytes holds samples' bytes.
        split: The split of the rows, unless they have a column `split`.
        key: The column whose value identifies a row.
        on: The column by which `merge` finds samples.
        missing: How `merge` treats rows whose key no sample has.
        blobs: The columns that hold samples' bytes.
        media: The media in them: `{"image": "image"}`, or `"audio"`.
        concurrency: As for `Dataset.write_datasink`.
    """
    to = sink(name, into, mode=mode, split=split, key=key, on=on, missing=missing, blobs=blobs, media=media)
    try:
        rows.write_datasink(to, concurrency=concurrency)
    finally:
        to.forget()  # after Ctrl-C Ray does not call the sink
    if to.result is None:
        raise RuntimeError("Ray has not called on_write_complete")
    return to.result


def sink(
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
) -> BowstringDatasink:
    """The sink for `ray.data.Dataset.write_datasink`. Arguments are those of [write][bowstring.ray.write]."""
    blobs = None if blobs is None else list(blobs)
    media = None if media is None else dict(media)
    given = {"split": split, "key": key, "on": on, "missing": missing, "blobs": blobs, "media": media}
    return BowstringDatasink(client_of(into), name, mode, given)


class _Kept:
    """Rows of write tasks, until all tasks have succeeded; an actor.

    A worker that dies takes with it what it has put into the object store, also the rows of its finished tasks. What
    this actor has put there stays.
    """

    def __init__(self) -> None:
        self._parts: dict[str, list[Any]] = {}  # by attempts of tasks

    def keep(self, attempt: str, table: pa.Table) -> None:
        """Keep rows of an attempt."""
        self._parts.setdefault(attempt, []).append((ray.put(table), table.schema))

    def parts(self, attempts: Sequence[str]) -> list[Any]:
        """The rows of attempts, as references, and their schemas."""
        return [part for attempt in attempts for part in self._parts.get(attempt, ())]


class BowstringDatasink(Datasink[tuple[int, str]]):
    """The sink that [sink][bowstring.ray.sink] passes to `ray.data.Dataset.write_datasink`.

    Attributes:
        result: The result of the upload; None before it.
    """

    def __init__(self, client: Client, name: str, mode: str, options: dict[str, Any]) -> None:
        self._client = client
        self._name = name
        self._mode = mode
        self._options = options
        self._actor = f"bowstring-{uuid.uuid4().hex}"  # its name, by which tasks find it
        self._kept: Any = None  # the actor, at the driver
        self.result: IngestResult | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None, "_kept": None}  # a task connects to no server

    def get_name(self) -> str:
        """Ray's name for the operator."""
        return "Bowstring"

    def on_write_start(self, schema: pa.Schema | None = None) -> None:
        """Find mistakes before rows are computed: a dataset that exists, and a column whose type is not stored."""
        if isinstance(schema, pa.Schema):
            for field in schema:
                stored_type(field.type, field.name)
        if self._mode == "create":
            with contextlib.suppress(NotFound):
                self._client.dataset(self._name)
                raise AlreadyExists(f'{shown(self._name)} exists; mode="append", "replace" or "merge" changes it')
        self._kept = ray.remote(num_cpus=0)(_Kept).options(name=self._actor).remote()

    def write(self, blocks: Iterable[Block], ctx: TaskContext) -> tuple[int, str]:
        """Give the rows of a task to the actor. Rows of an attempt that fails are not uploaded."""
        if getattr(DataContext.get_current(), "checkpoint_config", None) is not None:
            # Ray would record rows as written that are only stored when the whole job has succeeded.
            raise InvalidRequest("checkpoint_config: got one, want none, as rows are stored when all tasks have ended")
        kept, attempt = ray.get_actor(self._actor), uuid.uuid4().hex
        for block in blocks:
            table: pa.Table = BlockAccessor.for_block(block).to_arrow()
            if table.num_rows:
                ray.get(kept.keep.remote(attempt, table))
        return ctx.task_idx, attempt

    def on_write_complete(self, write_result: WriteResult[tuple[int, str]]) -> None:
        """Upload the rows of all tasks, in the order of the tasks."""
        attempts = [attempt for _, attempt in sorted(write_result.write_returns)]
        parts = ray.get(self._kept.parts.remote(attempts)) if attempts else []
        if not parts:
            raise InvalidRequest(f"rows: got none, so the columns of {shown(self._name)} are not known")
        schema = _unified([schema for _, schema in parts])
        tables = (_fitted(ray.get(rows), schema) for rows, _ in parts)
        self.result = self._client.ingest(self._name, tables, mode=self._mode, progress=False, **self._options)
        self.forget()

    def on_write_failed(self, error: Exception) -> None:  # noqa: ARG002 - as Ray has it
        """Free the rows of all tasks."""
        self.forget()

    def forget(self) -> None:
        """Free the rows of all tasks, if that has not been done."""
        kept, self._kept = self._kept, None
        if kept is not None:
            ray.kill(kept)


def _unified(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """A schema that holds the rows of all. Blocks may lack a column, or have only nulls in it."""
    fields: dict[str, pa.Field] = {}
    for schema in schemas:
        for field in schema:
            before = fields.setdefault(field.name, field)
            try:
                (both,) = pa.unify_schemas(
                    [pa.schema([before.remove_metadata()]), pa.schema([field.remove_metadata()])],
                    promote_options="permissive",
                )
            except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                raise InvalidRequest(
                    f"column {shown(field.name)} is {before.type} in one block and {field.type} in another"
                ) from error
            fields[field.name] = both.with_metadata(before.metadata)  # such as the names of classes
    return pa.schema(list(fields.values()))


def _fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table with the columns of a schema, null where it has none."""
    columns = [
        table[field.name].cast(field.type) if field.name in table.column_names else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
