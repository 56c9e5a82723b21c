"""What can go wrong, as a small hierarchy of exceptions that keep the server's own message.

pyarrow raises one class for several codes of gRPC, and adds its debugging context to the text. Every call to
`pyarrow.flight` in this package is made within [translate][bowstring.errors.translate], which tells them apart again.
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
    """Any failure of a call to a server; `code` is gRPC's name of what failed, the text is the server's."""

    code: ClassVar[str] = "UNKNOWN"
    _details: Details | None = None  # that programs go by, as the text may hold any name


class InvalidRequest(BowstringError, ValueError):
    """The request is wrong; the text names the field, what it got and what it takes."""

    code = "INVALID_ARGUMENT"


class NotFound(BowstringError, LookupError):
    """There is no such dataset, snapshot, split, selection, id or action."""

    code = "NOT_FOUND"


class AlreadyExists(BowstringError):
    """A dataset that is to be created is there already."""

    code = "ALREADY_EXISTS"


class LimitExceeded(BowstringError):
    """A limit of the server, or of the tenant on whose account the call is; the text names it and its value."""

    code = "RESOURCE_EXHAUSTED"

    @property
    def retry_after(self) -> float | None:
        """Seconds after which the server says that trying again may help; None where it does not."""
        return None if self._details is None else self._details.retry_after


class Unavailable(BowstringError, ConnectionError):
    """The server cannot be reached, drains, or cannot reach its store: trying again helps."""

    code = "UNAVAILABLE"

    @property
    def elsewhere(self) -> list[str]:
        """Addresses at which a node that leaves its cluster has one go on, the best first; empty if it names none."""
        return [] if self._details is None else list(self._details.elsewhere)


class DataLoss(BowstringError):
    """Stored bytes are gone or wrong; the text names the sample."""

    code = "DATA_LOSS"


class Cancelled(BowstringError):
    """The call was cancelled, here or by the `cancel` action."""

    code = "CANCELLED"


class TimedOut(BowstringError, TimeoutError):
    """The call took longer than the client's timeout."""

    code = "DEADLINE_EXCEEDED"


class Unauthenticated(BowstringError, PermissionError):
    """The token is missing or not known."""

    code = "UNAUTHENTICATED"


class PermissionDenied(BowstringError, PermissionError):
    """The token does not allow this."""

    code = "PERMISSION_DENIED"


class Unsupported(BowstringError, NotImplementedError):
    """The server does not have this call, or does not decode a file of this kind; the file may be whole."""

    code = "UNIMPLEMENTED"


class ServerError(BowstringError):
    """A defect of the server (its log has the stack), or an answer that cannot be understood."""

    code = "INTERNAL"


# How pyarrow words the codes: "Flight returned not found error, with message: ...". Its classes tell less: one of them
# is for INTERNAL, DATA_LOSS and ABORTED, and GetSchema has OSError for most of them.
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
# HTTP/2's reasons of a reset for which a stream is opened again: NO_ERROR, INTERNAL_ERROR, SETTINGS_TIMEOUT,
# STREAM_CLOSED, REFUSED_STREAM, CANCEL and CONNECT_ERROR. A server of gRPC's ends a stream by a status; a proxy resets
# it, where it has been idle for long, or where the proxy or what is behind it ends.
CUT_OFF = frozenset((0x0, 0x2, 0x4, 0x5, 0x7, 0x8, 0xA))
# For what comes without such words, as from the client's own library.
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
# How gRPC words what was cut off: it counts as INTERNAL, CANCELLED or UNKNOWN there.
_CUT = re.compile(
    r"Stream removed$|"  # older ones say no more
    r"(?:Stream removed \()?"
    r"(?:Received RST_STREAM with error code (?P<reason>\d+)|Data frame with END_STREAM flag received)"
)
_CONTEXT = re.compile(r"\.? gRPC client debug context: .*|\.? Client context: .*|\.? Detail: [A-Z]\w*$", re.DOTALL)


def by_number(code: int, text: str, details: bytes = b"") -> BowstringError:
    """The exception for a code of gRPC's that is not OK, and the details that came with it."""
    error = _NUMBERS.get(code, ServerError)(text)
    error._details = decoded(details)
    return error


def translated(error: BaseException) -> BowstringError | None:
    """The exception of this package for one of pyarrow's; None for those that are none of Flight's."""
    if isinstance(error, BowstringError):
        return None
    extra = getattr(error, "extra_info", None)
    if isinstance(extra, bytes) and (details := decoded(extra)) is not None:
        return by_number(details.code, details.message, extra)
    # pyarrow's words come first: the server's text after them may hold the same ones.
    found = _WORDING.match(str(error)) if isinstance(error, (pa.ArrowException, OSError)) else None
    if found and (word := found["word"] or found["call"] or found["rpc"]) in _WORDS:
        text = _CONTEXT.sub("", found["text"])
        return Unavailable(text) if _cut_off(text) else _WORDS[word](text)
    for theirs, ours in _CLASSES:
        if isinstance(error, theirs):
            return ours(_CONTEXT.sub("", str(error)))
    if type(error) is OSError:  # pyarrow's ArrowIOError: a broken connection; a missing file has a class of its own
        return Unavailable(_CONTEXT.sub("", str(error)))
    return None


def _cut_off(text: str) -> bool:
    """Whether gRPC says of a call that something on the way to the server has cut it off."""
    found = _CUT.match(text)
    return found is not None and int(found["reason"] or 0) in CUT_OFF


class translate(contextlib.ContextDecorator):  # noqa: N801
    """Raise pyarrow's exceptions as those of this package: in a `with` block, or as a decorator.

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
