"""Errors: each code has its class, and the text is the server's own."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bowstring
import pyarrow as pa
import pyarrow.flight as fl
import pytest
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


@pytest.fixture
def here(node: Node) -> bowstring.Client:
    return bowstring.connect(node.url)


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


# What is done, which class it raises, and what the message begins with: it is the server's, nothing before it.
FAILURES: dict[str, tuple[Callable[[bowstring.Client], Any], type[Exception], str]] = {
    "dataset": (lambda c: c.dataset("fotos"), bowstring.NotFound, 'not found: there is no dataset "fotos"; there are'),
    "snapshot": (lambda c: c.dataset("photos", snapshot=9), bowstring.NotFound, 'not found: dataset "photos" has no'),
    "split": (lambda c: c.dataset("photos", split="test"), bowstring.NotFound, "dataset photos@1 has no split 'test'"),
    "where": (lambda c: photos(c).where("lable == 1"), bowstring.InvalidRequest, 'where:1:1: no column "lable"'),
    "where type": (lambda c: photos(c).where("width"), bowstring.InvalidRequest, "where"),
    "column": (lambda c: photos(c).columns(["lable"]), bowstring.InvalidRequest, 'columns[0]: got "lable", want one'),
    "order": (lambda c: photos(c).options(order="x"), bowstring.InvalidRequest, 'order: got "x", want "strict"'),
    "rank": (
        lambda c: next(photos(c).batches(rank=3, world_size=2)),
        bowstring.InvalidRequest,
        "rank: got 3, want",
    ),
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
    with pytest.raises(bowstring.TimedOut):
        bowstring.connect(node.url, timeout=1e-9).datasets()


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
    node.stop()
    # One byte of the photographs is another one now.
    segment = max(node_files(node), key=lambda path: path.stat().st_size)
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)
    again = start(store=node.store)
    client = bowstring.connect(again.url)
    with pytest.raises(bowstring.DataLoss, match="position"):
        client.dataset("photos").to_arrow()
    assert client.dataset("photos").options(on_error="null").to_arrow()["image"].null_count == 1


def node_files(node: Node) -> list[Path]:
    return [path for path in Path(node.store).rglob("*") if path.is_file()]
