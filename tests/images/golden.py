"""Makes fetch/operators/images/testdata: small odd files, and what Pillow 12.1 makes of them.

Run by hand when operators are added, with Pillow 12.1.1 and numpy alone:

    go build -o build/apply ./tests/images/apply && python tests/images/golden.py build/apply

The binary is asked for the boxes that are drawn. The pixels are Pillow's.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import PIL
from PIL import Image, ImageOps

OUT = Path(__file__).parents[2] / "fetch" / "operators" / "images" / "testdata"
FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "nearest": Image.Resampling.NEAREST,
    "lanczos": Image.Resampling.LANCZOS,
    "box": Image.Resampling.BOX,
    "hamming": Image.Resampling.HAMMING,
}
RNG = np.random.default_rng(20)


def photo(width: int, height: int) -> Image.Image:
    """Waves, noise and boxes of one colour."""
    y, x = np.mgrid[0:height, 0:width].astype(float)
    a = np.stack([128 + 90 * np.sin(x / 17 + c) + 60 * np.cos(y / (9 + c) + x / 31) for c in range(3)], -1)
    a += RNG.normal(0, 9, a.shape)
    for _ in range(5):
        i, j = RNG.integers(0, height), RNG.integers(0, width)
        a[i : i + height // 4, j : j + width // 4] = RNG.integers(0, 256, 3)
    return Image.fromarray(np.clip(a, 0, 255).astype(np.uint8))


def files() -> dict[str, bytes]:
    """The corpus: each name says what is odd about it."""
    made: dict[str, bytes] = {}

    def save(name: str, image: Image.Image, **options: Any) -> None:
        b = io.BytesIO()
        image.save(b, {"jpg": "JPEG", "tif": "TIFF"}.get(name[-3:], name.rpartition(".")[2].upper()), **options)
        made[name] = b.getvalue()

    for size in ((1, 1), (3, 40), (17, 33), (67, 51)):
        tag = f"{size[0]}x{size[1]}"
        save(f"420-{tag}.jpg", photo(*size), quality=80)
        save(f"progressive-{tag}.jpg", photo(*size), quality=85, progressive=True)
    save("444.jpg", photo(50, 41), quality=95, subsampling=0)
    save("422-restart.jpg", photo(90, 41), quality=70, subsampling=1, restart_marker_blocks=2)
    save("optimized-100.jpg", photo(40, 30), quality=100, optimize=True)
    save("grey.jpg", photo(45, 37).convert("L"), quality=75)
    save("cmyk.jpg", photo(45, 37).convert("CMYK"), quality=75)
    save("rgb.jpg", photo(33, 35), quality=90, keep_rgb=True)
    for orientation in (2, 5, 6, 7):
        exif = Image.Exif()
        exif[274] = orientation
        save(f"exif-{orientation}.jpg", photo(30, 21), quality=80, exif=exif)
    rgba = photo(31, 22)
    rgba.putalpha(photo(31, 22).convert("L"))
    save("rgba.png", rgba)
    save("palette.png", photo(31, 22).quantize(9), transparency=3)
    save("bits.png", photo(31, 22).convert("1"))
    save("transparent.gif", photo(31, 22).quantize(12), transparency=2)
    save("lossy.webp", photo(47, 32), quality=60)
    save("alpha.webp", rgba, quality=60)
    save("lossless.webp", photo(21, 12), lossless=True)
    save("lzw.tif", photo(31, 22), compression="tiff_lzw")
    return made


class Apply:
    """The operators themselves, asked for what they draw."""

    def __init__(self, binary: str) -> None:
        self.process = subprocess.Popen([binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def drawn(self, path: Path, steps: list[dict[str, Any]], position: int) -> dict[int, dict[str, float]]:
        """The random numbers of each step at a position of epoch 1 of seed 3."""
        key = {"Seed": 3, "Epoch": 1, "Position": position}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"in": str(path), "out": "/dev/null", "steps": steps, "Key": key}) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        assert not answer["error"], answer
        return {d["Step"]: {v["Name"]: v["Number"] for v in d["Values"]} for d in answer["drawn"]}


def step(name: str, **params: Any) -> dict[str, Any]:
    return {"name": name, "params": params}


def main() -> None:
    assert PIL.__version__.startswith("12.1"), PIL.__version__
    apply = Apply(sys.argv[1])
    OUT.mkdir(exist_ok=True)
    cases = []

    def expect(name: str, steps: list[dict[str, Any]], image: Any, position: int = 0) -> None:
        data = image if isinstance(image, bytes) else np.asarray(image).tobytes()
        cases.append({"file": name, "steps": steps, "position": position, "sha256": hashlib.sha256(data).hexdigest()})

    for number, (name, data) in enumerate(files().items()):
        path = OUT / name
        path.write_bytes(data)
        opened = Image.open(path)
        rgb = opened.convert("RGB")
        expect(name, [step("Decode")], rgb)
        expect(name, [step("Decode", mode="L")], rgb.convert("L"))
        expect(name, [step("Decode"), step("ToImage")], np.asarray(rgb).transpose(2, 0, 1).tobytes())
        expect(name, [step("Decode", apply_exif_orientation=True)], ImageOps.exif_transpose(rgb))
        quality = 10 + 90 * (number % 10) // 9
        saved = io.BytesIO()
        rgb.save(saved, "JPEG", quality=quality)
        expect(name, [step("Decode"), step("EncodeJPEG", quality=quality)], saved.getvalue())
        for filter_name, resample in FILTERS.items():
            resize = step("Resize", size=[24, 31], interpolation=filter_name)
            expect(name, [step("Decode"), resize], rgb.resize((31, 24), resample))
            crop = step("RandomResizedCrop", size=[16, 20], interpolation=filter_name)
            steps = [step("Decode"), crop, step("RandomHorizontalFlip"), step("RandomVerticalFlip")]
            drawn = apply.drawn(path, steps, number)
            left, top = drawn[1]["left"], drawn[1]["top"]
            image = rgb.crop((left, top, left + drawn[1]["width"], top + drawn[1]["height"])).resize((20, 16), resample)
            image = ImageOps.mirror(image) if drawn[2]["flip"] else image
            image = ImageOps.flip(image) if drawn[3]["flip"] else image
            expect(name, steps, image, number)
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    (OUT / "golden.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
