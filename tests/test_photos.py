"""The photographs that demo and tests use are real, varied, and the same everywhere."""

import hashlib
import io
from pathlib import Path

import photos
import PIL
import pytest
from PIL import Image

# SHA-256 over one crop of each class as JPEG, by Pillow's version: it brings its own decoder, resampling and encoder.
GOLDEN = {
    "12.3.0": "c8aa46b736e111543b848075f91039a90bec2497af67d5e8d1f5c445ac81fd7c",
    "13.0.0": "58cbd3983c49e7ab8f2caeeb22ba1ebeea7da0684947ec7a93ba9ac0f815a337",
}


def test_files_are_the_same_with_the_same_pillow() -> None:
    if PIL.__version__ not in GOLDEN:
        pytest.fail(f"no golden value for Pillow {PIL.__version__}: add one when the lock file changes")
    digest = hashlib.sha256()
    for label in photos.PHOTOGRAPHS:
        out = io.BytesIO()
        photos.draw(label, 1).save(out, "JPEG", quality=90)
        digest.update(out.getvalue())
    assert digest.hexdigest() == GOLDEN[PIL.__version__]


def test_a_second_run_writes_the_same_files(folder: Path, tmp_path: Path) -> None:
    list(photos.write_all(tmp_path, 40, workers=2))
    again = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*.jpg"))
    assert len(again) == 40
    for name in again:
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name


def test_files_are_of_natural_and_varied_size(folder: Path) -> None:
    sizes = [p.stat().st_size for p in folder.rglob("*.jpg")]
    assert len(sizes) == 300
    assert 90_000 < sum(sizes) / len(sizes) < 115_000
    assert max(sizes) > 4 * min(sizes)
    assert len(set(sizes)) > 0.95 * len(sizes)


def test_every_class_is_in_every_split(folder: Path) -> None:
    for split in ("train", "val"):
        assert {p.name for p in (folder / split).iterdir()} == set(photos.PHOTOGRAPHS)
    for path in folder.rglob("*.jpg"):
        with Image.open(path) as image:
            image.load()
            assert image.format == "JPEG"
            assert image.mode == "RGB"
