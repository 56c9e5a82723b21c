"""Ports for servers that get their port by a flag, before they listen."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

LEAST = 10_000
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")  # what connections get that ask for none
IANA = 49_152  # where that begins on systems that have no such file, such as macOS and Windows


def first_given() -> int:
    """The least port that a connection may get by chance."""
    try:
        return int(RANGE.read_text().split()[0])
    except OSError:
        return IANA


def free_port(address: str = "127.0.0.1") -> int:
    """A port that no process listens on.

    No connection gets it by chance, as many as other processes make until something listens there: a Cassandra needs
    half a minute to begin, and a server that is killed comes again on the same port.
    """
    first = first_given()
    for port in random.sample(range(LEAST, first), min(100, max(0, first - LEAST))):
        with contextlib.suppress(OSError), socket.socket() as s:  # one that somebody has
            s.bind((address, port))
            return port
    with socket.socket() as s:  # connections may get any
        s.bind((address, 0))
        return int(s.getsockname()[1])
