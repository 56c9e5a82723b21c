"""Operators at the client by `take`, Polars and Ray: what they give is what they give with those at the server."""

from __future__ import annotations

from typing import Any

import bowstring
import bowstring.polars
import bowstring.ray
import pyarrow as pa
import pytest
from bowstring._operators import exchange as local_exchange
from bowstring._operators import process as operator_process
from bowstring.ray import BowstringDatasource
from place_photos import CROP, DAMAGED, LISTS, ROWS, photos, store
from polars.testing import assert_frame_equal

__all__ = ["photos", "store"]  # fixtures

GOOD = [p for p in range(ROWS) if p not in DAMAGED]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each batch that a process beside this one was handed."""
    found: list[int] = []
    usual = operator_process.OperatorProcess.send

    def send(worker: operator_process.OperatorProcess, batch: pa.RecordBatch, epoch: int) -> None:
        found.append(batch.num_rows)
        usual(worker, batch, epoch)

    monkeypatch.setattr(operator_process.OperatorProcess, "send", send)
    return found


@pytest.mark.parametrize("name", LISTS)
def test_take(photos: bowstring.Dataset, asked: list[int], name: str) -> None:
    made = photos.operators(image=LISTS[name]).columns(["image.params", "image", "file_name"])
    rows = [*GOOD[::-3], GOOD[4], GOOD[4]]
    wanted = made.take(rows)
    assert not asked
    here = made.options(place="client")
    assert here.take(rows).equals(wanted)
    assert sum(asked) == len(rows)
    with here.exchange(epoch=2) as ours, made.exchange(epoch=2) as theirs:
        for _ in range(2):
            assert ours.take(rows[:3]).equals(theirs.take(rows[:3]))
        assert ours.take([]).schema.equals(theirs.take([]).schema, check_metadata=True)
    count = len(asked)
    assert made.options(place="auto").take(rows).equals(wanted)
    assert len(asked) == count


def test_take_of_what_cannot_be_made(photos: bowstring.Dataset) -> None:
    """It fails as the server does, and the next take is answered by what it asks for."""
    made = photos.operators(image=CROP).columns(["image"])
    bad = min(DAMAGED)
    with made.options(place="client").exchange() as exchange:
        assert isinstance(exchange, local_exchange.LocalExchange)
        for _ in range(2):
            with pytest.raises(bowstring.DataLoss, match=f"position {bad} "):
                exchange.take([GOOD[0], bad])
            assert exchange.take(GOOD[:3]).equals(made.take(GOOD[:3]))
        assert exchange._worker is not None
        process = exchange._worker._process
    assert process.returncode is not None


@pytest.mark.parametrize("place", ["client", "auto"])
def test_polars(photos: bowstring.Dataset, asked: list[int], place: Any) -> None:
    made = photos.operators(image=CROP).columns(["image", "position", "width"]).options(on_error="null")
    wanted = bowstring.polars.scan(made).collect()
    assert not asked
    assert_frame_equal(bowstring.polars.scan(made.options(place=place)).collect(), wanted)
    assert bool(asked) == (place == "client")
    bowstring.polars.scan(made.options(place="client")).head(3).collect()


@pytest.mark.parametrize("place", ["client", "auto"])
def test_tasks_of_ray(photos: bowstring.Dataset, asked: list[int], place: Any) -> None:
    """The tasks of Ray, here without a Ray: each is a function of what was pickled."""
    made = photos.operators(image=CROP).columns(["image", "position"]).options(on_error="null")
    wanted, found = (
        [list(task()) for task in BowstringDatasource(dataset).get_read_tasks(3)]
        for dataset in (made, made.options(place=place))
    )
    assert [pa.concat_tables(blocks) for blocks in found] == [pa.concat_tables(blocks) for blocks in wanted]
    assert bool(asked) == (place == "client")
