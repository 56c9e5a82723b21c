"""Clients and datasets: their requests, and their text."""

from __future__ import annotations

import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import bowstring
import numpy as np
import pyarrow as pa
import pyarrow.flight as fl
import pytest
from conftest import StartNode
from node import Node
from wire import command, until


def test_what_there_is(here: bowstring.Client, client: fl.FlightClient) -> None:
    (info,) = [d for d in here.datasets() if d.name == "photos"]
    assert (info.rows, info.splits, info.newest, info.snapshots) == (300, {"train": 270, "val": 30}, 1, [1])
    assert here.datasets("pho")[0] == info
    assert here.datasets("pha") == []

    photos = here.dataset("photos", split="train")
    assert (photos.name, photos.snapshot, photos.split, photos.client) == ("photos", 1, "train", here)
    flight = client.get_flight_info(command(dataset="photos", split="train"))
    assert (photos.num_rows, len(photos), photos.nbytes) == (270, 270, flight.total_bytes)
    assert photos.schema.equals(flight.schema, check_metadata=True)
    classes = photos.classes("label")
    assert classes is not None
    assert classes[:2] == ["astronaut", "brick"]
    assert photos.classes("width") is None
    assert photos.columns(["image"]).classes("label") == classes
    assert here.stats()["limits"]["exchange_depth"] == 4


def test_a_dataset_never_changes(here: bowstring.Client) -> None:
    photos = here.dataset("photos")
    before = photos.request()
    other = photos.where("width > 10").columns(["id"]).shuffle(3).options(order="free", batch_bytes=1000)
    assert photos.request() == before == {"dataset": "photos", "snapshot": 1}
    assert other.request(batch=8, world_size=2, epoch=5) == {
        "dataset": "photos",
        "snapshot": 1,
        "where": "width > 10",
        "columns": ["id"],
        "shuffle": {"seed": 3, "epoch": 5},
        "batch": 8,
        "world": {"size": 2},
        "order": "free",
        "batch_bytes": 1000,
    }
    assert photos == here.dataset("photos")
    assert other != photos
    assert len({photos, here.dataset("photos"), other}) == 2
    assert repr(other).startswith('<bowstring.Dataset photos@1; where "width > 10"; columns id; shuffled by 3')


def test_conditions_are_joined(here: bowstring.Client) -> None:
    photos = here.dataset("photos")
    widths = photos.columns(["width", "label"]).to_arrow()
    rows = widths.to_pylist()
    both = photos.where("width < 400 or width > 700").where("label < 5 // the first half")
    assert both.num_rows == sum((r["width"] < 400 or r["width"] > 700) and r["label"] < 5 for r in rows)
    assert both.where("true").num_rows == both.num_rows
    with pytest.raises(bowstring.InvalidRequest):  # wrong by itself, though not in parentheses
        photos.where("width > 0").where("label < 5) or (label > 5")
    with pytest.raises(TypeError):
        photos.where(5)  # type: ignore[arg-type]


def test_a_ticket_is_what_the_server_would_give(here: bowstring.Client) -> None:
    photos = here.dataset("photos", split="train").where("label > 2").shuffle(2**64 - 1)
    plan = photos.plan(batch=32, world_size=3, epoch=4)
    assert sum(rank.rows for rank in plan.ranks) == plan.rows == photos.num_rows
    assert plan.bytes == photos.nbytes
    for rank in plan.ranks:
        by_hand = photos.ticket(batch=32, rank=rank.rank, world_size=3, epoch=4)
        assert by_hand == rank.ticket
        with photos.batches(32, rank=rank.rank, world_size=3, epoch=4) as batches:
            assert sum(b.num_rows for b in batches) == rank.rows
        assert batches.place is not None
        assert batches.place["plan"] == plan.id
        assert rank.expires is not None
    drop = photos.options(remainder="drop").plan(batch=32, world_size=3)
    assert drop.rows + drop.dropped == photos.num_rows
    assert photos.options(remainder="drop").num_rows == photos.num_rows  # how rows are served is no condition


def test_batches_of_like_length(here: bowstring.Client) -> None:
    photos = here.dataset("photos").columns(["position", "image.size"]).shuffle(3)
    by_size = photos.options(bucket_by_length="image")
    assert by_size.request()["bucket_by_length"] == {"column": "image"}
    assert photos.options(bucket_by_length={"column": "width", "window": 4}).num_rows == 300

    def padding(dataset: bowstring.Dataset) -> tuple[list[int], int]:
        batches = [batch for rank in range(3) for batch in dataset.batches(30, rank=rank, world_size=3, epoch=2)]
        sizes = [[size or 0 for size in batch["image.size"].to_pylist()] for batch in batches]
        positions = [p for batch in batches for p in batch["position"].to_pylist()]
        return positions, sum(max(batch) * len(batch) - sum(batch) for batch in sizes)

    positions, wasted = padding(by_size)
    assert sorted(positions) == list(range(300))
    assert wasted < padding(photos)[1] / 2
    balanced, _ = padding(photos.options(bucket_by_length={"balance": {"cost": "width * height"}}))
    assert sorted(balanced) == list(range(300))
    for wrong, text in (
        ({"bucket_by_length": {"balance": {"cost": "wide"}}}, "bucket_by_length.balance.cost"),
        ({"bucket_by_length": "file_name"}, "bucket_by_length.column"),
        ({"bucket_by_length": "image", "order": "free"}, "order"),
    ):
        with pytest.raises(bowstring.InvalidRequest, match=text):
            photos.options(**wrong)


def test_reads_agree(here: bowstring.Client, client: fl.FlightClient) -> None:
    photos = here.dataset("photos", split="val").columns(["position", "label", "image"])
    info = client.get_flight_info(command(dataset="photos", split="val", columns=["position", "label", "image"]))
    expected = client.do_get(info.endpoints[0].ticket).read_all()
    assert photos.to_arrow().equals(expected)
    assert photos.reader().read_all().equals(expected)
    assert pa.table(photos).equals(expected)
    assert photos.positions().tolist() == expected["position"].to_pylist()
    import polars as pl

    assert pl.DataFrame(photos).shape == (30, 3)


def test_duckdb_reads(here: bowstring.Client) -> None:
    duckdb = pytest.importorskip("duckdb")
    photos = here.dataset("photos", split="val").columns(["position", "label", "image"])
    rows = photos.reader()  # noqa: F841 - DuckDB finds it by its name
    found = duckdb.sql("select count(*), max(position) from rows")
    assert found is not None
    assert found.fetchall() == [(30, 299)]


def test_take(here: bowstring.Client) -> None:
    photos = here.dataset("photos").columns(["position", "id", "label"])
    everything = photos.to_arrow()
    rng = np.random.default_rng(5)
    wanted = rng.integers(0, 300, 500)
    assert photos.take(wanted).equals(everything.take(pa.array(wanted)).combine_chunks())
    ids = everything["id"].to_pylist()
    for given in ([ids[7], ids[3]], [str(ids[7]), str(ids[3])], [ids[7].bytes, ids[3].bytes]):
        assert photos.take(given)["position"].to_pylist() == [7, 3]
    assert photos.take(everything["id"][5:7])["position"].to_pylist() == [5, 6]
    assert photos.take([]).num_rows == 0
    assert photos.take([1], columns=["label"]).column_names == ["label"]
    with photos.exchange() as exchange:
        assert exchange.take([4, 4])["position"].to_pylist() == [4, 4]
        with pytest.raises(bowstring.InvalidRequest, match="got 300"):
            exchange.take([300])
        assert exchange.take(ids[:2])["position"].to_pylist() == [0, 1]  # after an error, and by another column
        assert exchange.take(pa.array([9]))["position"].to_pylist() == [9]
    # A take that is cut into parts is one table.
    parts = here.dataset("photos").options(batch_bytes=1).columns(["position", "image"]).take(range(50))
    assert parts["position"].to_pylist() == list(range(50))


def test_take_from_many_threads(here: bowstring.Client) -> None:
    photos = here.dataset("photos").columns(["position"])
    with photos.exchange() as exchange, ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: exchange.take([n, n + 1])["position"].to_pylist(), range(200)))
    assert found == [[n, n + 1] for n in range(200)]


def test_take_after_a_restart(start: StartNode) -> None:
    node = start()
    photos = bowstring.connect(node.url).dataset("photos").columns(["position"])
    with photos.exchange() as exchange:
        assert exchange.take([1])["position"].to_pylist() == [1]
        port = node.port
        node.kill()
        node.start(f"127.0.0.1:{port}")
        assert exchange.take([2])["position"].to_pylist() == [2]


def test_a_client_closes_and_opens(here: bowstring.Client) -> None:
    with here as client:
        client.datasets()
    assert here.datasets()  # connects again
    assert pickle.loads(pickle.dumps(here)).datasets() == here.datasets()


def test_one_client_for_many_threads(here: bowstring.Client) -> None:
    with ThreadPoolExecutor(16) as pool:
        flights = list(pool.map(lambda _: (here.datasets(), here.flight())[1], range(64)))
    assert len({id(f) for f in flights}) == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"uri": "http://localhost:1"}, "http://localhost:1"),
        ({"uri": "grpc://"}, "grpc://"),
        ({"uri": "localhost:1", "timeout": 0}, "timeout"),
        ({"uri": "localhost:1", "retries": -1}, "retries"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        bowstring.connect(**arguments)


def test_warm(imported: Path, lab: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "store"
    shutil.copytree(imported, store)
    options = ["--rtt=1ms", f"--spill={tmp_path / 'spill'}", "--spill-bytes=200MB", "--spill-min-bytes=200MB"]
    with Node(lab, store, *options, log=tmp_path / "log") as far:
        client = bowstring.connect(far.url)
        photos = client.dataset("photos", split="train").shuffle(2)
        result = client.warm(photos, epoch=1)
        assert (result.rows, result.seen, result.there + result.stored, result.failed) == (270, 270, 270, 0)
        assert result.bytes == photos.columns(["image"]).nbytes
        assert "warm photos" in capfd.readouterr().err
        until(lambda: client.warm(photos, epoch=1, progress=False).there == 270, "storing what was brought")
        assert capfd.readouterr().err == ""
        assert dict(photos.explain().lines)["spill"].startswith("270 blobs, 26")


def test_explain(imported: Path, binary: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(imported, store)
    rates = {"store": {"latency_ms": 5, "bytes_per_s": 1_000_000}, "uncertainty": {}}
    with Node(binary, store, log=tmp_path / "log") as node:
        client = bowstring.connect(node.url)
        photos = client.dataset("photos", split="train").columns(["image"]).shuffle(2)
        for _ in photos.columns(["image"]).batches(16):  # so that reads of the store have shown how long one takes
            pass
        with pytest.raises(bowstring.NotFound, match="this server was not calibrated"):
            client.explain(photos)
        said = client.explain(photos, batch=16, world_size=2, epochs=3, pace=0.01, cache_bytes=0, nodes=2, rates=rates)
        assert said.limit == "link"
        assert said.because == "store.bytes_per_s"
        assert said.unknown == ("node", "network")
        assert "not measured, and taken to limit nothing: node, network" in str(said)
        assert said.running is None
        assert said.answer["conditions"]["rows"] == 270
        assert said.first_batch_s > 0.005
        assert "limited by the link" in str(said)
        client.action("calibrate", rates={"store": rates["store"]})
        with photos.batches(16, epoch=0, epochs=100) as batches:
            next(batches)
            running = client.explain(photos, batch=16, look=0).running
            assert running is not None
            assert running["streams"] == 1
        with pytest.raises(bowstring.InvalidRequest, match="look_ms"):
            client.explain(photos, look=60)


def test_stats_count_streams(here: bowstring.Client) -> None:
    with here.dataset("photos").batches(1, epochs=1000) as batches:
        next(batches)
        assert batches.place is not None
        plan = batches.place["plan"]

        def running() -> bool:
            return any(s.get("plan") == plan for s in here.stats()["streams"])

        assert running()
    until(lambda: not running(), "the end of the stream")
