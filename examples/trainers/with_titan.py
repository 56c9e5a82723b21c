"""Train as torchtitan does, on as many ranks as torchrun starts: FSDP2, checkpoints by torch.distributed.checkpoint.

torchrun --nproc-per-node 2 examples/trainers/with_titan.py grpc://127.0.0.1:8815 photos /tmp/checkpoints

The checkpoint has model, optimizer and data. A job goes on from it with any number of ranks: what is sharded is shared
out anew, and a step is the same samples everywhere. (The loader of torchtitan itself keeps a state for each rank, and
refuses another number of them.)
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from bowstring.torch import BowstringDataset
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader
from training import Classifier, Record, arguments, samples


class Job(Stateful):
    """The state in a checkpoint."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, dataset: BowstringDataset) -> None:
        self.model, self.optimizer, self.dataset = model, optimizer, dataset
        self.done, self.data = 0, dataset.state_at(0, epoch=0)

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "data": self.data, "done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.dataset.load_state_dict(state["data"])
        self.done = state["done"]


def main() -> None:
    args = arguments(__doc__)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp_shard",))
    dataset = samples(args)
    model = Classifier(classes=len(dataset.dataset.classes("label") or []))
    fully_shard(model, mesh=mesh)
    job = Job(model, torch.optim.AdamW(model.parameters(), lr=0.001), dataset)
    checkpoint = args.folder / "checkpoint"
    if checkpoint.exists():
        state_dict_loader.load({"job": job}, checkpoint_id=checkpoint)
    loader = DataLoader(dataset, batch_size=None, num_workers=args.workers)
    record = Record(args.folder, dist.get_rank())
    for _ in range(dataset.epoch, args.epochs):
        for batch in loader:
            record(batch)
            job.optimizer.zero_grad()
            model(batch["image"], batch["label"])["loss"].backward()
            job.optimizer.step()
            job.done, job.data = job.done + 1, dataset.state_after(batch)
            if job.done == args.stop:
                state_dict_saver.save({"job": job}, checkpoint_id=checkpoint)
                return
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
