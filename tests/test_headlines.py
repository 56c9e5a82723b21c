"""The page of headlines is the one that its stored results give, and each system runs with small sizes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
import pytest
from conftest import ROOT
from systems import SYSTEMS, page
from systems.model import Json

DOCS = ROOT / "docs"


@pytest.mark.slow
def test_page_is_up_to_date(tmp_path: Path) -> None:
    page.render(tmp_path, SYSTEMS, page.stored(DOCS))
    assert (tmp_path / "headlines.md").read_text() == (DOCS / "headlines.md").read_text(), "run make headlines-page"
    made = {path.name: path.read_text() for path in (tmp_path / "headlines").glob("*.svg")}
    kept = {path.name: path.read_text() for path in (DOCS / "headlines").glob("*.svg")}
    assert made.keys() == kept.keys(), "run make headlines-page"
    versions = set(re.findall(r"plots\.py, matplotlib ([\d.]+)", "".join(kept.values())))
    if versions == {mpl.__version__}:  # another version may place glyphs elsewhere
        assert made == kept, "run make headlines-page"


def test_stored_results_are_of_full_size() -> None:
    assert not [name for name, kept in page.stored(DOCS).items() if kept["smoke"]]


def test_page_says_what_was_not_reached(tmp_path: Path) -> None:
    """A claim outside its bound stands there with its bound and the measurement that says why."""
    system = SYSTEMS[0]
    claim: Json = {
        "name": "kept",
        "says": "of the speed",
        "value": 0.91,
        "at_least": 0.97,
        "at_most": None,
        "reached": False,
    }
    claim["limit"] = "the 2 cores were 99 % busy"
    result: Json = dict.fromkeys(("date", "machine"), "x") | {"system": system.name, "versions": {"Python": "3"}}
    result |= {"load_before": 0.5, "minutes": 2.0, "rounds": 3, "smoke": False, "tables": [], "claims": [claim]}
    result |= {"left_out": {"Lance": "away"}}
    text = page.section(system, result)
    assert "not reached: 0.91 of 0.97; the 2 cores were 99 % busy" in text
    assert "Left out: Lance. away" in text
    assert "None are stored yet" in page.section(system, None)
    page.keep(tmp_path, SYSTEMS, {system.name: result})
    assert page.stored(tmp_path) == {system.name: result}


SMOKED = [pytest.param(s.name, marks=[] if s.name == "deli" else [pytest.mark.nightly], id=s.name) for s in SYSTEMS]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", SMOKED)
def test_a_system_runs(name: str, tmp_path: Path) -> None:
    command: list[str | Path] = [sys.executable, ROOT / "bench/headlines.py", name, "--smoke", "--dir", tmp_path]
    done = subprocess.run([*command, "--out", tmp_path / "docs"], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    (result,) = json.loads((tmp_path / "docs/headlines/results.json").read_text())
    assert result["system"] == name
    assert result["smoke"]
    assert result["claims"]
    assert (tmp_path / "docs/headlines" / f"{name}-dark.svg").exists()
    assert "Machine:" in (tmp_path / "docs/headlines.md").read_text()


def test_small_sizes_never_replace_the_page() -> None:
    command: list[str | Path] = [sys.executable, ROOT / "bench/headlines.py", "--smoke", "--out", DOCS]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--out" in done.stderr
