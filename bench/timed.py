"""A client process: reads Flight streams side by side for a time, and says what came when.

    python bench/timed.py URL SECONDS '[{"ticket": {...}, "batches": N, "compute": S, "prefetch": N, "stall": false},
    ...]'

Each stream has a connection and a thread of its own. It ends after `batches` batches, if given, and in any case after
SECONDS; with `stall` it takes one batch and no other. With `compute` it sleeps that number of seconds after each batch,
as a client that waits for its GPU. With `prefetch`, N batches are received meanwhile, as by the workers of a data
loader. With `tenant` it is on that one's account. Prints `ready` when all are connected, begins after the line `go`,
and prints one JSON list, of the [seconds, rows, bytes of columns, seconds waited for it] of each batch of each stream.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow.flight as fl


def prefetched(chunks: Iterable[Any], count: int) -> Iterator[Any]:
    """The chunks, received by another thread, `count` of them before they are requested."""
    waiting: queue.Queue[Any] = queue.Queue(count)

    def receive() -> None:
        try:
            for chunk in chunks:
                waiting.put(chunk)
        except (fl.FlightError, OSError) as error:
            waiting.put(error)
        waiting.put(None)

    threading.Thread(target=receive, daemon=True).start()
    while (chunk := waiting.get()) is not None:
        if isinstance(chunk, Exception):
            raise chunk
        yield chunk


class Stream(threading.Thread):
    """One stream's reader."""

    def __init__(self, url: str, seconds: float, spec: dict[str, Any], go: threading.Event) -> None:
        super().__init__(daemon=True)
        self.client = fl.connect(url, generic_options=[("grpc.use_local_subchannel_pool", 1)])
        list(self.client.list_actions())  # connects
        self.seconds, self.spec, self.go = seconds, spec, go
        self.marks: list[tuple[float, int, int, float]] = []
        self.error: Exception | None = None

    def run(self) -> None:
        self.go.wait()
        start = asked = time.perf_counter()
        try:
            tenant = self.spec.get("tenant")
            options = fl.FlightCallOptions(headers=[(b"bowstring-tenant", tenant.encode())] if tenant else [])
            reader = self.client.do_get(fl.Ticket(json.dumps(self.spec["ticket"]).encode()), options)
            for chunk in prefetched(reader, self.spec["prefetch"]) if self.spec.get("prefetch") else reader:
                now = time.perf_counter()
                seconds = now - start
                self.marks.append((seconds, chunk.data.num_rows, chunk.data.get_total_buffer_size(), now - asked))
                if self.spec.get("stall"):
                    time.sleep(self.seconds - seconds)
                if time.perf_counter() - start >= self.seconds or len(self.marks) == self.spec.get("batches"):
                    break
                if self.spec.get("compute"):
                    time.sleep(self.spec["compute"])
                asked = time.perf_counter()
            reader.cancel()
        except (fl.FlightError, OSError, ValueError) as error:
            self.error = error


def main() -> None:
    url, seconds, specs = sys.argv[1], float(sys.argv[2]), json.loads(sys.argv[3])
    go = threading.Event()
    streams = [Stream(url, seconds, spec, go) for spec in specs]
    for s in streams:
        s.start()
    print("ready", flush=True)
    sys.stdin.readline()
    go.set()
    for s in streams:
        s.join()
        if s.error:
            raise s.error
    print(json.dumps([s.marks for s in streams]), flush=True)


if __name__ == "__main__":
    main()
