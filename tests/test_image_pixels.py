"""Pixels of the operators on images, beside those of torchvision: on images of Pillow, and on tensors."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

ROOT = Path(__file__).parent.parent
torchvision = pytest.importorskip("torchvision")
pytest.importorskip("torchvision.transforms.v2")
pytestmark = pytest.mark.slow


class Apply:
    """The operators, in a process of their own."""

    def __init__(self, folder: Path) -> None:
        self.out = folder / "out"
        self.binary = folder / "apply"
        subprocess.run(["go", "build", "-o", self.binary, "./tests/images/apply"], cwd=ROOT, check=True)  # noqa: S607

    def run(self, source: Path, steps: list[dict[str, Any]], position: int = 0) -> tuple[dict[str, Any], bytes]:
        """Carry steps out; what they drew, and the bytes."""
        key = {"Seed": 11, "Epoch": 2, "Position": position}
        request = {"in": str(source), "out": str(self.out), "steps": steps, "Key": key}
        done = subprocess.run([self.binary], input=json.dumps(request), check=True, capture_output=True, text=True)
        answer: dict[str, Any] = json.loads(done.stdout)
        assert not answer["error"], answer["error"]
        answer["values"] = [[(v["Name"], v["Number"]) for v in d["Values"]] for d in answer["drawn"] or []]
        return answer, self.out.read_bytes()


@pytest.fixture(scope="module")
def apply(tmp_path_factory: pytest.TempPathFactory) -> Apply:
    return Apply(tmp_path_factory.mktemp("apply"))


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(4)
    y, x = np.mgrid[0:211, 0:280].astype(float)
    waves = np.stack([128 + 90 * np.sin(x / 17 + c) + 60 * np.cos(y / (9 + c) + x / 31) for c in range(3)], -1)
    pixels = np.clip(waves + rng.normal(0, 9, waves.shape), 0, 255).astype(np.uint8)
    path = tmp_path_factory.mktemp("photo") / "photo.jpg"
    Image.fromarray(pixels).save(path, quality=90)
    return path


def step(name: str, **params: Any) -> dict[str, Any]:
    return {"name": name, "params": params}


def pixels(answer: dict[str, Any], data: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8).reshape(answer["dims"])


def test_colour_jitter(apply: Apply, photo: Path) -> None:
    functional = torchvision.transforms.v2.functional
    jitter = step("ColorJitter", brightness=0.4, contrast=0.5, saturation=0.6, hue=0.3)
    for position in range(5):
        answer, data = apply.run(photo, [step("Decode"), jitter], position)
        image = Image.open(photo).convert("RGB")
        drawn = dict(answer["values"][0])
        for name in sorted((n for n in drawn if not n.endswith("_order")), key=lambda n: drawn[n + "_order"]):
            image = getattr(functional, "adjust_" + name)(image, drawn[name])
        np.testing.assert_array_equal(pixels(answer, data), np.asarray(image))


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_rand_augment(apply: Apply, photo: Path, interpolation: str) -> None:
    theirs = torchvision.transforms.v2.RandAugment(interpolation=interpolation)
    names = list(theirs._AUGMENTATION_SPACE)
    for position in range(20):
        ours = step("RandAugment", interpolation=interpolation, magnitude=position + 5)
        answer, data = apply.run(photo, [step("Decode"), ours], position)
        image = Image.open(photo).convert("RGB")
        values = answer["values"][0]
        for (_, op), (_, magnitude) in zip(values[::2], values[1::2], strict=True):
            mode = torchvision.transforms.InterpolationMode(interpolation)
            image = theirs._apply_image_or_video_transform(
                image, names[int(op)], magnitude, interpolation=mode, fill=theirs._fill
            )
        np.testing.assert_array_equal(pixels(answer, data), np.asarray(image), str(values))


@pytest.mark.parametrize("expand", [False, True])
def test_rotation(apply: Apply, photo: Path, expand: bool) -> None:
    for degrees in ([-170, 170], [90, 90], [180, 180], [-90, -90]):
        answer, data = apply.run(
            photo, [step("Decode"), step("RandomRotation", degrees=degrees, expand=expand, fill=9)]
        )
        image = torchvision.transforms.v2.functional.rotate(
            Image.open(photo).convert("RGB"), answer["values"][0][0][1], expand=expand, fill=9
        )
        np.testing.assert_array_equal(pixels(answer, data), np.asarray(image))


def test_blur_is_within_one(apply: Apply, photo: Path) -> None:
    answer, data = apply.run(photo, [step("Decode"), step("GaussianBlur", kernel_size=[7, 5])])
    sigma = answer["values"][0][0][1]
    image = torchvision.transforms.v2.functional.gaussian_blur(Image.open(photo).convert("RGB"), [7, 5], [sigma, sigma])
    far = np.abs(pixels(answer, data).astype(int) - np.asarray(image))
    assert far.max() <= 1
    assert (far > 0).mean() < 0.01


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_normalised(apply: Apply, photo: Path, dtype: str) -> None:
    import torch

    functional = torchvision.transforms.v2.functional
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    to_dtype = step("ToDtype", dtype=dtype, scale=True)
    steps = [step("Decode"), step("ToImage"), to_dtype, step("Normalize", mean=mean, std=std)]
    answer, data = apply.run(photo, steps)
    tensor = functional.pil_to_tensor(Image.open(photo).convert("RGB"))
    want = functional.normalize(functional.to_dtype(tensor, getattr(torch, dtype), scale=True), mean, std)
    np.testing.assert_array_equal(np.frombuffer(data, np.dtype(dtype)).reshape(answer["dims"]), want.numpy())


def test_tensors_are_within_one(apply: Apply, photo: Path) -> None:
    functional = torchvision.transforms.v2.functional
    tensor = torchvision.io.decode_image(str(photo))
    for position in range(10):
        answer, data = apply.run(photo, [step("Decode"), step("RandomResizedCrop", size=96)], position)
        box = {name: int(number) for name, number in answer["values"][0]}
        want = functional.resized_crop(tensor, box["top"], box["left"], box["height"], box["width"], [96, 96])
        far = np.abs(pixels(answer, data).astype(int) - want.permute(1, 2, 0).numpy())
        assert far.max() <= 1
        assert (far > 0).mean() <= 0.02, box


def test_encoded_as_pillow_saves(apply: Apply, photo: Path) -> None:
    _, data = apply.run(photo, [step("Decode"), step("EncodeJPEG", quality=60)])
    saved = io.BytesIO()
    Image.open(photo).convert("RGB").save(saved, "JPEG", quality=60)
    assert data == saved.getvalue()
