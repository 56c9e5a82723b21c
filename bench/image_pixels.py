"""The other side of image_same: counts how far results are from those of Pillow 12.1, or of torchvision on tensors.

Arguments: the side, and a file of JSON lines: the source, the result, its box and whether it was mirrored.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

SIZE = 224


def pillow(line: dict[str, Any]) -> npt.NDArray[np.uint8]:
    from PIL import Image

    x, y, w, h = line["box"]
    image = Image.open(line["in"]).convert("RGB").crop((x, y, x + w, y + h))
    image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    return np.asarray(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if line["flip"] else image)


def torchvision(line: dict[str, Any]) -> npt.NDArray[np.uint8]:
    from torchvision.io import decode_image
    from torchvision.transforms.v2 import functional

    x, y, w, h = line["box"]
    image = functional.resized_crop(decode_image(line["in"]), y, x, h, w, [SIZE, SIZE], antialias=True)
    image = functional.horizontal_flip(image) if line["flip"] else image
    return np.asarray(image.permute(1, 2, 0).numpy())


def main() -> None:
    """Print how many bytes differ, the most that one does, and how many there are."""
    make = {"pillow": pillow, "torchvision": torchvision}[sys.argv[1]]
    differing = most = total = 0
    for text in Path(sys.argv[2]).read_text().splitlines():
        line = json.loads(text)
        ours = np.fromfile(line["out"], np.uint8).reshape(SIZE, SIZE, 3).astype(np.int16)
        far = np.abs(ours - make(line).astype(np.int16))
        differing, most, total = differing + int((far > 0).sum()), max(most, int(far.max())), total + far.size
    print(json.dumps({"differing": differing, "most": most, "total": total}))


if __name__ == "__main__":
    main()
