"""A training process that does nothing with its batches of images, which are ready for a model: 224 x 224, uint8.

    python bench/ready_reader.py SPEC

SPEC is JSON: `side`, `place` (an address or a folder), `epochs`, `workers` and `threads` of each. Sides:

- `bowstring`: the server decodes, crops and flips; `BowstringDataset` gives tensors.
- `files`: a DataLoader whose workers read files of a folder and do the same with Pillow.
- `store`: a DataLoader whose workers ask for the bytes of a sample at a time, and do the same with Pillow. With
  `threads`, as many samples of a batch at once.

It reads one epoch to warm up, prints `ready`, and when told `go` reads the others and prints one JSON object: rows,
seconds, and processor seconds of itself and its workers.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import torch
from image_side import pillow
from torch.utils.data import DataLoader, Dataset

BATCH, SIDE = 64, 224
CROP: list[dict[str, Any]] = [
    {"Decode": {}},
    {"RandomResizedCrop": {"size": [SIDE, SIDE]}},
    {"RandomHorizontalFlip": {}},
    {"ToImage": {}},
]


class Samples(Dataset[torch.Tensor]):
    """Images by number, made ready with Pillow in the process that asks."""

    def __init__(self, side: str, place: str, threads: int) -> None:
        self.side, self.place, self.threads = side, place, threads
        self.paths = sorted(Path(place).rglob("*.jpg")) if side == "files" else []
        self.process = 0  # that the connection is of
        if side == "files":
            self.count = len(self.paths)
            return
        import bowstring

        with bowstring.connect(place) as client:
            self.count = client.dataset("bench").num_rows

    def __len__(self) -> int:
        return self.count

    def open(self) -> None:
        """What a worker needs of its own: a connection for each thread, and numbers at random."""
        if self.process == os.getpid():
            return
        self.process = os.getpid()
        self.one = pillow(random.Random(self.process))
        self.pool = ThreadPoolExecutor(max(1, self.threads))
        self.exchanges: list[Any] = []
        if self.side == "store":
            import bowstring

            for _ in range(max(1, self.threads)):
                dataset = bowstring.connect(self.place).dataset("bench").columns(["image"])
                self.exchanges.append(dataset.exchange())

    def made(self, index: int) -> torch.Tensor:
        """One image, channels first."""
        if self.side == "files":
            data = self.paths[index].read_bytes()
        else:
            exchange = self.exchanges.pop()
            try:
                data = exchange.take([index])["image"][0].as_py()
            finally:
                self.exchanges.append(exchange)
        return torch.from_numpy(self.one(data).copy()).permute(2, 0, 1)

    def __getitem__(self, index: int) -> torch.Tensor:
        self.open()
        return self.made(index)

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        """A batch's samples: one after another, or by threads."""
        self.open()
        return list((self.pool.map if self.threads else map)(self.made, indices))


def loader_of(spec: dict[str, Any]) -> tuple[DataLoader[Any], Any]:
    """The loader, and what has to know of epochs."""
    more: dict[str, Any] = {"num_workers": spec["workers"], "persistent_workers": spec["workers"] > 0}
    if spec["side"] != "bowstring":
        if spec["workers"]:
            more["multiprocessing_context"] = "spawn"  # gRPC does not survive a fork
        return DataLoader(Samples(spec["side"], spec["place"], spec["threads"]), BATCH, shuffle=True, **more), None
    from bowstring.torch import BowstringDataset

    dataset = BowstringDataset(
        spec["place"],
        "bench",
        columns=["image"],
        operators={"image": CROP},
        shuffle=7,
        batch_size=BATCH,
        rank=0,
        world_size=1,
    )
    return DataLoader(dataset, batch_size=None, **more), dataset


def used() -> float:
    """Processor seconds of this process and of its workers."""
    this = psutil.Process()
    return float(sum(sum(p.cpu_times()[:2]) for p in (this, *this.children(recursive=True))))


def main() -> None:
    spec = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    loader, dataset = loader_of(spec)

    def read(epoch: int) -> int:
        if dataset is not None:
            dataset.set_epoch(epoch)
        rows = 0
        for batch in loader:
            images = batch["image"] if dataset is not None else batch
            if images.shape[1:] != (3, SIDE, SIDE) or images.dtype != torch.uint8:
                raise RuntimeError(f"images of {images.shape}, {images.dtype}")
            rows += len(images)
        return rows

    read(0)
    print("ready", flush=True)
    sys.stdin.readline()
    start, before = time.perf_counter(), used()
    rows = sum(read(1 + epoch) for epoch in range(spec["epochs"]))
    print(json.dumps({"rows": rows, "seconds": time.perf_counter() - start, "cpu_s": used() - before}), flush=True)


if __name__ == "__main__":
    main()
