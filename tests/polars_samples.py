"""Samples with metadata of many types, and a server of them, for tests of lazy frames."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import bowstring
import bowstring.polars
import polars as pl
import pyarrow as pa
import pytest
from node import Node
from sent import Sent, sent_since

ROWS, BLOB = 3_000, 4_000
UTC = dt.timezone.utc
WORDS = [
    "",
    "a",
    "cat",
    "caterpillar",
    "dog",
    "über",
    'quo"te',
    "back\\slash",
    "new\nline",
    "tab\t",
    "𝄞 clef",
    "%",
    "nil",
]


def mixed(rows: int = ROWS, seed: int = 1) -> pa.Table:
    """Metadata of many types, with nulls, NaN, infinities and the limits of each type; and two blobs."""
    rng = random.Random(seed)

    def some(make: Callable[[], Any], dtype: pa.DataType) -> pa.Array:
        return pa.array([None if rng.random() < 0.15 else make() for _ in range(rows)], dtype)

    edges = [-(2**63), -(2**53) - 1, 0, 1, 2**53 + 1, 2**63 - 1]
    floats = [math.nan, math.inf, -math.inf, 0.0, -0.0, 0.1, 0.5, 1e300]
    halves = [math.nan, math.inf, -0.0, 0.1, 0.5, 2.0]
    start = dt.datetime(2024, 1, 1)
    struct = pa.struct({"width": pa.int32(), "name": pa.utf8()})
    return pa.table(
        {
            "key": pa.array([f"row-{i}" for i in range(rows)]),
            "small": some(lambda: rng.randrange(-128, 128), pa.int8()),
            "label": some(lambda: rng.randrange(100), pa.int64()),
            "big": some(lambda: rng.choice(edges), pa.int64()),
            "huge": some(lambda: rng.choice([0, 7, 2**63 - 1, 2**63, 2**64 - 1]), pa.uint64()),
            "single": some(lambda: rng.choice(halves), pa.float32()),
            "score": some(lambda: rng.choice([*floats, rng.uniform(-2, 2)]), pa.float64()),
            "word": some(lambda: rng.choice(WORDS), pa.utf8()),
            "other": some(lambda: rng.choice(WORDS), pa.large_utf8()),
            "flag": some(lambda: rng.random() < 0.5, pa.bool_()),
            "day": some(lambda: start.date() + dt.timedelta(rng.randrange(-9, 10)), pa.date32()),
            "taken": some(lambda: start + dt.timedelta(seconds=rng.randrange(-9, 10) / 2), pa.timestamp("us")),
            "seen": some(lambda: start.replace(tzinfo=UTC) + dt.timedelta(rng.randrange(5)), pa.timestamp("ns", "UTC")),
            "tags": some(lambda: [rng.choice(WORDS) for _ in range(rng.randrange(4))], pa.list_(pa.utf8())),
            "codes": some(lambda: [rng.choice([None, 1, 2, 3]) for _ in range(rng.randrange(4))], pa.list_(pa.int64())),
            "box": some(lambda: {"width": rng.randrange(9), "name": rng.choice(WORDS)}, struct),
            "price": some(lambda: decimal.Decimal(rng.randrange(-99, 99)) / 10, pa.decimal128(9, 2)),
            "and": some(lambda: rng.randrange(4), pa.int16()),  # a name that is a word of the server's language
            "a b": some(lambda: rng.randrange(4), pa.uint8()),
            "image": pa.array([rng.randbytes(BLOB) for _ in range(rows)], pa.large_binary()),
            "mask": pa.array([rng.randbytes(rng.randrange(9)) for _ in range(rows)], pa.large_binary()),
        }
    )


class Served(NamedTuple):
    """A server, the dataset there, and all of it in memory."""

    node: Node
    dataset: bowstring.Dataset
    frame: pl.DataFrame


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, binary: Path) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("polars")
    with Node(binary, root / "store", log=root / "log") as node, bowstring.connect(node.url) as client:
        client.ingest("mixed", mixed(), key="key", progress=False)
        dataset = client.dataset("mixed").columns([*mixed(1).column_names, "position"])
        yield Served(node, dataset, bowstring.polars.scan(dataset).collect())


@pytest.fixture
def scan(served: Served) -> pl.LazyFrame:
    return bowstring.polars.scan(served.dataset)


@pytest.fixture
def sent(served: Served) -> Callable[[], Sent]:
    """The rows and bytes that the server has sent since the last call."""
    return sent_since(served.dataset.client)
