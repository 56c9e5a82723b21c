"""The torch side against a server with real photographs: every sample once, in the plan's order, however it is read."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import random
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import bowstring
import pyarrow as pa
import pytest
from bowstring.stream import Batches
from bowstring.torch import (
    Batch,
    BowstringDataset,
    DecodeError,
    collate,
)
from bowstring.torch._columns import column_of
from conftest import StartNode
from node import Node
from torch.utils.data import DataLoader
from torch_photos import BATCH, TRAIN, job, lines, positions, seen, small
from torchdata.stateful_dataloader import StatefulDataLoader
from wire import PATIENCE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*set_vital.*", "ignore:This DataLoader will create"),
]


@pytest.mark.parametrize(
    ("workers", "context"),
    [
        (0, None),
        (2, "fork"),
        (2, "spawn"),
        *(pytest.param(*c, marks=pytest.mark.nightly) for c in ((4, "fork"), (4, "spawn"), (2, "forkserver"))),
    ],
)
def test_every_sample_in_order(photos: bowstring.Dataset, workers: int, context: str | None) -> None:
    dataset = BowstringDataset(photos, global_batch_size=BATCH, columns=["position", "id", "label", "image"])
    loader = DataLoader(
        dataset,
        batch_size=None,
        num_workers=workers,
        multiprocessing_context=context,
        persistent_workers=workers > 0,
    )
    table = photos.columns(["position", "id", "label", "image"]).to_arrow()
    wanted = {p: (i, l, b) for p, i, l, b in zip(*(table[c].to_pylist() for c in table.column_names), strict=True)}  # noqa: E741
    assert len(loader) == -(-TRAIN // BATCH)
    for epoch in (0, 1):
        dataset.set_epoch(epoch)
        found = []
        for number, batch in enumerate(loader):
            assert isinstance(batch, Batch)
            assert (batch.epoch, batch.step) == (epoch, number)
            found.append(batch["position"].tolist())
            rows = zip(found[-1], batch["id"], batch["label"].tolist(), batch["image"], strict=True)
            for position, identity, label, image in rows:
                their_id, their_label, their_image = wanted[position]
                assert identity.numpy().tobytes() == their_id.bytes
                assert label == their_label
                assert image.numpy().tobytes() == their_image
        assert found == positions(photos, epoch)
    assert positions(photos, 0) != positions(photos, 1)


@pytest.mark.parametrize("output", ["batches", "samples"])
def test_a_step_comes_again_after_an_error(
    photos: bowstring.Dataset, monkeypatch: pytest.MonkeyPatch, output: Literal["batches", "samples"]
) -> None:
    """The samples of a step that came before an error are not lost, and none is doubled."""
    rowwise = photos.columns(["position", "image"])._with_options(batch_bytes=1)
    want = [p for step in positions(photos, 0) for p in step]
    it = iter(BowstringDataset(rowwise, global_batch_size=BATCH, output=output, rank=0, world_size=1))
    read, calls, failed = Batches._next, itertools.count(), 0

    def failing(batches: Batches) -> pa.RecordBatch:
        if next(calls) % (3 * BATCH) == BATCH // 2:
            raise bowstring.DataLoss("this read alone")
        return read(batches)

    monkeypatch.setattr(Batches, "_next", failing)
    found: list[int] = []
    while len(found) < len(want):
        try:
            got = next(it)
        except bowstring.DataLoss:
            failed += 1
            continue
        found += got["position"].tolist() if output == "batches" else [int(got["position"])]
    assert found == want
    assert failed > 1


def test_batches_stay_as_they_are_while_others_come(photos: bowstring.Dataset) -> None:
    """Batches that the main process holds are not overwritten, though workers reuse their memory."""
    dataset = BowstringDataset(photos, global_batch_size=8, columns=["position", "image"], rank=0, world_size=1)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True)
    kept, sums = [], []
    rng = random.Random(4)
    for epoch in range(3):
        dataset.set_epoch(epoch)
        for batch in loader:
            view = batch["image"][rng.randrange(len(batch["image"]))]  # a view of a view keeps the memory
            if rng.random() < 0.5:
                kept.append(view)
                sums.append(int(view.sum()))
            del batch
    assert [int(view.sum()) for view in kept] == sums


def test_a_fork_does_not_free_the_parents_batches(photos: bowstring.Dataset) -> None:
    dataset = BowstringDataset(photos, global_batch_size=8, columns=["image"], rank=0, world_size=1)
    loader = iter(DataLoader(dataset, batch_size=None, num_workers=1, prefetch_factor=1))
    batch = next(loader)
    before = batch["image"].data.sum()
    child = os.fork()
    if not child:
        del batch
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    for _ in range(10):
        next(loader)
    assert batch["image"].data.sum() == before


@pytest.mark.parametrize("world", [2, 3, 5])
@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_share_each_step(photos: bowstring.Dataset, world: int, workers: int) -> None:
    """Each sample once over all ranks and workers, remainders odd; what is padded is the epoch's beginning."""
    wanted = positions(photos)
    choices: tuple[Literal["uneven"] | None, ...] = ("uneven", None)
    for remainder in choices:
        dataset = photos.options(remainder=remainder)
        loaders = [
            DataLoader(small(dataset, rank=r, world_size=world), batch_size=None, num_workers=workers)
            for r in range(world)
        ]
        ranks = [seen(loader) for loader in loaders]
        steps = [list(itertools.chain(*step)) for step in itertools.zip_longest(*ranks, fillvalue=[])]
        if remainder is None:
            assert {len(rank) for rank in ranks} == {len(loader) for loader in loaders} == {len(wanted)}
            last = wanted[-1] + wanted[0][: BATCH - len(wanted[-1])]
            assert steps == [*wanted[:-1], last]
        else:
            assert steps == wanted


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.nightly), 2])
def test_ranks_never_wait_for_each_other_for_ever(node: Node, tmp_path: Path, workers: int) -> None:
    """DDP and gloo: of 270 samples in steps of 269, the last step has one, which is no batch for the first rank."""
    group = (tmp_path / "group").as_uri()
    spec = {"url": node.url, "workers": workers, "batch": 269, "epochs": 2, "group": group, "world": 2, "ddp": True}
    ranks = [
        job(**spec, rank=r, log=str(tmp_path / f"log{r}"), checkpoint=str(tmp_path / f"checkpoint{r}"))
        for r in range(2)
    ]
    try:
        assert [process.wait(2 * PATIENCE) for process in ranks] == [0, 0]
    finally:
        for process in ranks:
            process.kill()
    one, other = (lines(tmp_path / f"log{rank}") for rank in range(2))
    assert [(e, s) for e, s, _ in one] == [(e, s) for e, s, _ in other] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [len(p) for _, _, p in one] == [134, 134, 134, 134]
    assert [len(p) for _, _, p in other] == [135, 135, 135, 135]


def test_what_it_says_of_padding(photos: bowstring.Dataset) -> None:
    alone, rank = small(photos), small(photos, rank=1, world_size=4)
    assert (alone.remainder, rank.remainder) == ("uneven", "pad")
    assert "remainder" not in repr(alone)
    assert repr(rank).endswith("; global batches of 32, rank 1 of 4, remainder='pad'>")
    assert "18 rows are served again to fill the last batch" in repr(rank.explain())
    assert "served again" not in repr(alone.explain())
    said = small(photos.options(remainder="drop"), rank=1, world_size=4)
    assert said.remainder == "drop"
    assert "14 rows that fill no batch are left out" in repr(said.explain())


@pytest.mark.parametrize("rows", [0, 1, 3, 5])
def test_fewer_samples_than_ranks(photos: bowstring.Dataset, rows: int) -> None:
    few = photos.select(photos.positions()[:rows])
    for output in ("batches", "samples"):
        ranks = [small(few, global_batch_size=8, rank=r, world_size=4, output=output) for r in range(4)]
        found = [list(DataLoader(dataset, batch_size=None, num_workers=3)) for dataset in ranks]
        assert {len(rank) for rank in found} == {len(dataset) for dataset in ranks}
        assert len(found[0]) == (rows > 0) * (1 if output == "batches" else 2)


def test_a_batch_that_nothing_is_left_of(start: StartNode) -> None:
    client = bowstring.connect(start().url)
    image = client.dataset("photos").columns(["image"]).take([0])["image"][0].as_py()
    cells = [image, image, b"no image", b"none either", image, image]
    client.ingest("broken", pa.table({"image": pa.array(cells, pa.large_binary())}), progress=False)
    broken = client.dataset("broken")

    def ranks(dataset: bowstring.Dataset, world: int) -> list[Any]:
        return [
            BowstringDataset(
                dataset, global_batch_size=2, decode="pillow", on_decode_error="skip", rank=rank, world_size=world
            )
            for rank in range(world)
        ]

    assert [len(list(rank)) for rank in ranks(broken, 1)] == [2]
    for rank in ranks(broken, 2):
        with pytest.raises(DecodeError, match=r"step 1: none of the 1 samples of rank [01]"):
            list(rank)
    assert [len(list(rank)) for rank in ranks(broken.options(remainder="uneven"), 2)] == [2, 2]


def test_remainders(photos: bowstring.Dataset) -> None:
    dropped = [small(photos.options(remainder="drop"), rank=r, world_size=4) for r in range(4)]
    assert [len(seen(DataLoader(d, batch_size=None))) for d in dropped] == [TRAIN // BATCH] * 4
    padded = [
        seen(DataLoader(small(photos.options(remainder="pad"), rank=r, world_size=4), batch_size=None))
        for r in range(4)
    ]
    assert {tuple(map(len, rank)) for rank in padded} == {(8,) * 9}


def test_len(photos: bowstring.Dataset) -> None:
    assert len(small(photos)) == 9
    assert len(small(photos, output="samples")) == TRAIN
    # Not every rank has one of the last ten samples, nor as many of each batch before where they are 256 of 130.
    for batch in (260, 256):
        uneven = photos.options(remainder="uneven")
        ranks = [small(uneven, global_batch_size=batch, rank=rank, world_size=130) for rank in (0, 12, 13, 64, 129)]
        assert [len(dataset) for dataset in ranks] == [len(list(dataset)) for dataset in ranks], batch
        assert {len(dataset) for dataset in ranks} == {1, 2}, batch


def test_rank_from_the_environment(photos: bowstring.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    dataset = BowstringDataset(photos, columns=["position"], global_batch_size=BATCH)
    assert (dataset.rank, dataset.world_size) == (1, 2)
    assert [len(p) for p in seen(DataLoader(dataset, batch_size=None))] == [16] * 9
    uneven = BowstringDataset(photos.options(remainder="uneven"), columns=["position"], global_batch_size=BATCH)
    assert [len(p) for p in seen(DataLoader(uneven, batch_size=None))] == [16] * 8 + [7]
    for rank in ("2", "-1"):
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(ValueError, match=rf"RANK: got rank {rank} of 2"):
            iter(dataset)
    monkeypatch.setenv("RANK", "x")
    with pytest.raises(ValueError, match="RANK, WORLD_SIZE: got 'x', '2'"):
        iter(dataset)


def test_wrong_arguments(photos: bowstring.Dataset) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"rank": 2, "world_size": 2}, "rank: got rank 2 of 2, want one from 0 to 1"),
        ({"rank": 0, "world_size": 0}, "rank: got rank 0 of 0"),
        ({"rank": 0, "world_size": None}, "rank, world_size: want both or none"),
        ({"global_batch_size": 0}, "^global_batch_size: got 0"),
        ({"global_batch_size": 2.0}, r"^global_batch_size: got 2\.0"),
        (
            {"global_batch_size": 2, "rank": 0, "world_size": 3},
            "leaves some of 3 ranks without samples; want 3 or more",
        ),
        ({"loader_batch_size": 4}, "loader_batch_size: goes with output='samples'"),
        ({"output": "samples", "loader_batch_size": 0}, "loader_batch_size: got 0"),
        ({"output": "samples", "loader_batch_size": 10}, "got 64, want a multiple of 10"),
        (
            {"output": "samples", "loader_batch_size": 32, "rank": 0, "world_size": 4},
            "got 64, want a multiple of 128: loader_batch_size 32, times 4",
        ),
        ({"output": "samples", "rank": 0, "world_size": 3}, "got 64, want a multiple of 3, the number of ranks"),
        (
            {"output": "samples", "rank": 0, "world_size": 2, "on_decode_error": "skip", "decode": "pillow"},
            "on_decode_error: got 'skip'; with output='samples'",
        ),
        ({"shuffle": True}, "shuffle: got True, want the seed"),
        ({"output": "rows"}, "output: got 'rows'"),
        ({"decode": "turbo", "columns": ["image"]}, "decode: got 'turbo'"),
        ({"decode": "pillow", "columns": ["label"]}, "decode: no column holds images"),
        ({"decode": {"photo": "pillow"}, "columns": ["image"]}, "decode: there is no column 'photo'"),
        ({"on_decode_error": "null"}, "on_decode_error: got 'null'"),
        ({"output": "samples", "collate": list}, "collate: goes with output='batches'"),
    ]
    for arguments, message in wrong:
        with pytest.raises(ValueError, match=message):
            BowstringDataset(photos, **arguments)
    dataset = BowstringDataset(photos, global_batch_size=48)
    assert dataset.global_batch_size == 48
    with pytest.raises(TypeError, match="batch_size: got 8; the argument is global_batch_size now"):
        BowstringDataset(photos, batch_size=8)  # type: ignore[arg-type]
    assert BowstringDataset(photos).global_batch_size == 64
    size = column_of(pa.array([8])).numpy()[0]
    assert type(BowstringDataset(photos, global_batch_size=size).global_batch_size) is int
    for workers in (0, 1):
        for loader in (
            DataLoader(dataset, num_workers=workers),
            DataLoader(dataset, batch_size=4, num_workers=workers),
        ):
            with pytest.raises(TypeError, match="give it batch_size=None"):
                next(iter(loader))
    dataset = small(photos)
    for epoch in (-1, 1.5, "1", True):
        with pytest.raises(ValueError, match="epoch: got"):
            dataset.set_epoch(epoch)  # type: ignore[arg-type]
    with pytest.raises(bowstring.NotFound, match="no dataset"):
        BowstringDataset(photos.client.uri, "phothos")


def test_from_an_address(node: Node) -> None:
    dataset = BowstringDataset(
        node.url, "photos", split="val", columns=["position"], where="label == 1", shuffle=5, global_batch_size=2
    )
    assert sorted(itertools.chain(*seen(DataLoader(dataset, batch_size=None)))) == sorted(
        bowstring.connect(node.url).dataset("photos", split="val").where("label == 1").positions().tolist()
    )
    assert seen(pickle.loads(pickle.dumps(dataset))) == seen(dataset)


def test_set_epoch_reaches_workers_that_persist(photos: bowstring.Dataset) -> None:
    dataset = small(photos)
    for context in ("fork", "spawn"):
        loader = DataLoader(
            dataset, batch_size=None, num_workers=2, persistent_workers=True, multiprocessing_context=context
        )
        for epoch in (0, 3, 3, 1):
            dataset.set_epoch(epoch)
            assert seen(loader) == positions(photos, epoch)


def test_an_iteration_that_is_left_early(photos: bowstring.Dataset) -> None:
    dataset = small(photos)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True)
    for epoch, stop in enumerate((1, 4, 2)):
        assert seen(itertools.islice(loader, stop)) == positions(photos, epoch)[:stop]
    assert seen(loader) == positions(photos, 3)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(
    ("workers", "batch", "known"), [(0, 10, False), (1, 10, False), (3, 10, False), (2, 8, True), (3, 32, True)]
)
def test_single_samples(photos: bowstring.Dataset, workers: int, batch: int, known: bool, drop_last: bool) -> None:
    """As many batches as the loader says, all of them full except the last one, in the plan's order."""
    dataset = BowstringDataset(
        photos,
        global_batch_size=BATCH,
        columns=["position", "image"],
        output="samples",
        loader_batch_size=batch if known else None,
    )
    loader = DataLoader(dataset, batch_size=batch, num_workers=workers, collate_fn=collate, drop_last=drop_last)
    for epoch in range(2):
        flat = list(itertools.chain(*positions(photos, epoch)))
        found = [batch["position"].tolist() for batch in loader]
        assert len(found) == len(loader) == (len(flat) // batch if drop_last else -(-len(flat) // batch))
        assert all(len(positions) == batch for positions in found[:-1])
        served = list(itertools.chain(*found))
        assert Counter(served) <= Counter(flat)
        assert len(served) == (len(flat) // batch * batch if drop_last else len(flat))
        if not known or batch == BATCH:
            assert served == flat[: len(served)]


@pytest.mark.parametrize("known", [False, True])
def test_single_samples_on_several_ranks(photos: bowstring.Dataset, known: bool) -> None:
    for workers in (0, 2):
        found = []
        for rank in range(2):
            loader_batch = 4 if known else None
            dataset = small(photos, rank=rank, world_size=2, output="samples", loader_batch_size=loader_batch)
            loader = DataLoader(dataset, batch_size=4, num_workers=workers)
            found.append(seen(loader))
            assert len(found[-1]) == len(loader) == 9 * 4
        assert Counter(itertools.chain(*found[0], *found[1])).keys() == set(photos.positions().tolist())


@pytest.mark.parametrize("known", [False, True])
def test_single_samples_go_on(photos: bowstring.Dataset, known: bool) -> None:
    """With the loader's own state, and with the portable one where the workers are not at the same step."""
    flat = list(itertools.chain(*positions(photos)))

    def loader(**more: Any) -> tuple[BowstringDataset, Any]:
        dataset = small(photos, output="samples", loader_batch_size=BATCH if known else None)
        return dataset, StatefulDataLoader(dataset, batch_size=BATCH, **{"num_workers": 3, **more})

    for stop in (0, 1, 2, 4, 8, 9):
        _, first = loader()
        before = seen(itertools.islice(first, stop))
        state = json.loads(json.dumps(first.state_dict()))
        del first
        _, second = loader()
        second.load_state_dict(state)
        assert list(itertools.chain(*before, *([] if stop == 9 else seen(second)))) == flat
        dataset, third = loader(num_workers=2)
        dataset.load_state_dict(state)
        assert list(itertools.chain(*before, *seen(third))) == flat
    # After steps that were done out of turn, each of the others comes once.
    done = small(photos).state_at(2) | {"done": [3, 6]}
    dataset, third = loader(num_workers=0)
    dataset.load_state_dict(done)
    wanted = [step for n, step in enumerate(positions(photos)) if n in (2, 4, 5, 7, 8)]
    assert list(itertools.chain(*seen(third))) == list(itertools.chain(*wanted))
