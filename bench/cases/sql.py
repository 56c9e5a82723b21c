"""sql: random conditions in SQL select the same rows as in DuckDB, with nulls, NaN and 64-bit unsigned integers."""

from __future__ import annotations

import secrets
import time

import bowstring
from harness import Context, Figure, Result, emit
from node import Node
from sizes import sized
from sql_conditions import differing, table

CONDITIONS, ROWS = sized((2000, 1000), smoke=(50, 200))


def run(context: Context) -> Result:
    """Ask both for the rows of each condition."""
    seed = secrets.randbelow(1 << 32)
    with Node(context.binary, context.folder / "sql") as node:
        client, rows = bowstring.connect(node.url), table(ROWS, seed)
        client.ingest("sql", rows, progress=False)
        begun = time.monotonic()
        found = differing(client.dataset("sql"), rows, CONDITIONS, seed)
        seconds = time.monotonic() - begun
    for text in found:
        emit(case="sql", differs=text)
    return Result(
        "sql",
        [Figure("differing", len(found))],
        {"conditions": CONDITIONS, "rows": ROWS, "seed": seed, "seconds": round(seconds, 1)},
    )
