"""Streams that are left in the middle and resumed by their ticket, as text, by a new client at the next server."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from soak import content
from soak.client import Reader


class Client(Reader):
    """It leaves a stream after a quarter of the batches."""

    def turn(self, number: int) -> None:
        def each(_: Any, __: pa.RecordBatch) -> str:
            if self.random.random() < 0.25:
                self.elsewhere()
                return "leave"
            return ""

        self.epoch(lambda: self.dataset().shuffle(self.spec["seed"]), range(content.SAMPLES), each=each, epoch=number)
