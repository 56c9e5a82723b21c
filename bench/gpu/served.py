"""The data of a run, and servers of it whose store is as far away as a cell wants."""

from __future__ import annotations

import contextlib
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import bowstring
import numpy as np
import pyarrow as pa
from bowstring.errors import BowstringError
from node import Node

from gpu.sizes import Sizes

DELAYS = 0, 20, 150  # milliseconds of a round trip to the store
TRANSPORTS = "tcp", "shared"
PIECE = 64 << 20  # bytes; a batch of pixels has 39 MB
TOKENS = 257  # a token is a byte and 1; 0 is padding


def photographs(url: str) -> bowstring.Dataset:
    """The photographs at a server. A batch of pixels comes in one piece, so that the client copies nothing."""
    return bowstring.connect(url).dataset("photos").options(batch_bytes=PIECE)


class Data:
    """A store of photographs (`photos`) and of text as tokens (`text`)."""

    def __init__(self, programs: Path, photos: Path, work: Path, sizes: Sizes) -> None:
        self._programs, self._work, self._sizes = programs, work, sizes
        self._store = work / "store"
        self._import(sorted(photos.glob("*.jpg")))

    def _import(self, photos: list[Path]) -> None:
        """Write the store. Each sample is a file of its own, because a server reads equal bytes only once."""
        rows = range(self._sizes.rows)
        read = [path.read_bytes() for path in photos]
        # A comment with the row's number, after the marker that begins a JPEG.
        cells = [read[n % len(read)][:2] + b"\xff\xfe\0\x0a%08d" % n + read[n % len(read)][2:] for n in rows]
        table = pa.table(
            {
                "key": [str(n) for n in rows],
                "label": pa.array([n % len(photos) % 10 for n in rows], pa.int64()),
                "image": pa.array(cells, pa.large_binary()),
            }
        )
        with Node(self._programs / "bowstring", self._store, log=self._work / "import.log") as node:
            client = bowstring.connect(node.url)
            client.ingest("photos", table, key="key", media={"image": "image"}, progress=False)
            client.ingest("text", self._text(), key="key", progress=False)

    def _text(self) -> pa.Table:
        """The sources of Python's standard library, which each machine has, as tokens of bytes."""
        library = Path(sysconfig.get_path("stdlib"))
        files = (f for f in sorted(library.rglob("*.py")) if not {"site-packages", "dist-packages"} & set(f.parts))
        texts = [f.read_bytes() for f, _ in zip(files, range(self._sizes.documents), strict=False)]
        tokens = [np.frombuffer(text, np.uint8).astype(np.uint16) + np.uint16(1) for text in texts if text]
        keys = [str(n) for n in range(len(tokens))]
        return pa.table({"key": keys, "tokens": pa.array(tokens, pa.list_(pa.uint16()))})

    @contextlib.contextmanager
    def server(self, delay: int, transport: str) -> Iterator[str]:
        """The address of a server. It keeps no samples, so each epoch crosses the link to the store."""
        options = [f"--rtt={delay}ms"] if delay else []
        if transport == "shared":
            socket = self._work / "socket"
            options += [f"--local={socket}", f"--local-ring={self._sizes.ring}", "--local-memory=16GiB"]
        program = self._programs / ("bowstring-lab" if delay else "bowstring")
        node = Node(program, self._store, *options, log=self._work / "server.log")
        node.start()
        try:
            self._check(node.url, transport)
            yield node.url
        finally:
            node.kill()  # streams of a loader are open

    def _check(self, url: str, transport: str) -> None:
        """A client that does not get the shared memory reads over TCP; its figures would have the wrong name."""
        with bowstring.connect(url) as client, client.dataset("photos").batches(self._sizes.batch) as batches:
            next(batches)
            got = (batches.place or {}).get("transport")
        if got != transport:
            raise BowstringError(f"the server's blobs came by {got}, want {transport}")
