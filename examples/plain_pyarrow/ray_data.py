"""Read a dataset with Ray Data: one read task for each endpoint, that is, for each rank.

    python examples/plain_pyarrow/ray_data.py grpc://127.0.0.1:8815 photos

The server shares an epoch out to as many ranks as the request says; each Ray task redeems one
ticket over a connection of its own, so blocks arrive in parallel and no sample comes twice.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import ray
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask


def blocks(server: str, ticket: bytes) -> Iterator[pa.Table]:
    """Yield the record batches of a ticket; this runs in a Ray worker."""
    with fl.connect(server) as client:
        for chunk in client.do_get(fl.Ticket(ticket)):
            yield pa.Table.from_batches([chunk.data])


class FlightDatasource(Datasource):
    """A request to a Flight server as a Ray Data source."""

    def __init__(self, server: str, request: dict[str, Any]) -> None:
        self.server = server
        with fl.connect(server) as client:
            self.info = client.get_flight_info(fl.FlightDescriptor.for_command(json.dumps(request)))

    def estimate_inmemory_data_size(self) -> int:
        return int(self.info.total_bytes)

    def get_read_tasks(self, parallelism: int, *_: Any, **__: Any) -> list[ReadTask]:  # noqa: ARG002
        tasks = []
        for endpoint in self.info.endpoints:
            rows = json.loads(endpoint.app_metadata)["rows"]
            size = self.info.total_bytes // len(self.info.endpoints)
            metadata = BlockMetadata(num_rows=rows, size_bytes=size, exec_stats=None, input_files=None)
            tasks.append(ReadTask(partial(blocks, self.server, endpoint.ticket.ticket), metadata))
        return tasks


def main() -> None:
    request = {"dataset": sys.argv[2], "world": {"size": 4}, "shuffle": {"seed": 1}, "layout": "huggingface"}
    dataset = ray.data.read_datasource(FlightDatasource(sys.argv[1], request | {"columns": ["image", "label"]}))
    sizes = dataset.map(lambda row: {"label": row["label"], "bytes": len(row["image"]["bytes"])})
    print(sizes.groupby("label").mean("bytes").to_pandas())


if __name__ == "__main__":
    main()
