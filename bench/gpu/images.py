"""ResNet-50 at its bound, and fed by Bowstring with photographs that are decoded in several places."""

from __future__ import annotations

import importlib.util
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from bowstring.torch import BowstringDataset
from image_side import SIZE, pillow, torchvision
from torch import nn
from torch.utils.data import DataLoader

from gpu.pace import Feed, Tensors, rate
from gpu.served import photographs
from gpu.sizes import Sizes

CROP: list[dict[str, Any]] = [
    {"Decode": {}},
    {"RandomResizedCrop": {"size": [SIZE, SIZE]}},
    {"RandomHorizontalFlip": {}},
    {"ToImage": {}},
]
CLASSES = 10
ANY_SCALE = (0.08, 1.0)  # of RandomResizedCrop, as the other places have it


def missing(decoder: str, device: torch.device) -> str:
    """Why a decoder cannot be used here, or nothing."""
    needs = {"nvjpeg": "torchvision", "torchvision": "torchvision", "pillow": "PIL", "dali": "nvidia.dali"}
    package = needs.get(decoder)
    try:
        if package and not importlib.util.find_spec(package):
            return f"{package} is not installed"
    except ModuleNotFoundError:
        return f"{package} is not installed"
    if decoder in {"nvjpeg", "dali"} and device.type != "cuda":
        return "there is no GPU"
    return ""


class Decoder:
    """A function of a JPEG's bytes for a worker; each process has random numbers of its own."""

    def __init__(self, name: str) -> None:
        self._made = {"pillow": pillow, "torchvision": torchvision}[name]
        self._made(random.Random(0))  # imports here what a worker would import, which takes seconds
        self._pid = 0
        self._one: Callable[[bytes], Any] = bytes

    def __call__(self, data: torch.Tensor) -> torch.Tensor:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._one = self._made(random.Random(self._pid))
        made = self._one(data.numpy().tobytes())
        return made if isinstance(made, torch.Tensor) else torch.from_numpy(made.copy()).permute(2, 0, 1)


class Images:
    """A model of images, and the rates of its steps."""

    DECODERS = "server", "pillow", "torchvision", "nvjpeg", "dali"

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        self._sizes, self._device = sizes, device
        self._cuda = device.type == "cuda"
        model = self._resnet() if self._cuda else nn.Sequential(nn.AvgPool2d(32), nn.Flatten(), nn.Linear(147, CLASSES))
        self._model = model.to(device).to(memory_format=torch.channels_last)
        self._optimizer = torch.optim.SGD(self._model.parameters(), 0.01, momentum=0.9)
        self._mean = torch.tensor([123.7, 116.3, 103.5], device=device).view(1, 3, 1, 1)
        self._std = torch.tensor([58.4, 57.1, 57.4], device=device).view(1, 3, 1, 1)
        torch.backends.cudnn.benchmark = True

    @staticmethod
    def _resnet() -> nn.Module:
        from torchvision.models import resnet50

        model: nn.Module = resnet50(num_classes=CLASSES)
        return model

    def _step(self, pixels: torch.Tensor, labels: torch.Tensor) -> None:
        images = ((pixels.float() - self._mean) / self._std).to(memory_format=torch.channels_last)
        self._optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self._device.type, torch.bfloat16):
            loss = nn.functional.cross_entropy(self._model(images).float(), labels)
        torch.autograd.backward(loss)
        self._optimizer.step()

    def bound(self) -> float:
        """Images a second of batches that are in the device's memory already."""
        shape = (self._sizes.batch, 3, SIZE, SIZE)
        batches = [
            (
                torch.randint(0, 256, shape, dtype=torch.uint8, device=self._device),
                torch.randint(0, CLASSES, shape[:1], device=self._device),
            )
            for _ in range(2)
        ]
        taken = iter(range(1 << 30))
        return self._rate(lambda: batches[next(taken) % 2])

    def _rate(self, take: Callable[[], Tensors]) -> float:
        return rate(take, self._step, self._sizes.batch, self._sizes.warm, self._sizes.seconds)

    def fed(self, url: str, decoder: str) -> float:
        """Images a second that are fed by Bowstring."""
        if decoder == "dali":
            from gpu.dali import batches, moved

            feed = Feed(batches(url, self._sizes), moved, self._device, self._sizes.stalled)
        else:
            of_bytes = self._on_device if decoder == "nvjpeg" else self._moved
            feed = Feed(self._batches(url, decoder), of_bytes, self._device, self._sizes.stalled)
        try:
            return self._rate(feed.__next__)
        finally:
            feed.close()

    def _batches(self, url: str, decoder: str) -> Iterator[Any]:
        """Batches of one epoch after another."""
        more: dict[str, Any] = {}
        if decoder == "server":
            more["operators"] = {"image": CROP}
        elif decoder != "nvjpeg":
            more["decode"] = Decoder(decoder)
        dataset = BowstringDataset(
            photographs(url),
            columns=["image", "label"],
            shuffle=7,
            global_batch_size=self._sizes.batch,
            rank=0,
            world_size=1,
            **more,
        )
        workers = self._sizes.workers if "decode" in more else 0
        loader: DataLoader[Any] = DataLoader(
            dataset, batch_size=None, num_workers=workers, persistent_workers=workers > 0
        )
        while True:
            yield from loader

    def _moved(self, batch: Any) -> Tensors:
        return batch["image"].to(self._device, non_blocking=True), batch["label"].to(self._device, non_blocking=True)

    def _on_device(self, batch: Any) -> Tensors:
        """Decoded by nvJPEG; crops and flips of a batch are one call, because all photographs are of one size."""
        from torchvision.io import ImageReadMode, decode_jpeg

        found = decode_jpeg(list(batch["image"]), mode=ImageReadMode.RGB, device=self._device)
        decoded = torch.stack(found).half()
        rows = len(decoded)
        scale = torch.empty(rows).uniform_(*ANY_SCALE).sqrt()
        left, top = (torch.rand(2, rows) * 2 - 1) * (1 - scale)
        flip = torch.randint(0, 2, (rows,)) * 2 - 1
        boxes = torch.zeros(rows, 2, 3)
        boxes[:, 0, 0], boxes[:, 1, 1], boxes[:, 0, 2], boxes[:, 1, 2] = scale * flip, scale, left, top
        grid = nn.functional.affine_grid(boxes.to(self._device), [rows, 3, SIZE, SIZE], align_corners=False)
        pixels = nn.functional.grid_sample(decoded, grid.half(), align_corners=False)
        return pixels, batch["label"].to(self._device, non_blocking=True)
