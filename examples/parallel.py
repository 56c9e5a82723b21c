"""Two processes that train one model get the same batches, and check it.

    torchrun --nproc-per-node 2 examples/parallel.py grpc://127.0.0.1:8815 photos

The mesh has one data parallel and two tensor parallel ranks. Each step is compared by its digest, and at the end the
bytes by their sum.
"""

import sys
import zlib

import torch
import torch.distributed as dist
from bowstring.torch import BowstringDataset, verify_step
from torch.distributed.device_mesh import init_device_mesh


def main(address: str, name: str) -> int:
    """Read an epoch, and say whether both ranks got the same."""
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("dp", "tp"))
    dataset = BowstringDataset(address, name, shuffle=7, global_batch_size=32, mesh=mesh, digest=True)
    samples, total = 0, 0
    for batch in dataset:
        verify_step(batch, mesh=mesh)
        image = batch["image"]
        samples += len(image)
        total = zlib.crc32(image.data.numpy(), total)
    sums = [torch.zeros(2, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(sums, torch.tensor([samples, total]))
    same = all(torch.equal(sums[0], other) for other in sums)
    print(f"rank {dist.get_rank()} of {mesh}: {samples} samples, the same as the others: {same}")
    dist.destroy_process_group()
    return 0 if same and samples else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
