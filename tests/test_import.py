"""Imports of what the real libraries write, repeated imports, and input that cannot be right."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import photos
import polars as pl
import pyarrow as pa
import pyarrow.flight as fl
import pyarrow.parquet as pq
import pytest
import webdataset as wds
from node import Node
from PIL import Image
from wire import act, read, stats

Bowstring = Callable[..., subprocess.CompletedProcess[str]]
COLUMNS = ["id", "image", "label"]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def some(folder: Path) -> list[Path]:
    """Some photographs of every class."""
    return sorted(folder.glob("val/*/*.jpg"))


def labels(table: pa.Table) -> list[str]:
    classes = json.loads(table.schema.field("label").metadata[b"bowstring.classes"])
    return [classes[label] for label in table["label"].to_pylist()]


def is_empty(bowstring: Bowstring, store: Path) -> bool:
    return not store.exists() or json.loads(bowstring("ls", "--json", "--store", store).stdout) == []


# --- formats -------------------------------------------------------------------------------------------------------


def test_image_folder(client: fl.FlightClient, folder: Path) -> None:
    table = read(
        client, dataset="photos", columns=["file_name", "label", "split", "width", "height", "format", "image"]
    )
    assert table.num_rows == 300
    for row, label in zip(table.to_pylist(), labels(table), strict=True):
        path = folder / row["split"] / label / Path(row["file_name"]).name
        assert row["image"] == path.read_bytes()
        with Image.open(path) as image:
            assert (row["width"], row["height"]) == image.size
        assert row["format"].lower() in ("jpeg", "jpg")


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_image_folder_with_metadata(
    bowstring: Bowstring, store: Path, serve: Any, some: list[Path], tmp_path: Path, kind: str
) -> None:
    root = tmp_path / "in"
    root.mkdir()
    rows = []
    for n, path in enumerate(some):
        shutil.copy(path, root / path.name)
        rows.append({"file_name": path.name, "caption": f"an image, number {n}", "stars": n / 4})
    frame = pl.DataFrame(rows)
    if kind == "csv":
        frame.write_csv(root / "metadata.csv")
    elif kind == "jsonl":
        frame.write_ndjson(root / "metadata.jsonl")
    else:
        frame.write_parquet(root / "metadata.parquet")
    bowstring("import", root, "captions", "--store", store)
    with serve(store) as client:
        table = read(client, dataset="captions", columns=["file_name", "caption", "stars", "image"])
    by_name = {r["file_name"]: r for r in table.to_pylist()}
    assert len(by_name) == len(rows)
    for row in rows:
        got = by_name[row["file_name"]]
        assert (got["caption"], got["stars"]) == (row["caption"], row["stars"])
        assert got["image"] == (root / str(row["file_name"])).read_bytes()


def test_hugging_face_parquet(bowstring: Bowstring, store: Path, serve: Any, some: list[Path], tmp_path: Path) -> None:
    classes = sorted(photos.PHOTOGRAPHS)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=classes)})
    root = tmp_path / "repo" / "data"
    root.mkdir(parents=True)
    for split, files, shards in (("train", some[5:], 2), ("test", some[:5], 1)):
        own = datasets.Dataset.from_dict(
            {
                "image": [{"bytes": p.read_bytes(), "path": p.name} for p in files],
                "label": [p.parent.name for p in files],
            },
            features=features,
        )
        for n in range(shards):
            own.shard(shards, n, contiguous=True).to_parquet(root / f"{split}-{n:05d}-of-{shards:05d}.parquet")
    bowstring("import", root.parent, "hub", "--store", store)
    with serve(store) as client:
        for split, files in (("train", some[5:]), ("test", some[:5])):
            table = read(client, dataset="hub", split=split)
            assert table["file_name"].to_pylist() == [p.name for p in files]
            assert table["image"].to_pylist() == [p.read_bytes() for p in files]
            assert labels(table) == [p.parent.name for p in files]
        # And back again into datasets.
        back = read(client, dataset="hub", split="test", columns=["image", "label"], layout="huggingface")
        own = datasets.Dataset(datasets.table.InMemoryTable(back))
        assert own.features == features
        assert own[2]["image"].size == Image.open(some[2]).size


def test_webdataset(bowstring: Bowstring, store: Path, serve: Any, some: list[Path], tmp_path: Path) -> None:
    root = tmp_path / "tars"
    root.mkdir()
    with wds.ShardWriter(str(root / "train-%06d.tar"), maxcount=12, verbose=0) as shards:
        for n, path in enumerate(some):
            shards.write(
                {"__key__": f"s{n:04d}", "jpg": path.read_bytes(), "cls": n % 10, "json": {"from": path.name, "n": n}}
            )
    assert len(list(root.iterdir())) == 3
    bowstring("import", root, "tars", "--store", store)
    with serve(store) as client:
        (described,) = act(client, "describe", dataset="tars")
        blob = next(c["name"] for c in described["columns"] if c["kind"] == "blob")
        table = read(client, dataset="tars")
        assert table[blob].to_pylist() == [p.read_bytes() for p in some]
        rows = table.drop_columns([blob]).to_pylist()
        assert [r["from"] for r in rows] == [p.name for p in some]
        assert [r["n"] for r in rows] == list(range(len(some)))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_list_of_paths(
    bowstring: Bowstring, store: Path, serve: Any, some: list[Path], tmp_path: Path, kind: str
) -> None:
    frame = pl.DataFrame({"path": [str(p) for p in some], "kind": [p.parent.name for p in some]})
    file = tmp_path / f"files.{kind}"
    if kind == "csv":
        frame.write_csv(file)
    else:
        frame.write_parquet(file)
    bowstring("import", file, "listed", "--format", "list", "--allow-outside", "--store", store)
    with serve(store) as client:
        table = read(client, dataset="listed", columns=["image", "kind"])
    assert table["image"].to_pylist() == [p.read_bytes() for p in some]
    assert table["kind"].to_pylist() == [p.parent.name for p in some]


def test_import_into_a_running_server(bowstring: Bowstring, node: Node, client: fl.FlightClient, folder: Path) -> None:
    bowstring("import", folder, "uploaded", "--server", node.url)
    columns = ["image", "label", "split", "file_name"]
    assert read(client, dataset="uploaded", columns=columns).equals(read(client, dataset="photos", columns=columns))


# --- repeats -------------------------------------------------------------------------------------------------------


def test_a_repeated_import_changes_nothing(bowstring: Bowstring, imported: Path, folder: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(imported, store)
    size = sum(p.stat().st_size for p in store.rglob("*") if p.is_file())
    bowstring("import", folder, "photos", "--store", store)
    assert json.loads(bowstring("describe", "photos", "--json", "--store", store).stdout)["snapshots"] == [1]
    assert sum(p.stat().st_size for p in store.rglob("*") if p.is_file()) < 1.01 * size + 100_000


def test_ids_are_those_of_before_after_a_change(
    bowstring: Bowstring, store: Path, serve: Any, folder: Path, tmp_path: Path
) -> None:
    root = tmp_path / "in"
    shutil.copytree(folder, root)
    bowstring("import", root, "photos", "--store", store)
    with serve(store) as client:
        before = read(client, dataset="photos", columns=["id", "file_name", "split"]).to_pylist()
    gone = sorted(root.glob("train/*/*.jpg"))[:30]
    for path in gone:
        path.unlink()
    shutil.copy(next(folder.glob("val/cat/*.jpg")), root / "train" / "cat" / "new.jpg")
    bowstring("import", root, "photos", "--store", store)
    with serve(store) as client:
        assert act(client, "list", dataset="photos")[0]["newest"] == 2
        after = read(client, dataset="photos", columns=["id", "file_name", "split"]).to_pylist()
        assert read(client, dataset="photos", snapshot=1, columns=["id"]).num_rows == 300
    ids = {(r["split"], r["file_name"]): r["id"] for r in before}
    kept = [r for r in after if (r["split"], r["file_name"]) in ids]
    assert len(kept) == 270
    assert len(after) == 271
    assert all(r["id"] == ids[r["split"], r["file_name"]] for r in kept)


def test_dry_run_writes_nothing(bowstring: Bowstring, store: Path, folder: Path) -> None:
    done = bowstring("import", folder, "photos", "--dry-run", "--store", store)
    assert "300 samples can be imported" in done.stdout + done.stderr
    assert is_empty(bowstring, store)


# --- bad input -----------------------------------------------------------------------------------------------------


def test_bad_images_are_listed_each_with_its_reason(
    bowstring: Bowstring, store: Path, serve: Any, folder: Path, tmp_path: Path
) -> None:
    root = tmp_path / "in"
    shutil.copytree(folder, root)
    good = next(folder.glob("train/cat/*.jpg")).read_bytes()
    bad = {
        "train/cat/empty.jpg": b"",
        "train/dog-less/short.jpg": good[: len(good) // 2],
        "val/cat/words.jpg": b"this is no image",
        "val/rocket/header.jpg": good[:20],
    }
    for name, content in bad.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(content)
    done = bowstring("import", root, "photos", "--store", store, status=1)
    for name in bad:
        assert Path(name).name in done.stderr
    assert is_empty(bowstring, store)

    done = bowstring("import", root, "photos", "--skip-bad", "--bad-list", tmp_path / "bad", "--store", store)
    listed = [json.loads(line) for line in (tmp_path / "bad").read_text().splitlines()]
    assert {Path(b["key"]).name for b in listed} == {Path(name).name for name in bad}
    assert all(b["reason"] for b in listed)
    with serve(store) as client:
        table = read(client, dataset="photos", columns=["file_name", "image"])
        assert table.num_rows == 300
        assert not {Path(n).name for n in table["file_name"].to_pylist()} & {Path(n).name for n in bad}


def test_duplicate_keys(bowstring: Bowstring, store: Path, some: list[Path], tmp_path: Path) -> None:
    root = tmp_path / "tars"
    root.mkdir()
    for shard in range(2):
        with wds.TarWriter(str(root / f"train-{shard}.tar")) as tar:
            tar.write({"__key__": "same", "jpg": some[shard].read_bytes()})
    done = bowstring("import", root, "tars", "--store", store, status=1)
    assert "same" in done.stderr
    assert is_empty(bowstring, store)


def test_a_tar_cut_short(bowstring: Bowstring, store: Path, serve: Any, some: list[Path], tmp_path: Path) -> None:
    out = io.BytesIO()
    with wds.TarWriter(out) as tar:
        for n, path in enumerate(some):
            tar.write({"__key__": f"s{n:04d}", "jpg": path.read_bytes(), "cls": n})
    root = tmp_path / "tars"
    root.mkdir()
    (root / "train-0.tar").write_bytes(out.getvalue()[: len(out.getvalue()) * 2 // 3])
    done = bowstring("import", root, "tars", "--store", store, status=1)
    assert "train-0.tar" in done.stderr
    assert is_empty(bowstring, store)
    bowstring("import", root, "tars", "--skip-bad", "--bad-list", tmp_path / "bad", "--store", store)
    with serve(store) as client:
        (described,) = act(client, "describe", dataset="tars")
        blob = next(c["name"] for c in described["columns"] if c["kind"] == "blob")
        images = read(client, dataset="tars", columns=[blob])[blob].to_pylist()
    assert 10 < len(images) < len(some)
    assert images == [p.read_bytes() for p in some[: len(images)]]


def test_a_missing_label(bowstring: Bowstring, store: Path, some: list[Path], tmp_path: Path) -> None:
    classes = sorted(photos.PHOTOGRAPHS)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=classes)})
    root = tmp_path / "repo" / "data"
    root.mkdir(parents=True)
    own = datasets.Dataset.from_dict(
        {
            "image": [{"bytes": p.read_bytes(), "path": p.name} for p in some],
            "label": [None] * 3 + [0] * (len(some) - 3),
        },
        features=features,
    )
    own.to_parquet(root / "train-00000-of-00001.parquet")
    done = bowstring("import", root.parent, "hub", "--store", store, status=1)
    assert "label" in done.stderr
    assert is_empty(bowstring, store)


def test_a_listed_file_that_is_not_there(bowstring: Bowstring, store: Path, some: list[Path], tmp_path: Path) -> None:
    pl.DataFrame({"path": [str(some[0]), "/nowhere/gone.jpg"]}).write_csv(tmp_path / "files.csv")
    given = ("import", tmp_path / "files.csv", "listed", "--format", "list", "--store", store)
    done = bowstring(*given, "--allow-outside", status=1)
    assert "/nowhere/gone.jpg: unreadable" in done.stderr
    assert str(some[0]) not in done.stderr
    done = bowstring(*given, status=1)  # it is in no folder that the table's author has handed over
    assert f"{some[0]}: a path out of the folder" in done.stderr
    assert is_empty(bowstring, store)


def test_a_broken_parquet_file(bowstring: Bowstring, store: Path, tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    pq.write_table(pa.table({"image": pa.array([b"x" * 1000] * 10)}), root / "train.parquet")
    content = (root / "train.parquet").read_bytes()
    (root / "train.parquet").write_bytes(content[:-10])
    done = bowstring("import", root, "broken", "--store", store, status=1)
    assert "train.parquet" in done.stderr
    assert is_empty(bowstring, store)


def test_a_failed_import_does_not_disturb_the_dataset(
    bowstring: Bowstring, imported: Path, serve: Any, some: list[Path], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    shutil.copytree(imported, store)
    root = tmp_path / "in" / "train" / "cat"
    root.mkdir(parents=True)
    shutil.copy(some[0], root / "fine.jpg")
    (root / "empty.jpg").write_bytes(b"")
    bowstring("import", tmp_path / "in", "photos", "--store", store, status=1)
    with serve(store) as client:
        assert act(client, "list", dataset="photos")[0]["snapshots"] == [1]
        assert read(client, dataset="photos").num_rows == 300
        assert stats(client)["engine"]["failed_reads"] == 0
