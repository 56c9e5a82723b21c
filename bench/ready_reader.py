"""A training process that does nothing with its batches, which are ready for a model.

    python bench/ready_reader.py SPEC

SPEC is JSON: `side`, `place` (an address or a folder), `media`, `epochs`, `workers`, `threads` of each, and `batch`.
Media: `image`, crops of JPEGs, 224 x 224, uint8; `audio`, log-mel spectrograms of FLACs with two masks. Sides:

- `bowstring`: the server does it; `BowstringDataset` gives tensors.
- `files`: a DataLoader whose workers read files of a folder and do the same with Pillow or torchaudio. With `rtt_s`
  each file takes that much longer, as if it were far away.
- `store`: a DataLoader whose workers ask for the bytes of a sample at a time, and do the same. With
  `threads`, as many samples of a batch at once.

It reads one epoch to warm up, prints `ready`, and after the line `go` reads the others and prints one JSON object:
rows, seconds, CPU seconds of itself and its workers, and `waited`, the seconds within `next`. With `batches` it reads
that number, cold, and sleeps `step_s` after each.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import torch
from image_side import pillow
from sound_reader import log_mel
from torch.utils.data import DataLoader, Dataset

SIDE = 224
MASKED: list[dict[str, Any]] = [
    {"Decode": {}},
    {"Mono": {}},
    {"Pad": {"length": 14 * 16_000, "truncate": True}},  # so that batches are of one shape, as the clips are
    {"MelSpectrogram": {"n_fft": 400, "hop_length": 160, "n_mels": 80}},
    {"Log": {}},
    {"SpecAugment": {"n_time_masks": 1, "time_mask_param": 40, "n_freq_masks": 1, "freq_mask_param": 15}},
]
CROP: list[dict[str, Any]] = [
    {"Decode": {}},
    {"RandomResizedCrop": {"size": [SIDE, SIDE]}},
    {"RandomHorizontalFlip": {}},
    {"ToImage": {}},
]


OPERATORS = {"image": CROP, "audio": MASKED}
SUFFIX = {"image": "*.jpg", "audio": "*.flac"}


def masked() -> Callable[[bytes], Any]:
    """The operators of MASKED, with soundfile and torchaudio."""
    spectrogram = log_mel()
    from torchaudio.transforms import FrequencyMasking, TimeMasking  # after log_mel, which lets it be imported

    bands, frames = FrequencyMasking(15), TimeMasking(40)
    return lambda data: frames(bands(spectrogram(data).unsqueeze(0)))


class Samples(Dataset[torch.Tensor]):
    """Images or sound by number, made ready in the process that asks."""

    def __init__(self, spec: dict[str, Any]) -> None:
        side, place = spec["side"], spec["place"]
        self.side, self.place, self.threads, self.media = side, place, spec["threads"], spec["media"]
        self.rtt_s = spec["rtt_s"]
        self.paths = sorted(Path(place).rglob(SUFFIX[self.media])) if side == "files" else []
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
        """State of one worker: a connection for each thread, and numbers at random."""
        if self.process == os.getpid():
            return
        self.process = os.getpid()
        crop = pillow(random.Random(self.process))
        pixels = lambda data: torch.from_numpy(crop(data).copy()).permute(2, 0, 1)  # noqa: E731
        self.one = pixels if self.media == "image" else masked()
        self.pool = ThreadPoolExecutor(max(1, self.threads))
        self.exchanges: list[Any] = []
        if self.side == "store":
            import bowstring

            for _ in range(max(1, self.threads)):
                dataset = bowstring.connect(self.place).dataset("bench").columns([self.media])
                self.exchanges.append(dataset.exchange())

    def made(self, index: int) -> torch.Tensor:
        """One sample, channels first."""
        if self.side == "files":
            time.sleep(self.rtt_s)
            data = self.paths[index].read_bytes()
        else:
            exchange = self.exchanges.pop()
            try:
                data = exchange.take([index])[self.media][0].as_py()
            finally:
                self.exchanges.append(exchange)
        made: torch.Tensor = self.one(data)
        return made

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
        if spec["workers"] and spec["side"] == "store":
            more["multiprocessing_context"] = "spawn"  # gRPC does not survive a fork
        return DataLoader(Samples(spec), spec["batch"], shuffle=True, **more), None
    from bowstring.torch import BowstringDataset

    dataset = BowstringDataset(
        spec["place"],
        "bench",
        columns=[spec["media"]],
        operators={spec["media"]: OPERATORS[spec["media"]]},
        shuffle=7,
        global_batch_size=spec["batch"],
        rank=0,
        world_size=1,
    )
    return DataLoader(dataset, batch_size=None, **more), dataset


def used() -> float:
    """Processor seconds of this process and of its workers."""
    this = psutil.Process()
    return float(sum(sum(p.cpu_times()[:2]) for p in (this, *this.children(recursive=True))))


def ready(batch: torch.Tensor, media: str) -> int:
    """How many samples there are; fails where they are not what a model takes."""
    shape, dtype = ((3, SIDE, SIDE), torch.uint8) if media == "image" else ((1, 80), torch.float32)
    if batch.shape[1 : 1 + len(shape)] != shape or batch.dtype != dtype:
        raise RuntimeError(f"{media} of {batch.shape}, {batch.dtype}")
    return len(batch)


def steps(loader: DataLoader[Any], spec: dict[str, Any]) -> None:
    """Some batches, and a sleep after each, as the script of DLCache's authors has it: what counts is within `next`."""
    print("ready", flush=True)
    sys.stdin.readline()
    ours = spec["side"] == "bowstring"
    began, before, waited, rows = time.perf_counter(), used(), 0.0, 0
    batches = iter(loader)
    for _ in range(spec["batches"]):
        start = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - start
        rows += ready(batch[spec["media"]] if ours else batch, spec["media"])
        time.sleep(spec["step_s"])
    seconds = time.perf_counter() - began
    print(json.dumps({"rows": rows, "seconds": seconds, "waited": waited, "cpu_s": used() - before}), flush=True)


def main() -> None:
    spec = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    loader, dataset = loader_of(spec)

    def read(epoch: int) -> int:
        if dataset is not None:
            dataset.set_epoch(epoch)
        rows = 0
        for batch in loader:
            rows += ready(batch[spec["media"]] if dataset is not None else batch, spec["media"])
        return rows

    if spec["batches"]:
        steps(loader, spec)
        return
    read(0)
    print("ready", flush=True)
    sys.stdin.readline()
    start, before = time.perf_counter(), used()
    rows = sum(read(1 + epoch) for epoch in range(spec["epochs"]))
    print(json.dumps({"rows": rows, "seconds": time.perf_counter() - start, "cpu_s": used() - before}), flush=True)


if __name__ == "__main__":
    main()
