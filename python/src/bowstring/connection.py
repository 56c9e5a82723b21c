"""The connection to a server: one for each process, made when it is first used."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.flight as fl

from bowstring._transport import calls, dial, fork
from bowstring._transport.fork import keep_forever
from bowstring._transport.origins import (
    Known,
    addressed,
    follows,
    on_this_machine,
    plaintext_allowed,
    token_of_environment,
)
from bowstring._transport.rings import Rings, here
from bowstring._transport.shm import Ring
from bowstring._transport.tls import Tls
from bowstring._transport.wire import decoded
from bowstring.errors import BowstringError, LimitExceeded, ServerEnded, Unavailable, translate

if TYPE_CHECKING:
    from typing import Self

_LOG = logging.getLogger("bowstring.connection")
_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),  # each client has its own connection, because two read twice as fast as one
    ("grpc.initial_reconnect_backoff_ms", 100),  # so that a restarted server is found soon
    ("grpc.max_reconnect_backoff_ms", 2000),
]
_READING = ("describe", "explain", "lineage", "list", "shm", "stats")  # actions that change nothing


@dataclass
class Opened:
    """A stream's call, and the ring that its server gave it."""

    reader: Any
    uri: str
    ring: Ring | None
    rings: Rings  # that own the ring

    def leave(self) -> None:
        """Give the ring back, if there is one. Blobs that came through it stay valid."""
        ring, self.ring = self.ring, None
        if ring is not None:
            self.rings.back(ring)

    def end(self) -> None:
        """Cancel the call, and give the ring back."""
        with contextlib.suppress(pa.ArrowException, OSError):
            self.reader.cancel()
        self.leave()


class Connection:
    """A server, by its address: streams and datasets call the server through it. [Client][bowstring.Client] is one."""

    def __init__(
        self,
        uri: str,
        *,
        token: str | None = None,
        tls: Tls | None = None,
        timeout: float | None = None,
        retries: int = 5,
        plaintext_token: bool | None = None,
    ) -> None:
        scheme, _, rest = addressed(uri).partition("://")
        if tls is None and scheme == "grpc+tls":
            tls = Tls.from_environment()
        if tls is not None and scheme in ("grpc", "grpc+tcp"):
            scheme = "grpc+tls"
        if timeout is not None and timeout <= 0:
            raise ValueError(f"timeout: got {timeout}, want seconds, more than 0")
        if retries < 0:
            raise ValueError(f"retries: got {retries}, want 0 or more")
        self.uri = f"{scheme}://{rest}"
        if token is None:
            token = token_of_environment(self.uri)
        self._plaintext = plaintext_allowed() if plaintext_token is None else plaintext_token
        token = token or None
        if token is not None and not (self._plaintext or scheme == "grpc+tls" or on_this_machine(urlsplit(self.uri))):
            raise ValueError(
                f"the token would go to {self.uri} unencrypted: use grpc+tls://, or say plaintext_token=True"
            )
        self._known = Known([self.uri])
        self._nodes: list[str] = []  # other known nodes of the cluster, the next one first
        self.retries = retries
        self._token = token
        self._tls = tls
        self._timeout = timeout
        self._flight: Any = None
        self._pid = os.getpid()
        self._connections: calls.Connections | None = None  # for this package's own calls
        self.rings = Rings()

    def __repr__(self) -> str:
        return f"<bowstring.{type(self).__name__} {self.uri}>"

    def __getstate__(self) -> dict[str, Any]:
        own = ("_flight", "_pid", "_connections", "rings")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._flight = None
        self._pid = os.getpid()
        self._connections = None
        self.rings = Rings()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def move(self, left: str, named: list[str]) -> bool:
        """Call another node of the cluster from now on, because the one at `left` has left it and named others.

        False if no other node may be called: see `allowed`. If another stream has moved the connection already, it
        stays there. Earlier known nodes are remembered: see `turn`.
        """
        if self.uri != left:
            return True
        named = self.allowed(left, named)
        with fork.connecting():
            if self.uri != left:
                return True
            if not named:
                return False
            self._nodes = [*named[1:], *(uri for uri in (*self._nodes, left) if uri not in named)]
            self._call(named[0])
        _LOG.info("%s leaves its cluster, and %s is called from now on", left, named[0])
        return True

    def learn(self, locations: Iterable[str]) -> None:
        """Add addresses of the cluster: those of a FlightInfo's endpoints."""
        self._known.add(locations)

    def allowed(self, left: str, named: list[str]) -> list[str]:
        """Those of the addresses named by the server at `left` that are known to be of its cluster, and as safe."""
        secret = self._token is not None and not self._plaintext
        named = [uri for uri in named if uri != left and follows(uri, left, secret=secret)]
        if any(uri not in self._known for uri in named) and self.uri == left:
            with contextlib.suppress(BowstringError, IndexError, KeyError):  # the server has left, or is an older one
                self._known.add(self.action("nodes")[0]["locations"])
        return [uri for uri in named if uri in self._known]

    def turn(self, left: str) -> None:
        """Call the next known node, if there are several and the one at `left` cannot be reached."""
        with fork.connecting():
            if not self._nodes or self.uri != left:
                return
            self._nodes.append(left)
            self._call(self._nodes.pop(0))
            now = self.uri
        _LOG.info("%s cannot be reached, and %s is called from now on", left, now)

    def _call(self, uri: str) -> None:
        """Call another server from now on. The old connection stays open, because streams may still use it."""
        self.uri, self._flight = uri, None
        self._shut()
        self.rings.close()
        self.rings = Rings()

    def close(self) -> None:
        """Close this process's connection. The next call makes a new one."""
        if self._pid != os.getpid():
            return  # this process has none
        self.rings.close()
        self._shut()
        flight, self._flight = self._flight, None
        if flight is not None:
            with translate():
                flight.close()

    def _release(self) -> None:
        self._flight = None  # not closed: another thread may be in the middle of a call

    def _shut(self) -> None:
        """Close the connections that no stream uses."""
        connections, self._connections = self._connections, None
        if connections is not None:
            connections.close()

    def _at(self, uri: str) -> Self:
        """A client of another server, with this one's credentials and options."""
        secret = self._token is not None and not self._plaintext
        if uri != self.uri and not follows(uri, self.uri, secret=secret):
            raise Unavailable(f"{uri} is not called: it is less safe than {self.uri}, which names it")
        one = type(self)(
            uri,
            token=self._token or "",
            tls=self._tls,
            timeout=self._timeout,
            retries=self.retries,
            plaintext_token=self._plaintext,
        )
        one._known = self._known
        return one

    def flight(self) -> fl.FlightClient:
        """The `pyarrow.flight.FlightClient` of this process. Call this each time: a client does not survive a fork."""
        parts = urlsplit(self.uri)
        if parts.scheme == "grpc+unix":
            dial.start(parts)
        flight = self._flight
        if flight is None or self._pid != os.getpid():
            with fork.connecting():
                self._renew()
                if self._flight is None:
                    fork.check()
                    arguments = self._tls.arguments() if self._tls else {}
                    # gRPC uses a proxy even for addresses of this machine: then the token would leave it unencrypted.
                    direct = [("grpc.enable_http_proxy", 0)] if on_this_machine(urlsplit(self.uri)) else []
                    with translate():
                        self._flight = fl.connect(self.uri, generic_options=[*_OPTIONS, *direct], **arguments)
                    fork.hold(self)
                flight = self._flight
        return flight

    def schema(self, command: dict[str, Any]) -> pa.Schema:
        """The schema of a request's batches."""
        return self._asked().schema(_described(command), self._headers(), self._timeout)

    def info(self, command: dict[str, Any]) -> fl.FlightInfo:
        """The endpoints that serve a request."""
        return self._asked().info(_described(command), self._headers(), self._timeout)

    def batches_exchanged(self, command: dict[str, Any]) -> tuple[calls.Writer, calls.Reader]:
        """A call of batches in both directions."""
        return self._asked().exchange(_described(command), self._headers())

    def _asked(self) -> calls.Connections:
        """The connections to the server, for this package's own calls."""
        with fork.connecting():
            return self._way(self.uri)

    def _renew(self) -> None:
        """Drop the parent's connections in a forked child: also a FlightClient, if the fork was hidden from Python."""
        if self._pid != os.getpid():
            if self._flight is not None:
                keep_forever(self._flight)
            self._flight, self._connections, self._pid = None, None, os.getpid()

    def _way(self, uri: str) -> calls.Connections:
        """The connections to a server. The caller holds `connecting()`."""
        self._renew()
        if self._connections is None or self._connections.uri != uri:
            self._connections = calls.Connections(uri, self._tls, self._known)
        return self._connections

    def stream(self, ticket: dict[str, Any], *, references: bool = False) -> Opened:
        """Call a stream, and wait for its server's first answer."""
        asked = json.dumps(ticket).encode()
        while True:
            with fork.connecting():
                uri, rings = self.uri, self.rings
            opened = Opened(None, uri, self._ring_of(uri, rings), rings)
            try:
                headers = self._headers(None if opened.ring is None else opened.ring.begin(), references=references)
                with fork.connecting():
                    # Otherwise another thread has moved this connection to a server that does not know the ring.
                    connections = self._way(opened.uri) if self.rings is opened.rings else None
                if connections is not None:
                    opened.reader = connections.get(asked, headers)
                    return opened
            finally:
                if opened.reader is None:
                    opened.leave()

    def ring(self) -> Ring | None:
        """Memory that the server shares with this process, for a stream; None if the server is on another node."""
        return self._ring_of(self.uri, self.rings)

    def shares(self) -> bool:
        """Whether the server has memory for a stream of this process."""
        rings = self.rings
        ring = self._ring_of(self.uri, rings)
        if ring is not None:
            rings.back(ring)
        return ring is not None

    def _ring_of(self, uri: str, rings: Rings) -> Ring | None:
        if not rings.asked and self._ask(uri, rings) is None:
            return None
        ring = rings.take()
        if ring is None and not rings.asked and self._ask(uri, rings):  # the server has restarted
            ring = rings.take()
        return ring

    def _ask(self, uri: str, rings: Rings) -> bool | None:
        """Request the server's socket. Returns whether the answer has changed, or None if there is no answer."""
        answer: list[dict[str, Any]] = []
        if here(uri):
            try:
                answer = self.action("shm")
            except (Unavailable, LimitExceeded):
                return None  # a later request may succeed
            except ServerEnded:
                raise
            except BowstringError:  # an older server
                pass
        return rings.known(answer)

    def options(self, *, stream: bool = False) -> fl.FlightCallOptions:
        """The options of a call: the token, and the timeout. A stream has no timeout, because it may run for hours."""
        return fl.FlightCallOptions(headers=self._headers(), timeout=None if stream else self._timeout)

    def _headers(self, ring: str | None = None, *, references: bool = False) -> list[tuple[bytes, bytes]]:
        """The caller's credentials, and the memory for blobs."""
        headers = [(b"bowstring-details", b"1")]
        if self._token is not None:
            headers.append((b"authorization", f"Bearer {self._token}".encode()))
        if ring is not None:
            headers.append((b"bowstring-ring", ring.encode()))
            if references:
                headers.append((b"bowstring-references", b"1"))
        return headers

    def stats(self) -> dict[str, Any]:
        """The server's counters, which docs/protocol.md describes."""
        return self.action("stats")[0]

    def action(self, name: str, /, **body: Any) -> list[dict[str, Any]]:
        """Call an action of the server by its name. Returns its results."""
        return list(self._results(name, json.dumps(body).encode()))

    def _results(self, name: str, body: bytes, *, stream: bool = False) -> Iterator[dict[str, Any]]:
        seconds = None if stream else self._timeout
        for body_of in self._asked().action(name, body, self._headers(), seconds, again=name in _READING):
            yield decoded(body_of)


def _described(command: dict[str, Any]) -> bytes:
    """A request as the FlightDescriptor of a call."""
    described: bytes = fl.FlightDescriptor.for_command(json.dumps(command)).serialize()
    return described
