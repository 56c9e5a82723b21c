"""A client process on the server's node: reads epochs, by the package or by pyarrow alone.

    python bench/shm_reader.py package|references|pyarrow sum|none URL TICKET_IN_HEX PASSES

Reads once to warm up, prints `ready`, reads PASSES times after the line `go`, and prints one JSON object. With
`sum` each byte of the blobs is touched.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl


def by_package(client: Any, ticket: bytes, references: bool = False) -> Iterator[tuple[pa.RecordBatch, str]]:
    """The batches of a ticket by the package."""
    from bowstring.stream import Batches

    stream = Batches(client, json.loads(ticket), references=references)
    for batch in stream:
        yield batch, (stream.place or {})["transport"]


def by_references(client: Any, ticket: bytes) -> Iterator[tuple[pa.RecordBatch, str]]:
    """By the package, in place in the server's files."""
    return by_package(client, ticket, references=True)


def by_pyarrow(client: fl.FlightClient, ticket: bytes) -> Iterator[tuple[pa.RecordBatch, str]]:
    """The batches of a ticket by pyarrow alone."""
    for chunk in client.do_get(fl.Ticket(ticket)):
        yield chunk.data, "tcp"


def main() -> None:
    who, touch, url, ticket, passes = sys.argv[1:]
    wanted = bytes.fromhex(ticket)
    if who != "pyarrow":
        import bowstring

        client: Any = bowstring.connect(url)
        batches = by_references if who == "references" else by_package
    else:
        client = fl.connect(url)
        batches = by_pyarrow

    def read() -> tuple[int, int, set[str]]:
        rows = size = 0
        ways = set()
        for batch, way in batches(client, wanted):
            rows += batch.num_rows
            ways.add(way)
            for blobs in batch.column(batch.num_columns - 1).buffers()[2:]:  # one of all blobs, or one of each
                size += blobs.size
                if touch == "sum":
                    np.frombuffer(blobs, np.uint64, blobs.size // 8).sum()
        return rows, size, ways

    read()
    print("ready", flush=True)
    sys.stdin.readline()
    before = resource.getrusage(resource.RUSAGE_SELF)
    start = time.perf_counter()
    rows = size = 0
    ways: set[str] = set()
    for _ in range(int(passes)):
        some, more, way = read()
        rows, size, ways = rows + some, size + more, ways | way
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"rows": rows, "bytes": size, "seconds": seconds, "cpu": cpu, "ways": sorted(ways)}), flush=True)


if __name__ == "__main__":
    main()
