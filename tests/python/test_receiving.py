"""Streams that the package receives by connections of its own: what comes is what pyarrow brings, where it stays."""

from __future__ import annotations

import gc
import hashlib
import json
import random
import select
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import bowstring
import numpy as np
import pyarrow as pa
import pyarrow.flight as fl
import pytest
from bowstring._transport import buffers, calls, dial, http2, maintenance
from bowstring.errors import translate
from conftest import StartNode
from node import Node
from wire import until

from .test_client_auth import certificate

EPOCHS = 3
SECONDS = 180  # for what another thread does


def by_pyarrow(monkeypatch: pytest.MonkeyPatch, read: Callable[[], Any]) -> Any:
    """The batches of a request over pyarrow's own transport."""

    def get(connections: calls.Connections, ticket: bytes, headers: list[tuple[bytes, bytes]]) -> Any:
        with translate():
            return fl.connect(connections.uri).do_get(fl.Ticket(ticket), fl.FlightCallOptions(headers=headers))

    with monkeypatch.context() as here:
        here.setattr(calls.Connections, "get", get)
        return read()


@pytest.fixture(autouse=True)
def over_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOWSTRING_LOCAL", "off")


@pytest.mark.parametrize(
    "request_of",
    [
        lambda d: d.columns(["id", "label", "image"]).shuffle(5),
        lambda d: d.columns(["position", "image"]).options(order="free"),
        lambda d: d.columns(["position", "label"]),  # no blobs
        lambda d: d.where("width < 0"),  # no rows
    ],
    ids=["all", "out of order", "metadata", "no rows"],
)
def test_what_comes_is_what_pyarrow_brings(
    node: Node, monkeypatch: pytest.MonkeyPatch, request_of: Callable[[bowstring.Dataset], bowstring.Dataset]
) -> None:
    def read() -> list[Any]:
        dataset = request_of(bowstring.connect(node.url).dataset("photos", split="train"))
        found: list[Any] = []
        with dataset.batches(7, epochs=EPOCHS) as batches:
            for batch in batches:
                batch.validate(full=True)
                assert batches.place is not None
                found.append(({n: v for n, v in batches.place.items() if n != "wait"}, batch.to_pylist()))
        if dataset.request().get("order") == "free":
            return sorted((row["position"], row["image"]) for _, rows in found for row in rows)
        return found

    assert read() == by_pyarrow(monkeypatch, read)


@pytest.mark.parametrize(
    "ticket",
    [
        {"dataset": "nothing"},
        {"dataset": "photos", "columns": ["nothing"]},
        {"dataset": "photos", "batch": -1},
        {"dataset": "photos", "where": "größe > 1"},
        {"dataset": "photos", "step": 10**9},
        {"dataset": "photos", "snapshot": 77},
    ],
    ids=str,
)
def test_errors_are_the_same(node: Node, monkeypatch: pytest.MonkeyPatch, ticket: dict[str, Any]) -> None:
    def error() -> tuple[type, str]:
        with pytest.raises(bowstring.BowstringError) as caught:
            bowstring.connect(node.url).stream(ticket)
        return caught.type, str(caught.value)

    assert error() == by_pyarrow(monkeypatch, error)


def test_a_ticket_larger_than_a_window(node: Node) -> None:
    """Which the server grants bit by bit: 65,535 bytes at first."""
    client = bowstring.connect(node.url)
    positions = list(range(300)) * 200
    with pytest.raises(bowstring.InvalidRequest):  # it has been read to its end, and has an unknown field there
        client.stream({"dataset": "photos", "positions": positions, "zzz": 1})


def test_connections_are_used_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    connect = socket.create_connection

    def counted(*given: Any) -> socket.socket:
        made.append(given)
        return connect(*given)

    monkeypatch.setattr(socket, "create_connection", counted)
    with bowstring.connect(node.url) as client:
        dataset = client.dataset("photos").columns(["position"])
        for _ in range(5):
            assert sum(batch.num_rows for batch in dataset.batches(7)) == 300
        assert len(made) == 1  # all calls go by one connection, as one ends before the next begins
        with pytest.raises(bowstring.NotFound):
            client.stream({"dataset": "nothing"})
        one, other = dataset.batches(7), dataset.batches(7)
        next(one), next(other)  # at once: each has its own
        assert len(made) == 2
        one.close()  # in the middle: its connection is of no more use
        assert sum(batch.num_rows for batch in other) == 293
        assert sum(batch.num_rows for batch in dataset.batches(7)) == 300
        assert len(made) == 2


def test_a_server_that_was_started_again(start: StartNode) -> None:
    """The kept connection is broken, and a caller without another attempt gets no error."""
    node = start()
    client = bowstring.connect(node.url, retries=0)
    ticket = client.dataset("photos").columns(["position"]).ticket(batch=7)
    assert len(list(bowstring.stream.Batches(client, ticket))) == 43
    port = node.port
    node.kill()
    node.start(f"127.0.0.1:{port}")
    assert len(list(bowstring.stream.Batches(client, ticket))) == 43


def test_no_server_listens() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        uri = f"grpc://127.0.0.1:{probe.getsockname()[1]}"
        with pytest.raises(bowstring.Unavailable, match=f"^{uri} cannot be reached: Connection refused"):
            bowstring.connect(uri).stream({"dataset": "photos"})


def digest(values: Any) -> str:
    return hashlib.sha256(b"".join(values)).hexdigest()


def test_memory_is_not_used_again_while_anything_refers_to_it(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "SMALL", 1)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    dataset = bowstring.connect(node.url).dataset("photos").columns(["image"]).shuffle(5)
    kept: list[tuple[Any, str]] = []
    for batch in dataset.batches(13, epochs=5):
        images = batch["image"]
        match rng.randrange(5):
            case 0:
                kept.append((batch, digest(images.to_pylist())))
            case 1:
                part = images.slice(3, 2)
                kept.append((pa.record_batch([part], ["image"]), digest(part.to_pylist())))
            case 2:
                buffer = images.buffers()[2]
                kept.append((np.frombuffer(buffer, np.uint8), hashlib.sha256(buffer).hexdigest()))
            case 3 if kept:
                kept.pop(rng.randrange(len(kept)))
        del batch, images
    for thing, expected in kept:
        found = digest(thing["image"].to_pylist()) if isinstance(thing, pa.RecordBatch) else hashlib.sha256(thing)
        assert (found if isinstance(found, str) else found.hexdigest()) == expected


def test_memory_is_used_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setattr(buffers, "SMALL", 1)
    monkeypatch.setattr(maintenance, "LULL", 3600.0)  # no thread reads further while this one waits for a CPU

    class Counted(buffers._Private):
        def __init__(self, size: int) -> None:
            made.append(size)
            super().__init__(size)

    monkeypatch.setattr(buffers, "_Private", Counted)
    dataset = bowstring.connect(node.url).dataset("photos").columns(["image"])
    batches = 0
    for _ in dataset.batches(13, epochs=10):
        batches += 1
    # A new one only where a batch is larger than all before, or the one before is still referred to.
    assert batches == 240
    assert len(made) < 40


def silent(link: http2.Link) -> bool:
    """Whether nothing comes at the moment."""
    with link.lock:
        return not link.advance(wait=False)


def test_prefetch_during_a_pause(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """While no thread reads, the client receives one window, and no more; pings are answered. Then it goes on."""
    monkeypatch.setattr(maintenance, "LULL", 0.01)
    monkeypatch.setattr(http2, "_RECEIVE_WINDOW", 1 << 20)
    dataset = bowstring.connect(node.url).dataset("photos").columns(["position", "image"])
    with dataset.batches(4, epochs=20) as batches:
        rows = [next(batches)["position"].to_pylist()]
        link, ready = batches._reader._call._link, batches._reader._call._taken.ready
        until(lambda: link._taken > 900_000, "prefetching")
        assert ready
        until(lambda: silent(link), "the server's stop")
        assert link._taken <= 1 << 20
        rows += [batch["position"].to_pylist() for batch in batches]
    assert [position for batch in rows for position in batch] == list(range(300)) * 20


@pytest.mark.parametrize("error", [IndexError, MemoryError, bowstring.Unavailable])
def test_the_thread_goes_on_whatever_a_connection_does(error: type[Exception]) -> None:
    class Broken:
        lock = threading.Lock()
        served = -maintenance.LULL
        settled = False

        def catch_up(self) -> None:
            raise error("its fault")

        def settle(self) -> None:
            self.settled = True

        def drop(self) -> None:
            raise AssertionError("no process has forked")

    broken = Broken()
    maintenance._serve(broken)
    assert broken.settled
    assert not broken.lock.locked()


def test_the_thread_ends_with_the_connections(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "LULL", 0.01)
    monkeypatch.setattr(maintenance, "_maintenance", maintenance._Maintenance())
    before = set(threading.enumerate())
    with bowstring.connect(node.url) as client:
        assert sum(batch.num_rows for batch in client.dataset("photos").batches(300)) == 300
        threads = [t for t in set(threading.enumerate()) - before if t.name == "bowstring keeps"]
        assert len(threads) == 1
    gc.collect()
    until(lambda: not threads[0].is_alive(), "the end of the thread")


@pytest.mark.parametrize(
    ("host", "environment", "way"),
    [
        ("192.0.2.1", {}, None),
        ("192.0.2.1", {"https_proxy": "http://proxy:1"}, "proxy:1"),
        ("192.0.2.1", {"GRPC_PROXY": "proxy:1"}, "proxy:1"),
        ("192.0.2.1", {"https_proxy": "http://proxy:1", "no_proxy": "192.0.2.1"}, None),
        ("127.0.0.1", {"https_proxy": "http://proxy:1"}, None),
    ],
    ids=str,
)
def test_which_proxy_is_asked(
    monkeypatch: pytest.MonkeyPatch, host: str, environment: dict[str, str], way: str | None
) -> None:
    for name in ("grpc_proxy", "http_proxy", "https_proxy", "no_proxy"):
        for spelled in (name, name.upper()):
            monkeypatch.delenv(spelled, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = dial.proxy(urlsplit(f"grpc://{host}:1"))
    assert (found and found.netloc) == way


@pytest.mark.parametrize("allows", [True, False])
def test_a_proxy(node: Node, monkeypatch: pytest.MonkeyPatch, *, allows: bool) -> None:
    """A proxy is asked for the server by name, with its password, and carries all calls; or says why it does not."""
    heard: list[bytes] = []

    def carries(listener: socket.socket) -> None:
        came, _ = listener.accept()
        with came:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += came.recv(1)
            heard.append(head)
            if not allows:
                came.sendall(b"HTTP/1.1 403 Not for you\r\n\r\n")
                return
            with socket.create_connection(("127.0.0.1", node.port)) as server:
                came.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                while ready := select.select([came, server], [], [], SECONDS)[0]:
                    for one in ready:
                        given = one.recv(1 << 16)
                        if not given:
                            return
                        (server if one is came else came).sendall(given)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("https_proxy", f"http://me:secret@127.0.0.1:{listener.getsockname()[1]}")
        monkeypatch.setattr(dial, "on_this_machine", lambda _: False)
        thread = threading.Thread(target=carries, args=(listener,), daemon=True)
        thread.start()
        with bowstring.connect(node.url, retries=0) as client:
            if allows:
                assert client.dataset("photos").columns(["position"]).schema.names == ["position"]
            else:
                with pytest.raises(bowstring.Unavailable, match=r"refused to connect: .* 403 Not for you"):
                    client.stats()
        thread.join(SECONDS)
        assert not thread.is_alive()
    asked = f"CONNECT 127.0.0.1:{node.port} HTTP/1.1\r\n".encode()
    assert heard[0].startswith(asked)
    assert b"\r\nProxy-Authorization: Basic bWU6c2VjcmV0\r\n" in heard[0]


class Foreign(fl.FlightServerBase):  # type: ignore[misc]
    """Another implementation of the protocol, in C++, whose streams have all that Arrow has."""

    table = pa.table(
        {
            "code": pa.array(["a", "b", None, "a"] * 500).dictionary_encode(),
            "nested": pa.array([[{"x": i}] for i in range(2000)]),
            "blob": pa.array([bytes([i % 251]) * (i % 977) for i in range(2000)], pa.large_binary()),
            "none": pa.nulls(2000),
        }
    )

    def do_get(self, _context: Any, ticket: fl.Ticket) -> fl.FlightDataStream:
        asked = json.loads(ticket.ticket)
        table = self.table.slice(0, asked["rows"])
        options = pa.ipc.IpcWriteOptions(compression=asked.get("compression"))
        batches = table.to_batches(max_chunksize=asked["chunk"]) or [pa.record_batch(table.schema.empty_table())]
        return fl.RecordBatchStream(pa.RecordBatchReader.from_batches(table.schema, batches), options=options)


@pytest.mark.parametrize("way", ["plain", "tls", "unix"])
def test_another_server(tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of Arrow's types, in messages small and large, with pieces of which none fits another."""
    monkeypatch.setattr(buffers, "SMALL", 1000)
    tls, options = None, {}
    location: Any = "grpc://127.0.0.1:0"
    if way == "tls":
        cert, key = certificate(tmp_path)
        options = {"tls_certificates": [(cert, key)]}
        location = "grpc+tls://127.0.0.1:0"
        tls = bowstring.Tls(root_certs=cert, server_name="data.example")
    elif way == "unix":
        location = fl.Location.for_grpc_unix(str(tmp_path / "socket"))
    with Foreign(location, **options) as server:
        uri = {"unix": f"grpc+unix://{tmp_path}/socket", "tls": f"grpc+tls://127.0.0.1:{server.port}"}.get(
            way, f"grpc://127.0.0.1:{server.port}"
        )
        connections = calls.Connections(uri, tls)
        for chunk in (1, 7, 100, 2000):
            for compression in (None, "zstd"):
                ticket = {"rows": 2000, "chunk": chunk, "compression": compression}
                reader = connections.get(json.dumps(ticket).encode(), [])
                found = []
                for _ in range(-(-2000 // chunk)):
                    came = reader.read_chunk()
                    assert not came.app_metadata
                    found.append(came.data)
                with pytest.raises(StopIteration):
                    reader.read_chunk()
                assert pa.Table.from_batches(found).equals(Foreign.table)
                del found, came
        connections.close()


def test_a_certificate_that_is_put_right(tmp_path: Path) -> None:
    """Certificates do not last for long, and processes do."""
    cert, key = certificate(tmp_path)
    with Foreign("grpc+tls://127.0.0.1:0", tls_certificates=[(cert, key)]) as server:
        trusted = tmp_path / "trusted.pem"
        trusted.write_bytes(certificate(tmp_path)[0])
        uri, ticket = f"grpc+tls://127.0.0.1:{server.port}", json.dumps({"rows": 10, "chunk": 10}).encode()
        connections = calls.Connections(uri, bowstring.Tls(root_certs=trusted, server_name="data.example"))
        with pytest.raises(bowstring.Unavailable, match="has a certificate that is not trusted"):
            connections.get(ticket, [])
        trusted.write_bytes(cert)
        reader = connections.get(ticket, [])
        assert reader.read_chunk().data.num_rows == 10
        reader.cancel()
        connections.close()


def test_a_certificate_that_python_does_not_know(tmp_path: Path) -> None:
    """The error says what would be right."""
    cert, key = certificate(tmp_path)
    with Foreign("grpc+tls://127.0.0.1:0", tls_certificates=[(cert, key)]) as server:
        client = bowstring.connect(f"grpc+tls://127.0.0.1:{server.port}", retries=0)
        with pytest.raises(bowstring.Unavailable, match=r"not trusted: .*Tls\(root_certs=...\) or SSL_CERT_FILE"):
            client.stream({"rows": 10, "chunk": 10})
        trusting = bowstring.connect(f"grpc+tls://127.0.0.1:{server.port}", tls=bowstring.Tls(verify=False), retries=0)
        opened = trusting.stream({"rows": 10, "chunk": 10})
        assert isinstance(opened.reader, calls.Reader)
        assert opened.reader.read_chunk().data.num_rows == 10
        opened.end()
