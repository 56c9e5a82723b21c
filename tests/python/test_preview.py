"""Text and HTML for people: nothing of the data is markup in them."""

from __future__ import annotations

import base64
import io
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import bowstring
import pyarrow as pa
import pytest
from node import Node
from PIL import Image

EVIL = "<script>alert(1)</script>&\"'"


def png(mode: str = "RGBA", size: tuple[int, int] = (300, 200)) -> bytes:
    out = io.BytesIO()
    Image.new(mode, size).save(out, "PNG")
    return out.getvalue()


ROWS = [
    {"name": "png", "label": 0, "image": png()},
    {"name": EVIL, "label": 1, "image": png("L", (5, 5))},
    {"name": "palette", "label": 2, "image": png("P")},
    {"name": "16 bits", "label": None, "image": png("I;16")},
    {"name": "cut short", "label": 9, "image": png()[:60]},
    {"name": "no image", "label": 1, "image": b"<b>bold</b>" * 200},
    {"name": "nothing", "label": 1, "image": b""},
    {"name": "x" * 100 + "\n" + "y", "label": 1, "image": b"\x89PNG"},
]


class Checker(HTMLParser):
    """Collects what HTML there is."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert tag in {"table", "thead", "tbody", "tr", "th", "td", "img", "audio", "small", "b", "div"}
        assert not [name for name, _ in attrs if name not in {"style", "src", "title", "alt", "controls", "preload"}]
        if tag == "img":
            self.images.append(dict(attrs))
        else:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory, binary: Any) -> Iterator[bowstring.Dataset]:
    root = tmp_path_factory.mktemp("preview")
    classes = f'["zero", "{EVIL.replace(chr(34), "")}", "two"]'
    schema = pa.schema(
        [
            ("name", pa.utf8()),
            pa.field("label", pa.int64(), metadata={"bowstring.classes": classes}),
            ("image", pa.large_binary()),
        ]
    )
    with Node(binary, root / "store", log=root / "log") as own:
        client = bowstring.connect(own.url)
        client.ingest("odd", pa.Table.from_pylist(ROWS, schema), source=EVIL, progress=False)
        yield client.dataset("odd").columns(["name", "label", "image"])


@pytest.fixture
def photos(node: Node) -> bowstring.Dataset:
    return bowstring.connect(node.url).dataset("photos", split="train")


def test_text(photos: bowstring.Dataset) -> None:
    preview = photos.columns(["id", "label", "width", "image"]).head(3)
    assert len(preview) == 3
    assert preview.table.num_rows == 3
    lines = repr(preview).splitlines()
    assert lines[0].split() == ["id", "label", "width", "image"]
    assert re.fullmatch(r"[0-9a-f-]{36}  0 \(astronaut\)  \d+ +<\d+(\.\d+)? KB>", lines[1])
    assert lines[-1] == "the first 3 of 270 rows of photos@1, split train"


def test_thumbnails(photos: bowstring.Dataset) -> None:
    shown = Checker(photos.head(7)._repr_html_())
    assert len(shown.images) == 7
    for image in shown.images:
        kind, data = str(image["src"]).split(",")
        assert kind == "data:image/jpeg;base64"
        small = Image.open(io.BytesIO(base64.b64decode(data)))
        assert max(small.size) == 96
        assert re.fullmatch(r"JPEG, \d+ x \d+, \d+(\.\d+)? KB", str(image["title"]))


def test_head_follows_the_order(photos: bowstring.Dataset) -> None:
    shuffled = photos.shuffle(4).columns(["position"])
    assert shuffled.head(9).table.equals(shuffled.to_arrow().slice(0, 9))
    assert len(photos.head(1000)) == 270
    assert len(photos.where("width < 0").head()) == 0
    with pytest.raises(bowstring.InvalidRequest):
        photos.head(0)


def test_nothing_of_the_data_is_markup(odd: bowstring.Dataset) -> None:
    preview = odd.head(10)
    shown = Checker(preview._repr_html_())
    assert len(shown.images) == 4  # what Pillow can read
    assert "data:image/png" in str(shown.images[0]["src"])  # it is transparent
    text = repr(preview)
    assert "<2.2 KB>" in text
    assert "9\n" not in text
    assert "0 (zero)" in text
    assert all(len(line) < 200 for line in text.splitlines())
    for html in (
        str(odd._repr_html_()),
        bowstring.connect(odd.client.uri).datasets()._repr_html_(),
        odd.explain()._repr_html_(),
    ):
        Checker(html)
        assert "<script>" not in html


def test_players(node: Node) -> None:
    """A sound has a player, unless it is large, and a notebook shows some rows of a dataset."""
    wave = b"RIFF\0\0\0\0WAVEfmt " + b"\0" * 100
    rows = {"key": ["a", "b", "c", "d"], "sound": [wave, wave + bytes(1 << 20), b"fLaC\0", b"RIFF none"]}
    client = bowstring.connect(node.url)
    client.ingest("players", pa.table(rows), progress=False)
    try:
        sounds = client.dataset("players").columns(["key", "sound"])
        html = sounds.head(4)._repr_html_()
        assert Checker(html).tags.count("audio") == 2
        assert base64.b64encode(wave).decode() in html
        assert Checker(str(sounds._repr_html_())).tags.count("audio") == 2
        assert Checker(str(sounds.columns(["key"])._repr_html_())).tags.count("audio") == 0
    finally:
        client.drop("players")


def test_without_pillow(odd: bowstring.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    html = odd.head(10)._repr_html_()
    assert Checker(html).images == []
    assert "&lt;2.2 KB&gt;" in html


def test_other_layouts(photos: bowstring.Dataset) -> None:
    assert len(Checker(photos.options(layout="huggingface").head(2)._repr_html_()).images) == 2
    assert len(Checker(photos.options(layout="binary").head(2)._repr_html_()).images) == 2


def test_explain(photos: bowstring.Dataset) -> None:
    narrow = photos.where("width >= 500").where("label < 5").select(range(100)).shuffle(1)
    plan = narrow.plan(batch=16, world_size=2)
    found = narrow.options(remainder="drop").explain(batch=16, world_size=2)
    assert (found.rows, found.steps) == (plan.rows - plan.rows % 16, plan.rows // 16)
    rows = [text for heading, text in found.lines if heading == "rows"]
    assert [int(text.split()[0]) for text in rows] == [
        300,
        270,
        photos.where("width >= 500").num_rows,
        photos.where("width >= 500").where("label < 5").num_rows,
        narrow.num_rows,
    ]
    text = repr(found)
    assert "where width >= 500" in text
    assert "shuffled by seed 1" in text
    assert "of 16 rows, 8 for each of 2 ranks" in text
    assert "left out" in text
    assert "in order of position; strict" in repr(photos.explain())
    assert "bytes in image" in repr(photos.explain())
    assert "served again" in repr(photos.options(remainder="pad").explain(batch=64))
    assert "image" not in repr(photos.columns(["label"]).explain())
    Checker(found._repr_html_())


def test_a_dataset_in_a_notebook(photos: bowstring.Dataset) -> None:
    html = photos._repr_html_()
    assert html is not None
    Checker(html)
    assert "270 rows, 26" in html
    assert "10 classes: astronaut, brick" in html
