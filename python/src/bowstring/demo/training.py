"""The model of the demo: a linear classifier of thumbnails, in PyTorch. It sees every sample once an epoch."""

from __future__ import annotations

import io
import time
from typing import Any

import torch
from PIL import Image
from torch.utils.data import DataLoader

import bowstring
from bowstring.torch import BowstringDataset

SIDE = 32


def thumbnail(data: torch.Tensor) -> torch.Tensor:
    """Decode an image to SIDE x SIDE pixels between -1 and 1. JPEG is scaled while it is decoded."""
    with Image.open(io.BytesIO(data.numpy().tobytes())) as opened:
        opened.draft("RGB", (SIDE, SIDE))
        small = opened.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BOX)
    return torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8).to(torch.float32) / 127.5 - 1


def load(dataset: BowstringDataset) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size=None, num_workers=2)


@torch.no_grad()
def accuracy(model: torch.nn.Module, photos: bowstring.Dataset) -> float:
    right = total = 0
    for batch in load(BowstringDataset(photos, shuffle=False, global_batch_size=64, decode=thumbnail)):
        right += int((model(torch.stack(list(batch["image"]))).argmax(1) == batch["label"]).sum())
        total += len(batch["label"])
    return right / max(1, total)


def train(uri: str, name: str, epochs: int) -> bool:
    """Train, and say what came. Whether every sample came once an epoch, and the accuracy rose."""
    torch.manual_seed(7)
    client = bowstring.connect(uri)
    parts = {
        split: client.dataset(name, split=split).columns(["position", "image", "label"]) for split in ("train", "val")
    }
    expected = parts["train"].num_rows
    model = torch.nn.Linear(3 * SIDE * SIDE, len(parts["train"].classes("label") or []))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.002, momentum=0.9)
    seen = [accuracy(model, parts["val"])]
    print(f"{expected} samples of {model.out_features} classes; accuracy before training {seen[0]:.1%}")
    dataset = BowstringDataset(parts["train"], shuffle=7, global_batch_size=64, decode=thumbnail)
    complete = True
    for epoch in range(epochs):
        dataset.set_epoch(epoch)
        begun = time.monotonic()
        positions: list[int] = []
        for batch in load(dataset):
            loss = torch.nn.functional.cross_entropy(model(torch.stack(list(batch["image"]))), batch["label"])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            positions += batch["position"].tolist()
        took = time.monotonic() - begun
        complete &= len(positions) == expected == len(set(positions))
        seen.append(accuracy(model, parts["val"]))
        print(f"epoch {epoch}: {len(positions)} samples in {took:.1f} s; accuracy {seen[-1]:.1%}", flush=True)
    print("every sample came exactly once an epoch" if complete else "NOT every sample came exactly once")
    return complete and seen[-1] > seen[0]
