"""Epochs of data that stays in a bucket."""

from __future__ import annotations

from soak import content
from soak.client import Reader


class Client(Reader):
    """The dataset is attached, and its bucket fails now and then."""

    def turn(self, number: int) -> None:
        self.epoch(
            lambda: self.dataset(content.ATTACHED).shuffle(self.spec["seed"]), range(content.SAMPLES), epoch=number
        )
