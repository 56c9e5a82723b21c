"""How a connection is encrypted."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True)
class Tls:
    """How a connection is encrypted.

    Certificates and keys are PEM: the bytes, or a path, which is read in each process that connects.

    Attributes:
        root_certs: Whom to trust, where it is not the system's list.
        cert: The client's own certificate, for mutual TLS.
        key: Its private key.
        server_name: The name that the server's certificate is for, if it is not that of the address.
        verify: Whether the server's certificate is checked. Without that anybody can be the server.
    """

    root_certs: str | os.PathLike[str] | bytes | None = None
    cert: str | os.PathLike[str] | bytes | None = None
    key: str | os.PathLike[str] | bytes | None = field(default=None, repr=False)
    server_name: str | None = None
    verify: bool = True

    @classmethod
    def from_environment(cls) -> Self | None:
        """What BOWSTRING_SERVER_CA, BOWSTRING_CLIENT_CERT and BOWSTRING_CLIENT_KEY name, as for the command line."""
        names = ("BOWSTRING_SERVER_CA", "BOWSTRING_CLIENT_CERT", "BOWSTRING_CLIENT_KEY")
        root, cert, key = (os.environ.get(name) or None for name in names)
        return cls(root_certs=root, cert=cert, key=key) if root or cert or key else None

    def arguments(self) -> dict[str, Any]:
        """What pyarrow is told of it."""
        given = {
            "tls_root_certs": pem(self.root_certs),
            "cert_chain": pem(self.cert),
            "private_key": pem(self.key),
            "override_hostname": self.server_name,
            "disable_server_verification": None if self.verify else True,
        }
        return {name: value for name, value in given.items() if value is not None}


def pem(given: str | os.PathLike[str] | bytes | None) -> bytes | None:
    """The certificates or the key that bytes are, or a file has."""
    if given is None or isinstance(given, bytes):
        return given
    return Path(given).read_bytes()
