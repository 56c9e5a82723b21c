"""The Python in README.md and in the pages of the protocol runs as it is, except for the size of the dataset.

Links between pages lead somewhere.
"""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
import site_pages
from bowstring._local import servers
from conftest import ROOT, StartNode
from markdown_it.token import Token
from node import Node
from wire import put
from words import MARKDOWN

DOCUMENTED = "grpc://127.0.0.1:8815"


def blocks(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)


@functools.cache
def parsed(page: Path) -> list[Token]:
    return MARKDOWN.parse(page.read_text())


def links(page: Path) -> Iterator[str]:
    """The targets of a page's links and images, except addresses with a scheme."""
    for child in (child for token in parsed(page) for child in token.children or []):
        if child.type in ("link_open", "image"):
            target = str(child.attrs["href" if child.type == "link_open" else "src"])
            if not re.match(r"[a-z]+:", target):
                yield target


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    tokens = parsed(page)
    titles = [tokens[n + 1] for n, token in enumerate(tokens) if token.type == "heading_open"]
    texts = ("".join(child.content for child in title.children or []) for title in titles)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in texts}


PAGES = [ROOT / name for name in site_pages.tracked(ROOT, "*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """The file and the heading of each link to a file of the repository exist."""
    for target in links(page):
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        if anchor and found.suffix == ".md":
            assert anchor in anchors(found), target


@pytest.mark.slow
def test_the_lines_in_the_readme(
    node: Node, binary: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "photos").symlink_to(folder)
    monkeypatch.setenv("BOWSTRING_BINARY", str(binary))
    monkeypatch.setenv("BOWSTRING_CACHE", str(tmp_path / "cache"))
    printed = []
    for block in blocks(ROOT / "README.md"):
        assert DOCUMENTED in block or 'open("photos/"' in block
        script = block.replace(DOCUMENTED, node.url)
        done = subprocess.run(
            [sys.executable, "-c", script],
            check=False,
            capture_output=True,
            text=True,
            timeout=600,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    (started,) = servers.known()
    assert started.stop()
    package, plain = printed
    assert plain.startswith("270 samples, ")
    assert "step 4 14 images" in plain
    assert " of 270 samples; ['astronaut', " in package
    assert "64 images; first label" in package


def test_the_lines_in_the_protocol(start: StartNode) -> None:
    node = start()
    rows = pa.table(
        {
            "file_name": [f"{n}.jpg" for n in range(2048)],
            "label": [n % 10 for n in range(2048)],
            "image": pa.array([n.to_bytes(4, "big") * 10 for n in range(2048)], pa.large_binary()),
        }
    )
    names: dict[str, Any] = {"table": rows}
    calls = [b for b in blocks(ROOT / "docs" / "protocol.md") if "grpc+tls" not in b]  # test_auth.py has those
    found = [calls[0], *blocks(ROOT / "docs" / "requests.md"), *calls[1:]]
    (upload,) = (n for n, block in enumerate(found) if block.startswith("put = "))
    with fl.connect(node.url) as client:
        # The upload makes the dataset that the other lines read, so it comes first, after the imports.
        for n in [0, upload, *range(1, upload), *range(upload + 1, len(found))]:
            # In place of 1.2 million rows there are 2,048.
            block = (
                found[n].replace(DOCUMENTED, node.url).replace("400000", "1999").replace('"step": 1000', '"step": 2')
            )
            exec(block, names)  # noqa: S102
            if n == upload:
                for part in range(2):  # the lines speak of snapshot 3
                    extra = rows.set_column(
                        0, "file_name", [[f"{part}-{name}" for name in rows["file_name"].to_pylist()]]
                    )
                    put(client, extra, dataset="imagenet", key="file_name", mode="append", media={"image": "image"})
    assert names["table"].column_names == ["image", "label"]
    assert names["about"]["step"] == 7 + 16
    assert names["info"].total_records == 3
    assert json.loads(names["chunk"].app_metadata.to_pybytes())["rows"] == 3
    assert set(names["seen"]) == {3, 4, 5}
    assert all(sorted(epoch) == list(range(3 * 2048)) for epoch in names["seen"].values())
    assert names["act"]("list", dataset="imagenet")[0]["newest"] == 3
    assert (names["merged"]["snapshot"], names["merged"]["matched"]) == (2, 2)
    altered = json.loads(names["altered"].body.to_pybytes())
    assert (altered["snapshot"], altered["rows"], altered["deleted"]) == (4, 1, 1)
