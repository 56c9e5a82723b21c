"""The notebooks run from their first cell to the last, and what is kept of their outputs is what a reader may see."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from node import Node

pytestmark = pytest.mark.slow

NOTEBOOKS = Path(__file__).parent.parent.parent / "notebooks"
NAMES = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
KEEP = bool(os.environ.get("KEEP_OUTPUTS"))  # `make notebooks`
CELL_SECONDS = 600
ATTEMPTS = {"stall_attribution": 3}  # it is about time, which other work on the machine takes, too
MOST_BYTES = 600_000
# They take a minute each. The others prove that notebooks run; Ray, Polars and stalls have tests of their own.
AGAIN = {"ray_polars_duckdb", "stall_attribution"}
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
A_PATH = re.compile(r"(?<![\w./])/(?:root|work|home|Users|tmp|usr|var|opt|builds?)/")


def read(name: str) -> Any:
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)  # type: ignore[no-untyped-call]


def code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds(cell: Any) -> set[str]:
    """The outputs of a cell: text that it prints, and types of values and pictures."""
    shown = [[o.name] if o.output_type == "stream" else list(o.get("data", ["error"])) for o in cell.outputs]
    return {kind for kinds in shown for kind in kinds}


def test_there_are_notebooks() -> None:
    assert NAMES == ["augment", "explore", "query_to_training", "ray_polars_duckdb", "stall_attribution"]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] if name in AGAIN else []) for name in NAMES]
)
def test_runs(
    name: str, start: Callable[..., Node], binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The assertions of a notebook hold, and it shows the same as when its outputs were kept."""
    # Folders of the kernel's own, so that the user's settings have no effect, and nothing remains.
    for variable in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable.lower()))
    (tmp_path / "cwd").mkdir()
    environment = os.environ | {
        "BOWSTRING_URI": start().url,
        "BOWSTRING_BINARY": str(binary),
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "RAY_AUTH_MODE": "disabled",  # else it leaves a token in the home directory
        "RAY_USAGE_STATS_ENABLED": "0",
    }

    for attempt in range(ATTEMPTS.get(name, 1), 0, -1):
        notebook = read(name)
        for cell in code(notebook):
            cell.outputs, cell.execution_count = [], None
        resources = {"metadata": {"path": str(tmp_path / "cwd")}}
        client = NotebookClient(
            notebook,
            timeout=CELL_SECONDS,
            startup_timeout=CELL_SECONDS,
            iopub_timeout=CELL_SECONDS,  # after four seconds, which is the default, outputs are lost
            kernel_name="python3",
            record_timing=False,
            resources=resources,
        )
        try:
            client.execute(env=environment)  # an assertion that fails, or any other error, is raised here
            break
        except CellExecutionError:
            if attempt == 1:
                raise

    if KEEP:
        notebook.metadata = METADATA
        nbformat.write(notebook, NOTEBOOKS / f"{name}.ipynb")  # type: ignore[no-untyped-call]
    for ran, kept in zip(code(notebook), code(read(name)), strict=True):
        assert kinds(ran) == kinds(kept), f"`make notebooks` keeps the outputs of\n{ran.source}"


@pytest.mark.parametrize("name", NAMES)
def test_kept_outputs(name: str) -> None:
    """They are of one run in order, small, and say nothing of the machine or of errors."""
    notebook = read(name)
    cells = code(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert notebook.metadata == METADATA
    assert (NOTEBOOKS / f"{name}.ipynb").stat().st_size < MOST_BYTES
    for cell in notebook.cells:
        assert not cell.metadata
    for cell in cells:
        for output in cell.outputs:
            assert output.output_type != "error"
            assert output.get("name") != "stderr", output.text
            texts = [output.get("text", ""), *(t for k, t in output.get("data", {}).items() if k.startswith("text/"))]
            for text in texts:
                assert not A_PATH.search(text), text
    assert any("image/png" in kinds(cell) for cell in cells)
    assert sum(cell.source.count("\nassert ") + cell.source.startswith("assert ") for cell in cells) >= 5


@pytest.mark.parametrize("name", NAMES)
def test_headings(name: str) -> None:
    """One title, at the top, and sections below it: what a reader's table of contents is made of."""
    cells = read(name).cells
    assert cells[0].cell_type == "markdown"
    first = [cell.source.splitlines()[0] for cell in cells if cell.cell_type == "markdown"]
    assert first[0].startswith("# ")
    headings = [line for line in first[1:] if line.lstrip().startswith("#")]
    assert len(headings) >= 3
    assert all(line.startswith("## ") for line in headings), headings
    assert not any(line.startswith(" ") for line in first), "a heading that has lost its mark"
