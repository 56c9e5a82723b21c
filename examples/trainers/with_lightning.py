"""Train with Lightning, on as many ranks as torchrun starts.

torchrun --nproc-per-node 2 examples/trainers/with_lightning.py grpc://127.0.0.1:8815 photos /tmp/checkpoints
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
from bowstring.torch import Batch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader
from training import Classifier, Record, arguments, samples


class Photos(LightningDataModule):
    """The samples, from where the trainer is: after a checkpoint, that is in the middle of an epoch."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.args = args

    def train_dataloader(self) -> DataLoader[Any]:
        dataset, trainer = samples(self.args), self.trainer
        dataset.load_state_dict(dataset.state_after_steps(trainer.global_step if trainer else 0))
        return DataLoader(dataset, batch_size=None, num_workers=self.args.workers)


class Model(LightningModule):
    def __init__(self, args: argparse.Namespace, classes: int) -> None:
        super().__init__()
        self.model = Classifier(classes)
        self.folder, self.stop = args.folder, args.stop

    def on_train_start(self) -> None:
        self.record = Record(self.folder, self.global_rank)

    def training_step(self, batch: Batch, _: int) -> torch.Tensor:
        self.record(batch)
        loss: torch.Tensor = self.model(batch["image"], batch["label"])["loss"]
        return loss

    def on_train_batch_end(self, *_: Any) -> None:
        if self.global_step == self.stop:  # as if the job had been ended; the checkpoint has been written
            raise SystemExit

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main() -> None:
    args = arguments(__doc__)
    dataset = samples(args)
    steps = args.stop if args.stop > 0 else 1000
    trainer = Trainer(
        max_epochs=args.epochs,
        callbacks=[ModelCheckpoint(args.folder, "checkpoint", every_n_train_steps=steps)],
        accelerator="cpu",
        strategy="ddp",
        devices=int(os.environ.get("WORLD_SIZE", "1")),
        logger=False,
        enable_progress_bar=False,
    )
    checkpoint = args.folder / "checkpoint.ckpt"
    found = checkpoint if checkpoint.exists() else None
    trainer.fit(
        Model(args, len(dataset.dataset.classes("label") or [])), Photos(args), ckpt_path=found, weights_only=False
    )


if __name__ == "__main__":
    main()
