"""Clients and datasets: what they are, that they survive pickling and forks, and what they ask for."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
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

SECONDS = 30  # for a child process


@pytest.fixture
def here(node: Node) -> bowstring.Client:
    return bowstring.connect(node.url)


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
    for wrong, text in (
        ({"bucket_by_length": "file_name"}, "bucket_by_length.column"),
        ({"bucket_by_length": "image", "order": "free"}, "order"),
    ):
        with pytest.raises(bowstring.InvalidRequest, match=text):
            photos.options(**wrong)  # type: ignore[arg-type]


def test_reads_agree(here: bowstring.Client, client: fl.FlightClient) -> None:
    photos = here.dataset("photos", split="val").columns(["position", "label", "image"])
    info = client.get_flight_info(command(dataset="photos", split="val", columns=["position", "label", "image"]))
    expected = client.do_get(info.endpoints[0].ticket).read_all()
    assert photos.to_arrow().equals(expected)
    assert photos.reader().read_all().equals(expected)
    assert pa.table(photos).equals(expected)
    assert photos.positions().tolist() == expected["position"].to_pylist()
    import duckdb
    import polars as pl

    assert pl.DataFrame(photos).shape == (30, 3)
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


def test_pickles_are_small_and_read_the_same(here: bowstring.Client) -> None:
    photos = here.dataset("photos", split="train").where("width > 100").shuffle(1).select(range(0, 300, 3))
    assert photos.num_rows
    _ = photos.schema
    data = pickle.dumps(photos)
    assert len(data) < 2500
    copy = pickle.loads(data)
    assert copy == photos
    assert copy.columns(["id"]).to_arrow().equals(photos.columns(["id"]).to_arrow())
    assert len(pickle.dumps(photos.select(np.arange(0, 300)))) < 2500


def child(dataset: bowstring.Dataset, results: Any) -> None:
    results.put((os.getpid(), dataset.to_arrow().num_rows, dataset.take([1, 2]).num_rows))


@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
def test_in_another_process(here: bowstring.Client, how: Any) -> None:
    """The client, a stream and an exchange are in use in the parent; both go on."""
    photos = here.dataset("photos", split="train").columns(["position", "image"])
    batches = photos.batches(10)
    seen = next(batches)["position"].to_pylist()
    with photos.exchange() as exchange:
        assert exchange.take([5]).num_rows == 1
        context: Any = multiprocessing.get_context(how)
        results = context.Queue()
        children = [context.Process(target=child, args=(photos, results), daemon=True) for _ in range(2)]
        for c in children:
            c.start()
        found = [results.get(timeout=SECONDS) for _ in children]
        assert {(rows, taken) for _, rows, taken in found} == {(270, 2)}
        assert len({pid for pid, *_ in found} | {os.getpid()}) == 3
        for c in children:
            c.join(SECONDS)
            assert c.exitcode == 0
        assert exchange.take([6]).num_rows == 1
    for batch in batches:
        seen += batch["position"].to_pylist()
    assert seen == list(range(270))


def test_forks_while_threads_read(here: bowstring.Client) -> None:
    """Each thread gets every row once, however often the process forks meanwhile."""
    photos = here.dataset("photos").columns(["position"]).shuffle(3)
    found: list[list[int]] = []

    def read(seed: int) -> None:
        rows: list[int] = []
        for batch in photos.shuffle(seed).batches(2, epochs=4):
            rows += batch["position"].to_pylist()
        found.append(rows)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for t in threads:
        t.start()
    for _ in range(10):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                status = 0 if photos.to_arrow().num_rows == 300 else 2
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
    for t in threads:
        t.join(SECONDS)
    assert [sorted(rows) for rows in found] == [sorted(list(range(300)) * 4)] * 3


def test_a_fork_during_an_upload_says_so(here: bowstring.Client) -> None:
    script = """
import bowstring, os, pyarrow as pa, sys
client = bowstring.connect(sys.argv[1])
def rows():
    yield pa.record_batch({"a": [1]})
    pid = os.fork()
    if pid == 0:
        try:
            client.datasets()
        except bowstring.BowstringError as error:
            os._exit(7 if "upload" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    yield pa.record_batch({"a": [2]})
print(client.ingest("forked", rows(), progress=False).rows)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, here.uri], check=False, capture_output=True, text=True, timeout=SECONDS
    )
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
    here.drop("forked")


@pytest.mark.slow
def test_a_fork_beside_a_client_that_is_not_the_packages(here: bowstring.Client) -> None:
    """The child works, or it says what is wrong; it does not wait for ever."""
    script = """
import bowstring, os, pyarrow.flight as fl, sys
client = bowstring.connect(sys.argv[1])
client.datasets()
own = fl.connect(sys.argv[1])
list(own.list_actions())
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        try:
            client.datasets()
        except bowstring.BowstringError as error:
            os._exit(7 if "FlightClient" in str(error) else 8)
        os._exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    client.datasets()
"""
    done = subprocess.run(
        [sys.executable, "-c", script, here.uri], check=False, capture_output=True, text=True, timeout=SECONDS
    )
    assert (done.returncode, done.stdout) == (0, "7\n7\n"), done.stderr


@pytest.mark.slow
def test_many_forks(here: bowstring.Client) -> None:
    """The last thread of gRPC goes some time after the others."""
    script = """
import bowstring, os, sys
photos = bowstring.connect(sys.argv[1]).dataset("photos").columns(["position"])
for _ in range(60):
    assert photos.to_arrow().num_rows == 300
    pid = os.fork()
    if pid == 0:
        os._exit(0 if photos.to_arrow().num_rows == 300 else 1)
    assert os.waitpid(pid, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", script, here.uri], check=True, timeout=2 * SECONDS)


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


class Guard(fl.ServerMiddlewareFactory):  # type: ignore[misc]
    """Lets only calls with the token in."""

    def start_call(self, _info: fl.CallInfo, headers: dict[str, list[str]]) -> None:
        if headers.get("authorization") != ["Bearer secret"]:
            raise fl.FlightUnauthenticatedError("the token is not known")


class Fake(fl.FlightServerBase):  # type: ignore[misc]
    """A server with a list of datasets and no more."""

    def do_action(self, _context: Any, action: fl.Action) -> Iterator[fl.Result]:
        if action.type == "drop":
            raise fl.FlightUnauthorizedError("the token is for reading")
        yield fl.Result(json.dumps({"dataset": "fake", "rows": 1}).encode())


def certificate(folder: Path) -> tuple[bytes, bytes]:
    """A certificate for `data.example`, signed by itself, and its key."""
    files = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=data.example"]
    command += ["-addext", "subjectAltName=DNS:data.example", "-out", str(files[0]), "-keyout", str(files[1])]
    subprocess.run(command, check=True, capture_output=True)
    return files[0].read_bytes(), files[1].read_bytes()


def test_token() -> None:
    with Fake("grpc://127.0.0.1:0", middleware={"guard": Guard()}) as server:
        uri = f"grpc://127.0.0.1:{server.port}"
        client = bowstring.connect(uri, token="secret")
        assert [d.name for d in client.datasets()] == ["fake"]
        assert [d.name for d in pickle.loads(pickle.dumps(client)).datasets()] == ["fake"]
        assert "secret" not in repr(client)
        with pytest.raises(bowstring.PermissionDenied, match=r"^the token is for reading"):
            client.drop("fake")
        for token in (None, "wrong"):
            with pytest.raises(bowstring.Unauthenticated, match=r"^the token is not known"):
                bowstring.connect(uri, token=token).datasets()
    with pytest.warns(UserWarning, match="unencrypted"):
        bowstring.connect("grpc://data.example:1", token="secret")


def test_tls(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    guard = {"guard": Guard()}
    with Fake("grpc+tls://127.0.0.1:0", tls_certificates=[(cert, key)], middleware=guard) as server:
        address = f"127.0.0.1:{server.port}"
        for trust in (cert, tmp_path / "cert.pem", str(tmp_path / "cert.pem")):
            tls = bowstring.Tls(root_certs=trust, server_name="data.example")
            for uri in (f"grpc://{address}", f"grpc+tls://{address}"):
                client = bowstring.connect(uri, token="secret", tls=tls)
                assert client.uri == f"grpc+tls://{address}"
                assert [d.name for d in client.datasets()] == ["fake"]
        unverified = bowstring.connect(f"grpc://{address}", token="secret", tls=bowstring.Tls(verify=False))
        assert [d.name for d in unverified.datasets()] == ["fake"]
        with pytest.raises(bowstring.Unavailable):  # nobody vouches for the certificate
            bowstring.connect(f"grpc+tls://{address}", token="secret").datasets()
        with pytest.raises(bowstring.Unavailable):  # it is another server's
            bowstring.connect(f"grpc+tls://{address}", tls=bowstring.Tls(root_certs=cert)).datasets()
    with pytest.raises(FileNotFoundError):
        bowstring.connect(f"grpc://{address}", tls=bowstring.Tls(root_certs="/nowhere.pem")).datasets()
    assert "KEY" not in repr(bowstring.Tls(key=key))


def test_mutual_tls(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    with Fake(
        "grpc+tls://127.0.0.1:0", tls_certificates=[(cert, key)], verify_client=True, root_certificates=cert
    ) as server:
        uri = f"grpc://127.0.0.1:{server.port}"
        tls = bowstring.Tls(root_certs=cert, server_name="data.example", cert=cert, key=key)
        assert [d.name for d in bowstring.connect(uri, tls=tls).datasets()] == ["fake"]
        with pytest.raises(bowstring.Unavailable):
            bowstring.connect(uri, tls=bowstring.Tls(root_certs=cert, server_name="data.example")).datasets()


def test_warm(imported: Path, binary: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "store"
    shutil.copytree(imported, store)
    options = ["--rtt=1ms", f"--spill={tmp_path / 'spill'}", "--spill-bytes=200MB", "--spill-min-bytes=200MB"]
    with Node(binary, store, *options, log=tmp_path / "log", serve="bench serve") as far:
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
        with pytest.raises(bowstring.NotFound, match="nothing is known"):
            client.explain(photos)
        said = client.explain(photos, batch=16, world_size=2, epochs=3, pace=0.01, cache_bytes=0, nodes=2, rates=rates)
        assert said.limit == "link"
        assert said.because == "store.bytes_per_s"
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
