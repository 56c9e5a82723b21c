"""The loaders that the page "coming from" shows, run beside each other: each gives every photograph once.

And the steps from them: what they read is imported, and checked by the page's own lines.
"""

from __future__ import annotations

import pickle
import re
import shlex
import subprocess
import sys
import tarfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import ROOT, StartNode
from node import Node

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "python" / "coming-from.md"
SHARDS = "https://host/photos-train-{0000..0011}.tar"
TRAIN = 270
Bowstring = Callable[..., subprocess.CompletedProcess[str]]
# Names that the lines use from their context.
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
    return blocks(heading)[0]


def blocks(heading: str) -> list[str]:
    """All Python of a section."""
    found = re.search(rf"^##? {heading}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert found, heading
    return [textwrap.dedent(block) for block in re.findall(r"```python\n(.*?)```", found[1], re.DOTALL)]


def step(name: str) -> tuple[str, str]:
    """The command that imports, and what is checked, of a row of the table."""
    found = re.search(rf"^\| {name} \| `(.*?)` \| `(.*?)` \|$", PAGE.read_text(), re.MULTILINE)
    assert found, name
    return found[1], found[2]


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
    ran(f"{around}{script}", linked(folder))


def ran(script: str, folder: Path) -> None:
    """A program, which has seen every photograph once."""
    said = output(f"{script}\nprint(len(seen), sorted(set(seen)))", folder)
    assert said == f"{TRAIN} {list(range(10))}"


def output(script: str, folder: Path) -> str:
    """The last line that a program prints."""
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, cwd=folder, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def linked(folder: Path) -> Path:
    """A directory in which the photographs are called so."""
    link = folder.parent / "photos"
    if not link.exists():
        link.symlink_to(folder, target_is_directory=True)
    return folder.parent


# --- the four steps -----------------------------------------------------------


def pairs(folder: Path) -> Iterator[tuple[bytes, int]]:
    """The photographs' bytes and labels."""
    files = sorted((folder / "train").glob("*/*.jpg"))
    classes = sorted({path.parent.name for path in files})
    for path in files:
        yield path.read_bytes(), classes.index(path.parent.name)


def checked(node: Node, before: str, old: str, folder: Path) -> str:
    """The output of the page's check."""
    check = blocks("Four steps")[0].replace("grpc://127.0.0.1:8815", node.url)
    return output(f"{before}\n{check}\ncheck({old})", folder)


@pytest.fixture
def imported_by(start: StartNode, bowstring: Bowstring, tmp_path: Path) -> Callable[[str, str, str], Node]:
    """Run an import of the table, of a path in the place of the page's, and serve what it made."""

    def run(command: str, theirs: str, ours: str) -> Node:
        assert theirs in command
        words = shlex.split(command.replace(theirs, ours))
        assert words[0] == "bowstring"
        bowstring(*words[1:], "--store", tmp_path / "store")
        return start(store=tmp_path / "store")

    return run


def test_from_webdataset(imported_by: Callable[[str, str, str], Node], shards: str, tmp_path: Path) -> None:
    command, old = step("WebDataset")
    node = imported_by(command, "photos-train-{0000..0011}.tar", shards)
    before = f"import webdataset as wds\nshards = {shards!r}"
    assert checked(node, before, old, tmp_path) == f"{TRAIN} samples; 0 lost, 0 too many"
    changed = f"((image + b'x' if n == 7 else image, label) for n, (image, label) in enumerate({old}))"
    assert checked(node, before, changed, tmp_path) == f"{TRAIN} samples; 1 lost, 1 too many"


@pytest.mark.nightly  # test_grain.py and test_frameworks_page.py read with Grain in `make test`
def test_from_grain(start: StartNode, folder: Path, tmp_path: Path) -> None:
    """Its pipeline, the import of its records, the check, and its pipeline on a DataSource."""
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(tmp_path / "photos.array_record"), "group_size:1")
    for pair in pairs(folder):
        writer.write(pickle.dumps(pair))
    writer.close()
    pipeline, imports = blocks("Grain")
    around = AROUND.replace("TRANSFORM", "small") + GRAIN
    ran(around + pipeline, tmp_path)
    (tmp_path / "empty").mkdir()
    node = start(store=tmp_path / "empty")
    source = pipeline.partition("pipeline =")[0]
    output(f"{around}{source}{imports.replace('grpc://127.0.0.1:8815', node.url)}\nprint()", tmp_path)
    found = re.search(r"^\| Grain \| .* \| `(.*?)` \|$", PAGE.read_text(), re.MULTILINE)
    assert found
    assert checked(node, f"{GRAIN}{source}", found[1], tmp_path) == f"{TRAIN} samples; 0 lost, 0 too many"
    ours = re.search(r"`(source = DataSource\(.*?\))`", PAGE.read_text(), re.DOTALL)
    assert ours
    switched = pipeline.replace('source = ArrayRecordDataSource("photos.array_record")', ours[1])
    assert switched != pipeline
    begin = "from bowstring.grain import DataSource\nparse = lambda sample: (sample['image'], sample['label'])\n"
    ran(around + begin + switched.replace("grpc://127.0.0.1:8815", node.url), tmp_path)


# The results of a program for its records.
GRAIN = """
import io
import pickle
from PIL import Image

def parse(record):
    return pickle.loads(record)

def decode(record):
    image, label = parse(record)
    return {"image": small(Image.open(io.BytesIO(image))).numpy(), "label": label}
"""
