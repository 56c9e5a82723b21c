"""Samples that are written one by one: repeated, after a kill, and by several processes."""

from __future__ import annotations

import io
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import bowstring
import numpy as np
import pytest
from bowstring._local import servers
from bowstring.errors import InvalidRequest
from PIL import Image

PIXELS = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)


@pytest.fixture(autouse=True)
def store(binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for a store. When the test is over, no server of it is left."""
    monkeypatch.setenv("BOWSTRING_BINARY", str(binary))
    monkeypatch.setenv("BOWSTRING_CACHE", str(tmp_path / "cache"))
    yield tmp_path / "store"
    for server in servers.known():
        server.stop()


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)))


def test_kinds_of_images(store: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(PIXELS).save(path)
    with bowstring.write("photos", into=store, flush_rows=2) as out:
        for name, image in {
            "path": path, "bytes": path.read_bytes(), "pillow": Image.open(path), "array": PIXELS,
        }.items():  # fmt: skip
            out.add(key=name, image=image, label=np.int64(3), box=np.array([1.5, 2.0]))
        out.add(key="gray", image=PIXELS[:, :, :1], label=None)
    rows = {row["key"]: row for row in out.dataset()}
    for name in ("path", "bytes", "pillow", "array"):
        assert (pixels(rows[name]["image"]) == PIXELS).all()
        assert rows[name]["box"] == [1.5, 2.0]
        assert rows[name]["label"] == 3
    assert (pixels(rows["gray"]["image"]) == PIXELS[:, :, 0]).all()
    field = out.dataset().schema.field("image")
    assert field.metadata[b"bowstring.media"] == b"image"
    opened = bowstring.open(f"{store.as_uri()}#photos", progress=False)
    assert len(opened) == 5


def test_repeated(store: Path) -> None:
    """A repeated sample changes nothing, a changed one takes the place of the other, and an exception sends nothing."""
    for _ in range(2):
        with bowstring.write("texts", into=store, flush_rows=2) as out:
            for n in range(5):
                out.add(data=b"%d" % n, label=n)
    assert sorted(out.dataset()["label"]) == list(range(5))
    with bowstring.write("texts", into=store, key="name") as out:
        pass  # nothing is sent
    out = bowstring.write("keyed", into=store)
    assert "a" not in out
    with out:
        out.add(key="a", data=b"1")
        out.add(key="a", data=b"2", note="more")
        assert "a" in out
    out = bowstring.write("keyed", into=store)
    assert "a" in out
    out.add(key="b", data=b"3")
    with pytest.raises(ZeroDivisionError), out:
        raise ZeroDivisionError
    rows = [{name: row[name] for name in ("key", "data", "note")} for row in bowstring.write("keyed", store).dataset()]
    assert rows == [{"key": "a", "data": b"2", "note": "more"}]


WRITER = """
    import sys, bowstring
    first, last = map(int, sys.argv[2:4])
    with bowstring.write("many", into=sys.argv[1], flush_rows=4) as out:
        for n in range(first, last):
            out.add(key=f"sample {n}", data=b"%d" % n, number=n)
            print(n, flush=True)
"""


def writer(store: Path, first: int, last: int) -> subprocess.Popen[str]:
    command: list[str | Path] = [sys.executable, "-c", textwrap.dedent(WRITER), store, str(first), str(last)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_processes_and_a_kill(store: Path) -> None:
    """Three processes write at once, and one is killed and runs again: each sample is there once, with its bytes."""
    running = [writer(store, first, first + 30) for first in (0, 20, 40)]
    killed = running[0]
    assert killed.stdout is not None
    for line in killed.stdout:
        if int(line) >= 10:
            break
    killed.kill()
    for process in running:
        process.communicate(timeout=600)
    again = writer(store, 0, 30)
    again.communicate(timeout=600)
    assert [process.returncode for process in (*running[1:], again)] == [0, 0, 0]
    rows = list(bowstring.write("many", into=store).dataset())
    assert sorted((row["number"], row["data"]) for row in rows) == [(n, b"%d" % n) for n in range(70)]


def test_names_of_a_store(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`~` is the home directory, and a path with `..` names the same store: it has one server."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    names: list[str | Path] = ["~/store", "store", "elsewhere/../store", store]
    for n, name in enumerate(names):
        with bowstring.write("texts", into=name) as out:
            out.add(key=n, data=b"1")
    assert len(out.dataset()) == len(names)
    assert [server.store for server in servers.known()] == [store.as_uri()]


def test_mistakes(store: Path) -> None:
    out = bowstring.write("mistakes", into=store)
    with pytest.raises(InvalidRequest, match="want text, an integer or bytes as a key"):
        out.add(key=1.5, data=b"1")
    with pytest.raises(InvalidRequest, match="got no column"):
        out.add()
    out.add(mixed=1)
    out.add(mixed="x")
    with pytest.raises(InvalidRequest, match="column mixed has values of different types"):
        out.flush()
    with pytest.raises(InvalidRequest, match="want 1 or more"):
        bowstring.write("mistakes", into=store, flush_rows=0)
