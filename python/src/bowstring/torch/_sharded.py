"""Whether a dataset that gives each rank its share is about to be shared out once more, as Accelerate does it."""

from __future__ import annotations

import sys
from typing import Any

from torch.utils.data import get_worker_info

# Classes that divide a dataset, by module and name. Each of them sets its dataset's epoch, or iterates it itself.
_SHARING = {
    "accelerate": ("IterableDatasetShard", "DataLoaderDispatcher"),
    "transformers": ("IterableDatasetShard",),
}
_DEPTH = 8  # number of callers that are examined


class ShardedTwice(RuntimeError):  # noqa: N818 - as the exceptions of the core are called
    """A trainer would share out among the ranks what the dataset shares out already: most samples would be lost."""


def check_caller(world: int) -> None:
    """Raise an error if a caller, or the loader of this worker, divides the share of one of several ranks again."""
    if world == 1:
        return
    info = get_worker_info()
    suspects: list[Any] = [] if info is None else [info.dataset]
    frame = sys._getframe(1).f_back
    for _ in range(_DEPTH):
        if frame is None:
            break
        suspects.append(frame.f_locals.get("self"))
        frame = frame.f_back
    for suspect in suspects:
        kind = type(suspect)
        library = kind.__module__.partition(".")[0]
        if kind.__name__ in _SHARING.get(library, ()):
            raise ShardedTwice(
                f"{library}'s {kind.__name__} would share out among the ranks what this dataset has shared out "
                "already, so that most samples were lost; leave the loader out of accelerator.prepare, and with the "
                "Trainer of transformers let get_train_dataloader return it; or take BowstringMapDataset, which a "
                "trainer shares out; or say rank=0, world_size=1, so that each rank reads everything"
            )
