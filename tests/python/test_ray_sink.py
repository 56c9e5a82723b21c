"""Datasets of Ray Data become snapshots: each row once whatever Ray repeats, or none, on a real local Ray."""

from __future__ import annotations

import logging
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bowstring
import bowstring.ray
import local_ray
import pyarrow as pa
import pytest
import ray
import ray.cloudpickle

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """A Ray of this machine's own, small."""
    os.environ["RAY_AUTH_MODE"] = "disabled"
    path = os.pathsep.join([str(Path(bowstring.__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    # Workers cannot import this module.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    local_ray.start(num_cpus=2, object_store_memory=200 << 20, runtime_env={"env_vars": {"PYTHONPATH": path}})
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    yield
    ray.shutdown()


@pytest.fixture
def name(here: bowstring.Client) -> Iterator[str]:
    """A dataset of the test's own."""
    made = f"sink-{uuid.uuid4().hex[:8]}"
    yield made
    if here.datasets(made):
        here.drop(made)


def row(n: dict[str, Any]) -> dict[str, Any]:
    """A sample. Every tenth row has no note, and some blocks have no note at all."""
    i = int(n["id"])
    return {"name": f"row {i}", "n": i, "data": b"%d" % i * 50, "note": "x" if 40 < i < 60 and i % 10 else None}


def rows(count: int) -> ray.data.Dataset:
    return ray.data.range(count, override_num_blocks=8).map(row)


def test_each_row_once(here: bowstring.Client, name: str) -> None:
    made = bowstring.ray.write(rows(200), name, here, key="name")
    assert (made.snapshot, made.rows) == (1, 200)
    read = here.dataset(name).to_arrow().sort_by("n").to_pylist()
    want = [row({"id": n}) for n in range(200)]
    assert [{column: one[column] for column in want[0]} for one in read] == want
    more = rows(5).map(lambda one: {"name": one["name"], "n": one["n"] + 1000})
    sink = bowstring.ray.sink(name, here, mode="merge", on="name")
    more.write_datasink(sink)
    assert sink.result is not None
    assert sink.result.matched == 5
    assert here.dataset(name).where("n >= 1000").num_rows == 5


def test_what_was_read_is_written(here: bowstring.Client, name: str) -> None:
    """Media and the names of classes stay those of the dataset that was read."""
    photos = here.dataset("photos").columns(["image", "label"]).select(range(20))
    bowstring.ray.write(bowstring.ray.read(photos), name, here)
    copied = here.dataset(name).columns(["image", "label"])
    assert copied.schema.equals(photos.schema, check_metadata=True)
    assert sorted(copied["image"]) == sorted(photos["image"])
    assert copied.classes("label") == photos.classes("label")


class Dies:
    """Kills its worker once, in the middle of a task that writes."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __call__(self, one: dict[str, Any]) -> dict[str, Any]:
        if int(one["id"]) == 150 and not self._mark.exists():
            self._mark.touch()
            os._exit(1)
        return row(one)


def test_a_worker_dies(here: bowstring.Client, name: str, tmp_path: Path) -> None:
    """Ray repeats its task. The rows that it had written are not there twice."""
    mark = tmp_path / "died"
    bowstring.ray.write(ray.data.range(200, override_num_blocks=4).map(Dies(mark).__call__), name, here)
    assert mark.exists()
    assert sorted(here.dataset(name)["n"]) == list(range(200))


def fails(one: dict[str, Any]) -> dict[str, Any]:
    if int(one["id"]) == 199:
        raise ZeroDivisionError("of the job")
    return row(one)


def test_a_failed_job_leaves_nothing(here: bowstring.Client, name: str) -> None:
    with pytest.raises(Exception, match="of the job"):
        bowstring.ray.write(ray.data.range(200, override_num_blocks=8).map(fails), name, here)
    assert not here.datasets(name)
    bowstring.ray.write(rows(10), name, here)
    with pytest.raises(Exception, match="of the job"):
        bowstring.ray.write(ray.data.range(200, override_num_blocks=8).map(fails), name, here, mode="append")
    assert (here.dataset(name).snapshot, here.dataset(name).num_rows) == (1, 10)


def test_mistakes(here: bowstring.Client, name: str) -> None:
    """They are found before rows are computed, and name the column."""
    here.ingest(name, pa.table({"n": [1]}), progress=False)
    with pytest.raises(bowstring.AlreadyExists, match=name):
        bowstring.ray.write(rows(10), name, here)
    wide = ray.data.from_arrow(pa.table({"bad": pa.array([1], pa.decimal256(50, 0))}))
    with pytest.raises(bowstring.InvalidRequest, match="column bad"):
        bowstring.ray.write(wide, f"{name}-wide", here)
    mixed = ray.data.from_arrow([pa.table({"a": [1]}), pa.table({"a": [[1]]})])
    with pytest.raises(bowstring.InvalidRequest, match="column a is int64 in one block and list"):
        bowstring.ray.write(mixed, f"{name}-mixed", here)
    with pytest.raises(bowstring.InvalidRequest, match="rows: got none"):
        bowstring.ray.write(ray.data.from_items([]), f"{name}-none", here)
