"""groups: a mesh of dp 2 by tp 4 on the server's node: what is read for it, whether ranks get the same, how fast."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness import Context, Figure, Result, emit, median
from samples import COUNT, SIZE
from server import Server

from .loopback import stored

READER = Path(__file__).parent.parent / "group_reader.py"
BATCH = 128  # of a step, so 64 samples a data rank
RTT = "5ms"
BANDWIDTH = 60e6  # bytes a second of the store: all ranks get 240 MB/s of it, which two processors sum up
DP, TP = 2, 4


def read(server: Server, world: dict[str, Any], ranks: range, epoch: int) -> list[dict[str, Any]]:
    """Read an epoch in some of a world's ranks at once."""
    request = {
        "dataset": "bench",
        "columns": ["id", "label", "image"],
        "batch": BATCH,
        "shuffle": {"seed": 7},
        "world": world,
        "digest": True,
    }
    found = subprocess.PIPE
    processes = [
        subprocess.Popen(
            [sys.executable, READER, server.url, json.dumps(request).encode().hex(), str(rank), str(epoch)],
            stdin=found,
            stdout=found,
            text=True,
        )
        for rank in ranks
    ]
    try:
        for process in processes:
            if (line := process.stdout.readline() if process.stdout else "").strip() != "ready":
                raise RuntimeError(f"a reader said {line!r} instead of being ready")
        for process in processes:
            if process.stdin:
                process.stdin.write("go\n")
                process.stdin.flush()
        return [json.loads(process.stdout.readline()) for process in processes if process.stdout]
    finally:
        for process in processes:
            if process.stdin:
                process.stdin.close()
            process.wait()


def rate(found: list[dict[str, Any]]) -> float:
    """Bytes a second that all ranks got together."""
    return float(sum(f["bytes"] for f in found) / max(f["seconds"] for f in found))


def reads(server: Server) -> int:
    """Blobs that were read, of the store or the spill: those of samples, and some pages of the manifest."""
    engine = server.fetched()
    return int(engine["reads"]) + int(engine["spill_reads"])


def run(context: Context) -> Result:
    """Interleave the mesh, a rank alone, and four ranks that each read for themselves."""
    local = ["--local", str(context.folder / "socket")]
    ratios: list[float] = []
    shares: list[float] = []
    apart, differing, ways = [], 0, set()
    for round_ in context.repeat(ratios, shares):
        with Server(context.binary, stored(context), *local, rtt=RTT, bandwidth=BANDWIDTH) as server:
            before = reads(server)
            mesh = read(server, {"mesh": f"dp={DP},tp={TP}"}, range(DP * TP), round_)
            ratios.append((reads(server) - before) / COUNT)
            behind = server.fetched()["rank_groups_behind"]
        with Server(context.binary, stored(context), *local, rtt=RTT, bandwidth=BANDWIDTH) as server:
            alone = read(server, {"size": DP}, range(1), round_)
        with Server(context.binary, stored(context), *local, rtt=RTT, bandwidth=BANDWIDTH) as server:
            each = read(server, {"size": DP * TP}, range(DP * TP), round_)
        rows = [sum(f["rows"] for f in mesh), alone[0]["rows"], sum(f["rows"] for f in each)]
        if rows != [COUNT * TP, COUNT // DP, COUNT]:
            raise RuntimeError(f"{rows} rows instead of {[COUNT * TP, COUNT // DP, COUNT]}")
        for rank, got in enumerate(mesh):
            differing += sum(a != b for a, b in zip(got["steps"], mesh[rank // TP * TP]["steps"], strict=True))
            ways.update(got["ways"])
        shares.append(rate(mesh) / (TP * rate(alone)))
        apart.append(rate(mesh) / rate(each))
        emit(
            case="groups",
            mesh_mb_per_s=rate(mesh) / 1e6,
            alone_mb_per_s=rate(alone) / 1e6,
            apart_mb_per_s=rate(each) / 1e6,
            reads_ratio=ratios[-1],
            behind=behind,
        )
    return Result(
        "groups",
        [
            Figure("reads_ratio", ratios),
            Figure("differing_steps", differing),
            Figure("group_share", shares),
        ],
        {"beside_all_different": round(median(apart), 2), "ways": sorted(ways), "mb": round(COUNT * SIZE / 1e6)},
    )
