"""Files as people have them, made by the libraries that people use: what the case `own_data` imports."""

from __future__ import annotations

from . import boxes, images, parquet, sounds, text
from .kind import Kind, UnavailableError

KINDS: list[Kind] = [*text.KINDS, *parquet.KINDS, *boxes.KINDS, *images.KINDS, *sounds.KINDS]

__all__ = ["KINDS", "Kind", "UnavailableError"]
