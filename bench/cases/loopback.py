"""loopback: DoGet from the embedded store's warm segments, beside a C++ server with ready batches."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

from harness import Context, Figure, Readers, Result, anonymous_mb, cpu_seconds, emit, median
from node import Node
from samples import COUNT, SIZE, image_folder
from sizes import sized

BATCH = 64
PASSES = sized(3, smoke=1)  # epochs that each connection reads in a round
STREAMS = sized(8, smoke=2)
# Options that the C++ server's connections have, and ours have not: they stay on this machine.
CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")


def stored(context: Context, name: str = "store-4000") -> Path:
    """An embedded store with the samples; one of another name for each server that runs at the same time."""
    store = context.folder / name
    if not store.exists():
        source = context.folder / "imagefolder"
        image_folder(source, COUNT, SIZE)
        context.bowstring("import", "--store", store, source / "images", "bench")
    return store


def ticket(epoch: int, epochs: int = 1) -> bytes:
    """A shuffled epoch of everything, and those after it."""
    request = {
        "dataset": "bench",
        "columns": ["id", "label", "image"],
        "batch": BATCH,
        "shuffle": {"seed": 7, "epoch": epoch},
        "epochs": epochs,
        "rank": 0,
        "step": 0,
    }
    return json.dumps(request).encode()


def read(url: str, connections: int, pid: int, epochs: int = 1) -> dict[str, float]:
    """Read streams of `epochs` epochs on each connection, and return the cost."""
    readers = Readers(url, [ticket(i, epochs) for i in range(connections)], PASSES)
    before = cpu_seconds(pid)
    got = readers.run()
    samples = COUNT * PASSES * connections * epochs
    if got["rows"] != samples:
        raise RuntimeError(f"{got['rows']} rows instead of {samples}")
    gigabytes = samples * SIZE / 1e9
    return {
        "gb_per_s": gigabytes / got["seconds"],
        "server_cpu_s_per_gb": (cpu_seconds(pid) - before) / gigabytes,
    }


def memory(url: str, pid: int) -> float:
    """The server's memory above the mapped pages while it serves some streams, at most."""
    peak = 0.0
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.01):
            peak = max(peak, anonymous_mb(pid))

    readers = Readers(url, [ticket(i) for i in range(STREAMS)])
    watcher = threading.Thread(target=watch)
    watcher.start()
    readers.run()
    done.set()
    watcher.join()
    return peak


def run(context: Context) -> Result:
    """Interleave the two servers, at one connection and at two."""
    peer = subprocess.Popen(
        [sys.executable, Path(__file__).parent.parent / "peer_server.py", str(COUNT), str(SIZE), str(BATCH)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        peer_url = peer.stdout.readline().strip() if peer.stdout else ""
        with Node(context.binary, stored(context)) as node:
            sides = {"bowstring": (node.url, node.pid), "cpp": (peer_url, peer.pid)}
            for url, pid in sides.values():  # warm
                read(url, 2, pid)
            ratios: dict[int, list[float]] = {1: [], 2: []}
            cpu: list[float] = []
            cpu_ratios: list[float] = []
            for _ in context.repeat(*ratios.values(), cpu_ratios):
                sides = dict(reversed(sides.items()))  # neither is always the second
                for connections, found in ratios.items():
                    got = {name: read(url, connections, pid) for name, (url, pid) in sides.items()}
                    for name, figures in got.items():
                        emit(case="loopback", side=name, connections=connections, **figures)
                    found.append(got["bowstring"]["gb_per_s"] / got["cpp"]["gb_per_s"])
                    cpu.append(got["bowstring"]["server_cpu_s_per_gb"])
                    cpu_ratios.append(cpu[-1] / got["cpp"]["server_cpu_s_per_gb"])
            rss = memory(node.url, node.pid)
    finally:
        peer.terminate()
        peer.wait()
    return Result(
        "loopback",
        [
            Figure("ratio_1conn", ratios[1]),
            Figure("ratio_2conn", ratios[2]),
            Figure("server_cpu_ratio", cpu_ratios),
            Figure("rss_mb", rss),
        ],
        {"server_cpu_s_per_gb": round(median(cpu), 3), "congestion": CONGESTION.read_text().strip()},
    )
