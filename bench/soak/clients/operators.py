"""Images that become arrays, at the server and in a process beside the client in rotation."""

from __future__ import annotations

import collections
from typing import Literal

import pyarrow as pa

from soak import content
from soak.client import Reader


class Client(Reader):
    """Arrays have to be those of the first epoch, which was made at the server."""

    def __init__(self, spec: dict[str, object]) -> None:
        super().__init__(spec)
        self._pixels: dict[int, bytes] = {}
        self.found = collections.Counter()

    def check(self, batch: pa.RecordBatch) -> int:
        """How many arrays differ from those that were made before, or from the size that they have to have."""
        found = 0
        images = batch.column("image")
        storage = images.storage if isinstance(images, pa.ExtensionArray) else images
        for key, array in zip(batch.column("key").to_pylist(), storage, strict=True):
            digest = content.digest_of(array.values.to_numpy(zero_copy_only=False).tobytes())
            found += self._pixels.setdefault(key, digest) != digest
        return found

    def turn(self, number: int) -> None:
        place: Literal["client", "server"] = "client" if number % 2 else "server"
        self.epoch(
            lambda: self.dataset().shuffle(self.spec["seed"]).operators(image=content.OPERATORS).options(place=place),
            range(content.SAMPLES),
            check=self.check,
            epoch=number,
        )
        if len(self._pixels) == content.SAMPLES and len(set(self._pixels.values())) < content.SAMPLES:
            self.found["wrong"] += 1  # two samples have the same array
