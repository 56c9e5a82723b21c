"""Checks of the arguments of a dataset of torch."""

from __future__ import annotations

from typing import Any

from bowstring._messages import listed
from bowstring._source import counted
from bowstring.dataset import Dataset

_SIZE = 64  # of a global batch, if nothing is said


def global_size(global_batch_size: int | None) -> int:
    """The samples of a step, all ranks together."""
    return counted("global_batch_size", _SIZE if global_batch_size is None else global_batch_size)


def loader_size(loader_batch_size: int | None, output: str) -> int | None:
    """The samples that a loader puts in a batch, if it is said."""
    if loader_batch_size is None:
        return None
    size = counted("loader_batch_size", loader_batch_size)
    if output != "samples":
        raise ValueError("loader_batch_size: goes with output='samples'; whole batches are made by the server")
    return size


def check_output(output: str, decode: object, transform: object, collate: object) -> None:
    """Say what does not go with an output."""
    if output not in ("batches", "samples", "dlpack"):
        raise ValueError(f"output: got {output!r}, want 'batches', 'samples' or 'dlpack'")
    if output == "dlpack" and (decode is not None or transform is not None or collate is not None):
        raise ValueError("output: 'dlpack' gives what the server made; decode, transform and collate go with others")
    if output == "samples" and collate is not None:
        raise ValueError("collate: goes with output='batches'; for samples, give collate_fn to the DataLoader")


def of_images(dataset: Dataset, transform: Any) -> dict[str, Any]:
    """The same operators for each column of images."""
    images = [f.name for f in dataset.schema if (f.metadata or {}).get(b"bowstring.media") == b"image"]
    if not images:
        raise ValueError(f"operators: no column holds images; there are {listed(dataset.schema.names)}")
    return dict.fromkeys(images, transform)
