"""How batches get from workers to the main process: in the memory that they came in, while no other thread uses it."""

from __future__ import annotations

import random
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pickle import loads
from typing import Any

import bowstring
import pyarrow as pa
import pytest
import torch
from bowstring._transport import buffers, maintenance
from bowstring.torch import Batch, BowstringDataset, _shared_memory
from bowstring.torch._columns import batch_of
from node import Node
from torch.utils.data import DataLoader

LARGE = 40 << 10  # bytes that each message has at least


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> _shared_memory._Pool:
    """Have this process be a worker, and its own main process, too."""
    monkeypatch.setenv("BOWSTRING_LOCAL", "off")
    monkeypatch.setattr(_shared_memory, "get_worker_info", object)
    monkeypatch.setattr(buffers, "SMALL", LARGE)
    monkeypatch.setattr(_shared_memory, "_pool", None)
    monkeypatch.setattr(maintenance, "LULL", 3600.0)  # no thread reads the next batch while the test waits for a CPU
    return _shared_memory._own()


def sent(batch: Batch) -> Batch:
    """The batch as the main process has it."""
    received = loads(ForkingPickler.dumps(batch))
    assert isinstance(received, Batch)
    return received


def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each tensor that is copied from now on."""
    seen: list[int] = []
    write = _shared_memory._Layout.write

    def counted(layout: _shared_memory._Layout, memory: torch.Tensor) -> None:
        seen.extend(tensor.numel() * tensor.element_size() for _, tensor in layout.tensors)
        write(layout, memory)

    monkeypatch.setattr(_shared_memory._Layout, "write", counted)
    return seen


def images(node: Node) -> Any:
    return bowstring.connect(node.url).dataset("photos").columns(["position", "image"]).batches(32)


@pytest.mark.usefixtures("worker")
def test_nothing_large_is_copied(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = copied(monkeypatch)
    with images(node) as batches:
        for record in batches:
            received = sent(batch_of(record))
            assert received["image"].tolist() == record["image"].to_pylist()
            assert received["position"].tolist() == record["position"].to_pylist()
    assert max(seen, default=0) < LARGE


def test_a_segment_is_free_when_both_have_released_it(node: Node, worker: _shared_memory._Pool) -> None:
    with images(node) as batches:
        record = next(batches)
        batch = batch_of(record)
        (segment,) = [s for s in worker._segments.values() if s.held]
        received = sent(batch)
        assert segment.busy[0]
        del record, batch
        assert not segment.held
        image = received["image"][3]
        expected = image.tolist()
        del received
        assert segment.busy[0]  # one tensor is left
        for _ in batches:
            assert image.tolist() == expected
        del image
        assert not segment.busy[0]


@pytest.mark.usefixtures("worker")
def test_what_is_sent_twice_is_copied(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both main processes' tensors live as long as they like."""
    seen = copied(monkeypatch)
    with images(node) as batches:
        record = next(batches)
        batch = batch_of(record)
        one, other = sent(batch), sent(batch)
        assert len([n for n in seen if n > LARGE]) == 1
        assert one["image"].data.data_ptr() != other["image"].data.data_ptr()
        expected = record["image"].to_pylist()
        del one, batch, record
        for _ in batches:
            pass
        assert other["image"].tolist() == expected


@pytest.mark.parametrize(
    "part",
    [
        lambda record: record.slice(5, 3),
        lambda record: pa.concat_batches([record, record]),
        lambda record: record.take(pa.array([7, 1, 7])),
        lambda record: record,
    ],
    ids=["a slice", "twice", "taken", "whole"],
)
@pytest.mark.usefixtures("worker")
def test_whatever_is_made_of_it(node: Node, part: Callable[[Any], Any]) -> None:
    kept = []
    with images(node) as batches:
        for record in batches:
            made = part(record)
            kept.append((sent(batch_of(made)), made["image"].to_pylist()))
    for received, expected in kept:
        assert received["image"].tolist() == expected


@pytest.mark.parametrize("persistent", [False, True])
def test_what_is_kept_stays_as_it_came(node: Node, monkeypatch: pytest.MonkeyPatch, persistent: bool) -> None:
    monkeypatch.setenv("BOWSTRING_LOCAL", "off")
    monkeypatch.setattr(buffers, "SMALL", LARGE)  # forked workers have it, too
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    stored = {
        p: i for b in images(node) for p, i in zip(b["position"].to_pylist(), b["image"].to_pylist(), strict=True)
    }
    dataset = BowstringDataset(
        node.url, "photos", columns=["position", "image"], global_batch_size=16, shuffle=3, rank=0, world_size=1
    )
    loader = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=persistent)
    kept: list[Batch] = []
    rows = 0
    for epoch in range(3):
        dataset.set_epoch(epoch)
        for batch in loader:
            rows += len(batch["image"])
            kept.append(batch)
            if rng.randrange(3):
                kept.pop(rng.randrange(len(kept)))
    assert rows == 3 * len(stored)
    assert len(kept) > 1  # a third of 57 in the mean
    for batch in kept:
        assert batch["image"].tolist() == [stored[p] for p in batch["position"].tolist()]
