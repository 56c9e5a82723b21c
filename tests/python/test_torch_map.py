"""Random access: the samples that samplers ask for."""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys
from typing import Any

import bowstring
import pytest
from bowstring.torch import (
    BowstringMapDataset,
    collate,
)
from node import Node
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler
from torch_photos import TRAIN, seen, size

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*set_vital.*", "ignore:This DataLoader will create"),
]


@pytest.fixture
def rows(photos: bowstring.Dataset) -> BowstringMapDataset:
    return BowstringMapDataset(photos, columns=["position", "image"])


def test_map_style(photos: bowstring.Dataset, rows: BowstringMapDataset) -> None:
    table = photos.columns(["position", "image"]).to_arrow().sort_by("position")
    assert len(rows) == TRAIN
    for index in (0, 5, 269, -1):
        sample = rows[index]
        assert int(sample["position"]) == table["position"][index].as_py()
        assert sample["image"].numpy().tobytes() == table["image"][index].as_py()
    assert rows[[7, 7, 3]]["position"].tolist() == [table["position"][i].as_py() for i in (7, 7, 3)]
    assert [int(s["position"]) for s in rows.__getitems__([2, 1])] == [table["position"][i].as_py() for i in (2, 1)]
    for index in (270, -271):
        with pytest.raises(IndexError, match=f"index: got {index}, there are 270"):
            rows[index]
    copy = pickle.loads(pickle.dumps(rows))
    assert copy[3]["image"].tolist() == rows[3]["image"].tolist()


@pytest.mark.parametrize(
    ("workers", "context"), [(0, None), (2, "fork"), pytest.param(2, "spawn", marks=pytest.mark.nightly)]
)
def test_map_style_with_samplers(rows: BowstringMapDataset, workers: int, context: str | None) -> None:
    rows[0]  # a connection is open when the workers start
    everything = rows.positions.tolist()
    sampler = BatchSampler(RandomSampler(rows), 32, drop_last=False)
    loader = DataLoader(rows, sampler=sampler, batch_size=None, num_workers=workers, multiprocessing_context=context)
    for _ in range(2):
        batches = list(loader)
        assert sorted(itertools.chain(*(b["position"].tolist() for b in batches))) == everything
        assert [len(b["image"]) for b in batches] == [32] * 8 + [14]
    ordinary = DataLoader(
        rows,
        sampler=SequentialSampler(rows),
        batch_size=50,
        num_workers=workers,
        collate_fn=collate,
        multiprocessing_context=context,
    )
    assert list(itertools.chain(*seen(ordinary))) == everything


def test_map_style_decoded(photos: bowstring.Dataset) -> None:
    rows = BowstringMapDataset(photos.where("label == 2"), columns=["image", "label"], decode="pillow", transform=size)
    loader = DataLoader(rows, batch_size=8, shuffle=True)
    for batch in loader:
        assert batch["image"].shape[1:] == (3,)
        assert set(batch["label"].tolist()) == {2}
    with pytest.raises(ValueError, match="only 'raise'"):
        BowstringMapDataset(photos, on_decode_error="skip")  # type: ignore[arg-type]


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_random_operators_draw_anew_in_each_epoch(photos: bowstring.Dataset, workers: int, persistent: bool) -> None:
    """As many augmentations as epochs, for each sample; and `set_epoch` repeats them."""
    crops = photos.columns(["position", "image"]).operators(
        image=[{"Decode": {}}, {"RandomResizedCrop": {"size": [8, 8]}}]
    )
    rows = BowstringMapDataset(crops.select(photos.positions()[:40]))
    sampler = BatchSampler(RandomSampler(rows), 8, drop_last=False)
    loader = DataLoader(rows, sampler=sampler, batch_size=None, num_workers=workers, persistent_workers=persistent)

    def epoch() -> dict[int, bytes]:
        return {
            int(position): image.numpy().tobytes()
            for batch in loader
            for position, image in zip(batch["position"], batch["image"], strict=True)
        }

    found = [epoch() for _ in range(3)]
    assert rows.epoch == 2
    assert all(len({one[position] for one in found}) == 3 for position in found[0])
    rows.set_epoch(1)
    assert epoch() == found[1]
    assert epoch() == found[2]


def test_positions_that_follow_one_another_are_not_read(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = bowstring.connect(node.url).dataset("photos")
    read: list[int] = []
    stream = bowstring.Dataset._stream

    def counted(self: bowstring.Dataset, ticket: dict[str, Any], **more: Any) -> Any:
        read.append(1)
        return stream(self, ticket, **more)

    monkeypatch.setattr(bowstring.Dataset, "_stream", counted)
    rows = BowstringMapDataset(everything)
    assert rows.positions.tolist() == list(range(everything.num_rows))
    assert rows[[5, -1]]["label"].tolist() == everything.take([5, everything.num_rows - 1])["label"].to_pylist()
    assert read == []
    # Two of the others are; few are read at once.
    monkeypatch.setattr("bowstring._rows.positions.FEW", 20)
    middle = everything.select(range(100, 140))
    assert BowstringMapDataset(middle).positions.tolist() == list(range(100, 140))
    assert len(read) == 2
    with_a_gap = everything.select([*range(100, 140), 141])
    assert BowstringMapDataset(with_a_gap).positions.tolist() == [*range(100, 140), 141]
    assert with_a_gap.positions().tolist() == [*range(100, 140), 141]


def test_pandas_is_not_imported(node: Node) -> None:
    """Its import takes most of a second, and pyarrow's to_numpy does it."""
    script = f"""
import sys
from bowstring.torch import BowstringDataset, BowstringMapDataset
next(iter(BowstringDataset({node.url!r}, "photos", shuffle=1)))
BowstringMapDataset({node.url!r}, "photos")[[1, 2]]
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)
