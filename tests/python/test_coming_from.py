"""The loaders that the page "coming from" shows, run beside each other: each gives every photograph once."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from conftest import ROOT
from node import Node

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "python" / "coming-from.md"
SHARDS = "https://host/photos-train-{0000..0011}.tar"
TRAIN = 270
# What the lines take from around them.
AROUND = """
import torch
from torchvision.transforms.v2 import functional as F

rank, world_size, epochs = 0, 1, 1
seen = []

def train(images, labels):
    assert images.shape[1:] == (3, 32, 32)
    seen.extend(int(label) for label in labels)

def small(image):
    return F.resize(image if isinstance(image, torch.Tensor) else F.pil_to_tensor(image.convert("RGB")), [32, 32])

def to_tensors(sample):
    return {**sample, "image": small(sample["image"])}

transform = TRANSFORM
"""


def lines(heading: str) -> str:
    """The first Python after a heading."""
    found = re.search(rf"^# {heading}\n.*?```python\n(.*?)```", PAGE.read_text().replace("## ", "# "), re.DOTALL | re.M)
    assert found, heading
    return found[1]


@pytest.fixture(scope="module")
def shards(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The photographs as two tar files."""
    root = tmp_path_factory.mktemp("shards")
    files = sorted((folder / "train").glob("*/*.jpg"))
    classes = sorted({path.parent.name for path in files})
    for n in range(2):
        with tarfile.open(root / f"{n:04}.tar", "w") as tar:
            for path in files[n::2]:
                tar.add(path, path.name)
                label = root / "label"
                label.write_text(str(classes.index(path.parent.name)))
                tar.add(label, f"{path.stem}.cls")
    return str(root / "{0000..0001}.tar")


@pytest.mark.parametrize("heading", ["Coming from", "WebDataset", "torch ImageFolder", "Hugging Face datasets"])
def test_every_photograph_once(node: Node, folder: Path, shards: str, heading: str) -> None:
    around = AROUND.replace("TRANSFORM", "to_tensors" if heading == "Coming from" else "small")
    script = lines(heading).replace("grpc://127.0.0.1:8815", node.url).replace(SHARDS, shards)
    done = subprocess.run(
        [sys.executable, "-c", f"{around}{script}\nprint(len(seen), sorted(set(seen)))"],
        check=False,
        capture_output=True,
        text=True,
        cwd=linked(folder),
        timeout=240,
    )
    assert done.stdout.splitlines()[-1:] == [f"{TRAIN} {list(range(10))}"], done.stderr


def linked(folder: Path) -> Path:
    """A directory in which the photographs are called so."""
    link = folder.parent / "photos"
    if not link.exists():
        link.symlink_to(folder, target_is_directory=True)
    return folder.parent
