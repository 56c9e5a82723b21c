"""The shares of a dataset for a number of ranks."""

from __future__ import annotations

import multiprocessing

from torch.utils.data import get_worker_info

from bowstring._requests import launcher


def ranks_here(sent: tuple[int, tuple[int, int]] | None) -> tuple[tuple[int, int], str]:
    """Rank and number of ranks, and what says it: in a worker, its process, which has sent them with its id."""
    parent = multiprocessing.parent_process()
    if get_worker_info() is not None and parent is not None and sent is not None and sent[0] == parent.pid:
        return sent[1], "rank"
    return launcher.ranks()


def check_shares(size: int, world: int, *, samples: bool, loader: int | None, even: bool, skip: bool) -> None:
    """Check that a global batch can be divided among this number of ranks, and their workers.

    Args:
        size: Samples of a global batch.
        world: How many ranks there are.
        samples: Whether single samples are given, of which a loader makes batches.
        loader: The size of those, if it is known.
        even: Whether each rank is to get as many batches as the others.
        skip: Whether samples are left out that cannot be decoded.
    """
    launcher.check_size(size, world)
    if not samples:
        return
    if loader is not None and size % (loader * world):
        raise ValueError(
            f"global_batch_size: got {size}, want a multiple of {loader * world}: "
            f"loader_batch_size {loader}, times {world} for the ranks"
        )
    if even and size % world:
        raise ValueError(
            f"global_batch_size: got {size}, want a multiple of {world}, the number of ranks: with output='samples' "
            "some would get more samples than others, and so more batches"
        )
    if even and skip:
        raise ValueError(
            "on_decode_error: got 'skip'; with output='samples' ranks would get different numbers of samples, and so "
            "of batches; want 'raise', or output='batches'"
        )
