"""metadata: a million rows of metadata columns to pyarrow, and what opening and filtering them costs."""

from __future__ import annotations

import json
import time

import pyarrow.flight as fl
from harness import Context, Figure, Readers, Result, anonymous_mb, emit
from node import Node

from .million import ROWS, stored

COLUMNS = ["id", "label", "width", "height", "score", "file_name"]


def run(context: Context) -> Result:
    """A new server each round: what it costs right after a restart is part of the case."""
    store = stored(context)
    rates: list[float] = []
    opens: list[float] = []
    heaps, wheres = [], []
    for round_ in context.repeat(rates, opens):
        with Node(context.binary, store) as node:
            client = fl.connect(node.url)
            list(client.list_actions())

            def info(node_client: fl.FlightClient = client, **more: object) -> fl.FlightInfo:
                command = json.dumps({"dataset": "million", "columns": COLUMNS, **more})
                return node_client.get_flight_info(fl.FlightDescriptor.for_command(command))

            start = time.perf_counter()
            first = info()
            opens.append(time.perf_counter() - start)
            ticket = first.endpoints[0].ticket.ticket
            Readers(node.url, [ticket]).run()  # warm
            got = Readers(node.url, [ticket]).run()
            if got["rows"] != ROWS:
                raise RuntimeError(f"{got['rows']} rows instead of {ROWS}")
            rates.append(ROWS / got["seconds"])
            start = time.perf_counter()
            # A different expression each round: nothing can be left from an earlier one.
            matches = info(where=f"label < {500 + round_} and width >= 400 and file_name contains '_1'").total_records
            wheres.append(time.perf_counter() - start)
            heaps.append(anonymous_mb(node.pid))
            emit(
                case="metadata",
                rows_per_s=rates[-1],
                open_s=opens[-1],
                where_s=wheres[-1],
                heap_mb=heaps[-1],
                matches=matches,
                bytes=got["bytes"],
            )
    return Result(
        "metadata",
        [
            Figure("rows_per_s", rates),
            Figure("open_s", opens),
            Figure("heap_mb", heaps),
            Figure("where_s", wheres),
        ],
    )
