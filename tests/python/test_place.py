"""Operators at the client: the same rows, bytes, schema and faults as at the server, wherever a batch is made."""

import io
import os
import random
import types
from pathlib import Path
from typing import Any, Literal

import bowstring
import numpy as np
import pyarrow as pa
import pytest
from bowstring import operators
from bowstring._operators import placement
from bowstring._operators import stream as local_stream
from bowstring._operators.process import OperatorProcess
from bowstring.torch import BowstringDataset
from conftest import StartNode
from PIL import Image
from place_photos import CROP, DAMAGED, LISTS, ROWS, photos, store
from torch.utils.data import DataLoader

__all__ = ["photos", "store"]  # fixtures

PLACES: tuple[Literal["server", "client"], ...] = ("server", "client")


def both(dataset: bowstring.Dataset, **options: Any) -> tuple[pa.Table, pa.Table]:
    """An epoch as the server makes it, and as it is made here, with the faults of each as a column."""
    return read(dataset, **options), read(dataset.options(place="client"), **options)


def read(dataset: bowstring.Dataset, **options: Any) -> pa.Table:
    faults = []
    found = []
    with dataset.batches(7, epoch=3, **options) as batches:
        for batch in batches:
            found.append(batch)
            assert batches.place is not None
            faults += [(f["position"], f["column"], f["operator"]) for f in batches.place.get("faults", [])]
    assert sorted(p for p, _, _ in faults) == sorted(DAMAGED)
    return pa.Table.from_batches(found, dataset.schema)


@pytest.mark.parametrize("name", LISTS)
def test_the_same_bytes(photos: bowstring.Dataset, name: str) -> None:
    columns = ["id", "image", "position", "image.params", "image.size"]
    made = photos.operators(image=LISTS[name]).columns(columns).options(on_error="null")
    ours, theirs = both(made)
    assert ours.schema.equals(theirs.schema, check_metadata=True)
    assert ours.equals(theirs)
    assert theirs["image"].null_count == len(DAMAGED)
    for fewer in (["image", "file_name"], ["image.params", "width"]):  # without what it goes by
        ours, theirs = both(made.columns(fewer))
        assert ours.equals(theirs)


def png(mode: str, seed: int, size: tuple[int, int]) -> bytes:
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, np.uint8), mode).save(out, "PNG")
    return out.getvalue()


@pytest.mark.parametrize("steps", [CROP, LISTS["many shapes"]], ids=["one shape", "many shapes"])
def test_masks(
    start: StartNode, binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: list[dict[str, Any]]
) -> None:
    """Columns that follow an image get its geometry at the client, too, for any requested columns and nulls."""
    monkeypatch.setenv("BOWSTRING_BINARY", str(binary))
    sizes = [(40 + i, 60) for i in range(12)]
    table = pa.table(
        {
            "image": pa.array([png("RGB", i, s) for i, s in enumerate(sizes)], pa.large_binary()),
            "mask": pa.array(
                [None if i == 5 else png("L", 100 + i, s) for i, s in enumerate(sizes)], pa.large_binary()
            ),
        }
    )
    with bowstring.connect(start(store=tmp_path / "s").url) as client:
        client.ingest("masked", table, media={"image": "image", "mask": "image"}, progress=False)
        made = client.dataset("masked").shuffle(5).operators(image=steps, mask={"follows": "image"})
        for columns in (["mask", "position", "image"], ["image", "mask", "image.params"]):
            found = []
            for place in PLACES:
                with made.columns(columns).options(place=place).batches(5, epoch=2) as batches:
                    found.append(pa.Table.from_batches(batches))
            assert found[0].num_rows == len(sizes)
            assert found[0]["mask"].null_count == 1
            assert found[0].schema.equals(found[1].schema, check_metadata=True)
            assert found[0].equals(found[1])


def test_what_cannot_be_made(photos: bowstring.Dataset) -> None:
    made = photos.columns(["image"]).operators(image=CROP)
    for place in PLACES:
        with pytest.raises(bowstring.DataLoss, match="position"):
            list(made.options(place=place).batches(5))
    with pytest.raises(bowstring.InvalidRequest, match="on_error"):
        made.options(place="client", on_error="skip").batches(5)
    with pytest.raises(bowstring.InvalidRequest, match="place: got 'there'"):
        made.options(place="there")  # type: ignore[arg-type]


def test_it_goes_on_where_it_was(photos: bowstring.Dataset) -> None:
    """From every batch's ticket, in either place and in one that is chosen, comes what the server would have sent."""
    made = photos.columns(["image", "position"]).operators(image=CROP).options(on_error="null")
    whole = list(made.batches(7, epoch=3))
    tickets: list[dict[str, Any]] = []
    with made.options(place="client").batches(7, epoch=3) as batches:
        tickets += [batches.ticket for _ in batches]
    assert len(tickets) == len(whole)
    for i, ticket in enumerate(tickets):
        for place in ("server", "client", "auto"):
            with made.resume({**ticket, "place": place} if place != "server" else without_place(ticket)) as rest:
                assert list(rest) == whole[i + 1 :]


@pytest.mark.parametrize(("comes", "made", "prefetched"), [(1.0, 0.1, [1, 1, 1, 1]), (0.1, 1.0, [1, 2, 2, 2])])
def test_prefetched_batches(
    photos: bowstring.Dataset, monkeypatch: pytest.MonkeyPatch, comes: float, made: float, prefetched: list[int]
) -> None:
    """One batch suffices where blobs are longer on their way than they take to make; the process has two otherwise."""
    now = [0.0]

    def taking(seconds: float, usual: Any) -> Any:
        def timed(self: Any) -> Any:
            now[0] += seconds
            return usual(self)

        return timed

    monkeypatch.setattr(local_stream, "time", types.SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(bowstring.Batches, "_next", taking(comes, bowstring.Batches._next))
    monkeypatch.setattr(OperatorProcess, "receive", taking(made, OperatorProcess.receive))
    crops = photos.columns(["image"]).operators(image=CROP).options(on_error="null", place="client")
    with crops.batches(3) as batches:
        assert isinstance(batches, local_stream.LocalBatches)
        found = []
        for _ in prefetched:
            next(batches)
            found.append(len(batches._pending))
    assert found == prefetched


def without_place(ticket: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in ticket.items() if name != "place"}


@pytest.mark.parametrize("seed", range(4))
def test_moves_change_nothing(photos: bowstring.Dataset, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """However often it moves, at whatever batch, every row comes once, with the same bytes."""
    drawn = random.Random(seed)

    class Restless(placement.Chooser):
        def settling(self) -> bool:
            return drawn.random() < 0.5

        def moves(self) -> bool:
            if drawn.random() < 0.5:
                return False
            self.place = "client" if self.place == "server" else "server"
            return True

    made = photos.operators(image=CROP).columns(["image", "position", "image.params"]).options(on_error="null")
    whole = [list(made.batches(3, epoch=e, rank=r, world_size=2)) for e in (3, 4) for r in range(2)]
    monkeypatch.setattr(local_stream, "Chooser", Restless)
    chosen = made.options(place="auto")
    places = set()
    for i, (epoch, rank) in enumerate((e, r) for e in (3, 4) for r in range(2)):
        with chosen.batches(3, epoch=epoch, rank=rank, world_size=2) as batches:
            found = []
            for batch in batches:
                found.append(batch)
                assert batches.place is not None
                places.add(batches.place["place"])
        assert found == whole[i], f"seed {seed}"
    assert places == {"server", "client"}


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.nightly)])
def test_workers_of_torch(photos: bowstring.Dataset, method: str) -> None:
    made = photos.columns(["image", "position"]).operators(image=CROP).options(on_error="null", place="client")
    next(made.batches(7))  # this process has one of its own, too
    want = {int(p): x for b in made.batches(7) for p, x in zip(b["position"].to_pylist(), images(b), strict=True)}
    loaded = BowstringDataset(made, global_batch_size=6)
    seen = 0
    for batch in DataLoader(loaded, batch_size=None, num_workers=2, multiprocessing_context=method):
        for position, image in zip(batch["position"].tolist(), batch["image"], strict=True):
            seen += 1
            if position not in DAMAGED:
                assert np.array_equal(image.numpy(), want[position])
    assert seen == ROWS


def images(batch: pa.RecordBatch) -> Any:
    return operators.arrays(batch)["image"]


def test_the_process_ends(photos: bowstring.Dataset) -> None:
    """With the stream; and where it is killed, the stream says so."""
    made = photos.columns(["image"]).operators(image=CROP).options(on_error="null", place="client")
    batches = made.batches(2)
    assert isinstance(batches, local_stream.LocalBatches)
    next(batches)
    assert batches._worker is not None
    process = batches._worker._process
    batches.close()
    assert process.returncode is not None
    with made.batches(2) as killed:
        next(killed)
        assert isinstance(killed, local_stream.LocalBatches)
        assert killed._worker is not None
        killed._worker._process.kill()
        with pytest.raises(bowstring.ServerError, match="has ended with status -9"):
            list(killed)


def test_no_program(photos: bowstring.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BOWSTRING_BINARY")
    monkeypatch.setenv("PATH", os.devnull)
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(bowstring.Unsupported, match="BOWSTRING_BINARY"):
        list(photos.columns(["image"]).operators(image=CROP).options(place="client").batches(2))
