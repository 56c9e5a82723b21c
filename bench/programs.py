"""The programs of examples/trainers, run on two ranks, and what they have trained on.

    python bench/programs.py PROGRAM ARGUMENT ...

runs one where torchaudio is for another torch than the one that is installed: transformers imports it with its Trainer,
which would fail.
"""

from __future__ import annotations

import itertools
import json
import os
import runpy
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAMS = {
    "torch": "with_torch.py",
    "StatefulDataLoader": "with_stateful.py",
    "Lightning": "with_lightning.py",
    "Accelerate": "with_accelerate.py",
    "HF Trainer": "with_transformers.py",
    "Ray Train": "with_ray.py",
    "Grain": "with_grain.py",
    "FSDP and DCP": "with_titan.py",
}
RANKS = 2
# Programs that resume with another number of ranks and worker processes, and that number; the others keep it.
ELASTIC = {"with_grain.py": 3, "with_titan.py": 3}
EPOCHS = 2


@dataclass
class Found:
    """The samples that a framework's ranks have trained on, in `epochs` epochs."""

    lost: int  # samples that did not come in an epoch
    doubled: int  # and those that came again
    same_order_epochs: int  # pairs of epochs with one order


def stop_and_go_on(program: str, url: str, dataset: str, folder: Path, stop: int, **options: Any) -> None:
    """Run a program of examples/trainers on two ranks for `stop` steps, and then in new processes to its end."""
    run_program(program, url, dataset, folder, stop, workers=2, **options)
    ranks = ELASTIC.get(program, RANKS)
    run_program(program, url, dataset, folder, ranks=ranks, workers=2 if ranks == RANKS else 1, **options)


def run_program(
    program: str, url: str, dataset: str, folder: Path, stop: int = -1, *, ranks: int = RANKS, **options: Any
) -> None:
    """Run a program of examples/trainers on a number of ranks, to its end."""
    path = Path(__file__).parent.parent / "examples" / "trainers" / program
    runner = [__file__] if program == "with_transformers.py" else []
    given = [f"--{name}={value}" for name, value in options.items()]
    command: list[str | Path] = [*runner, path, url, dataset, folder, f"--epochs={EPOCHS}", f"--stop={stop}", *given]
    if program != "with_ray.py":  # which starts its workers itself
        command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *command]
    done = subprocess.run(
        [sys.executable, *command],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled", "RAY_TRAIN_V2_ENABLED": "0"},
    )
    if done.returncode:
        raise RuntimeError(f"{program} ended with {done.returncode}:\n{done.stdout[-6000:]}")


def trained_on(folder: Path) -> dict[int, list[list[int]]]:
    """The positions that all ranks together have trained on, step by step of each epoch."""
    steps: dict[tuple[int, int], list[int]] = {}
    for path in sorted(folder.glob("seen-*.jsonl")):
        for line in map(json.loads, path.read_text().splitlines()):
            steps.setdefault((line["epoch"], line["step"]), []).extend(line["positions"])
    found: dict[int, list[list[int]]] = {}
    for (epoch, _), positions in sorted(steps.items()):
        found.setdefault(epoch, []).append(positions)
    return found


def judged(epochs: dict[int, list[list[int]]], wanted: set[int], count: int = EPOCHS) -> Found:
    """The errors in the epochs that were trained on."""
    lost = doubled = 0
    for epoch in range(count):
        came = Counter(itertools.chain(*epochs.get(epoch, [])))
        lost += len(wanted - set(came))
        doubled += sum(times - 1 for times in came.values())
    doubled += sum(len(step) for epoch, steps in epochs.items() if epoch >= count for step in steps)
    same = sum(a == b for a, b in itertools.combinations(epochs.values(), 2))
    return Found(lost, doubled, same)


def main() -> None:
    """Run a program without torchaudio, if that cannot be imported."""
    try:
        import torchaudio  # noqa: F401
    except (ImportError, OSError, RuntimeError):
        sys.modules["torchaudio"] = None  # type: ignore[assignment]
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
