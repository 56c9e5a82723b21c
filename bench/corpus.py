"""A corpus whose documents have real lengths: the sources of Python's standard library."""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path

WORD = re.compile(rb"\w+|[^\w\s]")
"""What stands for a token: a word, a number or a sign."""


def document_lengths() -> list[int]:
    """How many tokens each source of the standard library of the Python that runs this has, its tests among them."""
    paths = sysconfig.get_paths()
    library, installed = Path(paths["stdlib"]), {"site-packages", "dist-packages"}
    files = (f for f in sorted(library.rglob("*.py")) if not installed & set(f.relative_to(library).parts))
    return [len(WORD.findall(f.read_bytes())) for f in files]
