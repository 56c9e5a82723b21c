"""A data loader of DLIO, the benchmark of MLPerf Storage. Needs `dlio-benchmark` and the extra `[torch]`.

Two lines of a workload choose it:

```yaml
reader:
  data_loader_classname: bowstring.dlio.BowstringDataLoader
  data_loader_sampler: index
```

The environment variable BOWSTRING_DLIO names the dataset, as [open][bowstring.open] takes it.
"""

from __future__ import annotations

import math
import os
import pickle
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from dlio_benchmark.common.enumerations import DataLoaderType, DatasetType, FormatType, Shuffle
from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader
from dlio_benchmark.reader.reader_factory import ReaderFactory
from dlio_benchmark.utils.config import ConfigArguments
from torch.utils.data import DataLoader, get_worker_info

from bowstring._open import open as open_source
from bowstring.errors import InvalidRequest
from bowstring.torch import BowstringDataset

__all__ = ["BowstringDataLoader"]

SOURCE = "BOWSTRING_DLIO"
RECORDS = FormatType.TFRECORD  # the only format whose files are many rows of a dataset, already parsed


class BowstringDataLoader(BaseDataLoader):  # type: ignore[misc]
    """The batches of a workload from a dataset: `read_threads` worker processes read files, and a thread reads records.

    DLIO makes one for training and one for evaluation, and calls `read` once and `next` once for each epoch. Rows are
    those of the split `train` or `valid`. Each row is one sample of DLIO: a file, or a record of a TFRecord file. A
    worker hands a file's bytes to DLIO's own reader of the format, so decoding costs what it costs there.
    """

    def __init__(self, format_type: Any, dataset_type: Any, epoch: int) -> None:
        super().__init__(format_type, dataset_type, epoch, DataLoaderType.CUSTOM)
        self._loader: DataLoader[Any] | None = None

    def read(self) -> None:
        """Open the dataset and start to read; DLIO measures nothing until the first `next`.

        Raises:
            InvalidRequest: The dataset does not fit the workload: it has too few rows, or several columns of bytes.
        """
        args = self._args
        per_file = args.num_samples_per_file
        if self.format_type is not RECORDS and per_file != 1:
            raise InvalidRequest(f"dataset.num_samples_per_file: got {per_file} with {self.format_type}, want 1")
        source = os.environ.get(SOURCE) or Path(args.storage_root or "", args.data_folder)
        dataset = open_source(source, split=str(self.dataset_type))
        if len(dataset) < self.num_samples:
            raise InvalidRequest(
                f"{dataset!r} has {len(dataset)} rows, want {self.num_samples}, the samples of DLIO's files"
            )
        column = _bytes_column(dataset.schema)
        # Records need no decoding, so a worker would only pass them on. A step of cosmoflow is a record in 3.5 ms, and
        # passing a batch between processes takes CPU time of both.
        threads = 0 if self.format_type is RECORDS else args.read_threads
        workers: dict[str, Any] = {}
        if threads:  # as DLIO's own loader has it
            workers = {
                "multiprocessing_context": args.multiprocessing_context,
                "prefetch_factor": max(math.ceil(args.prefetch_size / threads), 0) or 2,
                "persistent_workers": True,
            }
        self._loader = DataLoader(
            BowstringDataset(
                # DLIO ends an epoch after the last whole step
                dataset.columns([column]).options(remainder="drop"),
                global_batch_size=self.batch_size * args.comm_size,
                shuffle=args.seed if args.sample_shuffle != Shuffle.OFF else None,
                rank=args.my_rank,
                world_size=args.comm_size,
                collate=_Samples(column, self.format_type, self.dataset_type, self.epoch_number),
            ),
            batch_size=None,
            num_workers=threads,
            **workers,
        )

    def next(self) -> Iterator[torch.Tensor]:
        """The batches of the next epoch."""
        if self._loader is None:
            raise RuntimeError("next: read was not called")
        yield from self._loader if self._loader.num_workers else _prefetched(self._loader, self._args.prefetch_size)
        self.epoch_number += 1

    def finalize(self) -> None:
        """Called after each epoch. The workers stay for the next one."""


def _prefetched(batches: Iterable[torch.Tensor], size: int) -> Iterator[torch.Tensor]:
    """The same batches: while the caller uses one, a thread receives up to `size` others, 1 at least."""
    source = iter(batches)
    with ThreadPoolExecutor(1, "bowstring-dlio") as thread:
        received = deque(thread.submit(next, source, None) for _ in range(max(size, 1)))
        try:
            while (batch := received.popleft().result()) is not None:
                received.append(thread.submit(next, source, None))
                yield batch
        finally:
            thread.shutdown(wait=False, cancel_futures=True)


class _Samples:
    """A batch of samples, as DLIO's reader of the format makes it, in the process that received it."""

    def __init__(self, column: str, format_type: FormatType, dataset_type: DatasetType, epoch: int) -> None:
        self._column, self._format, self._dataset_type, self._epoch = column, format_type, dataset_type, epoch
        self._settings = pickle.dumps(ConfigArguments.get_instance())
        self._reader: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}

    def __call__(self, samples: list[dict[str, torch.Tensor]]) -> torch.Tensor:
        worker = get_worker_info()
        if self._format is not RECORDS:
            if self._reader is None:
                if worker is not None:
                    pickle.loads(self._settings)  # noqa: S301 - a spawned worker has no settings; loading sets them
                thread = -1 if worker is None else worker.id
                self._reader = ReaderFactory.get_reader(self._format, self._dataset_type, thread, self._epoch)
            for sample in samples:
                self._decode(sample[self._column])
        # The rows of DLIO's batches are all one constant image: its readers drop what they decode.
        return torch.from_numpy(np.stack([ConfigArguments.get_instance().resized_image] * len(samples)))

    def _decode(self, blob: torch.Tensor) -> None:
        """Read a file as DLIO's reader does; it gets the bytes in place of the name."""
        reader, name = self._reader, "sample"
        reader.open_file_map[name] = reader.open(pa.BufferReader(pa.py_buffer(blob.numpy())))
        reader.get_sample(name, 0)
        reader.preprocess()
        reader.close(name)
        reader.open_file_map[name] = None


def _bytes_column(schema: pa.Schema) -> str:
    """The name of the only column that has the samples' bytes."""
    found = [f.name for f in schema if pa.types.is_large_binary(f.type) or pa.types.is_binary(f.type)]
    if len(found) != 1:
        raise InvalidRequest(f"columns: got {found} with bytes, want one")
    return str(found[0])
