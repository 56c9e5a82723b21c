"""A client process: streams that others have to live with, until its standard input ends.

    python bench/load.py URL CONNECTIONS '[{"ticket": {...}, "reads": true, "pause": S}, ...]'

The streams take turns at the connections. One that `reads` takes its batches, sleeps `pause` seconds after each, and is
asked for again when it ends; one that does not takes none: the library and gRPC hold as much as their windows let in.
With `tenant` it is on that one's account.
Prints `ready` when all were asked for and each has its schema or was refused. At its end it prints one JSON
object: streams that were `open`, `ended` (how often one came to its end), `rows` that were read, and of each different
error how often it came.
"""

from __future__ import annotations

import collections
import json
import sys
import threading
from typing import Any

import pyarrow.flight as fl


class Stream(threading.Thread):
    """One stream, asked for again when it has ended."""

    def __init__(self, client: fl.FlightClient, spec: dict[str, Any], over: threading.Event) -> None:
        super().__init__(daemon=True)
        self.client, self.spec, self.over = client, spec, over
        self.begun = threading.Event()  # or refused
        self.reader: Any = None
        self.rows = self.ended = 0
        self.error = ""

    def run(self) -> None:
        try:
            while not self.over.is_set():
                tenant = self.spec.get("tenant")
                options = fl.FlightCallOptions(headers=[(b"bowstring-tenant", tenant.encode())] if tenant else [])
                self.reader = self.client.do_get(fl.Ticket(json.dumps(self.spec["ticket"]).encode()), options)
                self.begun.set()
                if self.spec["reads"]:
                    self.read()
                else:
                    self.over.wait()
        except (fl.FlightError, OSError, ValueError) as error:
            if not self.over.is_set():
                self.error = str(error)
        finally:
            self.begun.set()

    def read(self) -> None:
        """Take batches until there are no more, or it is over."""
        pause = self.spec.get("pause", 0)
        for chunk in self.reader:
            self.rows += chunk.data.num_rows
            if self.over.wait(pause):
                return
        self.ended += 1
        self.over.wait(pause)


def main() -> None:
    url, connections, specs = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    over = threading.Event()
    clients = [fl.connect(url, generic_options=[("grpc.use_local_subchannel_pool", 1)]) for _ in range(connections)]
    streams = [Stream(clients[i % connections], spec, over) for i, spec in enumerate(specs)]
    for s in streams:
        s.start()
    for s in streams:
        s.begun.wait()
    print("ready", flush=True)
    sys.stdin.read()
    errors = collections.Counter(s.error for s in streams if s.error)
    opened = sum(not s.error for s in streams)
    over.set()
    for s in streams:
        if s.reader:
            s.reader.cancel()
    for s in streams:
        s.join()
    print(
        json.dumps(
            {
                "open": opened,
                "ended": sum(s.ended for s in streams),
                "rows": sum(s.rows for s in streams),
                "errors": errors,
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
