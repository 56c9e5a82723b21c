"""A proxy of HTTP/2 that ends streams in the middle, as proxies do with those that are idle, or that are long."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType

import raw
from relay import PREFACE

_CANCEL = 8  # HTTP/2's reason


class _Connection:
    """One connection of a client's, and the one to the server that belongs to it."""

    def __init__(self, client: socket.socket, server: socket.socket, cut: Cut) -> None:
        self.client, self._server, self._cut = client, server, cut
        self._ended: set[int] = set()  # streams
        self._to_server = threading.Lock()

    def run(self) -> None:
        threading.Thread(target=self._pump, daemon=True).start()
        with contextlib.suppress(OSError, EOFError):
            while True:
                head = _exactly(self._server, 9)
                size, kind = int.from_bytes(head[:3], "big"), head[3]
                stream = int.from_bytes(head[5:], "big")
                content = _exactly(self._server, size)
                if stream in self._ended:
                    self._taken(kind, size)
                elif kind == raw.DATA and self._cut.due(size):
                    self._ended.add(stream)
                    half = content[: size // 2]
                    self.client.sendall(raw.frame(raw.DATA, 0, stream, half) + self._cut.ending(stream))
                    self._taken(kind, size - len(half))
                    self.forward(raw.frame(raw.RST_STREAM, 0, stream, struct.pack(">I", _CANCEL)))
                    if self._cut.closes:
                        break
                else:
                    self.client.sendall(head + content)
        self.end()

    def _taken(self, kind: int, size: int) -> None:
        """Count data that the client never sees as consumed."""
        if kind == raw.DATA and size:
            self.forward(raw.frame(raw.WINDOW_UPDATE, 0, 0, struct.pack(">I", size)))

    def forward(self, frame: bytes) -> None:
        with self._to_server:
            self._server.sendall(frame)

    def _pump(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            self.forward(_exactly(self.client, PREFACE))
            while True:
                head = _exactly(self.client, 9)
                self.forward(head + _exactly(self.client, int.from_bytes(head[:3], "big")))
        self.end()

    def end(self) -> None:
        for side in (self.client, self._server):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)


def _exactly(source: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = source.recv(size - len(found))
        if not more:
            raise EOFError
        found += more
    return found


class Cut:
    """When a stream is ended, and by what: after each run of this number of bytes, this number of times in all."""

    def __init__(self, every: int, times: int, ending: Callable[[int], bytes], *, closes: bool = False) -> None:
        self.made = 0
        self.ending, self.closes = ending, closes
        self._every, self._times, self._passed = every, times, 0

    def due(self, size: int) -> bool:
        self._passed += size
        if self._passed < self._every or self.made == self._times:
            return False
        self._passed, self.made = 0, self.made + 1
        return True


def reset(reason: int) -> Callable[[int], bytes]:
    """An end by RST_STREAM."""
    return lambda stream: raw.frame(raw.RST_STREAM, 0, stream, struct.pack(">I", reason))


def end_of_data(stream: int) -> bytes:
    """An end as if all had come, without a status."""
    return raw.frame(raw.DATA, raw.END_STREAM, stream)


def goes_away(stream: int) -> bytes:
    """A word that the connection takes no more calls, nor goes on with this one."""
    return raw.frame(raw.GOAWAY, 0, 0, struct.pack(">II", max(0, stream - 2), 0) + b"max connection age")


def nothing(_: int) -> bytes:
    """No word at all."""
    return b""


class Cutter:
    """A port that leads to another, by a proxy that cuts streams off."""

    def __init__(self, port: int, cut: Cut) -> None:
        self._port, self._cut = port, cut
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"grpc://127.0.0.1:{self._listener.getsockname()[1]}"
        self._connections: list[_Connection] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it is closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                connection = _Connection(client, server, self._cut)
                self._connections.append(connection)
                threading.Thread(target=connection.run, daemon=True).start()

    def __enter__(self) -> Cutter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            connection.end()
