"""Attach a source, and update it: the program does so in a process of its own, beside the server of the same store."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bowstring._cancellation import waiting
from bowstring._local.program import environment, program
from bowstring._local.servers import Server, locked
from bowstring._messages import shown
from bowstring._progress import progress_bar
from bowstring.errors import InvalidRequest

_NAME = 60  # characters of the part of a name that people recognise
_LISTED = 5  # bad samples that an error names


def name_of(source: str) -> str:
    """The name of a source's dataset: its last part, and a digest of the whole. The same source has the same name."""
    last = re.split(r"[?#]", source)[0].rstrip("/").rpartition("/")[2].partition(".")[0]
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", last).strip("-_")[:_NAME]
    digest = hashlib.sha256(source.encode()).hexdigest()[:10]
    return f"{plain or 'source'}-{digest}"


def attach(
    server: Server, source: str, name: str, *, there: Callable[[], bool], skip_bad: bool, progress: bool
) -> None:
    """Attach a source, or look for what has changed in it if the dataset is `there`.

    If several processes do so at the same time, one reads the source, and the others wait for it.
    """
    called = time.time_ns()
    stamp = server.home / f"{name}.attached"  # its time is that at which the last process began to look
    with locked(server.home / f"{name}.lock", math.inf):
        known = there()
        with contextlib.suppress(FileNotFoundError):
            if known and stamp.stat().st_mtime_ns > called:
                return  # another process has looked since this one was called
        begun = time.time_ns()
        command: list[str | Path] = [program(), "attach", "--config", os.devnull, "--store", server.store]
        command += ["--json", "--progress-lines", *(["--update", name] if known else [source, name])]
        bad = server.home / f"{name}.bad.jsonl"
        if skip_bad:
            command += ["--skip-bad", "--bad-list", bad]
        _run(command, source, f"{'update' if known else 'attach'} {name.rpartition('-')[0]}", progress=progress)
        stamp.touch()
        os.utime(stamp, ns=(begun, begun))


def _run(command: list[str | Path], source: str, title: str, *, progress: bool) -> None:
    """Run the program to its end, and draw how far it is."""
    said: list[str] = []
    with contextlib.ExitStack() as ending:
        process = ending.enter_context(
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                cwd="/", env=environment(), errors="replace",
            )
        )  # fmt: skip
        ending.callback(process.terminate)  # if this process is interrupted; what was read is kept for the next time
        ending.enter_context(waiting(process.terminate))
        bar: Any = None
        for line in process.stderr or ():
            if not line.startswith("{"):
                said.append(line.rstrip())
                continue
            if bar is None:
                bar = ending.enter_context(progress_bar(progress, title, None, "row"))
            at = json.loads(line)
            bar.total = at["of"] or None
            bar.update(at["rows"] - bar.n)
        status = process.wait()
        if bar is not None and bar.total is not None and not status:
            bar.update(bar.total - bar.n)
    if status:
        why = (said[-1] if said else f"the program ended with status {status}").removeprefix("bowstring: ")
        listed = [text for text in said if text.startswith("bad: ")][:_LISTED]
        if listed:
            why = why.replace("--skip-bad attaches the others", "skip_bad=True leaves them out")
        raise InvalidRequest(f"{shown(source)} cannot be attached: {'; '.join([why, *listed])}")
