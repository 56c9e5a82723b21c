"""Which rank of how many this process is, and what a number of ranks takes."""

from __future__ import annotations

import os

import torch.distributed


def ranks_of_torch() -> tuple[tuple[int, int], str]:
    """Rank and number of ranks as torch.distributed says, or else the environment; and who says it."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return (torch.distributed.get_rank(), torch.distributed.get_world_size()), "torch.distributed"
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
        try:
            return (int(rank), int(world)), "RANK"
        except ValueError:
            raise ValueError(f"RANK, WORLD_SIZE: got {rank!r}, {world!r}, want integers") from None
    return (0, 1), "rank"


def check_rank(rank: int, world: int, name: str) -> None:
    """Say whether there is such a rank."""
    if world < 1 or not 0 <= rank < world:
        raise ValueError(f"{name}: got rank {rank} of {world}, want one from 0 to {max(world, 1) - 1}")


def check_shares(size: int, world: int, *, samples: bool, loader: int | None, even: bool, skip: bool) -> None:
    """Say whether a global batch can be shared out among so many ranks, and their workers.

    Args:
        size: Samples of a global batch.
        world: How many ranks there are.
        samples: Whether single samples are given, of which a loader makes batches.
        loader: The size of those, if it is known.
        even: Whether each rank is to get as many batches as the others.
        skip: Whether samples are left out that cannot be decoded.
    """
    if size < world:
        raise ValueError(
            f"global_batch_size: got {size}, which leaves some of {world} ranks without samples; want {world} or more"
        )
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
