"""Small pictures that samples have."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image


def pixels(number: int, height: int = 24, width: int = 32) -> npt.NDArray[np.uint8]:
    """Waves in three colours, others for each number."""
    y, x = np.mgrid[0:height, 0:width].astype(float)
    waves = [128 + 90 * np.sin(x / (5 + number) + c) + 36 * np.cos(y / (3 + c) + x / 11) for c in range(3)]
    made: npt.NDArray[np.uint8] = np.clip(np.stack(waves, -1), 0, 255).astype(np.uint8)
    return made


def encoded(number: int, form: str = "PNG", **options: Any) -> bytes:
    """A picture as a file of the given form."""
    data = io.BytesIO()
    Image.fromarray(pixels(number)).save(data, form, **options)
    return data.getvalue()


def files(folder: Path, names: list[str]) -> list[str]:
    """Write a picture under each name; the names."""
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(number))
    return names
