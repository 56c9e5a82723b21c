"""`bowstring-run`: start a training script with settings of the C library that make large batches cheaper to receive.

    bowstring-run python train.py --epochs 90
    python -m bowstring.run -- torchrun --nproc-per-node 8 train.py

A record batch of images is some megabytes. glibc gives memory of that size back to the system when it is freed, and the
next batch pays for fresh pages. The settings make it keep them. They have to be there when a process starts, so a
library cannot make them for itself: this starts the command with them, in its own place (`exec`), and so all processes
which that starts have them, too. What the environment sets already stays as it is; without glibc nothing is set.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence

SETTINGS = {
    "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
    "MALLOC_TOP_PAD_": str(256 << 20),
}
_USAGE = "usage: bowstring-run [--print] [--] COMMAND [ARGUMENT ...]"


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """What is to be added to an environment."""
    if platform.libc_ver()[0] != "glibc":
        return {}
    return {name: value for name, value in SETTINGS.items() if name not in given}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; this returns only if there is none."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["--print"]:  # for a shell: eval "$(bowstring-run --print)"
        for name, value in environment(os.environ).items():
            print(f"export {name}={value}")
        return 0
    if words[:1] in (["-h"], ["--help"]):
        print(f"{_USAGE}\n{__doc__}")
        return 0
    if words[:1] == ["--"]:
        words = words[1:]
    if not words:
        print(_USAGE, file=sys.stderr)
        return 2
    os.environ.update(environment(os.environ))
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvp(words[0], words)  # noqa: S606 - what it is for
    except OSError as error:
        print(f"bowstring-run: {words[0]}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126


if __name__ == "__main__":
    sys.exit(main())
