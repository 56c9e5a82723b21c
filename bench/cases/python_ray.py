"""python, Ray's part: reading a dataset, beside `ray.data.read_parquet` of the same samples in local files."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import bowstring
import bowstring.ray
import pyarrow as pa
import pyarrow.parquet as pq
import ray
from harness import Context, Figure, emit
from node import Node
from samples import COUNT, SIZE
from sizes import sized

from .loopback import stored

COLUMNS = ["id", "label", "image"]
FILES = sized(16, smoke=2)  # as Ray's own writer would make them, of 27 MB each
BATCH = 64
STORE_BYTES = 1 << 30  # of Ray's object store: twice the samples
# Ray ends idle workers after a second, and starts others for the next run, which takes longer than the run itself.
KEEP_WORKERS = {"idle_worker_killing_time_threshold_ms": 3_600_000, "num_workers_soft_limit": 16}


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
        _system_config=KEEP_WORKERS,
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


def consume(side: str, rows: ray.data.Dataset) -> float:
    """Iterate over all batches; samples per second, from the call to the last batch."""
    start = time.perf_counter()
    first = 0.0
    count = size = 0
    batches: Iterable[pa.Table] = rows.iter_batches(batch_size=BATCH, batch_format="pyarrow")
    for batch in batches:
        first = first or time.perf_counter() - start
        count += batch.num_rows
        size += batch["image"].nbytes
    seconds = time.perf_counter() - start
    if count != COUNT or size < COUNT * SIZE:
        raise RuntimeError(f"{count} rows of {size} bytes instead of {COUNT} of {COUNT * SIZE}")
    rate = count / seconds
    emit(case="python", part="ray", side=side, samples_per_s=rate, mb_per_s=rate * SIZE / 1e6, first_batch_s=first)
    return rate


def run(context: Context) -> list[Figure]:
    """Interleave the two, warm, in the same workers.

    Ray's own reader of Parquet starts actors for each dataset, which read the files' footers; of so few samples that is
    most of the time. Its older reader does without them: the faster of the two counts.
    """
    ratios: list[float] = []
    with Node(context.binary, stored(context)) as node, cluster():
        dataset = bowstring.connect(node.url).dataset("bench").columns(COLUMNS)
        folder = str(parquet(context, dataset))

        def ours() -> float:
            return consume("bowstring", bowstring.ray.read(dataset))

        def files(footers: bool) -> float:
            ray.data.DataContext.get_current().use_datasource_v2 = footers
            side = "read_parquet" if footers else "read_parquet, without its actors"
            return consume(side, ray.data.read_parquet(folder))

        ours(), files(False), files(True)  # warm
        for number in context.repeat(ratios):
            # The first side alternates, because the second finds the machine as the first has left it.
            if number % 2:
                theirs, own = max(files(False), files(True)), ours()
            else:
                own, theirs = ours(), max(files(True), files(False))
            ratios.append(own / theirs)
    return [Figure("ray_ratio", ratios)]
