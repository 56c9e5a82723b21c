"""An ImageFolder of JPEG files for the demo: crops of the eight photographs that are stored beside this module.

The photographs come from scikit-image's collection; each is in the public domain or under CC0.
"""

from __future__ import annotations

import random
from pathlib import Path

from PIL import Image

SOURCES = Path(__file__).parent / "photographs"
VAL_PART = 10  # every tenth crop of a class is for validation


def draw(photograph: Image.Image, rng: random.Random) -> Image.Image:
    """Take a part of the photograph, enlarged, and mirrored half of the times."""
    side = min(photograph.size)
    width = int(side * rng.uniform(0.35, 0.95))
    height = min(side, int(width * rng.uniform(0.7, 1.2)))
    left, top = rng.randrange(photograph.width - width + 1), rng.randrange(photograph.height - height + 1)
    size = rng.randrange(320, 640)
    crop = photograph.resize(
        (size, round(size * height / width)), Image.Resampling.BICUBIC, (left, top, left + width, top + height)
    )
    return crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else crop


def write(root: Path, count: int) -> int:
    """Write count crops below root, `{train,val}/CLASS/CLASS-NUMBER.jpg`, and return how many bytes they have."""
    sources = sorted(SOURCES.glob("*.jpg"))
    total = 0
    for i, source in enumerate(sources):
        with Image.open(source) as opened:
            photograph = opened.convert("RGB")
        for number in range(len(range(i, count, len(sources)))):
            split = "val" if number % VAL_PART == VAL_PART - 1 else "train"
            path = root / split / source.stem / f"{source.stem}-{number:05d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            draw(photograph, random.Random(f"{source.stem}/{number}")).save(path, quality=88)  # noqa: S311
            total += path.stat().st_size
    return total
