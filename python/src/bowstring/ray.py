"""Datasets as datasets of Ray Data.

[read][bowstring.ray.read] gives a `ray.data.Dataset`: the server shares the rows out to as many ranks as there are
read tasks, and each task redeems its endpoint's ticket over its worker's own connection.

- **Columns** that later steps do not need are not read, and **filters** by expression become a `where` of the server,
  as far as it can evaluate them; the rest of them is applied in the read task. A filter by function stays with Ray.
- **Row counts** are exact and known beforehand, so that `count()` reads nothing. Sizes are those of the values.
- **Blocks** stay near Ray's `target_max_block_size`.
- **Faults**: a stream that breaks goes on from the ticket of its last batch. A worker that dies is Ray's to replace:
  the task is read again, and gives the same blocks again, as rows always come in the plan's order.
"""

from __future__ import annotations

import datetime as dt
import functools
import math
import os
import pickle
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import ray.data
from ray.data import DataContext
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask
from ray.data.expressions import (
    AliasExpr,
    BinaryExpr,
    ColumnExpr,
    Expr,
    LiteralExpr,
    Operation,
    PyArrowComputeUDFExpr,
    UDFExpr,
    UnaryExpr,
)

from bowstring import _where
from bowstring._source import opened
from bowstring._where import Column, Condition, Instant, Rows
from bowstring.errors import InvalidRequest
from bowstring.stream import Batches

if TYPE_CHECKING:
    from bowstring.client import Client
    from bowstring.connection import Tls
    from bowstring.dataset import Dataset
    from bowstring.plan import Plan

__all__ = ["BowstringDatasource", "read"]

MIN_BATCH_BYTES, MAX_BATCH_BYTES = 64 << 10, 8 << 20
BATCHES_A_BLOCK = 8  # a block exceeds Ray's target by at most one of them
MAX_BATCH = (1 << 31) - 1
TASK_BYTES, TASKS_A_CPU = 16 << 20, 4
ROWS_ALONE = "__bsp_stub"  # the column by which Ray counts the rows of a block without columns


def read(
    source: Dataset | Client | str,
    name: str | None = None,
    *,
    split: str | None = None,
    snapshot: int | str | None = None,
    columns: Iterable[str] | None = None,
    where: str | None = None,
    shuffle: int | None = None,
    epoch: int = 0,
    parallelism: int | None = None,
    concurrency: int | None = None,
    num_cpus: float | None = None,
    memory: float | None = None,
    token: str | None = None,
    tls: Tls | None = None,
    **options: Any,
) -> ray.data.Dataset:
    """A dataset as one of Ray Data. Nothing is read before it is used.

    It is of the snapshot that is the newest now, or that `snapshot` names, whatever is imported later.

    ```python
    rows = bowstring.ray.read("grpc://10.0.0.7:8815", "photos", split="train", columns=["image", "label"], shuffle=7)
    for batch in rows.map_batches(decode).iter_torch_batches(batch_size=256):
        ...
    ```

    Args:
        source: A [Dataset][bowstring.Dataset] with all that was chosen in it, a [Client][bowstring.Client], or the
            address of a server, by which every node of the cluster reaches it.
        name: The dataset, if `source` is not one itself; likewise `split`, `snapshot`, `token` and `tls`.
        split: One of its splits.
        snapshot: A snapshot that is not the newest, by number or tag; `name` may say it as `photos@prod`.
        columns: Which columns: without it, all that are stored. `position` and `split` may be named, too.
        where: Which rows, in the server's language.
        shuffle: The seed of a global shuffle. Blocks arrive as they are ready: for the order itself, set
            `preserve_order` in Ray's execution options.
        epoch: Which epoch of the shuffle.
        parallelism: How many read tasks. Without it, four for each processor, or more where each would read more than
            Ray's `target_max_block_size`, or less where each would read less than 16 MiB.
        concurrency: How many of them run at once.
        num_cpus: Processors that each of them reserves.
        memory: Bytes of memory likewise.
        token: Of the connection, if `source` is an address.
        tls: Likewise.
        options: More of `ray.data.read_datasource`.
    """
    for argument, value in (("parallelism", parallelism), ("concurrency", concurrency)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ValueError(f"{argument}: got {value!r}, want an integer, 1 or more")
    dataset = opened(source, name, split=split, snapshot=snapshot, columns=columns, where=where, token=token, tls=tls)
    if shuffle is not None:
        dataset = dataset.shuffle(shuffle)
    datasource = BowstringDatasource(dataset, epoch=epoch)
    found: ray.data.Dataset = ray.data.read_datasource(
        datasource,
        override_num_blocks=parallelism or _tasks(datasource.estimate_inmemory_data_size()),
        concurrency=concurrency,
        num_cpus=num_cpus,
        memory=memory,
        **options,
    )
    return found


def _tasks(size: int) -> int:
    """How many read tasks suit so many bytes: some for each processor, but none small, and none above a block's size.

    Ray's own choice, as for files of which it knows little, is up to 200, whatever starting them costs.
    """
    cpus = os.cpu_count() or 1
    if ray.is_initialized():
        cpus = ray.cluster_resources().get("CPU", 1)  # type: ignore[no-untyped-call]
    target = DataContext.get_current().target_max_block_size or MAX_BATCH_BYTES * BATCHES_A_BLOCK
    return max(1, math.ceil(size / target), math.ceil(min(size / TASK_BYTES, TASKS_A_CPU * cpus)))


class BowstringDatasource(Datasource):
    """What [read][bowstring.ray.read] gives to `ray.data.read_datasource`."""

    def __init__(self, dataset: Dataset, *, epoch: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # All rows; and in the plan's order, as a task that Ray repeats has to give the same blocks.
        self._dataset = dataset.options(order="strict", remainder="uneven")
        self._epoch = epoch
        self._projection_map: dict[str, str] | None = None
        self._residual: Expr | None = None  # what of the filters the server does not apply
        self._plans: dict[int, Plan] = {}

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
        """A source of some of the columns."""
        clone: BowstringDatasource = super().apply_projection(projection_map)  # type: ignore[assignment]
        clone._plans = {}
        return clone

    def supports_predicate_pushdown(self) -> bool:
        """Rows can be left out."""
        return True

    def apply_predicate(self, predicate_expr: Expr) -> BowstringDatasource:
        """A source of the rows that meet a condition, or this one if the server can do nothing about it."""
        rows = translate(predicate_expr, self._dataset.schema).true
        taken = len(self._dataset.request().get("where", "").encode()) + len("() and ()\n")
        if rows.text is None or taken + len(rows.text.encode()) > _where.MAX_BYTES:
            return self
        try:
            dataset = self._dataset.where(rows.text)
        except InvalidRequest:  # a column of an unusual type or name: Ray filters, as it would for another source
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
        names = self._get_data_columns()
        return list(self._dataset.schema.names) if names is None else list(names)

    def _view(self) -> Dataset:
        """What is asked of the server: the result's columns, and those by which rows are left out here."""
        names = self._names()
        if self._residual is not None:
            names = list(dict.fromkeys([*names, *_columns_of(self._residual)]))
        return self._dataset._but(_columns=tuple(names or ["position"]))  # rows without columns still count

    def _plan(self, ranks: int) -> Plan:
        if ranks not in self._plans:
            view = self._view()
            # One global batch of all rows, so that each rank has one piece of the order. The server cuts it by bytes.
            rows = min(max(1, view.num_rows), MAX_BATCH)
            self._plans[ranks] = view.plan(batch=rows, world_size=min(ranks, rows), epoch=self._epoch)
        return self._plans[ranks]

    def estimate_inmemory_data_size(self) -> int:
        """Bytes of all values. With a filter of which the server does not apply all, more than come."""
        return self._plan(1).bytes

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: DataContext | None = None
    ) -> list[ReadTask]:
        """One task for each endpoint of as many ranks as Ray asks for, but none without rows."""
        plan = self._plan(max(1, parallelism))
        names = self._names()
        schema = pa.schema([plan.schema.field(name) for name in names], plan.schema.metadata)
        target = (data_context or DataContext.get_current()).target_max_block_size or MAX_BATCH_BYTES * BATCHES_A_BLOCK
        batch_bytes = min(max(MIN_BATCH_BYTES, target // BATCHES_A_BLOCK), MAX_BATCH_BYTES)
        residual = None if self._residual is None else self._residual.to_pyarrow()
        client = pickle.dumps(self._dataset.client)
        chosen = self._dataset.request()
        tasks = []
        for rank in plan.ranks:
            ticket = dict(rank.ticket)
            if "batch_bytes" not in chosen:
                ticket["batch_bytes"] = batch_bytes
            rows = rank.rows
            if per_task_row_limit and residual is None and per_task_row_limit < rows:
                # A smaller global batch, the first alone: as many rows for each rank, and no more are sent.
                ticket |= {"batch": min(per_task_row_limit * len(plan.ranks), MAX_BATCH), "stop": 1}
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
    """The client of this worker: its tasks share a connection."""
    client: Client = pickle.loads(pickled)  # noqa: S301 - what this module has pickled
    return client


def _blocks(
    client: bytes,
    ticket: dict[str, Any],
    names: list[str],
    residual: pc.Expression | None,
    empty: pa.Schema | None,
    locations: tuple[str, ...] = (),
) -> Iterator[pa.Table]:
    """Read a ticket; this runs in a worker of Ray's."""
    if empty is not None:
        yield empty.empty_table()
        return
    with Batches(_client(client), ticket, locations) as batches:
        for batch in batches:
            table = pa.Table.from_batches([batch])
            if residual is not None:
                table = table.filter(residual)
            yield table.select(names) if names else pa.table({ROWS_ALONE: pa.nulls(table.num_rows)})


# --- from the filters of Ray to expressions of the server --------------------------------------------------

_COMPARISONS = {
    Operation.EQ: "==",
    Operation.NE: "!=",
    Operation.LT: "<",
    Operation.LE: "<=",
    Operation.GT: ">",
    Operation.GE: ">=",
}
_STRING_TESTS = {"starts_with": "startsWith", "ends_with": "endsWith", "match_substring": "contains"}


def translate(expression: Expr, schema: pa.Schema) -> Condition:
    """A filter of Ray as expressions of the server, as far as that goes. Arrow's rules on nulls and NaN are kept."""
    try:
        return _condition(expression, schema)
    except (KeyError, TypeError, ValueError, AttributeError, pa.ArrowException):
        return _where.UNKNOWN


def _condition(e: Expr, schema: pa.Schema) -> Condition:
    match e:
        case AliasExpr():
            return translate(e.expr, schema)
        case BinaryExpr(op=Operation.AND):
            return translate(e.left, schema) & translate(e.right, schema)
        case BinaryExpr(op=Operation.OR):
            return translate(e.left, schema) | translate(e.right, schema)
        case BinaryExpr(op=Operation.IN):
            return _is_in(e, schema)
        case BinaryExpr(op=Operation.NOT_IN):
            return ~_is_in(e, schema)
        case BinaryExpr():
            return _compare(e, schema)
        case UnaryExpr(op=Operation.NOT):
            return ~translate(e.operand, schema)
        case UnaryExpr(op=Operation.IS_NULL):
            return _where.is_null(_column(e.operand, schema))
        case UnaryExpr(op=Operation.IS_NOT_NULL):
            return ~_where.is_null(_column(e.operand, schema))
        case ColumnExpr():
            return _where.is_true(_column(e, schema))
        case LiteralExpr(value=(bool() | None) as value):
            return _where.constant(value)
        case PyArrowComputeUDFExpr(args=[column], pc_positional=(str() as text,), pc_kwargs={}) if (
            not e.pc_kwargs and not e.kwargs
        ):
            return _where.string_test(_column(column, schema), _STRING_TESTS[e.pc_func.__name__], text)
    return _where.UNKNOWN


def _compare(e: BinaryExpr, schema: pa.Schema) -> Condition:
    left, right, op = e.left, e.right, _COMPARISONS[e.op]
    if isinstance(left, LiteralExpr):
        left, right, op = right, left, _where.MIRRORED[op]
    column = _column(left, schema)
    if isinstance(right, LiteralExpr):
        return _where.compare(column, op, _value(right.value, column), nan_is_greatest=False)
    return _where.compare_columns(column, op, _column(right, schema))


def _is_in(e: BinaryExpr, schema: pa.Schema) -> Condition:
    """Arrow's `is_in`, which is never null: a null is in a list that has one."""
    column = _column(e.left, schema)
    if not isinstance(e.right, LiteralExpr):
        return _where.UNKNOWN
    given = e.right.value if isinstance(e.right.value, list) else [e.right.value]
    values = [_value(v, column) for v in given]
    found = _where.is_in(column, [v for v in values if v is not None])
    found = Condition(found.true, Rows(found.false.text, found.false.text is not None))
    if None in values:
        null = _where.is_null(column)
        found = Condition(found.true | null.true, found.false & null.false)
    return found


def _column(e: Expr, schema: pa.Schema) -> Column:
    if isinstance(e, ColumnExpr):
        return Column(schema.field(e.name))
    raise TypeError("not a column")


def _value(value: Any, column: Column) -> _where.Value:
    """A literal of Python's or NumPy's."""
    if hasattr(value, "item") and not isinstance(value, (list, pa.Array)):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    dtype = column.field.type
    if isinstance(value, dt.datetime):
        if not pa.types.is_timestamp(dtype) or (value.tzinfo is None) != (dtype.tz is None):
            raise TypeError("of another type than the column")
        return Instant(pa.scalar(value).cast(pa.timestamp("ns", dtype.tz)).value)
    if isinstance(value, dt.date) and pa.types.is_date32(dtype):
        return Instant((value - dt.date(1970, 1, 1)).days * 86_400_000_000_000)
    raise TypeError(f"a literal of type {type(value).__name__}")


def _columns_of(e: Expr) -> Iterator[str]:
    """The columns that an expression looks at."""
    match e:
        case ColumnExpr():
            yield e.name
        case AliasExpr():
            yield from _columns_of(e.expr)
        case BinaryExpr():
            yield from _columns_of(e.left)
            yield from _columns_of(e.right)
        case UnaryExpr():
            yield from _columns_of(e.operand)
        case UDFExpr():
            for argument in (*e.args, *e.kwargs.values()):
                yield from _columns_of(argument)
