"""Sockets to a server's address, through a proxy if the environment names one."""

from __future__ import annotations

import base64
import os
import select
import socket
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import proxy_bypass

from bowstring._transport.origins import on_this_machine

_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_LONGEST = 64 << 10  # bytes of a proxy's answer
_NOW = getattr(socket, "MSG_DONTWAIT", None)  # Windows has none
_FULL = getattr(socket, "MSG_WAITALL", 0)


def connect(parts: SplitResult, seconds: float) -> socket.socket:
    """A socket that is connected within that many seconds, its timeout. OSError if it cannot be."""
    if parts.scheme == "grpc+unix":
        start(parts)
        connected = socket.socket(socket.AF_UNIX)
        way = None
    else:
        way = proxy(parts)
        connected = socket.create_connection((parts.hostname, parts.port) if way is None else _address(way), seconds)
    try:
        if parts.scheme == "grpc+unix":
            connected.settimeout(seconds)
            connected.connect(parts.path)
        else:
            _set(connected)
        if way is not None:
            _tunnel(connected, parts, way)
    except BaseException:
        connected.close()
        raise
    return connected


def start(parts: SplitResult) -> None:
    """Start the server at a socket, if it is one that this package starts, and does not run."""
    folder = os.path.dirname(parts.path)  # noqa: PTH120
    if not any(os.path.exists(os.path.join(folder, name)) for name in ("server.json", "home")):  # noqa: PTH110, PTH118
        return
    from bowstring._local import servers  # not at the beginning: Windows has no such locks

    if (server := servers.at(parts.path)) is not None:
        server.ensure()


def receive(connected: socket.socket, view: memoryview, *, wait: bool, full: bool = True) -> int:
    """Fill the view; BlockingIOError without `wait` if nothing has arrived; 0 at the end."""
    if wait:
        return connected.recv_into(view, 0, _FULL if full else 0)
    if _NOW is None:
        if not select.select([connected], [], [], 0)[0]:
            raise BlockingIOError
        return connected.recv_into(view)
    return connected.recv_into(view, 0, _NOW)


def proxy(parts: SplitResult) -> SplitResult | None:
    """The HTTP proxy that the environment names for a server; None for a server on this machine."""
    if on_this_machine(parts) or parts.hostname is None:
        return None
    named = (os.environ.get(name) or os.environ.get(name.upper()) for name in _PROXIES)
    found = next(filter(None, named), None)
    if found is None or proxy_bypass(parts.hostname):
        return None
    return urlsplit(found if "://" in found else f"http://{found}")


def _address(way: SplitResult) -> tuple[str | None, int]:
    return way.hostname, way.port or 80


def _tunnel(connected: socket.socket, parts: SplitResult, way: SplitResult) -> None:
    """Make a proxy connect to the server."""
    request = f"CONNECT {parts.netloc} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
    if way.username is not None:
        secret = base64.b64encode(f"{unquote(way.username)}:{unquote(way.password or '')}".encode()).decode()
        request += f"Proxy-Authorization: Basic {secret}\r\n"
    connected.sendall(f"{request}\r\n".encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):  # byte by byte, because what follows is the server's
        byte = connected.recv(1)
        if not byte or len(answer) > _LONGEST:
            raise ConnectionAbortedError(f"the proxy {way.hostname}:{way.port} did not answer by HTTP")
        answer += byte
    status = answer.split(b"\r\n", 1)[0].decode("latin-1")
    if status.split(" ")[1:2] != ["200"]:
        raise ConnectionAbortedError(f"the proxy {way.hostname}:{way.port} refused to connect: {status}")


def _set(connected: socket.socket) -> None:
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a machine may vanish without closing connections
    for name, value in ("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 60_000):
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
