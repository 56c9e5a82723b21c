"""The rank of this process and the number of ranks, according to its launcher."""

from __future__ import annotations

import os
import sys


def ranks() -> tuple[tuple[int, int], str]:
    """Rank and number of ranks from torch.distributed, or else the environment; and the name of the source.

    torch is not imported for it: a process that has not done so has no process group.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return (distributed.get_rank(), distributed.get_world_size()), "torch.distributed"
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
        try:
            return (int(rank), int(world)), "RANK"
        except ValueError:
            raise ValueError(f"RANK, WORLD_SIZE: got {rank!r}, {world!r}, want integers") from None
    return (0, 1), "rank"


def ranks_of_jax() -> tuple[tuple[int, int], str] | None:
    """Rank and number of ranks from jax.distributed, and the name of the source; None if it is not initialised.

    JAX is not imported for it.
    """
    distributed = sys.modules.get("jax.distributed")
    if distributed is None or not getattr(distributed, "is_initialized", bool)():
        return None
    jax = sys.modules["jax"]
    return (jax.process_index(), jax.process_count()), "jax.distributed"


def resolved(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Rank and number of ranks as given, or else those of the launcher."""
    check_given(rank, world_size)
    name = "rank"
    if rank is None or world_size is None:
        (rank, world_size), name = ranks()
    check_rank(rank, world_size, name)
    return rank, world_size


def check_given(rank: int | None, world_size: int | None) -> None:
    """Check that rank and number of ranks are both given, or neither."""
    if (rank is None) != (world_size is None):
        raise ValueError("rank, world_size: want both or none")


def check_rank(rank: int, world: int, name: str) -> None:
    """Check that there is such a rank."""
    if world < 1 or not 0 <= rank < world:
        raise ValueError(f"{name}: got rank {rank} of {world}, want one from 0 to {max(world, 1) - 1}")


def check_size(size: int, world: int) -> None:
    """Check that each rank gets samples of a global batch."""
    if size < world:
        raise ValueError(
            f"global_batch_size: got {size}, which leaves some of {world} ranks without samples; want {world} or more"
        )


def check_name(old: str, given: object) -> None:
    """Refuse the former name of an argument."""
    if given is not None:
        raise TypeError(
            f"{old}: got {given!r}; the argument is global_batch_size now: rows of a step, all ranks together, which "
            "is the batch of one rank times the number of ranks"
        )
