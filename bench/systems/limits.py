"""Limits of a control group, as Kubernetes sets them for a pod: CPU time and memory of a process and its children."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 100_000  # as the kubelet has it
NAME = f"bowstring-{os.getpid()}"


def groups() -> dict[str, Path]:
    """The control groups to make, by controller; with version 2 it is one for all."""
    if (ROOT / "cgroup.controllers").exists():
        return dict.fromkeys(("cpu", "memory"), ROOT / NAME)
    return {name: ROOT / name / NAME for name in ("cpu", "memory")}


def settings(cpus: float, memory: int) -> dict[Path, str]:
    """The files of the limits, with what is written to each."""
    made = groups()
    quota = round(cpus * PERIOD_US)
    if made["cpu"] == made["memory"]:
        return {made["cpu"] / "cpu.max": f"{quota} {PERIOD_US}", made["memory"] / "memory.max": str(memory)}
    return {
        made["cpu"] / "cpu.cfs_period_us": str(PERIOD_US),
        made["cpu"] / "cpu.cfs_quota_us": str(quota),
        made["memory"] / "memory.limit_in_bytes": str(memory),
    }


@contextlib.contextmanager
def limited(cpus: float, memory: int) -> Iterator[str]:
    """Run the `with` block, and what it starts, within limits; yields why there are none, or nothing.

    Making control groups needs root. Processes that the block started must have ended when it is left.
    """
    before = own() or {folder.parent / "cgroup.procs" for folder in groups().values()}
    try:
        for folder in groups().values():
            folder.mkdir(exist_ok=True)
        for path, text in settings(cpus, memory).items():
            path.write_text(text)
        for folder in groups().values():
            (folder / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        yield f"control groups cannot be made: {error.strerror} ({error.filename})"
        return
    try:
        yield ""
    finally:
        for path in before:
            path.write_text(str(os.getpid()))
        for folder in groups().values():
            with contextlib.suppress(OSError):  # a process that still ends
                folder.rmdir()


def own() -> set[Path]:
    """Where this process is written to be back in its own groups of CPU time and memory."""
    found = set()
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers and (ROOT / "cgroup.controllers").exists():
            found.add(ROOT / path.lstrip("/") / "cgroup.procs")
        for name in {"cpu", "memory"} & set(controllers.split(",")):
            found.add(ROOT / name / path.lstrip("/") / "cgroup.procs")
    return {path for path in found if path.exists()}
