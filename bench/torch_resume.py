"""A training process that is started again: the time from loading its state to its first batch.

    python bench/torch_resume.py URL first|last

Reads the dataset `million` with two workers up to the second step, or has a state of the last one, and loads it into a
new StatefulDataLoader in the same process: what importing torch takes is no part of it, what starting workers takes is.
Prints one JSON object: `resume_ms`, and the bytes of the largest state as JSON.
"""

from __future__ import annotations

import json
import sys
import time

from bowstring.torch import BowstringDataset, portable_state
from torchdata.stateful_dataloader import StatefulDataLoader

BATCH = 64
WORKERS = 2


def main() -> None:
    url, where = sys.argv[1:]

    def made() -> BowstringDataset:
        return BowstringDataset(
            url, "million", columns=["id", "label", "image"], shuffle=7, global_batch_size=BATCH, rank=0, world_size=1
        )

    def loader(dataset: BowstringDataset) -> StatefulDataLoader[object]:
        return StatefulDataLoader(dataset, batch_size=None, num_workers=WORKERS)

    dataset = made()
    last = len(dataset) - 1
    target = 1 if where == "first" else last
    first = loader(dataset)
    if where == "last":
        dataset.load_state_dict(dataset.state_at(last - 1))
    batches = iter(first)
    next(batches)
    state = first.state_dict()
    del batches, first

    dataset = made()
    start = time.perf_counter()
    again = loader(dataset)
    again.load_state_dict(state)
    batch = next(iter(again))
    seconds = time.perf_counter() - start
    if batch.step != target:
        raise RuntimeError(f"step {batch.step} instead of {target}")
    workers = state["_snapshot"]["_worker_snapshots"].values()
    sizes = [len(json.dumps(s)) for s in (*workers, portable_state(state))]
    print(json.dumps({"resume_ms": seconds * 1e3, "state_bytes": max(sizes)}))


if __name__ == "__main__":
    main()
