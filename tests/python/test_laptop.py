"""The package on macOS and Windows, by taking away from Python what it lacks there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from node import Node

pytestmark = pytest.mark.timeout(180)
SYSTEMS = ["darwin", "win32"]


def on(system: str, program: str, *args: str, **environment: str) -> str:
    """The output of a program there."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "laptop.py"), system, program, *args],
        env=os.environ | environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


READS = """
import hashlib
import bowstring, pyarrow as pa
client = bowstring.connect(sys.argv[1])
photos = client.dataset("photos", split="train").where("width > 0").select(range(100)).shuffle(3)
seen = set()
with photos.batches(16, epoch=1) as batches:
    for batch in batches:
        seen |= {hashlib.sha256(image.as_py()).hexdigest() for image in batch["image"]}
        assert batches.place["transport"] == "tcp", batches.place
assert photos.take([5, 3]).num_rows == 2
assert photos.plan().rows == 100 and repr(photos.head())
name = f"of-{sys.platform}"
assert client.ingest(name, pa.table({"n": [1, 2], "b": [b"a", b"b"]}), progress=False).rows == 2
client.drop(name)
print(len(seen))
"""


@pytest.mark.parametrize("system", SYSTEMS)
def test_it_reads_and_writes(node: Node, system: str) -> None:
    assert on(system, READS, node.url) == "100\n"


MODULES = """
import importlib, os, pathlib
import bowstring
folder, lacking = pathlib.Path(bowstring.__file__).parent, set()
for path in sorted(folder.rglob("*.py")):
    name = ".".join(path.relative_to(folder.parent).with_suffix("").parts).removesuffix(".__init__")
    if name in ("bowstring.dali", "bowstring.dlio", "bowstring.grain"):
        continue  # of packages for Linux
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        lacking.add(error.name.partition(".")[0])  # another package, which is not installed
# These are imported before the system is changed: torch torchdata polars ray sqlglot PIL
print(len(lacking - {"torch", "torchdata", "polars", "ray", "skimage", "sqlglot", "tokenizers"}), flush=True)
os._exit(0)  # other packages end by calls that were removed
"""


@pytest.mark.parametrize("system", SYSTEMS)
def test_each_module_can_be_imported(system: str) -> None:
    assert on(system, MODULES) == "0\n"


PLACED = """
import bowstring
crops = [{"Decode": {}}, {"CenterCrop": {"size": [8, 8]}}]
photos = bowstring.connect(sys.argv[1]).dataset("photos").operators(image=crops)
try:
    with photos.options(place="client").batches(16) as batches:
        print(next(batches).equals(next(photos.batches(16))), batches.place["place"])
except bowstring.Unsupported as error:
    print(error)
"""


def test_operators_run_at_the_client_on_macos(node: Node, binary: Path) -> None:
    assert on("darwin", PLACED, node.url, BOWSTRING_BINARY=str(binary)) == "True client\n"


def test_operators_at_the_client_are_refused_by_name_on_windows(node: Node, binary: Path) -> None:
    said = on("win32", PLACED, node.url, BOWSTRING_BINARY=str(binary))
    assert "which Windows does not have" in said
    assert 'use place="server"' in said


OPENED = """
import bowstring
for call in (
    lambda: bowstring.open("."),
    lambda: bowstring.open("s3://bucket/photos"),
    lambda: bowstring.open("cql://host/keyspace#photos"),
    lambda: bowstring.write("photos", "store"),
):
    try:
        print(call())
    except bowstring.Unsupported as error:
        print(error)
photos = bowstring.open(sys.argv[1] + "/photos", split="train")
print(photos.num_rows)
"""


@pytest.mark.parametrize("system", SYSTEMS)
def test_what_needs_a_server_on_this_machine_says_so(node: Node, system: str) -> None:
    *said, rows = on(system, OPENED, node.url).splitlines()
    assert len(said) == 4
    for line, what in zip(said, ["source: '.'", "source: 's3:", "source: 'cql:", "into: 'store'"], strict=True):
        assert line.startswith(what)
        assert "needs a server on this machine, which runs on Linux alone" in line
        assert f"this is {system}" in line
        assert "grpc+tls://HOST:PORT/NAME" in line
    assert int(rows) > 0


SOCKET = """
import bowstring
try:
    bowstring.open("grpc+unix:///run/bowstring.sock#photos")
except bowstring.BowstringError as error:
    print(type(error).__name__, error)
"""


def test_a_socket_is_refused_by_name_on_windows() -> None:
    said = on("win32", SOCKET)
    assert said.startswith("Unsupported uri: got 'grpc+unix:///run/bowstring.sock', a socket, which")
    assert "want grpc+tls://HOST:PORT" in said
