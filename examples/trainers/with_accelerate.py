"""Train with Accelerate, on as many ranks as `accelerate launch` or torchrun starts.

torchrun --nproc-per-node 2 examples/trainers/with_accelerate.py grpc://127.0.0.1:8815 photos /tmp/checkpoints

The loader is not prepared: Accelerate would share out among the ranks what the dataset has shared out already.
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torchdata.stateful_dataloader import StatefulDataLoader
from training import Classifier, Record, arguments, samples


def main() -> None:
    args = arguments(__doc__)
    accelerator = Accelerator(cpu=True)
    dataset = samples(args)
    loader = StatefulDataLoader(dataset, batch_size=None, num_workers=args.workers)
    model: torch.nn.Module = Classifier(classes=len(dataset.dataset.classes("label") or []))
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    accelerator.register_for_checkpointing(loader)
    checkpoint, done = args.folder / "checkpoint", 0
    if checkpoint.exists():
        accelerator.load_state(str(checkpoint))
        done = int((checkpoint / "done").read_text())
    record = Record(args.folder, accelerator.process_index)
    steps = len(loader)
    while done < args.epochs * steps:
        for batch in loader:
            record(batch)
            batch = batch.to(accelerator.device)
            optimizer.zero_grad()
            accelerator.backward(model(batch["image"], batch["label"])["loss"])
            optimizer.step()
            done += 1
            if done == args.stop:
                accelerator.save_state(str(checkpoint))
                (checkpoint / "done").write_text(str(done))
                accelerator.wait_for_everyone()
                return
    accelerator.end_training()


if __name__ == "__main__":
    main()
