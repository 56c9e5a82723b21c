"""A root file system with Python and nothing else, and a shell in it, with processes of its own.

The interpreter and its standard library are copied from the Python that runs this, with the shared libraries that they
and manylinux wheels need. There is no compiler, no Go, and no package but pip. It needs root, for chroot and unshare.
"""

from __future__ import annotations

import importlib.machinery
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

# manylinux lets a wheel expect these of each Linux, beyond those that Python itself needs.
_EXPECTED = (
    "libstdc++.so.6",
    "libgcc_s.so.1",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "libutil.so.1",
    "libm.so.6",
)
_UNNEEDED = ("test", "site-packages", "config-*", "idlelib", "lib2to3", "turtledemo")  # of the standard library
_PREFIX = "usr/local"  # where Python is in the new root
_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
PROGRAMS = f"{_PREFIX}/bin"
HOME = "root"  # the directory in which the shell starts


def make(root: Path) -> None:
    """Make the root."""
    for folder in ("dev", "proc", "tmp", HOME, "etc", "bin", PROGRAMS, f"{_PREFIX}/lib"):
        (root / folder).mkdir(parents=True)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/hosts").write_text(f"127.0.0.1 localhost {socket.gethostname()}\n")
    shell, python = Path("/bin/sh").resolve(), Path(sys._base_executable).resolve()  # type: ignore[attr-defined]
    standard = Path(sysconfig.get_path("stdlib"))
    shutil.copy(shell, root / "bin/sh")
    shutil.copy(python, root / PROGRAMS / _VERSION)
    for name in ("python", "python3"):
        (root / PROGRAMS / name).symlink_to(_VERSION)
    shutil.copytree(standard, root / _PREFIX / "lib" / _VERSION, ignore=shutil.ignore_patterns(*_UNNEEDED))
    site(root).mkdir()
    modules = standard.glob(f"lib-dynload/*{importlib.machinery.EXTENSION_SUFFIXES[0]}")
    libraries = _libraries(shell, python, *modules)
    system = next(path for path in libraries if path.name == "libc.so.6").parent
    for library in {*libraries, *(system / name for name in _EXPECTED)}:
        # Python's own library may be anywhere, and the loader of the new root looks where it finds libc.
        target = root / (library if library.parent in (system, Path("/lib64")) else system / library.name).relative_to(
            "/"
        )
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library.resolve(), target)


def site(root: Path) -> Path:
    """The folder of the packages of a root's Python."""
    return root / _PREFIX / "lib" / _VERSION / "site-packages"


def _libraries(*binaries: Path) -> set[Path]:
    """The shared libraries that binaries are linked with."""
    done = subprocess.run(["ldd", *binaries], check=False, capture_output=True, text=True)  # noqa: S607
    words = (word for line in done.stdout.splitlines() if not line.endswith(":") for word in line.split())
    return {Path(word) for word in words if word.startswith("/")}


class Done(NamedTuple):
    """The outcome of a command."""

    status: int
    said: str
    seconds: float


class Shell:
    """A shell in a root, with processes of its own. Use it in a `with` block, whose end kills all of them."""

    def __init__(self, root: Path, **environment: str) -> None:
        self._root = root
        self._environment = {"PATH": f"/{PROGRAMS}:/bin", "HOME": f"/{HOME}", **environment}

    def __enter__(self) -> Shell:
        enter = 'mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc" && exec chroot "$0" /bin/sh'
        isolated: list[str | Path] = [
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "/bin/sh",
            "-c",
            enter,
            self._root,
        ]
        self._process = subprocess.Popen(
            isolated,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**self._environment, "PATH": f"{os.environ['PATH']}:{self._environment['PATH']}"},
        )
        self._do(f"PATH={self._environment['PATH']}; cd /{HOME}")
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()

    def _do(self, command: str) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(f"{command}\necho $?", file=self._process.stdin, flush=True)
        status = self._process.stdout.readline()
        if not status:
            raise RuntimeError(f"the shell in {self._root} has ended")
        return int(status)

    def run(self, command: str) -> Done:
        """Run a command to its end."""
        begun = time.monotonic()
        status = self._do(f"( {command} ) </dev/null >/tmp/said 2>&1")
        return Done(status, (self._root / "tmp/said").read_text(errors="replace"), time.monotonic() - begun)

    def start(self, command: str, log: str) -> None:
        """Start a command, as in a second terminal. What it says is in a file of /tmp."""
        self._do(f": >/tmp/{log}; ( exec {command} ) </dev/null >>/tmp/{log} 2>&1 &")

    def end(self) -> None:
        """End the command that was started last, and wait for it."""
        self._do("kill $!; wait $!")

    def said(self, log: str) -> str:
        """The output so far of a command that was started."""
        return (self._root / "tmp" / log).read_text(errors="replace")
