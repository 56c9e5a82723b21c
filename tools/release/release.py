"""Puts a release together: `make release VERSION=x.y.z KEY=FILE` leaves it in build/release/x.y.z.

    release.py check VERSION KEY   refuse what cannot be released, before anything is built
    release.py make VERSION KEY    collect what make has built, and sign it

The version is not put into the artifacts from outside. It stands in the tree, so that a checkout of the tag builds the
same artifacts. Everything is written that a registry would be given, and nothing is sent to one.
"""

from __future__ import annotations

import gzip
import hashlib
import html
import io
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SIGNERS = "tools/release/allowed_signers"
CHART = "deploy/helm/bowstring"
SUMS = "SHA256SUMS"
IDENTITY = "bowstring"  # of the signer, in allowed_signers
NAMESPACE = "file"  # ssh-keygen's word for signatures of files
# Numbers of semantic versions. Pre-releases are left out: Python, Helm and Go each spell them differently.
VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")


class RefusedError(Exception):
    """A release that cannot be made. The message says what would be right."""


def check(root: Path, version: str, key: str) -> None:
    """Refuse a version, tree or key that cannot make a release."""
    if not VERSION.fullmatch(version):
        raise RefusedError(f"VERSION={version!r} is no version: want three numbers, such as VERSION=0.1.0")
    for name in (version, f"v{version}"):
        if git(root, "tag", "--list", name):
            raise RefusedError(f"{name} is a tag already: a version is released once, so choose a higher one")
    if changed := git(root, "status", "--porcelain"):
        raise RefusedError(f"the tree has changes that are in no commit; commit or remove them:\n{changed}")
    for where, found in versions(root).items():
        if found != version:
            raise RefusedError(f"{where} is {found}, and VERSION is {version}: commit the version there first")
    notes(root, version)
    check_key(root, key)


def versions(root: Path) -> dict[str, str]:
    """The places of the tree that state the version. The Makefile passes that of pyproject.toml to Go's linker."""
    project = (root / "python" / "pyproject.toml").read_text()
    chart = (root / CHART / "Chart.yaml").read_text()
    return {
        f"{name} of {file}": found[1] if (found := re.search(pattern, text, re.MULTILINE)) else "missing"
        for name, file, text, pattern in (
            ("version", "python/pyproject.toml", project, r'^version = "(.*)"$'),
            ("version", f"{CHART}/Chart.yaml", chart, r"^version: (.*)$"),
            ("appVersion", f"{CHART}/Chart.yaml", chart, r'^appVersion: "(.*)"$'),
        )
    }


def notes(root: Path, version: str) -> str:
    """The changelog's section of a version, without its heading."""
    sections = re.split(r"^## (.*)\n", (root / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    for heading, text in zip(sections[1::2], sections[2::2], strict=True):
        if re.fullmatch(rf"{re.escape(version)}(, \d{{4}}-\d\d-\d\d)?", heading):
            if not text.strip():
                raise RefusedError(f"the section {heading!r} of CHANGELOG.md is empty: say what users notice")
            return f"{text.strip()}\n"
    there = ", ".join(repr(heading) for heading in sections[1::2]) or "no section"
    raise RefusedError(f"CHANGELOG.md has no section '## {version}' or '## {version}, YYYY-MM-DD'; it has {there}")


def check_key(root: Path, key: str) -> None:
    """Sign a line of text, and verify the signature as a user will."""
    if not key:
        raise RefusedError(
            "KEY is not set: want KEY=FILE, a private key of SSH, or a public one whose private key an agent has; "
            f"ssh-keygen -t ed25519 makes a key, and {SIGNERS} names it"
        )
    if not Path(key).is_file():
        raise RefusedError(f"KEY={key}: there is no such file")
    text = b"bowstring\n"
    verify(root, text, sign(key, text))


def git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True)  # noqa: S607
    return done.stdout.strip()


def sign(key: str, text: bytes) -> bytes:
    """Return a signature over text. ssh-keygen asks at the terminal for the passphrase of a key that has one."""
    command = ["ssh-keygen", "-Y", "sign", "-q", "-f", key, "-n", NAMESPACE]
    done = subprocess.run(command, check=False, input=text, capture_output=True)
    if done.returncode:
        raise RefusedError(f"KEY={key} does not sign: {done.stderr.decode().strip()}")
    return done.stdout


def verify(root: Path, text: bytes, signature: bytes) -> None:
    made = root / "build" / "release.sig"
    made.parent.mkdir(exist_ok=True)
    made.write_bytes(signature)
    command = ["ssh-keygen", "-Y", "verify", "-f", SIGNERS, "-I", IDENTITY, "-n", NAMESPACE, "-s", str(made)]
    done = subprocess.run(command, cwd=root, check=False, input=text, capture_output=True)
    made.unlink()
    if done.returncode:
        raise RefusedError(
            f'users could not verify what KEY signs: {SIGNERS} has no line \'{IDENTITY} namespaces="{NAMESPACE}" '
            f"PUBLIC-KEY' for it ({(done.stdout + done.stderr).decode().strip()})"
        )


def collect(root: Path, version: str) -> Path:
    """Put what make has built into the folder of the release, and return it. An earlier folder is replaced."""
    built = root / "build"
    out = built / "release" / version
    shutil.rmtree(out, ignore_errors=True)
    (out / "python").mkdir(parents=True)
    (out / "programs").mkdir()
    for folder in ("wheels", "client"):
        for file in sorted((built / folder).iterdir()):
            shutil.copyfile(file, out / "python" / file.name)
    for arch in ("amd64", "arm64"):
        program = out / "programs" / f"bowstring-{version}-linux-{arch}"
        shutil.copyfile(built / "release" / arch / "bowstring", program)
        program.chmod(0o755)
    shutil.copytree(built / "image", out / "image")
    shutil.copytree(built / "sbom", out / "sbom")
    chart(root, out / f"bowstring-{version}.tgz")
    site = {file.relative_to(built).as_posix(): file for file in (built / "site").rglob("*") if file.is_file()}
    (out / f"bowstring-{version}-site.tar").write_bytes(packed(site))
    (out / "NOTES.md").write_text(f"# Bowstring {version}\n\n{notes(root, version)}")
    index(out)
    return out


def chart(root: Path, out: Path) -> None:
    """Pack the chart as `helm package` does, but without the time of packing: the same chart gives the same bytes."""
    left_out = tuple((root / CHART / ".helmignore").read_text().split())  # folders alone
    files = {}
    for name in git(root, "ls-files", "--", CHART).splitlines():
        inside = Path(name).relative_to(CHART).as_posix()
        if not inside.startswith(left_out):
            files[f"bowstring/{inside}"] = root / name
    out.write_bytes(gzip.compress(packed(files), mtime=0))


def packed(files: dict[str, Path]) -> bytes:
    """Return a tar of files by their names in it, without times and owners."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(files):
            data = files[name].read_bytes()
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o644
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def index(out: Path) -> None:
    """Write the index of PEP 503 over the packages, which pip reads from any server of files."""
    folder = out / "simple" / "bowstring"
    folder.mkdir(parents=True)
    (out / "simple" / "index.html").write_text('<!DOCTYPE html>\n<a href="bowstring/">bowstring</a>\n')
    links = [
        f'<a href="../../python/{html.escape(file.name)}#sha256={digest(file)}" data-requires-python="&gt;=3.10">'
        f"{html.escape(file.name)}</a><br>\n"
        for file in sorted((out / "python").iterdir())
    ]
    (folder / "index.html").write_text("<!DOCTYPE html>\n" + "".join(links))


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def sums(out: Path) -> bytes:
    """Return what `sha256sum -c` reads: each file of the release but the sums and their signature."""
    files = (file for file in out.rglob("*") if file.is_file() and file.parent / file.stem != out / SUMS)
    lines = {file.relative_to(out).as_posix(): digest(file) for file in files}
    return "".join(f"{lines[name]}  {name}\n" for name in sorted(lines)).encode()


def make(root: Path, version: str, key: str) -> Path:
    """Collect, sum up and sign. The tree is checked again, because the build may have changed it."""
    check(root, version, key)
    out = collect(root, version)
    text = sums(out)
    signature = sign(key, text)
    verify(root, text, signature)
    (out / SUMS).write_bytes(text)
    (out / f"{SUMS}.sig").write_bytes(signature)
    return out


def main() -> None:
    try:
        match sys.argv[1:]:
            case ["check", version, key]:
                check(ROOT, version, key)
            case ["make", version, key]:
                out = make(ROOT, version, key)
                sys.stdout.write(f"{out.relative_to(ROOT)}: {len(sums(out).splitlines())} files, signed\n")
            case _:
                sys.exit(__doc__)
    except RefusedError as e:
        sys.exit(f"release: {e}")


if __name__ == "__main__":
    main()
