"""Which rank reads what: the launcher says it to all alike, and what reads everything is not asked."""

from __future__ import annotations

import bowstring
import pytest
from node import Node


@pytest.fixture
def rows(node: Node) -> bowstring.Dataset:
    return bowstring.connect(node.url).dataset("photos").columns(["position"]).shuffle(2)


def test_batches_are_the_ranks_share(rows: bowstring.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    given = [batch.column(0).to_pylist() for batch in rows.batches(32, rank=1, world_size=2)]
    whole = [batch.column(0).to_pylist() for batch in rows.batches(32)]
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert [batch.column(0).to_pylist() for batch in rows.batches(32)] == given
    assert [batch.column(0).to_pylist() for batch in rows.batches(32, rank=0, world_size=1)] == whole
    # A table is the whole table on every rank.
    assert rows.to_arrow().num_rows == rows.reader().read_all().num_rows == len(rows.positions()) == rows.num_rows
    assert (
        rows.where("label < 5").positions().tolist()
        == rows.where("label < 5").to_arrow().sort_by("position")["position"].to_pylist()
    )
    monkeypatch.setenv("RANK", "x")
    with pytest.raises(ValueError, match="RANK, WORLD_SIZE: got 'x', '2'"):
        rows.batches(32)


def test_mistakes_raise_errors(rows: bowstring.Dataset) -> None:
    with pytest.raises(ValueError, match="rank: got rank 2 of 2"):
        rows.batches(32, rank=2, world_size=2)
    with pytest.raises(ValueError, match="rank, world_size: want both or none"):
        rows.batches(32, rank=1)
    with pytest.raises(TypeError, match="batch_size: got 32; the argument is global_batch_size now"):
        rows.batches(batch_size=32)  # type: ignore[arg-type]
