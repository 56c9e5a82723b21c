"""Streams side by side: many at once, slow beside fast, vanished, cancelled, and none that reads a blob in vain."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from conftest import StartNode
from node import Node
from wire import PATIENCE, UNREAD, act, command, read, stats, stream, ticket, until


@pytest.mark.slow
def test_64_streams_at_once(node: Node) -> None:
    together = threading.Barrier(64, timeout=3 * PATIENCE)

    def one(number: int) -> Counter[Any]:
        with fl.connect(node.url) as own:
            request = {"dataset": "photos", "columns": ["id", "image"], "batch": 32, "shuffle": {"seed": number}}
            info = own.get_flight_info(command(**request))
            parts = stream(own, info.endpoints[0])
            first = next(parts)
            together.wait()  # so that all 64 are open
            return Counter(i for p in [first, *parts] for i in p.data["id"].to_pylist())

    with ThreadPoolExecutor(64) as pool:
        results = list(pool.map(one, range(64)))
    assert len(results[0]) == 300
    assert all(result == results[0] for result in results)
    assert set(results[0].values()) == {1}


def test_64_ranks_of_one_job_on_one_connection(client: fl.FlightClient) -> None:
    info = client.get_flight_info(
        command(dataset="photos", columns=["id", "image"], batch=128, world={"size": 64}, shuffle={"seed": 1})
    )
    with ThreadPoolExecutor(64) as pool:
        parts = pool.map(lambda e: client.do_get(e.ticket).read_all()["id"].to_pylist(), info.endpoints)
    served = Counter(i for ids in parts for i in ids)
    assert len(served) == 300
    assert set(served.values()) == {1}


def test_a_slow_reader_delays_no_other(start: StartNode) -> None:
    # Small enough a window that the stalled stream fills its share many times over.
    node = start("--window-memory", "8MiB")
    request = {"dataset": "photos", "columns": ["id", "image"], "batch": 16, "shuffle": {"seed": 1}}
    with fl.connect(node.url) as slow, fl.connect(node.url) as fast:
        stalled = stream(slow, ticket(**request, epochs=UNREAD))
        got = next(stalled).data["id"].to_pylist()
        # The fast reader ends twice over while the slow one is stalled.
        for _ in range(2):
            assert read(fast, **request).num_rows == 300
        live = [s for s in stats(fast)["streams"] if s["kind"] == "DoGet"]
        assert len(live) == 1
        assert live[0]["rows"] < UNREAD * 300
        assert stats(fast)["engine"]["window_used"] <= 16 << 20
        got += [i for p in stalled for i in p.data["id"].to_pylist()]
        assert set(Counter(got).values()) == {UNREAD}
        assert len(got) == UNREAD * 300


def test_a_vanished_client_frees_everything(start: StartNode) -> None:
    node = start()
    script = """
import sys
import pyarrow.flight as fl
client = fl.connect(sys.argv[1])
readers = [client.do_get(fl.Ticket(sys.argv[2])) for _ in range(8)]
for reader in readers:
    reader.read_chunk()
print("reading", flush=True)
sys.stdin.read()
"""
    request = ticket(dataset="photos", epochs=UNREAD).ticket
    with fl.connect(node.url) as watch:
        with subprocess.Popen(
            [sys.executable, "-c", script, node.url, request], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"reading\n"
            assert stats(watch)["engine"]["window_used"] > 0
            process.kill()
        until(lambda: stats(watch)["engine"]["live_streams"] == 0, "the end of the streams")
        until(lambda: stats(watch)["engine"]["window_used"] == 0, "the release of their windows")
        until(lambda: stats(watch)["streams"] == [], "the end of their calls")


def test_metadata_reads_touch_no_blob(start: StartNode) -> None:
    with fl.connect(start().url) as own:
        before = stats(own)
        table = read(own, dataset="photos", columns=["id", "label", "width", "file_name", "split", "position"])
        assert table.num_rows == 300
        read(own, dataset="photos", columns=["label"], where="width > 400 and label != 3", shuffle={"seed": 1})
        own.get_schema(fl.FlightDescriptor.for_path("photos"))
        own.get_flight_info(fl.FlightDescriptor.for_path("photos", "train"))
        list(own.list_flights())
        act(own, "describe", dataset="photos")
        after = stats(own)
        # Only the manifest's own blobs may have been read, and no photograph.
        chunks = act(own, "describe", dataset="photos")[0]["manifest"]["chunks"]
        assert before["engine"]["reads"] == 0
        assert after["engine"]["reads"] <= chunks
        assert after["store"]["blob_reads"] - before["store"]["blob_reads"] <= chunks
        # The counter does count: one image read is one more.
        read(own, dataset="photos", columns=["image"], selection={"positions": [7]})
        assert stats(own)["engine"]["reads"] == after["engine"]["reads"] + 1


def test_cancel_ends_the_running_streams_of_a_plan(start: StartNode) -> None:
    node = start("--window-memory", "8MiB")
    with fl.connect(node.url) as own:
        other = stream(own, ticket(dataset="photos", batch=4, epochs=UNREAD))
        parts = stream(own, ticket(dataset="photos", batch=4, shuffle={"seed": 77}, epochs=UNREAD))
        plan = next(parts).about["plan"]
        got = next(other).data.num_rows  # less than a batch, if the first stream has much of the memory
        assert act(own, "cancel", plan=plan) == [{"plan": plan, "cancelled": 1}]
        with pytest.raises(fl.FlightCancelledError):
            list(parts)
        assert got + sum(p.data.num_rows for p in other) == UNREAD * 300
        assert act(own, "cancel", plan=plan) == [{"plan": plan, "cancelled": 0}]


def test_a_client_may_cancel_its_own_stream(start: StartNode) -> None:
    with fl.connect(start().url) as own:
        reader = own.do_get(ticket(dataset="photos", epochs=UNREAD))
        reader.read_chunk()
        reader.cancel()
        with pytest.raises(fl.FlightCancelledError):
            list(reader)
        until(lambda: stats(own)["engine"]["live_streams"] == 0, "the end of the stream")


def test_dropping_a_dataset_does_not_stop_its_readers(start: StartNode) -> None:
    node = start("--window-memory", "8MiB")
    with fl.connect(node.url) as own:
        expected = read(own, dataset="photos", columns=["image"])["image"]
        parts = stream(own, ticket(dataset="photos", columns=["image"], batch=4, epochs=UNREAD))
        batches = [next(parts).data]
        assert act(own, "drop", dataset="photos")[0]["dropped"] == [1]
        report = act(own, "gc")[0]
        assert report["dead_blobs"] == 0  # the stream still needs them
        with pytest.raises(KeyError):
            own.get_flight_info(fl.FlightDescriptor.for_path("photos"))
        batches += [p.data for p in parts]
        served = pa.Table.from_batches(batches)["image"]
        assert all(served.slice(n * 300, 300).equals(expected) for n in range(UNREAD))
        until(lambda: stats(own)["engine"]["live_streams"] == 0, "the end of the stream")
        report = act(own, "gc")[0]
        assert report["live_blobs"] == 0
        assert report["dead_blobs"] >= 290
        assert report["freed_bytes"] > 0.9 * report["dead_bytes"]
