"""Flight clients in Java and Rust, built from what Maven Central and crates.io have, come in by all their ways."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from conftest import ROOT
from node import Node
from pki import Authority

pytestmark = [pytest.mark.clients, pytest.mark.timeout(3600)]

Run = Callable[..., subprocess.CompletedProcess[str]]

BUILD = ROOT / "build" / "clients"
MAVEN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
ROWS, SIZE, SEEN = 50, 1000, 25  # the rules show clients SEEN rows, with a label below 5
RULES = """
rules:
  - {principals: [root], datasets: ["*"], rights: [admin]}
  - {principals: [alice, gpu7.lan], datasets: [seen], rights: [read], where: "label < 5", columns: [id, label, image]}
"""
WHO = "needs valid credentials"


class Access(NamedTuple):
    """A server with TLS, tokens and rules, which has a dataset that alice sees half of, and one that she does not."""

    node: Node
    arguments: list[str]
    token: str


def tool(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.fail(f"{name} is not installed: {package} has it")
    return found


def java() -> list[str]:
    """Build the Java client, and say how it is run."""
    folder = BUILD / "java"
    source = ROOT / "tests" / "clients" / "java"
    libraries = f"-DoutputDirectory={folder / 'lib'}"
    subprocess.run([tool("mvn", "maven"), "-B", "-q", "-f", source / "pom.xml", MAVEN, libraries], check=True)
    path = f"{folder / 'lib'}/*"
    compiler = [tool("javac", "openjdk-17-jdk-headless"), "-cp", path, "-d", str(folder / "classes")]
    subprocess.run([*compiler, str(source / "Client.java")], check=True)
    opened = "--add-opens=java.base/java.nio=ALL-UNNAMED"
    return [tool("java", "openjdk-17-jre-headless"), opened, "-cp", f"{folder / 'classes'}:{path}", "Client"]


def rust() -> list[str]:
    """Build the Rust client, and say how it is run."""
    source = ROOT / "tests" / "clients" / "rust" / "Cargo.toml"
    target = BUILD / "rust"
    build = ["build", "--quiet", "--locked", "--manifest-path", str(source), "--target-dir", str(target)]
    subprocess.run([tool("cargo", "rustup"), *build], check=True)
    return [str(target / "debug" / "flight-client")]


@pytest.fixture(scope="module")
def access(binary: Path, bowstring: Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    root = tmp_path_factory.mktemp("clients")
    authority, tokens, rules = Authority(root / "pki"), root / "tokens.json", root / "rules.yaml"
    cert, key = authority.server()
    rules.write_text(RULES)
    admin, alice = (
        bowstring("token", "create", "--tokens", tokens, "--principal", who).stdout.strip() for who in ("root", "alice")
    )
    ca = root / "pki" / "ca.pem"
    flags = ["--tls-cert", cert, "--tls-key", key, "--tls-client-ca", ca, "--tokens", tokens, "--rules", rules]
    with Node(binary, root / "store", *map(str, flags), log=root / "log") as node:
        table = pa.table(
            {
                "name": [f"{i:04}.jpg" for i in range(ROWS)],
                "label": pa.array([i % 10 for i in range(ROWS)], pa.int64()),
                "image": pa.array([bytes([i]) * SIZE for i in range(ROWS)], pa.large_binary()),
            }
        )
        options = fl.FlightCallOptions(headers=[(b"authorization", f"Bearer {admin}".encode())])
        with fl.connect(node.url, tls_root_certs=authority.root) as client:
            for dataset in ("seen", "zzz1"):
                command = f'{{"put": {{"dataset": "{dataset}", "key": "name", "blobs": ["image"]}}}}'
                writer, _ = client.do_put(fl.FlightDescriptor.for_command(command), table.schema, options=options)
                writer.write_table(table)
                writer.close()
        yield Access(node, [str(node.port), str(ca), *map(str, authority.client("gpu7.lan"))], alice)


@pytest.mark.parametrize("build", [java, rust])
def test_ways(access: Access, build: Callable[[], list[str]]) -> None:
    done = subprocess.run(
        [*build(), *access.arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "CLIENT_TOKEN": access.token},
    )
    assert done.returncode == 0, done.stderr
    said = dict(line.split("\t") for line in done.stdout.splitlines())
    everything = f"ok {SEEN} {SEEN * SIZE}"
    right = {"bearer", "basic", "basic, any user", "by hand", "certificate"}
    right |= {"older handshake"} if build is java else {"basic, no padding"}
    assert {name for name, what in said.items() if what == everything} == right, said
    wrong = {"no token", "wrong token", "wrong password", "another's password", "wrong token beside a certificate"}
    if build is java:
        wrong.add("older handshake, wrong")
    refused = {name: said.pop(name) for name in wrong}
    assert all(what.startswith("UNAUTHENTICATED ") and WHO in what for what in refused.values()), refused
    assert not said.pop("in plain").startswith("ok")  # each library has a name of its own for it
    twins = {
        "dataset": ("zzz1", "zzz2", "NOT_FOUND"),
        "row": ("7", "70", "ok 0 0"),
        "listed row": ("7", "70", "ok 0 0"),
        "column": ('"name"', '"nome"', "INVALID_ARGUMENT"),
    }
    for what, (hidden, absent, outcome) in twins.items():
        found, twin = said.pop(f"hidden {what}"), said.pop(f"absent {what}")
        assert found.startswith(outcome), found
        assert found.replace(hidden, "…") == twin.replace(absent, "…")
    assert set(said) == right, said
