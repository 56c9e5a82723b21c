"""Pixels of the operators on images, beside those of torchvision: on images of Pillow, and on tensors."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torchvision
import torchvision.transforms.v2
from PIL import Image, ImageCms

ROOT = Path(__file__).parent.parent
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


def fixed(*numbers: float) -> bytes:
    """Numbers as an ICC profile has them."""
    return b"".join(struct.pack(">i", round(number * 65536)) for number in numbers)


def profile(space: bytes, tags: dict[str, bytes]) -> bytes:
    """An ICC profile of a display."""
    tags = {
        "desc": b"desc\0\0\0\0" + struct.pack(">I", 2) + b"x\0" + b"\0" * 78,
        "wtpt": b"XYZ \0\0\0\0" + fixed(0.9642, 1, 0.8249),
        "cprt": b"text\0\0\0\0x\0\0\0",
        **tags,
    }
    begin = 132 + 12 * len(tags)
    table, body = struct.pack(">I", len(tags)), b""
    for name, data in tags.items():
        table += name.encode() + struct.pack(">II", begin + len(body), len(data))
        body += data + b"\0" * (-len(data) % 4)
    header = struct.pack(">I4sI4s4s4s", begin + len(body), b"test", 0x02400000, b"mntr", space, b"XYZ ")
    header += bytes(12) + b"acsp" + bytes(28) + fixed(0.9642, 1, 0.8249)
    return header.ljust(128, b"\0") + table + body


def formula(kind: int, *numbers: float) -> bytes:
    return b"para\0\0\0\0" + struct.pack(">HH", kind, 0) + fixed(*numbers)


def table(*values: int) -> bytes:
    return b"curv\0\0\0\0" + struct.pack(f">I{len(values)}H", len(values), *values)


def of_rgb(red: list[float], green: list[float], blue: list[float], curve: bytes) -> bytes:
    colours = {"rXYZ": red, "gXYZ": green, "bXYZ": blue}
    tags = {name: b"XYZ \0\0\0\0" + fixed(*xyz) for name, xyz in colours.items()}
    return profile(b"RGB ", tags | dict.fromkeys(("rTRC", "gTRC", "bTRC"), curve))


P3 = [0.515102, 0.241182, -0.001049], [0.291965, 0.692236, 0.041882], [0.157153, 0.066582, 0.784378]
ADOBE = [0.60974, 0.31111, 0.01947], [0.20528, 0.62567, 0.06087], [0.14919, 0.06322, 0.74457]
PROPHOTO = [0.79767, 0.28804, 0.0], [0.13519, 0.71188, 0.0], [0.03134, 0.00008, 0.82491]
PROFILES = {
    "Display P3": of_rgb(*P3, formula(3, 2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045)),
    "Adobe RGB": of_rgb(*ADOBE, table(563)),
    "ProPhoto": of_rgb(*PROPHOTO, table(*[round(65535 * (i / 1023) ** 1.8) for i in range(1024)])),
    "linear": of_rgb(*P3, table()),
    "BT.709": of_rgb(*ADOBE, formula(4, 1 / 0.45, 1 / 1.099, 0.099 / 1.099, 1 / 4.5, 0.081, 0, 0)),
    "sRGB": ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes(),
}
TO_SRGB = step("Decode", icc_profile="srgb")


def in_srgb(image: Image.Image, colours: bytes) -> npt.NDArray[np.int64]:
    """The result of Little CMS for an image."""
    source = ImageCms.ImageCmsProfile(io.BytesIO(colours))
    made = ImageCms.profileToProfile(image, source, ImageCms.createProfile("sRGB"), outputMode="RGB")
    assert made is not None
    return np.asarray(made).astype(np.int64)


@pytest.mark.parametrize("name", PROFILES)
def test_profiles_as_little_cms(apply: Apply, tmp_path: Path, name: str) -> None:
    colours = PROFILES[name]
    image = Image.fromarray(np.random.default_rng(1).integers(0, 256, (128, 256, 3), np.uint8))
    image.save(tmp_path / "a.png", icc_profile=colours)
    image.save(tmp_path / "b.tif", icc_profile=colours)
    image.save(tmp_path / "c.webp", icc_profile=colours, lossless=True)
    # A JPEG has profiles of more than 64 KiB in several segments.
    image.save(tmp_path / "d.jpg", icc_profile=colours + b"\0" * 70_000, quality=95)
    for file in sorted(tmp_path.iterdir()):
        far = np.abs(pixels(*apply.run(file, [TO_SRGB])) - in_srgb(Image.open(file).convert("RGB"), colours))
        assert far.max() <= 1, file.name
        assert (far > 0).mean() < 0.03, file.name
    # A crop decodes a part, and resizes what is converted.
    crop = [TO_SRGB, step("CenterCrop", size=[40, 60])]
    whole = pixels(*apply.run(tmp_path / "d.jpg", [TO_SRGB]))
    np.testing.assert_array_equal(pixels(*apply.run(tmp_path / "d.jpg", crop)), whole[44:84, 98:158])


def test_profiles_of_grey(apply: Apply, tmp_path: Path) -> None:
    grey = Image.fromarray(np.tile(np.arange(256, dtype=np.uint8), (4, 1)))
    colours = profile(b"GRAY", {"kTRC": table(563)})
    grey.save(tmp_path / "grey.png", icc_profile=colours)
    got = pixels(*apply.run(tmp_path / "grey.png", [TO_SRGB]))
    # Little CMS mixes what a table of some entries has.
    assert np.abs(got - in_srgb(grey, colours)).max() <= 2


def test_profiles_that_are_refused(apply: Apply, photo: Path, tmp_path: Path) -> None:
    image = Image.open(photo)
    cases = {
        "a table of colours": profile(b"RGB ", {"A2B0": bytes(40)}),
        'it is one of "CMYK"': profile(b"CMYK", {}),
        "one of grey, and its pixels are RGB": profile(b"GRAY", {"kTRC": table(563)}),
        "it has no header": b"nonsense, but long enough to be a profile",
    }
    for cause, colours in cases.items():
        image.save(tmp_path / "x.jpg", icc_profile=colours)
        with pytest.raises(AssertionError, match=cause):
            apply.run(tmp_path / "x.jpg", [TO_SRGB])
        apply.run(tmp_path / "x.jpg", [step("Decode")])
    image.convert("CMYK").save(tmp_path / "x.jpg", icc_profile=PROFILES["Display P3"])
    with pytest.raises(AssertionError, match="one of RGB, and its pixels are CMYK"):
        apply.run(tmp_path / "x.jpg", [TO_SRGB])
    with pytest.raises(AssertionError, match=r'icc_profile.*got "srgb" with mode "L"'):
        apply.run(photo, [step("Decode", icc_profile="srgb", mode="L")])
    answer, data = apply.run(photo, [TO_SRGB])  # without one it is sRGB already
    np.testing.assert_array_equal(pixels(answer, data), np.asarray(image))


def deep_png(values: npt.NDArray[np.uint16]) -> bytes:
    """A PNG of 16 bits a channel, which Pillow does not write in colours."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    height, width = values.shape[:2]
    header = struct.pack(">IIBBBBB", width, height, 16, 2 if values.ndim == 3 else 0, 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def test_sixteen_bits(apply: Apply, photo: Path, tmp_path: Path) -> None:
    """Values of 16 bits are Pillow's and torchvision's, bit for bit."""
    import torch

    rng = np.random.default_rng(8)
    colours = rng.integers(0, 65536, (37, 41, 3)).astype(np.uint16)
    grey = colours[:, :, 0]
    (tmp_path / "grey.png").write_bytes(deep_png(grey))
    (tmp_path / "colours.png").write_bytes(deep_png(colours))
    Image.fromarray(grey).save(tmp_path / "grey.tif")
    Image.fromarray(grey).save(tmp_path / "deflated.tif", compression="tiff_adobe_deflate")

    def ours(name: str, mode: str, *more: dict[str, Any]) -> npt.NDArray[np.uint16]:
        answer, data = apply.run(tmp_path / name, [step("Decode", mode=mode), *more])
        return np.frombuffer(data, "<u2").reshape(answer["dims"])

    for name in ("grey.png", "grey.tif", "deflated.tif"):
        with Image.open(tmp_path / name) as image:
            assert image.mode == "I;16"
            want = np.asarray(image)
        np.testing.assert_array_equal(want, grey)
        np.testing.assert_array_equal(ours(name, "I;16")[:, :, 0], want)
        np.testing.assert_array_equal(ours(name, "RGB;16"), np.stack([want] * 3, -1))
    tensor = torchvision.io.decode_image(str(tmp_path / "colours.png"), torchvision.io.ImageReadMode.UNCHANGED)
    assert tensor.dtype == torch.uint16
    np.testing.assert_array_equal(ours("colours.png", "RGB;16", step("ToImage")), tensor.numpy())
    with pytest.raises(AssertionError, match="it has 8 bits a channel"):
        apply.run(photo, [step("Decode", mode="RGB;16")])
