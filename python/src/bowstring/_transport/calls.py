"""Flight calls over the package's own connections: the bodies of record batches stay where they were received.

All calls except uploads are made here, so a process that forks has no state of gRPC.
"""

from __future__ import annotations

import collections
import contextlib
import math
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.flight as fl

import bowstring
from bowstring._cancellation import waiting
from bowstring._finalizers import finalizer
from bowstring._transport import buffers, dial
from bowstring._transport.http2 import CONNECT, Filling, Link
from bowstring._transport.origins import NODES, Known
from bowstring._transport.tls import Encrypted, Tls, context
from bowstring.errors import BowstringError, ServerError, Unavailable

if TYPE_CHECKING:
    from typing import Self

M = TypeVar("M")
T = TypeVar("T")

_SERVICE = "/arrow.flight.protocol.FlightService/"
_HEAD = 16 << 10  # bytes of a message that are read before the place of its body is known
_FIELDS = 20  # most bytes of a field's number and length
_DESCRIPTOR, _HEADER, _METADATA, _BODY = 1, 2, 3, 1000  # fields of FlightData
_LARGEST = 256 << 20  # bytes of an answer that is not a record batch
_KEPT = 4  # idle connections
_LONGEST_SAID = 1e5  # seconds; a header has room for eight digits
_BELIEF = 60.0  # seconds for which certificates that were read are used


class Chunk(NamedTuple):
    """A batch with its metadata, as from a `pyarrow.flight.FlightStreamReader`."""

    data: pa.RecordBatch
    app_metadata: pa.Buffer


@dataclass
class _Message:
    """A FlightData message."""

    header: bytes = b""
    metadata: bytes = b""
    body: pa.Buffer | None = None

    def parts(self) -> list[Any]:
        """The message in Arrow's stream format, as the parts that its reader reads."""
        padding = -len(self.header) % 8
        length = struct.pack("<i", len(self.header) + padding)
        found: list[Any] = [b"\xff\xff\xff\xff", length, self.header + bytes(padding)]
        return [*found, self.body] if self.body else found


class _Taken(Generic[M]):
    """Makes messages from bytes. It is a Taker."""

    def __init__(self, parser: Callable[[bytearray, collections.deque[M]], Filling]) -> None:
        self.ready: collections.deque[M] = collections.deque()
        self._prefix = bytearray(5)
        self._parser = parser(self._prefix, self.ready)
        self._view = next(self._parser)

    @property
    def whole(self) -> bool:
        """Whether no message is incomplete."""
        return self._view.obj is self._prefix and len(self._view) == len(self._prefix)

    def room(self) -> memoryview:
        return self._view

    def filled(self, count: int) -> None:
        self._view = self._view[count:]
        if not self._view:
            self._view = next(self._parser)


def _plain(prefix: bytearray, ready: collections.deque[bytes]) -> Filling:
    """Yield memory for the next bytes. Bytes that were filled become messages."""
    while True:
        yield memoryview(prefix)
        size = _size(prefix)
        if size > _LARGEST:
            raise ServerError(f"the server sent a message of {size} bytes, want {_LARGEST} at most")
        message = bytearray(size)
        if size:
            yield memoryview(message)
        ready.append(bytes(message))


def _size(prefix: bytearray) -> int:
    """The size of the message after a prefix of gRPC."""
    if prefix[0]:
        raise ServerError("a message is compressed, which was not requested")
    return int.from_bytes(prefix[1:], "big")


def _flights(prefix: bytearray, ready: collections.deque[_Message]) -> Filling:
    """As `_plain`, for FlightData, whose bodies are received where they stay."""
    blocks = buffers.of_process()
    view: memoryview | None
    while True:
        yield memoryview(prefix)
        message, left = _Message(), _size(prefix)
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
                view, body = buffers.allocate(blocks, size)
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
        message, body, view = _Message(), None, None  # no reference to it stays here


def _varint(given: bytearray, at: int) -> tuple[int, int]:
    """A number of protobuf, and its end."""
    value = shift = 0
    for end in range(at, min(at + 10, len(given))):
        value |= (given[end] & 127) << shift
        shift += 7
        if given[end] < 128:
            return value, end + 1
    raise ServerError("a message ends in the middle of a number")


class Call(Generic[M]):
    """A call in flight, with its connection until it ends. For one thread at a time; any thread may call `cancel`."""

    def __init__(self, link: Link, back: Callable[[Link], None], taken: _Taken[M]) -> None:
        self._link = link
        self._owned = collections.deque([link])  # the thread that pops it returns or cancels it, once
        self._back = back
        self._ended = False
        self._failure: Callable[[], BowstringError] | None = None  # the error that it ended with
        self._taken = taken

    def begin(self, headers: list[tuple[str, str]], message: bytes, *, last: bool = True) -> None:
        """Begin the call with its first message."""
        try:
            with waiting(self.cancel), self._link.lock:
                self._link.begin(headers, _prefixed(message), self._taken, last=last)
        except BaseException:
            self._link.cancel()
            raise

    def send(self, message: bytes) -> None:
        """Send another message of a call that was begun with `last=False`."""
        with waiting(self.cancel), self._link.lock:
            self._link.send(_prefixed(message))

    def end(self, seconds: float) -> None:
        """Half-close the call, and wait for its end for at most some seconds."""
        try:
            with contextlib.suppress(BowstringError):
                with self._link.lock:
                    self._link.expires(seconds)
                    self._link.finish()
                while self.next() is not None:
                    pass
        finally:
            self.cancel()  # if it has not ended

    def next(self) -> M | None:
        """The next message; None after the last."""
        ready = self._taken.ready
        if not ready and not self._ended:
            self._advance()
        if ready:
            return ready.popleft()
        if self._failure is not None:
            raise self._failure()
        return None

    def _advance(self) -> None:
        """Receive until there is a message, or the end of the call. At the end the connection is returned."""
        link, taken = self._link, self._taken
        try:
            with waiting(self.cancel), link.lock:
                while not taken.ready:
                    if link.over:
                        self._failure = link.failure
                        if self._failure is None and not taken.whole:
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
        """End the call, if it has not ended. A connection that another call uses by now is left alone."""
        with contextlib.suppress(IndexError):
            self._owned.pop().cancel()


class _File:
    """The messages of a call as a file in Arrow's stream format, read part by part."""

    closed = False

    def __init__(self, call: Call[_Message]) -> None:
        self.metadata = b""  # of the last message
        self.failed: BaseException | None = None
        self._call = call
        self._began = False
        self._parts: collections.deque[Any] = collections.deque()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        """Do nothing: this file owns nothing."""

    def wait(self) -> None:
        """Wait for a part, or the end, outside Arrow: Arrow must not be in a wait when the interpreter ends."""
        while not self._parts:
            message = self._call.next()
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


class Reader:
    """The batches of a call, in place of a `pyarrow.flight.FlightStreamReader`.

    For one thread at a time; `cancel` may be called by any.
    """

    def __init__(self, call: Call[_Message]) -> None:
        self._call = call
        self._file = _File(call)
        self._batches: pa.RecordBatchStreamReader | None = None

    def open(self) -> Self:
        """Wait for the schema, which is the server's answer."""
        self._opened()
        return self

    def _opened(self) -> pa.RecordBatchStreamReader:
        if self._batches is None:
            try:
                self._file.wait()
                self._batches = self._raising(partial(pa.ipc.open_stream, pa.PythonFile(self._file, "r")))
            except BaseException:
                self.cancel()
                raise
        return self._batches

    def read_chunk(self) -> Chunk:
        """The next batch; StopIteration after the last."""
        batches = self._opened()
        self._file.metadata = b""
        self._file.wait()
        batch = self._raising(batches.read_next_batch)
        return Chunk(batch, pa.py_buffer(self._file.metadata))

    def end(self, seconds: float) -> None:
        """Half-close the call, and wait for its end for at most some seconds."""
        self._call.end(seconds)

    def cancel(self) -> None:
        """End the call, and cancel it at the server."""
        self._call.cancel()

    @finalizer
    def __del__(self) -> None:
        if hasattr(self, "_call"):
            self.cancel()

    def _raising(self, what: Callable[[], Any]) -> Any:
        """Call a reader of Arrow. An exception that the file has raised is re-raised unchanged."""
        try:
            return what()
        except BaseException:
            failed, self._file.failed = self._file.failed, None
            if failed is None:
                raise
            try:
                raise failed from None
            finally:
                del failed  # its traceback refers to this frame


class Writer:
    """Sends the batches of a call, in place of a `pyarrow.flight.FlightStreamWriter`. The first one begins the call."""

    def __init__(self, call: Call[_Message], headers: list[tuple[str, str]], descriptor: bytes) -> None:
        self._call = call
        self._headers = headers
        self._descriptor = descriptor

    def begin(self, schema: pa.Schema) -> None:
        """Begin the call, for batches with this schema."""
        message = _sent(_DESCRIPTOR, self._descriptor) + _as_flight(schema.serialize())
        self._call.begin(self._headers, message, last=False)

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Send a batch."""
        self._call.send(_as_flight(batch.serialize()))


def _as_flight(encapsulated: pa.Buffer) -> bytes:
    """A message of Arrow's stream format as FlightData."""
    size = struct.unpack_from("<i", encapsulated, 4)[0]
    message = encapsulated.to_pybytes()
    return _sent(_HEADER, message[8 : 8 + size]) + _sent(_BODY, message[8 + size :])


def _sent(number: int, content: bytes) -> bytes:
    """A field of protobuf with bytes."""
    return _as_varint(number << 3 | 2) + _as_varint(len(content)) + content


def _field_of(message: bytes, number: int) -> bytes:
    """The bytes of a field that a message has once; empty if it is absent."""
    at, given, found = 0, bytearray(message), b""
    while at < len(given):
        key, at = _varint(given, at)
        size, end = _varint(given, at)
        if key & 7 == 0:
            at = end
            continue
        if key & 7 != 2 or end + size > len(given):
            raise ServerError(f"field {key >> 3} of a message is not what it should be")
        at = end + size
        if key >> 3 == number:
            found = bytes(given[end:at])
    return found


def _prefixed(message: bytes) -> bytes:
    """A message with the prefix of gRPC."""
    return struct.pack(">BI", 0, len(message)) + message


def _as_varint(number: int) -> bytes:
    found = b""
    while number > 127:
        found += bytes([number & 127 | 128])
        number >>= 7
    return found + bytes([number])


def _heard(known: Known, headers: dict[str, str]) -> None:
    """Record headers that came before an answer."""
    known.add(headers.get(NODES, "").split())


class Connections:
    """How a server is reached, with its idle connections.

    Attributes:
        uri: The server's address.
    """

    def __init__(self, uri: str, tls: Tls | None, known: Known | None = None) -> None:
        self._known = known or Known()
        self._free: collections.deque[Link] = collections.deque()
        self._closed = False
        self.uri = uri
        self._parts = urlsplit(uri)
        self._tls = (tls or Tls()) if self._parts.scheme == "grpc+tls" else None
        self._context: ssl.SSLContext | None = None
        self._read = -math.inf  # when that was read from files

    def get(self, ticket: bytes, headers: list[tuple[bytes, bytes]]) -> Reader:
        """Make the call of a stream, and wait until the server answers."""

        def made(link: Link) -> Reader:
            call = Call(link, self._back, _Taken(_flights))
            call.begin(self._headers("DoGet", headers), _sent(1, ticket))
            return Reader(call).open()

        return self._made(made)

    def exchange(self, descriptor: bytes, headers: list[tuple[bytes, bytes]]) -> tuple[Writer, Reader]:
        """A call with batches in both directions, which begins with the first batch that is written."""
        link = self._idle() or self._connected()
        call = Call(link, self._back, _Taken(_flights))
        return Writer(call, self._headers("DoExchange", headers), descriptor), Reader(call)

    def schema(self, descriptor: bytes, headers: list[tuple[bytes, bytes]], seconds: float | None) -> pa.Schema:
        """The answer to GetSchema."""
        message = self._only("GetSchema", descriptor, headers, seconds)
        return pa.ipc.read_schema(pa.py_buffer(_field_of(message, 1)))

    def info(self, descriptor: bytes, headers: list[tuple[bytes, bytes]], seconds: float | None) -> fl.FlightInfo:
        """The answer to GetFlightInfo."""
        return fl.FlightInfo.deserialize(self._only("GetFlightInfo", descriptor, headers, seconds))

    def action(
        self, name: str, body: bytes, headers: list[tuple[bytes, bytes]], seconds: float | None, *, again: bool
    ) -> Iterator[bytes]:
        """The results of DoAction; `again` allows the call to be made twice."""
        call, first = self._asked("DoAction", _sent(1, name.encode()) + _sent(2, body), headers, seconds, again=again)
        try:
            message = first
            while message is not None:
                yield _field_of(message, 1)
                message = call.next()
        finally:
            call.cancel()  # if it has not ended

    def _only(self, method: str, message: bytes, headers: list[tuple[bytes, bytes]], seconds: float | None) -> bytes:
        """The single message that answers a call without side effects."""
        call, found = self._asked(method, message, headers, seconds, again=True)
        try:
            if found is None:
                raise ServerError(f"the server answered {method} without a message")
            call.next()  # the end, with the status
        finally:
            call.cancel()  # if it has not ended
        return found

    def _asked(
        self, method: str, message: bytes, headers: list[tuple[bytes, bytes]], seconds: float | None, *, again: bool
    ) -> tuple[Call[bytes], bytes | None]:
        """A call and its first message; None if there is none."""
        sent = self._headers(method, headers)
        if seconds is not None and seconds < _LONGEST_SAID:
            # Rounded up, so that the server does not time out before the client.
            sent.append(("grpc-timeout", f"{max(1, math.ceil(seconds * 1000))}m"))

        def made(link: Link) -> tuple[Call[bytes], bytes | None]:
            call = Call(link, self._back, _Taken(_plain))
            link.expires(seconds)
            try:
                call.begin(sent, message)
                return call, call.next()
            except BaseException:
                call.cancel()
                raise

        return self._made(made) if again else made(self._idle() or self._connected())

    def _made(self, made: Callable[[Link], T]) -> T:
        """The result of a call that may be made twice: an idle connection may have just been closed."""
        link = self._idle()
        if link is not None:
            with contextlib.suppress(Unavailable):
                return made(link)
        return made(self._connected())

    def _headers(self, method: str, headers: list[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
        """The headers of a call."""
        return [
            (":method", "POST"),
            (":scheme", "http" if self._tls is None else "https"),
            (":path", _SERVICE + method),
            (":authority", self._authority()),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", f"bowstring-python/{bowstring.__version__}"),
            *((name.decode(), value.decode()) for name, value in headers),
        ]

    def _authority(self) -> str:
        """The server's name in calls."""
        if self._parts.scheme == "grpc+unix":
            return "localhost"
        return (self._tls.server_name if self._tls is not None else None) or self._parts.netloc

    def _idle(self) -> Link | None:
        """An idle connection that is still open."""
        with contextlib.suppress(IndexError):  # there is none
            while True:
                link = self._free.pop()
                if link.lively():
                    return link
                link.cancel()
        return None

    def _back(self, link: Link) -> None:
        """Take back the connection of a call that has ended."""
        if link.reusable and len(self._free) < _KEPT:
            self._free.append(link)
            if self._closed:
                self.close()
        else:
            link.cancel()

    def close(self) -> None:
        """Close idle connections, now and later."""
        self._closed = True
        with contextlib.suppress(IndexError):  # all are closed
            while True:
                self._free.pop().cancel()

    @finalizer
    def __del__(self) -> None:
        self.close()

    def _connected(self) -> Link:
        """A new connection."""
        if self._tls is not None and (self._context is None or time.monotonic() - self._read >= _BELIEF):
            self._context, self._read = context(self._tls), time.monotonic()
        with contextlib.ExitStack() as failing:
            try:
                plain = failing.enter_context(dial.connect(self._parts, CONNECT))
                connected: socket.socket | Encrypted = plain
                if self._tls is not None and self._context is not None:
                    connected = Encrypted(plain, self._context, self._tls.server_name or self._parts.hostname)
                plain.settimeout(None)
            except ssl.SSLCertVerificationError as error:
                self._context = None  # the user may correct what is trusted
                raise Unavailable(
                    f"{self.uri} has a certificate that is not trusted: {error.verify_message}; "
                    "Tls(root_certs=...) or SSL_CERT_FILE names those to trust"
                ) from error
            except BowstringError:
                raise
            except OSError as error:
                raise Unavailable(f"{self.uri} cannot be reached: {error.strerror or error}") from error
            failing.pop_all()
        return Link(connected, partial(_heard, self._known))
