"""What `make release` refuses, and the notes, sums, signature and index that it writes."""

from __future__ import annotations

import functools
import gzip
import hashlib
import http.server
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import release
from conftest import ROOT
from node import Node

VERSION = "3.1.4"


def git(root: Path, *words: str) -> None:
    name = ["-c", "user.name=Tests", "-c", "user.email=tests@example.org"]
    name += ["-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false"]
    subprocess.run(["git", *name, *words], cwd=root, check=True, capture_output=True)  # noqa: S607


def new_key(file: Path) -> Path:
    command: list[str | Path] = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", file]
    subprocess.run(command, check=True)
    return file


def prepare(root: Path, key: Path) -> None:
    """Commit a version and a key, as a maintainer does before a release."""
    for file, pattern in (
        ("python/pyproject.toml", r'(?m)^(version = ")[^"]*()'),
        (f"{release.CHART}/Chart.yaml", r"(?m)^(version: ).*()$"),
        (f"{release.CHART}/Chart.yaml", r'(?m)^(appVersion: ").*(")$'),
    ):
        text = (root / file).read_text()
        changed, times = re.subn(pattern, rf"\g<1>{VERSION}\g<2>", text)
        assert times == 1, file
        (root / file).write_text(changed)
    log = root / "CHANGELOG.md"
    title = re.split(r"(?m)^## ", log.read_text(), maxsplit=1)[0]
    log.write_text(f"{title}## {VERSION}\n\nNew:\n\n- A line.\n")
    with (root / release.SIGNERS).open("a") as signers:
        signers.write(f'bowstring namespaces="file" {key.with_name(key.name + ".pub").read_text()}')
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "-m", VERSION)


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_key(tmp_path_factory.mktemp("key") / "key")


@pytest.fixture
def tree(tmp_path: Path, key: Path) -> Path:
    """A repository of the files that say something about a release, as it is before one."""
    root = tmp_path / "tree"
    names = ["python/pyproject.toml", "CHANGELOG.md", release.SIGNERS]
    chart = [file.relative_to(ROOT).as_posix() for file in (ROOT / release.CHART).rglob("*") if file.is_file()]
    for name in [*names, *chart]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, root / name)
    (root / ".gitignore").write_text("/build/\n")
    git(tmp_path, "init", "--quiet", str(root))
    prepare(root, key)
    return root


def edit(root: Path, file: str, old: str, new: str) -> None:
    text = (root / file).read_text()
    assert old in text
    (root / file).write_text(text.replace(old, new))
    git(root, "commit", "--quiet", "--all", "-m", "edited")


def test_the_tree_states_one_version() -> None:
    """The program, the wheels and the image get the version of pyproject.toml; the chart states its own."""
    assert len(set(release.versions(ROOT).values())) == 1, release.versions(ROOT)
    makefile = (ROOT / "Makefile").read_text()
    assert "VERSION = $(shell sed -n 's/^version = \"\\(.*\\)\"/\\1/p' python/pyproject.toml)" in makefile
    assert "-X bowstring/cmd/bowstring/command.version=$(VERSION)" in makefile


def test_what_can_be_released_is_not_refused(tree: Path, key: Path) -> None:
    release.check(tree, VERSION, str(key))


@pytest.mark.parametrize("version", ["", "3", "3.1", "v3.1.4", "3.1.4-rc.1", "03.1.4", "3.1.4\n", "3.1.4.1", "three"])
def test_no_version(tree: Path, key: Path, version: str) -> None:
    with pytest.raises(release.RefusedError, match="is no version: want three numbers, such as"):
        release.check(tree, version, str(key))


@pytest.mark.parametrize("tag", [VERSION, f"v{VERSION}"])
def test_a_version_under_a_tag(tree: Path, key: Path, tag: str) -> None:
    git(tree, "tag", tag)
    with pytest.raises(release.RefusedError, match=rf"^{tag} is a tag already"):
        release.check(tree, VERSION, str(key))


def test_a_dirty_tree(tree: Path, key: Path) -> None:
    (tree / "new.txt").write_text("in no commit\n")
    with pytest.raises(release.RefusedError, match=r"changes that are in no commit(?s:.)*\?\? new\.txt"):
        release.check(tree, VERSION, str(key))
    (tree / "new.txt").unlink()
    (tree / "CHANGELOG.md").write_text("# Changelog\n")
    with pytest.raises(release.RefusedError, match=r"changes that are in no commit(?s:.)*M CHANGELOG\.md"):
        release.check(tree, VERSION, str(key))


def test_another_version_in_the_tree(tree: Path, key: Path) -> None:
    edit(tree, f"{release.CHART}/Chart.yaml", f'appVersion: "{VERSION}"', 'appVersion: "3.1.3"')
    wrong = r"^appVersion of deploy/helm/bowstring/Chart\.yaml is 3\.1\.3, and VERSION is 3\.1\.4: commit"
    with pytest.raises(release.RefusedError, match=wrong):
        release.check(tree, VERSION, str(key))


def test_no_notes(tree: Path, key: Path) -> None:
    edit(tree, "CHANGELOG.md", f"## {VERSION}\n", f"## Unreleased: {VERSION}\n")
    with pytest.raises(release.RefusedError, match=r"no section '## 3\.1\.4' or .*; it has 'Unreleased: 3\.1\.4'"):
        release.check(tree, VERSION, str(key))


def test_no_key(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(release.RefusedError, match=r"^KEY is not set: want KEY=FILE.*ssh-keygen -t ed25519 makes"):
        release.check(tree, VERSION, "")
    with pytest.raises(release.RefusedError, match="there is no such file"):
        release.check(tree, VERSION, str(tmp_path / "nowhere"))
    with pytest.raises(release.RefusedError, match="does not sign"):
        release.check(tree, VERSION, str(tree / "CHANGELOG.md"))
    with pytest.raises(release.RefusedError, match="users could not verify what KEY signs: tools/release/allowed_si"):
        release.check(tree, VERSION, str(new_key(tmp_path / "other")))


def test_the_notes_are_the_section_of_the_version(tmp_path: Path) -> None:
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\nText.\n\n## Unreleased: 2.0.0\n\n- new\n\n## 1.10.0, 2027-01-31\n\nNew:\n\n- a\n\n### More\n\n"
        "- b\n\n## 1.1.0\n\n- c\n\n## 1.0.0\n\n"
    )
    assert release.notes(tmp_path, "1.10.0") == "New:\n\n- a\n\n### More\n\n- b\n"
    assert release.notes(tmp_path, "1.1.0") == "- c\n"
    with pytest.raises(release.RefusedError, match="is empty"):
        release.notes(tmp_path, "1.0.0")
    with pytest.raises(release.RefusedError, match=r"it has 'Unreleased: 2\.0\.0', '1\.10\.0, 2027-01-31', '1\.1\.0'"):
        release.notes(tmp_path, "2.0.0")


def built(root: Path) -> None:
    """Files in the places where make leaves what it builds."""
    for name in (
        f"wheels/bowstring-{VERSION}-py3-none-linux.whl",
        f"client/bowstring-{VERSION}.tar.gz",
        "release/amd64/bowstring",
        "release/arm64/bowstring",
        "image/oci-layout",
        "image/blobs/sha256/00",
        "sbom/bowstring.cdx.json",
        "site/index.html",
        "site/docs/cli.html",
    ):
        (root / "build" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "build" / name).write_text(name)


def user_verifies(out: Path, signers: Path) -> bool:
    """The steps that docs/releases.md gives users."""
    verify: list[str | Path] = [
        "ssh-keygen",
        "-Y",
        "verify",
        "-f",
        signers,
        "-I",
        "bowstring",
        "-n",
        "file",
        "-s",
        "SHA256SUMS.sig",
    ]
    with (out / "SHA256SUMS").open("rb") as text:
        signed = subprocess.run(verify, cwd=out, check=False, stdin=text, capture_output=True)
    compare = ["sha256sum", "--check", "--quiet", "SHA256SUMS"]
    same = subprocess.run(compare, cwd=out, check=False, capture_output=True)
    return signed.returncode == 0 and same.returncode == 0


def test_each_file_is_summed_and_the_sums_are_signed(tree: Path, key: Path) -> None:
    built(tree)
    out = release.make(tree, VERSION, str(key))
    lines = (out / "SHA256SUMS").read_text().splitlines()
    listed = {line.split("  ")[1] for line in lines}
    assert listed | {"SHA256SUMS", "SHA256SUMS.sig"} == {
        file.relative_to(out).as_posix() for file in out.rglob("*") if file.is_file()
    }
    assert {"NOTES.md", f"bowstring-{VERSION}.tgz", f"programs/bowstring-{VERSION}-linux-arm64"} <= listed
    assert (out / "NOTES.md").read_text().startswith(f"# Bowstring {VERSION}\n\nNew:\n")
    with tarfile.open(out / f"bowstring-{VERSION}-site.tar") as site:
        assert site.getnames() == ["site/docs/cli.html", "site/index.html"]
    assert user_verifies(out, tree / release.SIGNERS)
    assert not user_verifies(out, ROOT / release.SIGNERS), "a key that the tree does not name"
    # Again, with what an earlier try has left.
    (out / "stale").write_text("of another try\n")
    assert release.make(tree, VERSION, str(key)) == out
    assert (out / "SHA256SUMS").read_text().splitlines() == lines
    # Whatever is changed afterwards is found.
    for name in ("NOTES.md", "SHA256SUMS"):
        text = (out / name).read_text()
        (out / name).write_text(text + " ")
        assert not user_verifies(out, tree / release.SIGNERS)
        (out / name).write_text(text)
    assert user_verifies(out, tree / release.SIGNERS)


def test_the_chart_is_packed(tree: Path, tmp_path: Path) -> None:
    release.chart(tree, tmp_path / "a.tgz")
    os.utime(tree / release.CHART / "Chart.yaml", (0, 0))
    (tree / release.CHART / "values.yaml").chmod(0o600)
    release.chart(tree, tmp_path / "b.tgz")
    assert (tmp_path / "a.tgz").read_bytes() == (tmp_path / "b.tgz").read_bytes()
    with tarfile.open(tmp_path / "a.tgz") as chart:
        names = chart.getnames()
        about = chart.extractfile("bowstring/Chart.yaml")
        assert about is not None
        assert f'appVersion: "{VERSION}"' in about.read().decode()
    assert {"bowstring/values.yaml", "bowstring/templates/_helpers.tpl"} <= set(names)
    assert not [name for name in names if "/ci/" in name]


def test_the_index_names_each_package(tmp_path: Path) -> None:
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "bowstring-3.1.4.tar.gz").write_bytes(b"x")
    release.index(tmp_path)
    (link,) = re.findall(r'href="(.*?)"', (tmp_path / "simple" / "bowstring" / "index.html").read_text())
    file, _, fragment = link.partition("#")
    assert (tmp_path / "simple" / "bowstring" / file).resolve() == tmp_path / "python" / "bowstring-3.1.4.tar.gz"
    assert fragment == f"sha256={hashlib.sha256(b'x').hexdigest()}"


# --- a whole release -------------------------------------------------------

MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]


def make(tree: Path, key: Path) -> Path:
    """Run make release. The copy of the tree uses the packages that are installed for this one."""
    for lock in (tree / "python" / "requirements").iterdir():
        os.utime(lock, (0, 0))  # older than what was installed by it
    command = ["make", f"VENV={ROOT / '.venv'}", "release", f"VERSION={VERSION}", f"KEY={key}"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(command, cwd=tree, check=False, capture_output=True, text=True, env=kept)
    assert done.returncode == 0, done.stdout + done.stderr
    return tree / "build" / "release" / VERSION


@pytest.fixture(scope="module")
def released(key: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("released") / "tree"
    git(root.parent, "clone", "--quiet", "--shared", str(ROOT), str(root))
    prepare(root, key)
    yield make(root, key)
    shutil.rmtree(root, ignore_errors=True)


@contextmanager
def index_of(out: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *words: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(out))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/simple/"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.release
@pytest.mark.timeout(3600)
def test_every_artifact_has_the_version(released: Path) -> None:
    tree = released.parents[2]
    assert user_verifies(released, tree / release.SIGNERS)
    program = released / "programs" / f"bowstring-{VERSION}-linux-{MACHINE}"
    says = subprocess.run([program, "version"], check=True, capture_output=True, text=True).stdout
    assert says.startswith(f"bowstring {VERSION}\n")
    packages = {file.name for file in (released / "python").iterdir()}
    assert len(packages) == 4
    for name in packages:
        assert name.startswith(f"bowstring-{VERSION}"), name
        if name.endswith(".whl"):
            with zipfile.ZipFile(released / "python" / name) as wheel:
                about = wheel.read(f"bowstring-{VERSION}.dist-info/METADATA").decode()
                assert f"\nVersion: {VERSION}\n" in about
                assert any(n.endswith("/scripts/bowstring") for n in wheel.namelist()) == ("linux" in name)
    index = json.loads((released / "image" / "index.json").read_text())
    assert len(index["manifests"]) == 2
    for entry in index["manifests"]:
        manifest = blob(released, entry["digest"])
        assert (
            blob(released, manifest["config"]["digest"])["config"]["Labels"]["org.opencontainers.image.version"]
            == VERSION
        )
    bills = [json.loads(file.read_text()) for file in (released / "sbom").iterdir()]
    assert len(bills) == 7  # of two programs, three wheels and an image for each of two processors
    assert {bill["metadata"]["component"]["version"] for bill in bills} == {VERSION}
    values = tree / "deploy" / "helm" / "bowstring" / "ci" / "tokens-values.yaml"
    render: list[str | Path] = [ROOT / "build" / "helm" / "render", "--kube", "1.36", "--values", values]
    chart = released / f"bowstring-{VERSION}.tgz"
    objects = subprocess.run([*render, chart], check=True, capture_output=True, text=True).stdout
    assert f"helm.sh/chart: bowstring-{VERSION}" in objects
    assert f"app.kubernetes.io/version: {VERSION}" in objects or f'app.kubernetes.io/version: "{VERSION}"' in objects
    with gzip.open(chart) as inside:
        assert inside.read(1)


def blob(out: Path, name: str) -> Any:
    kind, _, number = name.partition(":")
    return json.loads((out / "image" / "blobs" / kind / number).read_text())


READ = """
import sys, bowstring
photos = bowstring.open(sys.argv[1], split="train")
print(photos.num_rows, len(photos[0]["image"]) > 0, bowstring.__file__)
"""


@pytest.mark.release
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("platform", [None, "any"])
def test_users_install_it_and_read(
    released: Path, tmp_path: Path, folder: Path, node: Node, platform: str | None
) -> None:
    """In an empty environment; only the dependencies come from elsewhere. Linux' wheel has a server, the other not."""
    uv = ROOT / ".venv" / "bin" / "uv"
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, tmp_path / "env"], check=True)
    python = tmp_path / "env" / "bin" / "python"
    if platform == "any":  # as if there were no wheel for this machine
        for file in (released / "python").glob("*linux*.whl"):
            file.rename(tmp_path / file.name)
    try:
        install: list[str | Path] = [uv, "pip", "install", "--quiet", "--python", python, "--refresh-package=bowstring"]
        with index_of(released) as url:
            subprocess.run([*install, "--index", url, f"bowstring=={VERSION}"], check=True)
    finally:
        for file in tmp_path.glob("*linux*.whl"):
            file.rename(released / "python" / file.name)
    source = node.url + "/photos" if platform else str(folder)
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [python, "-c", READ, source], check=False, capture_output=True, text=True, env=env, timeout=120
    )
    assert done.returncode == 0, done.stderr
    rows, image, where = done.stdout.split()
    assert int(rows) > 0
    assert image == "True"
    assert Path(where).is_relative_to(tmp_path)
    has = (tmp_path / "env" / "bin" / "bowstring").exists()
    assert has == (platform is None)
    if has:
        subprocess.run([tmp_path / "env" / "bin" / "bowstring", "stop"], check=True, capture_output=True, env=env)


@pytest.mark.release
@pytest.mark.timeout(3600)
def test_two_runs_give_the_same_bytes(released: Path, key: Path) -> None:
    once = (released / "SHA256SUMS").read_text()
    again = make(released.parents[2], key)
    assert (again / "SHA256SUMS").read_text() == once
