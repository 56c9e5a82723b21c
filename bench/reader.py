"""A client process: reads Flight streams to their ends, one after another on one connection.

    python bench/reader.py URL TICKET_IN_HEX [PASSES]

Reads the ticket once to warm up (with PASSES of 0 it does not, and reads once), prints `ready`, reads it
PASSES times after the line `go`, and prints one JSON object. A process that has never used its memory pays
for each page of it, on a virtual machine dearly; that is no part of what is compared.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pyarrow.flight as fl


def main() -> None:
    url, ticket = sys.argv[1], bytes.fromhex(sys.argv[2])
    passes = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    # Over TLS: whom to trust, and a token for a server that asks.
    root = os.environ.get("BENCH_ROOT")
    token = os.environ.get("BOWSTRING_TOKEN")
    client = fl.connect(url, **({"tls_root_certs": Path(root).read_bytes()} if root else {}))
    headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
    options = fl.FlightCallOptions(headers=headers)
    if passes:
        for _ in client.do_get(fl.Ticket(ticket), options):
            pass
    else:
        list(client.list_actions(options))  # connects
    print("ready", flush=True)
    sys.stdin.readline()
    start = time.perf_counter()
    first = 0.0
    rows = size = 0
    for _ in range(passes or 1):
        for chunk in client.do_get(fl.Ticket(ticket), options):
            if not rows:
                first = time.perf_counter() - start
            rows += chunk.data.num_rows
            size += chunk.data.get_total_buffer_size()
    print(json.dumps({"rows": rows, "bytes": size, "first_batch_s": first}), flush=True)


if __name__ == "__main__":
    main()
