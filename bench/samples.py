"""Data sets for the cases: an ImageFolder of photographs' size, whose files are all different."""

from __future__ import annotations

import io
import random
from pathlib import Path

from PIL import Image
from sizes import sized

# Most cases read these: as many as a small class of ImageNet's, of its mean size.
COUNT, SIZE = sized(4_000, smoke=256), 110_000
SEGMENT = 60_000  # of a JPEG comment, which may have 65,533 bytes


def image_folder(folder: Path, count: int, size: int, classes: int = 10) -> None:
    """Write `count` valid JPEGs of exactly `size` bytes each; does nothing if they are there.

    Each is a small picture followed by comments of seeded noise, so nothing can be compressed or
    found twice, and an importer that checks images accepts it.
    """
    if (folder / "done").exists():
        return
    picture = io.BytesIO()
    Image.new("RGB", (400, 300), (90, 120, 60)).save(picture, "JPEG", quality=85)
    head, tail = picture.getvalue()[:2], picture.getvalue()[2:]
    noise = random.Random(1)
    for c in range(classes):
        (folder / "images" / f"class{c}").mkdir(parents=True)
    for i in range(count):
        left = size - len(head) - len(tail)
        parts = [head]
        while left:
            n = min(left, SEGMENT)
            if 0 < left - n < 8:  # a comment takes four bytes at least
                n -= 8
            parts.append(b"\xff\xfe" + (n - 2).to_bytes(2, "big") + noise.randbytes(n - 4))
            left -= n
        parts.append(tail)
        (folder / "images" / f"class{i % classes}" / f"{i:07}.jpg").write_bytes(b"".join(parts))
    (folder / "done").touch()
