"""python, Ray's part: reading a dataset, beside `ray.data.read_parquet` of the same samples in local files."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import bowstring
import bowstring.ray
import pyarrow as pa
import pyarrow.parquet as pq
import ray
from harness import MIB, Context, Figure, emit, median
from node import Node
from samples import COUNT, SIZE

from .loopback import stored

COLUMNS = ["id", "label", "image"]
FILES = 16  # as Ray's own writer would make them, of 27 MB each
BATCH = 64
STORE_BYTES = 1 << 30  # of Ray's object store: twice the samples


@contextmanager
def cluster() -> Iterator[None]:
    """A Ray of this machine's own, whose workers find the package where this process does."""
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    path = os.pathsep.join([str(Path(bowstring.__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    ray.init(
        object_store_memory=STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        runtime_env={"env_vars": {"PYTHONPATH": path}},
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()


def parquet(context: Context, dataset: bowstring.Dataset) -> Path:
    """The samples as Parquet files. They are not compressed: that is the fastest for JPEG."""
    folder = context.folder / "parquet-4000"
    if not folder.exists():
        folder.mkdir()
        for rank in range(FILES):
            batches = dataset.batches(COUNT, rank=rank, world_size=FILES)
            table = pa.Table.from_batches(batches).replace_schema_metadata()
            plain = table.set_column(0, "id", table["id"].combine_chunks().storage)  # Parquet has no UUIDs for Ray
            pq.write_table(plain, folder / f"{rank:03}.parquet", compression="none")
    return folder


def consume(rows: ray.data.Dataset) -> float:
    """Iterate over all batches; samples per second."""
    start = time.perf_counter()
    count = size = 0
    for batch in rows.iter_batches(batch_size=BATCH, batch_format="pyarrow"):
        count += batch.num_rows
        size += batch["image"].nbytes
    seconds = time.perf_counter() - start
    if count != COUNT or size < COUNT * SIZE:
        raise RuntimeError(f"{count} rows of {size} bytes instead of {COUNT} of {COUNT * SIZE}")
    return count / seconds


def run(context: Context) -> list[Figure]:
    """Interleave the two, warm, in the same workers."""
    ratios = []
    with Node(context.binary, stored(context)) as node, cluster():
        dataset = bowstring.connect(node.url).dataset("bench").columns(COLUMNS)
        folder = str(parquet(context, dataset))

        def ours() -> float:
            return consume(bowstring.ray.read(dataset))

        def files() -> float:
            return consume(ray.data.read_parquet(folder, columns=COLUMNS))

        files(), ours()  # warm
        for number in range(context.rounds):
            # By turns, who goes first: the second finds the machine as the first has left it.
            if number % 2:
                theirs, mine = files(), ours()
            else:
                mine, theirs = ours(), files()
            for side, rate in (("bowstring", mine), ("read_parquet", theirs)):
                emit(case="python", part="ray", side=side, samples_per_s=rate, mb_per_s=rate * SIZE / MIB)
            ratios.append(mine / theirs)
    return [Figure("ray_ratio", median(ratios), at_least=0.8)]
