"""tls: DoGet over TLS beside a C++ server with TLS; certificates exchanged under load; a token revoked."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow.flight as fl
from harness import Context, Figure, Readers, Result, cpu_seconds, emit, median
from node import Node
from samples import COUNT, SIZE
from sizes import sized

from .loopback import BATCH, stored, ticket

PASSES = sized(2, smoke=1)  # epochs that each connection reads in a round
EXCHANGES = sized(20, smoke=3)
PATIENCE = 180.0


class Authority:
    """Signs certificates of servers on this machine, by openssl."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self._openssl("req", "-x509", *self._new("ca"), "-days", "2", "-out", "ca.pem")
        (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")

    def server(self) -> None:
        """Make `server.pem` and `server.key`, each from one moment to the next."""
        self._openssl("req", *self._new("next"), "-out", "next.csr")
        ca = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
        self._openssl("x509", "-req", "-in", "next.csr", *ca, "-out", "next.pem")
        for kind in ("key", "pem"):
            (self.folder / f"next.{kind}").rename(self.folder / f"server.{kind}")

    @staticmethod
    def _new(name: str) -> list[str]:
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        return [*curve, "-subj", f"/CN={name}", "-keyout", f"{name}.key"]

    def _openssl(self, *args: str) -> None:
        subprocess.run(["openssl", *args], cwd=self.folder, check=True, capture_output=True)  # noqa: S607


def read(url: str, connections: int, pid: int, environment: dict[str, str]) -> dict[str, float]:
    """Read some epochs on each of some connections; what it took."""
    readers = Readers(url, [ticket(i) for i in range(connections)], PASSES, **environment)
    before = cpu_seconds(pid)
    got = readers.run()
    samples = COUNT * PASSES * connections
    if got["rows"] != samples:
        raise RuntimeError(f"{got['rows']} rows instead of {samples}")
    gigabytes = samples * SIZE / 1e9
    return {"gb_per_s": gigabytes / got["seconds"], "server_cpu_s_per_gb": (cpu_seconds(pid) - before) / gigabytes}


def exchange(authority: Authority, url: str, root: bytes, options: fl.FlightCallOptions, log: Path) -> int:
    """Exchange the certificate while streams run, one new connection after the other; how many streams fail."""
    failed, done = [], threading.Event()

    def stream() -> None:
        try:
            with fl.connect(url, tls_root_certs=root) as client:
                for _ in client.do_get(fl.Ticket(ticket(0)), options):
                    pass
        except (fl.FlightError, OSError) as error:
            failed.append(str(error))

    def streams() -> None:
        while not done.is_set():
            stream()

    reader = threading.Thread(target=streams)
    reader.start()
    for done_so_far in range(EXCHANGES):
        authority.server()
        end = time.monotonic() + PATIENCE
        while log.read_text().count("the server's certificate") <= done_so_far:
            if time.monotonic() > end:
                raise RuntimeError("the server does not read its certificate again")
            time.sleep(0.05)
    done.set()
    reader.join()
    for error in failed:
        emit(case="tls", failed=error)
    return len(failed)


def revoke(context: Context, url: str, root: bytes, tokens: Path) -> float:
    """Seconds from the return of `token revoke` until a stream under the token has ended."""
    token = context.bowstring("token", "create", "--tokens", tokens, "--principal", "leaver").strip()
    options = fl.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())])
    end = time.monotonic() + PATIENCE
    with fl.connect(url, tls_root_certs=root) as client:
        while True:
            try:
                reader = client.do_get(fl.Ticket(ticket(0, epochs=1000)), options)
                reader.read_chunk()
                break
            except fl.FlightUnauthenticatedError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.5)  # the server has not read the file; who tries too often is shut out for a while
        context.bowstring("token", "revoke", token.split("_")[1], "--tokens", tokens)
        start = time.monotonic()
        try:
            while time.monotonic() < end:
                reader.read_chunk()
        except fl.FlightUnauthenticatedError:
            return time.monotonic() - start
    raise RuntimeError("the stream does not end")


def run(context: Context) -> Result:
    """Interleave the two servers, at one connection and at two; then exchange certificates, and revoke a token."""
    store = stored(context)
    authority = Authority(context.folder / "pki")
    authority.server()
    root, tokens = authority.folder / "ca.pem", context.folder / "tokens.json"
    token = context.bowstring("token", "create", "--tokens", tokens, "--principal", "bench").strip()
    environment = {"BENCH_ROOT": str(root), "BOWSTRING_TOKEN": token}
    pair = [str(authority.folder / "server.pem"), str(authority.folder / "server.key")]
    peer = subprocess.Popen(
        [sys.executable, Path(__file__).parent.parent / "peer_server.py", str(COUNT), str(SIZE), str(BATCH), *pair],
        stdout=subprocess.PIPE,
        text=True,
    )
    log = context.folder / "tls.log"
    flags = ["--tls-cert", pair[0], "--tls-key", pair[1], "--tokens", str(tokens)]
    try:
        peer_url = peer.stdout.readline().strip() if peer.stdout else ""
        with Node(context.binary, store, *flags, log=log) as node:
            sides = {"bowstring": (node.url, node.pid), "cpp": (peer_url, peer.pid)}
            for url, pid in sides.values():  # warm
                read(url, 2, pid, environment)
            ratios: dict[int, list[float]] = {1: [], 2: []}
            cpu: list[float] = []
            for _ in context.repeat(*ratios.values()):
                for connections, found in ratios.items():
                    got = {name: read(url, connections, pid, environment) for name, (url, pid) in sides.items()}
                    for name, figures in got.items():
                        emit(case="tls", side=name, connections=connections, **figures)
                    found.append(got["bowstring"]["gb_per_s"] / got["cpp"]["gb_per_s"])
                    cpu.append(got["bowstring"]["server_cpu_s_per_gb"])
            options = fl.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())])
            failed = exchange(authority, node.url, root.read_bytes(), options, log)
            seconds = [revoke(context, node.url, root.read_bytes(), tokens) for _ in context.repeat()]
    finally:
        peer.terminate()
        peer.wait()
    return Result(
        "tls",
        [
            Figure("ratio_1conn", ratios[1]),
            Figure("ratio_2conn", ratios[2]),
            Figure("failed", failed),
            Figure("revoked_s", max(seconds)),
        ],
        {"server_cpu_s_per_gb": round(median(cpu), 3)},
    )
