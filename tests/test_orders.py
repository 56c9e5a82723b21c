"""Orders and epochs: how far samples move, that none is lost or repeated, and that one can go on from any batch.

The server's store is a link away on which some reads overtake others, so that there is something to be out of order.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from node import Node
from wire import Piece, command, read, stats, stream, ticket

PHOTOS = 300
BATCH = 16
ORDERS = ["strict", "window", "window:3", "free"]
LINK = ["--rtt", "4ms", "--jitter", "2ms", "--slow-share", "0.05", "--slow-by", "60ms", "--seed", "1"]
REQUEST: dict[str, Any] = {
    "dataset": "photos",
    "columns": ["position", "image"],
    "batch": BATCH,
    "shuffle": {"seed": 3, "epoch": 1},
}


@pytest.fixture(scope="module")
def far(imported: Path, lab: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    store = tmp_path_factory.mktemp("far") / "store"
    shutil.copytree(imported, store)
    with Node(lab, store, *LINK, log=store.parent / "server.log") as node:
        yield node


@pytest.fixture
def client(far: Node) -> Iterator[fl.FlightClient]:
    with fl.connect(far.url) as connected:
        yield connected


@pytest.fixture(scope="module")
def files(node: Node) -> dict[int, bytes]:
    """The images by position, as another server serves them."""
    with fl.connect(node.url) as other:
        table = read(other, dataset="photos", columns=["position", "image"])
    return {r["position"]: r["image"] for r in table.to_pylist()}


def positions(pieces: Iterable[Piece]) -> list[int]:
    return [p for piece in pieces for p in piece.data["position"].to_pylist()]


def check_images(pieces: Iterable[Piece], files: dict[int, bytes]) -> None:
    for piece in pieces:
        for row in piece.data.to_pylist():
            assert row["image"] == files[row["position"]]


def tickets(client: fl.FlightClient, **request: Any) -> list[dict[str, Any]]:
    """The ticket of GetFlightInfo, to be changed by hand."""
    endpoints = client.get_flight_info(command(**(REQUEST | request))).endpoints
    return [json.loads(e.ticket.ticket) for e in endpoints]


def serve(client: fl.FlightClient, fields: dict[str, Any]) -> list[Piece]:
    return list(stream(client, ticket(**fields)))


def shares(world: int, rank: int) -> list[int]:
    """How many samples of each step a rank gets."""
    sizes = [min(BATCH, PHOTOS - start) for start in range(0, PHOTOS, BATCH)]
    return [(rank + 1) * size // world - rank * size // world for size in sizes]


# --- what is served, and in which order ----------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("world", [1, 3])
def test_every_sample_once_in_batches_of_the_plans_size(
    client: fl.FlightClient, files: dict[int, bytes], order: str, world: int
) -> None:
    with ThreadPoolExecutor(world) as pool:
        ranks = list(pool.map(lambda t: serve(client, t), tickets(client, order=order, world={"size": world})))
    assert Counter(p for pieces in ranks for p in positions(pieces)) == Counter(range(PHOTOS))
    for rank, pieces in enumerate(ranks):
        check_images(pieces, files)
        assert [p.data.num_rows for p in pieces] == shares(world, rank)
        assert [p.about["step"] for p in pieces] == list(range(len(pieces)))
        assert {p.about["epoch"] for p in pieces} == {1}
        assert all(p.about["row"] == 0 and p.about["last"] and p.about["rows"] == p.data.num_rows for p in pieces)
        # A rank gets its share in any order: no samples of another rank move to it.
        (exact,) = (t for t in tickets(client, world={"size": world}) if t["rank"] == rank)
        assert set(positions(pieces)) == set(positions(serve(client, exact | {"columns": ["position"]})))


@pytest.mark.parametrize("order", ["window:1", "window:3", "window"])
@pytest.mark.parametrize("stride", [1, 2])
def test_no_sample_moves_further_than_the_window(client: fl.FlightClient, order: str, stride: int) -> None:
    """Counted in steps of the stream: of every second step, K are 2K of the plan."""
    bound = int((order + ":16").split(":")[1]) * stride
    (exact,), (loose,) = tickets(client, columns=["position"]), tickets(client, order=order)
    home = {p: piece.about["step"] for piece in serve(client, exact) for p in piece.data["position"].to_pylist()}
    pieces = serve(client, loose | {"step": stride - 1, "stride": stride})
    assert set(positions(pieces)) == {p for p, step in home.items() if step % stride == stride - 1}
    for piece in pieces:
        moved = [abs(home[p] - piece.about["step"]) for p in piece.data["position"].to_pylist()]
        assert max(moved) <= bound


def test_free_is_not_the_order_of_the_plan(client: fl.FlightClient) -> None:
    (exact,), (loose,) = tickets(client), tickets(client, order="free")
    strict = positions(serve(client, exact))
    assert strict == positions(serve(client, exact))
    free = positions(serve(client, loose))
    assert sorted(free) == sorted(strict)
    assert free != strict  # about 15 of the reads take longer than the 285 others


def test_only_an_exact_order_of_one_rank_is_called_ordered(client: fl.FlightClient) -> None:
    for order, world, ordered in (
        ("strict", 1, True),
        ("strict", 2, False),
        ("window", 1, False),
        ("window:1", 1, False),
        ("free", 1, False),
    ):
        assert client.get_flight_info(command(**REQUEST, order=order, world={"size": world})).ordered == ordered


def test_metadata_alone_comes_in_order_whatever_was_asked_for(client: fl.FlightClient) -> None:
    (exact,), (loose,) = (tickets(client, columns=["position"], order=o) for o in ("strict", "free"))
    assert positions(serve(client, exact)) == positions(serve(client, loose))


# --- resume --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "bounds", [{}, {"batch_bytes": 250_000}, {"world": {"size": 2}}], ids=["whole", "cut", "ranks"]
)
def test_any_batch_is_a_place_to_go_on_from(client: fl.FlightClient, order: str, bounds: dict[str, Any]) -> None:
    for fields in tickets(client, order=order, **bounds):
        pieces = serve(client, fields)
        everything = Counter(positions(pieces))
        assert set(everything.values()) == {1}
        for n in range(0, len(pieces), max(1, len(pieces) // 5)):
            rest = serve(client, pieces[n].about["resume"])
            assert Counter(positions(pieces[: n + 1]) + positions(rest)) == everything
            if "batch_bytes" not in bounds:
                assert [p.data.num_rows for p in rest] == [p.data.num_rows for p in pieces[n + 1 :]]
        assert serve(client, pieces[-1].about["resume"]) == []


@pytest.mark.parametrize("order", ORDERS)
def test_a_stream_broken_off_again_and_again(client: fl.FlightClient, files: dict[int, bytes], order: str) -> None:
    """Each time after the second batch, by the ticket that came with it."""
    (fields,) = tickets(client, order=order)
    served: list[Piece] = []
    streams = 0
    while True:
        reader = client.do_get(ticket(**fields))
        pieces = [
            Piece(c.data, json.loads(c.app_metadata.to_pybytes())) for _, c in zip(range(2), reader, strict=False)
        ]
        reader.cancel()
        streams += 1
        if not pieces:
            break
        served += pieces
        fields = pieces[-1].about["resume"]
    assert streams == -(-PHOTOS // BATCH // 2) + 1
    assert [p.data.num_rows for p in served] == shares(1, 0)
    assert Counter(positions(served)) == Counter(range(PHOTOS))
    check_images(served, files)


def test_resume_says_no_more_than_it_must(client: fl.FlightClient) -> None:
    for order in ORDERS:
        (fields,) = tickets(client, order=order)
        for piece in serve(client, fields):
            resume = piece.about["resume"]
            if order == "strict":
                assert "served" not in resume
                assert resume == fields | {"step": piece.about["step"] + 1}
            assert resume["step"] <= piece.about["step"] + 1
            assert resume.get("row", 0) < BATCH
            assert len(json.dumps(resume)) < 400 + PHOTOS / 8 * 4 / 3


def test_a_kill_of_the_server(imported: Path, binary: Path, lab: Path, client: fl.FlightClient, tmp_path: Path) -> None:
    """The server that takes over sends the rest, here one that is nearer to its store."""
    store = tmp_path / "store"
    shutil.copytree(imported, store)
    (fields,) = tickets(client, order="free")
    with Node(lab, store, *LINK) as own, fl.connect(own.url) as connected:
        parts = stream(connected, ticket(**fields | {"epochs": 2}))
        served = [next(parts) for _ in range(7)]
        own.kill()
        with pytest.raises((fl.FlightUnavailableError, fl.FlightInternalError)):
            list(parts)  # what is on its way still arrives, and is not counted
    assert len(positions(served)) < 2 * PHOTOS
    with Node(binary, store) as own, fl.connect(own.url) as connected:
        served += serve(connected, served[-1].about["resume"])
    for epoch in (1, 2):
        assert Counter(positions(p for p in served if p.about["epoch"] == epoch)) == Counter(range(PHOTOS))


# --- several epochs in one stream ----------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
def test_epochs_one_after_another(client: fl.FlightClient, files: dict[int, bytes], order: str) -> None:
    (fields,) = tickets(client, order=order, shuffle={"seed": 3, "epoch": 6})
    pieces = serve(client, fields | {"epochs": 3})
    numbers = [p.about["epoch"] for p in pieces]
    assert numbers == sorted(numbers)
    assert set(numbers) == {6, 7, 8}
    check_images(pieces, files)
    orders = []
    for epoch in (6, 7, 8):
        own = [p for p in pieces if p.about["epoch"] == epoch]
        assert Counter(positions(own)) == Counter(range(PHOTOS))
        assert [p.data.num_rows for p in own] == shares(1, 0)
        assert [p.about["step"] for p in own] == list(range(len(own)))
        if order == "strict":
            (alone,) = tickets(client, shuffle={"seed": 3, "epoch": epoch}, columns=["position"])
            assert positions(own) == positions(serve(client, alone))
        orders.append(positions(own))
    assert orders[0] != orders[1] != orders[2]


@pytest.mark.parametrize("order", ORDERS)
def test_resume_across_the_boundary_of_epochs(client: fl.FlightClient, order: str) -> None:
    (fields,) = tickets(client, order=order)
    pieces = serve(client, fields | {"epochs": 3})
    last = next(n for n, p in enumerate(pieces) if p.about["epoch"] == 2) - 1  # the last batch of the first epoch
    for n in (0, last - 1, last, last + 1, 2 * last, len(pieces) - 2, len(pieces) - 1):
        resume = pieces[n].about["resume"]
        rest = serve(client, resume)
        epochs = {p.about["epoch"] for p in rest}
        assert epochs == {p.about["epoch"] for p in pieces[n + 1 :]}
        assert resume.get("epochs", 1) == max(len(epochs), 1)
        for epoch in (1, 2, 3):
            both = [p for p in pieces[: n + 1] + rest if p.about["epoch"] == epoch]
            assert Counter(positions(both)) == Counter(range(PHOTOS)), f"epoch {epoch} after batch {n}"


def test_workers_keep_to_their_steps_in_every_epoch(client: fl.FlightClient) -> None:
    """Worker w of N resumes at any step of its own, and begins the next epoch at w."""
    (fields,) = tickets(client, order="free")
    workers = 3
    parts = [{"step": 4, "stride": workers}, {"step": 2, "stride": workers}, {"step": 3, "stride": workers}]
    with ThreadPoolExecutor(workers) as pool:
        streams = list(pool.map(lambda part: serve(client, fields | part | {"epochs": 2}), parts))
    for part, pieces in zip(parts, streams, strict=True):
        assert {p.about["step"] % workers for p in pieces} == {part["step"] % workers}
        steps = {e: [p.about["step"] for p in pieces if p.about["epoch"] == e] for e in (1, 2)}
        assert steps[1][0] == part["step"]
        assert steps[2][0] == part["step"] % workers
    second = [p for pieces in streams for p in pieces if p.about["epoch"] == 2]
    assert Counter(positions(second)) == Counter(range(PHOTOS))


def test_epochs_without_shuffle_repeat_one_order(client: fl.FlightClient) -> None:
    (fields,) = tickets(client, shuffle={"seed": 0}, split="val")
    del fields["shuffle"]
    pieces = serve(client, fields | {"epochs": 3})
    assert {p.about["epoch"] for p in pieces} == {0}
    once = positions(serve(client, fields))
    assert positions(pieces) == once * 3
    rest = serve(client, pieces[len(pieces) // 2].about["resume"])
    assert positions(pieces[: len(pieces) // 2 + 1] + rest) == once * 3


# --- whatever is asked for -----------------------------------------------------------------------------------------


def some_ticket(rng: random.Random) -> dict[str, Any]:
    world = rng.choice([1, 1, 2, 3, 7])
    fields: dict[str, Any] = {
        "dataset": "photos",
        "columns": ["position", "image"],
        "split": "train",
        "batch": rng.choice([1, 5, 8, 16, 64, 400]),
        "order": rng.choice(["window:1", "window:2", "window", "free", "free"]),
        "remainder": rng.choice(["drop", "pad", "uneven"]),
        "world": {"size": world},
        "rank": rng.randrange(world),
        "step": 0,
        "shuffle": {"seed": rng.randrange(2**64), "epoch": rng.randrange(9)},
        "where": rng.choice(["label == 3", "label in [1, 2, 3]", "true"]),
    }
    if rng.random() < 0.4:
        fields["stride"] = rng.randrange(1, 5)
        fields["step"] = rng.randrange(fields["stride"])
    if rng.random() < 0.3:
        fields["batch_bytes"] = rng.choice([1, 100_000, 300_000])
    if rng.random() < 0.3:
        fields["stop"] = fields["step"] + rng.randrange(6)
    else:
        fields["epochs"] = rng.randrange(1, 4)
    return fields


@pytest.mark.slow
def test_any_order_serves_what_the_exact_one_does_however_often_it_breaks_off(client: fl.FlightClient) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)

    def counted(pieces: Iterable[Piece]) -> Counter[tuple[int, int]]:
        return Counter((p.about["epoch"], position) for p in pieces for position in positions([p]))

    for _ in range(60):
        fields = some_ticket(rng)
        print(json.dumps(fields))
        wanted = counted(serve(client, fields | {"order": "strict"}))
        served: list[Piece] = []
        resume = fields
        for _ in range(4):
            print("then", json.dumps(resume))
            pieces = serve(client, resume)
            assert counted(served + pieces) == wanted
            if not pieces:
                break
            served += pieces[: rng.randrange(len(pieces)) + 1]
            resume = served[-1].about["resume"]


# --- invalid requests and their errors ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"epochs": 0}, ["epochs", "0", "1 to 2147483647"]),
        ({"epochs": 2**31}, ["epochs", "2147483648"]),
        ({"epochs": "3"}, ["epochs", '"3"', "integer"]),
        ({"epochs": 3, "stop": 4}, ["epochs", "stop"]),
        ({"epochs": 2, "shuffle": {"seed": 1, "epoch": 2**64 - 1}}, ["epochs", "18446744073709551615"]),
        ({"served": "AQ=="}, ["served", "strict"]),
        ({"order": "free", "served": [1]}, ["served", "base64"]),
        ({"order": "free", "served": "AQ"}, ["served", "AQ", "multiple of 4"]),
        ({"order": "free", "served": "_w=="}, ["served", "_w==", "base64"]),
        ({"order": "free", "served": "AA=="}, ["served", "last bit"]),
        ({"order": "free", "served": ""}, ["served", "no bits"]),
        ({"order": "window", "served": "/" * 21848}, ["served", "16386 bytes", "16384"]),
        ({"order": "free", "step": 18, "served": "//8H"}, ["served", "end"]),
    ],
    ids=lambda v: "" if isinstance(v, list) else None,
)
def test_tickets_that_cannot_be_right(client: fl.FlightClient, fields: dict[str, Any], says: list[str]) -> None:
    with pytest.raises(pa.ArrowInvalid) as caught:
        serve(client, REQUEST | {"rank": 0, "step": 0} | fields)
    for part in says:
        assert part in str(caught.value)


def test_the_windows_of_running_streams_are_reported(client: fl.FlightClient) -> None:
    (fields,) = tickets(client, order="window:3", batch=2)
    reader = client.do_get(ticket(**fields | {"epochs": 1000}))  # more than any buffer on the way takes
    plan = json.loads(reader.read_chunk().app_metadata.to_pybytes())["plan"]
    (window,) = (w for w in stats(client)["engine"]["windows"] if w["job"] == plan)
    assert window["order"] == "window:3"
    assert window["dataset"] == "photos@1"
    assert window["epoch"] >= 1
    assert 0 < window["window_used"] <= window["window_limit"] + (16 << 20)
    assert stats(client)["engine"]["latency"]["p50_us"] >= 4000
    reader.cancel()
