"""What people see of a dataset: its first rows, and what reading it would come to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from bowstring.client import Datasets
    from bowstring.dataset import Dataset


@dataclass(frozen=True)
class Preview:
    """The first rows of a dataset."""

    table: pa.Table
    dataset: Dataset


@dataclass(frozen=True)
class Explanation:
    """What reading a dataset would come to."""

    text: str


def explain(dataset: Dataset, *, batch: int | None = None, world_size: int = 1) -> Explanation:
    """Say what would be read."""
    return Explanation(f"{dataset} {batch} {world_size}")


def datasets_html(datasets: Datasets) -> str:
    return str(len(datasets))


def dataset_html(dataset: Dataset) -> str:
    return str(dataset)
