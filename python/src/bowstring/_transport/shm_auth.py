"""Authentication between a process and a server on its node, before the server shares memory with it."""

from __future__ import annotations

import array
import errno
import hashlib
import hmac
import json
import os
import socket
import struct
from typing import Any, NamedTuple

VERSION = 2
_PEER = struct.Struct("iII")  # of the kernel: process, user and group


class Endpoint(NamedTuple):
    """Where a server shares memory with its callers, as it has announced by Flight."""

    path: str  # of the socket
    server: str
    uid: int  # the user of the listening program
    caller: str  # the caller, as the server names it
    key: bytes  # by which both ends of the socket authenticate

    @classmethod
    def from_answer(cls, said: dict[str, Any]) -> Endpoint:
        return cls(said["socket"], said["server"], said["uid"], said["caller"], bytes.fromhex(said["key"]))


class ImpostorError(OSError):
    """The program at a server's socket is not that server."""


def authenticate(connected: socket.socket, endpoint: Endpoint) -> None:
    """Check that the program at the other end is the server, and authenticate to it.

    Each end proves that it knows the key. A program in between, which relays both sides, is detected by its user: the
    kernel reports the listener's user, and the server has announced its own by Flight.
    """
    _, uid, _ = _PEER.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    if uid != endpoint.uid:
        raise ImpostorError(
            f"a program of user {uid} listens on {endpoint.path}, and the server is one of user {endpoint.uid}"
        )
    nonce = os.urandom(16).hex()
    connected.send(json.dumps({"version": VERSION, "caller": endpoint.caller, "nonce": nonce}).encode())
    answer, descriptors = received(connected)
    for descriptor in descriptors:
        os.close(descriptor)
    said = answer or {}
    if said.get("version") != VERSION or said.get("server") != endpoint.server:
        raise OSError(f"another server listens on {endpoint.path}")
    if "error" in said:
        raise OSError(str(said["error"]))
    theirs = str(said.get("nonce"))
    if not hmac.compare_digest(
        _proof(endpoint.key, "server", nonce, theirs), str(said.get("proof")).encode(errors="replace")
    ):
        raise ImpostorError(f"what listens on {endpoint.path} has the server's name, and does not know the key")
    connected.send(json.dumps({"proof": _proof(endpoint.key, "client", nonce, theirs).decode()}).encode())


def _proof(key: bytes, end: str, ours: str, theirs: str) -> bytes:
    said = f"bowstring shm {VERSION} {end} {ours} {theirs}".encode(errors="replace")
    return hmac.new(key, said, hashlib.sha256).hexdigest().encode()


def received(connected: socket.socket, flags: int = 0) -> tuple[dict[str, Any] | None, list[int]]:
    """A message of the server, None at the end, with the descriptors that come with it."""
    size = array.array("i").itemsize
    message, ancillary, lost, _ = connected.recvmsg(4096, socket.CMSG_SPACE(size), socket.MSG_CMSG_CLOEXEC | flags)
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % size])
    if lost & socket.MSG_CTRUNC and not descriptors:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    if not message:
        return None, list(descriptors)
    try:
        said = json.loads(message)
    except (ValueError, RecursionError):
        said = {}
    return said if isinstance(said, dict) else {}, list(descriptors)
