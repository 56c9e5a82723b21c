"""Parts of sequences for context parallel ranks, beside what numpy cuts of whole ones."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import bowstring
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from bowstring import Mesh
from conftest import StartNode

LENGTH = 48
PACK: dict[str, Any] = {"length": LENGTH, "column": "tokens", "pad": 9}
CUT = ["tokens", "position_ids", "segment_ids"]


@pytest.fixture
def text(start: StartNode, tmp_path: Path) -> bowstring.Dataset:
    """Documents of tokens, each with a list of one length."""
    rng = np.random.default_rng(11)
    documents = [rng.integers(0, 1 << 16, n).astype(np.uint16) for n in rng.integers(1, LENGTH, 200)]
    scores = rng.random((len(documents), 24)).astype(np.float32)
    client = bowstring.connect(start(store=tmp_path / "store").url)
    table = pa.table(
        {
            "tokens": pa.array(documents, pa.list_(pa.uint16())),
            "scores": pa.array(list(scores), pa.list_(pa.float32(), 24)),
        }
    )
    client.ingest("text", table, progress=False)
    return client.dataset("text").shuffle(7)


def part(whole: npt.NDArray[Any], by: str, rank: int, ranks: int) -> npt.NDArray[Any]:
    """The slice of each row that a rank gets."""
    if by == "contiguous":
        return np.split(whole, ranks, axis=1)[rank]
    parts = np.split(whole, 2 * ranks, axis=1)
    return np.concatenate([parts[rank], parts[2 * ranks - 1 - rank]], axis=1)


def read(rows: bowstring.Dataset, mesh: Mesh) -> pa.Table:
    """All that a rank gets."""
    stream = rows.batches(16, mesh=mesh)
    return pa.Table.from_batches(list(stream))


def lists(table: pa.Table, name: str) -> npt.NDArray[Any]:
    """A column of lists of one length."""
    return np.asarray(table[name].to_pylist())


@pytest.mark.parametrize("by", ["contiguous", "zigzag"])
@pytest.mark.parametrize("sizes", [{"dp": 2, "cp": 4}, {"cp": 3, "tp": 2}, {"pp": 2, "cp": 1, "dp": 3}])
def test_packed(text: bowstring.Dataset, by: Any, sizes: dict[str, int]) -> None:
    whole = text.options(pack=PACK, batch_bytes=3000).columns([*CUT, "cu_seqlens", "position", "scores"])
    sliced = whole.options(slices=by)
    for rank, at in enumerate(itertools.product(*map(range, sizes.values()))):
        mesh = Mesh.of(sizes, rank=rank)
        want, got = read(whole, mesh), read(sliced, mesh)
        assert got.num_rows > 0
        for name in want.column_names:
            if name in CUT:
                here = part(lists(want, name), by, dict(zip(sizes, at, strict=True))["cp"], sizes["cp"])
                assert got.schema.field(name).type.list_size == LENGTH // sizes["cp"]
                assert np.array_equal(lists(got, name), here)
            else:
                assert got[name].to_pylist() == want[name].to_pylist()


@pytest.mark.parametrize("by", ["contiguous", "zigzag"])
def test_lists_of_one_length(text: bowstring.Dataset, by: str) -> None:
    rows = text.columns(["position", "scores"])
    sliced = rows.options(slices={"by": by, "columns": ["scores"]})
    for rank in range(8):
        mesh = Mesh.of({"dp": 2, "cp": 4}, rank=rank)
        want, got = read(rows, mesh), read(sliced, mesh)
        assert got["position"].equals(want["position"])
        assert np.array_equal(lists(got, "scores"), part(lists(want, "scores"), by, rank % 4, 4))
    assert sliced.take([3])["scores"].to_pylist() == rows.take([3])["scores"].to_pylist()
    assert lists(sliced.to_arrow(), "scores").shape == (200, 24)  # one rank has all of it


def test_lists_that_operators_make(text: bowstring.Dataset) -> None:
    """Inputs and labels are made of whole documents, and cut then: the last token of a part has its label, too."""
    made = {
        "inputs": {"tokens": ["tokens"], "steps": [{"Pad": {"length": LENGTH, "value": 0}}]},
        "labels": {
            "tokens": ["tokens"],
            "steps": [{"ToDtype": {"dtype": "int32"}}, {"Shift": {"by": 1}}, {"Pad": {"length": LENGTH, "value": 0}}],
        },
    }
    rows = text.operators(made).columns(["inputs", "labels"])
    sliced = rows.options(slices={"by": "zigzag", "columns": ["labels", "inputs"]})
    for rank in range(3):
        mesh = Mesh.of({"cp": 3}, rank=rank)
        want, got = read(rows, mesh), read(sliced, mesh)
        for name in ("inputs", "labels"):
            assert np.array_equal(lists(got, name), part(lists(want, name), "zigzag", rank, 3))


def test_goes_on_with_other_ranks(text: bowstring.Dataset) -> None:
    """A ticket of one mesh goes on on another: steps are those of whole sequences."""
    sliced = text.options(pack=PACK, slices="zigzag").columns(CUT)
    with sliced.batches(16, mesh=Mesh.of({"cp": 4}, rank=2)) as batches:
        next(batches)
        ticket = batches.ticket
    whole = read(text.options(pack=PACK).columns(CUT), Mesh.of({"tp": 1}, rank=0)).slice(16)
    for rank in range(2):
        again = sliced.resume({**ticket, "world": {"mesh": "cp=2"}, "rank": rank})
        got = pa.Table.from_batches(list(again))
        assert np.array_equal(lists(got, "tokens"), part(lists(whole, "tokens"), "zigzag", rank, 2))


def test_what_is_wrong_is_said(text: bowstring.Dataset) -> None:
    with pytest.raises(bowstring.InvalidRequest, match=r"a multiple of 10, as world\.mesh has 5"):
        read(text.options(pack=PACK, slices="zigzag"), Mesh.of({"cp": 5}, rank=0))
    with pytest.raises(bowstring.InvalidRequest, match=r"without cp in world\.mesh"):
        read(text.options(pack=PACK, slices="zigzag"), Mesh.of({"dp": 2}, rank=0))
    with pytest.raises(bowstring.InvalidRequest, match=r"sequences of 24, want a multiple of 5"):
        read(text.options(slices={"columns": ["scores"]}), Mesh.of({"cp": 5}, rank=0))
    with pytest.raises(bowstring.InvalidRequest, match="lists of numbers of one length"):
        text.options(slices={"columns": ["tokens"]})
    with pytest.raises(bowstring.InvalidRequest, match=r"slices\.by"):
        text.options(slices={"by": "stripes", "columns": ["scores"]})
