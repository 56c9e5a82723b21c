"""The torch side against a server with real photographs: every sample once, in the plan's order, however it is read."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import bowstring
import pyarrow as pa
import pytest
from conftest import StartNode, free_port
from node import Node

torch = pytest.importorskip("torch")
pytest.importorskip("torchdata")

from bowstring.torch import (  # noqa: E402
    Batch,
    Blobs,
    BowstringDataset,
    BowstringMapDataset,
    DecodeError,
    StateMismatch,
    collate,
    portable_state,
)
from bowstring.torch._columns import batch_of, column_of  # noqa: E402
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler  # noqa: E402
from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*set_vital.*", "ignore:This DataLoader will create"),
]

JOB = Path(__file__).with_name("torch_job.py")
TRAIN = 270  # photographs of the split
BATCH = 32  # so that the last step has 14


@pytest.fixture
def photos(node: Node) -> bowstring.Dataset:
    return bowstring.connect(node.url).dataset("photos", split="train").shuffle(3)


def positions(photos: bowstring.Dataset, epoch: int = 0, batch: int = BATCH) -> list[list[int]]:
    """What each step of an epoch holds, read without torch."""
    found = photos.columns(["position"]).batches(batch, epoch=epoch)
    return [record.column(0).to_pylist() for record in found]


def seen(loader: Any) -> list[list[int]]:
    return [batch["position"].tolist() for batch in loader]


def small(photos: bowstring.Dataset, **more: Any) -> BowstringDataset:
    return BowstringDataset(photos, columns=["position"], **{"batch_size": BATCH, "rank": 0, "world_size": 1, **more})


# --- DataLoader -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "context"), [(0, None), (2, "fork"), (4, "fork"), (2, "spawn"), (4, "spawn"), (2, "forkserver")]
)
def test_every_sample_in_order(photos: bowstring.Dataset, workers: int, context: str | None) -> None:
    dataset = BowstringDataset(photos, batch_size=BATCH, columns=["position", "id", "label", "image"])
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


def test_batches_stay_as_they_are_while_others_come(photos: bowstring.Dataset) -> None:
    """What the main process holds is not written over, though workers use their memory again."""
    dataset = BowstringDataset(photos, batch_size=8, columns=["position", "image"], rank=0, world_size=1)
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
    dataset = BowstringDataset(photos, batch_size=8, columns=["image"], rank=0, world_size=1)
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


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_never_wait_for_each_other_for_ever(node: Node, tmp_path: Path, workers: int) -> None:
    """DDP and gloo: of 270 samples in steps of 269, the last step has one, which is no batch for the first rank."""
    group = f"tcp://127.0.0.1:{free_port()}"
    spec = {"url": node.url, "workers": workers, "batch": 269, "epochs": 2, "group": group, "world": 2, "ddp": True}
    ranks = [
        job(**spec, rank=r, log=str(tmp_path / f"log{r}"), checkpoint=str(tmp_path / f"checkpoint{r}"))
        for r in range(2)
    ]
    try:
        assert [process.wait(120) for process in ranks] == [0, 0]
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
        ranks = [small(few, batch_size=8, rank=r, world_size=4, output=output) for r in range(4)]
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
                dataset, batch_size=2, decode="pillow", on_decode_error="skip", rank=rank, world_size=world
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
    # Of the last ten samples not every rank has one, nor as many of each batch before where they are 256 of 130.
    for batch in (260, 256):
        uneven = photos.options(remainder="uneven")
        ranks = [small(uneven, batch_size=batch, rank=rank, world_size=130) for rank in (0, 12, 13, 64, 129)]
        assert [len(dataset) for dataset in ranks] == [len(list(dataset)) for dataset in ranks], batch
        assert {len(dataset) for dataset in ranks} == {1, 2}, batch


def test_rank_from_the_environment(photos: bowstring.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    dataset = BowstringDataset(photos, columns=["position"], batch_size=BATCH)
    assert (dataset.rank, dataset.world_size) == (1, 2)
    assert [len(p) for p in seen(DataLoader(dataset, batch_size=None))] == [16] * 9
    uneven = BowstringDataset(photos.options(remainder="uneven"), columns=["position"], batch_size=BATCH)
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
        ({"batch_size": 0}, "^batch_size: got 0"),
        ({"global_batch_size": 2.0}, r"^global_batch_size: got 2\.0"),
        ({"batch_size": 8, "global_batch_size": 8}, "global_batch_size, batch_size: got 8 and 8, want one of them"),
        ({"batch_size": 2, "rank": 0, "world_size": 3}, "leaves some of 3 ranks without samples; want 3 or more"),
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
    assert (dataset.global_batch_size, dataset.batch_size) == (48, 48)
    assert BowstringDataset(photos).global_batch_size == 64
    assert type(BowstringDataset(photos, batch_size=column_of(pa.array([8])).numpy()[0]).batch_size) is int
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
        node.url, "photos", split="val", columns=["position"], where="label == 1", shuffle=5, batch_size=2
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
    for stop in (1, 4, 2):
        assert seen(itertools.islice(loader, stop)) == positions(photos)[:stop]
    assert seen(loader) == positions(photos)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(
    ("workers", "batch", "known"), [(0, 10, False), (1, 10, False), (3, 10, False), (2, 8, True), (3, 32, True)]
)
def test_single_samples(photos: bowstring.Dataset, workers: int, batch: int, known: bool, drop_last: bool) -> None:
    """As many batches as the loader says, all of them full but for the last one, in the plan's order."""
    dataset = BowstringDataset(
        photos,
        batch_size=BATCH,
        columns=["position", "image"],
        output="samples",
        loader_batch_size=batch if known else None,
    )
    loader = DataLoader(dataset, batch_size=batch, num_workers=workers, collate_fn=collate, drop_last=drop_last)
    flat = list(itertools.chain(*positions(photos)))
    for _ in range(2):
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
    # Of steps that were done out of turn, each of the others comes once.
    done = small(photos).state_at(2) | {"done": [3, 6]}
    dataset, third = loader(num_workers=0)
    dataset.load_state_dict(done)
    wanted = [step for n, step in enumerate(positions(photos)) if n in (2, 4, 5, 7, 8)]
    assert list(itertools.chain(*seen(third))) == list(itertools.chain(*wanted))


# --- columns --------------------------------------------------------------------------------------------------------


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
    batch = next(iter(BowstringDataset(photos, columns=["label", "image", "file_name"], batch_size=4)))
    moved = batch.to("meta", non_blocking=True)
    assert moved["label"].device.type == moved["image"].data.device.type == "meta"
    assert moved["file_name"] == batch["file_name"]
    assert moved.step == batch.step == 0


# --- decoding -------------------------------------------------------------------------------------------------------


def size(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "image": sample["image"][:, :32, :32].float().mean((1, 2))}


@pytest.mark.parametrize("decode", ["torchvision", "pillow"])
@pytest.mark.parametrize("workers", [0, 2])
def test_decoded_in_the_worker(photos: bowstring.Dataset, decode: str, workers: int) -> None:
    if decode == "torchvision":
        pytest.importorskip("torchvision")
    columns = ["image", "width", "height", "label"]
    dataset = BowstringDataset(photos, columns=columns, batch_size=16, decode=decode)
    for batch in itertools.islice(DataLoader(dataset, batch_size=None, num_workers=workers), 3):
        assert list(batch) == columns
        for image, width, height in zip(batch["image"], batch["width"], batch["height"], strict=True):
            assert image.shape == (3, height, width)
            assert image.dtype == torch.uint8
    small = BowstringDataset(photos, columns=columns, batch_size=16, decode=decode, transform=size)
    for batch in itertools.islice(DataLoader(small, batch_size=None, num_workers=workers), 3):
        assert batch["image"].shape == (16, 3)
        assert batch["label"].shape == (16,)
    listed = BowstringDataset(photos, columns=columns, batch_size=16, decode=decode, collate=len)
    assert list(listed) == [16] * 16 + [14]


def test_decoders_agree(photos: bowstring.Dataset) -> None:
    pytest.importorskip("torchvision")
    one, other = (
        next(iter(BowstringDataset(photos, columns=["image"], batch_size=8, decode=d)))["image"]
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
            list(BowstringDataset(damaged, decode=decode, batch_size=5))
        skipped = BowstringDataset(damaged, decode=decode, batch_size=2, on_decode_error="skip")
        kept = [label for batch in skipped for label in batch["label"].tolist()]
        assert [label for label in kept if label != 3] == [0, 2, 4]  # a decoder may fill in what is missing
    loader = DataLoader(BowstringDataset(damaged, decode="pillow", batch_size=2), batch_size=None, num_workers=2)
    with pytest.raises(DecodeError, match="position 1"):
        list(loader)
    singles = BowstringDataset(damaged, decode="pillow", batch_size=2, on_decode_error="skip", output="samples")
    assert [int(sample["label"]) for sample in singles] == [0, 2, 4]


# --- resuming -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "every"), [(0, 1), (2, 1), (2, 4), (3, 1)])
def test_stopped_at_each_step(photos: bowstring.Dataset, workers: int, every: int) -> None:
    """The order after the break is that without it, with the loader's own state and with the portable one."""
    unbroken = positions(photos, 2, batch=50)  # six steps

    def loader(dataset: BowstringDataset, workers: int = workers) -> Any:
        return StatefulDataLoader(
            dataset, batch_size=None, num_workers=workers, snapshot_every_n_steps=every, persistent_workers=False
        )

    for stop in range(len(unbroken) + 1):
        dataset = small(photos, batch_size=50)
        dataset.set_epoch(2)
        first = loader(dataset)
        before = seen(itertools.islice(first, stop))
        state = json.loads(json.dumps(first.state_dict()))
        del first
        assert before == unbroken[:stop]

        again = small(photos, batch_size=50)
        second = loader(again)
        second.load_state_dict(state)
        assert seen(second) == unbroken[stop:] or (stop == len(unbroken) and state["_iterator_finished"])

        elastic = small(photos, batch_size=50)
        elastic.load_state_dict(state)
        assert elastic.epoch == 2
        assert seen(DataLoader(elastic, batch_size=None, num_workers=(workers + 2) % 4)) == unbroken[stop:]
        assert seen(elastic) == unbroken  # the state is used once


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
    # A step's number says nothing of a batch that may have samples of other steps, but for the first of all.
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


def job(**spec: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, JOB, json.dumps(spec)])


def lines(log: Path) -> list[Any]:
    """Whole lines: the last may be cut."""
    return [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]


def test_killed_and_resumed(node: Node, photos: bowstring.Dataset, tmp_path: Path) -> None:
    """Kill -9 of a training process, five times; in the end each epoch was seen once, in its order."""
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    log, checkpoint = tmp_path / "log", tmp_path / "checkpoint"
    spec = {"url": node.url, "workers": 2, "batch": 16, "epochs": 2, "log": str(log), "checkpoint": str(checkpoint)}
    for _ in range(5):
        done = len(lines(log)) if log.exists() else 0
        aim = done + rng.randint(1, 6)
        with job(**spec, pause=0.02) as process:
            while process.poll() is None and (not log.exists() or len(lines(log)) < aim):
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
    with job(**spec) as process:
        assert process.wait(120) == 0
    found = lines(log)
    for epoch in (0, 1):
        assert [p for e, _, p in found if e == epoch] == positions(photos, epoch, batch=16)


def test_torch_distributed(node: Node, photos: bowstring.Dataset, tmp_path: Path) -> None:
    """Two processes with gloo stop in the middle and go on; then one alone goes on where they were."""

    def run(**more: Any) -> list[Any]:
        group = f"tcp://127.0.0.1:{free_port()}"
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
        assert [process.wait(120) for process in ranks] == [0, 0]
        return [lines(tmp_path / f"log{rank}") for rank in range(2)]

    run(stop=4)
    states = [json.loads((tmp_path / f"checkpoint{rank}").read_text())["loader"] for rank in range(2)]
    alone = small(photos, batch_size=30)
    alone.load_state_dict(states)
    assert seen(DataLoader(alone, batch_size=None, num_workers=3)) == positions(photos, 0, batch=30)[4:]

    one, other = run()
    wanted = positions(photos, 0, batch=30) + positions(photos, 1, batch=30)  # 30 divides them: nothing is padded
    assert [a + b for (_, _, a), (_, _, b) in zip(one, other, strict=True)] == wanted


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_server_restarted(start: StartNode, photos: bowstring.Dataset, end: str) -> None:
    server = start()
    own = bowstring.connect(server.url).dataset("photos", split="train").shuffle(3)
    dataset = BowstringDataset(own, columns=["position", "image"], batch_size=8, rank=0, world_size=1)
    loader = iter(DataLoader(dataset, batch_size=None, num_workers=2))
    found = [next(loader)["position"].tolist() for _ in range(3)]
    if end == "stop":
        server.terminate()
        time.sleep(0.1)
    server.kill()
    server.start(listen=f"127.0.0.1:{server.port}")
    assert found + seen(loader) == positions(photos, batch=8)


# --- random access --------------------------------------------------------------------------------------------------


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
