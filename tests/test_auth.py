"""Authentication with stock pyarrow and with the package: tokens in all the forms that clients send, certificates."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from conftest import ROOT
from node import Node
from pki import Authority
from test_docs import blocks
from wire import until

Run = Callable[..., subprocess.CompletedProcess[str]]


class Access(NamedTuple):
    """A server with TLS, a file of tokens, and an authority of servers and clients."""

    node: Node
    authority: Authority
    tokens: Path
    token: str  # of alice
    log: Path

    def connect(self, **how: Any) -> fl.FlightClient:
        return fl.connect(self.node.url, tls_root_certs=self.authority.root, **how)


@pytest.fixture(scope="module")
def access(binary: Path, bowstring: Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    root = tmp_path_factory.mktemp("access")
    authority, tokens, log = Authority(root / "pki"), root / "tokens.json", root / "log"
    cert, key = authority.server()
    token = bowstring("token", "create", "--tokens", tokens, "--principal", "alice").stdout.strip()
    flags = ["--tls-cert", cert, "--tls-key", key, "--tls-client-ca", root / "pki" / "ca.pem", "--tokens", tokens]
    with Node(binary, root / "store", *map(str, flags), log=log) as node:
        yield Access(node, authority, tokens, token, log)


def bearer(token: str) -> fl.FlightCallOptions:
    return fl.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())])


def listed(client: fl.FlightClient, options: fl.FlightCallOptions | None = None) -> list[Any]:
    return list(client.list_flights(options=options))


class Login(fl.ClientAuthHandler):  # type: ignore[misc]
    """The older way: a protobuf in the handshake, and its answer with every call."""

    def __init__(self, user: str, token: str) -> None:
        super().__init__()
        self.user, self.password, self.answer = user, token, b""

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        outgoing.write(fl.BasicAuth(self.user, self.password).serialize())
        self.answer = incoming.read()

    def get_token(self) -> bytes:
        return self.answer


def test_tokens_in_all_forms(access: Access) -> None:
    with access.connect() as client:
        assert listed(client, bearer(access.token)) == []
        for user in ("alice", "token", ""):
            pair = client.authenticate_basic_token(user, access.token)
            assert pair == (b"authorization", f"Bearer {access.token}".encode())
            assert listed(client, fl.FlightCallOptions(headers=[pair])) == []
        for user, token in (("alice", "wrong"), ("bob", access.token), ("alice", "")):
            with pytest.raises(fl.FlightUnauthenticatedError, match="needs valid credentials"):
                client.authenticate_basic_token(user, token)
        for options in (None, bearer("wrong"), bearer(access.token[:-1])):
            with pytest.raises(fl.FlightUnauthenticatedError, match="needs valid credentials"):
                listed(client, options)
    with access.connect() as older:
        older.authenticate(Login("alice", access.token))
        assert listed(older) == []
    with access.connect() as older, pytest.raises(fl.FlightUnauthenticatedError, match="needs valid credentials"):
        older.authenticate(Login("alice", "wrong"))


def test_certificates(access: Access, tmp_path: Path) -> None:
    cert, key = access.authority.client("gpu7.lan")
    with access.connect(cert_chain=cert.read_bytes(), private_key=key.read_bytes()) as client:
        assert listed(client) == []
    until(lambda: "principal=gpu7.lan" in access.log.read_text(), "a line about the caller")
    strange = Authority(tmp_path / "other")
    cert, key = strange.client("gpu7.lan")
    with (
        access.connect(cert_chain=cert.read_bytes(), private_key=key.read_bytes()) as client,
        pytest.raises(fl.FlightUnavailableError),
    ):
        listed(client)
    for url, trust in ((access.node.url, strange.root), (access.node.url.replace("+tls", ""), None)):
        with (
            fl.connect(url, **({"tls_root_certs": trust} if trust else {})) as client,
            pytest.raises(fl.FlightUnavailableError),
        ):
            listed(client, bearer(access.token))


def test_package(access: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    import bowstring  # a fixture of other tests has its name

    root = access.authority.folder / "ca.pem"
    cert, key = access.authority.client("gpu8.lan")
    with bowstring.connect(access.node.url, token=access.token, tls_root_certs=root) as client:
        assert client.datasets() == []
        assert pickle.loads(pickle.dumps(client)).datasets() == []
    with bowstring.connect(access.node.url, tls_root_certs=root.read_bytes(), cert=cert, key=key) as client:
        assert client.datasets() == []
    with bowstring.connect(access.node.url, tls_root_certs=root) as client, pytest.raises(bowstring.Unauthenticated):
        client.datasets()
    with pytest.raises(ValueError, match="tls: give it, or"):
        bowstring.connect(access.node.url, tls=bowstring.Tls(), cert=cert)
    monkeypatch.setenv("BOWSTRING_TOKEN", access.token)
    monkeypatch.setenv("BOWSTRING_SERVER_CA", str(root))
    with bowstring.connect(access.node.url) as client:
        assert client.datasets() == []
        assert access.token not in repr(client)


def test_the_lines_in_the_protocol(access: Access) -> None:
    (block,) = (b for b in blocks(ROOT / "docs" / "protocol.md") if "grpc+tls" in b)
    cert, key = access.authority.client("me")
    for shown, meant in {
        "gpu7:8815": f"127.0.0.1:{access.node.port}",
        "bow_...": access.token,
        "ca.pem": access.authority.folder / "ca.pem",
        "me.pem": cert,
        "me.key": key,
    }.items():
        assert shown in block
        block = block.replace(shown, str(meant))
    names: dict[str, Any] = {}
    exec(block, names)  # noqa: S102
    assert names["flights"] == []
    assert listed(names["client"]) == []
    until(lambda: "principal=me " in access.log.read_text(), "a line about the caller")


def test_revoked(access: Access, bowstring: Run) -> None:
    before = access.log.read_text().count("read again")
    made = bowstring("token", "create", "--tokens", access.tokens, "--principal", "bob").stdout.strip()
    until(lambda: access.log.read_text().count("read again") > before, "reading the tokens again")

    def let_in() -> bool:
        with access.connect() as client:
            try:
                return listed(client, bearer(made)) == []
            except fl.FlightUnauthenticatedError:
                return False

    assert let_in()
    with access.connect() as client:
        descriptor = fl.FlightDescriptor.for_command(json.dumps({"put": {"dataset": "d"}}))
        writer, reader = client.do_put(descriptor, pa.schema({"name": pa.string()}), options=bearer(made))
        bowstring("token", "revoke", made.split("_")[1], "--tokens", access.tokens)
        assert reader.read() is None  # the stream's end, which says nothing yet
        with pytest.raises(fl.FlightUnauthenticatedError, match="the token was revoked"):
            writer.close()
    assert not let_in()


def test_no_secret_is_shown(access: Access) -> None:
    with access.connect() as client:
        (stats,) = [json.dumps(found) for found in act_with(client, access.token)]
    command = Path(f"/proc/{access.node.pid}/cmdline").read_text()
    for text in (access.log.read_text(), command, access.tokens.read_text(), stats):
        assert access.token[-43:] not in text
    # Nor will there be a core: one that is piped to a program is not kept from it by a limit of 0.
    limits = Path(f"/proc/{access.node.pid}/limits").read_text()
    assert re.search(r"^Max core file size +[01] ", limits, re.MULTILINE), limits


def act_with(client: fl.FlightClient, token: str) -> list[Any]:
    return [json.loads(r.body.to_pybytes()) for r in client.do_action(("stats", b""), bearer(token))]
