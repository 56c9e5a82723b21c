"""Columns of batches as tensors, and blobs that workers decode."""

from __future__ import annotations

import itertools
from typing import Any

import bowstring
import pyarrow as pa
import pytest
import torch
from bowstring.torch import (
    Batch,
    Blobs,
    BowstringDataset,
    DecodeError,
)
from bowstring.torch._columns import batch_of, column_of
from conftest import StartNode
from torch.utils.data import DataLoader
from torch_photos import size

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*set_vital.*", "ignore:This DataLoader will create"),
]


def test_columns_without_a_copy() -> None:
    values = pa.array([1, 2, 3, 4], pa.int32())
    tensor = column_of(values.slice(1, 2))
    assert tensor.tolist() == [2, 3]
    assert tensor.dtype == torch.int32
    assert tensor.data_ptr() == values.buffers()[1].address + 4
    blobs = pa.array([b"a", b"bcd", b"", b"ef"], pa.large_binary())
    found = column_of(blobs)
    assert found.data.data_ptr() == blobs.buffers()[2].address
    assert found.offsets.data_ptr() == blobs.buffers()[1].address
    sliced = column_of(blobs.slice(1, 3))
    assert sliced.tolist() == [b"bcd", b"", b"ef"]
    assert sliced.data.data_ptr() == blobs.buffers()[2].address + 1
    del blobs
    assert found.tolist() == [b"a", b"bcd", b"", b"ef"]  # the memory lives as long as the tensors


@pytest.mark.parametrize(
    "kind", ["int8", "int16", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64"]
)
def test_numbers(kind: str) -> None:
    tensor = column_of(pa.array([1, 2, 3], kind))
    assert tensor.tolist() == [1, 2, 3]
    assert tensor.dtype == getattr(torch, kind)
    assert len(column_of(pa.array([], kind))) == 0


def test_columns_of_every_kind() -> None:
    record = pa.record_batch(
        {
            "int": pa.array([1, None, 3], pa.int64()),
            "float": pa.array([1.5, None, 3], pa.float32()),
            "bool": pa.array([True, None, False]),
            "text": pa.array(["a", None, "c"]),
            "binary": pa.array([b"xy", None, b"z"], pa.binary()),
            "fixed": pa.array([b"ab", b"cd", b"ef"], pa.binary(2)),
            "time": pa.array([1, 2, 3], pa.timestamp("us")),
            "day": pa.array([1, 2, 3], pa.date32()),
            "points": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int16(), 2)),
            "tags": pa.array([["a"], [], ["b", "c"]]),
            "code": pa.array(["x", "y", "x"]).dictionary_encode(),
            "both": pa.array([{"a": 1}, {"a": 2}, {"a": 3}]),
        }
    )
    batch = batch_of(record)
    assert batch["int"].tolist() == [1, 0, 3]
    assert batch.valid["int"].tolist() == [True, False, True]
    assert batch["float"].isnan().tolist() == [False, True, False]
    assert batch["bool"].tolist() == [True, False, False]
    assert batch["bool"].dtype == torch.bool
    assert batch["text"] == ["a", None, "c"]
    assert batch["binary"].tolist() == [b"xy", b"", b"z"]
    assert batch["fixed"].tolist() == [[97, 98], [99, 100], [101, 102]]
    assert batch["time"].tolist() == batch["day"].tolist() == [1, 2, 3]
    assert batch["points"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert batch["tags"] == [["a"], [], ["b", "c"]]
    assert batch["code"] == ["x", "y", "x"]
    assert batch["both"]["a"].tolist() == [1, 2, 3]
    assert set(batch.valid) == {"int", "float", "bool", "text", "binary"}
    last = batch.samples()[2]
    assert (last["int"].item(), last["text"], last["binary"].tolist()) == (3, "c", [122])


def test_blobs() -> None:
    blobs = column_of(pa.array([b"a", b"bcd", b"", b"ef"], pa.large_binary()))
    assert isinstance(blobs, Blobs)
    assert blobs.lengths.tolist() == [1, 3, 0, 2]
    assert bytes(blobs[-1].tolist()) == b"ef"
    assert blobs[1:3].tolist() == [b"bcd", b""]
    assert [len(b) for b in blobs.nested().unbind()] == [1, 3, 0, 2]
    with pytest.raises(IndexError, match="got index 4, there are 4"):
        blobs[4]
    assert repr(blobs) == "<4 blobs, 6 bytes>"


class Pinned:
    """A tensor's stand-in: there is no device here for which memory could be pinned."""

    def __init__(self, pinned: bool = False) -> None:
        self.pinned = pinned

    def pin_memory(self) -> Pinned:
        return Pinned(pinned=True)


def test_what_data_loader_does_to_pin_memory() -> None:
    from torch.utils.data._utils.pin_memory import pin_memory

    tensor: Any = Pinned  # for the type checker
    batch = Batch(image=Blobs(tensor(), tensor()), label=Pinned(), name=["a", "b"], sizes=[Pinned(), Pinned()])
    batch.step, batch.epoch = 7, 2
    batch.valid = {"label": Pinned()}  # type: ignore[dict-item]
    pinned = pin_memory(batch)  # type: ignore[no-untyped-call]
    assert isinstance(pinned, Batch)
    assert (pinned.step, pinned.epoch, pinned["name"]) == (7, 2, ["a", "b"])
    tensors = [pinned["image"].data, pinned["image"].offsets, pinned["label"], *pinned["sizes"], pinned.valid["label"]]
    assert all(t.pinned for t in tensors)
    assert not batch["label"].pinned


def test_to_a_device(photos: bowstring.Dataset) -> None:
    batch = next(iter(BowstringDataset(photos, columns=["label", "image", "file_name"], global_batch_size=4)))
    moved = batch.to("meta", non_blocking=True)
    assert moved["label"].device.type == moved["image"].data.device.type == "meta"
    assert moved["file_name"] == batch["file_name"]
    assert moved.step == batch.step == 0


# --- decoding -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decode", ["torchvision", "pillow"])
@pytest.mark.parametrize("workers", [0, 2])
def test_decoded_in_the_worker(photos: bowstring.Dataset, decode: str, workers: int) -> None:
    columns = ["image", "width", "height", "label"]
    dataset = BowstringDataset(photos, columns=columns, global_batch_size=16, decode=decode)
    for batch in itertools.islice(DataLoader(dataset, batch_size=None, num_workers=workers), 3):
        assert list(batch) == columns
        for image, width, height in zip(batch["image"], batch["width"], batch["height"], strict=True):
            assert image.shape == (3, height, width)
            assert image.dtype == torch.uint8
    small = BowstringDataset(photos, columns=columns, global_batch_size=16, decode=decode, transform=size)
    for batch in itertools.islice(DataLoader(small, batch_size=None, num_workers=workers), 3):
        assert batch["image"].shape == (16, 3)
        assert batch["label"].shape == (16,)
    listed = BowstringDataset(photos, columns=columns, global_batch_size=16, decode=decode, collate=len)
    assert list(listed) == [16] * 16 + [14]


def test_decoders_agree(photos: bowstring.Dataset) -> None:
    one, other = (
        next(iter(BowstringDataset(photos, columns=["image"], global_batch_size=8, decode=d)))["image"]
        for d in ("torchvision", "pillow")
    )
    for a, b in zip(one, other, strict=True):
        assert (a.int() - b.int()).abs().float().mean() < 2  # two versions of libjpeg


def test_damaged_images(start: StartNode) -> None:
    client = bowstring.connect(start().url)
    whole = client.dataset("photos").columns(["image"]).take([0, 1])["image"].to_pylist()
    table = pa.table(
        {
            "image": pa.array([whole[0], b"no image", whole[1], whole[0][:700], whole[1]], pa.large_binary()),
            "label": pa.array([0, 1, 2, 3, 4]),
        }
    )
    client.ingest("damaged", table, progress=False, media={"image": "image"})
    damaged = client.dataset("damaged")
    for decode in ("pillow", "auto"):
        with pytest.raises(DecodeError, match=r"position 1, id [0-9a-f-]{36}, column image: .+"):
            list(BowstringDataset(damaged, decode=decode, global_batch_size=5))
        skipped = BowstringDataset(damaged, decode=decode, global_batch_size=2, on_decode_error="skip")
        kept = [label for batch in skipped for label in batch["label"].tolist()]
        assert [label for label in kept if label != 3] == [0, 2, 4]  # a decoder may fill in what is missing
    loader = DataLoader(BowstringDataset(damaged, decode="pillow", global_batch_size=2), batch_size=None, num_workers=2)
    with pytest.raises(DecodeError, match="position 1"):
        list(loader)
    singles = BowstringDataset(damaged, decode="pillow", global_batch_size=2, on_decode_error="skip", output="samples")
    assert [int(sample["label"]) for sample in singles] == [0, 2, 4]
