"""copy: an embedded store to Cassandra and back to an embedded store, killed ten times on the way."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path

from cassandra_node import Cassandra
from harness import CASSANDRA, Context, Figure, Result, emit, needs
from sizes import sized

from .loopback import stored

KILLS = sized(5, smoke=1)  # on each way


def copy(context: Context, source: str | Path, target: str | Path) -> dict[str, float]:
    """Copy, and kill the copy some times, later each time; what all of it took."""
    command: list[str | Path] = [context.binary, "copy", source, target, "bench", "--json"]
    start, kills, pause = time.perf_counter(), 0, 0.5
    while True:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                out, err = process.communicate(timeout=pause if kills < KILLS else None)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.communicate()
                kills, pause = kills + 1, pause * 1.3
                continue
        if process.returncode:
            raise RuntimeError(f"bowstring copy ended with {process.returncode}: {err}")
        report = json.loads(out)
        found = {
            "seconds": time.perf_counter() - start,
            "kills": kills,
            "sent_by_last": report["sent"],
            "blobs": report["blobs"],
        }
        emit(case="copy", to=str(target).partition(":")[0], **found)
        return found


def contents(context: Context, store: Path) -> bytes:
    """All rows of the dataset, as an Arrow file."""
    path = context.folder / "contents.arrow"
    context.bowstring("get", "bench", "--store", store, "--to", path, "--force")
    return path.read_bytes()


@needs(CASSANDRA)
def run(context: Context) -> Result:
    """Copy there and back, and compare every row."""
    first, last = stored(context, "store-copied"), context.folder / "store-copied-back"
    shutil.rmtree(last, ignore_errors=True)
    with Cassandra(context.folder / "cassandra-copy") as node:
        context.bowstring("store", "init", "--replication", "1", "--store", node.uri())
        ways = [copy(context, first, node.uri()), copy(context, node.uri(), last)]
    context.bowstring("verify", last)
    same_rows = contents(context, first) == contents(context, last)
    about = [json.loads(context.bowstring("describe", "bench", "--store", store, "--json")) for store in (first, last)]
    return Result(
        "copy",
        [Figure("identical", float(same_rows and about[0] == about[1]))],
        {"kills": sum(way["kills"] for way in ways), "seconds": round(sum(way["seconds"] for way in ways), 1)},
    )
