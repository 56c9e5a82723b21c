"""prefix_cache: what an epoch of operators that draw nothing costs once results are kept, and whether these differ."""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.flight as fl
from harness import MIB, Context, Figure, Result, cpu_seconds, emit, median
from server import Server

from . import audio_ops, image_ops

KINDS: dict[str, list[dict[str, Any]]] = {
    "image": [{"Decode": {}}, {"Resize": {"size": 256}}, {"CenterCrop": {"size": [224, 224]}}, {"ToImage": {}}],
    "audio": audio_ops.LOG_MEL,
}
LATER = 3  # epochs after the first
BUDGET = f"{512 * MIB}B"


def stored(context: Context, kind: str) -> Path:
    """An embedded store with photographs or clips."""
    if kind == "image":
        return image_ops.stored(context)
    store = context.folder / "store-clips"
    if not store.exists():
        audio_ops.write(context.folder / "audio")
        context.bowstring("import", "--store", store, "--format", "audiofolder", context.folder / "audio", "bench")
    return store


def epoch(url: str, kind: str, number: int) -> dict[int, bytes]:
    """The hash of each sample's tensor, by position."""
    ticket = {
        "dataset": "bench",
        "columns": ["position", kind],
        "batch": 8,
        "shuffle": {"seed": 3, "epoch": number},
        "operators": {kind: KINDS[kind]},
    }
    found = {}
    with fl.connect(url) as client:
        info = client.get_flight_info(fl.FlightDescriptor.for_command(json.dumps(ticket)))
        for chunk in client.do_get(info.endpoints[0].ticket):
            batch = chunk.data
            for row, position in enumerate(batch["position"].to_pylist()):
                value = json.dumps(batch[kind][row].as_py()).encode() if kind == "audio" else tensor(batch[kind], row)
                found[position] = hashlib.sha256(value).digest()
    return found


def tensor(column: Any, row: int) -> bytes:
    """The bytes of one tensor of a fixed shape."""
    size = column.storage.type.list_size * column.storage.type.value_type.bit_width // 8
    at = (column.storage.offset + row) * size
    whole: bytes = column.storage.values.buffers()[1].slice(at, size).to_pybytes()
    return whole


def run(context: Context) -> Result:
    """Processor time of the server in the first epoch of a new spill, and in the mean of those after it."""
    ratios: dict[str, list[float]] = {kind: [] for kind in KINDS}
    differing = 0
    for _ in range(context.rounds):
        for kind in KINDS:
            with tempfile.TemporaryDirectory(prefix="spill-", dir=context.folder) as folder:
                flags = [f"--spill={folder}", f"--spill-bytes={BUDGET}", f"--spill-min-bytes={BUDGET}"]
                with Server(context.binary, stored(context, kind), *flags, rtt="0ms") as server:
                    marks, seen = [cpu_seconds(server.pid)], []
                    for number in range(1 + LATER):
                        seen.append(epoch(server.url, kind, number))
                        marks.append(cpu_seconds(server.pid))
                    first, later = marks[1] - marks[0], (marks[-1] - marks[1]) / LATER
                    differing += sum(s[p] != seen[0][p] for s in seen[1:] for p in seen[0])
                    emit(case="prefix_cache", kind=kind, first_cpu_s=first, later_cpu_s=later, samples=len(seen[0]))
                    ratios[kind].append(later / first)
    return Result(
        "prefix_cache",
        [
            Figure("cpu_ratio", max(median(values) for values in ratios.values()), at_most=0.2),
            Figure("differing", differing, at_most=0),
        ],
        {f"cpu_ratio_{kind}": round(median(values), 3) for kind, values in ratios.items()},
    )
