"""Break off streams in one of several ways, as often as is said on stdin, and say on stdout when it is done.

    python breaker.py WAY URL

It answers `ready`, and `done` after each line of stdin, which is a number of streams.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bowstring
import pyarrow as pa
import pyarrow.flight as fl

BATCH = 16
TAKEN = 2  # batches that are read before a stream is broken off
RESIZE: list[dict[str, Any]] = [{"Decode": {}}, {"Resize": {"size": [64, 64]}}]
DEADLINE = 0.4  # seconds
METHOD = b"/arrow.flight.protocol.FlightService/DoGet"


def ticket(turn: int) -> dict[str, Any]:
    """Many epochs of everything, in an order of its own."""
    return {"dataset": "bench", "columns": ["image"], "batch": BATCH, "shuffle": {"seed": turn}, "epochs": 50}


class Breaker:
    """The ways to break off a stream. Each is given a number, and breaks one off."""

    def __init__(self, url: str) -> None:
        self.url = url
        # TLS ends at servers that have their certificate here.
        root = os.environ.get("BOWSTRING_SERVER_CA")
        self._root = Path(root).read_bytes() if root else None
        self._client: bowstring.Client | None = None
        self._connected: fl.FlightClient | None = None

    def _package(self) -> bowstring.Client:
        self._client = self._client or bowstring.connect(self.url)
        return self._client

    def _connect(self) -> fl.FlightClient:
        return fl.connect(self.url, **({"tls_root_certs": self._root} if self._root else {}))

    def _flight(self) -> fl.FlightClient:
        self._connected = self._connected or self._connect()
        return self._connected

    def _read(self, client: fl.FlightClient, turn: int, options: Any = None) -> Any:
        reader = client.do_get(fl.Ticket(json.dumps(ticket(turn)).encode()), options)
        for _ in range(TAKEN):
            reader.read_chunk()
        return reader

    def leave(self, turn: int) -> None:
        """The package's batches, left by `break`."""
        dataset = self._package().dataset("bench").columns(["image"]).shuffle(turn)
        with dataset.batches(BATCH) as batches:
            for taken, _ in enumerate(batches, 1):
                if taken == TAKEN:
                    break

    def ring(self, turn: int) -> None:
        """The same by shared memory; the client is closed then, so that its ring is given back."""
        with (
            bowstring.connect(self.url) as client,
            client.dataset("bench").columns(["image"]).shuffle(turn).batches(BATCH) as batches,
        ):
            for _ in range(TAKEN):
                next(batches)
            if batches.place is None or batches.place["transport"] != "shared":
                raise RuntimeError(f"a batch came by {batches.place}")

    def operators(self, turn: int) -> None:
        """Columns that are made while the stream is served."""
        dataset = self._package().dataset("bench").columns(["image"]).shuffle(turn).operators(image=RESIZE)
        with dataset.options(place="server").batches(BATCH) as batches:
            for _ in range(TAKEN):
                next(batches)

    def cancel(self, turn: int) -> None:
        """A call that its client cancels, on a connection that stays."""
        self._read(self._flight(), turn).cancel()

    tls = cancel

    def deadline(self, turn: int) -> None:
        """A call whose time is over while it is read."""
        with contextlib.suppress(fl.FlightTimedOutError, fl.FlightCancelledError):  # whose clock is first
            reader = self._read(self._flight(), turn, fl.FlightCallOptions(timeout=DEADLINE))
            time.sleep(DEADLINE / 2)
            for _ in iter(reader.read_chunk, None):
                pass

    def close(self, turn: int) -> None:
        """A connection that its client closes in good order."""
        client = self._connect()
        self._read(client, turn)
        client.close()

    def exchange(self, turn: int) -> None:
        """Positions are asked for, and their rows not awaited."""
        about = {"take": {"dataset": "bench", "columns": ["image"], "batch_bytes": BATCH * 100_000}}
        writer, reader = self._flight().do_exchange(fl.FlightDescriptor.for_command(json.dumps(about)))
        positions = pa.record_batch({"position": pa.array([(turn + i) % 64 for i in range(8 * BATCH)], pa.int64())})
        writer.begin(positions.schema)
        writer.write_batch(positions)
        reader.read_chunk()
        reader.cancel()
        with contextlib.suppress(pa.ArrowException):
            writer.close()

    def cut(self, turn: int) -> None:
        """A connection that is reset: the kernel says that its client is gone."""
        with _asked(self.url, ticket(turn)) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def kill(self, turn: int) -> None:
        """A client that is killed."""
        child = os.fork()
        if not child:
            try:
                with _asked(self.url, ticket(turn)):
                    os.kill(os.getpid(), signal.SIGKILL)
            finally:
                os._exit(1)  # the server is away: else the child would go on as a second client
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            raise RuntimeError("the client that was to be killed got no answer")


@contextlib.contextmanager
def _asked(url: str, asked: dict[str, Any]) -> Iterator[socket.socket]:
    """A connection by which a ticket was asked for and a part of its answer has come, without gRPC's threads."""
    host, _, port = url.rpartition("//")[2].rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        wide = 2**31 - 1  # no window but the socket's holds the server back
        said = b"".join(
            struct.pack("B", 0) + _text(name) + _text(value)  # literal fields that need no table
            for name, value in (
                (b":method", b"POST"),
                (b":scheme", b"http"),
                (b":path", METHOD),
                (b":authority", b"bench"),
                (b"content-type", b"application/grpc"),
                (b"te", b"trailers"),
            )
        )
        content = json.dumps(asked).encode()
        message = b"\x0a" + _number(len(content)) + content
        connection.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + _frame(4, 0, 0, struct.pack(">HI", 4, wide))
            + _frame(8, 0, 0, struct.pack(">I", wide - 65_535))
            + _frame(1, 4, 1, said)
            + _frame(0, 1, 1, struct.pack(">BI", 0, len(message)) + message)
        )
        left = TAKEN * BATCH * 100_000
        while left > 0:
            came = len(connection.recv(min(left, 1 << 20)))
            if not came:
                raise RuntimeError("the server has closed the connection")
            left -= came
        yield connection


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _text(content: bytes) -> bytes:
    return struct.pack("B", len(content)) + content  # all are short


def _number(n: int) -> bytes:
    found = b""
    while n > 127:
        found += bytes([n & 127 | 128])
        n >>= 7
    return found + bytes([n])


def main(way: str, url: str) -> None:
    """Break off as many as each line says."""
    breaker = Breaker(url)
    once: Callable[[int], None] = getattr(breaker, way)
    turn = 0
    print("ready", flush=True)
    for line in sys.stdin:
        for _ in range(int(line)):
            turn += 1
            once(turn)
        print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
