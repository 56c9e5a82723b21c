"""The report of a long run: what fails it, and its page and plots."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from soak import report
from soak.resources import MIB, Series

HOUR = [float(t) for t in range(0, 3600, 10)]
CLEAN: dict[str, Any] = {
    "rows": 100,
    "epochs": 2,
    "killed": 1,
    **dict.fromkeys(("wrong", "lost", "doubled", "stuck", "failed", "left"), 0),
    "notes": [],
}
FLAT = Series("one.server.one.rss", HOUR, [200.0 * MIB] * len(HOUR))
GROWS = Series("one.client.tcp.descriptors", HOUR, [20 + t / 60 for t in HOUR])
EVENTS = [{"site": "one", "what": "bucket cut", "whom": "", "began": 60.0, "ended": 63.0}]


def made(series: list[Series], since: float = 0, seconds: float = 3600, **found: Any) -> dict[str, Any]:
    return report.figures(
        {**CLEAN, **found}, series, EVENTS, {"one.tcp": {"rows": 100}}, since=since, until=since + seconds, seed=1
    )


def test_clean_run_passes() -> None:
    assert made([FLAT])["passed"]


@pytest.mark.parametrize("figure", ["wrong", "lost", "doubled", "stuck", "failed", "left"])
def test_each_figure_fails_it(figure: str) -> None:
    assert not made([FLAT], **{figure: 1})["passed"]


def test_growth_fails_it() -> None:
    found = made([FLAT, GROWS])
    assert (found["leaks"], found["leaking"], found["passed"]) == (1, [GROWS.name], False)


def test_proportional_memory_is_not_judged() -> None:
    """It rises when a worker ends that shared pages with its parent."""
    found = made([Series("one.client.loader.pss", HOUR, [(100 + t) * MIB for t in HOUR])])
    assert (found["leaks"], found["passed"]) == (0, True)


def test_short_run_has_no_verdict_on_growth() -> None:
    found = made([GROWS], seconds=60)
    assert (found["leaks"], found["judged"], found["passed"]) == (0, False, True)


def test_beginning_and_end_are_not_judged() -> None:
    """A series that rises only while clients begin is no leak. One that falls when they end is a leak all the same."""
    falls = [v if t < 3000 else 5.0 for t, v in zip(HOUR, GROWS.values, strict=True)]
    stays = [v if t < 600 else 60.0 for t, v in zip(HOUR, GROWS.values, strict=True)]
    assert made([Series(GROWS.name, HOUR, falls)], since=600, seconds=2399)["leaks"] == 1
    assert made([Series(GROWS.name, HOUR, stays)], since=600, seconds=2399)["leaks"] == 0


def test_page_and_plots(tmp_path: Path) -> None:
    result = made([FLAT, GROWS], wrong=3, notes=["one tcp: three samples are wrong"])
    report.write(result, tmp_path)
    page = (tmp_path / "report.md").read_text()
    assert "**Failed**" in page
    assert "| wrong | 3 |" in page
    assert "three samples are wrong" in page
    assert f"| {GROWS.name} |" in page
    assert page.index(GROWS.name) < page.index(FLAT.name), "those that grow most are first"
    for mode in ("light", "dark"):
        assert f"one-{mode}.svg" in page
        plot = (tmp_path / f"one-{mode}.svg").read_text()
        assert "rss, MiB" in plot
        assert "descriptors" in plot
    assert json.loads((tmp_path / "soak.json").read_text()) == result
