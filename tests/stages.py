"""The stages of `make test`: each notes its cost, and the end lists where the time went.

    stages.py run [--go] NAME COMMAND...   run a stage; with --go the command is `go test -json`
    stages.py all COMMAND...               run a command that runs stages, and list their cost

It runs before anything is installed, so it needs Python alone.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

NOTES = Path(__file__).parent.parent / "build" / "stages"
SLOWEST = 25


class Test(NamedTuple):
    seconds: float
    name: str


class GoTests:
    """Reads the events of `go test -json`, and prints what `go test` would have printed."""

    def __init__(self) -> None:
        self.tests: list[Test] = []
        self._said: dict[tuple[str, str], list[str]] = defaultdict(list)  # by the tests that have not ended

    def read(self, lines: Iterable[str]) -> None:
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                show(line)
                continue
            self._event(event)

    def _event(self, event: dict[str, Any]) -> None:
        package, test, text = event.get("Package", ""), event.get("Test", ""), event.get("Output", "")
        match event.get("Action"):
            case "build-output":
                show(text)
            case "output" if test:
                if not text.startswith(("=== RUN", "=== PAUSE", "=== CONT", "=== NAME")):
                    self._said[package, test].append(text)
            case "output":
                if text != "PASS\n" and not text.endswith("[no test files]\n"):
                    show(text)
            case "pass" | "skip" | "fail" as ended if test:
                said = self._said.pop((package, test), [])
                if ended == "fail":
                    show("".join(said))
                if "/" not in test:
                    self.tests.append(Test(event.get("Elapsed", 0.0), f"{package} {test}"))
            case "fail":  # the process may have ended within a test
                for key in [key for key in self._said if key[0] == package]:
                    show(f"... {key[1]} had not ended:\n" + "".join(self._said.pop(key)))


def show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def run(name: str, command: list[str], go: bool) -> int:
    began, start, before = time.time(), time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    show(f"== {name}\n")
    tests: list[Test] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE if go else None, text=True) as child:
        if child.stdout is not None:
            events = GoTests()
            events.read(child.stdout)
            tests = events.tests
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    note = {
        "name": name,
        "status": child.returncode,
        "began": began,
        "wall": time.monotonic() - start,
        "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "tests": tests,
    }
    NOTES.mkdir(parents=True, exist_ok=True)
    try:
        (NOTES / f"{name}.json").write_text(json.dumps(note))
    except OSError as e:  # the stage has failed of the same, if it has; what it printed counts
        show(f"== {name}: its times are lost: {e}\n")
    if child.returncode != 0:
        show(f"== {name} FAILED with {child.returncode}\n")
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def pytest_tests(path: Path) -> list[Test]:
    """The times that pytest wrote with --junitxml=build/stages/STAGE.xml."""
    if not path.exists():
        return []
    cases = ET.parse(path).getroot().iter("testcase")  # noqa: S314  # our own
    return [Test(float(c.get("time", 0)), f"{c.get('classname', '')} {c.get('name', '')}") for c in cases]


def server_cpu() -> float | None:
    """CPU time of the Cassandra that runs beside the stages."""
    folder = os.environ.get("BOWSTRING_CASSANDRA_DIR")
    try:
        fields = Path("/proc", (Path(folder or "") / "pid").read_text().strip(), "stat").read_text().split()
    except OSError:
        return None
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class Disk:
    """Watches how much is free where the stages write: the checkout, temporary files, and the caches at home."""

    def __init__(self) -> None:
        self._folders = [Path(__file__).parent, Path(tempfile.gettempdir()), Path.home()]
        self.first = self.least = self._free()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _free(self) -> int:
        return min(shutil.disk_usage(folder).free for folder in self._folders)

    def _watch(self) -> None:
        while not self._ended.wait(2):
            self.least = min(self.least, self._free())


def notes() -> list[dict[str, Any]]:
    """The notes of the stages, in the order in which they began."""
    return sorted(filter(None, map(note, NOTES.glob("*.json"))), key=lambda s: float(s["began"]))


def note(path: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(path.read_text()))
    except ValueError as e:  # a full disk cuts it short
        show(f"{path}: {e}\n")
        return None


def report(disk: Disk) -> None:
    stages = notes()
    if not stages:
        return
    first, last = stages[0]["began"], max(s["began"] + s["wall"] for s in stages)
    server = server_cpu()
    cpu = sum(s["cpu"] for s in stages) + (server or 0)
    width = max(len(s["name"]) for s in stages)
    lines = [f"\n{'stage':{width}}  result   begins    took  processor"]
    for s in stages:
        result = "ok" if s["status"] == 0 else "FAILED"
        times = f"{clock(s['began'] - first):>7}  {clock(s['wall']):>6}  {clock(s['cpu']):>9}"
        lines.append(f"{s['name']:{width}}  {result:6}  {times}")
    if server is not None:
        lines.append(f"{'(Cassandra)':{width}}  {'':6}  {'':7}  {'':6}  {clock(server):>9}")
    lines.append(f"{'all':{width}}  {'':6}  {'':7}  {clock(last - first):>6}  {clock(cpu):>9}")
    lines.append(f"free on disk: {disk.first / 1e9:.1f} GB at the start, {disk.least / 1e9:.1f} GB at the least")
    tests = [(Test(*t), s["name"]) for s in stages for t in s["tests"]]
    tests += [(t, s["name"]) for s in stages for t in pytest_tests(NOTES / f"{s['name']}.xml")]
    if tests:
        lines.append(f"\nthe slowest of {len(tests)} tests, seconds:")
        lines += [f"{t.seconds:7.1f}  {stage}: {t.name}" for t, stage in sorted(tests, reverse=True)[:SLOWEST]]
    failed = [s["name"] for s in stages if s["status"] != 0]
    if failed:
        lines.append(f'\nFAILED: {", ".join(failed)}; each said why above, after "== NAME"')
    show("\n".join(lines) + "\n")


def main(args: list[str]) -> int:
    match args:
        case ["all", *command] if command:
            for path in NOTES.glob("*"):
                path.unlink()
            disk = Disk()
            status = subprocess.run(command, check=False).returncode
            disk.stop()
            report(disk)
            return status
        case ["run", "--go", name, *command] if command:
            return run(name, command, go=True)
        case ["run", name, *command] if command:
            return run(name, command, go=False)
    sys.stderr.write(__doc__ or "")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
