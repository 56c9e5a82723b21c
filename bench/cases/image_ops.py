"""image_ops: JPEG to random resized crop beside Pillow 12.1 and torchvision, by CPU time.

Operators alone, on photographs of two sizes; and delivered through Flight, beside a DataLoader that uses Pillow.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from harness import Context, Figure, Result, emit, go_benchmark, median
from node import Node
from photos import PHOTOGRAPHS, photograph
from PIL import Image
from ready import read
from sizes import sized

SECONDS = sized(3.0, smoke=0.2)
PHOTOS = sized(64, smoke=4)
LARGE = sized(8, smoke=2)  # photographs of 2,000 x 1,500
SERVED, EPOCHS = sized((256, 4), smoke=(16, 1))  # photographs that go through Flight, and how often


def large(context: Context) -> Path:
    """Photographs of 2,000 x 1,500 pixels, as cameras give them: crops of the same scenes, enlarged, with grain."""
    made = context.folder / "photos-2000x1500"
    if made.exists():
        return made
    made.mkdir()
    rng = np.random.default_rng(1)
    sources = [photograph(name) for names in PHOTOGRAPHS.values() for name in names]
    for number in range(LARGE):
        image = sources[number % len(sources)].resize((2000, 1500), Image.Resampling.LANCZOS)
        grain = np.asarray(image).astype(np.float32) + rng.normal(0, 4, (1500, 2000, 3)).astype(np.float32)
        Image.fromarray(np.clip(grain, 0, 255).astype(np.uint8)).save(made / f"{number:03d}.jpg", quality=88)
    return made


def folder(context: Context, count: int = PHOTOS) -> Path:
    """Photographs of 500 x 375 pixels and some 110 KB."""
    made = context.folder / ("photos-500x375" if count == PHOTOS else f"photos-500x375-{count}")
    if made.exists():
        return made
    made.mkdir()
    rng = np.random.default_rng(0)
    sources = [photograph(name) for names in PHOTOGRAPHS.values() for name in names]
    for number in range(count):
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


def dali(context: Context) -> Path:
    """Where `make nightly-dali` installs DALI; it is measured where it is there."""
    return context.root / "build" / "dali"


def side(context: Context, name: str, photos: Path) -> float:
    """Images per CPU second of a Python side."""
    env = dict(os.environ)
    if name == "pillow":
        env["PYTHONPATH"] = str(pillow12(context))
    if name == "dali":
        env["PYTHONPATH"] = str(dali(context))
    script = context.root / "bench" / "image_side.py"
    command: list[str | Path] = [sys.executable, script, name, photos, str(SECONDS)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=env, timeout=120)
    return float(done.stdout)


def stored(context: Context, name: str = "store-ready") -> Path:
    """An embedded store with photographs, under the name that the readers know. One server at a time opens it."""
    store = context.folder / name
    if not store.exists():
        context.bowstring("import", "--store", store, folder(context, SERVED), "bench")
    return store


def flight(context: Context, server: Node) -> float:
    """The CPU time of a DataLoader with Pillow, divided by Bowstring's, both for tensors in training."""
    ours = read("bowstring", server.url, server.pid, epochs=EPOCHS, workers=0)
    theirs = read("files", str(folder(context, SERVED)), pillow=pillow12(context), epochs=EPOCHS)
    emit(case="image_ops", part="flight", bowstring=ours, pillow=theirs)
    return (theirs["cpu_s"] / theirs["rows"]) / (ours["cpu_s"] / ours["rows"])


def alone(context: Context, photos: Path, passes: int, sides: dict[str, list[float]]) -> float:
    """Images per CPU second of the operators; adds the ratio to each side's."""
    os.environ["BOWSTRING_PHOTOS"] = str(photos)
    flags = (f"-benchtime={passes}x", "-count=1")
    ours = go_benchmark(context, "image_ops", "./fetch/operators/images", "BenchmarkRecipe", *flags)["images/cpu-s"][0]
    for name, values in sides.items():
        theirs = side(context, name, photos)
        emit(case="image_ops", photos=photos.name, side=name, images_per_cpu_s=theirs, bowstring=ours)
        values.append(ours / theirs)
    return ours


def run(context: Context) -> Result:
    """Sides in rotation, one round after the other: the ratio of each round, and the median."""
    small: dict[str, list[float]] = {"pillow": [], "torchvision": []}
    if dali(context).exists():
        small["dali"] = []
    big: dict[str, list[float]] = {"pillow": []}
    delivered: list[float] = []
    rates = []
    with Node(context.binary, stored(context)) as server:
        for _ in context.repeat(*small.values(), *big.values(), delivered):
            rates.append(alone(context, folder(context), 1500, small))
            alone(context, large(context), 100, big)
            delivered.append(flight(context, server))
    optional = [Figure("vs_dali_cpu", small["dali"])] if "dali" in small else []
    return Result(
        "image_ops",
        [
            *optional,
            Figure("vs_pillow", small["pillow"]),
            Figure("vs_torchvision", small["torchvision"]),
            Figure("large_vs_pillow", big["pillow"]),
            Figure("flight_vs_pillow", delivered),
        ],
        details={"images_per_cpu_s": median(rates)},
    )
