"""A dataset of a million samples whose blobs are few and small: the size of a manifest is what counts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl
from harness import Context
from node import Node
from sizes import sized

ROWS = sized(1_000_000, smoke=20_000)
PER_BATCH = sized(50_000, smoke=5_000)


def stored(context: Context) -> Path:
    """The embedded store with the dataset `million`, and `thousand` beside it."""
    store = context.folder / "store-million"
    if store.exists():
        return store
    with Node(context.binary, store) as node:
        client = fl.connect(node.url)
        put(client, "million", ROWS)
        put(client, "thousand", 1_000)
    return store


def put(client: fl.FlightClient, name: str, rows: int) -> None:
    """Create a dataset by DoPut."""
    rng = np.random.default_rng(3)
    blobs = [rng.bytes(400) for _ in range(64)]
    schema = pa.schema(
        {
            "label": pa.int64(),
            "width": pa.int32(),
            "height": pa.int32(),
            "score": pa.float64(),
            "file_name": pa.string(),
            "image": pa.large_binary(),
        }
    )
    descriptor = fl.FlightDescriptor.for_command(
        json.dumps({"put": {"dataset": name, "mode": "create", "split": "train"}})
    )
    writer, results = client.do_put(descriptor, schema)
    for start in range(0, rows, PER_BATCH):
        n = min(PER_BATCH, rows - start)
        index = np.arange(start, start + n)
        writer.write_batch(
            pa.record_batch(
                [
                    pa.array(index % 1000),
                    pa.array((index * 7 % 800 + 200).astype(np.int32)),
                    pa.array((index * 11 % 800 + 200).astype(np.int32)),
                    pa.array(rng.random(n)),
                    pa.array([f"n{i % 1000:08}/n{i % 1000:08}_{i}.JPEG" for i in index.tolist()]),
                    pa.array([blobs[i % len(blobs)] for i in index.tolist()], pa.large_binary()),
                ],
                schema=schema,
            )
        )
        results.read()
    writer.done_writing()
    while results.read() is not None:
        pass
    writer.close()
