"""The container image that `make image` left, run by runc: not as root, and only /data can be written."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.flight as fl
import pytest
from conftest import ROOT

pytestmark = pytest.mark.image

LAYOUT = ROOT / "build" / "image"
MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]


def blob(digest: str) -> bytes:
    kind, _, number = digest.partition(":")
    data = (LAYOUT / "blobs" / kind / number).read_bytes()
    assert hashlib.sha256(data).hexdigest() == number
    return data


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    """The manifest of the image for this machine."""
    index = json.loads((LAYOUT / "index.json").read_text())
    machines = {entry["platform"]["architecture"]: entry["digest"] for entry in index["manifests"]}
    assert set(machines) == {"amd64", "arm64"}
    found: dict[str, Any] = json.loads(blob(machines[MACHINE]))
    return found


@pytest.fixture(scope="module")
def config(manifest: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(blob(manifest["config"]["digest"]))
    return found


@pytest.fixture(scope="module")
def rootfs(manifest: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("image") / "rootfs"
    root.mkdir()
    packed = root.with_name("layer.tar.gz")
    for layer in manifest["layers"]:
        packed.write_bytes(blob(layer["digest"]))
        with tarfile.open(packed) as inside:
            inside.extractall(root, filter="fully_trusted")  # noqa: S202
    return root


def test_what_is_in_it(rootfs: Path, config: dict[str, Any], manifest: dict[str, Any]) -> None:
    files = {str(path.relative_to(rootfs)) for path in rootfs.rglob("*")}
    assert files == {"bowstring", "data", "etc", "etc/group", "etc/passwd", "tmp"}
    assert config["config"]["User"] == "65532:65532"
    assert sum(layer["size"] for layer in manifest["layers"]) <= 60e6


def _runc() -> str:
    found = shutil.which("runc")
    if found is None:
        pytest.fail("there is no runc (on Debian: apt install runc)")
    return found


def ids(name: str) -> dict[str, set[str]]:
    """The users and groups, of each kind, that the first process of a container has."""
    state = json.loads(subprocess.run([_runc(), "state", name], check=True, capture_output=True).stdout)
    lines = (line.split() for line in Path(f"/proc/{state['pid']}/status").read_text().splitlines())
    return {words[0]: set(words[1:]) for words in lines if words[0] in ("Uid:", "Gid:")}


@contextmanager
def container(
    rootfs: Path, data: Path, config: dict[str, Any], *words: str
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run a command of the image on this machine's network, by a name. /data is the folder data."""
    runc = _runc()
    bundle = rootfs.parent
    (bundle / "config.json").unlink(missing_ok=True)
    subprocess.run([runc, "spec"], cwd=bundle, check=True)
    spec = json.loads((bundle / "config.json").read_text())
    uid, gid = (int(number) for number in config["config"]["User"].split(":"))
    spec["process"] |= {
        "terminal": False,
        "user": {"uid": uid, "gid": gid},
        "args": [*config["config"]["Entrypoint"], *words],
        "env": config["config"]["Env"],
        "cwd": config["config"]["WorkingDir"],
        "noNewPrivileges": True,
        "capabilities": {},
    }
    spec["root"] = {"path": str(rootfs), "readonly": True}
    spec["mounts"].append({"destination": "/data", "type": "bind", "source": str(data), "options": ["bind", "rw"]})
    spec["linux"].pop("resources", None)
    spec["linux"]["namespaces"] = [n for n in spec["linux"]["namespaces"] if n["type"] not in ("network", "cgroup")]
    (bundle / "config.json").write_text(json.dumps(spec))
    name = f"bowstring-test-{os.getpid()}-{time.monotonic_ns()}"
    with subprocess.Popen(
        [runc, "run", "--bundle", bundle, name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as p:
        try:
            yield p, name
        finally:
            subprocess.run([runc, "kill", name, "TERM"], check=False, capture_output=True)
            p.wait(60)
            subprocess.run([runc, "delete", "--force", name], check=False, capture_output=True)


def test_it_imports_and_serves(rootfs: Path, config: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(folder, data / "photos")
    for path in [data, *data.rglob("*")]:
        os.chown(path, 65532, 65532)
    with container(rootfs, data, config, "import", "/data/photos", "photos") as (importing, _):
        out, _ = importing.communicate(timeout=60)
        assert importing.returncode == 0, out
    listen = ["--listen", "127.0.0.1:0", "--ready-file", "/data/ready"]
    with container(rootfs, data, config, *config["config"]["Cmd"], *listen) as (serving, name):
        while not (data / "ready").exists():
            assert serving.poll() is None, serving.communicate()[0]
            time.sleep(0.02)
        client = fl.connect((data / "ready").read_text().strip())
        info = client.get_flight_info(fl.FlightDescriptor.for_path("photos", "train"))
        rows = sum(client.do_get(e.ticket).read_all().num_rows for e in info.endpoints)
        assert rows == info.total_records > 0
        assert ids(name) == {"Uid:": {"65532"}, "Gid:": {"65532"}}
    assert serving.returncode == 0
    assert not (rootfs / "store").exists()
