"""The place of a rank in a mesh of ranks, and which ranks get the same samples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# As in the server: along the first, ranks get different samples; along the others, the same.
_DATA = ("dp", "dp_replicate", "dp_shard")
_SAME = ("tp", "cp", "pp")


@dataclass(frozen=True)
class Mesh:
    """The dimensions of a mesh of ranks, and this process's rank.

    Ranks that differ only in tensor, pipeline or context parallel dimensions get the same samples.

    ```python
    mesh = bowstring.Mesh.of(init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp")))  # torch's DeviceMesh
    mesh = bowstring.Mesh.of(megatron.core.parallel_state)
    mesh = bowstring.Mesh.of({"dp": 2, "tp": 4}, rank=5)
    for batch in photos.batches(256, mesh=mesh): ...
    ```

    Attributes:
        dims: Names and sizes; the coordinate in the last dimension changes fastest from rank to rank. Ranks get
            different samples along `dp`, `dp_replicate` and `dp_shard`, and the same along `tp`, `cp` and `pp`.
        rank: This process's rank.
    """

    dims: tuple[tuple[str, int], ...]
    rank: int

    def __post_init__(self) -> None:
        names = [name for name, _ in self.dims]
        for name, size in self.dims:
            if name not in _DATA and name not in _SAME:
                raise ValueError(f"mesh: got a dimension {name!r}, want some of {', '.join(_DATA + _SAME)}")
            if names.count(name) > 1:
                raise ValueError(f"mesh: got {name!r} twice, want each dimension once")
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ValueError(f"mesh: got {size!r} for {name}, want an integer, 1 or more")
        if not 0 <= self.rank < self.size:
            raise ValueError(f"mesh: got rank {self.rank} of {self.size}, want one from 0 to {self.size - 1}")

    @classmethod
    def of(cls, mesh: Any, *, rank: int | None = None, data: Iterable[str] | None = None) -> Mesh:
        """The mesh of a training program.

        Args:
            mesh: A `DeviceMesh` of torch with names; Megatron's `parallel_state`, or an object with its functions;
                sizes by name, the slowest dimension first; or a Mesh.
            rank: With sizes by name, this process's rank. Default: the launcher's.
            data: The names of the dimensions along which ranks get different samples, if they are not `dp`,
                `dp_replicate` and `dp_shard`.
        """
        if isinstance(mesh, Mesh):
            return mesh
        if isinstance(mesh, Mapping):
            return cls(_named(list(mesh), list(mesh.values()), data), _rank_here(mesh) if rank is None else rank)
        if rank is not None:
            raise ValueError("rank: goes with sizes by name; a mesh knows its own")
        if hasattr(mesh, "mesh_dim_names") and hasattr(mesh, "get_coordinate"):
            return _of_torch(mesh, data)
        if hasattr(mesh, "get_data_parallel_rank"):
            return _of_megatron(mesh)
        raise TypeError(
            f"mesh: got {type(mesh).__name__}, want a DeviceMesh of torch, Megatron's parallel_state, or sizes by name"
        )

    @property
    def size(self) -> int:
        """The number of ranks."""
        return math.prod(size for _, size in self.dims)

    @property
    def data_ranks(self) -> int:
        """The number of ranks that get different samples."""
        return math.prod(size for name, size in self.dims if name in _DATA)

    @property
    def data_rank(self) -> int:
        """The index of this rank's share, out of `data_ranks`."""
        left, at, share = self.size, self.rank, 0
        for name, size in self.dims:
            left //= size
            if name in _DATA:
                share = share * size + at // left
            at %= left
        return share

    def __str__(self) -> str:
        """In the form of requests."""
        return ",".join(f"{name}={size}" for name, size in self.dims)


def in_place_of(rank: int | None, world_size: int | None, mesh: Any) -> tuple[Mesh | None, int | None, int | None]:
    """The mesh of an argument, or None, with the data rank and the number of data ranks."""
    if mesh is None:
        return None, rank, world_size
    if rank is not None or world_size is not None:
        raise ValueError("mesh: got it with rank and world_size, want one of both")
    mesh = Mesh.of(mesh)
    return mesh, mesh.data_rank, mesh.data_ranks


def _rank_here(mesh: Mapping[str, int]) -> int:
    from bowstring._requests.launcher import ranks

    (rank, world), name = ranks()
    if world != math.prod(mesh.values()):
        raise ValueError(f"mesh: got {math.prod(mesh.values())} ranks, and {name} says {world}; give rank")
    return rank


def _named(names: Sequence[str], sizes: Sequence[int], data: Iterable[str] | None) -> tuple[tuple[str, int], ...]:
    """The dimensions by the server's names."""
    chosen = None if data is None else set(data)
    if chosen is None:
        for name in names:
            if name not in _DATA and name not in _SAME:
                raise ValueError(
                    f"mesh: got a dimension {name!r}, want some of {', '.join(_DATA + _SAME)}; "
                    "data says along which dimensions ranks get different samples, whatever they are called"
                )
        return tuple((name, int(size)) for name, size in zip(names, sizes, strict=True))
    if unknown := sorted(chosen.difference(names)):
        raise ValueError(f"data: got {unknown[0]!r}, want some of {', '.join(names)}")
    # Adjacent dimensions of one kind are merged: the same ranks share samples.
    merged: list[tuple[bool, int]] = []
    for name, size in zip(names, sizes, strict=True):
        if merged and merged[-1][0] == (name in chosen):
            merged[-1] = (merged[-1][0], merged[-1][1] * int(size))
        else:
            merged.append((name in chosen, int(size)))
    left = {True: list(_DATA), False: list(_SAME)}
    return tuple((left[splits].pop(0), size) for splits, size in merged)


def _of_torch(mesh: Any, data: Iterable[str] | None) -> Mesh:
    """A DeviceMesh. Its ranks may have any numbers, because only this rank's coordinate counts."""
    names, coordinate = mesh.mesh_dim_names, mesh.get_coordinate()
    if not names:
        raise ValueError("mesh: got one without names, want mesh_dim_names, such as ('dp', 'tp')")
    if coordinate is None:
        raise ValueError("mesh: this rank is not in it")
    sizes = [int(size) for size in mesh.mesh.shape]
    rank = 0
    for at, size in zip(coordinate, sizes, strict=True):
        rank = rank * size + int(at)
    return Mesh(_named(list(names), sizes, data), rank)


def _of_megatron(state: Any) -> Mesh:
    """Megatron's parallel_state. Its order of ranks does not matter, because coordinates are requested."""
    sizes, rank = [], 0
    for name, parallel in (("pp", "pipeline_model"), ("dp", "data"), ("cp", "context"), ("tp", "tensor_model")):
        ask = getattr(state, f"get_{parallel}_parallel_world_size", None)
        if ask is None:  # an old version without context parallelism
            continue
        size, at = int(ask()), int(getattr(state, f"get_{parallel}_parallel_rank")())
        sizes.append((name, size))
        rank = rank * size + at
    return Mesh(tuple(sizes), rank)
