"""Runs the peers kit with Bowstring among the peers, which reads from Cassandra through the kit's proxy.

    PEERS=/path/to/kit PEERS_HOME=/path/where/installed .venv/bin/python bench/peers/compare.py \
        --peers bowstring,lance-take,webdataset-8w --rtts 0,20,150 --rounds 3 --out results.jsonl \
        [flags of the kit's run.py: --window 6MiB --slowstart --compute 100 ...]

Cassandra is started once, has the kit's JPEGs imported, and is read past the proxy until its JVM is warm. Each
run of Bowstring has a new proxy and a new `bowstring serve`, both up before the clock starts, as the servers of
the other peers are. All that a server reads of Cassandra comes through the proxy, which is checked after each run.

Each run is a line in --out, which the kit's table.py renders. In Bowstring's, server_cpu_s is of bowstring and
Cassandra together, `extra` has each, and `proxy` the connections and bytes that went through it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "examples")]

import pyarrow.flight as fl  # noqa: E402
from cassandra_node import Cassandra  # noqa: E402
from harness import cpu_seconds, median  # noqa: E402
from ports import free_port  # noqa: E402
from server import Server  # noqa: E402

KIT = Path(os.environ.get("PEERS", ""))
HOME = Path(os.environ.get("PEERS_HOME") or KIT)
OURS: dict[str, dict[str, Any]] = {  # name: options of p_bowstring
    "bowstring": {},
    "bowstring-x2": {"streams": 2},
}
PEERS = "bowstring,bowstring-x2,lance-take,mosaicml-tuned,torch-s3-concurrent-64,webdataset-8w"
LINK = ("bw", "window", "jitter", "slowstart")  # run.py's flags of the proxy besides the round trip
WARM_EPOCHS, WARM = 10, 0.97  # this number of epochs takes at least this share of the time of as many before


def kit() -> Any:
    """The kit's run.py, with our peers among its own."""
    if not (KIT / "run.py").exists():
        sys.exit(f"peers: no run.py in {KIT}: PEERS names the kit's folder, PEERS_HOME where it is installed")
    sys.path.insert(0, str(KIT))  # before bench, which has a run.py too
    run = importlib.import_module("run")
    for name, options in OURS.items():
        run.PEERS[name] = ("bowstring", "main", options, None, True, False)
    return run


def client(argv: list[str]) -> int:
    """The kit's run of one peer.

    In a process of its own: it takes all its children but those it started itself for the client's, counts their CPU
    time and ends them.
    """
    run = kit()

    def end(*_: object) -> None:
        raise SystemExit(143)  # unwinds: what was started is ended

    signal.signal(signal.SIGTERM, end)
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # where the kit's client finds p_bowstring
    line = run.run(run.parser().parse_args(argv))
    print(json.dumps(line), flush=True)
    return 1 if "error" in line else 0


def measure(argv: list[str], **environment: str) -> dict[str, Any]:
    """Run a peer; its line."""
    command = [sys.executable, __file__, "--client", *argv]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}) as run:
        try:
            lines = run.communicate()[0].splitlines()
        except BaseException:
            run.terminate()
            raise
    found: dict[str, Any] = json.loads(lines[-1]) if lines else {"error": f"run.py ended with {run.returncode}"}
    return found


def measure_ours(argv: list[str], binary: Path, node: Cassandra, before: str) -> dict[str, Any]:
    """Run Bowstring over a new proxy and with a new server, which has done what `before` says."""
    args, _ = kit().parser().parse_known_args(argv)
    seen: dict[str, int] = {}
    with contextlib.ExitStack() as stack:
        pids, port = {"cassandra": node.pid}, node.port
        delayed = args.rtt > 0 or args.bw != "0" or args.window != "0" or args.jitter > 0 or args.proxy
        if delayed:  # as run.py decides for the other peers
            port, pids["proxy"] = stack.enter_context(proxy(args, node.port, seen))
        server = stack.enter_context(Server(binary, node.uri("peers", port)))
        pids["bowstring"] = server.pid
        if before == "info":
            with fl.connect(server.url) as flight:
                flight.get_flight_info(fl.FlightDescriptor.for_path("peers"))
        elif before == "epoch":
            read_epoch(server.url, seed=3)
        line = measure(
            argv,
            BOWSTRING_URL=server.url,
            BOWSTRING_PIDS=",".join(f"{name}={pid}" for name, pid in pids.items()),
        )
        connections = server.connections()
        peak = server.peak_mb()
    extra = line.setdefault("extra", {})
    extra["bowstring_rss_mb"] = round(peak)
    extra["before"] = before
    line["server_cpu_s"] = round(extra.get("bowstring_cpu_s", 0) + extra.get("cassandra_cpu_s", 0), 2)
    line["proxy_cpu_s"] = extra.get("proxy_cpu_s", 0)
    if delayed:
        line["proxy"] = seen
        for name in LINK:
            if getattr(args, name) not in ("0", 0, False):
                line[name] = getattr(args, name)
        past = connections.get(node.port, 0)
        if "error" not in line and (past or seen.get("bytes", 0) < line["bytes"]):
            line["error"] = f"{past} connections past the proxy, {seen} through it, {line['bytes']} bytes read"
    return line


@contextlib.contextmanager
def proxy(args: argparse.Namespace, target: int, seen: dict[str, int]) -> Iterator[tuple[int, int]]:
    """The kit's proxy with the kit's options: its port and process id. The counters in `seen` are known at its end.

    A driver takes a node's address from the node, but the port, in version 4 of the protocol, from its own
    configuration. So a proxy on another port of the same address gets all connections.
    """
    port = free_port()
    command = [HOME / "bin/delayproxy", "-delay", f"{args.rtt / 2}ms", "-jitter", f"{args.jitter}ms", "-bw", args.bw]
    command += ["-window", args.window, "-seed", str(args.seed), "-listen", f"127.0.0.1:{port}=127.0.0.1:{target}"]
    if args.slowstart:
        command.append("-slowstart")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout
        try:
            while (line := process.stdout.readline()).strip() != "ready":
                if not line:
                    raise RuntimeError(f"the delaying proxy did not start: {command}")
            yield port, process.pid
        finally:
            process.terminate()
        seen.update((k, int(v)) for k, v in re.findall(r"(conns|max_open|bytes)=(\d+)", process.stdout.read()))


def warm(binary: Path, node: Cassandra) -> None:
    """Read the dataset until the JVM has compiled what reads it: its CPU time for an epoch no longer falls."""
    took: list[float] = []
    with Server(binary, node.uri("peers"), "--window-memory=128MiB") as server:  # all of an epoch is read
        while len(took) < 2 * WARM_EPOCHS or median(took[-WARM_EPOCHS:]) < WARM * median(
            took[-2 * WARM_EPOCHS : -WARM_EPOCHS]
        ):
            before = cpu_seconds(node.pid)
            rate = read_epoch(server.url, seed=2, epoch=len(took))
            took.append(cpu_seconds(node.pid) - before)
            print(f"warm: {rate:.0f} MB/s, {took[-1]:.2f} CPU s of Cassandra", file=sys.stderr, flush=True)


def read_epoch(url: str, seed: int, epoch: int = 0) -> float:
    """Read an epoch; MB/s."""
    start = time.perf_counter()
    ticket = {"dataset": "peers", "columns": ["image"], "shuffle": {"seed": seed, "epoch": epoch}}
    with fl.connect(url) as flight:
        size: int = sum(chunk.data.nbytes for chunk in flight.do_get(fl.Ticket(json.dumps(ticket).encode())))
    return size / 1e6 / (time.perf_counter() - start)


@contextlib.contextmanager
def stored(args: argparse.Namespace) -> Iterator[Cassandra]:
    """A warm Cassandra with the kit's samples: the one in --cassandra, which stays, or a new one."""
    with tempfile.TemporaryDirectory(prefix="bowstring-peers-") as folder, contextlib.ExitStack() as stack:
        node = Cassandra(args.cassandra or Path(folder) / "node")
        if not node.running():
            files = HOME / "data/s3root/peers/files"
            with node:
                subprocess.run([args.bowstring, "store", "init", "--store", node.uri("peers")], check=True)
                subprocess.run([args.bowstring, "import", "--store", node.uri("peers"), files, "peers"], check=True)
            # Started again, it has all in tables on disk and nothing left to write or to merge.
            if args.cassandra:
                node.start()
            else:
                stack.enter_context(node)
            warm(args.bowstring, node)
        yield node


def table(args: argparse.Namespace, rest: list[str]) -> None:
    """Rounds of interleaved runs, then the kit's table of all that is in --out."""
    known = kit().PEERS
    tables = importlib.import_module("table")

    peers = args.peers.split(",")
    for name in peers:
        if name not in known:
            sys.exit(f"peers: no peer {name!r}; there are {', '.join(known)}")
    with stored(args) if set(peers) & set(OURS) else contextlib.nullcontext() as node:
        for round_ in range(args.rounds):
            jobs = [(rtt, peer) for rtt in args.rtts.split(",") for peer in peers]
            random.Random(round_).shuffle(jobs)
            for rtt, peer in jobs:
                argv = ["--peer", peer, "--rtt", rtt, *rest]
                if limit := tables.SUBSET.get((peer, float(rtt))):
                    argv += ["--limit", str(limit)]
                busy = tables.busy()
                line = measure_ours(argv, args.bowstring, node, args.before) if node and peer in OURS else measure(argv)
                line = {"peer": peer, "rtt_ms": float(rtt), **line, "round": round_, "busy_before": round(busy, 2)}
                with args.out.open("a") as out:
                    out.write(json.dumps({**line, "at": int(time.time())}) + "\n")
                got = line.get("error") or f"{line['MBps']} MB/s, first batch {line['time_to_first_batch_s']} s"
                print(f"[{round_}] {peer} {rtt} ms: {got} (busy before: {busy:.2f})", file=sys.stderr, flush=True)
    tables.render([args.out])
    against_others(args.out)


def against_others(out: Path) -> None:
    """Print by how much Bowstring is faster than each peer, and how long its consumer waited after the first batch."""
    groups: dict[tuple[str, float], dict[str, list[dict[str, Any]]]] = {}
    for line in map(json.loads, out.read_text().splitlines()):
        if "error" not in line:
            link = " ".join(
                f"{k}={line[k]}" for k in ("bw", "window", "jitter", "slowstart", "compute_ms") if line.get(k)
            )
            groups.setdefault((link, line["rtt_ms"]), {}).setdefault(line["peer"], []).append(line)
    print("\n### Times the throughput of each peer, medians\n")
    for (link, rtt), peers in sorted(groups.items()):
        rates = {name: median(line["MBps"] for line in lines) for name, lines in peers.items()}
        for name in OURS.keys() & peers.keys():
            wait = median(line["data_wait_s"] - line["time_to_first_batch_s"] for line in peers[name])
            ratios = ", ".join(f"{peer} {rates[name] / rate:.2f}" for peer, rate in rates.items() if peer not in OURS)
            print(f"- {name}, {rtt:g} ms {link}: waited {wait:.3f} s after the first batch; {ratios}")


def main() -> int:
    if sys.argv[1:2] == ["--client"]:
        return client(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=PEERS, help=f"default: {PEERS}")
    parser.add_argument("--rtts", default="0,20,150", help="round trips in milliseconds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("results.jsonl"), help="gets a line for each run")
    parser.add_argument("--bowstring", type=Path, default=ROOT / "build/bin/bowstring", help="the binary")
    parser.add_argument(
        "--cassandra",
        type=Path,
        metavar="DIR",
        help="keep the node in DIR, or use the one that runs there; tests/cassandra/cassandra.sh stop DIR ends it",
    )
    parser.add_argument(
        "--before",
        choices=["nothing", "info", "epoch"],
        default="nothing",
        help="what each new server has done before the clock starts: nothing, opened the snapshot for a GetFlightInfo, "
        "or served an epoch of another seed, so that its memory and connections are in use",
    )
    args, rest = parser.parse_known_args()
    args.bowstring = args.bowstring.resolve()
    table(args, rest)
    return 0


if __name__ == "__main__":
    sys.exit(main())
