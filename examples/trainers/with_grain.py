"""Train on a pipeline of Grain, on as many ranks as torchrun starts.

torchrun --nproc-per-node 2 examples/trainers/with_grain.py grpc://127.0.0.1:8815 photos /tmp/checkpoints

The checkpoint has the state of one rank's pipeline. A job goes on from it with any number of ranks, and with any number
of Grain's worker processes.
"""

from __future__ import annotations

from typing import Any

import grain
import numpy as np
import torch
import torch.distributed as dist
from bowstring.grain import IterDataset
from torch.nn.parallel import DistributedDataParallel
from training import Classifier, Record, arguments, photographs


def flipped(batch: dict[str, Any]) -> dict[str, Any]:
    """The work of Grain's worker processes."""
    return {**batch, "image": np.ascontiguousarray(batch["image"][:, :, ::-1])}


def main() -> None:
    args = arguments(__doc__)
    dist.init_process_group("gloo")
    photos = photographs(args)
    dataset = IterDataset(photos, global_batch_size=args.batch, epochs=args.epochs)  # torch.distributed says the rank
    model = DistributedDataParallel(Classifier(classes=len(photos.classes("label") or [])))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    checkpoint, done = args.folder / "checkpoint.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        dataset = dataset.resume(saved["data"])
        done = saved["done"]
    pipeline = dataset.map(flipped).mp_prefetch(grain.MultiprocessingOptions(num_workers=args.workers))
    record = Record(args.folder, dist.get_rank())
    iterator = iter(pipeline)
    for batch in iterator:
        record.write(*divmod(done, dataset.steps), batch["position"].tolist())
        optimizer.zero_grad()
        model(torch.tensor(batch["image"]), torch.tensor(batch["label"]))["loss"].backward()
        optimizer.step()
        done += 1
        if done == args.stop:
            if dist.get_rank() == 0:  # all ranks are at the same step
                torch.save({"model": model.state_dict(), "data": iterator.get_state(), "done": done}, checkpoint)
            dist.barrier()
            break
    iterator.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
