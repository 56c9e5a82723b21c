"""install: a wheel in an empty environment, without Go, to trained epochs; and the size of the container image."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sysconfig
import time
import venv
from pathlib import Path

from harness import Context, Figure, Need, Result, emit, needs
from sizes import sized

MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
PHOTOGRAPHS = sized(320, smoke=64)


ROOT = Path(__file__).parent.parent.parent
WHEELS, LAYOUT = ROOT / "build" / "wheels", ROOT / "build" / "image"


def wheel() -> Path | None:
    """The wheel of this machine."""
    wheels = sorted(WHEELS.glob(f"*_{platform.machine()}.whl"))
    return wheels[0] if len(wheels) == 1 else None


def missing() -> str:
    """Why there is nothing to install."""
    return "" if wheel() and LAYOUT.exists() else "no wheel or no image: run `make wheels image` first"


@needs(Need("wheels and image", missing))
def run(context: Context) -> Result:
    """Take what `make wheels image` left. Its dependencies are installed already: torch alone is gigabytes."""
    package = wheel()
    if not package:
        raise RuntimeError(missing())
    environment = context.folder / "environment"
    venv.create(environment, with_pip=True)
    begun = time.monotonic()
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(package)]
    subprocess.run([environment / "bin" / "python", *install], check=True)
    seconds = time.monotonic() - begun
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "needed.pth").write_text(sysconfig.get_path("purelib"))
    path = "/usr/bin:/bin"
    kept = {name: value for name, value in os.environ.items() if name in ("HOME", "TMPDIR")}
    begun = time.monotonic()
    done = subprocess.run(
        [environment / "bin" / "bowstring", "demo", "--count", str(PHOTOGRAPHS), "--dir", context.folder / "demo"],
        check=True,
        capture_output=True,
        text=True,
        env=kept | {"PATH": path},
    )
    demo = time.monotonic() - begun
    if "every sample came exactly once an epoch" not in done.stdout:
        raise RuntimeError(done.stdout + done.stderr)
    index = json.loads((LAYOUT / "index.json").read_text())
    (digest,) = (m["digest"] for m in index["manifests"] if m["platform"]["architecture"] == MACHINE)
    manifest = json.loads((LAYOUT / "blobs" / digest.replace(":", "/")).read_text())
    image = sum(layer["size"] for layer in manifest["layers"]) / 1e6
    emit(case="install", wheel_mb=round(package.stat().st_size / 1e6, 1), install_s=round(seconds, 1))
    return Result(
        "install",
        [Figure("demo_s", round(seconds + demo, 1)), Figure("image_mb", round(image, 1))],
    )
