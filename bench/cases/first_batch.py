"""first_batch: from DoGet to the first batch of a shuffled epoch, whatever the size of the dataset."""

from __future__ import annotations

import json

from harness import Context, Figure, Readers, Result, emit
from node import Node

from .million import stored


def run(context: Context) -> Result:
    """Time each dataset with a new epoch each round; the snapshot is open, as in a running job."""
    times: dict[str, list[float]] = {"thousand": [], "million": []}
    with Node(context.binary, stored(context)) as node:
        for round_ in context.repeat(*times.values(), warm=1):
            for name, found in times.items():
                ticket = {"dataset": name, "batch": 64, "shuffle": {"seed": 5, "epoch": round_ + 1}, "stop": 4}
                ticket |= {"rank": 0, "step": 0}
                got = Readers(node.url, [json.dumps(ticket).encode()]).run()
                if round_ >= 0:
                    found.append(got["first_batch_s"] * 1000)
                    emit(case="first_batch", dataset=name, ms=found[-1])
    return Result(
        "first_batch",
        [
            Figure("ms_1e3", times["thousand"]),
            Figure("ms_1e6", times["million"]),
        ],
    )
