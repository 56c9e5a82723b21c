"""The machine of a run, and what is missing on it."""

from __future__ import annotations

import contextlib
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    "bowstring",
    "torch",
    "torchvision",
    "pyarrow",
    "pillow",
    "numpy",
    "nvidia-dali-cuda120",
    "nvidia-dali-cuda130",
)


def described() -> dict[str, Any]:
    """The machine, its card and the versions of packages; a package that is missing has none."""
    cpu = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    found: dict[str, Any] = {
        "cpu": cpu.partition(":")[2].strip() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "load_before": os.getloadavg()[0],
        "card": None,
        "versions": {"Python": platform.python_version()},
    }
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found["versions"][name] = version(name)
    try:
        import torch
    except ImportError:
        return found
    found["versions"]["CUDA"] = torch.version.cuda
    if torch.cuda.is_available():
        card = torch.cuda.get_device_properties(0)
        found["card"] = {
            "name": card.name,
            "memory_gib": round(card.total_memory / 2**30),
            "count": torch.cuda.device_count(),
        }
    return found
