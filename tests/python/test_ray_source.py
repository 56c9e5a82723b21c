"""The source that Ray reads by itself, without a Ray: its tasks, and the filters that it takes."""

from __future__ import annotations

import datetime as dt
import os
import pickle
import random
import secrets
import sys
import types
from pathlib import Path

import bowstring
import bowstring.ray
import pytest
import ray
import ray.cloudpickle
from bowstring._filters.ray import translate
from bowstring.ray import BowstringDatasource
from node import Node
from ray.data.expressions import Expr, col, lit
from ray_samples import BLOB, COLUMNS, ROWS, Served, samples, served

__all__ = ["served"]  # fixtures

pytestmark = pytest.mark.slow


def test_tasks(served: Served) -> None:
    source = BowstringDatasource(served.dataset)
    plan = served.dataset.plan()
    assert source.estimate_inmemory_data_size() == plan.bytes > ROWS * BLOB
    for parallelism in (1, 3, 64):
        tasks = source.get_read_tasks(parallelism)
        assert len(tasks) == parallelism
        assert sum(t.metadata.num_rows or 0 for t in tasks) == ROWS
        assert sum(t.metadata.size_bytes or 0 for t in tasks) == pytest.approx(plan.bytes, rel=0.01)
        for task in tasks:
            pickled = ray.cloudpickle.dumps(task)  # type: ignore[no-untyped-call]
            assert len(pickled) < 4_000
            assert task.schema == served.dataset.schema
    blocks = list(source.get_read_tasks(7)[2]())
    assert sum(b.num_rows for b in blocks) == source.get_read_tasks(7)[2].metadata.num_rows
    assert len(source.get_read_tasks(10 * ROWS)) == ROWS  # none without rows
    again = pickle.loads(pickle.dumps(source))
    assert len(again.get_read_tasks(2)) == 2


def test_repeated_tasks_give_the_same_blocks(served: Served) -> None:
    shuffled = served.dataset.columns(["key", "image"]).shuffle(1).options(order="free")
    task = BowstringDatasource(shuffled).get_read_tasks(3)[1]
    first, second = list(task()), list(task())
    assert [b.num_rows for b in first] == [b.num_rows for b in second]
    assert all(a.equals(b) for a, b in zip(first, second, strict=True))


def test_filters_of_what_is_shuffled_stay_with_ray(served: Served) -> None:
    """The server would put the rows that are left in another order."""
    meets = col("label") > 3
    plain = BowstringDatasource(served.dataset)
    assert plain.apply_predicate(meets) is not plain
    for dataset in (served.dataset.shuffle(3), served.dataset.options(on_error="skip")):
        source = BowstringDatasource(dataset)
        assert source.apply_predicate(meets) is source


def test_batches_of_like_length_have_no_effect(served: Served) -> None:
    bucketed = served.dataset.columns(["key"]).shuffle(3).options(bucket_by_length="image", batch_bytes=1 << 20)
    found = [
        k for task in BowstringDatasource(bucketed).get_read_tasks(3) for b in task() for k in b["key"].to_pylist()
    ]
    assert found == [k for b in served.dataset.columns(["key"]).shuffle(3).batches() for k in b["key"].to_pylist()]


def test_a_broken_stream_goes_on_by_ticket(binary: Path, tmp_path: Path) -> None:
    with Node(binary, tmp_path / "store", log=tmp_path / "log") as node:
        client = bowstring.connect(node.url)
        client.ingest("samples", samples(), key="key", progress=False)
        dataset = client.dataset("samples").options(batch_bytes=1 << 18).shuffle(9)
        blocks = BowstringDatasource(dataset).get_read_tasks(2)[1]()
        assert isinstance(blocks, types.GeneratorType)
        first = next(blocks)
        port = node.port
        node.kill()
        node.start(f"127.0.0.1:{port}")
        found = [k for b in [first, *blocks] for k in b["key"].to_pylist()]
        expected = dataset.batches(ROWS, rank=1, world_size=2)
        assert found == [k for b in expected for k in b["key"].to_pylist()]


FILTERS: list[Expr] = [
    col("label") > 3,
    col("label") != 3,
    lit(3) <= col("label"),
    ~(col("label") > 3),
    ~((col("label") > 3) & (col("word") == "cat")),
    col("label").is_in([1, 2]),
    col("label").is_in([1, None]),
    col("label").not_in([1, 2]),
    col("label").not_in([1, None]),
    col("label").is_null(),
    col("word").is_not_null(),
    col("label") > 2.5,
    col("score") > 0.5,
    ~(col("score") > 0.5),
    col("score") != 0.5,
    col("score").is_in([0.5]),
    col("flag") == lit(True),
    ~(col("flag") == lit(True)),
    col("word") == 'quo"te',
    col("word").is_in(["über", ""]),
    col("word").str.starts_with("cat"),
    ~col("word").str.contains("pill"),
    col("word").str.ends_with("e"),
    col("word").str.match("cat%"),
    col("taken") > lit(dt.datetime(1970, 1, 1, 0, 0, 2)),
    (col("label") > 3) | (col("position") < 100),
    (col("label") + 1 > 3) | (col("position") < 100),
    col("label") < col("position"),
    (col("label") > 3) & (col("label") < 2),
]


@pytest.mark.parametrize("number", range(len(FILTERS)))
def test_filters_mean_what_they_mean_to_arrow(served: Served, number: int) -> None:
    predicate = FILTERS[number]
    metadata = served.table.drop_columns(["image"])
    expected = metadata.filter(predicate.to_pyarrow())["position"].to_pylist()
    source = BowstringDatasource(served.dataset)
    found = [b for task in source.apply_predicate(predicate).get_read_tasks(3) for b in task()]
    positions = [p for b in found for p in b["position"].to_pylist()]
    rows = translate(predicate, served.dataset.schema).true
    if rows.text is None:
        assert source.apply_predicate(predicate) is source
        assert len(positions) == ROWS  # Ray filters
    else:
        assert positions == expected


def test_random_filters_mean_what_they_mean_to_arrow(served: Served) -> None:
    seed = int(os.environ.get("BOWSTRING_SEED") or secrets.randbelow(2**32))
    print(f"BOWSTRING_SEED={seed}", file=sys.stderr)
    rng = random.Random(seed)

    def some(depth: int) -> Expr:
        if depth == 0 or rng.random() < 0.2:
            return rng.choice(FILTERS)
        match rng.randrange(3):
            case 0:
                return ~some(depth - 1)
            case 1:
                return some(depth - 1) & some(depth - 1)
        return some(depth - 1) | some(depth - 1)

    metadata = served.table.drop_columns(["image"])
    source = BowstringDatasource(served.dataset.columns([c for c in COLUMNS if c != "image"]))
    pushed = 0
    for number in range(100):
        predicate = some(rng.randrange(1, 4))
        narrowed = source.apply_predicate(predicate)
        if narrowed is source:
            continue
        pushed += 1
        narrowed = narrowed.apply_projection({"position": "position"})
        found = [p for task in narrowed.get_read_tasks(2) for b in task() for p in b["position"].to_pylist()]
        expected = metadata.filter(predicate.to_pyarrow())["position"].to_pylist()
        assert found == expected, f"filter {number} of seed {seed}: {predicate}"
    assert pushed > 50
