"""The data loader for DLIO: every sample once, to DLIO's reader of its format; and DLIO's own run of a workload."""

from __future__ import annotations

import enum
import importlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import bowstring
import numpy as np
import pytest
from node import Node
from wire import until

SAMPLES, BATCH = 21, 4

StartNode = Callable[..., Node]


class Format(enum.Enum):
    NPZ = "npz"
    TFRECORD = "tfrecord"


class Kind(enum.Enum):
    TRAIN = "train"

    def __str__(self) -> str:
        return self.value


class Shuffle(enum.Enum):
    OFF = "off"
    SEED = "seed"


class Reader:
    """The part of DLIO's reader of npz that the loader calls; it keeps what it reads."""

    def __init__(self) -> None:
        self.open_file_map: dict[str, Any] = {}
        self.read: list[int] = []
        self.steps: list[str] = []

    def open(self, file: Any) -> Any:
        return np.load(file)["x"]

    def get_sample(self, name: str, index: int) -> None:
        self.read.append(int(self.open_file_map[name][..., index].sum()))

    def preprocess(self) -> None:
        self.steps.append("preprocess")

    def close(self, name: str) -> None:
        self.steps.append(f"close {name}")


class Settings:
    """The settings of a workload, as DLIO's `ConfigArguments` has them."""

    batch_size = BATCH
    comm_size, my_rank, seed, read_threads, prefetch_size = 1, 0, 7, 0, 2
    num_samples_per_file, total_samples_train = 1, SAMPLES
    storage_root, data_folder = "", "data"
    sample_shuffle = Shuffle.SEED
    multiprocessing_context = "fork"
    resized_image = np.full((2, 2), 9, np.uint8)
    current: Settings

    @classmethod
    def get_instance(cls) -> Settings:
        return cls.current


class Base:
    """The base class of DLIO's loaders."""

    def __init__(self, format_type: Any, dataset_type: Any, epoch: int, loader: Any) -> None:
        self._args = Settings.current
        self.format_type, self.dataset_type, self.epoch_number = format_type, dataset_type, epoch
        self.num_samples, self.batch_size, self.loader = self._args.total_samples_train, self._args.batch_size, loader


@pytest.fixture
def reader() -> Reader:
    return Reader()


@pytest.fixture
def dlio(monkeypatch: pytest.MonkeyPatch, reader: Reader) -> Iterator[Any]:
    """`bowstring.dlio`, which finds those parts of DLIO that it uses."""
    parts: dict[str, dict[str, Any]] = {
        "": {},
        ".common": {},
        ".common.enumerations": {
            "DataLoaderType": SimpleNamespace(CUSTOM="custom"),
            "DatasetType": Kind,
            "FormatType": Format,
            "Shuffle": Shuffle,
        },
        ".data_loader": {},
        ".data_loader.base_data_loader": {"BaseDataLoader": Base},
        ".reader": {},
        ".reader.reader_factory": {"ReaderFactory": SimpleNamespace(get_reader=lambda *_: reader)},
        ".utils": {},
        ".utils.config": {"ConfigArguments": Settings},
    }
    for name, content in parts.items():
        module = ModuleType(f"dlio_benchmark{name}")
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delitem(sys.modules, "bowstring.dlio", raising=False)
    Settings.current = Settings()
    yield importlib.import_module("bowstring.dlio")
    sys.modules.pop("bowstring.dlio", None)


@pytest.fixture
def volumes(tmp_path: Path, bowstring: Callable[..., Any], start: StartNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of arrays in npz; the sum of each is another."""
    folder = tmp_path / "volumes"
    folder.mkdir()
    for i in range(SAMPLES):
        np.savez(folder / f"img_{i:02}.npz", x=np.full((3, 5, 1), i, np.uint8), y=[0])
    (folder / "files.csv").write_text("file_name\n" + "".join(f"img_{i:02}.npz\n" for i in range(SAMPLES)))
    bowstring("attach", "--verify", "none", folder / "files.csv", "volumes", "--store", tmp_path / "store")
    node = start(store=tmp_path / "store")
    monkeypatch.setenv("BOWSTRING_DLIO", f"{node.url}/volumes")


@pytest.mark.usefixtures("volumes")
def test_epochs_have_every_whole_batch(dlio: Any, reader: Reader) -> None:
    loader = dlio.BowstringDataLoader(Format.NPZ, Kind.TRAIN, 1)
    loader.read()
    orders = []
    for _ in range(2):
        reader.read.clear()
        batches = list(loader.next())
        loader.finalize()
        assert [b.shape for b in batches] == [(BATCH, 2, 2)] * (SAMPLES // BATCH)
        assert all((b == 9).all() for b in batches)
        assert len(set(reader.read)) == len(reader.read) == SAMPLES // BATCH * BATCH
        assert set(reader.read) <= {15 * i for i in range(SAMPLES)}
        orders.append(list(reader.read))
    assert orders[0] != orders[1]
    assert loader.epoch_number == 3
    assert reader.steps == ["preprocess", "close sample"] * (2 * (SAMPLES // BATCH) * BATCH)


@pytest.mark.usefixtures("volumes")
def test_ranks_share_an_epoch(dlio: Any, reader: Reader) -> None:
    found = []
    for rank in range(2):
        Settings.current.my_rank, Settings.current.comm_size = rank, 2
        loader = dlio.BowstringDataLoader(Format.NPZ, Kind.TRAIN, 1)
        loader.read()
        assert len(list(loader.next())) == SAMPLES // (2 * BATCH)
        found.append(set(reader.read))
        reader.read.clear()
    assert len(found[0]) == len(found[1]) == SAMPLES // (2 * BATCH) * BATCH
    assert not found[0] & found[1]


@pytest.mark.usefixtures("volumes")
def test_records_are_not_decoded(dlio: Any, reader: Reader) -> None:
    """DLIO leaves the loop at the last step it wants: then the thread that receives ends."""
    Settings.current.num_samples_per_file, Settings.current.read_threads = 3, 4
    loader = dlio.BowstringDataLoader(Format.TFRECORD, Kind.TRAIN, 1)
    loader.read()
    batches = loader.next()
    assert next(batches).shape == (BATCH, 2, 2)
    batches.close()
    assert len(list(loader.next())) == SAMPLES // BATCH
    assert not reader.read
    until(lambda: not any(t.name.startswith("bowstring-dlio") for t in threading.enumerate()), "the end of the thread")


@pytest.mark.usefixtures("volumes")
def test_the_workload_fits_the_dataset(dlio: Any) -> None:
    Settings.current.total_samples_train = SAMPLES + 1
    with pytest.raises(bowstring.InvalidRequest, match=f"has {SAMPLES} rows, want {SAMPLES + 1}"):
        dlio.BowstringDataLoader(Format.NPZ, Kind.TRAIN, 1).read()
    Settings.current.num_samples_per_file = 2
    with pytest.raises(bowstring.InvalidRequest, match="num_samples_per_file: got 2"):
        dlio.BowstringDataLoader(Format.NPZ, Kind.TRAIN, 1).read()


def run(folder: Path, *more: str, **environment: str) -> None:
    """Run DLIO's `unet3d` on small files."""
    dataset = {"num_files_train": SAMPLES, "record_length": 4096, "record_length_stdev": 0, "record_length_resize": 256}
    settings = {
        "workflow.checkpoint": False,
        **{f"dataset.{name}": value for name, value in dataset.items()},
        "dataset.data_folder": folder / "data",
        "reader.batch_size": BATCH,
        "reader.read_threads": 1,
        "train.epochs": 2,
        "train.computation_time": 0.01,
        "output.folder": folder / "out",
    }
    done = subprocess.run(
        [sys.executable, "-m", "dlio_benchmark.main", "workload=unet3d_h100"]
        + [f"++workload.{name}={value}" for name, value in settings.items()]
        + [f"++workload.{setting}" for setting in more],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.skipif(not find_spec("dlio_benchmark"), reason="DLIO is in build/dlio: make nightly-dlio")
def test_dlio_runs_a_workload(tmp_path: Path, bowstring: Callable[..., Any], start: StartNode) -> None:
    run(tmp_path, "workflow.generate_data=True", "workflow.train=False")
    files = sorted((tmp_path / "data").rglob("*.npz"))
    assert len(files) == SAMPLES
    (tmp_path / "data/files.csv").write_text("file_name\n" + "".join(f"train/{f.name}\n" for f in files))
    bowstring("import", "--verify", "none", tmp_path / "data/files.csv", "unet3d", "--store", tmp_path / "store")
    for file in files:
        file.write_bytes(b"")  # DLIO lists the names alone
    node = start(store=tmp_path / "store")
    loader = ["reader.data_loader_classname=bowstring.dlio.BowstringDataLoader", "reader.data_loader_sampler=index"]
    run(tmp_path, *loader, BOWSTRING_DLIO=f"{node.url}/unet3d")
    found = json.loads((tmp_path / "out/0_output.json").read_text())
    assert [len(found[epoch]["compute"]["block1"]) for epoch in ("1", "2")] == [SAMPLES // BATCH] * 2
    assert all(found[epoch]["au"]["block1"] > 0 for epoch in ("1", "2"))
