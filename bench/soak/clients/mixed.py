"""Mixtures of stored and attached data. Each sample of each source comes once in an epoch."""

from __future__ import annotations

import bowstring

from soak import content
from soak.client import COLUMNS, Reader

SOURCES = (content.DATASET, content.ATTACHED)


class Client(Reader):
    """A source is as large as the other."""

    def turn(self, number: int) -> None:
        def mixture() -> bowstring.Dataset:
            sources = {name: self.client.dataset(name) for name in SOURCES}
            mixed = bowstring.mixture(sources, repeat=dict.fromkeys(SOURCES, 1))
            return mixed.columns(["source", *COLUMNS]).shuffle(self.spec["seed"])

        self.epoch(
            mixture,
            [(name, position) for name in SOURCES for position in range(content.SAMPLES)],
            identity=lambda batch: zip(
                batch.column("source").to_pylist(), batch.column("position").to_pylist(), strict=True
            ),
            epoch=number,
        )
