"""Rings that no stream has at the moment, and whether there may be some: whether a server is on this node."""

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

from bowstring import _keeper
from bowstring._greeting import VERSION, Place, StandInError
from bowstring._samenode import Ring

_LOG = logging.getLogger("bowstring.samenode")
_REST = 60.0  # seconds that a ring is kept without a stream: others may need its memory


class Rings(_keeper.Tended):
    """The rings of a process that no stream has at the moment, for the server of one connection."""

    KEPT = 4  # rings without a stream

    def __init__(self) -> None:
        super().__init__()
        # A deque and no lock: streams give rings back from the collector, too, and a child has nobody to unlock it.
        self._free: collections.deque[Ring] = collections.deque()
        self._server: Place | None = None
        self._asked = False
        self._said: set[str] = set()  # why there was no memory, as it was logged

    def known(self, answer: list[dict[str, Any]]) -> bool:
        """What the server has answered when asked for its socket. Whether that is new."""
        before, self._asked = self._server, True
        for said in answer:
            if said.get("version") == VERSION:
                self._server = Place.told(said)
        return self._server != before

    @property
    def asked(self) -> bool:
        """Whether the server was asked for its socket."""
        return self._asked

    def borrow(self) -> Ring | None:
        """A ring for a stream; None where the server has none to give, or is on another node."""
        if self._server is None:
            return None
        with contextlib.suppress(IndexError):  # there is none
            while True:
                ring = self._free.pop()
                if ring.alive:
                    return ring
                ring.close()
        place = self._server
        _keeper.keep(self)
        try:
            return Ring(place._replace(path=os.environ.get("BOWSTRING_LOCAL") or place.path))
        except OSError as error:
            self._asked = False  # it may be another server by now
            if isinstance(error, StandInError):
                warnings.warn(f"{error}; batches come by TCP", RuntimeWarning, stacklevel=2)
            elif (why := str(error)) not in self._said:
                self._said.add(why)
                _LOG.info("batches come by TCP, as memory by %s cannot be had: %s", place.path, why)
            return None

    def back(self, ring: Ring) -> None:
        """A stream has ended that had a ring."""
        ring.end()
        # A connection that was closed meanwhile, or has moved to another server, needs none.
        if ring.forks or not ring.whole or self._server is None or len(self._free) >= self.KEPT:
            ring.close()
        else:
            ring.rested = time.monotonic()
            self._free.append(ring)

    def catch_up(self) -> None:
        """Close the rings that no stream has had for long, and those of a server that has ended.

        What such a one maps of its files keeps the server after it from using them.
        """
        for ring in list(self._free):  # each stays there meanwhile, for a stream to have
            with contextlib.suppress(ValueError):  # a stream has it
                if time.monotonic() - ring.rested >= _REST or ring.left:
                    self._free.remove(ring)
                    ring.close()

    def close(self) -> None:
        """Give the rings back that no stream has, and ask the server anew when there is a stream."""
        self._server, self._asked = None, False
        with contextlib.suppress(IndexError):  # all are given back
            while True:
                self._free.pop().close()


def here(uri: str) -> bool:
    """Whether the server at a URI may be on this node: by its address, or as BOWSTRING_LOCAL names its socket.

    `BOWSTRING_LOCAL=off` says that it is not.
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
            probe.bind((address[0], 0, *address[2:]))  # possible where the address is this machine's alone
            return True
    return False
