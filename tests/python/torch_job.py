"""A training job for the tests: notes what it sees, saves where it is after each step, and goes on from there.

    python torch_job.py '{"url": ..., "workers": 2, "batch": 16, "epochs": 2, "log": ..., "checkpoint": ...}'

With `group` (the URI of a file for torch.distributed, which is not there yet) it is rank `rank` of `world`; with
`ddp`, too, each step waits for the others'. With `pause` it sleeps that number of seconds after each step; with `stop`
it ends after that number of steps.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch.distributed
from bowstring.torch import BowstringDataset
from torchdata.stateful_dataloader import StatefulDataLoader


def main(spec: dict[str, Any]) -> None:
    if "group" in spec:
        torch.distributed.init_process_group(
            "gloo", init_method=spec["group"], rank=spec["rank"], world_size=spec["world"]
        )
    dataset = BowstringDataset(
        spec["url"], "photos", split="train", columns=["position"], shuffle=3, global_batch_size=spec["batch"]
    )
    loader = StatefulDataLoader(
        dataset,
        batch_size=None,
        num_workers=spec["workers"],
        persistent_workers=spec["workers"] > 0,
        multiprocessing_context=spec.get("context") if spec["workers"] else None,
    )
    model = torch.nn.Linear(1, 1)
    parallel = torch.nn.parallel.DistributedDataParallel(model) if "ddp" in spec else None
    checkpoint, log = Path(spec["checkpoint"]), Path(spec["log"])
    seen: list[tuple[int, int, list[int]]] = []
    first = 0
    if checkpoint.exists():
        saved = json.loads(checkpoint.read_text())
        first = saved["epoch"]
        loader.load_state_dict(saved["loader"])
        # Samples after the checkpoint will come again.
        seen = [json.loads(line) for line in log.read_text().splitlines()[: saved["steps"]]]
    with log.open("w") as out:
        out.writelines(json.dumps(line) + "\n" for line in seen)
        for epoch in range(first, spec["epochs"]):
            dataset.set_epoch(epoch)
            for batch in loader:
                if parallel is not None:
                    parallel(batch["position"].float()[:, None]).sum().backward()
                seen.append((batch.epoch, batch.step, batch["position"].tolist()))
                out.write(json.dumps(seen[-1]) + "\n")
                out.flush()
                new = checkpoint.with_suffix(".new")
                new.write_text(json.dumps({"epoch": epoch, "steps": len(seen), "loader": loader.state_dict()}))
                new.replace(checkpoint)
                if len(seen) == spec.get("stop"):
                    return
                time.sleep(spec.get("pause", 0))
    if "group" in spec:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
