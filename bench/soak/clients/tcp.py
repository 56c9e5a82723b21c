"""Shuffled epochs by TCP, and batches of all sizes."""

from __future__ import annotations

from soak import content
from soak.client import Reader


class Client(Reader):
    """Its environment has BOWSTRING_LOCAL=off."""

    def turn(self, number: int) -> None:
        self.batch = self.random.choice([7, 32, 100])
        self.epoch(lambda: self.dataset().shuffle(self.spec["seed"]), range(content.SAMPLES), epoch=number)
