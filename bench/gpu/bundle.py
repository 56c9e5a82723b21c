"""Write the folder that a machine with a GPU needs, because that machine has no network and no compiler.

    PYTHONPATH=bench:examples python -m gpu.bundle --out build/bench-gpu --wheel WHEEL --lab build/lab/bowstring-lab

`make bench-gpu` does that, with programs built as for a release.

The folder has bowstring's wheel with the program in it, bowstring-lab, the wheel's dependencies that are pure Python,
photographs, and the code of this run. `run.sh` in the folder runs it.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
from importlib.metadata import distribution
from pathlib import Path

from photos import PHOTOGRAPHS, draw

MOST = 60_000_000  # bytes of all files
COUNT, SIZE, QUALITY = 240, (500, 375), 85  # ImageNet's usual size
DEPENDENCIES = "hpack", "tenacity", "tqdm"  # of the package; NumPy and pyarrow have compiled parts, and come with torch
ROOT = Path(__file__).parent.parent.parent
CODE = {"node.py": "examples", "image_side.py": "bench"}  # modules of other folders that the run imports


def site(folder: Path) -> None:
    """Copy the dependencies as they are installed here: no index is asked, and the versions are those of the tests."""
    for name in DEPENDENCIES:
        installed = distribution(name)
        for file in installed.files or ():
            if file.suffix in {".py", ".typed"} or ".dist-info" in str(file.parent):
                target = folder / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(str(file.locate()), target)


def photographs(folder: Path, count: int) -> None:
    """Write crops of the photographs in scikit-image's wheel, all of one size."""
    folder.mkdir()
    labels = list(PHOTOGRAPHS)
    for i in range(count):
        label, number = labels[i % len(labels)], i // len(labels)
        draw(label, number).resize(SIZE).save(folder / f"{label}-{number:03d}.jpg", quality=QUALITY)


def write(out: Path, wheel: Path, lab: Path, count: int) -> int:
    """Write the folder, and return its bytes."""
    shutil.rmtree(out, ignore_errors=True)
    (out / "gpu").mkdir(parents=True)
    shutil.copy(wheel, out)
    with lab.open("rb") as program, gzip.open(out / "bowstring-lab.gz", "wb", 6) as packed:
        shutil.copyfileobj(program, packed)
    site(out / "site")
    photographs(out / "photos", count)
    for file in Path(__file__).parent.glob("*.py"):
        shutil.copy(file, out / "gpu")
    for name, place in CODE.items():
        shutil.copy(ROOT / place / name, out)
    shutil.copy(Path(__file__).with_name("run.sh"), out)
    return sum(file.stat().st_size for file in out.rglob("*") if file.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder; what it has is removed")
    parser.add_argument("--wheel", type=Path, required=True, help="with the program in it, as make wheel-for builds it")
    parser.add_argument("--lab", type=Path, required=True, help="the program bowstring-lab")
    parser.add_argument("--photos", type=int, default=COUNT, help=f"number of photographs ({COUNT})")
    args = parser.parse_args()
    size = write(args.out, args.wheel, args.lab, args.photos)
    if size > MOST:
        raise SystemExit(f"{args.out} has {size / 1e6:.1f} MB, and may have {MOST / 1e6:.0f}")
    print(f"{args.out} has {size / 1e6:.1f} MB; on a machine with a GPU: {args.out}/run.sh --out DIR")


if __name__ == "__main__":
    main()
