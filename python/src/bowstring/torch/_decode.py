"""Images from bytes, in the worker that received them."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from bowstring.errors import BowstringError

Decode = Callable[[torch.Tensor], Any]


class DecodeError(BowstringError, ValueError):
    """An image that cannot be decoded; the text names its position and id."""

    code = "DECODE"


def decoder(decode: str | Decode | None) -> Decode | None:
    """The function that is meant; what it needs is imported when it is first used."""
    if decode is None or callable(decode):
        return decode
    if decode == "auto":
        try:
            import torchvision.io  # noqa: F401
        except (ImportError, RuntimeError, OSError):  # not there, or not of this torch
            decode = "pillow"
        else:
            decode = "torchvision"
    try:
        return {"torchvision": by_torchvision, "pillow": by_pillow}[decode]
    except KeyError:
        raise ValueError(
            f"decode: got {decode!r}, want 'auto', 'torchvision', 'pillow', None, or a function of a tensor"
        ) from None


def by_torchvision(data: torch.Tensor) -> torch.Tensor:
    """Decode to RGB, a `uint8` tensor of channels x height x width."""
    from torchvision.io import ImageReadMode, decode_image

    image: torch.Tensor = decode_image(data, mode=ImageReadMode.RGB)
    return image


def by_pillow(data: torch.Tensor) -> torch.Tensor:
    """The same with Pillow."""
    from PIL import Image

    with Image.open(io.BytesIO(data.numpy().tobytes())) as opened:
        pixels = np.array(opened.convert("RGB"))
    return torch.from_numpy(pixels).permute(2, 0, 1)
