"""`make site` fails on a dead reference of any kind."""

from __future__ import annotations

from pathlib import Path

import pytest
import site_pages
from conftest import ROOT

DEAD = """
[page](nowhere.md), [heading](cli.md#no-such-heading), [object][bowstring.no_such_name], [file](../examples/nowhere.py)
"""


@pytest.mark.slow
def test_a_dead_reference_fails_the_site(tmp_path: Path) -> None:
    pages, out = tmp_path / "pages", tmp_path / "site"
    site_pages.stage(ROOT, pages)
    assert (pages / "README.md").exists()
    with (pages / "docs" / "where.md").open("a") as page:
        page.write(DEAD)
    (pages / "docs" / "orphan.md").write_text("# In no menu\n")
    done = site_pages.build(pages, out)
    assert done.returncode, done.stdout
    for wrong in (
        "'nowhere.md'",
        "'cli.md#no-such-heading'",
        "'bowstring.no_such_name'",
        "'../examples/nowhere.py'",
        "orphan.md",
    ):
        assert any(wrong in line for line in done.stdout.splitlines() if not line.startswith("INFO")), (
            wrong,
            done.stdout,
        )


def test_lists_as_the_site_reads_them() -> None:
    """A list after a line of text gets an empty line, and a nested item four spaces; code stays as it is."""
    text = "Text:\n- a\n  - b\n- c\n```sh\nx\n- d\n  - e\n```\n"
    assert site_pages.lists(text) == "Text:\n\n- a\n    - b\n- c\n```sh\nx\n- d\n  - e\n```\n"
