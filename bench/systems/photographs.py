"""Photographs in a bucket behind links, as objects and as tars, and the stores that they are attached to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bucket import attach, linked, served
from cases.objects_cost import write_tars
from harness import Context, Stream, TimedReaders, shuffled
from nodes import Wire
from own.boxes import mds
from samples import SIZE, image_folder
from server import Server, spill

from .model import installed

BATCH = 64
SHARD = 480  # photographs of a tar
MDS_SHARD = 8 << 20  # bytes: with smaller shards than the default of 64 MiB the first batches come sooner


@dataclass
class Bucket:
    """A bucket with photographs, which datasets of a store are attached to, once for each link."""

    context: Context
    count: int
    urls: dict[str, str]  # http://HOST:PORT, by link

    @property
    def folder(self) -> Path:
        """The photographs as files, which are the objects."""
        return self.context.folder / f"bucket-{self.count}" / "bench" / "photos" / "images"

    @property
    def store(self) -> Path:
        """The store with the datasets."""
        return self.context.folder / f"store-{self.count}"

    def objects(self, link: str) -> str:
        """The address of the objects."""
        return f"{self.urls[link]}/bench/photos/images"

    def shards(self, link: str) -> str:
        """The address of the MDS shards, which are there if mosaicml-streaming is."""
        return f"{self.urls[link]}/bench/mds"

    def ours(
        self,
        link: str,
        kind: str = "files",
        *flags: str,
        held: float = 0,
        compute: float = 0,
        epochs: int = 1,
        batches: int = 0,
        seconds: float = 200,
        first: int = 0,
    ) -> Stream:
        """Read from a new server, whose spill has room for `held` photographs; what came when."""
        stream = {
            "compute": compute,
            "batches": batches,
            "ticket": shuffled(
                seed=7, epoch=first, batch=BATCH, epochs=epochs, dataset=f"{kind}-{link}", columns=["id", "image"]
            ),
        }
        with contextlib.ExitStack() as stack:
            room = stack.enter_context(spill(self.context.folder, held)) if held else []
            server = stack.enter_context(Server(self.context.binary, self.store, *flags, *room))
            (got,) = TimedReaders(server.url, seconds, [stream]).run()
        return got


@contextlib.contextmanager
def bucket(context: Context, count: int, links: Mapping[str, float | Wire | None]) -> Iterator[Bucket]:
    """A bucket at the ends of links, with datasets `files-LINK` and `tars-LINK` in a store."""
    root = context.folder / f"bucket-{count}"
    image_folder(root / "bench/photos", count, SIZE)
    if not (root / "bench/tars").exists():
        write_tars(root / "bench/photos", root / "bench/tars", min(SHARD, count))
    if installed(context, "mosaicml") and not (root / "bench/mds").exists():
        paths = sorted((root / "bench/photos").rglob("*.jpg"), key=lambda path: path.name)
        rows = ({"id": int(path.stem), "data": path.read_bytes()} for path in paths)
        mds(root / "bench", {"id": "int", "data": "bytes"}, rows, MDS_SHARD)
    with served(context.binary, root) as url, linked(context.binary, url, links) as urls:
        made = Bucket(context, count, urls)
        for link, place in urls.items():
            attach(context, made.store, place, "bench/photos/images", f"files-{link}")
            attach(context, made.store, place, "bench/tars", f"tars-{link}")
        yield made
