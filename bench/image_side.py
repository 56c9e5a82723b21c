"""One side of image_ops: random resized crops of JPEGs in one thread; prints images per CPU second."""

from __future__ import annotations

import io
import math
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SIZE = 224
Box = tuple[int, int, int, int]


def box(rng: random.Random, width: int, height: int) -> Box:
    """Left, top, width and height, drawn as torchvision draws them."""
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if w <= width and h <= height:
            return rng.randint(0, width - w), rng.randint(0, height - h), w, h
    return 0, 0, width, height


def pillow(rng: random.Random) -> Callable[[bytes], Any]:
    """Pillow, as training recipes use it."""
    import numpy as np
    from PIL import Image

    def one(data: bytes) -> Any:
        image = Image.open(io.BytesIO(data)).convert("RGB")
        x, y, w, h = box(rng, *image.size)
        image = image.crop((x, y, x + w, y + h)).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        if rng.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return np.asarray(image)

    return one


def torchvision(rng: random.Random) -> Callable[[bytes], Any]:
    """The decoder of torchvision, and its operators on tensors."""
    import torch
    from torchvision.io import decode_jpeg
    from torchvision.transforms.v2 import functional

    torch.set_num_threads(1)

    def one(data: bytes) -> Any:
        image = decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        x, y, w, h = box(rng, image.shape[2], image.shape[1])
        image = functional.resized_crop(image, y, x, h, w, [SIZE, SIZE], antialias=True)
        return functional.horizontal_flip(image) if rng.random() < 0.5 else image

    return one


def dali(rng: random.Random) -> Callable[[bytes], Any]:
    """DALI's decoder of a random crop, in one thread; it works when it has a batch."""
    import numpy as np
    from nvidia.dali import fn, pipeline_def

    size = 8

    @pipeline_def(batch_size=size, num_threads=1, device_id=None, prefetch_queue_depth=1, seed=rng.randrange(1 << 30))  # type: ignore[untyped-decorator]
    def crops() -> Any:
        files = fn.external_source(name="files", global_batch_size=True)
        images = fn.decoders.image_random_crop(files, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3])
        flips = fn.random.coin_flip()
        return fn.flip(fn.resize(images, size=[SIZE, SIZE]), horizontal=flips)

    pipeline = crops()
    pipeline.build()
    waiting: list[Any] = []

    def one(data: bytes) -> Any:
        waiting.append(np.frombuffer(data, np.uint8))
        if len(waiting) < size:
            return None
        pipeline.feed_input("files", waiting)
        waiting.clear()
        return pipeline.run()

    return one


def main() -> None:
    """Arguments: the side, the folder of photographs, seconds."""
    side, folder, seconds = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
    one = {"pillow": pillow, "torchvision": torchvision, "dali": dali}[side](random.Random(1))
    cells = [path.read_bytes() for path in sorted(folder.glob("*.jpg"))]
    for cell in cells[:8]:
        one(cell)
    done, began = 0, time.process_time()
    while time.process_time() - began < seconds:
        for cell in cells:
            one(cell)
        done += len(cells)
    print(done / (time.process_time() - began))


if __name__ == "__main__":
    main()
