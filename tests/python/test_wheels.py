"""A wheel with the program in it: in an environment that has nothing else of ours, the demo runs to trained epochs."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT

pytestmark = pytest.mark.slow

PLATFORM = "manylinux_2_17_x86_64" if os.uname().machine == "x86_64" else "manylinux_2_17_aarch64"


@pytest.fixture(scope="module")
def wheel(binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheels")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT / "python"],
        check=True,
        capture_output=True,
        env=os.environ | {"BOWSTRING_WHEEL_PROGRAM": str(binary), "BOWSTRING_WHEEL_PLATFORM": PLATFORM},
    )
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of a new environment. The package's dependencies are those of the tests."""
    root = tmp_path_factory.mktemp("environment")
    venv.create(root, with_pip=True)
    subprocess.run(
        [root / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel], check=True
    )
    (site,) = root.glob("lib/python*/site-packages")
    (site / "needed.pth").write_text(sysconfig.get_path("purelib"))
    return root / "bin"


def test_what_is_in_it(wheel: Path, binary: Path) -> None:
    assert wheel.name.endswith(f"-py3-none-{PLATFORM}.whl")
    with zipfile.ZipFile(wheel) as inside:
        (program,) = (info for info in inside.infolist() if info.filename.endswith(".data/scripts/bowstring"))
        assert inside.read(program) == binary.read_bytes()
        (about,) = (name for name in inside.namelist() if name.endswith(".dist-info/WHEEL"))
        assert b"Root-Is-Purelib: false" in inside.read(about)


def run(program: Path, *words: str | Path, path: str = "/usr/bin:/bin") -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name in ("HOME", "PYTHONPYCACHEPREFIX", "TMPDIR")}
    return subprocess.run(
        [program, *words], check=False, capture_output=True, text=True, timeout=600, env=kept | {"PATH": path}
    )


def test_the_demo(environment: Path, tmp_path: Path) -> None:
    done = run(environment / "bowstring", "demo", "--count", "320", "--dir", tmp_path / "demo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every sample came exactly once an epoch" in done.stdout
    assert "epoch 1: 288 samples" in done.stdout
    assert (tmp_path / "demo" / "photos" / "train" / "cat" / "cat-00000.jpg").exists()


def test_the_demo_without_the_package(binary: Path, tmp_path: Path) -> None:
    """A program without a Python beside it takes that of the path, and says what it lacks."""
    assert "Python" in run(binary, "demo", path=str(tmp_path)).stderr
    venv.create(tmp_path / "bare", with_pip=False)
    done = run(binary, "demo", path=str(tmp_path / "bare" / "bin"))
    assert done.returncode == 1
    assert "No module named 'bowstring'" in done.stderr
    assert "pip install 'bowstring[torch]'" in done.stderr
