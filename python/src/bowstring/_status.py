"""The machine-readable details of a failed call: a `google.rpc.Status`.

Nothing is parsed from the message, which is for people and may contain names from data.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass

_LONGEST = 24 * 3600.0  # longest delay that a server may request, in seconds
_RETRY, _INFO = b"google.rpc.RetryInfo", b"google.rpc.ErrorInfo"


@dataclass(frozen=True)
class Details:
    """A status.

    Attributes:
        code: Its gRPC code.
        message: Its message.
        retry_after: Seconds after which a retry may succeed, or None.
        elsewhere: Addresses at which a stream can continue, best first.
    """

    code: int = 0
    message: str = ""
    retry_after: float | None = None
    elsewhere: tuple[str, ...] = ()


def decoded(raw: bytes) -> Details | None:
    """The status in the bytes of `grpc-status-details-bin`; None if there is none that can be parsed."""
    if not raw:
        return None
    code, message, after = 0, b"", None
    elsewhere: tuple[str, ...] = ()
    try:
        for number, value in _fields(raw):
            if number == 1 and isinstance(value, int):
                code = value
            elif number == 2 and isinstance(value, bytes):
                message = value
            elif number == 3 and isinstance(value, bytes):
                of = dict(_fields(value))
                kind, body = bytes(of.get(1, b"")).rpartition(b"/")[2], bytes(of.get(2, b""))
                if kind == _RETRY:
                    after = _seconds(body)
                elif kind == _INFO:
                    elsewhere = _elsewhere(body) or elsewhere
        return Details(code, message.decode(errors="replace"), after, elsewhere)
    except (TypeError, ValueError):
        return None


def of_header(text: str) -> bytes:
    """The bytes of a header whose name ends in -bin; empty if it is invalid."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (ValueError, binascii.Error):
        return b""


def _seconds(body: bytes) -> float | None:
    delay = dict(_fields(body)).get(1)
    if not isinstance(delay, bytes):
        return None
    of = dict(_fields(delay))
    seconds = int(of.get(1, 0)) + int(of.get(2, 0)) / 1e9
    return seconds if seconds <= _LONGEST else None  # negative numbers appear as large ones here


def _elsewhere(body: bytes) -> tuple[str, ...]:
    reason, domain, locations = b"", b"", b""
    for number, value in _fields(body):
        if number == 1:
            reason = bytes(value)
        elif number == 2:
            domain = bytes(value)
        elif number == 3 and isinstance(value, bytes):
            entry = dict(_fields(value))
            if entry.get(1) == b"locations":
                locations = bytes(entry.get(2, b""))
    return tuple(locations.decode().split()) if (reason, domain) == (b"MOVED", b"bowstring") else ()


def _fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protobuf message: numbers, and bytes. ValueError if it is invalid."""
    at = 0
    while at < len(raw):
        key, at = _number(raw, at)
        if key & 7 == 0:
            value, at = _number(raw, at)
            yield key >> 3, value
            continue
        if key & 7 != 2:
            raise ValueError(f"field {key >> 3} is of kind {key & 7}")
        size, at = _number(raw, at)
        if size > len(raw) - at:
            raise ValueError(f"field {key >> 3} ends after the message")
        yield key >> 3, raw[at : at + size]
        at += size


def _number(raw: bytes, at: int) -> tuple[int, int]:
    value = 0
    for i, byte in enumerate(raw[at : at + 10]):
        value |= (byte & 127) << 7 * i
        if byte < 128:
            return value, at + i + 1
    raise ValueError("a number does not end")
