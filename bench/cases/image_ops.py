"""image_ops: JPEG to random resized crop, operators alone, beside Pillow 12.1 and torchvision, by processor time."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from harness import Context, Figure, Result, emit, go_benchmark, median
from photos import PHOTOGRAPHS, photograph
from PIL import Image

SECONDS = 3.0
PHOTOS = 64


def folder(context: Context) -> Path:
    """Photographs of 500 x 375 pixels and some 110 KB."""
    made = context.folder / "photos-500x375"
    if made.exists():
        return made
    made.mkdir()
    rng = np.random.default_rng(0)
    sources = [photograph(name) for names in PHOTOGRAPHS.values() for name in names]
    for number in range(PHOTOS):
        image = sources[number % len(sources)]
        part = rng.uniform(0.7, 1) * min(image.width / 500, image.height / 375)
        width, height = int(500 * part), int(375 * part)
        x, y = int(rng.integers(0, image.width - width + 1)), int(rng.integers(0, image.height - height + 1))
        small = image.crop((x, y, x + width, y + height)).resize((500, 375), Image.Resampling.LANCZOS)
        grain = np.asarray(small).astype(float) + rng.normal(0, 6, (375, 500, 3))
        for quality in range(96, 40, -3):
            data = io.BytesIO()
            Image.fromarray(np.clip(grain, 0, 255).astype(np.uint8)).save(data, "JPEG", quality=quality)
            if data.tell() < 118_000:
                break
        (made / f"{number:03d}.jpg").write_bytes(data.getvalue())
    return made


def pillow12(context: Context) -> Path:
    """Pillow of the contract's version, beside the one that the tests have."""
    target = context.root / "build" / "peers" / "pillow-12.1.1"
    if not target.exists():
        install: list[str | Path] = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--target",
            target,
            "pillow==12.1.1",
        ]
        subprocess.run(install, check=True, timeout=300)
    return target


def side(context: Context, name: str, photos: Path) -> float:
    """Images per processor second of a Python side."""
    env = dict(os.environ)
    if name == "pillow":
        env["PYTHONPATH"] = str(pillow12(context))
    script = context.root / "bench" / "image_side.py"
    command: list[str | Path] = [sys.executable, script, name, photos, str(SECONDS)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=env, timeout=120)
    return float(done.stdout)


def run(context: Context) -> Result:
    """Sides by turns, a round after the other; ratios of each round, and their median."""
    photos = folder(context)
    os.environ["BOWSTRING_PHOTOS"] = str(photos)
    ratios: dict[str, list[float]] = {"pillow": [], "torchvision": []}
    rates: list[float] = []
    for _ in range(context.rounds):
        flags = ("-benchtime=1500x", "-count=1")
        ours = go_benchmark(context, "image_ops", "./fetch/operators/images", "BenchmarkRecipe", *flags)["images/cpu-s"]
        rates.append(ours)
        for name, values in ratios.items():
            theirs = side(context, name, photos)
            emit(case="image_ops", side=name, images_per_cpu_s=theirs, bowstring=ours)
            values.append(ours / theirs)
    return Result(
        "image_ops",
        [
            Figure("vs_pillow", median(ratios["pillow"]), at_least=2.0),
            Figure("vs_torchvision", median(ratios["torchvision"]), at_least=1.3),
        ],
        details={"images_per_cpu_s": median(rates)},
    )
