"""Parts that the examples in this folder share: arguments, samples, a model, and a record of what was trained on."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import bowstring
import torch
from bowstring.torch import Batch, BowstringDataset
from torch import nn

SIDE = 16


def arguments(about: str | None) -> argparse.Namespace:
    """SERVER, DATASET, and how far the job goes."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("server", help="such as grpc://127.0.0.1:8815")
    parser.add_argument("dataset")
    parser.add_argument("folder", type=Path, help="where checkpoints are; a job that finds one goes on from it")
    parser.add_argument("--split", default="train")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64, help="samples of a step, all ranks together")
    parser.add_argument("--workers", type=int, default=2, help="of each rank's loader")
    parser.add_argument("--stop", type=int, default=-1, help="end after N steps, as a job does whose time is up")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    return args


def photographs(args: argparse.Namespace) -> bowstring.Dataset:
    """Photographs that the server decodes and crops, in another order in each epoch."""
    photos = bowstring.connect(args.server).dataset(args.dataset, split=args.split or None).shuffle(7)
    crops = [{"Decode": {}}, {"RandomResizedCrop": {"size": [SIDE, SIDE]}}]
    return photos.columns(["position", "image", "label"]).operators(image=crops)


def samples(args: argparse.Namespace) -> BowstringDataset:
    """Each rank's share of them."""
    return BowstringDataset(photographs(args), global_batch_size=args.batch)


class Classifier(nn.Module):
    """A linear classifier of small images."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(SIDE * SIDE * 3, classes)

    def forward(self, image: torch.Tensor, label: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = self.layer(image.flatten(1).float() / 255)
        return {"loss": nn.functional.cross_entropy(scores, label), "logits": scores}


class Record:
    """A line for each batch of a rank: its epoch, its step, and the samples."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._file = (folder / f"seen-{rank}.jsonl").open("a")

    def __call__(self, batch: Batch | Any) -> None:
        self.write(batch.epoch, batch.step, batch["position"].tolist())

    def write(self, epoch: int, step: int, positions: list[int]) -> None:
        """Write one line."""
        self._file.write(json.dumps({"epoch": epoch, "step": step, "positions": positions}) + "\n")
        self._file.flush()
