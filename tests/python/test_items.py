"""Rows by index, iteration and frames: compared with what the streams give."""

from __future__ import annotations

import pickle
from typing import Any

import bowstring
import numpy as np
import pyarrow as pa
import pytest
from bowstring import operators
from bowstring._rows.items import Format
from bowstring.errors import InvalidRequest


@pytest.fixture(params=["in order", "shuffled", "narrowed", "a split", "a selection", "like lengths"])
def dataset(here: bowstring.Client, request: pytest.FixtureRequest) -> bowstring.Dataset:
    photos = here.dataset("photos").columns(["position", "label", "width"])
    return {
        "in order": lambda: photos,
        "shuffled": lambda: photos.shuffle(5),
        "narrowed": lambda: photos.where("label < 4").shuffle(5),
        "a split": lambda: here.dataset("photos", split="val").select("position", "label", "width"),
        "a selection": lambda: photos.select([5, 3, 200]),
        "like lengths": lambda: photos.shuffle(5).options(bucket_by_length={"column": "image", "window": 2}),
    }[request.param]()


def test_rows_by_index(dataset: bowstring.Dataset) -> None:
    """Index, slice and iteration agree with the stream of epoch 0."""
    rows = dataset.to_arrow().to_pylist()
    assert list(dataset) == rows
    assert dataset.take(70).to_pylist() == rows[:70]
    assert list(dataset.map(lambda row: row, batch_size=7)) == rows
    assert dataset[0] == rows[0]
    assert dataset[-1] == rows[-1] == dataset[np.int64(len(rows) - 1)]
    for part in (slice(1, 3), slice(None, None, -1), slice(5, 2), slice(-2, None)):
        chosen = rows[part]
        assert dataset[part] == {name: [row[name] for row in chosen] for name in dataset.column_names}
    assert dataset[[2, 0, 2]]["position"] == [rows[n]["position"] for n in (2, 0, 2)]
    assert dataset[np.array([1])]["label"] == [rows[1]["label"]]
    assert dataset["label"] == [row["label"] for row in rows]
    assert dataset[range(1, 3)] == dataset[1:3]
    for wrong in (
        len(rows),
        -len(rows) - 1,
        2**70,
        np.uint64(2**64 - 1),
        [2**64 - 1],
        np.array([2**64 - 1], np.uint64),
    ):
        with pytest.raises(IndexError, match=f"there are {len(rows)} rows"):
            dataset[wrong]


def test_the_first_rows_have_the_last_step(here: bowstring.Client) -> None:
    """Also where streams leave an incomplete step out."""
    photos = here.dataset("photos").columns(["position"])
    photos = photos.options(bucket_by_length={"column": "image", "window": 2}, remainder="drop")
    assert photos.take(photos.num_rows)["position"].to_pylist() == photos[:]["position"]


def test_formats(dataset: bowstring.Dataset) -> None:
    polars = pytest.importorskip("polars")
    torch = pytest.importorskip("torch")
    table = dataset.to_arrow()
    arrow = dataset.with_format("arrow")
    assert arrow[:] == table
    assert arrow[1] == table.slice(1, 1)
    assert arrow["label"] == table["label"]
    assert next(iter(arrow)) == table.slice(0, 1)
    assert dataset.with_format("polars")[0:2].equals(polars.from_arrow(table.slice(0, 2)))
    assert dataset.to_polars().equals(polars.from_arrow(table))
    numbers = dataset.with_format("numpy")[0:3]["width"]
    assert numbers.tolist() == table["width"][:3].to_pylist()
    assert numbers.dtype == table.schema.field("width").type.to_pandas_dtype()
    tensor = dataset.with_format("torch")[[0, 1]]["label"]
    assert isinstance(tensor, torch.Tensor)
    assert tensor.tolist() == table["label"][:2].to_pylist()


def test_a_frame_of_pandas(here: bowstring.Client) -> None:
    pytest.importorskip("pandas")
    labels = here.dataset("photos").columns(["label"])
    assert labels.to_pandas()["label"].tolist() == labels.to_arrow()["label"].to_pylist()
    assert labels.with_format("pandas")[3:5].shape == (2, 1)


def test_images(here: bowstring.Client) -> None:
    photos = here.dataset("photos", split="train").shuffle(2)
    assert photos[7]["image"] == photos.to_arrow()["image"][7].as_py()
    assert photos.with_format("numpy")[7]["image"] == photos[7]["image"]


def test_tensors(here: bowstring.Client) -> None:
    """Results of operators on images have their shape in each format."""
    torch = pytest.importorskip("torch")
    photos = here.dataset("photos").columns(["image"])
    steps = [{"Decode": {}}, {"Resize": {"size": [6, 8]}}]
    for made, ragged in (photos.operators(image=steps), False), (photos.operators(image=[{"Decode": {}}]), True):
        table = made.take([0, 1])
        want: list[Any] = list(operators.tensors(table["image"].combine_chunks(), table.schema.field("image")))
        assert made[0]["image"] == want[0].tolist()
        assert [one.tolist() for one in made.with_format("numpy")[:2]["image"]] == [one.tolist() for one in want]
        found = made.with_format("torch")[:2]["image"]
        assert [one.tolist() for one in found] == [one.tolist() for one in want]
        assert isinstance(found, list if ragged else torch.Tensor)
        assert made.with_format("torch")[0]["image"].shape == want[0].shape


def test_no_rows(here: bowstring.Client) -> None:
    """Columns without values are of their kinds."""
    pytest.importorskip("torch")
    none = here.dataset("photos").columns(["image", "label", "width"]).where("width < 0")
    assert list(none) == []
    with pytest.raises(IndexError, match="there are 0 rows"):
        none[0]
    names: tuple[Format, ...] = ("python", "numpy", "torch")
    for name in names:
        found = none.with_format(name)[:]
        assert found["image"] == []
        assert len(found["label"]) == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_of_torch(here: bowstring.Client, workers: int) -> None:
    """A DataLoader shuffles the rows by their index, and reads those of a batch together."""
    loading = pytest.importorskip("torch.utils.data")
    labels = here.dataset("photos").columns(["position", "label"])
    loader = loading.DataLoader(labels, batch_size=50, shuffle=True, num_workers=workers)
    batches = list(loader)
    assert len(batches) == -(-len(labels) // 50)
    got = {p: n for b in batches for p, n in zip(b["position"].tolist(), b["label"].tolist(), strict=True)}
    assert got == {row["position"]: row["label"] for row in labels}


def test_words(here: bowstring.Client) -> None:
    """The words of other libraries mean what the package's own do."""
    photos = here.dataset("photos")
    assert photos.filter("label < 3") == photos.where("label < 3")
    narrow = photos.columns(["image", "label"])
    assert photos.select("image", "label") == photos.select(["image", "label"]) == narrow
    assert photos.select_columns(["image", "label"]) == narrow
    assert photos.select("label") == photos.columns(["label"])
    assert narrow.column_names == ["image", "label"]
    assert list(narrow.features) == ["image", "label"]
    assert narrow.features["label"].type == narrow.schema.field("label").type
    ids = photos.select("id")[0:2]["id"]
    assert photos.select([str(one) for one in ids]).num_rows == 2


def test_mistakes(here: bowstring.Client) -> None:
    photos = here.dataset("photos")
    with pytest.raises(TypeError, match="a function"):
        photos.filter(lambda row: row["label"] == 1)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="with_format: got 'jax'"):
        photos.with_format("jax")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        photos[1.5]
    with pytest.raises(TypeError, match="want a list of integers"):
        photos[[0.5]]
    with pytest.raises(InvalidRequest):
        photos["nothing"]
    with pytest.raises(TypeError, match="rows and more"):
        photos.select([1], "label")
    assert isinstance(photos.with_format("arrow")["label"], pa.ChunkedArray)


def widths(row: dict[str, Any]) -> dict[str, Any]:
    return {"half": row["width"] // 2}


def test_map(dataset: bowstring.Dataset) -> None:
    """A function runs on each row that is read, and on no other."""
    rows = dataset.to_arrow().to_pylist()
    expected = [{**row, "half": row["width"] // 2} for row in rows]
    mapped = dataset.map(widths)
    assert list(mapped) == expected
    assert len(mapped) == len(expected)
    assert mapped[1] == expected[1]
    several = {name: [row[name] for row in expected[:3]] for name in expected[0]}
    for index in (slice(3), range(3), np.arange(3), pa.array([0, 1, 2])):
        assert mapped[index] == several
    assert pickle.loads(pickle.dumps(mapped)).__getitems__([2, 0]) == [expected[2], expected[0]]
    seen: list[int] = []
    lazy = dataset.map(lambda row: seen.append(row["position"]), remove_columns=["width"])
    assert not seen
    assert lazy[0] == {"position": rows[0]["position"], "label": rows[0]["label"]}
    assert seen == [rows[0]["position"]]


def test_batched_map(dataset: bowstring.Dataset) -> None:
    rows = dataset.to_arrow().to_pylist()
    arrays = dataset.with_format("numpy").map(lambda rows: {"twice": rows["label"] * 2}, batched=True, batch_size=7)
    assert [row["twice"] for row in arrays] == [row["label"] * 2 for row in rows]
    chained = arrays.map(lambda row: {"more": row["twice"] + 1}, remove_columns=["twice"])
    assert [row["more"] for row in chained] == [row["label"] * 2 + 1 for row in rows]
    found = list(chained.batches(64, rank=0, world_size=1))
    assert sorted(n for batch in found for n in batch["more"]) == sorted(row["label"] * 2 + 1 for row in rows)
    every = dataset.map(lambda rows: {"n": rows["label"] * 2}, batched=True, remove_columns=dataset.column_names)
    assert len(list(every)) == 2 * len(rows)
    for wrong, error, says in (
        (lambda: list(dataset.map(lambda _: {"n": [1] * 1000}, batched=True)), ValueError, "different lengths"),
        (lambda: list(dataset.map(lambda _: 3)), TypeError, "want a dictionary"),
        (lambda: len(every), TypeError, "not known"),
        (lambda: dataset.map(3), TypeError, "want a function"),  # type: ignore[arg-type]
        (lambda: dataset.with_format("arrow").map(widths), InvalidRequest, "with_format"),
        (lambda: dataset.map(widths, batch_size=0), InvalidRequest, "1 or more"),
        (lambda: every.map(widths, batch_size=0), InvalidRequest, "1 or more"),
    ):
        with pytest.raises(error, match=says):
            wrong()


def test_first_rows(dataset: bowstring.Dataset) -> None:
    table = dataset.to_arrow()
    assert dataset.take(2) == table.slice(0, 2)
    assert dataset.take(np.int64(1), columns=["label"]) == table.select(["label"]).slice(0, 1)
    assert dataset.take(10_000) == table
    assert dataset.take(0).num_rows == 0
    with pytest.raises(InvalidRequest, match="0 or more"):
        dataset.take(-1)
