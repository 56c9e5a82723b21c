"""DoGet by a connection of the package's own: record batches whose bodies stay where they were received."""

from __future__ import annotations

import collections
import contextlib
import math
import socket
import ssl
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pyarrow as pa

import bowstring
from bowstring import _dial, _landing
from bowstring._collected import collected
from bowstring._http2 import CONNECT, Filling, Link
from bowstring._origins import NODES, Known
from bowstring._tls import Encrypted, Tls, context
from bowstring.errors import BowstringError, ServerError, Unavailable

_METHOD = "/arrow.flight.protocol.FlightService/DoGet"
_HEAD = 16 << 10  # bytes of a message that are looked at before it is known where its body goes
_FIELDS = 20  # bytes that a field's number and length have at most
_HEADER, _METADATA, _BODY = 2, 3, 1000  # fields of FlightData
_KEPT = 4  # connections without a stream
_BELIEF = 60.0  # seconds for which what was read and found of certificates holds


class Chunk(NamedTuple):
    """A batch and what came with it, as of a `pyarrow.flight.FlightStreamReader`."""

    data: pa.RecordBatch
    app_metadata: pa.Buffer


@dataclass
class _Message:
    """A FlightData."""

    header: bytes = b""
    metadata: bytes = b""
    body: pa.Buffer | None = None

    def parts(self) -> list[Any]:
        """What a reader of Arrow's stream format reads, read by read."""
        padding = -len(self.header) % 8
        length = struct.pack("<i", len(self.header) + padding)
        found: list[Any] = [b"\xff\xff\xff\xff", length, self.header + bytes(padding)]
        return [*found, self.body] if self.body else found


class _Messages:
    """Makes messages of bytes. It is a Taker."""

    def __init__(self) -> None:
        self.ready: collections.deque[_Message] = collections.deque()
        self._prefix = bytearray(5)
        self._parser = _parsed(self._prefix, self.ready, _landing.of_process())
        self._view = next(self._parser)

    @property
    def whole(self) -> bool:
        """Whether each message that has begun has come to its end."""
        return self._view.obj is self._prefix and len(self._view) == len(self._prefix)

    def room(self) -> memoryview:
        return self._view

    def filled(self, count: int) -> None:
        self._view = self._view[count:]
        if not self._view:
            self._view = next(self._parser)


def _parsed(prefix: bytearray, ready: collections.deque[_Message], blocks: _landing.Blocks) -> Filling:
    """Memory for what comes next, again and again. What was filled becomes messages."""
    view: memoryview | None
    while True:
        yield memoryview(prefix)
        if prefix[0]:
            raise ServerError("a message is compressed, which nobody asked for")
        message, left = _Message(), int.from_bytes(prefix[1:], "big")
        known, at = bytearray(), 0
        view = body = None
        while left or at < len(known):
            if left and len(known) - at < _FIELDS:
                more = bytearray(min(left, _HEAD))
                yield memoryview(more)
                left -= len(more)
                known, at = known[at:] + more, 0
            key, at = _varint(known, at)
            size, at = _varint(known, at)
            if key & 7 != 2 or size > left + len(known) - at:
                raise ServerError(f"field {key >> 3} of a message is not what it should be")
            if key >> 3 == _BODY:
                view, body = _landing.landing(blocks, size)
                message.body = body
            else:
                part = bytearray(size)
                view = memoryview(part)
            there = min(size, len(known) - at)
            view[:there] = known[at : at + there]
            at += there
            if there < size:
                yield view[there:]
                left -= size - there
            if key >> 3 == _HEADER:
                message.header = bytes(part)
            elif key >> 3 == _METADATA:
                message.metadata = bytes(part)
        ready.append(message)
        message, body, view = _Message(), None, None  # nothing of it is kept here


def _varint(given: bytearray, at: int) -> tuple[int, int]:
    """A number of protobuf's, and where it ends."""
    value = shift = 0
    for end in range(at, min(at + 10, len(given))):
        value |= (given[end] & 127) << shift
        shift += 7
        if given[end] < 128:
            return value, end + 1
    raise ServerError("a message ends in the middle of a number")


class _File:
    """The messages of a call as a file in Arrow's stream format, which is read part by part."""

    closed = False

    def __init__(self, link: Link, back: Callable[[Link], None], headers: list[tuple[str, str]], ticket: bytes) -> None:
        self.metadata = b""  # that came last
        self.failed: BaseException | None = None
        self._link = link
        self._owned = collections.deque([link])  # whoever takes it from there gives it back, or cancels it: once
        self._back = back
        self._ended = False
        self._failure: Callable[[], BowstringError] | None = None  # what it has ended with
        self._began = False
        self._messages = _Messages()
        self._parts: collections.deque[Any] = collections.deque()
        message = b"\x0a" + _as_varint(len(ticket)) + ticket
        try:
            with link.lock:
                link.begin(headers, struct.pack(">BI", 0, len(message)) + message, self._messages)
        except BaseException:
            link.cancel()
            raise

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        """A file can be closed. This one has nothing of its own."""

    def wait(self) -> None:
        """Wait for a part, or the end; not in Arrow: threads that wait may end with Python, which it cannot bear."""
        while not self._parts:
            message = self._next()
            if message is None:
                break
            if message.metadata:
                self.metadata = message.metadata
            if message.header:
                self._began = True
                self._parts.extend(message.parts())

    def read(self, size: int) -> Any:
        """The next part; nothing after the last."""
        try:
            self.wait()
            if not self._parts:
                if not self._began:
                    raise ServerError("the server never sent a schema")  # noqa: TRY301
                return b""
            part = self._parts.popleft()
            if len(part) != size:
                raise ServerError(f"a message has a part of {len(part)} bytes where {size} belong")  # noqa: TRY301
        except BaseException as error:
            self.failed = error
            raise
        return part

    def _next(self) -> _Message | None:
        """The next message; None after the last."""
        ready = self._messages.ready
        if not ready and not self._ended:
            self._advance()
        if ready:
            return ready.popleft()
        if self._failure is not None:
            raise self._failure()
        return None

    def _advance(self) -> None:
        """Receive until there is a message, or the end of the call. Its connection is given back then."""
        link, messages = self._link, self._messages
        try:
            with link.lock:
                while not messages.ready:
                    if link.over:
                        self._failure = link.failure
                        if self._failure is None and not messages.whole:
                            self._failure = partial(ServerError, "the server ended the stream within a message")
                        self._ended = True
                        break
                    link.advance()
        finally:
            link.settle()
        if self._ended:
            with contextlib.suppress(IndexError):  # it was cancelled
                self._back(self._owned.pop())

    def cancel(self) -> None:
        """End the call, if it has not ended. Its connection may be another's by now, and is left alone then."""
        with contextlib.suppress(IndexError):
            self._owned.pop().cancel()


class Reader:
    """The batches of a call, in place of a `pyarrow.flight.FlightStreamReader`.

    For one thread at a time; `cancel` may be called by any.
    """

    def __init__(self, link: Link, back: Callable[[Link], None], headers: list[tuple[str, str]], ticket: bytes) -> None:
        self._file = _File(link, back, headers, ticket)
        try:
            self._file.wait()
            self._batches = self._raising(partial(pa.ipc.open_stream, pa.PythonFile(self._file, "r")))
        except BaseException:
            self.cancel()
            raise

    def read_chunk(self) -> Chunk:
        """The next batch; StopIteration after the last."""
        self._file.metadata = b""
        self._file.wait()
        batch = self._raising(self._batches.read_next_batch)
        return Chunk(batch, pa.py_buffer(self._file.metadata))

    def cancel(self) -> None:
        """End the call. The server is told."""
        self._file.cancel()

    @collected
    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.cancel()

    def _raising(self, what: Callable[[], Any]) -> Any:
        """What Arrow gives that reads the file. What the file has raised comes out as it was."""
        try:
            return what()
        except BaseException:
            failed, self._file.failed = self._file.failed, None
            if failed is None:
                raise
            try:
                raise failed from None
            finally:
                del failed  # its traceback has this frame


def _as_varint(number: int) -> bytes:
    found = b""
    while number > 127:
        found += bytes([number & 127 | 128])
        number >>= 7
    return found + bytes([number])


def _heard(known: Known, headers: dict[str, str]) -> None:
    """Headers have come ahead of an answer."""
    known.add(headers.get(NODES, "").split())


class Door:
    """How a server is reached, and the connections to it that no stream has.

    Attributes:
        uri: The server's address.
    """

    def __init__(self, uri: str, tls: Tls | None, known: Known | None = None) -> None:
        self._known = known or Known()
        self._free: collections.deque[Link] = collections.deque()
        self._closed = False
        self.uri = uri
        self._parts = parts = urlsplit(uri)
        self._direct = _dial.direct(parts)
        self._doubted = -math.inf  # when Python did not know the server's certificate
        self._tls = (tls or Tls()) if parts.scheme == "grpc+tls" else None
        self._context: ssl.SSLContext | None = None
        self._read = -math.inf  # when that was made of files

    @property
    def usable(self) -> bool:
        """Whether streams can be opened by it. Else pyarrow has to: it knows proxies, and other certificates."""
        return self._direct and time.monotonic() - self._doubted >= _BELIEF

    @property
    def why(self) -> str:
        """Why it is not usable."""
        if self._direct:
            return "its certificate is none that Python trusts"
        return "a proxy is to be asked for it, BOWSTRING_HTTP2=off is set, or this is Windows"

    def get(self, ticket: bytes, headers: list[tuple[bytes, bytes]]) -> Reader | None:
        """Make a call, and wait until the server answers. None where it proves not to be usable."""
        sent = [
            (":method", "POST"),
            (":scheme", "http" if self._tls is None else "https"),
            (":path", _METHOD),
            (":authority", self._authority()),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", f"bowstring-python/{bowstring.__version__}"),
            *((name.decode(), value.decode()) for name, value in headers),
        ]
        link = self._idle()
        if link is not None:
            with contextlib.suppress(Unavailable):  # it may have been closed just now
                return Reader(link, self._back, sent, ticket)
        connected = self._connected()
        return (
            Reader(Link(connected, partial(_heard, self._known)), self._back, sent, ticket)
            if connected is not None
            else None
        )

    def _authority(self) -> str:
        """The server's name, as it is called."""
        if self._parts.scheme == "grpc+unix":
            return "localhost"
        return (self._tls.server_name if self._tls is not None else None) or self._parts.netloc

    def _idle(self) -> Link | None:
        """A connection that no stream has, and that is there still."""
        with contextlib.suppress(IndexError):  # there is none
            while True:
                link = self._free.pop()
                if link.lively():
                    return link
                link.cancel()
        return None

    def _back(self, link: Link) -> None:
        """A call has ended."""
        if link.reusable and len(self._free) < _KEPT:
            self._free.append(link)
            if self._closed:
                self.close()
        else:
            link.cancel()

    def close(self) -> None:
        """Close the connections that no stream has, now or later."""
        self._closed = True
        with contextlib.suppress(IndexError):  # all are closed
            while True:
                self._free.pop().cancel()

    @collected
    def __del__(self) -> None:
        self.close()

    def _connected(self) -> socket.socket | Encrypted | None:
        """A connection; None where the server's certificate is not known to Python."""
        with contextlib.ExitStack() as failing:
            try:
                plain = failing.enter_context(_dial.connect(self._parts, CONNECT))
                connected: socket.socket | Encrypted = plain
                if self._tls is not None:
                    if self._context is None or time.monotonic() - self._read >= _BELIEF:
                        self._context, self._read = context(self._tls), time.monotonic()
                    connected = Encrypted(plain, self._context, self._tls.server_name or self._parts.hostname)
                plain.settimeout(None)
            except ssl.SSLCertVerificationError:
                # pyarrow has a list of its own of whom to trust. Or a certificate, or a clock, is to be put right.
                self._doubted = time.monotonic()
                return None
            except OSError as error:
                raise Unavailable(f"{self.uri} cannot be reached: {error.strerror or error}") from error
            failing.pop_all()
        return connected
