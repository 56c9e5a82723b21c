"""TLS settings of a connection."""

from __future__ import annotations

import os
import socket
import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bowstring._transport import dial

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True)
class Tls:
    """TLS settings of a connection.

    Certificates and keys are PEM: bytes, or a path, which each connecting process reads.

    Attributes:
        root_certs: Trusted authorities, instead of the system's list.
        cert: The client's own certificate, for mutual TLS.
        key: Its private key.
        server_name: The name in the server's certificate, if it differs from the address.
        verify: Whether the server's certificate is checked. Without that any program can pose as the server.
    """

    root_certs: str | os.PathLike[str] | bytes | None = None
    cert: str | os.PathLike[str] | bytes | None = None
    key: str | os.PathLike[str] | bytes | None = field(default=None, repr=False)
    server_name: str | None = None
    verify: bool = True

    @classmethod
    def from_environment(cls) -> Self | None:
        """The certificates and keys of BOWSTRING_SERVER_CA, BOWSTRING_CLIENT_CERT and BOWSTRING_CLIENT_KEY."""
        names = ("BOWSTRING_SERVER_CA", "BOWSTRING_CLIENT_CERT", "BOWSTRING_CLIENT_KEY")
        root, cert, key = (os.environ.get(name) or None for name in names)
        return cls(root_certs=root, cert=cert, key=key) if root or cert or key else None

    def arguments(self) -> dict[str, Any]:
        """The arguments for pyarrow."""
        given = {
            "tls_root_certs": pem(self.root_certs),
            "cert_chain": pem(self.cert),
            "private_key": pem(self.key),
            "override_hostname": self.server_name,
            "disable_server_verification": None if self.verify else True,
        }
        return {name: value for name, value in given.items() if value is not None}


def pem(given: str | os.PathLike[str] | bytes | None) -> bytes | None:
    """The certificates or the key, from bytes or a file."""
    if given is None or isinstance(given, bytes):
        return given
    return Path(given).read_bytes()


def context(tls: Tls) -> ssl.SSLContext:
    """The context for HTTP/2 over TLS."""
    root, cert, key = (pem(given) for given in (tls.root_certs, tls.cert, tls.key))
    made = ssl.create_default_context(cadata=None if root is None else root.decode("ascii", "replace"))
    if not tls.verify:
        made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    if cert is not None:
        with tempfile.TemporaryDirectory() as folder:  # it only reads files
            both = Path(folder, "both.pem")
            both.write_bytes(cert + b"\n" + (key or b""))
            made.load_cert_chain(both)
    made.set_alpn_protocols(["h2"])
    return made


_READ = 256 << 10  # bytes per read from the kernel: a socket of Python would need two reads per 16 KiB


class Encrypted:
    """A socket with TLS, with the methods that HTTP/2 needs."""

    def __init__(self, connected: socket.socket, known: ssl.SSLContext, name: str | None) -> None:
        self._socket = connected
        self._came, self._goes = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = known.wrap_bio(self._came, self._goes, server_hostname=name)
        self._buffer = bytearray(_READ)
        self._view = memoryview(self._buffer)
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._flush()
                if not self._read(wait=True):
                    raise ConnectionResetError("the server ended the handshake") from None
            except ssl.SSLError:
                self._flush()  # sends the server the reason
                raise
        self._flush()
        if self._tls.selected_alpn_protocol() != "h2":
            raise ConnectionAbortedError("the server does not speak HTTP/2")

    def _read(self, *, wait: bool) -> int:
        """Read what the kernel has; 0 at the end."""
        n = dial.receive(self._socket, self._view, wait=wait, full=False)
        self._came.write(self._view[:n])
        return n

    def _flush(self) -> None:
        if self._goes.pending:
            self._socket.sendall(self._goes.read())

    def receive(self, view: memoryview, *, wait: bool) -> int:
        """Fill the view, without `wait` only with what has arrived; 0 at the end."""
        got = 0
        while got < len(view):
            try:
                n: Any = self._tls.read(len(view) - got, view[got:])
                if not n:
                    break
                got += n
            except ssl.SSLZeroReturnError:
                break
            except ssl.SSLWantReadError:
                self._flush()  # TLS has messages of its own
                try:
                    if not self._read(wait=wait):
                        break
                except BlockingIOError:
                    if not got:
                        raise
                    break
        self._flush()
        return got

    def sendall(self, given: bytes) -> None:
        """As for a socket."""
        self._tls.write(given)
        self._flush()

    def settimeout(self, seconds: float | None) -> None:
        """As for a socket."""
        self._socket.settimeout(seconds)

    def shutdown(self, how: int) -> None:
        """As for a socket."""
        self._socket.shutdown(how)

    def close(self) -> None:
        """As for a socket."""
        self._socket.close()
