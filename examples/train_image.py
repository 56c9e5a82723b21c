"""Train a small ResNet on images that the server has made ready: decoded, cropped, flipped and normalised.

    python examples/train_image.py grpc://127.0.0.1:8815 photos

The training process decodes nothing. The random numbers of a sample follow from the seed, the epoch and its position:
the same job again gets the same tensors, and the next epoch others. Ends with a failure if an epoch did not have each
sample once, or if the accuracy on the `val` split did not rise.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import bowstring
import torch
from bowstring.torch import Batch, BowstringDataset
from torch import nn
from torch.utils.data import DataLoader

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def training_operators(side: int) -> list[dict[str, Any]]:
    """The operators for an image of the training split."""
    return [
        {"Decode": {}},
        {"RandomResizedCrop": {"size": [side, side], "scale": [0.35, 1.0]}},
        {"RandomHorizontalFlip": {}},
        *ready(),
    ]


def evaluation_operators(side: int) -> list[dict[str, Any]]:
    """The operators for an image of the test split: none of them is random, so the server may cache the result."""
    return [{"Decode": {}}, {"Resize": {"size": side * 8 // 7}}, {"CenterCrop": {"size": [side, side]}}, *ready()]


def ready() -> list[dict[str, Any]]:
    """Channels first, float32, normalised as ImageNet's recipes do it."""
    return [
        {"ToImage": {}},
        {"ToDtype": {"dtype": "float32", "scale": True}},
        {"Normalize": {"mean": MEAN, "std": STD}},
    ]


class Residual(nn.Module):
    """Two convolutions, and a way around them."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.way = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.around = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=2, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.relu(self.way(x) + self.around(x))
        return out


def resnet(classes: int) -> nn.Module:
    """Three such blocks: large enough for the demo's photographs."""
    first = (nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    blocks = (Residual(16, 32), Residual(32, 64), Residual(64, 64))
    return nn.Sequential(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def accuracy(model: nn.Module, batches: list[Batch]) -> float:
    """The part of samples whose class the model names."""
    model.eval()
    with torch.no_grad():
        right = sum(int((model(b["image"]).argmax(1) == b["label"]).sum()) for b in batches)
    model.train()
    return right / sum(len(b["label"]) for b in batches)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("server", help="such as grpc://127.0.0.1:8815")
    parser.add_argument("dataset")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--side", type=int, default=64, help="pixels of a side of the crops (64)")
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    with bowstring.connect(args.server) as client:
        columns = ["position", "image", "label"]
        photos = client.dataset(args.dataset, split="train").columns(columns)
        held = client.dataset(args.dataset, split="val").columns(columns)
        classes = photos.classes("label") or []
        dataset = BowstringDataset(
            photos, operators={"image": training_operators(args.side)}, shuffle=args.seed, global_batch_size=args.batch
        )
        loader = DataLoader(dataset, batch_size=None)
        evaluation = list(
            BowstringDataset(held, operators={"image": evaluation_operators(args.side)}, global_batch_size=64)
        )

        model = resnet(len(classes))
        steps = args.epochs * len(dataset)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps)
        found = [accuracy(model, evaluation)]
        print(f"{photos.num_rows} samples of {len(classes)} classes; accuracy before training {found[0]:.1%}")
        complete = True
        for epoch in range(args.epochs):
            dataset.set_epoch(epoch)
            seen: list[int] = []
            worked, began = 0.0, time.perf_counter()
            for batch in loader:
                start = time.perf_counter()
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
                seen += batch["position"].tolist()
                worked += time.perf_counter() - start
            took = time.perf_counter() - began
            found.append(accuracy(model, evaluation))
            print(
                f"epoch {epoch}: {len(seen)} samples in {took:.1f} s, of which {1 - worked / took:.0%} was waiting for "
                f"batches; loss {loss.item():.2f}, accuracy {found[-1]:.1%}"
            )
            complete &= len(seen) == len(set(seen)) == photos.num_rows

    rose = found[-1] > found[0]
    print("every sample came exactly once an epoch" if complete else "NOT every sample came exactly once")
    print(f"accuracy {'rose' if rose else 'did NOT rise'}: " + " -> ".join(f"{a:.1%}" for a in found))
    return 0 if complete and rose else 1


if __name__ == "__main__":
    sys.exit(main())
