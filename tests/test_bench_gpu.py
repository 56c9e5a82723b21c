"""The run for machines with a GPU, in little, on the CPU: the folder is made, and its script measures all parts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import wheels
from conftest import ROOT
from gpu import bundle
from gpu.images import Images
from gpu.served import DELAYS, TRANSPORTS

FEW = 30  # photographs, as the others take seconds


def stripped(program: Path, folder: Path) -> Path:
    """The program as a release has it, without symbols."""
    target = folder / program.name
    if strip := shutil.which("strip"):
        subprocess.run([strip, "-o", target, program], check=True)
    else:
        pytest.skip("no strip on the path: the programs would be too large")
    return target


def test_says_that_torch_is_missing(tmp_path: Path) -> None:
    """Python has no packages here."""
    command: list[str | Path] = [sys.executable, "-S", "-m", "gpu.main", "--out", tmp_path]
    command += [part for name in ("--programs", "--photos", "--work") for part in (name, tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "bench")}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["left_out"] == {"all": "ModuleNotFoundError: No module named 'torch'"}


@pytest.mark.slow
@pytest.mark.timeout(900)  # it takes 47 s of CPU time
def test_the_folder_runs(binary: Path, lab: Path, tmp_path: Path) -> None:
    """Each part has its figures, and what needs a GPU is left out with the reason."""
    wheels.build(ROOT / "python", stripped(binary, tmp_path), tmp_path)
    (made,) = tmp_path.glob("*.whl")
    folder, out = tmp_path / "folder", tmp_path / "out"
    size = bundle.write(folder, made, stripped(lab, tmp_path), FEW)
    photographs = sum(path.stat().st_size for path in (folder / "photos").iterdir())
    assert size + photographs * (bundle.COUNT / FEW - 1) < bundle.MOST

    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [folder / "run.sh", "--dry", "--out", out],
        check=False,
        capture_output=True,
        text=True,
        env=environment | {"PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((out / "gpu.json").read_text())
    assert json.loads(done.stdout) == found
    assert found["left_out"] == {"images/nvjpeg": "there is no GPU", "images/dali": "nvidia.dali is not installed"}
    assert found["machine"]["versions"]["torch"]
    for place in ((f"{delay}ms", transport) for delay in DELAYS for transport in TRANSPORTS):
        images, language = (found[part][place[0]][place[1]] for part in ("images", "language"))
        shares = [
            images[name]["share_of_bound"] for name in Images.DECODERS if f"images/{name}" not in found["left_out"]
        ]
        assert len(shares) == 3
        shares.append(language["share_of_bound"])
        assert all(share["median"] > 0 and len(share["rounds"]) == 1 for share in shares)
    assert {kind for kind in found["copies"] if found["copies"][kind]["gb_per_s"]["median"] > 0} == {
        "pageable",
        "pinned",
        "ring",
    }
    assert not list(tmp_path.glob("bowstring-gpu-*"))
