"""Unpack the image of this machine's processor: unpack.py LAYOUT DIR leaves DIR/rootfs and DIR/config.json."""

from __future__ import annotations

import json
import platform
import shutil
import sys
import tarfile
from pathlib import Path

MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]


def main(layout: Path, out: Path) -> None:
    def blob(digest: str) -> Path:
        return layout / "blobs" / digest.replace(":", "/")

    index = json.loads((layout / "index.json").read_text())
    (digest,) = (m["digest"] for m in index["manifests"] if m["platform"]["architecture"] == MACHINE)
    manifest = json.loads(blob(digest).read_text())
    shutil.rmtree(out, ignore_errors=True)
    (out / "rootfs").mkdir(parents=True)
    shutil.copy(blob(manifest["config"]["digest"]), out / "config.json")
    for layer in manifest["layers"]:
        with tarfile.open(blob(layer["digest"])) as inside:
            inside.extractall(out / "rootfs", filter="fully_trusted")  # noqa: S202


main(Path(sys.argv[1]), Path(sys.argv[2]))
