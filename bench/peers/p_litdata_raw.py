"""A peer of the kit: LitData's StreamingRawDataset, one object a sample, in a global shuffle.

Which objects there are is known before the clock starts, as other peers' formats are made before. Within a batch it
reads as many objects at once as it finds best.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import litdata.streaming.downloader as downloads  # type: ignore[import-not-found]  # of the kit
import torch
from common import CFG, from_torch, torch_loader  # type: ignore[import-not-found]  # of the kit
from litdata import StreamingRawDataset
from litdata.raw.indexer import BaseIndexer, FileMetadata  # type: ignore[import-not-found]

# There is no option for an endpoint without TLS.
downloads._OBSTORE_CLIENT_OPTIONS["allow_http"] = True

STORAGE = {
    "endpoint_url": CFG["s3"],
    "aws_access_key_id": CFG["key"],
    "aws_secret_access_key": CFG["secret"],
    "region_name": "us-east-1",
}


def rows() -> list[dict[str, str]]:
    """The kit's table of samples."""
    with (Path(CFG["data"]) / "metadata.csv").open() as table:
        return list(csv.DictReader(table))


class Indexer(BaseIndexer):  # type: ignore[misc]
    """The objects that the kit's table names; its own indexer would write what it has listed into the bucket."""

    def discover_files(self, input_dir: str, storage_options: Any) -> list[Any]:  # noqa: ARG002
        return [FileMetadata(path=f"{input_dir}/{row['path']}", size=int(row["bytes"])) for row in rows()]

    def build_or_load_index(self, input_dir: str, *_: Any) -> list[Any]:
        return self.discover_files(input_dir, None)


class Raw(StreamingRawDataset):  # type: ignore[misc]
    """The kit's samples: id, label and bytes, in the order of the table."""

    labels: ClassVar = [(int(row["id"]), int(row["label"])) for row in rows()]

    def __getitems__(self, indices: list[int]) -> list[tuple[int, int, bytes]]:
        found = zip(indices, super().__getitems__(indices), strict=True)
        return [(*self.labels[i], content) for i, content in found]


DATASET: Any = None


def setup() -> None:
    """Name the objects."""
    global DATASET
    torch.set_num_threads(1)
    DATASET = Raw("s3://peers/files", f"{CFG['cache']}/raw", Indexer(), STORAGE)


def epoch(e: int) -> Iterator[Any]:
    """A global shuffle of everything."""
    order = torch.Generator()
    order.manual_seed(e)
    return iter(from_torch(torch_loader(DATASET, shuffle=True, generator=order)))
