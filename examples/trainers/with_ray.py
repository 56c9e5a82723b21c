"""Train with Ray Train, on two workers.

python examples/trainers/with_ray.py grpc://127.0.0.1:8815 photos /tmp/checkpoints

Each worker reads its share by a loader of torch's. Every node of Ray's has to reach the server by its address.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

RANKS = 2


def train(given: dict[str, Any]) -> None:
    """The work of one worker."""
    import ray.train.torch
    import torch
    from torch.utils.data import DataLoader
    from training import Classifier, Record, samples

    args = argparse.Namespace(**given)
    dataset = samples(args)  # which rank this is, torch.distributed says
    model = ray.train.torch.prepare_model(Classifier(classes=len(dataset.dataset.classes("label") or [])))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    checkpoint, done = Path(args.folder) / "checkpoint.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        dataset.load_state_dict(saved["data"])
        done = saved["done"]
    loader = DataLoader(dataset, batch_size=None, num_workers=args.workers)
    rank = ray.train.get_context().get_world_rank()
    record = Record(Path(args.folder), rank)
    for _ in range(dataset.epoch, args.epochs):
        for batch in loader:
            record(batch)
            optimizer.zero_grad()
            loss = model(batch["image"], batch["label"])["loss"]
            loss.backward()
            optimizer.step()
            done += 1
            if done == args.stop:
                if rank == 0:  # all ranks are at the same step
                    torch.save(
                        {"model": model.state_dict(), "data": dataset.state_after(batch), "done": done}, checkpoint
                    )
                return
        ray.train.report({"loss": float(loss)})


def main() -> None:
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer
    from training import arguments

    args = arguments(__doc__)
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    ray.init(num_cpus=RANKS + 1, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": path}})
    trainer = TorchTrainer(
        train,
        train_loop_config={**vars(args), "folder": str(args.folder.absolute())},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=RANKS, use_gpu=False),
        run_config=RunConfig(storage_path=str(args.folder.absolute() / "ray")),
    )
    trainer.fit()
    ray.shutdown()


if __name__ == "__main__":
    main()
