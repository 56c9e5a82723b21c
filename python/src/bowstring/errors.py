"""A small hierarchy of exceptions that keep the server's message.

pyarrow raises one class for several codes of gRPC, and adds debugging context to the text. Every call to
`pyarrow.flight` in this package is made within [translate][bowstring.errors.translate], which distinguishes them again.
"""

from __future__ import annotations

import contextlib
import re
from types import TracebackType
from typing import ClassVar

import pyarrow as pa
import pyarrow.flight as fl

from bowstring._status import Details, decoded


class BowstringError(Exception):
    """Any failure of a call to a server. `code` is gRPC's name of the failure, and the text is the server's."""

    code: ClassVar[str] = "UNKNOWN"
    _details: Details | None = None  # machine-readable, because the text may contain any name


class InvalidRequest(BowstringError, ValueError):
    """The request is invalid. The text names the field, what it got and what it accepts."""

    code = "INVALID_ARGUMENT"


class NotFound(BowstringError, LookupError):
    """There is no such dataset, snapshot, split, selection, id or action."""

    code = "NOT_FOUND"


class AlreadyExists(BowstringError):
    """The dataset that is to be created exists already."""

    code = "ALREADY_EXISTS"


class LimitExceeded(BowstringError):
    """A limit of the server, or of the tenant that is charged. The text names the limit and its value."""

    code = "RESOURCE_EXHAUSTED"

    @property
    def retry_after(self) -> float | None:
        """Seconds after which a retry may succeed, according to the server; None if it gives none."""
        return None if self._details is None else self._details.retry_after


class Unavailable(BowstringError, ConnectionError):
    """The server cannot be reached, drains, or cannot reach its store. A retry may succeed."""

    code = "UNAVAILABLE"

    @property
    def elsewhere(self) -> list[str]:
        """Addresses at which a leaving node says that streams continue, best first; empty if it names none."""
        return [] if self._details is None else list(self._details.elsewhere)


class DataLoss(BowstringError):
    """Stored bytes are missing or wrong. The text names the sample."""

    code = "DATA_LOSS"


class Cancelled(BowstringError):
    """The call was cancelled, here or by the `cancel` action."""

    code = "CANCELLED"


class TimedOut(BowstringError, TimeoutError):
    """The call took longer than the client's timeout."""

    code = "DEADLINE_EXCEEDED"


class Unauthenticated(BowstringError, PermissionError):
    """The token is missing or unknown."""

    code = "UNAUTHENTICATED"


class PermissionDenied(BowstringError, PermissionError):
    """The token does not allow this."""

    code = "PERMISSION_DENIED"


class Unsupported(BowstringError, NotImplementedError):
    """The server does not support this call, or this kind of file. The file may be intact."""

    code = "UNIMPLEMENTED"


class ServerError(BowstringError):
    """A defect of the server (its log has the stack), or an invalid answer."""

    code = "INTERNAL"


class ServerEnded(ServerError):
    """A server that `bowstring.open` had started has crashed, or was killed. The next call starts it again.

    It is raised once. The text names the log. A stream continues by `Dataset.resume`.
    """


# pyarrow's words for the codes: "Flight returned not found error, with message: ...". Its classes distinguish less: one
# is for INTERNAL, DATA_LOSS and ABORTED, and GetSchema raises OSError for most codes.
_WORDS: dict[str, type[BowstringError]] = {
    "invalid argument": InvalidRequest,
    "out of range": InvalidRequest,
    "out-of-range": InvalidRequest,
    "failed precondition": InvalidRequest,
    "precondition failed": InvalidRequest,
    "not found": NotFound,
    "already exists": AlreadyExists,
    "resource exhausted": LimitExceeded,
    "unavailable": Unavailable,
    "aborted": Unavailable,
    "data loss": DataLoss,
    "cancelled": Cancelled,
    "deadline exceeded": TimedOut,
    "timed out": TimedOut,
    "timeout": TimedOut,
    "unauthenticated": Unauthenticated,
    "permission denied": PermissionDenied,
    "unauthorized": PermissionDenied,
    "unimplemented": Unsupported,
    "internal": ServerError,
    "failed": ServerError,  # UNKNOWN
}
# gRPC's codes by number.
_NUMBERS: dict[int, type[BowstringError]] = {
    1: Cancelled,
    3: InvalidRequest,
    4: TimedOut,
    5: NotFound,
    6: AlreadyExists,
    7: PermissionDenied,
    8: LimitExceeded,
    9: InvalidRequest,
    10: Unavailable,
    11: InvalidRequest,
    12: Unsupported,
    14: Unavailable,
    15: DataLoss,
    16: Unauthenticated,
}
# HTTP/2 reset codes after which a stream is opened again: NO_ERROR, INTERNAL_ERROR, SETTINGS_TIMEOUT, STREAM_CLOSED,
# REFUSED_STREAM, CANCEL and CONNECT_ERROR. A gRPC server ends a stream with a status. A proxy resets it if it was idle
# for long, or if the proxy or its backend ends.
CUT_OFF = frozenset((0x0, 0x2, 0x4, 0x5, 0x7, 0x8, 0xA))
# For errors without such words, as from the client's own library.
_CLASSES: list[tuple[type[BaseException], type[BowstringError]]] = [
    (fl.FlightUnavailableError, Unavailable),
    (fl.FlightCancelledError, Cancelled),
    (fl.FlightTimedOutError, TimedOut),
    (fl.FlightUnauthenticatedError, Unauthenticated),
    (fl.FlightUnauthorizedError, PermissionDenied),
    (fl.FlightError, ServerError),
    (pa.ArrowNotImplementedError, Unsupported),
    (pa.ArrowKeyError, NotFound),
    (pa.ArrowInvalid, InvalidRequest),
    (pa.ArrowException, ServerError),
]
_WORDING = re.compile(
    r"(?:(?:Unknown|Unknown error|IOError): )?"
    r"(?:(?:Flight|gRPC) returned (?:an? )?(?P<word>[a-z -]+?) error,|Flight (?P<call>cancelled) call,"
    r"|Flight RPC (?P<rpc>failed)) with message: (?P<text>.*)",
    re.DOTALL,
)
# gRPC's words for a stream that was cut off, which it reports as INTERNAL, CANCELLED or UNKNOWN.
_CUT = re.compile(
    r"Stream removed$|"  # older versions say no more
    r"(?:Stream removed \()?"
    r"(?:Received RST_STREAM with error code (?P<reason>\d+)|Data frame with END_STREAM flag received)"
)
_CONTEXT = re.compile(r"\.? gRPC client debug context: .*|\.? Client context: .*|\.? Detail: [A-Z]\w*$", re.DOTALL)


def by_number(code: int, text: str, details: bytes = b"") -> BowstringError:
    """The exception for a gRPC code other than OK, with its details."""
    error = _NUMBERS.get(code, ServerError)(text)
    error._details = decoded(details)
    return error


def translated(error: BaseException) -> BowstringError | None:
    """The package's exception for one of pyarrow; None for errors that are not Flight's."""
    if isinstance(error, BowstringError):
        return None
    extra = getattr(error, "extra_info", None)
    if isinstance(extra, bytes) and (details := decoded(extra)) is not None:
        return by_number(details.code, details.message, extra)
    # pyarrow's words come first, because the server's text after them may contain the same ones.
    found = _WORDING.match(str(error)) if isinstance(error, (pa.ArrowException, OSError)) else None
    if found and (word := found["word"] or found["call"] or found["rpc"]) in _WORDS:
        text = _CONTEXT.sub("", found["text"])
        return Unavailable(text) if _cut_off(text) else _WORDS[word](text)
    for theirs, ours in _CLASSES:
        if isinstance(error, theirs):
            return ours(_CONTEXT.sub("", str(error)))
    if type(error) is OSError:  # pyarrow's ArrowIOError: a broken connection; a missing file has its own class
        return Unavailable(_CONTEXT.sub("", str(error)))
    return None


def _cut_off(text: str) -> bool:
    """Whether gRPC reports that a call was cut off on the way to the server."""
    found = _CUT.match(text)
    return found is not None and int(found["reason"] or 0) in CUT_OFF


class translate(contextlib.ContextDecorator):  # noqa: N801
    """Raise pyarrow's exceptions as those of this package; a context manager and decorator.

    ```python
    with translate():
        reader = client.flight().do_get(ticket)
    ```
    """

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and (ours := translated(error)) is not None:
            raise ours from error
