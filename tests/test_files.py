"""Files of Go and Python hold one idea each: one that is long holds one table, or is to be split."""

from __future__ import annotations

import os
from pathlib import Path

from conftest import ROOT

MOST = 400  # lines
NOT_OURS = {"build", "node_modules", "vendor"}

# Files that may be longer, each with its reason: which one table it holds.
LONG: dict[str, str] = {}


def long_files(root: Path) -> dict[str, int]:
    """The files below a folder that have more lines than they may, and how many these are."""
    found = {}
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in NOT_OURS and not name.startswith(".")]
        for path in (Path(folder, name) for name in names if name.endswith((".go", ".py"))):
            lines = path.read_bytes().count(b"\n")
            if lines > MOST:
                found[str(path.relative_to(root))] = lines
    return found


def test_files_are_short() -> None:
    found = long_files(ROOT)
    assert not {name: lines for name, lines in found.items() if name not in LONG}, "split them by what they hold"
    assert not LONG.keys() - found.keys(), "they are short: take them off the list"


def test_a_long_file_is_found(tmp_path: Path) -> None:
    for name, lines in (("a/long.go", 401), ("a/short.go", 400), ("b.py", 402), ("build/c.go", 999), (".d/e.py", 999)):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n" * lines)
    assert long_files(tmp_path) == {"a/long.go": 401, "b.py": 402}
