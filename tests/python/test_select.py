"""Selections of every kind, beside what NumPy would select."""

from __future__ import annotations

import random
import uuid
from typing import Any

import bowstring
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from node import Node

ROUNDS = 25
Rows = Any


@pytest.fixture(scope="module")
def photos(node: Node) -> bowstring.Dataset:
    return bowstring.connect(node.url).dataset("photos").columns(["position", "id", "label", "width"])


@pytest.fixture(scope="module")
def model(photos: bowstring.Dataset) -> pa.Table:
    return photos.to_arrow()


def of(dataset: bowstring.Dataset) -> list[int]:
    found: list[int] = dataset.to_arrow()["position"].to_pylist()
    assert found == dataset.positions().tolist()
    assert len(found) == dataset.num_rows
    return found


@pytest.mark.parametrize(
    "make",
    [
        list,
        tuple,
        set,
        np.array,
        lambda p: np.array(p, np.int32),
        lambda p: np.array(p, np.uint64),
        lambda p: np.array(p, np.uint8),
        lambda p: np.array(p * 2)[: len(p)],
        lambda p: np.repeat(np.array(p), 2)[::2],
        lambda p: [np.int64(x) for x in p],
        pa.array,
        lambda p: pa.array([0, *p], pa.int16())[1:],
        lambda p: pa.chunked_array([p[:1], p[1:]]),
        lambda p: pa.array(p).dictionary_encode(),
        pl.Series,
        lambda p: pl.Series(p, dtype=pl.UInt32),
        pd.Series,
        lambda p: pa.table({"other": p, "position": p}),
        lambda p: pa.record_batch({"position": p}),
        lambda p: pl.DataFrame({"position": p}),
        lambda p: pd.DataFrame({"position": p}),
    ],
)
def test_positions_of_every_kind(photos: bowstring.Dataset, make: Any) -> None:
    assert of(photos.select(make([7, 3, 211]))) == [3, 7, 211]


def test_ids_of_every_kind(photos: bowstring.Dataset, model: pa.Table) -> None:
    wanted = [5, 1, 250]
    ids: list[uuid.UUID] = [model["id"][p].as_py() for p in wanted]
    taken = model.take(wanted)
    for given in (
        ids,
        [str(i) for i in ids],
        [i.bytes for i in ids],
        taken["id"],
        taken.select(["id", "label"]),
        taken.select(["id"]).to_batches()[0],
        pl.Series([str(i) for i in ids]),
        pl.DataFrame({"id": [i.bytes for i in ids]}),
        pa.array([i.bytes for i in ids], pa.binary(16)),
    ):
        assert of(photos.select(given)) == sorted(wanted)
    assert of(photos.select([1, 2, 3]).select(ids)) == [1]
    assert of(photos.select(taken)) == sorted(wanted)  # position goes before id; both say the same


@pytest.mark.parametrize("make", [list, np.array, pa.array, pl.Series, pd.Series, lambda m: [np.bool_(x) for x in m]])
def test_masks_of_every_kind(photos: bowstring.Dataset, make: Any) -> None:
    val = bowstring.Client(photos.client.uri).dataset("photos", split="val").columns(["position"])
    mask = [n % 7 == 0 for n in range(30)]
    assert of(val.select(make(mask))) == [270 + n for n in range(0, 30, 7)]


def test_a_mask_from_a_frame(photos: bowstring.Dataset, model: pa.Table) -> None:
    """A mask applies in the order of position, whatever the dataset is shuffled by."""
    frame = pl.DataFrame(photos.columns(["label", "width"]).where("width >= 500"))
    mask = (frame["label"] == 2) & (frame["width"] < 700)
    expected = [r["position"] for r in model.to_pylist() if 500 <= r["width"] < 700 and r["label"] == 2]
    assert len(expected) > 5
    assert sorted(photos.shuffle(3).where("width >= 500").select(mask).to_arrow()["position"].to_pylist()) == expected
    nulls = pa.array([True, None, False] * 100)
    assert of(photos.select(nulls)) == list(range(0, 300, 3))


@pytest.mark.parametrize(
    ("rows", "kind", "text"),
    [
        ([300], bowstring.InvalidRequest, "got position 300, want 0 to 299"),
        ([-1, 2], bowstring.InvalidRequest, "got position -1, want 0 to 299"),
        ([5, 2, 5], bowstring.InvalidRequest, "got position 5 twice"),
        ([1.0], bowstring.InvalidRequest, "got double"),
        (np.array([0.5]), bowstring.InvalidRequest, "got double"),
        ([1, None], bowstring.InvalidRequest, "1 nulls"),
        ([None], bowstring.InvalidRequest, "nothing but nulls"),
        ([True, 1], bowstring.InvalidRequest, "booleans and others"),
        ([True] * 299, bowstring.InvalidRequest, "mask of 299 booleans for 300 rows"),
        (["x"], bowstring.InvalidRequest, 'got "x", want a UUID'),
        ([b"short"], bowstring.InvalidRequest, "ids of 5 bytes, want 16"),
        ([uuid.UUID(int=1)], bowstring.NotFound, "no sample of photos@1 has id"),
        ([1, "x"], bowstring.InvalidRequest, "want integers, ids or booleans"),
        ([2**70], bowstring.InvalidRequest, "want"),
        (np.array([2**63 + 1], np.uint64), bowstring.InvalidRequest, "want less than"),
        ([2**63 + 1], bowstring.InvalidRequest, "too large"),
        (np.zeros((2, 2), int), bowstring.InvalidRequest, "2 dimensions"),
        (pa.table({"row": [1]}), bowstring.InvalidRequest, "without a column `position` or `id`; it has row"),
        (pl.DataFrame({"row": [1]}), bowstring.InvalidRequest, "it has row"),
        (5, TypeError, r"\[5\]"),
        ("abc", TypeError, "got one str"),
        (None, TypeError, "NoneType"),
    ],
)
def test_what_cannot_be_a_selection(photos: bowstring.Dataset, rows: Rows, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        photos.select(rows)


def test_none_at_all(photos: bowstring.Dataset) -> None:
    for rows in ([], np.array([], int), pa.array([], pa.int64()), [False] * 300, pl.Series([], dtype=pl.Int64)):
        assert of(photos.select(rows)) == []


def test_more_than_go_with_a_request(node: Node) -> None:
    client = bowstring.connect(node.url)
    rows = pa.table({"n": range(5000), "key": [f"row {n}" for n in range(5000)]})
    client.ingest("many", rows, key="key", progress=False)
    many = client.dataset("many").columns(["position"])
    for count in (1000, 1001, 5000):
        dataset = many.select(range(count))
        assert of(dataset) == list(range(count))
        assert ("name" in dataset.request()["selection"]) == (count > 1000)
    assert of(many.select(range(0, 5000, 2)).select(range(0, 5000, 3))) == list(range(0, 5000, 6))
    assert of(many.select(many.columns(["id"]).to_arrow())) == list(range(5000))
    client.drop("many")


def test_at_random(photos: bowstring.Dataset, model: pa.Table) -> None:
    """Splits, conditions and selections of all kinds, in any sequence, keep the rows that NumPy keeps."""
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    label, width = (np.array(model[name].to_pylist()) for name in ("label", "width"))
    for _ in range(ROUNDS):
        split = rng.choice([None, "train", "val"])
        dataset = bowstring.connect(photos.client.uri).dataset("photos", split=split).columns(["position"])
        kept = np.zeros(300, bool)
        kept[{None: slice(0, 300), "train": slice(0, 270), "val": slice(270, 300)}[split]] = True
        for _ in range(rng.randrange(1, 4)):
            what = rng.randrange(4)
            if what == 0:
                a, b = rng.randrange(10), rng.randrange(300, 900)
                dataset = dataset.where(f"label != {a} and width < {b}")
                kept &= (label != a) & (width < b)
            elif what == 1:
                chosen = rng.sample(range(300), rng.randrange(1, 300))
                dataset = dataset.select(rng.choice([list, np.array, pa.array])(chosen))
                kept &= np.isin(np.arange(300), chosen)
            elif what == 2:
                mask = np.array([rng.random() < 0.7 for _ in range(kept.sum())], bool)
                dataset = dataset.select(mask)
                kept[np.flatnonzero(kept)] = mask
            else:
                dataset = dataset.shuffle(rng.getrandbits(64))
        expected = np.flatnonzero(kept).tolist()
        assert dataset.positions().tolist() == expected
        assert sorted(dataset.to_arrow()["position"].to_pylist()) == expected
        assert dataset.num_rows == len(expected)
