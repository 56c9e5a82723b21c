"""A process that ends while a thread of it waits for a server."""

from __future__ import annotations

import subprocess
import sys
import threading

import pyarrow as pa
import pytest
import raw
from raw import Peer, Raw

SECONDS = 180

SCRIPT = """
import os, sys, threading, time
from bowstring._transport import calls


class Last:
    '''What goes when the interpreter has begun to end: the server says more then, and there is time to hear it.'''

    def __init__(self):
        self.write, self.sleep = os.write, time.sleep

    def __del__(self):
        self.write(1, b"ending\\n")
        self.sleep(1)


def read():
    reader = connections.get(b"ticket", [])
    for _ in range(int(sys.argv[2])):
        reader.read_chunk()
    os.write(1, b"waits\\n")
    reader.read_chunk()
    os.write(1, b"went on\\n")


sys.last = Last()  # there is no module that goes later
connections = calls.Connections(sys.argv[1], None)
threading.Thread(target=read, daemon=True).start()
sys.stdin.readline()
"""


@pytest.mark.parametrize("before", [0, 1], ids=["for the first batch", "for another"])
def test_what_comes_as_the_interpreter_ends_ends_nothing_else(before: int) -> None:
    batches = [pa.record_batch({"n": pa.array([i])}) for i in range(2)]
    schema, *messages = raw.flights(batches)
    ending = threading.Event()

    def talk(peer: Peer) -> None:
        peer.greets()
        stream = peer.asked()
        first, rest = [schema, *messages[:before]], messages[before:]
        peer.send(peer.answers(stream) + raw.frame(raw.DATA, 0, stream, b"".join(first)))
        assert ending.wait(SECONDS)
        peer.send(raw.frame(raw.DATA, 0, stream, b"".join(rest)))
        peer.stays()

    with Raw(talk) as server:
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, server.uri, str(before)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            assert process.stdin is not None
            assert process.stderr is not None
            assert process.stdout.readline() == "waits\n"
            process.stdin.write("end\n")
            process.stdin.flush()
            assert process.stdout.readline() == "ending\n"
            ending.set()
            assert process.wait(SECONDS) == 0, process.stderr.read()
            assert process.stdout.read() == ""
        finally:
            ending.set()
            process.kill()
            process.communicate()
