"""gRPC calls over HTTP/2 whose answers are received into their final place.

pyarrow's own transport reads a message in parts and joins them, which takes most of a client's time. Here the bytes of
a message go from the kernel to their final place. A connection has one call at a time. It follows RFC 9113 and gRPC's
"gRPC over HTTP2".

No thread reads a connection while its consumer does something else, except the one of `maintenance`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Protocol
from urllib.parse import unquote

import hpack

from bowstring._status import of_header
from bowstring._transport import dial, maintenance
from bowstring._transport.tls import Encrypted
from bowstring.errors import CUT_OFF, BowstringError, Cancelled, ServerError, TimedOut, Unavailable, by_number

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PUSH_PROMISE, _PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = (
    0, 1, 3, 4, 5, 6, 7, 8, 9,
)  # fmt: skip
_END_STREAM, _ACK, _END_HEADERS, _PADDED, _PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
_HEADER_TABLE_SIZE, _ENABLE_PUSH, _INITIAL_WINDOW_SIZE, _MAX_FRAME_SIZE = 1, 2, 4, 5
_LARGEST_FRAME = (1 << 24) - 1  # most bytes of a server's frame, which one call of the kernel may read
_RECEIVE_WINDOW = 32 << 20  # bytes that a server may send ahead of the consumer
_LARGEST_HEADERS = 1 << 20  # bytes
_LARGEST_CONTROL = 1 << 16  # bytes of a frame without a message
# HTTP/2's error codes that say more than INTERNAL, as gRPC's codes.
_RESETS = {0xB: 8, 0xC: 7, **dict.fromkeys(CUT_OFF, 14)}
_STATUS = {"400": 13, "401": 16, "403": 7, "404": 12, "408": 14, "429": 14, "502": 14, "503": 14, "504": 14}

CONNECT = 20.0  # seconds to connect

Filling = Generator[memoryview, None, None]


class Taker(Protocol):
    """Receives a call's answer."""

    def room(self) -> memoryview:
        """Memory for the next bytes, at least one."""

    def filled(self, count: int) -> None:
        """Report that many of these bytes as received."""


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """A frame of HTTP/2."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


class Link:
    """A connection to a server, for one call at a time.

    The caller of `begin`, `advance` or `catch_up` holds `lock`; the other methods take it if they need it. Any thread
    may call `cancel` at any time.
    """

    def __init__(
        self, connected: socket.socket | Encrypted, heard: Callable[[dict[str, str]], object] | None = None
    ) -> None:
        self._heard = heard  # called with the headers that come before an answer
        self.lock = threading.Lock()
        self.reusable = True  # another call may be made after this one
        self.served = time.monotonic()  # when the socket was last read
        self._socket = connected
        self._reads = connected.receive if isinstance(connected, Encrypted) else partial(dial.receive, connected)
        self._pid = os.getpid()
        self._cancelled = False
        # Makes the error; an error object would keep references to its frames
        self._broken: Callable[[], BowstringError] | None = None
        self._decoder, self._encoder = hpack.Decoder(_LARGEST_HEADERS), hpack.Encoder()
        self._stream = -1
        self._taker: Taker | None = None
        self.failure: Callable[[], BowstringError] | None = None  # makes the error that the call has ended with
        self._over = True
        self._seconds: float | None = None  # timeout of the call
        self._until: float | None = None  # by the monotonic clock
        self._window, self._stream_window = 65535, 65535  # bytes that may be sent
        self._initial_window, self._largest = 65535, 16384
        self._taken = 0  # bytes of messages received and not yet acknowledged by a window update
        self._parser = self._frames()
        self._view = next(self._parser)
        settings = struct.pack(
            ">HIHIHI", _ENABLE_PUSH, 0, _INITIAL_WINDOW_SIZE, _RECEIVE_WINDOW, _MAX_FRAME_SIZE, _LARGEST_FRAME
        )
        more = struct.pack(">I", _RECEIVE_WINDOW - 65535)
        self._unsent = _PREFACE + frame(_SETTINGS, 0, 0, settings) + frame(_WINDOW_UPDATE, 0, 0, more)
        maintenance.keep(self)

    def begin(self, headers: list[tuple[str, str]], request: bytes, taker: Taker, *, last: bool = True) -> None:
        """Make a call. Its answer goes to `taker`; `last` says that there are no further requests."""
        self._stream += 2
        self._taker, self.failure, self._over = taker, None, False
        self._stream_window = self._initial_window
        kind, block = _HEADERS, self._encoder.encode([_field(name, value) for name, value in headers])
        for at in range(0, len(block), self._largest):
            flags = _END_HEADERS if at + self._largest >= len(block) else 0
            self._unsent += frame(kind, flags, self._stream, block[at : at + self._largest])
            kind = _CONTINUATION
        self.send(request, last=last)

    def send(self, request: bytes, *, last: bool = False) -> None:
        """Send a request of the call."""
        try:
            self._request(request, last=last)
            self._flush()
        except BaseException as error:
            if (failure := self._break(error)) is None:
                raise
            raise failure() from error

    def finish(self) -> None:
        """Half-close the call."""
        if not self._over:
            self._unsent += frame(_DATA, _END_STREAM, self._stream, b"")
            self.send(b"")

    def expires(self, seconds: float | None) -> None:
        """Set the timeout of the next call."""
        self._seconds, self._until = seconds, None if seconds is None else time.monotonic() + seconds

    def _request(self, request: bytes, *, last: bool) -> None:
        """Send a request, waiting for flow control as often as needed."""
        at = 0
        while at < len(request) and not self._over:
            n = min(len(request) - at, self._largest, self._window, self._stream_window)
            if n <= 0:
                self._flush()
                self.advance()  # until the server has room
                continue
            self._window -= n
            self._stream_window -= n
            flags = _END_STREAM if last and at + n == len(request) else 0
            self._unsent += frame(_DATA, flags, self._stream, request[at : at + n])
            at += n

    def lively(self) -> bool:
        """Whether another call can be made. Frames that have arrived are processed first."""
        if not self.reusable:
            return False  # also in a child, where the thread that holds the lock may not exist
        with contextlib.suppress(BowstringError):
            with self.lock:
                self.catch_up()
            return self.reusable
        return False

    def catch_up(self) -> None:
        """Receive what has arrived."""
        while self.advance(wait=False):
            pass

    @property
    def over(self) -> bool:
        """Whether the call's answer has ended."""
        return self._over

    def advance(self, *, wait: bool = True) -> bool:
        """Receive what one call of the kernel brings. False if nothing has arrived.

        A caller that waits also consumes messages, so the server may send as many bytes again.
        """
        if self._broken is not None:
            raise self._broken()
        self.served = time.monotonic()
        try:
            self._answer(wait=wait)  # before the wait, because the server may be blocked by flow control
            n = self._receive(wait=wait)
            if n is None:
                return False
            if n == 0:
                raise ConnectionResetError("the server has closed it")  # noqa: TRY301
            self._view = self._view[n:]
            if not self._view:
                self._view = next(self._parser)
            self._answer(wait=wait)
        except BaseException as error:  # also a signal's: received bytes may be lost
            if (failure := self._break(error)) is None:
                raise
            raise failure() from error
        return True

    def _answer(self, *, wait: bool) -> None:
        """Send what the server waits for."""
        if wait and self._taken >= _RECEIVE_WINDOW // 4:
            self._allow()
        self._flush()

    def _break(self, error: BaseException) -> Callable[[], BowstringError] | None:
        """Close the connection after an error. Return a function that makes another error to raise, if there is one."""
        if self._broken is not None:
            return None
        self.reusable = False
        self._close()
        text, reported = f"the connection was left in the middle of an answer: {error!r}", False
        if isinstance(error, OSError):
            text, reported = f"the connection broke: {error.strerror or error}", True
        self._broken = partial(Unavailable, text)
        # Otherwise it is the kernel's, of the connection
        if isinstance(error, TimeoutError) and self._until is not None:
            self._broken = self._late()
        if isinstance(error, (ValueError, hpack.HPACKError, ServerError)):
            self._broken, reported = partial(ServerError, f"the server's answer cannot be understood: {error}"), True
        if self._cancelled:
            self._broken = partial(Cancelled, "the call was cancelled")
        return self._broken if reported else None

    def _late(self) -> Callable[[], BowstringError]:
        """Return a function that makes the error of a timed-out call."""
        return partial(TimedOut, f"the server has not answered within {self._seconds:g} s")

    def _receive(self, *, wait: bool) -> int | None:
        if self._cancelled:
            raise ConnectionAbortedError
        if self._until is not None and wait:
            self._socket.settimeout(max(self._until - time.monotonic(), 1e-3))
        with contextlib.suppress(BlockingIOError):
            return self._reads(self._view, wait=wait)
        return None

    def cancel(self) -> None:
        """End the connection, and its call. A thread that waits for it is woken."""
        self._cancelled, self.reusable = True, False
        if self._pid != os.getpid():
            return
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self.settle()

    def settle(self) -> None:
        """Close a cancelled connection. Call it after releasing `lock`, which keeps others from closing it."""
        if self._cancelled and self.lock.acquire(blocking=False):
            self._close()
            self.lock.release()

    def drop(self) -> None:
        """Close this process's descriptor without notifying the server."""
        self._cancelled, self.reusable = True, False
        self._socket.close()

    def _close(self) -> None:
        """Release the socket and the state, so that nothing is left for the garbage collector."""
        self._socket.close()
        self._parser.close()
        self._view, self._taker = memoryview(b""), None

    def _flush(self) -> None:
        """Send pending bytes."""
        unsent, self._unsent = self._unsent, b""
        if unsent:
            self._socket.sendall(unsent)

    def _frames(self) -> Filling:
        """Process one frame after another."""
        head = bytearray(9)
        while True:
            yield memoryview(head)
            size = int.from_bytes(head[:3], "big")
            kind, flags = head[3], head[4]
            if head.startswith(b"HTTP/"):
                raise ConnectionError("the server does not speak HTTP/2")
            stream = int.from_bytes(head[5:], "big") & 0x7FFFFFFF
            if size > _LARGEST_FRAME or (kind != _DATA and size > _LARGEST_CONTROL):
                raise ServerError(f"the server sent a frame of {size} bytes of kind {kind}")
            if kind == _DATA:
                yield from self._data(size, flags, stream)
                continue
            payload = bytearray(size)
            if size:
                yield memoryview(payload)
            if kind == _HEADERS:
                yield from self._headers(bytes(payload), flags, stream)
            else:
                self._control(kind, flags, stream, bytes(payload))

    def _data(self, size: int, flags: int, stream: int) -> Filling:
        """Receive bytes of messages into the taker's memory."""
        left, padding = size, 0
        if flags & _PADDED:
            pad = bytearray(1)
            yield memoryview(pad)
            padding = pad[0]
            left -= 1 + padding
        if left < 0:
            raise ServerError("the server sent a frame whose padding is longer than itself")
        taker = self._taker if stream == self._stream and not self._over else None
        while left:
            view = memoryview(bytearray(left)) if taker is None else taker.room()  # None for a call that has ended
            view = view[:left]
            yield view
            left -= len(view)
            self._taken += len(view)
            if taker is not None:
                taker.filled(len(view))
        if padding:
            yield memoryview(bytearray(padding))
        if flags & _PADDED:
            self._taken += 1 + padding
        if flags & _END_STREAM and stream == self._stream:
            self._ended(partial(Unavailable, "the stream was cut off on its way: it ended without a status"))

    def _allow(self) -> None:
        """Allow the server to send as much as was received."""
        more, self._taken = struct.pack(">I", self._taken), 0
        self._unsent += frame(_WINDOW_UPDATE, 0, 0, more)
        if not self._over:
            self._unsent += frame(_WINDOW_UPDATE, 0, self._stream, more)

    def _headers(self, block: bytes, flags: int, stream: int) -> Filling:
        """Process headers: those of an answer, or the trailers with its status."""
        start, end = 0, len(block)
        if flags & _PADDED:
            start, end = 1, end - int.from_bytes(block[:1], "big")
        if flags & _PRIORITY:
            start += 5
        if start > end:
            raise ServerError("the server sent headers whose padding is longer than themselves")
        block = block[start:end]
        last = flags & _END_HEADERS
        while not last:
            head = bytearray(9)
            yield memoryview(head)
            size = int.from_bytes(head[:3], "big")
            if head[3] != _CONTINUATION or len(block) + size > _LARGEST_HEADERS:
                raise ServerError("the server sent headers that do not end")
            part = bytearray(size)
            if size:
                yield memoryview(part)
            block += part
            last = head[4] & _END_HEADERS
        found = {str(name): str(value) for name, value in self._decoder.decode(block)}
        if stream != self._stream or self._over:
            return
        if (status := found.get(":status", "200")) != "200":
            self._ended(partial(by_number, _STATUS.get(status, 2), f"the server answered with HTTP status {status}"))
        elif not flags & _END_STREAM:
            if self._heard is not None:
                self._heard(found)
        else:
            code, text = found.get("grpc-status"), unquote(found.get("grpc-message", ""))
            if code is None:
                self._ended(partial(ServerError, "the server ended the stream without a status"))
            else:
                details = of_header(found.get("grpc-status-details-bin", ""))
                self._ended(None if code == "0" else partial(by_number, int(code), text, details))

    def _control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        """Process a frame that is about the connection."""
        if kind == _SETTINGS and not flags & _ACK:
            self._settings(payload)
            self._unsent += frame(_SETTINGS, _ACK, 0, b"")
        elif kind == _PING and not flags & _ACK:
            self._unsent += frame(_PING, _ACK, 0, payload)
        elif kind == _WINDOW_UPDATE:
            more = int.from_bytes(payload, "big")
            if stream == 0:
                self._window += more
            elif stream == self._stream:
                self._stream_window += more
        elif kind == _RST_STREAM and stream == self._stream:
            reason = int.from_bytes(payload, "big")
            if self._until is not None and time.monotonic() >= self._until:
                self._ended(self._late())  # the server, whose timeout runs too, ended it first
            else:
                text = f"the server reset the stream, HTTP/2 error {reason}"
                self._ended(partial(by_number, _RESETS.get(reason, 13), text))
        elif kind == _GOAWAY:
            self.reusable = False
            if int.from_bytes(payload[:4], "big") & 0x7FFFFFFF < self._stream:
                why = payload[8:].decode(errors="replace")
                self._ended(partial(Unavailable, f"the server takes no more calls by this connection: {why}"))
        elif kind == _PUSH_PROMISE:
            raise ServerError("the server pushes a response that was not requested")

    def _settings(self, payload: bytes) -> None:
        for at in range(0, len(payload) - 5, 6):
            name, value = struct.unpack_from(">HI", payload, at)
            if name == _INITIAL_WINDOW_SIZE:
                self._stream_window += value - self._initial_window
                self._initial_window = value
            elif name == _MAX_FRAME_SIZE:
                self._largest = value
            elif name == _HEADER_TABLE_SIZE:
                self._encoder.header_table_size = min(value, 4096)

    def _ended(self, failure: Callable[[], BowstringError] | None) -> None:
        if not self._over:
            self.failure, self._over, self._taker = failure, True, None
            if self._until is not None:
                self._until = None
                self._socket.settimeout(None)


def _field(name: str, value: str) -> Any:
    """A header; intermediaries must not index a secret."""
    return hpack.NeverIndexedHeaderTuple(name, value) if name == "authorization" else (name, value)
