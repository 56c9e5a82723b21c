"""Data in buckets, attached: it is read as an import of the same files, by what trains on it, and never wrongly."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bowstring as client_package
import datasets
import polars as pl
import pyarrow as pa
import pyarrow.flight as fl
import pytest
import webdataset as wds
from bowstring.polars import scan
from bowstring.torch import BowstringDataset
from conftest import StartNode
from torch.utils.data import DataLoader
from wire import PATIENCE, act, read, until

Bowstring = Callable[..., subprocess.CompletedProcess[str]]
PHOTOS = 60


class Bucket:
    """A server of S3, and a bucket of it."""

    def __init__(self, endpoint: str, name: str) -> None:
        self.endpoint = endpoint
        self.name = name

    def url(self, prefix: str = "") -> str:
        return f"s3://{self.name}/{prefix}?endpoint={self.endpoint}"

    def ask(self, method: str, key: str, body: bytes | None = None) -> None:
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(self.endpoint).netloc)
        connection.request(method, f"/{self.name}/{urllib.parse.quote(key)}", body)
        answer = connection.getresponse()
        answer.read()
        connection.close()
        assert answer.status in (200, 204), (method, key, answer.status)

    def put(self, key: str, body: bytes) -> None:
        self.ask("PUT", key, body)

    def fill(self, root: Path, prefix: str) -> str:
        for path in sorted(root.rglob("*")):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(root).as_posix()}", path.read_bytes())
        return self.url(prefix)


@pytest.fixture(scope="module")
def bucket(lab: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    root = tmp_path_factory.mktemp("buckets")
    (root / "training").mkdir()
    os.environ |= {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}
    with subprocess.Popen([lab, "objects", "--root", root], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        yield Bucket(server.stdout.readline().strip(), "training")
        server.terminate()
        server.wait(PATIENCE)


@pytest.fixture(scope="module")
def some(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*/*.jpg"))[:PHOTOS]


def image_folder(root: Path, some: list[Path]) -> None:
    for n, path in enumerate(some):
        to = root / ("val" if n % 5 == 0 else "train") / path.parent.name / path.name
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(path.read_bytes())


def tars(root: Path, some: list[Path]) -> None:
    for shard in range(3):
        with wds.TarWriter(str(root / f"train-{shard}.tar")) as tar:
            for n, path in enumerate(some[shard::3]):
                tar.write({"__key__": f"{shard}-{n}", "jpg": path.read_bytes(), "cls": n % 7, "json": {"n": n}})


def hub_parquet(root: Path, some: list[Path]) -> None:
    own = datasets.Dataset.from_dict(
        {
            "image": [{"bytes": p.read_bytes(), "path": p.name} for p in some],
            "label": [n % 3 for n in range(len(some))],
        },
        features=datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"])}),
    )
    for n in range(2):
        own.shard(2, n, contiguous=True).to_parquet(root / f"train-{n:05d}-of-00002.parquet")


def pandas_parquet(root: Path, some: list[Path]) -> None:
    """Write with snappy and a dictionary, as pyarrow and polars do by default."""
    frame = {"image": [p.read_bytes() for p in some], "name": [p.name for p in some]}
    pa.parquet.write_table(pa.table(frame), root / "train.parquet")
    pl.DataFrame(frame).write_parquet(root / "test.parquet")


def mosaic(root: Path, some: list[Path], compression: str | None = None) -> None:
    streaming = pytest.importorskip("streaming")
    columns = {"image": "bytes", "label": "int"}
    with streaming.MDSWriter(out=str(root), columns=columns, compression=compression, size_limit=1 << 20) as out:
        for n, path in enumerate(some):
            out.write({"image": path.read_bytes(), "label": n})


LAYOUTS: dict[str, Callable[[Path, list[Path]], None]] = {
    "imagefolder": image_folder,
    "webdataset": tars,
    "huggingface": hub_parquet,
    "parquet": pandas_parquet,
    "mds": mosaic,
    "mds-zstd": lambda root, some: mosaic(root, some, "zstd"),
}


def both(bowstring: Bowstring, tmp_path: Path, root: Path, url: str) -> tuple[Path, Path]:
    """Import a directory into one store, and attach a bucket to another."""
    imported, attached = tmp_path / "imported", tmp_path / "attached"
    bowstring("import", root, "samples", "--store", imported)
    bowstring("attach", url, "samples", "--store", attached)
    return imported, attached


@pytest.mark.parametrize("layout", LAYOUTS)
def test_attached_is_read_as_imported(
    layout: str, bucket: Bucket, some: list[Path], bowstring: Bowstring, start: StartNode, tmp_path: Path
) -> None:
    root = tmp_path / "in"
    root.mkdir()
    LAYOUTS[layout](root, some)
    stores = both(bowstring, tmp_path, root, bucket.fill(root, layout))
    epochs = []
    for store in stores:
        with fl.connect(start(store=store).url) as own:
            epochs.append(
                [
                    read(own, dataset="samples", shuffle={"seed": 3, "epoch": epoch}, batch=16, world={"size": 2})
                    for epoch in (0, 1)
                ]
            )
    assert epochs[0][0].num_rows >= PHOTOS - 1
    assert epochs[0] == epochs[1]


@pytest.fixture(scope="module")
def photos_in_bucket(
    bucket: Bucket, some: list[Path], bowstring: Bowstring, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    tmp = tmp_path_factory.mktemp("photos-in-bucket")
    root = tmp / "in"
    image_folder(root, some)
    return both(bowstring, tmp, root, bucket.fill(root, "everything"))


def test_everything_works_on_attached_data(
    photos_in_bucket: tuple[Path, Path], bowstring: Bowstring, start: StartNode, tmp_path: Path
) -> None:
    """Where, selections, operators, lineage, export, verify, copies and a merge: as on an imported dataset."""
    found: list[list[Any]] = []
    for n, store in enumerate(photos_in_bucket):
        assert json.loads(bowstring("verify", store, "--json").stdout)["damaged"] == []
        # A copy by value needs no bucket: its blobs are the store's.
        bowstring("copy", store, tmp_path / f"copy{n}", "samples")
        node = start("--lineage", tmp_path / f"lineage{n}", store=store)
        with fl.connect(node.url) as own:
            one: list[Any] = [
                read(
                    own, dataset="samples", where='width > 400 and split == "train"', columns=["id", "image", "width"]
                ),
                read(own, dataset="samples", selection={"positions": [7, 3, 11]}, columns=["position", "image"]),
                read(
                    own,
                    dataset="samples",
                    columns=["id", "image"],
                    operators={"image": [{"Decode": {}}]},
                ),
            ]
        dataset = client_package.connect(node.url).dataset("samples")
        one.append(dataset.columns(["id", "label", "image"]).to_arrow())
        bowstring("get", "samples", "--to", tmp_path / f"out{n}.parquet", "--server", node.url)
        one.append(pa.parquet.read_table(tmp_path / f"out{n}.parquet"))
        node.stop()
        with fl.connect(start(store=tmp_path / f"copy{n}").url) as own:
            one.append(read(own, dataset="samples", columns=["id", "image", "label"]))
        found.append(one)
    for imported, attached in zip(*found, strict=True):
        assert imported.num_rows > 0
        assert imported == attached


def with_spill(tmp_path: Path, store: Path) -> list[str]:
    """A store in a directory has a spill for what is attached alone."""
    return ["--spill", str(tmp_path / "spill"), "--spill-bytes", "256MiB"] if store.name == "attached" else []


def entries(client: fl.FlightClient) -> int:
    """How many blobs the spill has. They are stored behind the stream's back."""
    return int(act(client, "stats")[0]["engine"]["spill"]["entries"])


@pytest.mark.filterwarnings("ignore:.*set_vital.*", "ignore:This DataLoader will create")
@pytest.mark.parametrize("spill", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_torch(
    photos_in_bucket: tuple[Path, Path], start: StartNode, tmp_path: Path, workers: int, spill: bool
) -> None:
    """Shuffled epochs, one of which is left early: the batches are those of an import."""
    found: list[list[Any]] = []
    for store in photos_in_bucket:
        node = start(*(with_spill(tmp_path, store) if spill else []), store=store)
        photos = client_package.connect(node.url).dataset("samples", split="train").shuffle(3)
        dataset = BowstringDataset(photos, columns=["position", "image"], global_batch_size=8, rank=0, world_size=1)
        loader = DataLoader(dataset, batch_size=None, num_workers=workers)
        batches: list[Any] = []
        for epoch in range(4):
            for n, batch in enumerate(loader):
                batches.append((batch["position"].tolist(), batch["image"].tolist()))
                if epoch == 1 and n == 2:
                    break
        found.append(batches)
        if spill and store.name == "attached":
            with fl.connect(node.url) as own:
                until(lambda: entries(own) == 48, "storing what was read")
    assert found[0] == found[1]
    whole = [position for positions, _ in found[1][:6] for position in positions]
    assert sorted(whole) == list(range(48))


@pytest.mark.parametrize("spill", [False, True])
def test_polars(photos_in_bucket: tuple[Path, Path], start: StartNode, tmp_path: Path, spill: bool) -> None:
    found: list[list[pl.DataFrame]] = []
    for store in photos_in_bucket:
        node = start(*(with_spill(tmp_path, store) if spill else []), store=store)
        some = scan(node.url, "samples", columns=["position", "width", "height"])
        blobs = scan(node.url, "samples", columns=["position", "width", "image"])
        frames = [
            some.filter(pl.col("width") > 400).collect(),
            blobs.filter(pl.col("width") > 400).collect(),
            blobs.head(5).collect(),
        ]
        assert all(frame.height > 0 for frame in frames)
        found.append(frames)
    for imported, attached in zip(*found, strict=True):
        assert imported.equals(attached)


def test_changed_objects_are_lost_by_name(
    bucket: Bucket, some: list[Path], bowstring: Bowstring, start: StartNode, tmp_path: Path
) -> None:
    """No byte of another version is served: what was overwritten or deleted is lost, until the dataset is updated."""
    for n, path in enumerate(some[:10]):
        bucket.put(f"changing/train/a/{n}.jpg", path.read_bytes())
    store = tmp_path / "store"
    bowstring("attach", bucket.url("changing"), "samples", "--store", store)
    bucket.put("changing/train/a/3.jpg", some[20].read_bytes())
    bucket.ask("DELETE", "changing/train/a/5.jpg")
    bucket.put("changing/train/a/x.jpg", some[21].read_bytes())
    node = start(store=store)
    with fl.connect(node.url) as own:
        with pytest.raises(pa.ArrowException, match=r"changing/train/a/[35]\.jpg"):
            read(own, dataset="samples", columns=["image"])
        images = read(own, dataset="samples", columns=["image"], on_error="null")["image"].to_pylist()
        assert images == [None if n in (3, 5) else p.read_bytes() for n, p in enumerate(some[:10])]
        rest = read(own, dataset="samples", columns=["image"], on_error="skip", shuffle={"seed": 1})["image"]
        assert set(rest.to_pylist()) <= {p.read_bytes() for n, p in enumerate(some[:10]) if n not in (3, 5)}
        assert act(own, "stats")
    node.stop()
    done = json.loads(bowstring("attach", "--update", "samples", "--store", store, "--json").stdout)
    assert done["update"] == {"kept": 8, "changed": 1, "new": 1, "gone": 1}
    assert not json.loads(bowstring("attach", "--update", "samples", "--store", store, "--json").stdout)["changed"]
    node = start(store=store)
    with fl.connect(node.url) as own:
        images = read(own, dataset="samples", columns=["image"])["image"].to_pylist()
    node.stop()
    wanted = [some[20] if n == 3 else p for n, p in enumerate(some[:10]) if n != 5]
    assert images == [p.read_bytes() for p in [*wanted, some[21]]]
    assert json.loads(bowstring("verify", store, "samples@2", "--json").stdout)["damaged"] == []
    assert len(json.loads(bowstring("verify", store, "samples@1", "--json", status=1).stdout)["damaged"]) == 2


def test_secrets_stay_out(bucket: Bucket, bowstring: Bowstring, tmp_path: Path) -> None:
    for url in ("s3://id:hidden@training/x", "https://id:hidden@127.0.0.1/x", "https://127.0.0.1/x?token=hidden"):
        done = bowstring("attach", url, "samples", "--store", tmp_path / "store", status=1)
        assert "hidden" not in done.stderr + done.stdout
    assert bucket.name == "training"
