"""Documents of tokens in sequences. Each document is whole, and comes once."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator

import pyarrow as pa

from soak import content
from soak.client import Reader


def documents(batch: pa.RecordBatch) -> Iterator[list[int]]:
    """The documents of a batch's sequences."""
    ends = batch.column("cu_seqlens").to_pylist()
    for sequence, bounds in zip(batch.column("tokens").to_pylist(), ends, strict=True):
        for begin, end in itertools.pairwise(bounds):
            yield sequence[begin:end]


class Client(Reader):
    """Sequences are packed anew in each epoch."""

    batch = 8

    def turn(self, number: int) -> None:
        pack = {"length": content.LENGTH, "column": "tokens", "by": ("best_fit", "first_fit")[number % 2]}
        self.epoch(
            lambda: (
                self.client.dataset(content.DATASET)
                .shuffle(self.spec["seed"])
                .options(pack=pack)
                .columns(["tokens", "cu_seqlens"])
            ),
            range(content.SAMPLES),
            check=lambda batch: sum(found != content.tokens(found[0]) for found in documents(batch)),
            identity=lambda batch: collections.Counter(found[0] for found in documents(batch)).elements(),
            epoch=number,
        )
