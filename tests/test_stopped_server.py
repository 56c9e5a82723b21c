"""The command line beside a server that says nothing any more."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from conftest import StartNode


@pytest.mark.slow
def test_calls_to_a_stopped_server_end(start: StartNode, binary: Path, lab: Path) -> None:
    """A stream that is under way and a call that comes find out that the server does not answer, and end."""
    node = start()
    running: list[subprocess.Popen[str]] = []

    def begin(*command: str | Path) -> subprocess.Popen[str]:
        running.append(
            subprocess.Popen(
                [*command, "--server", node.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
        return running[-1]

    try:
        stream = begin(lab, "stream", "photos", "--epochs", "1000000")
        assert stream.stdout
        assert stream.stdout.readline()  # it runs
        os.kill(node.pid, signal.SIGSTOP)
        call = begin(binary, "ls")
        for process, says in ((stream, "keepalive"), (call, "no server answers")):
            _, errors = process.communicate(timeout=600)  # it takes 40 s
            assert process.returncode == 1
            assert says in errors
    finally:
        os.kill(node.pid, signal.SIGCONT)
        for process in running:
            process.kill()
            process.communicate()
