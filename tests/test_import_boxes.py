"""Archives and folders that WebDataset, MosaicML and Hugging Face write, against what those libraries read of them."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.flight as fl
import pyarrow.parquet as pq
import pytest
import webdataset as wds
from conftest import StartNode
from PIL import Image
from wire import read

Bowstring = Callable[..., subprocess.CompletedProcess[str]]


def picture(n: int, form: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (4 + n, 3), (n * 40 % 256, n, 7)).save(out, format=form)
    return out.getvalue()


# --- WebDataset ----------------------------------------------------------------------------------------------------

# Files of a sample besides its picture, and their columns.
WDS: dict[str, tuple[list[dict[str, Any]], dict[str, list[Any]]]] = {
    "an object": ([{"json": {"a": 1, "b": {"c": "x"}}}], {"a": [1], "b_c": ["x"]}),
    "a list": ([{"json": [1, 2]}, {"json": []}], {"json": [[1, 2], []]}),
    "a text": ([{"json": json.dumps("ä")}, {"json": json.dumps("1.10")}], {"json": ["ä", "1.10"]}),
    "several dots": ([{"info.json": {"a": True}, "note.txt": "n", "count.cls": 3}] * 2,
                     {"info_a": [True] * 2, "note": ["n"] * 2, "count": [3] * 2}),
    "cls and txt": ([{"cls": 2, "txt": "1.10"}, {"cls": 0, "txt": ""}], {"label": [2, 0], "txt": ["1.10", ""]}),
    "npy": ([{"npy": np.arange(3, dtype=np.int16)}], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", WDS)
def test_webdataset_members(imports: Callable[..., pa.Table], tmp_path: Path, name: str) -> None:
    samples, want = WDS[name]
    path = tmp_path / "x.tar"
    with wds.TarWriter(str(path)) as tar:
        for n, sample in enumerate(samples):
            tar.write({"__key__": f"dir/k{n}", "png": picture(n), **sample})
    table = imports(path)
    for column, values in want.items():
        assert table[column].to_pylist() == values
    assert table["image"].to_pylist() == [picture(n) for n in range(len(samples))]
    first = "npy" if name == "npy" else "png"  # in the order of their names
    assert table["file_name"].to_pylist() == [f"dir/k{n}.{first}" for n in range(len(samples))]
    for n, sample in enumerate(wds.WebDataset(str(path), shardshuffle=False).decode()):
        if name == "npy":
            assert np.array_equal(np.load(io.BytesIO(table["npy"][n].as_py())), sample["npy"])
        if "info.json" in sample:
            assert sample["info.json"] == {"a": table["info_a"][n].as_py()}
        if name in ("a list", "a text"):
            assert sample["json"] == table["json"][n].as_py()


def tar_of(keys: str, form: int = tarfile.PAX_FORMAT, prefix: str = "") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for n, key in enumerate(keys):
            for ext, data in (("png", picture(n)), ("txt", key.encode())):
                member = tarfile.TarInfo(f"{prefix}{key}.{ext}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def zstd(data: bytes) -> bytes:
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, "zstd") as stream:
        stream.write(data)
    compressed: bytes = out.getvalue().to_pybytes()
    return compressed


JOINED = {
    "x.tar": lambda: tar_of("ab") + tar_of("cd") + tar_of("e"),
    "y.tar.gz": lambda: gzip.compress(tar_of("ab")) + gzip.compress(tar_of("cd")) + gzip.compress(tar_of("e")),
    "z.tgz": lambda: gzip.compress(tar_of("ab") + tar_of("cde")),
    "x.tar.zst": lambda: zstd(tar_of("ab")) + zstd(tar_of("cde")),
    "x.tar.bz2": lambda: bz2.compress(tar_of("abc")) + bz2.compress(tar_of("de")),
    "gnu.tar": lambda: tar_of("abcde", tarfile.GNU_FORMAT, "long/" * 40),
    "ustar.tar": lambda: tar_of("abcde", tarfile.USTAR_FORMAT, "folder/" * 20),
    "pax.tar": lambda: tar_of("abcde", tarfile.PAX_FORMAT, "gro\u0308ße/" * 40),
}


@pytest.mark.parametrize("name", JOINED)
def test_joined_tars(imports: Callable[..., pa.Table], tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(JOINED[name]())
    table = imports(tmp_path / name)
    assert table["txt"].to_pylist() == list("abcde")


@pytest.mark.parametrize("junk", ["text", "gzip", "cut"])
def test_behind_the_end(bowstring: Bowstring, tmp_path: Path, junk: str) -> None:
    whole = tar_of("ab")
    (tmp_path / "x.tar").write_bytes({
        "text": whole + b"junk",
        "gzip": gzip.compress(whole) + b"junk",
        "cut": whole + tar_of("c", tarfile.USTAR_FORMAT)[:700],
    }[junk])  # fmt: skip
    error = bowstring("import", tmp_path / "x.tar", "d", "--store", tmp_path / "store", status=1).stderr
    assert "x.tar: after 2 samples" in error
    assert ("cut short" if junk == "cut" else "unknown bytes behind the end") in error


# --- MosaicML ------------------------------------------------------------------------------------------------------


def same(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


MDS: dict[str, tuple[list[Any], Any]] = {
    "int": ([1, -(2**63)], pa.int64()), "uint64": ([np.uint64(2**64 - 1), np.uint64(1)], pa.uint64()),
    "int8": ([np.int8(-128), np.int8(127)], pa.int8()), "uint16": ([np.uint16(65535), np.uint16(0)], pa.uint16()),
    "float16": ([np.float16(0.5), np.float16(-2)], pa.float16()), "float32": ([np.float32(1.5)] * 2, pa.float32()),
    "float64": ([np.float64(1.1), np.float64("inf")], pa.float64()), "str": (["1.10", "ä"], pa.string()),
    "str_int": ([2**63, 5], pa.uint64()), "str_float": ([1.1, 1e300], pa.float64()),
    "ndarray:int16:2,3": ([np.arange(6, dtype=np.int16).reshape(2, 3)] * 2, None),
    "ndarray": ([np.zeros((2, 3)), np.ones((1, 400))], pa.list_(pa.list_(pa.float64()))),
    "ndarray:uint8": ([np.arange(5, dtype=np.uint8), np.arange(300, dtype=np.uint16).astype(np.uint8)],
                      pa.list_(pa.uint8())),
}  # fmt: skip


@pytest.mark.parametrize("encoding", MDS)
def test_mds_values(imports: Callable[..., pa.Table], tmp_path: Path, encoding: str) -> None:
    streaming = pytest.importorskip("streaming", reason="mosaicml-streaming is not installed")
    values, kind = MDS[encoding]
    with streaming.MDSWriter(out=str(tmp_path / "in"), columns={"x": encoding, "image": "png"}) as writer:
        for n, value in enumerate(values):
            writer.write({"x": value, "image": Image.open(io.BytesIO(picture(n)))})
    table = imports(tmp_path / "in")
    assert table["x"].to_pylist() == [same(v) for v in values]
    assert kind is None or table.schema.field("x").type == kind
    read_back = streaming.StreamingDataset(local=str(tmp_path / "in"), batch_size=1, shuffle=False)
    assert [same(row["x"]) for row in read_back] == table["x"].to_pylist()


@pytest.mark.parametrize("encoding", ["list[jpeg]", "list[png]", "jpeg_array", "jpegarray"])
def test_mds_images(imports: Callable[..., pa.Table], bowstring: Bowstring, tmp_path: Path, encoding: str) -> None:
    streaming = pytest.importorskip("streaming", reason="mosaicml-streaming is not installed")
    form = "PNG" if "png" in encoding else "JPEG"
    pictures = [[picture(n, form), picture(n + 5, form)] for n in range(3)]

    def write(name: str, rows: list[list[bytes]]) -> Path:
        with streaming.MDSWriter(out=str(tmp_path / name), columns={"x": encoding}) as writer:
            for row in rows:
                images = row if "array" in encoding else [Image.open(io.BytesIO(b)) for b in row]
                writer.write({"x": images})
        return tmp_path / name

    table = imports(write("in", pictures))
    read_back = streaming.StreamingDataset(local=str(tmp_path / "in"), batch_size=1, shuffle=False)
    for n, row in enumerate(read_back):
        for i, image in enumerate(row["x"]):
            got = Image.open(io.BytesIO(table[f"x_{i}"][n].as_py()))
            assert np.array_equal(np.asarray(got), np.asarray(image))
            assert table[f"x_{i}"][n].as_py() == pictures[n][i] or "array" not in encoding
    ragged = write("ragged", [pictures[0], pictures[0][:1]])
    error = bowstring("import", ragged, "r", "--store", tmp_path / "ragged-store", status=1).stderr
    assert "between 1 and 2 images a sample; a row has one image in a column" in error


@pytest.mark.parametrize("encoding", ["pkl", "pil", "list[pil]"])
def test_mds_refused(bowstring: Bowstring, tmp_path: Path, encoding: str) -> None:
    streaming = pytest.importorskip("streaming", reason="mosaicml-streaming is not installed")
    image = Image.open(io.BytesIO(picture(1)))
    with streaming.MDSWriter(out=str(tmp_path / "in"), columns={"x": encoding}) as writer:
        writer.write({"x": {"pkl": {"any": "thing"}, "pil": image, "list[pil]": [image]}[encoding]})
    error = bowstring("import", tmp_path / "in", "d", "--store", tmp_path / "store", status=1).stderr
    assert f"encoding {encoding} is" in error


# --- Hugging Face folders ------------------------------------------------------------------------------------------


def folder_of(root: Path, names: list[str]) -> dict[str, bytes]:
    content = {name: picture(n) for n, name in enumerate(names)}
    for name, data in content.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return content


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_file_name_columns(imports: Callable[..., pa.Table], tmp_path: Path, kind: str) -> None:
    root = tmp_path / "in"
    folder_of(root, ["images/1.png", "images/2.png", "masks/1.png", "masks/2.png"])
    rows = [
        {"image_file_name": f"images/{n}.png", "mask_file_name": f"masks/{n}.png", "caption": f"number {n}", "stars": n}
        for n in (1, 2)
    ]
    table = pa.Table.from_pylist(rows)
    if kind == "csv":
        table.to_pandas().to_csv(root / "metadata.csv", index=False)
    elif kind == "jsonl":
        (root / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pq.write_table(table, root / "metadata.parquet")
    got = imports(root)
    theirs = datasets.load_dataset("imagefolder", data_dir=str(root), split="train", cache_dir=str(tmp_path / "cache"))
    assert {"image", "mask", "caption", "stars"} <= set(theirs.column_names)
    for ours, row in zip(got.to_pylist(), theirs, strict=True):
        assert (ours["caption"], ours["stars"]) == (row["caption"], row["stars"])
        for column in ("image", "mask"):
            assert np.array_equal(np.asarray(Image.open(io.BytesIO(ours[column]))), np.asarray(row[column]))


def test_splits_and_metadata_in_folders(imports: Callable[..., pa.Table], tmp_path: Path) -> None:
    root = tmp_path / "in"
    folder_of(root, ["train/1.png", "train/2.png", "test/1.png"])
    for split, names in (("train", ["1.png", "2.png"]), ("test", ["1.png"])):
        lines = (json.dumps({"file_name": name, "caption": f"{split} {name}", "n": 1}) for name in names)
        (root / split / "metadata.jsonl").write_text("".join(f"{line}\n" for line in lines))
    got = imports(root, columns=["split", "caption", "n", "image"])
    for split in ("train", "test"):
        theirs = datasets.load_dataset("imagefolder", data_dir=str(root), split=split, cache_dir=str(tmp_path / "c"))
        ours = [row for row in got.to_pylist() if row["split"] == split]
        assert [row["caption"] for row in ours] == list(theirs["caption"])
        for row, their in zip(ours, theirs["image"], strict=True):
            assert np.array_equal(np.asarray(Image.open(io.BytesIO(row["image"]))), np.asarray(their))


# --- exports -------------------------------------------------------------------------------------------------------


@pytest.fixture
def made(bowstring: Bowstring, tmp_path: Path) -> Path:
    """A store with a dataset of two splits, odd classes, labels outside of them, nulls, and two blobs a row."""
    root = tmp_path / "source"
    root.mkdir()
    features = datasets.Features(
        {
            "image": datasets.Image(), "mask": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "", "a/b"]),
            "caption": datasets.Value("string"), "stars": datasets.Value("float32"),
            "boxes": datasets.Sequence(datasets.Sequence(datasets.Value("int16"), length=4)),
        }
    )  # fmt: skip
    for split, rows in (("train", 5), ("test", 2)):
        datasets.Dataset.from_dict(
            {
                "image": [{"bytes": picture(n), "path": f"{n}.png"} for n in range(rows)],
                "mask": [None if n == 1 else {"bytes": picture(n + 5), "path": None} for n in range(rows)],
                "label": [n % 4 - 1 for n in range(rows)],
                "caption": [None if n == 2 else f"0{n}.10" for n in range(rows)],
                "stars": [n / 3 for n in range(rows)],
                "boxes": [[[n, 1, 2, 3]] * n for n in range(rows)],
            },
            features=features,
        ).to_parquet(root / f"{split}-00000-of-00001.parquet")
    store = tmp_path / "made"
    bowstring("import", root, "d", "--store", store)
    return store


@pytest.mark.parametrize("to", ["out/", "out.parquet"])
def test_export_and_import(
    bowstring: Bowstring, imports: Callable[..., pa.Table], start: StartNode, made: Path, tmp_path: Path, to: str
) -> None:
    bowstring("get", "d", "--to", f"{tmp_path}/{to}", "--store", made)
    node = start(store=made)
    with fl.connect(node.url) as client:
        everything = read(client, dataset="d")
        want = read(client, dataset="d", columns=[*everything.column_names, "split"])
    node.stop()
    got = imports(tmp_path / to, columns=want.column_names)
    assert got.schema.equals(want.schema.remove_metadata()), (got.schema, want.schema)
    for name in ("label", "image", "mask"):
        assert got.schema.field(name).metadata == want.schema.field(name).metadata
    assert sorted(got.to_pylist(), key=lambda row: row["id"]) == sorted(want.to_pylist(), key=lambda row: row["id"])


def test_datasets_reads_an_exported_folder(bowstring: Bowstring, made: Path, tmp_path: Path) -> None:
    bowstring("get", "d", "--to", f"{tmp_path}/out/", "--store", made)
    theirs = datasets.load_dataset("imagefolder", data_dir=str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))
    assert {split: rows.num_rows for split, rows in theirs.items()} == {"train": 5, "test": 2}
    assert theirs["train"].features["label"] == datasets.ClassLabel(names=["cat", "", "a/b"])
    rows = sorted(theirs["train"].to_list(), key=lambda row: row["stars"])
    assert [row["label"] for row in rows] == [-1, 0, 1, 2, -1]
    assert [row["caption"] for row in rows] == ["00.10", "01.10", None, "03.10", "04.10"]
    assert rows[1]["mask"] is None
    for n, row in enumerate(sorted(theirs["train"], key=lambda row: row["stars"])):
        assert row["image"].size == (4 + n, 3)
