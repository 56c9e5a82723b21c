"""The real libraries take batches as they are served: Hugging Face datasets, Polars, Ray Data."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import local_ray
import numpy as np
import photos
import polars as pl
import pyarrow as pa
import pyarrow.flight as fl
import pytest
import ray
import soundfile
from conftest import StartNode
from node import Node
from PIL import Image
from ray_data import FlightDatasource
from wire import command, read


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    # A worker imports the data source from where this process has it.
    paths = {"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)}}
    local_ray.start(num_cpus=2, object_store_memory=300 << 20, runtime_env=paths)
    yield
    ray.shutdown()


def test_datasets_decodes_images_and_labels(client: fl.FlightClient, folder: Path) -> None:
    table = read(client, dataset="photos", split="val", columns=["image", "label", "file_name"], layout="huggingface")
    own = datasets.Dataset(datasets.table.InMemoryTable(table))
    assert isinstance(own.features["image"], datasets.Image)
    assert own.features["label"].names == sorted(photos.PHOTOGRAPHS)
    assert len(own) == 30
    files = {p.name: p for p in folder.rglob("*.jpg")}
    for row in own:
        name = Path(row["file_name"]).name
        assert own.features["label"].int2str(row["label"]) == files[name].parent.name
        with Image.open(files[name]) as expected:
            assert row["image"].size == expected.size
            assert row["image"].tobytes() == expected.tobytes()


def test_datasets_takes_every_column(client: fl.FlightClient) -> None:
    table = read(client, dataset="photos", layout="huggingface")
    own = datasets.Dataset(datasets.table.InMemoryTable(table))
    assert own.column_names == table.column_names
    assert isinstance(own.features["image"], datasets.Image)
    plain = read(client, dataset="photos", columns=["id"])["id"]
    assert own[7]["id"] == str(plain[7].as_py())  # the library knows no uuid


def test_datasets_streams_from_a_generator(client: fl.FlightClient) -> None:
    info = client.get_flight_info(command(dataset="photos", columns=["image", "label"], layout="huggingface"))

    def rows() -> Iterator[dict[str, Any]]:
        for chunk in client.do_get(info.endpoints[0].ticket):
            yield from chunk.data.to_pylist()

    features = datasets.Features.from_arrow_schema(info.schema)
    first = next(iter(rows()))
    assert features.decode_example(first)["image"].size[0] > 100


def test_datasets_takes_sound(binary: Path, start: StartNode, tmp_path: Path) -> None:
    """The library knows a column of sound for what it is, and finds the very files in it.

    Another package decodes them, and the library imports it when needed.
    """
    clips = {f"{i}.wav": np.full(800 + i, i / 10, np.float32) for i in range(5)}
    (tmp_path / "clips").mkdir()
    for name, samples in clips.items():
        soundfile.write(tmp_path / "clips" / name, samples, 16000, subtype="FLOAT")
    store = tmp_path / "sound"
    subprocess.run([binary, "import", tmp_path / "clips", "clips", "--store", store], check=True, capture_output=True)
    client = fl.connect(start(store=store).url)
    operators = {"twice": {"expression": "audio.size * 2"}}
    table = read(client, dataset="clips", layout="huggingface", operators=operators)
    assert table.schema.field("audio").type == pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    assert isinstance(datasets.Features.from_arrow_schema(table.schema)["audio"], datasets.Audio)
    own = datasets.Dataset(datasets.table.InMemoryTable(table))
    assert isinstance(own.features["audio"], datasets.Audio)
    assert own.features["twice"] == datasets.Value("int64")
    own.to_parquet(str(tmp_path / "clips.parquet"))
    back = datasets.Dataset.from_parquet(str(tmp_path / "clips.parquet"), cache_dir=str(tmp_path / "cache"))
    assert isinstance(back.features["audio"], datasets.Audio)
    for rows in (own, back):
        files = rows.cast_column("audio", datasets.Audio(decode=False))
        assert sorted(row["audio"]["path"] for row in files) == sorted(clips)
        for row in files:
            data = row["audio"]["bytes"]
            assert row["twice"] == 2 * len(data)
            assert data == (tmp_path / "clips" / row["audio"]["path"]).read_bytes()
            samples, rate = soundfile.read(io.BytesIO(data), dtype="float32")
            assert rate == 16000
            assert np.array_equal(samples, clips[row["audio"]["path"]])


def test_path_is_the_file_name(client: fl.FlightClient) -> None:
    table = read(client, dataset="photos", columns=["image", "file_name"], layout="huggingface")
    assert table.schema.field("image").type == pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    assert [i["path"] for i in table["image"].to_pylist()] == table["file_name"].to_pylist()


@pytest.mark.parametrize("layout", ["large_binary", "binary", "huggingface"])
def test_polars_takes_every_layout(client: fl.FlightClient, layout: str) -> None:
    table = read(client, dataset="photos", columns=["image", "label", "width", "file_name"], layout=layout)
    frame = pl.DataFrame(table)
    assert frame.shape == (300, 4)
    images = frame["image"].struct.field("bytes") if layout == "huggingface" else frame["image"]
    assert images.dtype == pl.Binary
    plain = read(client, dataset="photos", columns=["image"])["image"]
    assert images.to_list() == plain.to_pylist()


def test_polars_filters_and_groups_metadata(client: fl.FlightClient) -> None:
    frame = pl.DataFrame(read(client, dataset="photos", columns=["label", "split", "width"]))
    counts = frame.group_by("split").len().sort("split")
    assert counts.rows() == [("train", 270), ("val", 30)]
    assert sorted(frame["label"].unique()) == list(range(10))
    where = read(client, dataset="photos", columns=["width"], where="width > 600")
    assert (
        pl.DataFrame(where)["width"].sort().to_list() == frame.filter(pl.col("width") > 600)["width"].sort().to_list()
    )


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("layout", ["large_binary", "huggingface"])
@pytest.mark.slow
@pytest.mark.nightly  # tests/python/test_ray.py has a Ray in `make test`
def test_ray_reads_each_rank_in_a_task_of_its_own(node: Node, client: fl.FlightClient, layout: str) -> None:
    request = {
        "dataset": "photos",
        "columns": ["position", "image", "label"],
        "layout": layout,
        "world": {"size": 4},
        "shuffle": {"seed": 2},
    }
    source = FlightDatasource(node.url, request)
    assert len(source.get_read_tasks(4)) == 4
    found = ray.data.read_datasource(source)
    rows = found.take_all()
    assert sorted(r["position"] for r in rows) == list(range(300))
    expected = read(client, dataset="photos", columns=["image"])["image"].to_pylist()
    for row in rows:
        image = row["image"]["bytes"] if layout == "huggingface" else row["image"]
        assert image == expected[row["position"]]
