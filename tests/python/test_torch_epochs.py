"""Epochs: each iteration is of the next one, with any loader and any number of workers, and after any resume."""

from __future__ import annotations

import copy
import functools
import itertools
import json
import multiprocessing
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import bowstring
import pytest
import torch
from bowstring.torch import BowstringDataset, portable_state
from torch.utils.data import DataLoader, IterableDataset
from torch_photos import positions, seen, small
from torchdata.stateful_dataloader import StatefulDataLoader

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*set_vital.*", "ignore:This DataLoader will create"),
]

BATCH = 45  # six steps
STEPS = 6
Order = Callable[[int], list[list[int]]]


@pytest.fixture
def order(photos: bowstring.Dataset) -> Order:
    return functools.cache(lambda epoch: positions(photos, epoch, batch=BATCH))


def made(photos: bowstring.Dataset, **more: Any) -> BowstringDataset:
    return small(photos, global_batch_size=BATCH, **more)


@pytest.mark.parametrize(
    ("workers", "persistent", "context", "length", "stateful"),
    [(0, False, None, 40, stateful) for stateful in (True, False)]
    + [
        (workers, persistent, "fork", 12, stateful)
        for workers in (1, 2)
        for persistent in (True, False)
        for stateful in (True, False)
    ]
    + [pytest.param(2, True, "spawn", 3, True, marks=pytest.mark.nightly), (2, False, "spawn", 2, False)],
)
def test_any_history(
    photos: bowstring.Dataset,
    order: Order,
    workers: int,
    persistent: bool,
    context: str | None,
    length: int,
    stateful: bool,
) -> None:
    """Iterations that end, that are left, that go on elsewhere, and epochs that are said, in any order."""
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)

    def loader(dataset: BowstringDataset) -> Any:
        kind = StatefulDataLoader if stateful else DataLoader
        return kind(
            dataset,
            batch_size=None,
            num_workers=workers,
            persistent_workers=persistent,
            multiprocessing_context=context,
        )

    dataset = made(photos)
    batches = loader(dataset)
    epoch, start = 0, 0  # of the next iteration
    for _ in range(length):
        act = rng.choice(["all", "all", "part", "say", "resume"])
        if act == "say":
            said = rng.randrange(6)
            dataset.set_epoch(said)
            epoch, start = said, start if said == epoch else 0  # a state of this epoch is kept
        assert dataset.epoch == epoch
        # Workers that a plain DataLoader starts may end before they begin, where no batch is asked for.
        least = start if stateful or not workers else min(start + 1, STEPS)
        stop = STEPS if act in ("all", "say") else rng.randint(least, STEPS)
        iterator = iter(batches)
        found = list(itertools.islice(iterator, stop - start))
        assert [batch["position"].tolist() for batch in found] == order(epoch)[start:stop], (act, epoch, start)
        assert {batch.epoch for batch in found} <= {epoch}
        if act == "all":
            assert next(iterator, None) is None
        if act == "resume":
            state = json.loads(json.dumps(batches.state_dict())) if stateful else dataset.state_at(stop, epoch)
            del iterator, batches
            dataset = made(photos)
            batches = loader(dataset)
            if stateful and rng.random() < 0.5:
                batches.load_state_dict(state)
                # The dataset learns of it when the iteration begins.
                rest = seen(batches)
                finished = stop == STEPS and not rest
                assert rest == order(epoch)[stop:] or (stop == STEPS and rest == order(epoch + 1)), (epoch, stop)
                epoch, start = epoch + 1 + (0 if finished or stop < STEPS else 1), 0
            else:
                dataset.load_state_dict(state)
                start = stop
                if stop == STEPS:  # nothing is left of that epoch
                    assert seen(batches) == []
                    epoch, start = epoch + 1, 0
            continue
        epoch, start = epoch + 1, 0


@pytest.mark.parametrize("workers", [0, 2])
def test_a_program_that_seeds_anew_before_each_epoch(photos: bowstring.Dataset, order: Order, workers: int) -> None:
    """Workers of two iterations have the same seeds then."""
    loader = DataLoader(made(photos), batch_size=None, num_workers=workers)
    for epoch in range(4):
        torch.manual_seed(0)
        assert seen(loader) == order(epoch)


def test_several_loaders_at_once(photos: bowstring.Dataset, order: Order) -> None:
    """Each has an epoch of its own, and all its workers the same."""
    dataset = made(photos)
    loaders = [DataLoader(dataset, batch_size=None, num_workers=2) for _ in range(3)]
    for turn in range(3):
        found = list(zip(*(iter(loader) for loader in loaders), strict=True))
        epochs = [{batch.epoch for batch in batches} for batches in zip(*found, strict=True)]
        assert sorted(epochs, key=min) == [{3 * turn}, {3 * turn + 1}, {3 * turn + 2}]
        for (epoch,), batches in zip(epochs, zip(*found, strict=True), strict=True):
            assert [batch["position"].tolist() for batch in batches] == order(epoch)


class Endless(IterableDataset[Any]):
    """A dataset that never ends, as some trainers want it."""

    def __init__(self, dataset: BowstringDataset) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self.dataset


@pytest.mark.parametrize("workers", [0, 2])
def test_an_endless_dataset(photos: bowstring.Dataset, order: Order, workers: int) -> None:
    loader = DataLoader(Endless(made(photos)), batch_size=None, num_workers=workers)
    found = seen(itertools.islice(loader, 3 * STEPS))
    assert found == [*order(0), *order(1), *order(2)]


def test_an_epoch_said_while_workers_start(photos: bowstring.Dataset, order: Order) -> None:
    """It is of the next iteration, however late the workers of this one begin."""
    dataset = made(photos)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="spawn")
    iterator = iter(loader)
    dataset.set_epoch(5)
    assert seen(iterator) == order(0)
    assert dataset.epoch == 5


def test_copies_count_for_themselves(photos: bowstring.Dataset, order: Order) -> None:
    dataset = made(photos)
    assert seen(dataset) == order(0)
    for other in (copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        assert other.epoch == 1
        loader = DataLoader(other, batch_size=None, num_workers=2)
        assert [seen(loader), seen(loader)] == [order(1), order(2)]
    assert seen(dataset) == order(1)


def rank_of(dataset: BowstringDataset, workers: int, out: Any) -> None:
    """The samples read by a rank's process that was started with a dataset of its parent's."""
    loader = DataLoader(dataset, batch_size=None, num_workers=workers)
    out.put([seen(loader), seen(loader)])


@pytest.mark.parametrize(
    ("context", "workers"), [("fork", 2), ("fork", 0), pytest.param("spawn", 1, marks=pytest.mark.nightly)]
)
def test_ranks_that_are_started_with_one_dataset(
    photos: bowstring.Dataset, order: Order, context: str, workers: int
) -> None:
    """As by `torch.multiprocessing.spawn`: each counts its own iterations, not the others'."""
    dataset = made(photos)
    dataset.set_epoch(2)
    processes: Any = multiprocessing.get_context(context)
    outs = [processes.SimpleQueue() for _ in range(2)]
    ranks = [processes.Process(target=rank_of, args=(dataset, workers, out)) for out in outs]
    for rank in ranks:
        rank.start()
    for out in outs:
        assert out.get() == [order(2), order(3)]
    for rank in ranks:
        rank.join()
    assert seen(dataset) == order(2)


def test_states_say_the_epoch(photos: bowstring.Dataset, order: Order) -> None:
    dataset = made(photos)
    loader = StatefulDataLoader(dataset, batch_size=None, num_workers=2)
    seen(loader)
    seen(itertools.islice(loader, 2))
    state = portable_state(loader.state_dict())
    assert (state["epoch"], state["step"]) == (1, 2)
    assert dataset.state_at(2) == dataset.state_after_steps(STEPS + 2) == state
    assert dataset.state_after_steps(2 * STEPS) == dataset.state_at(0, epoch=2)
    assert dataset.epoch == 2
    other = made(photos)
    other.load_state_dict(state)
    assert other.epoch == 1
    loader = StatefulDataLoader(other, batch_size=None, num_workers=1)
    assert [seen(loader), seen(loader)] == [order(1)[2:], order(2)]
