"""Parts that the cases of `make bench` share: bounds, rounds, intervals, and the page that is made of the bounds."""

from __future__ import annotations

import math
import random
import re
from pathlib import Path

import bounds
import confidence
import harness
import pytest
from harness import Context, Figure, Result

ROOT = Path(__file__).parent.parent
NO_BOUND = "\N{EN DASH}"
PAGES = ROOT / "docs" / "benchmarks"


def context(least: int, most: int) -> Context:
    return Context(binary=Path(), root=Path(), folder=Path(), rounds=least, most=most)


def test_page_of_bounds_is_up_to_date() -> None:
    assert (PAGES / "bounds.md").read_text() == bounds.page(), "run python bench/run.py --bounds"


@pytest.mark.parametrize(("n", "k", "coverage"), [(5, 1, 0.9375), (6, 1, 0.9688), (9, 2, 0.9609), (20, 6, 0.9586)])
def test_intervals_are_those_of_tables(n: int, k: int, coverage: float) -> None:
    """Tables of the sign test have these ranks."""
    found = confidence.interval([float(i) for i in range(1, n + 1)])
    assert (found.low, found.high) == (k, n + 1 - k)
    assert math.isclose(found.coverage, coverage, abs_tol=1e-4)


@pytest.mark.parametrize("n", [6, 9, 15, 20])
def test_intervals_cover_the_median(n: int) -> None:
    """Of skewed values, whose median is known."""
    rng = random.Random(n)
    times = 4000
    hits = 0
    for _ in range(times):
        found = confidence.interval([rng.lognormvariate(0, 1) for _ in range(n)])
        hits += found.low <= 1 <= found.high
    assert hits / times > confidence.LEVEL - 0.015, f"seed {n}"


def test_rounds_end_when_the_ratios_are_sure() -> None:
    """Not before the least number, and not because one of two is sure."""
    steady: list[float] = []
    late: list[float] = []
    for round_ in context(6, 40).repeat(steady, late):
        steady.append(2.0)
        late.append(1.0 if round_ % 8 else 5.0)
    assert len(late) > 6
    assert confidence.interval(late).narrow(0.02)
    assert not confidence.interval(late[:-1]).narrow(0.02)
    assert sum(1 for _ in context(6, 40).repeat(steady)) == 6


def test_rounds_are_bounded() -> None:
    """By their number, by time, and to the least where nothing is watched."""
    unsure = [1.0, 2.0] * 10
    assert list(context(2, 5).repeat(unsure, warm=2)) == [-2, -1, 0, 1, 2, 3, 4]
    assert list(context(2, 5).repeat()) == [0, 1]
    late = context(2, 5)
    late.seconds = -1
    assert list(late.repeat(unsure)) == [0, 1]


def figures_of(case: str, **other: float | list[float]) -> Result:
    """A result with each figure of a case, which are 1 apart from some."""
    return Result(case, [Figure(name, other.get(name, 1.0)) for name in bounds.BOUNDS[case]])


def test_figures_have_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is not in the table is an error; one that is missing is one in a smoke run."""
    few = Result("shm_faults", [Figure("wrong", 0)])
    few.check()
    with pytest.raises(harness.FiguresError, match="has the figure swiftness"):
        Result("shm_faults", [Figure("swiftness", 1.0)]).check()
    with pytest.raises(harness.FiguresError, match="wrong is no number"):
        Result("shm_faults", [Figure("wrong", math.nan)]).check()
    monkeypatch.setattr(harness, "SMOKE", True)
    with pytest.raises(harness.FiguresError, match="no figure leaked_bytes"):
        few.check()
    figures_of("audio_ops").check()


@pytest.mark.parametrize(
    ("smoke", "wrong", "seconds", "reached"),
    [
        (False, [0], 0.5, True),
        (False, [0], 5, False),
        (False, [1], 0.5, False),
        (False, [0, 0, 1], 0.5, False),
        (True, [0], 5, True),
        (True, [1], 5, False),
    ],
)
def test_smoke_runs_judge_mistakes_alone(
    monkeypatch: pytest.MonkeyPatch, smoke: bool, wrong: list[float], seconds: float, reached: bool
) -> None:
    """Each round counts: a mistake in one of three is no less of one."""
    monkeypatch.setattr(harness, "SMOKE", smoke)
    right = dict.fromkeys(("leaked_bytes", "refs_wrong", "refs_leaked_bytes"), 0.0)
    result = figures_of("shm_faults", **right, wrong=wrong, held_after_s=[seconds])
    assert result.all_reached == reached


def test_last_line_says_how_sure_it_is() -> None:
    line = Result("tls", [Figure("ratio_1conn", [0.9, 1.2, 1.1, 1.3, 1.2, 1.2]), Figure("failed", 0)]).as_json()
    assert line["ratio_1conn"] == 1.2
    assert line["intervals"] == {"ratio_1conn": [0.9, 1.3]}
    assert line["unsure"] == line["quiet"] == ["ratio_1conn"]
    assert line["coverage"] == 0.969
    assert line["reached"]


def test_cases_have_bounds_in_the_table_alone() -> None:
    """Each case has its row of the table, and no case compares by itself."""
    sources = {path.stem: path.read_text() for path in (ROOT / "bench/cases").glob("*.py")}
    named = {name for text in sources.values() for name in re.findall(r'Result\(\s*"(\w+)"', text)}
    assert named == bounds.BOUNDS.keys()
    assert not [
        name for name, text in sources.items() if "at_least" in text or "at_most" in text.replace("_at_most", "")
    ]


def documented(line: str) -> list[tuple[str, str, str]]:
    """Case, figure and bound of a row of method.md such as "| shm `ratio_1`, `ratio_2` | meaning | ≥ 3, 2.5 |"."""
    row = re.match(r"\| (\w+) (`.*?`(?:, `.*?`)*) \|.*\| ([^|]*[^| ][^|]*) \|$", line)
    if not row:
        return []
    names = re.findall(r"`(\S+?)`", row[2])
    said = [part.lstrip("≤≥ ").replace(",", "") for part in row[3].split(";")[0].split(", ")]
    said += said[-1:] * (len(names) - len(said))  # one bound for all
    return [(row[1], name, bound) for name, bound in zip(names, said, strict=True)]


def test_documents_have_the_bounds_of_the_table() -> None:
    """method.md says what each figure means, with its bound beside it, or a dash."""
    rows = [row for line in (PAGES / "method.md").read_text().splitlines() for row in documented(line)]
    assert len(rows) > 80
    wrong = []
    for case, name, said in rows:
        bound = bounds.BOUNDS.get(case, {}).get(name)
        want = None
        if bound:
            want = bound.at_most if bound.at_least is None else bound.at_least
        if said != NO_BOUND if want is None else not math.isclose(float(said), want):
            wrong.append(f"{case} {name}: the page has {said}, bench/bounds.py {want}")
    assert not wrong
