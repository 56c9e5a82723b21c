"""A relay between a client and its server, which may fall silent."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType

PATIENCE = 180  # seconds
PREFACE = len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
HEADERS = 1  # the frame that begins a call


class _Way:
    """The bytes from one side to the other. It is kept while the relay is silent."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source = source
        self._sink = sink
        self._lock = threading.Lock()
        self._kept = b""
        self._begun = False
        self._frames = b""  # the beginning of one

    def take(self, data: bytes) -> None:
        with self._lock:
            self._kept += data

    def hand_over(self) -> None:
        with self._lock:
            kept, self._kept = self._kept, b""
            self._sink.sendall(kept)

    def calls(self, data: bytes) -> bool:
        """Whether a client of HTTP/2 connects or calls with this. Pings and the like are neither."""
        self._frames += data
        found = not self._begun
        if found and len(self._frames) >= PREFACE:
            self._frames, self._begun = self._frames[PREFACE:], True
        while self._begun and len(self._frames) >= 9 + (size := int.from_bytes(self._frames[:3], "big")):
            found = found or self._frames[3] == HEADERS
            self._frames = self._frames[9 + size :]
        return found

    def end(self) -> None:
        for side in (self.source, self._sink):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)


class Relay:
    """A port that leads to another, as long as it talks. It takes connections and what they say in any case."""

    def __init__(self, port: int, *, talks: bool = True) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"grpc://127.0.0.1:{self._listener.getsockname()[1]}"
        self.is_talking = talks
        self._heard = threading.Event()  # a client has connected or called, and its server does not know of it
        self.connections = 0  # that there have been
        self._ways: list[_Way] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def falls_silent(self) -> None:
        """From now on nothing gets to either side."""
        self._heard.clear()
        self.is_talking = False

    def waits_for_a_client(self) -> None:
        """Wait until a client has connected or has called since it has been silent."""
        assert self._heard.wait(PATIENCE)

    def talks(self) -> None:
        """Hand over what was said meanwhile, and all that follows."""
        self.is_talking = True
        for way in list(self._ways):
            with contextlib.suppress(OSError):
                way.hand_over()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it is closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                there, back = _Way(client, server), _Way(server, client)
                self._ways += [there, back]
                self.connections += 1
                threading.Thread(target=self._pump, args=(there, True), daemon=True).start()
                threading.Thread(target=self._pump, args=(back, False), daemon=True).start()

    def _pump(self, way: _Way, of_client: bool) -> None:
        with contextlib.suppress(OSError):
            while data := way.source.recv(1 << 16):
                calls = of_client and way.calls(data)
                way.take(data)
                if self.is_talking:
                    way.hand_over()
                elif calls:
                    self._heard.set()
        way.end()

    def __enter__(self) -> Relay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for way in self._ways:
            way.end()
