"""Train with StatefulDataLoader, whose state is part of the checkpoint, on as many ranks as torchrun starts.

torchrun --nproc-per-node 2 examples/trainers/with_stateful.py grpc://127.0.0.1:8815 photos /tmp/checkpoints
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torchdata.stateful_dataloader import StatefulDataLoader
from training import Classifier, Record, arguments, samples


def main() -> None:
    args = arguments(__doc__)
    dist.init_process_group("gloo")
    dataset = samples(args)
    loader = StatefulDataLoader(dataset, batch_size=None, num_workers=args.workers, persistent_workers=args.workers > 0)
    model = DistributedDataParallel(Classifier(classes=len(dataset.dataset.classes("label") or [])))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    checkpoint, done = args.folder / "checkpoint.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["loader"])
        done = saved["done"]
    record = Record(args.folder, dist.get_rank())
    while done < args.epochs * len(loader):
        for batch in loader:
            record(batch)
            optimizer.zero_grad()
            model(batch["image"], batch["label"])["loss"].backward()
            optimizer.step()
            done += 1
            if done == args.stop:
                if dist.get_rank() == 0:  # of one rank: the others are at the same step
                    state = {"model": model.state_dict(), "loader": loader.state_dict(), "done": done}
                    torch.save(state, checkpoint)
                dist.barrier()
                return
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
