"""Photographs as torch reads them, and what of them is looked at: for the tests of several modules."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import bowstring
from bowstring.torch import BowstringDataset

JOB = Path(__file__).parent / "python" / "torch_job.py"
TRAIN = 270  # photographs of the split
BATCH = 32  # so that the last step has 14


def positions(photos: bowstring.Dataset, epoch: int = 0, batch: int = BATCH) -> list[list[int]]:
    """The samples of each step of an epoch, read without torch."""
    found = photos.columns(["position"]).batches(batch, epoch=epoch)
    return [record.column(0).to_pylist() for record in found]


def seen(loader: Any) -> list[list[int]]:
    return [batch["position"].tolist() for batch in loader]


def small(photos: bowstring.Dataset, **more: Any) -> BowstringDataset:
    given = {"global_batch_size": BATCH, "rank": 0, "world_size": 1, **more}
    return BowstringDataset(photos, columns=["position"], **given)


def job(**spec: Any) -> subprocess.Popen[bytes]:
    """A rank in a process of its own."""
    return subprocess.Popen([sys.executable, JOB, json.dumps(spec)])


def lines(log: Path) -> list[Any]:
    """Whole lines: the last may be cut."""
    return [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]


def size(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "image": sample["image"][:, :32, :32].float().mean((1, 2))}
