"""first_hour: the four commands of docs/python/first-hour.md, in a root file system with Python alone.

The package comes as a wheel from a folder, with wheels of all that it requires. Only torch is installed already, as
it has gigabytes. The photographs are 10,000 files. The bucket has 100,000 smaller ones in tars, in a real server of S3.
Commands and programs are those of the page.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import io
import itertools
import os
import random
import re
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import clean_root
import pyarrow.fs
import wheels
from bowstring import demo
from harness import Context, Figure, Need, Result, disk, emit, needs, program
from PIL import Image
from ports import free_port
from sizes import sized

PHOTOGRAPHS = sized(10_000, smoke=300)
OBJECTS, TARS = sized(100_000, smoke=1_000), sized(100, smoke=4)
PHOTOGRAPH, THUMBNAIL = (480, 360), (128, 96)
AT_ONCE = 64  # that are drawn side by side
PATIENCE = 300  # seconds for what is bound to happen
PAGE = "docs/python/first-hour.md"
KEY, SECRET = "first-hour", "first-hour-secret-0123456789"

ROOT = Need("root", lambda: "" if os.geteuid() == 0 else "chroot needs root")


@needs(ROOT, program("go", "unshare", "chroot"))
def run(context: Context) -> Result:
    """Follow the page."""
    page = (context.root / PAGE).read_text()
    commands, (bucket,) = (block.splitlines() for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL))
    first, train = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    install, read, job, limit = commands
    root = context.folder / "first-hour"
    clean_root.make(root)
    home = root / clean_root.HOME
    (home / "first.py").write_text(first)
    (home / "train.py").write_text(train)
    folder = home / "photos"
    size = photographs(folder)
    with s3(context) as endpoint:
        stored = fill(endpoint)
        (home / "build/wheels").mkdir(parents=True)
        wheels.build(context.root / "python", context.binary, home / "build/wheels")
        installed = {distribution.name for distribution in wheels.needed("torch")}
        for distribution in wheels.needed("bowstring[torch]"):
            if distribution.name in installed:
                wheels.link(distribution, clean_root.site(root), root / clean_root.PROGRAMS)
            elif distribution.name != "bowstring":
                wheels.pack(distribution, home / "build/wheels")
        environment = {"PIP_NO_INDEX": "1", "AWS_ENDPOINT_URL": endpoint, "AWS_REGION": "us-east-1"}
        with clean_root.Shell(root, AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET, **environment) as shell:
            done(shell, "python -m ensurepip")
            (root / clean_root.PROGRAMS / "pip").symlink_to("pip3")  # as Python's images have it
            install_seconds = done(shell, install)
            shutil.rmtree(home / "build")
            seconds = done(shell, read)
            ddp, which = trained(shell, job, limit)
            in_bucket = done(shell, bucket)
    buckets = next((home / ".cache/bowstring/open").glob("*/buckets"))
    copied = disk(buckets / "store") / stored
    emit(
        case="first_hour",
        photographs=PHOTOGRAPHS,
        photographs_mb=round(size / 1e6),
        objects=OBJECTS,
        bucket_mb=round(stored / 1e6),
        cached_share=round(disk(buckets / "spill") / stored, 3),
    )
    return Result(
        "first_hour",
        [
            Figure("commands", len(commands)),
            Figure("seconds", seconds),
            Figure("ddp_seconds", ddp),
            Figure("which_side_seconds", which),
            Figure("bucket_seconds", in_bucket),
            Figure("bucket_copied_share", copied),
        ],
        {"install_seconds": round(install_seconds, 1)},
    )


def done(shell: clean_root.Shell, command: str) -> float:
    """The seconds that a command takes."""
    found = shell.run(command)
    emit(case="first_hour", command=command, seconds=round(found.seconds, 2), said=found.said[-300:])
    if found.status:
        raise RuntimeError(f"{command} ended with {found.status}: {found.said[-3000:]}")
    return found.seconds


def trained(shell: clean_root.Shell, job: str, limit: str) -> tuple[float, float]:
    """The seconds until both ranks have made a step, and those of the answer which side limits them."""
    begun = time.monotonic()
    shell.start(job, "job")
    while not all(f"rank {rank}, epoch 0, step 0" in shell.said("job") for rank in range(2)):
        if time.monotonic() > begun + PATIENCE or "Error" in shell.said("job"):
            raise RuntimeError(f"{job}: {shell.said('job')[-3000:]}")
        time.sleep(0.05)
    ddp = time.monotonic() - begun
    emit(case="first_hour", command=job, seconds=round(ddp, 2), said=shell.said("job")[-300:])
    found = shell.run(limit)
    emit(case="first_hour", command=limit, seconds=round(found.seconds, 2), said=found.said)
    limits = re.findall(r"DoGet .* (consumer|store|spill|encode|operators|window|nodes)$", found.said, re.MULTILINE)
    if found.status or not limits:
        raise RuntimeError(f"{limit} does not name a limit: {found.said}\nthe job: {shell.said('job')[-1000:]}")
    shell.end()
    return ddp, found.seconds


@contextlib.contextmanager
def s3(context: Context) -> Iterator[str]:
    """The URL of a real server of S3, from its Go module, over a folder with a bucket."""
    servers = Path(os.environ.get("BOWSTRING_OBJECT_SERVERS", context.root / "build/objects"))
    subprocess.run([context.root / "tests/objects/objects.sh", "fetch"], check=True)
    folder = context.folder / "s3"
    (folder / "training").mkdir(parents=True)
    at = f"127.0.0.1:{free_port()}"
    command: list[str | Path] = [
        "--access",
        KEY,
        "--secret",
        SECRET,
        "--port",
        at,
        "--quiet",
        "--keep-alive",
        "posix",
        folder,
    ]
    with subprocess.Popen([servers / "versitygw", *command], stdout=subprocess.DEVNULL) as server:
        try:
            yield f"http://{at}"
        finally:
            server.terminate()


def sources() -> dict[str, Image.Image]:
    """The photographs of the demo, by name."""
    folder = Path(demo.__file__).with_name("photographs")
    return {path.stem: Image.open(path).convert("RGB") for path in sorted(folder.glob("*.jpg"))}


def cut(source: Image.Image, seed: str, size: tuple[int, int]) -> bytes:
    """A JPEG file of a part of a photograph."""
    rng = random.Random(seed)
    width, height = (int(side * rng.uniform(0.4, 0.9)) for side in source.size)
    left, top = int(rng.random() * (source.width - width)), int(rng.random() * (source.height - height))
    out = io.BytesIO()
    part = source.resize(size, Image.Resampling.BILINEAR, (left, top, left + width, top + height))
    part.save(out, "JPEG", quality=88)
    return out.getvalue()


def drawn(count: int, size: tuple[int, int]) -> Iterator[tuple[str, str, bytes]]:
    """As many different photographs: class, name and file. Pillow works beside other threads."""
    found = list(sources().items())

    def draw(number: int) -> tuple[str, str, bytes]:
        label, source = found[number % len(found)]
        return label, f"{number:06}", cut(source, f"{label}/{number}", size)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        for first in range(0, count, AT_ONCE):
            yield from pool.map(draw, range(first, min(first + AT_ONCE, count)))


def photographs(folder: Path) -> int:
    """Write the photographs, with a folder for each class, and return their bytes."""
    total = 0
    for label, name, body in drawn(PHOTOGRAPHS, PHOTOGRAPH):
        path = folder / label / f"{name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        total += path.write_bytes(body)
    return total


def fill(endpoint: str) -> int:
    """Put tars of thumbnails into the bucket, and return their bytes."""
    store = pyarrow.fs.S3FileSystem(access_key=KEY, secret_key=SECRET, endpoint_override=endpoint, region="us-east-1")
    classes, thumbnails, total = list(sources()), drawn(OBJECTS, THUMBNAIL), 0
    for shard in range(TARS):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            for label, name, image in itertools.islice(thumbnails, OBJECTS // TARS):
                for suffix, body in (("jpg", image), ("cls", str(classes.index(label)).encode())):
                    member = tarfile.TarInfo(f"{name}.{suffix}")
                    member.size = len(body)
                    tar.addfile(member, io.BytesIO(body))
        with store.open_output_stream(f"training/shards/train-{shard:05}.tar") as stream:
            stream.write(out.getvalue())
        total += len(out.getvalue())
    return total
