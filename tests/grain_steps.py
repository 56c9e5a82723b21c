"""Functions that Grain's worker processes apply to samples in tests. They import this module: it imports fast."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image


def decoded(sample: dict[str, Any]) -> dict[str, Any]:
    """A sample with a small image."""
    image = Image.open(io.BytesIO(sample["image"])).convert("RGB").resize((8, 8))
    return {"image": np.asarray(image), "position": sample["position"], "label": sample["label"]}


def doubled(batch: dict[str, Any]) -> dict[str, Any]:
    """A batch of other numbers."""
    return {"position": batch["position"] * 2}
