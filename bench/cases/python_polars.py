"""python, Polars' part: what a filter to one sample of a hundred makes the server send."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import bowstring
import bowstring.polars
import polars as pl
import pyarrow as pa
from harness import Context, Figure, emit
from node import Node
from sizes import sized

ROWS, SIZE = sized(100_000, smoke=5_000), 20_000
PART = 100  # one row of this number survives
PIECE = 1_000


def samples() -> Iterator[pa.RecordBatch]:
    """Samples with a few columns of metadata; no two have the same bytes."""
    rng = random.Random(5)
    for start in range(0, ROWS, PIECE):
        keys = range(start, start + PIECE)
        yield pa.record_batch(
            {
                "file_name": pa.array([f"class{k % 1000}/{k:08}.jpg" for k in keys]),
                "label": pa.array([k % 1000 for k in keys], pa.int64()),
                "width": pa.array([rng.randrange(200, 800) for _ in keys], pa.int32()),
                "score": pa.array([rng.random() for _ in keys], pa.float64()),
                "image": pa.array([rng.randbytes(SIZE) for _ in keys], pa.large_binary()),
            }
        )


def run(context: Context) -> list[Figure]:
    """Two queries with the same result: of the first the server can do all, of the second nothing."""
    store = context.folder / "store-polars"
    with Node(context.binary, store) as node, bowstring.connect(node.url) as client:
        if not client.datasets("polars"):
            client.ingest("polars", samples(), key="file_name", progress=False)
        dataset = client.dataset("polars").columns(["file_name", "label", "image"])
        scan = bowstring.polars.scan(dataset)
        queries = {
            "server": scan.filter(pl.col("label") < 1000 // PART),
            "polars": scan.filter(pl.col("label") // (1000 // PART) == 0),
        }
        ratios = []
        for name, query in queries.items():
            before = client.stats()["server"]["bytes"]
            start = time.perf_counter()
            found = query.select("file_name", "label", "image").collect()
            seconds = time.perf_counter() - start
            sent = client.stats()["server"]["bytes"] - before
            if found.height != ROWS // PART:
                raise RuntimeError(f"{found.height} rows instead of {ROWS // PART}")
            # The surviving columns: images, names and labels, without offsets and bitmaps.
            size = int(
                found.select(pl.col("image").bin.size().sum() + pl.col("file_name").str.len_bytes().sum()).item()
            )
            size += 8 * found.height
            emit(case="python", part="polars", filter=name, seconds=seconds, bytes_sent=sent, bytes_of_survivors=size)
            ratios.append(sent / size)
    return [Figure("polars_bytes_ratio", max(ratios))]
