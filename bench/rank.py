"""A client process: one rank of a job that reads epochs, and goes on elsewhere when its server ends.

    python bench/rank.py '{"urls": [...], "ticket": {...}, "rank": R, "first": E, "epochs": N, ...}'

Reads with nothing but pyarrow. It begins at the first of `urls`. A stream that breaks is gone on with at the next of
them, from the resume ticket of the last batch. With `compute` it sleeps that number of seconds after each batch, as a
rank does that trains. With `barrier` it waits for a line on its standard input before each epoch, otherwise before the
first alone; it prints `ready` before that. With `until` it reads epoch after epoch until its standard input says so, or
ends. Each epoch is a line of JSON: `epoch`, `begin` and `end` by the machine's monotonic clock, `cpu` seconds of this
process, `rows`, `bytes`, `positions`, rows of each step in `steps`, `broken` streams with the last `errors`, `marks` of
[time, rows, index in `urls`] of each batch, and `wrong`: rows whose bytes are not those that were uploaded (`dataset`
of bench/nodes.py).
"""

from __future__ import annotations

import json
import sys
import threading
import time
import zlib
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

PAUSE = 0.05  # seconds before a stream is requested again
PATIENCE = 300  # seconds without a node that serves it


class Rank:
    """The rank, and where it reads."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.urls: list[str] = spec["urls"]
        self.at = 0
        self.client = self.connect()

    def connect(self) -> fl.FlightClient:
        """Connect to the server whose turn it is."""
        return fl.connect(self.urls[self.at], generic_options=[("grpc.use_local_subchannel_pool", 1)])

    def elsewhere(self) -> None:
        """Go to the next server."""
        self.client.close()
        self.at = (self.at + 1) % len(self.urls)
        self.client = self.connect()

    def epoch(self, number: int) -> dict[str, Any]:
        """Read an epoch to its end, whatever breaks, from its own server if that is there again."""
        if self.at:
            self.at = -1
            self.elsewhere()
        ticket = dict(self.spec["ticket"], rank=self.spec["rank"])
        ticket["shuffle"] = dict(ticket["shuffle"], epoch=number)
        found: dict[str, Any] = {"epoch": number, "rank": self.spec["rank"], "rows": 0, "bytes": 0, "wrong": 0}
        found |= {"positions": [], "steps": {}, "marks": [], "broken": 0, "errors": [], "begin": time.monotonic()}
        last, cpu = time.monotonic(), time.process_time()
        while "end" not in found:
            rows = found["rows"]
            ticket = self.stream(found, ticket)
            if found["rows"] > rows:
                last = time.monotonic()
            elif time.monotonic() - last > PATIENCE:
                raise RuntimeError(f"no node serves rank {self.spec['rank']}: {found['errors']}")
        found["cpu"] = time.process_time() - cpu
        return found

    def stream(self, found: dict[str, Any], ticket: dict[str, Any]) -> dict[str, Any]:
        """Read a stream until it ends or breaks; what there is to ask for then."""
        try:
            for chunk in self.client.do_get(fl.Ticket(json.dumps(ticket).encode())):
                about = json.loads(chunk.app_metadata.to_pybytes())
                self.take(found, chunk.data, about["step"], self.at)
                ticket = about["resume"]
                if self.spec.get("compute"):
                    time.sleep(self.spec["compute"])
            found["end"] = time.monotonic()
        except (fl.FlightError, pa.ArrowException, OSError) as error:
            found["broken"] += 1
            found["errors"] = [*found["errors"], str(error)[:300]][-3:]
            time.sleep(PAUSE)
            self.elsewhere()
        return ticket

    @staticmethod
    def take(found: dict[str, Any], data: pa.RecordBatch, step: int, at: int) -> None:
        """Take note of a batch, and check its bytes."""
        positions = data.column("position").to_pylist()
        keys, sums, images = data.column("key").to_pylist(), data.column("sum").to_pylist(), data.column("image")
        for position, key, total, image in zip(positions, keys, sums, images, strict=True):
            if position != key or zlib.crc32(image.as_buffer()) != total:
                found["wrong"] += 1
        found["positions"] += positions
        found["rows"] += len(positions)
        found["bytes"] += data.get_total_buffer_size()
        found["steps"][step] = found["steps"].get(step, 0) + len(positions)
        found["marks"].append([time.monotonic(), len(positions), at])


def end_with_a_line(over: threading.Event) -> None:
    """Wait for the message that there is no further epoch."""
    sys.stdin.readline()
    over.set()


def main() -> None:
    spec = json.loads(sys.argv[1])
    rank = Rank(spec)
    over = threading.Event()
    print("ready", flush=True)
    sys.stdin.readline()
    if spec.get("until"):
        threading.Thread(target=end_with_a_line, args=(over,), daemon=True).start()
    number = spec.get("first", 0)
    while not over.is_set() and (spec.get("until") or number < spec.get("first", 0) + spec["epochs"]):
        if spec.get("barrier") and number > spec.get("first", 0):
            sys.stdin.readline()
        print(json.dumps(rank.epoch(number)), flush=True)
        number += 1


if __name__ == "__main__":
    main()
