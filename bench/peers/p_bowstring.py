"""A peer of the kit: shuffled epochs from Bowstring over Flight, read as any pyarrow client would.

The server's address is in BOWSTRING_URL. BOWSTRING_PIDS (`name=pid,...`) names the processes whose CPU time
within the epochs goes into the result. Options (--opt): `dataset` that is read, `streams`, connections that
share an epoch; `batch_bytes`, the size of a record batch: a batch of the kit has several.
"""

from __future__ import annotations

import json
import os
import queue
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl
from common import CFG, arrow_segments  # type: ignore[import-not-found]  # of the kit

Batch = tuple[Any, Any, list[Any]]

EXTRA: dict[str, float] = {}
PIDS = dict(p.split("=") for p in os.environ.get("BOWSTRING_PIDS", "").split(",") if p)
STREAMS = CFG["opts"].get("streams", 1)
BODY = CFG["opts"].get("batch_bytes", 8 << 20)


def cpu_seconds(pid: str) -> float:
    """User and system time of a process."""
    with open(f"/proc/{pid}/stat") as f:  # noqa: PTH123
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def setup() -> None:
    """Do nothing: connections are the epoch's own."""


def epoch(e: int) -> Iterator[Batch]:
    """A global shuffle of everything."""
    before = {name: cpu_seconds(pid) for name, pid in PIDS.items()}
    streams = [stream(e, k) for k in range(STREAMS)]
    yield from streams[0] if STREAMS == 1 else merged(streams)
    for name, pid in PIDS.items():
        EXTRA[f"{name}_cpu_s"] = round(EXTRA.get(f"{name}_cpu_s", 0) + cpu_seconds(pid) - before[name], 2)


def stream(e: int, worker: int) -> Iterator[Batch]:
    """Every STREAMS-th batch, on a connection of its own."""
    ticket = {
        "dataset": CFG["opts"].get("dataset", "peers"),
        "columns": ["id", "label", "image"],
        "shuffle": {"seed": 1, "epoch": e},
        "batch": CFG["batch"],
        "batch_bytes": BODY,
        "step": worker,
        "stride": STREAMS,
    }
    client = fl.connect(os.environ["BOWSTRING_URL"], generic_options=[("grpc.use_local_subchannel_pool", 1)])
    ids, labels, segments = [], [], []
    for chunk in client.do_get(fl.Ticket(json.dumps(ticket).encode())):
        batch = chunk.data
        # A batch comes in parts of bounded size; the consumer gets it whole, without a copy of its parts.
        ids.append(fixed(batch.column("id"), np.dtype("<u8"), 2)[:, 0])
        labels.append(fixed(batch.column("label"), np.dtype("<i8"), 1)[:, 0])
        segments += arrow_segments(batch.column("image"))
        if json.loads(chunk.app_metadata.to_pybytes())["last"]:
            yield np.concatenate(ids), np.concatenate(labels), segments
            ids, labels, segments = [], [], []


def fixed(column: pa.Array, kind: np.dtype[Any], width: int) -> Any:
    """The values of a column of fixed width, with no copy and without pandas."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    values = np.frombuffer(column.buffers()[1], kind).reshape(-1, width)
    return values[column.offset : column.offset + len(column)]


def merged(streams: list[Iterator[Batch]]) -> Iterator[Batch]:
    """Batches of several streams as they come, each read by a thread."""
    ready: queue.Queue[Batch | BaseException | None] = queue.Queue(len(streams))

    def read(one: Iterator[Batch]) -> None:
        try:
            for batch in one:
                ready.put(batch)
            ready.put(None)
        except BaseException as error:  # noqa: BLE001  # raised where the batches are taken
            ready.put(error)

    for one in streams:
        threading.Thread(target=read, args=(one,), daemon=True).start()
    left = len(streams)
    while left:
        got = ready.get()
        if isinstance(got, BaseException):
            raise got
        if got is None:
            left -= 1
        else:
            yield got
