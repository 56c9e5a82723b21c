"""Clients with tokens and certificates: whom they trust, and what a server that refuses them is to them."""

from __future__ import annotations

import json
import pickle
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bowstring
import pyarrow.flight as fl
import pytest

KEPT = "secret"


class Guard(fl.ServerMiddlewareFactory):  # type: ignore[misc]
    """Lets only calls with the token in."""

    def start_call(self, _info: fl.CallInfo, headers: dict[str, list[str]]) -> None:
        if headers.get("authorization") != ["Bearer secret"]:
            raise fl.FlightUnauthenticatedError("the token is not known")


class Fake(fl.FlightServerBase):  # type: ignore[misc]
    """A server with a list of datasets and no more."""

    def do_action(self, _context: Any, action: fl.Action) -> Iterator[fl.Result]:
        if action.type == "drop":
            raise fl.FlightUnauthorizedError("the token is for reading")
        yield fl.Result(json.dumps({"dataset": "fake", "rows": 1}).encode())


def certificate(folder: Path) -> tuple[bytes, bytes]:
    """A certificate for `data.example`, signed by itself, and its key."""
    files = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=data.example"]
    command += ["-addext", "subjectAltName=DNS:data.example", "-out", str(files[0]), "-keyout", str(files[1])]
    subprocess.run(command, check=True, capture_output=True)
    return files[0].read_bytes(), files[1].read_bytes()


def test_token() -> None:
    with Fake("grpc://127.0.0.1:0", middleware={"guard": Guard()}) as server:
        uri = f"grpc://127.0.0.1:{server.port}"
        client = bowstring.connect(uri, token="secret")
        assert [d.name for d in client.datasets()] == ["fake"]
        assert [d.name for d in pickle.loads(pickle.dumps(client)).datasets()] == ["fake"]
        assert "secret" not in repr(client)
        with pytest.raises(bowstring.PermissionDenied, match=r"^the token is for reading"):
            client.drop("fake")
        for token in (None, "wrong"):
            with pytest.raises(bowstring.Unauthenticated, match=r"^the token is not known"):
                bowstring.connect(uri, token=token).datasets()


def sent(uri: str, **options: Any) -> bytes | None:
    """The credentials that a client sends to a server."""
    return dict(bowstring.connect(uri, **options)._headers()).get(b"authorization")


def test_a_token_belongs_to_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves the machine encrypted only, and that of the environment goes where the environment says."""
    for uri in ("grpc://data.example:1", "grpc://127.0.0.1.data.example:1", "grpc://10.0.0.1:1", "data.example:1"):
        with pytest.raises(ValueError, match="unencrypted"):
            bowstring.connect(uri, token="secret")
        bowstring.connect(uri, token="secret", plaintext_token=True)
        bowstring.connect(uri)
    for uri in ("grpc+tls://data.example:1", "grpc://127.0.0.1:1", "grpc://[::1]:1", "grpc://localhost:1"):
        bowstring.connect(uri, token="secret")
    monkeypatch.setenv("BOWSTRING_TOKEN", "secret")
    with pytest.raises(ValueError, match="unencrypted"):
        bowstring.connect("grpc://data.example:1")
    assert sent("grpc+tls://data.example:1") == b"Bearer secret"
    monkeypatch.setenv("BOWSTRING_SERVER", "grpc+tls://data.example:1")
    assert sent("grpc+tls://data.example:1") == b"Bearer secret"
    for other in ("grpc+tls://evil.example:1", "grpc+tls://data.example:2", "grpc://127.0.0.1:1"):
        with pytest.raises(ValueError, match="BOWSTRING_TOKEN belongs to"):
            bowstring.connect(other)
        assert sent(other, token="") is None
        assert sent(other, token="its own") == b"Bearer its own"
    monkeypatch.delenv("BOWSTRING_SERVER")
    monkeypatch.setenv("BOWSTRING_PLAINTEXT_TOKEN", "1")
    bowstring.connect("grpc://data.example:1")


def test_tls(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    guard = {"guard": Guard()}
    with Fake("grpc+tls://127.0.0.1:0", tls_certificates=[(cert, key)], middleware=guard) as server:
        address = f"127.0.0.1:{server.port}"
        for trust in (cert, tmp_path / "cert.pem", str(tmp_path / "cert.pem")):
            tls = bowstring.Tls(root_certs=trust, server_name="data.example")
            for uri in (f"grpc://{address}", f"grpc+tls://{address}"):
                client = bowstring.connect(uri, token="secret", tls=tls)
                assert client.uri == f"grpc+tls://{address}"
                assert [d.name for d in client.datasets()] == ["fake"]
        unverified = bowstring.connect(f"grpc://{address}", token="secret", tls=bowstring.Tls(verify=False))
        assert [d.name for d in unverified.datasets()] == ["fake"]
        with pytest.raises(bowstring.Unavailable):  # no authority has signed the certificate
            bowstring.connect(f"grpc+tls://{address}", token="secret").datasets()
        with pytest.raises(bowstring.Unavailable):  # it is another server's
            bowstring.connect(f"grpc+tls://{address}", tls=bowstring.Tls(root_certs=cert)).datasets()
    with pytest.raises(FileNotFoundError):
        bowstring.connect(f"grpc://{address}", tls=bowstring.Tls(root_certs="/nowhere.pem")).datasets()
    assert "KEY" not in repr(bowstring.Tls(key=key))


def test_mutual_tls(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    with Fake(
        "grpc+tls://127.0.0.1:0", tls_certificates=[(cert, key)], verify_client=True, root_certificates=cert
    ) as server:
        uri = f"grpc://127.0.0.1:{server.port}"
        tls = bowstring.Tls(root_certs=cert, server_name="data.example", cert=cert, key=key)
        assert [d.name for d in bowstring.connect(uri, tls=tls).datasets()] == ["fake"]
        with pytest.raises(bowstring.Unavailable):
            bowstring.connect(uri, tls=bowstring.Tls(root_certs=cert, server_name="data.example")).datasets()


ADDRESSES = {
    "host": "grpc://host:8815",
    "host:1": "grpc://host:1",
    "grpc://host": "grpc://host:8815",
    "grpc://host/": "grpc://host:8815",
    "grpc+tcp://host": "grpc+tcp://host:8815",
    "grpc+tls://host.example": "grpc+tls://host.example:8815",
    "grpc+tls://10.0.0.1:443": "grpc+tls://10.0.0.1:443",
    "[::1]": "grpc://[::1]:8815",
    "grpc://[2001:db8::1]": "grpc://[2001:db8::1]:8815",
    "grpc+tls://[::1]:9": "grpc+tls://[::1]:9",
    "grpc+unix:///run/b": "grpc+unix:///run/b",
}


@pytest.mark.parametrize("given", ADDRESSES)
def test_an_address_without_a_port_is_that_of_serve(given: str) -> None:
    assert bowstring.connect(given).uri == ADDRESSES[given]


@pytest.mark.parametrize(
    "given",
    ["", "grpc://", "grpc://:1", "grpc://host:0", "grpc://host:99999", "grpc://host:x", "grpc://::1", "grpc://[::1",
     "grpc://user@host", "grpc://host/path", "grpc://host?x", "http://host", "grpc+unix://path"],
)  # fmt: skip
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match=r"uri: got '.*', want grpc://HOST"):
        bowstring.connect(given)


def test_a_token_belongs_to_an_address_with_and_without_its_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOWSTRING_TOKEN", KEPT)
    monkeypatch.setenv("BOWSTRING_SERVER", "grpc+tls://host")
    assert bowstring.connect("grpc+tls://host:8815")._token == KEPT
    with pytest.raises(ValueError, match="belongs to the server of BOWSTRING_SERVER"):
        bowstring.connect("grpc+tls://host:443")
