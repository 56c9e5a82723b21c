"""Objects that are open when the interpreter ends are freed without a message."""

from __future__ import annotations

import subprocess
import sys

import pytest
from node import Node

SCRIPT = """
import os, sys, bowstring
client = bowstring.connect(sys.argv[1])
batches = client.dataset("photos").batches(16)
kept = [client, batches, next(batches)]
class Cycle: pass
match sys.argv[2]:
    case "in another module": os.kept = kept
    case "in the package": bowstring._transport.calls.kept = kept
    case "in itself":
        cycle = Cycle()
        cycle.kept = cycle, kept
        del kept, client, batches
    case "at its end":
        list(batches)
        os.kept = kept
"""


@pytest.mark.parametrize("kept", ["in another module", "in the package", "in itself", "at its end"])
def test_nothing_is_said_at_the_end(node: Node, kept: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, node.url, kept],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
