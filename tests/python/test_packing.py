"""Documents of tokens as packed sequences: by the client and by torch, against a real server."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import bowstring
import numpy as np
import pyarrow as pa
import pytest
import torch
from bowstring.torch import BowstringDataset, Sequences
from conftest import StartNode
from torch.utils.data import DataLoader

LENGTH = 128
PACK: dict[str, Any] = {"length": LENGTH, "column": "tokens"}
MADE = ["position_ids", "segment_ids", "cu_seqlens"]


@pytest.fixture(scope="module")
def documents() -> list[np.ndarray[Any, Any]]:
    """Documents of tokens whose values give their document and position."""
    rng = np.random.default_rng(7)
    lengths = np.minimum(rng.lognormal(3, 1, 500).astype(int), LENGTH)
    return [(i * 31 + np.arange(n)).astype(np.uint16) for i, n in enumerate(lengths)]


@pytest.fixture
def text(start: StartNode, tmp_path: Path, documents: list[np.ndarray[Any, Any]]) -> bowstring.Dataset:
    node = start(f"--lineage={tmp_path / 'record'}", store=tmp_path / "store")
    client = bowstring.connect(node.url)
    table = pa.table(
        {
            "name": [f"document {i}" for i in range(len(documents))],
            "tokens": pa.array(documents, pa.list_(pa.uint16())),
            "page": [b"scan"] * len(documents),
        }
    )
    client.ingest("text", table, key="name", progress=False)
    return client.dataset("text").shuffle(7)


def flat(lists: Iterable[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(lists))


def count(seen: list[int], documents: list[np.ndarray[Any, Any]], tokens: Any, ends: Any, positions: list[int]) -> None:
    """Count documents, whose tokens have to be a sequence's."""
    for (start, end), position in zip(itertools.pairwise(ends), positions, strict=True):
        assert np.array_equal(np.asarray(tokens[start:end]), documents[position])
        seen[position] += 1


@pytest.mark.parametrize("pad", [None, 9])
def test_each_document_comes_once(
    text: bowstring.Dataset, documents: list[np.ndarray[Any, Any]], pad: int | None
) -> None:
    packed = text.options(pack=PACK if pad is None else {**PACK, "pad": pad})
    assert packed.schema.names == ["id", "name", "tokens", *MADE]  # and no column of bytes
    packed = packed.columns(["tokens", *MADE, "position"])
    plan = packed.plan(batch=16, world_size=3)
    assert len(packed) == plan.rows
    seen = [0] * len(documents)
    rows = 0
    for rank in range(3):
        with packed.batches(16, rank=rank, world_size=3) as batches:
            for batch in batches:
                rows += batch.num_rows
                for row in batch.to_pylist():
                    count(seen, documents, row["tokens"], row["cu_seqlens"], row["position"])
                    n = row["cu_seqlens"][-1]
                    lengths = np.diff(row["cu_seqlens"])
                    rest = [0] * (0 if pad is None else LENGTH - n)
                    assert row["position_ids"] == [*np.concatenate([np.arange(n) for n in lengths]), *rest]
                    assert row["segment_ids"] == [*np.repeat(np.arange(len(lengths)) + 1, lengths), *rest]
                    assert row["tokens"][n:] == [pad] * len(rest)
    assert rows == plan.rows
    assert seen == [int(len(d) > 0) for d in documents]


def test_single_rows_are_documents(text: bowstring.Dataset, documents: list[np.ndarray[Any, Any]]) -> None:
    packed = text.options(pack=PACK).columns(["tokens", "segment_ids"])
    taken = packed.take([5, 3])
    assert taken.schema.names == ["tokens"]
    for tokens, i in zip(taken["tokens"].to_pylist(), [5, 3], strict=True):
        assert np.array_equal(tokens, documents[i])
    assert packed.positions().tolist() == list(range(len(documents)))
    few = text.select(range(40)).options(pack=PACK).columns(["position"])
    assert sorted(flat(few.to_arrow()["position"].to_pylist())) == [i for i in range(40) if len(documents[i])]


def test_what_is_wrong_is_said(text: bowstring.Dataset) -> None:
    for pack, said in [
        ({"length": LENGTH, "column": "name"}, "pack.column"),
        ({**PACK, "lengths": "name"}, "pack.lengths"),
        ({**PACK, "long": "wrong"}, "pack.long"),
        ({"column": "tokens"}, "pack.length"),
    ]:
        with pytest.raises(bowstring.InvalidRequest, match=said):
            text.options(pack=pack)
    with pytest.raises(bowstring.InvalidRequest, match="blob"):
        text.options(pack=PACK).columns(["page"])
    with pytest.raises(bowstring.InvalidRequest, match="strict"):
        text.options(pack=PACK, order="free")


def test_lineage_says_which_documents(text: bowstring.Dataset) -> None:
    packed = text.options(pack={**PACK, "by": "split"}).columns(["position", "cu_seqlens"])
    with packed.batches(8, rank=1, world_size=2) as batches:
        rows = next(batches).to_pylist()
    client = text.client
    assert isinstance(client, bowstring.Client)
    (job,) = client.jobs_on_record()
    (held,) = client.lineage(job.job, 0)
    assert held.positions == flat(row["position"] for row in rows)
    for i, row in enumerate(rows):
        assert [p["tokens"] for p in held.parts if p["row"] == i] == np.diff(row["cu_seqlens"]).tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_torch_gets_tensors(text: bowstring.Dataset, documents: list[np.ndarray[Any, Any]], workers: int) -> None:
    seen = [0] * len(documents)
    for rank in range(2):
        dataset = BowstringDataset(
            text, global_batch_size=8, rank=rank, world_size=2, pack=PACK, columns=["tokens", *MADE, "position"]
        )
        text_steps = len(dataset)
        for step, batch in enumerate(DataLoader(dataset, batch_size=None, num_workers=workers)):
            tokens, ends = batch["tokens"], batch["cu_seqlens"]
            assert isinstance(tokens, Sequences)
            assert tokens.data.dtype == torch.uint16
            assert isinstance(batch["position"], Sequences)
            assert torch.equal(batch["segment_ids"].offsets, tokens.offsets)
            assert tokens.lengths.tolist() == [int(e[-1]) for e in ends]
            last = step == text_steps - 1  # it is filled with sequences that came before
            for row, end, positions in zip(tokens, ends, batch["position"], strict=True):
                ignored = [0] * len(documents)
                count(ignored if last else seen, documents, row.numpy(), end.tolist(), positions.tolist())
        assert step + 1 == text_steps
    assert max(seen) == 1
    assert sum(seen) > len(documents) * 0.7
    padded = BowstringDataset(text, global_batch_size=8, pack={**PACK, "pad": 0}, columns=["tokens", *MADE])
    for batch in DataLoader(padded, batch_size=None, num_workers=workers):
        assert batch["tokens"].shape == batch["segment_ids"].shape
        assert batch["tokens"].shape[1] == LENGTH


def test_torch_goes_on_elsewhere(text: bowstring.Dataset) -> None:
    """A state of two ranks goes on with three, sequence by sequence."""

    def job(rank: int, world: int) -> BowstringDataset:
        return BowstringDataset(
            text.options(remainder="drop"),
            global_batch_size=12,
            rank=rank,
            world_size=world,
            pack=PACK,
            columns=["position"],
        )

    def steps(jobs: list[BowstringDataset]) -> list[list[list[int]]]:
        return [[p for b in step for p in b["position"].tolist()] for step in zip(*jobs, strict=True)]

    whole = steps([job(0, 1)])
    state = job(0, 2).state_at(3)
    later = [job(rank, 3) for rank in range(3)]
    for one in later:
        one.load_state_dict(state)
    assert steps(later) == whole[3:]
