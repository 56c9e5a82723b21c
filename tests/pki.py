"""Certificates of an authority of the tests' own, made by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path


class Authority:
    """A folder with `ca.pem`, and what it signs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self._openssl("req", "-x509", *self._new("ca"), "-days", "2", "-out", "ca.pem")

    @property
    def root(self) -> bytes:
        """The authority's certificate."""
        return (self.folder / "ca.pem").read_bytes()

    def sign(self, name: str, names: str, usage: str) -> tuple[Path, Path]:
        """Make a certificate and its key: for `names` such as `IP:127.0.0.1`, and `usage` serverAuth or clientAuth."""
        self._openssl("req", *self._new(name), "-out", f"{name}.csr")
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={names}\nextendedKeyUsage={usage}\n")
        ca = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial")
        request = ("-in", f"{name}.csr", "-extfile", extensions.name)
        self._openssl("x509", "-req", *request, *ca, "-days", "2", "-out", f"{name}.pem")
        return self.folder / f"{name}.pem", self.folder / f"{name}.key"

    def server(self, name: str = "server") -> tuple[Path, Path]:
        """A server on this machine."""
        return self.sign(name, "IP:127.0.0.1,DNS:localhost", "serverAuth")

    def client(self, name: str) -> tuple[Path, Path]:
        """A client of that DNS name."""
        return self.sign(name, f"DNS:{name}", "clientAuth")

    @staticmethod
    def _new(name: str) -> list[str]:
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        return [*curve, "-subj", f"/CN={name}", "-keyout", f"{name}.key"]

    def _openssl(self, *args: str) -> None:
        subprocess.run(["openssl", *args], cwd=self.folder, check=True, capture_output=True)  # noqa: S607
