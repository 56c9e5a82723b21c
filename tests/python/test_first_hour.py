"""docs/python/first-hour.md: its commands, after the first, in the tests' environment. The bench case installs, too."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bowstring._local import servers
from conftest import ROOT

PAGE = (ROOT / "docs/python/first-hour.md").read_text()
COMMANDS, BUCKET = (block.splitlines() for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL))


def test_four_commands() -> None:
    assert len(COMMANDS) == 4
    assert [command.split()[0] for command in COMMANDS] == ["pip", "python", "torchrun", "bowstring"]
    assert [COMMANDS[1].replace("photos/", "s3://training/shards")] == BUCKET


@pytest.mark.slow
def test_the_first_hour(binary: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "photos").symlink_to(folder)
    for name, text in zip(("first.py", "train.py"), re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL), strict=True):
        (tmp_path / name).write_text(text)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BOWSTRING_BINARY", str(binary))
    monkeypatch.setenv("BOWSTRING_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{binary.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    _, first, train, top = COMMANDS

    def said(command: str) -> str:
        return subprocess.check_output(command, shell=True, text=True, cwd=tmp_path)  # noqa: S602

    try:
        assert "64 of 300 samples, with id label" in said(first)
        log = tmp_path / "log"
        with log.open("w") as out, subprocess.Popen(train.split(), stdout=out, stderr=out, cwd=tmp_path) as job:
            while not all(f"rank {rank}, epoch 0, step 0" in log.read_text() for rank in range(2)):
                assert job.poll() is None, log.read_text()
                time.sleep(0.01)
            shown = said(top)
            job.terminate()
        assert "LIMIT" in shown
    finally:
        for server in servers.known():
            server.stop()
