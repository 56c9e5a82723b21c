"""Ports for servers that get their port by a flag, before they listen."""

from __future__ import annotations

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


reserved: list[socket.socket] = []  # of this process, until it ends


def free_port(address: str = "127.0.0.1") -> int:
    """A port that no process listens on, for one server of this process.

    The process reserves the port until it ends: it keeps a socket bound to it, with SO_REUSEADDR, and does not listen.
    A server that sets SO_REUSEADDR too, as servers do, can bind the port and listen, also after it was killed.
    No connection gets the port by chance, and no other call gets it, in this process or in another: a Cassandra needs
    half a minute to listen, and meanwhile many processes choose ports.
    """
    first = first_given()
    for port in (*random.sample(range(LEAST, first), min(100, max(0, first - LEAST))), 0):  # 0: the system chooses
        s = socket.socket()
        try:
            s.bind((address, port))  # without SO_REUSEADDR, so that it fails if another process has reserved the port
        except OSError:
            s.close()
            continue
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.append(s)
        return int(s.getsockname()[1])
    raise OSError(f"no port of {address} is free")
