"""Check positions of rows, and find those of a dataset without reading them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from bowstring._requests.request import Request
from bowstring._rows.integers import Positions
from bowstring.errors import InvalidRequest
from bowstring.stream import Batches

FEW = 10_000  # positions that are read directly
Rows = TypeVar("Rows", bound=Request)


def check(positions: Positions, total: int) -> None:
    """Check sorted positions before they are sent."""
    if not len(positions):
        return
    for p in (int(positions[0]), int(positions[-1])):
        if not 0 <= p < total:
            raise InvalidRequest(f"select: got position {p}, want 0 to {total - 1}, those of the snapshot")
    twice = np.flatnonzero(positions[1:] == positions[:-1])
    if len(twice):
        raise InvalidRequest(
            f"select: got position {positions[twice[0]]} twice; a selection is a set, `take` gives rows repeatedly"
        )


def are_several(index: Any) -> bool:
    """Whether an index is a list or an array, rather than one integer."""
    return isinstance(index, (list, tuple, range, np.ndarray)) or (hasattr(index, "__array__") and np.ndim(index) > 0)


def in_order(dataset: Rows) -> Rows:
    """The same rows with only their positions, in order."""
    return dataset._but(_columns=("position",), _seed=None, _options={})


def range_of(dataset: Request, opens: Callable[[dict[str, Any]], Batches]) -> range | None:
    """The positions of a dataset, if they are consecutive: in order, the first and the last one show it.

    `opens` opens the stream of a ticket.
    """
    if dataset._split is None and not dataset._where and dataset._selection is None:
        return range(dataset._total)
    plain = in_order(dataset)
    rows = plain.num_rows
    if rows <= FEW:
        return None
    ends: list[int] = []
    for step in (0, rows - 1):
        with opens(plain.ticket(batch=1, step=step, stop=step + 1)) as batches:
            ends += [int(batch.column(0)[0].as_py()) for batch in batches]
    return range(ends[0], ends[-1] + 1) if ends[-1] - ends[0] == rows - 1 else None
