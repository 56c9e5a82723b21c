"""Streams that are broken off in all ways of bench/breaker.py, killed readers and cut connections among them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from bowstring.errors import BowstringError
from breaker import Breaker

from soak.client import Reader

WAYS = ("leave", "ring", "operators", "cancel", "deadline", "close", "exchange", "cut", "kill")


class Client(Reader):
    """It checks nothing: what its servers hold afterwards is sampled."""

    def __init__(self, spec: dict[str, Any]) -> None:
        super().__init__(spec)
        self._breakers = [Breaker(url) for url in self.urls]

    def turn(self, number: int) -> None:
        breaker = self._breakers[number % len(self._breakers)]
        for way in WAYS:
            self.beat()
            try:
                getattr(breaker, way)(number)
                self.found["broken_off"] += 1
            except (BowstringError, pa.ArrowException, OSError, RuntimeError) as error:
                self.found["broken"] += 1
                self.errors = [f"{way}: {error}"[:300]]
                self.pause(1)
