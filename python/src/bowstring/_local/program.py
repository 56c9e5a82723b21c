"""The program `bowstring`, which the package's wheels for Linux contain."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Collection
from pathlib import Path

from bowstring.errors import NotFound, Unsupported


def program() -> Path:
    """The program that BOWSTRING_BINARY names; else that of this environment, or of the path.

    NotFound if there is none.
    """
    if named := os.environ.get("BOWSTRING_BINARY"):
        found = Path(named).absolute()
        if not os.access(found, os.X_OK):
            raise NotFound(f"BOWSTRING_BINARY: got {named!r}, want the path of the program")
        return found
    for folder in dict.fromkeys((Path(sys.executable).parent, Path(sysconfig.get_path("scripts")))):
        if os.access(folder / "bowstring", os.X_OK):
            return folder / "bowstring"
    if on_path := shutil.which("bowstring"):
        return Path(on_path)
    raise NotFound(
        "there is no program `bowstring`: the package's wheels for Linux contain it, and BOWSTRING_BINARY names "
        "another; a server that runs elsewhere is opened by its address, as grpc://HOST:PORT/NAME"
    )


def require_linux(what: str) -> None:
    """Refuse what needs a server on this machine, before a call that the system lacks fails with a worse message."""
    if sys.platform != "linux":
        raise Unsupported(
            f"{what} needs a server on this machine, which runs on Linux alone, and this is {sys.platform}: run "
            "`bowstring serve` on a Linux machine, and name it by its address, as grpc+tls://HOST:PORT/NAME"
        )


def environment(settings: Collection[str] = ()) -> dict[str, str]:
    """The environment for the program: this process's, of whose settings of Bowstring only those named are left."""
    return {k: v for k, v in os.environ.items() if not k.startswith("BOWSTRING_") or k in settings}
