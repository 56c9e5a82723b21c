"""A server of HTTP/2 whose every byte a test decides: what it sends, in which frames, and in which pieces."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

import hpack
import pyarrow as pa

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED = 0x1, 0x1, 0x4, 0x8
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame of HTTP/2."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def setting(name: int, value: int) -> bytes:
    """A frame that changes one setting."""
    return frame(SETTINGS, 0, 0, struct.pack(">HI", name, value))


def field(number: int, content: bytes) -> bytes:
    """A field of a message of protobuf's."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(number: int) -> bytes:
    found = b""
    while number > 127:
        found += bytes([number & 127 | 128])
        number >>= 7
    return found + bytes([number])


def message(content: bytes) -> bytes:
    """A message of gRPC's."""
    return struct.pack(">BI", 0, len(content)) + content


def flight(header: bytes = b"", metadata: bytes = b"", body: bytes = b"") -> bytes:
    """A FlightData as a message of gRPC's. It has those fields that are not empty."""
    parts = (2, header), (3, metadata), (1000, body)
    return message(b"".join(field(number, content) for number, content in parts if content))


def flights(batches: Sequence[pa.RecordBatch], metadata: bytes = b"{}") -> list[bytes]:
    """The schema of batches, and they, as messages."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    found = []
    for part in pa.ipc.MessageReader.open_stream(sink.getvalue()):
        body = b"" if part.body is None else part.body.to_pybytes()
        about = metadata if part.type == "record batch" else b""
        found.append(flight(part.metadata.to_pybytes(), about, body))
    return found


class Peer:
    """A connection of a client's, as its server has it. A client that leaves ends what is written here."""

    def __init__(self, connected: socket.socket, seed: int | None = None) -> None:
        self.socket = connected
        self.encoder = hpack.Encoder()
        self.decoder = hpack.Decoder()
        self.came: list[tuple[int, int, int, bytes]] = []  # frames: kind, flags, stream, payload
        self.requests: dict[int, bytes] = {}
        self._random = None if seed is None else random.Random(seed)

    def greets(self, settings: bytes = b"") -> None:
        assert self._exactly(len(_PREFACE)) == _PREFACE
        self.send(frame(SETTINGS, 0, 0, settings))

    def hears(self) -> tuple[int, int, int, bytes]:
        """The next frame of the client's."""
        head = self._exactly(9)
        size = int.from_bytes(head[:3], "big")
        kind, flags, stream = struct.unpack(">BBI", head[3:])
        found = kind, flags, stream, self._exactly(size)
        self.came.append(found)
        if kind == DATA:
            self.requests[stream] = self.requests.get(stream, b"") + found[3]
        return found

    def until(self, kind: int, flags: int = 0) -> tuple[int, int, int, bytes]:
        """Hear frames until there is one of a kind with some flags."""
        while True:
            found = self.hears()
            if found[0] == kind and found[1] & flags == flags:
                return found

    def asked(self) -> int:
        """Hear a whole request: its stream."""
        return self.until(DATA, END_STREAM)[2]

    def _exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            more = self.socket.recv(size - len(found))
            if not more:
                raise ConnectionResetError
            found += more
        return found

    def send(self, given: bytes) -> None:
        """Send bytes: in one piece, or in random ones where there is a seed."""
        at = 0
        while at < len(given):
            n = len(given) if self._random is None else int(2 ** self._random.uniform(0, 14))
            self.socket.sendall(given[at : at + n])
            at += n

    def headers(self, stream: int, *fields: tuple[str, str], flags: int = END_HEADERS) -> bytes:
        return frame(HEADERS, flags, stream, self.encoder.encode(list(fields)))

    def answers(self, stream: int) -> bytes:
        """How an answer begins."""
        return self.headers(stream, (":status", "200"), ("content-type", "application/grpc"))

    def ends(self, stream: int, status: int = 0, text: str = "") -> bytes:
        """How an answer ends."""
        fields = [("grpc-status", str(status))] + ([("grpc-message", text)] if text else [])
        return self.headers(stream, *fields, flags=END_HEADERS | END_STREAM)

    def stays(self) -> None:
        """Hear all that comes until the client leaves."""
        with contextlib.suppress(OSError):
            while True:
                self.hears()


class Raw:
    """Listens, and has each client that comes talk to a function, in a thread. Leave it by `with`."""

    def __init__(self, talk: Callable[[Peer], object], *, seed: int | None = None, tls: ssl.SSLContext | None = None):
        self.failed: list[BaseException] = []
        self.clients = 0
        self.left = threading.Semaphore(0)  # one for each client that has gone, or was left
        self._talk, self._seed, self._tls = talk, seed, tls
        self._listens = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.port: int = self._listens.getsockname()[1]
        self.uri = f"grpc://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connected, _ = self._listens.accept()
                self._open.append(connected)
                self.clients += 1
                threading.Thread(target=self._serve, args=(connected,), daemon=True).start()

    def _serve(self, connected: socket.socket) -> None:
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                connected = self._tls.wrap_socket(connected, server_side=True)
            with connected:
                self._talk(Peer(connected, self._seed))
        except OSError:
            pass  # the client has gone
        except BaseException as error:
            self.failed.append(error)
            raise
        finally:
            self.left.release()

    def __enter__(self) -> Raw:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listens.shutdown(socket.SHUT_RDWR)
        self._listens.close()
        for connected in self._open:
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)


def cut(seed: int, given: bytes, stream: int, largest: int = 16384) -> Iterator[bytes]:
    """Bytes of messages as frames of random sizes, some of them empty, some padded."""
    randomly, at = random.Random(seed), 0
    while at < len(given):
        n = randomly.choice([0, 1, 4, 5, 6, randomly.randrange(largest // 2), largest // 2])
        part, at = given[at : at + n], at + n
        if randomly.random() < 0.3:
            pad = randomly.randrange(256)
            yield frame(DATA, PADDED, stream, bytes([pad]) + part + bytes(pad))
        else:
            yield frame(DATA, 0, stream, part)


def chunks(reader: Any) -> Iterator[Any]:
    """The batches of a reader, to its end."""
    with contextlib.suppress(StopIteration):
        while True:
            yield reader.read_chunk()
