"""attach_objects: a million objects listed and indexed over 20 ms, tars that are walked, an update of one in 100."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

from harness import Context, Figure, Result, emit, go_benchmark, lab, median
from sizes import sized

OBJECTS = sized(1_000_000, smoke=5_000)
LATENCY = "20ms"
TARS, MEMBERS, MEMBER = sized((250, 100, 200_000), smoke=(10, 10, 20_000))  # of the update
LARGE, EACH, SIZE = sized((8, 8, 4 << 20), smoke=(2, 4, 1 << 20))  # tars of large members


def run(context: Context) -> Result:
    """Each part has a server of its own. The time of an update is compared with that of the attachment before it."""
    seconds: list[float] = []
    memory: list[float] = []
    shares: list[float] = []
    for _ in context.repeat(seconds, shares):
        took, most = listed(context)
        seconds.append(took)
        memory.append(most)
        shares.append(updated(context))
    races = go_benchmark(
        context, "attach_objects", "./cmd/bowstring/command", "BenchmarkAttachRaces", "-benchtime", "10000x"
    )
    return Result(
        "attach_objects",
        [
            Figure("seconds", seconds),
            Figure("rss_mb", memory),
            Figure("tar_read_share", walked(context)),
            Figure("update_share", shares),
            Figure("wrong", races["wrong"]),
        ],
        {"races_lost": median(races["lost"])},
    )


class Server:
    """A server of S3 in memory."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.sent = 0  # bytes, once it has ended

    def url(self, bucket: str) -> str:
        """The URL of a bucket of it."""
        return f"s3://{bucket}?endpoint={self.endpoint}&anonymous=true"

    def put(self, path: str, body: bytes) -> None:
        """Put an object, by its bucket and key."""
        connection = http.client.HTTPConnection(self.endpoint.removeprefix("http://"))
        with contextlib.closing(connection):
            connection.request("PUT", f"/{path}", body)
            if connection.getresponse().status != http.client.OK:
                raise RuntimeError(f"{path} is not put")


@contextlib.contextmanager
def serve(context: Context, *options: str | Path) -> Iterator[Server]:
    """A server for the time of the block."""
    command = [lab(context.binary), "objects", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        if not process.stdout:
            raise RuntimeError("the server of objects has no pipe")
        server = Server(process.stdout.readline().strip())
        try:
            yield server
        finally:
            process.terminate()
            counts = process.stdout.readline()
            process.wait(180)
        server.sent = json.loads(counts)["sent"]


# A process starts with the most memory that its parent had, as the kernel counts: so the parent is one that has little.
MEASURE = """
import os, sys, time
start = time.perf_counter()
opened = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=opened)
_, status, usage = os.wait4(pid, 0)
print(time.perf_counter() - start, usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def attach(context: Context, store: Path, *args: str) -> tuple[float, float]:
    """The seconds that an attachment takes, and the most memory that it has, in MB."""
    command = [sys.executable, "-S", "-c", MEASURE, str(context.binary), "attach", "--store", str(store), *args]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    seconds, kib = printed.split()
    return float(seconds), int(kib) * 1024 / 1e6


def fresh(context: Context) -> Path:
    """A store that is not there yet."""
    store = context.folder / "attach-store"
    shutil.rmtree(store, ignore_errors=True)
    return store


def listed(context: Context) -> tuple[float, float]:
    """Objects that are samples: what is listed is all that is known of them."""
    with serve(context, "--made", str(OBJECTS), "--latency", LATENCY) as server:
        seconds, memory = attach(context, fresh(context), server.url("made"), "made", "--lazy")
    emit(case="attach_objects", objects=OBJECTS, seconds=seconds, rss_mb=memory)
    return seconds, memory


def tar(seed: int, members: int, size: int) -> bytes:
    """A tar of members with bytes that no codec knows."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for n in range(members):
            info = tarfile.TarInfo(f"{seed:05}-{n:05}.bin")
            info.size = size
            archive.addfile(info, io.BytesIO(bytes([(seed + n) % 251]) * size))
    return out.getvalue()


def walked(context: Context) -> float:
    """The share that is read of tars of large members."""
    root = context.folder / "attach-large"
    (root / "large").mkdir(parents=True, exist_ok=True)
    total = 0
    for n in range(LARGE):
        path = root / "large" / f"train-{n:05}.tar"
        path.write_bytes(tar(n, EACH, SIZE))
        total += path.stat().st_size
    with serve(context, "--root", root) as server:
        attach(context, fresh(context), server.url("large"), "large", "--lazy")
    shutil.rmtree(root)
    emit(case="attach_objects", tar_bytes=total, sent=server.sent)
    return server.sent / total


def updated(context: Context) -> float:
    """The time of an update where one tar in a hundred changed, of that of the attachment of all."""
    root = context.folder / "attach-tars"
    (root / "tars").mkdir(parents=True, exist_ok=True)
    for n in range(TARS):
        (root / "tars" / f"train-{n:05}.tar").write_bytes(tar(n, MEMBERS, MEMBER))
    store = fresh(context)
    with serve(context, "--root", root, "--latency", LATENCY) as server:
        first, _ = attach(context, store, server.url("tars"), "tars", "--prove")
        for n in range(max(1, TARS // 100)):
            server.put(f"tars/train-{n:05}.tar", tar(TARS + n, MEMBERS, MEMBER))
        again, _ = attach(context, store, "--update", "tars")
    shutil.rmtree(root)
    emit(case="attach_objects", first_s=first, update_s=again)
    return again / first
