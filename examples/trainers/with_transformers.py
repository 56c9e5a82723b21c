"""Train with the Trainer of transformers, on as many ranks as torchrun starts.

torchrun --nproc-per-node 2 examples/trainers/with_transformers.py grpc://127.0.0.1:8815 photos /tmp/checkpoints

`get_train_dataloader` returns the loader as it is: the Trainer would have Accelerate share out among the ranks what the
dataset has shared out already. `ignore_data_skip`, as the dataset begins where the trainer is and has nothing to skip.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from bowstring.torch import BowstringDataset
from torch.utils.data import DataLoader
from training import Classifier, Record, arguments, samples
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class PhotoTrainer(Trainer):
    """A Trainer that takes each rank's share from the server."""

    record: Record

    def get_train_dataloader(self) -> DataLoader[Any]:
        dataset: Any = self.train_dataset
        return DataLoader(dataset, batch_size=None, num_workers=self.args.dataloader_num_workers)

    def training_step(self, model: torch.nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        self.record(inputs)
        return super().training_step(model, inputs, num_items_in_batch)

    def compute_loss(self, model: torch.nn.Module, inputs: Any, **_: Any) -> torch.Tensor:  # type: ignore[override]
        loss: torch.Tensor = model(inputs["image"], inputs["label"])["loss"]
        return loss


class FromHere(TrainerCallback):
    """Has the dataset begin where the trainer is: after a checkpoint, that is in the middle of an epoch."""

    def __init__(self, dataset: BowstringDataset) -> None:
        self.dataset = dataset

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        steps = state.global_step * args.gradient_accumulation_steps
        self.dataset.load_state_dict(self.dataset.state_after_steps(steps))


class Stop(TrainerCallback):
    """Saves a checkpoint after a number of steps, and ends."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step_end(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        if state.global_step == self.steps:
            control.should_save = control.should_training_stop = True


def main() -> None:
    args = arguments(__doc__)
    dataset = samples(args)
    trainer = PhotoTrainer(
        model=Classifier(classes=len(dataset.dataset.classes("label") or [])),
        args=TrainingArguments(
            output_dir=str(args.folder),
            num_train_epochs=args.epochs,
            dataloader_num_workers=args.workers,
            use_cpu=True,
            ddp_backend="gloo",
            ignore_data_skip=True,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=dataset,
        callbacks=[FromHere(dataset), Stop(args.stop)],
    )
    trainer.record = Record(args.folder, int(os.environ.get("RANK", "0")))
    trainer.train(resume_from_checkpoint=any(Path(args.folder).glob("checkpoint-*")))


if __name__ == "__main__":
    main()
