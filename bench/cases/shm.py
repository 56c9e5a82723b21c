"""shm: clients on the server's node that share its memory, beside a C++ server with ready batches over TCP."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from harness import Context, Figure, Result, cpu_seconds, emit
from node import Node
from samples import COUNT, SIZE
from sizes import sized

from .loopback import BATCH, stored, ticket

PASSES = sized(3, smoke=1)
READER = Path(__file__).parent.parent / "shm_reader.py"


def read(who: str, touch: str, url: str, clients: int, pid: int) -> dict[str, float]:
    """Read some epochs in some processes: bytes a second, and CPU seconds of all processes a GB."""
    processes = [
        subprocess.Popen(
            [sys.executable, READER, who, touch, url, ticket(i).hex(), str(PASSES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(clients)
    ]
    try:
        for process in processes:
            if (line := process.stdout.readline() if process.stdout else "").strip() != "ready":
                raise RuntimeError(f"a reader said {line!r} instead of being ready")
        before, start = cpu_seconds(pid), time.perf_counter()
        for process in processes:
            if process.stdin:
                process.stdin.write("go\n")
                process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for process in processes if process.stdout]
        seconds, server = time.perf_counter() - start, cpu_seconds(pid) - before
    finally:
        for process in processes:
            if process.stdin:
                process.stdin.close()
            process.wait()
    want = {"package": ["shared"], "references": ["referenced"], "pyarrow": ["tcp"]}[who]
    if any(a["rows"] != COUNT * PASSES or a["ways"] != want for a in answers):
        raise RuntimeError(f"want {COUNT * PASSES} rows by {want}, got {answers}")
    gigabytes = COUNT * SIZE * PASSES * clients / 1e9
    return {
        "gb_per_s": gigabytes / seconds,
        "server_cpu_s_per_gb": server / gigabytes,
        "client_cpu_s_per_gb": sum(a["cpu"] for a in answers) / gigabytes,
    }


def run(context: Context) -> Result:
    """Interleave the two sides, for one client and for two, with the bytes touched and not."""
    peer = subprocess.Popen(
        [sys.executable, Path(__file__).parent.parent / "peer_server.py", str(COUNT), str(SIZE), str(BATCH)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        peer_url = peer.stdout.readline().strip() if peer.stdout else ""
        local = ["--local", str(context.folder / "socket"), "--local-references"]
        with Node(context.binary, stored(context), *local) as node:
            sides = {
                "package": (node.url, node.pid),
                "references": (node.url, node.pid),
                "pyarrow": (peer_url, peer.pid),
            }
            ratios: dict[tuple[int, str], list[float]] = {(1, "sum"): [], (2, "sum"): [], (1, "none"): []}
            refs: dict[tuple[int, str], list[float]] = {case: [] for case in ratios}
            cpu: list[float] = []
            for round_ in context.repeat(*ratios.values(), *refs.values(), warm=1):
                for (clients, touch), found in ratios.items():
                    got = {who: read(who, touch, url, clients, pid) for who, (url, pid) in sides.items()}
                    if round_ < 0:
                        continue
                    for who, figures in got.items():
                        emit(case="shm", side=who, clients=clients, touch=touch, **figures)
                    found.append(got["package"]["gb_per_s"] / got["pyarrow"]["gb_per_s"])
                    refs[clients, touch].append(got["references"]["gb_per_s"] / got["pyarrow"]["gb_per_s"])
                    both = {w: g["server_cpu_s_per_gb"] + g["client_cpu_s_per_gb"] for w, g in got.items()}
                    cpu.append(both["package"] / both["pyarrow"])
    finally:
        peer.terminate()
        peer.wait()
    return Result(
        "shm",
        [
            Figure("ratio_1", ratios[1, "sum"]),
            Figure("ratio_2", ratios[2, "sum"]),
            Figure("ratio_1_none", ratios[1, "none"]),
            Figure("cpu_ratio", cpu),
            Figure("refs_ratio_1", refs[1, "sum"]),
            Figure("refs_ratio_2", refs[2, "sum"]),
            Figure("refs_ratio_none", refs[1, "none"]),
        ],
    )
