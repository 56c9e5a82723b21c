"""Samples with nulls in their metadata, and a server of them, for tests of Ray."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import bowstring
import bowstring.ray
import pyarrow as pa
import pytest
from node import Node

ROWS, BLOB = 2_000, 10_000
COLUMNS = ["key", "label", "score", "word", "flag", "taken", "image", "position"]


def samples(rows: int = ROWS) -> pa.Table:
    """Samples with nulls and NaN in their metadata."""
    rng = random.Random(2)

    def some(make: Callable[[], Any], dtype: pa.DataType) -> pa.Array:
        return pa.array([None if rng.random() < 0.15 else make() for _ in range(rows)], dtype)

    return pa.table(
        {
            "key": pa.array([f"row-{i}" for i in range(rows)]),
            "label": some(lambda: rng.randrange(10), pa.int64()),
            "score": some(lambda: rng.choice([math.nan, 0.5, rng.random()]), pa.float64()),
            "word": some(lambda: rng.choice(["", "cat", "caterpillar", 'quo"te', "über"]), pa.utf8()),
            "flag": some(lambda: rng.random() < 0.5, pa.bool_()),
            "taken": some(lambda: rng.randrange(5) * 10**6, pa.timestamp("us")),
            "image": pa.array([rng.randbytes(BLOB) for _ in range(rows)], pa.large_binary()),
        }
    )


class Served(NamedTuple):
    """A server, the dataset there, and its table."""

    node: Node
    dataset: bowstring.Dataset
    table: pa.Table


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, binary: Path) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("ray")
    with Node(binary, root / "store", log=root / "log") as node, bowstring.connect(node.url) as client:
        client.ingest("samples", samples(), key="key", progress=False)
        dataset = client.dataset("samples").columns(COLUMNS)
        yield Served(node, dataset, dataset.to_arrow())
