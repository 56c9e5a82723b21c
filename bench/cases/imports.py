"""import: an ImageFolder of 4,000 files of 110 KB into a new embedded store."""

from __future__ import annotations

import os
import shutil
import time

from harness import Context, Figure, Result, emit, median
from samples import COUNT, SIZE, image_folder


def write_rate(context: Context) -> float:
    """The throughput of the disk itself, in MB/s: the same number of bytes in one file, then fdatasync."""
    path = context.folder / "rate"
    block = os.urandom(1 << 20)
    start = time.perf_counter()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        written = 0
        while written < COUNT * SIZE:
            written += os.write(fd, block)
        os.fdatasync(fd)
    finally:
        os.close(fd)
        path.unlink()
    return written / 1e6 / (time.perf_counter() - start)


def run(context: Context) -> Result:
    """Import into a new store each round; the files are in the page cache."""
    source = context.folder / "imagefolder"
    image_folder(source, COUNT, SIZE)
    store = context.folder / "import-store"
    rates: list[float] = []
    disks, amplifications = [], []
    for _ in context.repeat(rates):
        shutil.rmtree(store, ignore_errors=True)
        disks.append(write_rate(context))
        start = time.perf_counter()
        pid = os.posix_spawn(
            context.binary,
            [str(context.binary), "import", "--store", str(store), str(source / "images"), "bench"],
            dict(os.environ),
            file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
        )
        _, status, usage = os.wait4(pid, 0)
        seconds = time.perf_counter() - start
        if os.waitstatus_to_exitcode(status):
            raise RuntimeError(f"bowstring import ended with {os.waitstatus_to_exitcode(status)}")
        rates.append(COUNT * SIZE / 1e6 / seconds)
        amplifications.append(usage.ru_oublock * 512 / (COUNT * SIZE))
        emit(
            case="import",
            seconds=seconds,
            mb_per_s=rates[-1],
            disk_mb_per_s=disks[-1],
            cpu_s=usage.ru_utime + usage.ru_stime,
            write_amplification=amplifications[-1],
        )
    return Result(
        "import",
        [
            Figure("mb_per_s", rates),
            Figure("write_amplification", amplifications),
        ],
        {"disk_mb_per_s": round(median(disks), 1)},
    )
