"""The plots of docs/benchmarks are those that bench/plots.py makes of the stored figures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import matplotlib as mpl
import plots
import pytest


@pytest.mark.slow
def test_plots_are_up_to_date(tmp_path: Path) -> None:
    plots.draw(plots.stored(), tmp_path)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    kept = {path.name: path.read_text() for path in plots.PAGES.glob("*.svg")}
    assert made.keys() == kept.keys(), "run python bench/plots.py"
    assert all("<text" in text and len(text) < 40_000 for text in kept.values())
    (version,) = set(re.findall(r"plots\.py, matplotlib ([\d.]+)", "".join(kept.values())))
    if version == mpl.__version__:  # another version may place glyphs elsewhere
        assert made == kept, "run python bench/plots.py"


def test_figures_of_a_run_replace_stored_ones() -> None:
    """The last line of a case counts; lines of rounds, other cases and unfinished ones do not."""
    stored = plots.stored()
    lines = [
        {"case": "objects_cost", "side": "http", "s_per_gb": 9.0},
        {"case": "objects_cost", "http_s_per_gb": 0.7, "tls_s_per_gb": 1.0, "reached": True},
        {"case": "spill", "server_cpu_s_per_gb": 0.2, "reached": False},
        {"case": "plan", "ns_per_index": 1, "reached": True},
    ]
    new = plots.taken(stored, "\n".join(["a table", *map(json.dumps, lines)]))
    assert new["objects_cost"]["http_s_per_gb"] == 0.7
    assert new["objects_cost"]["tls_s_per_gb"] == 1.0
    assert {name for name in stored if stored[name] != new[name]} == {"objects_cost"}
