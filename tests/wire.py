"""Calls of the tests to a server: requests, reads and actions in one line each."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import grpc
import pyarrow as pa
import pyarrow.flight as fl

SERVICE = "/arrow.flight.protocol.FlightService/"
PATIENCE = 180  # seconds to wait for what is bound to happen; not a measurement
# Attempts of a client whose server is started again: three minutes. The default is ten seconds, which a server takes to
# start where a machine is busy.
RETRIES = 20
# More epochs of photographs than a client receives while no thread reads: the windows of gRPC grow with the speed of
# what was read before, to tens of megabytes, and a stream that fits in them has ended as far as its server can see.
UNREAD = 20


class Piece(NamedTuple):
    """One record batch of a stream and the JSON that came with it."""

    data: pa.RecordBatch
    about: dict[str, Any]


def command(**request: Any) -> fl.FlightDescriptor:
    """Make a CMD descriptor of a JSON request."""
    return fl.FlightDescriptor.for_command(json.dumps(request))


def ticket(**fields: Any) -> fl.Ticket:
    """Make a ticket by hand."""
    return fl.Ticket(json.dumps(fields).encode())


def decode(metadata: pa.Buffer) -> dict[str, Any]:
    """Read the JSON of an app_metadata or a result."""
    found = json.loads(metadata.to_pybytes())
    assert isinstance(found, dict)
    return found


def pieces(reader: Iterator[Any]) -> Iterator[Piece]:
    """Yield the batches of a DoGet stream."""
    for chunk in reader:
        yield Piece(chunk.data, decode(chunk.app_metadata))


def stream(client: fl.FlightClient, where: fl.Ticket | fl.FlightEndpoint) -> Iterator[Piece]:
    """Open a DoGet stream and yield its batches."""
    return pieces(client.do_get(where.ticket if isinstance(where, fl.FlightEndpoint) else where))


def read(client: fl.FlightClient, **request: Any) -> pa.Table:
    """Read all ranks of a request into one table, rank by rank."""
    info = client.get_flight_info(command(**request))
    return pa.concat_tables([client.do_get(e.ticket).read_all() for e in info.endpoints])


def act(client: fl.FlightClient, name: str, **body: Any) -> list[dict[str, Any]]:
    """Run an action with a JSON body."""
    return [decode(result.body) for result in client.do_action((name, json.dumps(body).encode()))]


def stats(client: fl.FlightClient) -> dict[str, Any]:
    """Return the server's counters."""
    return act(client, "stats")[0]


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for what a server is bound to do."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen within {PATIENCE} s"
        time.sleep(0.02)


def put(client: fl.FlightClient, table: pa.Table, rows: int = 256, **request: Any) -> dict[str, Any]:
    """Upload a table as a dataset and return the last result: the committed snapshot."""
    writer, reader = client.do_put(command(put=request), table.schema)
    with writer:
        for batch in table.to_batches(max_chunksize=rows):
            writer.write_batch(batch)
        writer.done_writing()
        results = []
        while (message := reader.read()) is not None:
            results.append(decode(message))
    return results[-1]


def status(url: str, method: str, message: bytes) -> tuple[str, str]:
    """Make a call with raw bytes and return its gRPC code and message; pyarrow merges several codes into one."""
    with grpc.insecure_channel(url.removeprefix("grpc://")) as channel:
        make = channel.unary_stream if method in STREAMING else channel.unary_unary
        call = make(SERVICE + method, request_serializer=None, response_deserializer=None)
        try:
            answer = call(message, timeout=PATIENCE)
            if method in STREAMING:
                for _ in answer:
                    pass
        except grpc.RpcError as e:
            return e.code().name, e.details() or ""
    return "OK", ""


STREAMING = {"DoGet", "DoAction", "ListFlights", "ListActions"}
