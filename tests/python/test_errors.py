"""Errors: each code has its class, and the text is the server's own."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import bowstring
import grpc
import pyarrow as pa
import pyarrow.flight as fl
import pytest
from bowstring._messages import listed, shown
from bowstring.errors import translate, translated
from conftest import StartNode
from node import Node
from wire import until

CODES: dict[str, tuple[type[bowstring.BowstringError], type[Exception]]] = {
    "INVALID_ARGUMENT": (bowstring.InvalidRequest, ValueError),
    "NOT_FOUND": (bowstring.NotFound, LookupError),
    "ALREADY_EXISTS": (bowstring.AlreadyExists, Exception),
    "RESOURCE_EXHAUSTED": (bowstring.LimitExceeded, Exception),
    "UNAVAILABLE": (bowstring.Unavailable, ConnectionError),
    "DATA_LOSS": (bowstring.DataLoss, Exception),
    "CANCELLED": (bowstring.Cancelled, Exception),
    "DEADLINE_EXCEEDED": (bowstring.TimedOut, TimeoutError),
    "UNAUTHENTICATED": (bowstring.Unauthenticated, PermissionError),
    "PERMISSION_DENIED": (bowstring.PermissionDenied, PermissionError),
    "UNIMPLEMENTED": (bowstring.Unsupported, NotImplementedError),
    "INTERNAL": (bowstring.ServerError, Exception),
}


@pytest.mark.parametrize("code", CODES)
def test_each_class(code: str) -> None:
    kind, built_in = CODES[code]
    error = kind("what went wrong")
    assert error.code == code
    assert isinstance(error, bowstring.BowstringError)
    assert isinstance(error, built_in)
    assert str(error) == "what went wrong"
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == str(error)


def wording(word: str) -> str:
    return (
        f"Flight returned {word} error, with message: lost: at 3. really. gRPC client debug context: X:lost: at 3. "
        "really. Client context: IOError: Server never sent a data message. Detail: Internal"
    )


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (pa.ArrowInvalid(wording("invalid argument")), bowstring.InvalidRequest),
        (pa.ArrowInvalid(wording("resource exhausted")), bowstring.LimitExceeded),
        (pa.ArrowKeyError(wording("not found")), bowstring.NotFound),
        (pa.ArrowException("Unknown: " + wording("already exists")), bowstring.AlreadyExists),
        (pa.ArrowException("IOError: " + wording("data loss")), bowstring.DataLoss),
        (pa.ArrowNotImplementedError(wording("unimplemented")), bowstring.Unsupported),
        (fl.FlightUnavailableError(wording("unavailable")), bowstring.Unavailable),
        (fl.FlightCancelledError(wording("cancelled")), bowstring.Cancelled),
        (fl.FlightTimedOutError(wording("deadline exceeded")), bowstring.TimedOut),
        (fl.FlightTimedOutError(wording("timed out")), bowstring.TimedOut),
        (fl.FlightUnauthenticatedError(wording("unauthenticated")), bowstring.Unauthenticated),
        (fl.FlightUnauthorizedError(wording("permission denied")), bowstring.PermissionDenied),
        (fl.FlightInternalError(wording("internal")), bowstring.ServerError),
    ],
)
def test_the_context_of_grpc_is_left_out(error: Exception, kind: type[Exception]) -> None:
    found = translated(error)
    assert type(found) is kind
    assert str(found) == "lost: at 3. really"


class Failing(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A server of Flight that ends each call with a code."""

    def __init__(self) -> None:
        self.code = grpc.StatusCode.OK

    def service(self, details: Any) -> Any:
        """The function that gRPC calls for the handler of a method."""

        def call(_: Any, context: Any) -> None:
            context.abort(self.code, "lost: at 3. really")

        method = details.method.rsplit("/", 1)[1]
        if method in ("DoPut", "DoExchange"):
            return grpc.stream_stream_rpc_method_handler(call)
        if method in ("DoGet", "DoAction"):
            return grpc.unary_stream_rpc_method_handler(call)
        return grpc.unary_unary_rpc_method_handler(call)


@pytest.fixture(scope="module")
def failing() -> Iterator[tuple[Failing, str]]:
    handler = Failing()
    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield handler, f"grpc://127.0.0.1:{port}"
    server.stop(0).wait()


OTHERS: dict[str, type[bowstring.BowstringError]] = {
    "UNKNOWN": bowstring.ServerError,
    "FAILED_PRECONDITION": bowstring.InvalidRequest,
    "OUT_OF_RANGE": bowstring.InvalidRequest,
    "ABORTED": bowstring.Unavailable,
}
CALLS: dict[str, Callable[[bowstring.Client], Any]] = {
    "DoAction": lambda c: c.stats(),
    "DoPut": lambda c: c.ingest("x", pa.table({"a": [1]}), progress=False),
    "GetFlightInfo": lambda c: bowstring.Dataset(c, "x", 1, None, 9).plan(),
    "GetSchema": lambda c: bowstring.Dataset(c, "x", 1, None, 9).schema,
    "DoGet": lambda c: next(bowstring.Dataset(c, "x", 1, None, 9).batches()),
    "DoPut of a selection": lambda c: bowstring.Dataset(c, "x", 1, None, 9).select([b"x" * 16]),
    "DoExchange": lambda c: with_schema(c).take([1]),
}


def with_schema(client: bowstring.Client) -> bowstring.Dataset:
    dataset = bowstring.Dataset(client, "x", 1, None, 9)
    dataset._schema = pa.schema([("a", pa.int64())])
    return dataset


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("code", [*CODES, *OTHERS])
def test_each_code_of_each_call(failing: tuple[Failing, str], code: str, call: str) -> None:
    """The type alone identifies the error; pyarrow has one for INTERNAL and DATA_LOSS."""
    handler, url = failing
    handler.code = grpc.StatusCode[code]
    with pytest.raises(bowstring.BowstringError) as caught:
        CALLS[call](bowstring.connect(url, retries=0))
    assert type(caught.value) is (OTHERS.get(code) or CODES[code][0])
    assert str(caught.value) == "lost: at 3. really"


def test_others_pass() -> None:
    for error in (KeyError("x"), FileNotFoundError("x"), StopIteration(), RuntimeError("Flight returned nothing")):
        assert translated(error) is None
        with pytest.raises(type(error)), translate():
            raise error
    own = bowstring.NotFound("own")
    assert translated(own) is None

    @translate()
    def decorated() -> None:
        raise pa.ArrowInvalid(wording("invalid argument"))

    with pytest.raises(bowstring.InvalidRequest) as caught:
        decorated()
    assert isinstance(caught.value.__cause__, pa.ArrowInvalid)


def photos(client: bowstring.Client) -> bowstring.Dataset:
    return client.dataset("photos")


# A call, the class that it raises, and the beginning of the message: it is the server's, nothing before it.
FAILURES: dict[str, tuple[Callable[[bowstring.Client], Any], type[Exception], str]] = {
    "dataset": (lambda c: c.dataset("fotos"), bowstring.NotFound, 'not found: there is no dataset "fotos"; there are'),
    "snapshot": (lambda c: c.dataset("photos", snapshot=9), bowstring.NotFound, 'not found: dataset "photos" has no'),
    "split": (lambda c: c.dataset("photos", split="test"), bowstring.NotFound, "dataset photos@1 has no split 'test'"),
    "where": (lambda c: photos(c).where("lable == 1"), bowstring.InvalidRequest, 'where:1:1: no column "lable"'),
    "where type": (lambda c: photos(c).where("width"), bowstring.InvalidRequest, "where"),
    "column": (lambda c: photos(c).columns(["lable"]), bowstring.InvalidRequest, 'columns[0]: got "lable", want one'),
    "order": (lambda c: photos(c).options(order="x"), bowstring.InvalidRequest, 'order: got "x", want "strict"'),
    "position": (lambda c: photos(c).take([300]), bowstring.InvalidRequest, "request 0: position, row 0: got 300"),
    "id": (lambda c: photos(c).take([b"x" * 16]), bowstring.NotFound, "request 0: not found: id, row 0: no sample"),
    "action": (lambda c: c.action("dance"), bowstring.NotFound, 'not found: action "dance"'),
    "warm": (lambda c: c.warm(photos(c), progress=False), bowstring.NotFound, "not found: this server has no spill"),
    "exists": (
        lambda c: c.ingest("photos", pa.table({"a": [1]}), progress=False),
        bowstring.AlreadyExists,
        "already exists: dataset photos",
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_the_message_is_the_servers(here: bowstring.Client, name: str) -> None:
    call, kind, text = FAILURES[name]
    with pytest.raises(bowstring.BowstringError) as caught:
        call(here)
    assert type(caught.value) is kind
    assert str(caught.value).startswith(text)
    for noise in ("gRPC", "debug context", "Client context", "Flight returned"):
        assert noise not in str(caught.value)


def test_cancelled(here: bowstring.Client) -> None:
    dataset = photos(here).shuffle(11)
    batches = dataset.batches(1, epochs=100000)
    next(batches)
    assert batches.place is not None
    plan = batches.place["plan"]
    until(lambda: here.cancel(plan) == 1, "the stream being cancelled")
    with pytest.raises(bowstring.Cancelled):
        for _ in batches:
            pass


def test_timed_out(node: Node) -> None:
    client = bowstring.connect(node.url, timeout=1e-9)
    with pytest.raises(bowstring.TimedOut):  # sooner or later: gRPC's clock is coarse, and an answer may be as quick
        deque((client.datasets() for _ in range(1000)), maxlen=0)


def test_unavailable(start: StartNode) -> None:
    node = start()
    client = bowstring.connect(node.url, retries=0)
    assert [d.name for d in client.datasets()] == ["photos"]
    node.kill()
    with pytest.raises(bowstring.Unavailable):
        client.datasets()


def test_data_loss(start: StartNode) -> None:
    node = start()
    client = bowstring.connect(node.url)
    image = client.dataset("photos").columns(["image"]).take([123])["image"][0].as_py()
    node.stop()
    # One bit of a photograph is another one now.
    ((segment, at),) = [(path, at) for path in node_files(node) if (at := path.read_bytes().find(image)) >= 0]
    content = bytearray(segment.read_bytes())
    content[at + len(image) // 2] ^= 1
    segment.write_bytes(content)
    again = start(store=node.store)
    client = bowstring.connect(again.url)
    with pytest.raises(bowstring.DataLoss, match="position 123 "):
        client.dataset("photos").to_arrow()
    assert client.dataset("photos").options(on_error="null").to_arrow()["image"].null_count == 1


def node_files(node: Node) -> list[Path]:
    return [path for path in Path(node.store).rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("image.size", "image.size"),
        ("a b", "'a b'"),
        ("", "''"),
        ("x (go on at grpc://evil:1)", "'x (go on at grpc://evil:1)'"),
        ("a\n\x1b[2J\u202e", r"'a\n\x1b[2J\u202e'"),
        ("a, b", "'a, b'"),
        (3, "3"),
    ],
)
def test_names_that_are_not_plain_are_in_quotes(name: object, want: str) -> None:
    assert shown(name) == want
    assert listed(["a", name]) == f"a, {want}"
