"""Photographs of Bowstring that DALI decodes on the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bowstring.dali import external_source
from image_side import SIZE
from nvidia.dali import fn, pipeline_def
from nvidia.dali.plugin.pytorch import DALIGenericIterator

from gpu.pace import Tensors
from gpu.sizes import Sizes


def batches(url: str, sizes: Sizes) -> Iterator[Any]:
    """Batches of one epoch after another, on the device."""

    @pipeline_def(batch_size=sizes.batch, num_threads=4, device_id=0)  # type: ignore[untyped-decorator]
    def crops(source: Any) -> Any:
        images, labels = fn.external_source(source, num_outputs=2, batch=True)
        images = fn.decoders.image_random_crop(images, device="mixed", random_area=[0.08, 1.0])
        images = fn.flip(fn.resize(images, size=[SIZE, SIZE]), horizontal=fn.random.coin_flip())
        return fn.transpose(images, perm=[2, 0, 1]), labels

    source = external_source(url, "photos", columns=["image", "label"], shuffle=7, global_batch_size=sizes.batch)
    pipeline = crops(source)
    pipeline.build()
    while True:
        yield from DALIGenericIterator([pipeline], ["image", "label"], auto_reset=True)


def moved(batch: Any) -> Tensors:
    """The tensors of DALI's batch. It reuses their memory for a later one."""
    (found,) = batch
    return found["image"].clone(), found["label"].view(-1).cuda(non_blocking=True)
