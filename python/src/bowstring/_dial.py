"""Sockets to a server's address, and whether there is a way to it without anybody between."""

from __future__ import annotations

import os
import socket
from urllib.parse import SplitResult
from urllib.request import proxy_bypass

from bowstring._origins import on_this_machine

_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")


def connect(parts: SplitResult, seconds: float) -> socket.socket:
    """A socket that is connected within so many seconds, which are its timeout. OSError if it cannot be."""
    unix = parts.scheme == "grpc+unix"
    address = parts.hostname, parts.port
    connected = socket.socket(socket.AF_UNIX) if unix else socket.create_connection(address, seconds)
    try:
        if unix:
            connected.settimeout(seconds)
            connected.connect(parts.path)
        else:
            _set(connected)
    except BaseException:
        connected.close()
        raise
    return connected


def _set(connected: socket.socket) -> None:
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a machine may vanish without a word
    for name, value in ("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 60_000):
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def direct(parts: SplitResult) -> bool:
    """Whether a server is reached by its address alone, by a socket of Python's: on Windows these lack what it takes.

    `BOWSTRING_HTTP2=off` says that it is not.
    """
    if os.environ.get("BOWSTRING_HTTP2") == "off" or not hasattr(socket, "MSG_DONTWAIT"):
        return False
    if on_this_machine(parts):
        return parts.scheme == "grpc+unix" or _port(parts) is not None  # no proxy is on the way
    host, port = parts.hostname, _port(parts)
    if host is None or port is None:
        return False
    proxied = any(os.environ.get(name) or os.environ.get(name.upper()) for name in _PROXIES)
    return not proxied or proxy_bypass(host)


def _port(parts: SplitResult) -> int | None:
    try:
        return parts.port
    except ValueError:
        return None
