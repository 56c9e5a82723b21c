"""Tenants with weights and quotas: one has more streams than it may, and those that are served are right."""

from __future__ import annotations

import json
import threading

import pyarrow as pa
import pyarrow.flight as fl

from soak import content
from soak.client import COLUMNS, Reader

STREAMS = 3
FILE = """tenants:
  - {name: one, weight: 1}
  - {name: two, weight: 2}
  - {name: greedy, ceilings: {streams: 2, bytes_per_second: 2MB, windows: 5%}}
"""


class Client(Reader):
    """By plain pyarrow, as tenants are a matter of headers."""

    def turn(self, number: int) -> None:
        url = self.urls[number % len(self.urls)]
        threads = [
            threading.Thread(target=self.read, args=(url, tenant, number * STREAMS + i), daemon=True)
            for tenant in ("one", "two", "greedy")
            for i in range(STREAMS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.5)
                self.beat()

    def read(self, url: str, tenant: str, seed: int) -> None:
        """Read an epoch as a tenant. A stream that is refused or breaks is no fault here."""
        options = fl.FlightCallOptions(headers=[(b"bowstring-tenant", tenant.encode())])
        request = {"dataset": content.DATASET, "columns": COLUMNS, "batch": 32, "shuffle": {"seed": seed}, "epochs": 1}
        seen: list[int] = []
        try:
            with fl.connect(url, generic_options=[("grpc.use_local_subchannel_pool", 1)]) as client:
                for chunk in client.do_get(fl.Ticket(json.dumps(request).encode()), options):
                    seen += chunk.data.column("position").to_pylist()
                    self.found["rows"] += chunk.data.num_rows
                    self.found["wrong"] += content.wrong(chunk.data)
                    if self.over.is_set():
                        return
        except (fl.FlightError, pa.ArrowException, OSError) as error:
            self.found["doubled"] += len(seen) - len(set(seen))
            self.found["refused" if "streams" in str(error) else "broken"] += 1
            self.errors = [f"{tenant}: {error}"[:300]]
            return
        self.found["lost"] += content.SAMPLES - len(set(seen))
        self.found["doubled"] += len(seen) - len(set(seen))
        self.found["epochs"] += 1
