"""samenode_faults: clients and servers that are killed while they share memory. Nothing is wrong, nothing is left."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

from harness import Context, Figure, Result, emit
from server import Server, spill

from .loopback import stored

CLIENTS, SERVERS = 200, 50
SEED = 7
READER = """
import sys, json, hashlib, bowstring
url, seed = sys.argv[1], int(sys.argv[2])
dataset = bowstring.connect(url, retries=20).dataset("bench").columns(["position", "image"]).shuffle(seed)
want = json.load(open(sys.argv[3]))
wrong = 0
kept = []
for epoch in range(1000):
    for batch in (batches := dataset.batches(16, epoch=epoch)):
        kept = [*kept[-2:], batch]
        for old in kept:  # also what came before, which must not have been written anew
            row = (seed * 7 + epoch) % old.num_rows
            position = old["position"][row].as_py()
            if hashlib.sha1(old["image"][row].as_buffer()).hexdigest() != want[position]:
                wrong += 1
        print(wrong, batches.place["transport"], flush=True)
"""


def digests(url: str, path: Path) -> None:
    """Write the digest of each sample by its position, as it comes by TCP."""
    code = """
import sys, json, hashlib, bowstring
dataset = bowstring.connect(sys.argv[1]).dataset("bench").columns(["position", "image"])
found = {}
for batch in dataset.batches(64):
    for p, b in zip(batch["position"], batch["image"]):
        found[p.as_py()] = hashlib.sha1(b.as_buffer()).hexdigest()
json.dump([found[i] for i in range(len(found))], open(sys.argv[2], "w"))
"""
    subprocess.run([sys.executable, "-c", code, url, path], check=True, env={"BOWSTRING_LOCAL": "off"})


class Reader:
    """A client process, and what it has said so far."""

    def __init__(self, url: str, seed: int, want: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", READER, url, str(seed), want],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def batch(self) -> tuple[int, str]:
        """Wait for the next batch; how many bytes were wrong so far, and how it came."""
        line = self.process.stdout.readline() if self.process.stdout else ""
        if not line:
            raise RuntimeError(f"a reader ended: {self.process.stderr.read() if self.process.stderr else ''}")
        wrong, way = line.split()
        return int(wrong), way

    def kill(self) -> None:
        """As the kernel does when memory is out."""
        self.process.kill()
        self.process.wait()


def held_after(server: Server) -> float:
    """Seconds until the server has no memory of rings any more."""
    start = time.monotonic()
    while server.stats()["samenode"]["bytes"]:
        if time.monotonic() - start > 30:
            break
        time.sleep(0.005)
    return time.monotonic() - start


def run(context: Context) -> Result:
    """Kill clients under one server, then servers under clients, with a spill that evicts all the while."""
    rng = random.Random(SEED)
    wrong = leaked = shared = evictions = 0
    slowest = 0.0
    want = context.folder / "digests.json"
    socket = context.folder / "socket"
    with spill(context.folder, 400) as flags:
        server = Server(context.binary, stored(context), f"--local={socket}", *flags, rtt="1ms")
        with server:
            digests(server.url, want)
            for at in range(CLIENTS):
                reader = Reader(server.url, at, want)
                for _ in range(rng.randrange(1, 12)):
                    bad, way = reader.batch()
                    shared += way == "shared"
                reader.kill()
                wrong += bad
                slowest = max(slowest, held_after(server))
            leaked += server.stats()["samenode"]["bytes"]
            evictions += server.fetched().get("spill", {}).get("evicted", 0)
            emit(case="samenode_faults", clients=CLIENTS, wrong=wrong, leaked=leaked, held_after_s=slowest)
        server.start()
        port = server.port
        reader = Reader(server.url, 1, want)
        for _ in range(SERVERS):
            for _ in range(rng.randrange(1, 6)):
                bad, way = reader.batch()
                shared += way == "shared"
            server.kill()
            server.start(f"127.0.0.1:{port}")
        bad, _ = reader.batch()
        wrong += bad
        reader.kill()
        slowest = max(slowest, held_after(server))
        leaked += server.stats()["samenode"]["bytes"]
        server.stop()
    leaked += sum(f.stat().st_size for f in Path("/dev/shm").glob("bowstring*"))  # noqa: S108
    return Result(
        "samenode_faults",
        [
            Figure("wrong", wrong, at_most=0),
            Figure("leaked_bytes", leaked, at_most=0),
            Figure("held_after_s", slowest, at_most=1),
        ],
        {"batches_shared": shared, "evictions": evictions, "seed": SEED},
    )
