"""Kills of the server that bowstring.open starts, while processes open a folder and read it."""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import NamedTuple

from bowstring._local import servers

_PATIENCE = 240.0  # seconds after which a call counts as hanging
_ENDING = 180.0  # seconds that programs may take to end
_LOOP = """
    import sys, bowstring
    from bowstring.errors import BowstringError
    for line in sys.stdin:
        try:
            opened = bowstring.open(sys.argv[1], progress=False)
            rows = sum(batch.num_rows for batch in opened.shuffle(1).batches(8))
            assert rows == len(opened)
            print("read", rows, flush=True)
        except BowstringError as error:
            print("failed", type(error).__name__, str(error).replace("\\n", " "), flush=True)
"""
_EXPECTED = ("ServerEnded", "ServerError", "Unavailable")


class Killed(NamedTuple):
    """The outcome of kills: calls that did not end, wrong answers, and processes and sockets that are left."""

    kills: int
    hangs: int
    wrong: list[str]
    leaked: int


def processes(cache: Path, command: str = "") -> list[int]:
    """The programs that work on a cache, or those of them with a command."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:  # it has ended
            continue
        ours = words[0].endswith(b"/bowstring") and any(os.fsencode(cache) in word for word in words)
        if ours and (not command or command.encode() in words):
            found.append(int(path.parent.name))
    return found


def killed_at_random(folder: Path, cache: Path, rows: int, *, kills: int, seed: int) -> Killed:
    """Kill the server of `cache` again and again while two processes open a folder of `rows` rows and read them.

    Afterwards the processes have to read all rows, and all servers are stopped. BOWSTRING_CACHE names the cache.
    """
    chance = random.Random(seed)
    command: list[str | Path] = [sys.executable, "-c", textwrap.dedent(_LOOP), folder]
    loops = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    done, hangs, wrong = 0, 0, []
    ended = False  # a reader
    try:
        while done < kills and not hangs and not ended:
            for loop in loops:
                print(file=loop.stdin, flush=True)
            time.sleep(chance.random() * 0.5)
            for process in processes(cache, "serve"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                    done += 1
            for said in map(_said, loops):
                hangs += said is None
                ended |= said == ""
                if said is not None and not _right(said, rows):
                    wrong.append(said or "a reader has ended")
        last: list[str | None] = []
        for _ in range(0 if hangs or ended else 3):  # each of the two may still report the last kill
            for loop in loops:
                print(file=loop.stdin, flush=True)
            last = [_said(loop) for loop in loops]
        wrong += [str(said) for said in last if said != f"read {rows}\n"]
    finally:
        for loop in loops:
            loop.kill()
            loop.communicate()
    alive = len(processes(cache)) - 1  # one server is to run
    for server in servers.known():
        server.stop()
    end = time.monotonic() + _ENDING
    while processes(cache) and time.monotonic() < end:  # they are about to end
        time.sleep(0.01)
    left = len(processes(cache)) + sum(server.socket.exists() for server in servers.known())
    return Killed(done, hangs, wrong, max(0, alive) + left)


def _right(said: str, rows: int) -> bool:
    """Whether a process read all rows, or failed as it may after a kill."""
    match said.split():
        case ["read", count]:
            return count == str(rows)
        case ["failed", error, *_]:
            return error in _EXPECTED
        case _:
            return False


def _said(loop: subprocess.Popen[str]) -> str | None:
    """The next line of a process, which it writes for each that it gets; "" if it has ended, None if it hangs."""
    assert loop.stdout is not None
    ready, _, _ = select.select([loop.stdout], [], [], _PATIENCE)
    return loop.stdout.readline() if ready else None
