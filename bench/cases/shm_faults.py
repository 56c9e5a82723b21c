"""shm_faults: clients and servers that are killed while they share memory. Nothing is wrong, nothing is left."""

from __future__ import annotations

import dataclasses
import random
import subprocess
import sys
import time
from pathlib import Path

from harness import Context, Figure, Result, emit
from server import Server, spill
from sizes import sized

from .loopback import stored

CLIENTS, SERVERS = sized((200, 50), smoke=(4, 2))
SIDES = {"ring": "shared", "references": "referenced"}  # and how their batches come
SEED = 7
ROOM = sized(400, smoke=128)  # photographs that the spill has room for
READER = """
import sys, json, hashlib, bowstring
url, seed = sys.argv[1], int(sys.argv[2])
dataset = bowstring.connect(url, retries=20).dataset("bench").columns(["position", "image"]).shuffle(seed)
want = json.load(open(sys.argv[3]))
references = sys.argv[4] == "references"
wrong = 0
kept = []
for epoch in range(1000):
    for batch in (batches := dataset.batches(16, epoch=epoch, references=references)):
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

    def __init__(self, url: str, seed: int, want: Path, side: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", READER, url, str(seed), want, side],
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


@dataclasses.dataclass
class Found:
    """Its state now."""

    wrong: int = 0
    leaked: int = 0
    held_after: float = 0.0
    batches: int = 0  # that came by the side's own way
    evictions: int = 0

    def batch(self, reader: Reader, side: str) -> int:
        """Wait for a batch; how many samples were wrong so far."""
        wrong, way = reader.batch()
        self.batches += way == SIDES[side]
        return wrong


def held(server: Server) -> int:
    """Bytes that the server has for clients: of rings, and of blobs that are pinned in its files."""
    rings = server.stats()["shm"]
    return int(rings["bytes"] + rings["pinned"])


def held_after(server: Server) -> float:
    """Seconds until the server has nothing for clients any more."""
    start = time.monotonic()
    while held(server):
        if time.monotonic() - start > 180:
            break
        time.sleep(0.005)
    return time.monotonic() - start


def kill(context: Context, side: str) -> Found:
    """Kill clients under one server, then servers under clients, with a spill that evicts all the while."""
    rng = random.Random(SEED)
    found = Found()
    want = context.folder / "digests.json"
    local = [f"--local={context.folder / 'socket'}"]
    if side == "references":
        local += ["--local-references"]
    with spill(context.folder, ROOM) as flags:
        server = Server(context.binary, stored(context), *local, *flags, rtt="1ms")
        with server:
            digests(server.url, want)
            for at in range(CLIENTS):
                reader = Reader(server.url, at, want, side)
                wrong = 0
                for _ in range(rng.randrange(1, 12)):
                    wrong = found.batch(reader, side)
                reader.kill()
                found.wrong += wrong
                found.held_after = max(found.held_after, held_after(server))
            found.leaked += held(server)
            found.evictions += server.fetched().get("spill", {}).get("evicted", 0)
            emit(case="shm_faults", side=side, clients=CLIENTS, **dataclasses.asdict(found))
        server.start()
        port = server.port
        reader = Reader(server.url, 1, want, side)
        for _ in range(SERVERS):
            for _ in range(rng.randrange(1, 6)):
                found.batch(reader, side)
            server.kill()
            server.start(f"127.0.0.1:{port}")
        found.wrong += found.batch(reader, side)
        reader.kill()
        found.held_after = max(found.held_after, held_after(server))
        found.leaked += held(server)
        server.stop()
    found.leaked += sum(f.stat().st_size for f in Path("/dev/shm").glob("bowstring*"))  # noqa: S108
    emit(case="shm_faults", side=side, servers=SERVERS, **dataclasses.asdict(found))
    return found


def run(context: Context) -> Result:
    """Both ways: copies in rings, and blobs that are read in place, in files which the spill evicts from."""
    ring, refs = (kill(context, side) for side in SIDES)
    return Result(
        "shm_faults",
        [
            Figure("wrong", ring.wrong),
            Figure("leaked_bytes", ring.leaked),
            Figure("held_after_s", ring.held_after),
            Figure("refs_wrong", refs.wrong),
            Figure("refs_leaked_bytes", refs.leaked),
            Figure("refs_held_after_s", refs.held_after),
            Figure("refs_batches", refs.batches),
        ],
        {
            "batches_shared": ring.batches,
            "evictions": ring.evictions,
            "refs_evictions": refs.evictions,
            "seed": SEED,
        },
    )
