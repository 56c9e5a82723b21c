"""A rank of a mesh on the server's node: reads an epoch by the package, in memory that the server shares.

    python bench/group_reader.py URL REQUEST_IN_HEX RANK EPOCH

Prints `ready`, reads when it gets the line `go`, and prints one JSON object: rows, bytes, seconds, the ways that
batches came, and of each step the digest that the server gave and a sum of the bytes that came.
"""

from __future__ import annotations

import json
import sys
import time
import zlib

import bowstring
import pyarrow as pa
from bowstring.stream import Batches


def summed(batch: pa.RecordBatch, sums: tuple[int, int]) -> tuple[int, int]:
    """The sums over what the columns of a batch have, however the rows were cut into batches."""
    ids, image = batch.column(0), batch.column(batch.num_columns - 1)
    one = zlib.crc32(ids.buffers()[1][16 * ids.offset : 16 * (ids.offset + len(ids))], sums[0])
    offsets = image.buffers()[1].to_pybytes()
    first = int.from_bytes(offsets[8 * image.offset : 8 * image.offset + 8], "little")
    end = 8 * (image.offset + len(image))
    last = int.from_bytes(offsets[end : end + 8], "little")
    return one, zlib.crc32(image.buffers()[2][first:last], sums[1])


def main() -> None:
    url, request, rank, epoch = sys.argv[1:]
    client = bowstring.connect(url)
    ticket = json.loads(bytes.fromhex(request)) | {"rank": int(rank), "step": 0}
    ticket["shuffle"]["epoch"] = int(epoch)
    print("ready", flush=True)
    sys.stdin.readline()
    start = time.perf_counter()
    rows = size = 0
    ways: set[str] = set()
    steps: list[tuple[str, int, int]] = []
    sums = 0, 0
    stream = Batches(client, ticket)
    for batch in stream:
        place = stream.place or {}
        rows += batch.num_rows
        size += batch.column(batch.num_columns - 1).nbytes
        ways.add(place["transport"])
        sums = summed(batch, sums)
        if place["last"]:
            steps.append((place["digest"], *sums))
            sums = 0, 0
    seconds = time.perf_counter() - start
    print(
        json.dumps({"rows": rows, "bytes": size, "seconds": seconds, "ways": sorted(ways), "steps": steps}), flush=True
    )


if __name__ == "__main__":
    main()
