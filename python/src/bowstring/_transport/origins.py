"""Where a token may be sent, and at which addresses a stream may continue."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterable
from urllib.parse import SplitResult, urlsplit

from bowstring.errors import Unsupported

NODES = "bowstring-nodes"  # a header before a stream: the addresses of the cluster's other nodes
_MOST = 4096  # most addresses that are remembered of a cluster
_TLS, _PLAIN, _UNIX = "grpc+tls", ("grpc", "grpc+tcp"), "grpc+unix"
SCHEMES = (*_PLAIN, _TLS, _UNIX)
PORT = 8815  # the servers' default


def on_this_machine(parts: SplitResult) -> bool:
    """Whether data sent to an address stays on this machine."""
    if parts.scheme == "grpc+unix" or parts.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False


def plaintext_allowed() -> bool:
    """Whether the environment allows tokens over unencrypted connections, as for the command line."""
    return os.environ.get("BOWSTRING_PLAINTEXT_TOKEN", "").lower() in ("1", "true", "yes")


def addressed(uri: str) -> str:
    """A server's address with defaults filled in: the scheme, and the servers' default port.

    ValueError if it is not an address.
    """
    given, uri = uri, uri if "://" in uri else f"grpc://{uri}"
    scheme, _, rest = uri.partition("://")
    if scheme == _UNIX and rest.startswith("/"):
        if not hasattr(socket, "AF_UNIX"):  # Python on Windows has none
            raise Unsupported(
                f"uri: got {given!r}, a socket, which Python cannot open on this system: want grpc+tls://HOST:PORT"
            )
        return uri
    try:
        parts = urlsplit(uri)
        host, port = parts.hostname, parts.port
    except ValueError:  # an invalid port, or unbalanced brackets
        host = port = None
    rest = "" if host is None else rest.removesuffix("/")
    if scheme not in (_TLS, *_PLAIN) or not host or rest != parts.netloc or "@" in rest or port == 0:
        raise ValueError(
            f"uri: got {given!r}, want grpc://HOST, grpc+tls://HOST, both with :PORT where it is not {PORT} and with "
            "brackets around an IPv6 address, such as grpc://[::1]:8815, or grpc+unix:///PATH"
        )
    return f"{scheme}://{rest}" if port is not None else f"{scheme}://{rest.removesuffix(':')}:{PORT}"


def origin(uri: str) -> tuple[str, str | None, int | None, str]:
    """The origin that a token belongs to: scheme, host and port, or the path of a socket."""
    parts = urlsplit(addressed(uri))
    scheme = "grpc" if parts.scheme in _PLAIN else parts.scheme
    return scheme, parts.hostname, parts.port, parts.path.rstrip("/")


def token_of_environment(uri: str) -> str | None:
    """The token of BOWSTRING_TOKEN. It belongs to the server of BOWSTRING_SERVER, if that is set."""
    token = os.environ.get("BOWSTRING_TOKEN", "").strip() or None
    server = os.environ.get("BOWSTRING_SERVER", "")
    if token is not None and server and _known_origin(server) != origin(uri):
        raise ValueError(
            f"BOWSTRING_TOKEN belongs to the server of BOWSTRING_SERVER, {server!r}, and is not sent to {uri!r}: give "
            "the token of that server as token=, or token='' for none"
        )
    return token


def _known_origin(server: str) -> tuple[str, str | None, int | None, str]:
    """The origin of BOWSTRING_SERVER."""
    try:
        return origin(server)
    except ValueError as error:
        raise ValueError(f"BOWSTRING_SERVER: got {server!r}, want grpc://HOST:PORT or grpc+tls://HOST:PORT") from error


def follows(uri: str, left: str, *, secret: bool) -> bool:
    """Whether what was sent to the server at `left` may be sent to the one at `uri`.

    An encrypted stream stays encrypted, and a secret leaves the machine only encrypted.
    """
    try:
        to = urlsplit(uri)
        whole = to.hostname is not None and to.port is not None and not (to.path or to.query or to.fragment)
    except ValueError:
        return False
    if not whole or to.username is not None or to.scheme not in (_TLS, *_PLAIN):
        return False
    if to.scheme == _TLS:
        return True
    return urlsplit(left).scheme != _TLS and (not secret or on_this_machine(to))


class Known:
    """The addresses of a cluster. They come from its server's headers and answers, never from messages."""

    def __init__(self, uris: Iterable[str] = ()) -> None:
        self._uris = dict.fromkeys(uris)

    def __contains__(self, uri: str) -> bool:
        return uri in self._uris

    def add(self, uris: Iterable[str]) -> None:
        """Add addresses."""
        for uri in uris:
            if len(self._uris) < _MOST:
                self._uris[uri] = None
