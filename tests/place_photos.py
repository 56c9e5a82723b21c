"""Small photographs, two of which are damaged, and a server of them, for tests of where operators run."""

from __future__ import annotations

import io
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bowstring
import numpy as np
import pytest
from conftest import StartNode
from PIL import Image

ROWS = 40
DAMAGED = {7, ROWS - 1}
CROP: list[dict[str, Any]] = [{"Decode": {}}, {"RandomResizedCrop": {"size": [24, 32]}}, {"RandomHorizontalFlip": {}}]
LISTS: dict[str, list[dict[str, Any]]] = {
    "one shape": CROP,
    "floats": [*CROP, {"ToImage": {}}, {"ToDtype": {"dtype": "float16", "scale": True}}],
    "many shapes": [{"Decode": {}}, {"RandomVerticalFlip": {}}],
    "files": [*CROP, {"EncodeJPEG": {"quality": 80}}],
}


def picture(i: int) -> bytes:
    rng = np.random.default_rng(i)
    out = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (40 + i, 60, 3), np.uint8)).save(out, "PNG" if i % 2 else "JPEG")
    return out.getvalue()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, binary: Path) -> Path:
    """A dataset of images, two of which are damaged."""
    folder = tmp_path_factory.mktemp("pictures")
    for i in range(ROWS):
        data = picture(i)
        (folder / f"{i:03}.png").write_bytes(data[: len(data) // 2] if i in DAMAGED else data)
    made = tmp_path_factory.mktemp("store") / "s"
    command = [str(word) for word in (binary, "import", folder, "photos", "--store", made, "--verify", "none")]
    subprocess.run(command, check=True, capture_output=True)
    return made


@pytest.fixture
def photos(store: Path, binary: Path, start: StartNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[bowstring.Dataset]:
    """It, served, with the program where the package finds it."""
    monkeypatch.setenv("BOWSTRING_BINARY", str(binary))
    with bowstring.connect(start(store=store).url) as client:
        yield client.dataset("photos").shuffle(5)
