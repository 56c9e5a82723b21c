"""A training process that does nothing with its batches: reads with torch's DataLoader and two workers.

    python bench/torch_reader.py bowstring EPOCHS WORKERS URL
    python bench/torch_reader.py files EPOCHS WORKERS FOLDER

Reads one epoch to warm up, prints `ready`, reads EPOCHS after the line `go`, and prints one JSON object. Workers
persist, as processes that are started again for each epoch would be measured instead. `bowstring` reads the
photographs' bytes by `BowstringDataset`; `files` reads the same photographs from an ImageFolder, undecoded, and joins a
batch's bytes to one tensor in the worker, which is the cheapest way that torch has.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.utils.data import DataLoader, Dataset

BATCH = 64


class Files(Dataset[tuple[bytes, int]]):
    """Bytes and class of each file, by the name of its folder."""

    def __init__(self, root: Path) -> None:
        classes = sorted(p.name for p in root.iterdir())
        self.samples = [(str(p), i) for i, c in enumerate(classes) for p in sorted((root / c).iterdir())]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        path, label = self.samples[index]
        with open(path, "rb") as file:  # noqa: PTH123 - as torchvision's ImageFolder does
            return file.read(), label


def joined(samples: list[tuple[bytes, int]]) -> dict[str, torch.Tensor]:
    """One tensor of bytes, their offsets, and the labels."""
    data = bytearray().join(raw for raw, _ in samples)
    offsets = torch.tensor([0, *(len(raw) for raw, _ in samples)]).cumsum(0)
    labels = torch.tensor([label for _, label in samples])
    return {"data": torch.frombuffer(data, dtype=torch.uint8), "offsets": offsets, "label": labels}


def main() -> None:
    side, epochs, workers, place = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    loader: DataLoader[Any]
    if side == "bowstring":
        from bowstring.torch import BowstringDataset

        dataset = BowstringDataset(
            place, "bench", columns=["id", "label", "image"], shuffle=7, global_batch_size=BATCH, rank=0, world_size=1
        )
        loader = DataLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=workers > 0)
    else:
        loader = DataLoader(
            Files(Path(place)),
            batch_size=BATCH,
            shuffle=True,
            num_workers=workers,
            persistent_workers=True,
            collate_fn=joined,
        )

    def read(epoch: int) -> tuple[int, int]:
        rows = size = 0
        if side == "bowstring":
            dataset.set_epoch(epoch)
        for batch in loader:
            data = batch["image"].data if side == "bowstring" else batch["data"]
            rows += len(batch["label"])
            size += data.numel()
        return rows, size

    read(0)
    print("ready", flush=True)
    sys.stdin.readline()
    me = psutil.Process()
    family = [me, *me.children(recursive=True)]
    before = [sum(p.cpu_times()[:2]) for p in family]
    start = time.perf_counter()
    found = [read(epoch) for epoch in range(1, epochs + 1)]
    seconds = time.perf_counter() - start
    rows, size = (sum(n) for n in zip(*found, strict=True))
    cpu = [round((sum(p.cpu_times()[:2]) - b) / size * 1e9, 4) for p, b in zip(family, before, strict=True)]
    # CPU seconds for each GB: the training process's own, and its workers'.
    print(json.dumps({"rows": rows, "bytes": size, "seconds": seconds, "cpu_s_per_gb": cpu}))


if __name__ == "__main__":
    main()
