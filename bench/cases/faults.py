"""faults: damaged samples and bombs among images that become tensors: which are named, what they cost the server."""

from __future__ import annotations

import json
import random
import struct
import zlib
from pathlib import Path

import pyarrow.flight as fl
from harness import Context, Figure, Result, emit
from node import Node
from photos import write_all
from sizes import sized

COUNT, DAMAGED, BOMBS = sized((400, 4, 4), smoke=(40, 1, 1))  # a hundredth each
OPERATORS = {"image": [{"Decode": {}}, {"RandomResizedCrop": {"size": [224, 224]}}, {"ToImage": {}}]}


def bomb(number: int) -> bytes:
    """A PNG of 40,000 x 40,000 pixels in its header, and hardly a byte behind it."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", 40_000, 40_000, 8, 2, 0, 0, 0)
    text = chunk(b"tEXt", f"n\0{number}".encode())  # no two are the same blob
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + text + chunk(b"IDAT", zlib.compress(b"\0" * 64))


def stored(context: Context) -> tuple[Path, set[str]]:
    """A store of photographs, some spoilt, and the names of these."""
    root, store = context.folder / "photos-faults", context.folder / "store-faults"
    for _ in write_all(root, COUNT, workers=2):
        pass
    context.bowstring("import", "--store", store, root, "clean")
    paths = sorted(root.rglob("*.jpg"))
    spoilt = random.Random(5).sample(paths, DAMAGED + BOMBS)
    for number, path in enumerate(spoilt):
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 3] if number < DAMAGED else bomb(number))
    context.bowstring("import", "--store", store, "--verify", "none", root, "bench")
    return store, {path.name for path in spoilt}


def nulls(client: fl.FlightClient, dataset: str, epoch: int) -> set[str]:
    """Names of the files of which there is no tensor; all others are there."""
    request = {
        "dataset": dataset,
        "columns": ["file_name", "image"],
        "batch": 32,
        "shuffle": {"seed": 1, "epoch": epoch},
        "on_error": "null",
        "operators": OPERATORS,
    }
    info = client.get_flight_info(fl.FlightDescriptor.for_command(json.dumps(request)))
    table = client.do_get(info.endpoints[0].ticket).read_all()
    if table.num_rows != COUNT:
        raise RuntimeError(f"{table.num_rows} rows instead of {COUNT}")
    pairs = zip(table["file_name"].to_pylist(), table["image"].is_null().to_pylist(), strict=True)
    return {Path(name).name for name, missing in pairs if missing}


def peak_mb(pid: int) -> float:
    """The most memory that a process has had resident, in MiB."""
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


def run(context: Context) -> Result:
    """Epochs without faults, for what the server takes at all; then as many with them."""
    store, spoilt = stored(context)
    wrong = crashes = 0
    with Node(context.binary, store) as server, fl.connect(server.url) as client:
        for epoch in context.repeat():
            wrong += len(nulls(client, "clean", epoch))
        clean = peak_mb(server.pid)
        try:
            for epoch in context.repeat():
                wrong += len(nulls(client, "bench", epoch) ^ spoilt)
            grown = peak_mb(server.pid) - clean
        except (fl.FlightUnavailableError, OSError, StopIteration) as error:
            emit(case="faults", error=str(error))
            crashes, grown = 1, 0.0
    return Result(
        "faults",
        [
            Figure("wrong_positions", wrong),
            Figure("crashes", crashes),
            Figure("rss_growth_mb", grown),
        ],
        {"samples": COUNT, "spoilt": len(spoilt), "clean_mb": round(clean)},
    )
