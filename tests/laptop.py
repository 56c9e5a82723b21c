"""Takes away from Python what it lacks on macOS or Windows, and then runs a program: `laptop.py darwin|win32 PROGRAM`.

Other packages are imported before, because they have other builds for those systems.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import importlib
import mmap
import os
import select
import socket
import sys
from typing import Any

ELSEWHERE = (  # noqa: SIM905
    "multiprocessing.pool ssl subprocess tempfile urllib.request hpack tenacity tqdm.auto "
    "numpy pyarrow.compute pyarrow.flight"
).split()
OPTIONAL = [
    *("torch.utils.data", "torchdata.stateful_dataloader", "polars", "pandas", "PIL.Image"),
    *("ray.data", "sqlglot"),
]
# Modules that can be imported on Linux alone, or on no Windows.
MISSING = {
    "darwin": ["spwd", "nis", "ossaudiodev"],
    "win32": "_curses _posixshmem _posixsubprocess curses fcntl grp nis posix pty pwd readline resource spwd syslog "  # noqa: SIM905
    "termios tty".split(),
}
LACKS: dict[str, dict[Any, str]] = {
    "darwin": {
        os: "eventfd memfd_create pidfd_open MFD_CLOEXEC sched_getaffinity",
        socket: "MSG_CMSG_CLOEXEC MSG_NOSIGNAL SOCK_CLOEXEC SOCK_NONBLOCK SO_PEERCRED TCP_USER_TIMEOUT",
        select: "epoll POLLRDHUP",
        mmap: "MADV_HUGEPAGE MAP_NORESERVE MAP_POPULATE",
    },
    "win32": {
        os: "chown eventfd fork forkpty fchmod fchown geteuid getegid getgid getpgid getuid killpg mkfifo "
        "memfd_create pidfd_open posix_fadvise posix_spawn pread preadv pwrite readv register_at_fork "
        "sched_getaffinity set_blocking setsid sysconf uname waitid writev O_CLOEXEC O_NONBLOCK O_DIRECTORY WNOHANG",
        socket: "AF_UNIX CMSG_SPACE MSG_CMSG_CLOEXEC MSG_DONTWAIT MSG_NOSIGNAL SCM_RIGHTS SOCK_CLOEXEC SOCK_NONBLOCK "
        "SOCK_SEQPACKET SO_PEERCRED TCP_USER_TIMEOUT socketpair",
        select: "epoll poll POLLIN POLLOUT POLLRDHUP",
        mmap: " ".join(name for name in dir(mmap) if name.startswith(("MAP_", "PROT_", "MADV_"))),
    },
}


def be(system: str, program: str) -> None:
    """Make this process like one of another system's, as far as the package looks."""
    for name in ELSEWHERE:
        importlib.import_module(name)
    for name in OPTIONAL:
        if name.partition(".")[0] in program:
            with contextlib.suppress(ImportError):  # it is not installed
                importlib.import_module(name)
    for module, names in LACKS[system].items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    import fcntl

    if system == "win32":
        _as_on_windows()
    elif hasattr(fcntl, "F_SETPIPE_SZ"):
        del fcntl.F_SETPIPE_SZ
    for name in MISSING[system]:
        sys.modules[name] = None  # type: ignore[assignment]
    _without_proc()
    sys.platform = system


def _as_on_windows() -> None:
    library, mapped = ctypes.CDLL, mmap.mmap

    def loaded(name: str | None, *args: Any, **named: Any) -> Any:
        if name is None:
            raise TypeError("bad argument type for built-in operation")
        return library(name, *args, **named)

    def mapping(fileno: int, length: int, tagname: str | None = None, access: int = 0, offset: int = 0) -> mmap.mmap:
        assert fileno == -1
        assert (tagname, access, offset) == (None, 0, 0)
        return mapped(fileno, length)

    ctypes.CDLL, mmap.mmap = loaded, mapping  # type: ignore[assignment, misc]


def _without_proc() -> None:
    opened, listed, low = builtins.open, os.listdir, os.open

    def refused(call: Any) -> Any:
        def tried(path: Any = ".", *args: Any, **named: Any) -> Any:
            if isinstance(path, (str, bytes)) and os.fsdecode(path).startswith("/proc"):
                raise FileNotFoundError(path)
            return call(path, *args, **named)

        return tried

    builtins.open, os.listdir, os.open = refused(opened), refused(listed), refused(low)


if __name__ == "__main__":
    program = sys.argv[2]
    be(sys.argv[1], program)
    del sys.argv[1:3]
    exec(program)  # noqa: S102  # the tests' own
