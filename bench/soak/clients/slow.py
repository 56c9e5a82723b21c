"""A reader that takes a batch now and then, so that its server holds what it has made for it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from soak import content
from soak.client import Reader


class Client(Reader):
    """Its epochs take a minute."""

    def turn(self, number: int) -> None:
        def each(_: Any, __: pa.RecordBatch) -> None:
            self.pause(self.random.uniform(0, 6))

        self.epoch(lambda: self.dataset().shuffle(self.spec["seed"]), range(content.SAMPLES), each=each, epoch=number)
