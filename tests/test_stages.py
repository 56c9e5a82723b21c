"""The report of `make test` about its stages: every failure, and where the time went."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import stages

EVENTS: list[dict[str, object]] = [
    {"Action": "output", "Package": "p", "Test": "TestGood", "Output": "=== RUN   TestGood\n"},
    {"Action": "output", "Package": "p", "Test": "TestGood", "Output": "    good_test.go:1: seed 1\n"},
    {"Action": "pass", "Package": "p", "Test": "TestGood", "Elapsed": 1.5},
    {"Action": "output", "Package": "p", "Test": "TestBad/case", "Output": "    bad_test.go:2: seed 2\n"},
    {"Action": "fail", "Package": "p", "Test": "TestBad/case", "Elapsed": 0.1},
    {"Action": "fail", "Package": "p", "Test": "TestBad", "Elapsed": 0.2},
    {"Action": "output", "Package": "p", "Test": "TestStuck", "Output": "panic: test timed out\n"},
    {"Action": "output", "Package": "p", "Output": "FAIL\tp\t2.0s\n"},
    {"Action": "fail", "Package": "p"},
    {"Action": "build-output", "ImportPath": "q", "Output": "q.go:3: undefined: x\n"},
    {"Action": "output", "Package": "r", "Output": "ok  \tr\t0.1s\n"},
]


def script(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_go_tests_say_what_failed_and_no_more(capfd: pytest.CaptureFixture[str]) -> None:
    read = stages.GoTests()
    read.read([*(json.dumps(event) + "\n" for event in EVENTS), "no event\n"])
    out = capfd.readouterr().out
    assert "seed 1" not in out
    for said in (
        "seed 2",
        "TestStuck had not ended",
        "test timed out",
        "FAIL\tp",
        "undefined: x",
        "ok  \tr",
        "no event",
    ):
        assert said in out
    assert read.tests == [(1.5, "p TestGood"), (0.2, "p TestBad")]


def test_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(stages, "NOTES", tmp_path / "notes")
    monkeypatch.delenv("BOWSTRING_CASSANDRA_DIR", raising=False)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "old.json").write_text("of another run")
    assert stages.main(["all", "true"]) == 0
    assert capfd.readouterr().out == ""
    assert stages.main(["run", "fine", *script("print('it ran')")]) == 0
    assert (
        stages.main(["run", "--go", "broken", *script(f"print({json.dumps(EVENTS[2])!r}); raise SystemExit(3)")]) == 3
    )
    assert "broken FAILED with 3" in capfd.readouterr().out
    junit = (
        '<testsuites><testsuite><testcase classname="tests.test_x" name="test_y" time="7.5"/></testsuite></testsuites>'
    )
    (tmp_path / "notes" / "fine.xml").write_text(junit)
    (tmp_path / "notes" / "short.json").write_text('{"name": "short')  # as a full disk leaves it
    disk = stages.Disk()
    disk.stop()
    stages.report(disk)
    lines = capfd.readouterr().out.splitlines()
    assert "short.json" in lines[0]
    assert [line for line in lines if line.startswith("free on disk: ")]
    assert [line.split()[:2] for line in lines if line.startswith(("fine", "broken"))] == [
        ["fine", "ok"],
        ["broken", "FAILED"],
    ]
    assert lines[lines.index("the slowest of 2 tests, seconds:") + 1 :][:2] == [
        "    7.5  fine: tests.test_x test_y",
        "    1.5  broken: p TestGood",
    ]
    assert lines[-1].startswith("FAILED: broken;")


def test_the_status_of_all_is_the_commands(tmp_path: Path) -> None:
    root = tmp_path / "tests"
    root.mkdir()
    (root / "stages.py").write_text(Path(stages.__file__).read_text())
    done = subprocess.run(
        [sys.executable, root / "stages.py", "all", *script("raise SystemExit(5)")], check=False, env=os.environ.copy()
    )
    assert done.returncode == 5
