"""Wheels of what is installed here, so that an environment without a network can be installed from them by pip."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
import io
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from packaging.requirements import Requirement
from packaging.tags import parse_tag
from packaging.utils import canonicalize_name

_INSTALLED = {"INSTALLER", "REQUESTED", "direct_url.json", "RECORD"}  # an installer writes these


def needed(requirement: str) -> list[importlib.metadata.Distribution]:
    """The installed distributions that satisfy a requirement, with all that they require."""
    found: dict[tuple[str, str], importlib.metadata.Distribution] = {}
    todo = [(Requirement(requirement), "")]
    while todo:
        wanted, extra = todo.pop()
        if wanted.marker and not wanted.marker.evaluate({"extra": extra}):
            continue
        distribution = importlib.metadata.distribution(wanted.name)
        for one in ("", *wanted.extras):
            if (key := (canonicalize_name(wanted.name), one)) not in found:
                found[key] = distribution
                todo += [(Requirement(text), one) for text in distribution.requires or []]
    return list({name: distribution for (name, _), distribution in found.items()}.values())


def link(distribution: importlib.metadata.Distribution, site: Path, programs: Path) -> None:
    """Install a distribution in another root as it is installed here, by hard links: torch has gigabytes."""
    for file in distribution.files or ():
        if ".." in file.parts or file.suffix == ".pyc":
            continue
        target = site / file
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            target.hardlink_to(Path(str(distribution.locate_file(file))).resolve())
        except OSError:  # another file system
            shutil.copy(str(distribution.locate_file(file)), target)
    for entry in distribution.entry_points.select(group="console_scripts"):
        script = programs / entry.name
        module, _, function = entry.value.partition(":")
        text = f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n"
        script.write_text(f"#!/usr/local/bin/python\n{text}")
        script.chmod(0o755)


def pack(distribution: importlib.metadata.Distribution, into: Path) -> Path:
    """Write the wheel of an installed distribution, without compression.

    Files outside of site-packages are left out: the installer makes the programs of entry points again.
    """
    wheel = distribution.read_text("WHEEL") or ""
    parsed = [tag for line in wheel.splitlines() if line.startswith("Tag:") for tag in parse_tag(line[4:].strip())]
    tags = [".".join(sorted(part)) for part in zip(*((t.interpreter, t.abi, t.platform) for t in parsed), strict=True)]
    tags = [".".join(sorted(set(tag.split(".")))) for tag in tags]
    (info,) = {
        file.parts[0]
        for file in distribution.files or ()
        if file.name == "WHEEL" and file.parts[0].endswith(".dist-info")
    }
    path = into / f"{info.removesuffix('.dist-info')}-{'-'.join(tags)}.whl"
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as out:
        for file in distribution.files or ():
            if ".." in file.parts or file.suffix == ".pyc" or (file.parts[0] == info and file.name in _INSTALLED):
                continue
            at = Path(str(distribution.locate_file(file)))
            out.write(at, str(file))
            hashed = f"{file.hash.mode}={file.hash.value}" if file.hash else ""
            rows.writerow((str(file), hashed or _digest(at), at.stat().st_size))
        rows.writerow((f"{info}/RECORD", "", ""))
        out.writestr(f"{info}/RECORD", record.getvalue())
    return path


def _digest(path: Path) -> str:
    digest = hashlib.sha256(path.read_bytes()).digest()
    return f"sha256={base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


def build(package: Path, program: Path, into: Path) -> None:
    """Build the package's wheel with a program in it, as `make wheels` does."""
    machine = platform.machine()
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", into, package],
        check=True,
        stdout=subprocess.DEVNULL,
        env={
            **os.environ,
            "BOWSTRING_WHEEL_PROGRAM": str(program),
            "BOWSTRING_WHEEL_PLATFORM": f"manylinux_2_17_{machine}.manylinux2014_{machine}",
        },
    )
