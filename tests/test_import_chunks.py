"""Files of LitData and of the package tfrecord, against what those libraries read from them."""

from __future__ import annotations

import io
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

Bowstring = Callable[..., subprocess.CompletedProcess[str]]


def picture(n: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (4 + n, 3), (n * 40 % 256, n, 7)).save(out, format="JPEG")
    return out.getvalue()


@pytest.mark.parametrize("level", ["none", "chunk", "batch", "sample"])
def test_litdata(imports: Callable[..., pa.Table], tmp_path: Path, level: str) -> None:
    litdata = pytest.importorskip("litdata", reason="litdata is not installed")
    writer_of = pytest.importorskip("litdata.streaming.writer")
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    rows: list[dict[str, Any]] = [
        {
            "image": Image.open(io.BytesIO(picture(n))),
            "raw": rng.bytes(n),
            "label": n - 3,
            "weight": n / 3,
            "good": n % 2 == 0,
            "text": "ä" * n,
            "nested": {"pair": (n, -n)},
            "matrix": rng.integers(-9, 9, (2, n + 1), dtype=np.int16),
            "tensor": torch.arange(n + 1, dtype=torch.float32),
        }
        for n in range(9)
    ]
    options: dict[str, Any] = {} if level == "none" else {"compression": "zstd", "compression_level": level}
    if level == "batch":
        options["compression_batch_size"] = 2
    writer = writer_of.BinaryWriter(str(tmp_path / "in"), chunk_size=4, **options)
    for n, row in enumerate(rows):
        writer[n] = row
    writer.done()
    writer.merge()
    table = imports(tmp_path / "in")
    assert table.num_rows == len(rows)
    theirs = litdata.StreamingDataset(str(tmp_path / "in"), shuffle=False)
    for n, (row, read_back) in enumerate(zip(rows, theirs, strict=True)):
        got = {name: table[name][n].as_py() for name in table.column_names}
        assert got["image"] == picture(n)
        assert got["raw"] == bytes(read_back["raw"]) == row["raw"]
        assert (got["label"], got["good"], got["text"]) == (read_back["label"], read_back["good"], read_back["text"])
        assert got["weight"] == read_back["weight"]
        assert (got["nested_pair_0"], got["nested_pair_1"]) == tuple(read_back["nested"]["pair"])
        assert got["matrix"] == np.asarray(read_back["matrix"]).tolist() == row["matrix"].tolist()
        assert got["tensor"] == read_back["tensor"].tolist()


def test_tfrecord(imports: Callable[..., pa.Table], tmp_path: Path) -> None:
    tfrecord = pytest.importorskip("tfrecord", reason="tfrecord is not installed")
    path = tmp_path / "in" / "train.tfrecord"
    path.parent.mkdir()
    writer = tfrecord.TFRecordWriter(str(path))
    for n in range(7):
        writer.write(
            {
                "image": (picture(n), "byte"),
                "name": (b"n%d" % n, "byte"),
                "label": (n - 3, "int"),
                "box": ([n / 4] * (n % 3), "float"),
            }
        )
    writer.close()
    table = imports(path.parent)
    theirs = list(
        tfrecord.tfrecord_loader(str(path), None, {"image": "byte", "name": "byte", "label": "int", "box": "float"})
    )
    assert table.num_rows == len(theirs) == 7
    for n, read_back in enumerate(theirs):
        assert table["image"][n].as_py() == bytes(read_back["image"]) == picture(n)
        assert table["name"][n].as_py().encode() == bytes(read_back["name"])
        assert table["label"][n].as_py() == int(read_back["label"][0])
        assert table["box"][n].as_py() == np.asarray(read_back["box"], dtype=np.float32).tolist()
