"""DLIO's reader of npz in S3 for PyTorch, which releases after 2.0.0 have: an object by s3torchconnector, then np.load.

DLIO 2.0.0 has S3 for TensorFlow alone. This is the later reader's method as a plug-in of 2.0.0: a worker process reads
whole objects, one after another.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
from dlio_benchmark.reader.npz_reader import NPZReader
from s3torchconnector._s3client import S3Client, S3ClientConfig


class NPZReaderS3(NPZReader):  # type: ignore[misc]
    """A reader of the objects that are named like the files."""

    def __init__(self, dataset_type: Any, thread_index: int, epoch: int) -> None:
        super().__init__(dataset_type, thread_index, epoch)
        self._client = S3Client(
            region="us-east-1",
            endpoint=os.environ["DLIO_S3"],
            s3client_config=S3ClientConfig(force_path_style=True),
        )

    def open(self, filename: str) -> Any:
        """The array of a file."""
        bucket, key = Path(filename).parts[-4], "/".join(Path(filename).parts[-3:])
        return np.load(io.BytesIO(self._client.get_object(bucket, key).read()), allow_pickle=True)["x"]
