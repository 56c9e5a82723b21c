"""Datasets as datasets of Ray Data, on a real local Ray."""

from __future__ import annotations

import collections
import contextlib
import io
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bowstring
import bowstring.ray
import local_ray
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import ray
import ray.cloudpickle
from bowstring import operators
from node import Node
from PIL import Image
from polars.testing import assert_frame_equal
from ray.data.datatype import DataType
from ray.data.expressions import col, udf
from ray_samples import BLOB, COLUMNS, ROWS, Served, samples, served
from sent import Sent, sent_since
from wire import RETRIES

__all__ = ["served"]  # fixtures

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """A Ray of this machine's own, small."""
    os.environ["RAY_AUTH_MODE"] = "disabled"
    path = os.pathsep.join([str(Path(bowstring.__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    local_ray.start(
        num_cpus=2,
        object_store_memory=200 << 20,
        runtime_env={"env_vars": {"PYTHONPATH": path}},
    )
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    yield
    ray.shutdown()


@pytest.fixture
def sent(served: Served) -> Callable[[], Sent]:
    """The rows and bytes that the server has sent since the last call."""
    return sent_since(served.dataset.client)


def keys(rows: ray.data.Dataset) -> list[str]:
    return [row["key"] for row in rows.select_columns(["key"]).take_all()]


def test_counts_and_schema(served: Served, sent: Callable[[], Sent]) -> None:
    rows = bowstring.ray.read(served.dataset)
    assert rows.count() == ROWS
    schema = rows.schema()
    assert schema is not None
    assert schema.names == COLUMNS
    assert schema.base_schema.equals(served.dataset.schema)
    assert sent() == (0, 0)  # all that is known beforehand


def test_every_row_once(served: Served) -> None:
    for rows in (
        bowstring.ray.read(served.dataset),
        bowstring.ray.read(served.dataset, parallelism=7),
        bowstring.ray.read(served.dataset, shuffle=3, epoch=2, parallelism=3),
    ):
        assert collections.Counter(keys(rows)) == collections.Counter(served.table["key"].to_pylist())


def test_rows_are_what_was_stored(served: Served) -> None:
    found = pa.concat_tables(bowstring.ray.read(served.dataset, parallelism=3).iter_batches(batch_format="pyarrow"))
    assert_frame_equal(pl.DataFrame(found.sort_by("position")), pl.DataFrame(served.table))


def test_order_is_kept_where_asked_for(served: Served) -> None:
    options = ray.data.DataContext.get_current().execution_options
    options.preserve_order = True
    try:
        assert keys(bowstring.ray.read(served.dataset, parallelism=5)) == served.table["key"].to_pylist()
        shuffled = bowstring.ray.read(served.dataset, shuffle=3, epoch=1, parallelism=5)
        expected = served.dataset.shuffle(3).columns(["key"]).batches(epoch=1)
        assert keys(shuffled) == [k for batch in expected for k in batch["key"].to_pylist()]
    finally:
        options.preserve_order = False


def test_how_many_tasks() -> None:
    context = ray.data.DataContext.get_current()
    assert context.target_max_block_size == 128 << 20
    sizes = {0: 1, 1: 1, 16 << 20: 1, 50 << 20: 4, 1 << 30: 8, 10 << 30: 80}
    assert {size: bowstring.ray._tasks(size) for size in sizes} == sizes  # of two processors


def test_blocks_are_of_the_size_that_ray_wants(served: Served) -> None:
    context = ray.data.DataContext.get_current()
    before = context.target_max_block_size
    context.target_max_block_size = 1 << 20
    try:
        blocks = bowstring.ray.read(served.dataset, parallelism=2).materialize()
        sizes = [ray.get(ref).nbytes for ref in blocks.get_internal_block_refs()]
        assert max(sizes) <= 1.3 * (1 << 20)
        assert ROWS * BLOB / (1 << 20) <= len(sizes) <= 1.5 * ROWS * BLOB / (1 << 20)
    finally:
        context.target_max_block_size = before


# --- what is pushed down --------------------------------------------------


def test_columns_are_pushed_down(served: Served, sent: Callable[[], Sent]) -> None:
    rows = bowstring.ray.read(served.dataset, parallelism=2).select_columns(["label", "key"])
    assert rows.schema().names == ["label", "key"]
    assert len(rows.take_all()) == ROWS
    assert sent().bytes < ROWS * 50


def test_filters_are_pushed_down(served: Served, sent: Callable[[], Sent]) -> None:
    rows = bowstring.ray.read(served.dataset, parallelism=2)
    expected = [r["key"] for r in served.table.select(["key", "label"]).to_pylist() if r["label"] == 3]
    low = rows.filter(expr=col("label") == 3).select_columns(["key", "image"])
    assert sorted(r["key"] for r in low.take_all()) == sorted(expected)
    count, size = sent()
    assert count == len(expected)
    assert size < 1.1 * len(expected) * BLOB
    assert rows.filter(expr=col("label") == 3).count() == len(expected)
    assert rows.filter(expr=col("label") == 77).take_all() == []
    assert rows.filter(expr=col("label") == 77).count() == 0


def test_filters_that_the_server_does_in_part(served: Served, sent: Callable[[], Sent]) -> None:
    rows = bowstring.ray.read(served.dataset, parallelism=2)
    both = (col("label") == 3) & (col("position") * 2 % 10 == 4)
    expected = [
        r["key"]
        for r in served.table.select(["key", "label", "position"]).to_pylist()
        if r["label"] == 3 and r["position"] * 2 % 10 == 4
    ]
    assert sorted(keys(rows.filter(expr=both))) == sorted(expected)
    assert sent().rows == served.table["label"].to_pylist().count(3)
    assert rows.filter(expr=both).count() == len(expected)
    assert rows.filter(expr=both).limit(3).count() == 3
    # By function, and by an expression that only Ray can evaluate.
    assert rows.filter(lambda row: row["label"] == 3).count() == served.table["label"].to_pylist().count(3)

    @udf(return_dtype=DataType.from_arrow(pa.bool_()))
    def third(label: pa.Array) -> pa.Array:
        return pc.equal(label, 3)

    predicate = third(col("label"))  # type: ignore[operator]
    assert rows.filter(expr=predicate).count() == served.table["label"].to_pylist().count(3)


def test_rows_are_pushed_down(served: Served, sent: Callable[[], Sent]) -> None:
    rows = bowstring.ray.read(served.dataset, parallelism=2)
    first = rows.map(lambda row: {"key": row["key"]}).limit(5)
    assert len(first.take_all()) == 5
    assert sent().rows <= 2 * 5
    assert len(rows.limit(5).take_all()) == 5
    assert rows.limit(0).take_all() == []


# --- what is done with it --------------------------------------------------


Decode = Callable[[dict[str, Any]], dict[str, Any]]


def decoder() -> Decode:
    """A function that decodes photographs into small squares. It is made here: workers cannot import this module."""

    def decode(batch: dict[str, Any]) -> dict[str, Any]:
        images = []
        for image in batch["image"]:
            with Image.open(io.BytesIO(image)) as opened:
                images.append(np.asarray(opened.convert("RGB").resize((16, 16))))
        return {"image": np.stack(images), "label": batch["label"], "width": batch["width"]}

    return decode


def test_photographs_are_decoded(node: Node) -> None:
    client = bowstring.connect(node.url)
    rows = bowstring.ray.read(client, "photos", split="train", columns=["image", "label", "width"], parallelism=2)
    batches = list(rows.map_batches(decoder()).iter_batches(batch_size=32))
    dataset = client.dataset("photos", split="train")
    assert sum(len(b["label"]) for b in batches) == dataset.num_rows > 200
    assert batches[0]["image"].shape == (32, 16, 16, 3)
    labels = collections.Counter(int(v) for b in batches for v in b["label"])
    assert labels == collections.Counter(dataset.columns(["label"]).to_arrow()["label"].to_pylist())


def test_iter_torch_batches(node: Node) -> None:
    import torch

    rows = bowstring.ray.read(node.url, "photos", split="val", columns=["image", "label", "width"])
    seen = 0
    for batch in rows.map_batches(decoder()).iter_torch_batches(batch_size=16):
        assert batch["image"].dtype == torch.uint8
        assert batch["image"].shape[1:] == (16, 16, 3)
        assert batch["label"].dtype == torch.int64
        seen += len(batch["label"])
    assert seen == rows.count() > 20


def test_streaming_split(served: Served) -> None:
    rows = bowstring.ray.read(served.dataset, columns=["key", "image"], shuffle=1, parallelism=4)
    splits = rows.streaming_split(2, equal=True)
    found: list[list[str]] = [[], []]

    def consume(i: int) -> None:
        for batch in splits[i].iter_batches(batch_size=50):
            found[i].extend(batch["key"])

    threads = [threading.Thread(target=consume, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found[0]) == len(found[1]) == ROWS // 2
    assert set(found[0]) | set(found[1]) == set(served.table["key"].to_pylist())


# --- faults --------------------------------------------------


def test_a_worker_is_killed(served: Served, tmp_path: Path) -> None:
    """Its task has given some blocks by then: none of their rows comes twice."""
    context = ray.data.DataContext.get_current()
    before = context.target_max_block_size
    context.target_max_block_size = 1 << 20
    marks, victim, given = tmp_path / "marks", tmp_path / "victim", tmp_path / "given"
    marks.mkdir()
    os.mkfifo(given)

    def dies(batch: dict[str, Any]) -> dict[str, Any]:
        mark = marks / str(os.getpid())
        with mark.open("a") as out:
            out.write("x")
        if mark.stat().st_size >= 6:  # it has made blocks, and is not done
            with contextlib.suppress(FileExistsError):
                victim.touch(exist_ok=False)
                with given.open("rb", buffering=0) as reader:
                    reader.read(1)
                os.kill(os.getpid(), signal.SIGKILL)
        return batch  # with the images, so that blocks are full, and given, again and again

    rows = bowstring.ray.read(served.dataset, shuffle=5, parallelism=2).map_batches(dies, batch_size=64)
    writer = os.open(given, os.O_RDWR)  # so that neither side waits for the other to open it
    found: list[str] = []
    try:
        for batch in rows.iter_batches(batch_size=100):
            if not found:
                os.write(writer, b"x")
            found.extend(batch["key"])
    finally:
        os.close(writer)
        context.target_max_block_size = before
    assert victim.exists(), "no worker was killed"
    assert sum(mark.stat().st_size for mark in marks.iterdir()) > ROWS // 64 + 4  # some was done again
    assert collections.Counter(found) == collections.Counter(served.table["key"].to_pylist())


def test_the_server_restarts(binary: Path, tmp_path: Path) -> None:
    with Node(binary, tmp_path / "store", log=tmp_path / "log") as node:
        client = bowstring.connect(node.url, retries=RETRIES)
        client.ingest("samples", samples(), key="key", progress=False)
        dataset = client.dataset("samples").options(batch_bytes=1 << 19)

        def slowly(batch: dict[str, Any]) -> dict[str, Any]:
            time.sleep(0.05)
            return {"key": batch["key"]}

        rows = bowstring.ray.read(dataset, shuffle=4, parallelism=2).map_batches(slowly, batch_size=50)
        found: list[str] = []
        for number, batch in enumerate(rows.iter_batches(batch_size=50, prefetch_batches=0)):
            found.extend(batch["key"])
            if number == 1:
                port = node.port
                node.kill()
                node.start(f"127.0.0.1:{port}")
        assert collections.Counter(found) == collections.Counter(f"row-{i}" for i in range(ROWS))


def test_wrong_arguments(served: Served) -> None:
    read, client = bowstring.ray.read, bowstring.connect(served.dataset.client.uri)
    with pytest.raises(ValueError, match="parallelism: got 0, want an integer, 1 or more"):
        read(served.dataset, parallelism=0)
    with pytest.raises(ValueError, match=r"concurrency: got 1\.5"):
        read(served.dataset, concurrency=1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="source: got list, want a Dataset, a Client, or the address"):
        read([])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="name: got None, want the name of a dataset"):
        read(client)
    with pytest.raises(TypeError, match="snapshot: goes with an address or a client"):
        read(served.dataset, snapshot=3)
    with pytest.raises(bowstring.NotFound):
        read(client, "samples", snapshot=77)
    with pytest.raises(bowstring.InvalidRequest, match="lable"):
        read(client, "samples", columns=["lable"])
    with pytest.raises(bowstring.InvalidRequest, match="did you mean"):
        read(client, "samples", where="lable == 3")
    with pytest.raises(bowstring.InvalidRequest, match="seed"):
        read(served.dataset, shuffle=-1)


def test_tensor_columns(served: Served) -> None:
    """Results of operators are tensors of Ray's, with the server's random numbers."""
    rng = np.random.default_rng(3)
    files = []
    for height in range(40, 64):
        out = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (height, 50, 3), np.uint8)).save(out, "PNG")
        files.append(out.getvalue())
    table = pa.table({"key": [f"{i}" for i in range(len(files))], "image": pa.array(files, pa.large_binary())})
    crop = {"kind": "image", "steps": [{"Decode": {}}, {"RandomResizedCrop": {"size": [24, 32]}}, {"ToImage": {}}]}
    want: dict[int, Any] = {}
    got: dict[int, Any] = {}
    with bowstring.connect(served.node.url) as client:
        client.ingest("pictures", table, key="key", progress=False)
        made = client.dataset("pictures").columns(["position", "image"]).operators(image=crop).shuffle(5)
        for record in made.batches(7, epoch=2):
            images = operators.arrays(record)["image"]
            want.update(zip(record["position"].to_pylist(), images, strict=True))
        rows = bowstring.ray.read(made, epoch=2, parallelism=3)
        for batch in rows.iter_batches(batch_size=5, batch_format="numpy"):
            assert batch["image"].dtype == np.uint8
            assert batch["image"].shape[1:] == (3, 24, 32)
            got.update(zip(batch["position"].tolist(), batch["image"], strict=True))
        (tensors,) = rows.select_columns(["image"]).iter_torch_batches(batch_size=len(files))
    assert got.keys() == want.keys() == set(range(len(files)))
    assert all(np.array_equal(got[position], want[position]) for position in want)
    assert tuple(tensors["image"].shape) == (len(files), 3, 24, 32)


def test_each_run_is_of_the_next_epoch(served: Served) -> None:
    """As a loop over `iter_batches` makes them; what is not shuffled has one order."""
    shuffled = served.dataset.columns(["key"]).shuffle(5)

    def runs(rows: ray.data.Dataset) -> list[list[str]]:
        return [[key for batch in rows.iter_batches(batch_size=None) for key in batch["key"]] for _ in range(2)]

    def epoch(number: int) -> list[str]:
        return [key for batch in shuffled.batches(epoch=number) for key in batch["key"].to_pylist()]

    assert runs(bowstring.ray.read(shuffled, epoch=2, parallelism=1)) == [epoch(2), epoch(3)]
    plain = runs(bowstring.ray.read(served.dataset, columns=["key"], parallelism=1))
    assert plain[0] == plain[1]
