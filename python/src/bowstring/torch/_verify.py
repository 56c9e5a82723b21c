"""Whether ranks that are to get the same samples did."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch.distributed

from bowstring._requests.mesh import Mesh
from bowstring.torch._columns import Batch


class StepMismatch(RuntimeError):  # noqa: N818 - as the exceptions of the core are called
    """Ranks that are to get the same samples of a step got others."""


def verify_step(batch: Batch, *, mesh: Any = None, group: Any = None) -> None:
    """Fail on all ranks if some of those that are to get the same got other samples; the message names them.

    ```python
    dataset = BowstringDataset(address, "photos", mesh=mesh, digest=True)
    for batch in loader:
        verify_step(batch, mesh=mesh)  # of all ranks at once, each step or now and then
    ```

    It compares digests, which the server makes of positions and checksums: it costs one exchange of a few bytes. Every
    rank of the group has to call it.

    Args:
        batch: What this rank got, from a dataset with `digest=True`.
        mesh: As the dataset's. Then ranks of the group are compared with those alone that are to get the same.
            Without it, all of the group are.
        group: The process group; without it, all ranks.
    """
    if batch.digest is None:
        raise ValueError("batch: got one without a digest, want one of a dataset that was made with digest=True")
    share = 0 if mesh is None else Mesh.of(mesh).data_rank
    own = (share, torch.distributed.get_rank(), batch.epoch, batch.step, batch.digest)
    found: list[Any] = [None] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(found, own, group=group)
    wrong = []
    for one in sorted({other[0] for other in found}):
        same = [other for other in found if other[0] == one]
        got = Counter(other[2:] for other in same)
        most, times = got.most_common(1)[0]
        if times == len(same):
            continue
        for _, rank, epoch, step, digest in same:
            if (epoch, step, digest) != most:
                of = f"data rank {one}" if mesh is not None else "the group"
                wrong.append(
                    f"rank {rank} got step {step} of epoch {epoch} with digest {digest}, and {times} of "
                    f"{len(same)} ranks of {of} step {most[1]} of epoch {most[0]} with {most[2]}"
                )
    if wrong:
        raise StepMismatch("; ".join(wrong))
