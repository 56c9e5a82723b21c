"""Where a stream goes on: at addresses that the cluster is known by, and never where a text says."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import bowstring
import grpc
import pytest
from bowstring import _status
from bowstring._transport import origins
from bowstring.errors import by_number

KEPT = "secret"


def number(value: int) -> bytes:
    found = b""
    while value > 127:
        found += bytes([value & 127 | 128])
        value >>= 7
    return found + bytes([value])


def field(at: int, value: bytes) -> bytes:
    return number(at << 3 | 2) + number(len(value)) + value


def status(code: int, text: str, *details: bytes) -> bytes:
    """A google.rpc.Status."""
    return b"\x08" + number(code) + field(2, text.encode()) + b"".join(field(3, d) for d in details)


def moved(*uris: str, reason: bytes = b"MOVED", domain: bytes = b"bowstring") -> bytes:
    entry = field(1, b"locations") + field(2, " ".join(uris).encode())
    info = field(1, reason) + field(2, domain) + field(3, entry)
    return field(1, b"type.googleapis.com/google.rpc.ErrorInfo") + field(2, info)


def retry(seconds: int) -> bytes:
    delay = b"\x08" + number(seconds)
    return field(1, b"type.googleapis.com/google.rpc.RetryInfo") + field(2, field(1, delay))


class Node(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A server that ends each DoGet, and remembers who called."""

    def __init__(self) -> None:
        self.end: Callable[[Any], Any] = lambda c: c.abort(grpc.StatusCode.DATA_LOSS, "here")
        self.nodes: list[str] | None = None
        self.calls: list[tuple[str, dict[str, str]]] = []
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers((self,))
        self.uri = f"grpc://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def service(self, details: Any) -> Any:
        method = details.method.rsplit("/", 1)[1]
        headers = dict(details.invocation_metadata)

        def call(_: Any, context: Any) -> Any:
            self.calls.append((method, headers))
            if method != "DoGet":
                context.abort(grpc.StatusCode.NOT_FOUND, "no such call")
            if self.nodes is not None:
                context.send_initial_metadata([("bowstring-nodes", " ".join(self.nodes))])
            return self.end(context)

        if method in ("DoGet", "DoAction"):
            return grpc.unary_stream_rpc_method_handler(call)
        return grpc.unary_unary_rpc_method_handler(call)

    def ends(self, code: grpc.StatusCode, text: str, *details: bytes) -> None:
        raw = status(code.value[0], text, *details)

        def end(context: Any) -> None:
            trailers: list[tuple[str, str | bytes]] = [("grpc-status-details-bin", raw)]
            if ("bowstring-details", "1") in context.invocation_metadata():
                trailers += [("x-arrow-status", "5"), ("x-arrow-status-message-bin", text.encode())]
            context.set_trailing_metadata(trailers)
            context.abort(code, text)

        self.end = end

    def stop(self) -> None:
        self._server.stop(0).wait()


@pytest.fixture
def nodes() -> Iterator[tuple[Node, Node]]:
    """One that is called, and another one."""
    one, other = Node(), Node()
    yield one, other
    one.stop()
    other.stop()


def read(uri: str) -> bowstring.BowstringError:
    """The error that a stream ends with."""
    client = bowstring.connect(uri, token=KEPT, retries=0)
    with pytest.raises(bowstring.BowstringError) as caught:
        next(bowstring.Dataset(client, "x", 1, None, 9).batches(1))
    client.close()
    return caught.value


UNAVAILABLE, LIMIT = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED


def test_nothing_is_read_from_a_message(nodes: tuple[Node, Node]) -> None:
    """A name in a message can be anything: it sends no client anywhere, and has none wait."""
    one, other = nodes
    hostile = f'column "x (go on at {other.uri})" is gone (try again in 3600 s) Flight returned not found error, '
    hostile += f"with message: x; continue from where the stream ended, at {other.uri}"
    one.nodes = [other.uri]  # though its address is known
    one.end = lambda c: c.abort(UNAVAILABLE, hostile)
    error = read(one.uri)
    assert type(error) is bowstring.Unavailable
    assert error.elsewhere == []
    assert str(error) == hostile
    one.end = lambda c: c.abort(LIMIT, hostile)
    refused = read(one.uri)
    assert type(refused) is bowstring.LimitExceeded
    assert refused.retry_after is None
    assert other.calls == []


def test_details_say_when_to_try_again(nodes: tuple[Node, Node]) -> None:
    one, _ = nodes
    one.ends(LIMIT, "limit: (try again in 3600 s)", retry(2))
    error = read(one.uri)
    assert isinstance(error, bowstring.LimitExceeded)
    assert error.retry_after == 2
    assert str(error) == "limit: (try again in 3600 s)"


def test_a_stream_goes_on_where_the_cluster_is(nodes: tuple[Node, Node], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bowstring.connection")
    one, other = nodes
    one.ends(UNAVAILABLE, "this node leaves", moved(other.uri))
    one.nodes = ["grpc://127.0.0.1:1", other.uri]
    error = read(one.uri)
    assert (type(error), str(error)) == (bowstring.DataLoss, "here")
    (headers,) = (headers for method, headers in other.calls if method == "DoGet")
    assert headers["authorization"] == f"Bearer {KEPT}"
    moves = [record.getMessage() for record in caplog.records if "from now on" in record.getMessage()]
    assert moves == [f"{one.uri} leaves its cluster, and {other.uri} is called from now on"]
    assert KEPT not in caplog.text


def test_addresses_that_no_cluster_is_known_by_are_not_called(nodes: tuple[Node, Node]) -> None:
    one, other = nodes
    for known in (None, ["grpc://127.0.0.1:1"]):
        one.nodes = known
        for detail in (
            moved(other.uri),
            moved(f"{other.uri}/"),
            moved(other.uri, reason=b"X"),
            moved(other.uri, domain=b"x"),
        ):
            one.ends(UNAVAILABLE, "this node leaves", detail)
            error = read(one.uri)
            assert (type(error), str(error)) == (bowstring.Unavailable, "this node leaves")
    assert other.calls == []


def test_no_proxy_is_asked_for_a_server_of_this_machine(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token would leave the machine unencrypted."""
    one, _ = nodes
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        for name in ("grpc_proxy", "http_proxy", "https_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        for name in ("no_grpc_proxy", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        error = read(one.uri)
        assert (type(error), str(error)) == (bowstring.DataLoss, "here")
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):
            proxy.accept()


@pytest.mark.parametrize(
    ("uri", "left", "secret", "want"),
    [
        ("grpc+tls://b:1", "grpc+tls://a:1", True, True),
        ("grpc+tls://b:1", "grpc://a:1", True, True),
        ("grpc://b:1", "grpc+tls://a:1", True, False),
        ("grpc://b:1", "grpc+tls://a:1", False, False),
        ("grpc://127.0.0.1:1", "grpc+tls://a:1", True, False),
        ("grpc://b:1", "grpc://127.0.0.1:1", True, False),
        ("grpc://b:1", "grpc+unix:///s", True, False),
        ("grpc://b:1", "grpc://127.0.0.1:1", False, True),
        ("grpc://127.0.0.1:2", "grpc://127.0.0.1:1", True, True),
        ("grpc+unix:///tmp/s", "grpc://127.0.0.1:1", True, False),
        ("grpc+tls://user@b:1", "grpc+tls://a:1", True, False),
        ("grpc+tls://b", "grpc+tls://a:1", True, False),
        ("grpc+tls://b:x", "grpc+tls://a:1", True, False),
        ("http://b:1", "grpc://a:1", False, False),
        ("", "grpc://a:1", False, False),
    ],
)
def test_the_next_server_is_as_safe(uri: str, left: str, secret: bool, want: bool) -> None:
    assert origins.follows(uri, left, secret=secret) is want


def test_the_places_of_an_endpoint_are_as_safe() -> None:
    client = bowstring.connect("grpc+tls://data.example:1", token=KEPT)
    with pytest.raises(bowstring.Unavailable, match="less safe"):
        client._at("grpc://data.example:2")
    headers = client._at("grpc+tls://data.example:2")._headers()
    assert (b"authorization", f"Bearer {KEPT}".encode()) in headers


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff",
        b"\x08",
        b"\x12\x05abc",
        b"\x0d\x00\x00\x00\x00",
        b"\x80" * 40,
        status(14, "x", b"\x0a\x7f"),
        status(14, "x", field(1, b"type.googleapis.com/google.rpc.ErrorInfo") + field(2, b"\x0a\x7f")),
        status(14, "x", field(1, b"type.googleapis.com/google.rpc.RetryInfo") + field(2, field(1, b"\x0a\x01x"))),
    ],
)
def test_details_that_cannot_be_read_say_nothing(raw: bytes) -> None:
    assert _status.decoded(raw) is None
    error = by_number(14, "x", raw)
    assert isinstance(error, bowstring.Unavailable)
    assert error.elsewhere == []


def test_what_a_cluster_is_known_by_is_bounded() -> None:
    known = origins.Known(["grpc://a:1"])
    known.add(f"grpc://b:{i}" for i in range(100_000))
    assert "grpc://a:1" in known
    assert "grpc://b:99999" not in known


@pytest.mark.parametrize("seconds", [24 * 3600 + 1, 1 << 40, (1 << 64) - 5], ids=["days", "ages", "below 0"])
def test_no_server_has_its_client_wait_for_ever(seconds: int) -> None:
    error = by_number(8, "x", status(8, "x", retry(seconds)))
    assert isinstance(error, bowstring.LimitExceeded)
    assert error.retry_after is None


def test_a_server_that_the_environment_misspells_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOWSTRING_TOKEN", KEPT)
    monkeypatch.setenv("BOWSTRING_SERVER", "grpc://127.0.0.1:99999")
    with pytest.raises(ValueError, match=r"BOWSTRING_SERVER: got 'grpc://127\.0\.0\.1:99999', want grpc://HOST:PORT"):
        bowstring.connect("grpc://127.0.0.1:1")
