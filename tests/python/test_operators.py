"""Samples that the server has made ready: operators in requests, and what comes of them."""

import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import bowstring
import numpy as np
import pyarrow as pa
import pytest
import torch
from bowstring import operators
from bowstring.torch import BowstringDataset
from conftest import StartNode
from PIL import Image
from torchvision.transforms import v2

CROP = [{"Decode": {}}, {"RandomResizedCrop": {"size": [24, 32]}}, {"RandomHorizontalFlip": {}}]
ROWS = 20


def picture(i: int) -> bytes:
    """An image of its own size, with lossless bytes."""
    rng = np.random.default_rng(i)
    out = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (40 + i, 60, 3), np.uint8)).save(out, "PNG")
    return out.getvalue()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images; the last one is damaged."""
    folder = tmp_path_factory.mktemp("pictures")
    for i in range(ROWS):
        data = picture(i)
        (folder / f"{i:03}.png").write_bytes(data if i < ROWS - 1 else data[: len(data) // 2])
    return folder


@pytest.fixture
def photos(
    pictures: Path, bowstring_command: Callable[..., object], start: StartNode, tmp_path: Path
) -> Iterator[bowstring.Dataset]:
    """The images, served."""
    store = tmp_path / "pictures"
    bowstring_command("import", pictures, "photos", "--store", store, "--verify", "none")
    node = start(store=store)
    with bowstring.connect(node.url) as client:
        yield client.dataset("photos").options(on_error="null")


@pytest.fixture
def bowstring_command(binary: Path) -> Callable[..., object]:
    """Runs the command."""
    return lambda *args: subprocess.run([binary, *map(str, args)], check=True, capture_output=True)


def test_tensors(photos: bowstring.Dataset) -> None:
    """Crops come as tensors in every way that a client takes them, and are the same ones."""
    made = photos.shuffle(5).operators(image=CROP)
    field = made.schema.field("image")
    assert field.type == pa.fixed_shape_tensor(pa.uint8(), field.type.shape, dim_names=field.type.dim_names)
    found: dict[int, np.ndarray] = {}
    for batch in made.columns(["position", "image"]).batches(7, epoch=3):
        images = operators.arrays(batch)["image"]
        assert images.shape[0] == batch.num_rows
        found.update(zip(batch["position"].to_pylist(), images, strict=True))
        assert batch["image"].null_count == sum(p == ROWS - 1 for p in batch["position"].to_pylist())
    assert len(found) == ROWS
    assert not found.pop(ROWS - 1).any()

    loaded = BowstringDataset(
        photos.columns(["position", "image"]), operators={"image": CROP}, shuffle=5, global_batch_size=6
    )
    loaded.set_epoch(3)
    for batch in loaded:
        assert batch["image"].dtype == torch.uint8
        for position, image in zip(batch["position"].tolist(), batch["image"], strict=True):
            assert position not in found or np.array_equal(image.numpy(), found[position])
    exchanged = BowstringDataset(loaded.dataset, output="dlpack", global_batch_size=6)
    exchanged.set_epoch(3)
    for batch in exchanged:
        image = np.from_dlpack(batch["image"])
        for position, one in zip(np.from_dlpack(batch["position"]), image, strict=True):
            assert position not in found or np.array_equal(one, found[position])
    with made.columns(["position", "image"]).exchange(epoch=3) as exchange:
        table = exchange.take([4, 2, 4])
    (batch,) = table.combine_chunks().to_batches()
    for position, one in zip([4, 2, 4], operators.arrays(batch)["image"], strict=True):
        assert np.array_equal(one, found[position])


def test_ragged(photos: bowstring.Dataset) -> None:
    """Images of their own sizes are tensors of several shapes, equal to Pillow's pixels."""
    made = photos.operators(image=[{"Decode": {}}]).columns(["position", "image"])
    assert made.nbytes == -1
    seen = 0
    for batch in made.batches(8):
        arrays = operators.arrays(batch)["image"]
        for position, array in zip(batch["position"].to_pylist(), arrays, strict=True):
            seen += 1
            if position == ROWS - 1:
                assert array is None
                continue
            want = np.asarray(Image.open(io.BytesIO(picture(position))))
            if array.shape[0] == 3:
                array = np.moveaxis(array, 0, 2)
            assert np.array_equal(array, want)
    assert seen == ROWS
    for batch in BowstringDataset(made, global_batch_size=5):
        assert all(t is None or (isinstance(t, torch.Tensor) and t.ndim == 3) for t in batch["image"])


def test_from_torchvision(photos: bowstring.Dataset) -> None:
    """A Compose becomes a list that the server takes, with the pixels of torchvision where nothing is random."""
    compose = v2.Compose(
        [
            v2.ToImage(),
            v2.Resize(36),
            v2.CenterCrop(32),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5] * 3, [0.25] * 3),
        ]
    )
    (batch,) = photos.operators(image=compose).columns(["position", "image"]).batches(ROWS)
    images = operators.arrays(batch)["image"]
    assert images.dtype == np.float32
    for position, image in list(zip(batch["position"].to_pylist(), images, strict=True))[:-1]:
        want = compose(Image.open(io.BytesIO(picture(position)))).numpy()
        assert image.shape == want.shape
        assert np.abs(image - want).max() <= 1.01 / 255 / 0.25
    with pytest.raises(operators.NoOperator, match=r"transforms\[1\]: there is no operator ElasticTransform"):
        operators.from_torchvision(v2.Compose([v2.Resize(4), v2.ElasticTransform()]))
    with pytest.raises(operators.NoOperator, match="is no transform of torchvision"):
        operators.from_torchvision(picture)
    with pytest.raises(bowstring.InvalidRequest, match=r"operators\.image\[1\]"):
        photos.operators(image=[{"Decode": {}}, {"Resize": {"size": 0}}])


def test_expressions(photos: bowstring.Dataset, binary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Expressions over metadata make columns, beside tensors, at server and client, in pyarrow, torch and exchanges."""
    monkeypatch.setenv("BOWSTRING_BINARY", str(binary))
    made = photos.shuffle(5).operators(
        number=operators.expression("int(trimSuffix(file_name, '.png')[-3:]) * 2"),
        size=operators.expression("image.size / 1000"),
        odd=operators.expression("position % 2 == 1"),
        name=operators.expression("upper(file_name)"),
        image=CROP,
    )
    assert made.schema.names[-4:] == ["name", "number", "odd", "size"]  # in order of their names
    made = made.columns(["position", "image", "number", "size", "odd", "name"])
    types = {"number": pa.int64(), "size": pa.float64(), "odd": pa.bool_(), "name": pa.string()}
    assert {name: made.schema.field(name).type for name in types} == types
    assert made.nbytes == -1

    def check(row: dict[str, object]) -> None:
        position = row["position"]
        assert isinstance(position, int)
        data = picture(position)
        size = len(data) if position < ROWS - 1 else len(data) // 2
        assert row["number"] == 2 * position
        assert row["size"] == pytest.approx(size / 1000, abs=0)
        assert row["odd"] is (position % 2 == 1)
        assert row["name"] == f"{position:03}.PNG"

    given = pa.Table.from_batches(made.batches(7, epoch=1), made.schema)
    for row in given.drop_columns("image").to_pylist():
        check(row)
    assert sorted(given["position"].to_pylist()) == list(range(ROWS))
    for place in ("client", "auto"):
        there = made.options(place=place)
        assert pa.Table.from_batches(there.batches(7, epoch=1), there.schema).equals(given)
    only = made.columns(["position", "number", "size", "odd", "name"])
    for row in pa.Table.from_batches(only.options(place="client").batches(7), only.schema).to_pylist():
        check(row)
    for row in only.exchange().take([3, 0, 3]).to_pylist():
        check(row)
    found = 0
    for batch in BowstringDataset(only, global_batch_size=6):
        assert batch["number"].dtype == torch.int64
        assert batch["size"].dtype == torch.float64
        assert batch["odd"].dtype == torch.bool
        for position, number, odd in zip(batch["position"], batch["number"], batch["odd"], strict=True):
            found += 1
            assert int(number) == 2 * int(position)
            assert bool(odd) == (int(position) % 2 == 1)
    assert found == ROWS
    # A column may have a name that describes results of operators.
    named = photos.operators({"image": CROP, "image.length": operators.expression("position + 1")})
    named = named.operators({"n": operators.expression("position"), "n.params": operators.expression("-position")})
    named = named.columns(["position", "image", "image.length", "n", "n.params", "image.params"])
    table = pa.Table.from_batches(named.batches(7), named.schema)
    assert pa.Table.from_batches(named.options(place="client").batches(7), named.schema).equals(table)
    assert table["image.length"].to_pylist() == [p + 1 for p in table["position"].to_pylist()]
    with pytest.raises(bowstring.InvalidRequest, match=r"operators\.n\.expression:1:1: no column .*did you mean"):
        photos.operators(n=operators.expression("file_nam + 1"))


def test_expressions_that_cannot_be_written(
    photos: bowstring.Dataset, binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They follow on_error, as what cannot be made of a blob does, at either place."""
    monkeypatch.setenv("BOWSTRING_BINARY", str(binary))
    made = photos.operators(rest=operators.expression("60 % (position % 10)"), image=CROP)
    made = made.columns(["position", "image", "rest"])
    lost = {p for p in range(ROWS) if p % 10 == 0}
    given = []
    for place in ("server", "client"):
        there = made.options(place=place, on_error="null")
        with there.batches(7) as batches:
            faults = set()
            for batch in batches:
                given.append(batch)
                found = (batches.place or {}).get("faults", [])
                faults |= {fault["position"] for fault in found if fault["column"] == "rest"}
        assert faults == lost
    half = len(given) // 2
    assert given[:half] == given[half:]
    table = pa.Table.from_batches(given[:half]).to_pydict()
    assert {p for p, rest in zip(table["position"], table["rest"], strict=True) if rest is None} == lost
    skipped = pa.Table.from_batches(made.options(on_error="skip").batches(7)).to_pydict()
    assert len(skipped["position"]) == ROWS
    assert not lost & set(skipped["position"])
    with pytest.raises(bowstring.InvalidRequest, match=r'position 0 of photos@1\), column "rest"'):
        list(made.columns(["rest"]).options(on_error="fail").batches(7))


def test_get_operators(photos: bowstring.Dataset, binary: Path, tmp_path: Path) -> None:
    """The command writes tensors to files."""
    get: list[str | Path] = [binary, "get", "photos", "--server", photos.client.uri]
    (tmp_path / "ops.json").write_text(json.dumps({"image": CROP}))
    given: list[str | Path] = [tmp_path / "ops.json", json.dumps({"image": CROP})]
    for n, value in enumerate(given):
        to = tmp_path / f"{n}.arrow"
        subprocess.run(
            [
                binary,
                "get",
                "photos",
                "--server",
                photos.client.uri,
                "--to",
                to,
                "--on-error",
                "null",
                "--operators",
                value,
            ],
            check=True,
        )
        table = pa.ipc.open_file(to).read_all()
        assert table.num_rows == ROWS
        assert isinstance(table.schema.field("image").type, pa.FixedShapeTensorType)
    done = subprocess.run(
        [*get, "--to", f"{tmp_path}/d/", "--operators", value],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "a folder holds files" in done.stderr


def test_polars(photos: bowstring.Dataset) -> None:
    """Polars gets arrays that have the tensor's shape, and nulls as nulls."""
    import polars as pl
    from bowstring.polars import scan

    made = photos.shuffle(5).operators(image=CROP).columns(["position", "image"])
    lazy = scan(made)
    frame = lazy.collect()
    shape = made.schema.field("image").type.shape
    assert sorted(shape) == [3, 24, 32]
    assert lazy.collect_schema()["image"] == frame.schema["image"] == pl.Array(pl.UInt8, tuple(shape))
    assert frame.filter(pl.col("image").is_null())["position"].to_list() == [ROWS - 1]
    found = dict(frame.drop_nulls().iter_rows())
    assert len(found) == ROWS - 1
    for batch in made.batches(7):
        for position, image in zip(batch["position"].to_pylist(), operators.arrays(batch)["image"], strict=True):
            assert position == ROWS - 1 or np.array_equal(np.array(found[position], np.uint8), image)
    late = lazy.filter(pl.col("position").is_in([3, 4]), pl.col("image").is_not_null()).collect()
    assert dict(late.iter_rows()) == {position: found[position] for position in (3, 4)}


if __name__ == "__main__":
    sys.exit(pytest.main([__file__]))
