"""Trainers that people use: each sample once an epoch, other orders, exact resumes; and what would lose samples."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bowstring
import pytest
from accelerate.data_loader import prepare_data_loader
from bowstring.torch import BowstringDataset, BowstringMapDataset, ShardedTwice, collate
from node import Node
from programs import PROGRAMS, Found, judged, stop_and_go_on, trained_on
from torch.utils.data import DataLoader
from torch_photos import TRAIN, positions, seen, small

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*set_vital.*", "ignore:This DataLoader will create"),
]

BATCH = 90  # three steps, none of which is padded
STOP = 4  # in the second epoch


@pytest.mark.parametrize(
    "name",
    [
        "torch",  # those of the others run as docs/frameworks.md has them, in test_frameworks_page.py
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in ("Lightning", "Accelerate", "Grain", "FSDP and DCP")
        ),
        *(pytest.param(name, marks=pytest.mark.clients) for name in ("StatefulDataLoader", "HF Trainer", "Ray Train")),
    ],
)
def test_two_ranks_stop_and_go_on(node: Node, photos: bowstring.Dataset, tmp_path: Path, name: str) -> None:
    """The program of examples/trainers, as it is: two epochs, ended within the second, and begun again."""
    stop_and_go_on(PROGRAMS[name], node.url, "photos", tmp_path, STOP, batch=BATCH)
    found = trained_on(tmp_path)
    wanted = {epoch: positions(photos.shuffle(7), epoch, batch=BATCH) for epoch in (0, 1)}
    assert {epoch: [sorted(step) for step in steps] for epoch, steps in found.items()} == {
        epoch: [sorted(step) for step in steps] for epoch, steps in wanted.items()
    }
    assert judged(found, set(photos.positions().tolist())) == Found(0, 0, 0)


def prepared(loader: DataLoader[Any], rank: int, **more: Any) -> Any:
    """A loader as Accelerate prepares it on a rank of two."""
    return prepare_data_loader(loader, num_processes=2, process_index=rank, **more)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("dispatch", [False, True])
def test_accelerate_does_not_share_out_twice(photos: bowstring.Dataset, workers: int, dispatch: bool) -> None:
    dataset = small(photos, rank=0, world_size=2, output="samples", loader_batch_size=16)
    loader = DataLoader(dataset, batch_size=16, num_workers=workers)
    wrong = prepared(loader, 0, dispatch_batches=dispatch, put_on_device=dispatch)
    with pytest.raises(
        ShardedTwice, match=r"accelerate's (IterableDatasetShard|DataLoaderDispatcher) .*accelerator.prepare"
    ):
        list(wrong)
    assert [len(batch) for batch in seen(loader)] == [16] * 9  # by itself it is right


def test_the_shard_of_a_worker_is_seen(photos: bowstring.Dataset) -> None:
    """Where nothing says the epoch before the workers start."""
    from accelerate.data_loader import IterableDatasetShard

    dataset = small(photos, rank=0, world_size=2, output="samples")
    shard = IterableDatasetShard(dataset, batch_size=16, num_processes=2, process_index=0)
    for workers in (0, 1):
        with pytest.raises(ShardedTwice):
            list(DataLoader(shard, batch_size=16, num_workers=workers))


def loaders_of_accelerate(make: Callable[[], DataLoader[Any]]) -> list[list[int]]:
    """The positions of each rank of two, in two epochs."""
    loaders = [prepared(make(), rank, even_batches=False) for rank in range(2)]
    return [list(itertools.chain(*seen(loader))) for _ in range(2) for loader in loaders]


def test_what_accelerate_shares_out_itself(photos: bowstring.Dataset) -> None:
    """By index, or of a stream that each rank reads whole."""
    everything = sorted(photos.positions().tolist())

    def by_index() -> DataLoader[Any]:
        rows = BowstringMapDataset(photos, columns=["position"])
        return DataLoader(rows, batch_size=15, collate_fn=collate)

    def whole() -> DataLoader[Any]:
        dataset = BowstringDataset(photos, columns=["position"], rank=0, world_size=1, output="samples")
        return DataLoader(dataset, batch_size=15, collate_fn=collate)

    for make in (by_index, whole):
        found = loaders_of_accelerate(make)
        assert [len(rank) for rank in found] == [TRAIN // 2] * 4
        assert sorted(found[0] + found[1]) == sorted(found[2] + found[3]) == everything
    assert found[:2] != found[2:]
