"""Train a keyword model on log-mel spectrograms that the server makes of recordings.

    python examples/keywords.py words
    bowstring import words --format audiofolder
    bowstring serve
    python examples/train_speech.py grpc://127.0.0.1:8815 words

The training process decodes nothing and transforms nothing. In training a part of each recording is drawn, its level is
changed and bands are masked, as the seed, the epoch and the position say; recordings of the `val` split come whole, and
the server may keep their spectrograms. Ends with a failure if an epoch did not have each sample once, or if the
accuracy on the `val` split did not rise.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import bowstring
import torch
from bowstring.torch import BowstringDataset
from torch import nn

LENGTH = 16_000  # samples of sound that the model sees: a second
BANDS = 40
FRAMES: list[dict[str, Any]] = [
    {"MelSpectrogram": {"n_fft": 400, "hop_length": 160, "n_mels": BANDS}},
    {"Log": {}},
    {"Standardize": {}},
]
TRAINING: list[dict[str, Any]] = [
    {"Decode": {}},
    {"Resample": {"new_freq": 16_000}},
    {"Mono": {}},
    {"RandomCrop": {"length": LENGTH}},
    {"RandomGain": {"min_gain_db": -6, "max_gain_db": 6}},
    *FRAMES,
    {"SpecAugment": {"n_time_masks": 1, "time_mask_param": 8, "n_freq_masks": 1, "freq_mask_param": 4}},
]
EVALUATION: list[dict[str, Any]] = [
    {"Decode": {}},
    {"Resample": {"new_freq": 16_000}},
    {"Mono": {}},
    {"Pad": {"length": LENGTH, "truncate": True}},
    *FRAMES,
]


class Keywords(nn.Module):
    """Convolutions over time, then the mean over time."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(BANDS, 48, 5, stride=2, padding=2),
            nn.BatchNorm1d(48),
            nn.ReLU(),
            nn.Conv1d(48, 64, 5, stride=2, padding=2),
            nn.BatchNorm1d(64),
            nn.ReLU(),
            nn.Conv1d(64, 64, 5, stride=2, padding=2),
            nn.ReLU(),
        )
        self.last = nn.Linear(64, words)

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        """Scores of words by cells of one channel, bands and frames."""
        scores: torch.Tensor = self.last(self.layers(sound.squeeze(1)).amax(2))
        return scores


def accuracy(model: nn.Module, batches: list[Any]) -> float:
    """The part of recordings whose word the model names."""
    model.eval()
    with torch.no_grad():
        right = sum(int((model(b["audio"]).argmax(1) == b["label"]).sum()) for b in batches)
    model.train()
    return right / sum(len(b["label"]) for b in batches)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("server", help="such as grpc://127.0.0.1:8815")
    parser.add_argument("dataset")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--batch", type=int, default=16)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    with bowstring.connect(args.server) as client:
        columns = ["position", "audio", "label"]
        train = client.dataset(args.dataset, split="train").columns(columns)
        held = client.dataset(args.dataset, split="val").columns(columns)
        dataset = BowstringDataset(
            train, operators={"audio": TRAINING}, shuffle=args.seed, global_batch_size=args.batch
        )
        evaluation = list(BowstringDataset(held, operators={"audio": EVALUATION}, global_batch_size=64))

        words = train.classes("label") or []
        model = Keywords(len(words))
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        found = [accuracy(model, evaluation)]
        print(f"{train.num_rows} recordings of {len(words)} words; accuracy before training {found[0]:.1%}")
        complete = True
        for epoch in range(args.epochs):
            dataset.set_epoch(epoch)
            seen: list[int] = []
            worked, began = 0.0, time.perf_counter()
            for batch in dataset:
                start = time.perf_counter()
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(batch["audio"]), batch["label"])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                seen += batch["position"].tolist()
                worked += time.perf_counter() - start
            took = time.perf_counter() - began
            found.append(accuracy(model, evaluation))
            print(
                f"epoch {epoch}: {len(seen)} samples in {took:.1f} s, of which {1 - worked / took:.0%} was waiting for "
                f"batches; loss {loss.item():.2f}, accuracy {found[-1]:.1%}"
            )
            complete &= len(seen) == len(set(seen)) == train.num_rows

    rose = found[-1] > found[0]
    print("every sample came exactly once an epoch" if complete else "NOT every sample came exactly once")
    print(f"accuracy {'rose' if rose else 'did NOT rise'}: " + " -> ".join(f"{a:.1%}" for a in found))
    return 0 if complete and rose else 1


if __name__ == "__main__":
    sys.exit(main())
