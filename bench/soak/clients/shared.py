"""Epochs by shared memory, copied into a ring or read in place. Batches are kept and checked again later."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from soak import content
from soak.client import Reader

KEPT = 3


class Client(Reader):
    """Its server shares memory with it."""

    def turn(self, number: int) -> None:
        kept: list[pa.RecordBatch] = []

        def each(batches: Any, batch: pa.RecordBatch) -> None:
            kept.append(batch)
            if len(kept) > KEPT:  # the server must not have written its memory anew
                self.found["wrong"] += content.wrong(kept.pop(0))
            if batches.place and batches.place["transport"] != "tcp":
                self.found["shared"] += 1

        self.epoch(
            lambda: self.dataset().shuffle(self.spec["seed"]),
            range(content.SAMPLES),
            each=each,
            epoch=number,
            references=bool(number % 2),
        )
