"""Every error of the protocol: its code, and a message that says what is wrong and what would be right."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from conftest import ROOT, StartNode
from node import Node
from wire import UNREAD, act, command, put, read, status, stream, ticket, until

PROTOCOL = ROOT / "docs" / "protocol.md"

# Requests that cannot be right: what is sent, and what the message must name.
BAD_REQUESTS: list[tuple[str, bytes | dict[str, Any], list[str]]] = [
    ("not JSON", b"photos", ["JSON"]),
    ("cut short", b'{"dataset": "photos"', []),
    ("trailing data", b'{"dataset": "photos"} {}', []),
    ("not an object", b"[1]", ["object"]),
    ("repeated field", b'{"dataset": "photos", "dataset": "photos"}', ["dataset"]),
    ("not UTF-8", b'{"dataset": "\xff"}', []),
    ("deeply nested", b'{"dataset": ' + b"[" * 10000 + b"]" * 10000 + b"}", []),
    ("no dataset", {}, ["dataset"]),
    ("unknown field", {"dataset": "photos", "colums": ["id"]}, ["colums", "columns"]),
    ("unknown inner field", {"dataset": "photos", "shuffle": {"sede": 1}}, ["shuffle", "sede", "seed"]),
    ("wrong type", {"dataset": 7}, ["dataset", "7", "string"]),
    ("wrong inner type", {"dataset": "photos", "shuffle": {"seed": "x"}}, ["shuffle.seed", "x"]),
    ("fraction", {"dataset": "photos", "batch": 1.5}, ["batch", "1.5"]),
    ("negative batch", {"dataset": "photos", "batch": -1}, ["batch", "-1"]),
    ("too large a number", {"dataset": "photos", "shuffle": {"seed": 2**64}}, ["shuffle.seed", "18446744073709551616"]),
    ("negative seed", {"dataset": "photos", "shuffle": {"seed": -1}}, ["shuffle.seed", "-1"]),
    ("dataset name", {"dataset": "../etc"}, ["dataset", "../etc"]),
    ("negative snapshot", {"dataset": "photos", "snapshot": -2}, ["snapshot", "-2"]),
    ("too many ranks", {"dataset": "photos", "world": {"size": 70000}}, ["world.size", "70000", "65536"]),
    ("no rank", {"dataset": "photos", "world": {"size": 0}}, ["world.size", "0"]),
    ("order", {"dataset": "photos", "order": "random"}, ["order", "random", "strict", "window", "free"]),
    ("window", {"dataset": "photos", "order": "window:x"}, ["order", "window:x"]),
    ("remainder", {"dataset": "photos", "remainder": "keep"}, ["remainder", "keep", "drop", "pad", "uneven"]),
    ("on_error", {"dataset": "photos", "on_error": "ignore"}, ["on_error", "ignore", "fail", "null", "skip"]),
    ("layout", {"dataset": "photos", "layout": "rows"}, ["layout", "rows", "huggingface"]),
    ("column", {"dataset": "photos", "columns": ["id", "picture"]}, ["columns", "picture", "image"]),
    ("column twice", {"dataset": "photos", "columns": ["id", "id"]}, ["columns", "id"]),
    ("batch_bytes", {"dataset": "photos", "batch_bytes": 0.5}, ["batch_bytes"]),
    ("position", {"dataset": "photos", "selection": {"positions": [300]}}, ["300"]),
    ("position twice", {"dataset": "photos", "selection": {"positions": [1, 1]}}, ["selection.positions", "1"]),
    ("two selections", {"dataset": "photos", "selection": {"positions": [1], "name": "0" * 64}}, ["selection"]),
    ("selection name", {"dataset": "photos", "selection": {"name": "abc"}}, ["selection.name", "abc"]),
    ("where syntax", {"dataset": "photos", "where": "width >"}, ["where", "1:"]),
    ("where column", {"dataset": "photos", "where": "breadth > 3"}, ["where", "breadth"]),
    ("where type", {"dataset": "photos", "where": "width > 'x'"}, ["where"]),
    ("where not boolean", {"dataset": "photos", "where": "width + 1"}, ["where", "bool"]),
    ("where on a blob", {"dataset": "photos", "where": "image == 'x'"}, ["where", "image"]),
]
BAD_TICKETS: list[tuple[str, bytes | dict[str, Any], list[str]]] = [
    ("not JSON", b"\x00\x01", []),
    ("empty", b"", []),
    ("rank", {"dataset": "photos", "rank": 1, "step": 0}, ["rank", "1"]),
    ("negative rank", {"dataset": "photos", "rank": -1, "step": 0}, ["rank", "-1"]),
    ("negative step", {"dataset": "photos", "rank": 0, "step": -1}, ["step", "-1"]),
    ("stride", {"dataset": "photos", "rank": 0, "step": 0, "stride": -3}, ["stride", "-3"]),
    ("unknown field", {"dataset": "photos", "rank": 0, "step": 0, "steps": 3}, ["steps"]),
    ("far row", {"dataset": "photos", "rank": 0, "step": 0, "row": 10**6}, ["row"]),
]
ABSENT: list[tuple[str, dict[str, Any], list[str]]] = [
    ("dataset", {"dataset": "fotos"}, ["fotos", "photos"]),
    ("snapshot", {"dataset": "photos", "snapshot": 99}, ["99", "1"]),
    ("split", {"dataset": "photos", "split": "test"}, ["test", "train", "val"]),
    ("selection", {"dataset": "photos", "selection": {"name": "0" * 64}}, ["0" * 64]),
]


def body(request: bytes | dict[str, Any]) -> bytes:
    return request if isinstance(request, bytes) else json.dumps(request).encode()


def names(cases: list[Any]) -> list[str]:
    return [case[0] for case in cases]


def assert_says(message: str, wanted: list[str]) -> None:
    assert message
    for part in wanted:
        assert part in message, f"{message!r} does not say {part!r}"


@pytest.mark.parametrize(("_name", "request_", "says"), BAD_REQUESTS, ids=names(BAD_REQUESTS))
def test_bad_request(node: Node, _name: str, request_: bytes | dict[str, Any], says: list[str]) -> None:
    descriptor = fl.FlightDescriptor.for_command(body(request_)).serialize()
    code, message = status(node.url, "GetFlightInfo", descriptor)
    assert code == "INVALID_ARGUMENT", message
    assert_says(message, says)


@pytest.mark.parametrize(("_name", "ticket", "says"), BAD_TICKETS, ids=names(BAD_TICKETS))
def test_bad_ticket(node: Node, _name: str, ticket: bytes | dict[str, Any], says: list[str]) -> None:
    code, message = status(node.url, "DoGet", fl.Ticket(body(ticket)).serialize())
    assert code == "INVALID_ARGUMENT", message
    assert_says(message, says)


@pytest.mark.parametrize(("_name", "request_", "says"), ABSENT, ids=names(ABSENT))
def test_absent(node: Node, _name: str, request_: dict[str, Any], says: list[str]) -> None:
    descriptor = fl.FlightDescriptor.for_command(body(request_)).serialize()
    ticket = fl.Ticket(body(request_ | {"rank": 0, "step": 0})).serialize()
    for method, message in (("GetFlightInfo", descriptor), ("DoGet", ticket)):
        code, text = status(node.url, method, message)
        assert code == "NOT_FOUND", text
        assert_says(text, says)


@pytest.mark.parametrize(
    ("path", "code", "says"),
    [
        ((), "INVALID_ARGUMENT", []),
        (("photos", "train", "more"), "INVALID_ARGUMENT", []),
        (("photos@x",), "NOT_FOUND", ["tag", "x"]),
        (("photos@!",), "INVALID_ARGUMENT", ["!"]),
        (("photos@0",), "INVALID_ARGUMENT", ["0"]),
        (("photos@9",), "NOT_FOUND", ["9"]),
        (("photos", "test"), "NOT_FOUND", ["test", "train"]),
        (("nothing",), "NOT_FOUND", ["nothing"]),
    ],
)
def test_path(node: Node, path: tuple[str, ...], code: str, says: list[str]) -> None:
    descriptor = fl.FlightDescriptor.for_path(*path).serialize()
    for method in ("GetFlightInfo", "GetSchema", "PollFlightInfo"):
        got, message = status(node.url, method, descriptor)
        assert got == code, message
        assert_says(message, says)


@pytest.mark.parametrize(
    ("name", "body", "error", "says"),
    [
        ("explode", b"", KeyError, "explode"),
        ("describe", b"{}", pa.ArrowInvalid, "dataset"),
        ("describe", b'{"dataset": "nothing"}', KeyError, "nothing"),
        ("drop", b'{"dataset": "nothing"}', KeyError, "nothing"),
        ("drop", b'{"dataset": "photos", "snapshot": 44}', KeyError, "44"),
        ("drop", b'{"dataset": "photos", "all": true}', pa.ArrowInvalid, "all"),
        ("gc", b'{"dry_run": 1}', pa.ArrowInvalid, "dry_run"),
        ("stats", b"[]", pa.ArrowInvalid, ""),
        ("cancel", b"{}", pa.ArrowInvalid, "plan"),
        ("CancelFlightInfo", b"\xff\xff", pa.ArrowInvalid, ""),
        ("RenewFlightEndpoint", b"\xff\xff", pa.ArrowInvalid, ""),
    ],
)
def test_action(client: fl.FlightClient, name: str, body: bytes, error: type[Exception], says: str) -> None:
    with pytest.raises(error) as caught:
        list(client.do_action((name, body)))
    assert says in str(caught.value)


def test_criteria(client: fl.FlightClient) -> None:
    with pytest.raises(pa.ArrowInvalid, match="splitt"):
        list(client.list_flights(b'{"splitt": "x"}'))


IMAGE = pa.array([b"x", b"y"], pa.large_binary())
BAD_UPLOADS: list[tuple[str, dict[str, Any], pa.Table, type[Exception], str]] = [
    ("unknown field", {"dataset": "u", "modus": "append"}, pa.table({"image": IMAGE}), pa.ArrowInvalid, "modus"),
    ("mode", {"dataset": "u", "mode": "upsert"}, pa.table({"image": IMAGE}), pa.ArrowInvalid, "upsert"),
    ("name", {"dataset": "a/b"}, pa.table({"image": IMAGE}), pa.ArrowInvalid, "a/b"),
    ("key column", {"dataset": "u", "key": "k"}, pa.table({"image": IMAGE}), pa.ArrowInvalid, "k"),
    (
        "duplicate keys",
        {"dataset": "u", "key": "k"},
        pa.table({"k": ["a", "a"], "image": IMAGE}),
        pa.ArrowInvalid,
        "duplicate|twice|more than once",
    ),
    ("reserved name", {"dataset": "u"}, pa.table({"position": [1, 2], "image": IMAGE}), pa.ArrowInvalid, "position"),
    ("blob column", {"dataset": "u", "blobs": ["mask"]}, pa.table({"image": IMAGE}), pa.ArrowInvalid, "mask"),
    ("append to nothing", {"dataset": "u", "mode": "append"}, pa.table({"image": IMAGE}), KeyError, "u"),
    (
        "other schema",
        {"dataset": "photos", "mode": "append"},
        pa.table({"image": IMAGE}),
        pa.ArrowInvalid,
        "schema|column",
    ),
]


@pytest.mark.parametrize(("_name", "request_", "table", "error", "says"), BAD_UPLOADS, ids=names(BAD_UPLOADS))
def test_bad_upload(
    client: fl.FlightClient, _name: str, request_: dict[str, Any], table: pa.Table, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        put(client, table, **request_)
    assert act(client, "list", dataset="u") == []


# --- one trigger for each code of the table in docs/protocol.md --------------------------------------------------

Trigger = Callable[[fl.FlightClient, Node, StartNode, Path], Iterator[Any] | None]


def already_exists(client: fl.FlightClient, node: Node, start: StartNode, tmp: Path) -> None:  # noqa: ARG001
    put(client, pa.table({"image": IMAGE}), dataset="photos")


def invalid_argument(client: fl.FlightClient, node: Node, start: StartNode, tmp: Path) -> None:  # noqa: ARG001
    client.get_flight_info(command(dataset="photos", batch=-1))


def not_found(client: fl.FlightClient, node: Node, start: StartNode, tmp: Path) -> None:  # noqa: ARG001
    client.get_flight_info(command(dataset="nothing"))


def resource_exhausted(client: fl.FlightClient, node: Node, start: StartNode, tmp: Path) -> None:  # noqa: ARG001
    client.get_flight_info(command(dataset="photos", where="width > 0 || " * 200_000 + "true"))


def unavailable(client: fl.FlightClient, node: Node, start: StartNode, tmp: Path) -> None:  # noqa: ARG001
    own = start("--window-memory", "8MiB")
    with fl.connect(own.url) as other:
        parts = stream(other, ticket(dataset="photos", batch=4, epochs=UNREAD))
        next(parts)  # while this stream is open, the draining server stays
        own.terminate()
        while True:  # until the signal has arrived
            other.get_flight_info(command(dataset="photos"))


def data_loss(client: fl.FlightClient, node: Node, start: StartNode, tmp: Path) -> None:  # noqa: ARG001
    own = start()
    with fl.connect(own.url) as other:
        image = read(other, dataset="photos", columns=["image"], selection={"positions": [100]})["image"][0].as_py()
    own.stop()
    harmed = 0
    for path in Path(own.store).rglob("*"):
        if path.is_file() and (at := (content := bytearray(path.read_bytes())).find(image)) >= 0:
            content[at + len(image) // 2] ^= 1  # one flipped bit
            path.write_bytes(content)
            harmed += 1
    assert harmed == 1
    again = start(store=own.store)
    with fl.connect(again.url) as other:
        # Undamaged samples are served.
        assert read(other, dataset="photos", columns=["image"], selection={"positions": [99, 101]}).num_rows == 2
        read(other, dataset="photos", columns=["image"])


def cancelled(client: fl.FlightClient, node: Node, start: StartNode, tmp: Path) -> None:  # noqa: ARG001
    parts = stream(client, ticket(dataset="photos", batch=1, shuffle={"seed": 987}, epochs=UNREAD))
    act(client, "cancel", plan=next(parts).about["plan"])
    list(parts)


def deadline_exceeded(client: fl.FlightClient, node: Node, start: StartNode, tmp: Path) -> None:  # noqa: ARG001
    # Server and client keep time each by itself. Where the server is first, the client says that it was cancelled.
    for _ in range(100):
        options = fl.FlightCallOptions(timeout=0.3)
        writer, reader = client.do_exchange(command(take={"dataset": "photos"}), options=options)
        with contextlib.suppress(fl.FlightCancelledError), writer:
            reader.read_chunk()  # nothing was asked for


def unimplemented(client: fl.FlightClient, node: Node, start: StartNode, tmp: Path) -> None:  # noqa: ARG001
    client.authenticate_basic_token("user", "password")


CODES: dict[str, tuple[Any, type[Exception], list[str]]] = {
    "ALREADY_EXISTS": (already_exists, pa.ArrowException, ["photos"]),
    "CANCELLED": (cancelled, fl.FlightCancelledError, []),
    "DATA_LOSS": (data_loss, fl.FlightInternalError, ["data loss error", "checksum"]),
    "DEADLINE_EXCEEDED": (deadline_exceeded, fl.FlightTimedOutError, []),
    "INVALID_ARGUMENT": (invalid_argument, pa.ArrowInvalid, ["batch", "-1"]),
    "NOT_FOUND": (not_found, KeyError, ["nothing"]),
    "RESOURCE_EXHAUSTED": (resource_exhausted, pa.ArrowException, ["MaxRequestBytes", "2097152"]),
    "UNAVAILABLE": (unavailable, fl.FlightUnavailableError, ["drain"]),
    "UNIMPLEMENTED": (unimplemented, pa.ArrowNotImplementedError, []),
}
# There is no example of a defect. This server knows no callers; test_auth has one that does.
UNTESTED = {"INTERNAL", "PERMISSION_DENIED", "UNAUTHENTICATED"}


@pytest.mark.parametrize("code", sorted(CODES))
def test_code(client: fl.FlightClient, node: Node, start: StartNode, tmp_path: Path, code: str) -> None:
    trigger, error, says = CODES[code]
    with pytest.raises(error) as caught:
        trigger(client, node, start, tmp_path)
    assert_says(str(caught.value), says)


def test_every_documented_code_is_tested() -> None:
    section = PROTOCOL.read_text().split("## Errors", 1)[1].split("\n## ", 1)[0]
    documented = set(re.findall(r"^\| `?([A-Z_]{5,})`? ", section, re.MULTILINE))
    assert documented == set(CODES) | UNTESTED


# --- limits: each named in its error ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("GetFlightInfo", fl.FlightDescriptor.for_command(b" " * (3 << 20)).serialize()),
        ("GetSchema", fl.FlightDescriptor.for_path("x" * (3 << 20)).serialize()),
        ("DoGet", fl.Ticket(b" " * (3 << 20)).serialize()),
        ("DoAction", fl.Action("stats", b" " * (3 << 20)).serialize()),
    ],
    ids=["command", "path", "ticket", "action"],
)
def test_request_limits(node: Node, method: str, message: bytes) -> None:
    code, text = status(node.url, method, message)
    assert code == "RESOURCE_EXHAUSTED", text
    assert re.search(r"\d", text), text


def test_limit_of_streams(start: StartNode) -> None:
    node = start("--max-streams", "2", "--window-memory", "8MiB")
    with fl.connect(node.url) as own:
        another = ticket(dataset="photos", batch=4).serialize()
        open_ = [stream(own, ticket(dataset="photos", shuffle={"seed": n}, epochs=UNREAD)) for n in range(2)]
        plans = [next(parts).about["plan"] for parts in open_]
        code, message = status(node.url, "DoGet", another)
        assert code == "RESOURCE_EXHAUSTED"
        assert_says(message, ["MaxStreams", "2"])
        act(own, "cancel", plan=plans[0])  # an ended stream makes room
        until(lambda: status(node.url, "DoGet", another)[0] == "OK", "room for another stream")
        act(own, "cancel", plan=plans[1])


def test_limit_of_messages(start: StartNode) -> None:
    node = start("--upload-memory", "2MiB")
    with fl.connect(node.url) as own:
        big = pa.table({"image": pa.array([b"x" * (2 << 20)], pa.large_binary())})
        with pytest.raises(pa.ArrowException, match="for uploads"):
            put(own, big, dataset="big")
        assert act(own, "list", dataset="big") == []


# --- on_error ------------------------------------------------------------------------------------------------------


def test_on_error_says_what_to_do_with_a_lost_sample(start: StartNode, tmp_path: Path) -> None:
    node = start()
    with fl.connect(node.url) as own:
        image = read(own, dataset="photos", columns=["image"], selection={"positions": [42]})["image"][0].as_py()
        expected = read(own, dataset="photos", columns=["image"])["image"].to_pylist()
    node.stop()
    store = tmp_path / "harmed"
    shutil.copytree(node.store, store)
    for path in store.rglob("*"):
        if path.is_file() and (at := (content := bytearray(path.read_bytes())).find(image)) >= 0:
            content[at] ^= 255
            path.write_bytes(content)
    with fl.connect(start(store=store).url) as own:
        columns = ["position", "id", "image"]
        with pytest.raises(pa.ArrowException, match="42"):
            read(own, dataset="photos", columns=columns)
        parts = list(
            stream(own, own.get_flight_info(command(dataset="photos", columns=columns, on_error="null")).endpoints[0])
        )
        images = [i.as_py() for p in parts for i in p.data["image"]]
        assert images == [*expected[:42], None, *expected[43:]]
        faults = [f for p in parts for f in p.about.get("faults", [])]
        assert [(f["position"], f["column"]) for f in faults] == [(42, "image")]
        skip = command(dataset="photos", columns=columns, on_error="skip", shuffle={"seed": 1})
        twice = [list(stream(own, own.get_flight_info(skip).endpoints[0])) for _ in range(2)]
        for parts in twice:
            rows = [r for p in parts for r in p.data.to_pylist()]
            (fault,) = [f for p in parts for f in p.about.get("faults", [])]
            assert len(rows) == 300
            assert fault["position"] == 42
            served = [r["position"] for r in rows]
            assert 42 not in served
            assert served.count(fault["substitute"]) == 2
            assert all(r["image"] == expected[r["position"]] for r in rows)
        assert twice[0][0].data.equals(twice[1][0].data)
