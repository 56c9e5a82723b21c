"""Random access: the samples that samplers ask for."""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys

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


@pytest.mark.parametrize(("workers", "context"), [(0, None), (2, "fork"), (2, "spawn")])
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
