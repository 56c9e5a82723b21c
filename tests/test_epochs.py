"""Epochs: every sample exactly once, whatever the ranks; the order follows from seed and epoch alone."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from wire import command, read, stream, ticket

TRAIN = 270
BATCH = 16
STEPS = -(-TRAIN // BATCH)


def epoch(client: fl.FlightClient, world: int, **shuffle: int) -> list[list[tuple[int, Any]]]:
    """Serve an epoch's ids to each of world ranks, each with its step."""
    request = command(
        dataset="photos", split="train", columns=["id"], batch=BATCH, world={"size": world}, shuffle=shuffle
    )
    info = client.get_flight_info(request)
    assert len(info.endpoints) == world
    return [
        [(about["step"], i) for data, about in stream(client, endpoint) for i in data["id"].to_pylist()]
        for endpoint in info.endpoints
    ]


def by_step(ranks: list[list[tuple[int, Any]]], first: int = 0) -> dict[int, Counter[Any]]:
    steps: dict[int, Counter[Any]] = {}
    for rank in ranks:
        for step, i in rank:
            if step >= first:
                steps.setdefault(step, Counter())[i] += 1
    return steps


@pytest.fixture
def all_ids(client: fl.FlightClient) -> set[Any]:
    ids = read(client, dataset="photos", split="train", columns=["id"])["id"].to_pylist()
    assert len(ids) == len(set(ids)) == TRAIN
    return set(ids)


@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("number", [0, 1, 900])
def test_every_sample_exactly_once(client: fl.FlightClient, all_ids: set[Any], world: int, number: int) -> None:
    ranks = epoch(client, world, seed=11, epoch=number)
    assert Counter(i for rank in ranks for _, i in rank) == Counter(all_ids)
    sizes = [len(rank) for rank in ranks]
    assert max(sizes) - min(sizes) <= STEPS  # each step is shared out to within one sample
    assert by_step(ranks) == by_step(epoch(client, 1, seed=11, epoch=number))


def test_order_depends_on_seed_and_epoch_alone(client: fl.FlightClient) -> None:
    orders = {
        (seed, number): [i for _, i in epoch(client, 1, seed=seed, epoch=number)[0]]
        for seed in (0, 1, 2**64 - 1)
        for number in (0, 1, 2)
    }
    assert len({tuple(order) for order in orders.values()}) == len(orders)
    in_order = read(client, dataset="photos", split="train", columns=["id"])["id"].to_pylist()
    for (seed, number), order in orders.items():
        assert order != in_order
        assert order == [i for _, i in epoch(client, 1, seed=seed, epoch=number)[0]]


def test_another_server_serves_the_same_order(client: fl.FlightClient, start: Any) -> None:
    with fl.connect(start().url) as other:
        assert epoch(other, 2, seed=5, epoch=1) == epoch(client, 2, seed=5, epoch=1)


@pytest.mark.parametrize(("before", "after"), [(3, 2), (8, 6), (1, 3), (2, 1)])
@pytest.mark.parametrize("step", [1, 7, STEPS - 1])
def test_the_number_of_ranks_may_change_at_any_step(
    client: fl.FlightClient, all_ids: set[Any], before: int, after: int, step: int
) -> None:
    served = []
    for world, bounds in ((before, {"stop": step}), (after, {"step": step})):
        info = client.get_flight_info(
            command(
                dataset="photos", split="train", columns=["id"], batch=BATCH, world={"size": world}, shuffle={"seed": 2}
            )
        )
        for endpoint in info.endpoints:
            part = ticket(**(json.loads(endpoint.ticket.ticket) | bounds))
            served += [i for p in stream(client, part) for i in p.data["id"].to_pylist()]
    assert Counter(served) == Counter(all_ids)


@pytest.mark.parametrize("workers", [2, 5])
def test_workers_of_a_rank_share_its_steps(client: fl.FlightClient, all_ids: set[Any], workers: int) -> None:
    info = client.get_flight_info(
        command(dataset="photos", split="train", columns=["id"], batch=BATCH, world={"size": 2}, shuffle={"seed": 2})
    )
    served = []
    for endpoint in info.endpoints:
        for worker in range(workers):
            part = ticket(**(json.loads(endpoint.ticket.ticket) | {"step": worker, "stride": workers}))
            for data, about in stream(client, part):
                assert about["step"] % workers == worker
                served += data["id"].to_pylist()
    assert Counter(served) == Counter(all_ids)


@pytest.mark.parametrize("order", ["strict", "window", "window:4", "free"])
def test_every_order_serves_every_sample(client: fl.FlightClient, all_ids: set[Any], order: str) -> None:
    table = read(
        client, dataset="photos", split="train", columns=["id", "image"], order=order, shuffle={"seed": 1}, batch=BATCH
    )
    assert Counter(table["id"].to_pylist()) == Counter(all_ids)


def test_images_are_the_files(client: fl.FlightClient, folder: Path) -> None:
    table = read(client, dataset="photos", columns=["image", "file_name", "split"], shuffle={"seed": 8})
    files = {p.name: p.read_bytes() for p in folder.rglob("*.jpg")}
    served = {Path(r["file_name"]).name: r["image"] for r in table.to_pylist()}
    assert served == files


def test_a_ticket_may_be_written_by_hand(client: fl.FlightClient) -> None:
    request = {"dataset": "photos", "split": "train", "columns": ["id"], "batch": BATCH, "shuffle": {"seed": 4}}
    by_hand = [i for p in stream(client, ticket(**request, rank=0, step=0)) for i in p.data["id"].to_pylist()]
    assert by_hand == read(client, **request)["id"].to_pylist()


def test_batches_are_bounded_by_bytes_and_rows(client: fl.FlightClient) -> None:
    limit = 300_000
    info = client.get_flight_info(command(dataset="photos", columns=["image"], batch=10, batch_bytes=limit))
    position = 0
    for data, about in stream(client, info.endpoints[0]):
        sizes = [len(image.as_py()) for image in data["image"]]
        assert len(sizes) <= 10
        assert sum(sizes[:-1]) <= limit
        assert about["step"] == position // 10
        assert about["row"] == position % 10
        position += len(sizes)
        assert about["last"] == (position % 10 == 0)
    assert position == 300


def test_where_selects(client: fl.FlightClient) -> None:
    everything = read(client, dataset="photos", columns=["id", "width", "label", "position"]).to_pylist()
    wanted = [r["id"] for r in everything if r["width"] > 500 and r["label"] in (2, 5)]
    table = read(client, dataset="photos", columns=["id"], where="width > 500 and label in [2, 5]")
    assert table["id"].to_pylist() == wanted
    assert 0 < len(wanted) < 60


def test_inline_selection(client: fl.FlightClient) -> None:
    table = read(client, dataset="photos", columns=["position"], selection={"positions": [250, 3, 17]})
    assert table["position"].to_pylist() == [3, 17, 250]
    many = list(range(0, 300, 1))[::-1]
    info = client.get_flight_info(
        command(dataset="photos", columns=["position"], selection={"positions": many}, shuffle={"seed": 1})
    )
    got = client.do_get(info.endpoints[0].ticket).read_all()["position"].to_pylist()
    assert sorted(got) == sorted(many)
    with pytest.raises(pa.ArrowInvalid, match=r"1025 positions.*upload a longer selection by DoPut"):
        client.get_flight_info(command(dataset="photos", selection={"positions": list(range(1025))}))


def test_ids_are_the_same_in_another_import(client: fl.FlightClient, folder: Path, tmp_path: Path, start: Any,
                                            bowstring: Any) -> None:  # fmt: skip
    bowstring("import", folder, "photos", "--store", tmp_path / "again")
    with fl.connect(start(store=tmp_path / "again").url) as other:
        columns = ["id", "file_name", "split", "label"]
        here, there = (read(c, dataset="photos", columns=columns) for c in (client, other))
        assert here == there
        images = read(other, dataset="photos", columns=["image"])["image"]
        assert (
            hashlib.sha256(b"".join(images.to_pylist())).digest()
            == hashlib.sha256(b"".join(read(client, dataset="photos", columns=["image"])["image"].to_pylist())).digest()
        )
