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
# Number of boxes for which torchvision's arithmetic is followed, also where it is more than one off.
FOLLOWED = 16


def resampled(pixels: npt.NDArray[np.uint8], bits: int | None) -> npt.NDArray[np.uint8]:
    """Pillow's bilinear resampling along the second axis, with weights of `bits` bits.

    Without a number they have as many as the largest of them leaves in 16, as in PyTorch's kernel for uint8.
    """
    size = pixels.shape[1]
    scale = size / SIZE
    wide = max(scale, 1.0)
    parts = []
    for i in range(SIZE):
        centre = (i + 0.5) * scale
        first, last = max(int(centre - wide + 0.5), 0), min(int(centre + wide + 0.5), size)
        weights = np.maximum(0, 1 - np.abs((np.arange(first, last) - centre + 0.5) / wide))
        parts.append((first, weights / weights.sum()))
    if bits is None:
        largest, bits = max(weights.max() for _, weights in parts), 0
        while bits < 22 and int(0.5 + largest * (1 << (bits + 1))) < 1 << 15:
            bits += 1
    out = np.empty((len(pixels), SIZE, pixels.shape[2]), np.uint8)
    for i, (first, weights) in enumerate(parts):
        fixed = np.floor(weights * (1 << bits) + 0.5).astype(np.int64)
        sums = (pixels[:, first : first + len(fixed)].astype(np.int64) * fixed[:, None]).sum(1) + (1 << (bits - 1))
        out[:, i] = np.clip(sums >> bits, 0, 255)
    return out


def followed(line: dict[str, Any]) -> npt.NDArray[np.uint8]:
    """The result of torchvision on tensors: the contract's arithmetic, except for weights of 16 bits."""
    from torchvision.io import decode_image

    x, y, w, h = line["box"]
    pixels = decode_image(line["in"]).permute(1, 2, 0).numpy()[y : y + h, x : x + w]
    image = resampled(resampled(pixels, None).transpose(1, 0, 2), None).transpose(1, 0, 2)
    return image[:, ::-1] if line["flip"] else image


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
    """Print how many bytes differ, the most that one does, how many there are, and how many nothing explains."""
    make = {"pillow": pillow, "torchvision": torchvision}[sys.argv[1]]
    differing = most = total = other = 0
    for number, text in enumerate(Path(sys.argv[2]).read_text().splitlines()):
        line = json.loads(text)
        ours = np.fromfile(line["out"], np.uint8).reshape(SIZE, SIZE, 3).astype(np.int16)
        theirs = make(line)
        far = np.abs(ours - theirs.astype(np.int16))
        differing, most, total = differing + int((far > 0).sum()), max(most, int(far.max())), total + far.size
        if make is torchvision and (far.max() > 1 or number % FOLLOWED == 0):
            other += int((followed(line) != theirs).sum())
    print(json.dumps({"differing": differing, "most": most, "total": total, "other": other}))


if __name__ == "__main__":
    main()
