"""Real photographs for the demo and the tests: JPEG crops of the photographs in scikit-image's wheel.

    python examples/photos.py DIRECTORY [--count 2200]

Writes an ImageFolder, DIRECTORY/{train,val}/CLASS/NAME.jpg, with the photograph as the class. The
same bytes come out of every run with the same Pillow: the crops follow from the file's name, and
the noise from a bit generator whose stream NumPy guarantees.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

# Class by photograph, each free of known rights or in the public domain; the stereo pair is one class.
PHOTOGRAPHS = {
    "astronaut": ["astronaut.png"],
    "brick": ["brick.png"],
    "cat": ["chelsea.png"],
    "coffee": ["coffee.png"],
    "galaxies": ["hubble_deep_field.jpg"],
    "grass": ["grass.png"],
    "gravel": ["gravel.png"],
    "motorcycle": ["motorcycle_left.png", "motorcycle_right.png"],
    "retina": ["retina.jpg"],
    "rocket": ["rocket.jpg"],
}
VAL_PART = 10  # every tenth crop of a class is for validation


class Crop(NamedTuple):
    """One file to be written: the crop's class, its number within the class, and where it goes."""

    label: str
    number: int
    path: Path


def crops(root: Path, count: int) -> list[Crop]:
    """List the first count crops, classes in turn, so that every class has its share."""
    labels = list(PHOTOGRAPHS)
    found = []
    for i in range(count):
        number, label = i // len(labels), labels[i % len(labels)]
        split = "val" if number % VAL_PART == VAL_PART - 1 else "train"
        found.append(Crop(label, number, root / split / label / f"{label}-{number:05d}.jpg"))
    return found


@lru_cache(maxsize=2)
def photograph(name: str) -> Image.Image:
    """Open a photograph of the wheel. The package is not imported: that alone takes seconds."""
    spec = importlib.util.find_spec("skimage")
    if spec is None or spec.origin is None:
        sys.exit("scikit-image is not installed; `make demo` installs it")
    return Image.open(Path(spec.origin).parent / "data" / name).convert("RGB")


def draw(label: str, number: int) -> Image.Image:
    """Cut a part out of the photograph and take it again with another camera.

    The part is enlarged, which alone would make an unnaturally smooth and small file, so the noise
    of a sensor is added: triangular, with a strength of its own for each crop.
    """
    rng = random.Random(f"{label}/{number}")
    source = photograph(rng.choice(PHOTOGRAPHS[label]))
    side = min(source.size)
    width = int(side * rng.uniform(0.35, 0.95))
    height = min(side, int(width * rng.uniform(0.7, 1.2)))
    left = int(rng.random() * (source.width - width))
    top = int(rng.random() * (source.height - height))
    out_width = int(rng.triangular(360, 880, 590))
    out_size = (out_width, round(out_width * height / width))
    image = source.resize(out_size, Image.Resampling.BICUBIC, (left, top, left + width, top + height))
    if rng.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)

    # Whole numbers only: a float would round differently from machine to machine.
    pixels = np.asarray(image, dtype=np.int32)
    exposure = int(rng.uniform(205, 300))
    strength = int(rng.uniform(4, 16))
    words = np.random.PCG64(rng.getrandbits(64)).random_raw(pixels.size // 4 + 1)
    grain = words.view(np.uint8)[: pixels.size * 2].reshape(2, *pixels.shape).astype(np.int32)
    noise = (grain[0] + grain[1] - 255) * strength >> 7
    return Image.fromarray(np.clip((pixels * exposure >> 8) + noise, 0, 255).astype(np.uint8))


def write(crop: Crop) -> int:
    """Write one crop and return its size in bytes."""
    quality = random.Random(f"quality {crop.label}/{crop.number}").randint(82, 92)
    draw(crop.label, crop.number).save(crop.path, quality=quality)
    return crop.path.stat().st_size


def write_all(root: Path, count: int, workers: int) -> Iterator[int]:
    """Write count crops below root and yield their sizes."""
    todo = crops(root, count)
    for folder in {crop.path.parent for crop in todo}:
        folder.mkdir(parents=True, exist_ok=True)
    # By photograph, so that a worker rarely has to open another one.
    todo.sort()
    with ProcessPoolExecutor(workers) as pool:
        yield from pool.map(write, todo, chunksize=20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--count", type=int, default=2200, help="photographs to write (2200)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2)
    args = parser.parse_args()
    done = args.directory / ".complete"
    stamp = f"{args.count}\n"
    if done.exists() and done.read_text() == stamp:
        print(f"{args.count} photographs are in {args.directory} already")
        return
    start = time.monotonic()
    sizes = list(write_all(args.directory, args.count, args.workers))
    done.write_text(stamp)
    print(
        f"{len(sizes)} photographs of {len(PHOTOGRAPHS)} classes in {args.directory}: "
        f"mean {sum(sizes) / len(sizes) / 1e3:.0f} KB, {min(sizes) / 1e3:.0f} to {max(sizes) / 1e3:.0f} KB, "
        f"{sum(sizes) / 1e6:.0f} MB in {time.monotonic() - start:.0f} s"
    )


if __name__ == "__main__":
    main()
