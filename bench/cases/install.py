"""install: a wheel in an empty environment, without Go, to trained epochs; and the size of the container image."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sysconfig
import time
import venv

from harness import Context, Figure, Result, emit

MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
PHOTOGRAPHS = 320


def run(context: Context) -> Result:
    """Take what `make wheels image` left. Its dependencies are installed already: torch alone is gigabytes."""
    wheels = sorted((context.root / "build" / "wheels").glob(f"*_{platform.machine()}.whl"))
    layout = context.root / "build" / "image"
    if len(wheels) != 1 or not layout.exists():
        message = "no wheel or no image: run `make wheels image` first"
        raise RuntimeError(message)
    environment = context.folder / "environment"
    venv.create(environment, with_pip=True)
    begun = time.monotonic()
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheels[0])]
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
    index = json.loads((layout / "index.json").read_text())
    (digest,) = (m["digest"] for m in index["manifests"] if m["platform"]["architecture"] == MACHINE)
    manifest = json.loads((layout / "blobs" / digest.replace(":", "/")).read_text())
    image = sum(layer["size"] for layer in manifest["layers"]) / 1e6
    emit(case="install", wheel_mb=round(wheels[0].stat().st_size / 1e6, 1), install_s=round(seconds, 1))
    return Result(
        "install",
        [Figure("demo_s", round(seconds + demo, 1)), Figure("image_mb", round(image, 1))],
    )
