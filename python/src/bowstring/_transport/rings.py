"""Idle rings of shared memory, and whether a server may be on this node."""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import socket
import sys
import time
import warnings
from typing import Any
from urllib.parse import urlsplit

from bowstring._transport import maintenance
from bowstring._transport.shm import Ring
from bowstring._transport.shm_auth import VERSION, Endpoint, ImpostorError

_LOG = logging.getLogger("bowstring.shm")
_REST = 60.0  # seconds that an idle ring is kept, because others may need its memory


class Rings(maintenance.Maintained):
    """The idle rings of a process, for the server of one connection."""

    KEPT = 4  # idle rings

    def __init__(self) -> None:
        super().__init__()
        # A deque without a lock: the garbage collector also returns rings, and no thread of a child would unlock it.
        self._free: collections.deque[Ring] = collections.deque()
        self._server: Endpoint | None = None
        self._asked = False
        self._said: set[str] = set()  # reasons for missing memory that were logged

    def known(self, answer: list[dict[str, Any]]) -> bool:
        """Record the server's answer to the request for its socket. Return whether it is new."""
        before, self._asked = self._server, True
        for said in answer:
            if said.get("version") == VERSION:
                self._server = Endpoint.from_answer(said)
        return self._server != before

    @property
    def asked(self) -> bool:
        """Whether the server was asked for its socket."""
        return self._asked

    def take(self) -> Ring | None:
        """A ring for a stream; None if the server has none to share, or is on another node."""
        if self._server is None:
            return None
        with contextlib.suppress(IndexError):  # there is none
            while True:
                ring = self._free.pop()
                if ring.alive:
                    return ring
                ring.close()
        endpoint = self._server
        maintenance.keep(self)
        try:
            return Ring(endpoint._replace(path=os.environ.get("BOWSTRING_LOCAL") or endpoint.path))
        except OSError as error:
            self._asked = False  # it may be another server by now
            if isinstance(error, ImpostorError):
                warnings.warn(f"{error}; batches come by TCP", RuntimeWarning, stacklevel=2)
            elif (why := str(error)) not in self._said:
                self._said.add(why)
                _LOG.info("batches come by TCP, as memory by %s cannot be had: %s", endpoint.path, why)
            return None

    def back(self, ring: Ring) -> None:
        """Take back the ring of a stream that has ended."""
        ring.end()
        # A connection that was closed, or has moved to another server, needs none.
        if ring.forks or not ring.whole or self._server is None or len(self._free) >= self.KEPT:
            ring.close()
        else:
            ring.rested = time.monotonic()
            self._free.append(ring)

    def catch_up(self) -> None:
        """Close rings that have been idle for long, and those of a server that has ended.

        The mappings of such a ring prevent that the next server reuses its files.
        """
        for ring in list(self._free):  # each stays in the deque, where a stream can take it
            with contextlib.suppress(ValueError):  # a stream has taken it
                if time.monotonic() - ring.rested >= _REST or ring.left:
                    self._free.remove(ring)
                    ring.close()

    def close(self) -> None:
        """Close the idle rings, and ask the server again when there is a stream."""
        self._server, self._asked = None, False
        with contextlib.suppress(IndexError):  # all are given back
            while True:
                self._free.pop().close()


def here(uri: str) -> bool:
    """Whether the server at a URI may be on this node: by its address, or because BOWSTRING_LOCAL names its socket.

    `BOWSTRING_LOCAL=off` disables it.
    """
    said = os.environ.get("BOWSTRING_LOCAL", "")
    if said == "off" or sys.platform != "linux":
        return False
    if said:
        return True
    parts = urlsplit(uri)
    if parts.scheme == "grpc+unix":
        return True
    try:
        found = socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in found:
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.bind((address[0], 0, *address[2:]))  # possible only for an address of this machine
            return True
    return False
