"""Train by torch alone, on as many ranks as torchrun starts.

torchrun --nproc-per-node 2 examples/trainers/with_torch.py grpc://127.0.0.1:8815 photos /tmp/checkpoints
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from training import Classifier, Record, arguments, samples


def main() -> None:
    args = arguments(__doc__)
    dist.init_process_group("gloo")
    dataset = samples(args)  # which rank this is, torch.distributed says
    model = DistributedDataParallel(Classifier(classes=len(dataset.dataset.classes("label") or [])))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    checkpoint, done = args.folder / "checkpoint.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        dataset.load_state_dict(saved["data"])
        done = saved["done"]
    loader = DataLoader(dataset, batch_size=None, num_workers=args.workers)
    record = Record(args.folder, dist.get_rank())
    for _ in range(dataset.epoch, args.epochs):
        for batch in loader:
            record(batch)
            optimizer.zero_grad()
            model(batch["image"], batch["label"])["loss"].backward()
            optimizer.step()
            done += 1
            if done == args.stop:
                if dist.get_rank() == 0:  # all ranks are at the same step
                    torch.save(
                        {"model": model.state_dict(), "data": dataset.state_after(batch), "done": done}, checkpoint
                    )
                dist.barrier()
                return
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
