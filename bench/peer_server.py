"""The yardstick: pyarrow's own C++ Flight server, sending record batches that it built beforehand.

    python bench/peer_server.py SAMPLES BYTES_PER_SAMPLE ROWS_PER_BATCH

Prints its URL when it serves. Any ticket is answered with all batches; the sending is done by C++
without the interpreter.
"""

from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl


class Server(fl.FlightServerBase):  # type: ignore[misc]
    """Serves one table."""

    def __init__(self, table: pa.Table, rows: int) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self.table = table
        self.rows = rows

    def do_get(self, context: fl.ServerCallContext, ticket: fl.Ticket) -> fl.FlightDataStream:
        """Send everything."""
        del context, ticket
        return fl.RecordBatchStream(pa.Table.from_batches(self.table.to_batches(max_chunksize=self.rows)))

    def list_actions(self, context: fl.ServerCallContext) -> list[tuple[str, str]]:
        """Answer a client that connects."""
        del context
        return []


def main() -> None:
    samples, size, rows = map(int, sys.argv[1:])
    noise = np.random.default_rng(1).integers(0, 256, size * rows, dtype=np.uint8)
    schema = pa.schema(
        {"id": pa.binary(16), "label": pa.int64(), "image": pa.large_binary()},
    )
    batches = []
    for start in range(0, samples, rows):
        n = min(rows, samples - start)
        # Each batch has memory of its own, as the bytes of different samples have.
        body = np.roll(noise, start)[: n * size].copy()
        image = pa.Array.from_buffers(
            pa.large_binary(), n, [None, pa.py_buffer(np.arange(0, (n + 1) * size, size, dtype=np.int64)), pa.py_buffer(body)]
        )
        ids = pa.array([i.to_bytes(16, "big") for i in range(start, start + n)], pa.binary(16))
        batches.append(pa.record_batch([ids, pa.array(range(start, start + n), pa.int64()), image], schema=schema))
    server = Server(pa.Table.from_batches(batches), rows)
    print(f"grpc://127.0.0.1:{server.port}", flush=True)
    server.serve()


if __name__ == "__main__":
    main()
