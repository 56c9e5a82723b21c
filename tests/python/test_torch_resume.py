"""Jobs that stop, are killed, or go on in another world: every sample still comes once."""

from __future__ import annotations

import itertools
import json
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import bowstring
import pytest
from bowstring.torch import (
    BowstringDataset,
    StateMismatch,
    portable_state,
)
from conftest import StartNode
from node import Node
from rounds import rounds
from torch.utils.data import DataLoader
from torch_photos import BATCH, TRAIN, job, lines, positions, seen, small
from torchdata.stateful_dataloader import StatefulDataLoader
from wire import PATIENCE, RETRIES, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*set_vital.*", "ignore:This DataLoader will create"),
]


@pytest.mark.parametrize(("workers", "every"), [(0, 1), (2, 1), (2, 4), (3, 1)])
def test_stopped_at_each_step(photos: bowstring.Dataset, workers: int, every: int) -> None:
    """The order after the break is that without it, with the loader's own state and with the portable one."""
    unbroken = positions(photos, 2, batch=50)  # six steps

    def loader(dataset: BowstringDataset, workers: int = workers) -> Any:
        return StatefulDataLoader(
            dataset, batch_size=None, num_workers=workers, snapshot_every_n_steps=every, persistent_workers=False
        )

    for stop in range(len(unbroken) + 1):
        dataset = small(photos, global_batch_size=50)
        dataset.set_epoch(2)
        first = loader(dataset)
        before = seen(itertools.islice(first, stop))
        state = json.loads(json.dumps(first.state_dict()))
        del first
        assert before == unbroken[:stop]

        again = small(photos, global_batch_size=50)
        second = loader(again)
        second.load_state_dict(state)
        assert seen(second) == unbroken[stop:] or (stop == len(unbroken) and state["_iterator_finished"])

        elastic = small(photos, global_batch_size=50)
        elastic.load_state_dict(state)
        assert elastic.epoch == 2
        assert seen(DataLoader(elastic, batch_size=None, num_workers=(workers + 2) % 4)) == unbroken[stop:]
        assert elastic.epoch == 3
        assert seen(elastic) == positions(photos, 3, batch=50)  # the state is used once


def test_another_world_and_number_of_workers(photos: bowstring.Dataset) -> None:
    """Three ranks with two workers each stop; two ranks with three workers go on."""
    unbroken = positions(photos)
    seed = random.randrange(2**32)
    print("seed", seed)
    for stop in random.Random(seed).sample(range(len(unbroken)), 3):
        loaders = [
            StatefulDataLoader(small(photos, rank=r, world_size=3), batch_size=None, num_workers=2) for r in range(3)
        ]
        ranks = [seen(itertools.islice(loader, stop)) for loader in loaders]
        states = [loader.state_dict() for loader in loaders]
        del loaders
        before = [list(itertools.chain(*step)) for step in zip(*ranks, strict=True)]
        assert before == unbroken[:stop]
        state = portable_state(states)
        assert state["step"] == stop
        assert len(json.dumps(state)) <= 1024
        assert len(json.dumps(states[0]["_snapshot"]["_worker_snapshots"]["worker_0"])) <= 1024
        after = []
        for rank in range(2):
            dataset = small(photos, rank=rank, world_size=2)
            dataset.load_state_dict(state if rank else states)  # either will do
            after.append(seen(StatefulDataLoader(dataset, batch_size=None, num_workers=3)))
        rest = [list(itertools.chain(*step)) for step in itertools.zip_longest(*after, fillvalue=[])]
        padded = unbroken[0][: BATCH - len(unbroken[-1])]
        assert rest == [*unbroken[stop:-1], unbroken[-1] + padded]

        # The loader itself insists on what it was; the message says what to do.
        loader = StatefulDataLoader(small(photos, rank=0, world_size=2), batch_size=None, num_workers=2)
        loader.load_state_dict(states[0])
        with pytest.raises(StateMismatch, match="load_state_dict of the dataset"):
            next(iter(loader))


def test_single_samples_resume_within_a_step(photos: bowstring.Dataset) -> None:
    flat = list(itertools.chain(*positions(photos)))
    for stop in (0, 1, 31, 32, 33, 263, 270):
        dataset = small(photos, output="samples")
        iterator = iter(dataset)
        before = [int(s["position"]) for s in itertools.islice(iterator, stop)]
        state = iterator.state_dict()
        other = iter(small(photos, output="samples"))
        other.load_state_dict(json.loads(json.dumps(state)))
        assert before + [int(s["position"]) for s in other] == flat
        if stop % BATCH and stop < TRAIN:
            with pytest.raises(StateMismatch, match="is within step"):
                portable_state(state)


@pytest.mark.parametrize("order", ["window:2", "free"])
def test_orders_that_are_not_strict(photos: bowstring.Dataset, order: str) -> None:
    loose = photos.options(order=order)
    loader = StatefulDataLoader(small(loose), batch_size=None, num_workers=2)
    before = seen(itertools.islice(loader, 4))
    state = loader.state_dict()
    del loader
    loader = StatefulDataLoader(small(loose), batch_size=None, num_workers=2)
    loader.load_state_dict(state)
    after = seen(loader)
    assert Counter(itertools.chain(*before, *after)) == Counter(photos.positions().tolist())
    with pytest.raises(ValueError, match="order: single samples"):
        small(loose, output="samples")
    # A step's number says nothing about a batch that may have samples of other steps, except the first of all.
    dataset = small(loose)
    batch = next(iter(dataset))
    refusal = rf"order: with '{order}' .* take the state_dict of a StatefulDataLoader"
    with pytest.raises(ValueError, match=refusal):
        dataset.state_after(batch)
    with pytest.raises(ValueError, match=refusal):
        dataset.state_at(3)
    fresh = small(loose)
    fresh.load_state_dict(dataset.state_at(0, epoch=2))
    assert Counter(itertools.chain(*seen(fresh))) == Counter(photos.positions().tolist())
    # Nor does the number of batches since the last state was taken.
    sparse = StatefulDataLoader(small(loose), batch_size=None, num_workers=2, snapshot_every_n_steps=4)
    seen(itertools.islice(sparse, 2))
    with pytest.raises(StateMismatch, match="snapshot_every_n_steps=1"):
        portable_state(sparse.state_dict())


def test_states_by_hand(photos: bowstring.Dataset) -> None:
    dataset = small(photos)
    dataset.set_epoch(1)
    batches = list(itertools.islice(DataLoader(dataset, batch_size=None, num_workers=2), 4))
    state = dataset.state_after(batches[-1])
    assert state == dataset.state_at(4)
    other = small(photos)
    other.load_state_dict(state)
    assert seen(DataLoader(other, batch_size=None, num_workers=2)) == positions(photos, 1)[4:]
    with pytest.raises(RuntimeError, match="the workers read"):
        other.state_dict()
    # Another epoch begins at its beginning.
    other.load_state_dict(state)
    other.set_epoch(1)
    assert seen(other) == positions(photos, 1)[4:]
    other.load_state_dict(state)
    other.set_epoch(2)
    assert seen(other) == positions(photos, 2)


def test_states_of_others(photos: bowstring.Dataset) -> None:
    state = small(photos).state_at(3)
    with pytest.raises(StateMismatch, match=r"seed 3.*seed 4"):
        small(photos.shuffle(4)).load_state_dict(state)
    loader = StatefulDataLoader(small(photos.where("label < 5")), batch_size=None, num_workers=2)
    other = StatefulDataLoader(small(photos), batch_size=None, num_workers=2)
    loader.load_state_dict(other.state_dict())
    with pytest.raises(StateMismatch, match="where"):
        next(iter(loader))
    # A loader's state within another epoch than the one that set_epoch said.
    dataset = small(photos)
    dataset.set_epoch(1)
    loader = StatefulDataLoader(dataset, batch_size=None, num_workers=2)
    next(iter(loader))
    state = loader.state_dict()
    dataset.set_epoch(2)
    loader.load_state_dict(state)
    with pytest.raises(ValueError, match="within epoch 1, set_epoch said 2"):
        next(iter(loader))


def test_state_of_the_dataset_and_workers_that_persist(photos: bowstring.Dataset) -> None:
    dataset = small(photos)
    dataset.load_state_dict(small(photos).state_at(5, epoch=1))
    loader = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True)
    for epoch in (1, 2, 3):
        dataset.set_epoch(epoch)
        assert seen(loader) == positions(photos, epoch)[5 if epoch == 1 else 0 :]


def test_loaded_too_late(photos: bowstring.Dataset) -> None:
    dataset = small(photos)
    loader = DataLoader(dataset, batch_size=None, num_workers=1, persistent_workers=True)
    list(loader)
    dataset.load_state_dict(dataset.state_at(3))
    with pytest.raises(RuntimeError, match="make a new DataLoader"):
        list(loader)


# --- processes ------------------------------------------------------------------------------------------------------


def test_killed_and_resumed(node: Node, photos: bowstring.Dataset, tmp_path: Path) -> None:
    """Kill -9 of a training process, again and again; in the end each epoch was seen once, in its order."""
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    log, checkpoint = tmp_path / "log", tmp_path / "checkpoint"
    spec = {"url": node.url, "workers": 2, "batch": 16, "epochs": 2, "log": str(log), "checkpoint": str(checkpoint)}
    for _ in range(rounds(2, 5)):
        done = len(lines(log)) if log.exists() else 0
        aim = done + rng.randint(1, 6)
        with job(**spec, pause=0.02) as process:
            while process.poll() is None and (not log.exists() or len(lines(log)) < aim):
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
    with job(**spec) as process:
        assert process.wait(2 * PATIENCE) == 0
    found = lines(log)
    for epoch in (0, 1):
        assert [p for e, _, p in found if e == epoch] == positions(photos, epoch, batch=16)


@pytest.mark.nightly  # test_trainers.py has two ranks of torch that stop and go on in `make test`
def test_torch_distributed(node: Node, photos: bowstring.Dataset, tmp_path: Path) -> None:
    """Two processes with gloo stop in the middle and go on; then one alone goes on where they were."""

    def run(name: str, **more: Any) -> list[Any]:
        group = (tmp_path / name).as_uri()
        ranks = [
            job(
                url=node.url,
                workers=2,
                batch=30,
                epochs=2,
                log=str(tmp_path / f"log{rank}"),
                checkpoint=str(tmp_path / f"checkpoint{rank}"),
                group=group,
                rank=rank,
                world=2,
                **more,
            )
            for rank in range(2)
        ]
        assert [process.wait(2 * PATIENCE) for process in ranks] == [0, 0]
        return [lines(tmp_path / f"log{rank}") for rank in range(2)]

    run("first", stop=4)
    states = [json.loads((tmp_path / f"checkpoint{rank}").read_text())["loader"] for rank in range(2)]
    alone = small(photos, global_batch_size=30)
    alone.load_state_dict(states)
    assert seen(DataLoader(alone, batch_size=None, num_workers=3)) == positions(photos, 0, batch=30)[4:]

    one, other = run("second")
    wanted = positions(photos, 0, batch=30) + positions(photos, 1, batch=30)  # 30 divides them: nothing is padded
    assert [a + b for (_, _, a), (_, _, b) in zip(one, other, strict=True)] == wanted


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_server_restarted(start: StartNode, photos: bowstring.Dataset, end: str) -> None:
    server = start()
    own = bowstring.connect(server.url, retries=RETRIES).dataset("photos", split="train").shuffle(3)
    dataset = BowstringDataset(own, columns=["position", "image"], global_batch_size=8, rank=0, world_size=1)
    loader = iter(DataLoader(dataset, batch_size=None, num_workers=2))
    found = [next(loader)["position"].tolist() for _ in range(3)]
    if end == "stop":
        server.terminate()
        until(lambda: refuses(server.url), "the server draining")
    server.kill()
    server.start(listen=f"127.0.0.1:{server.port}")
    assert found + seen(loader) == positions(photos, batch=8)


def refuses(url: str) -> bool:
    """Whether a server takes no more calls."""
    try:
        bowstring.connect(url, retries=0).dataset("photos")
    except bowstring.Unavailable:
        return True
    return False
