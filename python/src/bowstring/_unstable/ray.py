"""Parts of Ray that have no documentation, or a private name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ray.data import DataContext
from ray.data.datasource import Datasource
from ray.data.expressions import Expr, PyArrowComputeUDFExpr

if TYPE_CHECKING:  # the type of an argument that Ray passes to sinks
    from ray.data._internal.execution.interfaces import TaskContext as TaskContext

# The column by which Ray counts the rows of a block without columns. A block of no columns has no number of rows.
ROWS_ALONE = "__bsp_stub"


def with_all_columns(source: Datasource) -> None:
    """Have a new source read all columns. Ray's projections read this attribute, and no constructor sets it."""
    source._projection_map = None  # type: ignore[attr-defined]


def runs(context: DataContext | None) -> int:
    """The number of runs of a dataset that have ended, which Ray counts for its own shuffles of files.

    It becomes part of the epoch. Without it each run would have the same order.
    """
    return getattr(context, "_execution_idx", 0)


def text_test(e: PyArrowComputeUDFExpr) -> tuple[str, Expr, str] | None:
    """The name of Arrow's function, the column and the text of a test of strings; None for another function."""
    match e:
        case PyArrowComputeUDFExpr(args=[column], pc_positional=(str() as text,)) if not e.pc_kwargs and not e.kwargs:
            return e.pc_func.__name__, column, text
    return None
