"""prefix_cache: what an epoch costs once results of operators, or of first steps, are kept; whether these differ."""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.flight as fl
from harness import MIB, Context, Figure, Result, cpu_seconds, emit, median
from server import Server
from sizes import sized

from . import audio_ops, image_ops

SPEC_AUGMENT = {"n_time_masks": 2, "time_mask_param": 40, "n_freq_masks": 2, "freq_mask_param": 15}
RESIZED: list[dict[str, Any]] = [{"Decode": {}}, {"Resize": {"size": 256}}]
# By name: the column, and its operators. The first two draw nothing; of the others the first steps are kept.
KINDS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "image": ("image", [*RESIZED, {"CenterCrop": {"size": [224, 224]}}, {"ToImage": {}}]),
    "audio": ("audio", audio_ops.LOG_MEL),
    "image_cropped": (
        "image",
        [*RESIZED, {"RandomCrop": {"size": [224, 224]}}, {"RandomHorizontalFlip": {}}, {"ToImage": {}}],
    ),
    "audio_masked": ("audio", [*audio_ops.LOG_MEL, {"SpecAugment": SPEC_AUGMENT}]),
}
WHOLE = ("image", "audio")
LATER = sized(3, smoke=1)  # epochs after the first
BUDGET = f"{512 * MIB}B"


def stored(context: Context, column: str) -> Path:
    """An embedded store with photographs or clips."""
    if column == "image":
        return image_ops.stored(context)
    store = context.folder / "store-clips"
    if not store.exists():
        audio_ops.write(context.folder / "audio")
        context.bowstring("import", "--store", store, "--format", "audiofolder", context.folder / "audio", "bench")
    return store


def epoch(url: str, kind: str, number: int) -> dict[int, bytes]:
    """The hash of each sample's tensor, by position."""
    column, steps = KINDS[kind]
    ticket = {
        "dataset": "bench",
        "columns": ["position", column],
        "batch": 8,
        "shuffle": {"seed": 3, "epoch": number},
        "operators": {column: steps},
    }
    found = {}
    with fl.connect(url) as client:
        info = client.get_flight_info(fl.FlightDescriptor.for_command(json.dumps(ticket)))
        for chunk in client.do_get(info.endpoints[0].ticket):
            batch = chunk.data
            for row, position in enumerate(batch["position"].to_pylist()):
                cells = batch[column]
                value = json.dumps(cells[row].as_py()).encode() if column == "audio" else tensor(cells, row)
                found[position] = hashlib.sha256(value).digest()
    return found


def tensor(column: Any, row: int) -> bytes:
    """The bytes of one tensor of a fixed shape."""
    size = column.storage.type.list_size * column.storage.type.value_type.bit_width // 8
    at = (column.storage.offset + row) * size
    whole: bytes = column.storage.values.buffers()[1].slice(at, size).to_pybytes()
    return whole


def without(context: Context, kind: str, epochs: int) -> list[dict[int, bytes]]:
    """Results of a server that caches nothing."""
    with Server(context.binary, stored(context, KINDS[kind][0]), rtt="0ms") as server:
        return [epoch(server.url, kind, number) for number in range(epochs)]


def run(context: Context) -> Result:
    """CPU time of the server in the first epoch of a new spill, and in the mean of those after it."""
    ratios: dict[str, list[float]] = {kind: [] for kind in KINDS}
    differing = 0
    for _ in context.repeat(*(ratios[kind] for kind in WHOLE)):
        for kind in KINDS:
            wanted = without(context, kind, 1 if kind in WHOLE else 1 + LATER)
            with tempfile.TemporaryDirectory(prefix="spill-", dir=context.folder) as folder:
                flags = [f"--spill={folder}", f"--spill-bytes={BUDGET}", f"--spill-min-bytes={BUDGET}"]
                with Server(context.binary, stored(context, KINDS[kind][0]), *flags, rtt="0ms") as server:
                    marks, seen = [cpu_seconds(server.pid)], []
                    for number in range(1 + LATER):
                        seen.append(epoch(server.url, kind, number))
                        marks.append(cpu_seconds(server.pid))
                    first, later = marks[1] - marks[0], (marks[-1] - marks[1]) / LATER
                    for number, found in enumerate(seen):
                        right = wanted[number % len(wanted)]
                        differing += sum(found.get(p) != right[p] for p in right)
                    emit(case="prefix_cache", kind=kind, first_cpu_s=first, later_cpu_s=later, samples=len(seen[0]))
                    ratios[kind].append(later / first)
    return Result(
        "prefix_cache",
        [
            Figure("cpu_ratio", max(median(ratios[kind]) for kind in WHOLE)),
            Figure("differing", differing),
        ],
        {f"cpu_ratio_{kind}": round(median(values), 3) for kind, values in ratios.items()},
    )
